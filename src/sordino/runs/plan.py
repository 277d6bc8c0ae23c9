"""All that is laid down before a run begins, and public."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sordino.data.inputs import Inputs
from sordino.runs.before import Before
from sordino.standardise.choice import Standardising
from sordino.terms import Terms

# What run.json says besides the plan, so that nothing of the caller's own can pass for it.
SAID_BY_THE_RUN = frozenset(
    {
        "status",
        "relation",
        "epsilon",
        "planned_epsilon",
        "zcdp_rho",
        "gdp_mu",
        "accountant",
        "assumptions",
        "unprotected",
        "metrics",
        "ledger",
        "caveat",
        "before",
        "metric_epsilon",
        "standardise",
        "checkpoint_kept",
        "sordino_version",
        "seconds",
        "peak_memory_mib",
        "seconds_and_memory",
        "time",
        "minutes",
        "microbatch",
        "shares",
        "workers",
        "clients_with_state",
        "covered",
        "method",
        "algorithm",
        "rounds",
        "private",
    }
)


@dataclass(frozen=True, kw_only=True)
class RunPlan(ABC):
    """What central and federated runs have in common. Nothing of it depends on the value of a private row."""

    data: str  # its declared name
    unit: str  # of privacy: example, or user
    terms: Terms
    delta: float | None
    steps: int  # of the process: steps, or rounds
    lines: int  # of the history, about
    parameters: int
    seeded: bool
    assumptions: tuple[str, ...]  # what a reader of the guarantee must believe
    unprotected: tuple[str, ...] = ()  # what is shown or written that the guarantee does not cover
    details: Mapping[str, Any] = field(default_factory=dict)  # of the caller's own
    inputs: Inputs | None = None  # how raw rows became the data
    before: Before | None = None  # what was released before the run, on its budget
    metric_epsilon: float | None = None  # for noisy counts of the held-out rows, when the training is done
    standardise: Standardising | None = None  # how inputs become what the model sees

    def __post_init__(self) -> None:
        taken = sorted((self._own().keys() | SAID_BY_THE_RUN) & self.details.keys())
        if taken:
            raise ValueError(f"details has {taken[0]!r}, which run.json says by itself: call it otherwise")

    def describe(self) -> dict[str, Any]:
        """As plain data: what run.json says, and what a resumed run must have in common with it."""
        return {**self._own(), **self.details}

    def _own(self) -> dict[str, Any]:
        return {
            "data": self.data,
            "n": self.terms.units,
            "unit": self.unit,
            **self.particulars(),
            "steps": self.steps,
            "noise_multiplier": self.terms.multiplier,
            "delta": self.delta,
            "parameters": self.parameters,
            "seeded": self.seeded,
            "secure": self.terms.secure,
            **({} if self.caveat is None else {"caveat": self.caveat}),
            **({} if self.before is None else {"before": self.before.to_json()}),
            **({} if self.metric_epsilon is None else {"metric_epsilon": self.metric_epsilon}),
            **({} if self.standardise is None else {"standardise": self.standardise.describe()}),
        }

    @property
    def caveat(self) -> str | None:
        """What every output says beside its epsilon."""
        return self.terms.caveat or inputs_caveat(self.inputs, counted=self.before is not None)

    kind: ClassVar[str]  # what a ledger calls it
    deployment: ClassVar[str]  # what a certificate calls it: who has to be trusted

    @property
    @abstractmethod
    def unit_means(self) -> str:
        """What one unit is, in words."""

    @property
    @abstractmethod
    def how(self) -> str:
        """What trains the model, in words; its settings are in run.json."""

    @property
    @abstractmethod
    def label(self) -> str:
        """What a ledger says beside it."""

    @abstractmethod
    def particulars(self) -> dict[str, Any]:
        """What only this kind of run has."""


def inputs_caveat(inputs: Inputs | None, *, counted: bool = False) -> str | None:
    """Why what raw rows became leaves no guarantee, unless what was released for it is ``counted``."""
    if inputs is None:
        return None
    return inputs.caveat or (None if counted else inputs.uncounted)
