"""What tuning itself costs: an OSO step, an ADADP iteration and a step of the default beside a DP-SGD step.

All take turns in one process on the same model and batch size, in a new order each round; medians of the ratios to
the DP-SGD step of the same round are compared. An ADADP iteration takes two gradients, so two steps are its floor.

    python benchmarks/self_tuning_step.py            # about two minutes on two cores
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

from sordino import Gate, Method, Poisson, adadp, auto, dp_sgd, models, oso
from sordino.steps import Plan

CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int, int]] = {
    "MLP, 334,336": (models.mnist_mlp, (1, 28, 28), 10, 256),
    "FC, 1,055,000": (models.cifar_fc, (1600,), 10, 256),
    "DP-FTRL CNN, 26,010": (models.dp_ftrl_cnn, (1, 28, 28), 10, 512),
    "OSO CNN, 551,322": (models.oso_cnn, (1, 28, 28), 10, 128),
    "bag of words, 113,156": (models.bag_of_words_fc, (750,), 4, 512),
}
METHODS = {
    "DP-SGD": dp_sgd(0.01),
    "OSO": oso(0.01),
    "ADADP": adadp(1e-3, threshold=1.0, tol=1.0),
    "default": auto(),
}
TARGETS = {"OSO": 1.25, "ADADP": 2.1}


def stepper(
    method: Method, case: tuple[Callable[[], nn.Module], tuple[int, ...], int, int]
) -> Callable[[], None]:
    make, shape, classes, batch = case
    torch.manual_seed(1)
    data = torch.randn(4 * batch, *shape), torch.randint(classes, (4 * batch,))
    gate = Gate(
        make(),
        nn.CrossEntropyLoss(reduction="none"),
        data,
        clip=method.clip,
        noise_multiplier=1.0,
        sampling=Poisson(0.25),
        seed=1,
    )
    plan = Plan(len(gate.theta), 1000, 2000, 4, batch, 1.0, gate.engine.vector.size)
    step_state, rate_state = method.step.start(gate.theta, plan), method.rate.start(plan, gate.theta)

    def step() -> None:
        nonlocal rate_state
        rate = partial(method.rate.rate, 0, rate_state)
        result = method.step.step(partial(gate, adapt=False), gate.theta, rate, step_state)
        rate_state = method.rate.update(rate_state, result, gate.theta)
        gate.adapt(*result.gradients)

    return step


def measure(
    case: tuple[Callable[[], nn.Module], tuple[int, ...], int, int], rounds: int
) -> dict[str, list[float]]:
    steps = {name: stepper(method, case) for name, method in METHODS.items()}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for number in range(rounds + 3):
        for name in random.sample(list(steps), len(steps)):
            started = time.perf_counter()
            steps[name]()
            if number >= 3:  # the first ones warm up
                times[name].append(time.perf_counter() - started)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "self_tuning_step.md")
    chosen = parser.parse_args()
    lines = [
        "| model, parameters | batch | DP-SGD step, ms | OSO / DP-SGD | ADADP / DP-SGD | default / DP-SGD |",
        "|---|---|---|---|---|---|",
    ]
    for name, case in CASES.items():
        times = measure(case, chosen.rounds)
        base = times["DP-SGD"]
        ratios = {m: statistics.median(t / b for t, b in zip(times[m], base, strict=True)) for m in METHODS}
        cells = [f"{ratios[m]:.2f}" for m in ("OSO", "ADADP", "default")]
        lines.append(f"| {name} | {case[3]} | {1000 * statistics.median(base):.1f} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    goals = ", ".join(f"{m} at most {t}" for m, t in TARGETS.items())
    header = f"# What tuning itself costs\n\n`python benchmarks/self_tuning_step.py`; goals: {goals}.\n\n"
    chosen.out.write_text(header + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
