"""A federation without a network: nodes in this process, whose answers pass through whatever a test makes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sordino.data import load
from sordino.models import build_model
from sordino.network.federation import Across
from sordino.network.node import Node, NodeSettings
from sordino.network.wire import packed, unpacked

DIGITS = load("digits")
LOSS = nn.CrossEntropyLoss(reduction="none")
MODEL = "mlp:16"
NODES, PER_NODE = 4, 3
PARTS = np.array_split(np.random.default_rng(0).permutation(len(DIGITS.train[1])), NODES * PER_NODE)

Meddler = Callable[[int, bytes], bytes | None]


def fresh_model() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return build_model(MODEL, (1, 8, 8), 10)


def weights_of(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def files(folder: Path) -> list[Path]:
    """The rows of each node, with an array that says whose they are."""
    inputs, targets = DIGITS.train
    found = []
    for node in range(NODES):
        some = PARTS[PER_NODE * node : PER_NODE * (node + 1)]
        rows = np.concatenate(some)
        users = np.repeat(range(PER_NODE), [len(part) for part in some])
        found.append(folder / f"rows{node}.npz")
        np.savez(found[-1], x=inputs[rows].numpy(), y=targets[rows].numpy(), users=users)
    return found


def nodes_in(folder: Path, **settings: Any) -> dict[int, Node]:
    return {
        100 + i: Node(
            NodeSettings(name=f"node{i}", data=str(file), state=str(folder / f"state{i}"), **settings)
        )
        for i, file in enumerate(files(folder))
    }


class MemoryLink:
    """Answers come in the reverse order of the nodes. ``meddle`` sees each answer, and may change or take it."""

    def __init__(self, nodes: dict[int, Node], meddle: Meddler = lambda node, answer: answer) -> None:
        self.there, self.meddle = nodes, meddle
        self.asked: list[tuple[int, bytes, bytes]] = []

    def nodes(self) -> list[int]:
        return list(self.there)

    def ask(
        self, questions: Mapping[int, bytes], shared: bytes, most: Mapping[int, int], patience: float
    ) -> Iterator[tuple[int, bytes | None]]:
        for node in reversed(list(questions)):
            self.asked.append((node, questions[node], shared))
            answer = self.there[node].answer(questions[node], shared) if node in self.there else None
            yield node, None if answer is None else self.meddle(node, answer)


def across(link: Any, bound: bool = True) -> Across:
    return Across(link, NODES, "memory", bound, ("nodes are in this process",))


def changed(message: bytes, header: Mapping[str, Any] = {}, vectors: Mapping[str, Tensor] = {}) -> bytes:
    """A message with some of it replaced; a value None takes it away."""
    said, held = unpacked(message, len(message))
    said, held = {**said, **header}, {**held, **vectors}
    return packed(
        {k: v for k, v in said.items() if v is not None}, {k: v for k, v in held.items() if v is not None}
    )
