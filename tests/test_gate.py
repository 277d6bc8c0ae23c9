"""The gate: what leaves it is clipped, noised, divided and paid for, and nothing else leaves."""

from __future__ import annotations

import copy
import pickle
import random
from typing import Any

import numpy as np
import pytest
import torch
from dp_accounting import GaussianDpEvent, NonPrivateDpEvent, PoissonSampledDpEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn

from conftest import cross_entropy
from sordino import Fixed, FixedOrder, Gate, Ledger, PerLayer, Poisson, Quantile, Shuffled, Tree, Unclipped
from sordino.clipping import Normalised, Online
from sordino.data import Sampling
from sordino.noise import joint_split


def make_gate(model: nn.Module, data: Any, **options: Any) -> Gate:
    defaults = {"clip": Fixed(1.0), "noise_multiplier": 1.0, "sampling": Poisson(0.3), "seed": 1}
    return Gate(model, cross_entropy, data, **{**defaults, **options})


def single_gradients(model: nn.Module, data: tuple[Tensor, Tensor]) -> Tensor:
    rows = []
    for x, y in zip(*data, strict=True):
        loss = cross_entropy(model(x[None]), y[None]).sum()
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]))
    return torch.stack(rows)


def clipped_sum(rows: Tensor, threshold: float) -> Tensor:
    output: Tensor = (rows * (threshold / rows.norm(dim=1).clamp_min(threshold))[:, None]).sum(0)
    return output


# The release itself ---------------------------------------------------------------------------------------


def test_without_noise_and_sampling_it_is_the_clipped_mean(small_model: nn.Module, toy: Any) -> None:
    gate = make_gate(small_model, toy, noise_multiplier=0, sampling=Poisson(1.0), clip=Fixed(0.5))
    released = gate()
    torch.testing.assert_close(released.gradient, clipped_sum(single_gradients(small_model, toy), 0.5) / 60)
    assert released.noise_std == 0


def test_the_divisor_is_the_expected_batch_never_the_realised_one(small_model: nn.Module, toy: Any) -> None:
    gate = make_gate(small_model, toy, noise_multiplier=0, clip=Fixed(0.5), sampling=Poisson(0.3))
    rows = single_gradients(small_model, toy)
    sizes = set()
    for step in range(5):
        units = gate.sampling.units(step, 60, gate.streams)
        sizes.add(len(units))
        torch.testing.assert_close(gate().gradient, clipped_sum(rows[torch.from_numpy(units)], 0.5) / 18.0)
    assert len(sizes) > 1


def test_an_empty_batch_releases_noise_and_is_charged(small_model: nn.Module, toy: Any) -> None:
    gate = make_gate(small_model, toy, sampling=Poisson(1e-9))
    released = gate()
    assert gate.ledger.charges == 1
    assert float(released.gradient.std()) > 0
    assert torch.isfinite(released.gradient).all()


