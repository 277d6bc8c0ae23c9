"""Digits times a factor: the default method with inputs as they are, and standardised under its budget.

python benchmarks/standardise.py [--seeds 2] [--model mlp:64] [--epsilon 3]
"""

from __future__ import annotations

import argparse

import torch
from torch import nn

from sordino.data import load
from sordino.models import build_model
from sordino.training import train

FACTORS = (0.01, 0.1, 1.0, 10.0, 100.0)


def accuracy(factor: float, how: str, model: str, epsilon: float, seed: int) -> float:
    digits = load("digits")
    rows, held_out = ((part[0] * factor, part[1]) for part in (digits.train, digits.test))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = build_model(model, digits.input_shape, digits.classes)
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
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--model", default="mlp:64")
    parser.add_argument("--epsilon", type=float, default=3.0)
    asked = parser.parse_args()
    print(f"| inputs times | {' | '.join(f'{factor:g}' for factor in FACTORS)} |")
    print("|---" * (len(FACTORS) + 1) + "|")
    for how in ("none", "private"):
        found = []
        for factor in FACTORS:
            runs = [accuracy(factor, how, asked.model, asked.epsilon, seed) for seed in range(asked.seeds)]
            found.append(f"{100 * sum(runs) / len(runs):.1f}")
        print(f"| `--standardise {how}` | {' | '.join(found)} |", flush=True)


if __name__ == "__main__":
    main()
