"""The one hallway: whatever trains is begun, stepped, shown, saved and closed here.

A process says how a step goes; the plan says what was laid down before; the recording says where it is written, and
from where it goes on. Everything else about a run, central or federated, is in this file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino.ledger import Account
from sordino.privacy.certificate import epsilon_to_json, sordino_version
from sordino.runs.checkpoint import Saved
from sordino.runs.closing import Run, closed_run
from sordino.runs.counting import counted, pay_after, pay_first
from sordino.runs.directory import INPUTS
from sordino.runs.journal import ReleaseJournal
from sordino.runs.plan import RunPlan
from sordino.runs.process import HistoryLogger, Line, Process
from sordino.runs.progress import TrainingBar, shown
from sordino.runs.recording import Recording
from sordino.runs.resume import check_same_plan, marks, save_constants
from sordino.runs.writing import replace_file
from sordino.warn import warn

_CHECKPOINTS = 20
COUNTS = "counts.json"  # in the folder of the checkpoint


def conduct(process: Process, plan: RunPlan, recording: Recording) -> Run:
    """Take all the steps that are left, and close the run."""
    score = _Score(process, plan, recording)
    with counted(process, plan, recording) as account, ExitStack() as stack:
        done = score.begin()
        stack.enter_context(score.logging(done))
        process.first(partial(pay_first, process, account, ours=score.ours))
        stack.enter_context(score.bar)  # not before: what is refused needs none
        for number in range(done, plan.steps):
            must_not_be_repeated = process.step(number)
            if must_not_be_repeated or not process.repeats:
                score.save(number + 1, unlogged=True)  # before anything of it is shown
            score.show(number + 1)
            if number + 1 in score.saves:
                score.save(number + 1)
        process.finish()
        score.warn()
        counts = None if plan.metric_epsilon is None else score.counts(account)
        return closed_run(process, plan, recording, score.history, account, counts)


class _Score:
    """When what is due, and what has been written so far."""

    def __init__(self, process: Process, plan: RunPlan, recording: Recording) -> None:
        asked = recording.asked
        self.process, self.plan, self.recording = process, plan, recording
        self.directory = recording.directory
        self.history: list[Line] = []
        self.logged = marks(plan.steps, plan.lines)
        self.evaluated = marks(plan.steps, asked.evaluations) if process.measures else set()
        self.saves = marks(plan.steps, _CHECKPOINTS) - {plan.steps}
        self.bar = TrainingBar(plan.steps, sys.stderr.isatty() if asked.progress is None else asked.progress)
        self.ours = not isinstance(asked.ledger, Account)  # the account, if there is any
        self.journal: ReleaseJournal | None = None
        self.pinned: dict[str, Any] = {}
        self.callbacks = [each for each in asked.callbacks if not isinstance(each, HistoryLogger)]
        self.loggers = [each for each in asked.callbacks if isinstance(each, HistoryLogger)]

    def begin(self) -> int:
        """How many steps are done already."""
        directory, saved, process = self.directory, self.recording.saved, self.process
        if process.measures:
            process.measured()  # held-out rows that do not fit are better found before anything is spent
        if directory is None:
            return 0
        self.pinned = {**self._pins(), **process.pins(self.recording.streams.key)}
        if saved is not None:
            check_same_plan({**saved.plan, **saved.pinned}, {**self.plan.describe(), **self.pinned})
            process.restore(saved.process)
            self.history = directory.cut_history(saved.history_size)
        if process.door is not None and process.door.noise_multiplier and process.repeats:
            self.journal = ReleaseJournal(directory.checkpoint_folder, self.recording.streams.key)
            process.door.journal = self.journal
        if saved is None:
            directory.create()
            save_constants(process.model, directory)
            if self.recording.asked.inputs is not None:
                directory.write_json(INPUTS, self.recording.asked.inputs.to_json())
            self.save(0)
        directory.write_json("run.json", self._running())
        if saved is not None and saved.unlogged:
            self.show(saved.step)
        return 0 if saved is None else saved.step

    def _running(self) -> dict[str, Any]:
        """run.json until the run is complete. What is spent by then is known: at any time it is no more than that."""
        planned = epsilon_to_json(self.process.promise.total.epsilon)
        ours = {"status": "running", "planned_epsilon": planned, "sordino_version": sordino_version()}
        return {**ours, **self.plan.describe()}  # which has none of these: see RunPlan

    def _pins(self) -> dict[str, Any]:
        """What was shown once stays said, and what was assumed stays assumed."""
        asked = self.recording.asked
        return {
            "epsilon": None if asked.budget is None else asked.budget.epsilon,
            "show_unprotected": asked.show_unprotected,
            "test": asked.test is not None,
            "evaluations": asked.evaluations,
            "assumptions": list(asked.assumptions),
            "accountant": asked.accountant,
            "inputs": None if asked.inputs is None else asked.inputs.to_json(),
        }

    def save(self, done: int, unlogged: bool = False) -> None:
        if self.directory is None:
            return
        if self.journal is not None:
            self.journal.sync()
        streams = self.recording.streams
        Saved(
            plan=self.plan.describe(),
            pinned=self.pinned,
            step=done,
            unlogged=unlogged,
            key=streams.key.hex(),
            seeded=streams.seeded,
            threads=torch.get_num_threads(),
            history_size=self.directory.history_size(),
            process=self.process.state(unlogged),
        ).save(self.directory.checkpoint_folder)

    def show(self, done: int) -> None:
        """A line of the history and of the screen, if one is due or a callback has something to say."""
        due = done in self.logged or done in self.evaluated
        if not due and not self.callbacks:
            return self.bar.update(done)
        if self.journal is not None:
            self.journal.sync()  # before anything that follows from a release is shown
        line = self._line(done) if due else None
        said = self._said(done, line)
        if line is None and not said:
            return self.bar.update(done)
        line = self._line(done) if line is None else line
        facts = shown(line)
        _refuse_taken(said, {"covered", "epsilon", "threshold", "caveat", *line})
        if said:
            line |= {**said, "covered": False}
        self.history.append(line)
        if self.directory is not None:
            self.directory.append_history(line)
        self._log(done, line)
        self.bar.update(done, facts)

    @contextmanager
    def logging(self, done: int) -> Iterator[None]:
        """Loggers are opened before the first step, where they may still refuse, and closed whatever happens."""
        finished, begun = False, []
        try:
            for logger in self.loggers:
                begun.append(logger)
                logger.begin(deepcopy(self._running()), done)
            yield
            finished = True
        finally:
            for logger in begun:
                self._tried(logger, partial(logger.close, finished))

    def _log(self, done: int, line: Line) -> None:
        for logger in list(self.loggers):
            self._tried(logger, partial(logger.wrote, done, deepcopy(line)))

    def _tried(self, logger: HistoryLogger, act: Callable[[], None]) -> None:
        try:
            act()
        except Exception as error:  # a server that is gone is no reason to lose what was paid for
            if logger in self.loggers:
                self.loggers.remove(logger)
                warn(
                    f"{type(logger).__name__} is told nothing more ({type(error).__name__}): the run goes on, and "
                    "history.jsonl has every line"
                )

    def _said(self, done: int, line: Line | None) -> Line:
        """What callbacks make of what they see. They see a copy of the line: nothing of it is theirs to change."""
        said: Line = {}
        for callback in self.callbacks:
            seen = self.process.seen(done, self.plan.steps, deepcopy(line))
            before = self.process.theta._version
            more = _plain(callback(seen))
            if self.process.theta._version != before:
                raise ValueError(
                    "a callback wrote to the model, which then is not the one that was measured: let it work on "
                    "seen.theta.clone()"
                )
            _refuse_taken(more, said)
            said |= more
        return said

    def _line(self, done: int) -> Line:
        line = self.process.line()
        if self.plan.caveat is not None:
            line["caveat"] = self.plan.caveat
        if done in self.evaluated:
            line |= {**self.process.measured(), "covered": False}
        return line

    def counts(self, account: Account | None) -> dict[str, Any]:
        """Noisy metrics: paid, then released, once. Their noise cannot be drawn again, so they are kept before anything
        of them is seen; a run that is killed later finds them."""
        pay_after(self.process, account, ours=self.ours)
        kept = None if self.directory is None else self.directory.checkpoint_folder / COUNTS
        if kept is not None and kept.exists():
            found: dict[str, Any] = json.loads(kept.read_text())
            return found
        released = self.process.counts()
        if kept is not None:
            replace_file(kept, json.dumps(released).encode(), mode=0o600)
        return released

    def warn(self) -> None:
        spent = " (what was spent is spent)" if self.plan.terms.multiplier else ""
        if not bool(self.process.theta.isfinite().all()):
            warn(
                "training diverged: the model holds numbers that are not finite; use a smaller learning rate or the "
                f"default method{spent}"
            )
        for complaint in self.process.complaints(self.history):
            warn(f"{complaint}{spent}")


def _plain(said: Mapping[str, Any] | None) -> dict[str, Any]:
    """What a callback returns, as history.jsonl can hold it."""
    if said is None:
        return {}
    if not isinstance(said, Mapping):
        raise ValueError(
            f"a callback returns None, or names and numbers for the history, not a {type(said).__name__}"
        )
    return {str(name): _plain_value(str(name), value) for name, value in said.items()}


def _plain_value(name: str, value: Any) -> Any:
    if isinstance(value, Tensor | np.ndarray | np.generic) and _count(value) == 1:
        value = value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    try:
        # A copy, for what a callback goes on collecting in, and as it will be read back.
        return json.loads(json.dumps(value))
    except (TypeError, ValueError, RecursionError):
        raise ValueError(
            f"a callback returned a {type(value).__name__} as {name!r}, which the history cannot hold: return numbers, "
            "text, or lists of them"
        ) from None


def _count(value: Tensor | np.ndarray[Any, Any] | np.generic) -> int:
    return value.numel() if isinstance(value, Tensor) else value.size


def _refuse_taken(said: Line, taken: Container[str]) -> None:
    for name in sorted(said):
        if name in taken:
            raise ValueError(
                f"a callback returned {name!r}, which the history has already: call it otherwise"
            )
