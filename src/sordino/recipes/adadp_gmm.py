"""ADADP's Gaussian mixture: private variational inference with 38 parameters (supplement, figure 1).

The text of that section and its code are not public: known are the noise multiplier 1.2, delta 1e-6, and what was
plotted. The rest is that of DPVI (Jälkö, Dikmen and Honkela, UAI 2017), the experiment it grew from.

What is optimised is the evidence lower bound divided by the number of points N. A point's loss is minus its
expected log-likelihood, by 4 draws; the gate gives the mean over the batch. Prior and entropy have nothing private
in them: they are a public loss, divided by N, in closed form.
"""

from __future__ import annotations

import math
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F

from sordino.privacy import show_epsilon
from sordino.recipes import show
from sordino.recipes.frame import Contestant, Report, Result, Run, Study, Table, recipe, results_of
from sordino.recipes.paper import Published
from sordino.recipes.trainings import central

POINTS, TEST_POINTS = 2000, 100
CENTRES = ((0.0, 0.0), (2.0, 2.0), (-2.0, -2.0), (-2.0, 2.0), (2.0, -2.0))
VARIANCE = 0.5  # of each component, in each direction
COMPONENTS = len(CENTRES)
UNKNOWNS = (COMPONENTS - 1) + 2 * COMPONENTS + COMPONENTS  # sticks, centres, log variances: 19
_STICKS = slice(0, COMPONENTS - 1)
_PLACES = slice(COMPONENTS - 1, UNKNOWNS - COMPONENTS)  # of the centres
_SCALES = slice(UNKNOWNS - COMPONENTS, UNKNOWNS)
DRAWS = 4
PRIOR_SHAPE, PRIOR_SCALE = 10.0, 0.1  # of the variances, inverse gamma
BATCH, BATCHES = 6, 1000
SIGMA, DELTA = 1.2, 1e-6
SAID = Published(__name__)
TRUE_LOG_LIKELIHOOD: dict[str, float] = SAID["true_log_likelihood"]
STARTS: dict[str, str] = SAID["starts"]


# Data ---------------------------------------------------------------------------------------------------


def mixture_points() -> tuple[Tensor, Tensor]:
    """Training and test points, the same as DPVI's: [2000, 2] and [100, 2]."""
    random = np.random.RandomState(123)
    return _points(random, POINTS), _points(random, TEST_POINTS)


def _points(random: np.random.RandomState, count: int) -> Tensor:
    # The order of the draws makes the data: who belongs where one by one, then every component for everybody.
    shares = np.full(COMPONENTS, 1 / COMPONENTS)
    member = np.stack([random.multinomial(1, shares) for _ in range(count)])
    drawn = [random.multivariate_normal(c, VARIANCE * np.eye(2), size=count) for c in CENTRES]
    return torch.tensor(np.einsum("nk,knd->nd", member, np.stack(drawn)), dtype=torch.float32)


# The model ----------------------------------------------------------------------------------------------


def log_likelihood(unknowns: Tensor, points: Tensor) -> Tensor:
    """log p(point | unknowns): ``unknowns`` [..., 19] without constraints, ``points`` [..., 2]."""
    centres, log_variances = unknowns[..., _PLACES], unknowns[..., _SCALES]
    broken = unknowns[..., _STICKS] + _even_shares()
    zero = torch.zeros_like(broken[..., :1])
    log_weights = torch.cat([F.logsigmoid(broken), zero], -1)
    log_weights = log_weights + torch.cat([zero, F.logsigmoid(-broken).cumsum(-1)], -1)
    squares = (points.unsqueeze(-2) - centres.reshape(*centres.shape[:-1], COMPONENTS, 2)).square().sum(-1)
    log_densities = -math.log(2 * math.pi) - log_variances - 0.5 * squares * (-log_variances).exp()
    return torch.logsumexp(log_weights + log_densities, -1)


def _even_shares() -> Tensor:
    """What to add to sticks so that zeros mean equal weights."""
    return -torch.arange(COMPONENTS - 1, 0, -1).log()


class MixtureApproximation(nn.Module):
    """Independent Gaussians over the 19 unknowns. Gives each point's loss: minus its log-likelihood.

    While training it is the mean over draws of the unknowns, four for each point; otherwise that at their means.
    """

    def __init__(self, start: str = "zeros", seed: int = 0) -> None:
        super().__init__()
        if start not in STARTS:
            raise ValueError(f"start must be one of {', '.join(STARTS)}, not {start!r}")
        mean, log_std = torch.zeros(UNKNOWNS), torch.zeros(UNKNOWNS)
        if start == "scattered":
            generator = torch.Generator().manual_seed(seed)
            mean[_PLACES] = torch.randn(2 * COMPONENTS, generator=generator)
            log_std.fill_(-2.0)
        self.mean, self.log_std = nn.Parameter(mean), nn.Parameter(log_std)

    def forward(self, points: Tensor) -> Tensor:
        # Draws of its own for each point: nothing is shared over the batch, as the gate wants it.
        make, draws = (torch.randn, DRAWS) if self.training else (torch.zeros, 1)
        noise = make(len(points), draws, UNKNOWNS, device=points.device)
        unknowns = noise * self.log_std.exp() + self.mean
        return -log_likelihood(unknowns, points.unsqueeze(1)).mean(1)


