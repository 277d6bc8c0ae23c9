"""Faults that others have shipped, planted in our code: each is caught by a check that passes without it.

A check is an ordinary function: the audit of the gate, an oracle, a test of noise, a look at the ledger. Where a check
is statistical, it is wrong about sound code with probability below 1e-6 (and seeds are fixed, so it is not).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sordino.gradients.engine as engine_module
import sordino.noise.banded as banded_module
import sordino.noise.independent as independent_module
from sordino import Banded, Fixed, FixedOrder, Gate, Ledger, Poisson, Quantile
from sordino.auditing import audit_gate
from sordino.clipping import ClippingPolicy, Normalised, Online, Probe
from sordino.data import Sampling
from sordino.gate import Door
from sordino.gradients import Engine
from sordino.gradients.fallback import SlowGradients
from sordino.methods import method_named
from sordino.noise import GaussianNoise, Streams
from sordino.noise.independent import Gaussian
from sordino.noise.tree import _Nodes

Check = Callable[[], None]
Plant = Callable[[pytest.MonkeyPatch], None]
SURE = (0.95, 1 - 2e-7)  # two bounds at the second: wrong with probability 4e-7


@pytest.fixture
def caught(monkeypatch: pytest.MonkeyPatch) -> Callable[[Check, Plant], None]:
    """The check passes on our code and fails once the fault is planted."""

    def prove(check: Check, plant: Plant) -> None:
        check()
        with monkeypatch.context() as patch:
            plant(patch)
            with pytest.raises(AssertionError):
                check()

    return prove


# Checks -------------------------------------------------------------------------------------------------------


def the_audit_stands(method: str = "dp-sgd", runs: int = 100, **options: Any) -> Check:
    settings = options.pop("settings", {})
    options = {"noise_multiplier": 1.0, "delta": 1e-5, "releases": 1, "seed": 5, **options}

    def check() -> None:
        found = audit_gate(method_named(method, settings), runs=runs, confidences=SURE, **options)
        assert not found.violated, found.finding

    return check


class Still(nn.Module):
    """Its gradient is zero, so that what leaves the gate is noise alone."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :1].expand(-1, len(self.weight)) + self.weight


def zero(output: Tensor, _: Tensor) -> Tensor:
    return 0.0 * output.sum(1)


class Pull(nn.Module):
    """The gradient of a row is the row itself, wherever theta is."""

    def __init__(self, size: int = 3) -> None:
        super().__init__()
        self.linear = nn.Linear(size, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.linear(x).squeeze(1)
        return output


def as_it_is(output: Tensor, _: Tensor) -> Tensor:
    return output


ROWS = torch.tensor(np.random.default_rng(3).normal(size=(16, 3)), dtype=torch.float32)


def gate_of_rows(**options: Any) -> Gate:
    options = {"clip": Fixed(1.0), "noise_multiplier": 1.0, "sampling": Poisson(0.5), "seed": 4, **options}
    return Gate(Pull(), as_it_is, (ROWS, torch.zeros(len(ROWS))), **options)


def sums_are_divided_by_the_expected_batch() -> None:
    gate = gate_of_rows(noise_multiplier=0.0)
    clipped = ROWS / ROWS.norm(dim=1, keepdim=True).clamp_min(1.0)
    for step in range(6):
        units = gate.sampling.units(step, 16, gate.streams)
        expected = clipped[torch.from_numpy(units)].sum(0) / 8
        assert torch.allclose(gate().gradient.float(), expected, rtol=1e-4, atol=1e-6)


def noise_is_as_large_as_it_says() -> None:
    size = 50_000
    data = torch.ones(16, 2), torch.zeros(16)
    sampling = Poisson(0.5)
    gate = Gate(Still(size), zero, data, clip=Fixed(0.5), noise_multiplier=1.5, sampling=sampling, seed=2)
    released = gate()
    assert released.noise_std == pytest.approx(1.5 * 0.5 / 8)
    ratio = float(released.gradient.double().square().mean()) / released.noise_std**2
    assert abs(ratio - 1) < 6 * math.sqrt(2 / size), f"{ratio:.3f} times the variance it says"


@contextmanager
def listening() -> Iterator[tuple[list[float], dict[str, list[float]]]]:
    """The thresholds that clip, and the sizes of noise that are drawn, by purpose."""
    clipped_at: list[float] = []
    drawn: dict[str, list[float]] = {}
    add, weights = GaussianNoise.add_, Quantile.weights

    def heard(self: GaussianNoise, vector: Tensor, std: float, purpose: str, *rest: Any) -> Tensor:
        drawn.setdefault(purpose, []).append(std)
        return add(self, vector, std, purpose, *rest)

    def weighed(self: Quantile, norms: Any, state: Any) -> Tensor:
        clipped_at.append(state["threshold"])
        return weights(self, norms, state)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GaussianNoise, "add_", heard)
        patch.setattr(Quantile, "weights", weighed)
        yield clipped_at, drawn


