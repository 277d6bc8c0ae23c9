"""DP-FTRL's printed epsilons come out as printed, and what the runs really cost is beside them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from sordino.privacy import Budget, fixed_order_sensitivity, noise_for, price, tree_plan
from sordino.privacy.trees import as_printed_sensitivity
from sordino.recipes import RECIPES
from sordino.recipes.dp_ftrl_epsilons import (
    SHUFFLED,
    TABLES,
    TREE,
    Printed,
    priced,
    verdict,
)
from sordino.recipes.frame import Job, Result

LINES = [line for lines in TABLES.values() for line in lines]
# Printed with a rounded z: another z with the same digits gives the printed epsilon.
ROUNDED = {("0.67", "8.98"), ("1.20", "4.17"), ("3.67", "13.68")}


def test_the_tables_have_their_shape() -> None:
    assert {number: len(lines) for number, lines in TABLES.items()} == {3: 8, 4: 10, 5: 11, 6: 78, 7: 12}
    assert sum(line.batches == SHUFFLED for line in LINES) == 26
    assert all(line.table == number for number, lines in TABLES.items() for line in lines)
    assert len({(line.name, line.method) for line in LINES}) == len(LINES)


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.name)
def test_every_printed_epsilon_comes_out(line: Printed) -> None:
    expected = "z is rounded" if (line.noise, line.epsilon) in ROUNDED else "yes"
    assert verdict(line) == expected


def test_a_wrong_epsilon_is_noticed() -> None:
    line = Printed(6, "DP-FTRL", TREE, LINES[-1].setting, "8", "3.14")
    assert verdict(line) == "no"


# What those runs really cost: squared sensitivities printed, in one tree, in a tree an epoch; then z and epsilons.
REALLY: dict[tuple[str, int], tuple[int, int, int, dict[str, tuple[float, float | None]]]] = {
    ("MNIST", 250): (260, 798, 160, {"4": (57.20, 19.05), "7": (26.25, 9.48), "20": (7.07, 2.81)}),
    ("MNIST", 1000): (1040, 10070, 480, {"8": (136.83, 15.85), "100": (4.75, 0.88)}),
    ("CIFAR-10", 500): (1400, 14349, 700, {"10": (127.13, 15.18), "50": (13.40, 2.31)}),
    ("CIFAR-10", 2000): (5600, 221221, 2000, {"20": (386.69, 12.30), "100": (32.25, 1.91)}),
    ("EMNIST", 500): (850, 4924, 550, {"8": (82.81, 18.68), "16": (31.41, None), "100": (3.51, 1.07)}),
    ("EMNIST", 2000): (3400, 73085, 1800, {"16": (229.28, None), "200": (7.37, None)}),
}


@pytest.mark.parametrize(("data", "batch"), REALLY)
def test_what_those_runs_really_cost(data: str, batch: int) -> None:
    printed, one, restarted, epsilons = REALLY[data, batch]
    trees = [line for line in TABLES[6] if line.batches == TREE]
    lines = [line for line in trees if (line.setting.data, line.setting.batch) == (data, batch)]
    at = lines[0].setting
    assert as_printed_sensitivity(at.steps, at.per_epoch) == printed
    assert fixed_order_sensitivity(at.steps, at.per_epoch) == one
    assert fixed_order_sensitivity(at.per_epoch, at.per_epoch) * at.epochs == restarted
    for noise, (in_one, an_epoch) in epsilons.items():
        (i,) = [i for i, line in enumerate(TABLES[6]) if line in lines and line.noise == noise]
        found = priced(table=6, line=i)
        assert found["one tree, rdp"] == pytest.approx(in_one, abs=6e-3)
        if an_epoch is not None:
            assert found["a tree an epoch, rdp"] == pytest.approx(an_epoch, abs=6e-3)
        assert found["one tree, auto"] < found["one tree, rdp"]
        assert found["a tree an epoch, rdp"] < found["as printed"] < found["one tree, auto"]


def test_the_real_epsilon_of_the_worst_line_takes_much_more_noise() -> None:
    noise = noise_for(Budget(23.73, 1e-5), lambda z: tree_plan(z, 400 * 25, 25), "rdp")
    assert price(tree_plan(noise, 400 * 25, 25), 1e-5, "rdp").epsilon <= 23.73
    assert noise > 6 * 20


def test_the_report(tmp_path: Path) -> None:
    jobs: list[Job] = []

    def run(given: Sequence[Job]) -> list[Result]:
        jobs.extend(given)
        return [job.function(**job.settings) for job in given]

    report = RECIPES["dp-ftrl-epsilons"].function(run, True)
    assert len(jobs) == len({job.key for job in jobs}) == len(LINES)
    assert sum(len(table.rows) for table in report.tables) == len(LINES)
    assert all(len(row) == len(table.columns) for table in report.tables for row in table.rows)
    trees = next(table for table in report.tables if table.title.startswith("Table 6, DP-FTRL"))
    assert "not a guarantee" in trees.columns[4]
    (worst,) = [row for row in trees.rows if row[0].startswith("CIFAR-10, b 2,000") and row[2] == "20"]
    assert worst[3:8] == ("23.73", "23.73", "yes", "386.693", "375.906")
    sgd = next(table for table in report.tables if table.title.startswith("Table 6, DP-SGD"))
    assert {len(table.rows) for table in (trees, sgd)} == {26, 52}
    notes = " ".join(report.notes)
    for said in ("116 of 119", "and 3 more", "None is left", "no guarantee", "fresh permutation", "2.06e4"):
        assert said in notes
    assert "gives 3.64" in notes
    assert "vanilla tree 8.67" in notes
    figure = Figure(figsize=report.size, layout="constrained")
    assert report.draw is not None
    report.draw(figure)
    figure.savefig(tmp_path / "figure.png", dpi=40)
    assert (tmp_path / "figure.png").stat().st_size > 2000
