"""One run that tunes itself against the best of many: ADADP's supplement, table 1.

Liu and Talwar's random stopping trains candidates with random learning rates until a coin says stop, and shows the
best. A pool of such candidates is trained once, each with what their theorem leaves to one run; selections are then
simulated by drawing from the pool, thousands of times for each stopping probability gamma.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from sordino.methods import method_named
from sordino.privacy import Budget, gaussian, noise_for, price, show_epsilon
from sordino.privacy.selection import Stopping, liu_talwar
from sordino.recipes import show
from sordino.recipes.frame import Contestant, Job, Report, Result, Run, Study, recipe, results_of
from sordino.recipes.paper import Published
from sordino.recipes.trainings import central, cross_entropy, load_for, network_for
from sordino.training import outlined

if TYPE_CHECKING:
    from dp_accounting import DpEvent

Array = npt.NDArray[Any]

EPSILON, DELTA = 3.0, 1e-5
CUT_OFF = DELTA / 2  # delta_2 of the theorem: that a selection would have gone on beyond its last run
SCORED = 0.1  # of the training rows choose among candidates, and are not trained on
RATES = (1e-4, 1.0)  # of DP-Adam, drawn evenly in their logarithm: the best lies well inside
MEAN = 10.0  # runs, of the selection that is priced as it can be today
SELECTIONS = 5000
SAID = Published(__name__)
GAMMAS: tuple[float, ...] = tuple(row[0] for row in SAID["printed.rows"])


# Trainings ----------------------------------------------------------------------------------------------------


def candidate(
    *, data: str, model: str, seed: int, method: str, settings: dict[str, Any], **how: Any
) -> Result:
    """One seeded run: accuracy on the rows that choose, and on the test rows, which nobody chooses by."""
    import torch

    from sordino.tasks import evaluate

    loaded = load_for(data)
    inputs, targets = loaded.train
    order = torch.randperm(len(targets), generator=torch.Generator().manual_seed(1))
    judged, kept = order[: round(SCORED * len(order))], order[round(SCORED * len(order)) :]
    network = network_for(model, loaded.input_shape, loaded.classes, seed)
    rows = inputs[kept], targets[kept]
    found = central(
        network, cross_entropy(), rows, loaded.test, data=data, method=method, settings=settings, seed=seed,
        evaluations=1, standardise="none", **how,
    )  # fmt: skip
    score = evaluate(network, cross_entropy(), (inputs[judged], targets[judged]))["test_accuracy"]
    names = ("accuracy", "epsilon", "noise_multiplier", "steps", "seconds")
    return {**{name: found[name] for name in names}, "score": score, "judges": len(judged)}


def drawn_rates(count: int) -> list[float]:
    """The learning rates of a pool, always the same."""
    low, high = (math.log10(rate) for rate in RATES)
    uniform = np.random.default_rng(2022).random(count)
    return [float(f"{10 ** (low + (high - low) * u):.4g}") for u in uniform]


# What one run may spend -----------------------------------------------------------------------------------------


def base_budget(gamma: float) -> Budget:
    """What Liu and Talwar's theorem leaves to one run, so that the whole is (EPSILON, DELTA).

    >>> found = liu_talwar(base_budget(0.01).epsilon, base_budget(0.01).delta, gamma=0.01, cut_off=CUT_OFF)
    >>> found.epsilon <= EPSILON and found.delta <= DELTA
    True
    """
    most = liu_talwar(0.0, 0.0, gamma=gamma, cut_off=CUT_OFF).most
    beside = (DELTA - CUT_OFF) / most * (1 - 1e-9)
    return Budget(EPSILON / 3 - beside, beside**2 / 2)


def score_noise(judges: int, budget: Budget) -> float:
    """The noise multiplier of a score: as `sordino tune` has it, and no less than what one run may spend."""
    return max(4.0, math.sqrt(judges) / 2, noise_for(budget, gaussian, "rdp"))


# Selections -----------------------------------------------------------------------------------------------------


def simulated(pool: Sequence[Result], gamma: float, noise: float, seed: int = 7) -> tuple[Array, Array]:
    """Test accuracies of the winners, and numbers of runs, of many selections from a pool."""
    random = np.random.default_rng(seed)
    scores = np.array([each["score"] for each in pool])
    tests = np.array([each["accuracy"] for each in pool])
    runs = random.geometric(gamma, SELECTIONS)
    accuracies = np.empty(SELECTIONS)
    for number, count in enumerate(runs):
        chosen = random.integers(len(pool), size=count)
        noisy = scores[chosen] + noise * random.standard_normal(count)
        accuracies[number] = tests[chosen[noisy.argmax()]]
    return accuracies, runs


@dataclass(frozen=True)
class Setting:
    """What is trained, by --quick and without."""

    data: str
    model: str
    epochs: int
    batch: int
    rows: int  # that are trained on
    pool: int
    seeds: int  # of single runs

    @property
    def study(self) -> Study:
        common = {"data": self.data, "model": self.model, "epochs": self.epochs, "batch_size": self.batch}
        return Study(candidate, common)

    def cost(self, noise_multiplier: float) -> DpEvent:
        """Of a candidate."""
        method = method_named("dp-adam", {"learning_rate": 1.0})
        terms = outlined(method, self.rows, self.epochs, self.batch, None).terms
        return terms.cost_with(noise_multiplier)

    def candidates(self, name: str, noise_multiplier: float) -> list[Job]:
        study = self.study.but(noise_multiplier=noise_multiplier, delta=DELTA, accountant="rdp")
        return [
            study.job(f"{name} {number}", Contestant("", "dp-adam", {"learning_rate": rate}), seed=number)
            for number, rate in enumerate(drawn_rates(self.pool))
        ]

    def single(self, method: str) -> list[Job]:
        who, study = Contestant(method, method), self.study.but(epsilon=EPSILON)
        return [study.job(f"{method} {seed}", who, seed=seed) for seed in range(self.seeds)]


QUICK = Setting("digits", "mlp:64", 20, 128, 1293, 40, 3)
FULL = Setting("mnist", "mlp:128", 5, 1000, 54_000, 100, 5)


@recipe("private-selection", "digits instead of MNIST, 40 candidates of each kind instead of 100")
def selection(run: Run, quick: bool) -> Report:
    """ADADP and the default in one run, against the best of many."""
    setting, budget = QUICK if quick else FULL, base_budget(min(GAMMAS))
    whole = Budget(EPSILON, DELTA)
    noises = {
        "by the theorem": noise_for(budget, setting.cost, "rdp"),
        "by profiles": noise_for(whole, lambda z: Stopping(MEAN).select(setting.cost(z))),
    }
    jobs = {name: setting.candidates(name, noise) for name, noise in noises.items()}
    found = results_of(run, jobs | {who: setting.single(who) for who in ("adadp", "auto")})
    judges = found["auto"][0]["judges"]
    multiplier = score_noise(judges, budget)
    noise = multiplier / judges
    selections = {gamma: simulated(found["by the theorem"], gamma, noise) for gamma in GAMMAS}
    rows = [
        _row("ADADP, one run", _tests(found["adadp"]), np.ones(1), EPSILON, SAID["printed.adadp"]),
        _row("our default, one run", _tests(found["auto"]), np.ones(1), EPSILON, None),
    ]
    for gamma, *printed in SAID["printed.rows"]:
        # A row is trained on or scored on: whichever of the two costs more counts.
        both = setting.cost(noises["by the theorem"]), gaussian(multiplier)
        today = max(price(Stopping(1 / gamma).select(each), DELTA).epsilon for each in both)
        rows.append(_row(f"Liu and Talwar, gamma {gamma:g}", *selections[gamma], today, printed))
    won = simulated(found["by profiles"], 1 / MEAN, noise)
    rows.append(_row(f"the same, gamma {1 / MEAN:g}, priced by profiles", *won, EPSILON, None))
    said = {
        "setting": setting,
        "budget": budget,
        "noises": ", ".join(f"{name} {z:.3f}" for name, z in noises.items()),
        "alone": found["auto"][0]["noise_multiplier"],
        "best": _best_rate(found["by the theorem"]),
        "quick": quick,
    }
    settings = {"epsilon": EPSILON, "delta": DELTA, "rates": list(RATES), "selections": SELECTIONS}
    draw = partial(_draw, selections=selections, alone={who: found[who] for who in ("adadp", "auto")})
    table = SAID.table("selection", rows, setting=setting)
    return Report([table], SAID.notes(**said), draw, (9.0, 4.2), settings)


def _tests(results: Sequence[Result]) -> Array:
    return np.array([each["accuracy"] for each in results])


def _best_rate(pool: Sequence[Result]) -> float:
    best = max(range(len(pool)), key=lambda number: float(pool[number]["score"]))
    return drawn_rates(len(pool))[best]


def _row(
    name: str, accuracies: Array, runs: Array, epsilon: float, printed: Sequence[float] | None
) -> dict[str, str]:
    ours = {
        "method": name,
        "accuracy": show.percent(float(accuracies.mean())),
        "deviation": show.percent(float(accuracies.std(ddof=1))),
        "runs": f"{float(runs.mean()):.1f}",
        "epsilon by profiles": show_epsilon(epsilon, 2),
    }
    theirs = ("printed accuracy", "printed deviation", "printed runs")
    if printed is not None:
        shown = (show.percent(printed[0]), show.percent(printed[1]), f"{printed[2]:g}")
        ours |= dict(zip(theirs, shown, strict=True))
    return ours


def _draw(
    figure: Figure, selections: dict[float, tuple[Array, Array]], alone: dict[str, list[Result]]
) -> None:
    axes = figure.subplots()
    means = [float(runs.mean()) for _, runs in selections.values()]
    accuracies = [100 * accuracy for accuracy, _ in selections.values()]
    low, middle, high = (np.array([np.quantile(a, q) for a in accuracies]) for q in (0.1, 0.5, 0.9))
    axes.plot(
        means,
        [a.mean() for a in accuracies],
        "o-",
        color="tab:blue",
        label="Liu and Talwar: mean of the winners",
    )
    axes.plot(means, middle, ":", color="tab:blue", label="median")
    axes.fill_between(
        means, low, high, color="tab:blue", alpha=0.15, label="from the worst tenth to the best"
    )
    for (who, results), colour in zip(alone.items(), ("tab:orange", "tab:green"), strict=True):
        name = {"adadp": "ADADP", "auto": "our default"}[who]
        axes.axhline(100 * show.mean_accuracy(results), color=colour, label=f"{name}, one run")
    show.dressed(
        axes, f"All at epsilon {EPSILON:g}, delta {DELTA:g}, by Liu and Talwar's theorem", 10, grid=True, legend=8,
        xscale="log", xlabel="runs, on average", ylabel="test accuracy, %",
    )  # fmt: skip
