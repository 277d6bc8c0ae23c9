"""The cost tables: what is counted, against counts by hand, and the report with real and made-up results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor

from sordino.recipes import LISTED, RECIPES
from sordino.recipes import adabest_cost as study
from sordino.recipes.adabest_cost import Cost, Count, count_algorithm, count_round, counting, fitted
from sordino.recipes.frame import Job, Report, Result

# Counting -----------------------------------------------------------------------------------------------

X, Y = torch.full((7,), 2.0), torch.full((7,), 3.0)

ONE_BY_ONE: dict[str, tuple[Callable[[Tensor], Any], tuple[int, int]]] = {
    "sum": (lambda x: x + Y, (1, 0)),
    "difference in place": (lambda x: x.sub_(Y), (1, 0)),
    "into another": (lambda x: torch.sub(x, Y, out=torch.empty(7)), (1, 0)),
    "sum with a factor": (lambda x: x.add_(Y, alpha=0.5), (1, 1)),
    "sum with a sign": (lambda x: x.add_(Y, alpha=-1.0), (1, 0)),
    "product": (lambda x: x * Y, (0, 1)),
    "with a number": (lambda x: x.mul_(3), (0, 1)),
    "quotient": (lambda x: x / Y, (0, 1)),
    "fused": (lambda x: x.addcmul_(Y, Y, value=-1), (1, 1)),
    "fused with a factor": (lambda x: x.addcmul_(Y, Y, value=-0.5), (1, 2)),
    "fused quotient": (lambda x: torch.addcdiv(x, Y, Y), (1, 1)),
    "between": (lambda x: x.lerp_(Y, 0.1), (2, 1)),
    "sign": (lambda x: -x, (0, 0)),
    "copy": (lambda x: x.repeat(2, 1).clone(), (0, 0)),
    "check": (lambda x: x.isfinite().all(), (0, 0)),
}


@pytest.mark.parametrize("what", ONE_BY_ONE)
def test_each_operation_counts_by_its_elements(what: str) -> None:
    do, (adds, multiplies) = ONE_BY_ONE[what]
    count = Count()
    x = X.clone()
    with counting(count):
        do(x)
    assert (count.adds, count.multiplies) == (7 * adds, 7 * multiplies)


def test_an_operation_of_unknown_cost_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="torch's exp costs is not known"), counting(Count()):
        X.exp()


def test_nothing_counts_in_a_pause() -> None:
    count = Count(counting=False)
    with counting(count):
        X.exp() + Y
    assert (count.adds, count.multiplies) == (0, 0)


def test_formulas_must_fit_every_count() -> None:
    counts = {(k, p): (Fraction(2 * k + 3), Fraction(1)) for k in (2, 3, 7) for p in (1, 4)}
    assert fitted(counts, 0) == [3, 2, 1, 0]
    counts[3, 4] = (Fraction(10), Fraction(1))
    with pytest.raises(RuntimeError, match=r"no formula a \+ b K fits the counts at .*\(3, 4\)"):
        fitted(counts, 0)


def test_costs_are_written_as_the_paper_writes_them() -> None:
    assert study.PRINTED["FedDyn"].client.show("K") == "4Ks + 2Km + s + m"
    over = study.PRINTED["SCAFFOLD/m"].server.over(study.PRINTED["FedAvg"].server)
    assert over.show("P") == "2s + 2m"
    assert over.over(over).show("P") == "0"
    assert Cost(1, 0, -2, 0).show("K") == "s - 2m"
    assert study.PRINTED["AdaBest"].client.at(50) == 2 * 50 + 50 + 1 + 1


# The algorithms -----------------------------------------------------------------------------------------


@lru_cache(maxsize=16)
def counted(label: str) -> Result:
    (who,) = [who for who in study.ALGORITHMS if who.label == label]
    return count_algorithm(
        method=who.method, settings=who.settings, sizes=[11, 29], steps=[2, 4, 5], participants=[1, 3]
    )


# By hand, from the formulas in federated/algorithms: [adds, for each, multiplies, for each] of a client (each of K) and
# of the server (each of P), then vectors down, up, on a client and on the server.
BY_HAND: dict[str, tuple[list[int], list[int], list[int]]] = {
    "FedAvg": ([1, 1, 0, 1], [1, 1, 1, 0], [1, 1, 0, 0]),
    "SCAFFOLD/m": ([4, 2, 3, 1], [2, 1, 3, 0], [2, 1, 1, 1]),
    "FedDyn": ([2, 4, 1, 2], [3, 1, 2, 0], [1, 1, 1, 1]),
    "AdaBest": ([2, 2, 2, 1], [3, 1, 2, 0], [1, 1, 1, 2]),
    "SCAFFOLD": ([5, 2, 4, 1], [2, 2, 3, 0], [2, 2, 1, 1]),
    "FedAvg, weighted": ([1, 1, 0, 1], [1, 1, 1, 1], [1, 1, 0, 0]),
    "FedProx": ([1, 3, 0, 2], [1, 1, 1, 0], [1, 1, 0, 0]),
    "FedAdam": ([1, 1, 0, 1], [5, 1, 7, 0], [1, 1, 0, 2]),
}


@pytest.mark.parametrize("label", [who.label for who in study.ALGORITHMS])
def test_the_counts_of_an_algorithm_by_hand(label: str) -> None:
    client, server, vectors = BY_HAND[label]
    found = counted(label)
    assert found["client"] == client
    # SCAFFOLD's second mean is divided by P as well, and its h moves by |P|/|S| of it.
    assert found["server"] == server
    assert [found[what] for what in ("down", "up", "on_client", "on_server")] == vectors


def test_what_a_client_asks_the_server_for_is_downloaded() -> None:
    assert counted("SCAFFOLD/m")["asked"] == ["h"]
    assert counted("FedDyn")["asked"] == []
    one = count_round(method="scaffold", settings={}, size=10, steps=2, participants=2)
    assert (one["down"], one["up"]) == (80, 80)


def run_real(jobs: Sequence[Job]) -> list[Result]:
    return [counted(job.name) for job in jobs]


def verdicts(report: Report) -> list[str]:
    for table in report.tables:
        assert all(len(row) == len(table.columns) for row in table.rows), table.title
    return [row[1] for row in report.tables[0].rows]


def test_the_report() -> None:
    assert "adabest-cost" in LISTED
    report = RECIPES["adabest-cost"].function(run_real, True)
    # AdaBest's server costs here what the others' cost, and keeps a vector more.
    assert verdicts(report) == ["in part", "in part", "yes", "yes", "in part"]
    _, client, server, memory = report.tables
    rows = {row[0]: row for row in client.rows}
    assert rows["FedDyn"][3] == rows["FedDyn"][4] == "3Ks + Km + s + m"
    assert rows["AdaBest"][3:5] == ("Ks + s + m", "Ks + s + 2m")
    assert {row[0]: row[4] for row in server.rows}["AdaBest"] == "2s + m"
    assert ("SCAFFOLD", "2 (2)", "2 (2)", "1 (-)", "1 (-)", "h") in memory.rows


def test_claims_that_do_not_hold_are_said() -> None:
    def run(jobs: Sequence[Job]) -> list[Result]:
        changed: dict[str, Result] = {
            "AdaBest": {"client": [1, 5, 1, 3], "server": [9, 1, 9, 0], "up": 2.0, "down": 2.0},
            "FedDyn": {"up": 2.0},
            "SCAFFOLD/m": {"down": 1.0},
            "SCAFFOLD": {"up": 1.0},
        }
        return [{**counted(job.name), **changed.get(job.name, {})} for job in jobs]

    assert verdicts(RECIPES["adabest-cost"].function(run, False)) == ["no", "no", "no", "no", "in part"]
