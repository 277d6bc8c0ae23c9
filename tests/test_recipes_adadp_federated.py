"""Clients that tune their own rates: the report with made-up results, and tiny real trainings."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
import torch
from matplotlib.figure import Figure

from sordino.data import Loaded
from sordino.recipes import LISTED, RECIPES
from sordino.recipes import adadp_federated as study
from sordino.recipes.frame import Job, Report, Result
from sordino.recipes.trainings import network_for

mpl.use("Agg")


# Made-up results ----------------------------------------------------------------------------------------


def made_up(job: dict[str, Any]) -> Result:
    """As the paper has it: SGD best at 0.03162 and worse by class, Adam poor, ADADP neither."""
    share, rate, local = job["share"], job["rate"], job["local"]
    accuracy = 0.8 - 0.02 * (1 - share)
    if local == "sgd":
        accuracy -= 0.1 * (1 - share) + 0.1 * abs(math.log10(rate / 0.03162))
    elif local == "adam":
        accuracy -= 0.2 + 0.1 * abs(math.log10(rate / 1e-3))
    accuracy -= 0.0 if job["discard"] else 0.3 * (1 - share)
    accuracy += 0.001 * job["seed"] + 0.01 * (job["algorithm"] == "adabest")
    marks = range(1, job["rounds"] + 1, max(1, job["rounds"] // job["evaluations"]))
    return {
        "accuracy": accuracy,
        "scores": [[mark, accuracy * (1 - math.exp(-mark))] for mark in marks],
        "rates": [[0.01, 0.02, 0.5]] * job["rounds"] if job["keep_rates"] else [],
        "left_out": 0,
        "parameters": 79_510,
        "engine": "stacked",
        "rows": job["rows"] or 50_000,
        "seconds": 60.0,
    }


def reported(quick: bool, answer: Callable[[dict[str, Any]], Result] = made_up) -> tuple[Report, list[Job]]:
    asked: list[Job] = []

    def run(jobs: Sequence[Job]) -> list[Result]:
        for job in jobs:
            inspect.signature(job.function).bind(**job.settings)
            json.dumps(job.settings)
        asked.extend(jobs)
        return [answer(job.settings) for job in jobs]

    report = RECIPES["adadp-federated"].function(run, quick)
    for table in report.tables:
        assert all(len(row) == len(table.columns) for row in table.rows), table.title
    assert any("--quick" in note for note in report.notes) == quick
    return report, asked


def verdicts(report: Report) -> list[list[str]]:
    return [[cell.split(" (")[0] for cell in row[1:]] for row in report.tables[0].rows]


@pytest.mark.parametrize("quick", [True, False])
def test_the_report(quick: bool) -> None:
    assert "adadp-federated" in LISTED
    report, asked = reported(quick)
    assert verdicts(report) == [["yes", "yes"]] * 3 + [["in part", "not run"]]
    claims, accuracies, grids, rates = report.tables
    protocol = study.QUICK if quick else study.FULL
    assert "0 %: 12.0" not in claims.rows[1][1]  # the loss of ADADP, 2 points
    assert "0 %: 2.0 (SGD 12.0)" in claims.rows[1][1]
    assert accuracies.columns[1] == "0 %"
    assert accuracies.columns[-1] == "100 %"
    assert "(rate 0.032)" in accuracies.rows[0][1]
    assert len(accuracies.rows) == 5 + 3 * len(protocol.starts)
    assert len(grids.rows) == len(protocol.sgd_rates) + len(protocol.adam_rates)
    assert rates.rows[0][2:] == ("0.01 / 0.02 / 0.5",) * len(protocol.shares)
    json.dumps(report.settings)
    # The best of a grid is not trained twice: with the first seed it is the same job.
    distinct = {job.key: job for job in asked}
    kinds, shares = 3 * len(protocol.starts) + 3, len(protocol.shares)
    again = 2 * (protocol.seeds - 1)
    expected = len(grids.rows) + kinds * protocol.seeds + again
    assert len(distinct) == expected * shares
    assert any(f"{expected * shares} trainings" in note for note in report.notes)


def test_the_figure(tmp_path: Path) -> None:
    report, _ = reported(True)
    assert report.draw is not None
    figure = Figure(figsize=report.size)
    report.draw(figure)
    figure.savefig(tmp_path / "figure.png", dpi=40)
    assert (tmp_path / "figure.png").stat().st_size > 10_000


def test_the_full_protocol_is_the_papers() -> None:
    _, asked = reported(False)
    for job in asked:
        settings = job.settings
        assert (settings["data"], settings["rounds"], settings["batch"]) == ("cifar10", 200, 10)
        assert settings["groups"] == [[1, 9], [0, 8], [3, 5], [2, 6], [4, 7]]
        assert settings["rows"] is None
    assert {job.settings["seed"] for job in asked} == {0, 1, 2}
    distinct = {job.key: job.settings for job in asked}.values()
    assert len(distinct) == 244
    # What is not in the paper: steps that stay whatever their error, and two local epochs, of all seeds and shares.
    assert sum(not settings["discard"] for settings in distinct) == 3 * 4
    assert sum(settings["local_epochs"] == 2 for settings in distinct) == 3 * 4


def test_claims_that_do_not_hold_are_said() -> None:
    def answer(job: dict[str, Any]) -> Result:
        result = made_up(job)
        if job["local"] == "adadp":  # as sensitive as can be, and lost where data goes by class
            result["accuracy"] = 0.9 * job["share"] - 0.05 * abs(math.log10(job["rate"]))
        if job["local"] == "adam":
            result["accuracy"] += 0.3
        return result

    assert verdicts(reported(True, answer)[0]) == [["no", "no"]] * 3 + [["no", "not run"]]


def test_rates_at_the_edge_and_lost_clients_are_said() -> None:
    def answer(job: dict[str, Any]) -> Result:
        lost = 7 if job["local"] == "sgd" and job["rate"] > 0.3 else 0
        return {**made_up(job), "accuracy": 0.5 + job["rate"] / 10, "left_out": lost}

    report, _ = reported(True, answer)
    assert any("SGD at 0 %" in note and "Adam at 33 %" in note for note in report.notes)
    assert any("7 left out" in str(cell) for row in report.tables[2].rows for cell in row)


# Real trainings -----------------------------------------------------------------------------------------


def test_the_papers_network() -> None:
    from sordino.vector import ParameterVector

    model = network_for("adadp_cnn", (3, 32, 32), 10, seed=1)
    assert len(ParameterVector(model)) == 1_055_000 + 38_720
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


@pytest.fixture
def small_set(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ten classes, each around a direction of its own."""
    import sordino.recipes.trainings as trainings

    generator = torch.Generator().manual_seed(2)
    labels = torch.arange(10).repeat(140)
    inputs = torch.randn(1400, 16, generator=generator)
    inputs[torch.arange(1400), labels] += 4
    train, test = (inputs[:1200], labels[:1200]), (inputs[1200:], labels[1200:])
    loaded = Loaded("made up", train, test, classes=10, input_shape=(16,))
    monkeypatch.setattr(trainings, "load_for", lambda name: loaded)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


