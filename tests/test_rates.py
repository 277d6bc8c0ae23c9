"""Rate controllers against golden values and plain loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from conftest import Answer, plan_of, vector
from sordino.clipping import Online
from sordino.hypergradient import factor
from sordino.models import mnist_mlp
from sordino.rates import (
    DistanceOverGradients,
    Hypergradient,
    RateController,
    Scheduled,
    Tolerance,
    Travel,
    default_tolerance,
)
from sordino.rates.travel import default_travel
from sordino.steps import Extrapolation, Field, Sgd, StepResult, StepRule
from sordino.vector import ParameterVector


def train(
    step: StepRule, rate: RateController, field: Field, theta: Tensor, steps: int, **public: Any
) -> tuple[list[StepResult], list[dict[str, Any]]]:
    """The loop of training.py without its gate: results, and the controller's state after each step."""
    batches = 2 * steps if isinstance(step, Extrapolation) else steps
    numbers = plan_of(steps=steps, batches=batches, parameters=len(theta), **public)
    step_state, state = step.start(theta, numbers), rate.start(numbers, theta)
    results, states = [], []
    for number in range(steps):
        ask = lambda first, n=number, s=state: rate.rate(n, s, first)  # noqa: E731
        results.append(step.step(field, theta, ask, step_state, rate.limit(state)))
        state = rate.update(state, results[-1], theta)
        states.append(state)
    return results, states


# ADADP ----------------------------------------------------------------------------------------------------


def quadratic(theta: Tensor) -> Answer:
    return Answer(theta.clone())


@pytest.mark.parametrize(
    ("controller", "rate", "theta"),
    [
        (Tolerance(0.1, tol=1.0), 0.11, 1.805),  # A1a
        (Tolerance(0.1, tol=0.0025), 0.09, 1.805),  # A1b
        (Tolerance(0.1, tol=0.0025, exponent=0.5), 0.0948683298, 1.805),  # A1b, with the root
        (Tolerance(0.1, tol=0.001, discard=True), 0.09, 2.0),  # A1d
        (Tolerance(0.1, tol=0.001), 0.09, 1.805),  # A1d, without
        (Tolerance(0.1, tol=0.0027777777777777 * 1.05, discard=True), 0.105, 1.805),  # below tol
    ],
    ids=["A1a", "A1b", "A1b root", "A1d", "not discarded", "within"],
)
def test_tolerance_golden_values_a1(controller: Tolerance, rate: float, theta: float) -> None:
    """ALGORITHMS.md A1: f = theta^2 / 2 from theta = 2 at rate 0.1."""
    at = vector(2.0)
    (result,), (state,) = train(Extrapolation(), controller, quadratic, at, 1)
    assert result.error == pytest.approx(0.00277777778, abs=1e-11)
    assert state["rate"] == pytest.approx(rate, abs=1e-10)
    assert controller.rate(1, {**state, "frozen_from": 9}) == state["rate"]
    assert float(at) == pytest.approx(theta, abs=1e-14)


def test_tolerance_golden_value_a2b() -> None:
    """ALGORITHMS.md A2b: the error of A2, tol = 0.05."""
    controller = Tolerance(0.2, tol=0.05)
    state = controller.start(plan_of(), torch.zeros(2))
    result = StepResult((), 0.2, torch.zeros(2), error=0.0195895792444)
    assert controller.update(state, result, torch.zeros(2))["rate"] == pytest.approx(0.22, abs=1e-12)


@pytest.mark.parametrize(
    ("epoch", "rate"),
    [(50, 0.02), (51, 0.0181818182), (55, 0.0133333333), (60, 0.01), (75, 0.0057142857), (100, 0.0033333333)],
)
@pytest.mark.parametrize("per_epoch", [300.0, 1.0, 7.5])
def test_frozen_rates_golden_values_a3(epoch: int, rate: float, per_epoch: float) -> None:
    """ALGORITHMS.md A3: after 50 epochs the rate falls by epochs of single batches, whatever their number."""
    batches = round(100 * per_epoch)
    steps, drawn = Extrapolation(freeze_after=50).steps(batches, per_epoch)
    controller = Tolerance(0.02)
    plan = plan_of(steps=steps, batches=drawn, batches_per_epoch=per_epoch)
    state = controller.start(plan, torch.zeros(1))
    pairs = drawn - steps
    first = pairs + math.ceil((epoch - 51) * per_epoch)  # of the epoch's single steps
    last = pairs + math.ceil((epoch - 50) * per_epoch) - 1
    if epoch == 50:
        first = last = pairs - 1
    for step in (first, last):
        assert controller.rate(step, state) == pytest.approx(rate, abs=1e-10)
    assert first == 0 or epoch == 50 or controller.rate(first - 1, state) > rate


