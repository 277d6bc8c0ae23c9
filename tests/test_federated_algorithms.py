"""Federated algorithms against golden values, plain NumPy oracles, and what their formulas are known to mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import stats
from torch import Tensor

from conftest import plan_of
from sordino.federated.algorithms import (
    ALGORITHMS,
    AdaBest,
    Algorithm,
    FedAdam,
    FedAvg,
    FedDyn,
    FedProx,
    Participants,
    Round,
    Scaffold,
    ScaffoldM,
    algorithm_named,
    rate_of_round,
)
from sordino.steps import Adam, AdamWithoutSecondMoments, Extrapolation, Ftrl, Sgd

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Federation:
    """Clients with losses sum_j curvature_j (x_j - target_j)^2 / 2, and who takes part when."""

    targets: Array  # [N, d]
    curvatures: Array  # [N, d]
    examples: list[int]
    steps: list[int]
    rounds: list[list[int]]
    rate: float = 0.1
    decay: float = 1.0


TOY = Federation(
    np.array([[1.0], [-1.0], [3.0]]), np.ones((3, 1)), [1, 1, 1], [2, 2, 2], [[0, 1], [1, 2], [0, 2], [0, 1]]
)


def random_federation(seed: int, *, balanced: bool = False) -> Federation:
    chance = np.random.default_rng(seed)
    clients, size = int(chance.integers(3, 8)), int(chance.integers(1, 5))
    examples = [20] * clients if balanced else chance.integers(5, 60, clients).tolist()
    steps = [3] * clients if balanced else [math.ceil(n / 10) for n in examples]
    rounds = [
        sorted(chance.choice(clients, int(chance.integers(1, clients)), replace=False).tolist())
        for _ in range(12)
    ]
    return Federation(
        chance.normal(size=(clients, size)),
        chance.uniform(0.2, 2.0, (clients, size)),
        examples,
        steps,
        rounds,
        rate=float(chance.uniform(0.02, 0.2)),
        decay=float(chance.uniform(0.8, 1.0)),
    )


@dataclass
class Trace:
    """What became of a run."""

    thetas: list[Tensor]
    server: dict[str, Any]
    states: dict[str, Tensor]  # [N, d]
    gradients: list[dict[int, Tensor]] = field(default_factory=list)  # means of a client's own, by round


def drive(
    algorithm: Algorithm,
    of: Federation,
    *,
    dtype: torch.dtype = torch.float64,
    mean_examples: float | None = None,
    steps_of: Callable[[int], Sequence[float]] | None = None,
) -> Trace:
    """The rounds, participants as rows of a matrix; ``steps_of`` gives the rates of a round's steps, over its own."""
    clients, size = of.targets.shape
    targets, curvatures = torch.tensor(of.targets, dtype=dtype), torch.tensor(of.curvatures, dtype=dtype)
    theta = torch.zeros(size, dtype=dtype)
    states = {name: torch.zeros(clients, size, dtype=dtype) for name in algorithm.client_vectors}
    last = [0] * clients
    server = algorithm.start(theta, plan_of(parameters=size), mean_examples)
    trace = Trace([], server, states)
    for number, chosen in enumerate(of.rounds, 1):
        now = Round(
            number,
            clients,
            len(chosen),
            rate_of_round(of.rate, of.decay, number - 1),
            sum(of.steps) / clients,
            sum(of.examples) / clients,
        )
        who = Participants(
            {name: states[name][chosen] for name in states},
            torch.tensor([[number - last[i]] for i in chosen], dtype=dtype),
            torch.tensor([[of.examples[i]] for i in chosen], dtype=dtype),
            torch.tensor([[of.steps[i]] for i in chosen], dtype=dtype),
        )
        x = theta.repeat(len(chosen), 1)
        offset, pull = algorithm.offset(who, server, now), algorithm.pull(who, server, now)
        relative = steps_of(number) if steps_of else [1.0] * max(of.steps)
        sums = torch.zeros_like(x)
        for step, stretch in enumerate(relative):
            active = torch.ones_like(who.steps) if steps_of else (who.steps > step).to(dtype)
            gradients = curvatures[chosen] * (x - targets[chosen])
            sums += active * stretch * gradients
            if offset is not None:
                gradients = gradients + offset
            if pull is not None:
                gradients = gradients + pull * (x - theta)
            x = x - now.rate * stretch * active * gradients
        update = theta - x
        if steps_of:
            who = replace(who, length=torch.full_like(who.steps, now.rate * sum(relative)))
        new = algorithm.client_update(who, update, server, now)
        sent = algorithm.sends(who, new, update, server, now)
        assert tuple(sent) == algorithm.sent_vectors
        assert tuple(new) == algorithm.client_vectors
        weights = who.examples if algorithm.weighted else torch.ones_like(who.examples)
        mean = {name: (rows * weights).sum(0) / weights.sum() for name, rows in sent.items()}
        algorithm.server_update(theta, mean, server, now)
        algorithm.seen(server, [float(of.examples[i]) for i in chosen])
        for name in states:
            states[name][chosen] = new[name]
        for i in chosen:
            last[i] = number
        trace.thetas.append(theta.clone())
        total = torch.tensor([[sum(relative)]] * len(chosen), dtype=dtype) if steps_of else who.steps
        trace.gradients.append(dict(zip(chosen, sums / total, strict=True)))
    return trace


