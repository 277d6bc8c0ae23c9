"""Tree noise (Kairouz et al., 2021): the noise of running sums, with no assumption about who comes when.

The steps of a tree are its leaves. A node is complete when its last leaf is, and then it is released: the sum of
its leaves' gradients with Gaussian noise of its own. A running sum is put together from few nodes, so its noise
grows with the logarithm of the steps. Only the noise needs a tree: what leaves the gate is the gradient and the
*increment* of the noise, so that sums of what left it have the tree's noise, whether a step rule keeps the sum
(FTRL) or applies each part at once (SGD form).

The privacy of it, thresholds that move included, is proved in docs/proofs.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sordino.data.sampling import Sampling
from sordino.noise.gaussian import GaussianNoise
from sordino.noise.grid import check_noise, grid_for, meet_
from sordino.noise.mechanism import Known, Mechanism, Releases, State
from sordino.privacy.events import compose, repeat
from sordino.privacy.trees import fixed_order_sensitivity, tree_release, worst_case_sensitivity

if TYPE_CHECKING:
    from dp_accounting import DpEvent


@dataclass(frozen=True)
class Tree(Mechanism):
    """Noise that later steps nearly cancel; batches come in an order that may be known.

    Args:
        efficient: Estimate a node from all that is known below it (Honaker, 2015), which nearly halves
            the variance at the same price; without it the tree is the plain binary one.
        restart_every: After so many epochs a new tree begins, and what noise the sum then has it keeps.
            None is one tree for all epochs, and ``"auto"`` is as often as makes the noise of the sums least
            at equal privacy, which follows from the number of steps.
        completion: Fill a tree that is followed by another up to a power of two with steps without data,
            so that what it leaves in the sum is the noise of its root alone.

    Guarantee: nothing is assumed about sampling. A tree is charged whole when it is opened, for the order
    its batches really have, thresholds that move included (docs/proofs.md).

    Reference: Kairouz et al., "Practical and private (deep) learning without sampling or shuffling", ICML
    2021.

    >>> Tree().planned(steps=4800, per_epoch=240)  # auto, worked out
    Tree(efficient=True, restart_every=2, completion=True)
    """

    efficient: bool = True
    restart_every: int | str | None = "auto"
    completion: bool = True
    sampling = "shuffled"

    def __post_init__(self) -> None:
        every = self.restart_every
        if isinstance(every, str) and every != "auto":
            raise ValueError(f"restart_every is a whole number of epochs, auto or none, not {every!r}")
        if not isinstance(every, str) and every is not None and (every < 1 or every != int(every)):
            raise ValueError(f"restart_every is a whole number of epochs, at least 1, not {every:g}")

    def planned(self, steps: int, per_epoch: int, known: Known | None = None) -> Tree:
        if self.restart_every != "auto":
            return self
        epochs = -(-steps // per_epoch)
        choices = [*range(1, min(epochs, 17)), *(2**k * m // 4 for k in range(4, 12) for m in (4, 5, 6, 7))]
        trees = [replace(self, restart_every=every) for every in choices if every < epochs]
        trees.append(replace(self, restart_every=None))
        return min(trees, key=lambda tree: noise_of_sums(tree, steps, per_epoch))

    def restart_steps(self, per_epoch: int) -> int | None:
        assert self.restart_every != "auto"
        return None if self.restart_every is None else int(self.restart_every) * per_epoch

    def over(self, sampling: Sampling, units: int, steps: int | None) -> Releases:
        per_epoch = sampling.steps_per_epoch(units)
        if steps is None and self.restart_every in (None, "auto"):
            raise ValueError(
                "a tree is paid for when it is opened: say how many steps are planned, or give restart_every"
            )
        if steps is not None and self.restart_every == "auto":
            return self.planned(steps, per_epoch).over(sampling, units, steps)
        leaves = self.restart_steps(per_epoch) or steps
        assert leaves is not None
        lasts = sampling.order_lasts(units)
        if lasts == 0:
            raise ValueError(
                "tree noise needs batches that are dealt in an order, so that it is known how often a unit can be "
                "below a node: use fixed-order or shuffled batches"
            )
        aligned = math.isinf(lasts) or self.restart_every is None or lasts % leaves == 0
        if leaves > lasts or not aligned:
            raise ValueError(
                f"the order of the batches changes every {lasts:g} steps and a tree holds {leaves}: shuffle when a "
                "tree begins, and at no other time"
            )
        return TreeReleases(self, per_epoch, leaves, steps, sampling.min_separation)


def noise_of_sums(tree: Tree, steps: int, per_epoch: int) -> float:
    """The variance of the noise in the running sum, averaged over the steps, of trees that cost one Gaussian of
    multiplier 1 together.

    >>> [round(noise_of_sums(Tree(restart_every=every), 4800, 240)) for every in (1, 2, None)]
    [1267, 1140, 2688]
    >>> round(noise_of_sums(Tree(restart_every=1, completion=False), 4800, 240))
    3460
    """
    leaves = min(tree.restart_steps(per_epoch) or steps, steps)
    cost = total = frozen = 0.0
    for first in range(0, steps, leaves):
        size = min(leaves, steps - first)
        completed = tree.completion and first + size < steps
        cost += _squared_sensitivity(size, per_epoch, completed)
        inside, last = _variance_of_sums(size, tree.efficient, completed)
        total += inside + size * frozen
        frozen += last
    return cost * total / steps


def noise_in_running_sum(tree: Tree, steps: int, per_epoch: int) -> list[float]:
    """The std of the noise in the running sum after each step, at noise of std 1 on every node.

    >>> [round(std, 3) for std in noise_in_running_sum(Tree(efficient=False, restart_every=None), 4, 4)]
    [1.0, 1.0, 1.414, 1.0]
    """
    leaves = min(tree.restart_steps(per_epoch) or steps, steps)
    found: list[float] = []
    frozen = 0.0
    for first in range(0, steps, leaves):
        size = min(leaves, steps - first)
        inside = _variances(size, tree.efficient, tree.completion and first + size < steps)
        found += np.sqrt(frozen + inside).tolist()
        frozen += float(inside[-1])
    return found


@lru_cache(maxsize=64)
def _variance_of_sums(size: int, efficient: bool, completed: bool) -> tuple[float, float]:
    """The variance of the running sum's noise in a tree, at node variance 1: its sum over the steps, and the last."""
    variances = _variances(size, efficient, completed)
    return float(variances.sum()), float(variances[-1])


