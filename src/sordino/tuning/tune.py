"""`tune`: several candidates under one budget, every run and the choice among them paid for."""

from __future__ import annotations

import copy
import secrets
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import nn

from sordino.data import Examples, as_examples
from sordino.gate import Members
from sordino.gradients import Loss, call_model, evaluating, refuse
from sordino.ledger import Account, LedgerError, LedgerFile, ledger_of
from sordino.methods import Method
from sordino.noise import Streams
from sordino.privacy import compose, event_from_json, event_to_json, price, repeat
from sordino.privacy.certificate import epsilon_to_json, sordino_version
from sordino.privacy.selection import Stopping
from sordino.privacy.wording import SEED_WARNING
from sordino.runs import Run, RunDirectory, claimed, delete_checkpoint
from sordino.runs.closing import CERTIFICATE
from sordino.runs.options import UNNAMED, Options, RunOptions, taken
from sordino.runs.resume import check_same_plan, digest
from sordino.tasks import Task, as_task
from sordino.training import warn_of_delta
from sordino.tuning.candidates import Over, candidates_of
from sordino.tuning.closing import closed_tuning
from sordino.tuning.plan import TuningPlan, planned
from sordino.tuning.score import Score, Worth
from sordino.tuning.state import Standing
from sordino.tuning.trials import Trials, folder_of, select_one, try_all

if TYPE_CHECKING:
    from dp_accounting import DpEvent


def tune(
    model: nn.Module,
    loss: Loss | Task,
    data: Any,
    *,
    over: Over,
    score: Any,
    method: Method | str = "auto",
    settings: Mapping[str, Any] | None = None,
    stopping: Stopping | None = None,
    worth: Worth | None = None,
    score_is_public: bool = False,
    score_groups: Any = None,
    epochs: float | None = None,
    batch_size: int | None = None,
    sampling: str | None = None,
    groups: Any = None,
    template: tuple[Any, Any] | None = None,
    **options: Unpack[RunOptions],
) -> Run:
    """Try several settings under one budget, and return the best as a run whose epsilon is that of everything.

    The guarantee: all that comes out (for a grid every candidate and its score, for a selection the winner and its
    score) is together (epsilon, delta)-differentially private. A grid is composed as one mechanism; a selection draws
    at random how many runs to make, tells nobody, and shows only the best (Liu and Talwar 2019; Papernot and Steinke
    2022; Koskela, Redberg and Wang 2024). How long it took, and whatever else shows how many runs there were, must be
    kept secret.

    Args:
        model: Any ``nn.Module``; every candidate starts from its weights.
        loss: ``loss(output, target)``, one value for each example, or a `Task`.
        data: Private rows, as for `train`.
        over: What is tried: values by the name of a setting (all combinations), or a list of settings. ``epochs``,
            ``batch_size`` and ``method`` are settings too.
        score: Rows on which candidates are compared, as for `train`. They may be rows of ``data``, or others.
        method: By its name, where its settings are tried.
        settings: Of the method, the same for all.
        stopping: None for a grid, or how the number of runs of a private selection is drawn: `Stopping`.
        worth: ``worth(scores, targets)``, from 0 to 1 for each example; by default whether it is classified right.
        score_is_public: The rows of ``score`` are nobody's secret: scores have no noise then and cost nothing.
        score_groups: Whose each of these rows is, where ``groups`` are given.
        epochs: As for `train`.
        batch_size: As for `train`.
        sampling: As for `train`.
        groups: As for `train`.
        template: As for `train`.
        budget: What everything together may spend: `Budget`, or a pair (epsilon, delta).
        test: Held-out rows on which the winner is measured. No guarantee covers it.
        out: A directory: the winner's run, and of a grid the candidates' in ``candidates/``.
        resume: Go on with an interrupted tuning, without spending again.
        options: And the other keywords of `train`.

    >>> import torch
    >>> rows = torch.randn(80, 3), torch.randint(2, (80,))
    >>> loss = nn.CrossEntropyLoss(reduction="none")
    >>> run = tune(nn.Linear(3, 2), loss, rows, over={"learning_rate": [0.1, 1.0]}, score=rows, method="dp-sgd",
    ...            budget=(3, 1e-3), epochs=1)
    >>> run.epsilon <= 3, len(run.summary["tuning"]["table"])
    (True, 2)
    """
    (asked,) = taken(options, tune, Options)
    _check(asked, stopping, groups, score_groups)
    assert asked.budget is not None
    task, examples = as_task(loss), as_examples(data)
    refuse(model)  # before any data is touched
    members = Members(len(examples), groups)
    candidates = candidates_of(over, method, settings, epochs, batch_size)
    judge = Score(score, task, worth, score_is_public, score_groups)
    judge.check(model)
    warn_of_delta(asked.budget.delta, members.count)
    plan = planned(
        candidates,
        judge,
        stopping,
        asked.budget,
        units=members.count,
        sampling=sampling,
        accountant=asked.accountant,
        secure=asked.secure,
    )
    with _directory_of(asked) as (directory, kept):
        standing = _standing(directory, asked, model, plan, members, examples)
        with _counted(asked, plan, standing, directory, members.unit, kept) as account:
            if account is not None:
                account.saw(lambda key: str(examples.fingerprint(key)))
            run = {"sampling": sampling, "groups": groups, "template": template}
            trials = Trials(model, task, data, plan, asked, standing, directory, account, run)
            winner = try_all(trials, _saying(asked)) if stopping is None else select_one(trials)
            return closed_tuning(trials, winner, members.unit, members.count, keep=kept)