def oracle(name: str, of: Federation, **settings: float) -> list[Array]:
    """Every algorithm as ALGORITHMS 5.1 and 5.2 state it, client after client, with nothing shared."""
    N, d = of.targets.shape
    theta = np.zeros(d)
    mean_model = theta.copy()
    h = np.zeros(d)
    own = [np.zeros(d) for _ in range(N)]
    last = [0] * N
    first, second = np.zeros(d), np.zeros(d)
    seen: list[int] = []
    mu, beta = settings.get("mu", 0.0), settings.get("beta", 0.0)
    population_mean = float(np.mean(of.examples))
    found = []
    for t, chosen in enumerate(of.rounds, start=1):
        eta = of.rate * of.decay ** (t - 1)
        P, S = len(chosen), N
        updates, changes, sizes = [], [], []
        for i in chosen:
            n, K = of.examples[i], of.steps[i]
            nbar = population_mean
            if settings.get("progressive"):
                nbar = float(np.mean(seen)) if seen else float(n)
            w = n / nbar
            mu_adabest = mu * float(np.mean(seen)) / n if seen else 0.0
            x = theta.copy()
            for _ in range(K):
                g = of.curvatures[i] * (x - of.targets[i])
                if name == "fedprox":
                    g = g + mu * (x - theta)
                elif name == "feddyn":
                    g = g - own[i] - mu / w * (theta - x)
                elif name in ("scaffold", "scaffold-m"):
                    g = g - own[i] + h / w
                elif name == "adabest":
                    g = g - mu_adabest * own[i]
                x = x - eta * g
            g_i = theta - x
            updates.append(g_i)
            sizes.append(n)
            if name == "feddyn":
                own[i] = own[i] + mu / w * g_i
            elif name in ("scaffold", "scaffold-m"):
                fresh = own[i] - h / w + g_i / (K * eta)
                changes.append((fresh - own[i]) * w)
                own[i] = fresh
            elif name == "adabest":
                own[i] = own[i] / (t - last[i]) + g_i
            last[i] = t
        uniform = sum(updates) / P
        weighted = sum(n * g for n, g in zip(sizes, updates, strict=True)) / sum(sizes)
        if name in ("fedavg", "fedprox"):
            theta = theta - settings.get("server_rate", 1.0) * weighted
        elif name == "fedadam":
            first = 0.9 * first + 0.1 * weighted
            second = 0.99 * second + 0.01 * weighted**2
            theta = theta - settings["server_rate"] * first / (np.sqrt(second) + 1e-3)
        elif name == "feddyn":
            h = h + P / S * uniform
            theta = theta - uniform - h
        elif name == "scaffold":
            h = h + sum(changes) / S
            theta = theta - uniform
        elif name == "scaffold-m":
            h = (1 - P / S) * h + P / (float(np.mean(of.steps)) * eta * S) * uniform
            theta = theta - uniform
        elif name == "adabest":
            new_mean = theta - uniform
            h = beta * (mean_model - new_mean)
            mean_model = new_mean
            theta = new_mean - h
        seen += sizes
        found.append(theta.copy())
    return found