def _variances(size: int, efficient: bool, completed: bool) -> npt.NDArray[np.float64]:
    ends = np.arange(1, size + 1)
    variances = np.zeros(size)
    for height in range(size.bit_length()):
        variances += (ends >> height & 1) * (_share(height) if efficient else 1.0)
    if completed:
        top = (size - 1).bit_length()
        variances[-1] = _share(top) ** 2 * _estimate_variance(top, size) if efficient else 1.0
    return variances


def _estimate_variance(height: int, size: int) -> float:
    """The variance of r' of a node of which only the first ``size`` leaves have data."""
    if size >= 1 << height:
        return 1 / _share(height)
    if size <= 0:
        return 0.0
    half = 1 << height - 1
    return (
        1
        + (_estimate_variance(height - 1, min(size, half)) + _estimate_variance(height - 1, size - half)) / 4
    )


@dataclass(frozen=True)
class TreeReleases(Releases):
    """The trees of a run: each of ``leaves`` steps, the last of what is left, ``per_epoch`` steps to an epoch."""

    tree: Tree
    per_epoch: int
    leaves: int
    steps: int | None
    min_separation: int | None = None  # all that is known about the order of units, if it is not one order
    _spare: list[Tensor] = field(default_factory=list, repr=False, compare=False)

    def split(self, noise_multiplier: float, probe_multipliers: Sequence[float]) -> float:
        return noise_multiplier  # probes are releases of their own

    def charge(
        self, step: int, noise_multiplier: float, probe_multipliers: Sequence[float]
    ) -> tuple[str, DpEvent]:
        """A tree is paid for as a whole when it is opened."""
        self._check_paid(step + 1)
        number = step // self.leaves
        return f"tree:{number}", self._price(number, noise_multiplier, tuple(probe_multipliers))

    def cost(self, steps: int, noise_multiplier: float, probe_multipliers: Sequence[float]) -> DpEvent:
        self._check_paid(steps)
        probes = tuple(probe_multipliers)
        trees = -(-steps // self.leaves)
        if trees == 0:
            return compose([])
        last = self._price(trees - 1, noise_multiplier, probes)
        if trees == 1:
            return last
        first = self._price(0, noise_multiplier, probes)
        if first == last:
            return repeat(first, trees)
        return compose([repeat(first, trees - 1), last])

    def gathered(self, steps: int) -> float:
        return noise_in_running_sum(self.tree, steps, self.per_epoch)[-1]

    def explanation(self, noise_multiplier: float, probe_multipliers: Sequence[float]) -> str | None:
        size, completed = self._size(0), self._completed(0)
        squares = _squared_sensitivity(size, self.per_epoch, completed, self.min_separation)
        filled = (
            ", filled up to a power of two with steps without data unless it is the last" if completed else ""
        )
        visits = -(-size // self.per_epoch)
        once = "once every" if self.min_separation is None else "in whatever order, once in any"
        return (
            f"noise of multiplier {noise_multiplier:.6g} on every node of binary trees over the steps; an event is a "
            f"tree, the first of {size} steps{filled}, in which a unit takes part {visits} times at most, {once} "
            f"{self.per_epoch} steps: squared sensitivity {squares:g}, a Gaussian of multiplier z / sqrt of that"
            + "".join(
                f"; and {visits} releases of multiplier {z:.6g} of a probe, added in squares"
                for z in probe_multipliers
            )
        )

    def _check_paid(self, steps: int) -> None:
        if self.steps is not None and steps > self.steps:
            raise ValueError(f"these trees are planned, and paid, for {self.steps} steps and hold no more")

    def _price(self, number: int, noise_multiplier: float, probe_multipliers: tuple[float, ...]) -> DpEvent:
        size = self._size(number)
        squares = _squared_sensitivity(size, self.per_epoch, self._completed(number), self.min_separation)
        if noise_multiplier > 0 and probe_multipliers:
            # Each visit of a unit is a release of each probe, with noise of its own. Ratios add in squares.
            visits = -(-size // self.per_epoch)
            squares += visits * sum((noise_multiplier / z) ** 2 for z in probe_multipliers)
        return tree_release(noise_multiplier, squares)

    def _size(self, number: int) -> int:
        """How many steps a tree will hold."""
        if self.steps is None:
            return self.leaves
        return min(self.leaves, self.steps - number * self.leaves)

    def _completed(self, number: int) -> bool:
        last = self.steps is not None and (number + 1) * self.leaves >= self.steps
        return self.tree.completion and not last

    def start(self) -> State:
        # How many steps were noised, and of the open nodes, by height, what they hold.
        return {"steps": 0, "stds": {}, "variances": {}, "values": {}}

    def check(self, step: int, state: State) -> None:
        if state["steps"] != step:
            raise RuntimeError(
                "a step of this tree failed, so its nodes would not hold what was paid for: begin anew, in training "
                "from the last checkpoint (what was spent is spent)"
            )

    def add_(
        self,
        vector: Tensor,
        draw: GaussianNoise,
        noise_multiplier: float,
        threshold: float,
        step: int,
        state: State,
    ) -> float:
        self.check(step, state)
        number, before = divmod(step, self.leaves)
        if before == 0:  # a new tree: the old one's noise stays in the sum
            self._spare.extend(state["values"].values())
            for part in ("stds", "variances", "values"):
                state[part].clear()
        state["steps"] = -1  # until this one is done
        top = self._top(number) if self._completed(number) and before + 1 == self._size(number) else None
        leaf_std = noise_multiplier * threshold
        node = _Nodes(draw, number)
        # The increment of the running sum's noise. It is rounded when it meets the sum, and its parts never are.
        noise = self._empty(vector.numel())
        if self.tree.efficient:
            variance = self._efficient_step_(noise, node, leaf_std, before, state, top)
        else:
            variance = self._vanilla_step_(noise, node, leaf_std, before, state, top)
        grid = grid_for(threshold, vector.numel())
        check_noise(math.sqrt(variance), grid)
        meet_(vector, noise, grid)
        self._spare.append(noise)
        state["steps"] = step + 1
        return math.sqrt(variance)

    def _top(self, number: int) -> int:
        """The height of the root that completion leads to."""
        return (self._size(number) - 1).bit_length()

    def _empty(self, size: int) -> Tensor:
        return self._spare.pop().zero_() if self._spare else torch.zeros(size, dtype=torch.float64)

    def _vanilla_step_(
        self, noise: Tensor, node: _Nodes, std: float, before: int, state: State, top: int | None
    ) -> float:
        """Take back the noise of the nodes that the new one replaces, and add its own: all from the key."""
        stds: dict[str, float] = state["stds"]
        height = _trailing_zeros(before + 1) if top is None else top
        variance = 0.0
        for low in [int(h) for h in stds if int(h) < height]:
            old = stds.pop(str(low))
            node.add_(noise, -old, low, (before >> low) << low)
            variance += old**2
            # Its sum holds those leaves too, so it needs the largest threshold of all of them.
            std = max(std, old)
        node.add_(noise, std, height, before + 1)
        stds[str(height)] = std
        return variance + std**2

    def _efficient_step_(
        self, noise: Tensor, node: _Nodes, std: float, before: int, state: State, top: int | None
    ) -> float:
        """A node's estimate r' = r + (r'_left + r'_right) / 2 counts 1 / (2 - 2^-height) times in a running sum.

        The nodes that a step completes lie on one path, and only the estimate of the topmost is ever used again. So
        their own noises are drawn at once, as one Gaussian of the variance they add up to in it.
        """
        stds, variances, values = state["stds"], state["variances"], state["values"]
        estimate: Tensor | None = None  # of the topmost, but for the noise of this step
        fresh = std**2  # the variance of that noise
        lefts: list[
            tuple[float, int, float]
        ] = []  # of earlier noise: its weight in the estimate, height, variance
        height = 0
        while str(height) in stds or (top is not None and height < top):
            lefts = [(weight / 2, at, variance) for weight, at, variance in lefts]
            left = str(height)
            if left in stds:
                value = values.pop(left)
                noise.sub_(value, alpha=_share(height))
                if estimate is None:
                    estimate = value.mul_(0.5)
                else:
                    estimate.lerp_(value, 0.5)
                    self._spare.append(value)
                lefts.append((0.5, height, variances.pop(left)))
                std = max(std, stds.pop(left))
            elif estimate is not None:
                estimate.mul_(0.5)  # the other half are steps without data, whose sum is known to be 0
            height += 1
            fresh = fresh / 4 + std**2
        if estimate is None:
            estimate = self._empty(noise.numel())
        node.add_(estimate, math.sqrt(fresh), height, before + 1)
        share = _share(height)
        noise.add_(estimate, alpha=share)
        stds[str(height)], values[str(height)] = std, estimate
        variances[str(height)] = fresh + sum(weight**2 * variance for weight, _, variance in lefts)
        moved = sum((share * weight - _share(at)) ** 2 * variance for weight, at, variance in lefts)
        return share**2 * fresh + moved


@dataclass(frozen=True)
class _Nodes:
    """The noise of a tree's nodes: a function of the key, the tree, the node's height and its last leaf."""

    draw: GaussianNoise
    number: int

    def add_(self, vector: Tensor, std: float, height: int, end: int) -> None:
        self.draw.accumulate_(vector, std, f"noise:tree:{height}", (self.number << 40) + end)


@lru_cache(maxsize=64)
def _squared_sensitivity(
    steps: int, per_epoch: int, completed: bool, min_separation: int | None = None
) -> float:
    if min_separation is not None:
        return float(worst_case_sensitivity(steps, min_separation=min_separation, completed=completed))
    return float(fixed_order_sensitivity(steps, per_epoch, completed=completed))


def _trailing_zeros(number: int) -> int:
    return (number & -number).bit_length() - 1


@lru_cache(maxsize=64)
def _share(height: int) -> float:
    return 1 / (2 - 2.0**-height)
