"""What is promised: the terms, what they cost, and that the door charges just that and can be put down and taken up."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sordino as sd
from conftest import cross_entropy
from sordino import Budget, Fixed, FixedOrder, Ledger, Method, Poisson, Quantile, Shuffled, Tree, Unclipped
from sordino.clipping import PerLayer
from sordino.data.sampling import sampling_named
from sordino.gate import Door
from sordino.named import METHODS
from sordino.noise import Gaussian, Known, Streams
from sordino.privacy import price
from sordino.runs import Checkpoint
from sordino.terms import Terms

UNITS, STEPS = 60, 10
PRIVATE = [name for name in METHODS if METHODS[name]().private]


class Zeros(Door):
    """A door to nobody's rows: what leaves it is noise, as large as was promised."""

    unit = "example"

    def _sums_at(self, at: Any, vectors: int, numbers: int, step: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(vectors, 5, dtype=torch.float64), torch.zeros(numbers, dtype=torch.float64)


def zeros(
    terms: Terms, names: Sequence[str] = ("a.weight", "b.weight"), ledger: Ledger | None = None
) -> Zeros:
    return Zeros(names, terms, Streams.from_seed(1), ledger)


def terms_of(**settings: Any) -> Terms:
    usual: dict[str, Any] = {
        "clip": Fixed(1.0), "noise": Gaussian(), "sampling": Poisson(0.2), "units": UNITS, "steps": STEPS,
        "multiplier": 1.0,
    }  # fmt: skip
    return Terms(**{**usual, **settings})


def terms_of_method(name: str) -> Terms:
    """As `train` makes them."""
    method: Method = METHODS[name]()
    how = sampling_named(method.noise.sampling, 12, UNITS)
    known = Known(how, UNITS, Budget(3, 1e-3), parameters=5)
    noise = method.noise.planned(STEPS, how.steps_per_epoch(UNITS), known)
    return Terms(method.clip, noise, noise.dealt(how, UNITS), UNITS, STEPS, 1.0)


# Prices -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRIVATE)
def test_what_the_door_charges_is_what_the_terms_cost(name: str) -> None:
    terms = terms_of_method(name)
    door = zeros(terms)
    assert door.charge_event == terms.charge(0)[1]
    paid = {terms.charge(step)[0]: terms.charge(step)[1] for step in range(STEPS)}
    for _ in range(STEPS):
        door()
    assert door.ledger.event == terms.cost(STEPS) == door.plan(STEPS)
    assert door.ledger.charges == len(paid)


@pytest.mark.parametrize("name", PRIVATE)
def test_a_budget_is_met_and_nearly_used(name: str) -> None:
    terms, delta = terms_of_method(name).within(Budget(3, 1e-3), None, None, "rdp")
    assert delta == 1e-3
    assert 2.9 < price(terms.cost(STEPS), delta, "rdp").epsilon <= 3


def test_a_multiplier_is_taken_as_it_is() -> None:
    terms, delta = terms_of(multiplier=0.0).within(None, 1.5, 1e-3, "rdp")
    assert (terms.multiplier, delta) == (1.5, 1e-3)
    free, delta = terms_of().within(None, 0.0, None, "rdp")
    assert (free.multiplier, delta, free.explanation) == (0.0, None, None)


def test_terms_with_other_noise_have_another_price() -> None:
    """What is worked out once is not carried over to a copy."""
    terms = terms_of(clip=Quantile())
    before = terms.cost(3), terms.own_multiplier, terms.probe_multipliers
    other = replace(terms, multiplier=2.0)
    assert (other.cost(3), other.own_multiplier) != before[:2]
    assert before == (terms.cost(3), terms.own_multiplier, terms.probe_multipliers)
    assert other.releases is not terms.releases


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((None, None, None), "either a budget"),
        ((Budget(3, 1e-3), 1.0, None), "either a budget"),
        ((None, 1.0, None), "needs a delta"),
        ((None, -1.0, 1e-3), "0 or positive, not -1"),
        ((None, 0.0, 2.0), "delta must lie strictly between 0 and 1, not 2"),
        ((None, float("nan"), 1e-3), "0 or positive, not nan"),
        ((None, float("inf"), 1e-3), "0 or positive, not inf"),
        ((Budget(3, 1e-3), None, 1e-5), "delta is said twice, as 0.001 in the budget and as 1e-05"),
    ],
)
def test_what_does_not_say_how_much_noise_is_refused(given: tuple[Any, Any, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        terms_of(multiplier=0.0).within(*given, "rdp")


def test_a_delta_that_is_said_twice_alike_is_no_contradiction() -> None:
    assert terms_of().within(Budget(3, 1e-3), None, 1e-3, "rdp")[1] == 1e-3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"multiplier": -1.0}, "0 or positive"),
        ({"noise": "tree"}, "noise must be a mechanism"),
        ({"sampling": "poisson"}, "sampling must be one such as Poisson"),
        ({"clip": 1.0}, "clip must be a clipping policy such as Fixed"),
        ({"sampling": FixedOrder(UNITS + 1)}, "60"),
    ],
)
def test_what_is_no_term_is_refused_at_once(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        terms_of(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"noise": Tree(restart_every=1)}, "dealt in an order"),  # Poisson samples have no order
        ({"noise": Tree(restart_every=None), "sampling": FixedOrder(12), "steps": None}, "how many steps"),
        ({"noise": Tree(restart_every=2), "sampling": Shuffled(12)}, "shuffle when a tree begins"),
        ({"clip": Unclipped()}, "noise without clipping"),
    ],
)
def test_what_has_no_known_price_has_no_door(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        zeros(terms_of(**settings))


# Put down and taken up ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "terms",
    [
        terms_of(clip=Quantile()),
        terms_of(clip=PerLayer((0.5, 2.0))),
        terms_of(noise=Tree(restart_every=1), sampling=FixedOrder(12), clip=Quantile()),
        terms_of(noise=Tree(restart_every=None, efficient=False), sampling=FixedOrder(12)),
    ],
    ids=["quantile", "per layer", "trees", "one tree"],
)
@pytest.mark.parametrize("done", [0, 3, 5])
def test_a_door_that_was_put_down_goes_on_bit_for_bit(terms: Terms, done: int, tmp_path: Path) -> None:
    """Through a file, as a checkpoint is; what was released before and is released again is not paid twice."""
    whole = zeros(terms)
    for _ in range(done):
        whole()
    Checkpoint(whole.state()).save(tmp_path)
    rest = [whole() for _ in range(STEPS - done)]
    found = Checkpoint.load(tmp_path)
    assert found is not None
    other = zeros(terms)
    other.restore(found.state)
    assert other.step == done
    for expected in rest:
        released = other()
        assert torch.equal(released.gradient, expected.gradient)
        assert (released.step, released.threshold, released.noise_std) == (
            expected.step,
            expected.threshold,
            expected.noise_std,
        )
        assert dict(released.probes) == dict(expected.probes)
    assert other.ledger.event == whole.ledger.event == terms.cost(STEPS)
    assert other.charged_as == whole.charged_as


