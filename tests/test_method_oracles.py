"""Whole methods through the real gate and the real loop, against plain loops over single examples.

The oracle is softmax regression in NumPy, one gradient at a time. Every row is in every batch (a sampling rate
of 1), and noise is none, or what the test hands out.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sordino.gate as gate_module
import sordino.training as training
from conftest import cross_entropy
from sordino import Method, Quantile, Released, Run, train
from sordino.clipping import Fixed, Normalised, Online
from sordino.gate import Door, Gate
from sordino.methods import dp_ftrl, method
from sordino.noise import GaussianNoise
from sordino.privacy.events import event_from_json, leaves
from sordino.rates import DistanceOverGradients, Hypergradient, Tolerance
from sordino.steps import Extrapolation, Sgd

Vector = np.ndarray[Any, Any]


def single(values: Vector) -> Vector:
    """Doubles that are single-precision numbers: what the model will see."""
    return values.astype(np.float32).astype(np.float64)


class Problem:
    """A few random rows of three classes, and single gradients of softmax regression on them."""

    def __init__(self, seed: int, rows: int = 9, features: int = 4, classes: int = 3) -> None:
        chance = np.random.default_rng(seed)
        self.x = single(chance.normal(size=(rows, features)) * chance.uniform(0.1, 3, size=(rows, 1)))
        self.y = chance.integers(0, classes, rows)
        self.model = nn.Linear(features, classes)
        self.start = single(chance.normal(size=(features + 1) * classes))
        self.rows, self.features, self.classes = rows, features, classes
        self.put(self.start)

    def put(self, theta: Vector) -> None:
        split = self.features * self.classes
        with torch.no_grad():
            self.model.weight.copy_(torch.from_numpy(theta[:split].reshape(self.classes, -1)))
            self.model.bias.copy_(torch.from_numpy(theta[split:]))

    @property
    def data(self) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(self.x).float(), torch.from_numpy(self.y)

    def gradients(self, theta: Vector) -> list[Vector]:
        split = self.features * self.classes
        weight, bias = theta[:split].reshape(self.classes, -1), theta[split:]
        found = []
        for row, label in zip(self.x, self.y, strict=True):
            scores = [float(sum(weight[k] * row)) + bias[k] for k in range(self.classes)]
            total = sum(math.exp(s) for s in scores)
            off = [math.exp(scores[k]) / total - (k == label) for k in range(self.classes)]
            found.append(np.concatenate([*(o * row for o in off), np.array(off)]))
        return found


def length(v: Vector) -> float:
    return math.sqrt(sum(float(a) * float(a) for a in v))


def clipped_sum(gradients: list[Vector], threshold: float) -> Vector:
    return sum(g / max(1.0, length(g) / threshold) for g in gradients)  # type: ignore[return-value]


def directions_of_the_clipped(gradients: list[Vector], threshold: float) -> Vector:
    return sum(g / length(g) if length(g) > threshold else 0 * g for g in gradients)  # type: ignore[return-value]


def given(purpose: str, step: int, size: int) -> Vector:
    """Standard noise that the oracle knows as well."""
    return np.random.default_rng([zlib.crc32(purpose.encode()), step]).normal(size=size)


@pytest.fixture
def given_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    def add_(self: Any, vector: Tensor, std: float, purpose: str, step: int, grid: float) -> Tensor:
        return vector.add_(torch.from_numpy(std * given(purpose, step, vector.numel())).to(vector.dtype))

    def accumulate_(self: Any, vector: Tensor, std: float, purpose: str, step: int) -> None:
        add_(self, vector, std, purpose, step, 1.0)

    monkeypatch.setattr(GaussianNoise, "add_", add_)
    monkeypatch.setattr(GaussianNoise, "accumulate_", accumulate_)
    monkeypatch.setattr(gate_module, "ROOM", 0.0)  # for rounding, of which oracles know nothing


@dataclass
class Seen:
    """What a run released and what it was charged."""

    run: Run
    gate: Any  # none in a fixed order
    released: list[Released]
    theta: Vector

    def of(self, key: str) -> list[Any]:
        return [line.get(key) for line in self.run.history]


@dataclass
class Expected:
    rates: list[float] = field(default_factory=list)
    thresholds: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    theta: Vector = field(default_factory=lambda: np.zeros(0))


def train_on(
    problem: Problem, used: Method, epochs: float, nu: float = 0.0, batch: int | None = None
) -> Seen:
    """Up to forty steps, so that history has them all."""
    gates, released = list[Gate](), list[Released]()
    original = Door.__call__

    def spied(gate: Any, *args: Any, **kwargs: Any) -> Released:
        gates.append(gate)
        released.append(original(gate, *args, **kwargs))
        return released[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Door, "__call__", spied)
        run = train(
            problem.model,
            cross_entropy,
            problem.data,
            method=used,
            epochs=epochs,
            batch_size=problem.rows if batch is None else batch,
            noise_multiplier=nu,
            delta=1e-3 if nu else None,
            accountant="rdp",
            seed=1,
        )
    model = run.model
    theta = np.concatenate([p.detach().numpy().flatten() for p in model.parameters()])
    return Seen(run, gates[-1], released, theta)


def agree(seen: Seen, expected: Expected, rel: float = 1e-4) -> None:  # the model is in single precision
    assert seen.of("rate") == pytest.approx(expected.rates, rel=rel)
    if expected.thresholds:
        assert seen.of("threshold") == pytest.approx(expected.thresholds, rel=rel)
    assert list(seen.theta) == pytest.approx(list(expected.theta), rel=rel, abs=1e-5)


# ADADP ----------------------------------------------------------------------------------------------------


def adadp_oracle(
    problem: Problem, pairs: int, singles: int, keep: str, exponent: float, discard: bool, tol: float
) -> Expected:
    """ALGORITHMS.md 1.1 with means of gradients clipped to 0.5, from a rate of 2, one batch an epoch."""

    def mean(theta: Vector) -> Vector:
        return clipped_sum(problem.gradients(theta), 0.5) / problem.rows

    expected, theta, eta = Expected(), problem.start, 2.0
    for _ in range(pairs):
        one = mean(theta)
        full, half = theta - eta * one, theta - eta / 2 * one
        hat = half - eta / 2 * mean(half)
        error = length(np.array([abs(f - h) / max(1.0, abs(f)) for f, h in zip(full, hat, strict=True)]))
        expected.rates.append(eta)
        expected.errors.append(error)
        if not (discard and error > tol):
            theta = hat if keep == "hat" else full
        eta *= min(max((tol / error) ** exponent, 0.9), 1.1)
    for k in range(1, singles + 1):
        expected.rates.append(eta / (1 + 0.1 * k))
        theta = theta - expected.rates[-1] * mean(theta)
    expected.theta = theta
    return expected


@pytest.mark.parametrize(
    ("keep", "exponent", "discard", "freeze_after"),
    [
        ("hat", 1.0, False, None),
        ("hat", 1.0, False, 12),
        ("hat", 1.0, True, 12),
        ("hat", 0.5, False, 12),
        ("hat", 0.5, True, None),
        ("full", 1.0, False, 12),
        ("full", 1.0, True, None),
        ("full", 0.5, False, None),
    ],
)
def test_adadp(keep: str, exponent: float, discard: bool, freeze_after: float | None) -> None:
    problem, tol = Problem(seed=len(keep) + int(2 * exponent)), 0.01
    used = method(
        clip=Fixed(0.5),
        step=Extrapolation(keep, freeze_after),
        rate=Tolerance(2.0, tol, exponent, discard=discard),
    )
    pairs, singles = (10, 0) if freeze_after is None else (6, 8)
    expected = adadp_oracle(problem, pairs, singles, keep, exponent, discard, tol)
    seen = train_on(problem, used, epochs=20)
    agree(seen, expected)
    assert seen.of("error")[:pairs] == pytest.approx(expected.errors, rel=1e-3)
    assert seen.of("error")[pairs:] == [None] * singles
    assert seen.run.summary["steps"] == pairs + singles
    assert len(seen.released) == seen.run.summary["batches"] == 2 * pairs + singles == 20
    assert max(expected.errors) > tol or not discard  # some step was taken back


@pytest.mark.parametrize("batches", [1, 5, 7])
@pytest.mark.parametrize("freeze_after", [None, 2.0])
def test_adadp_is_charged_for_two_batches_a_step(batches: int, freeze_after: float | None) -> None:
    """Odd plans included: what is drawn, what was planned and what is charged are one number."""
    used = method(
        clip=Quantile(0.5, 0.2), step=Extrapolation(freeze_after=freeze_after), rate=Tolerance(tol=0.5)
    )
    seen = train_on(Problem(3), used, epochs=batches / 3, nu=1.0, batch=3)
    steps, drawn = used.step.steps(batches, 3.0)
    summary = seen.run.summary
    assert (summary["steps"], summary["batches"]) == (steps, drawn)
    assert seen.gate.ledger.charges == len(seen.released) == drawn
    errors = [e is not None for e in seen.of("error")]
    assert drawn == 2 * sum(errors) + errors.count(False)
    assert errors == sorted(errors, reverse=True)
    assert freeze_after is not None or all(errors)
    event = event_from_json(seen.run.certificate["events"])
    assert sum(count for _, count in leaves(event)) == drawn


def test_a_discarded_step_is_charged_all_the_same() -> None:
    problem = Problem(4)
    used = method(clip=Fixed(0.5), step=Extrapolation(), rate=Tolerance(1.0, tol=1e-9, discard=True))
    seen = train_on(problem, used, epochs=6, nu=1.0)
    assert list(seen.theta) == list(problem.start)  # every step was taken back
    assert seen.of("rate") == pytest.approx([1.0, 0.9, 0.81])
    assert seen.gate.ledger.charges == 6


def test_both_calls_of_a_step_share_a_quantile_threshold() -> None:
    """And it moves once, by the mean of what the two calls said."""
    used = method(clip=Quantile(0.5, 0.2), step=Extrapolation(), rate=Tolerance(0.5, tol=0.5))
    seen = train_on(Problem(5), used, epochs=16, nu=1.0)
    threshold = 0.2
    for one, two in zip(seen.released[::2], seen.released[1::2], strict=True):
        assert one.threshold == two.threshold == pytest.approx(threshold, rel=1e-12)
        within = (one.probes["fraction_within"] + two.probes["fraction_within"]) / 2 + 0.5
        threshold *= math.exp(-0.2 * (min(1.0, max(0.0, within)) - 0.5))
    assert seen.gate.threshold == pytest.approx(threshold, rel=1e-12)


@pytest.mark.parametrize("nu", [0.0, 0.7])
@pytest.mark.usefixtures("given_noise")
def test_adadp_with_an_online_threshold(nu: float) -> None:
    """C moves once a step by the sign of <G2, q1>; after the freeze by <g, q of the step before>."""
    problem, tol, speed = Problem(6), 0.05, 0.05
    used = method(
        clip=Online(0.5, speed),
        step=Extrapolation(freeze_after=20),
        rate=Tolerance(1.0, tol),
    )
    seen = train_on(problem, used, epochs=30, nu=nu)
    theta, eta, threshold, call, q = problem.start, 1.0, 0.5, 0, None
    size, nu_g, nu_q = len(theta), 1.01 * nu, 7.123990720172 * nu
    expected, per_call = Expected(), list[float]()

    def ask(at: Vector) -> tuple[Vector, Vector]:
        nonlocal call
        gradients, number = problem.gradients(at), call
        call += 1
        per_call.append(threshold)
        gradient = clipped_sum(gradients, threshold) + nu_g * threshold * given("noise", number, size)
        derivative = directions_of_the_clipped(gradients, threshold) + nu_q * given("noise:q", number, size)
        return gradient / problem.rows, derivative / problem.rows

    for step in range(20):
        expected.thresholds.append(threshold)
        one, q_one = ask(theta)
        if step < 10:
            expected.rates.append(eta)
            full, half = theta - eta * one, theta - eta / 2 * one
            two, q = ask(half)
            theta = half - eta / 2 * two
            error = length((full - theta) / np.maximum(1, np.abs(full)))
            eta *= min(max(tol / error, 0.9), 1.1)
            threshold *= math.exp(speed * np.sign(sum(two * q_one)))
        else:
            expected.rates.append(eta / (1 + 0.1 * (step - 9)))
            theta = theta - expected.rates[-1] * one
            threshold *= math.exp(speed * np.sign(sum(one * q)))
            q = q_one
    expected.theta = theta
    agree(seen, expected)
    assert [r.threshold for r in seen.released] == pytest.approx(per_call, rel=1e-4)
    assert seen.gate.threshold == pytest.approx(threshold, rel=1e-4)
    for first, second in zip(seen.released[:20:2], seen.released[1:20:2], strict=True):
        assert first.threshold == second.threshold
    assert len({round(c, 9) for c in per_call}) > 3


# OSO ------------------------------------------------------------------------------------------------------


def oso_oracle(problem: Problem, kind: str, momentum: float, nu: float, steps: int, share: float) -> Expected:
    """ALGORITHMS.md 4.1, with nu_g = share * nu, speeds of 0.05, from C = 0.5 and a rate of 0.8."""
    expected, theta = Expected(), problem.start
    threshold, rho, speed, size = 0.5, 0.8, 0.05, len(theta)
    nu_g = share * nu
    nu_q = (nu**-2 - nu_g**-2) ** -0.5 if nu else 0.0
    velocity, q = np.zeros(size), np.zeros(size)

    def move(product: float, lengths: float) -> float:
        if kind == "sign":
            return math.exp(speed * ((product > 0) - (product < 0)))
        return 1 + speed * product / lengths if lengths else 1.0

    for step in range(steps):
        gradients = problem.gradients(theta)
        gradient = clipped_sum(gradients, threshold) + nu_g * threshold * given("noise", step, size)
        derivative = directions_of_the_clipped(gradients, threshold) + nu_q * 1.0 * given(
            "noise:q", step, size
        )
        gradient, derivative = gradient / problem.rows, derivative / problem.rows
        expected.thresholds.append(threshold)
        expected.rates.append(rho)
        before = velocity
        velocity = momentum * velocity + gradient
        theta = theta - rho * velocity
        threshold *= move(float(sum(gradient * q)), length(gradient) * length(q))
        rho *= move(float(sum(gradient * before)), length(gradient) * length(before))
        q = derivative
    expected.theta = theta
    return expected


@pytest.mark.parametrize(
    ("kind", "momentum", "nu", "share", "seed"),
    [
        ("sign", 0.0, 0.0, 1.01, 1),
        ("sign", 0.0, 0.6, 1.01, 2),
        ("sign", 0.0, 0.6, 1.5, 3),
        ("sign", 0.6, 0.0, 1.01, 4),
        ("sign", 0.6, 0.6, 1.01, 5),
        ("cosine", 0.0, 0.0, 1.01, 6),
        ("cosine", 0.0, 0.6, 1.5, 7),
        ("cosine", 0.6, 0.6, 1.01, 8),
    ],
)
@pytest.mark.usefixtures("given_noise")
def test_oso(kind: str, momentum: float, nu: float, share: float, seed: int) -> None:
    """Thirty steps, without noise and with noise that is handed out: nu_g C on one sum and nu_q on the other."""
    problem = Problem(seed)
    used = method(
        clip=Online(0.5, 0.05, share, kind), step=Sgd(momentum), rate=Hypergradient(0.8, 0.05, kind)
    )
    expected = oso_oracle(problem, kind, momentum, nu, 30, share)
    seen = train_on(problem, used, epochs=30, nu=nu)
    agree(seen, expected)
    assert len(seen.released) == seen.gate.ledger.charges == 30
    assert len({round(c, 9) for c in expected.thresholds}) > 3
    assert len({round(r, 9) for r in expected.rates}) > 3


# DoG ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("nu", "seed"), [(0.0, 1), (0.6, 2)])
@pytest.mark.usefixtures("given_noise")
def test_dog(nu: float, seed: int) -> None:
    problem = Problem(seed)
    used = method(clip=Normalised(0.02), step=Sgd(), rate=DistanceOverGradients(0.1))
    expected, theta = Expected(), problem.start
    farthest, squares = 0.1 * (1 + length(theta)), 0.0
    for step in range(20):
        total = nu * given("noise", step, len(theta))
        for gradient in problem.gradients(theta):
            total = total + gradient / (length(gradient) + 0.02)
        mean = total / problem.rows
        squares += length(mean) ** 2
        expected.rates.append(farthest / math.sqrt(squares))
        theta = theta - expected.rates[-1] * mean
        farthest = max(farthest, length(theta - problem.start))
    expected.theta = theta
    seen = train_on(problem, used, epochs=20, nu=nu)
    agree(seen, expected, rel=1e-3)  # where rates grow, so do errors of rounding
    assert set(seen.of("threshold")) == {None}
    assert farthest > 0.1 * (1 + length(problem.start))


# DP-FTRL ----------------------------------------------------------------------------------------------------


def tree_noise_of_prefixes(
    number: int, stds: list[float], efficient: bool, completed: bool, size: int
) -> list[Vector]:
    """The noise of a tree's running sums; ``stds`` are z times the thresholds of its leaves.

    What is given as the noise of a step goes to the topmost node that it completes: in the efficient tree with the
    variance of the whole path to it, whose other nodes then have none.
    """
    steps, top = len(stds), (len(stds) - 1).bit_length()
    values: dict[tuple[int, int], Vector] = {}  # by height and first leaf
    for end in range(1, steps + 1):
        highest = top if completed and end == steps else (end & -end).bit_length() - 1
        firsts = [(end - 1) >> height << height for height in range(highest + 1)]
        path = [max(stds[first:end]) for first in firsts]
        for height, first in enumerate(firsts):
            values[height, first] = np.zeros(size)
        if efficient:
            std = math.sqrt(sum(s**2 / 4 ** (highest - height) for height, s in enumerate(path)))
        else:
            std = path[-1]
        values[highest, firsts[-1]] = std * given(f"noise:tree:{highest}", (number << 40) + end, size)

    def estimate(height: int, first: int) -> Vector:
        if (height, first) not in values:
            return np.zeros(size)  # steps without data
        below = np.zeros(size)
        if height:
            below = (estimate(height - 1, first) + estimate(height - 1, first + (1 << height - 1))) / 2
        return values[height, first] + below

    prefixes = []
    for t in range(1, steps + 1):
        nodes = [(h, (t >> h << h) - (1 << h)) for h in range(t.bit_length()) if t >> h & 1]
        if completed and t == steps:
            nodes = [(top, 0)]
        total = np.zeros(size)
        for h, first in nodes:
            total = total + (estimate(h, first) / (2 - 2.0**-h) if efficient else values[h, first])
        prefixes.append(total)
    return prefixes


@pytest.mark.parametrize("efficient", [True, False])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(("restart_every", "completion"), [(1, False), (2, True), (2, False), (None, True)])
@pytest.mark.usefixtures("given_noise")
def test_dp_ftrl(efficient: bool, momentum: float, restart_every: int | None, completion: bool) -> None:
    """theta_0 - s / lambda on the noisy running sum; a restart freezes the noise. Nine batches, of one row each."""
    problem, rate, z, epochs, threshold = Problem(5), 0.05, 0.7, 4, 0.8
    used = dp_ftrl(rate, threshold, momentum, efficient, restart_every=restart_every, completion=completion)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "_LOGGED_STEPS", 36)
        seen = train_fixed_order(problem, used, epochs, z)
    steps, size = 9 * epochs, len(problem.start)
    leaves = steps if restart_every is None else 9 * restart_every
    noise, frozen = list[Vector](), np.zeros(size)
    for number, first in enumerate(range(0, steps, leaves)):
        full = completion and first + leaves < steps
        prefixes = tree_noise_of_prefixes(number, [z * threshold] * leaves, efficient, full, size)
        noise += [frozen + p for p in prefixes]
        frozen = noise[-1]
    theta, total, velocity = problem.start.copy(), np.zeros(size), np.zeros(size)
    for step in range(steps):
        total = total + clipped_sum([problem.gradients(theta)[step % 9]], threshold)
        velocity = momentum * velocity + total + noise[step]
        theta = problem.start - rate * velocity
    np.testing.assert_allclose(seen.theta, theta, rtol=1e-4, atol=1e-4)


def train_fixed_order(problem: Problem, used: Method, epochs: float, z: float) -> Seen:
    run = train(
        problem.model, cross_entropy, problem.data, method=used, epochs=epochs, batch_size=1, noise_multiplier=z,
        delta=1e-3, accountant="rdp", seed=1, sampling="fixed-order",
    )  # fmt: skip
    theta = np.concatenate([p.detach().numpy().flatten() for p in run.model.parameters()])
    return Seen(run, None, [], theta)


@pytest.mark.parametrize("efficient", [True, False])
@pytest.mark.usefixtures("given_noise")
def test_dp_ftrl_with_a_threshold_that_moves(efficient: bool) -> None:
    """A node is noised by the largest threshold of its leaves, and the count of a step by noise of its own."""
    problem, rate, z, steps = Problem(6), 0.05, 0.7, 18
    used = dp_ftrl(rate, 0.8, 0.0, efficient, restart_every=None, target_quantile=0.4)
    seen = train_fixed_order(problem, used, 2, z)
    size, threshold = len(problem.start), 0.8
    theta, total, stds = problem.start.copy(), np.zeros(size), list[float]()
    for step in range(steps):
        gradient = problem.gradients(theta)[step % 9]
        total = total + clipped_sum([gradient], threshold)
        stds.append(z * threshold)
        theta = problem.start - rate * (total + tree_noise_of_prefixes(0, stds, efficient, False, size)[-1])
        within = float(length(gradient) <= threshold) - 0.5
        within += max(1 / 20, z) * float(given("noise:fraction_within", step, 1)[0])
        threshold *= math.exp(-0.2 * (min(1.0, max(0.0, within + 0.5)) - 0.4))
    np.testing.assert_allclose(seen.theta, theta, rtol=1e-4, atol=1e-4)
    assert seen.of("threshold")[-1] == pytest.approx(stds[-1] / z, rel=1e-5)
