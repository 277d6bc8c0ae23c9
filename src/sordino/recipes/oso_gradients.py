"""OSO's two studies of a step (Galli et al., 2024): what clipping and noise do to a gradient, and what q costs.

Figure 1 compares sanitised gradients with the true ones. That needs the true ones: it is a study on public data,
and nothing in it is private. Figure 2 is a closed form.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from sordino.recipes import show
from sordino.recipes.frame import Job, Report, Result, Run, Table, recipe
from sordino.recipes.oso_grids import BATCH, EPOCHS, EPSILONS, INITIAL_THRESHOLD, grid_noise
from sordino.recipes.paper import Published

if TYPE_CHECKING:
    from torch import Tensor

    from sordino.gate import Gate

SAID = Published(__name__)
ROWS = 60_000
STEPS = EPOCHS * round(ROWS / BATCH)  # 1170
GRANULARITY = 7  # the grid of the paper's main text: Online has 7 runs
EPSILON = 3
LEARNING_RATE = 0.3162278  # the best of that grid at epsilon 3
MOMENTS = (100, 250, 500, 750, 950)  # when gradients are compared
QUICK_MOMENTS = (10, 50, 100, 250)
REALISATIONS = 20  # of the noise
GRADIENT_NOISE = 1.01  # nu_g / nu: the paper's choice, 1 % more noise on the gradient
THRESHOLDS = [round(10 ** (i / 4), 6) for i in range(-12, 9)]  # 0.001 to 100
_SMALLEST, _LARGEST = THRESHOLDS[0], THRESHOLDS[-1]


Moment = dict[str, Any]


# Figure 1 -----------------------------------------------------------------------------------------------


def similarities(
    *,
    moments: list[int],
    thresholds: list[float],
    noise_multiplier: float,
    learning_rate: float,
    realisations: int,
    batch_size: int,
    seed: int,
    data: str = "mnist",
    model: str = "oso_cnn",
) -> Result:
    """Train with OSO and at some of its steps compare sanitised gradients with the true one, at each threshold."""
    import torch

    from sordino.data import Poisson
    from sordino.gate import Gate
    from sordino.methods import oso
    from sordino.recipes.trainings import cross_entropy, load_for, network_for
    from sordino.steps import Plan

    loaded = load_for(data, unit_pixels=True)
    rows = len(loaded.train[1])
    method = oso(learning_rate, INITIAL_THRESHOLD)
    gate = Gate(
        network_for(model, loaded.input_shape, loaded.classes, seed),
        cross_entropy(),
        loaded.train,
        clip=method.clip,
        noise_multiplier=noise_multiplier,
        sampling=(sampling := Poisson(batch_size / rows)),
        seed=seed,
    )
    theta, last = gate.theta, max(moments)
    plan = Plan(len(theta), last, last, sampling.steps_per_epoch(rows), gate.expected_batch, noise_multiplier)
    state, rates = method.step.start(theta, plan), method.rate.start(plan, theta)
    generator = torch.Generator().manual_seed(seed)
    found = []
    for step in range(last + 1):
        if step in moments:
            drawn = torch.randperm(rows, generator=generator)[:batch_size]
            batch = loaded.train[0][drawn], loaded.train[1][drawn]
            at = _compared(gate, batch, thresholds, noise_multiplier, realisations, generator)
            found.append({"step": step, "threshold": gate.threshold, **at})
        if step < last:
            rate = partial(method.rate.rate, step, rates)
            result = method.step.step(lambda at: gate(at, adapt=False), theta, rate, state)
            rates = method.rate.update(rates, result, theta)
            gate.adapt(*result.gradients)
    return {"n": rows, "parameters": len(theta), "moments": found}


def _compared(
    gate: Gate,
    batch: tuple[Tensor, Tensor],
    thresholds: list[float],
    noise_multiplier: float,
    realisations: int,
    generator: Any,
) -> dict[str, Any]:
    """Cosines with the true mean gradient of a batch of public rows: clipped, and clipped and noised."""
    import torch

    from sordino.clipping.policy import clip_factors

    def weigh(norms: Any) -> Tensor:
        clipped = [clip_factors(norms.total_U, threshold) for threshold in thresholds]
        return torch.stack([torch.ones_like(norms.total_U), *clipped])

    sums, norms = gate.engine.sums(*batch, weigh, count=1 + len(thresholds))
    true, clipped = sums[0], sums[1:]
    noised = torch.zeros(len(thresholds), realisations)
    for j in range(realisations):
        # Shared by the thresholds, each with its own size.
        noise = torch.randn(true.shape, generator=generator)
        for i, threshold in enumerate(thresholds):
            sanitised = torch.add(clipped[i], noise, alpha=noise_multiplier * threshold)
            noised[i, j] = torch.nn.functional.cosine_similarity(sanitised, true, dim=0)
    return {
        "noised": noised.mean(1).tolist(),
        "noised_std": noised.std(1).tolist() if realisations > 1 else [0.0] * len(thresholds),
        "clipped": torch.nn.functional.cosine_similarity(clipped, true[None]).tolist(),
        "median_norm": float(norms.median()),
    }


# Figure 2 -----------------------------------------------------------------------------------------------


def noise_of_q(noise_multiplier: float, gradient_multiplier: float) -> float:
    """nu_q, given nu and nu_g (Proposition 1): what is left of a joint release for q.

    >>> round(noise_of_q(1.0, 1.01), 6)
    7.123991
    """
    if not gradient_multiplier > noise_multiplier > 0:
        raise ValueError("the gradient must have more noise than it would have alone, which must be positive")
    return 1 / math.sqrt(noise_multiplier**-2 - gradient_multiplier**-2)


def frontier(noise_multiplier: float, points: int = 200) -> tuple[list[float], list[float]]:
    """Pairs (nu_g, nu_q) that together cost what one release with ``noise_multiplier`` does."""
    excess = [10 ** (-4 + 4.5 * i / (points - 1)) for i in range(points)]  # nu_g / nu - 1
    gradient = [noise_multiplier * (1 + e) for e in excess]
    return gradient, [noise_of_q(noise_multiplier, g) for g in gradient]


# The report ---------------------------------------------------------------------------------------------


@recipe("oso-gradients", SAID["quick"])
def gradients(run: Run, quick: bool) -> Report:
    noises = {epsilon: grid_noise(epsilon, GRANULARITY, STEPS, ROWS) for epsilon in EPSILONS}
    compared = {"moments": list(QUICK_MOMENTS if quick else MOMENTS), "thresholds": THRESHOLDS}
    trained = {"noise_multiplier": noises[EPSILON], "learning_rate": LEARNING_RATE, "batch_size": BATCH}
    settings = {**compared, **trained, "realisations": REALISATIONS, "seed": 1}
    (found,) = run([Job("cosines on MNIST", similarities, settings)])
    moments, rows = found["moments"], found["n"]
    return Report(
        [_cosines(moments, rows, noises[EPSILON]), _multipliers(noises)],
        _notes(moments),
        partial(_draw, moments=moments, rows=rows, noises=noises),
        (14.0, 4.6),
        {**settings, "n": rows, "noise_multipliers": {str(e): z for e, z in noises.items()}},
    )


def best_threshold(moment: Moment) -> tuple[float, float]:
    """The threshold whose sanitised gradient points most along the true one, and the cosine there."""
    cosine, threshold = max(zip(moment["noised"], THRESHOLDS, strict=True))
    return threshold, cosine


def _is_prominent(moment: Moment) -> bool:
    _, cosine = best_threshold(moment)
    return cosine > 0 and cosine >= 1.1 * max(moment["noised"][0], moment["noised"][-1])


def _cosines(moments: list[Moment], rows: int, noise_multiplier: float) -> Table:
    lines = []
    for moment in moments:
        best, cosine = best_threshold(moment)
        lines.append({**moment, "best": best, "cosine": cosine, "last": moment["noised"][-1]})
    return SAID.table("cosines", lines, rows=rows, noise_multiplier=noise_multiplier)


def _multipliers(noises: dict[int, float]) -> Table:
    of_q = {nu: noise_of_q(nu, GRADIENT_NOISE * nu) for nu in noises.values()}
    rows = [
        {
            "epsilon": epsilon,
            "nu": nu,
            "of_gradient": GRADIENT_NOISE * nu,
            "of_q": of_q[nu],
            "ratio": of_q[nu] / nu,
        }
        for epsilon, nu in noises.items()
    ]
    return SAID.table("multipliers", rows)


def _notes(moments: list[Moment]) -> list[str]:
    return SAID.notes(prominent=sum(map(_is_prominent, moments)), count=len(moments))


def _draw(figure: Figure, moments: list[Moment], rows: int, noises: dict[int, float]) -> None:
    left, middle, right = figure.subplots(1, 3)
    _draw_cosines(left, moments, "noised")
    _draw_cosines(middle, moments, "clipped")
    _draw_frontiers(right, noises)
    noise = f"n = {rows:,}, noise multiplier {noises[EPSILON]:.3f}"
    show.dressed(
        left, f"Figure 1: clipped and noised, MNIST,\n{noise}", ylabel="cosine with the true gradient"
    )
    show.dressed(middle, "The same without noise:\nwhat clipping alone does")
    runs = f"{GRANULARITY} runs of {STEPS:,} steps, delta 1e-5"
    show.dressed(right, f"Figure 2: what q costs, n = {ROWS:,},\n{runs}", legend=8, boxed=False)
    for axes in (left, middle, right):
        show.dressed(axes, grid=True, open_frame=True)
    left.legend(frameon=False, fontsize=8)
    study = "Figure 1 uses true gradients: a study on public data, nothing in it is private."
    figure.supxlabel(study, fontsize=9)


def _draw_cosines(axes: Axes, moments: list[Moment], which: str) -> None:
    for moment, colour in zip(moments, show.shades("viridis", len(moments), 0.0, 0.85), strict=True):
        axes.plot(THRESHOLDS, moment[which], color=colour, label=f"after {moment['step']} steps")
        if which == "noised":
            axes.plot(*best_threshold(moment), "o", color=colour)
        axes.axvline(moment["threshold"], ymax=0.06, color=colour, linewidth=2)
    axes.axhline(0, color="black", linewidth=0.6)
    axes.plot([], [], "o", color="grey", label="best C")
    axes.plot([], [], "|", color="grey", markeredgewidth=2, label="OSO's C at the step")
    axes.set(xscale="log", xlabel="threshold C")


def _draw_frontiers(axes: Axes, noises: dict[int, float]) -> None:
    colours = show.shades("viridis", len(noises), 0.0, 0.85)
    for (epsilon, nu), colour in zip(noises.items(), colours, strict=True):
        axes.plot(*frontier(nu), color=colour, label=f"epsilon {epsilon}: nu = {nu:.3f}")
        axes.plot(GRADIENT_NOISE * nu, noise_of_q(nu, GRADIENT_NOISE * nu), "o", color=colour)
    axes.plot([], [], "o", color="grey", label="1 % more noise on the gradient")
    axes.set(yscale="log", xlim=(0.6, 2.4), ylim=(0.7, 100))
    axes.set(xlabel="nu_g, noise multiplier of the gradient", ylabel="nu_q, noise multiplier of q")
