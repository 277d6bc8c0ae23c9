"""Buffered noise against the matrix it is made of: every step, price, charges, resume, and what it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import DpEvent, GaussianDpEvent, NonPrivateDpEvent
from scipy import stats
from scipy.linalg import toeplitz
from torch import Tensor, nn

from sordino import (
    Buffered,
    Constant,
    Cyclic,
    Fixed,
    FixedOrder,
    Gate,
    Method,
    Normalised,
    Online,
    PerLayer,
    Poisson,
    Quantile,
    Separated,
    Sgd,
    Shuffled,
    Tolerance,
    WithoutReplacement,
    method,
    train,
)
from sordino.data import Sampling
from sordino.noise import GaussianNoise, Streams
from sordino.noise import buffered as module
from sordino.noise.buffered import BufferedReleases
from sordino.noise.decays import Decays
from sordino.noise.grid import grid_for
from sordino.noise.toeplitz import Array
from sordino.privacy import compose, gaussian, price, repeat
from sordino.runs.checkpoint import Checkpoint
from sordino.terms import Terms

ORDERS = [
    (FixedOrder(2), 9),
    (FixedOrder(3), 9),
    (FixedOrder(9), 9),
    (Shuffled(2, every=None), 6),
    (Separated(1, 2), 9),
    (Separated(1, 3), 8),
    (Cyclic(1.0, 4), 8),
    (Poisson(1.0), 5),
]


@pytest.fixture
def fine_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Released noise is rounded to a grid; some tests compare it to more digits than that."""
    monkeypatch.setattr(module, "grid_for", lambda *_: 2.0**-40)


class Normals:
    """In place of GaussianNoise: standard normals that are a function of the step."""

    def standard(self, step: int, size: int) -> Tensor:
        return torch.randn(size, generator=torch.Generator().manual_seed(step), dtype=torch.float64)

    def accumulate_(self, vector: Tensor, std: float, purpose: str, step: int) -> None:
        assert purpose == "noise"
        vector.add_(self.standard(step, len(vector)), alpha=std)


def buffered(steps: int, per_epoch: int, **settings: Any) -> BufferedReleases:
    found = Buffered(**settings).over(FixedOrder(1), per_epoch, steps)
    assert isinstance(found, BufferedReleases)
    return found


def released(
    releases: Any, draw: Any, steps: int, size: int, threshold: float = 1.0, multiplier: float = 1.0
) -> tuple[Array, Array]:
    """What is added at each step [T, size], and the standard deviations that are stated."""
    state = releases.start()
    rows, stds = [], []
    for step in range(steps):
        row = torch.zeros(size, dtype=torch.float64)
        stds.append(releases.add_(row, draw, multiplier, threshold, step, state))
        rows.append(row.numpy())
    return np.stack(rows), np.array(stds)


def matrix(releases: BufferedReleases, steps: int) -> Array:
    """C, block by block."""
    whole = np.zeros((steps, steps))
    for first in range(0, steps, releases.block):
        these = slice(first, min(first + releases.block, steps))
        size = these.stop - first
        whole[these, these] = np.tril(toeplitz(releases.decays.column(size)))
    return whole


# The noise ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("fine_grid")
@pytest.mark.parametrize(
    ("steps", "per_epoch", "settings"),
    [
        (2**11, 2**11, {}),
        (2**11, 200, {}),
        (2**11, 300, {"horizon": 500}),
        (300, 300, {"buffers": 1}),
        (300, 300, {"buffers": 7}),
        (40, 40, {"horizon": 1}),
        (50, 1, {}),
        (1, 1, {}),
    ],
    ids=str,
)
def test_every_step_of_a_stream_equals_the_dense_matrix(
    steps: int, per_epoch: int, settings: dict[str, Any]
) -> None:
    draw, releases = Normals(), buffered(steps, per_epoch, **settings)
    streamed, stds = released(releases, draw, steps, 3)
    drawn = np.stack([draw.standard(step, 3).numpy() for step in range(steps)])
    whole = matrix(releases, steps)
    np.testing.assert_allclose(streamed, np.linalg.solve(whole, drawn), atol=1e-10)
    np.testing.assert_allclose(stds, np.linalg.norm(np.linalg.inv(whole), axis=1), rtol=1e-9)


