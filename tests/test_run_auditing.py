"""Canaries in a run: correct runs stay below their claims, half the noise is caught, who is left out is not there."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sordino.run_auditing as module
from conftest import cross_entropy
from sordino import (
    Column,
    Fixed,
    FixedOrder,
    Gaussian,
    LedgerFile,
    Poisson,
    Quantile,
    RunAudit,
    Schema,
    TargetColumn,
    Tree,
    WithoutReplacement,
    audit_federation,
    audit_run,
)
from sordino.data.table import Table
from sordino.gate import Released
from sordino.methods import method_named
from sordino.noise import GaussianNoise
from sordino.run_auditing import WithParameters, canary_loss
from sordino.terms import Terms

GENERATOR = torch.Generator().manual_seed(0)
ROWS = torch.randn(200, 4, generator=GENERATOR), torch.arange(200) % 2
CENTRAL = [
    ("dp-sgd", {"threshold": 0.5, "learning_rate": 0.1}),
    ("adadp", {}),
    ("oso", {}),
    ("dp-ftrl", {}),
    ("composed", {"clip": "fixed:1.0", "rate": "constant:0.1", "noise": "banded:3"}),
    ("composed", {"clip": "fixed:1.0", "rate": "constant:0.1", "noise": "buffered"}),
    ("auto", {}),
    ("dp-adam", {}),
    ("composed", {"clip": "quantile"}),
]
IN_ORDER: Any = {"noise": Tree(restart_every=1), "participation": FixedOrder(155)}


def model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))


def audited(method: str = "dp-adam", settings: dict[str, Any] | None = None, **options: Any) -> RunAudit:
    options = {
        "canaries": 600,
        "noise_multiplier": 0.8,
        "delta": 1e-5,
        "epochs": 2,
        "batch_size": 200,
        "seed": 1,
        **options,
    }
    how = method_named(method, settings or {})
    return audit_run(model(), cross_entropy, ROWS, method=how, **options)


def federated(**options: Any) -> RunAudit:
    options = {
        "rounds": 4,
        "clients": 20,
        "per_round": 200,
        "canaries": 600,
        "noise_multiplier": 0.8,
        "delta": 1e-5,
        "seed": 1,
        "workers": 1,
        "local_epochs": 1,
        "engine": "mapped",
        **options,
    }
    return audit_federation(model(), cross_entropy, ROWS, **options)


@pytest.fixture
def half_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """All noise, of gradients, probes and nodes of trees, at half its size; nothing else knows."""
    for name in ("add_", "accumulate_"):
        draw = getattr(GaussianNoise, name)

        def halved(self: Any, vector: Tensor, std: float, *rest: Any, draw: Any = draw) -> Any:
            return draw(self, vector, std / 2, *rest)

        monkeypatch.setattr(GaussianNoise, name, halved)


# Correct runs, and half the noise -----------------------------------------------------------------------------


@pytest.mark.parametrize(("method", "settings"), CENTRAL, ids=[name for name, _ in CENTRAL])
def test_a_correct_run_stays_below_its_claim(method: str, settings: dict[str, Any]) -> None:
    found = audited(method, settings)
    judged = found.found
    assert not found.violated, found.finding
    assert judged.counts
    assert judged.apart is not None
    assert 0.3 < judged.epsilon < judged.claimed.epsilon  # and it is no idle guess
    assert max(judged.gdp_epsilon, judged.apart.bounds[0].gdp_epsilon) < judged.claimed.epsilon
    assert judged.guesses[0].right > 0.6 * judged.canaries


@pytest.mark.usefixtures("half_the_noise")
@pytest.mark.parametrize(("method", "settings"), CENTRAL, ids=[name for name, _ in CENTRAL])
def test_half_the_noise_is_caught(method: str, settings: dict[str, Any]) -> None:
    found = audited(method, settings)
    assert found.violated
    assert "the claim is violated" in found.finding


@pytest.mark.usefixtures("half_the_noise")
def test_half_the_noise_is_caught_where_the_unit_is_a_user() -> None:
    assert audited(groups=torch.arange(200) // 4).violated
    assert federated().violated
    assert federated(**IN_ORDER).violated


def test_users_and_clients_stay_below_their_claims() -> None:
    for found in (
        audited(groups=torch.arange(200) // 4),
        federated(),
        federated(**IN_ORDER),
    ):
        assert found.unit == "user"
        assert not found.violated, found.finding
        assert found.found.epsilon > 0.5


@pytest.mark.usefixtures("half_the_noise")
def test_what_ties_canaries_together_is_not_judged_apart() -> None:
    """SCAFFOLD's clients move in the coordinates of all; of a fixed number one takes another's place."""
    assert not federated(algorithm="adabest").found.counts
    assert not federated(participation=WithoutReplacement(200)).found.counts
    assert not audited(see="model").found.counts


@pytest.mark.parametrize("sampling", [Poisson(0.25), WithoutReplacement(200), FixedOrder(200)])
def test_who_takes_part_is_known_where_the_price_allows_for_it(sampling: Any) -> None:
    """Of samples nobody may know who is in them; guesses that did would refute a true claim."""
    streams, hidden = module._own_streams(1), module._hidden(400, 400, module._own_streams(1))
    terms = Terms(Fixed(1.0), Gaussian(), sampling, 800, 4, multiplier=1.0)
    watch = module._Watch(terms, hidden, 400, 1e4, streams)
    watch.record(Released(0, torch.full((400,), 3.0 / 200), noise_std=1.0 / 200, threshold=1.0))
    drawn = np.isin(hidden.places, sampling.units(0, 800, streams))
    assert 20 < drawn.sum() < 180
    ratio = 3.0 - 0.5  # of one Gaussian: (seen - 1/2) times 1, at noise 1
    if isinstance(sampling, FixedOrder):
        assert np.allclose(watch.scores(), np.where(drawn, ratio, 0.0), rtol=1e-5)
    else:
        assert np.allclose(watch.scores(), math.log(0.75 + 0.25 * math.exp(ratio)), rtol=1e-5)


def test_who_sees_less_finds_less() -> None:
    all_releases, final = audited("dp-ftrl"), audited("dp-ftrl", see="model")
    assert all_releases.found.guesses[0].right > final.found.guesses[0].right > 330
    assert not final.violated
    assert federated(see="model").found.guesses[0].right > 300


def test_rows_in_the_model_are_found_by_their_loss() -> None:
    """By a model that is large enough to learn them by heart, with next to no noise."""
    rows = torch.rand(50, 100, generator=GENERATOR), torch.arange(50) % 2
    options: Any = {"see": "loss", "canaries": 200, "delta": 1e-5, "batch_size": 125, "seed": 1}
    how = method_named("dp-adam", {"learning_rate": 0.02})
    found = audit_run(
        nn.Linear(100, 2), cross_entropy, rows, method=how, epochs=30, noise_multiplier=0.1, **options
    )
    assert found.found.apart is None
    assert found.found.guesses[0].right > 118  # of 200: chance alone has 100, give or take 7
    mine = torch.rand(200, 100, generator=GENERATOR), torch.zeros(200).long()
    hidden = audit_run(
        nn.Linear(100, 2),
        cross_entropy,
        rows,
        method=how,
        epochs=2,
        noise_multiplier=3.0,
        rows=mine,
        **options,
    )
    assert hidden.found.guesses[0].right < 118


# Who is in, and who is out ------------------------------------------------------------------------------------


@pytest.mark.parametrize("federation", [False, True])
def test_a_canary_that_is_left_out_leaves_no_trace(monkeypatch: pytest.MonkeyPatch, federation: bool) -> None:
    """Neither in its coordinate nor in the count of units within the threshold."""
    releases: list[Released] = []
    hidden: list[Any] = []
    record, scores = module._Watch.record, module._Watch.scores

    def keep(self: Any, released: Released) -> None:
        releases.append(released)
        record(self, released)

    def done(self: Any) -> Any:
        hidden.append(self._hidden)
        return scores(self)

    monkeypatch.setattr(module._Watch, "record", keep)
    monkeypatch.setattr(module._Watch, "scores", done)
    monkeypatch.setattr(GaussianNoise, "add_", lambda self, vector, *rest: vector)
    if federation:
        federated(per_round=620, clip=Quantile(threshold=100.0))
    else:
        audited("composed", {"clip": "quantile:0.5,threshold=100"}, batch_size=800)
    coins = hidden[0].coins
    others, batch = (20, 620) if federation else (200, 800)
    for released in releases:
        own = released.gradient[-600:].numpy() * batch
        assert (own[~coins] == 0).all()
        assert np.allclose(own[coins], released.threshold, rtol=0.01)
        counted = 2 * batch * float(released.probes["fraction_within"])  # so many more are within than beyond
        assert counted == pytest.approx(others - coins.sum(), abs=1e-3)


def test_coins_are_fair_and_of_their_own() -> None:
    coins = np.concatenate([module._hidden(1000, 10, module._own_streams(seed)).coins for seed in range(20)])
    assert abs(coins.mean() - 0.5) < 4 * 0.5 / math.sqrt(len(coins))
    one, other = (module._hidden(1000, 10, module._own_streams(seed)).coins for seed in (1, 2))
    assert 400 < (one == other).sum() < 600


def test_a_canary_moves_its_own_parameter_and_nobody_else_does() -> None:
    whole = WithParameters(model(), 3, pull=50.0)
    inputs, marks = torch.randn(4, 4, generator=GENERATOR), torch.tensor([0, 2, 0, 3])
    targets = torch.zeros(4).long()
    losses = canary_loss(cross_entropy, whole(inputs, marks), (targets, marks))
    assert torch.equal(losses[[0, 2]], cross_entropy(whole.model(inputs), targets)[[0, 2]])
    losses[[0, 2]].sum().backward(retain_graph=True)
    assert whole.own.weight.grad is not None
    assert whole.own.weight.grad.tolist() == [[0.0, 0.0, 0.0]]
    whole.zero_grad()
    losses[[1, 3]].sum().backward()
    assert whole.own.weight.grad.tolist() == [[0.0, 50.0, 50.0]]
    assert all(not part.grad.any() for part in whole.model.parameters() if part.grad is not None)


def test_the_model_stays_as_it_was() -> None:
    mine = model()
    before = [part.clone() for part in mine.parameters()]
    for see in ("releases", "loss"):
        audit_run(
            mine, cross_entropy, ROWS, see=see, canaries=200, noise_multiplier=1.0, delta=1e-5, epochs=1
        )
    assert all(torch.equal(one, two) for one, two in zip(before, mine.parameters(), strict=True))


def test_a_public_term_is_one_of_the_model_alone() -> None:
    sizes = []

    def prior(theta: Tensor) -> Tensor:
        sizes.append(len(theta))
        return theta.square().sum()

    audited(public_loss=prior, canaries=200, epochs=1)
    assert set(sizes) == {23}


# What it costs ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("federation", [False, True])
def test_an_audit_is_paid_for_before_anything_is_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, federation: bool
) -> None:
    path = tmp_path / "ledger"
    record = module._Watch.record
    spent = []

    def look(self: Any, released: Released) -> None:
        (run,) = LedgerFile(path).runs("patients")
        spent.append((run.kind, run.charges))
        record(self, released)

    monkeypatch.setattr(module._Watch, "record", look)
    audit = federated if federation else audited
    found = audit(ledger=path, data_name="patients", canaries=200)
    assert found.ledger is not None
    assert found.ledger["data"] == "patients"
    assert {kind for kind, _ in spent} == {"audit"}
    assert all(charges > step for step, (_, charges) in enumerate(spent))
    assert len(spent) == found.releases


def test_a_cap_refuses_an_audit_before_a_row_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    book = LedgerFile(tmp_path / "ledger")
    book.cap("patients", epsilon=0.5, delta=1e-5)

    def read(*_: Any) -> None:
        raise AssertionError("a row was read")

    monkeypatch.setattr("sordino.gate.ExampleGate._sums_at", read)
    with pytest.raises(ValueError, match="patients"):
        audited(ledger=book, data_name="patients")


# What is refused ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"canaries": 20}, "at least 160"),
        ({"canaries": 200.5}, "whole number"),
        ({"see": "everything"}, "releases, model, loss"),
        ({"confidence": 1.5}, "confidence"),
        ({"noise_multiplier": 0.0}, "nothing is claimed"),
        ({"delta": 1e-13}, "so small a delta"),
        ({"sampling": "shuffled-as-poisson"}, "nothing to audit"),
        ({"out": "somewhere"}, "leave out out"),
        ({"see": "loss", "rows": (torch.zeros(3, 4), torch.zeros(3))}, "one for each of the 600"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_spent(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], message: str
) -> None:
    monkeypatch.setattr(module, "conduct", None)
    with pytest.raises(ValueError, match=message):
        audited(**options)


def test_a_claim_is_needed() -> None:
    with pytest.raises(ValueError, match="private method"):
        audit_run(model(), cross_entropy, ROWS, method="adam")
    with pytest.raises(ValueError, match="give a budget"):
        audit_federation(model(), cross_entropy, ROWS, rounds=1)
    with pytest.raises(ValueError, match="releases or its model"):
        federated(see="loss")
    with pytest.raises(TypeError, match="there is no keyword"):
        audited(canary=3)


@pytest.mark.parametrize("federation", [False, True])
def test_an_audit_says_how_the_rows_of_a_table_were_made(federation: bool, tmp_path: Path) -> None:
    def audited(obtained: str) -> Any:
        age = Column("age", "number", low=0, high=99, obtained=obtained)
        table = Table(Schema(TargetColumn("y", labels=("no", "yes")), (age,)))
        rows = table.examples({"age": list(range(100)), "y": ["no", "yes"] * 50})
        how: dict[str, Any] = {"canaries": 200, "budget": (3, 1e-4), "ledger": book, "data_name": obtained}
        if federation:
            how |= {"clients": 20, "rounds": 2, "per_round": 10}
            return audit_federation(nn.Linear(2, 2), cross_entropy, rows, **how)
        return audit_run(nn.Linear(2, 2), cross_entropy, rows, epochs=1, method="dp-sgd", **how)

    book = LedgerFile(tmp_path / "ledger.db")
    assert audited("public").caveat is None
    for obtained, words in (("peeked", "read from the private rows"), ("private", "not counted here")):
        found = audited(obtained)
        assert words in found.caveat
        assert not found.violated
        assert book.runs(obtained)[0].caveat == found.caveat