class Flat(nn.Module):
    """A model whose gradient is zero, so that what leaves the gate is noise alone."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        return x[:, :1].expand(-1, len(self.weight)) + self.weight


@pytest.mark.parametrize("secure", [False, True])
def test_the_noise_that_leaves_has_the_size_that_is_charged(secure: bool) -> None:
    gate = Gate(
        Flat(100_000),
        lambda output, target: 0.0 * output.sum(1),
        (torch.ones(40, 2), torch.zeros(40)),
        clip=Fixed(0.25),
        noise_multiplier=1.7,
        sampling=Poisson(0.5),
        secure=secure,
    )
    released = gate()
    expected = 1.7 * 0.25 / 20
    assert released.noise_std == pytest.approx(expected)
    values = released.gradient.double().numpy()
    assert stats.kstest(values, "norm", args=(0, expected)).pvalue > 1e-4
    assert stats.kstest(values, "norm", args=(0, expected * 2 / 3)).pvalue < 1e-9
    assert stats.kstest(values, "norm", args=(0, expected * 3 / 2)).pvalue < 1e-9
    event = gate.ledger.event
    assert isinstance(event, PoissonSampledDpEvent)
    assert event.event.noise_multiplier == 1.7


def test_the_threshold_that_clips_is_the_threshold_that_noises(toy: Any) -> None:
    """With a moving threshold: each release's noise, its clipping and its record agree on one C."""
    steps, m, z = 12, 30.0, 2.0
    model = nn.Linear(10, 3)
    gate = make_gate(model, toy, clip=Quantile(0.3, 2.0), noise_multiplier=z, sampling=Poisson(0.5))
    quiet = make_gate(model, toy, clip=Quantile(0.3, 2.0), noise_multiplier=0, sampling=Poisson(0.5))
    seen = set()
    for _ in range(steps):
        planned = gate.threshold
        noisy = gate()
        assert noisy.threshold == planned
        seen.add(planned)
        count_noise = max(m / 20, z)
        z_gradient = (z**-2 - (2 * count_noise) ** -2) ** -0.5
        assert noisy.noise_std == pytest.approx(z_gradient * planned / m)
        quiet.step, quiet.clip_state = noisy.step, {"threshold": planned}
        exact = quiet(adapt=False)
        residual = (noisy.gradient - exact.gradient) / noisy.noise_std
        assert abs(float(residual.square().mean()) - 1) < 6 * np.sqrt(2 / 33)
    assert len(seen) == steps


def test_one_row_never_moves_the_sum_by_more_than_the_threshold(small_model: nn.Module, toy: Any) -> None:
    x, y = toy
    for clip in (Fixed(0.3), PerLayer(0.3), Quantile(0.5, 0.3), Online(0.3)):
        sums = []
        for keep in (slice(None), slice(1, None)):
            gate = make_gate(
                small_model, (x[keep] * 50, y[keep]), clip=clip, noise_multiplier=0, sampling=Poisson(1.0)
            )
            sums.append(gate().gradient * gate.expected_batch)
        assert float((sums[0] - sums[1]).norm()) <= 0.3 * (1 + 1e-4)


def test_the_quantile_policy_finds_its_quantile(toy: Any) -> None:
    model = nn.Linear(10, 3)
    norms = single_gradients(model, toy).norm(dim=1)
    gate = make_gate(model, toy, clip=Quantile(0.7, 0.01), noise_multiplier=0, sampling=Poisson(1.0))
    for _ in range(200):
        gate()
    assert gate.threshold == pytest.approx(float(norms.quantile(0.7)), rel=0.1)


def test_adapt_false_keeps_the_threshold(small_model: nn.Module, toy: Any) -> None:
    gate = make_gate(small_model, toy, clip=Quantile(0.5, 0.1))
    first = gate(adapt=False)
    second = gate()
    assert first.threshold == second.threshold == 0.1
    assert gate.threshold != 0.1


def test_a_non_finite_row_counts_as_zero(small_model: nn.Module, toy: Any) -> None:
    x, y = toy
    bad = x.clone()
    bad[3, 0], bad[7] = float("nan"), float("inf")
    gate = make_gate(small_model, (bad, y), noise_multiplier=0, sampling=Poisson(1.0))
    keep = torch.ones(60, dtype=torch.bool)
    keep[[3, 7]] = False
    expected = clipped_sum(single_gradients(small_model, (x[keep], y[keep])), 1.0) / 60
    torch.testing.assert_close(gate().gradient, expected)


# Joint releases -------------------------------------------------------------------------------------------


class Pull(nn.Module):
    """Squared distance to each row, halved: the gradient of an example is theta - x."""

    def __init__(self, *theta: float) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.tensor(theta))

    def forward(self, x: Tensor) -> Tensor:
        return (self.theta - x).square().sum(1) / 2


def as_it_is(output: Tensor, _: Tensor) -> Tensor:
    return output


def pull(rows: list[tuple[float, float]], clip: Any, noise_multiplier: float = 0.0, **options: Any) -> Gate:
    """A gate whose examples have these gradients."""
    return Gate(
        Pull(0.0, 0.0),
        as_it_is,
        (-torch.tensor(rows), torch.zeros(len(rows))),
        clip=clip,
        noise_multiplier=noise_multiplier,
        sampling=Poisson(1.0),
        **options,
    )


