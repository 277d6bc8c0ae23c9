"""AdaBest's experiments: what they ask for and make of made-up results, and a tiny federation of each kind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
import torch
from matplotlib.figure import Figure

from sordino.models import fed_cnn
from sordino.recipes import LISTED, RECIPES
from sordino.recipes import adabest as compared
from sordino.recipes import adabest_stability as stability
from sordino.recipes import trainings as runs
from sordino.recipes.frame import Job, Report, Result
from sordino.recipes.trainings import network_for

mpl.use("Agg")

NAMES = ("adabest-emnist", "adabest-cifar", "adabest-stability")
_BEST = 0.95  # the beta that made-up held-out clients like best


def made_up(job: Job, number: int) -> Result:
    """Accuracies that tell one job from another; held-out clients prefer one beta."""
    s = job.settings
    if job.function is stability.walk:
        return {
            "variance": stability.walk_variance(
                s["algorithm"], s["rounds"], s["settings"].get("beta", 0.0), s["participants"] / s["clients"]
            )
        }
    rounds = s["rounds"]
    measured = sorted({max(1, round(rounds * (k + 1) / s["evaluations"])) for k in range(s["evaluations"])})
    beta = s["settings"].get("beta", 0.0)
    level = 0.5 + 0.0001 * number
    grown = sorted({1, *measured, *(mark for mark in stability.MARKS if mark <= rounds)})
    return {
        "parameters": 89_610,
        "engine": "stacked",
        "seconds": 1.0,
        "rounds": grown,
        "norms": [8.0 + r for r in grown],
        "measured": measured,
        "accuracy": [level - 0.001 * k for k in range(len(measured))],
        "holdout": [level - abs(beta - _BEST)] * len(measured) if s.get("holdout") else [],
        "participants": [level] * len(measured) if s.get("watch") else [],
        "correction": {
            "rounds": 10,
            "grew": 4,
            "foretold": 4,
            "agreed": 10,
            "cosine": 0.1,
            "last_norm": 1.0,
        },
    }


def reported(name: str, quick: bool) -> tuple[list[Job], Report]:
    asked: list[Job] = []
    found: dict[str, Result] = {}

    def run(jobs: Sequence[Job]) -> list[Result]:
        for job in jobs:
            if job.key not in found:
                asked.append(job)
                found[job.key] = made_up(job, len(asked))
        return [found[job.key] for job in jobs]

    return asked, RECIPES[name].function(run, quick)


@pytest.fixture(autouse=True)
def no_emnist(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SORDINO_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_reports_and_draws(name: str, quick: bool, tmp_path: Path) -> None:
    _, report = reported(name, quick)
    assert LISTED[name] == RECIPES[name].summary
    for table in report.tables:
        assert table.rows
        assert all(len(row) == len(table.columns) for row in table.rows)
    assert report.draw is not None
    figure = Figure(figsize=report.size)
    report.draw(figure)
    figure.savefig(tmp_path / "figure.png")


# The comparisons --------------------------------------------------------------------------------------------------


def test_emnist_asks_for_the_papers_federations_on_what_there_is() -> None:
    asked, report = reported("adabest-emnist", quick=False)
    assert any("EMNIST is not here" in note for note in report.notes)
    assert {job.settings["data"] for job in asked} == {"fashion-mnist", "mnist"}
    for job in asked:
        s = job.settings
        assert (s["rows"], s["clients"], s["holdout"], s["per_round"], s["local_epochs"]) == (
            48_000,
            100,
            10,
            10,
            5,
        )
    assert {job.settings["partition"] for job in asked} == {
        skew + sizes for skew in ("dirichlet:0.3", "dirichlet:0.03", "iid") for sizes in ("", ",spread=0.3")
    }
    # Progressive averages change nothing where all clients are of one size.
    progressive = [job.settings["partition"] for job in asked if job.settings["settings"].get("progressive")]
    assert progressive
    assert all(partition.endswith("spread=0.3") for partition in progressive)


def test_beta_is_chosen_on_clients_that_were_held_out_of_the_first_seed() -> None:
    asked, report = reported("adabest-emnist", quick=False)
    by_seed: dict[int, set[float]] = {}
    for job in asked:
        if job.settings["algorithm"] == "adabest":
            by_seed.setdefault(job.settings["seed"], set()).add(job.settings["settings"]["beta"])
    assert by_seed[1] == set(compared.EMNIST.betas)
    assert all(by_seed[seed] == {_BEST} for seed in (2, 3, 4, 5))
    rows = [row for table in report.tables for row in table.rows if row[1].startswith("AdaBest")]
    assert {row[1] for row in rows} == {f"AdaBest, beta {_BEST:g}"}
    assert len(rows) == 2 * 6


def test_the_table_has_every_algorithm_and_the_spread_over_seeds() -> None:
    _, report = reported("adabest-emnist", quick=False)
    rows = [row for row in report.tables[0].rows if row[0] == "Dirichlet 0.3, unbalanced"]
    assert [row[1] for row in rows] == [who.label for who in compared.RIVALS] + ["AdaBest, beta 0.95"]
    assert all(" to " in row[2] for row in rows)


def test_the_whole_of_emnist_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    import sordino.data

    monkeypatch.setattr(sordino.data, "load", lambda name: None)
    asked, report = reported("adabest-emnist", quick=True)
    assert {job.settings["data"] for job in asked} == {"emnist-l"}
    assert not any("EMNIST is not here" in note for note in report.notes)


def test_quick_is_sized_for_minutes() -> None:
    asked, _ = reported("adabest-emnist", quick=True)
    assert sum(job.settings["rounds"] for job in asked) <= 2000
    asked, _ = reported("adabest-cifar", quick=True)
    assert {(job.settings["model"], job.settings["data"]) for job in asked} == {
        ("fed_cnn:augmented", "cifar10")
    }
    assert sum(job.settings["rounds"] * job.settings["per_round"] for job in asked) <= 300


def test_measures_of_a_run() -> None:
    result = {
        "measured": [10, 20, 30],
        "accuracy": [0.5, 0.8, 0.7],
        "holdout": [0.4] * 3,
        "norms": [1.0],
    }
    assert compared.rounds_to(result, 60.0) == 20
    assert compared.rounds_to(result, 81.0) is None
    assert compared.last_ten(result) == pytest.approx(100 * 2 / 3)
    assert compared.last_ten({"accuracy": [0.0, *[0.5] * 10]}) == pytest.approx(50)


# Noise alone ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "rounds", "beta", "share", "golden"),
    [
        ("fedavg", 1000, 0.0, 0.005, 1000),
        ("adabest", 1000, 0.8, 0.005, 24868.444),
        ("feddyn", 1000, 0.0, 0.005, 14350.837),
        ("feddyn", 1000, 0.0, 0.1, 3439435),
        ("fedavg", 10_000, 0.0, 0.005, 10_000),
        ("adabest", 10_000, 0.8, 0.005, 249868.444),
        ("adabest", 10_000, 0.95, 0.005, 3988901.56),
        ("feddyn", 10_000, 0.0, 0.005, 8844633.375),
        ("adabest", 3, 1.0, 0.005, 4 + 9 + 16),
    ],
)
def test_closed_forms_are_the_golden_values(
    algorithm: str, rounds: int, beta: float, share: float, golden: float
) -> None:
    assert stability.walk_variance(algorithm, rounds, beta, share) == pytest.approx(golden, rel=1e-6)


@pytest.mark.parametrize("who", range(len(stability.WALKS)))
def test_the_servers_update_walks_as_the_closed_form_says(who: int) -> None:
    walker, participants, clients = stability.WALKS[who]
    algorithm, settings = walker.method, walker.settings
    found = stability.walk(
        algorithm=algorithm,
        settings=settings,
        participants=participants,
        clients=clients,
        rounds=60,
        width=40_000,
    )
    exact = stability.walk_variance(algorithm, 60, settings.get("beta", 0.0), participants / clients)
    # A variance of 40,000 normal coordinates has a relative deviation of sqrt(2 / 40,000) = 0.7 %.
    assert found["variance"] == pytest.approx(exact, rel=0.035)


# Federations ------------------------------------------------------------------------------------------------------

_TINY: dict[str, Any] = {
    "data": "classes",
    "model": "linear",
    "rows": 450,
    "partition": "dirichlet:0.3",
    "clients": 10,
    "per_round": 3,
    "rounds": 12,
    "local_epochs": 2,
    "batch_size": 15,
    "evaluations": 4,
    "seed": 3,
}


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "feddyn", "adabest"])
def test_a_tiny_federation(algorithm: str) -> None:
    result = runs.train_federated(**_TINY, algorithm=algorithm, settings={}, watch=True)
    assert result["parameters"] == 210
    assert result["rounds"] == list(range(1, 13))
    assert result["measured"] == [3, 6, 9, 12]
    assert len(result["participants"]) == 4
    assert result["accuracy"][-1] > 0.3, "it learns: chance is 0.1"
    again = runs.train_federated(**_TINY, algorithm=algorithm, settings={}, watch=False)
    assert again["norms"] == result["norms"], "watching changes nothing"


def test_theorem_1_foretells_when_feddyns_h_grows() -> None:
    """It is an identity: with the wrong share of participants it would not hold."""
    found = runs.train_federated(**_TINY | {"rounds": 60}, algorithm="feddyn", settings={}, watch=True)[
        "correction"
    ]
    assert found["agreed"] == found["rounds"] == 59
    assert 0 < found["grew"] < found["rounds"]


def test_held_out_clients_are_measured() -> None:
    result = runs.train_federated(
        **_TINY | {"clients": 8, "holdout": 2}, algorithm="adabest", settings={"beta": 0.8}
    )
    assert len(result["holdout"]) == 4
    assert result["correction"] is None


def test_the_first_ten_letters(monkeypatch: pytest.MonkeyPatch) -> None:
    import sordino.data
    from sordino.data.loaded import Loaded

    images, labels = torch.arange(52.0).view(52, 1, 1, 1), torch.arange(52) % 26
    loaded = Loaded("emnist-letters", (images, labels), (images[:26], labels[:26]), 26, (1, 1, 1))
    monkeypatch.setattr(sordino.data, "load", {"emnist-letters": loaded}.__getitem__)
    runs.load_for.cache_clear()
    train, test = runs.rows_of("emnist-l", 12)
    runs.load_for.cache_clear()
    assert train[1].tolist() == [*range(10), 0, 1]
    assert train[0].flatten().tolist() == [*range(10), 26, 27]
    assert test[1].tolist() == list(range(10))


def test_the_papers_networks() -> None:
    def size(network: torch.nn.Module) -> int:
        return sum(p.numel() for p in network.parameters())

    assert size(network_for("mlp:100,100", (1, 28, 28), 10, 1)) == 89_610
    assert size(network_for("fed_cnn", (3, 32, 32), 10, 1)) == 797_962
    assert size(network_for("fed_cnn:augmented", (3, 32, 32), 10, 1)) == 797_962
    assert size(fed_cnn(classes=100)) == 815_332


def test_augmentation_flips_and_shifts_in_training_only() -> None:
    augment = fed_cnn(augmented=True)[0]
    torch.manual_seed(1)
    images = torch.rand(400, 3, 32, 32) + 1  # so that 0 is padding
    before = images.clone()
    augment.eval()
    assert torch.equal(augment(images), images)
    augment.train()
    found = augment(images)
    assert torch.equal(images, before)
    same = (found == images).flatten(1).all(1)
    mirrored = (found == images.flip(3)).flatten(1).all(1)
    # Shifted in half of the cases, where 1 of 81 shifts is none: a quarter each is left as it was, or only mirrored.
    for kept in (same, mirrored):
        assert 0.25 * 400 - 40 < int(kept.sum()) < 0.26 * 400 + 40
    padding = (found == 0).any(1).flatten(1).sum(1)
    assert int(padding.max()) <= 32 * 32 - 28 * 28
    # Any of them is the image, or its mirror image, somewhere in its padded self.
    padded = torch.nn.functional.pad(images, [4] * 4)
    for number in range(20):
        places = [padded[number, :, y : y + 32, x : x + 32] for y in range(9) for x in range(9)]
        assert any(torch.equal(found[number], p) or torch.equal(found[number], p.flip(2)) for p in places)


def test_a_tiny_cifar_federation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The augmented CNN: the same seed draws the same images and augments them alike."""
    draws = torch.Generator().manual_seed(4)
    part = (torch.randn(12, 3, 32, 32, generator=draws), torch.arange(12) % 10)
    monkeypatch.setattr(runs, "rows_of", lambda data, rows: (part, part))
    settings: dict[str, Any] = {
        "data": "cifar10",
        "model": "fed_cnn:augmented",
        "clients": 3,
        "per_round": 2,
        "rounds": 1,
        "local_epochs": 1,
        "batch_size": 4,
        "evaluations": 1,
        "algorithm": "adabest",
        "settings": {},
        "seed": 5,
    }
    one, two = (runs.train_federated(**settings) for _ in range(2))
    plain = runs.train_federated(**settings | {"model": "fed_cnn"})
    assert one["parameters"] == 797_962
    assert one["norms"] == two["norms"] != plain["norms"]


