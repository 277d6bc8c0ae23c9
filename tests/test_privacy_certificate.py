"""A certificate says all it must, survives JSON, and can be recomputed; epsilon is never shown too small."""

import json
import math
from typing import Any

import dp_accounting as dp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino.privacy import (
    certificate,
    compose,
    gaussian,
    poisson_gaussian,
    price,
    recompute,
    repeat,
    show_epsilon,
)
from sordino.privacy.events import sampled_without_replacement


def make(event: dp.DpEvent, accountant: str = "auto", **changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "guarantee": price(event, 1e-5, accountant),
        "event": event,
        "unit": "example",
        "assumptions": ["Batches were Poisson sampled."],
        "seeded": False,
        "created": "2026-01-01T00:00:00Z",
    }
    return certificate(**(fields | changes))


@pytest.mark.parametrize("accountant", ["auto", "rdp", "pld", "moments"])
def test_the_guarantee_can_be_recomputed_from_the_events(accountant: str) -> None:
    event = compose([repeat(poisson_gaussian(2.0, 0.05), 100), gaussian(20.0)])
    made = make(event, accountant)
    again = recompute(json.loads(json.dumps(made, allow_nan=False)))
    assert again == price(event, 1e-5, accountant)
    assert made["guarantee"]["epsilon"] == again.epsilon


def test_recompute_does_not_believe_the_stated_epsilon() -> None:
    made = make(repeat(gaussian(5.0), 4))
    honest = made["guarantee"]["epsilon"]
    made["guarantee"]["epsilon"] = 0.01
    assert recompute(made).epsilon == honest


def test_it_says_what_is_assumed() -> None:
    made = make(gaussian(5.0), unit="user", seeded=True)
    text = " ".join(made["assumptions"])
    assert "the number of users" in text
    assert "is public" in text
    assert "Poisson" in text
    assert "seed" in text
    assert made["randomness"]["seeded"] is True
    assert made["guarantee"]["relation"] == "zero-out (REPLACE_SPECIAL)"
    assert made["guarantee"]["unit"] == "user"
    assert made["guarantee"]["gdp_mu"] == pytest.approx(0.2)


@pytest.mark.parametrize("accountant", ["auto", "rdp", "moments"])
def test_samples_without_replacement_are_about_replacing_a_unit(accountant: str) -> None:
    event = repeat(sampled_without_replacement(4.0, 10, 1000), 50)
    made = make(event, accountant, unit="user")
    assert "differ by replacing one user" in made["assumptions"][0]
    assert "zeroing" not in " ".join(made["assumptions"])
    assert made["guarantee"]["relation"] == "substitution (REPLACE_ONE)"
    again = recompute(json.loads(json.dumps(made, allow_nan=False)))
    assert again == price(event, 1e-5, accountant)
    assert made["guarantee"]["epsilon"] == again.epsilon
    assert (again.zcdp_rho, again.gdp_mu) == (None, None)
    assert "zeroing out the contribution of one user" in make(gaussian(5.0), unit="user")["assumptions"][0]


def test_a_certificate_that_mixes_relations_is_refused() -> None:
    made = make(gaussian(5.0))
    made["events"] = {
        "type": "composed",
        "events": [made["events"], make(sampled_without_replacement(4.0, 10, 1000))["events"]],
    }
    with pytest.raises(ValueError, match="cannot be added up"):
        recompute(made)


def test_no_noise_is_the_string_inf() -> None:
    made = make(gaussian(0))
    assert made["guarantee"]["epsilon"] == "inf"
    assert recompute(json.loads(json.dumps(made, allow_nan=False))).epsilon == math.inf


def test_bad_unit() -> None:
    with pytest.raises(ValueError, match="unit must be one of"):
        make(gaussian(1.0), unit="row")


@pytest.mark.parametrize(
    "change",
    [
        {"format": "x"},
        {"events": None},
        {"guarantee": {}},
        {"guarantee": {"delta": "1e-5"}},
        {"accounting": {"accountant": "x", "conversion": "improved"}},
    ],
)
def test_malformed_certificates_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        recompute(make(gaussian(1.0)) | change)


@given(st.floats(0, 1e300), st.integers(0, 8))
def test_epsilon_is_never_rounded_down(epsilon: float, digits: int) -> None:
    shown = show_epsilon(epsilon, digits)
    assert float(shown) >= epsilon
    assert float(shown) <= epsilon + 10.0**-digits * (1 + 1e-9) + epsilon * 1e-15


def test_shown_epsilons() -> None:
    assert show_epsilon(7.32911) == "7.3292"
    assert show_epsilon(0.1) == "0.1000"
    assert show_epsilon(1e-9) == "0.0001"
    assert show_epsilon(0.0) == "0.0000"
    assert show_epsilon(math.inf) == "inf (not private)"
    with pytest.raises(ValueError, match="epsilon"):
        show_epsilon(math.nan)
