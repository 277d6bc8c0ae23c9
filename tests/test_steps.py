"""Step rules against plain loops and golden values."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from conftest import Answer, plan_of, vector
from sordino.rates import Constant, Scheduled
from sordino.steps import (
    Adam,
    AdamWithoutSecondMoments,
    Extrapolation,
    Field,
    Ftrl,
    Sgd,
    StepResult,
    StepRule,
)
from sordino.steps.rule import Gradient


def answering(gradients: Iterable[Tensor], seen: list[Tensor] | None = None, noise_std: float = 0.0) -> Field:
    """A field that returns these, one after the other, and notes where it was asked."""
    answers = iter(gradients)

    def field(theta: Tensor) -> Answer:
        if seen is not None:
            seen.append(theta.clone())
        return Answer(next(answers), noise_std)

    return field


def run(rule: StepRule, gradients: list[float], rate: float, noise_std: float = 0.0) -> list[float]:
    theta = vector(0.0)
    state, path = rule.start(theta, plan_of()), []
    field = answering((vector(g) for g in gradients), noise_std=noise_std)
    for _ in gradients:
        rule.step(field, theta, lambda _: rate, state)
        path.append(float(theta))
    return path


def test_adam_wosm_golden_values() -> None:
    """ALGORITHMS.md D6: nu = 1, C = 1, B = 512."""
    path = run(AdamWithoutSecondMoments(), [1.0, -0.5, 2.0], 1e-3, noise_std=1 / 512)
    assert path == pytest.approx([-0.511997378573, -0.619786300378, -1.065658556258], abs=1e-11)


def test_adam_wosm_refuses_to_divide_by_no_noise() -> None:
    with pytest.raises(ValueError, match="needs some"):
        run(AdamWithoutSecondMoments(), [1.0], 1e-3, noise_std=0.0)


@pytest.mark.parametrize(
    ("rule", "peer"),
    [
        (Sgd(), lambda p: torch.optim.SGD(p, lr=0.1)),
        (Sgd(0.9), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
        (Adam(), lambda p: torch.optim.Adam(p, lr=0.1)),
        (Adam(0.8, 0.99), lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.8, 0.99))),
    ],
    ids=["sgd", "momentum", "adam", "adam betas"],
)
def test_same_path_as_torch(rule: StepRule, peer: Callable[[list[Tensor]], torch.optim.Optimizer]) -> None:
    gradients = [1.0, -0.5, 2.0, 0.25, -3.0]
    theta = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimiser, expected = peer([theta]), []
    for g in gradients:
        theta.grad = torch.tensor([g], dtype=torch.float64)
        optimiser.step()
        expected.append(float(theta.detach()))
    assert run(rule, gradients, 0.1) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    "rule",
    [Sgd(), Sgd(0.9), Adam(), AdamWithoutSecondMoments(), Extrapolation(), Extrapolation("full")],
    ids=str,
)
def test_a_step_asks_the_rate_once_and_says_what_it_did(rule: StepRule) -> None:
    """The rate may depend on the first gradient; theta moves by minus the rate times the direction."""
    generator = torch.Generator().manual_seed(3)
    gradients = [torch.randn(5, generator=generator, dtype=torch.float64) for _ in range(6)]
    theta, seen, asked = torch.ones(5, dtype=torch.float64), list[Tensor](), list[Tensor]()
    state = rule.start(theta, plan_of(steps=3, batches=rule.steps(3, 1.0)[1] * 2))
    field = answering(gradients, seen, noise_std=0.5)

    def rate(first: Gradient) -> float:
        asked.append(first.gradient)
        return 0.01 * float(first.gradient.norm())

    for step in range(3):
        before, calls = theta.clone(), len(seen)
        result = rule.step(field, theta, rate, state)
        assert len(seen) - calls == len(result.gradients)
        assert torch.equal(seen[calls], before)
        assert len(asked) == step + 1
        assert asked[-1] is result.gradients[0].gradient is gradients[calls]
        assert result.rate == 0.01 * float(gradients[calls].norm())
        torch.testing.assert_close(theta, before - result.rate * result.direction)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_by_layer_is_a_loop(momentum: float) -> None:
    """Each parameter moves by its size over the root mean square of all sizes."""
    chance = np.random.default_rng(2)
    sizes = ((3, 0.5), (0, 9.0), (1, 0.2), (2, 1.5))
    each = [size for count, size in sizes for _ in range(count)]
    typical = math.sqrt(sum(size**2 for size in each) / len(each))
    gradients = chance.normal(size=(8, 6))
    theta, velocity = [0.0] * 6, [0.0] * 6
    for gradient in gradients:
        for j in range(6):
            velocity[j] = momentum * velocity[j] + gradient[j]
            theta[j] -= 0.1 * each[j] / typical * velocity[j]
    found, rule = torch.zeros(6, dtype=torch.float64), Sgd(momentum, by_layer=True)
    state = rule.start(found, plan_of(sizes=sizes))
    field = answering(torch.from_numpy(gradient.copy()) for gradient in gradients)
    for gradient in gradients:
        before = found.clone()
        result = rule.step(field, found, lambda _: 0.1, state)
        assert result.gradients[0].gradient.tolist() == gradient.tolist()  # what was released stays as it was
        torch.testing.assert_close(found, before - result.rate * result.direction)
    assert found.tolist() == pytest.approx(theta, rel=1e-12)
    assert rule.plain == (momentum == 0)


def test_layers_of_one_size_have_one_rate() -> None:
    gradients, paths = [vector(1.0, -2.0, 0.5)] * 4, []
    for rule in (Sgd(0.9), Sgd(0.9, by_layer=True)):
        theta = vector(0.0, 0.0, 0.0)
        state, field = rule.start(theta, plan_of(sizes=((2, 0.25), (1, 0.25)))), answering(gradients)
        for _ in gradients:
            rule.step(field, theta, lambda _: 0.1, state)
        paths.append(theta)
    assert torch.equal(*paths)


# Extrapolation --------------------------------------------------------------------------------------------


def extrapolate(
    rule: Extrapolation, field: Field, theta: Tensor, rate: float, limit: float = math.inf
) -> StepResult:
    state = rule.start(theta, plan_of(steps=1, batches=2))
    return rule.step(field, theta, lambda _: rate, state, limit)


def test_extrapolation_golden_value_a1() -> None:
    """ALGORITHMS.md A1: f = theta^2 / 2, so that the gradient is theta itself."""
    kept = {"hat": 1.805, "full": 1.8}
    for keep, expected in kept.items():
        theta, seen = vector(2.0), list[Tensor]()

        def field(at: Tensor, seen: list[Tensor] = seen) -> Answer:
            seen.append(at.clone())
            return Answer(at.clone())

        result = extrapolate(Extrapolation(keep), field, theta, 0.1)
        assert [float(s) for s in seen] == pytest.approx([2.0, 1.9], abs=1e-14)
        assert float(theta) == pytest.approx(expected, abs=1e-14)
        assert result.error == pytest.approx(0.0027777777777777, abs=1e-14)


def clipped(gradient: np.ndarray, threshold: float) -> np.ndarray:
    return gradient / max(1.0, float(np.linalg.norm(gradient)) / threshold)


def a2_field(at: list[Tensor]) -> Field:
    batches = [[(0.0, 0.0), (1.0, 1.0)], [(0.0, 1.0), (2.0, 0.0)]]
    noises = [(0.1, -0.2), (-0.1, 0.05)]

    def field(theta: Tensor) -> Answer:
        rows, noise = batches[len(at)], noises[len(at)]
        at.append(theta.clone())
        total = np.array(noise)
        for row in rows:
            total = total + clipped(theta.numpy() - np.array(row), 1.0)
        return Answer(torch.from_numpy(total))

    return field


A2 = {
    "G1": (1.886393923832, -0.964398987305),
    "full": (2.622721215234, -0.307120202539),
    "half": (2.811360607617, -0.403560101269),
    "G2": (1.606057531908, -0.800233822976),
    "hat": (2.650754854426, -0.323536718972),
    "error": 0.0195895792444,
}


@pytest.mark.parametrize("keep", ["hat", "full"])
def test_extrapolation_golden_value_a2(keep: str) -> None:
    """ALGORITHMS.md A2: sums of clipped gradients with given noise, two coordinates."""
    theta, at = vector(3.0, -0.5), list[Tensor]()
    result = extrapolate(Extrapolation(keep), a2_field(at), theta, 0.2)
    assert at[1].tolist() == pytest.approx(A2["half"], abs=1e-12)
    assert [g.gradient.tolist() for g in result.gradients] == [
        pytest.approx(A2[name], abs=1e-12) for name in ("G1", "G2")
    ]
    assert theta.tolist() == pytest.approx(A2[keep], abs=1e-12)
    assert result.error == pytest.approx(A2["error"], abs=1e-13)


def test_extrapolation_golden_value_a7() -> None:
    """ALGORITHMS.md A7: ten copies of theta make sqrt(10) times the error."""
    errors = list[float]()
    for copies in (1, 10):
        generator = torch.Generator().manual_seed(2)
        theta, *gradients = (
            torch.randn(7, generator=generator, dtype=torch.float64).repeat(copies) * 3 for _ in range(3)
        )
        result = extrapolate(Extrapolation(), answering(gradients), theta, 0.3)
        assert result.error is not None
        errors.append(result.error)
    assert errors[1] == pytest.approx(math.sqrt(10) * errors[0], rel=1e-12)


def test_extrapolation_golden_value_a4() -> None:
    """ALGORITHMS.md A4: where noise dominates, the error is 1 at a rate of 0.0012229 with 334336 parameters."""
    d, sigma, generator = 334_336, 2.0, torch.Generator().manual_seed(4)
    noise = [sigma * torch.randn(d, generator=generator) for _ in range(2)]
    error = extrapolate(Extrapolation(), answering(noise), torch.zeros(d), 0.00122290700).error
    assert error == pytest.approx(1.0, rel=5e-3)


@pytest.mark.parametrize(("keep", "gathered"), [("full", 0.299549815), ("hat", 0.299549815 / math.sqrt(2))])
def test_the_noise_that_gathers_golden_value_a4(keep: str, gathered: float) -> None:
    """The rest of A4 is the full step's; two half steps gather 1/sqrt(2) of it. A fifteenth of the steps here."""
    d, generator = 4000, torch.Generator().manual_seed(5)
    theta, rule = torch.zeros(d), Extrapolation(keep)
    state = rule.start(theta, plan_of(steps=1000, batches=2000))
    field = answering(2.0 * torch.randn(d, generator=generator) for _ in range(2000))
    for _ in range(1000):
        rule.step(field, theta, lambda _: 0.00122290700, state)
    assert float(theta.std()) * math.sqrt(15) == pytest.approx(gathered, rel=0.05)