def test_a_frozen_controller_learns_nothing_more() -> None:
    controller = Tolerance(0.1, tol=1.0)
    state = controller.start(plan_of(), torch.zeros(1))
    assert controller.update(state, StepResult((), 0.1, torch.zeros(1)), torch.zeros(1)) == state


@pytest.mark.parametrize(
    ("error", "rate"), [(0.0, 0.11), (math.inf, 0.09), (math.nan, 0.09), (1e-300, 0.11), (1e300, 0.09)]
)
@pytest.mark.parametrize("exponent", [1.0, 0.5])
def test_errors_without_a_ratio(error: float, rate: float, exponent: float) -> None:
    controller = Tolerance(0.1, tol=1.0, exponent=exponent)
    state = controller.start(plan_of(), torch.zeros(1))
    moved = controller.update(state, StepResult((), 0.1, torch.zeros(1), error), torch.zeros(1))
    assert moved["rate"] == pytest.approx(rate)


def test_a_rate_stays_a_number() -> None:
    """However long the errors are all too large or all too small."""
    for error, end in ((0.0, 1e38), (math.inf, 1e-30)):
        controller = Tolerance(0.1, tol=1.0)
        state = controller.start(plan_of(), torch.zeros(1))
        for _ in range(3000):
            state = controller.update(state, StepResult((), 0.1, torch.zeros(1), error), torch.zeros(1))
        assert state["rate"] == end


def test_the_starting_rate_may_be_one_for_sums() -> None:
    plan = plan_of(steps=50, batches=100, expected_batch=200.0)
    for reduction, rate in (("mean", 0.1), ("sum", 20.0)):
        state = Tolerance(0.1, reduction=reduction).start(plan, torch.zeros(1))
        assert Tolerance(0.1, reduction=reduction).rate(0, state) == pytest.approx(rate)


@given(
    d=st.integers(10, 10**7), steps=st.integers(1, 10**5), noise=st.floats(0.1, 10), more=st.integers(2, 100)
)
def test_the_default_tolerance_lets_the_same_noise_gather(
    d: int, steps: int, noise: float, more: int
) -> None:
    """A4: tol sqrt(2 T / d) does not depend on d, T or the noise; without noise it is a constant."""

    def gathered(d: int, steps: int) -> float:
        tol = default_tolerance(plan_of(parameters=d, steps=steps, noise_multiplier=noise))
        return tol * math.sqrt(2 * steps / d)

    assert gathered(more * d, steps) == pytest.approx(gathered(d, steps))
    assert gathered(d, more * steps) == pytest.approx(gathered(d, steps))
    silent = default_tolerance(plan_of(parameters=d, steps=steps, noise_multiplier=0.0))
    assert silent == default_tolerance(plan_of(parameters=1, steps=1, noise_multiplier=0.0)) > 0


def test_the_tolerance_of_the_plan_for_the_papers_network() -> None:
    """0.096 sqrt(d / 2T), as the docs say: the size of its weights is 0.0482."""
    plan = plan_of(parameters=334_336, steps=2340, size=ParameterVector(mnist_mlp()).size)
    assert default_tolerance(plan) / math.sqrt(334_336 / (2 * 2340)) == pytest.approx(0.0955, abs=1e-4)


