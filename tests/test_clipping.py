from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conftest import Answer, vector
from sordino.clipping import ClippingPolicy, Fixed, Normalised, Online, PerLayer, Quantile, Unclipped
from sordino.gradients import Norms
from sordino.noise import joint_split

NAMES = ["a.weight", "a.bias", "b.weight"]


def norms_of(squares_PU: torch.Tensor) -> Norms:
    return Norms(tuple(NAMES), squares_PU, squares_PU.sum(0).sqrt())


@pytest.mark.parametrize(
    "policy",
    [
        Fixed(0.7), PerLayer(0.7), PerLayer((0.3, 0.9)), Quantile(0.5, 0.7), Online(0.7), Normalised(),
        Normalised(1e-12), Normalised(1e12),
    ],
)  # fmt: skip
@given(squares=st.lists(st.floats(0, 2.0**40, width=32), min_size=9, max_size=9))
def test_no_unit_contributes_more_than_the_sensitivity(policy: ClippingPolicy, squares: list[float]) -> None:
    squares_PU = torch.tensor(squares).view(3, 3)
    state = policy.start(NAMES)
    weights = policy.weights(norms_of(squares_PU), state)[0]
    contributed = (weights.square() * squares_PU).sum(0).sqrt()
    assert torch.all(contributed <= policy.sensitivity(state) * (1 + 1e-5))


def test_short_gradients_are_left_alone() -> None:
    squares = torch.tensor([[0.01], [0.01], [0.01]])
    for policy in (Fixed(1.0), PerLayer(1.0), Quantile(0.5, 1.0), Online(1.0), Unclipped()):
        assert torch.all(policy.weights(norms_of(squares), policy.start(NAMES))[0] == 1)


def test_zero_gradients_do_not_divide_by_zero() -> None:
    zeros = norms_of(torch.zeros(3, 2))
    assert Fixed(1.0).weights(zeros, {"threshold": 1.0}).tolist() == [[1.0, 1.0]]
    assert Online(1.0).weights(zeros, {"threshold": 1.0}).tolist() == [[1.0, 1.0], [0.0, 0.0]]
    assert torch.isfinite(Normalised().weights(zeros, {})).all()


def test_per_layer_shares_equally_and_noises_the_root_of_the_sum_of_squares() -> None:
    state = PerLayer(2.0).start(NAMES)
    assert state["threshold"] == 2.0
    assert state["threshold:0"] == state["threshold:1"] == pytest.approx(2 / math.sqrt(2))
    assert PerLayer((3.0, 4.0)).start(NAMES)["threshold"] == 5.0
    with pytest.raises(ValueError, match="2 layers"):
        PerLayer((1.0, 1.0, 1.0)).start(NAMES)


def fraction(within: float) -> Answer:
    return Answer(torch.zeros(1), probes={"fraction_within": within})


def test_quantile_golden_value() -> None:
    """ALGORITHMS.md D5."""
    policy = Quantile(0.5, 0.1)
    moved = policy.update(policy.start(NAMES), [fraction(0.3 - 0.5)])
    assert moved["threshold"] == pytest.approx(0.104081077419, abs=1e-12)


def test_quantile_clamps_a_noisy_fraction() -> None:
    policy = Quantile(0.5, 1.0)
    up = policy.update({"threshold": 1.0}, [fraction(-7.0)])
    assert up["threshold"] == pytest.approx(math.exp(0.2 * 0.5))


def test_quantile_moves_once_by_the_mean_of_several_answers() -> None:
    policy = Quantile(0.5, 1.0)
    both = policy.update({"threshold": 1.0}, [fraction(-0.4), fraction(0.1)])
    assert both["threshold"] == pytest.approx(math.exp(0.2 * 0.15))


def test_quantile_asks_a_centred_count_with_its_own_noise() -> None:
    (probe,) = Quantile().probes(noise_multiplier=1.0, expected_batch=512)
    assert probe.sensitivity == 0.5
    assert probe.sensitivity * probe.multiplier == pytest.approx(25.6)  # m / 20
    (probe,) = Quantile().probes(noise_multiplier=3.0, expected_batch=20)
    assert probe.sensitivity * probe.multiplier == pytest.approx(3.0)  # z, where the batch is small
    numbers = Quantile(0.5, 1.0).numbers(norms_of(torch.tensor([[0.1, 4.0]] * 3)), {"threshold": 1.0})
    assert numbers.tolist() == [[0.5, -0.5]]


# Online ---------------------------------------------------------------------------------------------------


def test_the_joint_split_golden_value_d1() -> None:
    """ALGORITHMS.md D1: 1% more noise on the gradient leaves q 7.124 times the noise, at every noise."""
    for nu in (1.0, 0.3, 8.0):
        (probe,) = Online(gradient_noise=1.01).probes(nu, expected_batch=512)
        assert (probe.name, probe.sensitivity, probe.vector) == ("q", 1.0, True)
        assert probe.multiplier == pytest.approx(7.123990720172 * nu, rel=1e-12)
        assert joint_split(nu, [probe.multiplier]) == pytest.approx(1.01 * nu, rel=1e-12)
    (silent,) = Online().probes(0.0, expected_batch=512)
    assert silent.multiplier == 0.0


