"""Sums and noise on one grid: exact, with tails without an end, and attacks that plain noise does not withstand."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats

from sordino import Budget, Fixed, FixedOrder, Gate, Online, Quantile, Tree, train
from sordino.clipping import ClippingPolicy
from sordino.noise import GaussianNoise, Streams, gaussian
from sordino.noise.gaussian import deepened
from sordino.noise.grid import CHUNK, ROUNDING, grid_for, meet_, rounded_
from sordino.noise.randomness import Reader
from sordino.privacy import price
from sordino.privacy.events import gaussian as gaussian_event
from sordino.privacy.tails import check_reach, delta_beyond

# The grid -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sensitivity", [1e-12, 1e-3, 0.7, 1.0, 1e12])
@pytest.mark.parametrize("size", [1, 7, 10**4, 10**8])
def test_rounding_to_the_grid_is_as_fine_as_is_priced(sensitivity: float, size: int) -> None:
    grid = grid_for(sensitivity, size)
    assert math.log2(grid) == int(math.log2(grid))
    assert ROUNDING / 2 < math.sqrt(size) * grid / sensitivity <= ROUNDING


def test_what_comes_out_is_on_the_grid_and_every_step_of_it_is_as_likely_whatever_the_sum() -> None:
    """The low bits of the output are uniform, for sums with any low bits of their own."""
    size, grid = 60_000, grid_for(1.0, 60_000)
    for seed, total in enumerate((0.0, grid, 3 * grid, 1 / 3, 1e-30, 1000.0, -0.7)):
        vector = torch.full((size,), total, dtype=torch.float64)
        GaussianNoise(Streams.from_seed(seed)).add_(vector, 1.0, "noise", 0, grid)
        steps = (vector / grid).numpy()
        assert np.array_equal(steps, np.rint(steps))
        counts = np.bincount(steps.astype(np.int64) % 16, minlength=16)
        assert stats.chisquare(counts).pvalue > 1e-6
        assert stats.kstest(vector.numpy() - total, "norm").pvalue > 1e-4


def test_the_same_noise_is_added_to_neighbouring_sums_exactly() -> None:
    """In exact arithmetic the outputs differ by what the rounded sums differ by, to the last bit."""
    grid, sums = grid_for(1.0, CHUNK + 5), torch.randn(2, CHUNK + 5, dtype=torch.float64) * 300
    noised = [GaussianNoise(Streams.from_seed(1)).add_(s.clone(), 2.0, "noise", 3, grid) for s in sums]
    whole = [rounded_(s.clone(), grid) for s in sums]
    assert torch.equal(noised[0] / grid - noised[1] / grid, whole[0] - whole[1])
    assert float((whole[0] * grid - sums[0]).abs().max()) <= grid / 2


def test_noise_put_together_elsewhere_meets_the_sum_on_the_grid() -> None:
    grid, total, noise = 2.0**-20, torch.randn(CHUNK + 3), torch.randn(CHUNK + 3, dtype=torch.float64)
    expected = (total.double() / grid).round() + (noise / grid).round()
    meet_(total, noise, grid)
    assert torch.equal(total, (expected * grid).float())


def test_so_much_noise_that_it_would_not_be_exact_is_refused() -> None:
    with pytest.raises(ValueError, match="smaller noise multiplier"):
        GaussianNoise(Streams.from_seed(1)).add_(torch.zeros(100), 1e12, "noise", 0, grid_for(1.0, 100))


def test_sums_beyond_exact_numbers_are_cut_off() -> None:
    values = torch.tensor([1e30, -1e30, 1.0], dtype=torch.float64)
    assert rounded_(values, 1.0).tolist() == [2.0**51, -(2.0**51), 1.0]


@pytest.mark.parametrize("noise", [None, Tree(restart_every=1)])
@pytest.mark.parametrize("clip", [Fixed(1.0), Quantile(0.5, 1.0), Online(1.0)])
def test_all_that_leaves_a_gate_is_noised_on_a_grid(
    clip: ClippingPolicy, noise: Tree | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[tuple[torch.Tensor, float]] = []
    add, meet = GaussianNoise.add_, meet_

    def added(
        self: GaussianNoise, vector: torch.Tensor, std: float, purpose: str, step: int, grid: float
    ) -> torch.Tensor:
        left.append((add(self, vector.to(torch.float64, copy=True), std, purpose, step, grid), grid))
        return vector

    def met(total: torch.Tensor, noise: torch.Tensor, grid: float) -> None:
        total = total.to(torch.float64, copy=True)
        meet(total, noise, grid)
        left.append((total, grid))

    monkeypatch.setattr(GaussianNoise, "add_", added)
    monkeypatch.setattr("sordino.noise.tree.meet_", met)
    model, data = torch.nn.Linear(5, 3), (torch.randn(40, 5), torch.randint(3, (40,)))
    loss = torch.nn.CrossEntropyLoss(reduction="none")
    gate = Gate(
        model, loss, data, clip=clip, noise_multiplier=1.0, sampling=FixedOrder(10), noise=noise, seed=3
    )
    for _ in range(4):
        gate(adapt=False)
    assert len(left) == 4 * (1 + len(gate.clip.probes(1.0, 10.0)))
    for vector, grid in left:
        assert torch.equal(vector / grid, (vector / grid).round())


# The tail -------------------------------------------------------------------------------------------------------


class Scripted(Reader):
    """A stream whose words are given."""

    def __init__(self, *words: int) -> None:
        self.words = list(words)

    def word(self) -> int:
        return self.words.pop(0)


def test_a_uniform_number_in_the_tail_gets_further_bits() -> None:
    assert deepened(5 * 2.0**-52, Scripted(2**64 - 1)) == 5 * 2.0**-52  # the upper end of what it stands for
    assert deepened(5 * 2.0**-52, Scripted(0)) == pytest.approx(4 * 2.0**-52, rel=1e-12)
    assert deepened(2.0**-52, Scripted(2**63)) == pytest.approx(2.0**-53)
    assert deepened(2.0**-52, Scripted(0, 2**63)) == pytest.approx(2.0**-105)
    assert deepened(2.0**-52, Scripted(0, 0, 0, 2**63)) == pytest.approx(2.0**-209)


def test_noise_has_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stream of ones for the radius, then zeros for its further bits, the normal is as far out as those go."""
    fill = Reader.fill
    words = iter([0, 0, 0, 2**63])

    def extreme(self: Reader, buffer: memoryview) -> None:
        fill(self, buffer)
        np.frombuffer(buffer, dtype=np.uint64)[0] = (
            2**64 - 1
        )  # the smallest uniform number, after it was turned round

    monkeypatch.setattr(Reader, "fill", extreme)
    monkeypatch.setattr(Reader, "word", lambda self: next(words))
    vector = torch.zeros(2, dtype=torch.float64)
    GaussianNoise(Streams.from_seed(1)).accumulate_(vector, 1.0, "noise", 0)
    assert float(vector.norm()) == pytest.approx(math.sqrt(2 * 209 * math.log(2)))
    assert float(vector.norm()) > 17