@given(
    numbers=st.lists(st.floats(-4, 4), min_size=9, max_size=9),
    rate=st.floats(1e-3, 10),
    keep=st.sampled_from(["hat", "full"]),
)
def test_full_and_hat_differ_by_half_the_rate_times_the_gradients(
    numbers: list[float], rate: float, keep: str
) -> None:
    start, one, two = torch.tensor(numbers, dtype=torch.float64).view(3, 3)
    theta, seen = start.clone(), list[Tensor]()
    result = extrapolate(Extrapolation(keep), answering([one, two], seen), theta, rate)
    full = start - rate * one
    torch.testing.assert_close(seen[1], start - rate / 2 * one)
    difference = (rate / 2 * (one - two)).abs() / full.abs().clamp_min(1)
    assert result.error == pytest.approx(float(difference.norm()), rel=1e-9, abs=1e-12)
    torch.testing.assert_close(theta, full if keep == "full" else start - rate / 2 * (one + two))


@pytest.mark.parametrize("keep", ["hat", "full"])
def test_a_step_above_the_limit_is_taken_back_exactly(keep: str) -> None:
    theta = vector(0.1, 2.0)
    field = answering([vector(1.0, 1.0), vector(-1.0, 3.0)])
    result = extrapolate(Extrapolation(keep), field, theta, 0.3, limit=0.1)
    assert result.error is not None
    assert result.error > 0.1
    assert len(result.gradients) == 2
    assert torch.equal(theta, vector(0.1, 2.0))
    extrapolate(
        Extrapolation(keep), answering([vector(1.0, 1.0), vector(-1.0, 3.0)]), theta, 0.3, limit=result.error
    )
    assert not torch.equal(theta, vector(0.1, 2.0))


