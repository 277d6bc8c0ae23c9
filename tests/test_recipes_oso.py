"""OSO's recipes without their trainings: grids, budgets, published tables, reports from made-up results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure

from sordino.methods import method_named
from sordino.recipes import RECIPES, oso_gradients, oso_grids
from sordino.recipes.frame import Job, Report, Result
from sordino.recipes.oso_grids import AG_NEWS, MNIST, PUBLISHED, Protocol, grid, grid_noise


def test_grids_are_the_papers() -> None:
    """D4."""
    powers = [10**p for p in (-2.5, -1.5, -0.5, 0.5, 1.5)]
    assert oso_grids.learning_rates(5) == pytest.approx(powers, rel=1e-6)
    seven = [0.003162, 0.014678, 0.068129, 0.316228, 1.467799, 6.812921, 31.622777]
    assert oso_grids.learning_rates(7) == pytest.approx(seven, rel=1e-4)
    assert oso_grids.thresholds(7) == pytest.approx(
        [0.01, 0.046416, 0.215443, 1, 4.641589, 21.544347, 100], rel=1e-4
    )
    nine = [0.01, 0.0316, 0.1, 0.316, 1, 3.16, 10, 31.6, 100]
    assert oso_grids.thresholds(9) == pytest.approx(nine, rel=1e-2)


@pytest.mark.parametrize("k", [5, 7, 9])
def test_runs_charged(k: int) -> None:
    runs = {method: len(grid(method, k)) for method in oso_grids.PRIVATE}
    assert runs == {"Online": k, "FixedThreshold": k * k, "FixedQuantile": 5 * k, "AdamWOSM": k}


@pytest.mark.parametrize("method", oso_grids.METHODS)
def test_every_candidate_is_a_method(method: str) -> None:
    for settings in grid(method, 5):
        made = method_named(oso_grids.METHODS[method], settings)
        assert made.private == (method != "NoDP")


@pytest.mark.parametrize(
    ("epsilon", "runs", "noise"),
    [(3, 1, 0.837), (3, 5, 1.206), (3, 7, 1.357), (3, 81, 3.991), (9, 25, 1.077)],
)
def test_one_budget_for_a_grid(epsilon: int, runs: int, noise: float) -> None:
    """D7: printed to three digits; ours is rounded up at the fourth."""
    assert grid_noise(epsilon, runs, 1170, 60_000) == pytest.approx(noise, abs=7e-4)


def test_published_tables_have_their_shape() -> None:
    assert {key: table.name for key, table in PUBLISHED.items()} == {
        ("mnist", 9): "table 8",
        ("ag-news", 9): "table 10",
        ("mnist", 5): "table 11",
        ("ag-news", 5): "table 13",
    }
    for (_, k), table in PUBLISHED.items():
        assert tuple(table.rows) == oso_grids.EPSILONS
        for row in table.rows.values():
            assert tuple(row) == oso_grids.PRIVATE
            for method, printed in row.items():
                assert 80 < printed.accuracy < 95
                assert 0 < printed.std < 1
                assert any(oso_grids._same(settings, printed.settings) for settings in grid(method, k))
        for method in oso_grids.PRIVATE[:2]:  # a larger budget is never worse in print
            scores = [row[method].accuracy for row in table.rows.values()]
            assert scores == sorted(scores)


def test_spot_checks_of_published_numbers() -> None:
    assert PUBLISHED["mnist", 5].rows[9]["Online"].accuracy == 94.11
    assert PUBLISHED["mnist", 9].rows[3]["FixedThreshold"] == oso_grids.Printed((0.1, 0.1), 86.83, 0.70)
    assert PUBLISHED["ag-news", 9].rows[9]["AdamWOSM"] == oso_grids.Printed((0.0316,), 86.43, 0.05)
    assert PUBLISHED["ag-news", 5].rows[3]["FixedQuantile"].accuracy == 84.32


# Reports from made-up results ---------------------------------------------------------------------------


class Pretend:
    """Runs nothing: accuracies grow with the learning rate (or threshold) and with the seed."""

    def __init__(self, rows: int = 60_000) -> None:
        self.rows = rows
        self.jobs: list[Job] = []

    def __call__(self, jobs: Sequence[Job]) -> list[Result]:
        self.jobs += jobs
        return [self.result(job) for job in jobs]

    def result(self, job: Job) -> Result:
        if "settings" not in job.settings:
            return {"train": self.rows, "test": 10_000}
        settings, seed = job.settings["settings"], job.settings["seed"]
        size = settings.get("learning_rate", settings.get("threshold", 0.0))
        accuracy = 0.5 + 0.001 * size + 0.01 * seed
        return {"accuracy": accuracy, "best_accuracy": min(1.0, accuracy + 0.1 / size)}


def drawn(report: Report, folder: Path) -> None:
    assert report.draw is not None
    figure = Figure(figsize=report.size, layout="constrained")
    report.draw(figure)
    figure.savefig(folder / "figure.png", dpi=40)
    assert (folder / "figure.png").stat().st_size > 2000


def cheap_noise(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    asked: list[Any] = []

    def noise(epsilon: float, runs: int, steps: int, rows: int) -> float:
        asked.append((epsilon, runs, steps, rows))
        return round(1.0 + runs / 100 + epsilon / 1000, 4)

    monkeypatch.setattr(oso_grids, "grid_noise", noise)
    monkeypatch.setattr(oso_gradients, "grid_noise", noise)
    return asked


def test_quick_mnist(monkeypatch: Any, tmp_path: Path) -> None:
    asked = cheap_noise(monkeypatch)
    run = Pretend()
    report = RECIPES["oso-mnist"].function(run, True)
    assert len(run.jobs) == 1 + 5 + 2 + 2 + 3 + 2
    # Charged for the whole grid, whatever part of it was run.
    assert set(asked) == {(3, 5, 117, 60_000), (3, 25, 117, 60_000)}
    trainings = [job.settings for job in run.jobs[1:]]
    assert {s["noise_multiplier"] for s in trainings} == {1.053, 1.253, None}
    assert {s["rows"] for s in trainings} == {60_000}
    assert all(s["settings"]["threshold"] == 0.1 for s in trainings if s["method"] == "oso")
    (table,) = report.tables
    assert len(table.rows) == 5
    assert all(len(row) == len(table.columns) for row in table.rows)
    online = dict(zip(table.columns, table.rows[0], strict=True))
    assert online["runs charged"] == "5"
    assert (online["settings"], online["last iterate %"]) == ("rate=31.62", "54.16")
    assert online["settings of it"] == "rate=0.003162"
    assert (online["published %"], online["published settings"]) == ("91.19 (0.51)", "rate=0.316")
    assert "n = 60,000" in table.title
    notes = " ".join(report.notes)
    for said in ("optimistic", "not covered", "whole grid with 117 steps", "one epoch instead of 10"):
        assert said in notes
    drawn(report, tmp_path)


@pytest.mark.parametrize(("what", "rows", "steps"), [(MNIST, 60_000, 1170), (AG_NEWS, 45_115, 880)])
def test_the_whole_protocol(what: Any, rows: int, steps: int, monkeypatch: Any, tmp_path: Path) -> None:
    asked = cheap_noise(monkeypatch)
    run = Pretend(rows)
    report = oso_grids.report(run, False, what)
    keys = {job.key for job in run.jobs[1:]}
    # Without privacy a grid is the same at each epsilon, and those of 5, 7 and 9 have 13 rates between them.
    assert len(keys) == 5 * (4 * (60 + 98 + 144) + 13)
    assert {(r, s, n) for _, r, s, n in asked} == {
        (runs, steps, rows) for k in (5, 7, 9) for runs in (k, 5 * k, k * k)
    }
    assert [len(table.rows) for table in report.tables] == [17, 17, 17]
    assert all(f"n = {rows:,}" in table.title for table in report.tables)
    assert report.tables[1].rows[0][-1] == "-"  # k = 7 is in figures only
    assert "(1.58)" in report.tables[0].rows[0][4]
    assert ("120,000" in " ".join(report.notes)) == (what is AG_NEWS)
    drawn(report, tmp_path)


def test_quick_ag_news_is_a_whole_grid() -> None:
    assert [len(AG_NEWS.quick.candidates(m, 5)) for m in oso_grids.METHODS] == [5, 25, 25, 5, 5]


def test_a_thinned_grid_is_part_of_the_grid() -> None:
    with pytest.raises(AssertionError, match="not all on the grid"):
        Protocol(tried={"Online": ((0.5,),)}).candidates("Online", 5)


def test_other_data_under_the_same_name_is_refused() -> None:
    study = oso_grids.study_of(MNIST, Protocol(), 60_000, 1170)
    job = oso_grids.Cell(5, 3, "NoDP", None).jobs(study, {"learning_rate": 0.1}, 1)[0]
    with pytest.raises(ValueError, match="1,437 training rows and had 60,000"):
        job.function(**{**job.settings, "data": "digits", "unit_pixels": False})


def test_a_training_of_the_grid() -> None:
    """The job itself, on the small digits."""
    study = oso_grids.study_of(MNIST, Protocol(), 1437, 14)
    job = oso_grids.Cell(5, 3, "Online", 1.2).jobs(study, {"learning_rate": 0.3}, 1)[0]
    small = {"data": "digits", "model": "linear", "batch_size": 128, "epochs": 1, "test_rows": 50}
    result = job.function(**{**job.settings, **small})
    assert result["n"] == 1437
    assert 0 <= result["accuracy"] <= result["best_accuracy"] <= 1


# Gradients ----------------------------------------------------------------------------------------------


def test_the_frontier_is_proposition_1() -> None:
    """D1."""
    assert oso_gradients.noise_of_q(1.0, 1.01) == pytest.approx(7.123990720172, rel=1e-12)
    gradient, q = oso_gradients.frontier(1.357)
    for g, other in zip(gradient, q, strict=True):
        assert g**-2 + other**-2 == pytest.approx(1.357**-2)
    with pytest.raises(ValueError, match="more noise"):
        oso_gradients.noise_of_q(1.0, 1.0)


@pytest.mark.parametrize("quick", [True, False])
def test_the_report_on_gradients(quick: bool, monkeypatch: Any, tmp_path: Path) -> None:
    cheap_noise(monkeypatch)
    thresholds = oso_gradients.THRESHOLDS
    peak: Callable[[float], float] = lambda c: 0.3 * min(c, 1 / c)  # noqa: E731

    def run(jobs: Sequence[Job]) -> list[Result]:
        (job,) = jobs
        moments = [
            {
                "step": step,
                "threshold": 0.1,
                "noised": [peak(c) for c in thresholds],
                "noised_std": [0.01 for _ in thresholds],
                "clipped": [min(1.0, c) for c in thresholds],
                "median_norm": 2.0,
            }
            for step in job.settings["moments"]
        ]
        return [{"n": 60_000, "parameters": 551_322, "moments": moments}]

    report = RECIPES["oso-gradients"].function(run, quick)
    cosines, multipliers = report.tables
    steps = [10, 50, 100, 250] if quick else [100, 250, 500, 750, 950]
    assert [row[0] for row in cosines.rows] == [str(step) for step in steps]
    assert all(row[1:3] == ("1", "0.300") for row in cosines.rows)
    assert all(row[4] == "7.124" for row in multipliers.rows)
    assert all("n = 60,000" in table.title for table in report.tables)
    assert "not private" in report.notes[0]
    assert f"{len(steps)} of {len(steps)} steps" in report.notes[1]
    drawn(report, tmp_path)


def test_cosines_are_right() -> None:
    """Against single gradients, on the small digits with a linear model."""
    found = oso_gradients.similarities(
        moments=[0, 2],
        thresholds=[1e-3, 1.0, 1e4],
        noise_multiplier=1e-6,
        learning_rate=0.1,
        realisations=3,
        batch_size=64,
        seed=1,
        data="digits",
        model="linear",
    )
    start = found["moments"][0]
    assert [m["step"] for m in found["moments"]] == [0, 2]
    assert found["n"] == 1437
    # Nothing is clipped at the largest threshold, and with next to no noise the gradient is the true one.
    assert start["clipped"][2] == pytest.approx(1, abs=1e-5)
    assert start["clipped"][0] < 1
    assert start["noised"][:2] == pytest.approx(start["clipped"][:2], abs=1e-3)

    from sordino.models import build_model
    from sordino.recipes.trainings import load_for

    loaded = load_for("digits", unit_pixels=True)
    torch.manual_seed(1)
    network = build_model("linear", loaded.input_shape, loaded.classes)
    drawn = torch.randperm(1437, generator=torch.Generator().manual_seed(1))[:64]
    gradients = []
    for x, y in zip(loaded.train[0][drawn], loaded.train[1][drawn], strict=True):
        loss = torch.nn.functional.cross_entropy(network(x[None]), y[None])
        parts = torch.autograd.grad(loss, list(network.parameters()))
        gradients.append(torch.cat([part.flatten() for part in parts]))
    each = torch.stack(gradients)
    directions = each / each.norm(dim=1, keepdim=True)
    by_hand = torch.nn.functional.cosine_similarity(directions.sum(0), each.sum(0), dim=0)
    assert start["clipped"][0] == pytest.approx(float(by_hand), abs=1e-4)
    assert start["median_norm"] == pytest.approx(float(each.norm(dim=1).median()), rel=1e-4)


def test_pixels_in_the_unit_interval() -> None:
    from sordino.recipes.trainings import load_for

    pixels = load_for("digits", unit_pixels=True).train[0]
    assert float(pixels.min()) == pytest.approx(0, abs=1e-6)
    assert float(pixels.max()) == pytest.approx(1, abs=1e-6)
