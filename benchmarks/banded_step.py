"""What banded noise costs: a step with 2, 8, 16 and 64 bands beside a DP-SGD step.

Every step takes back part of the noise of the last steps, of as many vectors as there are bands. All take turns in one
process on the same model and batch size, in a new order each round; medians of the ratios to the DP-SGD step of the
same round are compared. Batches are Poisson samples; with bands they are drawn from groups that take turns.

    python benchmarks/banded_step.py            # about two minutes on two cores
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import nn

from sordino import Banded, Gate, Poisson, dp_sgd, models
from sordino.steps import Plan

BANDS = (1, 2, 8, 16, 64)  # one band is DP-SGD
CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int, float]] = {
    "MLP, 334,336": (models.mnist_mlp, (1, 28, 28), 256, 1.3),
    "FC, 1,055,000": (models.cifar_fc, (1600,), 256, 1.3),
    "DP-FTRL CNN, 26,010": (models.dp_ftrl_cnn, (1, 28, 28), 512, 1.1),
    "OSO CNN, 551,322": (models.oso_cnn, (1, 28, 28), 128, 1.1),
}
EPOCH, STEPS = 64, 2048  # steps of an epoch, and of a run


def stepper(
    bands: int,
    make: Callable[[], nn.Module],
    shape: tuple[int, ...],
    batch: int,
    microbatches: list[int | None],
) -> Callable[[], None]:
    method, noise = dp_sgd(0.01), Banded(bands)
    torch.manual_seed(1)
    rows = EPOCH * batch
    # One row for all: what is measured does not depend on what is in it, and memory is for noise.
    inputs, targets = torch.randn(1, *shape).expand(rows, *shape), torch.randint(10, (rows,))
    gate = Gate(
        make(),
        nn.CrossEntropyLoss(reduction="none"),
        (inputs, targets),
        clip=method.clip,
        noise_multiplier=1.0,
        sampling=noise.dealt(Poisson(1 / EPOCH), rows),
        noise=noise,
        steps=STEPS,
        seed=1,
        microbatch=microbatches[0] if microbatches else None,
    )
    microbatches.append(gate.engine.microbatch)  # that of the first, which measured it, for all
    plan = Plan(len(gate.theta), STEPS, STEPS, EPOCH, batch, 1.0, gate.engine.vector.size)
    state = method.step.start(gate.theta, plan)

    def step() -> None:
        method.step.step(partial(gate, adapt=False), gate.theta, partial(method.rate.rate, 0, {}), state)

    return step


def measure(steps: dict[int, Callable[[], None]], rounds: int) -> dict[int, list[float]]:
    times: dict[int, list[float]] = {bands: [] for bands in steps}
    for number in range(rounds + 3):
        for bands in random.sample(list(steps), len(steps)):
            started = time.perf_counter()
            steps[bands]()
            if number >= 3:  # the first ones warm up
                times[bands].append(time.perf_counter() - started)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "banded_step.md")
    chosen = parser.parse_args()
    lines = [
        "# What banded noise costs",
        "",
        f"`python benchmarks/banded_step.py --rounds {chosen.rounds}`, torch {torch.__version__}, "
        f"{torch.get_num_threads()} threads. Goals: at most 1.1 times a DP-SGD step on convolutions and 1.3 times on "
        "fully connected models.",
        "",
        f"| model, parameters | batch | DP-SGD step, ms | {' | '.join(f'{b} bands' for b in BANDS[1:])} | goal |",
        "|---|---|---|" + "---|" * len(BANDS),
    ]
    for name, (make, shape, batch, goal) in CASES.items():
        same: list[int | None] = []
        times = measure({bands: stepper(bands, make, shape, batch, same) for bands in BANDS}, chosen.rounds)
        base = times[1]
        ratios = [
            statistics.median(t / b for t, b in zip(times[bands], base, strict=True)) for bands in BANDS[1:]
        ]
        met = "met" if max(ratios) <= goal else "missed"
        cells = " | ".join(f"{ratio:.2f}" for ratio in ratios)
        lines.append(
            f"| {name} | {batch} | {1000 * statistics.median(base):.1f} | {cells} | {goal:g}, {met} |"
        )
        print(lines[-1], flush=True)
    chosen.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