def server_only(
    algorithm: Algorithm, means: Sequence[Tensor], share: float = 1.0
) -> tuple[list[Tensor], list[Tensor]]:
    """theta and the server's h after each of these mean updates, from 0; |P|/|S| is ``share``."""
    theta = torch.zeros_like(means[0])
    server = algorithm.start(theta, plan_of())
    thetas, hs = [], []
    for number, mean in enumerate(means, 1):
        algorithm.server_update(theta, {"update": mean}, server, Round(number, 1000, 1000 * share, 0.1, 2.0))
        thetas.append(theta.clone())
        hs.append(server["h"].clone() if "h" in server else torch.zeros_like(theta))
    return thetas, hs


def numbers(values: Sequence[Tensor]) -> list[float]:
    return [float(value) for value in values]


# Golden values


@pytest.mark.parametrize("weighted", [True, False])
def test_e1_federated_averaging(weighted: bool) -> None:
    assert numbers(drive(FedAvg(weighted=weighted), TOY).thetas) == pytest.approx(
        [0, 0.19, 0.5339, 0.432459], abs=1e-12
    )


def test_e2_adabest() -> None:
    algorithm = AdaBest(mu=0.02, beta=0.8)
    trace = drive(algorithm, TOY)
    assert numbers(trace.thetas) == pytest.approx([0, 0.3426498, 1.0286954084, 0.975503588887], abs=1e-12)
    assert float(trace.server["h"]) == pytest.approx(-0.141956111505, abs=1e-12)
    assert float(trace.server["mean_model"]) == pytest.approx(0.833547477382, abs=1e-12)
    # mu is outside of what our clients keep.
    of_clients = algorithm.mu * trace.states["h"][:, 0]
    assert of_clients.tolist() == pytest.approx([-0.00425779, 0.011473, -0.02145461], abs=5e-9)


def test_e3_feddyn() -> None:
    trace = drive(FedDyn(mu=0.02), TOY)
    assert numbers(trace.thetas) == pytest.approx([0, 0.316933734, 0.973715587078, 1.004664014315], abs=1e-12)
    assert float(trace.server["h"]) == pytest.approx(-0.215645473330, abs=1e-12)


def test_e5_the_servers_of_scaffold() -> None:
    chance = torch.Generator().manual_seed(5)
    before, own, updates = (torch.randn(n, 6, generator=chance, dtype=torch.float64) for n in (1, 2, 2))
    now = Round(4, 5, 2, 0.07, 3.0)
    column = torch.ones(2, 1, dtype=torch.float64)
    who = Participants({"h": own}, column, column, 3 * column)
    after = []
    for algorithm in (Scaffold(), ScaffoldM()):
        server = {"h": before[0].clone()}
        new = algorithm.client_update(who, updates, server, now)
        torch.testing.assert_close(new["h"], own - before + updates / (3 * 0.07), rtol=0, atol=1e-12)
        sent = algorithm.sends(who, new, updates, server, now)
        algorithm.server_update(torch.zeros(6).double(), {k: v.mean(0) for k, v in sent.items()}, server, now)
        after.append(server["h"])
    torch.testing.assert_close(after[0], after[1], rtol=0, atol=1e-12)
    right = (1 - 2 / 5) * before[0] + 2 / (5 * 3 * 0.07) * updates.mean(0)
    torch.testing.assert_close(after[1], right, rtol=0, atol=1e-12)
    printed = (1 - 1 / 5) * before[0] + 2 / (5 * 3 * 0.07) * updates.mean(0)
    torch.testing.assert_close(printed - after[1], before[0] / 5, rtol=0, atol=1e-12)


def test_e6_the_server_of_adabest() -> None:
    means = [torch.tensor([g], dtype=torch.float64) for g in (0.5, -0.2, 0.1, 0.4)]
    thetas, hs = server_only(AdaBest(beta=0.8), means)
    assert numbers(hs) == pytest.approx([0.4, 0.16, 0.208, 0.4864], abs=1e-14)
    assert numbers(thetas) == pytest.approx([-0.9, -0.86, -1.168, -2.0544], abs=1e-14)


