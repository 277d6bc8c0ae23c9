from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.distributions import Categorical, Dirichlet, Independent, InverseGamma, MixtureSameFamily, Normal
from torch.distributions.transforms import StickBreakingTransform

from sordino import Fixed, Gate, Poisson
from sordino.methods import method_named
from sordino.recipes import RECIPES
from sordino.recipes.adadp_gmm import (
    CENTRES,
    DRAWS,
    TRUE_LOG_LIKELIHOOD,
    UNKNOWNS,
    MixtureApproximation,
    each_loss,
    log_likelihood,
    mixture_points,
    prior_and_entropy,
    public_loss,
    train_mixture,
)
from sordino.recipes.frame import Job, Recipe, Report, Result

# The mixture --------------------------------------------------------------------------------------------


def true_unknowns() -> Tensor:
    return torch.cat([torch.zeros(4), torch.tensor(CENTRES).flatten(), torch.full((5,), math.log(0.5))])


def test_the_points_are_those_of_dpvi() -> None:
    points, test_points = mixture_points()
    assert (points.shape, test_points.shape) == ((2000, 2), (100, 2))
    for which, some in (("train", points), ("test", test_points)):
        mean = log_likelihood(true_unknowns().double(), some.double()).mean()
        assert float(mean) == pytest.approx(TRUE_LOG_LIKELIHOOD[which], abs=6e-7)


def mixture_of(unknowns: Tensor) -> MixtureSameFamily:
    """The same model, made of torch's distributions."""
    weights = StickBreakingTransform()(unknowns[:4])
    scales = (unknowns[14:] / 2).exp()[:, None].expand(5, 2)
    return MixtureSameFamily(
        Categorical(weights), Independent(Normal(unknowns[4:14].reshape(5, 2), scales), 1)
    )


def log_prior_of(unknowns: Tensor) -> Tensor:
    breaking = StickBreakingTransform()
    sticks, places, log_variances = unknowns[..., :4], unknowns[..., 4:14], unknowns[..., 14:]
    weights = breaking(sticks)
    shape, rate = torch.tensor([10.0, 0.1], dtype=torch.float64)
    of_variances = InverseGamma(shape, rate, validate_args=False)
    output: Tensor = (
        Dirichlet(torch.ones(5, dtype=torch.float64), validate_args=False).log_prob(weights)
        + breaking.log_abs_det_jacobian(sticks, weights)
        + Normal(0.0, 1.0).log_prob(places).sum(-1)
        + (of_variances.log_prob(log_variances.exp()) + log_variances).sum(-1)
    )
    return output