@pytest.mark.usefixtures("fine_grid")
def test_parts_of_a_long_vector_are_all_treated_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK", 4)
    steps, draw, releases = 40, Normals(), buffered(40, 40, buffers=3)
    streamed, _ = released(releases, draw, steps, 50)
    drawn = np.stack([draw.standard(step, 50).numpy() for step in range(steps)])
    np.testing.assert_allclose(streamed, np.linalg.solve(matrix(releases, steps), drawn), atol=1e-10)


def test_a_few_vectors_are_all_it_keeps() -> None:
    releases = buffered(2000, 2000)
    state, row = releases.start(), torch.zeros(10)
    releases.add_(row, GaussianNoise(Streams.from_seed(1)), 1.0, 1.0, 0, state)
    assert state["kept"].shape == (5, 10)
    assert sum(each.numel() for each in state.values() if isinstance(each, Tensor)) == 5 * 10 + 2 * 4


@pytest.mark.parametrize("per_epoch", [48, 12])
def test_the_covariance_of_the_noise_is_the_matrix_s_and_no_other(per_epoch: int) -> None:
    """Of successive releases, and of running sums; 20,000 coordinates, so 1 % is much."""
    steps, size = 48, 20_000
    releases = buffered(steps, per_epoch)
    factor = np.linalg.inv(matrix(releases, steps))

    def rows_at(scale: float) -> Array:
        draw = GaussianNoise(Streams.from_seed(7))
        return released(releases, draw, steps, size, threshold=0.5, multiplier=2 * scale)[0]

    def fits(rows: Array) -> bool:
        exact = factor @ factor.T
        spread = np.sqrt((exact**2 + np.outer(np.diag(exact), np.diag(exact))) / size)
        near = np.abs(np.cov(rows, bias=True) - exact) < 6 * spread
        sums = np.cumsum(rows, axis=0)
        theory = (np.cumsum(factor, axis=0) ** 2).sum(1)
        low, high = stats.chi2.ppf([1e-7, 1 - 1e-7], size)
        squares = (sums**2).sum(1) / theory
        return bool(near.all() and (squares > low).all() and (squares < high).all())

    rows = rows_at(1.0)
    assert fits(rows)
    assert not fits(rows_at(2 / 3))
    assert not fits(rows_at(3 / 2))
    total = np.cumsum(rows, axis=0)[-1]
    last = total / np.linalg.norm(factor.sum(0))
    assert releases.gathered(steps) == pytest.approx(float(np.linalg.norm(factor.sum(0))))
    assert stats.kstest(last, "norm").pvalue > 1e-4
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(wrong * last, "norm").pvalue < 1e-9


def test_noise_lies_on_the_grid_of_the_sum() -> None:
    releases, draw = buffered(10, 10), GaussianNoise(Streams.from_seed(1))
    state = releases.start()
    for step in range(5):
        row = torch.zeros(100, dtype=torch.float64)
        releases.add_(row, draw, 1.0, 0.37, step, state)
        whole = row / grid_for(0.37, 100)
        assert torch.equal(whole, whole.round())


@pytest.mark.parametrize(("steps", "horizon"), [(1, 3), (5, 7), (12, 5), (30, 10)])
def test_what_sums_gather_is_that_of_the_matrix(steps: int, horizon: int) -> None:
    releases = buffered(40, 4, horizon=horizon)
    factor = np.linalg.inv(matrix(releases, 40))
    assert releases.gathered(steps) == pytest.approx(float(np.linalg.norm(factor[:steps].sum(0))))


# Sensitivity and price ----------------------------------------------------------------------------------------


def patterns(sampling: Sampling, units: int, steps: int) -> Iterator[tuple[int, ...]]:
    """Every set of steps in which some unit may take part."""
    streams = Streams.from_seed(1)
    turns: set[tuple[int, ...]] = set()
    for unit in range(units):
        at = [step for step in range(steps) if unit in _may_be_drawn(sampling, step, units, streams)]
        turns.add(tuple(at))
    for at_most in turns:
        yield from chain.from_iterable(combinations(at_most, k) for k in range(1, len(at_most) + 1))