@pytest.mark.parametrize("seed", range(5))
def test_e8_adabest_without_correction_is_federated_averaging_bit_for_bit(seed: int) -> None:
    of = random_federation(seed)
    plain = drive(FedAvg(weighted=False), of, dtype=torch.float32)
    corrected = drive(AdaBest(mu=0.0, beta=0.0), of, dtype=torch.float32)
    for one, other in zip(plain.thetas, corrected.thetas, strict=True):
        assert torch.equal(one, other)
    assert not torch.equal(
        plain.thetas[-1], drive(AdaBest(mu=1e-3, beta=0.0), of, dtype=torch.float32).thetas[-1]
    )
    assert not torch.equal(
        plain.thetas[-1], drive(AdaBest(mu=0.0, beta=1e-3), of, dtype=torch.float32).thetas[-1]
    )


def test_e9_the_rate_decays_by_round() -> None:
    assert rate_of_round(0.1, 0.998, 0) == 0.1
    assert rate_of_round(0.1, 0.998, 100) == pytest.approx(0.0818566805, abs=5e-11)
    assert rate_of_round(0.1, 0.998, 1000) == pytest.approx(0.0135064522, abs=5e-11)


@pytest.mark.parametrize(
    ("algorithm", "share", "rounds", "expected"),
    [
        (FedAvg(), 1.0, 1000, 1000.0),
        (FedAvg(), 1.0, 10000, 10000.0),
        (AdaBest(beta=0.8), 1.0, 1000, 24868.444),
        (AdaBest(beta=0.8), 1.0, 10000, 249868.444),
        (AdaBest(beta=0.95), 1.0, 10000, 3988901.56),
        (FedDyn(), 0.005, 1000, 14350.837),
        (FedDyn(), 0.005, 10000, 8844633.375),
        (FedDyn(), 0.1, 1000, 3439435.0),
    ],
)
def test_e10_how_noise_gathers_exactly(
    algorithm: Algorithm, share: float, rounds: int, expected: float
) -> None:
    # One mean update of 1 and then none: how far theta is off after n rounds is the weight of noise that is n rounds
    # old. So the variance after T rounds of independent noise is the sum of squares of the first T weights.
    means = [torch.ones(1, dtype=torch.float64)] + [torch.zeros(1, dtype=torch.float64)] * (rounds - 1)
    thetas, _ = server_only(algorithm, means, share)
    weights = torch.cat(thetas)
    n = torch.arange(1, rounds + 1, dtype=torch.float64)
    if isinstance(algorithm, AdaBest):
        closed = (1 - algorithm.beta ** (n + 1)) / (1 - algorithm.beta)
    elif isinstance(algorithm, FedDyn):
        closed = 1 + share * n
    else:
        closed = torch.ones_like(n)
    torch.testing.assert_close(weights, -closed)
    assert float(weights.square().sum()) == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize(
    "algorithm", [FedAvg(), AdaBest(beta=0.8), FedDyn()], ids=["fedavg", "adabest", "feddyn"]
)
def test_e10_how_noise_gathers_in_simulation(algorithm: Algorithm) -> None:
    rounds, size, share = 150, 20_000, 0.05
    chance = torch.Generator().manual_seed(10)
    means = [torch.randn(size, generator=chance, dtype=torch.float64) for _ in range(rounds)]
    squares = float(server_only(algorithm, means, share)[0][-1].square().sum())
    n = np.arange(1, rounds + 1)

    def inside(weights: Array) -> bool:
        low, high = stats.chi2.ppf([1e-4, 1 - 1e-4], size) * float((weights**2).sum())
        return bool(low < squares < high)

    def adabest(beta: float) -> Array:
        return np.asarray((1 - beta ** (n + 1.0)) / (1 - beta))

    right: dict[type, Any] = {FedAvg: np.ones(rounds), AdaBest: adabest(0.8), FedDyn: 1 + share * n}
    for kind, weights in right.items():
        assert inside(weights) == (type(algorithm) is kind)
    for other in (0.78, 0.82):
        assert not inside(adabest(other))


# Oracles

