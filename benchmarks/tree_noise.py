"""What tree noise costs: a draw beside independent noise, and a DP-FTRL step beside a DP-SGD step.

A tree draws two nodes a step on average but not the same number at every step, so whole blocks of 64 steps are timed.
All take turns in one process, in a new order each round; medians of the ratios within a round are compared. DP-SGD
and DP-FTRL see the same batches, in the order of the data.

    python benchmarks/tree_noise.py            # about two minutes on two cores
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

from sordino import FixedOrder, Gate, Gaussian, Method, Tree, dp_ftrl, dp_sgd, models
from sordino.noise import GaussianNoise, Mechanism, Streams
from sordino.steps import Plan

BLOCK, STEPS = 64, 1024  # steps of a block, and of a tree
Block = Callable[[], None]
NOISES: dict[str, Mechanism] = {
    "independent": Gaussian(),
    "vanilla tree": Tree(efficient=False, restart_every=None),
    "efficient tree": Tree(restart_every=None),
}
METHODS = {
    "DP-SGD": dp_sgd(0.01),
    "FTRL, vanilla": dp_ftrl(0.01, momentum=0.0, efficient=False, restart_every=None),
    "FTRL, efficient": dp_ftrl(0.01, momentum=0.0, restart_every=None),
    "FTRLM, efficient": dp_ftrl(0.01, restart_every=None),
}
MODELS = {
    "DP-FTRL CNN, 26,010, batch 250": (models.dp_ftrl_cnn, (1, 28, 28), 250, 1.2),
    "FC, 1,055,000, batch 256": (models.cifar_fc, (1600,), 256, 1.6),
}


def draws(noise: Mechanism, size: int) -> Block:
    releases = noise.over(FixedOrder(1), STEPS, None if noise.independent else STEPS * 1000)
    draw, state, vector, step = GaussianNoise(Streams.from_seed(1)), releases.start(), torch.zeros(size), 0

    def block() -> None:
        nonlocal step
        for _ in range(BLOCK):
            releases.add_(vector, draw, 1.0, 1.0, step, state)
            step += 1

    return block


def steps(method: Method, make: Callable[[], nn.Module], shape: tuple[int, ...], batch: int) -> Block:
    torch.manual_seed(1)
    data = torch.randn(4 * batch, *shape), torch.randint(10, (4 * batch,))
    gate = Gate(
        make(),
        nn.CrossEntropyLoss(reduction="none"),
        data,
        clip=method.clip,
        noise_multiplier=1.0,
        sampling=FixedOrder(batch),
        noise=method.noise,
        steps=STEPS * 100,
        seed=1,
    )
    plan = Plan(len(gate.theta), STEPS, STEPS, 4, batch, 1.0)
    state = method.step.start(gate.theta, plan)

    def block() -> None:
        for _ in range(BLOCK):
            method.step.step(gate, gate.theta, partial(method.rate.rate, 0, {}), state)

    return block


def measure(blocks: dict[str, Block], rounds: int) -> dict[str, list[float]]:
    """Seconds a step, one for each round; the first round warms up."""
    times: dict[str, list[float]] = {name: [] for name in blocks}
    for number in range(rounds + 1):
        for name in random.sample(list(blocks), len(blocks)):
            started = time.perf_counter()
            blocks[name]()
            if number:
                times[name].append((time.perf_counter() - started) / BLOCK)
    return times


def table(title: str, times: dict[str, list[float]], target: float) -> list[str]:
    base, *_ = times
    lines = [f"| {title} | ms a step | ratio to {base} | goal |", "|---|---|---|---|"]
    for name, of in times.items():
        ratio = statistics.median(a / b for a, b in zip(of, times[base], strict=True))
        goal = "" if name == base else f"{target:g}, {'met' if ratio <= target else 'missed'}"
        lines.append(f"| {name} | {1000 * statistics.median(of):.3f} | {ratio:.2f} | {goal} |")
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results/tree_noise.md")
    arguments = parser.parse_args()
    lines = [
        "# Tree noise",
        "",
        f"`python benchmarks/tree_noise.py --rounds {arguments.rounds}`, torch {torch.__version__}, "
        f"{torch.get_num_threads()} threads, trees of {STEPS} steps, blocks of {BLOCK}.",
        "",
    ]
    for size in (26_010, 1_055_000):
        blocks = {name: draws(noise, size) for name, noise in NOISES.items()}
        lines += table(f"noise, {size:,} parameters", measure(blocks, arguments.rounds), 2.2)
    for name, (make, shape, batch, target) in MODELS.items():
        blocks = {label: steps(method, make, shape, batch) for label, method in METHODS.items()}
        lines += table(name, measure(blocks, arguments.rounds), target)
    arguments.out.parent.mkdir(exist_ok=True)
    arguments.out.write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
