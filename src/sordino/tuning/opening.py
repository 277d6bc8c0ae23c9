"""Where a tuning stands: its directory, what it goes on from, and what must not have changed meanwhile."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from sordino.data import Examples, as_examples
from sordino.gate import Members
from sordino.gradients import call_model, evaluating
from sordino.noise import Streams
from sordino.privacy import event_to_json
from sordino.privacy.certificate import epsilon_to_json, sordino_version
from sordino.runs import RunDirectory, claimed
from sordino.runs.options import Options
from sordino.runs.resume import check_same_plan, digest
from sordino.tuning.counting import ledger_for_tuning
from sordino.tuning.plan import TuningPlan
from sordino.tuning.state import Standing


@contextmanager
def directory_of(asked: Options) -> Iterator[tuple[RunDirectory, bool]]:
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


def standing_of(
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
        if not directory.is_empty:
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
        "inputs": None if asked.inputs is None else asked.inputs.to_json(),
        **_pins(before, model, plan, members, examples),
        **plan.describe(),
    }
    if before.pinned:
        check_same_plan(before.pinned, pinned)
    ledger = ledger_for_tuning(asked)
    if not before.pinned:
        before.ledger = None if ledger is None else ledger.begin()
    elif before.ledger != (None if ledger is None else ledger.identity):
        raise ValueError("this tuning was begun with another ledger, or with none: give that one")
    found = replace(before, pinned=pinned)
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
        "groups": members.fingerprint(key),
        "groups of the score": score.members.fingerprint(key),
        "model or loss": _behaviour(standing, model, plan, examples),
    }


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
