"""What a conductor conducts: something that goes on step by step, and can be put down and taken up again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from sordino.gate import Door
from sordino.runs.spending import Promise

if TYPE_CHECKING:
    from dp_accounting import DpEvent

State = dict[str, Any]  # tensors and numbers, nested: a checkpoint holds it as it is
Line = dict[str, Any]  # of history.jsonl


@dataclass(frozen=True, eq=False, kw_only=True)
class Seen:
    """What a callback sees after a step or a round. All of it is public, or was released and paid for; only what a
    line of the history says under ``covered: false`` (scores on held-out rows, a training loss shown on request) is
    covered by no guarantee. What a callback makes of it is free.

    Args:
        step: So many steps, or rounds, are done.
        steps: Of the whole run.
        theta: The model as one vector, as it is now; do not write to it.
        line: Of the history, if one is written after this step.

    >>> def watch(seen):
    ...     if seen.line is not None and "test_accuracy" in seen.line:
    ...         print(seen.step, seen.line["test_accuracy"])
    """

    step: int  # from 1: steps, or rounds, that are done
    steps: int  # of the whole run
    theta: Tensor  # the model as one vector, as it is now; do not write to it
    line: Mapping[str, Any] | None  # of the history, if one is written after this step


class HistoryLogger(ABC):
    """Shows the lines of a history elsewhere while a run goes on, and nothing else: it sees no model, and says nothing.

    So it stands among the callbacks, and yet nothing is unprotected because of it. It is told each line after the
    history has it. Before the first step it may refuse (`begin`); later a failure of its is a warning, since what was
    paid for is not lost over a figure.
    """

    @abstractmethod
    def begin(self, facts: Mapping[str, Any], done: int) -> None:
        """Open what is written to, or raise `ValueError`. ``facts`` is run.json as it is then; so many steps or rounds
        are ``done``, and lines after them, of an interrupted run that is resumed here, are written again."""

    @abstractmethod
    def wrote(self, step: int, line: Mapping[str, Any]) -> None:
        """A line of the history, after so many steps or rounds."""

    @abstractmethod
    def close(self, finished: bool) -> None:
        """Nothing more comes."""

    def __call__(self, seen: Seen) -> None:
        """A callback, by its shape; a conductor calls the others."""
        if seen.line is not None:
            self.wrote(seen.step, seen.line)


class Process(ABC):
    """Central training, or the rounds of a federation."""

    model: nn.Module
    theta: Tensor
    promise: Promise
    door: Door | None = None  # what it releases through, if anything is promised
    measures = True  # there are held-out rows to measure on
    # A step that is taken once more comes to the same result, so that a run may go back to its last checkpoint; else it
    # is saved after each step, before anything of it is shown.
    repeats = True

    @abstractmethod
    def pins(self, key: bytes) -> Mapping[str, Any]:
        """What a resumed run must have in common with it besides the plan: digests, useless without the key."""

    @abstractmethod
    def step(self, number: int) -> bool:
        """Take step number ``number``, from 0. Whether it must not be repeated, were the run to be interrupted now:
        a client that failed may not fail the next time."""

    @abstractmethod
    def line(self) -> Line:
        """What is known of the step just taken."""

    @abstractmethod
    def measured(self) -> Mapping[str, float]:
        """Metrics of the model as it would be handed out now, on held-out rows. No guarantee covers them."""

    @abstractmethod
    def seen(self, step: int, steps: int, line: Line | None) -> Seen: ...

    @abstractmethod
    def state(self, unlogged: bool = False) -> State:
        """What a checkpoint holds; with ``unlogged`` also what ``line`` and ``seen`` need to show the last step."""

    @abstractmethod
    def restore(self, state: State) -> None: ...

    def first(self, pay: Callable[[DpEvent], None]) -> None:
        """Release what is released before the first step, once; ``pay`` is called before a row is read for it."""
        return None

    def finish(self) -> None:
        """Make theta what is handed out."""
        return None

    def handed_out(self) -> nn.Module:
        """The model that comes out, when nothing more is computed with it here: for raw rows, whatever it was trained
        on."""
        return self.model

    def counts(self) -> dict[str, Any]:
        """Metrics as noisy counts, released now; what they cost was paid. Only of a plan with a ``metric_epsilon``."""
        raise NotImplementedError

    def complaints(self, history: Sequence[Line]) -> list[str]:
        """What went wrong, in sentences that say what to do."""
        return []

    def facts(self) -> Mapping[str, Any]:
        """What run.json says besides the plan."""
        return {}

    def files(self) -> Mapping[str, dict[str, Any]]:
        """Further files of the run, by name."""
        return {}