@pytest.mark.filterwarnings("ignore::sordino.gradients.SlowGradients")
def test_gradient_and_q_golden_value_d2() -> None:
    """ALGORITHMS.md D2, as they leave the gate: divided by the expected batch of two."""
    released = pull([(3.0, 4.0), (0.3, 0.4)], Online(1.0))()
    torch.testing.assert_close(released.gradient, torch.tensor([0.45, 0.6]))
    torch.testing.assert_close(released.probes["q"], torch.tensor([0.3, 0.4]))
    assert released.noise_std == 0
    assert released.threshold == 1.0


def noise_passes(values: Tensor, std: float) -> bool:
    return bool(stats.kstest(values.double().numpy(), "norm", args=(0, std)).pvalue > 1e-4)


@pytest.mark.parametrize("gradient_noise", [1.01, 1.5])
def test_the_noise_on_gradient_and_q_is_what_proposition_1_says(gradient_noise: float) -> None:
    """nu_g C on one sum and nu_q on the other, independent, and together one release of nu."""
    nu, threshold, batch = 1.7, 0.25, 20.0
    gate = Gate(
        Flat(20_000),
        lambda output, target: 0.0 * output.sum(1),
        (torch.ones(40, 2), torch.zeros(40)),
        clip=Online(threshold, gradient_noise=gradient_noise),
        noise_multiplier=nu,
        sampling=Poisson(0.5),
    )
    released = gate()
    nu_g = gradient_noise * nu
    nu_q = nu / np.sqrt(1 - gradient_noise**-2)
    assert nu_g**-2 + nu_q**-2 == pytest.approx(nu**-2)
    assert released.noise_std == pytest.approx(nu_g * threshold / batch)
    for values, std in (
        (released.gradient, nu_g * threshold / batch),
        (released.probes["q"], nu_q / batch),
    ):
        assert noise_passes(values, std)
        assert not noise_passes(values, std * 2 / 3)
        assert not noise_passes(values, std * 3 / 2)
    correlation = np.corrcoef(released.gradient.numpy(), released.probes["q"].numpy())[0, 1]
    assert abs(correlation) < 5 / np.sqrt(20_000)
    assert gate.ledger.charges == 1
    assert isinstance(gate.ledger.event, PoissonSampledDpEvent)
    assert gate.ledger.event.event.noise_multiplier == nu  # charged as one


def test_normalised_gradients_get_noise_for_sensitivity_one() -> None:
    gate = Gate(
        Flat(20_000),
        lambda output, target: 0.0 * output.sum(1),
        (torch.ones(40, 2), torch.zeros(40)),
        clip=Normalised(),
        noise_multiplier=1.7,
        sampling=Poisson(0.5),
    )
    released = gate()
    assert noise_passes(released.gradient, 1.7 / 20)
    assert not noise_passes(released.gradient, 1.7 / 20 * 2 / 3)
    assert not noise_passes(released.gradient, 1.7 / 20 * 3 / 2)


def test_noise_follows_an_online_threshold(toy: Any) -> None:
    """With a threshold that moves: what clips, what noises and what is recorded is one C; q's noise stays."""
    nu, m, model = 2.0, 30.0, nn.Linear(10, 3)
    clip = Online(0.5, speed=0.2, update_by="cosine")
    gate, quiet = (
        make_gate(model, toy, clip=clip, noise_multiplier=z, sampling=Poisson(0.5)) for z in (nu, 0)
    )
    seen, residuals = set(), {"gradient": list[Tensor](), "q": list[Tensor]()}
    for _ in range(12):
        planned = gate.threshold
        noisy = gate()
        seen.add(planned)
        assert noisy.threshold == planned
        quiet.step, quiet.clip_state = noisy.step, {"threshold": planned}
        exact = quiet(adapt=False)
        residuals["gradient"].append((noisy.gradient - exact.gradient) * m / (1.01 * nu * planned))
        residuals["q"].append((noisy.probes["q"] - exact.probes["q"]) * m / (7.123990720172 * nu))
    for parts in residuals.values():
        values = torch.cat(parts)
        assert noise_passes(values, 1.0)
        assert abs(float(values.square().mean()) - 1) < 5 * np.sqrt(2 / len(values))
    assert len(seen) == 11  # all but the first, which has no q before it


