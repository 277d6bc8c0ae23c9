"""Which units take part in a step, and how that may be priced.

A sampling is a public rule. Given a stream of randomness it names the units of a step; the gate turns them into
rows and asks how the step is to be charged. Sampled indices never leave the gate.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, Self

import numpy as np
import numpy.typing as npt

from sordino.named import SAMPLINGS
from sordino.privacy.events import release, sampled_without_replacement
from sordino.registry import is_whole, said

if TYPE_CHECKING:
    from dp_accounting import DpEvent


class Words(Protocol):
    """A source of uniform 64-bit integers, a function of (purpose, step)."""

    def words(self, purpose: str, step: int, count: int) -> npt.NDArray[np.uint64]: ...


class Sampling(ABC):
    """How batches are formed. ``n`` is always the public number of units."""

    @abstractmethod
    def units(self, step: int, n: int, source: Words) -> npt.NDArray[np.int64]:
        """The units of a step, in increasing order or in the order of the batch."""

    @abstractmethod
    def expected_batch(self, n: int) -> float:
        """The divisor of every sum: the *expected* number of units, never the realised one."""

    @abstractmethod
    def steps_per_epoch(self, n: int) -> int: ...

    @abstractmethod
    def charge_key(self, step: int, n: int) -> str:
        """The charge a step belongs to; steps of one key are charged together, once."""

    @abstractmethod
    def charges(self, steps: int, n: int) -> int:
        """How many charges ``steps`` steps make."""

    @abstractmethod
    def amplified_rate(self, n: int) -> float | None:
        """The rate of Poisson sampling if the price may use it, else None: no amplification."""

    def release(self, noise_multiplier: float, n: int) -> DpEvent:
        """What one charge costs under independent noise of standard deviation noise_multiplier * C."""
        return release(noise_multiplier, self.amplified_rate(n))

    @property
    def coin(self) -> float | None:
        """The probability with which a unit whose turn it is is in a batch, if that is independent of all else."""
        return None

    def turns(self, step: int, units: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Whose turn it is at a step, as far as that is public: no other unit can be in the batch."""
        return np.ones(len(units), dtype=bool)

    @property
    def fixed_count(self) -> int | None:
        """How many units every step draws from all of them, if always so many: then neighbours are substitutes."""
        return None

    def shuffled_every(self, epochs: int | None) -> Sampling:
        """This sampling, shuffled every so many epochs if it is shuffled at all; None is once, for good."""
        return self

    @property
    def min_separation(self) -> int | None:
        """How many steps a unit sits out at least, if that is all that is known about the order."""
        return None

    def never_drawn(self, n: int) -> int:
        """How many units are in no batch, ever."""
        return 0

    def order_lasts(self, n: int) -> float:
        """For how many steps a unit stays at its place of the epoch; 0 if it never has one, infinity if for good."""
        return 0

    def returns_after(self, n: int) -> int:
        """So many steps after a unit took part it can do so again, and no sooner; 1 if that may be at once."""
        return self.steps_per_epoch(n) if math.isinf(self.order_lasts(n)) else 1

    @property
    @abstractmethod
    def assumption(self) -> str:
        """What a reader of the guarantee must believe about the sampling."""

    @property
    def caveat(self) -> str | None:
        """What every output must say beside its epsilon; None where the price is a guarantee."""
        return None

    def check(self, n: int) -> None:
        """Raise ValueError if this sampling is impossible with n units."""
        return None


@dataclass(frozen=True)
class Poisson(Sampling):
    """Every unit takes part in every step with probability ``rate``, independently of all else.

    An empty batch is a batch: it releases noise and is charged.

    Args:
        rate: In (0, 1], rounded down to 64 bits.

    Guarantee: amplified, for those who do not see which units were in a batch.

    Reference: Abadi et al., 2016; Mironov, Talwar and Zhang, "Rényi differential privacy of the sampled
    Gaussian mechanism", 2019.

    >>> Poisson(rate=0.25).expected_batch(1000)
    250.0
    """

    rate: float

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"the sampling rate must be in (0, 1], not {self.rate:g}")

    @property
    def coin(self) -> float:
        return self.rate

    @classmethod
    def of_batch(cls, batch_size: int, units: int) -> Self:
        """The rate at which so many are expected of so many units."""
        return cls(min(1.0, batch_size / units))

    def units(self, step: int, n: int, source: Words) -> npt.NDArray[np.int64]:
        if self.rate == 1:
            return np.arange(n)
        drawn = source.words("sampling", step, n) < np.uint64(math.floor(self.rate * 2.0**64))
        return np.flatnonzero(drawn)

    def expected_batch(self, n: int) -> float:
        return self.rate * n

    def steps_per_epoch(self, n: int) -> int:
        return max(1, round(1 / self.rate))

    def charge_key(self, step: int, n: int) -> str:
        return f"step:{step}"

    def charges(self, steps: int, n: int) -> int:
        return steps

    def amplified_rate(self, n: int) -> float | None:
        return self.rate

    @property
    def assumption(self) -> str:
        return (
            f"every unit was in every batch with probability {self.rate:.6g}, independently, and which ones "
            "were is secret"
        )


