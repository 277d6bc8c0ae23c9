"""What is chosen when nobody chooses: from public numbers."""

from __future__ import annotations

import pytest

from sordino.defaults import Pace, Speed, default_batch_size, default_epochs

USUAL = Pace(60_000, 612, 1960, 31)
SPEED = Speed(per_unit=1e-4, per_step=0.01)
TAKES = SPEED.minutes(USUAL.batches, USUAL.batch_size)  # about two minutes


def took(pace: Pace) -> float:
    return SPEED.minutes(pace.batches, pace.batch_size)


def test_time_is_that_of_gradients_and_of_steps() -> None:
    assert SPEED.minutes(612, 1960) * 60 == pytest.approx(612 * (1960 * 1e-4 + 0.01))


@pytest.mark.parametrize("share", [0.1, 0.3, 0.9, 1.0, 1.2, 2.0, 3.0, 4.2])
def test_a_tenth_of_the_time_is_kept_in_reserve_and_little_more(share: float) -> None:
    pace = USUAL.within(share * TAKES, SPEED)
    assert 0.88 * share * TAKES < took(pace) <= 0.9 * share * TAKES + 1e-9


def test_in_less_time_there_are_fewer_batches_of_the_same_size() -> None:
    pace = USUAL.within(TAKES / 2, SPEED)
    assert (pace.batch_size, pace.batches) == (1960, 275)


def test_there_is_at_least_one_epoch_however_little_time_there_is() -> None:
    pace = USUAL.within(1e-6, SPEED)
    assert (pace.batch_size, pace.batches) == (1960, 31)


def test_in_more_time_batches_grow_and_steps_stay_as_many() -> None:
    pace = USUAL.within(2 * TAKES, SPEED)
    assert pace.batches == 612
    assert 1.7 < pace.gradients / USUAL.gradients < 1.9


def test_four_times_is_the_most_and_the_rest_of_the_time_is_left() -> None:
    assert USUAL.within(1e6, SPEED) == USUAL.largest
    assert USUAL.largest.gradients == 4 * USUAL.gradients
    enough = USUAL.enough(SPEED)
    assert USUAL.within(enough, SPEED) == USUAL.largest != USUAL.within(enough - 1, SPEED)


@pytest.mark.parametrize("units", [1, 5, 64, 200, 1437, 60_000])
def test_no_batch_has_more_units_than_there_are(units: int) -> None:
    batch = default_batch_size(units)
    per_epoch = max(1, round(units / batch))
    pace = Pace(units, round(default_epochs(units) * per_epoch), batch, per_epoch).largest
    assert batch <= pace.batch_size <= units


@pytest.mark.parametrize("minutes", [2.5, 3.0, 4.0, 6.0, 50.0])
def test_whole_batches_leave_few_units_over(minutes: float) -> None:
    pace = Pace(1437, 160, 303, 4, whole=True).within(minutes, Speed(1e-3, 0.0))
    assert pace.batch_size == 303 or 1437 % pace.batch_size < 1437 // pace.batch_size