def _may_be_drawn(sampling: Sampling, step: int, units: int, streams: Streams) -> set[int]:
    if isinstance(sampling, Separated):
        return {unit for unit in range(units) if unit % sampling.period == step % sampling.period}
    return set(sampling.units(step, units, streams).tolist())


def paid(event: DpEvent) -> float:
    """The squared sensitivity at z = 1 that Gaussians cover."""
    if isinstance(event, GaussianDpEvent):
        return float(event.noise_multiplier) ** -2
    parts = getattr(event, "events", None)
    if parts is None:
        return float(event.count * paid(event.event))
    return sum(paid(part) for part in parts)


@pytest.mark.parametrize(("sampling", "units"), ORDERS, ids=str)
@pytest.mark.parametrize(("steps", "horizon"), [(5, None), (8, None), (8, 3), (7, 20)])
def test_no_unit_moves_the_whitened_releases_by_more_than_is_paid(
    sampling: Sampling, units: int, steps: int, horizon: int | None
) -> None:
    """For every pattern that the sampling allows, with all signs and with directions of their own."""
    releases = Buffered(3, horizon).over(sampling, units, steps)
    assert isinstance(releases, BufferedReleases)
    budget, whole = paid(releases.cost(steps, 1.0, ())), matrix(releases, steps)
    chance = np.random.default_rng(1)
    worst = 0.0
    for at in patterns(sampling, units, steps):
        columns = whole[:, list(at)]
        signs = np.array(list(product((-1.0, 1.0), repeat=len(at)))).T
        directions = chance.normal(size=(len(at), 3))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        worst = max(worst, float(((columns @ signs) ** 2).sum(0).max()))
        worst = max(worst, float(((columns @ directions) ** 2).sum()))
    assert worst <= budget
    if (
        horizon != 3
    ):  # that a unit of the first step of a block may not be in the next, if it is short, is not made use of
        assert worst == pytest.approx(budget, rel=1e-7)


def test_the_price_is_one_gaussian_of_the_whole_run() -> None:
    releases = buffered(40, 8)
    visits = np.zeros(40)
    visits[::8] = 1.0
    moved = float(np.linalg.norm(matrix(releases, 40) @ visits))
    event = releases.cost(40, 3.0, ())
    assert isinstance(event, GaussianDpEvent)
    assert event.noise_multiplier == pytest.approx(3.0 / moved, rel=1e-7)
    assert event.noise_multiplier < 3.0 / moved
    assert releases.cost(1, 3.0, ()) == event  # whole, from its first step on
    assert {releases.charge(step, 3.0, ()) for step in range(40)} == {("block:0", event)}
    assert price(event, 1e-5).epsilon == pytest.approx(price(gaussian(3.0 / moved), 1e-5).epsilon, rel=1e-6)
    assert releases.cost(0, 3.0, ()) == compose([])
    assert isinstance(releases.charge(0, 0.0, ())[1], NonPrivateDpEvent)


def test_blocks_are_paid_for_when_they_are_opened() -> None:
    releases = buffered(25, 4, horizon=10)
    whole, last = (gaussian(2.0 / releases.decays.sensitivity(size, 4)) for size in (10, 5))
    charged = dict(releases.charge(step, 2.0, ()) for step in range(25))
    assert charged == {"block:0": whole, "block:1": whole, "block:2": last}
    assert releases.cost(25, 2.0, ()) == compose([repeat(whole, 2), last])
    assert releases.cost(11, 2.0, ()) == repeat(whole, 2)
    assert price(compose(list(charged.values())), 1e-5).epsilon == pytest.approx(
        price(releases.cost(25, 2.0, ()), 1e-5).epsilon
    )


def test_without_a_known_end_every_block_is_paid_whole() -> None:
    releases = Buffered(horizon=10).over(FixedOrder(5), 20, None)
    assert isinstance(releases, BufferedReleases)
    whole = gaussian(2.0 / releases.decays.sensitivity(10, 4))
    assert releases.charge(1234, 2.0, ()) == ("block:123", whole)
    assert releases.cost(31, 2.0, ()) == repeat(whole, 4)
    rows, stds = released(releases, GaussianNoise(Streams.from_seed(1)), 31, 50)
    np.testing.assert_array_equal(stds[:10], stds[20:30])
    assert not np.array_equal(rows[0], rows[10])  # anew, and not once more


