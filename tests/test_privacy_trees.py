"""Trees: golden values, brute force over all patterns, and what one tree or many cost."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent, NoOpDpEvent, SingleEpochTreeAggregationDpEvent
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.privacy import price, trees
from sordino.privacy.events import compose, gaussian, leaves, repeat
from sordino.privacy.renyi import epsilon_from_rdp, rdp_of
from sordino.privacy.trees import (
    as_printed_sensitivity,
    as_printed_trees,
    fixed_order_sensitivity,
    fixed_order_trees,
    leaves_of,
    pattern_sensitivity,
    tree_plan,
    tree_release,
    trees_plan,
    worst_case_sensitivity,
    worst_case_trees,
)

# Golden values ------------------------------------------------------------------------------------------


def test_every_leaf_and_one_leaf() -> None:
    """C8."""
    assert [pattern_sensitivity(range(n), n) for n in (8, 3, 11, 19)] == [120, 7, 127, 503]
    assert [fixed_order_sensitivity(n, 1) for n in (8, 3, 11, 19)] == [120, 7, 127, 503]
    assert [worst_case_sensitivity(n, min_separation=0) for n in (8, 3, 11, 19)] == [120, 7, 127, 503]
    assert pattern_sensitivity([5], 8) == 4
    assert pattern_sensitivity([0], 1600) == 11


def test_worst_cases_of_tensorflow_privacy() -> None:
    """C10."""
    assert worst_case_sensitivity(8, min_separation=7, max_participation=1) == 4
    assert worst_case_sensitivity(9, min_separation=3, max_participation=3) == 11
    assert worst_case_sensitivity(24, min_separation=2, max_participation=8) == 88


def test_as_printed() -> None:
    """C11: what the first paper claims for MNIST, batches of 250, 20 epochs."""
    event = trees_plan(4, as_printed_trees(20 * 240, 240))
    assert price(event, 1e-5, "rdp").epsilon == pytest.approx(26.2059209503, rel=1e-11)
    assert price(event, 1e-5, "rdp", "basic").epsilon == pytest.approx(27.4691, abs=5e-5)
    assert as_printed_trees(20 * 240, 240, restart_every=1) == [(8, 19), (8, 1)]  # 160 in all
    assert as_printed_sensitivity(1600, 1600) == 11


def test_what_that_run_really_costs() -> None:
    """C12."""
    assert fixed_order_trees(20 * 240, 240) == [(798, 1)]
    assert price(tree_plan(4, 20 * 240, 240), 1e-5, "rdp").epsilon == pytest.approx(57.20, abs=5e-3)


def test_restarts_and_completion() -> None:
    """C13, the case the authors' README states: digit for digit with their orders, 3e-5 apart with ours."""
    event = tree_plan(46.3, 100 * 100, 100, restart_every=20, completion=True)
    assert fixed_order_trees(100 * 100, 100, 20, True) == [(926, 4), (425, 1)]
    theirs = tuple(float(order) for order in 1 + np.arange(1, 1990) / 10)
    rdp = rdp_of(event, theirs)
    assert epsilon_from_rdp(rdp, 1e-5, "improved", theirs) == pytest.approx(6.922239480615, abs=1e-11)
    assert price(event, 1e-5, "rdp").epsilon == pytest.approx(6.922239480615, abs=3e-5)
    assert price(event, 1e-5).epsilon < 6.45  # exactly


def test_nodes_per_leaf() -> None:
    """C15."""
    sizes = (1, 2, 3, 4, 7, 8, 1600, 2048)
    nodes = [1, 2, 2, 3, 3, 4, 11, 12]
    assert [fixed_order_sensitivity(n, n) for n in sizes] == nodes
    assert [fixed_order_sensitivity(n, n + 5) for n in sizes] == nodes
    assert [worst_case_sensitivity(n, min_separation=n) for n in sizes] == nodes
    assert [as_printed_sensitivity(n, n) for n in sizes] == [0, 1, 2, 2, 3, 3, 11, 11]