CASES: list[tuple[str, dict[str, float]]] = [
    ("fedavg", {}),
    ("fedavg", {"server_rate": 0.7}),
    ("fedprox", {"mu": 0.3}),
    ("fedadam", {"server_rate": 0.05}),
    ("scaffold", {}),
    ("scaffold", {"progressive": True}),
    ("scaffold-m", {}),
    ("scaffold-m", {"progressive": True}),
    ("feddyn", {"mu": 0.1}),
    ("feddyn", {"mu": 0.1, "progressive": True}),
    ("adabest", {"mu": 0.1, "beta": 0.8}),
    ("adabest", {"mu": 0.5, "beta": 1.0}),
    ("adabest", {"mu": 0.0, "beta": 0.5}),
]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(("name", "settings"), CASES, ids=[f"{name}-{s}" for name, s in CASES])
def test_every_algorithm_is_its_oracle(name: str, settings: dict[str, float], seed: int) -> None:
    of = random_federation(seed)
    found = drive(algorithm_named(name, settings), of).thetas
    for ours, theirs in zip(found, oracle(name, of, **settings), strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-10, atol=1e-11)


def test_every_algorithm_has_an_oracle() -> None:
    assert {name for name, _ in CASES} == set(ALGORITHMS)


# What the formulas mean