@pytest.mark.parametrize("grouped", [False, True])
def test_one_units_part_in_gradient_and_q_together_is_bounded(grouped: bool) -> None:
    """Over many thresholds and units: what one unit adds, scaled by the noise, has norm 1 / nu at most."""
    nu, gradient_noise = 0.8, 1.3
    generator = torch.Generator().manual_seed(8)
    x = torch.randn(24, 6, generator=generator) * torch.logspace(-3, 3, 24)[:, None]
    y = torch.randint(0, 3, (24,), generator=generator)
    ids = torch.arange(24) // 4
    clip = Online(1.0, gradient_noise=gradient_noise)
    (probe,) = clip.probes(nu, 24.0)
    nu_g = joint_split(nu, [probe.multiplier])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = nn.Linear(6, 3)
    largest = 0.0
    for left_out in (0, 8, 20):
        keep = torch.ones(24, dtype=torch.bool)
        keep[left_out : left_out + (4 if grouped else 1)] = False
        gates = [
            make_gate(
                model, (x[rows], y[rows]), clip=clip, noise_multiplier=0, sampling=Poisson(1.0),
                groups=ids[rows] if grouped else None,
            )
            for rows in (torch.ones(24, dtype=torch.bool), keep)
        ]  # fmt: skip
        for threshold in np.logspace(-4, 3, 8):
            sums = []
            for gate in gates:
                gate.clip_state = {"threshold": float(threshold)}
                released = gate(adapt=False)
                scaled = torch.cat(
                    [released.gradient / (threshold * nu_g), released.probes["q"] / probe.multiplier]
                )
                sums.append(scaled.double() * gate.expected_batch)
            largest = max(largest, nu * float((sums[0] - sums[1]).norm()))
    assert 0.999 < largest < 1.001  # the bound holds, and it is reached


@pytest.mark.parametrize("grouped", [False, True])
def test_one_unit_moves_a_normalised_sum_by_less_than_one(
    small_model: nn.Module, toy: Any, grouped: bool
) -> None:
    x, y = toy
    ids = torch.arange(60) // 3
    for scale in (1e-4, 1.0):
        sums = []
        for first in (0, 3 if grouped else 1):
            gate = make_gate(
                small_model, (x[first:] * scale, y[first:]), clip=Normalised(), noise_multiplier=0,
                sampling=Poisson(1.0), groups=ids[first:] if grouped else None,
            )  # fmt: skip
            sums.append(gate().gradient * gate.expected_batch)
        assert 0.5 < float((sums[0] - sums[1]).norm()) <= 1 + 1e-4


@pytest.mark.parametrize("clip", [Online(0.2), Normalised()], ids=["online", "normalised"])
@pytest.mark.parametrize("grouped", [False, True])
def test_non_finite_rows_add_nothing_to_any_sum(clip: Any, grouped: bool, toy: Any) -> None:
    x, y = toy
    bad = x.clone()
    bad[3, 0], bad[7], bad[11] = float("nan"), float("inf"), -float("inf")
    keep = torch.ones(60, dtype=torch.bool)
    keep[[3, 7, 11]] = False
    ids = torch.arange(60) % 20
    if grouped:
        keep &= ~torch.isin(ids, ids[~keep])  # all of the unit
    model, released = nn.Linear(10, 3), []
    for rows, data in ((slice(None), bad), (keep, x)):
        groups = ids[rows] if grouped else None
        gate = make_gate(
            model, (data[rows], y[rows]), clip=clip, noise_multiplier=0, sampling=Poisson(1.0), groups=groups
        )
        once = gate()
        released.append([v * gate.expected_batch for v in (once.gradient, *once.probes.values())])
    assert all(torch.isfinite(v).all() for v in released[0])
    for got, expected in zip(*released, strict=True):
        torch.testing.assert_close(got, expected)