# What is made of stability's results ------------------------------------------------------------------------------


def test_stability_asks_for_the_specifications_grid() -> None:
    asked, report = reported("adabest-stability", quick=False)
    swept = [job for job in asked if job.name.startswith("sweep AdaBest, beta")]
    grid = {
        (job.settings["settings"]["beta"], job.settings["per_round"] / job.settings["clients"])
        for job in swept
    }
    assert grid == {(b, p) for b in (0.5, 0.8, 0.9, 0.95, 0.98, 1.0) for p in (0.005, 0.05, 0.5)}
    assert len({job.key for job in asked}) == len(asked)
    thousand = [
        job.settings
        for job in asked
        if job.settings["clients"] == 1000 and job.function is not stability.walk
    ]
    assert {(s["holdout"], s["per_round"]) for s in thousand} == {(100, 5)}
    walks = report.tables[0]
    assert {row[4] for row in walks.rows} == {"1.000"}
    softmax = report.tables[1].rows[-1]
    assert softmax[:6] == ("FedDyn", "58", "208", "508", "1.01e+03", "2.01e+03")


def test_the_note_says_whether_the_best_beta_rises() -> None:
    sizes = stability.QUICK
    best = {1: 0.8, 10: 0.95, 100: 1.0}
    scores = {p: {beta: 1.0 if beta == b else 0.0 for beta in sizes.betas} for p, b in best.items()}
    note = next(line for line in stability.notes_of(sizes, scores) if "best beta rises" in line)
    assert "0.8 at 0.5 %, 0.95 at 5 %, 1 at 50 %" in note
    scores[100] = {beta: 1.0 if beta == 0.8 else 0.0 for beta in sizes.betas}
    assert any("best beta does not rise" in line for line in stability.notes_of(sizes, scores))


def test_rank_correlation() -> None:
    assert stability.rank_correlation([1, 2, 3], [10, 100, 1000]) == pytest.approx(1)
    assert stability.rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert math.isfinite(stability.rank_correlation([1, 2, 3, 4], [2, 1, 4, 3]))
