"""DP-FTRL's image experiments, with made-up results: what they ask for, and what they make of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

from sordino.privacy import price
from sordino.recipes import LISTED, RECIPES
from sordino.recipes import dp_ftrl as study
from sordino.recipes.frame import Contestant, Job, Report, Result, Table

mpl.use("Agg")


def made_up(job: Job, number: int) -> Result:
    scores = [0.5 + 0.001 * number + 0.01 * e for e in range(max(1, round(job.settings["epochs"])))]
    return {
        "accuracy": scores[-1],
        "epsilon": 3.0,
        "best_accuracy": max(scores),
        "noise_multiplier": job.settings["noise_multiplier"],
        "history": [{"epoch": e + 1, "test_accuracy": score} for e, score in enumerate(scores)],
    }


def reported(name: str, quick: bool) -> tuple[list[Job], Report]:
    asked: list[Job] = []

    def run(jobs: Sequence[Job]) -> list[Result]:
        asked.extend(jobs)
        return [made_up(job, i) for i, job in enumerate(jobs)]

    return asked, RECIPES[name].function(run, quick)


@pytest.fixture(autouse=True)
def rows(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"mnist": 60_000, "cifar10": 50_000, "fashion-mnist": 60_000, "emnist-bymerge": 697_932}
    monkeypatch.setattr(study, "count_rows", lambda data: {"train": known[data]})
    monkeypatch.delenv("SORDINO_DATA", raising=False)


@pytest.fixture
def quick_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Renyi accounting alone: privacy loss distributions take seconds."""
    import sordino.privacy as privacy

    real = privacy.noise_for
    monkeypatch.setattr(privacy, "noise_for", lambda budget, plan: real(budget, plan, "rdp"))


@pytest.mark.usefixtures("quick_noise")
@pytest.mark.parametrize("name", ["dp-ftrl-mnist", "dp-ftrl-cifar10", "dp-ftrl-emnist"])
def test_quick_reports_and_draws(name: str, tmp_path: Path) -> None:
    asked, report = reported(name, quick=True)
    assert name in LISTED
    for table in report.tables:
        assert all(len(row) == len(table.columns) for row in table.rows)
    assert report.draw is not None
    figure = Figure()
    report.draw(figure)
    figure.savefig(tmp_path / "figure.png")
    epochs = {job.settings["epochs"] for job in asked}
    assert epochs <= {0.2, 2}
    emnist = name == "dp-ftrl-emnist"
    assert any("ran on Fashion-MNIST instead" in note for note in report.notes) == emnist


@pytest.mark.usefixtures("quick_noise")
def test_full_mnist_is_the_whole_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "_noise_table", lambda what: Table("", (), ()))
    monkeypatch.setattr(study, "_batch_table", lambda what: Table("", (), ()))
    asked, report = reported("dp-ftrl-mnist", quick=False)
    final = [job for job in asked if job.settings["epochs"] == 20]
    assert len(final) == len({job.key for job in final}) == 8 * 3 + 8
    assert {job.settings["epochs"] for job in asked} == {4, 20}
    assert all(job.settings["batch_size"] == 250 for job in asked)
    table = report.tables[0]
    assert [row[0] for row in table.rows] == ["8"] * 8 + ["3"] * 8
    # At epsilon 3 the rate is half of what was chosen at 8.
    assert [float(row[3]) for row in table.rows[8:]] == [float(row[3]) / 2 for row in table.rows[:8]]


@pytest.mark.parametrize("who", study.CONTESTANTS, ids=lambda who: who.label)
def test_the_noise_of_a_contestant_costs_its_epsilon(who: Contestant) -> None:
    _, releases, steps = study.MNIST.plan(who)
    assert steps == 4800
    z = study.MNIST.noise(who, 8.0)
    assert 7.99 < price(releases.cost(steps, z, ()), 1e-5).epsilon <= 8.0
    trained = study.MNIST.job(who, 8.0, 0.1, 1, 4).settings
    assert trained["noise_multiplier"] == z


@pytest.mark.parametrize("who", study.CONTESTANTS, ids=lambda who: who.label)
def test_the_plan_has_the_steps_that_training_takes(who: Contestant) -> None:
    """697,932 rows in batches of 500: 1395 whole batches, but 1396 Poisson ones to an epoch."""
    poisson = who.method == "dp-sgd" and who.sampling is None
    assert study.EMNIST.plan(who)[2] == 50 * (1396 if poisson else 1395)


def test_crossings() -> None:
    assert study.crossing((1, 2, 4), (1.0, 1.0, 1.0), (0.5, 0.5, 0.5)) == "not up to 4"
    assert study.crossing((1, 2, 4), (1.0, 1.0, 1.0), (2.0, 2.0, 2.0)) == "below 1"
    assert study.crossing((1, 2, 8), (1.0, 1.0, 1.0), (0.25, 0.5, 2.0)) == "4"


def test_noise_of_sums_by_hand() -> None:
    """Independent noise walks: after t of T steps its variance is t z^2, (T + 1) / 2 of them on average."""
    sgd = study.CONTESTANTS[-1]
    z = study.MNIST.noise(sgd, 8.0)
    assert study.noise_in_sums(study.MNIST, sgd, 8.0) == pytest.approx(z * (4801 / 2) ** 0.5 / 250)
    tree = study.CONTESTANTS[0]
    z = study.MNIST.noise(tree, 8.0)
    inside = [sum(t >> h & 1 for h in range(8)) for t in range(1, 241)]
    total = sum(inside) * 20 + 240 * sum(k * inside[-1] for k in range(20))
    assert study.noise_in_sums(study.MNIST, tree, 8.0) == pytest.approx(z * (total / 4800) ** 0.5 / 250)