def test_q_in_micro_batches_is_q(toy: Any) -> None:
    model = nn.Linear(10, 3)
    one, two = (make_gate(model, toy, clip=Online(0.5), microbatch=size)() for size in (7, None))
    torch.testing.assert_close(one.gradient, two.gradient)
    torch.testing.assert_close(one.probes["q"], two.probes["q"])


def test_two_calls_at_one_threshold_adapt_once(small_model: nn.Module, toy: Any) -> None:
    for clip in (Quantile(0.5, 0.1), Online(0.1)):
        gate = make_gate(small_model, toy, clip=clip)
        one, two = gate(adapt=False), gate(adapt=False)
        assert one.threshold == two.threshold == gate.threshold == 0.1
        expected = clip.update({"threshold": 0.1}, [one, two])
        gate.adapt(one, two)
        assert gate.threshold == expected["threshold"] != 0.1
        assert gate.ledger.charges == 2


# The ledger -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sampling", "steps", "charges", "kind"),
    [
        (Poisson(0.3), 7, 7, PoissonSampledDpEvent),
        (Poisson(1.0), 3, 3, GaussianDpEvent),
        (Shuffled(20), 7, 3, GaussianDpEvent),
        (FixedOrder(20), 6, 2, GaussianDpEvent),
        (Shuffled(20, assume_poisson=True), 7, 7, PoissonSampledDpEvent),
    ],
    ids=str,
)
def test_every_release_is_charged_as_it_was_sampled(
    small_model: nn.Module, toy: Any, sampling: Sampling, steps: int, charges: int, kind: type
) -> None:
    gate = make_gate(small_model, toy, sampling=sampling)
    for _ in range(steps):
        gate()
    assert gate.ledger.charges == charges
    assert isinstance(gate.charge_event, kind)
    assert gate.ledger.event == gate.plan(steps)


def test_no_noise_is_charged_as_not_private(small_model: nn.Module, toy: Any) -> None:
    gate = make_gate(small_model, toy, noise_multiplier=0)
    gate()
    assert isinstance(gate.ledger.event, NonPrivateDpEvent)


def test_the_charge_comes_before_the_data(small_model: nn.Module, toy: Any) -> None:
    gate = make_gate(small_model, toy)
    gate.engine.sums = None  # type: ignore[assignment, method-assign]
    with pytest.raises(TypeError):
        gate()
    assert gate.ledger.charges == 1


def test_a_replayed_step_is_the_same_release_and_is_charged_once(small_model: nn.Module, toy: Any) -> None:
    ledger = Ledger()
    gate = make_gate(small_model, toy, ledger=ledger)
    first = [gate() for _ in range(4)]
    again = make_gate(small_model, toy, ledger=ledger)
    again.step, again.charged_as = 2, gate.charged_as
    for old in first[2:]:
        assert torch.equal(again().gradient, old.gradient)
    assert ledger.charges == 4


def test_two_runs_with_one_ledger_are_charged_apart(small_model: nn.Module, toy: Any) -> None:
    """Also with one seed: which releases are the same is for a resumed run to say, and for nobody else."""
    ledger = Ledger()
    for seed in (1, 1, 2, None, None):
        gate = make_gate(small_model, toy, ledger=ledger, seed=seed)
        for _ in range(5):
            gate()
    assert ledger.charges == 25


