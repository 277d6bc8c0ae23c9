"""Local steps of many clients at once against plain loops over one of them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from conftest import Answer, plan_of
from sordino.federated.local import (
    LOCAL_RULES,
    Field,
    LocalAdam,
    LocalExtrapolation,
    LocalRule,
    LocalSgd,
    OwnLoop,
    local_named,
)
from sordino.rates import Tolerance
from sordino.steps import Adam, Extrapolation, Sgd, StepRule

RULES = [
    LocalSgd(),
    LocalSgd(momentum=0.8),
    LocalAdam(),
    LocalExtrapolation(tol=0.1),
    LocalExtrapolation(tol=0.02, discard=False),
]
NAMES = ["sgd", "momentum", "adam", "adadp", "adadp-kept"]
MORE = [name for name in LOCAL_RULES if name not in NAMES]  # whatever else there is keeps the same contract
RULES, NAMES = [*RULES, *map(local_named, MORE)], [*NAMES, *MORE]
P, D = 4, 6


class Noisy:
    """Gradients of quadratic losses with noise that depends on client and batch alone."""

    def __init__(self, clients: list[int], seed: int = 0) -> None:
        chance = torch.Generator().manual_seed(seed)
        self.curvatures = torch.rand(P, D, generator=chance, dtype=torch.float64)[clients] + 0.1
        self.targets = torch.randn(P, D, generator=chance, dtype=torch.float64)[clients]
        self.noise = torch.randn(200, P, D, generator=chance, dtype=torch.float64)[:, clients]
        self.batch = 0

    def __call__(self, x: Tensor) -> Tensor:
        self.batch += 1
        return self.curvatures * (x - self.targets) + 0.3 * self.noise[self.batch - 1]


def beginning() -> tuple[Tensor, Tensor]:
    x = torch.randn(P, D, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    return x, torch.tensor([[0.05], [0.1], [0.2], [0.4]], dtype=torch.float64)


def by_step_rule(rule: StepRule, client: int, steps: int) -> Tensor:
    x, rates = beginning()
    theta, rate, field = x[client].clone(), float(rates[client]), Noisy([client])
    state = rule.start(theta, plan_of())
    for _ in range(steps):
        rule.step(lambda at: Answer(field(at[None])[0]), theta, lambda _: rate, state)
    return theta


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (LocalSgd(), Sgd()),
        (LocalSgd(momentum=0.8), Sgd(momentum=0.8)),
        (LocalAdam(beta1=0.7), Adam(beta1=0.7)),
    ],
    ids=["sgd", "momentum", "adam"],
)
def test_rows_are_the_step_rules_of_central_training(ours: LocalRule, theirs: StepRule) -> None:
    x, rates = beginning()
    field, state = Noisy([0, 1, 2, 3]), ours.start(x, rates)
    for _ in range(15):
        ours.step(field, x, None, state)
    for client in range(P):
        torch.testing.assert_close(x[client], by_step_rule(theirs, client, 15), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("discard", [True, False])
def test_rows_are_adadp_of_central_training(discard: bool) -> None:
    steps, tol = 30, 0.06
    x, rates = beginning()
    ours = LocalExtrapolation(tol, discard)
    field, state = Noisy([0, 1, 2, 3]), ours.start(x, rates)
    for _ in range(steps):
        ours.step(field, x, None, state)
    assert field.batch == steps * ours.batches_per_step
    taken_back = 0
    for client in range(P):
        start, first_rates = beginning()
        theta, one = start[client].clone(), Noisy([client])
        rule, control = Extrapolation(), Tolerance(float(first_rates[client]), tol, discard=discard)
        plan = plan_of(steps=steps, batches=2 * steps, noise_multiplier=0.0)
        rule_state, rate_state = rule.start(theta, plan), control.start(plan, theta)
        length = 0.0
        for number in range(steps):
            rate = control.rate(number, rate_state)
            result = rule.step(
                lambda at, one=one: Answer(one(at[None])[0]),  # type: ignore[misc]
                theta,
                lambda _, rate=rate: rate,  # type: ignore[misc]
                rule_state,
                control.limit(rate_state),
            )
            assert result.error is not None
            kept = result.error <= control.limit(rate_state)
            length += rate * kept
            taken_back += not kept
            rate_state = control.update(rate_state, result, theta)
        torch.testing.assert_close(x[client], theta, rtol=1e-10, atol=1e-11)
        assert float(state["rates"][client]) == pytest.approx(rate_state["rate"], rel=1e-10)
        found = ours.length(state)
        assert found is not None
        assert float(found[client]) == pytest.approx(length, rel=1e-10)
    assert (taken_back > 0) == discard  # both ways were taken
    assert taken_back < P * steps


def test_the_tolerance_is_the_papers_for_training_without_noise() -> None:
    assert LocalExtrapolation().tol == 0.1
    assert LocalExtrapolation().discard
    assert LocalExtrapolation().keeps_rate
    assert not LocalSgd().keeps_rate


@pytest.mark.parametrize(
    ("tol", "discard", "x", "rate"),
    [(1.0, True, 1.805, 0.11), (0.0025, False, 1.805, 0.09), (0.001, True, 2.0, 0.09)],
    ids=["A1a", "A1b", "A1d"],
)
def test_golden_values_of_a_step(tol: float, discard: bool, x: float, rate: float) -> None:
    rule = LocalExtrapolation(tol, discard)
    at, rates = torch.tensor([[2.0]], dtype=torch.float64), torch.tensor([[0.1]], dtype=torch.float64)
    state = rule.start(at, rates)
    rule.step(lambda point: point.clone(), at, None, state)
    assert float(at) == pytest.approx(x, rel=1e-12)
    assert float(state["rates"]) == pytest.approx(rate, rel=1e-12)


def test_a_rate_stays_within_single_precision() -> None:
    rule = LocalExtrapolation()
    x = torch.zeros(2, 1)
    state = rule.start(x, torch.tensor([[1e38], [1e-30]]))
    rule.step(lambda at: torch.tensor([[0.0], [math.nan]]), x, None, state)
    assert state["rates"].flatten().tolist() == pytest.approx([1e38, 1e-30])
    assert x.flatten().tolist() == [0.0, 0.0]


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_rows_do_not_depend_on_each_other(rule: LocalRule) -> None:
    x, rates = beginning()
    together, state = x.clone(), rule.start(x, rates)
    field = Noisy([0, 1, 2, 3])
    for _ in range(10):
        rule.step(field, together, None, state)
    for client in range(P):
        alone = x[client : client + 1].clone()
        of_one = rule.start(alone, rates[client : client + 1])
        field = Noisy([client])
        for _ in range(10):
            rule.step(field, alone, None, of_one)
        torch.testing.assert_close(alone[0], together[client], rtol=1e-13, atol=1e-14)
        torch.testing.assert_close(of_one["rates"][0], state["rates"][client], rtol=1e-13, atol=0)


@pytest.mark.parametrize("kind", [torch.bool, torch.float64])
@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_idle_rows_stay_bit_for_bit(rule: LocalRule, kind: torch.dtype) -> None:
    x, rates = beginning()
    x[0, 0] = -0.0
    state = rule.start(x, rates)
    field = Noisy([0, 1, 2, 3])
    active = torch.tensor([[0], [1], [0], [1]]).to(kind)
    everyone = torch.ones(P, 1).to(kind)
    rule.step(field, x, everyone, state)
    before = {"x": x.clone(), **{name: part.clone() for name, part in state.items()}}
    for _ in range(5):
        rule.step(field, x, active, state)
        after = {"x": x, **state}
        assert after.keys() == before.keys()
        for name, part in after.items():
            assert part[0::2].view(torch.int64).equal(before[name][0::2].view(torch.int64)), name
    for name, part in after.items():
        moves = name != "rates" or rule.keeps_rate
        assert moves != part[1::2].equal(before[name][1::2]), name


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_a_row_that_pauses_goes_on_as_if_it_had_not(rule: LocalRule) -> None:
    x, rates = beginning()
    together, state = x.clone(), rule.start(x, rates)
    field = Noisy([0, 1, 2, 3])
    pattern = [[1, 1, 0, 1], [0, 1, 0, 1], [1, 0, 1, 1], [1, 1, 1, 0], [0, 1, 0, 1], [1, 1, 0, 1]]
    for mask in pattern:
        rule.step(field, together, torch.tensor(mask)[:, None], state)
    for client in range(P):
        alone = x[client : client + 1].clone()
        of_one = rule.start(alone, rates[client : client + 1])
        one = Noisy([client])
        for number, mask in enumerate(pattern):
            if mask[client]:
                one.batch = number * rule.batches_per_step
                rule.step(one, alone, None, of_one)
        torch.testing.assert_close(alone[0], together[client], rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_a_broken_row_breaks_no_other(rule: LocalRule, bad: float) -> None:
    def broken(row: int | None) -> tuple[Tensor, Tensor]:
        x, rates = beginning()
        state, field = rule.start(x, rates), Noisy([0, 1, 2, 3])

        def answer(at: Tensor) -> Tensor:
            gradients = field(at)
            if row is not None and field.batch == 4:
                gradients[row] = bad
            return gradients

        for _ in range(6):
            rule.step(answer, x, torch.tensor([[1.0], [1.0], [1.0], [0.0]]), state)
        return x, state["rates"]

    fine, fine_rates = broken(None)
    for row in (1, 3):  # one that works, and one that does not
        x, rates = broken(row)
        others = [client for client in range(P) if client != row]
        assert x[others].equal(fine[others])
        assert rates[others].equal(fine_rates[others])
    assert x.equal(fine)  # an idle row is not even broken itself


def test_a_step_that_overflows_is_taken_back_and_shrinks_the_rate() -> None:
    rule = LocalExtrapolation()
    x, rates = torch.ones(2, 3), torch.full((2, 1), 0.5)
    state = rule.start(x, rates)
    rule.step(lambda at: torch.tensor([[math.nan] * 3, [0.01] * 3]), x, None, state)
    assert x[0].tolist() == [1.0] * 3
    assert state["rates"].flatten().tolist() == pytest.approx([0.45, 0.55])
    length = rule.length(state)
    assert length is not None
    assert length.flatten().tolist() == [0.0, 0.5]


@pytest.mark.parametrize(
    "rule", [LocalSgd(momentum=0.8), LocalExtrapolation(tol=1e9)], ids=["momentum", "adadp"]
)
def test_the_length_is_how_far_one_unchanging_gradient_leads(rule: LocalRule) -> None:
    gradient = torch.tensor([[1.0, -2.0], [3.0, 0.5]], dtype=torch.float64)
    x, rates = torch.zeros(2, 2, dtype=torch.float64), torch.tensor([[0.1], [0.2]], dtype=torch.float64)
    state = rule.start(x, rates)
    for number in range(7):
        active = torch.tensor([[1.0], [float(number < 4)]])
        rule.step(lambda at: gradient.clone(), x, active, state)
    length = rule.length(state)
    assert length is not None
    torch.testing.assert_close(-x / gradient, length.expand(2, 2))


def test_plain_steps_are_as_long_as_planned() -> None:
    for rule in (LocalSgd(), LocalAdam()):
        assert rule.length(rule.start(*beginning())) is None


def test_rules_by_name() -> None:
    known = {"adadp": LocalExtrapolation(), "adam": LocalAdam(), "sgd": LocalSgd()}
    assert {name: local_named(name) for name in known} == known
    names = ", ".join(LOCAL_RULES)
    with pytest.raises(ValueError, match=f"there is no local rule 'adagrad': choose one of {names}"):
        local_named("adagrad")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LocalSgd(momentum=1.0), r"momentum must be in \[0, 1\), not 1"),
        (lambda: LocalAdam(beta2=1.0), r"beta1 and beta2 in \[0, 1\)"),
        (lambda: LocalAdam(eps=0.0), "eps > 0"),
        (lambda: LocalExtrapolation(tol=0.0), "tol must be positive and finite, not 0"),
        (lambda: LocalExtrapolation(grow=0.9), "0 < shrink <= 1 <= grow"),
    ],
)
def test_settings_that_make_no_sense(make: Callable[[], LocalRule], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_a_loop_of_ones_own_is_no_step_rule() -> None:
    own = OwnLoop(lambda theta, inputs, targets, generator: theta - (theta - inputs.mean(0)))
    assert not isinstance(own, LocalRule)
    found = own.function(torch.zeros(2), torch.ones(3, 2), None, torch.Generator())
    assert found.tolist() == [1.0, 1.0]


def test_fields_are_called_as_often_as_said() -> None:
    for rule in RULES:
        x, rates = beginning()
        field: Field = Noisy([0, 1, 2, 3])
        rule.step(field, x, None, rule.start(x, rates))
        assert isinstance(field, Noisy)
        assert field.batch == rule.batches_per_step