def test_the_tail_has_the_weight_it_should_have() -> None:
    """Three million normals beyond four standard deviations, and no other size of noise has as many."""
    size, values = 3_000_000, torch.zeros(3_000_000, dtype=torch.float64)
    GaussianNoise(Streams.from_seed(5)).accumulate_(values, 1.0, "noise", 0)
    for far in (3.0, 4.0, 4.5):
        beyond, expected = int((values.abs() > far).sum()), 2 * stats.norm.sf(far) * size
        assert stats.poisson.ppf(1e-6, expected) <= beyond <= stats.poisson.ppf(1 - 1e-6, expected)
        assert (
            not stats.poisson.ppf(1e-6, 2 * stats.norm.sf(far * 1.2) * size)
            <= beyond
            <= stats.poisson.ppf(1 - 1e-6, 2 * stats.norm.sf(far * 1.2) * size)
        )


def test_plans_whose_noise_would_end_too_early_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = torch.randn(200, 3), torch.randint(2, (200,))
    loss = torch.nn.CrossEntropyLoss(reduction="none")
    budget = Budget(8.0, 1e-7)
    train(torch.nn.Linear(3, 2), loss, data, budget=budget, epochs=1, accountant="rdp", progress=False)
    monkeypatch.setattr(gaussian, "REACH", math.sqrt(2 * 31 * math.log(2)))
    with pytest.raises(ValueError, match=r"ends at 6\.56 standard deviations"):
        train(torch.nn.Linear(3, 2), loss, data, budget=budget, epochs=1, accountant="rdp", progress=False)