def test_a_tolerance_that_is_given_is_taken() -> None:
    plan = plan_of(parameters=1000, steps=10)
    assert Tolerance(0.1, tol=0.7).start(plan, torch.zeros(1))["tol"] == 0.7
    assert Tolerance(0.1).start(plan, torch.zeros(1))["tol"] == default_tolerance(plan)
    assert Tolerance(0.1, tol=0.7).limit({"tol": 0.7}) == math.inf
    assert Tolerance(0.1, tol=0.7, discard=True).limit({"tol": 0.7}) == 0.7


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("discard", [False, True])
@pytest.mark.parametrize("exponent", [1.0, 0.5])
@pytest.mark.parametrize("keep", ["hat", "full"])
def test_adadp_on_given_gradients_is_the_loop_in_the_paper(
    keep: str, exponent: float, discard: bool, seed: int
) -> None:
    chance = np.random.default_rng(seed)
    steps, d, tol = 30, 4, 0.6
    gradients = chance.normal(size=(2 * steps, d)) * chance.uniform(0.2, 3, size=(2 * steps, 1))
    theta, eta = list(2 * chance.normal(size=d)), 0.3
    start, rates, errors, discarded = torch.tensor(theta, dtype=torch.float64), [], [], 0
    for step in range(steps):
        one, two = gradients[2 * step], gradients[2 * step + 1]
        full, hat, square = [], [], 0.0
        for j in range(d):
            full.append(theta[j] - eta * one[j])
            hat.append(theta[j] - eta / 2 * one[j] - eta / 2 * two[j])
            square += (abs(full[j] - hat[j]) / max(1.0, abs(full[j]))) ** 2
        error = math.sqrt(square)
        if discard and error > tol:
            discarded += 1
        else:
            theta = hat if keep == "hat" else full
        rates.append(eta)
        errors.append(error)
        eta *= min(max((tol / error) ** exponent, 0.9), 1.1)

    answers = iter(gradients)
    controller = Tolerance(0.3, tol, exponent, discard=discard)
    results, states = train(
        Extrapolation(keep), controller, lambda _: Answer(torch.from_numpy(next(answers))), start, steps
    )
    assert [r.rate for r in results] == pytest.approx(rates, rel=1e-10)
    assert [r.error for r in results] == pytest.approx(errors, rel=1e-10)
    assert sum(discard and not r.error <= tol for r in results if r.error is not None) == discarded
    assert states[-1]["rate"] == pytest.approx(eta, rel=1e-10)
    assert start.tolist() == pytest.approx(theta, rel=1e-10)
    assert len(set(rates)) > 20
    assert (0 < discarded < steps) == discard  # both branches were taken


# OSO ------------------------------------------------------------------------------------------------------

GRADIENTS = [vector(0.05, 0.0), vector(0.04, 0.03), vector(-0.02, 0.01)]
DERIVATIVES = [vector(0.5, 0.0), vector(0.6, 0.2), vector(0.0, 0.1)]


def test_hypergradient_golden_values_d3() -> None:
    """ALGORITHMS.md D3, both columns: threshold and rate after each of three steps."""
    clip, controller = Online(0.1), Hypergradient(0.3)
    state, clip_state = controller.start(plan_of(), torch.zeros(2)), clip.start(["w"])
    rates, thresholds = [], []
    for gradient, q in zip(GRADIENTS, DERIVATIVES, strict=True):
        answer = Answer(gradient, probes={"q": q})
        rate = controller.rate(0, state, answer)
        state = controller.update(state, StepResult((answer,), rate, gradient), torch.zeros(2))
        clip_state = clip.update(clip_state, [answer])
        rates.append(controller.rate(1, state, answer))
        thresholds.append(clip.sensitivity(clip_state))
    assert thresholds == pytest.approx([0.1, 0.100250312761, 0.1], abs=1e-12)
    assert rates == pytest.approx([0.3, 0.300750938282, 0.3], abs=1e-12)


def test_the_factor_by_sign_and_by_cosine() -> None:
    one, other = vector(3.0, 4.0), vector(2.0, 0.0)
    assert factor(one, other, 0.01, "sign") == math.exp(0.01)
    assert factor(one, -other, 0.01, "sign") == math.exp(-0.01)
    assert factor(one, other, 0.01, "cosine") == pytest.approx(1 + 0.01 * 0.6)
    assert factor(one, -7 * other, 0.01, "cosine") == pytest.approx(1 - 0.01 * 0.6)
    for kind in ("sign", "cosine"):
        assert factor(one, vector(4.0, -3.0), 0.01, kind) == 1.0  # sign(0) = 0
        assert factor(vector(0.0, 0.0), other, 0.01, kind) == 1.0