@dataclass(frozen=True)
class Cyclic(Sampling):
    """Poisson sampling by turns: units are in groups by their number, and a step draws from the group whose turn it is.

    Who is in which group is decided by numbers alone, before any row is seen. A unit can be in a batch once in
    ``groups`` steps, which is what correlated noise (``Banded``) of as many bands needs.

    Args:
        rate: With which each unit of the group takes part, in (0, 1], rounded down to 64 bits.
        groups: How many there are; 1 is Poisson sampling.

    Guarantee: amplified, once for each turn of a unit, for those who do not see which units were in a batch.

    Reference: Choquette-Choo et al., "(Amplified) banded matrix factorization: a unified approach to private
    training", NeurIPS 2023.

    >>> Cyclic(rate=0.2, groups=4).expected_batch(1000), Cyclic(rate=0.2, groups=4).charges(steps=30, n=1000)
    (50.0, 8)
    """

    rate: float
    groups: int

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"the sampling rate must be in (0, 1], not {self.rate:g}")
        if not is_whole(self.groups) or self.groups < 1:
            raise ValueError(f"groups is a whole number, at least 1, not {said(self.groups)}")

    def check(self, n: int) -> None:
        if self.groups > n:
            raise ValueError(f"{n} units cannot be in {self.groups} groups: use at most {n}")

    @property
    def coin(self) -> float:
        return self.rate

    def turns(self, step: int, units: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = units % self.groups == step % self.groups
        return found

    def units(self, step: int, n: int, source: Words) -> npt.NDArray[np.int64]:
        self.check(n)
        group = step % self.groups
        size = -(-(n - group) // self.groups)
        return group + self.groups * Poisson(self.rate).units(step, size, source)

    def expected_batch(self, n: int) -> float:
        return self.rate * n / self.groups

    def steps_per_epoch(self, n: int) -> int:
        return max(1, round(self.groups / self.rate))

    def charge_key(self, step: int, n: int) -> str:
        return f"turn:{step // self.groups}"

    def charges(self, steps: int, n: int) -> int:
        return -(-steps // self.groups)

    def amplified_rate(self, n: int) -> float | None:
        return self.rate

    def returns_after(self, n: int) -> int:
        return self.groups

    @property
    def assumption(self) -> str:
        turns = f"units were in {self.groups} groups by their numbers, which took turns"
        if self.rate == 1:
            return f"{turns}, all of a group at a time; nothing is assumed to be random"
        return (
            f"{turns}; every unit of a group was in its batch with probability {self.rate:.6g}, independently, and "
            "which ones were is secret"
        )


@dataclass(frozen=True)
class _Batches(Sampling):
    """Disjoint batches of ``batch_size``: a unit is in one batch of an epoch, and left-overs in none."""

    batch_size: int

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"the batch size must be at least 1, not {self.batch_size}")

    def check(self, n: int) -> None:
        if self.batch_size > n:
            raise ValueError(f"a batch of {self.batch_size} cannot be drawn from {n} units: use at most {n}")

    def expected_batch(self, n: int) -> float:
        return float(self.batch_size)

    def steps_per_epoch(self, n: int) -> int:
        return n // self.batch_size

    def charge_key(self, step: int, n: int) -> str:
        return f"epoch:{step // self.steps_per_epoch(n)}"

    def charges(self, steps: int, n: int) -> int:
        return -(-steps // self.steps_per_epoch(n))

    def amplified_rate(self, n: int) -> float | None:
        return None

    def _slice(self, step: int, n: int) -> slice:
        place = step % self.steps_per_epoch(n)
        return slice(place * self.batch_size, (place + 1) * self.batch_size)


@dataclass(frozen=True)
class FixedOrder(_Batches):
    """Batches in the order of the data, the same every epoch.

    Args:
        batch_size: Units in a batch; what is left over after the last whole batch is never used.

    Guarantee: not amplified, and nothing is assumed to be random. Within an epoch batches are disjoint, so
    an epoch costs what one step costs.

    >>> FixedOrder(100).charges(steps=30, n=1050), FixedOrder(100).never_drawn(1050)  # three epochs of ten
    (3, 50)
    """

    @classmethod
    def of_batch(cls, batch_size: int, units: int) -> Self:
        return cls(batch_size)

    def units(self, step: int, n: int, source: Words) -> npt.NDArray[np.int64]:
        self.check(n)
        return np.arange(n)[self._slice(step, n)]

    def order_lasts(self, n: int) -> float:
        return math.inf

    def never_drawn(self, n: int) -> int:
        return n % self.batch_size

    @property
    def assumption(self) -> str:
        return f"batches of {self.batch_size} in the fixed order of the data; nothing is assumed to be random"


@dataclass(frozen=True)
class Shuffled(_Batches):
    """A fresh permutation every epoch, cut into batches.

    Args:
        batch_size: Units in a batch; what is left over is in none this time.
        assume_poisson: Price it as Poisson sampling, as the papers do. That is not a guarantee for this
            sampling, and every output says so.
        every: The permutation stays for so many epochs, or with None for good.

    Guarantee: not amplified; an epoch costs what one step costs.

    >>> Shuffled(100).charges(steps=30, n=1000), Shuffled(100, assume_poisson=True).charges(steps=30, n=1000)
    (3, 30)
    >>> Shuffled(100, assume_poisson=True).caveat
    'NOT A GUARANTEE: batches were shuffled but priced as Poisson samples (assume_poisson)'
    """

    assume_poisson: bool = False
    every: int | None = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.every is not None and self.every < 1:
            raise ValueError(f"batches are shuffled every so many epochs, at least 1, not {self.every}")

    @classmethod
    def of_batch(
        cls, batch_size: int, units: int, assume_poisson: bool = False, every: int | None = 1
    ) -> Self:
        return cls(batch_size, assume_poisson, every)

    def shuffled_every(self, epochs: int | None) -> Sampling:
        return replace(self, every=epochs)

    def units(self, step: int, n: int, source: Words) -> npt.NDArray[np.int64]:
        self.check(n)
        deal = 0 if self.every is None else step // (self.steps_per_epoch(n) * self.every)
        order = np.argsort(source.words("order", deal, n), kind="stable")
        return order[self._slice(step, n)]

    def never_drawn(self, n: int) -> int:
        return n % self.batch_size if self.every is None else 0

    def order_lasts(self, n: int) -> float:
        if self.assume_poisson:
            return 0
        return math.inf if self.every is None else self.every * self.steps_per_epoch(n)

    def charge_key(self, step: int, n: int) -> str:
        return f"step:{step}" if self.assume_poisson else super().charge_key(step, n)

    def charges(self, steps: int, n: int) -> int:
        return steps if self.assume_poisson else super().charges(steps, n)

    def amplified_rate(self, n: int) -> float | None:
        return self.batch_size / n if self.assume_poisson else None

    @property
    def assumption(self) -> str:
        if not self.assume_poisson:
            dealt = {None: "one permutation", 1: "a permutation per epoch"}
            of = dealt.get(self.every, f"a permutation every {self.every} epochs")
            return f"batches of {self.batch_size} from {of}, priced without amplification"
        return f"{self.caveat} (batches of {self.batch_size})"

    @property
    def caveat(self) -> str | None:
        if not self.assume_poisson:
            return None
        return "NOT A GUARANTEE: batches were shuffled but priced as Poisson samples (assume_poisson)"


@dataclass(frozen=True)
class WithoutReplacement(Sampling):
    """``count`` units a step, drawn anew every time without replacement; time does not depend on how many
    there are.

    Args:
        count: Units in a step.

    Guarantee: amplified, for *substituting* a unit, which moves the sum by 2C. Such prices never add up
    with those of other samplings.

    Reference: Wang, Balle and Kasiviswanathan, "Subsampled Rényi differential privacy and analytical
    moments accountant", AISTATS 2019.

    >>> WithoutReplacement(10).steps_per_epoch(1000)
    100
    """

    count: int

    def __post_init__(self) -> None:
        if self.count < 1 or self.count != int(self.count):
            raise ValueError(
                f"a whole number of units has to take part in a step, at least 1, not {self.count}"
            )

    @classmethod
    def of_batch(cls, batch_size: int, units: int) -> Self:
        return cls(batch_size)

    @property
    def fixed_count(self) -> int:
        return self.count

    def check(self, n: int) -> None:
        if self.count > n:
            raise ValueError(f"{self.count} units cannot be drawn from {n}: use at most {n}")

    def units(self, step: int, n: int, source: Words) -> npt.NDArray[np.int64]:
        self.check(n)
        return _drawn(self.count, n, source.words("sampling", step, self.count))

    def expected_batch(self, n: int) -> float:
        return float(self.count)

    def steps_per_epoch(self, n: int) -> int:
        return max(1, round(n / self.count))

    def charge_key(self, step: int, n: int) -> str:
        return f"step:{step}"

    def charges(self, steps: int, n: int) -> int:
        return steps

    def amplified_rate(self, n: int) -> float | None:
        return None

    def release(self, noise_multiplier: float, n: int) -> DpEvent:
        return sampled_without_replacement(noise_multiplier, self.count, n)

    @property
    def assumption(self) -> str:
        return (
            f"{self.count} units were drawn for every step without replacement, and which ones were is secret; "
            "neighbouring data sets differ in one unit that is replaced by another"
        )


@dataclass(frozen=True)
class Separated(Sampling):
    """``count`` units a step, and a unit that took part sits out at least ``separation`` steps.

    Units are in separation + 1 groups by their number, and a step draws from the group whose turn it is: so
    the limit holds by construction, and nothing has to be remembered.

    Args:
        count: Units in a step.
        separation: Steps that a unit sits out at least.

    Guarantee: not amplified; nothing is assumed to be secret about who comes when. With tree noise the
    worst case of all orders with this separation is charged.

    Reference: Kairouz et al., "Practical and private (deep) learning without sampling or shuffling", ICML
    2021.

    >>> Separated(10, separation=4).charges(steps=100, n=1000)  # a unit comes once in five steps at most
    20
    """

    count: int
    separation: int

    def __post_init__(self) -> None:
        if self.count < 1 or self.count != int(self.count):
            raise ValueError(
                f"a whole number of units has to take part in a step, at least 1, not {self.count}"
            )
        if self.separation < 1 or self.separation != int(self.separation):
            raise ValueError(f"separation is a whole number of steps, at least 1, not {self.separation:g}")

    @classmethod
    def of_batch(cls, batch_size: int, units: int, separation: int) -> Self:
        return cls(batch_size, separation)

    @property
    def period(self) -> int:
        return self.separation + 1

    def check(self, n: int) -> None:
        if self.count > n // self.period:
            raise ValueError(
                f"{self.count} units a step that sit out {self.separation} steps need "
                f"{self.count * self.period} units, and there are {n}: use a smaller count or separation"
            )

    def units(self, step: int, n: int, source: Words) -> npt.NDArray[np.int64]:
        self.check(n)
        group = step % self.period
        size = -(-(n - group) // self.period)
        return group + self.period * _drawn(self.count, size, source.words("sampling", step, self.count))

    def expected_batch(self, n: int) -> float:
        return float(self.count)

    def steps_per_epoch(self, n: int) -> int:
        return self.period

    def charge_key(self, step: int, n: int) -> str:
        return f"turn:{step // self.period}"  # a unit takes part once in it at most

    def charges(self, steps: int, n: int) -> int:
        return -(-steps // self.period)

    def amplified_rate(self, n: int) -> float | None:
        return None

    def order_lasts(self, n: int) -> float:
        return math.inf

    @property
    def min_separation(self) -> int:
        return self.separation

    @property
    def assumption(self) -> str:
        return (
            f"a unit that took part sat out at least {self.separation} steps; nothing is assumed to be random"
        )


def sampling_named(name: str, batch_size: int, units: int) -> Sampling:
    """The sampling of this name for batches of so many of so many units.

    >>> sampling_named("poisson", 100, 400)
    Poisson(rate=0.25)
    """
    SAMPLINGS.key(name)
    if not is_whole(batch_size) or batch_size < 1:
        raise ValueError(f"the batch size must be a whole number, at least 1, not {said(batch_size)}")
    if batch_size > units:
        raise ValueError(
            f"a batch of {batch_size} is more than the {units} units there are: use at most {units}"
        )
    found: Sampling = SAMPLINGS.named(name, None, batch_size, units)
    return found


def _drawn(count: int, n: int, words: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """``count`` different numbers below n, sorted, by Floyd's algorithm: as many draws, whatever n."""
    found: set[int] = set()
    for last, word in zip(range(n - count, n), words.tolist(), strict=True):
        drawn = (word * (last + 1)) >> 64
        found.add(last if drawn in found else drawn)
    return np.array(sorted(found), dtype=np.int64)