def test_what_a_tail_that_ends_adds_to_delta() -> None:
    """The two figures of the finding: 81 times delta, and 1,790 times."""
    reach = math.sqrt(2 * 31 * math.log(2))
    assert delta_beyond(reach, 0.4318, 1500, 0.004) > 10 * 1e-7
    # Radii are those of pairs of coordinates: of one alone it would be a few times less.
    assert delta_beyond(6.56, 0.5, 3000, 0.004) == pytest.approx(5.7e-5, rel=0.02)
    assert delta_beyond(math.inf, 0.01, 10**9) == 0.0
    assert delta_beyond(5.0, 0.0, 10) == 0.0
    assert delta_beyond(1.0, 0.01, 10) == pytest.approx(1.0)
    check_reach(gaussian.REACH, 0.01, 10**6, 1e-12)


# The attacks ----------------------------------------------------------------------------------------------------

STD, DELTA, TRIES = 4.0, 1e-5, 30_000
CLAIMED = price(gaussian_event(STD), DELTA).epsilon
Mechanism = Callable[
    [float, int], np.ndarray
]  # sums of sensitivity 1, noised: [tries, 2] in single precision


def forward(radius: np.ndarray, angle: np.ndarray) -> np.ndarray:
    """Box-Muller in single precision from uniform numbers of 24 bits: what `Tensor.normal_` does."""
    u, v = (
        np.float32(1) - radius.astype(np.float32) * np.float32(2**-24),
        angle.astype(np.float32) * np.float32(2**-24),
    )
    r = np.sqrt(np.float32(-2) * np.log(u))
    theta = np.float32(2 * np.pi) * v
    return np.stack([r * np.cos(theta), r * np.sin(theta)], -1) * np.float32(STD)


def plain(total: float, seed: int) -> np.ndarray:
    bits = np.random.default_rng(seed).integers(0, 2**24, size=(2, TRIES))
    found: np.ndarray = np.array([total, 0.0], dtype=np.float32) + forward(bits[0], bits[1])
    return found


def ours(total: float, seed: int) -> np.ndarray:
    # Chunks are of pairs (i, i + half): the same pair of normals as above.
    vector = torch.zeros(2 * TRIES)
    vector[:TRIES] = total
    GaussianNoise(Streams.from_seed(seed)).add_(vector, STD, "noise", 0, grid_for(1.0, 2))
    return vector.view(2, TRIES).t().numpy()


def low_bits(outputs: np.ndarray) -> np.ndarray:
    """Mironov (2012): near 0, a sum of 1 and noise is a multiple of 2^-23, while noise alone has finer bits."""
    first = outputs[:, 0].astype(np.float64)
    found: np.ndarray = (np.abs(first) < 0.25) & (first * 2**23 == np.rint(first * 2**23))
    return found


def attainable(outputs: np.ndarray) -> np.ndarray:
    """Jin et al. (2022), against DP-SGD: if the sum is 0, is there a pair of uniform numbers that makes this noise?"""
    x = outputs.astype(np.float64) / STD
    radius = np.rint(-np.expm1(-0.5 * (x**2).sum(1)) * 2**24).astype(np.int64)
    angle = np.rint(np.arctan2(x[:, 1], x[:, 0]) / (2 * np.pi) % 1 * 2**24).astype(np.int64)
    found = np.zeros(len(x), dtype=bool)
    for dr in range(-6, 7):
        for da in range(-3, 4):
            with np.errstate(divide="ignore", invalid="ignore"):
                made = forward(np.clip(radius + dr, 0, 2**24 - 1), (angle + da) % 2**24)
            found |= (made == outputs).all(1)
    return found


def proven(attack: Callable[[np.ndarray], np.ndarray], mechanism: Mechanism, likelier: float) -> float:
    """A lower bound on epsilon, wrong with probability 1e-6 at most: the attack's event under either sum."""
    other = 1.0 - likelier
    hits, misses = int(attack(mechanism(likelier, 11)).sum()), int(attack(mechanism(other, 12)).sum())
    least = stats.beta.ppf(5e-7, hits, TRIES - hits + 1) if hits else 0.0
    most = stats.beta.ppf(1 - 5e-7, misses + 1, TRIES - misses)
    return math.log((least - DELTA) / most) if least > DELTA else -math.inf


@pytest.mark.parametrize(("attack", "likelier"), [(low_bits, 1.0), (attainable, 0.0)])
def test_attacks_on_floating_point_succeed_on_plain_noise_and_fail_on_ours(
    attack: Callable[[np.ndarray], np.ndarray], likelier: float
) -> None:
    assert 0.8 < CLAIMED < 1.2
    assert proven(attack, plain, likelier) > 1.5 * CLAIMED
    assert proven(attack, ours, likelier) < CLAIMED