def _check(asked: Options, stopping: Stopping | None, groups: Any, score_groups: Any) -> None:
    if asked.budget is None:
        raise ValueError("a tuning needs a budget for all candidates together: give budget=(epsilon, delta)")
    if asked.noise_multiplier is not None or asked.delta not in (None, asked.budget.delta):
        raise ValueError(
            "the noise of a tuning follows from its budget: leave out noise_multiplier and delta"
        )
    if asked.keep_checkpoint:
        raise ValueError("a tuning keeps no checkpoint: it holds the key of the noise, and what is sealed")
    if asked.callbacks:
        raise ValueError("callbacks would see every candidate: leave them out, or train each by itself")
    if asked.show_unprotected:
        raise ValueError("a tuning shows nothing that is not covered: leave out show_unprotected")
    if (groups is None) != (score_groups is None):
        raise ValueError(
            "where the unit is the user, rows to train on and rows to score on both need ids: give groups and "
            "score_groups"
        )


def _saying(asked: Options) -> Any:
    show = sys.stderr.isatty() if asked.progress is None else asked.progress
    return lambda line: print(f"sordino: {line}", file=sys.stderr) if show else None


# Where it stands --------------------------------------------------------------------------------------------


@contextmanager
def _directory_of(asked: Options) -> Iterator[tuple[RunDirectory, bool]]:
    """The directory, which is ours in here, and whether it stays: without ``out`` it is a passing one."""
    if asked.out is None:
        if asked.resume:
            raise ValueError("to resume, say which tuning: give its directory as out")
        with TemporaryDirectory(prefix="sordino-") as folder:
            yield RunDirectory(Path(folder) / "tuning"), False
        return
    directory = RunDirectory(Path(asked.out))
    with claimed(directory, asked.resume):
        yield directory, True


