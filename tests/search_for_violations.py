"""A search for units that move a released sum by more than their sensitivity, in exact arithmetic.

Models for every kind of factor, units made to break the arithmetic (cancelling, tiny, huge, not finite, constant,
repeated tokens, users of many rows) among benign ones, every clipping policy with its probes. A neighbour is the same
data with the unit zeroed out. What is compared is what the noise would be added to: sums rounded to the grid, which are
exact in double precision, and so is their difference.

    python tests/search_for_violations.py [seeds]        the search, and the largest ratio found
"""

from __future__ import annotations

import itertools
import math
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from sordino import Fixed, Gate, Normalised, Online, PerLayer, Poisson, Quantile
from sordino.clipping.policy import ClippingPolicy
from sordino.data import as_examples
from sordino.gradients import SlowGradients
from sordino.noise import GaussianNoise
from sordino.noise.grid import rounded_


def linear_loss(output: Tensor, target: Tensor) -> Tensor:
    """The gradient at the output is the target: an adversary's whole choice."""
    return (output.flatten(1) * target).sum(1)


class Function(nn.Module):
    def __init__(self, forward: Callable[..., Tensor], **parts: Any) -> None:
        super().__init__()
        self.function = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


@dataclass(frozen=True)
class Kind:
    """A model for a kind of factor, the shape of its inputs, and how many of these are tokens, of how many."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    outputs: int
    tokens: int = 0
    vocabulary: int = 7
    rows: int = 60


def _embedding_pair() -> nn.Module:
    return Function(lambda m, x: m.e(x.long()), e=nn.Embedding(7, 4))


def _tied() -> nn.Module:
    def forward(m: Any, x: Tensor) -> Tensor:
        logits = F.linear(x[:, 3:].unflatten(1, (2, 16)), m.e.weight)
        return torch.cat([logits.flatten(1), m.e(x[:, :3].long()).flatten(1)], 1)

    return Function(forward, e=nn.Embedding(40, 16))


def _used_twice() -> nn.Module:
    return Function(lambda m, x: m.a(x[:, :6]) - m.a(x[:, 6:]), a=nn.Linear(6, 5))


KINDS: dict[str, Kind] = {
    "linear": Kind(lambda: nn.Linear(6, 5), (6,), 5),
    "wide linear": Kind(lambda: nn.Linear(784, 1, bias=False), (784,), 1),
    "long linear": Kind(lambda: nn.Linear(400_000, 1, bias=False), (400_000,), 1, rows=4),
    "many rows": Kind(lambda: nn.Linear(3, 2), (3,), 2, rows=700),
    "sequence by gram": Kind(lambda: nn.Linear(64, 64), (4, 64), 256),
    "many sequences": Kind(lambda: nn.Linear(12, 12), (2, 12), 24, rows=300),
    "many embeddings": Kind(_embedding_pair, (4,), 16, tokens=4, rows=300),
    "sequence by gradients": Kind(lambda: nn.Linear(8, 8), (6, 8), 48),
    "wide sequence": Kind(lambda: nn.Linear(1500, 200, bias=False), (2, 1500), 400, rows=12),
    "matrix product": Kind(lambda: Function(lambda m, x: x @ m.w, w=nn.Parameter(torch.randn(64, 64))), (3, 64), 192),
    "convolution": Kind(lambda: nn.Conv2d(2, 3, 3), (2, 6, 6), 48),
    "convolution by gram": Kind(lambda: nn.Conv1d(16, 96, 3), (16, 6), 384),
    "transposed convolution": Kind(lambda: nn.ConvTranspose1d(3, 4, 3), (3, 5), 28),
    "grouped convolution": Kind(lambda: nn.Conv1d(4, 4, 3, groups=2), (4, 6), 16),
    "embedding": Kind(_embedding_pair, (4,), 16, tokens=4),
    "tied embedding and head": Kind(_tied, (35,), 128, tokens=3, vocabulary=40),
    "layer norm": Kind(lambda: nn.LayerNorm(6), (5, 6), 30),
    "group norm": Kind(lambda: nn.GroupNorm(2, 4), (4, 5), 20),
    "used twice": Kind(_used_twice, (12,), 5),
    "derived": Kind(lambda: weight_norm(nn.Linear(6, 5)), (4, 6), 20),
    "slice of a weight": Kind(
        lambda: Function(lambda m, x: F.linear(x, m.w[:3], m.w[3:, 0]), w=nn.Parameter(torch.randn(6, 5))), (5,), 3
    ),
    "added and multiplied": Kind(
        lambda: Function(lambda m, x: x * m.s + m.b, s=nn.Parameter(torch.ones(6)), b=nn.Parameter(torch.zeros(6))),
        (5, 6), 30,
    ),
    "without a rule": Kind(lambda: nn.Sequential(nn.Linear(6, 4), nn.PReLU(4)), (6,), 4),
    "lstm": Kind(lambda: Function(lambda m, x: m.l(x)[0], l=nn.LSTM(4, 6, batch_first=True)), (5, 4), 30),
    "attention": Kind(
        lambda: Function(lambda m, x: m.a(x, x, x, need_weights=False)[0],
                         a=nn.MultiheadAttention(8, 2, batch_first=True)), (4, 8), 32,
    ),
    "deep": Kind(lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3)),
                 (6,), 3),
}  # fmt: skip

POLICIES: dict[str, Callable[[float], ClippingPolicy]] = {
    "fixed": Fixed,
    "normalised": lambda c: Normalised(stability=c / 10),
    "quantile": lambda c: Quantile(0.5, c),
    "online": lambda c: Online(c),
    "per layer": PerLayer,
}


def _signs(size: int) -> Tensor:
    return 1.0 - 2.0 * (torch.arange(size) % 2)


def _alternating(kind: Kind) -> Tensor:
    """Gradients of opposite sign at neighbouring positions, so that constant positions cancel."""
    positions = max(1, kind.tokens) if kind.tokens else (kind.shape[0] if len(kind.shape) == 2 else 2)
    width = kind.outputs // positions if kind.outputs % positions == 0 else kind.outputs
    block = torch.randn(width)
    signs = _signs(math.ceil(kind.outputs / width))
    return (signs[:, None] * block).flatten()[: kind.outputs]


Unit = tuple[Tensor, Tensor]  # inputs and targets


def _made(kind: Kind, x: Tensor, t: Tensor) -> Unit:
    if kind.tokens:
        x = x.clone().flatten()
        x[: kind.tokens] = x[: kind.tokens].abs().nan_to_num(0, 0, 0).long() % kind.vocabulary
    return x.reshape(kind.shape), t


def adversaries(kind: Kind) -> Iterator[tuple[str, Unit]]:
    size = math.prod(kind.shape)
    x, t, ones = torch.randn(size), torch.randn(kind.outputs), torch.ones(size)
    alternating = _alternating(kind)
    halves = torch.cat([t[: kind.outputs // 2], -t[: kind.outputs - kind.outputs // 2]])
    for power in (3, 8, 10, 18):
        yield f"huge 1e{power}", _made(kind, x, t * 10.0**power)
        yield f"constant, cancelling, 1e{power}", _made(kind, ones, alternating * 10.0**power)
        yield f"constant, halves cancel, 1e{power}", _made(kind, ones, halves * 10.0**power)
    for rest in (3e-2, 1e-2, 1e-3, 1e-5, 1e-7):
        nearly = alternating * 1e6 * (1 + rest * torch.rand(kind.outputs))
        yield f"nearly cancelling {rest:g}", _made(kind, ones, nearly)
        yield f"nearly constant {rest:g}", _made(kind, ones + rest * torch.rand(size), alternating * 1e6)
    if kind.vocabulary == 40:  # tied: the head's gradient by token 1 against the embedding's
        for rest in (0.0, 1e-7, 1e-5, 1e-3):
            against = torch.zeros(kind.outputs)
            against[1], against[80:96] = 1e9, -1e9 * (1 + rest)
            yield f"head against embedding {rest:g}", _made(kind, ones, against)
        for large in (1e4, 1e6, 3e7, 1e9):  # a token against itself, but for a rest
            itself = torch.randn(kind.outputs)
            itself[96:112] = large * torch.randn(16)
            itself[112:128] = -itself[96:112] + torch.randn(16)
            yield f"token against itself {large:g}", _made(kind, ones + 0.1 * torch.rand(size), itself)
    yield "huge inputs", _made(kind, x * 1e9, t)
    yield "huge both", _made(kind, x * 1e9, t * 1e9)
    yield "squares vanish", _made(kind, torch.full((size,), 2.6e-23), torch.full((kind.outputs,), 1.8e18))
    yield "squares nearly vanish", _made(kind, torch.full((size,), 3e-20), torch.full((kind.outputs,), 1e17))
    mixed = torch.full((size,), 2.6e-23)
    mixed[:4] = 5e-23
    yield "some squares vanish", _made(kind, mixed, torch.full((kind.outputs,), 1.8e18))
    mirrored = torch.full((kind.outputs,), 2.6e-23)
    mirrored[:4] = 5e-23
    yield "some squares of targets vanish", _made(kind, torch.full((size,), 1e18), mirrored)
    yield "tiny targets", _made(kind, torch.full((size,), 1e17), torch.full((kind.outputs,), 2.6e-21))
    yield "tiny", _made(kind, x * 1e-25, t * 1e-25)
    yield "constant 0.7", _made(kind, torch.full((size,), 0.7), torch.full((kind.outputs,), 0.7))
    yield "constant 1.1", _made(kind, torch.full((size,), 1.1), torch.full((kind.outputs,), 100.0))
    yield "zero inputs", _made(kind, torch.zeros(size), t * 1e9)
    yield "infinite", _made(kind, x, torch.where(torch.arange(kind.outputs) == 0, math.inf, t))
    yield "at the threshold", _made(kind, x, t)


def benign(kind: Kind, aligned: bool) -> Unit:
    """Rows beside the unit: all different, or all the same, so that their sum is as long as it can be."""
    rows = 1 if aligned else kind.rows
    made = [
        _made(kind, torch.randn(math.prod(kind.shape)), 10 * torch.randn(kind.outputs)) for _ in range(rows)
    ]
    x, t = (torch.stack(part) for part in zip(*made, strict=True))
    if aligned:
        x, t = x.expand(kind.rows, *kind.shape).clone(), t.expand(kind.rows, -1).clone()
    return x, t


@contextmanager
def watched(sums: list[tuple[Tensor, str]]) -> Iterator[None]:
    """Have what noise would be added to listed, as it would be: on its grid."""

    def listed(self: Any, vector: Tensor, std: float, purpose: str, step: int, grid: float) -> Tensor:
        sums.append((rounded_(vector.to(torch.float64, copy=True), grid).mul_(grid), purpose))
        return vector

    before = GaussianNoise.add_
    GaussianNoise.add_ = listed  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        GaussianNoise.add_ = before  # type: ignore[method-assign]


def released(gate: Gate, x: Tensor, t: Tensor) -> list[tuple[Tensor, str]]:
    gate.shares.examples, gate.step = as_examples((x, t)), 0
    gate.clip_state = gate.clip.start([slot.name for slot in gate.engine.vector.slots])
    sums: list[tuple[Tensor, str]] = []
    with watched(sums):
        gate(adapt=False)
    return sums


# A unit that counts as zero is within the threshold, so here the count moves from -1/2 to 1/2, or not at all; one that
# is zeroed out counts 0, which is what 1/2 is the sensitivity for. Half of what is seen, then: exact, and never more.
SENSITIVITIES = {"noise:q": 1.0, "noise:fraction_within": 2.0}


def ratios(
    gate: Gate, x: Tensor, t: Tensor, rows: list[int], unit: list[Unit]
) -> Iterator[tuple[str, float]]:
    """By how many sensitivities the unit in these rows moves each of the sums."""
    x, t = x.clone(), t.clone()
    for row, (inputs, target) in zip(rows, unit, strict=True):
        x[row], t[row] = inputs, target
    zeroed = t.clone()
    zeroed[rows] = math.nan  # what is not finite counts as zero
    threshold = gate.threshold
    for (one, purpose), (other, _) in zip(released(gate, x, t), released(gate, x, zeroed), strict=True):
        yield purpose, float((one - other).norm()) / SENSITIVITIES.get(purpose, threshold)


@dataclass(frozen=True)
class Worst:
    cases: int
    ratio: float
    where: str


def search(
    kinds: list[str],
    policies: list[str],
    thresholds: tuple[float, ...] = (1.0,),
    seed: int = 0,
    user: int = 1,
    microbatch: int | None = None,
) -> Worst:
    """The largest ratio over all adversaries. With ``user`` rows of one user the unit is all of them."""
    cases, worst = 0, (0.0, "")
    for name, policy, threshold in itertools.product(kinds, policies, thresholds):
        kind = KINDS[name]
        if kind.rows < 2 * user:
            continue
        torch.manual_seed(seed)
        model = kind.make()
        place = kind.rows // 2
        rows = list(range(place, place + user))
        groups = torch.arange(kind.rows)
        groups[rows] = place
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SlowGradients)
            gate = Gate(
                model, linear_loss, benign(kind, True), clip=POLICIES[policy](threshold), noise_multiplier=1.0,
                sampling=Poisson(1.0), groups=groups if user > 1 else None, seed=1, microbatch=microbatch,
            )  # fmt: skip
        for aligned in (True, False):
            x, t = benign(kind, aligned)
            for case, unit in adversaries(kind):
                # A user's rows cancel each other, but for the first.
                parts = [(unit[0], unit[1] * (-1.0) ** i * (1 + 1e-3 * (i == 0))) for i in range(user)]
                for purpose, ratio in ratios(gate, x, t, rows, parts):
                    cases += 1
                    if not ratio <= worst[0]:
                        where = f"{name}, {policy} {threshold:g}, {case}, user of {user}, aligned {aligned}, {purpose}"
                        worst = ratio, where
    return Worst(cases, *worst)


if __name__ == "__main__":
    torch.set_num_threads(1)
    cases, largest = 0, Worst(0, 0.0, "")
    for seed in range(int(sys.argv[1]) if len(sys.argv) > 1 else 1):
        for user, thresholds in ((1, (1.0, 1e-3, 100.0)), (2, (1.0,)), (7, (1.0,))):
            found = search(list(KINDS), list(POLICIES), thresholds, seed, user)
            cases += found.cases
            largest = max(largest, found, key=lambda worst: worst.ratio)
            print(f"seed {seed}, users of {user}: {found}", flush=True)
    print(f"{cases} cases, largest ratio {largest.ratio:.7f}: {largest.where}")
