"""The recipe of private selection, with made-up results: what it asks for, and what it makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure

from sordino.privacy import price
from sordino.privacy.selection import Stopping, liu_talwar
from sordino.recipes import LISTED, RECIPES
from sordino.recipes import private_selection as study
from sordino.recipes.frame import Job, Report, Result

mpl.use("Agg")


@pytest.fixture(scope="module", params=[True, False], ids=["quick", "full"])
def reported(request: pytest.FixtureRequest) -> tuple[list[Job], Report, study.Setting]:
    asked: list[Job] = []

    def run(jobs: Sequence[Job]) -> list[Result]:
        asked.extend(jobs)
        return [
            {"accuracy": 0.5 + 0.001 * n, "score": 0.5 + 0.001 * n, "judges": 5000, "noise_multiplier": 1.0}
            for n in range(len(jobs))
        ]

    report = RECIPES["private-selection"].function(run, request.param)
    return asked, report, study.QUICK if request.param else study.FULL


def test_the_study_reports_and_draws(
    reported: tuple[list[Job], Report, study.Setting], tmp_path: Path
) -> None:
    asked, report, setting = reported
    assert "private-selection" in LISTED
    assert len({job.key for job in asked}) == len(asked) == 2 * setting.pool + 2 * setting.seeds
    (table,) = report.tables
    assert len(table.rows) == 2 + 9 + 1
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert report.draw is not None
    figure = Figure()
    report.draw(figure)
    figure.savefig(tmp_path / "figure.png")


def test_a_candidate_spends_what_the_selection_leaves_it(
    reported: tuple[list[Job], Report, study.Setting],
) -> None:
    asked, _, setting = reported
    noises = {job.name.rpartition(" ")[0]: job.settings.get("noise_multiplier", 0.0) for job in asked}
    theorem, profiles = noises["by the theorem"], noises["by profiles"]
    budget = study.base_budget(min(study.GAMMAS))
    assert 0.99 * budget.epsilon < price(setting.cost(theorem), budget.delta, "rdp").epsilon <= budget.epsilon
    whole = price(Stopping(study.MEAN).select(setting.cost(profiles)), study.DELTA).epsilon
    assert 0.99 * study.EPSILON < whole <= study.EPSILON


@pytest.mark.parametrize("gamma", study.GAMMAS)
def test_liu_and_talwars_theorem_gives_the_budget_for_every_gamma(gamma: float) -> None:
    budget = study.base_budget(min(study.GAMMAS))
    whole = liu_talwar(budget.epsilon, budget.delta, gamma=gamma, cut_off=study.CUT_OFF)
    assert whole.epsilon <= study.EPSILON
    assert whole.delta <= study.DELTA


def test_more_runs_find_better_candidates_and_noisy_scores_worse_ones() -> None:
    pool = [{"score": 0.01 * n, "accuracy": 0.01 * n} for n in range(100)]
    few, many = (study.simulated(pool, gamma, 0.0) for gamma in (0.5, 0.02))
    assert few[1].mean() == pytest.approx(2, rel=0.1)
    assert many[1].mean() == pytest.approx(50, rel=0.1)
    assert few[0].mean() < many[0].mean() - 0.1
    assert study.simulated(pool, 0.02, 0.5)[0].mean() < many[0].mean() - 0.05


def test_with_one_run_the_winner_is_drawn_evenly() -> None:
    pool = [{"score": 0.01 * n, "accuracy": 0.01 * n} for n in range(100)]
    accuracies, runs = study.simulated(pool, 1.0, 0.0)
    assert set(runs.tolist()) == {1}
    assert accuracies.mean() == pytest.approx(np.mean([each["accuracy"] for each in pool]), abs=0.02)


def test_the_rates_of_the_pool_are_always_the_same_and_spread() -> None:
    rates = study.drawn_rates(100)
    assert rates == study.drawn_rates(100)
    assert rates[:40] == study.drawn_rates(40)
    assert min(rates) < 3e-4
    assert max(rates) > 0.3


def test_a_candidate_is_judged_on_rows_it_was_not_trained_on() -> None:
    found = study.candidate(
        data="digits", model="linear", seed=1, method="dp-adam", settings={"learning_rate": 0.01}, epochs=1,
        batch_size=128, noise_multiplier=1.0, delta=1e-5, accountant="rdp",
    )  # fmt: skip
    assert found["judges"] == 144
    assert found["steps"] == study.QUICK.rows // 128
