"""The command with nothing set beside what was published: made-up results, and the very run of the command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import sordino.named as named
from conftest import sordino
from sordino.models import default_features
from sordino.recipes import LISTED, RECIPES
from sordino.recipes import records as study
from sordino.recipes.frame import Job, Report, Result
from sordino.recipes.one_run_tasks import prepared, task_rows


def answered(job: Job) -> Result:
    if job.function is prepared:
        return {"seconds": 90.0, "rows": 60_000, "threads": 1}
    scattered = (job.settings["features"] or default_features(job.settings["data"])) == "scattering"
    said = {"features": "scattering" if scattered else None, "model": "linear" if scattered else "cnn"}
    sizes = {"parameters": 39_700, "threads": 1, "minutes": 0.5, "epsilon": job.settings["epsilon"]}
    return {**said, **sizes, "accuracy": (0.985 if scattered else 0.97) + 0.001 * job.settings["seed"]}


def reported(quick: bool, only: Sequence[str] = ()) -> tuple[list[Job], Report]:
    asked: list[Job] = []

    def run(jobs: Sequence[Job]) -> list[Result]:
        asked.extend(jobs)
        return [answered(job) for job in jobs]

    report = RECIPES["records"].report(run, quick, only)
    return asked, report


@pytest.fixture(autouse=True)
def all_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "not_there", lambda data: "")


@pytest.mark.parametrize("quick", [True, False])
def test_it_reports(quick: bool) -> None:
    asked, report = reported(quick)
    assert "records" in LISTED
    assert len({job.key for job in asked}) == len(asked), "no job is asked for twice"
    # Three data sets at three epsilons each, and two epsilons more that were published; features are there anyway.
    assert len(asked) == 3 + (3 * 3 + 2) * (3 if quick else 5)
    for table in report.tables:
        assert all(len(row) == len(table.columns) for row in table.rows)


def test_ours_stand_beside_the_published_at_their_epsilon() -> None:
    _, report = reported(quick=True)
    claims = {row[0]: row[1:] for row in report.tables[0].rows}
    assert len(claims) == len(study.PUBLISHED) == 6
    (mnist,) = (row for text, row in claims.items() if text.startswith("mnist at epsilon 3 "))
    assert (mnist[0], mnist[2]) == ("yes", "+0.00")  # 98.5 % and a fifth: 98.6, 98.7, 98.8
    (papernot,) = (row for text, row in claims.items() if text.startswith("mnist at epsilon 2.93"))
    assert papernot[0] == "yes"
    assert "epsilon 2.93" in papernot[1]
    cells = dict(zip(report.tables[1].columns, report.tables[1].rows[0], strict=True))
    assert (cells["minutes of features"], cells["minutes of training"]) == ("1.5", "0.5 (0.5 to 0.5)")


def test_a_published_epsilon_is_never_compared_with_a_larger_one() -> None:
    found = {study.Cell("mnist", "nothing set", epsilon): [{"accuracy": 0.9}] for epsilon in (1.0, 3.0)}
    known = study.Known("", "mnist", "", 2.93, 98.1)
    assert study.reached(found, known) == (study.Cell("mnist", "nothing set", 1.0), 90.0)
    assert study.reached(found, known._replace(epsilon=0.5)) is None


def test_data_that_is_not_here_is_left_out_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "not_there", lambda data: "no file" if data == "cifar10" else "")
    asked, report = reported(quick=True)
    assert {job.settings["data"] for job in asked} == {"mnist", "fashion-mnist"}
    assert "Not here, and left out: cifar10." in report.notes


def test_parts() -> None:
    asked, report = reported(quick=True, only=("mnist", "eps=1"))
    assert {(job.settings["data"], job.settings.get("epsilon", 1.0)) for job in asked} == {("mnist", 1.0)}
    assert "Only a part was run: mnist, eps=1." in report.notes


def test_what_stands_there_anyway_is_no_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    assert study.ways("mnist") == ["nothing set"]
    entry = named.DATA_SETS.entries["mnist"]
    without_features = replace(entry, facts={"model": entry.facts["model"]})
    monkeypatch.setitem(named.DATA_SETS.entries, "mnist", without_features)
    assert study.ways("mnist") == ["nothing set", "--features scattering"]
    asked, _ = reported(quick=True, only=("mnist", "eps=1"))
    assert len(asked) == 1 + 2 * 3


@pytest.mark.parametrize("features", ["", "scattering"])
def test_a_run_is_that_of_the_command(
    features: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = study.train_as_told(data="digits", features=features, epsilon=3.0, seed=4)
    given = ["--epsilon", "3", "--delta", "1e-5", "--seed", "4", "--json"]
    given += ["--features", features] if features else []
    assert sordino(monkeypatch, "train", "digits", *given) == 0
    theirs: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert ours["accuracy"] == theirs["metrics"]["test_accuracy"]
    for name in ("epsilon", "noise_multiplier", "steps", "parameters"):
        assert ours[name] == theirs[name]
    assert ours["model"] == theirs["model"] == ("linear" if features else "mlp:64")


def test_features_are_timed_whether_they_were_kept_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sordino.features.featured._WORTH_KEEPING", 0.0)
    first = prepared(data="digits", features="scattering")
    assert len(list((tmp_path / "sordino" / "features").glob("*.npy"))) == 2
    again = prepared(data="digits", features="scattering")
    assert first["rows"] == again["rows"] == 1437
    assert min(first["seconds"], again["seconds"]) > 0
    task_rows.cache_clear()
    assert task_rows("digits", "scattering").input_shape == (81, 2, 2)
    task_rows.cache_clear()
