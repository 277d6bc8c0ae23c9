"""Noisy counts: the noise has the scale that is charged, and OpenDP is asked what it promises."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from sordino.privacy import counts as module
from sordino.privacy.counts import noisy_counts, noisy_values, standard_error, threshold_for


def judged(noise: "np.ndarray[Any, Any]", scale: float) -> float:
    """How likely noise of this scale is to be so far from what is expected, by its mean absolute value."""
    step = math.exp(-1 / scale)
    expected = 2 * step / (1 - step**2)
    spread = math.sqrt(2 * step / (1 - step) ** 2 - expected**2)
    z = (np.abs(noise).mean() - expected) / (spread / math.sqrt(len(noise)))
    return float(2 * stats.norm.sf(abs(z)))


@pytest.mark.parametrize(("sensitivity", "epsilon"), [(1, 0.5), (3, 1.0), (1, 2.0)])
def test_the_noise_has_the_scale_that_is_charged(sensitivity: int, epsilon: float) -> None:
    noise = np.array(noisy_counts([7] * 20_000, sensitivity, epsilon)) - 7
    scale = sensitivity / epsilon
    assert judged(noise, scale) > 1e-6
    assert judged(noise, scale * 2 / 3) < 1e-9
    assert judged(noise, scale * 3 / 2) < 1e-9
    assert abs(noise.mean()) < 6 * standard_error(sensitivity, epsilon) / math.sqrt(len(noise))
    assert noise.std() == pytest.approx(standard_error(sensitivity, epsilon), rel=0.1)


def test_values_are_hidden_below_a_threshold_that_holds_for_the_delta_that_is_charged() -> None:
    epsilon, delta = 0.5, 1e-6
    threshold = threshold_for(1, epsilon, delta)
    # A value of one row alone is shown if its noise lifts it from 1 to the threshold.
    step = math.exp(-epsilon)
    shown = step ** (threshold - 1) / (1 + step)
    assert shown <= delta < shown / step * (1 + 1e-9)
    assert threshold_for(3, epsilon, delta) > threshold
    found = noisy_values({"many": 100_000, "b": 90_000, "few": 1}, 1, epsilon, delta)
    assert list(found) == ["b", "many"]
    assert abs(found["many"] - 100_000) < 200


@pytest.mark.parametrize("sensitivity", [1, 3])
def test_a_value_of_one_unit_alone_is_shown_no_more_often_than_delta_says(sensitivity: int) -> None:
    """Not what OpenDP says of itself: its map is off by one, which this finds (0.05 where it says 0.03)."""
    delta, tries = 0.04, 40_000
    own = {str(place): sensitivity for place in range(tries)}
    shown = len(noisy_values(own, sensitivity, 0.5 * sensitivity, delta)) / tries
    assert sensitivity * shown <= delta + 4 * sensitivity * math.sqrt(delta / tries)
    assert shown > 0  # or the test would be of nothing


def test_counts_of_values_have_the_noise_that_is_charged_too() -> None:
    known = {f"{place:05d}": 1000 for place in range(5_000)}
    found = noisy_values(known, 1, 0.5, 1e-6)
    noise = np.array(list(found.values())) - 1000
    assert len(noise) == 5_000
    assert judged(noise, 2.0) > 1e-6
    assert judged(noise, 2.0 * 2 / 3) < 1e-9
    assert judged(noise, 3.0) < 1e-9


def test_nothing_is_released_where_opendp_promises_less_than_is_charged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_scale", lambda sensitivity, epsilon: 0.9 * sensitivity / epsilon)
    with pytest.raises(ValueError, match="nothing was released"):
        noisy_counts([1, 2], 1, 0.5)
    with pytest.raises(ValueError, match="nothing was released"):
        noisy_values({"a": 1}, 1, 0.5, 1e-6)


def test_a_missing_package_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "opendp.prelude", None)
    module._opendp.cache_clear()
    try:
        with pytest.raises(ValueError, match=r"sordino\[bounds\]"):
            noisy_counts([1], 1, 0.5)
    finally:
        module._opendp.cache_clear()


def test_a_value_with_a_zero_byte_is_no_other_value_and_takes_the_place_of_none() -> None:
    common = {"ab": 500, "ab\0c": 400, "\0": 300, "é\0": 200}
    for counts in (common, dict(reversed(common.items())), {**common, "ab\0z": 1}, {"ab\0z": 1, **common}):
        found = noisy_values(counts, 1, 1.0, 1e-6)
        assert list(found) == sorted(common)
        assert all(abs(found[key] - common[key]) < 60 for key in common)