class Jittered(torch.utils.data.Dataset[Any]):
    """Augments its rows from three generators."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> Any:
        noise = torch.randn(10) + np.random.normal() + random.random()
        return torch.full((10,), float(index)) + noise, index % 3


def test_augmentation_replays_too(small_model: nn.Module) -> None:
    first, again = (make_gate(small_model, Jittered(), noise_multiplier=0) for _ in range(2))
    releases = [first().gradient for _ in range(3)]
    torch.randn(7), random.random()
    again.step = 1
    assert torch.equal(again().gradient, releases[1])
    assert not torch.equal(releases[0], releases[1])


# The model ------------------------------------------------------------------------------------------------


def test_evaluating_elsewhere_leaves_the_model_as_it_was(small_model: nn.Module, toy: Any) -> None:
    gate = make_gate(small_model, toy, noise_multiplier=0, sampling=Poisson(1.0))
    before = gate.theta.clone()
    elsewhere = before + 0.1
    there = gate(elsewhere)
    assert torch.equal(gate.theta, before)
    gate.theta.copy_(elsewhere)
    torch.testing.assert_close(gate().gradient, there.gradient)
    with pytest.raises(ValueError, match="shape"):
        gate(torch.zeros(3))


def test_dropout_follows_the_run_and_leaves_torchs_generator_alone(toy: Any) -> None:
    model = nn.Sequential(nn.Linear(10, 50), nn.Dropout(0.5), nn.Linear(50, 3))
    results = []
    for noise_outside in (0, 1):
        torch.manual_seed(noise_outside)
        state = torch.get_rng_state()
        gate = make_gate(model, toy, noise_multiplier=0)
        results.append([gate().gradient for _ in range(3)])
        assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_models_are_refused_before_data_is_touched(toy: Any) -> None:
    class Guarded(torch.utils.data.Dataset[Any]):
        touched = 0

        def __len__(self) -> int:
            return 10

        def __getitem__(self, index: int) -> Any:
            Guarded.touched += 1
            return torch.zeros(10), 0

    bad = nn.Sequential(nn.Linear(10, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    with pytest.raises(ValueError, match=r"1 \(BatchNorm1d\).*replace_batchnorm"):
        make_gate(bad, Guarded())
    assert Guarded.touched == 0
    with pytest.raises(ValueError, match="reduction='none'"):
        Gate(
            nn.Linear(10, 3),
            nn.CrossEntropyLoss(),
            toy,
            clip=Fixed(1.0),
            noise_multiplier=1.0,
            sampling=Poisson(0.5),
        )


class Remembering(nn.Module):
    """Keeps a mean of what it saw: in place, by assignment, or in a frozen parameter."""

    mean: Tensor

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer, self.how = nn.Linear(10, 3), how
        self.register_buffer("mean", torch.zeros(10))
        self.kept = nn.Parameter(torch.zeros(10), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "in place":
            self.mean.lerp_(x.mean(0), 0.5)
        elif self.how == "assigned":
            self.mean = x.mean(0)
        elif self.how == "frozen":
            self.kept.data.copy_(x.mean(0))
        elif self.how == "large only" and float(x.abs().max()) > 2:
            self.mean.copy_(x.mean(0))
        output: Tensor = self.layer(x)
        return output


@pytest.mark.parametrize("how", ["in place", "assigned", "frozen"])
def test_models_that_remember_rows_are_refused(how: str, toy: Any) -> None:
    with pytest.raises(ValueError, match="writes to"):
        make_gate(Remembering(how), toy)
    make_gate(Remembering("not"), toy)()


def test_a_model_that_remembers_later_releases_nothing(toy: Any) -> None:
    gate = make_gate(Remembering("large only"), toy, sampling=Poisson(1.0))
    with pytest.raises(ValueError, match="wrote to mean"):
        gate()


class SortsRows(nn.Module):
    """Works on rows sorted by how much of them is blank, and puts them back."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(10, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        order = (x != 0).sum(1).argsort(stable=True)
        inner = torch.tanh(self.inner(x[order]))
        output: Tensor = self.head(inner[order.argsort()])
        return output


