"""Event builders, their JSON form, and the unrolling every accountant relies on."""

import json
import math

import dp_accounting as dp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino.privacy import compose, event_from_json, event_to_json, gaussian, poisson_gaussian, repeat
from sordino.privacy.events import leaves

positive = st.floats(1e-3, 1e3)
rates = st.floats(1e-6, 1.0)
singles = st.one_of(
    st.builds(gaussian, positive),
    st.builds(poisson_gaussian, positive, rates),
    st.just(dp.NoOpDpEvent()),
    st.just(dp.NonPrivateDpEvent()),
)
events = st.recursive(
    singles,
    lambda inner: st.one_of(
        st.builds(repeat, inner, st.integers(0, 5000)), st.builds(compose, st.lists(inner, max_size=4))
    ),
    max_leaves=8,
)


def test_builders():
    assert poisson_gaussian(1.5, 0.04) == dp.PoissonSampledDpEvent(0.04, dp.GaussianDpEvent(1.5))
    assert poisson_gaussian(1.5, 1.0) == dp.GaussianDpEvent(1.5)
    assert poisson_gaussian(0, 0.04) == gaussian(0) == dp.NonPrivateDpEvent()
    assert repeat(gaussian(1), 0) == compose([]) == dp.NoOpDpEvent()
    assert repeat(gaussian(1), 3) == dp.SelfComposedDpEvent(dp.GaussianDpEvent(1.0), 3)


@pytest.mark.parametrize("rate", [0, -0.1, 1.1, math.nan])
def test_bad_rate(rate):
    with pytest.raises(ValueError, match="sampling_rate"):
        poisson_gaussian(1.0, rate)


@pytest.mark.parametrize("noise", [-1, math.inf, math.nan])
def test_bad_noise(noise):
    with pytest.raises(ValueError, match="noise_multiplier"):
        gaussian(noise)


@given(events)
def test_json_round_trip(event):
    text = json.dumps(event_to_json(event), allow_nan=False)
    assert event_from_json(json.loads(text)) == event


def test_json_of_other_events_is_refused():
    with pytest.raises(ValueError, match="LaplaceDpEvent"):
        event_to_json(repeat(dp.LaplaceDpEvent(1.0), 2))


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"type": "laplace"},
        {"type": "gaussian"},
        {"type": "gaussian", "noise_multiplier": 0},
        {"type": "gaussian", "noise_multiplier": "1"},
        {"type": "gaussian", "noise_multiplier": True},
        {"type": "poisson_sampled", "sampling_rate": 2, "event": {"type": "nothing"}},
        {"type": "repeated", "count": 0, "event": {"type": "nothing"}},
        {"type": "repeated", "count": 1.5, "event": {"type": "nothing"}},
        {"type": "composed", "events": None},
        [],
    ],
)
def test_malformed_json_is_refused(data):
    with pytest.raises(ValueError, match="event"):
        event_from_json(data)


def test_leaves_group_equal_mechanisms_and_multiply_counts():
    a, b = poisson_gaussian(1.0, 0.1), gaussian(2.0)
    nested = compose([repeat(compose([a, repeat(b, 2)]), 10), dp.NoOpDpEvent(), a])
    assert leaves(nested) == [(a, 11), (b, 20)]