@pytest.mark.parametrize("limit", [math.inf, 1.0])
def test_an_error_that_is_no_number(limit: float) -> None:
    """Overflow: taken back if errors are judged, and no crash if they are not."""
    theta = torch.zeros(2)
    field = answering([torch.full((2,), 1e38), torch.full((2,), -1e38)])
    result = extrapolate(Extrapolation(), field, theta, 1e3, limit)
    assert result.error is not None
    assert not math.isfinite(result.error)
    assert torch.equal(theta, torch.zeros(2)) == (limit == 1.0)


@given(batches=st.integers(1, 500), per_epoch=st.floats(0.5, 40), freeze=st.none() | st.floats(0.1, 30))
def test_a_plan_is_of_whole_steps(batches: int, per_epoch: float, freeze: float | None) -> None:
    """Steps and batches say how many pairs and how many plain steps there are, and the rule takes just those."""
    rule = Extrapolation(freeze_after=freeze)
    steps, drawn = rule.steps(batches, per_epoch)
    theta = torch.zeros(1)
    state = rule.start(theta, plan_of(steps=steps, batches=drawn))
    calls = []
    field = answering((torch.zeros(1) for _ in range(drawn)), seen := list[Tensor]())
    for _ in range(steps):
        calls.append(len(rule.step(field, theta, lambda _: 1.0, state).gradients))
    pairs = drawn - steps
    assert calls == [2] * pairs + [1] * (steps - pairs)
    assert len(seen) == drawn
    assert abs(drawn - batches) <= 1
    if freeze is None:
        assert pairs == steps
    elif freeze * per_epoch < batches - 1:
        assert drawn == batches or (batches, pairs) == (1, 1)
        assert abs(2 * pairs - freeze * per_epoch) <= 1 or pairs == 1