def _standing(
    directory: RunDirectory,
    asked: Options,
    model: nn.Module,
    plan: TuningPlan,
    members: Members,
    examples: Examples,
) -> Standing:
    """Where an interrupted tuning stood, or the beginning of a new one, which is on the disk before anything runs."""
    before = opened(directory) if asked.resume else None
    if before is None:
        if directory.is_complete or not directory.is_empty:
            raise ValueError(
                f"{directory.path} is not empty: choose another directory, or resume the tuning in it"
            )
        streams = Streams.from_entropy() if asked.seed is None else Streams.from_seed(asked.seed)
        initial = {name: value.detach().cpu().clone() for name, value in model.state_dict().items()}
        before = Standing(streams.key.hex(), streams.seeded, secrets.token_hex(8), None, {}, initial)
    pinned = {
        "data": asked.data_name,
        "budget": [plan.budget.epsilon, plan.budget.delta],
        "secure": asked.secure,
        **_pins(before, model, plan, members, examples),
        **plan.describe(),
    }
    if before.pinned:
        check_same_plan(before.pinned, pinned)
    ledger = ledger_of(asked.ledger)
    identity = ledger.identity if isinstance(ledger, LedgerFile) else None
    if before.pinned and before.ledger != identity:
        raise ValueError("this tuning was begun with another ledger, or with none: give that one")
    found = replace(before, pinned=pinned, ledger=identity)
    directory.create()
    found.save(directory.checkpoint_folder)
    directory.write_json("run.json", _running(asked, plan))
    return found


def _pins(
    standing: Standing, model: nn.Module, plan: TuningPlan, members: Members, examples: Examples
) -> dict[str, Any]:
    """What every release depends on, of rows only keyed fingerprints, which stay in the checkpoint."""
    key, score = standing.streams.key, plan.score
    return {
        "unit": members.unit,
        "runs": [event_to_json(each) for each in plan.run_events],
        "methods": [each.method.describe() for each in plan.outlines],
        "rows of the data": examples.fingerprint(key),
        "rows of the score": as_examples(score.data).fingerprint(key),
        "groups": _fingerprint(members, key),
        "groups of the score": _fingerprint(score.members, key),
        "model or loss": _behaviour(standing, model, plan, examples),
    }


def _fingerprint(members: Members, key: bytes) -> str | None:
    groups = members.groups
    return None if groups is None else as_examples((groups, groups)).fingerprint(key)


def _behaviour(
    standing: Standing, model: nn.Module, plan: TuningPlan, examples: Examples
) -> list[str] | None:
    """Losses and worths of made-up rows at the initial weights; None where the model cannot run on such rows."""
    model = copy.deepcopy(model)
    model.load_state_dict(standing.initial)
    score = plan.score
    try:
        with evaluating(model), torch.no_grad(), torch.random.fork_rng(devices=[]):
            inputs, targets = examples.template(5)
            losses = score.task.per_example(call_model(model, inputs), targets)
            return [digest(losses), digest(score.values(model, *as_examples(score.data).template(5)))]
    except Exception:
        return None


def opened(directory: RunDirectory) -> Standing:
    """The tuning that was interrupted in a directory."""
    if directory.is_complete:
        raise ValueError(f"the tuning in {directory.path} is complete: there is nothing to resume")
    found = Standing.load(directory.checkpoint_folder)
    if found is None:
        raise ValueError(f"there is no interrupted tuning in {directory.path}: check the directory")
    return found


def _running(asked: Options, plan: TuningPlan) -> dict[str, Any]:
    return {
        "status": "running",
        "data": asked.data_name,
        "planned_epsilon": epsilon_to_json(plan.guarantee.epsilon),
        "delta": plan.guarantee.delta,
        "tuning": plan.describe(),
        "sordino_version": sordino_version(),
    }


# How it is counted ------------------------------------------------------------------------------------------


