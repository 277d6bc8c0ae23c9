"""Whether and how the inputs of a run are standardised: decided from public facts, before anything is spent."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sordino.data import Examples, as_examples
from sordino.data.standardised import Moments, Place, StandardisedExamples
from sordino.privacy import Budget
from sordino.registry import is_number, said
from sordino.standardise.plan import MomentsPlan, fits, planned_moments
from sordino.terms import check_besides
from sordino.warn import warn

if TYPE_CHECKING:
    from dp_accounting import DpEvent

_WAYS = "none, private, or public:MEAN,STD"


@dataclass(frozen=True, eq=False)
class Standardising:
    """Inputs are standardised by moments that are released as ``plan`` says, or that are public."""

    shape: tuple[int, ...]  # of a row
    place: Place
    plan: MomentsPlan | None = None

    @property
    def event(self) -> DpEvent | None:
        """What it costs."""
        return None if self.plan is None else self.plan.event

    def behind(self, examples: Any) -> Examples:
        """As the model sees them, as soon as moments are known."""
        return StandardisedExamples(as_examples(examples), self.place)

    def describe(self) -> dict[str, Any]:
        """What run.json says."""
        if self.plan is not None:
            return self.plan.describe()
        moments = self.place.moments
        assert moments is not None
        numbers = {name: value.flatten().tolist() for name, value in moments.to_state().items()}
        return {"how": "public", **numbers}

    @property
    def words(self) -> str:
        """For the certificate."""
        return "public: offset and deviation of the inputs" if self.plan is None else self.plan.words


def standardising(
    given: Any,
    examples: Examples,
    units: int,
    budget: Budget | None,
    accountant: str,
    besides: DpEvent | None = None,
    *,
    by_default: bool,
    each_number: Callable[[tuple[int, ...]], bool] = lambda shape: False,
) -> Standardising | None:
    """From what the caller gave; None for inputs as they are.

    ``by_default`` is whether inputs are standardised privately where the caller gave nothing, if there is a budget and
    they are of a kind that can be: numbers in rows of features, or of channels, height and width. ``besides`` is what
    else is released on the budget. ``each_number`` says whether the model has weights for every number of a row of this
    shape, which then has an offset and a deviation of its own; else a channel has.
    """
    if besides is not None and budget is not None:
        check_besides(besides, budget, accountant)
    if given is None:
        shape = _shape_of(examples)
        if not by_default or budget is None or shape is None:
            return None
        plan = planned_moments(shape, units, budget, accountant, besides, each_number(shape))
        return None if plan is None else Standardising(shape, Place(), plan)
    if isinstance(given, str) and given == "none":
        return None
    public = _public(given)
    if public is None and budget is None:
        raise ValueError(
            "standardising privately takes a part of the budget: give one (epsilon and delta), or leave it out"
        )
    shape = _shape_of(examples)
    if shape is None:
        raise ValueError(
            "inputs are standardised if they are one tensor of floating-point numbers, rows by features or by "
            "channels, height and width: leave it out for others"
        )
    if public is not None:
        return Standardising(shape, Place(_moments(*public, shape)))
    assert budget is not None
    plan = planned_moments(shape, units, budget, accountant, besides, each_number(shape))
    _say(plan, shape, units, budget)
    return None if plan is None else Standardising(shape, Place(), plan)


def check_choice(given: Any) -> None:
    """Refuse what would be refused whatever the rows are."""
    if given is not None and not (isinstance(given, str) and given == "none"):
        _public(given)


def _say(plan: MomentsPlan | None, shape: tuple[int, ...], units: int, budget: Budget) -> None:
    """To a caller who asked for it, and may expect more."""
    if plan is None:
        warn(
            f"{units} units at epsilon {budget.epsilon:g} are too few to standardise by: inputs stay as they are, and "
            "nothing is spent on it"
        )
    elif plan.one_scale:
        warn(
            f"{units} units at epsilon {budget.epsilon:g} are too few for an offset and a deviation of each of "
            f"{shape[0]} inputs: one of each is estimated for all"
        )


def _shape_of(examples: Examples) -> tuple[int, ...] | None:
    """Of a row, by made-up ones; None where it is not of a kind that can be standardised."""
    inputs = examples.template(1)[0]
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point() or not fits(tuple(inputs.shape[1:])):
        return None
    return tuple(inputs.shape[1:])


def _public(given: Any) -> tuple[Any, Any] | None:
    """Mean and deviation, as given; None for ``private``."""
    if isinstance(given, str):
        if given == "private":
            return None
        kind, _, numbers = given.partition(":")
        parts = numbers.split(",")
        try:
            if kind == "public" and len(parts) == 2:
                return float(parts[0]), float(parts[1])
        except ValueError:
            pass
        raise ValueError(f"standardise is {_WAYS} (two numbers), not {given!r}")
    if isinstance(given, Sequence) and len(given) == 2:
        return given[0], given[1]
    raise ValueError(
        f"standardise is {_WAYS}, or a pair (mean, std) of numbers or tensors, not {said(given)}"
    )


def _moments(mean: Any, std: Any, shape: tuple[int, ...]) -> Moments:
    offset, deviation = (_of_features(value, shape) for value in (mean, std))
    if not bool(offset.isfinite().all() & deviation.isfinite().all() & (deviation > 0).all()):
        raise ValueError("a public mean is a finite number, and a deviation one above 0: mend them")
    return Moments(offset, deviation)


def _of_features(value: Any, shape: tuple[int, ...]) -> Tensor:
    """As [features], or [channels, 1, 1]."""
    found = torch.tensor(float(value)) if is_number(value) else torch.as_tensor(value)
    found = found.detach().to("cpu", torch.float32)
    features = shape[0]
    if found.numel() not in (1, features):
        raise ValueError(
            f"a public mean or deviation is one number, or one for each of {features} features or channels, not "
            f"{found.numel()}"
        )
    return found.flatten().expand(features).reshape(features, *[1] * (len(shape) - 1)).clone()
