"""Inputs times a factor, or shifted: the default method with inputs as they are, and standardised under its budget.

python benchmarks/standardise.py [--data digits] [--seeds 2] [--model mlp:64] [--epsilon 3] [--ways private]
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

from sordino.data import Loaded, load
from sordino.models import build_model
from sordino.training import train

FACTORS = (0.01, 0.1, 1.0, 10.0, 100.0)


SHIFT = 100.0


def accuracy(
    data: Loaded, factor: float, shift: float, how: str, model: str, epsilon: float, seed: int
) -> float:
    rows, held_out = ((part[0] * factor + shift, part[1]) for part in (data.train, data.test))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = build_model(model, data.input_shape, data.classes)
    run = train(
        network,
        nn.CrossEntropyLoss(reduction="none"),
        rows,
        budget=(epsilon, 1e-5),
        test=held_out,
        evaluations=1,
        standardise=how,
        seed=seed,
        progress=False,
        ledger=False,
    )
    return float(run.metrics["test_accuracy"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--ways", nargs="+", default=["none", "private"])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--model", default="mlp:64")
    parser.add_argument("--epsilon", type=float, default=3.0)
    asked = parser.parse_args()
    data = load(asked.data)
    print(
        f"| {asked.data}, inputs times | {' | '.join(f'{factor:g}' for factor in FACTORS)} | plus {SHIFT:g} |"
    )
    print("|---" * (len(FACTORS) + 2) + "|")
    for how in asked.ways:
        found = []
        for factor, shift in [*((factor, 0.0) for factor in FACTORS), (1.0, SHIFT)]:
            runs = [
                accuracy(data, factor, shift, how, asked.model, asked.epsilon, seed)
                for seed in range(asked.seeds)
            ]
            found.append(f"{100 * sum(runs) / len(runs):.1f}")
        print(f"| `--standardise {how}` | {' | '.join(found)} |", flush=True)


if __name__ == "__main__":
    main()
