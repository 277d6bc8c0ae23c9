"""Our own studies, with made-up results: what they ask for, and what they make of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

from sordino.recipes import LISTED, RECIPES
from sordino.recipes import self_tuning as study
from sordino.recipes.frame import Job, Report, Result

mpl.use("Agg")


def made_up(job: Job, number: int) -> Result:
    """Accuracies that tell one job from another."""
    line = {"step": 1, "rate": 0.1 * (1 + number), "threshold": 1.0 + number, "tolerance": 2.0}
    history = [{**line, "epoch": e, "test_accuracy": 0.5 + 0.001 * number} for e in (1, 2)]
    return {
        "accuracy": 0.5 + 0.001 * number,
        "parameters": 4810,
        "steps": 120,
        "history": history,
        "method": job.settings["method"],
    }


def reported(name: str, quick: bool) -> tuple[list[Job], Report]:
    asked: list[Job] = []

    def run(jobs: Sequence[Job]) -> list[Result]:
        start = len(asked)
        asked.extend(jobs)
        return [made_up(job, start + i) for i, job in enumerate(jobs)]

    return asked, RECIPES[name].function(run, quick)


@pytest.fixture(autouse=True)
def rows(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"digits": 1437, "adult": 32561, "fashion-mnist": 60000, "mnist": 60000}
    monkeypatch.setattr(study, "count_rows", lambda data: {"train": known[data]})


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("name", ["default", "adadp-rates", "adadp-thresholds", "adadp-tolerance"])
def test_every_study_reports_and_draws(name: str, quick: bool, tmp_path: Path) -> None:
    asked, report = reported(name, quick)
    assert name in LISTED
    assert len({job.key for job in asked}) == len(asked), "no job is asked for twice"
    for table in report.tables:
        assert all(len(row) == len(table.columns) for row in table.rows)
    if report.draw is not None:
        figure = Figure()
        report.draw(figure)
        figure.savefig(tmp_path / "figure.png")


def test_the_default_is_compared_with_the_best_adam() -> None:
    asked, report = reported("default", quick=False)
    assert len(asked) == 4 * 3 * 5
    cells: dict[str, Any] = dict(zip(report.tables[0].columns, report.tables[0].rows[0], strict=True))
    # Made-up accuracies rise from job to job: the last rate of the first cell is its best.
    assert (cells["default"], cells["best DP-Adam"], cells["its rate"], cells["difference"]) == (
        "50.00",
        "50.40",
        "0.003",
        "-0.40",
    )
    assert asked[0].settings["settings"] == {}, "nothing is set"
    assert {(j.settings["epochs"], j.settings["batch_size"]) for j in asked[45:]} == {(20.0, 1960)}


def test_tolerances_are_multiples_of_the_one_of_the_plan() -> None:
    asked, _ = reported("adadp-tolerance", quick=True)
    given = {job.settings["settings"].get("tol") for job in asked}
    assert given == {None, *(round(2.0 * c / 1.4, 4) for c in (0.5, 1, 2, 4))}