def test_weights_of_q_golden_value_d2() -> None:
    """ALGORITHMS.md D2: a clipped unit's part in q is its direction, an unclipped unit's nothing."""
    gradients = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    norms = Norms(("w",), gradients.square().sum(1)[None], gradients.norm(dim=1))
    clip_U, derivative_U = Online(1.0).weights(norms, {"threshold": 1.0})
    torch.testing.assert_close(clip_U[:, None] * gradients, torch.tensor([[0.6, 0.8], [0.3, 0.4]]))
    torch.testing.assert_close(derivative_U[:, None] * gradients, torch.tensor([[0.6, 0.8], [0.0, 0.0]]))


@given(
    norms=st.lists(st.floats(2.0**-40, 2.0**40, width=32), min_size=5, max_size=5),
    threshold=st.floats(1e-12, 1e12),
    nu=st.floats(0.01, 100),
    gradient_noise=st.floats(1.001, 50),
)
def test_a_unit_is_one_gaussian_release_of_the_charged_noise(
    norms: list[float], threshold: float, nu: float, gradient_noise: float
) -> None:
    """Proposition 1: scaled by its noise, one unit's gradient and q together have norm 1 / nu at most."""
    policy = Online(threshold, gradient_noise=gradient_noise)
    total_U = torch.tensor(norms)
    weights = policy.weights(Norms(("w",), total_U.square()[None], total_U), policy.start(["w"])).double()
    (probe,) = policy.probes(nu, 100.0)
    nu_g = joint_split(nu, [probe.multiplier])
    gradient_U = weights[0] * total_U / (threshold * nu_g)
    q_U = weights[1] * total_U / (probe.sensitivity * probe.multiplier)
    assert torch.all((gradient_U.square() + q_U.square()).sqrt() <= (1 + 1e-5) / nu)
    assert torch.all(weights[1] * total_U <= 1 + 1e-5)


def test_q_is_the_derivative_of_the_clipped_sum_by_the_threshold() -> None:
    total_U = torch.tensor([0.2, 0.7, 1.3, 5.0], dtype=torch.float64)
    norms = Norms(("w",), total_U.square()[None], total_U)
    low, high = (Online().weights(norms, {"threshold": c})[0] for c in (1.0, 1.0 + 1e-6))
    torch.testing.assert_close(
        Online().weights(norms, {"threshold": 1.0})[1], (high - low) / 1e-6, atol=1e-8, rtol=1e-6
    )


def online(gradient: float, q: float) -> Answer:
    return Answer(vector(gradient, 0.0), probes={"q": vector(q, 1.0)})


def test_online_moves_by_this_gradient_and_the_q_before() -> None:
    policy, state = Online(0.5, speed=0.1), Online(0.5).start(["w"])
    state = policy.update(state, [online(1.0, 1.0)])
    assert state["threshold"] == 0.5  # there was no q before
    state = policy.update(state, [online(2.0, -1.0)])
    assert state["threshold"] == pytest.approx(0.5 * math.exp(0.1))
    state = policy.update(state, [online(3.0, 1.0)])
    assert state["threshold"] == pytest.approx(0.5)
    state = policy.update(state, [online(0.0, 1.0)])
    assert state["threshold"] == pytest.approx(0.5)  # sign(0) = 0


def test_online_moves_once_for_two_answers_by_the_second_gradient_and_the_first_q() -> None:
    policy = Online(0.5, speed=0.1)
    before = {"threshold": 0.5, "q": vector(1.0, 0.0)}  # of a step before: not asked
    after = policy.update(before, [online(1.0, -1.0), online(3.0, 1.0)])
    assert after["threshold"] == pytest.approx(0.5 * math.exp(-0.1))
    assert after["q"].tolist() == [1.0, 1.0]  # the last one, for a single step after a freeze


def test_an_online_threshold_stays_a_number() -> None:
    for sign, end in ((1.0, 1e12), (-1.0, 1e-12)):
        policy = Online(0.1, speed=0.9)
        state = policy.start(["w"])
        for _ in range(60):
            state = policy.update(state, [online(sign, 1.0)])
        assert state["threshold"] == end


def test_normalised_gradients_have_norms_below_one() -> None:
    total_U = torch.tensor([0.0, 0.01, 1.0, 1e6])
    policy = Normalised(0.01)
    weights = policy.weights(Norms(("w",), total_U.square()[None], total_U), policy.start(["w"]))
    torch.testing.assert_close(weights[0] * total_U, torch.tensor([0.0, 0.5, 1 / 1.01, 1.0]))
    assert policy.sensitivity({}) == 1.0


@pytest.mark.parametrize("threshold", [0.0, -1.0, math.inf, math.nan])
def test_impossible_thresholds(threshold: float) -> None:
    for make in (Fixed, PerLayer, Online, lambda c: Quantile(0.5, c)):
        with pytest.raises(ValueError, match="threshold"):
            make(threshold)
    with pytest.raises(ValueError, match="stability"):
        Normalised(threshold)