def test_a_published_reference_with_unknown_order() -> None:
    """C16: Gboard."""
    event = tree_release(7, worst_case_sensitivity(2000, min_separation=313, max_participation=6))
    guarantee = price(event, 1e-10, "rdp")
    assert guarantee.zcdp_rho == pytest.approx(0.81, abs=5e-3)
    assert guarantee.epsilon == pytest.approx(8.90, abs=5e-3)


@pytest.mark.parametrize("steps", [1, 2, 3, 8, 1000, 1600, 2048])
@pytest.mark.parametrize("noise_multiplier", [0.5, 2.33])
def test_one_participation_costs_what_dp_accounting_says(steps: int, noise_multiplier: float) -> None:
    ours = price(tree_plan(noise_multiplier, steps, steps), 1e-6, "rdp").epsilon
    theirs = price(SingleEpochTreeAggregationDpEvent(noise_multiplier, steps), 1e-6, "rdp").epsilon
    assert ours == pytest.approx(theirs, rel=1e-12)


# Against brute force ------------------------------------------------------------------------------------


@pytest.mark.parametrize("completed", [False, True])
@pytest.mark.parametrize("steps", range(1, 13))
def test_worst_case_is_the_maximum_over_all_patterns(steps: int, completed: bool) -> None:
    best: dict[tuple[int, int], int] = {}  # by (steps between, participations)
    for bits in range(1, 1 << steps):
        places = [step for step in range(steps) if bits >> step & 1]
        between = min((b - a - 1 for a, b in pairwise(places)), default=steps)
        value = pattern_sensitivity(places, leaves_of(steps, completed))
        key = (between, len(places))
        best[key] = max(best.get(key, 0), value)
    for separation in range(steps + 1):
        for most in [None, *range(1, steps + 2)]:
            allowed = [v for (gap, n), v in best.items() if gap >= separation and (most is None or n <= most)]
            found = worst_case_sensitivity(
                steps, min_separation=separation, max_participation=most, completed=completed
            )
            assert found == max(allowed), (separation, most)


@given(st.integers(1, 300), st.integers(1, 310), st.booleans())
@settings(deadline=None, max_examples=60)
def test_fixed_order_is_the_maximum_over_batches(steps: int, per_epoch: int, completed: bool) -> None:
    size = leaves_of(steps, completed)
    worst = max(pattern_sensitivity(range(j, steps, per_epoch), size) for j in range(min(per_epoch, steps)))
    assert fixed_order_sensitivity(steps, per_epoch, completed=completed) == worst


# Properties ---------------------------------------------------------------------------------------------


@given(st.integers(1, 2000), st.integers(1, 200), st.booleans())
@settings(deadline=None, max_examples=60)
def test_nobody_knows_less_than_a_fixed_order(steps: int, per_epoch: int, completed: bool) -> None:
    fixed = fixed_order_sensitivity(steps, per_epoch, completed=completed)
    unknown = worst_case_sensitivity(steps, min_separation=per_epoch - 1, completed=completed)
    epochs = math.ceil(steps / per_epoch)
    crude = epochs**2 * leaves_of(steps, completed).bit_length()
    assert unknown >= fixed
    assert crude >= unknown


@given(st.integers(1, 2000), st.integers(1, 200), st.booleans())
@settings(deadline=None, max_examples=60)
def test_more_steps_never_cost_less(steps: int, per_epoch: int, completed: bool) -> None:
    fixed = [fixed_order_sensitivity(n, per_epoch, completed=completed) for n in (steps, steps + 1)]
    unknown = [
        worst_case_sensitivity(n, min_separation=per_epoch, max_participation=5, completed=completed)
        for n in (steps, steps + 1)
    ]
    assert fixed[0] <= fixed[1]
    assert unknown[0] <= unknown[1]