TINY = replace(study.QUICK, model="mlp:16", rows=1200, rounds=6, evaluations=3)


def trained(what: str, share: float, rate: float) -> Result:
    return study.train_pairs(**study._job(TINY, (what, share, rate), 1).settings)


@pytest.mark.usefixtures("small_set")
@pytest.mark.parametrize("what", [*study._ADADP, study.SGD, study.ADAM, study.ADABEST])
def test_every_contestant_learns(what: str) -> None:
    result = trained(what, 1.0, 0.01 if what == study.ADAM else 0.1)
    assert [number for number, _ in result["scores"]] == [2, 4, 6]
    assert result["accuracy"] > 0.5  # one of ten by chance
    assert result["left_out"] == 0
    assert len(result["rates"]) == (6 if what in study._ADADP and what != study.FRESH else 0)
    json.dumps(result)


@pytest.mark.usefixtures("small_set")
def test_clients_find_their_rates_from_anywhere() -> None:
    """From 0.001 and from 10 to much the same; a rate that is not kept cannot get there in a round of twelve steps."""
    low, high = (trained(study.KEPT, 0.0, start)["rates"] for start in (0.001, 10.0))
    assert low[-1][1] > 3 * low[0][1]
    assert high[-1][1] < high[0][1] / 3
    assert low[-1][1] == pytest.approx(high[-1][1], rel=0.9)
    assert trained(study.FRESH, 0.0, 0.001)["accuracy"] < trained(study.FRESH, 0.0, 0.1)["accuracy"]


@pytest.mark.usefixtures("small_set")
def test_rates_that_are_too_large_lose_clients() -> None:
    assert trained(study.SGD, 0.0, 1e30)["left_out"] > 0