def noise_follows_the_threshold_that_clipped() -> None:
    z, batch = 1.0, 8.0
    gate = gate_of_rows(clip=Quantile(0.5, 2.0), noise_multiplier=z, sampling=Poisson(0.5))
    z_gradient = (z**-2 - (2 * max(batch / 20, z)) ** -2) ** -0.5
    for _ in range(6):
        with listening() as (clipped_at, drawn):
            released = gate()
        assert len(set(clipped_at)) == 1
        assert drawn["noise"][0] == pytest.approx(z_gradient * clipped_at[0], rel=0.01)
        assert released.noise_std * batch == pytest.approx(z_gradient * clipped_at[0], rel=0.01)


def noise_pays_for_gradient_and_probe_together(clip: ClippingPolicy) -> Check:
    """What one unit can move, over the noise on it, squared and added up, is what one release is charged for."""

    def check() -> None:
        z = 1.3
        gate = gate_of_rows(clip=clip, noise_multiplier=z)
        (probe,) = clip.probes(z, gate.expected_batch)
        moves = {"q": 1.0, "fraction_within": 0.5}[probe.name]
        with listening() as (_, drawn):
            threshold = gate.threshold
            gate()
        assert set(drawn) == {"noise", f"noise:{probe.name}"}
        stds = drawn["noise"][0], drawn[f"noise:{probe.name}"][0]
        spent = (threshold / max(stds[0], 1e-9)) ** 2 + (moves / max(stds[1], 1e-9)) ** 2
        assert spent <= z**-2 * (1 + 1e-3)

    return check


def an_empty_batch_releases_noise() -> None:
    gate = gate_of_rows(sampling=Poisson(1e-9))
    for _ in range(3):
        assert float(gate().gradient.abs().min()) > 0
    assert gate.ledger.charges == 3


class Broke(Exception):
    pass


def what_broke_was_charged() -> None:
    """The loss fails on real rows, after sampling and before anything is released."""
    breaking = False

    def loss(output: Tensor, _: Tensor) -> Tensor:
        if breaking:
            raise Broke
        return output

    data = ROWS, torch.zeros(len(ROWS))
    gate = Gate(Pull(), loss, data, clip=Fixed(1.0), noise_multiplier=1.0, sampling=Poisson(1.0), seed=1)
    gate()
    breaking = True
    with pytest.raises(Broke):
        gate()
    assert gate.ledger.charges == 2