def test_what_was_planned_is_not_gone_beyond() -> None:
    releases = buffered(20, 5)
    with pytest.raises(ValueError, match="planned, and paid, for 20 steps and no more"):
        releases.charge(20, 1.0, ())
    with pytest.raises(ValueError, match="planned, and paid, for 20 steps and no more"):
        releases.cost(21, 1.0, ())


def test_an_explanation_has_all_that_the_price_follows_from() -> None:
    said = buffered(20, 5).explanation(2.0, ())
    assert said is not None
    assert "related over all of 20 steps by" in said
    assert "once in any 5 steps, so 4 times at most: sensitivity" in said
    again = buffered(20, 5, horizon=8).explanation(2.0, ())
    assert again is not None
    assert "over all of 8 steps, after which the noise begins anew, by" in again


# Training, charges, checkpoints -------------------------------------------------------------------------------


def rows(count: int = 240, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 5, generator=generator)
    return x, (x[:, 0] > 0).long()


def composed(noise: Any, clip: Any = None) -> Method:
    return method(clip=clip or Fixed(1.0), step=Sgd(), rate=Constant(0.3), noise=noise)


loss = nn.CrossEntropyLoss(reduction="none")


@pytest.mark.parametrize("noise", ["buffered", "buffered:2,horizon=50"])
def test_a_run_keeps_its_budget(noise: str, tmp_path: Path) -> None:
    run = train(
        nn.Linear(5, 2), loss, rows(), method=composed(noise), budget=(3.0, 1e-3), epochs=6, batch_size=12,
        accountant="rdp", out=tmp_path / "run",
    )  # fmt: skip
    assert run.summary["sampling"] == "shuffled"
    assert 0.98 * 3 < run.epsilon <= 3
    assert run.summary["method"]["noise"]["kind"] == "Buffered"
    assert any("whose column is a sum of" in line for line in run.certificate["assumptions"])
    if noise == "buffered":
        assert run.certificate["events"]["type"] == "gaussian"


def gate_of(steps: int = 24, *, noise: Buffered | None = None, sampling: Sampling | None = None) -> Gate:
    torch.manual_seed(0)
    return Gate(
        nn.Linear(5, 2), loss, rows(), clip=Fixed(1.0), noise_multiplier=1.0, sampling=sampling or FixedOrder(40),
        noise=noise or Buffered(), steps=steps, seed=1,
    )  # fmt: skip


def test_a_block_is_paid_for_before_its_first_step() -> None:
    gate = gate_of(noise=Buffered(horizon=4))
    seen = []
    sums = gate._sums_at

    def watched(*arguments: Any) -> Any:
        seen.append(gate.ledger.charges)
        return sums(*arguments)

    gate._sums_at = watched  # type: ignore[method-assign,assignment]
    for _ in range(9):
        gate()
    assert seen == [1, 1, 1, 1, 2, 2, 2, 2, 3]
    assert gate.ledger.event == gate.plan(9)


def test_a_step_that_failed_is_not_gone_over() -> None:
    gate = gate_of()
    gate()
    sums = gate._sums_at
    gate._sums_at = lambda *_: (_ for _ in ()).throw(MemoryError("no room"))  # type: ignore[method-assign]
    with pytest.raises(MemoryError):
        gate()
    gate._sums_at = sums  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="a step of this noise failed"):
        gate()


@pytest.mark.parametrize("noise", [Buffered(), Buffered(2, horizon=7)], ids=str)
def test_a_gate_that_is_restored_at_any_step_goes_on_bit_for_bit(noise: Buffered, tmp_path: Path) -> None:
    steps = 24
    whole = gate_of(noise=noise)
    expected = [whole().gradient for _ in range(steps)]
    for killed in range(1, steps):
        first = gate_of(noise=noise)
        for _ in range(killed):
            first()
        Checkpoint({"gate": first.state()}).save(tmp_path)
        second = gate_of(noise=noise)
        found = Checkpoint.load(tmp_path)
        assert found is not None
        second.restore(found.state["gate"])
        for step in range(killed, steps):
            assert torch.equal(second().gradient, expected[step]), (killed, step)


