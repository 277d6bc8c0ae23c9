"""The stages of one private step beside those of a plain one, in one run (medians, ms): where the surplus is.

python benchmarks/where_time_goes.py
"""

from __future__ import annotations

import copy
import itertools
import statistics
import time
from collections import defaultdict

import torch
from torch import nn

from sordino import Fixed, Gate, Poisson, models
from sordino.gradients import Norms
from sordino.gradients.capture import Capture
from sordino.gradients.factors import squared_norms
from sordino.noise import GaussianNoise, Streams

CASES = {"mlp": (models.mnist_mlp, 256, 784, 10), "bag_of_words": (models.bag_of_words_fc, 512, 750, 4)}


def stages(name: str, rounds: int = 150) -> dict[str, float]:
    build, batch, width, classes = CASES[name]
    model, loss = build(), nn.CrossEntropyLoss(reduction="none")
    plain = copy.deepcopy(model)
    optimiser = torch.optim.SGD(plain.parameters(), lr=0.01)
    x, y = torch.randn(batch, width), torch.randint(0, classes, (batch,))
    gate = Gate(model, loss, (x, y), clip=Fixed(1.0), noise_multiplier=1.0, sampling=Poisson(1.0), seed=1)
    gate()
    noise = GaussianNoise(Streams.from_seed(1))
    engine, seen = gate.engine, defaultdict(list)
    assert engine._plan is not None
    for step in range(rounds):
        marks = [("", time.perf_counter())]

        def mark(stage: str, marks: list[tuple[str, float]] = marks) -> None:
            marks.append((stage, time.perf_counter()))

        losses = loss(plain(x), y)
        mark("plain: forward")
        losses.mean().backward()
        mark("plain: backward")
        optimiser.step()
        optimiser.zero_grad()
        mark("plain: optimiser")
        with Capture(engine._parameters, batch, engine._plan) as capture:
            losses = loss(model(x), y)
        mark("forward, watched")
        capture.backward(losses)
        mark("backward to the layers' outputs")
        with torch.no_grad():
            factors = engine._joined(capture, x, y)
            squares = torch.stack([squared_norms(f) for f in factors])
            norms = Norms(engine._names, squares, squares.sum(0).sqrt())
            mark("norms")
            weights = gate.clip.weights(norms, gate.clip_state)[0].float()
            total = torch.empty(len(gate.theta))
            for out, uses in zip(total.split(engine._sizes), factors, strict=True):
                for factor in uses:
                    factor.add_weighted_sum(weights, out, True)
            mark("weighted sums")
            noise.add_(total, 1.0, "noise", step)
            mark("noise")
            gate.theta.add_(total.div_(batch), alpha=-1e-3)
            mark("update")
        for (_, before), (stage, after) in itertools.pairwise(marks):
            seen[stage].append(1e3 * (after - before))
    return {stage: statistics.median(times) for stage, times in seen.items()}


def main() -> None:
    results = {name: stages(name) for name in CASES}
    print("| stage (ms) | " + " | ".join(results) + " |\n| --- |" + " ---: |" * len(results))
    for stage in next(iter(results.values())):
        print(f"| {stage} | " + " | ".join(f"{result[stage]:.2f}" for result in results.values()) + " |")


if __name__ == "__main__":
    main()
