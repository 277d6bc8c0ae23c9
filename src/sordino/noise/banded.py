"""Banded noise (Choquette-Choo et al., 2023): each step takes back part of the noise of the steps before it.

C is lower triangular, the same c_0 ... c_(b-1) along its diagonals, |c| = 1. Whitened by C, a sequence of releases
x + C^-1 Z is C x + Z: independent noise on sums in which a unit that took part at step t is at t ... t + b - 1, with
c_0 ... c_(b-1). If it takes part again b steps later at the soonest, its parts never meet, and each costs what one
release of independent noise costs; so sampling amplifies them as ever. One band is independent noise.

The privacy of it, thresholds that move and probes included, is proved in docs/proofs.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from sordino.data.sampling import Cyclic, Poisson, Sampling
from sordino.noise.gaussian import GaussianNoise
from sordino.noise.grid import check_noise, grid_for, meet_
from sordino.noise.independent import Gaussian, joint_split
from sordino.noise.mechanism import Known, Mechanism, Releases, State
from sordino.noise.toeplitz import Array, best_column, error, inverse
from sordino.privacy.calibration import noise_about
from sordino.privacy.events import repeat
from sordino.registry import is_whole, said

if TYPE_CHECKING:
    from dp_accounting import DpEvent

    from sordino.privacy.budget import Budget

MEMORY = 1 << 30  # bytes that the noise of earlier steps may take, where the bands are chosen for the user
_CHUNK = 1 << 14  # coordinates at a time: what is added up stays in the cache


@dataclass(frozen=True)
class Banded(Mechanism):
    """Noise that the next steps take back in part: DP-SGD at one band, less noisy running sums at more.

    Args:
        bands: Over how many steps noise is related, counting its own. ``"auto"`` is as many as make the
            noise of running sums least at equal privacy, which follows from public numbers: under Poisson
            sampling from the budget too, since more bands mean less amplification.

    Guarantee: a unit takes part once in as many steps as there are bands, at most, and each time costs what
    a release of independent noise costs, thresholds that move included (docs/proofs.md). Under Poisson
    sampling units are in groups that take turns (``Cyclic``), and amplification holds within them.

    Reference: Choquette-Choo et al., "(Amplified) banded matrix factorization: a unified approach to private
    training", NeurIPS 2023.

    >>> from sordino import Cyclic, Poisson
    >>> Banded(8).dealt(Poisson(0.01), 1000)
    Cyclic(rate=0.08, groups=8)
    >>> Banded(8).over(Cyclic(0.08, 8), 1000, 2000).cost(2000, 1.1, ()).count
    250
    """

    bands: int | str = "auto"

    def __post_init__(self) -> None:
        if self.bands != "auto" and not (is_whole(self.bands) and int(self.bands) >= 1):
            raise ValueError(f"bands is a whole number of steps, at least 1, or auto, not {said(self.bands)}")

    @property
    def independent(self) -> bool:  # type: ignore[override]
        return self.bands == 1

    @property
    def comparable(self) -> bool:  # type: ignore[override]
        return self.bands == 1

    def planned(self, steps: int, per_epoch: int, known: Known | None = None) -> Banded:
        if self.bands != "auto":
            return self
        if known is None:
            raise ValueError(
                "how many bands are best follows from the sampling: give it, or a number of bands"
            )
        sampling, most = known.sampling.shuffled_every(None), _most_bands(known.parameters)
        if isinstance(sampling, Poisson):
            best = _amplified_bands(known.budget, sampling.rate, steps, min(per_epoch, most))
        else:  # more never cost anything
            best = min(_apart(sampling, known.units), steps, most)
        return replace(self, bands=best)

    def dealt(self, sampling: Sampling, units: int) -> Sampling:
        """``sampling`` in which who took part sits out as many steps as noise needs: Poisson sampling by turns."""
        bands = self._settled()
        if bands == 1 or not isinstance(sampling, Poisson):
            return sampling.shuffled_every(None) if bands > 1 else sampling
        if bands > sampling.steps_per_epoch(units):
            batch, most = sampling.expected_batch(units), sampling.steps_per_epoch(units)
            raise ValueError(
                f"{bands} bands need as many groups of units, too small for batches of {batch:g} of {units}: use at "
                f"most {most} bands, or smaller batches"
            )
        return Cyclic(min(1.0, sampling.rate * bands), bands)

    def over(self, sampling: Sampling, units: int, steps: int | None) -> Releases:
        if self.bands == "auto":
            if steps is None:
                raise ValueError("how many bands are best follows from the steps: say how many are planned")
            return replace(self, bands=min(_apart(sampling, units), steps)).over(sampling, units, steps)
        bands, apart = self._settled(), sampling.returns_after(units)
        if bands == 1:
            return Gaussian().over(sampling, units, steps)
        if apart < bands:
            once = "may take part in two steps in a row" if apart == 1 else f"takes part every {apart} steps"
            raise ValueError(f"a unit {once}, and the noise of {bands} is related: {_HELP}")
        if steps is None:
            raise ValueError("banded noise is made for so many steps: say how many are planned")
        return BandedReleases(bands, sampling, units, steps)

    def _settled(self) -> int:
        if isinstance(self.bands, str):
            raise ValueError(
                "how many bands there are is not settled yet: plan the run first, or give a number"
            )
        return int(self.bands)


_HELP = (
    "use Cyclic sampling with as many groups as bands (which Poisson becomes in training), fixed-order batches, or "
    "batches shuffled once for the whole run, and at most as many bands as there are steps between two turns of a unit"
)


def _apart(sampling: Sampling, units: int) -> int:
    """After how many steps a unit takes part again; raises where there is no such number."""
    apart = sampling.returns_after(units)
    if apart == 1 and sampling.steps_per_epoch(units) > 1:
        raise ValueError(
            f"a unit may take part in two steps in a row: {_HELP}; or independent noise (one band, noise=gaussian)"
        )
    return apart


def _most_bands(parameters: int | None) -> int:
    return 1 << 30 if parameters is None else 1 + MEMORY // (8 * max(1, parameters))


def _candidates(most: int) -> Iterator[int]:
    """1, 2, 3, 4, 6, 8, 12, 16, ... and the last."""
    power = 1
    while power <= most:
        yield power
        if power > 1 and power * 3 // 2 <= most:
            yield power * 3 // 2
        power *= 2
    if most & (most - 1) and not (most % 3 == 0 and (most // 3) & (most // 3 - 1) == 0):
        yield most


@lru_cache(maxsize=64)
def _amplified_bands(budget: Budget | None, rate: float, steps: int, most: int) -> int:
    """How many bands make the noise of running sums least at the same (epsilon, delta): public numbers alone.

    By Renyi DP at few orders, which is good enough to choose; what the run is charged is priced as ever.
    """
    if budget is None:
        return 1
    best, least, noise, rises = 1, math.inf, 1.0, False
    most = min(most, steps)
    for bands in _candidates(most):
        if rises and bands < most:
            continue  # ever less amplification, for ever less to gain; but all of an epoch may be one turn for all
        try:
            noise = noise_about(budget, min(1.0, rate * bands), -(-steps // bands), start=noise)
        except ValueError:
            return 1  # few orders do not reach so small an epsilon: what is priced by many may well
        found = noise * error(best_column(bands, steps), steps)
        if found < least:
            best, least = bands, found
        rises = found > 1.25 * least
    return best


@dataclass(frozen=True)
class BandedReleases(Releases):
    """A run of banded noise, over a sampling by which a unit returns after as many steps at the soonest."""

    bands: int
    sampling: Sampling
    units: int
    steps: int
    _rooms: list[Tensor] = field(default_factory=list, repr=False, compare=False)  # to work in
    _squares: list[Array] = field(default_factory=list, repr=False, compare=False)  # of the inverse

    def split(self, noise_multiplier: float, probe_multipliers: Sequence[float]) -> float:
        return joint_split(noise_multiplier, probe_multipliers)

    def charge(
        self, step: int, noise_multiplier: float, probe_multipliers: Sequence[float]
    ) -> tuple[str, DpEvent]:
        # All that a unit does by taking part once, whitened, is one joint release of the multiplier z.
        event = self.sampling.release(noise_multiplier, self.units)
        return self.sampling.charge_key(step, self.units), event

    def cost(self, steps: int, noise_multiplier: float, probe_multipliers: Sequence[float]) -> DpEvent:
        _, event = self.charge(0, noise_multiplier, probe_multipliers)
        return repeat(event, self.sampling.charges(steps, self.units))

    def gathered(self, steps: int) -> float:
        return float(np.linalg.norm(np.cumsum(inverse(best_column(self.bands, self.steps), steps))))

    def explanation(self, noise_multiplier: float, probe_multipliers: Sequence[float]) -> str | None:
        apart, visits = (
            self.sampling.returns_after(self.units),
            self.sampling.charges(self.steps, self.units),
        )
        return (
            f"noise of multiplier {noise_multiplier:.6g}, related over {self.bands} steps by a banded matrix whose "
            f"columns have norm 1; a unit takes part once in any {apart} steps, so {visits} times at most in "
            f"{self.steps}, and its columns do not overlap: an event is one of these times"
            + ("; probes are part of it" if probe_multipliers else "")
        )

    def start(self) -> State:
        # How many steps were noised, and what the next one's noise depends on: the column, which stays what it was when
        # the run began; and of earlier steps their thresholds, the std of what was drawn, and (once known) their noise.
        return {
            "steps": 0,
            "column": torch.from_numpy(best_column(self.bands, self.steps).copy()),
            "thresholds": torch.zeros(self.bands - 1, dtype=torch.float64),
            "drawn": torch.zeros(min(self.steps, 1 << 20), dtype=torch.float64),
        }

    def check(self, step: int, state: State) -> None:
        column = state["column"].numpy()
        if len(column) != self.bands or len(state["thresholds"]) != self.bands - 1 or column @ column > 1:
            raise RuntimeError(
                "this noise was begun with other bands than are paid for: restore it where its terms are the same"
            )
        if state["steps"] != step:
            raise RuntimeError(
                "a step of this noise failed, so the next would not take back what was added: begin anew, in training "
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
        state["steps"] = -1  # until this one is done
        column = state["column"].numpy()
        # What it whitens to holds whoever took part in the last steps too, so it needs their largest threshold.
        largest = max(threshold, float(state["thresholds"].max()))
        drawn = noise_multiplier * largest
        noise = self._taken_back(column, vector.numel(), step, state)
        draw.accumulate_(noise, drawn / column[0], "noise", step)
        std = self._std(step, drawn, column, state)
        grid = grid_for(threshold, vector.numel())
        check_noise(std, grid)
        meet_(vector, noise, grid)
        state["thresholds"][step % (self.bands - 1)] = threshold
        state["steps"] = step + 1
        return std

    @property
    def ahead(self) -> int:
        """For so many steps what they take back is added up at once, which reads earlier noise that much less often."""
        return 16 if self.bands >= 32 else 8 if self.bands >= 12 else 1

    def _taken_back(self, column: Array, size: int, step: int, state: State) -> Tensor:
        """-(c_1 n_(t-1) + c_2 n_(t-2) + ...) / c_0 of the noise n of earlier steps, in the place where n_t goes.

        Of what was drawn before a block of steps it is known for all of them when the block begins; of the block itself
        it is added at each step. Blocks begin at other steps in other parts of the vector, so that no step is slower
        than the next.
        """
        recent = self._kept("recent", self.bands - 1, size, state)  # n_t in row t mod (b - 1)
        known = self._kept("known", self.ahead, size, state) if self.ahead > 1 else None
        shares = torch.from_numpy(-column / column[0])
        begun = _weights(shares, len(recent), step, self.ahead)
        noise = recent[step % len(recent)]
        for number, start in enumerate(range(0, size, _CHUNK)):
            these = slice(start, start + _CHUNK)
            if known is None:
                room = self._room(len(noise[these]))
                noise[these] = torch.mv(recent[:, these].t(), begun[0], out=room)
                continue
            inside = (step + number) % self.ahead
            if inside == 0:
                torch.mm(begun, recent[:, these], out=known[:, these])
            part = known[inside, these]
            for rows, ages in _since(step - inside, step, len(recent)):
                # Into the place of n_t, which is none of these: a block is shorter than what is remembered.
                part = torch.addmv(part, recent[rows, these].t(), shares[ages].flip(0), out=noise[these])
            if inside == 0:
                noise[these] = part
        return noise

    def _kept(self, name: str, rows: int, size: int, state: State) -> Tensor:
        """Vectors of the state, where products come out the same to the last bit."""
        found: Tensor | None = state.get(name)
        if found is None:
            found = torch.zeros(rows, size, dtype=torch.float64)
        elif found.data_ptr() % 64:  # as a checkpoint may have it
            found = found.clone()
        state[name] = found
        return found

    def _room(self, size: int) -> Tensor:
        if not self._rooms:
            self._rooms.append(torch.empty(_CHUNK, dtype=torch.float64))
        return self._rooms[0][:size]

    def _std(self, step: int, drawn: float, column: Array, state: State) -> float:
        """Of the noise of a step: what of each earlier draw is left in it, added up in squares."""
        if step >= len(state["drawn"]):
            state["drawn"] = torch.cat([state["drawn"], torch.zeros_like(state["drawn"])])
        state["drawn"][step] = drawn
        if not self._squares or len(self._squares[0]) <= step:
            self._squares[:] = [inverse(column, len(state["drawn"])) ** 2]
        before = state["drawn"][: step + 1].numpy()[::-1]
        return math.sqrt(float(self._squares[0][: step + 1] @ before**2))


def _weights(shares: Tensor, rows: int, step: int, ahead: int) -> Tensor:
    """What the steps from this one on take back of the noise in each row, [ahead, rows]."""
    ages = (step - 1 - torch.arange(rows)) % rows + 1  # of the noise in each row, from 1 to b - 1
    later = ages + torch.arange(ahead)[:, None]
    return torch.where(later <= rows, shares[later.clamp(max=rows)], 0.0)


def _since(first: int, step: int, rows: int) -> Iterator[tuple[slice, slice]]:
    """The rows of the noise from step ``first`` to before ``step``, in one piece or two, and their ages backwards."""
    while first < step:
        row, age = first % rows, step - first
        count = min(age, rows - row)
        yield slice(row, row + count), slice(age - count + 1, age + 1)
        first += count