def test_the_log_likelihood_is_that_of_torchs_distributions() -> None:
    generator = torch.Generator().manual_seed(3)
    unknowns = torch.randn(UNKNOWNS, generator=generator, dtype=torch.float64)
    points = torch.randn(7, 2, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(log_likelihood(unknowns, points), mixture_of(unknowns).log_prob(points))


def test_the_expected_prior_is_that_of_torchs_distributions() -> None:
    generator = torch.Generator().manual_seed(4)
    mean, other = (0.5 * torch.randn(2, UNKNOWNS, generator=generator, dtype=torch.float64)).unbind()
    # Where there is no spread: the prior itself, up to a constant.
    sure = torch.full((UNKNOWNS,), -12.0, dtype=torch.float64)
    got = prior_and_entropy(torch.cat([mean, sure])) - prior_and_entropy(torch.cat([other, sure]))
    assert float(got) == pytest.approx(float(log_prior_of(mean) - log_prior_of(other)), abs=1e-6)
    # Where there is: its mean over draws, in pairs of opposite ones, and 19 (-1 + 12) more of entropy.
    spread = torch.full((UNKNOWNS,), -1.0, dtype=torch.float64)
    noise = math.exp(-1) * torch.randn(20_000, UNKNOWNS, generator=generator, dtype=torch.float64)
    pairs = (log_prior_of(mean + noise) + log_prior_of(mean - noise)) / 2
    got = prior_and_entropy(torch.cat([mean, spread])) - prior_and_entropy(torch.cat([mean, sure]))
    expected = pairs.mean() - log_prior_of(mean) + UNKNOWNS * 11.0
    bound = 4 * float(pairs.std()) / math.sqrt(len(pairs))
    assert abs(float(got - expected)) < bound < 0.05


def small_gate(count: int, threshold: float) -> Gate:
    model = MixtureApproximation("scattered", seed=2)
    points = mixture_points()[0][:count]
    return Gate(
        model,
        each_loss,
        (points, torch.zeros(count)),
        clip=Fixed(threshold),
        noise_multiplier=0.0,
        sampling=Poisson(1.0),
        seed=5,
    )


def test_the_gate_clips_each_points_gradient() -> None:
    """Against a plain loop over points and draws, with the draws of the run's own stream."""
    count, threshold = 12, 1.0
    gate = small_gate(count, threshold)
    theta = gate.theta.clone().double()
    got = gate().gradient
    torch.manual_seed(gate.streams.seed_for("model", 0))
    noise = torch.randn(count, DRAWS, UNKNOWNS).double()
    total, clipped = torch.zeros(2 * UNKNOWNS, dtype=torch.float64), 0
    for point, draws in zip(mixture_points()[0][:count].double(), noise, strict=True):
        leaf = theta.clone().requires_grad_()
        loss = torch.zeros((), dtype=torch.float64)
        for draw in draws:
            loss = loss - mixture_of(leaf[:UNKNOWNS] + leaf[UNKNOWNS:].exp() * draw).log_prob(point) / DRAWS
        (gradient,) = torch.autograd.grad(loss, leaf)
        clipped += int(gradient.norm() > threshold)
        total += gradient / max(1.0, float(gradient.norm()) / threshold)
    assert 0 < clipped < count
    torch.testing.assert_close(got.double(), total / count, rtol=1e-4, atol=1e-6)


def test_prior_and_likelihood_have_the_same_scale() -> None:
    """Gate plus public loss is the gradient of the whole log posterior, by all points, divided by their number."""
    gate = small_gate(2000, 1e6)
    theta = gate.theta.clone()
    theta[UNKNOWNS:] = -12.0  # no spread: what is left is the log posterior at the mean
    leaf = theta.clone().requires_grad_()
    (public,) = torch.autograd.grad(public_loss(leaf), leaf)
    got = (gate(theta).gradient + public)[:UNKNOWNS]
    mean = theta[:UNKNOWNS].double().requires_grad_()
    posterior = mixture_of(mean).log_prob(mixture_points()[0].double()).sum() + log_prior_of(mean)
    (expected,) = torch.autograd.grad(-posterior / 2000, mean)
    torch.testing.assert_close(got.double(), expected, rtol=1e-3, atol=1e-4)
    assert float(public[:UNKNOWNS].norm()) > 0.01  # and the prior is seen in it


def test_a_few_real_steps() -> None:
    result = train_mixture(
        method="adadp",
        settings={"threshold": 1.0, "target_quantile": None, "tol": None},
        seed=1,
        start="scattered",
        batches=8,
        evaluations=2,
        accountant="rdp",
    )
    assert result["steps"] == 4  # two batches each
    assert [line["epoch"] for line in result["history"]] == pytest.approx([4 / 333, 8 / 333])
    assert result["log_likelihood"] == result["history"][-1]["log_likelihood"] < -3.6
    assert 0 < result["epsilon"] < 1


def test_an_unknown_start_is_refused() -> None:
    with pytest.raises(ValueError, match="zeros, scattered"):
        MixtureApproximation("ones")


# Both recipes, with made-up results ---------------------------------------------------------------------


class FakeRun:
    """Checks that each job could be run, and answers without running it."""

    def __init__(self, answer: Callable[[dict[str, Any]], Result]) -> None:
        self.answer = answer
        self.jobs: dict[str, Job] = {}

    def __call__(self, jobs: Sequence[Job]) -> list[Result]:
        for job in jobs:
            inspect.signature(job.function).bind(**job.settings)
            method_named(job.settings["method"], job.settings["settings"])
            self.jobs[job.key] = job
        return [self.answer(job.settings) for job in jobs]


def made_up_accuracy(job: dict[str, Any]) -> Result:
    settings, sigma = job["settings"], job["noise_multiplier"]
    if job["method"] == "adadp":
        accuracy = (0.95 if settings["tol"] == 1.0 else 0.94) - sigma / 100 + (sigma == 0) * 0.015
    else:
        best = -3 if job["method"] == "dp-adam" else -0.5 if sigma == 2 else -1
        accuracy = 0.955 - sigma / 100 - 0.02 * abs(math.log10(settings["learning_rate"]) - best)
    marks = np.linspace(0.1, 1, 10)
    history = [
        {
            "epoch": mark * job["epochs"],
            "test_accuracy": accuracy * (1 - 0.3 * math.exp(-6 * mark)),
            "epsilon": math.sqrt(mark) * 2 / sigma if sigma else "inf",
            "tolerance": settings.get("tol") or 0.4,
        }
        for mark in marks
    ]
    return {
        "accuracy": accuracy,
        "epsilon": history[-1]["epsilon"],
        "history": history,
    }


def made_up_likelihood(job: dict[str, Any]) -> Result:
    diverged = job["settings"].get("learning_rate") == 1.0
    last = None if diverged else -3.8 - 0.05 * job["seed"]
    history = [
        {"epoch": 3 * i / 10, "rate": 0.1, "log_likelihood": last and last - math.exp(-i)}
        for i in range(1, 11)
    ]
    return {
        "log_likelihood": last,
        "epsilon": 0.4125 if job["noise_multiplier"] else "inf",
        "tolerance": 0.029 if job["method"] == "adadp" else None,
        "history": history,
    }


def drawn(report: Report, path: Path) -> int:
    figure = Figure(figsize=report.size, layout="constrained")
    assert report.draw is not None
    report.draw(figure)
    figure.savefig(path, dpi=60)
    return path.stat().st_size


def reported(
    recipe: Recipe, answer: Callable[[dict[str, Any]], Result], quick: bool
) -> tuple[FakeRun, Report]:
    run = FakeRun(answer)
    report = recipe.function(run, quick)
    for table in report.tables:
        assert all(len(row) == len(table.columns) for row in table.rows), table.title
    assert any("--quick" in note for note in report.notes) == quick
    return run, report


@pytest.mark.parametrize("quick", [True, False])
def test_the_mnist_recipe(quick: bool, tmp_path: Path) -> None:
    run, report = reported(RECIPES["adadp-mnist"], made_up_accuracy, quick)
    claims, accuracies, adam, sgd = report.tables
    verdicts = [[cell.split(" (")[0] for cell in row[1:]] for row in claims.rows]
    # Made up so that DP-Adam is best at 0.001, half a point above ADADP, and the carried rate loses a little.
    assert verdicts == [["yes", "no"], ["yes", "no"], ["yes", "no"], ["yes", "yes"]]
    sigmas = (2, 8) if quick else (2, 4, 6, 8)
    assert [row[0] for row in accuracies.rows] == [*(f"{sigma}" for sigma in sigmas), "0"]
    assert accuracies.rows[0][1:3] == ("1.0000", "1.5361")
    assert "(0.001)" in accuracies.rows[0][7]
    assert "(0.32)" in accuracies.rows[-2][9]
    assert len(adam.rows) == (3 if quick else 6)
    assert len(sgd.rows) == (3 if quick else 6)
    assert drawn(report, tmp_path / "mnist.png") > 10_000
    jobs = [job.settings for job in run.jobs.values()]
    assert {job["noise_multiplier"] for job in jobs} == {0, *sigmas}
    assert {job["epochs"] for job in jobs} == {5 if quick else 100}
    assert {job["settings"].get("freeze_after") for job in jobs} == {None, 2.5 if quick else 50}
    assert all(job["settings"]["threshold"] == 1.0 and job["batch_size"] == 200 for job in jobs)
    adam_rates = {job["settings"]["learning_rate"] for job in jobs if job["method"] == "dp-adam"}
    if not quick:
        assert sorted(adam_rates) == pytest.approx([10 ** (-4.5 + i / 2) for i in range(6)], rel=1e-3)


def test_a_best_rate_at_the_edge_of_its_grid_is_said() -> None:
    def answer(job: dict[str, Any]) -> Result:
        return {**made_up_accuracy(job), "accuracy": 0.5 + job["settings"].get("learning_rate", 0) / 100}

    _, report = reported(RECIPES["adadp-mnist"], answer, True)
    assert any("DP-Adam at sigma 2, DP-Adam at sigma 8, DP-SGD" in note for note in report.notes)


@pytest.mark.parametrize("quick", [True, False])
def test_the_mixture_recipe(quick: bool, tmp_path: Path) -> None:
    run, report = reported(RECIPES["adadp-gmm"], made_up_likelihood, quick)
    zeros, scattered = report.tables
    assert len(run.jobs) == (3 * (4 + 8) if quick else 10 * 2 * 12)
    assert len(scattered.rows) == (9 if quick else 13)
    assert len(zeros.rows) == (5 if quick else 13)
    assert scattered.rows[0][0] == "ADADP, tolerance from the plan (0.029)"
    assert scattered.rows[-1][:2] == ("true parameters", "-3.676")
    assert any("0.413, 1e-06" in note for note in report.notes)  # epsilon is rounded up
    if not quick:
        assert ("DP-SGD, rate 1", "", "(10 diverged)", "0.1") in scattered.rows
    assert drawn(report, tmp_path / "mixture.png") > 10_000