class Twice(nn.Module):
    """One weight, used twice: the gradient of a row is the sum over both uses."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = (self.linear(x) + self.linear(2 * x)).sum(1)
        return output


def a_weight_used_twice_is_clipped_as_one() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", SlowGradients)
        try:
            data = 10 * ROWS[:5], torch.zeros(5)
            gate = Gate(Twice(), as_it_is, data, clip=Fixed(1.0), noise_multiplier=0.0, sampling=Poisson(1.0))
            whole = gate().gradient.double() * 5
        except SlowGradients as doubt:
            raise AssertionError("the engine does not trust its own norms") from doubt
    gradients = (3 * data[0].double())[:, None, :].expand(-1, 2, -1).flatten(1)
    clipped = gradients / gradients.norm(dim=1, keepdim=True)
    assert torch.allclose(whole, clipped.sum(0), rtol=1e-3), "a unit moves the sum by more than C"


# Faults -------------------------------------------------------------------------------------------------------


def noise_times(factor: float, *purposes: str) -> Plant:
    """Noise scaled, on everything or on what is drawn for these purposes."""
    add = GaussianNoise.add_

    def planted(self: GaussianNoise, vector: Tensor, std: float, purpose: str, *rest: Any) -> Tensor:
        scaled = std * factor if not purposes or purpose in purposes else std
        return vector if scaled == 0 else add(self, vector, scaled, purpose, *rest)

    return lambda patch: patch.setattr(GaussianNoise, "add_", planted)


def weights_of(kind: type[ClippingPolicy], change: Callable[[Tensor, Any], Tensor]) -> Plant:
    weights = kind.weights

    def planted(self: Any, norms: Any, state: Any) -> Tensor:
        return change(weights(self, norms, state), norms)

    return lambda patch: patch.setattr(kind, "weights", planted)


@pytest.mark.parametrize("federated", [False, True])
def test_half_the_noise_is_caught(caught: Any, federated: bool) -> None:
    """Half the noise is twice the mu: at epsilon 4 one has really spent 10."""
    caught(the_audit_stands(runs=250, noise_multiplier=0.5, federated=federated), noise_times(1 / 2))


def test_two_thirds_of_the_noise_are_caught(caught: Any) -> None:
    """Noise of the size of a variance mistaken for a deviation, or of 2/3 of it, costs half as much again."""
    caught(the_audit_stands(runs=900, noise_multiplier=0.5, federated=True), noise_times(2 / 3))


@pytest.mark.parametrize("unit", ["example", "user"])
def test_no_clipping_is_caught(caught: Any, unit: str) -> None:
    """One unit with a huge gradient is in plain sight."""
    planted = weights_of(Fixed, lambda weights, _: torch.ones_like(weights))
    caught(the_audit_stands(unit=unit), planted)


def test_no_normalising_is_caught(caught: Any) -> None:
    """The default method has no threshold, but a bound all the same."""
    caught(the_audit_stands("auto"), weights_of(Normalised, lambda weights, _: torch.ones_like(weights)))


def test_a_threshold_moved_before_noising_is_caught(caught: Any) -> None:
    """The sum was clipped to the old C, and noise for a smaller one does not cover it."""
    releases = type(Gaussian().over(Poisson(0.5), 16, None))
    add = releases.add_

    def planted(self: Any, vector: Tensor, draw: Any, z: float, threshold: float, *rest: Any) -> float:
        return add(self, vector, draw, z, threshold * math.exp(-0.2 * 0.5), *rest)

    caught(noise_follows_the_threshold_that_clipped, lambda patch: patch.setattr(releases, "add_", planted))


def test_division_by_the_realised_batch_size_is_caught(caught: Any) -> None:
    """Who is missing from a batch changes everybody else's part of the mean."""

    def realised(self: Door) -> float:
        return float(max(1, len(self.sampling.units(self.step, self.units, self.streams))))

    caught(
        sums_are_divided_by_the_expected_batch,
        lambda patch: patch.setattr(Door, "expected_batch", property(realised)),
    )


def test_a_forgotten_factor_of_the_batch_size_is_caught(caught: Any) -> None:
    """Noise for a mean on a sum: sensitivity is off by the batch size (Tramer et al., 2022)."""
    caught(the_audit_stands(), weights_of(Fixed, lambda weights, norms: weights * len(norms.total_U)))


def test_noise_for_the_mean_on_the_sum_is_caught(caught: Any) -> None:
    """The same factor forgotten on the other side: the noise is divided by the batch size twice."""
    caught(noise_is_as_large_as_it_says, noise_times(1 / 8))


