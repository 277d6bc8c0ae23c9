"""Event builders, their JSON form, and the unrolling every accountant relies on."""

import json
import math
from typing import Any

import dp_accounting as dp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino.privacy import compose, event_from_json, event_to_json, gaussian, poisson_gaussian, repeat
from sordino.privacy.events import leaves, sampled_without_replacement

positive = st.floats(1e-3, 1e3)
rates = st.floats(1e-6, 1.0)
singles = st.one_of(
    st.builds(gaussian, positive),
    st.builds(poisson_gaussian, positive, rates),
    st.builds(sampled_without_replacement, positive, st.integers(1, 10), st.integers(10, 10**9)),
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


def test_builders() -> None:
    assert poisson_gaussian(1.5, 0.04) == dp.PoissonSampledDpEvent(0.04, dp.GaussianDpEvent(1.5))
    assert poisson_gaussian(1.5, 1.0) == dp.GaussianDpEvent(1.5)
    assert poisson_gaussian(0, 0.04) == gaussian(0) == dp.NonPrivateDpEvent()
    assert repeat(gaussian(1), 0) == compose([]) == dp.NoOpDpEvent()
    assert repeat(gaussian(1), 3) == dp.SelfComposedDpEvent(dp.GaussianDpEvent(1.0), 3)


@pytest.mark.parametrize("rate", [0, -0.1, 1.1, math.nan])
def test_bad_rate(rate: float) -> None:
    with pytest.raises(ValueError, match="sampling_rate"):
        poisson_gaussian(1.0, rate)


@pytest.mark.parametrize("noise", [-1, math.inf, math.nan])
def test_bad_noise(noise: float) -> None:
    with pytest.raises(ValueError, match="noise_multiplier"):
        gaussian(noise)


@given(events)
def test_json_round_trip(event: dp.DpEvent) -> None:
    text = json.dumps(event_to_json(event), allow_nan=False)
    assert event_from_json(json.loads(text)) == event


def test_json_of_other_events_is_refused() -> None:
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
        *(
            {
                "type": "sampled_without_replacement",
                "units": units,
                "count": count,
                "event": {"type": "nothing"},
            }
            for units, count in [(10, 0), (10, 11), (10, 1.0), ("10", 1), (True, True), (10, None), (-1, -1)]
        ),
        {"type": "sampled_without_replacement", "units": 10, "count": 2},
        {"type": "sampled_without_replacement", "count": 2, "event": {"type": "nothing"}},
        {"type": "sampled_without_replacement", "units": 10, "count": 2, "event": {"type": "gaussian"}},
        {"type": "sampled_without_replacement", "units": 10, "count": 2, "event": None},
        {"type": "repeated", "count": 0, "event": {"type": "nothing"}},
        {"type": "repeated", "count": 1.5, "event": {"type": "nothing"}},
        {"type": "composed", "events": None},
        [],
    ],
)
def test_malformed_json_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match=r"event|drawn without replacement"):
        event_from_json(data)


def test_leaves_group_equal_mechanisms_and_multiply_counts() -> None:
    a, b = poisson_gaussian(1.0, 0.1), gaussian(2.0)
    nested = compose([repeat(compose([a, repeat(b, 2)]), 10), dp.NoOpDpEvent(), a])
    assert leaves(nested) == [(a, 11), (b, 20)]


def test_a_sample_without_replacement_records_half_the_multiplier() -> (
    None
):  # substituting a unit moves the sum by 2C
    event = sampled_without_replacement(3.0, 10, 100)
    assert event == dp.SampledWithoutReplacementDpEvent(100, 10, dp.GaussianDpEvent(1.5))
    assert sampled_without_replacement(3.0, 100, 100).event == dp.GaussianDpEvent(1.5)
    assert sampled_without_replacement(0, 10, 100) == dp.NonPrivateDpEvent()


@pytest.mark.parametrize(
    ("noise", "count", "units"), [(1.0, 0, 10), (1.0, 11, 10), (-1.0, 1, 10), (math.nan, 1, 10)]
)
def test_bad_samples_without_replacement(noise: float, count: int, units: int) -> None:
    with pytest.raises(ValueError, match=r"without replacement|noise_multiplier"):
        sampled_without_replacement(noise, count, units)