def test_the_factor_does_not_depend_on_where_a_derivative_is_kept() -> None:
    """Bit for bit: in one run it is part of a larger tensor, in the resumed one it comes from a file."""
    generator = torch.Generator().manual_seed(6)
    for size in (115, 1001):
        room, gradient = torch.randn(size + 16, generator=generator), torch.randn(size, generator=generator)
        found = set()
        for start in range(16):
            moved = torch.empty(size + 16)[start : start + size].copy_(room[:size])
            found.add(factor(gradient, moved, 0.5, "cosine"))
        assert len(found) == 1


@pytest.mark.parametrize("momentum", [0.0, 0.7])
@pytest.mark.parametrize("kind", ["sign", "cosine"])
@pytest.mark.parametrize("seed", range(3))
def test_hypergradient_on_given_gradients_is_a_loop(seed: int, kind: str, momentum: float) -> None:
    """Under momentum the rate follows the velocity that was stepped along, as it was then."""
    chance = np.random.default_rng(seed)
    steps, d, speed = 30, 3, 0.05
    gradients = chance.normal(size=(steps, d))
    rho, velocity, expected = 0.2, np.zeros(d), []
    for gradient in gradients:
        expected.append(rho)
        product = float(sum(g * v for g, v in zip(gradient, velocity, strict=True)))
        if kind == "sign":
            rho *= math.exp(speed * ((product > 0) - (product < 0)))
        elif np.any(velocity):
            rho *= 1 + speed * product / math.sqrt(sum(gradient**2) * sum(velocity**2))
        velocity = momentum * velocity + gradient
    answers = iter(gradients)
    results, _ = train(
        Sgd(momentum),
        Hypergradient(0.2, speed, kind),
        lambda _: Answer(torch.from_numpy(next(answers))),
        torch.zeros(d, dtype=torch.float64),
        steps,
    )
    assert [r.rate for r in results] == pytest.approx(expected, rel=1e-10)
    assert len(set(expected)) > 5


def test_hypergradient_under_extrapolation_looks_at_both_halves() -> None:
    pairs = [vector(1.0), vector(2.0), vector(-1.0), vector(1.0), vector(1.0), vector(0.5)]
    answers = iter(pairs)
    _, states = train(
        Extrapolation(), Hypergradient(0.1, 0.1), lambda _: Answer(next(answers)), vector(0.0), 3
    )
    assert [s["rate"] for s in states] == pytest.approx([0.1 * math.exp(0.1), 0.1, 0.1 * math.exp(0.1)])


# DoG ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [Sgd(), Extrapolation("hat"), Extrapolation("full")], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_distance_over_gradients_is_a_loop(seed: int, step: StepRule) -> None:
    chance = np.random.default_rng(seed)
    steps, d = 25, 3
    each = 2 if isinstance(step, Extrapolation) else 1
    gradients = chance.normal(size=(steps * each, d)) + 0.5
    theta = origin = chance.normal(size=d)
    start = torch.tensor(theta, dtype=torch.float64)
    farthest, total, expected = 0.2 * (1 + math.sqrt(sum(origin**2))), 0.0, []
    for number in range(steps):
        batch = gradients[each * number : each * (number + 1)]
        eta = farthest / math.sqrt(total + sum(batch[0] ** 2))
        used = batch[:1] if step == Extrapolation("full") else batch
        theta = theta - eta * sum(used) / len(used)
        total += sum(sum(g**2) for g in batch) / len(batch)
        farthest = max(farthest, math.sqrt(sum((theta - origin) ** 2)))
        expected.append(eta)
    answers = iter(gradients)
    results, _ = train(
        step, DistanceOverGradients(0.2), lambda _: Answer(torch.from_numpy(next(answers))), start, steps
    )
    assert [r.rate for r in results] == pytest.approx(expected, rel=1e-9)
    assert start.tolist() == pytest.approx(list(theta), rel=1e-9)
    assert farthest > 0.2 * (1 + math.sqrt(sum(origin**2)))  # it has come further than it was told


