"""What every run can be told, central or federated, once: the keywords that ``train`` and ``federate`` share."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from inspect import signature
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import nn

from sordino.data.inputs import Inputs
from sordino.data.sources import Examples
from sordino.ledger import ledger_of
from sordino.privacy import Budget
from sordino.privacy.budget import budget_of, check_epsilon
from sordino.privacy.sealing import signing_key
from sordino.runs.before import Before

UNNAMED = "data"  # what a data set is called that its owner has given no name

Callback = Callable[[Any], Mapping[str, Any] | None]  # of a `Seen`


class RunOptions(TypedDict, total=False):
    """The keywords, as a type checker sees them; what they mean and their defaults are at `Options`."""

    budget: Budget | tuple[float, float] | None
    noise_multiplier: float | None
    delta: float | None
    accountant: str
    seed: int | None
    secure: bool
    test: Any
    evaluations: int
    callbacks: Sequence[Callback]
    device: str | torch.device | None
    show_unprotected: bool
    out: str | Path | None
    resume: bool
    keep_checkpoint: bool
    progress: bool | None
    data_name: str
    ledger: Any
    assumptions: Sequence[str]
    rationale: str | None
    signing_key: str | Path | None
    details: Mapping[str, Any] | None
    inputs: Inputs | None
    before: Before | None
    metric_epsilon: float | None


@dataclass(frozen=True, kw_only=True, eq=False)
class Options:
    """The same with their defaults, checked."""

    # What is promised: a budget, to which the noise is calibrated, or a noise multiplier and a delta.
    budget: Budget | None = None
    noise_multiplier: float | None = None
    delta: float | None = None
    accountant: str = "auto"
    # Where chance comes from: the system, or for experiments a seed, which voids the guarantee.
    seed: int | None = None
    secure: bool = False
    # What is looked at, how often, and by whom. No guarantee covers it.
    test: Any = None
    evaluations: int = 10
    callbacks: Sequence[Callback] = ()
    show_unprotected: bool = False
    # Where it happens, and what is kept of it.
    device: str | torch.device | None = None
    out: str | Path | None = None
    resume: bool = False
    keep_checkpoint: bool = False
    progress: bool | None = None
    data_name: str = UNNAMED
    ledger: Any = None  # a file, a LedgerFile, an Account; False for none, whatever the environment says
    # What its certificate says besides, and who signs it.
    assumptions: Sequence[str] = ()
    rationale: str | None = None
    signing_key: str | Path | None = None  # a PEM file; else the one that the environment names, if any
    details: Mapping[str, Any] | None = None
    inputs: Inputs | None = None  # how raw rows became the data: kept with the model, as inputs.json
    # What is released besides the training, on the same budget.
    before: Before | None = None
    metric_epsilon: float | None = None  # for noisy counts of the held-out rows, looked at once

    def __post_init__(self) -> None:
        object.__setattr__(self, "budget", budget_of(self.budget))
        if self.secure and self.seed is not None:
            raise ValueError("secure=True takes its randomness from the operating system: leave out the seed")
        object.__setattr__(self, "evaluations", _times(self.evaluations))
        if isinstance(self.assumptions, str):
            raise ValueError("assumptions is a list of sentences: put yours in brackets")
        object.__setattr__(self, "callbacks", _functions(self.callbacks))
        if self.rationale is not None and not (isinstance(self.rationale, str) and self.rationale.strip()):
            raise ValueError("rationale is a text, why this epsilon, delta and unit were chosen: write one")
        _check_details(self.details)
        if self.before is not None and not isinstance(self.before, Before):
            raise ValueError("before is what was released before the run: a Before with its event")
        if self.metric_epsilon is not None:
            object.__setattr__(self, "metric_epsilon", check_epsilon(self.metric_epsilon))
            if self.test is None:
                raise ValueError("metric_epsilon pays for noisy counts of held-out rows: give those, as test")
        signing_key(self.signing_key)  # or refuse: better now than when the run is done
        ledger_of(self.ledger)  # or refuse

    def refuse_besides(self, what: str) -> None:
        """Only `train` has a price for what is released besides the training."""
        if self.before is not None or self.metric_epsilon is not None:
            raise ValueError(f"{what} has no price for bounds or metrics that are paid for: leave them out")

    def with_inputs_of(self, examples: Examples) -> Options:
        """With what the rows themselves say of how they were made, unless the caller has said it: a schema that was
        read from them voids a guarantee also where nobody mentions it, and whatever the caller says."""
        given, own = self.inputs, examples.inputs
        if own is None or given is own:
            return self
        if given is None:
            return replace(self, inputs=own)
        for what in (own.caveat, own.uncounted, *own.unprotected):
            if what is not None and what not in (given.caveat, given.uncounted, *given.unprotected):
                raise ValueError(f"the rows say what the inputs given do not ({what}): leave out inputs")
        return self

    @property
    def wants_privacy(self) -> bool:
        return self.budget is not None or self.noise_multiplier is not None

    def check_device(self) -> None:
        if self.device is not None:
            _check_there(self.device)

    def place(self, model: nn.Module) -> None:
        """Move the model to where it is to be trained; batches follow it."""
        if self.device is None:
            return
        self.check_device()
        try:
            model.to(torch.device(self.device))
        except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(f"the model cannot be moved to device {str(self.device)!r}: {reason}") from error


def _check_there(device: Any) -> None:
    try:
        torch.empty(0, device=torch.device(device))
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        raise ValueError(f"there is no device {str(device)!r} here: leave it out, or use cpu") from error


def _times(evaluations: Any) -> int:
    if not isinstance(evaluations, int | float) or not evaluations >= 1 or evaluations % 1 != 0:
        raise ValueError(
            f"evaluations is how often the test rows are looked at, at least once, not {evaluations!r}"
        )
    return int(evaluations)


def _functions(callbacks: Any) -> tuple[Callback, ...]:
    calls = list(callbacks) if isinstance(callbacks, Iterable) else [callbacks]
    if not all(callable(each) for each in calls):
        raise ValueError(
            "callbacks are functions of what a run has shown so far (a Seen): give a list of them"
        )
    return tuple(calls)


def _check_details(details: Mapping[str, Any] | None) -> None:
    try:
        json.dumps(dict(details or {}))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"details are names with numbers, text, or lists of them, for run.json: {error}"
        ) from error


def taken(given: Mapping[str, Any], function: Callable[..., Any], *kinds: type[Any]) -> list[Any]:
    """Keywords as dataclasses, each with its own; one that none of them has raises TypeError, as in any function.

    ``function`` is the one that was called, which has keywords besides.
    """
    names = [[each.name for each in fields(kind)] for kind in kinds]
    known = [name for of_kind in names for name in of_kind]
    known += [name for name, each in signature(function).parameters.items() if each.kind is each.KEYWORD_ONLY]
    for name in given:
        if name not in known:
            raise TypeError(f"there is no keyword {name!r}: {_instead(name, known)}")
    return [
        kind(**{name: given[name] for name in of_kind if name in given})
        for kind, of_kind in zip(kinds, names, strict=True)
    ]


def _instead(name: str, known: Sequence[str]) -> str:
    """What somebody who gave a keyword that there is not may have meant."""
    if name == "epsilon":
        return "give budget=(epsilon, delta), as in budget=(3, 1e-5)"
    if name in ("lr", "learning_rate"):
        a_method = "it is a setting of the method, as in method=dp_sgd(learning_rate=0.1)"
        return "did you mean rate?" if "rate" in known else a_method
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
    return f"did you mean {close[0]}?" if close else f"there are {', '.join(sorted(known))}"