def prior_and_entropy(theta: Tensor) -> Tensor:
    """E_q[log prior] + entropy of q, up to a constant: what stands beside the likelihood in the lower bound.

    Weights are uniform on the simplex, centres N(0, I), variances inverse gamma.
    """
    mean, log_std = theta[:UNKNOWNS], theta[UNKNOWNS:]
    variance = (2 * log_std).exp()
    # Uniform weights: what is left is the Jacobian of stick-breaking. Its mean has no closed form; 20 nodes do.
    nodes, shares = (torch.tensor(a, dtype=theta.dtype) for a in np.polynomial.hermite_e.hermegauss(20))
    broken = mean[_STICKS] + nodes[:, None] * log_std[_STICKS].exp() + _even_shares().to(theta.dtype)
    breaks = torch.arange(COMPONENTS - 1, 0, -1)
    jacobian = (F.logsigmoid(broken) + breaks * F.logsigmoid(-broken)).sum(1) @ (shares / shares.sum())
    of_centres = -0.5 * (mean[_PLACES].square() + variance[_PLACES]).sum()
    # log t of a variance t: -shape log t - scale / t, and the mean of 1/t is exp(-m + s^2 / 2).
    inverse = (-mean[_SCALES] + 0.5 * variance[_SCALES]).exp()
    of_scales = -(PRIOR_SHAPE * mean[_SCALES] + PRIOR_SCALE * inverse).sum()
    bound: Tensor = jacobian + of_centres + of_scales + log_std.sum()
    return bound


def public_loss(theta: Tensor) -> Tensor:
    return -prior_and_entropy(theta) / POINTS


def each_loss(output: Tensor, target: Tensor) -> Tensor:
    """The model's outputs are the losses."""
    return output


# Trainings ----------------------------------------------------------------------------------------------


