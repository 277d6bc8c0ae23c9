"""Calibration inverts pricing and never exceeds the budget."""

from collections.abc import Callable

import dp_accounting as dp
import pytest

from sordino.privacy import Budget, compose, gaussian, noise_for, poisson_gaussian, price, repeat, steps_for


def plan(rate: float, steps: int) -> Callable[[float], dp.DpEvent]:
    return lambda noise_multiplier: repeat(poisson_gaussian(noise_multiplier, rate), steps)


@pytest.mark.parametrize(
    ("epsilon", "rate", "steps", "accountant", "noise"),
    [
        (7.3291112, 0.04, 2250, "rdp", 1.5),
        (2.4612382, 0.01, 120, "pld", 0.7),
        (1.53611, 1 / 300, 30000, "moments", 2.0),
        (0.44654, 1 / 300, 30000, "moments", 8.0),
    ],
)
def test_golden_noise(epsilon: float, rate: float, steps: int, accountant: str, noise: float) -> None:
    found = noise_for(Budget(epsilon, 1e-5), plan(rate, steps), accountant)
    assert found == pytest.approx(noise, abs=1e-3)
    assert price(plan(rate, steps)(found), 1e-5, accountant).epsilon <= epsilon


RUNS = [1, 5, 7, 9, 25, 35, 45, 49, 81]
EPSILON_3 = [0.837, 1.206, 1.357, 1.493, 2.299, 2.681, 3.015, 3.138, 3.991]
EPSILON_9 = [0.580, 0.723, 0.771, 0.813, 1.077, 1.207, 1.323, 1.366, 1.670]


@pytest.mark.parametrize(
    ("epsilon", "runs", "noise"),
    [(3, *pair) for pair in zip(RUNS[::2], EPSILON_3[::2], strict=True)]
    + [(9, *pair) for pair in zip(RUNS[1::2], EPSILON_9[1::2], strict=True)],
)
def test_golden_noise_of_grids_composed_honestly(epsilon: float, runs: int, noise: float) -> None:
    """ALGORITHMS.md D7: the noise of so many runs of 1170 steps, as one composition."""
    found = noise_for(Budget(epsilon, 1e-5), plan(512 / 60000, 1170 * runs), "rdp")
    assert found == pytest.approx(noise, abs=6e-4)  # three digits, and the search's 1e-4 upwards


@pytest.mark.parametrize(("epsilon", "rate", "steps"), [(1.0, 0.02, 300), (2.0, 1.0, 50)])
def test_auto_fits_the_budget_tightly_and_beats_rdp(epsilon: float, rate: float, steps: int) -> None:
    budget = Budget(epsilon, 1e-5)
    found = noise_for(budget, plan(rate, steps))
    assert price(plan(rate, steps)(found), 1e-5).epsilon <= epsilon
    assert price(plan(rate, steps)(found * (1 - 5e-4)), 1e-5).epsilon > epsilon
    assert found < noise_for(budget, plan(rate, steps), "rdp")


def test_large_budgets_fall_back_to_rdp() -> None:
    found = noise_for(Budget(200, 1e-5), plan(0.01, 1000))
    assert price(plan(0.01, 1000)(found), 1e-5).epsilon <= 200


def test_an_unreachable_budget_says_what_to_do() -> None:
    spent = repeat(gaussian(1.0), 10)
    with pytest.raises(ValueError, match=r"no amount of noise .* larger budget") as error:
        noise_for(Budget(0.5, 1e-5), lambda z: compose([spent, gaussian(z)]), "rdp")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("epsilon", "noise", "rate", "accountant", "steps"),
    [
        (7.3292, 1.5, 0.04, "rdp", 2250),
        (2.46124, 0.7, 0.01, "pld", 120),
        (1.5362, 2.0, 1 / 300, "moments", 30003),
        (3.0, 2.0, 1.0, "auto", 2),
        (2.0, 1.5, 0.02, "auto", None),
    ],
)
def test_steps_are_the_most_that_fit(
    epsilon: float, noise: float, rate: float, accountant: str, steps: int
) -> None:
    step = poisson_gaussian(noise, rate)
    found = steps_for(Budget(epsilon, 1e-5), step, accountant)
    assert steps is None or found == steps
    assert price(repeat(step, found), 1e-5, accountant).epsilon <= epsilon
    assert price(repeat(step, found + 1), 1e-5, accountant).epsilon > epsilon


def test_no_step_fits() -> None:
    for step in (gaussian(0.5), gaussian(0)):
        with pytest.raises(ValueError, match="not even one step fits"):
            steps_for(Budget(0.1, 1e-5), step)


def test_no_limit_is_an_error_not_a_number() -> None:
    with pytest.raises(ValueError, match="sets no limit"):
        steps_for(Budget(1.0, 1e-5), repeat(gaussian(1), 0))


def test_bad_names() -> None:
    with pytest.raises(ValueError, match="unknown accountant"):
        noise_for(Budget(1, 1e-5), gaussian, "best")
    with pytest.raises(ValueError, match="unknown conversion"):
        steps_for(Budget(1, 1e-5), gaussian(1), "rdp", "best")