def test_a_replay_on_the_same_ledger_is_not_charged_again() -> None:
    door = zeros(terms_of())
    state = json.loads(json.dumps(door.state()))
    door()
    again = zeros(terms_of())
    again.restore({**state, "ledger": door.ledger.to_state()})
    again()
    assert again.ledger.charges == 1


class Refusing:
    def record(self, released: Any) -> None:
        raise ValueError("not the same")

    def sync(self) -> None:
        return None


def test_the_journal_is_asked_before_the_threshold_moves() -> None:
    door = zeros(terms_of(clip=Quantile()))
    door.journal = Refusing()
    before = dict(door.clip_state)
    with pytest.raises(ValueError, match="not the same"):
        door()
    assert door.clip_state == before
    assert door.ledger.charges == 1  # first, whatever happens


def test_one_unit_alone_is_warned_of_where_there_is_noise() -> None:
    alone = Terms(Fixed(1.0), Gaussian(), Poisson(0.5), 1, STEPS, multiplier=1.0)
    with pytest.warns(UserWarning, match="one unit only: with privacy nothing can be learnt from it"):
        alone.warn_if_alone()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        replace(alone, multiplier=0.0).warn_if_alone()
        replace(alone, units=2).warn_if_alone()


@pytest.mark.parametrize("start", [sd.train, sd.federate])
def test_training_on_one_unit_is_warned_of(start: Any) -> None:
    rows, noise = (
        (torch.ones(1, 3), torch.zeros(1, dtype=torch.int64)),
        {"noise_multiplier": 1.0, "delta": 1e-3},
    )
    few: dict[str, Any] = {"epochs": 1, "method": "dp-sgd"}
    if start is sd.federate:
        few = {"rounds": 1, "clients": 1, "per_round": 1, "engine": "looped", "workers": 1}
    with pytest.warns(UserWarning, match="there is one unit only"):
        start(nn.Linear(3, 2), cross_entropy, rows, accountant="rdp", **noise, **few)
