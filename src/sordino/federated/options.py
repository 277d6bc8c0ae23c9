"""What a federation can be told besides what every run can: how clients train, what is promised them, by what means."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from sordino.clipping.policy import ClippingPolicy
from sordino.federated.conditions import Conditions
from sordino.federated.local import LocalRule, OwnLoop, local_named
from sordino.federated.population import LocalPlan
from sordino.noise import Mechanism
from sordino.registry import said
from sordino.runs.options import RunOptions


class FederationOptions(RunOptions, total=False):
    """The keywords, as a type checker sees them; what they mean and their defaults are at the classes below."""

    local: LocalRule | OwnLoop | str
    local_epochs: int
    batch_size: int
    top_up: bool
    max_examples: int | None
    rate: float
    decay: float
    keep_rates: bool
    clip: ClippingPolicy | None
    noise: Mechanism | None
    public_examples: float | None
    conditions: Conditions | None
    patience: float | None
    engine: str
    chunk: int | None
    workers: int | None
    store: str


@dataclass(frozen=True, kw_only=True)
class LocalTraining:
    """How a client trains in a round."""

    local: LocalRule | OwnLoop | str = "sgd"
    local_epochs: int = 5
    batch_size: int = 45
    top_up: bool = True
    max_examples: int | None = None
    rate: float = 0.1
    decay: float = 0.998  # of the rate, from round to round
    keep_rates: bool = True  # rules that tune their rate go on from where a client was

    def __post_init__(self) -> None:
        if not 0 < self.rate < math.inf:
            raise ValueError(f"the learning rate must be positive, not {self.rate:g}")
        if not 0 < self.decay <= 1:
            raise ValueError(f"decay must be in (0, 1], not {self.decay:g}")

    @cached_property
    def rule(self) -> LocalRule | OwnLoop:
        return local_named(self.local) if isinstance(self.local, str) else self.local

    @property
    def plan(self) -> LocalPlan:
        return LocalPlan(self.local_epochs, self.batch_size, self.top_up, self.max_examples)

    @property
    def own_rates(self) -> bool:
        rule = self.rule
        return isinstance(rule, LocalRule) and rule.keeps_rate and self.keep_rates

    def check(self, typical: float) -> None:
        """Raise ValueError if a typical client has too little for one step."""
        rule = self.rule
        if isinstance(rule, LocalRule) and self.plan.steps(typical) < rule.batches_per_step:
            raise ValueError(
                f"a client of {typical:g} rows has one batch of {self.batch_size} in a round, and a step of "
                f"{type(rule).__name__} takes two: use smaller batches or more local epochs"
            )


@dataclass(frozen=True, kw_only=True)
class UserPrivacy:
    """How the guarantee for a client comes about; for federations with a budget."""

    clip: ClippingPolicy | None = None
    noise: Mechanism | None = None
    public_examples: float | None = None  # what passes for a client's number of examples

    def __post_init__(self) -> None:
        if self.public_examples is not None and not 1 <= self.public_examples < math.inf:
            raise ValueError(f"public_examples is a number of rows, at least 1, not {self.public_examples:g}")


@dataclass(frozen=True, kw_only=True)
class Means:
    """With what the simulation is run, and how its devices behave. The result depends on the latter alone."""

    conditions: Conditions | None = None
    patience: float | None = None
    engine: str = "auto"
    chunk: int | None = None
    workers: int | None = None
    store: str = "memory"

    def __post_init__(self) -> None:
        if self.conditions is not None and not isinstance(self.conditions, Conditions):
            raise ValueError(
                f"conditions are written as in Conditions(drop_out=0.1), and not {said(self.conditions)}"
            )
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"workers must be at least 1, not {self.workers}")
        if self.chunk is not None and self.chunk < 1:
            raise ValueError(f"chunk is how many clients are stepped together, at least 1, not {self.chunk}")
        if self.patience is not None and not self.patience > 0:
            raise ValueError(f"patience is a number of seconds, above 0, not {self.patience:g}")