@pytest.mark.parametrize("seed", range(4))
def test_scaffold_m_is_scaffold_for_clients_of_equal_steps(seed: int) -> None:
    of = random_federation(seed, balanced=True)
    one, other = drive(Scaffold(), of), drive(ScaffoldM(), of)
    torch.testing.assert_close(torch.stack(one.thetas), torch.stack(other.thetas), rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(one.states["h"], other.states["h"], rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(one.server["h"], other.server["h"], rtol=1e-11, atol=1e-12)
    assert Scaffold.sent_vectors == ("update", "change")
    assert ScaffoldM.sent_vectors == ("update",)
    assert ScaffoldM.needs_planned_rates
    assert not Scaffold.needs_planned_rates


@dataclass(frozen=True)
class UndecayedScaffold(Scaffold):
    """The mistake of public code: steps with the decayed rate, a divisor with the first."""

    first_rate: float = 0.1

    def client_update(
        self, who: Participants, update: Tensor, server: dict[str, Any], now: Round
    ) -> dict[str, Tensor]:
        return super().client_update(who, update, server, replace(now, rate=self.first_rate))


def test_scaffolds_control_variates_are_mean_gradients_under_decay() -> None:
    of = replace(random_federation(1), decay=0.9)
    trace = drive(Scaffold(), of)
    latest: dict[int, Tensor] = {}
    for gradients in trace.gradients:
        latest |= gradients
    for client, gradient in latest.items():
        torch.testing.assert_close(trace.states["h"][client], gradient)
    wrong = drive(UndecayedScaffold(first_rate=of.rate), of)
    assert float((wrong.thetas[-1] - trace.thetas[-1]).abs().max()) > 1e-2
    constant = replace(of, decay=1.0)
    same = drive(UndecayedScaffold(first_rate=of.rate), constant).thetas[-1]
    assert torch.equal(same, drive(Scaffold(), constant).thetas[-1])


def test_scaffold_with_clients_that_tune_their_rates_keeps_mean_gradients() -> None:
    of = random_federation(2)
    trace = drive(Scaffold(), of, steps_of=lambda number: [1.0, 1.1, 1.21, 0.5 * number])
    latest: dict[int, Tensor] = {}
    for gradients in trace.gradients:
        latest |= gradients
    for client, gradient in latest.items():
        torch.testing.assert_close(trace.states["h"][client], gradient)


def test_a_scaffold_client_that_took_back_all_its_steps_keeps_its_variate() -> None:
    own = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    column = torch.ones(2, 1)
    who = Participants({"h": own}, column, column, column, length=torch.tensor([[0.0], [0.5]]))
    update, server, now = (
        torch.tensor([[0.0, 0.0], [1.0, 1.0]]),
        {"h": torch.ones(2)},
        Round(2, 4, 2, 0.1, 1.0),
    )
    new = Scaffold().client_update(who, update, server, now)
    assert new["h"].tolist() == [[1.0, 2.0], [4.0, 5.0]]
    assert Scaffold().sends(who, new, update, server, now)["change"].tolist() == [[0.0, 0.0], [1.0, 1.0]]


def test_scaffold_finds_the_optimum_that_federated_averaging_misses() -> None:
    # Unequal curvatures: a fixed point of averaged local steps is not the optimum of the mean loss.
    of = Federation(
        np.array([[0.0], [4.0]]), np.array([[0.2], [2.0]]), [1, 1], [5, 5], [[0, 1]] * 200, rate=0.1
    )
    optimum = (0.2 * 0 + 2 * 4) / 2.2
    assert float(drive(Scaffold(), of).thetas[-1]) == pytest.approx(optimum, abs=1e-6)
    assert float(drive(FedDyn(mu=0.1), of).thetas[-1]) == pytest.approx(optimum, abs=1e-3)
    assert abs(float(drive(FedAvg(), of).thetas[-1]) - optimum) > 0.1


def test_feddyns_pull_is_mu_and_not_half_of_it() -> None:
    # Where a client stops, its gradient is h_i + mu (theta - x), which is its next h_i: only with all of mu.
    of = Federation(np.array([[1.0, -2.0]]), np.array([[0.5, 1.5]]), [7], [400], [[0], [0]], rate=0.2)
    trace = drive(FedDyn(mu=0.3), of)
    start = trace.thetas[0]
    curvature, target = torch.tensor(of.curvatures[0]), torch.tensor(of.targets[0])
    h = -0.3 * curvature * target / (curvature + 0.3)  # of round 1: mu g = -mu x, as theta is 0
    x = (curvature * target + h + 0.3 * start) / (curvature + 0.3)
    torch.testing.assert_close(trace.states["h"][0], curvature * (x - target))
    who = Participants({}, torch.ones(1, 1), torch.tensor([[5.0]]), torch.ones(1, 1))
    assert FedDyn(mu=0.3).pull(who, {}, Round(1, 4, 2, 0.1, 1.0, mean_examples=10.0)).item() == pytest.approx(
        0.6
    )


def test_adabests_server_in_its_other_forms() -> None:
    chance = torch.Generator().manual_seed(3)
    means = [torch.randn(5, generator=chance, dtype=torch.float64) for _ in range(20)]
    beta = 0.9
    thetas, hs = server_only(AdaBest(beta=beta), means)
    h = torch.zeros(5, dtype=torch.float64)
    before = mean_before = torch.zeros(5, dtype=torch.float64)
    for t, (theta, found, mean) in enumerate(zip(thetas, hs, means, strict=True), 1):
        h = beta * (h + mean)
        torch.testing.assert_close(found, h)
        weighted_sum = sum(beta ** (t - s + 1) * means[s - 1] for s in range(1, t + 1))
        torch.testing.assert_close(found, weighted_sum)
        mean_model = before - mean
        torch.testing.assert_close(theta, (1 + beta) * mean_model - beta * mean_before)
        before, mean_before = theta, mean_model


def test_adabest_with_beta_1_has_feddyns_server_of_full_participation() -> None:
    chance = torch.Generator().manual_seed(4)
    means = [torch.randn(5, generator=chance, dtype=torch.float64) for _ in range(20)]
    ours = server_only(AdaBest(beta=1.0), means, share=0.1)
    theirs = server_only(FedDyn(), means, share=1.0)
    torch.testing.assert_close(torch.stack(ours[0]), torch.stack(theirs[0]))
    torch.testing.assert_close(torch.stack(ours[1]), torch.stack(theirs[1]))
    assert not torch.allclose(ours[0][-1], server_only(FedDyn(), means, share=0.1)[0][-1])


def test_adabest_forgets_and_feddyn_does_not() -> None:
    # Theorem 2: once updates are 0, AdaBest's h decays geometrically and theta stops; FedDyn's goes on.
    one, none = torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    means = [one] * 5 + [none] * 100
    thetas, hs = server_only(AdaBest(beta=0.8), means)
    for before, after in pairwise(hs[4:]):
        assert float(after) == pytest.approx(0.8 * float(before), rel=1e-6)
    assert abs(float(thetas[-1] - thetas[-2])) < 1e-8
    thetas, hs = server_only(FedDyn(), means, share=0.1)
    assert numbers(hs[4:]) == [float(hs[4])] * 101
    assert float(hs[4]) == pytest.approx(0.5)
    assert float(thetas[-1] - thetas[-2]) == pytest.approx(-0.5)


def test_feddyns_h_shrinks_only_against_a_turned_update() -> None:
    # Theorem 1: |h| does not grow just if cos(h, g) <= -|P|/(2|S|) |g|/|h|.
    chance = torch.Generator().manual_seed(8)
    shrunk = 0
    for _ in range(200):
        h, g = torch.randn(2, 3, generator=chance, dtype=torch.float64)
        server = {"h": h.clone()}
        FedDyn().server_update(torch.zeros(3).double(), {"update": g}, server, Round(1, 10, 4, 0.1, 1.0))
        shrinks = bool(server["h"].norm() <= h.norm())
        cosine = float(h @ g / (h.norm() * g.norm()))
        assert shrinks == (cosine <= -0.4 / 2 * float(g.norm() / h.norm()))
        shrunk += shrinks
    assert 20 < shrunk < 180


# Sizes of clients


@pytest.mark.parametrize("kind", [FedDyn, Scaffold, ScaffoldM])
def test_balanced_clients_need_no_average(kind: type[FedDyn | Scaffold]) -> None:
    of = random_federation(3, balanced=True)
    one, other = drive(kind(), of), drive(kind(progressive=True), of)
    for a, b in zip(one.thetas, other.thetas, strict=True):
        assert torch.equal(a, b)
    unbalanced = random_federation(3)
    assert not torch.equal(
        drive(kind(), unbalanced).thetas[-1], drive(kind(progressive=True), unbalanced).thetas[-1]
    )


def test_balanced_clients_have_mu_itself() -> None:
    of = random_federation(3, balanced=True)
    ones = replace(of, examples=[1] * len(of.examples))
    for a, b in zip(drive(AdaBest(), of).thetas, drive(AdaBest(), ones).thetas, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    "algorithm", [AdaBest(mu=0.3), FedDyn(mu=0.3, progressive=True), Scaffold(progressive=True)]
)
def test_the_average_is_over_all_participations(algorithm: Algorithm) -> None:
    server = algorithm.start(torch.zeros(2), plan_of())
    assert server["mean_examples"] == 0.0
    algorithm.seen(server, [10.0, 20.0])
    assert server["mean_examples"] == 15.0
    algorithm.seen(server, [])
    algorithm.seen(server, [10.0])
    assert server["mean_examples"] == pytest.approx(40 / 3)


@pytest.mark.parametrize(
    "algorithm", [AdaBest(mu=0.3), FedDyn(mu=0.3, progressive=True), Scaffold(progressive=True)]
)
def test_a_public_average_stays_what_it_is(algorithm: Algorithm) -> None:
    server = algorithm.start(torch.zeros(2), plan_of(), mean_examples=12.5)
    algorithm.seen(server, [10.0, 2000.0])
    assert server["mean_examples"] == 12.5
    of = random_federation(4)
    public = drive(algorithm, of, mean_examples=12.5).thetas[-1]
    assert not torch.equal(public, drive(algorithm, of).thetas[-1])
    with pytest.raises(ValueError, match="mean_examples must be a positive number"):
        algorithm.start(torch.zeros(2), plan_of(), mean_examples=0.0)


def test_a_large_client_corrects_less() -> None:
    who = Participants(
        {"h": torch.ones(2, 3)}, torch.ones(2, 1), torch.tensor([[10.0], [40.0]]), torch.ones(2, 1)
    )
    offset = AdaBest(mu=0.1).offset(who, {"mean_examples": 20.0}, Round(2, 4, 2, 0.1, 1.0))
    torch.testing.assert_close(offset, torch.tensor([[-0.2] * 3, [-0.05] * 3]))


def test_what_is_weighted_by_examples() -> None:
    assert {name for name, kind in ALGORITHMS.items() if kind().weighted} == {"fedavg", "fedprox", "fedadam"}
    of = random_federation(0)
    assert not torch.equal(drive(FedAvg(), of).thetas[-1], drive(FedAvg(weighted=False), of).thetas[-1])


# The server's step rule


def test_the_plain_server_subtracts_the_mean_bit_for_bit() -> None:
    theta, mean = torch.randn(2, 1000, generator=torch.Generator().manual_seed(1))
    expected = theta - mean
    algorithm = FedAvg()
    server = algorithm.start(theta, plan_of())
    algorithm.server_update(theta, {"update": mean}, server, Round(1, 10, 2, 0.1, 1.0))
    assert torch.equal(theta, expected)
    assert server == {"step": {}}


def test_a_server_with_ftrl_and_momentum() -> None:
    chance = torch.Generator().manual_seed(6)
    means = [torch.randn(4, generator=chance, dtype=torch.float64) for _ in range(10)]
    total = velocity = torch.zeros(4, dtype=torch.float64)
    thetas, _ = server_only(FedAvg(server=Ftrl(momentum=0.9), server_rate=0.3), means)
    for theta, mean in zip(thetas, means, strict=True):
        total = total + mean
        velocity = 0.9 * velocity + total
        torch.testing.assert_close(theta, -0.3 * velocity)


def test_a_server_with_a_restart_of_the_plan() -> None:
    algorithm = FedProx(server=Ftrl(fresh_start=True))
    server = algorithm.start(torch.zeros(2), plan_of(restart_steps=3))
    assert server["step"]["restart"] == 3


def test_servers_with_momentum_and_adam_are_the_step_rules() -> None:
    chance = torch.Generator().manual_seed(7)
    means = [torch.randn(4, generator=chance, dtype=torch.float64) for _ in range(10)]
    velocity = torch.zeros(4, dtype=torch.float64)
    theta = torch.zeros(4, dtype=torch.float64)
    for found, mean in zip(server_only(FedAvg(server=Sgd(momentum=0.5)), means)[0], means, strict=True):
        velocity = 0.5 * velocity + mean
        theta = theta - velocity
        torch.testing.assert_close(found, theta)
    first = server_only(FedAvg(server=Adam(), server_rate=0.1), means)[0][0]
    torch.testing.assert_close(first, -0.1 * means[0].sign(), rtol=1e-6, atol=0)


# Names and settings


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_algorithms_by_name(name: str) -> None:
    assert algorithm_named(name) == ALGORITHMS[name]()


def test_names_and_settings_of_algorithms() -> None:
    assert algorithm_named("scaffold_m", {"progressive": True}) == ScaffoldM(progressive=True)
    assert algorithm_named("fedavg", {"server": "dp-ftrlm"}) == FedAvg(server=Ftrl(momentum=0.9))
    assert algorithm_named("fedprox", {"server": Sgd(0.5), "mu": 1}) == FedProx(server=Sgd(0.5), mu=1)
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("fedsgd", {}, "there is no algorithm 'fedsgd': choose one of adabest, fedadam"),
        ("adabest", {"rate": 0.1}, "adabest has no setting 'rate': it has mu, beta"),
        ("adabest", {"mu": "much"}, "mu must be a number, not 'much'"),
        ("adabest", {"mu": True}, "mu must be a number, not True"),
        ("feddyn", {"progressive": 1}, "progressive must be true or false, not 1"),
        ("fedavg", {"server": "lion"}, "there is no server 'lion': choose one of adam, ftrl"),
    ]
    for name, settings, message in wrong:
        with pytest.raises(ValueError, match=message):
            algorithm_named(name, settings)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AdaBest(mu=-0.1), "mu must be a number of at least 0, not -0.1"),
        (lambda: AdaBest(mu=math.inf), "mu must be a number of at least 0, not inf"),
        (lambda: AdaBest(beta=1.01), r"beta must be in \[0, 1\], not 1.01"),
        (lambda: AdaBest(beta=math.nan), r"beta must be in \[0, 1\], not nan"),
        (lambda: FedDyn(mu=-1), "mu must be a number of at least 0"),
        (lambda: FedProx(mu=-1), "mu must be a number of at least 0"),
        (lambda: FedProx(server_rate=0), "server_rate must be a positive number, not 0"),
        (lambda: FedAdam(stability=0), "stability must be a positive number, not 0"),
        (lambda: FedAdam(beta2=1), r"beta1 and beta2 must be in \[0, 1\), not 0.9 and 1"),
        (lambda: FedAvg(server=Extrapolation()), "Extrapolation asks for more"),
        (lambda: FedAvg(server=AdamWithoutSecondMoments()), "use Sgd, Adam or Ftrl"),
    ],
)
def test_settings_that_make_no_sense(make: Callable[[], Algorithm], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