@pytest.mark.parametrize("step", [Sgd(), Extrapolation("hat")], ids=str)
def test_travel_is_a_loop(step: StepRule) -> None:
    """rate_t = travel size sqrt(d) / sqrt(T mean |g_s|^2); plan_of gives size 0.1."""
    chance = np.random.default_rng(5)
    steps, d = 25, 4
    each = 2 if isinstance(step, Extrapolation) else 1
    gradients = chance.normal(size=(steps * each, d)) * np.linspace(3, 1, steps * each)[:, None]
    squares, expected = 0.0, []
    for number in range(steps):
        batch = gradients[each * number : each * (number + 1)]
        mean = (squares + sum(batch[0] ** 2)) / (number + 1)
        expected.append(2.0 * 0.1 * math.sqrt(d) / math.sqrt(steps * mean))
        squares += sum(sum(g**2) for g in batch) / each
    answers = iter(gradients)
    results, _ = train(
        step,
        Travel(2.0),
        lambda _: Answer(torch.from_numpy(next(answers))),
        torch.zeros(d, dtype=torch.float64),
        steps,
    )
    assert [r.rate for r in results] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("gathered", [0.5, 6.0])
@pytest.mark.parametrize("step", [Sgd(), Extrapolation("hat")], ids=str)
def test_travel_counts_of_correlated_noise_what_gathers(step: StepRule, gathered: float) -> None:
    """rate_t = D / sqrt(T max(0, mean(|g_s|^2 - d std_s^2)) + d (z gathered / B)^2), in units of the threshold."""
    chance = np.random.default_rng(6)
    steps, d, z, batch, travel = 25, 4, 0.7, 20.0, 2.0
    each = 2 if isinstance(step, Extrapolation) else 1
    calls = steps * each
    gradients = chance.normal(size=(calls, d)) * np.linspace(0.2, 3, calls)[:, None]
    stds, thresholds = chance.uniform(0.5, 2, calls), np.repeat(chance.uniform(0.5, 2, steps), each)
    expected, squares, below, above = [], 0.0, 0, 0
    for number in range(steps):
        these = range(each * number, each * (number + 1))
        said = [(sum(x**2 for x in gradients[i]) - d * stds[i] ** 2) / thresholds[i] ** 2 for i in these]
        mean = (squares + said[0]) / (number + 1)
        below, above = below + (mean < 0), above + (mean > 0)
        far = math.sqrt(steps * max(0.0, mean) + d * (z * gathered / batch) ** 2)
        expected.append(travel * 0.1 * math.sqrt(d) / far / thresholds[these[0]])
        squares += sum(said) / each
    answers = iter(zip(gradients, stds, thresholds, strict=True))

    def field(_: Tensor) -> Answer:
        gradient, std, threshold = next(answers)
        return Answer(torch.from_numpy(gradient), float(std), float(threshold))

    public = {"noise_multiplier": z, "expected_batch": batch, "gathered": gathered}
    theta = torch.zeros(d, dtype=torch.float64)
    results, _ = train(step, Travel(travel), field, theta, steps, **public)
    assert [r.rate for r in results] == pytest.approx(expected, rel=1e-9)
    assert below > 0
    assert above > 0  # both sides of the maximum came up


def test_correlated_noise_alone_travels_as_far_as_was_planned() -> None:
    """Whatever of it gathers: a sum of all steps with noise of std z gathered / B is D long."""
    steps, d, z, batch = 200, 2000, 1.3, 10.0
    for kept in (0.0, 0.9):  # each step takes back so much of the noise of the last
        generator = torch.Generator().manual_seed(steps)
        before = torch.zeros(d)

        def noise(at: Tensor, kept: float = kept, generator: torch.Generator = generator) -> Answer:
            nonlocal before
            fresh = z / batch * torch.randn(len(at), generator=generator)
            answer, before = Answer(fresh - kept * before, z / batch * math.sqrt(1 + kept**2)), fresh
            return answer

        gathered = math.sqrt((steps - 1) * (1 - kept) ** 2 + 1)
        theta = torch.zeros(d)
        public = {"noise_multiplier": z, "expected_batch": batch, "gathered": gathered}
        train(Sgd(), Travel(3.0), noise, theta, steps, **public)
        assert float(theta.norm()) == pytest.approx(3.0 * 0.1 * math.sqrt(d), rel=0.15)


