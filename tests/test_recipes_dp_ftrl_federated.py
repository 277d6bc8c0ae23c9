"""User-level DP-FTRL: epsilons against the published ones, trainings with made-up results, and tiny real ones."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from sordino.privacy import price
from sordino.recipes import LISTED, RECIPES, show
from sordino.recipes import dp_ftrl_federated as study
from sordino.recipes.frame import Job, Result

mpl.use("Agg")

FEW = (100, 1000, 50_000)


def made_up(job: Job, number: int) -> Result:
    epsilon = math.inf if job.settings["noise_multiplier"] == 0 else 3.0
    score = 0.05 + 0.001 * number
    return {
        "accuracy": score,
        "scores": [[job.settings["rounds"], score]],
        "epsilon": epsilon,
        "noise_multiplier": job.settings["noise_multiplier"],
        "parameters": 1234,
        "seconds": 1.0,
    }


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    import sordino.privacy as privacy

    real = privacy.noise_for
    # Renyi accounting alone: privacy loss distributions take seconds.
    monkeypatch.setattr(privacy, "noise_for", lambda budget, plan: real(budget, plan, "rdp"))
    monkeypatch.setattr(study, "GOALS", FEW)
    study._noise.cache_clear()
    return []


def run_into(asked: list[Job]) -> Any:
    def run(jobs: Sequence[Job]) -> list[Result]:
        asked.extend(jobs)
        return [
            made_up(job, i) if job.function is study.train_roles else job.function(**job.settings)
            for i, job in enumerate(jobs)
        ]

    return run


def test_quick_reports_and_draws(asked: list[Job], tmp_path: Path) -> None:
    assert "dp-ftrl-federated" in LISTED
    report = RECIPES["dp-ftrl-federated"].function(run_into(asked), True)
    assert all(len(row) == len(table.columns) for table in report.tables for row in table.rows)
    assert report.draw is not None
    figure = Figure(figsize=report.size)
    report.draw(figure)
    figure.savefig(tmp_path / "figure.png", dpi=40)
    assert [table.title[:7] for table in report.tables[:3]] == ["Table 3", "Table 4", "Table 5"]
    assert sum(len(table.rows) for table in report.tables[:3]) == 8 + 10 + 11
    notes = " ".join(report.notes)
    for said in (
        "not to be had here",
        "1,120 roles",
        "delta 0.0001",
        "not counted in the plays",
        "not charged",
    ):
        assert said in notes
    json.dumps(report.settings)
    trained = [job for job in asked if job.function is study.train_roles]
    assert len(trained) == len({job.key for job in trained})
    # Without noise both trees are one run: four servers.
    assert sum(job.settings["noise_multiplier"] == 0 for job in trained) == 4
    assert {job.settings["clip"] for job in trained} == set(study.QUICK.clips)


def test_the_full_protocol_asks_for_all_servers_at_all_epsilons(
    asked: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "_printed_tables", lambda run: [])
    what = replace(study.FULL, epsilons=(math.inf, 16.0), clip_epsilons=(16.0,))
    report = study._report(run_into(asked), what)
    servers = next(table for table in report.tables if table.title.startswith("Shakespeare"))
    assert [row[0] for row in servers.rows] == ["inf"] * 6 + ["16"] * 6
    # With momentum 0.9 a step has ten times the effect, so its rates are a tenth.
    by_rule = {
        momentum: sorted(
            {job.settings["server_rate"] for job in asked if job.settings.get("momentum") == momentum}
        )
        for momentum in (0.0, 0.9)
    }
    assert by_rule[0.9] == pytest.approx([rate / 10 for rate in by_rule[0.0]])
    assert all(row[4] in row[5] for row in servers.rows)


def test_an_overspent_budget_is_an_error(asked: list[Job]) -> None:
    what = replace(study.QUICK, epsilons=(2.0,), rates={2.0: (1.0,)}, clip_epsilons=())
    with pytest.raises(RuntimeError, match=r"spent 3.0 of 2.0"):
        study._trained(run_into(asked), what)


ONE_OF_EACH = [study.SERVERS[i] for i in (1, 2, 5)]  # independent noise, vanilla and efficient trees


@pytest.mark.parametrize("who", ONE_OF_EACH, ids=lambda who: who.label)
def test_the_noise_of_a_contestant_costs_its_epsilon(who: study.Server) -> None:
    what = study.QUICK
    z = what.noise(who, 16.0)
    releases = who.mechanism().over(who.participation(1120, what.per_round), 1120, what.rounds)
    assert 15.9 < price(releases.cost(what.rounds, z, ()), what.delta).epsilon <= 16.0
    assert what.noise(who, math.inf) == 0
    if who.rule == "ftrl":  # 80 rounds, every role once: 7 nodes above a leaf
        assert what.epochs == 1
        mu = math.sqrt(7) / z
        assert price(releases.cost(what.rounds, z, ()), what.delta).gdp_mu == pytest.approx(mu)


# The epsilons -------------------------------------------------------------------------------------------


def test_the_printed_lines_have_their_accuracies() -> None:
    assert {number: len(lines) for number, lines in study.TRAINED.items()} == {3: 8, 4: 10}
    # Published: momentum and the efficient tree help, at epsilon 8.5.
    vanilla, vanilla_m = study.TRAINED[3][6:8]
    efficient_m = study.TRAINED[4][3]
    assert float(vanilla["test"]) < float(vanilla_m["test"]) < float(efficient_m["test"])


@pytest.fixture(scope="module")
def curves() -> dict[int, dict[str, list[float]]]:
    goals = (100, 1000, 3850, 50_000)
    return {
        population: show.numbers(study.at_goals(population=population, goals=goals))
        for population in study.POPULATIONS
    }


def test_report_goals_by_hand(curves: dict[int, dict[str, list[float]]]) -> None:
    """100 clients of 342,477 a round: nobody comes twice, so all trees are one, of 11 nodes above a leaf."""
    from sordino.privacy import gaussian

    one = price(gaussian(0.149 / math.sqrt(11)), 1e-6).epsilon
    for population in study.POPULATIONS:
        first = {name: values[0] for name, values in curves[population].items() if name.startswith("FTRLM")}
        vanilla = first.pop("FTRLM, vanilla, one tree")
        assert vanilla == pytest.approx(price(gaussian(0.067 / math.sqrt(11)), 1e-6).epsilon)
        assert all(value == pytest.approx(one, rel=1e-9) for value in first.values())
    # Table 5's 3,850 of a million: z 5.73, seven trees of 259 rounds, one participation in each.
    restarted = curves[1_000_000]["FTRLM, a tree an epoch, same z"][2]
    assert restarted == pytest.approx(
        price(gaussian(0.149 * 38.5 / math.sqrt(6 * 9 + 6)), 1e-6).epsilon, rel=1e-3
    )


def test_what_restarts_really_buy(curves: dict[int, dict[str, list[float]]]) -> None:
    for curve in curves.values():
        for one, unknown, same_z, same_noise in zip(
            curve["FTRLM, one tree"],
            curve["FTRLM, one tree, unknown order"],
            curve["FTRLM, a tree an epoch, same z"],
            curve["FTRLM, planned trees, same noise in sums"],
            strict=True,
        ):
            assert same_z <= same_noise * (1 + 1e-9)
            assert same_noise <= one * (1 + 1e-9)
            assert one <= unknown * (1 + 1e-9)
    # One tree: more clients a round stop helping.
    assert min(curves[342_477]["FTRLM, one tree"]) > 20


def test_epsilons_are_shown_upwards() -> None:
    assert show.upwards(8.0) == "8.00"
    assert show.upwards(8.0001) == "8.01"
    assert show.upwards(1.234e6) == "1.24e6"
    assert show.upwards(math.inf) == "inf"


# A tiny real run ----------------------------------------------------------------------------------------


@pytest.fixture
def tiny_roles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    chance = np.random.default_rng(0)
    words = [f"w{i}" for i in range(8)]

    def speech() -> str:
        start = int(chance.integers(8))
        return " ".join(words[(start + i) % 8] for i in range(6)) + "."

    data = {f"ROLE {i}": [speech() for _ in range(10)] for i in range(12)}
    content = {"users": list(data), "num_speeches": [10] * 12, "user_data": data}
    (tmp_path / "shakespeare").mkdir()
    (tmp_path / "glove").mkdir()
    (tmp_path / "shakespeare" / "roles.json.gz").write_bytes(gzip.compress(json.dumps(content).encode()))
    np.savez_compressed(tmp_path / "glove" / "glove50_agnews_f16.npz", words=np.array("\n".join(words)))
    monkeypatch.setenv("SORDINO_DATA", str(tmp_path))
    study.roles.cache_clear()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    study.roles.cache_clear()


def tiny(**changes: Any) -> study.Protocol:
    tiny = replace(study.QUICK, words=8, dim=8, hidden=8, rounds=6, per_round=2, clients=12, test_rows=50)
    return replace(tiny, evaluations=3, **changes)


@pytest.mark.usefixtures("tiny_roles")
@pytest.mark.parametrize("who", ONE_OF_EACH, ids=lambda who: who.label)
def test_every_server_trains_and_spends_what_was_planned(who: study.Server) -> None:
    result = study.train_roles(**tiny().job(who, 16.0, 1.0, 0.3, 1).settings)
    assert 15.9 < result["epsilon"] <= 16.0
    assert [number for number, _ in result["scores"]] == [2, 4, 6]
    assert result["accuracy"] == result["scores"][-1][1]


@pytest.mark.usefixtures("tiny_roles")
def test_without_noise_it_learns_and_ftrl_is_sgd_with_the_same_roles(monkeypatch: pytest.MonkeyPatch) -> None:
    what = tiny(rounds=24, client_rate=1.0)
    ftrl = study.train_roles(**what.job(study.OURS, math.inf, 10.0, 3.0, 1).settings)
    assert ftrl["epsilon"] == math.inf
    assert ftrl["accuracy"] > 0.6  # one of eight by chance
    monkeypatch.setattr(study.Server, "participation", lambda who, clients, count: study_shuffled(count))
    sgd = study.train_roles(**what.job(study.SERVERS[1], math.inf, 10.0, 3.0, 1).settings)
    assert [score for _, score in sgd["scores"]] == pytest.approx([s for _, s in ftrl["scores"]], abs=0.02)


def study_shuffled(count: int) -> Any:
    from sordino.data import Shuffled

    return Shuffled(count, every=None)


@pytest.mark.usefixtures("tiny_roles")
def test_another_federation_under_the_same_name_is_refused() -> None:
    with pytest.raises(ValueError, match="has 12 roles and not 13"):
        study.train_roles(**replace(tiny(), clients=13).job(study.OURS, math.inf, 1.0, 1.0, 1).settings)
