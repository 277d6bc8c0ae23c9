"""Budgets refuse what is no budget, in one line."""

import math
from typing import Any

import pytest

from sordino.privacy import Budget


def test_a_budget_keeps_its_numbers() -> None:
    budget = Budget(epsilon=3, delta=1e-5)
    assert (budget.epsilon, budget.delta) == (3.0, 1e-5)


def test_there_are_no_defaults() -> None:
    with pytest.raises(TypeError):
        Budget(epsilon=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("epsilon", [0, -1, math.inf, math.nan])
def test_bad_epsilon(epsilon: float) -> None:
    with pytest.raises(ValueError, match="epsilon must be a finite number above 0") as error:
        Budget(epsilon, 1e-5)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("delta", [0, 1, -1e-5, 2, math.nan])
def test_bad_delta(delta: float) -> None:
    with pytest.raises(ValueError, match="delta must lie strictly between 0 and 1") as error:
        Budget(3, delta)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("wrong", "said"), [("3", "'3'"), ([3], "a list"), (None, "None"), (True, "True")])
def test_what_is_no_number_is_said_in_a_word(wrong: Any, said: str) -> None:
    with pytest.raises(ValueError, match=f"epsilon must be a finite number above 0, not {said}"):
        Budget(wrong, 1e-5)
    with pytest.raises(ValueError, match=f"delta must lie strictly between 0 and 1, not {said}"):
        Budget(3, wrong)