@pytest.mark.parametrize(
    ("public", "travel"),
    [
        ({"layers": 2}, 3.5 / 2**0.75),
        ({"layers": 3, "noise_multiplier": 9.0}, 3.5 / 3**0.75),
        # Of one layer: 100 gradients over noise of z / B gathered sqrt(d), 36 of which are 3.
        ({"noise_multiplier": 2.5 / 9}, 3.0),
        ({"noise_multiplier": 2.5 / 9 / 16}, 6.0),
        ({"noise_multiplier": 2.5, "expected_batch": 9.0}, 3.0),
        ({"noise_multiplier": 1.0, "gathered": 25 / 9}, 3.0),
        ({"noise_multiplier": 0.25, "parameters": 100, "gathered": 10 / 9}, 3.0),
        ({"noise_multiplier": 100.0}, 2.0),
        ({"noise_multiplier": 1e-9}, 8.0),
        ({"noise_multiplier": 0.0}, 8.0),
    ],
)
def test_the_travel_of_the_plan(public: dict[str, Any], travel: float) -> None:
    """3.5 / L^0.75 behind one another; of a linear model 3 (clear / 36)^(1/4), from 2 to 8."""
    plan = plan_of(**public)
    assert default_travel(plan) == pytest.approx(travel)
    found, given = (Travel(each).start(plan, torch.zeros(1)) for each in (None, travel))
    assert found["reach"] == pytest.approx(given["reach"])
    reach = travel * plan.size * math.sqrt(plan.parameters / plan.steps)
    assert found["reach"] == pytest.approx(reach)


def test_schedules_begin_at_the_rate_and_end_a_step_before_the_last() -> None:
    linear, cosine = (Scheduled(1.0, shape=shape) for shape in ("linear", "cosine"))
    state = {"total_steps": 4}
    assert [linear.rate(step, state) for step in range(4)] == pytest.approx([1.0, 0.75, 0.5, 0.25])
    expected = [(1 + math.cos(math.pi * step / 4)) / 2 for step in range(4)]
    assert [cosine.rate(step, state) for step in range(4)] == pytest.approx(expected)
    warm = Scheduled(1.0, shape="linear", final=0.5, warmup=0.5)
    assert [warm.rate(step, state) for step in range(4)] == pytest.approx([1 / 3, 2 / 3, 1.0, 0.75])


def test_noise_alone_travels_as_far_as_was_planned() -> None:
    """Whatever the number of steps, parameters and the noise: travel * size * sqrt(d)."""
    for steps, d, std in ((50, 400, 0.1), (400, 1000, 7.0)):
        torch.manual_seed(steps)
        theta = torch.zeros(d)

        def noise(at: Tensor, std: float = std) -> Answer:
            return Answer(std * torch.randn(len(at)))

        train(Sgd(), Travel(3.0), noise, theta, steps)
        assert float(theta.norm()) == pytest.approx(3.0 * 0.1 * math.sqrt(d), rel=0.15)


@pytest.mark.parametrize("controller", [DistanceOverGradients(), Travel()], ids=str)
def test_no_gradient_yet_is_no_step(controller: RateController) -> None:
    state = controller.start(plan_of(), torch.zeros(2))
    assert controller.rate(0, state, Answer(torch.zeros(2))) == 0.0


# Refusals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: Tolerance(0.0),
        lambda: Tolerance(0.1, tol=0.0),
        lambda: Tolerance(0.1, tol=math.inf),
        lambda: Tolerance(0.1, exponent=0.0),
        lambda: Tolerance(0.1, exponent=2.0),
        lambda: Tolerance(0.1, shrink=1.1),
        lambda: Tolerance(0.1, grow=0.9),
        lambda: Tolerance(0.1, decay=-1.0),
        lambda: Tolerance(0.1, reduction="median"),
        lambda: Hypergradient(-1.0),
        lambda: Hypergradient(0.1, speed=0.0),
        lambda: Hypergradient(0.1, speed=1.0),
        lambda: Hypergradient(0.1, update_by="size"),
        lambda: Online(0.1, speed=math.nan),
        lambda: Online(0.1, update_by="size"),
        lambda: Online(0.1, gradient_noise=1.0),
        lambda: Online(0.1, gradient_noise=math.inf),
        lambda: DistanceOverGradients(0.0),
        lambda: DistanceOverGradients(math.inf),
        lambda: Travel(0.0),
        lambda: Travel(math.inf),
    ],
)
def test_impossible_settings(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"must be|needs|is above"):
        make()
