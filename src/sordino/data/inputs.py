"""How raw rows become what a model sees, and what it says becomes an answer.

All of it is public: written down by the owner, fixed by a format, or released under the budget. It is kept beside the
model as inputs.json, so that whoever has the run can give it raw rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from sordino.data.sources import Examples
from sordino.named import INPUTS

FORMAT = "sordino-inputs/1"
LARGEST_BOUND = 1e300  # beyond, the distance of two may be no number


def are_bounds(low: float, high: float) -> bool:
    """Whether one can scale between them: low is below high, and their distance, and half of it, is a number above 0.

    >>> are_bounds(0, 1), are_bounds(-1e308, 1e308), are_bounds(0, 5e-324)
    (True, False, False)
    """
    return -LARGEST_BOUND <= low < high <= LARGEST_BOUND and (high - low) / 2 > 0


@dataclass(frozen=True)
class Target:
    """What is predicted: one of so many classes, or a number between public bounds, which the model sees as -1 to 1.

    >>> import torch
    >>> Target("income", labels=("low", "high")).decoded(torch.tensor([[0.1, 2.0]]))
    ['high']
    >>> Target("age", low=0.0, high=100.0).decoded(torch.tensor([[0.5], [7.0]]))
    [75.0, 100.0]
    """

    name: str  # of the column, where there is one
    labels: tuple[str, ...] = ()  # names of the classes, in the order of the model's scores
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if self.labels and (self.low is not None or self.high is not None):
            raise ValueError(f"target {self.name!r} has both labels and bounds: give labels, or low and high")
        if not self.labels and (self.low is None or self.high is None or not are_bounds(self.low, self.high)):
            raise ValueError(
                f"target {self.name!r} needs labels, or bounds low < high, none beyond {LARGEST_BOUND:g}"
            )

    @property
    def task(self) -> str:
        return "classification" if self.labels else "regression"

    @property
    def outputs(self) -> int:
        """Of the model: a score for each class, or one number."""
        return len(self.labels) or 1

    @property
    def half_range(self) -> float:
        """What 1 of the model's numbers is in those of the owner."""
        assert self.low is not None
        assert self.high is not None
        return (self.high - self.low) / 2

    def encoded(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Numbers as the model sees them, values outside the bounds at the bounds."""
        assert self.low is not None
        scaled: np.ndarray[Any, Any] = (np.clip(values, self.low, self.high) - self.low) / self.half_range - 1
        return scaled

    def decoded(self, outputs: Tensor) -> list[str] | list[float]:
        """Answers in the owner's words or units, from what the model gives for each row."""
        if self.labels:
            return [self.labels[place] for place in outputs.argmax(1).tolist()]
        assert self.low is not None
        numbers = outputs.reshape(len(outputs)).double().clamp(-1, 1)
        return [self.low + (number + 1) * self.half_range for number in numbers.tolist()]

    def to_json(self) -> dict[str, Any]:
        if self.labels:
            return {"name": self.name, "labels": list(self.labels)}
        return {"name": self.name, "low": self.low, "high": self.high}

    @staticmethod
    def from_json(said: Mapping[str, Any]) -> Target:
        return Target(said["name"], tuple(said.get("labels", ())), said.get("low"), said.get("high"))


class Inputs(ABC):
    """What raw rows are, and how they become tensors; each row by itself."""

    kind: ClassVar[str]  # its name in `sordino.named.INPUTS`
    target: Target

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Of what the model sees of a row."""

    @abstractmethod
    def examples(self, source: Any, *, targets: bool = True, progress: bool = False) -> Examples:
        """The rows of ``source`` (a path, or whatever this kind takes in memory), as a model sees them, in order.

        A row without a target that can be read is not readable (`Examples.take_readable` leaves it out), and counts
        all the same. With ``targets=False``, for prediction, no target is looked for, and all rows can be read.
        """

    def names(self, source: Any) -> list[str] | None:
        """What each row of ``source`` is called, in the order of `examples` without targets; None if it has no name."""
        return None

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """All but the target, as plain data from which `from_description` makes it again."""

    @classmethod
    @abstractmethod
    def from_description(cls, target: Target, said: Mapping[str, Any]) -> Inputs: ...

    @property
    def public(self) -> tuple[str, ...]:
        """What was taken for public, for the certificate."""
        return ("number of rows", "shape of the inputs")

    @property
    def unprotected(self) -> tuple[str, ...]:
        """What of it the guarantee does not cover."""
        return ()

    @property
    def caveat(self) -> str | None:
        """Why there is no guarantee, if it was made by looking at private rows."""
        return None

    @property
    def uncounted(self) -> str | None:
        """Why there is none by itself, if something was released to make it: unless that is counted (`Before`)."""
        return None

    def to_json(self) -> dict[str, Any]:
        return {"format": FORMAT, "kind": self.kind, "target": self.target.to_json(), **self.describe()}


def inputs_from_json(said: Any) -> Inputs:
    """The inverse of `Inputs.to_json`; anything that it could not have written raises `ValueError`."""
    if not isinstance(said, Mapping) or said.get("format") != FORMAT:
        raise ValueError(f"it does not say what a model's inputs are (format {FORMAT})")
    kind = said.get("kind")
    if not isinstance(kind, str) or kind not in INPUTS:
        raise ValueError(f"inputs of kind {kind!r} are not known to this version: update Sordino")
    try:
        found: Inputs = INPUTS[kind].from_description(Target.from_json(said["target"]), said)
    except (KeyError, TypeError, AttributeError):
        raise ValueError("what it says about a model's inputs is incomplete: put it back as it was") from None
    return found
