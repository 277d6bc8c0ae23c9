"""Banded noise against the matrix it is made of: golden values, sensitivity, price, plans, and what it refuses."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain, combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import (
    DpEvent,
    GaussianDpEvent,
    NonPrivateDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from scipy import stats
from torch import Tensor, nn

from sordino import (
    Banded,
    Budget,
    Constant,
    Cyclic,
    Fixed,
    FixedOrder,
    Gate,
    Gaussian,
    Method,
    Online,
    Poisson,
    Quantile,
    Separated,
    Sgd,
    Shuffled,
    Tolerance,
    Tree,
    WithoutReplacement,
    method,
    train,
)
from sordino.data import Sampling
from sordino.noise import GaussianNoise, Known, Streams
from sordino.noise import banded as module
from sordino.noise.banded import BandedReleases
from sordino.noise.grid import grid_for
from sordino.noise.toeplitz import Array, best_column, error, inverse
from sordino.noise.tree import noise_of_sums
from sordino.privacy import compose, noise_for, poisson_gaussian, price, repeat
from sordino.privacy.calibration import noise_about
from sordino.runs.checkpoint import Checkpoint


@pytest.fixture
def fine_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Released noise is rounded to a grid; some tests compare it to more digits than that."""
    monkeypatch.setattr(module, "grid_for", lambda *_: 2.0**-40)


class Normals:
    """In place of GaussianNoise: standard normals that are a function of the step, and a memory of every draw."""

    def __init__(self) -> None:
        self.stds: dict[int, float] = {}

    def standard(self, step: int, size: int) -> Tensor:
        return torch.randn(size, generator=torch.Generator().manual_seed(step), dtype=torch.float64)

    def accumulate_(self, vector: Tensor, std: float, purpose: str, step: int) -> None:
        assert purpose == "noise"
        self.stds[step] = std
        vector.add_(self.standard(step, len(vector)), alpha=std)


def banded(bands: int, steps: int) -> BandedReleases:
    found = Banded(bands).over(Cyclic(0.5, bands), 10 * bands, steps)
    assert isinstance(found, BandedReleases)
    return found


def released(releases: Any, draw: Any, thresholds: Sequence[float], size: int) -> tuple[Array, Array]:
    """What is added at each step [T, size], and the standard deviations that are stated."""
    state = releases.start()
    rows, stds = [], []
    for step, threshold in enumerate(thresholds):
        row = torch.zeros(size, dtype=torch.float64)
        stds.append(releases.add_(row, draw, 1.0, threshold, step, state))
        rows.append(row.numpy())
    return np.stack(rows), np.array(stds)


def matrix(bands: int, steps: int) -> Array:
    column = np.concatenate([best_column(bands, steps), np.zeros(steps)])[:steps]
    return np.array([[column[i - j] if i >= j else 0.0 for j in range(steps)] for i in range(steps)])


# The noise ----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("fine_grid")
@pytest.mark.parametrize(
    ("bands", "steps"),
    [(2, 2**11), (5, 300), (11, 300), (12, 300), (31, 400), (32, 400), (64, 2**11), (200, 500)],
)
def test_every_step_of_a_stream_equals_the_dense_matrix(bands: int, steps: int) -> None:
    draw = Normals()
    streamed, _ = released(banded(bands, steps), draw, [1.0] * steps, 3)
    drawn = np.stack([draw.standard(step, 3).numpy() for step in range(steps)])
    np.testing.assert_allclose(streamed, np.linalg.solve(matrix(bands, steps), drawn), atol=1e-10)