def test_sum_noise_added_after_the_division_is_caught(caught: Any) -> None:
    """Noise for a sum on a mean: what is said about the noise is wrong by the batch size, and so is every step."""
    caught(noise_is_as_large_as_it_says, noise_times(8.0))


def test_a_second_batch_of_adadp_that_is_not_charged_is_caught(caught: Any) -> None:
    """A step of ADADP looks at two batches, and a ledger that knows of one shows half the cost."""
    charge = Ledger.charge

    def planted(self: Ledger, key: str, event: Any) -> bool:
        return False if int(key.rpartition(":")[2]) % 2 else charge(self, key, event)

    caught(
        the_audit_stands("adadp", releases=4, runs=40), lambda patch: patch.setattr(Ledger, "charge", planted)
    )


@pytest.mark.parametrize("efficient", [True, False])
def test_a_tree_node_drawn_twice_is_caught(caught: Any, efficient: bool) -> None:
    """Two nodes with the same noise: their difference has none."""

    def planted(self: _Nodes, vector: Tensor, std: float, height: int, end: int) -> None:
        self.draw.accumulate_(vector, std, "noise:tree", (self.number << 40) + end // 2)

    settings = {"efficient": efficient}
    check = the_audit_stands("dp-ftrl", runs=90, releases=4, settings=settings, noise_multiplier=2.0)
    caught(check, lambda patch: patch.setattr(_Nodes, "add_", planted))


def test_banded_noise_that_is_too_small_is_caught(caught: Any) -> None:
    """Two thirds of what is paid for."""
    accumulate = GaussianNoise.accumulate_

    def planted(self: GaussianNoise, vector: Tensor, std: float, purpose: str, step: int) -> None:
        accumulate(self, vector, 2 / 3 * std, purpose, step)

    settings = {"clip": "fixed:1.0", "rate": "constant:0.1", "noise": "banded:4"}
    check = the_audit_stands("composed", 400, releases=4, settings=settings, noise_multiplier=0.6)
    caught(check, lambda patch: patch.setattr(GaussianNoise, "accumulate_", planted))


def test_banded_noise_that_takes_back_too_much_is_caught(caught: Any) -> None:
    """With the newest noise taken back twice, what is left hides less."""
    begun = banded_module._weights

    def planted(shares: Tensor, rows: int, step: int, ahead: int) -> Tensor:
        return 1.6 * begun(shares, rows, step, ahead)

    def check() -> None:
        releases = Banded(4).over(FixedOrder(4), 16, 12)
        state, draw = releases.start(), GaussianNoise(Streams.from_seed(1))
        rows = torch.zeros(12, 20_000, dtype=torch.float64)
        for step in range(12):
            releases.add_(rows[step], draw, 1.0, 1.0, step, state)
        column = state["column"].tolist()
        whitened = [sum(column[j] * rows[t - j] for j in range(min(4, t + 1))) for t in range(12)]
        covariance = np.cov(np.stack([each.numpy() for each in whitened]))
        assert np.abs(covariance - np.eye(12)).max() < 0.06

    caught(check, lambda patch: patch.setattr(banded_module, "_weights", planted))


def test_q_without_its_noise_is_caught(caught: Any) -> None:
    """OSO's q is data: without noise it shows who is clipped."""
    caught(the_audit_stands("oso"), noise_times(0.0, "noise:q"))


@pytest.mark.parametrize("clip", [Online(1.0), Quantile(0.5, 1.0)], ids=["q", "count"])
def test_a_probe_that_is_not_charged_is_caught(caught: Any, clip: ClippingPolicy) -> None:
    """The gradient keeps all of the noise's worth, and the probe comes on top for nothing."""
    caught(
        noise_pays_for_gradient_and_probe_together(clip),
        lambda patch: patch.setattr(independent_module, "joint_split", lambda z, probes: z),
    )


def test_a_weighted_sampler_priced_as_poisson_is_caught(caught: Any) -> None:
    """Whoever is drawn more often than others is hidden less than the rate says."""
    units = Poisson.units

    def planted(self: Poisson, step: int, n: int, source: Any) -> np.ndarray[Any, Any]:
        return np.union1d(units(self, step, n, source), np.zeros(1, dtype=np.int64))

    check = the_audit_stands(runs=150, sampling_rate=0.1, noise_multiplier=0.4)
    caught(check, lambda patch: patch.setattr(Poisson, "units", planted))


def test_a_sampler_that_says_another_rate_is_caught(caught: Any) -> None:
    """Priced at a tenth of the rate at which it draws: amplification that is not there."""

    release = Sampling.release

    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(Poisson, "release", lambda self, z, n: release(Poisson(self.rate / 10), z, n))

    caught(the_audit_stands(runs=150, sampling_rate=1.0, noise_multiplier=0.4), plant)


def test_an_empty_batch_without_noise_is_caught(caught: Any) -> None:
    """Nothing to hide is a fact about the batch: zeros say that nobody was in it."""
    add = GaussianNoise.add_

    def planted(self: GaussianNoise, vector: Tensor, *rest: Any) -> Tensor:
        return add(self, vector, *rest) if bool(vector.any()) else vector

    caught(an_empty_batch_releases_noise, lambda patch: patch.setattr(GaussianNoise, "add_", planted))


def test_sensitivity_0_where_a_lower_bound_is_0_is_caught(caught: Any) -> None:
    """A count from 0 to 1 by unit whose sensitivity was taken from the end that is 0 leaves without noise."""
    probes = Quantile.probes

    def planted(self: Quantile, noise_multiplier: float, expected_batch: float) -> tuple[Probe, ...]:
        (probe,) = probes(self, noise_multiplier, expected_batch)
        return (Probe(probe.name, 0.0, probe.multiplier),)

    check = the_audit_stands(settings={"target_quantile": 0.5})
    caught(check, lambda patch: patch.setattr(Quantile, "probes", planted))


def test_a_charge_after_the_release_is_caught(caught: Any) -> None:
    """What fails in between was looked at and would never be paid for."""
    call, charge = Door.__call__, Ledger.charge

    def planted(self: Door, *arguments: Any, **options: Any) -> Any:
        owed: list[tuple[str, Any]] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Ledger, "charge", lambda _, key, event: owed.append((key, event)))
            released = call(self, *arguments, **options)
        for key, event in owed:
            charge(self.ledger, key, event)
        return released

    caught(what_broke_was_charged, lambda patch: patch.setattr(Door, "__call__", planted))


