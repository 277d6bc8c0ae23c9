"""Training and scoring candidates: all of a list, or as many as chance will have it."""

from __future__ import annotations

import copy
import hashlib
import json
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load
from torch import nn

from sordino.ledger import Account
from sordino.privacy import event_to_json
from sordino.runs import RunDirectory, delete_checkpoint
from sordino.runs.closing import CERTIFICATE
from sordino.runs.directory import MODEL
from sordino.runs.options import Options
from sordino.tasks import Task
from sordino.training import train
from sordino.tuning.candidates import Candidate
from sordino.tuning.plan import TuningPlan
from sordino.tuning.state import Seal, Standing

_PART = "one of the candidates of a tuning: what they spend together is in the certificate of the tuning"

Files = Mapping[str, bytes]  # of a run directory, by name


@dataclass(frozen=True, eq=False)
class Trials:
    """What it takes to try a candidate."""

    model: nn.Module  # as it was given; candidates start from copies
    task: Task
    data: Any
    plan: TuningPlan
    asked: Options
    standing: Standing
    directory: RunDirectory
    account: Account | None
    run: Mapping[str, Any]  # further keywords of train

    def trained(self, number: int, candidate: Candidate, folder: Path, account: Account | None) -> nn.Module:
        """A trained candidate: made in ``folder``, gone on with, or if it is complete, read again."""
        model, directory = self.fresh_model(), RunDirectory(folder)
        if not directory.is_complete:
            streams = self.standing.streams
            train(
                model,
                self.task,
                self.data,
                method=candidate.method,
                epochs=candidate.epochs,
                batch_size=candidate.batch_size,
                **self.run,
                noise_multiplier=self.plan.multiplier,
                delta=self.plan.budget.delta,
                accountant=self.asked.accountant,
                seed=streams.seed_for("run", number) if streams.seeded else None,
                secure=self.asked.secure,
                device=self.asked.device,
                out=folder,
                resume=(directory.checkpoint_folder / "state.safetensors").exists(),
                progress=self.asked.progress if self.plan.stopping is None else False,
                data_name=self.asked.data_name,
                ledger=False if account is None else account,
                assumptions=[*self.asked.assumptions, _PART],
                details=self.asked.details,
                inputs=self.asked.inputs,
            )
        return self.with_weights(model, self._trained_weights(candidate, folder))

    def _trained_weights(self, candidate: Candidate, folder: Path) -> bytes:
        """Whatever lies there is the run that was planned, with the noise that was priced; or ValueError."""
        outline = self.plan.outlines[self.plan.candidates.index(candidate)]
        try:
            document, content = json.loads((folder / CERTIFICATE).read_text()), (folder / MODEL).read_bytes()
            events, written = document["events"], document["model"]["sha256"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"the candidate in {folder} cannot be read ({error}): start the tuning afresh"
            ) from error
        planned = event_to_json(outline.terms.cost_with(self.plan.multiplier))
        if events != planned or hashlib.sha256(content).hexdigest() != written:
            raise ValueError(
                f"{folder} does not hold the candidate that was planned: start the tuning afresh"
            )
        return content

    def fresh_model(self) -> nn.Module:
        model = copy.deepcopy(self.model)
        model.load_state_dict(self.standing.initial)
        return model

    @staticmethod
    def with_weights(model: nn.Module, content: bytes) -> nn.Module:
        model.load_state_dict(load(content))
        return model

    def scored(self, number: int, model: nn.Module, account: Account | None) -> float:
        event = self.plan.score.event
        if account is not None and event is not None:
            account.spend(f"score:{number}", event)
        return self.plan.score.of(model, self.standing.streams, number)

    def save(self) -> None:
        self.standing.save(self.directory.checkpoint_folder)


@dataclass(frozen=True)
class Winner:
    """The best candidate, its score, and the files of its run. None of them if a selection made no run at all."""

    candidate: Candidate | None
    score: float | None
    files: Files
    table: list[dict[str, Any]] | None  # of all candidates, for a grid


def try_all(trials: Trials, say: Callable[[str], None]) -> Winner:
    """Every candidate in turn; the best score wins, and all of them are shown."""
    plan, standing = trials.plan, trials.standing
    scores: dict[str, float] = standing.progress.setdefault("scores", {})
    count = len(plan.candidates)
    for number, candidate in enumerate(plan.candidates):
        if str(number) in scores:
            continue
        say(f"candidate {number + 1} of {count}: {candidate.said}")
        account = None if trials.account is None else trials.account.part(f"candidate {number + 1}")
        model = trials.trained(number, candidate, folder_of(trials.directory, number), account)
        scores[str(number)] = trials.scored(number, model, trials.account)
        trials.save()
        # What it costs alone would pass for what the winner costs: there is one certificate, of all of them together.
        (folder_of(trials.directory, number) / CERTIFICATE).unlink(missing_ok=True)
    best = max(range(count), key=lambda number: scores[str(number)])  # the first of equals
    table = [
        {**each.own, "score": scores[str(number)], "run": f"candidates/{number + 1}"}
        for number, each in enumerate(plan.candidates)
    ]
    return Winner(plan.candidates[best], scores[str(best)], _files(folder_of(trials.directory, best)), table)


def folder_of(directory: RunDirectory, number: int) -> Path:
    return directory.path / "candidates" / str(number + 1)


def forget_candidates_keys(directory: RunDirectory, count: int) -> None:
    """Delete what a kill at the very end of a candidate may have left of it."""
    for number in range(count):
        delete_checkpoint(folder_of(directory, number) / "checkpoint")
        (folder_of(directory, number) / CERTIFICATE).unlink(missing_ok=True)


def _files(folder: Path) -> Files:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def select_one(trials: Trials) -> Winner:
    """As many runs as chance will have it, each of a candidate drawn at random; only the best of them is kept.

    Their number is a function of the key, so it was drawn before the first run, and it is written nowhere.
    """
    plan, standing, folder = trials.plan, trials.standing, trials.directory.checkpoint_folder
    assert plan.stopping is not None
    streams, progress = standing.streams, standing.progress
    if trials.account is not None:
        trials.account.spend("selection", plan.event)  # as a whole, before the first run
    runs = plan.stopping.runs(int(streams.words("number of runs", 0, 1)[0] >> 11) * 2.0**-53)
    for number in range(progress.setdefault("done", 0), runs):
        progress["begun"] = number + 1
        trials.save()  # should it be abandoned, so many runs count
        drawn = int(streams.words("candidate", number, 1)[0]) % len(plan.candidates)
        name = f"{int(streams.words('folder', number, 1)[0]):016x}"  # which tells nothing of the number
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a candidate diverged tells of one that lost
            model = trials.trained(number, plan.candidates[drawn], folder / name, None)
        score = trials.scored(number, model, None)
        if progress.get("best") is None or score > progress["best"]["score"]:
            Seal(streams).close_folder(folder / name, folder / f"{name}.sealed")
            progress["best"] = {"candidate": drawn, "score": score, "file": f"{name}.sealed"}
        progress["done"] = number + 1
        trials.save()
        _forget(folder, keep=progress["best"]["file"])
    best = progress.get("best")
    if best is None:
        return Winner(None, None, {}, None)
    files = Seal(streams).open_folder(folder / best["file"])
    return Winner(plan.candidates[best["candidate"]], best["score"], files, None)


def _forget(folder: Path, keep: str) -> None:
    """Delete what has lost, and what is sealed by now."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.suffix == ".sealed" and path.name != keep:
            path.unlink()