def train_mixture(*, seed: int, start: str = "zeros", batches: int = BATCHES, **how: Any) -> Result:
    """One seeded run; log-likelihoods are means over the test points, at the means of the approximation."""
    points, test_points = mixture_points()
    result = central(
        MixtureApproximation(start, seed),
        each_loss,
        (points, torch.zeros(len(points))),
        (test_points, torch.zeros(len(test_points))),
        data="mixture",
        epochs=batches / (len(points) // BATCH),
        batch_size=BATCH,
        delta=DELTA,
        public_loss=public_loss,
        seed=seed,
        standardise="none",
        **{"evaluations": 20, "noise_multiplier": SIGMA, **how},
    )
    lines = [line for line in result["history"] if "test_loss" in line]
    history = [
        {"epoch": line["epoch"], "rate": line["rate"], "log_likelihood": _finite(-line["test_loss"])}
        for line in lines
    ]
    return {
        **{name: result[name] for name in ("epsilon", "steps", "seconds")},
        "log_likelihood": _finite(-result["test_loss"]),
        "tolerance": lines[-1].get("tolerance"),
        "history": history,
    }


def _finite(value: float) -> float | None:
    """None for a run that diverged."""
    return value if math.isfinite(value) else None


# The comparison -----------------------------------------------------------------------------------------

_RULE = "ADADP, tolerance from the plan"
_WITHOUT_NOISE = "SGD, rate 0.1, clipped, no noise"
_QUICK_FROM_ZEROS = (_RULE, "ADADP, tolerance 0.1", "DP-SGD, rate 0.1", _WITHOUT_NOISE)
Results = dict[tuple[str, str], list[Result]]  # by start and contestant, one for each seed


def _contestants(quick: bool) -> list[Contestant]:
    """The threshold is 1 for all of them, as in DPVI."""
    tolerances = (0.01, 0.1) if quick else (0.01, 0.03, 0.1, 0.3)
    rates = (0.01, 0.03, 0.1, 0.3) if quick else (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)

    def adadp(label: str, tol: float | None) -> Contestant:
        return Contestant(label, "adadp", {"threshold": 1.0, "target_quantile": None, "tol": tol})

    def sgd(label: str, rate: float) -> Contestant:
        return Contestant(label, "dp-sgd", {"threshold": 1.0, "learning_rate": rate})

    ours = [adadp(_RULE, None), *(adadp(f"ADADP, tolerance {tol:g}", tol) for tol in tolerances)]
    return [*ours, *(sgd(f"DP-SGD, rate {rate:g}", rate) for rate in rates), sgd(_WITHOUT_NOISE, 0.1)]


@recipe("adadp-gmm", "3 seeds instead of 10 and fewer tolerances and rates")
def compare(run: Run, quick: bool) -> Report:
    """ADADP at several tolerances against DP-SGD at several fixed rates, from both starts."""
    seeds = range(3 if quick else 10)
    jobs = {}
    for start in STARTS:
        for who in _contestants(quick):
            noise = 0.0 if who.label == _WITHOUT_NOISE else SIGMA
            study = Study(train_mixture, {"start": start, "noise_multiplier": noise})
            if not (quick and start == "zeros" and who.label not in _QUICK_FROM_ZEROS):
                name = f"{who.label}, {start}"
                jobs[start, who.label] = [study.job(f"{name}, seed {seed}", who, seed=seed) for seed in seeds]
    results = results_of(run, jobs)
    private = [result for (_, name), runs in results.items() if name != _WITHOUT_NOISE for result in runs]
    epsilon = max(float(result["epsilon"]) for result in private)
    settings = {"points": POINTS, "batch_size": BATCH, "batches": BATCHES, "sigma": SIGMA, "delta": DELTA}
    return Report(
        [_table(start, results, len(seeds)) for start in STARTS],
        _notes(results, epsilon, quick),
        partial(_draw, results=results, epsilon=epsilon),
        (12.0, 4.4),
        {**settings, "draws": DRAWS},
    )


def _table(start: str, results: Results, seeds: int) -> Table:
    rows = []
    for name, runs in ((name, runs) for (where, name), runs in results.items() if where == start):
        values = _values(runs)
        spread = f"{min(values):.3f} to {max(values):.3f}" if values else ""
        lost = len(runs) - len(values)
        rates = [run["history"][-1]["rate"] for run in runs]
        planned = name == _RULE and runs[0]["tolerance"] is not None
        rows.append(
            (
                f"{name} ({runs[0]['tolerance']:.3g})" if planned else name,
                f"{fmean(values):.3f}" if values else "",
                f"{spread} ({lost} diverged)".strip() if lost else spread,
                f"{fmean(rates):.3g}",
            )
        )
    rows.append(("true parameters", f"{TRUE_LOG_LIKELIHOOD['test']:.3f}", "", ""))
    return SAID.table("likelihood", rows, seeds=seeds, start=STARTS[start])


def _values(runs: list[Result]) -> list[float]:
    return [run["log_likelihood"] for run in runs if run["log_likelihood"] is not None]


def _notes(results: Results, epsilon: float, quick: bool) -> list[str]:
    means = {
        name: fmean(v) for (start, name), r in results.items() if start == "scattered" and (v := _values(r))
    }
    fixed = {name: value for name, value in means.items() if name.startswith("DP-SGD")}
    best = max(fixed, key=lambda name: fixed[name], default="")
    return SAID.notes(
        epsilon=show_epsilon(epsilon, 3),
        sampled=BATCH / POINTS,
        reached=means.get(_RULE) if fixed else None,
        better=sum(means.get(_RULE, -math.inf) > value for value in fixed.values()),
        count=len(fixed),
        best=best,
        highest=fixed.get(best),
        quick=quick,
    )


def _draw(figure: Figure, results: Results, epsilon: float) -> None:
    panels = figure.subplots(1, len(STARTS), sharey=True)
    colours: dict[str, Any] = {_WITHOUT_NOISE: "grey"}
    for kind, palette in (("ADADP", "Reds"), ("DP-SGD", "Blues")):
        names = [name for start, name in results if start == "scattered" and name.startswith(kind)]
        colours.update(zip(names, show.shades(palette, len(names), 0.9, 0.4), strict=True))
    for axes, (start, what) in zip(panels, STARTS.items(), strict=True):
        for name, runs in ((name, runs) for (where, name), runs in results.items() if where == start):
            style = "-" if name.startswith("ADADP") else "--"
            lines = list(zip(*(run["history"] for run in runs), strict=True))
            values = [[one["log_likelihood"] for one in line] for line in lines]
            means = [math.nan if None in at_once else fmean(at_once) for at_once in values]
            epochs = [line[0]["epoch"] for line in lines]
            axes.plot(epochs, means, style, color=colours[name], label=name, linewidth=1.6)
        axes.axhline(TRUE_LOG_LIKELIHOOD["test"], color="black", linestyle=":", label="true parameters")
        show.dressed(axes, f"start: {what}", 9, grid=True, open_frame=True, xlabel="epoch", ylim=(-5.0, -3.6))
    handles, labels = panels[-1].get_legend_handles_labels()  # this one has them all
    figure.legend(handles, labels, fontsize=7, loc="outside right upper")
    panels[0].set_ylabel("test log-likelihood per point")
    spent = f"epsilon {show_epsilon(epsilon, 2)} at the end, delta {DELTA:g} (seeded runs)"
    figure.suptitle(f"Gaussian mixture, DPVI-style: {spent}", fontsize=10)
