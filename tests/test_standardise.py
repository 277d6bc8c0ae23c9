"""Moments of inputs under the budget: each release against a plain loop, its noise, its bound and its price."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor
from torch.utils.data import Dataset

from sordino.data import Examples, as_examples
from sordino.data.standardised import Moments
from sordino.gate import Members
from sordino.noise import Streams
from sordino.noise.grid import ROUNDING
from sordino.privacy import Budget, compose, gaussian, price
from sordino.standardise import plan as plans
from sordino.standardise.moments import (
    BINS,
    CELLS,
    FEWEST,
    FLOOR,
    FLOOR_OF_SPARSE,
    HIGHEST,
    LOWEST,
    are_sparse,
    centres,
    counted,
    deviations,
    floors,
    looked_at_twice,
    scales,
    spreads,
)
from sordino.standardise.plan import (
    DISTANCES,
    LEAST_SHARE,
    MAGNITUDES,
    MOST_SHARE,
    PARTS,
    PLACES,
    SPREADS,
    TOO_NOISY,
    MomentsPlan,
    fits,
    noise_of_moments,
    planned_moments,
)
from sordino.standardise.standardiser import Look, Standardiser, cut_off, located, magnitudes, sums_within

RELEASES = (MAGNITUDES, PLACES, DISTANCES, SPREADS)
NAN, INF = math.nan, math.inf


def nothing(*_: Any) -> None:
    return None


def plan_for(
    shape: tuple[int, ...], units: int, multiplier: float = 5.0, features: int | None = None
) -> MomentsPlan:
    features = shape[0] if features is None else features
    return MomentsPlan(shape, features, math.prod(shape) // features, units, multiplier, 0.1)


def standardiser(rows: Any, groups: Any = None, seed: int = 1, **how: Any) -> Standardiser:
    examples = rows if isinstance(rows, Examples) else as_examples((rows, torch.zeros(len(rows))))
    members = Members(len(examples), groups)
    shape = tuple(examples.template(1)[0].shape[1:])
    return Standardiser(plan_for(shape, members.count, **how), examples, members, Streams.from_seed(seed))


def looks(features: int) -> dict[int, Look]:
    """The four, around numbers that are not round."""
    centre = torch.linspace(-1.3, 0.7, features).double()
    scale = torch.pow(2.0, torch.arange(features) % 5 - 2).double()
    return {
        MAGNITUDES: partial(magnitudes, torch.zeros(features).double()),
        PLACES: partial(located, scale),
        DISTANCES: partial(magnitudes, centre),
        SPREADS: partial(sums_within, centre, scale),
    }


# What is summed ---------------------------------------------------------------------------------------------


def plain_counts(
    rows: list[list[list[float]]], bins: int, bin_of: Callable[[int, float], int], weights: list[float]
) -> list[float]:
    found = [0.0] * (len(rows[0]) * bins)
    for row, weight in zip(rows, weights, strict=True):
        for feature, values in enumerate(row):
            for value in values:
                found[feature * bins + bin_of(feature, value)] += weight / len(values)
    return found


def plain_magnitude(centre: list[float], feature: int, value: float) -> int:
    size = abs(value - centre[feature])
    return 0 if size < 2.0**LOWEST else min(math.floor(math.log2(size)), HIGHEST) - LOWEST + 1


def plain_place(scale: list[float], feature: int, value: float) -> int:
    """Cell k is from -scale + k w to -scale + (k + 1) w, w = 2 scale / CELLS; the first and the last have no end."""
    width = 2 * scale[feature] / CELLS
    edges = [-scale[feature] + k * width for k in range(1, CELLS)]
    return sum(value >= edge for edge in edges)


def plain_sums(
    rows: list[list[list[float]]], centre: list[float], scale: list[float], weights: list[float]
) -> list[float]:
    features, powers = len(centre), 2
    found = [0.0] * (powers * features + 1)
    for row, weight in zip(rows, weights, strict=True):
        found[-1] += weight
        for feature, values in enumerate(row):
            for value in values:
                y = max(-1.0, min(1.0, (value - centre[feature]) / scale[feature]))
                for power in range(powers):
                    found[power * features + feature] += weight * y ** (power + 1) / len(values)
    return found


@pytest.mark.parametrize("shape", [(3,), (2, 2, 4)])
@pytest.mark.parametrize("users", [False, True])
def test_each_release_is_what_a_plain_loop_adds_up(shape: tuple[int, ...], users: bool) -> None:
    generator = torch.Generator().manual_seed(4)
    rows = torch.randn(20, *shape, generator=generator) * torch.logspace(-6, 4, 20).view(
        -1, *[1] * len(shape)
    )
    rows[3] = 0
    rows[5, 0] = 1e-20
    rows[6, 0] = -3e30
    groups = torch.arange(20) // 3 if users else None
    found = standardiser(rows, groups)
    sizes = [1.0] * 20 if groups is None else [float((groups == g).sum()) for g in groups.tolist()]
    weights = [1 / size for size in sizes]
    listed = rows.double().reshape(20, shape[0], -1).tolist()
    centre = torch.linspace(-1.3, 0.7, shape[0]).double().tolist()
    scale = torch.pow(2.0, torch.arange(shape[0]) % 5 - 2).double().tolist()
    zero = [0.0] * shape[0]
    wanted = {
        MAGNITUDES: plain_counts(listed, BINS, partial(plain_magnitude, zero), weights),
        PLACES: plain_counts(listed, CELLS, partial(plain_place, scale), weights),
        DISTANCES: plain_counts(listed, BINS, partial(plain_magnitude, centre), weights),
        SPREADS: plain_sums(listed, centre, scale, weights),
    }
    for number, look in looks(shape[0]).items():
        total = found.total(number, look)
        lost = 20 * math.prod(shape) * found.grid(number)  # what is cut off
        assert torch.allclose(total, torch.tensor(wanted[number]).double(), rtol=0, atol=lost)


def test_one_scale_for_all_is_the_same_with_all_inputs_as_positions_of_one() -> None:
    rows = torch.randn(50, 6, generator=torch.Generator().manual_seed(1))
    as_one = standardiser(rows, features=1)
    as_image = standardiser(rows.view(50, 1, 2, 3))
    for number, look in looks(1).items():
        assert torch.equal(as_one.total(number, look), as_image.total(number, look))


# What a unit does to it, as computed ------------------------------------------------------------------------

WILD: dict[str, Callable[[int], Tensor]] = {
    "huge": lambda size: torch.full((size,), 3e38),
    "tiny": lambda size: torch.full((size,), 1e-30),
    "denormal": lambda size: torch.full((size,), 1e-44),
    "zero": torch.zeros,
    "cancelling": lambda size: torch.tensor([1e30, -1e30] * size)[:size],
    "at the edges": lambda size: torch.pow(2.0, torch.arange(size) % 9 - 4),
    "beside the edges": lambda size: torch.nextafter(torch.ones(size), torch.zeros(size)),
    "one": torch.ones,
    "negative": lambda size: -1e3 * torch.ones(size),
    "spread": lambda size: torch.logspace(-30, 30, size),
}
SHAPES = [((4,), None), ((3, 2, 2), None), ((3, 2, 2), 12), ((30,), 1), ((64,), None)]


@pytest.mark.parametrize("name", WILD)
@pytest.mark.parametrize(("shape", "features"), SHAPES)
def test_no_unit_moves_a_sum_by_more_than_is_stated(
    name: str, shape: tuple[int, ...], features: int | None
) -> None:
    """Between neighbouring data sets, in the arithmetic in which it is added; a user with thousands of rows too."""
    generator = torch.Generator().manual_seed(7)
    others = torch.randn(40, *shape, generator=generator)
    for copies in (1, 3, 3000):
        wild = WILD[name](math.prod(shape)).reshape(1, *shape).repeat(copies, *[1] * len(shape))
        groups = torch.cat([torch.arange(40), torch.full((copies,), 40)])
        without = torch.cat([others, torch.full_like(wild, NAN)])  # which adds nothing, at the same n
        with_it, zeroed = (
            standardiser(rows, groups, features=features) for rows in (torch.cat([others, wild]), without)
        )
        for number, look in looks(with_it.plan.features).items():
            moved = with_it.total(number, look) - zeroed.total(number, look)
            stated = with_it.plan.sensitivity(number) * (1 + ROUNDING)
            assert float(moved.norm()) <= stated


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), min_size=3, max_size=3),
        min_size=1,
        max_size=12,
    ),
    st.integers(0, 3),
)
def test_no_user_of_any_rows_moves_a_sum_by_more_than_is_stated(rows: list[list[float]], number: int) -> None:
    mine = torch.tensor(rows)
    found = standardiser(mine, torch.zeros(len(mine), dtype=torch.int64))
    total = found.total(number, looks(3)[number])
    assert bool(total.isfinite().all())
    assert float(total.norm()) <= found.plan.sensitivity(number) * (1 + ROUNDING)


def test_the_bound_is_reached() -> None:
    """So noise that is made for less than it would be too small."""
    ones = torch.ones(1, 16)
    found = standardiser(ones)
    one = torch.ones(16).double()
    assert float(found.total(MAGNITUDES, partial(magnitudes, 0 * one)).norm()) == found.plan.sensitivity(
        MAGNITUDES
    )
    assert float(found.total(PLACES, partial(located, one)).norm()) == found.plan.sensitivity(PLACES)
    both = found.total(SPREADS, partial(sums_within, 0 * one, one))
    assert float(both.norm()) == pytest.approx(found.plan.sensitivity(SPREADS), rel=1e-12)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_row_that_is_not_finite_adds_nothing(bad: float) -> None:
    rows = torch.randn(9, 4, generator=torch.Generator().manual_seed(0))
    broken = rows.clone()
    broken[4, 2] = bad
    rest = torch.cat([rows[:4], rows[5:]])
    for number, look in looks(4).items():
        one, other = standardiser(broken).total(number, look), standardiser(rest).total(number, look)
        assert torch.allclose(one, other, rtol=0, atol=9 * 4 * 2.0**-20)


class Broken(Dataset[tuple[Tensor, Tensor]]):
    """One row cannot be read, and all others are drawn anew whenever they are asked for."""

    def __init__(self, broken: bool) -> None:
        self._broken = broken

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        drawn = torch.randn(4)
        if index == 7 and self._broken:
            raise OSError("secret")
        return drawn + index, torch.tensor(0)


def test_a_row_that_cannot_be_read_adds_nothing_and_moves_no_other() -> None:
    whole, without = (standardiser(as_examples(Broken(broken))) for broken in (False, True))
    for number, look in looks(4).items():
        moved = whole.total(number, look) - without.total(number, look)
        assert 0 < float(moved.norm()) <= whole.plan.sensitivity(number)
        assert torch.equal(whole.total(number, look), whole.total(number, look)), "drawn the same again"


def test_what_is_added_does_not_depend_on_order_or_on_how_many_are_read_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = torch.randn(500, 3, generator=torch.Generator().manual_seed(3)) * 1e3
    shuffled = rows[torch.randperm(500, generator=torch.Generator().manual_seed(1))]
    groups = torch.arange(500) // 7
    totals = {number: standardiser(rows, groups).total(number, look) for number, look in looks(3).items()}
    alone = {number: standardiser(rows).total(number, look) for number, look in looks(3).items()}
    monkeypatch.setattr("sordino.standardise.standardiser._TOGETHER", 50)
    for number, look in looks(3).items():
        assert torch.equal(standardiser(rows, groups).total(number, look), totals[number])
        assert torch.equal(standardiser(shuffled).total(number, look), alone[number])


def test_what_is_cut_off_never_grows() -> None:
    values = torch.tensor([0.3, -0.3, 1.0, -1.0, 1e-9]).double()
    cut = cut_off(values, 2.0**-4)
    assert cut.tolist() == [0.25, -0.25, 1.0, -1.0, 0.0]


# Noise, and its price ---------------------------------------------------------------------------------------


def recorded(found: Standardiser) -> list[Tensor]:
    kept: list[Tensor] = []
    found.release(nothing, lambda _, noisy: kept.append(noisy.clone()))
    return kept


def accepted(values: Tensor, std: float) -> bool:
    return bool(stats.kstest(values.numpy(), "norm", args=(0, std)).pvalue > 1e-3)


@pytest.mark.parametrize("number", RELEASES)
def test_each_release_has_the_noise_that_is_priced_and_no_other(number: int) -> None:
    """Rows that add nothing leave the noise alone."""
    size = 3000 if number == SPREADS else 60
    found = standardiser(torch.full((5, size), NAN), multiplier=3.0)
    noise = recorded(found)[number]
    std = 3.0 / math.sqrt(PARTS[number]) * found.plan.sensitivity(number)
    assert accepted(noise, std)
    assert not accepted(noise, std * 2 / 3)
    assert not accepted(noise, std * 3 / 2)


def test_noise_is_added_to_what_a_plain_loop_adds_up() -> None:
    rows = torch.randn(200, 5, generator=torch.Generator().manual_seed(0))
    found = standardiser(rows, multiplier=1e-3)
    counts = recorded(found)[MAGNITUDES]
    wanted = found.total(MAGNITUDES, partial(magnitudes, torch.zeros(5).double()))
    assert 0 < float((counts - wanted).abs().max()) < 0.05


def test_the_four_releases_have_noise_of_their_own_which_no_other_run_has() -> None:
    one, other = (
        recorded(standardiser(torch.zeros(4, 40))),
        recorded(standardiser(torch.zeros(4, 40), seed=2)),
    )
    assert not torch.equal(one[MAGNITUDES], one[DISTANCES])
    assert not torch.equal(one[MAGNITUDES], other[MAGNITUDES])
    again = recorded(standardiser(torch.zeros(4, 40)))
    assert all(torch.equal(a, b) for a, b in zip(one, again, strict=True)), "a replay is the same release"


def test_four_releases_cost_what_their_one_event_says() -> None:
    plan = plan_for((7,), 100, 4.0)
    parts = compose([gaussian(plan.multiplier_of(number)) for number in RELEASES])
    assert math.fsum(PARTS) == pytest.approx(1, abs=1e-15)
    for accountant in ("rdp", "pld"):
        one, all_four = (price(event, 1e-5, accountant).epsilon for event in (plan.event, parts))
        assert all_four <= one
        assert all_four == pytest.approx(one, rel=1e-9)


def test_it_is_paid_before_a_row_is_read_and_recorded_before_anything_is_made_of_it() -> None:
    happened: list[str] = []

    class Rows(Dataset[tuple[Tensor, Tensor]]):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
            happened.append("read")
            return torch.ones(2), torch.tensor(0)

    found = standardiser(as_examples(Rows()))
    happened.clear()  # a row is read for its shape
    found.release(
        lambda event: happened.append(f"paid {event}"), lambda number, _: happened.append(str(number))
    )
    assert happened[:2] == [f"paid {found.plan.event}", "read"]
    assert [each for each in happened if each.isdigit()] == ["0", "1", "2", "3"]

    def refuse(event: Any) -> None:
        raise ValueError("nothing left")

    happened.clear()
    with pytest.raises(ValueError, match="nothing left"):
        found.release(refuse, nothing)
    assert happened == []


# The plan ---------------------------------------------------------------------------------------------------


def test_the_share_follows_from_public_numbers_within_its_bounds() -> None:
    budget = Budget(3, 1e-5)
    shares = [planned_moments((20,), n, budget, "auto") for n in (1000, 3000, 10_000, 1_000_000)]
    found = [each.share for each in shares if each is not None]
    assert found[0] == MOST_SHARE > found[1] > found[2]
    assert found[-1] == LEAST_SHARE
    for plan in shares:
        assert plan is not None
        spent = price(plan.event, 1e-5).gdp_mu
        whole = price(gaussian(plan.multiplier * math.sqrt(plan.share)), 1e-5).epsilon
        assert whole == pytest.approx(3, rel=1e-3)
        assert spent == pytest.approx(1 / plan.multiplier)


def test_too_few_units_have_one_scale_and_fewer_none() -> None:
    budget = Budget(3, 1e-5)
    plan = [planned_moments((50,), n, budget, "auto") for n in (1000, 200, 20)]
    assert plan[0] is not None
    assert plan[1] is not None
    assert (plan[0].features, plan[0].one_scale) == (50, False)
    assert (plan[1].features, plan[1].positions, plan[1].one_scale) == (1, 50, True)
    assert plan[2] is None
    whole = plan[0].multiplier * math.sqrt(plan[0].share)
    assert (
        noise_of_moments(whole, MOST_SHARE, 50, 200)
        > TOO_NOISY
        >= noise_of_moments(whole, MOST_SHARE, 1, 200)
    )


def test_what_else_the_budget_pays_for_is_left_out_of_what_is_shared() -> None:
    from sordino.privacy import approximate

    budget = Budget(3, 1e-5)
    alone = planned_moments((5,), 5000, budget, "rdp")
    beside = planned_moments((5,), 5000, budget, "rdp", approximate(2.9))
    assert alone is not None
    assert beside is not None
    assert price(compose([approximate(2.9), beside.event]), 1e-5, "rdp").epsilon < 3


def test_an_image_has_moments_for_its_channels() -> None:
    plan = planned_moments((3, 8, 8), 10_000, Budget(3, 1e-5), "auto")
    assert plan is not None
    assert (plan.features, plan.positions) == (3, 64)
    assert [fits(shape) for shape in ((4,), (1, 8, 8), (4, 4), (), (0,), (2, 2, 2, 2))] == [True, True] + [
        False
    ] * 4


# What is made of it -----------------------------------------------------------------------------------------


def test_an_image_has_moments_for_its_pixels_where_units_are_enough() -> None:
    """Else for its channels, else one for all, else none: each at the price that it would have by itself."""
    budget, shape = Budget(3, 1e-5), (3, 8, 8)
    seen = {}
    for units in (100_000, 5000, 1000, 300, 130, 100, 30):
        plan = planned_moments(shape, units, budget, "rdp", each_number=True)
        seen[units] = None if plan is None else (plan.features, plan.positions)
        by_channel = planned_moments(shape, units, budget, "rdp")
        if plan is None or plan.positions > 1:
            assert plan == by_channel
        else:
            flat = planned_moments((192,), units, budget, "rdp")
            assert flat is not None
            assert by_channel is not None
            assert (plan.multiplier, plan.share) == (flat.multiplier, flat.share)
            assert [plan.sensitivity(n) for n in RELEASES] == [flat.sensitivity(n) for n in RELEASES]
            assert plan.shape_of_moments == shape
            assert plan.of_what == "192 inputs"
            assert not plan.one_scale
    assert list(dict.fromkeys(seen.values())) == [(192, 1), (3, 64), (1, 192), None]
    assert planned_moments((192,), 100_000, budget, "rdp", each_number=True) == planned_moments(
        (192,), 100_000, budget, "rdp"
    )


def test_pixels_have_the_moments_that_the_numbers_of_a_flat_row_have() -> None:
    generator = torch.Generator().manual_seed(5)
    rows = torch.randn(4000, 2, 3, 3, generator=generator) * torch.logspace(-2, 2, 18).view(2, 3, 3) + 1
    by_pixel = standardiser(rows, features=18).release(nothing, nothing)
    flat = standardiser(rows.flatten(1)).release(nothing, nothing)
    assert by_pixel.offset.shape == by_pixel.deviation.shape == (2, 3, 3)
    assert torch.equal(by_pixel.offset.flatten(), flat.offset)
    assert torch.equal(by_pixel.deviation.flatten(), flat.deviation)
    assert by_pixel.applied(rows).std((0,)).flatten().tolist() == pytest.approx([1.0] * 18, rel=0.2)


def counts_of(values: Tensor) -> Tensor:
    return magnitudes(
        torch.zeros(values.shape[1]).double(),
        values.double().unsqueeze(2),
        torch.ones(len(values)).double(),
        2.0**-20,
    ).view(-1, BINS)


def scales_of(counts: Tensor, std: float, units: int) -> Tensor:
    return scales(counts, std, units, are_sparse(counts, units))


def test_the_scale_is_the_power_of_two_above_nearly_all_magnitudes() -> None:
    values = torch.randn(10_000, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor(
        [1.0, 100.0, 1e-3]
    )
    assert scales_of(counts_of(values), 10.0, 10_000).tolist() == [4.0, 256.0, 2.0**-8]


def test_the_scale_of_an_input_that_hardly_moves_is_never_far_below_that_of_the_others() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(2000, 30, generator=generator)
    values[:, 0] = (torch.rand(2000, generator=generator) < 0.002).float()  # a rare category
    values[:, 1] = 0
    for _ in range(20):
        noisy = counts_of(values) + 40 * torch.randn(30, BINS, generator=generator).double()
        assert float(scales_of(noisy, 40.0, 2000).min()) >= 0.5
        assert float(scales_of(noisy, 40.0, 2000).max()) <= 4


def test_the_scale_is_found_by_what_a_few_bins_have_together_where_none_has_enough() -> None:
    """455 rows of thirty columns from a thousandth to thousands, as of a table that nobody has scaled."""
    generator = torch.Generator().manual_seed(0)
    true = torch.logspace(-3, 3, 30)
    values = torch.randn(455, 30, generator=generator) * true
    for _ in range(20):
        looks = [counts_of(values) + 50 * torch.randn(30, BINS, generator=generator).double() for _ in "ab"]
        noisy = looked_at_twice(looks[0], looks[1], torch.zeros(30))
        apart = (scales_of(noisy, 50.0, 455) / true).log2()
        assert float(apart.min()) > -2, "none is blown up"
        assert -0.5 < float(apart.median()) < 3


def test_only_what_was_counted_around_zero_twice_counts_twice() -> None:
    first, second = torch.ones(2, BINS).double(), 3 * torch.ones(2, BINS).double()
    found = looked_at_twice(first, second, torch.tensor([0.0, 7.0]))
    assert found[:, 5].tolist() == pytest.approx([4 / math.sqrt(2), 3])


def test_where_there_is_nothing_but_noise_the_scale_is_one() -> None:
    noise = 30 * torch.randn(5, BINS, generator=torch.Generator().manual_seed(0)).double()
    assert scales_of(noise, 30.0, 100).tolist() == [1.0] * 5


def test_rare_inputs_of_which_nothing_is_seen_alone_have_the_scale_that_they_have_together() -> None:
    """Of 2,000 words most are in few texts: one is as large as another, whatever the noise of each says."""
    generator = torch.Generator().manual_seed(0)
    words = (torch.rand(10_000, 400, generator=generator) < 0.02).float()
    words[:, 0] = torch.randn(10_000, generator=generator) * 50  # another kind of input beside them
    for _ in range(5):
        noisy = counts_of(words) + 250 * torch.randn(400, BINS, generator=generator).double()
        found = scales_of(noisy, 250.0, 10_000)
        assert float(found[0]) == 128
        assert found[1:].tolist() == [2.0] * 399


def test_only_what_gathers_far_from_zero_is_centred_first() -> None:
    counts = torch.zeros(6, CELLS).double()
    counts[0, 60] = 100.0  # in one cell, from 0.875 to 0.90625 of the scale
    counts[1, 2:6] = 25.0  # in four of them, around -0.875
    counts[2, 32] = 100.0  # at 0
    counts[3, 60], counts[3, 32] = 80.0, 20.0  # the rest is elsewhere
    counts[4, 40:] = 100 / 24  # wide
    scale = torch.tensor([2.0, 8.0, 2.0, 2.0, 2.0, 2.0]).double()
    found = centres(counts, 1.0, 100, scale)
    assert found.tolist() == [2 * 0.890625, -8 * 0.875, 0.0, 0.0, 0.0, 0.0]
    assert centres(counts, 20.0, 100, scale).tolist() == [0.0] * 6, "not beyond the noise"


def test_few_rows_far_from_zero_are_found() -> None:
    """1,437 rows of 64 inputs at epsilon 3, three hundred deviations from 0: the noise of a mean would be larger."""
    rows = torch.rand(1437, 64, generator=torch.Generator().manual_seed(5)) + 100
    plan = planned_moments((64,), 1437, Budget(3, 1e-5), "auto")
    assert plan is not None
    examples = as_examples((rows, torch.zeros(1437)))
    for seed in range(3):
        found = Standardiser(plan, examples, Members(1437), Streams.from_seed(seed)).release(nothing, nothing)
        apart = (found.offset - 100.5).abs()
        assert float(apart.median()) < 0.5
        assert float((apart > 2).double().mean()) < 0.2
        assert 0.1 < float(found.deviation.median()) < 1.5


def test_rows_that_count_as_nothing_are_believed_in_only_where_noise_does_not_explain_them() -> None:
    assert counted(95.0, 5.0, 100) == 100
    assert counted(50.0, 5.0, 100) == 50
    assert counted(-80.0, 5.0, 100) == FEWEST * 100


def test_offset_and_deviation_are_those_of_the_sums() -> None:
    sums = torch.tensor([20.0, 0.5, 10.0, 25.0, 100.0]).double()
    centre, scale = torch.tensor([3.0, 0.0]).double(), torch.tensor([2.0, 4.0]).double()
    floor = torch.tensor([0.1, 0.1]).double()
    offset, deviation = spreads(sums, 0.5, 100, centre, scale, floor)
    assert offset.tolist() == pytest.approx([3.4, 0.0])  # the second is within its noise
    assert deviation.tolist() == pytest.approx([2 * math.sqrt(0.1 - 0.04), 4 * 0.5])
    _, deviation = spreads(sums, 0.5, 100, centre, scale, torch.tensor([0.3, 0.75]).double())
    # By their floors the squares of a row's numbers are 2/3 and 4/9: all are divided by the root of their mean.
    size = math.sqrt((0.06 / 0.3**2 + 0.25 / 0.75**2) / 2)
    assert deviation.tolist() == pytest.approx([2 * 0.3 * size, 4 * 0.75 * size])


def test_rows_of_rare_inputs_are_as_long_as_others() -> None:
    """However few of them are not 0, and no longer where noise hides how long they are."""
    generator = torch.Generator().manual_seed(3)
    rows = (torch.rand(20_000, 200, generator=generator) < 0.01).float()
    for multiplier, least, most in ((0.5, 0.9, 1.1), (20.0, 0.1, 1.1)):
        moments = standardiser(rows, multiplier=multiplier).release(nothing, nothing)
        size = float(moments.applied(rows).square().mean().sqrt())
        assert least < size < most, multiplier


def test_a_deviation_is_never_less_than_its_noise_nor_than_the_floor() -> None:
    variance, noise, floor = (
        torch.tensor([0.25, -0.1, 0.001, 2.0, 0.001]).double(),
        torch.tensor([0.01, 0.09, 0.0001, 0.1, 0.0001]).double(),
        torch.tensor([FLOOR, FLOOR, FLOOR, FLOOR, FLOOR_OF_SPARSE]).double(),
    )
    found = deviations(variance, noise, floor)
    assert found.tolist() == pytest.approx([0.5, 0.3, FLOOR, 1.0, FLOOR_OF_SPARSE])


def test_an_input_that_is_mostly_zero_keeps_the_size_it_has_elsewhere() -> None:
    """By noisy counts of what is 0, which may be anything."""
    counts = torch.zeros(5, BINS).double()
    counts[:, 0] = torch.tensor([0.0, 50.0, 50.5, 130.0, -20.0]).double()
    counts[:, 5] = 1000.0  # other bins have no say
    dense, sparse = FLOOR, FLOOR_OF_SPARSE
    assert floors(are_sparse(counts, 100)).tolist() == [dense, dense, sparse, sparse, dense]


def test_a_rare_category_is_not_blown_up_and_a_common_one_is_standardised() -> None:
    generator = torch.Generator().manual_seed(3)
    rows = (torch.rand(20_000, 3, generator=generator) < torch.tensor([0.02, 0.3, 0.7])).float()
    moments = standardiser(rows, multiplier=2.0).release(nothing, nothing)
    rare, less, common = moments.deviation.tolist()
    assert rare == less  # half of the scale, which is 2: a row with it has about what it had
    # All three are divided by the length that rows have then.
    size = math.sqrt((0.02 * 0.98 + 0.3 * 0.7 + 1) / 3)
    assert rare == pytest.approx(size, rel=0.02)
    assert common == pytest.approx(size * math.sqrt(0.7 * 0.3), rel=0.03)


@pytest.mark.parametrize("factor", [1e-2, 1.0, 1e2])
@pytest.mark.parametrize("shift", [0.0, 100.0])
def test_offset_and_deviation_are_found_whatever_the_scale(factor: float, shift: float) -> None:
    rows = torch.randn(20_000, 10, generator=torch.Generator().manual_seed(5)) * factor + shift * factor
    plan = planned_moments((10,), 20_000, Budget(3, 1e-5), "auto")
    assert plan is not None
    examples = as_examples((rows, torch.zeros(20_000)))
    found = Standardiser(plan, examples, Members(20_000), Streams.from_seed(3)).release(nothing, nothing)
    assert float((found.offset / factor - shift).abs().max()) < 0.3
    assert float(found.deviation.min() / factor) > 0.8
    assert float(found.deviation.max() / factor) < 1.3


def test_a_table_of_mixed_columns_is_evened_out() -> None:
    generator = torch.Generator().manual_seed(5)
    n = 20_000
    rows = torch.cat(
        [
            torch.randn(n, 2, generator=generator) * 1000 + 5000,
            torch.rand(n, 2, generator=generator) * 0.01,
            (torch.rand(n, 2, generator=generator) < torch.tensor([0.5, 0.1])).float(),
            torch.where(torch.rand(n, 1, generator=generator) < 0.1, NAN, 7.0),  # a tenth cannot be computed
        ],
        1,
    )
    plan = planned_moments((7,), n, Budget(3, 1e-5), "auto")
    assert plan is not None
    examples = as_examples((rows, torch.zeros(n)))
    found = Standardiser(plan, examples, Members(n), Streams.from_seed(3)).release(nothing, nothing)
    whole = rows[rows.isfinite().all(1)]
    apart = (found.offset - whole.mean(0)).abs() / whole.std(0).clamp(min=0.5)
    assert float(apart.max()) < 0.5
    # What is rare would keep its size, 1; all are divided by what rows are too short then, for it and for what is the
    # same in all of them.
    size = float(found.deviation[5])
    assert 0.6 < size < 0.9
    ratios = (found.deviation / whole.std(0))[:5] / size
    assert 0.7 < float(ratios.min()) < float(ratios.max()) < 1.4


def test_channels_of_images_are_standardised_each_as_a_whole() -> None:
    generator = torch.Generator().manual_seed(5)
    rows = torch.rand(5000, 3, 6, 6, generator=generator) * torch.tensor([1.0, 255.0, 0.1]).view(3, 1, 1)
    found = standardiser(rows).release(nothing, nothing)
    assert found.offset.shape == (3, 1, 1)
    means, stds = rows.mean((0, 2, 3)), rows.std((0, 2, 3))
    assert torch.allclose(found.offset.flatten() / stds, means / stds, atol=0.1)
    assert torch.allclose(found.deviation.flatten() / stds, torch.ones(3), atol=0.15)


def test_moments_are_applied_to_a_copy_of_the_rows_in_their_type() -> None:
    rows = torch.tensor([[5.0, 1.0]], dtype=torch.float16)
    moved = Moments(torch.tensor([1.0, 1.0]), torch.tensor([2.0, 4.0])).applied(rows)
    assert moved.tolist() == [[2.0, 0.0]]
    assert moved.dtype == torch.float16
    assert rows.tolist() == [[5.0, 1.0]]


def test_the_shares_of_the_releases_are_named_in_one_place() -> None:
    assert len(plans.PARTS) == len(RELEASES)