@contextmanager
def _counted(
    asked: Options, plan: TuningPlan, standing: Standing, directory: RunDirectory, unit: str, kept: bool
) -> Iterator[Account | None]:
    """The account, open in here; None if nobody counts. What cannot be resumed is closed."""
    ledger = ledger_of(asked.ledger)
    if ledger is None:
        yield None
        return
    if not isinstance(ledger, LedgerFile):
        raise ValueError("a tuning reserves for itself: give the ledger's file")
    if asked.data_name == UNNAMED:
        raise ValueError(
            "a ledger counts by the name that its owner gives to a data set: say it, as in data_name='patients'"
        )
    names = dict.fromkeys(each.method.name for each in plan.candidates)
    try:
        account = ledger.reserve(
            asked.data_name,
            plan.event,
            run=standing.run,
            kind=plan.kind,
            unit=unit,
            delta=plan.budget.delta,
            label=", ".join(names),
            caveat=" ".join(dict.fromkeys([*plan.caveats, *([SEED_WARNING] if standing.seeded else [])])),
        )
    except LedgerError:
        if not asked.resume:
            _forget(directory)  # nothing was begun: the same directory will do for a smaller budget
        raise
    try:
        yield account
    except BaseException:
        if not kept:  # what can be resumed stays reserved
            with suppress(LedgerError):
                _close(account, plan.stopping, standing, plan)
        raise


def _forget(directory: RunDirectory) -> None:
    delete_checkpoint(directory.checkpoint_folder)
    for name in ("run.json", "history.jsonl"):
        (directory.path / name).unlink(missing_ok=True)


def _close(account: Account, stopping: Stopping | None, standing: Standing, plan: TuningPlan) -> None:
    account.close(None if stopping is None else repeat(plan.run_event, standing.progress.get("begun", 0)))


# Giving it up -----------------------------------------------------------------------------------------------


def abandon(out: str | Path, *, ledger: Any = None) -> dict[str, Any]:
    """Give up an interrupted tuning: what it has spent is counted and said, and everything else of it is deleted.

    A selection that is not finished is no selection: whoever began its runs could have looked at each of them. So they
    count as what they are, one after the other, which may be more than the selection would have cost. To resume costs
    nothing more.

    Args:
        out: The directory of the tuning.
        ledger: The one it is counted in, as for `train`.

    >>> import tempfile
    >>> abandon(tempfile.mkdtemp())
    Traceback (most recent call last):
    ValueError: there is no interrupted tuning in ...: check the directory
    """
    directory = RunDirectory(Path(out))
    if not directory.is_of_a_run:
        raise ValueError(f"there is no interrupted tuning in {directory.path}: check the directory")
    with claimed(directory, True):
        standing = opened(directory)
        if (directory.path / CERTIFICATE).exists():
            raise ValueError(
                f"the tuning in {directory.path} is finished but for its last file: resume it, which costs nothing"
            )
        event = _begun_event(standing, directory)
        _close_by_hand(standing, event, ledger_of(ledger))
        delta = standing.pinned["budget"][1]
        summary = {
            **(directory.summary or {}),
            "status": "abandoned",
            "epsilon": epsilon_to_json(price(event, delta).epsilon),
            "runs_begun": _begun(standing, directory),
        }
        summary.pop("planned_epsilon", None)
        shutil.rmtree(directory.path / "candidates", ignore_errors=True)
        directory.write_json("run.json", summary)
        delete_checkpoint(directory.checkpoint_folder)
    return summary


def _begun(standing: Standing, directory: RunDirectory) -> int:
    if standing.pinned["protocol"] == "selection":
        return int(standing.progress.get("begun", 0))
    return sum(folder_of(directory, number).exists() for number in range(len(standing.pinned["candidates"])))


def _begun_event(standing: Standing, directory: RunDirectory) -> DpEvent:
    """Of the runs that were begun, as if each had been made to its end."""
    runs = [event_from_json(each) for each in standing.pinned["runs"]]
    begun = _begun(standing, directory)
    return repeat(runs[0], begun) if standing.pinned["protocol"] == "selection" else compose(runs[:begun])


def _close_by_hand(standing: Standing, event: DpEvent, ledger: Any) -> None:
    if standing.ledger is None:
        return
    if not isinstance(ledger, LedgerFile) or ledger.identity != standing.ledger:
        raise ValueError("this tuning is counted in a ledger: give it (--ledger, or SORDINO_LEDGER)")
    if ledger.knows(standing.run):  # and was not killed before it was reserved
        ledger.resume(standing.run).close(event if standing.pinned["protocol"] == "selection" else None)