def test_the_frozen_rule_takes_plain_steps() -> None:
    rule, theta = Extrapolation(freeze_after=2.0), vector(1.0)
    assert rule.steps(10, 2.0) == (8, 10)
    assert Extrapolation().steps(7, 2.0) == (4, 8)  # rounded, but never half a step
    state = rule.start(theta, plan_of(steps=8, batches=10))
    field = answering(vector(float(i)) for i in range(1, 11))
    results = [rule.step(field, theta, lambda _: 0.1, state) for _ in range(8)]
    assert [len(r.gradients) for r in results] == [2, 2, 1, 1, 1, 1, 1, 1]
    assert [r.error is None for r in results] == [False, False] + [True] * 6
    assert float(theta) == pytest.approx(1 - 0.05 * (1 + 2 + 3 + 4) - 0.1 * (5 + 6 + 7 + 8 + 9 + 10))


def test_schedules() -> None:
    assert Constant(0.3).rate(7, {}) == 0.3
    cosine, theta = Scheduled(2.0, "cosine", final=0.1), torch.zeros(1)
    state = cosine.start(plan_of(steps=100, batches=200), theta)
    assert cosine.rate(0, state) == 2.0
    assert cosine.rate(50, state) == pytest.approx(2.0 * (0.1 + 0.9 * 0.5))
    assert cosine.rate(100, state) == pytest.approx(0.2)
    warm = Scheduled(1.0, "linear", warmup=0.1)
    state = warm.start(plan_of(steps=100), theta)
    assert [round(warm.rate(s, state), 4) for s in (0, 9, 10)] == [round(1 / 11, 4), round(10 / 11, 4), 1.0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Sgd(1.0),
        lambda: Sgd(-0.1),
        lambda: Adam(beta1=1.0),
        lambda: AdamWithoutSecondMoments(1.5),
        lambda: Constant(0.0),
        lambda: Constant(float("nan")),
        lambda: Scheduled(1.0, "square"),
        lambda: Scheduled(1.0, final=2.0),
        lambda: Extrapolation("both"),
        lambda: Extrapolation(freeze_after=0.0),
        lambda: Extrapolation(freeze_after=float("nan")),
    ],
)
def test_impossible_settings(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"must be|needs"):
        make()