class StartsAtZero(nn.Module):
    """Folds time first, behind a gate that is zero at the start."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head, self.open = nn.Linear(2, 8), nn.Linear(10, 3), nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        steps = x.view(-1, 5, 2).transpose(0, 1)
        inner = torch.tanh(self.inner(steps.reshape(-1, 2))).view(5, -1, 8).sum((0, 2))
        output: Tensor = self.head(x) + self.open * inner[:, None]
        return output


@pytest.mark.filterwarnings("ignore::sordino.gradients.SlowGradients")
@pytest.mark.parametrize("make", [SortsRows, StartsAtZero])
def test_a_row_is_bounded_however_the_model_arranges_them(make: type[nn.Module], toy: Any) -> None:
    x, y = toy
    x = torch.where(torch.arange(10) < torch.randint(1, 11, (60, 1)), 20 * x, 0.0)
    model = make()
    gate = make_gate(model, toy)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5)
    sums = []
    for keep in (slice(None), slice(1, None)):
        gate = make_gate(
            model, (x[keep], y[keep]), clip=Fixed(0.3), noise_multiplier=0, sampling=Poisson(1.0)
        )
        sums.append(gate().gradient * gate.expected_batch)
    assert float((sums[0] - sums[1]).norm()) <= 0.3 * (1 + 1e-4)
    del gate


# Units ----------------------------------------------------------------------------------------------------


def test_groups_are_the_unit(small_model: nn.Module, toy: Any) -> None:
    ids = torch.arange(60) % 7 * 100
    gate = make_gate(
        small_model, toy, groups=ids, noise_multiplier=0, sampling=Poisson(1.0), clip=Fixed(0.5), microbatch=5
    )
    assert (gate.unit, gate.units, gate.expected_batch) == ("user", 7, 7.0)
    rows = single_gradients(small_model, toy)
    users = torch.stack([rows[ids == i].sum(0) for i in ids.unique()])
    torch.testing.assert_close(gate().gradient, clipped_sum(users, 0.5) / 7)


def test_sampled_groups_come_with_all_their_rows(small_model: nn.Module, toy: Any) -> None:
    ids = torch.arange(60) // 6
    gate = make_gate(small_model, toy, groups=ids, noise_multiplier=0, sampling=Poisson(0.4), clip=Fixed(0.5))
    rows = single_gradients(small_model, toy)
    users = torch.stack([rows[ids == i].sum(0) for i in range(10)])
    for step in range(4):
        units = torch.from_numpy(gate.sampling.units(step, 10, gate.streams))
        torch.testing.assert_close(gate().gradient, clipped_sum(users[units], 0.5) / 4)


# Refusals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"noise_multiplier": float("nan")}, "noise_multiplier"),
        ({"secure": True}, "leave out the seed"),
        ({"clip": Unclipped()}, "without clipping"),
        ({"sampling": Shuffled(61)}, "at most 60"),
        ({"groups": torch.zeros(3)}, "one id for each"),
        ({"microbatch": 0}, "microbatch"),
    ],
)
def test_refusals(small_model: nn.Module, toy: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_gate(small_model, toy, **options)


def test_entropy_by_default_gives_other_noise_every_time(small_model: nn.Module, toy: Any) -> None:
    one, two = (make_gate(small_model, toy, seed=None)() for _ in range(2))
    assert not torch.any(one.gradient == two.gradient)


@settings(max_examples=15, deadline=None)
@given(microbatch=st.integers(1, 70))
def test_micro_batches_are_invisible(microbatch: int) -> None:
    torch.manual_seed(0)
    model, data = nn.Linear(4, 2), (torch.randn(30, 4), torch.randint(0, 2, (30,)))
    released = [
        Gate(
            model,
            cross_entropy,
            data,
            clip=Quantile(0.5, 0.3),
            noise_multiplier=1.0,
            sampling=Poisson(1.0),
            seed=3,
            microbatch=size,
        )()
        for size in (microbatch, 30)
    ]
    torch.testing.assert_close(released[0].gradient, released[1].gradient)
    assert released[0].probes["fraction_within"] == pytest.approx(released[1].probes["fraction_within"])


# Trees ----------------------------------------------------------------------------------------------------


def test_sums_of_what_leaves_have_the_tree_s_noise_and_no_more(small_model: nn.Module, toy: Any) -> None:
    """Six batches of ten in a fixed order: at step 4 the running sum has the noise of one node, at step 6 of two."""
    options: dict[str, Any] = {"sampling": FixedOrder(10), "steps": 6}
    exact = make_gate(small_model, toy, noise_multiplier=0, **options)
    noisy = make_gate(
        small_model, toy, noise_multiplier=50.0, noise=Tree(efficient=False, restart_every=None), **options
    )
    total = torch.zeros_like(exact.theta)
    stds = []
    for step in range(6):
        released = noisy()
        total += released.gradient - exact().gradient
        variance = (step + 1).bit_count()
        assert float(total.std()) == pytest.approx(5.0 * variance**0.5, rel=0.25)
        stds.append(released.noise_std / 5.0)
    assert stds == pytest.approx([1, 2**0.5, 1, 3**0.5, 1, 2**0.5])
    assert noisy.ledger.charges == 1
    assert noisy.ledger.event == noisy.plan(6) == noisy.charge_event == GaussianDpEvent(50.0 / 3**0.5)
    with pytest.raises(ValueError, match="paid, for 6 steps"):
        noisy()
    assert noisy.step == 6


def test_trees_without_a_plan_are_whole(small_model: nn.Module, toy: Any) -> None:
    """A loop of one's own may go on: each tree is paid for when its first step comes."""
    gate = make_gate(
        small_model,
        toy,
        sampling=FixedOrder(10),
        noise=Tree(restart_every=2, completion=True),
        noise_multiplier=2.0,
    )
    for _ in range(13):
        gate()
    assert gate.ledger.charges == 2
    assert gate.ledger.event == gate.plan(13) == gate.plan(24)


