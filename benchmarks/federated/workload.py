"""The work that all contenders of federated_round.py do, and the one line of JSON in which each reports it.

Imports PyTorch and NumPy only: the scripts beside this one run in the environments of their own frameworks.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

CLIENTS, EXAMPLES, PER_ROUND = 100, 450, 10
BATCH, RATE = 45, 0.1  # ten whole batches an epoch
SEED = 20_240_501


def mlp() -> nn.Sequential:
    """784-100-100-10, 89,610 parameters."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10)
    )


def cnn() -> nn.Sequential:
    """The CIFAR network of AdaBest, 797,962 parameters."""
    return nn.Sequential(
        *(nn.Conv2d(3, 64, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(64, 64, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(1600, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU(), nn.Linear(192, 10)),
    )


MODELS: dict[str, Callable[[], nn.Sequential]] = {"mlp": mlp, "cnn": cnn}


def new_model(case: str) -> nn.Sequential:
    """The same initial parameters in every contender."""
    torch.manual_seed(SEED)
    return MODELS[case]()


@dataclass(frozen=True, eq=False)
class Data:
    """Client k holds the rows from k * EXAMPLES on; the probe is to see that all learn alike."""

    inputs: Tensor
    targets: Tensor
    probe: tuple[Tensor, Tensor]

    @classmethod
    def of(cls, folder: str) -> Data:
        # Mapped copy-on-write: each process has in memory only what it touches, whoever the contender.
        arrays = [np.load(Path(folder) / f"{name}.npy", mmap_mode="c") for name in NAMES]
        inputs, targets, *probe = (torch.from_numpy(np.asarray(array)) for array in arrays)
        return cls(inputs, targets, (probe[0], probe[1]))

    def save(self, folder: Path) -> None:
        for name, tensor in zip(NAMES, (self.inputs, self.targets, *self.probe), strict=True):
            np.save(folder / f"{name}.npy", tensor.numpy())

    def client(self, number: int) -> tuple[Tensor, Tensor]:
        rows = slice(number * EXAMPLES, (number + 1) * EXAMPLES)
        return self.inputs[rows], self.targets[rows]


@functools.cache
def model_and_data(case: str, folder: str) -> tuple[nn.Sequential, Data]:
    """One of each for all clients that a process works for."""
    return new_model(case), Data.of(folder)


NAMES = ("inputs", "targets", "probe_inputs", "probe_targets")


def batches(inputs: Tensor, targets: Tensor, epochs: int) -> Iterator[tuple[Tensor, Tensor]]:
    """In a new order each epoch."""
    for _ in range(epochs):
        for rows in torch.randperm(len(targets)).split(BATCH):
            yield inputs[rows], targets[rows]


def train_client(model: nn.Module, inputs: Tensor, targets: Tensor, epochs: int) -> None:
    """Local SGD as one writes it in PyTorch; of the plain loop and of Flower's clients."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for batch, wanted in batches(inputs, targets, epochs):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch), wanted).backward()
        optimizer.step()


class Stopwatch:
    """Call at the end of every round: the first call ends the start-up and the first round."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def __call__(self) -> None:
        self.ends.append(time.time())


def options(**more: dict[str, Any]) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", choices=MODELS, required=True)
    parser.add_argument("--data", required=True, help="a folder that federated_round.py filled")
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--started", type=float, default=time.time(), help="when the process was started")
    for name, settings in more.items():
        parser.add_argument(f"--{name}", **settings)
    return parser.parse_args()


def report(
    chosen: argparse.Namespace, stopwatch: Stopwatch, model: nn.Module, data: Data, version: str
) -> None:
    """The last line that a contender prints."""
    ends = stopwatch.ends
    seconds = [end - start for start, end in itertools.pairwise(ends)]
    with torch.no_grad():
        outputs = model(data.probe[0])
    result = {
        "seconds": seconds,  # of the rounds from the second on
        "start_up": ends[0] - chosen.started - statistics.median(seconds),
        "loss": float(nn.functional.cross_entropy(outputs, data.probe[1])),
        "accuracy": float((outputs.argmax(1) == data.probe[1]).double().mean()),
        "parameters": sum(p.numel() for p in model.parameters()),
        "version": version,
        "torch": torch.__version__,
    }
    print(json.dumps(result), flush=True)