@pytest.mark.usefixtures("fine_grid")
def test_parts_of_a_long_vector_are_all_treated_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many bands, blocks of steps begin at other steps in other parts of the vector."""
    monkeypatch.setattr(module, "_CHUNK", 4)
    steps = 130
    for bands in (3, 13, 40):
        draw = Normals()
        streamed, _ = released(banded(bands, steps), draw, [1.0] * steps, 50)
        drawn = np.stack([draw.standard(step, 50).numpy() for step in range(steps)])
        np.testing.assert_allclose(streamed, np.linalg.solve(matrix(bands, steps), drawn), atol=1e-10)


def test_one_band_is_independent_noise_bit_for_bit() -> None:
    steps, size = 5, 1000
    for sampling in (Poisson(0.1), FixedOrder(10), Cyclic(0.1, 1)):
        found = []
        for noise in (Banded(1), Gaussian()):
            releases = noise.over(sampling, 100, steps)
            draw, state = GaussianNoise(Streams.from_seed(1)), releases.start()
            rows = [torch.ones(size) for _ in range(steps)]
            stds = [releases.add_(row, draw, 1.3, 0.7, step, state) for step, row in enumerate(rows)]
            found.append(
                (torch.stack(rows), stds, releases.cost(steps, 1.3, ()), releases.charge(3, 1.3, ()))
            )
        assert torch.equal(found[0][0], found[1][0])
        assert found[0][1:] == found[1][1:]
    assert Banded(1).independent
    assert Banded(1).dealt(Poisson(0.1), 100) == Poisson(0.1)
    assert not Banded(2).independent
    assert not Banded().independent


def test_one_group_is_poisson_sampling_bit_for_bit() -> None:
    streams = Streams.from_seed(3)
    for step in range(5):
        np.testing.assert_array_equal(
            Cyclic(0.3, 1).units(step, 100, streams), Poisson(0.3).units(step, 100, streams)
        )


@pytest.mark.usefixtures("fine_grid")
def test_the_stated_std_is_that_of_the_noise_while_thresholds_move() -> None:
    bands, steps = 5, 40
    thresholds = np.exp(np.random.default_rng(1).normal(size=steps))
    draw = Normals()
    _, stated = released(banded(bands, steps), draw, list(thresholds), 1)
    scales = np.array([draw.stds[step] for step in range(steps)]) * best_column(bands, steps)[0]
    exact = np.linalg.solve(matrix(bands, steps), np.diag(scales))
    np.testing.assert_allclose(stated, np.linalg.norm(exact, axis=1), rtol=1e-10)


def test_what_is_drawn_has_the_largest_threshold_of_the_last_steps() -> None:
    bands, steps = 4, 60
    thresholds = [1.0 + (step * 37 % 11) for step in range(steps)]
    draw = Normals()
    released(banded(bands, steps), draw, thresholds, 1)
    for step in range(steps):
        largest = max(thresholds[max(0, step - bands + 1) : step + 1])
        assert draw.stds[step] * best_column(bands, steps)[0] == pytest.approx(largest)


@pytest.mark.parametrize("bands", [2, 8, 40])
def test_the_covariance_of_the_noise_is_the_matrix_s_and_no_other(bands: int) -> None:
    """Of successive releases, and of running sums; 20,000 coordinates, so 1 % is much."""
    steps, size = 48, 20_000
    factor = np.linalg.inv(matrix(bands, steps))

    def whitened(scale: float) -> Array:
        releases, draw = banded(bands, steps), GaussianNoise(Streams.from_seed(7))
        state, rows = releases.start(), []
        for step in range(steps):
            row = torch.zeros(size)
            releases.add_(row, draw, scale, 1.0, step, state)
            rows.append(row.double().numpy())
        return np.stack(rows)

    def fits(rows: Array) -> bool:
        exact = factor @ factor.T
        spread = np.sqrt((exact**2 + np.outer(np.diag(exact), np.diag(exact))) / size)
        near = np.abs(np.cov(rows, bias=True) - exact) < 6 * spread
        sums = np.cumsum(rows, axis=0)
        theory = (np.cumsum(factor, axis=0) ** 2).sum(1)
        low, high = stats.chi2.ppf([1e-7, 1 - 1e-7], size)
        squares = (sums**2).sum(1) / theory
        return bool(near.all() and (squares > low).all() and (squares < high).all())

    rows = whitened(1.0)
    assert fits(rows)
    assert not fits(whitened(2 / 3))
    assert not fits(whitened(3 / 2))
    last = np.cumsum(rows, axis=0)[-1] / np.linalg.norm(factor.sum(0))
    assert stats.kstest(last, "norm").pvalue > 1e-4
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(wrong * last, "norm").pvalue < 1e-9


def test_noise_lies_on_the_grid_of_the_sum() -> None:
    releases, draw = banded(4, 10), GaussianNoise(Streams.from_seed(1))
    state = releases.start()
    for step in range(5):
        row = torch.zeros(100, dtype=torch.float64)
        releases.add_(row, draw, 1.0, 0.37, step, state)
        whole = row / grid_for(0.37, 100)
        assert torch.equal(whole, whole.round())


# Sensitivity --------------------------------------------------------------------------------------------------


def patterns(sampling: Sampling, units: int, steps: int) -> Iterator[tuple[int, ...]]:
    """Every set of steps in which some unit may take part."""
    streams = Streams.from_seed(1)
    turns: set[tuple[int, ...]] = set()
    for unit in range(units):
        at = [
            step
            for step in range(steps)
            if bool(sampling.turns(step, np.array([unit]))[0])
            and (sampling.coin is not None or unit in _may_be_drawn(sampling, step, units, streams))
        ]
        turns.add(tuple(at))
    for at_most in turns:
        yield from chain.from_iterable(combinations(at_most, k) for k in range(len(at_most) + 1))


def _may_be_drawn(sampling: Sampling, step: int, units: int, streams: Streams) -> set[int]:
    if isinstance(sampling, Separated):
        return {unit for unit in range(units) if unit % sampling.period == step % sampling.period}
    return set(sampling.units(step, units, streams).tolist())


def paid(event: DpEvent) -> float:
    """The squared sensitivity at z = 1 that Gaussians cover, whatever chance they have."""
    if isinstance(event, SelfComposedDpEvent):
        return float(event.count * paid(event.event))
    if isinstance(event, PoissonSampledDpEvent):
        return paid(event.event)
    assert isinstance(event, GaussianDpEvent)
    return float(event.noise_multiplier) ** -2


@pytest.mark.parametrize(
    ("sampling", "units", "bands"),
    [
        (Cyclic(0.5, 3), 7, 3),
        (Cyclic(0.5, 3), 7, 2),
        (Cyclic(1.0, 4), 8, 4),
        (FixedOrder(2), 9, 4),
        (FixedOrder(3), 9, 2),
        (Shuffled(2, every=None), 6, 3),
        (Separated(1, 2), 9, 3),
        (Separated(1, 3), 8, 2),
    ],
    ids=str,
)
@pytest.mark.parametrize("steps", [5, 8, 11])
def test_no_unit_moves_the_whitened_releases_by_more_than_is_paid(
    sampling: Sampling, units: int, bands: int, steps: int
) -> None:
    """For every pattern that the sampling allows, with the worst directions, and thresholds that move."""
    generator = np.random.default_rng(steps)
    releases = Banded(bands).over(sampling, units, steps)
    budget = paid(releases.cost(steps, 1.0, ()))
    whole = matrix(bands, steps)
    worst = careless = 0.0
    for thresholds in (np.ones(steps), 0.5 ** np.arange(steps), np.exp(generator.normal(size=steps))):
        largest = np.array([thresholds[max(0, i - bands + 1) : i + 1].max() for i in range(steps)])
        for at in patterns(sampling, units, steps):
            # All in one direction with any signs, or in directions of their own: columns that do not overlap.
            for signs in product((-1.0, 1.0), repeat=len(at)):
                moved = np.zeros(steps)
                moved[list(at)] = np.array(signs) * thresholds[list(at)]
                worst = max(worst, float((((whole @ moved) / largest) ** 2).sum()))
                careless = max(careless, float((((whole @ moved) / thresholds) ** 2).sum()))
            assert sum(float(((whole[:, t] * thresholds[t] / largest) ** 2).sum()) for t in at) <= budget * (
                1 + 1e-9
            )
    assert worst <= budget * (1 + 1e-9)
    assert worst > 0.5 * budget  # the last turn may be cut off by the end of the run
    assert careless > budget  # had what is drawn the threshold of its own step alone


def test_units_that_return_sooner_than_the_bands_would_move_more() -> None:
    """Why it is refused: columns that overlap add up."""
    whole = matrix(4, 12)
    apart = float((whole[:, [0, 4, 8]].sum(1) ** 2).sum())
    sooner = float((whole[:, [0, 3, 6]].sum(1) ** 2).sum())
    assert apart <= 3 + 1e-9
    assert sooner > 3.1


# Price --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bands", "steps"), [(2, 100), (8, 100), (16, 101)])
def test_the_price_is_that_of_as_many_sampled_gaussians_as_a_unit_has_turns(bands: int, steps: int) -> None:
    rate = 0.01 * bands
    releases = Banded(bands).over(Banded(bands).dealt(Poisson(0.01), 5000), 5000, steps)
    turns = math.ceil(steps / bands)
    assert releases.cost(steps, 1.2, ()) == repeat(poisson_gaussian(1.2, rate), turns)
    charged = dict(releases.charge(step, 1.2, ()) for step in range(steps))
    assert len(charged) == turns
    assert price(compose(list(charged.values())), 1e-5, "rdp") == price(
        releases.cost(steps, 1.2, ()), 1e-5, "rdp"
    )
    assert releases.cost(0, 1.2, ()) == repeat(poisson_gaussian(1.2, rate), 0)
    assert isinstance(releases.charge(0, 0.0, ())[1], NonPrivateDpEvent)


@pytest.mark.parametrize(
    ("sampling", "count"),
    [(FixedOrder(100), 4), (Shuffled(100, every=None), 4), (Separated(10, 7), 5), (Cyclic(1.0, 10), 4)],
    ids=str,
)
def test_without_amplification_a_unit_pays_each_time_it_takes_part(sampling: Sampling, count: int) -> None:
    releases = Banded(8).over(sampling, 1000, 40)
    assert releases.cost(40, 2.0, ()) == SelfComposedDpEvent(GaussianDpEvent(2.0), count)


def test_probes_are_part_of_the_same_release() -> None:
    releases = banded(4, 20)
    assert releases.split(1.0, [7.124]) == pytest.approx(1.01, abs=1e-4)
    assert releases.charge(0, 1.0, [7.124]) == releases.charge(0, 1.0, [])
    with pytest.raises(ValueError, match="probes alone spend more"):
        releases.split(1.0, [0.5])
    said = releases.explanation(1.0, [7.124])
    assert said is not None
    assert "once in any 4 steps, so 5 times at most in 20" in said
    assert said.endswith("; probes are part of it")


def noise_at(epsilon: float, bands: int, steps: int, per_epoch: int) -> float:
    """Of running sums, at equal epsilon, by RDP."""
    return noise_about(Budget(epsilon, 1e-5), min(1.0, bands / per_epoch), -(-steps // bands)) * error(
        best_column(bands, steps), steps
    )


@pytest.mark.parametrize(
    ("epsilon", "independent", "bands", "related"),
    [(1, 3.786, 8, 3.207), (3, 2.407, 16, 1.401), (8, 1.771, 64, 0.740), (16, 1.449, 200, 0.445)],
)
def test_amplified_bands_have_the_published_noise(
    epsilon: float, independent: float, bands: int, related: float
) -> None:
    """2000 steps in ten epochs, delta 1e-5, by RDP; the noise of running sums for each participation."""

    def noise(bands: int) -> float:
        rate, turns = min(1.0, bands / 200), -(-2000 // bands)
        found = noise_for(Budget(epsilon, 1e-5), lambda z: repeat(poisson_gaussian(z, rate), turns), "rdp")
        return found * error(best_column(bands, 2000), 2000) / 10

    assert noise(1) == pytest.approx(independent, rel=1.2e-3)
    assert noise(bands) == pytest.approx(related, rel=1e-3)


# Plans --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 2.0, 4.0, 8.0, 16.0])
@pytest.mark.parametrize(("steps", "per_epoch"), [(2000, 200), (300, 30), (120, 120)])
def test_planned_bands_are_never_noisier_than_dp_sgd_trees_or_unamplified_bands(
    epsilon: float, steps: int, per_epoch: int
) -> None:
    known = Known(Poisson(1 / per_epoch), 10_000, Budget(epsilon, 1e-5), 1000)
    bands = Banded().planned(steps, per_epoch, known).bands
    assert isinstance(bands, int)
    chosen = noise_at(epsilon, bands, steps, per_epoch)
    one = noise_about(Budget(epsilon, 1e-5), 1.0, 1)  # the multiplier of a single release
    trees = math.sqrt(noise_of_sums(Tree().planned(steps, per_epoch), steps, per_epoch)) * one
    visits = -(-steps // per_epoch)
    whole = error(best_column(per_epoch, steps), steps) * math.sqrt(visits) * one
    assert chosen <= 1.002 * min(noise_at(epsilon, 1, steps, per_epoch), whole)
    assert chosen < trees


def test_a_plan_depends_on_the_budget_and_says_what_was_chosen() -> None:
    def chosen(epsilon: float) -> Any:
        return Banded().planned(2000, 200, Known(Poisson(1 / 200), 10_000, Budget(epsilon, 1e-5), 10)).bands

    assert [chosen(epsilon) for epsilon in (0.1, 1, 3, 16)] == [1, 8, 16, 200]
    assert chosen(3) == chosen(3)
    assert Banded(5).planned(2000, 200).bands == 5  # what was given stays


def test_without_a_budget_poisson_samples_get_independent_noise_and_orders_all_bands() -> None:
    assert Banded().planned(2000, 200, Known(Poisson(1 / 200), 10_000)).bands == 1
    for sampling in (FixedOrder(50), Shuffled(50), Separated(10, 199)):
        assert Banded().planned(2000, 200, Known(sampling, 10_000)).bands == 200
        assert Banded().planned(30, 200, Known(sampling, 10_000)).bands == 30
    assert Banded().planned(2000, 1, Known(FixedOrder(100), 100)).bands == 1  # all units in every batch


def test_what_is_remembered_fits_the_memory() -> None:
    many = 10_000_000
    bands = Banded().planned(2000, 200, Known(FixedOrder(50), 10_000, None, many)).bands
    assert isinstance(bands, int)
    assert (bands - 1) * many * 8 <= module.MEMORY < bands * many * 8
    few = Banded().planned(2000, 200, Known(Poisson(1 / 200), 10_000, Budget(16, 1e-5), many)).bands
    assert isinstance(few, int)
    assert few <= bands


def test_candidates_rise_and_end_with_all_of_an_epoch() -> None:
    assert list(module._candidates(1)) == [1]
    assert list(module._candidates(6)) == [1, 2, 3, 4, 6]
    assert list(module._candidates(29)) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 29]
    assert list(module._candidates(32)) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]


def rows(count: int = 240, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 5, generator=generator)
    return x, (x[:, 0] > 0).long()


def composed(noise: Banded | str, clip: Any = None) -> Method:
    return method(clip=clip or Fixed(1.0), step=Sgd(), rate=Constant(0.3), noise=noise)


loss = nn.CrossEntropyLoss(reduction="none")


def test_a_run_keeps_its_budget_and_writes_down_the_bands_it_chose(tmp_path: Path) -> None:
    run = train(
        nn.Linear(5, 2), loss, rows(), method=composed("banded"), budget=(3.0, 1e-3), epochs=6, batch_size=12,
        accountant="rdp", out=tmp_path / "run",
    )  # fmt: skip
    bands = run.summary["method"]["noise"]["bands"]
    assert isinstance(bands, int)
    assert bands > 1
    assert run.summary["sampling"] == "poisson"
    assert run.epsilon <= 3
    assert run.epsilon > 0.98 * 3
    turns = math.ceil(run.summary["batches"] / bands)
    assert run.certificate["events"]["count"] == turns
    assert run.certificate["events"]["event"]["sampling_rate"] == pytest.approx(bands * 12 / 240)
    assert any("by a banded matrix" in line for line in run.certificate["assumptions"])
    assert any(f"units were in {bands} groups" in line for line in run.certificate["assumptions"])


def test_thresholds_may_follow_a_quantile() -> None:
    run = train(
        nn.Linear(5, 2), loss, rows(), method=composed(Banded(4), Quantile(0.5)), noise_multiplier=1.5, delta=1e-3,
        epochs=4, batch_size=20, seed=1,
    )  # fmt: skip
    assert run.summary["noise_multiplier"] == 1.5
    plain = repeat(poisson_gaussian(1.5, 4 / 12), 12)
    assert run.epsilon == pytest.approx(price(plain, 1e-3).epsilon)


# Charges, checkpoints -----------------------------------------------------------------------------------------


def gate_of(seed: int = 1, *, bands: int = 4, clip: Any = None, steps: int = 24) -> Gate:
    torch.manual_seed(0)
    return Gate(
        nn.Linear(5, 2), loss, rows(), clip=clip or Fixed(1.0), noise_multiplier=1.0, sampling=Cyclic(0.5, bands),
        noise=Banded(bands), steps=steps, seed=seed,
    )  # fmt: skip


def test_a_turn_is_paid_for_before_its_first_step() -> None:
    gate = gate_of()
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


@pytest.mark.parametrize("bands", [2, 5, 33])
@pytest.mark.parametrize("clip", [Fixed(1.0), Quantile(0.5)], ids=["fixed", "quantile"])
def test_a_gate_that_is_restored_at_any_step_goes_on_bit_for_bit(
    bands: int, clip: Any, tmp_path: Path
) -> None:
    steps = 24 if bands < 10 else 70
    whole = gate_of(bands=bands, clip=clip, steps=steps)
    expected = [whole().gradient for _ in range(steps)]
    for killed in [*range(1, steps, 5), steps - 1]:
        first = gate_of(bands=bands, clip=clip, steps=steps)
        for _ in range(killed):
            first()
        Checkpoint({"gate": first.state()}).save(tmp_path)
        second = gate_of(bands=bands, clip=clip, steps=steps)
        found = Checkpoint.load(tmp_path)
        assert found is not None
        second.restore(found.state["gate"])
        for step in range(killed, steps):
            assert torch.equal(second().gradient, expected[step]), (killed, step)


def test_a_restored_gate_keeps_the_column_that_it_began_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version might find another, and its noise would not take back what was added."""
    first = gate_of()
    for _ in range(6):
        first()
    state = first.state()
    monkeypatch.setattr(module, "best_column", lambda bands, steps: np.ones(bands) / math.sqrt(bands))
    second = gate_of()
    second.restore(state)
    assert torch.equal(second.noise_state["column"], torch.from_numpy(best_column(4, 24).copy()))


# Refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampling", "bands", "message"),
    [
        (Poisson(0.1), 4, "two steps in a row.*use Cyclic"),
        (Shuffled(10), 4, "two steps in a row"),
        (Shuffled(10, every=3), 4, "two steps in a row"),
        (Shuffled(10, assume_poisson=True), 4, "two steps in a row"),
        (WithoutReplacement(10), 4, "two steps in a row"),
        (Cyclic(0.5, 3), 4, "every 3 steps, and the noise of 4"),
        (FixedOrder(50), 4, "every 2 steps"),
        (Separated(10, 2), 4, "every 3 steps"),
        (Poisson(0.1), "auto", "use Cyclic"),
        (WithoutReplacement(10), "auto", "use Cyclic"),
        (Shuffled(10, assume_poisson=True), "auto", "use Cyclic"),
    ],
    ids=str,
)
def test_samplings_without_a_known_price_are_refused(sampling: Sampling, bands: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Banded(bands).over(sampling, 100, 50)


def test_as_many_bands_as_steps_between_two_turns_are_allowed() -> None:
    for sampling in (Cyclic(0.5, 4), FixedOrder(25), Shuffled(25, every=None), Separated(10, 3)):
        assert Banded(4).over(sampling, 100, 50).cost(50, 1.0, ())
        with pytest.raises(ValueError, match="the noise of 5 is related"):
            Banded(5).over(sampling, 100, 50)


@pytest.mark.parametrize("bands", [0, -1, 2.5, "many", True])
def test_bands_are_a_whole_number_or_auto(bands: Any) -> None:
    with pytest.raises(ValueError, match="bands is a whole number"):
        Banded(bands)


def test_what_is_not_settled_is_not_guessed() -> None:
    with pytest.raises(ValueError, match="say how many are planned"):
        Banded(4).over(Cyclic(0.5, 4), 100, None)
    with pytest.raises(ValueError, match="say how many are planned"):
        Banded().over(Cyclic(0.5, 4), 100, None)
    with pytest.raises(ValueError, match="plan the run first"):
        Banded().dealt(Poisson(0.1), 100)
    with pytest.raises(ValueError, match="follows from the sampling"):
        Banded().planned(100, 10)
    with pytest.raises(ValueError, match="two steps in a row"):
        Banded().planned(100, 10, Known(WithoutReplacement(10), 100))
    with pytest.raises(ValueError, match="at most 3 bands"):
        Banded(4).dealt(Poisson(1 / 3), 90)


def test_what_compares_gradients_is_refused() -> None:
    with pytest.raises(ValueError, match="Online compares gradients"):
        composed(Banded(4), Online())
    with pytest.raises(ValueError, match="Online compares gradients"):
        gate_of(clip=Online())
    with pytest.raises(ValueError, match="compares gradients of different batches"):
        method(clip=Fixed(1.0), step="extrapolation", rate=Tolerance(), noise=Banded(4))
    with pytest.raises(ValueError, match="scales its steps by the noise"):
        method(clip=Fixed(1.0), step="adam-wosm", rate=Constant(0.1), noise=Banded(4))
    assert composed(Banded(1), Online()).noise.independent  # one band is independent noise
    assert method(clip=Fixed(1.0), step="adam", rate=Constant(0.1), noise="banded:4").noise == Banded(4)


def test_auto_over_turns_takes_all_the_bands_there_can_be() -> None:
    releases = Banded().over(Cyclic(0.5, 6), 60, 50)
    assert isinstance(releases, BandedReleases)
    assert releases.bands == 6


def test_more_steps_than_planned_cost_more_and_stay_noisy() -> None:
    """Bands know no end: what is charged is by the turn."""
    releases = banded(3, 6)
    _, stds = released(releases, GaussianNoise(Streams.from_seed(1)), [1.0] * 20, 10)
    exact = np.sqrt(np.cumsum(inverse(best_column(3, 6), 20) ** 2))
    np.testing.assert_allclose(stds, exact)
    assert releases.charge(19, 1.0, ())[0] == "turn:6"


@pytest.mark.parametrize(("bands", "steps"), [(2, 40), (5, 64), (64, 64), (12, 300)])
def test_what_gathers_is_a_row_of_the_dense_matrix(bands: int, steps: int) -> None:
    """The noise of the sum of the first t steps is 1' C^-1 Z: the norm of the sum of the first t rows of C^-1."""
    inverted = np.linalg.inv(matrix(bands, steps))
    for first in (1, steps // 3, steps):
        wanted = float(np.linalg.norm(inverted[:first].sum(0)))
        assert banded(bands, steps).gathered(first) == pytest.approx(wanted, rel=1e-9)
    assert banded(bands, steps).gathered(steps) < math.sqrt(steps) / float(best_column(bands, steps)[0])
