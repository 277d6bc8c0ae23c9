"""Buffered noise (Dvijotham et al., 2024; McMahan et al., 2024): all earlier noise, taken back from few vectors.

C is lower triangular with the same column c_0 = 1, c_j = sum of weight_i rate_i^(j-1) along its diagonals. The noise
C^-1 Z of a step takes back part of that of all steps before it, of which one decaying sum for each rate is all that has
to be kept: s_i <- rate_i s_i + noise. So the memory is that of a few vectors where bands as long would need hundreds.

Columns overlap wherever a unit returns, so there is no amplification, and what a unit does in all of a run is one
release. The privacy of it is proved in docs/proofs.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from sordino.data.sampling import Sampling
from sordino.noise.decays import MOST_STEPS, Decays, best_decays
from sordino.noise.gaussian import GaussianNoise
from sordino.noise.grid import check_noise, grid_for, meet_
from sordino.noise.mechanism import Mechanism, Releases, State
from sordino.noise.toeplitz import Array
from sordino.privacy.events import compose, gaussian, repeat
from sordino.registry import is_whole, said

if TYPE_CHECKING:
    from dp_accounting import DpEvent

_CHUNK = 1 << 14  # coordinates at a time: what is added up stays in the cache


@dataclass(frozen=True)
class Buffered(Mechanism):
    """Noise that all later steps take back in part, for the memory of a few vectors; batches come in a known order.

    Args:
        buffers: How many decaying sums of earlier noise are kept, at most: as many vectors of doubles, and
            one more. Those that would make running sums less noisy by less than 0.1 % are left out.
        horizon: For how many steps the noise is made; then it begins anew, and what noise the sum then has
            it keeps. None is for the steps that are planned. Where those are not known there has to be a
            horizon, and that is all that an unknown end means here: decays are chosen for a horizon, and
            the price is paid for whole blocks of so many steps, each when it is opened.

    Guarantee: nothing is assumed about sampling but that a unit sits out so many steps as it does in a fixed
    order, in batches shuffled once, by turns, or with a separation. All that it does in a run (or block) is
    one Gaussian release, paid for when it is opened (docs/proofs.md). Samples are not amplified, and
    thresholds stay: for both there is `Banded`.

    Reference: McMahan, Xu and Zhang, "A hassle-free algorithm for strong differential privacy in federated
    learning systems", 2024; Dvijotham et al., "Efficient and near-optimal noise generation for streaming
    differential privacy", FOCS 2024; Kalinin and Lampert, "Banded square root matrix factorization for
    differentially private model training", NeurIPS 2024, for the sensitivity.

    >>> from sordino import FixedOrder
    >>> releases = Buffered().over(FixedOrder(50), units=10_000, steps=2000)  # ten epochs of 200 steps
    >>> round(releases.cost(2000, 10.0, ()).noise_multiplier, 3)
    1.573
    """

    buffers: int = 4
    horizon: int | None = None
    sampling = "shuffled"
    comparable = False
    moving = False

    def __post_init__(self) -> None:
        if not (is_whole(self.buffers) and 1 <= self.buffers <= 16):
            raise ValueError(f"buffers is a whole number from 1 to 16, not {said(self.buffers)}")
        if self.horizon is not None and not (is_whole(self.horizon) and 1 <= self.horizon <= MOST_STEPS):
            raise ValueError(
                f"horizon is a whole number of steps from 1 to {MOST_STEPS:,}, or none, not {said(self.horizon)}"
            )

    def restart_steps(self, per_epoch: int) -> int | None:
        return self.horizon

    def dealt(self, sampling: Sampling, units: int) -> Sampling:
        """``sampling`` shuffled once, for good: a horizon need not be a whole number of epochs."""
        return sampling.shuffled_every(None)

    def over(self, sampling: Sampling, units: int, steps: int | None) -> Releases:
        if steps is None and self.horizon is None:
            raise ValueError(
                "buffered noise is made and paid for so many steps: say how many are planned, or give a horizon"
            )
        block = min(each for each in (self.horizon, steps) if each is not None)
        if block > MOST_STEPS:
            raise ValueError(f"buffered noise is made for {MOST_STEPS:,} steps at most: give a horizon")
        apart = _apart(sampling, units)
        return BufferedReleases(best_decays(self.buffers, block, min(apart, block)), block, apart, steps)


def _apart(sampling: Sampling, units: int) -> int:
    """After how many steps a unit takes part again; raises where that, or its price, is not known."""
    if sampling.amplified_rate(units) not in (None, 1.0):
        raise ValueError(
            "buffered noise is not amplified by sampling, amplification needs bands: use Banded noise, or "
            "fixed-order or shuffled batches"
        )
    apart = sampling.returns_after(units)
    if sampling.fixed_count is not None or (apart == 1 and sampling.steps_per_epoch(units) > 1):
        raise ValueError(
            "a unit may take part in two steps in a row, and buffered noise is priced for units that sit out: use "
            "fixed-order batches, batches shuffled once for the whole run, or a separation"
        )
    return apart


@dataclass(frozen=True)
class BufferedReleases(Releases):
    """Blocks of ``block`` steps, the last of what is left, in which a unit returns after ``apart`` at the soonest."""

    decays: Decays
    block: int
    apart: int
    steps: int | None
    _stds: list[Array] = field(default_factory=list, repr=False, compare=False)

    def split(self, noise_multiplier: float, probe_multipliers: Sequence[float]) -> float:
        _refuse_probes(probe_multipliers)
        return noise_multiplier

    def charge(
        self, step: int, noise_multiplier: float, probe_multipliers: Sequence[float]
    ) -> tuple[str, DpEvent]:
        """A block is paid for as a whole when it is opened."""
        _refuse_probes(probe_multipliers)
        self._check_paid(step + 1)
        number = step // self.block
        return f"block:{number}", self._price(number, noise_multiplier)

    def cost(self, steps: int, noise_multiplier: float, probe_multipliers: Sequence[float]) -> DpEvent:
        _refuse_probes(probe_multipliers)
        self._check_paid(steps)
        blocks = -(-steps // self.block)
        if blocks == 0:
            return compose([])
        first, last = (self._price(number, noise_multiplier) for number in (0, blocks - 1))
        if first == last:
            return repeat(first, blocks)
        return compose([repeat(first, blocks - 1), last])

    def gathered(self, steps: int) -> float:
        whole, rest = divmod(steps, self.block)
        squares = np.cumsum(self.decays.inverse(self.block)) ** 2
        return math.sqrt(whole * float(squares.sum()) + float(squares[:rest].sum()))

    def explanation(self, noise_multiplier: float, probe_multipliers: Sequence[float]) -> str | None:
        size = self._size(0)
        visits, moved = -(-size // self.apart), self.decays.sensitivity(size, self.apart)
        again = "" if self.steps == self.block else ", after which the noise begins anew,"
        return (
            f"noise of multiplier {noise_multiplier:.6g}, related over all of {size} steps{again} by a Toeplitz matrix "
            f"whose column is a sum of {len(self.decays.rates)} decays; a unit takes part once in any {self.apart} "
            f"steps, so {visits} times at most: sensitivity {moved:.6g}; an event is all of these steps, a Gaussian of "
            "multiplier z over that"
        )

    def _check_paid(self, steps: int) -> None:
        if self.steps is not None and steps > self.steps:
            raise ValueError(f"this noise is planned, and paid, for {self.steps} steps and no more")

    def _price(self, number: int, noise_multiplier: float) -> DpEvent:
        return gaussian(noise_multiplier / self.decays.sensitivity(self._size(number), self.apart))

    def _size(self, number: int) -> int:
        """How many steps a block will have."""
        return self.block if self.steps is None else min(self.block, self.steps - number * self.block)

    def start(self) -> State:
        # How many steps were noised, and what the next one's noise depends on: decays and threshold, which stay, and
        # (once the size is known) the decaying sums as they were before the last step, and in the last row its noise.
        return {
            "steps": 0,
            "threshold": None,
            "weights": torch.tensor(self.decays.weights, dtype=torch.float64),
            "rates": torch.tensor(self.decays.rates, dtype=torch.float64),
        }

    def check(self, step: int, state: State) -> None:
        if state["steps"] != step:
            raise RuntimeError(
                "a step of this noise failed, so the next would not take back what was added: begin anew, in training "
                "from the last checkpoint (what was spent is spent)"
            )
        if (tuple(state["weights"].tolist()), tuple(state["rates"].tolist())) != (
            self.decays.weights,
            self.decays.rates,
        ):
            raise RuntimeError(
                "this noise was begun, and paid for, with other decays than are found here: go on with the versions "
                "that began it, or begin anew (what was spent is spent)"
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
        if state["threshold"] not in (None, threshold):
            raise ValueError("buffered noise is priced for a threshold that stays: use Fixed or Normalised")
        state["threshold"] = threshold
        state["steps"] = -1  # until this one is done
        noise = self._taken_back(vector.numel(), step, state)
        draw.accumulate_(noise, noise_multiplier * threshold, "noise", step)
        std = noise_multiplier * threshold * self._std(step % self.block)
        grid = grid_for(threshold, vector.numel())
        check_noise(std, grid)
        meet_(vector, noise, grid)
        state["steps"] = step + 1
        return std

    def _taken_back(self, size: int, step: int, state: State) -> Tensor:
        """-(c_1 n_(t-1) + c_2 n_(t-2) + ...) of the noise n of earlier steps, in the place where n_t goes."""
        if "kept" not in state:
            state["kept"] = torch.zeros(len(self.decays.rates) + 1, size, dtype=torch.float64)
        kept: Tensor = state["kept"]
        if step % self.block == 0:  # anew: the old noise stays in the sum
            return kept.zero_()[-1]
        for start in range(0, size, _CHUNK):
            *sums, noise = kept[:, start : start + _CHUNK]
            for each, rate in zip(sums, self.decays.rates, strict=True):
                each.mul_(rate).add_(noise)
            noise.zero_()
            for each, weight in zip(sums, self.decays.weights, strict=True):
                noise.sub_(each, alpha=weight)
        return kept[-1]

    def _std(self, before: int) -> float:
        """Of the noise of a step, where what is drawn has standard deviation 1."""
        if not self._stds:
            self._stds.append(np.sqrt(np.cumsum(self.decays.inverse(self.block) ** 2)))
        return float(self._stds[0][before])


def _refuse_probes(probe_multipliers: Sequence[float]) -> None:
    if probe_multipliers:
        raise ValueError(
            "what else is asked about a batch has no price beside buffered noise: use a Fixed or Normalised threshold, "
            "or Banded noise"
        )