def test_the_noise_of_a_node_follows_the_largest_threshold_below_it(small_model: nn.Module, toy: Any) -> None:
    gate = make_gate(
        small_model, toy, sampling=FixedOrder(10), noise=Tree(efficient=False, restart_every=None), steps=4,
        noise_multiplier=3.0, clip=Quantile(0.4, 1.0, speed=2.0),
    )  # fmt: skip
    released = [gate() for _ in range(4)]
    c = [r.threshold for r in released]
    assert len(set(c)) == 4
    nodes = [c[0], max(c[:2]), c[2], max(c)]
    dropped = [[], [nodes[0]], [], [nodes[1], nodes[2]]]
    for r, node, old in zip(released, nodes, dropped, strict=True):
        assert r.noise_std == pytest.approx(0.3 * float(np.sqrt(node**2 + sum(o**2 for o in old))))


def test_a_failed_step_ends_a_tree(small_model: nn.Module, toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = make_gate(small_model, toy, sampling=FixedOrder(10), noise=Tree(restart_every=1))
    gate()
    with monkeypatch.context() as patch:
        patch.setattr(gate.engine, "sums", lambda *a, **k: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            gate()
    for _ in range(10):
        with pytest.raises(RuntimeError, match="a step of this tree failed"):
            gate()
    assert gate.ledger.charges == 1


@pytest.mark.parametrize("noise", [Tree(), Tree(restart_every=None)])
def test_a_tree_needs_a_plan_or_restarts(noise: Tree, small_model: nn.Module, toy: Any) -> None:
    with pytest.raises(ValueError, match="how many steps are planned"):
        make_gate(small_model, toy, sampling=FixedOrder(10), noise=noise)


# One key, one gate ------------------------------------------------------------------------------------------


def test_a_gate_has_its_key_for_itself(small_model: nn.Module, toy: Any) -> None:
    """Two gates with one key would make the same noise, and pay once for both."""
    gate = make_gate(small_model, toy, seed=None)
    with pytest.raises(ValueError, match="belong to another gate"):
        make_gate(small_model, toy, seed=None, streams=gate.streams, ledger=gate.ledger)
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied"):
            copied(gate)


def test_a_gate_does_not_go_back(small_model: nn.Module, toy: Any) -> None:
    """The same noise around two sums would tell their difference, and be paid once."""
    options: dict[str, Any] = {
        "clip": Fixed(1.0),
        "noise_multiplier": 1.0,
        "sampling": Poisson(0.5),
        "seed": 1,
    }
    gate = Gate(small_model, cross_entropy, toy, **options)
    fresh = gate.state()
    gate()
    with pytest.raises(RuntimeError, match="same noise"):
        gate.restore(fresh)
    shared = Gate(small_model, cross_entropy, toy, ledger=Ledger(), **options)
    with pytest.raises(RuntimeError, match="shares its ledger"):
        shared.restore(fresh)