def norms_of_the_uses(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(engine_module, "join", lambda factors: factors)
    patch.setattr(engine_module, "squared_norms", lambda uses: sum(use.squared_norms() for use in uses))


def test_a_norm_taken_before_the_join_of_uses_is_caught_by_the_engine_itself(caught: Any) -> None:
    """The uses of a weight add up in the sum, and norms that do not know it bound less than what is added."""
    caught(a_weight_used_twice_is_clipped_as_one, norms_of_the_uses)


def test_a_norm_taken_before_the_join_of_uses_is_caught_by_an_oracle(caught: Any) -> None:
    """The same where the engine has no doubts of its own."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        norms_of_the_uses(patch)
        patch.setattr(Engine, "_plan_holds", lambda *_: True, raising=False)
        patch.setattr(Engine, "_check_on_data", lambda *_: None, raising=False)

    caught(a_weight_used_twice_is_clipped_as_one, plant)


def test_noise_that_neighbouring_runs_share_is_caught(caught: Any) -> None:
    """One key for two runs: the difference of what they release has no noise at all."""
    from_seed = Streams.from_seed.__func__  # type: ignore[attr-defined]

    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(Streams, "from_seed", classmethod(lambda cls, _: from_seed(cls, 1)))

    caught(the_audit_stands(), plant)