# FTRL -------------------------------------------------------------------------------------------------------


def test_ftrl_golden_values() -> None:
    """ALGORITHMS.md C6: lambda = 10."""
    gradients = [1.0, 2.0, -1.0, 4.0]
    assert run(Ftrl(), gradients, 0.1) == pytest.approx([-0.1, -0.3, -0.2, -0.6])
    assert run(Ftrl(0.9), gradients, 0.1) == pytest.approx([-0.1, -0.39, -0.551, -1.0959])


def test_ftrl_is_sgd_on_the_increments_of_the_noise() -> None:
    """Theorem B.1, ALGORITHMS.md C7: lambda = 4."""
    gradients, noise = np.array([1, 2, -1, 0.5]), np.array([0.3, -0.1, 0.2, 0.4])
    released = list(gradients + np.diff(noise, prepend=0.0))
    golden = [-0.325, -0.725, -0.55, -0.725]
    assert run(Ftrl(), released, 0.25) == pytest.approx(golden)
    assert run(Sgd(), released, 0.25) == pytest.approx(golden)
    assert list(-(gradients.cumsum() + noise) / 4) == pytest.approx(golden)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=20), st.floats(0, 0.99), st.floats(1e-3, 10))
def test_ftrl_with_momentum_is_heavy_ball(gradients: list[float], momentum: float, rate: float) -> None:
    assert run(Ftrl(momentum), gradients, rate) == pytest.approx(
        run(Sgd(momentum), gradients, rate), abs=1e-6
    )


def test_ftrl_stays_in_its_ball_and_comes_back() -> None:
    path = run(Ftrl(radius=0.25), [1.0, 2.0, -1.0, -2.1, -4.0], 0.1)
    assert path == pytest.approx([-0.1, -0.25, -0.2, 0.01, 0.25])
    assert run(Ftrl(0.9, radius=0.4), [1.0, 2.0, -1.0, 4.0], 0.1) == pytest.approx([-0.1, -0.39, -0.4, -0.4])


def test_ftrl_projects_onto_the_ball_around_its_start() -> None:
    theta = vector(3.0, -1.0)
    rule = Ftrl(radius=1.0)
    state = rule.start(theta, plan_of())
    rule.step(answering([vector(30.0, 40.0)]), theta, lambda _: 1.0, state)
    assert theta.tolist() == pytest.approx([3 - 0.6, -1 - 0.8])


def test_ftrl_may_start_afresh_when_the_noise_does() -> None:
    """After two steps theta_0 is where it is and the momentum is gone; without momentum that changes nothing."""

    def restarted(rule: StepRule) -> list[float]:
        theta = vector(0.0)
        state = rule.start(theta, plan_of(restart_steps=2))
        field, path = answering(vector(g) for g in [1.0, 2.0, -1.0, 4.0, 1.0]), []
        for _ in range(5):
            rule.step(field, theta, lambda _: 0.1, state)
            path.append(float(theta))
        return path

    assert restarted(Ftrl(0.9)) == pytest.approx(run(Ftrl(0.9), [1.0, 2.0, -1.0, 4.0, 1.0], 0.1))
    assert restarted(Ftrl(fresh_start=True)) == pytest.approx(run(Ftrl(), [1.0, 2.0, -1.0, 4.0, 1.0], 0.1))
    first = run(Ftrl(0.9), [1.0, 2.0], 0.1)
    second = [first[-1] + move for move in run(Ftrl(0.9), [-1.0, 4.0], 0.1)]
    assert restarted(Ftrl(0.9, fresh_start=True))[:4] == pytest.approx(first + second)
    assert restarted(Ftrl(0.9, fresh_start=True))[4] == pytest.approx(second[-1] - 0.1)


@pytest.mark.parametrize(
    "settings", [{"momentum": 1.0}, {"momentum": -0.1}, {"radius": 0.0}, {"radius": math.inf}]
)
def test_ftrl_says_what_it_takes(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"momentum|radius"):
        Ftrl(**settings)  # type: ignore[arg-type]
