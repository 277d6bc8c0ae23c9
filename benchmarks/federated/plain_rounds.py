"""Federated averaging as a plain PyTorch loop, for federated_round.py."""

from __future__ import annotations

import torch
from workload import CLIENTS, PER_ROUND, Data, Stopwatch, new_model, options, report, train_client


def main() -> None:
    chosen = options()
    torch.set_num_threads(chosen.threads)
    data, model, stopwatch = Data.of(chosen.data), new_model(chosen.case), Stopwatch()
    parameters = list(model.parameters())
    for _ in range(chosen.rounds):
        theta = [p.detach().clone() for p in parameters]
        mean = [torch.zeros_like(p) for p in theta]
        for client in torch.randperm(CLIENTS)[:PER_ROUND].tolist():
            set_to(parameters, theta)
            train_client(model, *data.client(client), chosen.epochs)
            for total, p in zip(mean, parameters, strict=True):
                total.add_(p.detach(), alpha=1 / PER_ROUND)
        set_to(parameters, mean)
        stopwatch()
    report(chosen, stopwatch, model, data, torch.__version__)


@torch.no_grad()
def set_to(parameters: list[torch.nn.Parameter], values: list[torch.Tensor]) -> None:
    for p, value in zip(parameters, values, strict=True):
        p.copy_(value)


if __name__ == "__main__":
    main()