@given(st.integers(1, 2000), st.integers(1, 200), st.integers(1, 20))
@settings(deadline=None, max_examples=60)
def test_completion_never_costs_less_and_limits_never_more(steps: int, per_epoch: int, most: int) -> None:
    assert fixed_order_sensitivity(steps, per_epoch) <= fixed_order_sensitivity(
        steps, per_epoch, completed=True
    )

    def unknown(separation: int, most: int | None, completed: bool = False) -> int:
        return worst_case_sensitivity(
            steps, min_separation=separation, max_participation=most, completed=completed
        )

    assert unknown(per_epoch, most) <= unknown(per_epoch, most, completed=True)
    assert unknown(per_epoch, most) <= unknown(per_epoch - 1, most)
    assert unknown(per_epoch, most) <= unknown(per_epoch, most + 1) <= unknown(per_epoch, None)


def test_large_trees_are_quick() -> None:
    assert fixed_order_sensitivity(10**7, 10**7) == 24
    assert fixed_order_sensitivity(10**7, 10**4) > 10**6
    assert worst_case_sensitivity(2000, min_separation=9, max_participation=200) == 28689
    assert worst_case_sensitivity(100_000, min_separation=999, max_participation=50) == 6052


# Events -------------------------------------------------------------------------------------------------


def test_a_tree_is_one_gaussian_release() -> None:
    assert tree_release(8, 4) == GaussianDpEvent(4.0)
    assert tree_release(0, 4) == NonPrivateDpEvent()
    assert tree_release(8, 0) == NoOpDpEvent()
    for z, square in ((-1, 4), (-1, 0), (math.inf, 4), (1, -1), (1, math.nan)):
        with pytest.raises(ValueError, match="must be a finite number >= 0"):
            tree_release(z, square)


def test_the_trees_of_a_run() -> None:
    one = fixed_order_sensitivity(100, 100)
    assert tree_plan(5, 300, 100, restart_every=1) == repeat(tree_release(5, one), 3)  # one event for equals
    assert tree_plan(5, 300, 100, restart_every=3) == tree_plan(5, 300, 100)
    uneven = tree_plan(5, 250, 100, restart_every=1)  # the last tree holds what is left
    assert uneven == compose([repeat(gaussian(5 / math.sqrt(7)), 2), gaussian(5 / math.sqrt(6))])
    completed = tree_plan(5, 300, 100, restart_every=1, completion=True)
    assert leaves(completed) == [(gaussian(5 / math.sqrt(8)), 2), (gaussian(5 / math.sqrt(7)), 1)]
    assert worst_case_trees(300, 100, 1, min_separation=99) == [(7, 2), (7, 1)]
    assert worst_case_trees(300, 100, 1, True, min_separation=99) == [(8, 2), (7, 1)]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: fixed_order_sensitivity(0, 5), "steps must be a whole number of at least 1"),
        (lambda: fixed_order_sensitivity(5, 0), "per_epoch must be"),
        (lambda: fixed_order_sensitivity(2.5, 1), "steps must be a whole number"),  # type: ignore[arg-type]
        (lambda: fixed_order_sensitivity(10**9, 5), "restart the tree more often"),
        (lambda: worst_case_sensitivity(5, min_separation=-1), "min_separation must be"),
        (lambda: worst_case_sensitivity(5, min_separation=1, max_participation=0), "max_participation must"),
        (lambda: pattern_sensitivity([1, 1], 5), "distinct steps from 0 to 4"),
        (lambda: pattern_sensitivity([5], 5), "distinct steps from 0 to 4"),
        (lambda: tree_plan(1, 5, 5, completion=True), "set restart_every"),
        (lambda: tree_plan(1, 5, 5, restart_every=0), "restart_every must be"),
    ],
)
def test_bad_input_says_what_to_do(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("most", "advice"), [(500, "leave out max_participation"), (None, "min_separation 63")]
)
def test_what_takes_too_long_is_refused(
    most: int | None, advice: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "_MOST_WORK", 10_000)
    with pytest.raises(ValueError, match=advice):
        worst_case_sensitivity(99_999, min_separation=100, max_participation=most)
