"""What a noise mechanism is: the noise of a whole sequence of releases, and what that sequence costs.

Independent noise is one case, the tree another, banded matrices a third and decaying sums a fourth; further correlated
noise is one more file with these two classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from sordino.data.sampling import Sampling
from sordino.noise.gaussian import GaussianNoise

if TYPE_CHECKING:
    from dp_accounting import DpEvent

    from sordino.privacy.budget import Budget

State = dict[str, Any]  # tensors and numbers: a checkpoint holds it as it is


@dataclass(frozen=True)
class Known:
    """What is public about a run before its noise is: how units are sampled, how many there are, what may be spent."""

    sampling: Sampling
    units: int
    budget: Budget | None = None  # None where a noise multiplier was given instead
    parameters: int | None = None  # None where nobody has counted them yet


class Mechanism(ABC):
    """The settings, all public: what a method and a gate are told to use."""

    independent = False  # the noise of a release tells nothing about that of another
    sampling = "poisson"  # how batches are formed unless somebody says otherwise

    comparable = True  # gradients may be compared with one another, to move a threshold
    moving = True  # its price holds for thresholds that move

    def planned(self, steps: int, per_epoch: int, known: Known | None = None) -> Mechanism:
        """This mechanism with what was left open settled for a run of so many steps, by what is ``known`` of it."""
        return self

    def restart_steps(self, per_epoch: int) -> int | None:
        """After how many steps correlated noise begins anew, so that batches may be dealt anew; None for never."""
        return None

    def dealt(self, sampling: Sampling, units: int) -> Sampling:
        """``sampling`` with its batches shuffled when, and only when, the noise begins anew."""
        if self.independent:
            return sampling
        per_epoch = sampling.steps_per_epoch(units)
        restart = self.restart_steps(per_epoch)
        return sampling.shuffled_every(None if restart is None else restart // per_epoch)

    @abstractmethod
    def over(self, sampling: Sampling, units: int, steps: int | None) -> Releases:
        """The noise for releases of so sampled batches; raises ValueError where the price would not be known.

        ``steps`` is how many releases are planned, None if that is open.
        """


class Releases(ABC):
    """The noise of a sequence of releases, of which it is public who may take part in which.

    ``noise_multiplier`` is z, and ``probe_multipliers`` are those of the further questions asked at every step.
    """

    @abstractmethod
    def split(self, noise_multiplier: float, probe_multipliers: Sequence[float]) -> float:
        """The gradient's own multiplier when the probes are released beside it."""

    @abstractmethod
    def charge(
        self, step: int, noise_multiplier: float, probe_multipliers: Sequence[float]
    ) -> tuple[str, DpEvent]:
        """What has to be paid before a step, and the name of the payment: steps of one name are paid once."""

    @abstractmethod
    def cost(self, steps: int, noise_multiplier: float, probe_multipliers: Sequence[float]) -> DpEvent:
        """All the charges of the first ``steps`` steps, equal ones grouped."""

    @abstractmethod
    def gathered(self, steps: int) -> float:
        """The std of the noise in the sum of the first ``steps`` releases, where multiplier and thresholds are 1."""

    def explanation(self, noise_multiplier: float, probe_multipliers: Sequence[float]) -> str | None:
        """Where the events of a certificate come from, if they do not speak for themselves."""
        return None

    def start(self) -> State:
        """What the noise of the next step depends on besides the key, before the first."""
        return {}

    def check(self, step: int, state: State) -> None:
        """Raise RuntimeError if this step cannot follow what the state says was done."""
        return None

    @abstractmethod
    def add_(
        self,
        vector: Tensor,
        draw: GaussianNoise,
        noise_multiplier: float,
        threshold: float,
        step: int,
        state: State,
    ) -> float:
        """Add the noise of a step to a sum of sensitivity ``threshold``, in place; its standard deviation.

        ``noise_multiplier`` is the gradient's own, above 0.
        """