def test_a_restored_gate_does_not_go_on_with_decays_that_were_not_paid_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another version might find others."""
    first = gate_of()
    first()
    state = first.state()
    monkeypatch.setattr(module, "best_decays", lambda *_: Decays((0.5,), (0.5,)))
    second = gate_of()
    second.restore(state)
    with pytest.raises(RuntimeError, match="with other decays than are found here"):
        second()


# Refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampling", "message"),
    [
        (Poisson(0.1), "amplification needs bands"),
        (Cyclic(0.5, 4), "amplification needs bands"),
        (Shuffled(10, assume_poisson=True), "amplification needs bands"),
        (Shuffled(10), "two steps in a row"),
        (Shuffled(10, every=3), "two steps in a row"),
        (WithoutReplacement(10), "two steps in a row"),
        (WithoutReplacement(100), "two steps in a row"),
    ],
    ids=str,
)
def test_samplings_without_a_known_price_are_refused(sampling: Sampling, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Buffered().over(sampling, 100, 50)
    with pytest.raises(ValueError, match=message):
        gate_of(sampling=sampling)


def test_shuffled_batches_are_shuffled_once() -> None:
    for noise in (Buffered(), Buffered(horizon=20)):
        assert noise.dealt(Shuffled(10), 100) == Shuffled(10, every=None)
        assert noise.dealt(Poisson(0.1), 100) == Poisson(0.1)
    assert Buffered().restart_steps(10) is None
    assert Buffered(horizon=25).restart_steps(10) == 25


@pytest.mark.parametrize("buffers", [0, -1, 2.5, "auto", True, 17])
def test_buffers_are_a_small_whole_number(buffers: Any) -> None:
    with pytest.raises(ValueError, match="buffers is a whole number"):
        Buffered(buffers)


@pytest.mark.parametrize("horizon", [0, -1, 2.5, "auto", 10**8])
def test_a_horizon_is_a_number_of_steps(horizon: Any) -> None:
    with pytest.raises(ValueError, match="horizon is a whole number of steps"):
        Buffered(horizon=horizon)


def test_an_open_end_needs_a_horizon() -> None:
    with pytest.raises(ValueError, match="say how many are planned, or give a horizon"):
        Buffered().over(FixedOrder(5), 20, None)
    with pytest.raises(ValueError, match="steps at most: give a horizon"):
        Buffered().over(FixedOrder(5), 20, 10**8)


def test_thresholds_stay() -> None:
    for clip in (Quantile(0.5), Online()):
        with pytest.raises(ValueError, match=f"{type(clip).__name__} moves its threshold.*use a Fixed"):
            composed(Buffered(), clip)
        with pytest.raises(ValueError, match="moves its threshold"):
            Terms(clip, Buffered(), FixedOrder(10), 100, 50)
    for stays in (Fixed(1.0), Normalised(), PerLayer(1.0)):
        assert composed(Buffered(3), stays).noise == Buffered(3)
    releases, draw = buffered(10, 5), GaussianNoise(Streams.from_seed(1))
    state = releases.start()
    releases.add_(torch.zeros(3), draw, 1.0, 1.0, 0, state)
    with pytest.raises(ValueError, match="for a threshold that stays"):
        releases.add_(torch.zeros(3), draw, 1.0, 0.5, 1, state)


def test_probes_have_no_price() -> None:
    releases = buffered(10, 5)
    assert releases.split(1.5, ()) == 1.5
    for ask in (
        lambda: releases.split(1.0, [7.0]),
        lambda: releases.charge(0, 1.0, [7.0]),
        lambda: releases.cost(10, 1.0, [7.0]),
    ):
        with pytest.raises(ValueError, match="has no price beside buffered noise"):
            ask()


def test_what_compares_gradients_is_refused() -> None:
    with pytest.raises(ValueError, match="compares gradients of different batches"):
        method(clip=Fixed(1.0), step="extrapolation", rate=Tolerance(), noise=Buffered())
    with pytest.raises(ValueError, match="scales its steps by the noise"):
        method(clip=Fixed(1.0), step="adam-wosm", rate=Constant(0.1), noise=Buffered())
