"""Rounds of `sordino.federate`, for federated_round.py."""

from __future__ import annotations

from importlib.metadata import version

import numpy as np
import torch
from workload import (
    BATCH,
    CLIENTS,
    EXAMPLES,
    PER_ROUND,
    RATE,
    SEED,
    Data,
    Stopwatch,
    new_model,
    options,
    report,
)


def main() -> None:
    chosen = options(
        algorithm={"default": "fedavg", "choices": ("fedavg", "adabest")},
        workers={"type": int, "default": None},
    )
    torch.set_num_threads(chosen.threads)
    from sordino.federated import federate

    data, stopwatch = Data.of(chosen.data), Stopwatch()

    def observe(_: object) -> dict[str, float]:
        stopwatch()
        return {}

    run = federate(
        new_model(chosen.case),
        torch.nn.CrossEntropyLoss(reduction="none"),
        (data.inputs, data.targets),
        clients=CLIENTS,
        partition=list(np.arange(CLIENTS * EXAMPLES).reshape(CLIENTS, EXAMPLES)),
        algorithm=chosen.algorithm,
        rounds=chosen.rounds,
        per_round=PER_ROUND,
        local_epochs=chosen.epochs,
        batch_size=BATCH,
        rate=RATE,
        decay=1.0,
        workers=chosen.workers,
        seed=SEED,
        progress=False,
        observe=observe,
    )
    report(chosen, stopwatch, run.model, data, version("sordino"))


if __name__ == "__main__":
    main()
