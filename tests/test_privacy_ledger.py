"""The ledger charges each key once, forgets nothing, and stays small."""

import json
import random
import time
from typing import Any

import dp_accounting as dp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino.privacy import Ledger, compose, gaussian, poisson_gaussian, repeat
from sordino.privacy.events import leaves

STEP = poisson_gaussian(1.1, 0.01)


def test_a_replayed_key_is_charged_once() -> None:
    ledger = Ledger()
    assert ledger.charge("step:0", STEP)
    assert not ledger.charge("step:0", poisson_gaussian(1.1, 0.01))
    assert ledger.charges == 1
    assert ledger.event == STEP


@pytest.mark.parametrize("key", ["step:3", "setup", "step:03"])
def test_the_same_key_with_another_event_raises_and_changes_nothing(key: str) -> None:
    ledger = Ledger()
    ledger.charge(key, STEP)
    with pytest.raises(ValueError, match="different event"):
        ledger.charge(key, gaussian(1.1))
    assert ledger.event == STEP
    assert ledger.charges == 1


def test_equal_events_are_grouped() -> None:
    ledger = Ledger()
    for i in range(5000):
        ledger.charge(f"step:{i}", poisson_gaussian(1.1, 0.01))
    ledger.charge("setup", gaussian(5.0))
    assert ledger.event == compose([repeat(STEP, 5000), gaussian(5.0)])
    assert len(json.dumps(ledger.to_state())) < 400


def test_an_empty_ledger_is_a_no_op() -> None:
    assert Ledger().event == dp.NoOpDpEvent()
    assert Ledger().charges == 0


def test_compositions_can_be_charged() -> None:
    ledger = Ledger()
    both = compose([gaussian(1.0), gaussian(2.0)])
    assert ledger.charge("tree:0", both)
    assert not ledger.charge("tree:0", compose([gaussian(1.0), gaussian(2.0)]))
    assert ledger.charge("tree:1", compose([gaussian(1.0), gaussian(2.0)]))
    assert ledger.event == repeat(both, 2)


def test_events_no_certificate_can_state_are_refused_at_once() -> None:
    with pytest.raises(ValueError, match="LaplaceDpEvent"):
        Ledger().charge("step:0", dp.LaplaceDpEvent(1.0))


keys = st.one_of(
    st.integers(0, 30).map(lambda i: f"step:{i}"), st.sampled_from(["setup", "step:007", "a:b:1", ":1", "x:"])
)
charges = st.lists(st.tuples(keys, st.sampled_from([gaussian(1.0), gaussian(2.0), STEP])), max_size=80)


@given(charges, st.integers(0, 80))
def test_behaves_like_a_dict_also_across_a_checkpoint(
    sequence: list[tuple[str, dp.DpEvent]], restart_at: int
) -> None:
    ledger = Ledger()
    oracle: dict[str, dp.DpEvent] = {}
    for i, (key, event) in enumerate(sequence):
        if i == restart_at:
            ledger = Ledger.from_state(json.loads(json.dumps(ledger.to_state())))
        if key in oracle and oracle[key] != event:
            with pytest.raises(ValueError, match="different event"):
                ledger.charge(key, event)
        else:
            assert ledger.charge(key, event) == (key not in oracle)
            oracle[key] = event
    assert ledger.charges == len(oracle)
    spent = {repr(leaf): count for leaf, count in leaves(ledger.event)}
    for event in (gaussian(1.0), gaussian(2.0), STEP):
        assert spent.get(repr(event), 0) == list(oracle.values()).count(event)


def test_any_order_ends_in_one_range() -> None:
    numbers = list(range(500))
    random.Random(0).shuffle(numbers)
    ledger = Ledger()
    for number in numbers:
        ledger.charge(f"step:{number}", STEP)
    assert ledger.to_state()["numbered"] == {"step": [[0, 499, 0]]}


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"numbered": {"step": [[0, 5, 7]]}},
        {"numbered": {"step": [[0, 5, 0], [3, 6, 0]]}},
        {"events": [{"type": "laplace"}]},
        {"named": None},
    ],
)
def test_malformed_state_is_refused(change: dict[str, Any]) -> None:
    ledger = Ledger()
    ledger.charge("step:0", STEP)
    with pytest.raises(ValueError, match=r"ledger|event"):
        Ledger.from_state(ledger.to_state() | change)
    if change != {"numbered": {"step": [[0, 5, 0], [3, 6, 0]]}}:  # which are charged once
        with pytest.raises(ValueError, match=r"ledger|event"):
            Ledger().absorb(ledger.to_state() | change)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 8), st.booleans()), max_size=8))
def test_what_is_absorbed_range_by_range_is_what_was_charged_one_by_one(
    ranges: list[tuple[int, int, bool]],
) -> None:
    absorbed, charged = Ledger(), Ledger()
    taken: dict[int, bool] = {}
    for first, more, other in ranges:
        numbers = range(first, first + more + 1)
        if any(taken.get(number, other) != other for number in numbers):
            continue  # another event under the same key
        taken |= dict.fromkeys(numbers, other)
        part = Ledger()
        for number in numbers:
            part.charge(f"step:{number}", gaussian(3.0) if other else STEP)
            charged.charge(f"step:{number}", gaussian(3.0) if other else STEP)
        absorbed.absorb(part.to_state())
    assert absorbed.to_state() == charged.to_state()
    assert absorbed.charges == charged.charges == len(taken)


def test_absorbing_another_event_under_a_known_key_raises() -> None:
    one, other = Ledger(), Ledger()
    one.charge("step:5", STEP)
    for number in range(10):
        other.charge(f"step:{number}", gaussian(3.0))
    with pytest.raises(ValueError, match="different event"):
        one.absorb(other.to_state())


def test_a_charge_is_cheap() -> None:
    ledger = Ledger()
    start = time.process_time()
    for i in range(20000):
        ledger.charge(f"step:{i}", STEP)
    assert (time.process_time() - start) / 20000 < 20e-6
