"""The tasks of the recipe `one-run`: named sets, a bundled table, and rows drawn with known structure.

What is drawn is the same on every machine: plain numpy with a fixed seed. Training rows come first and test rows after
them, all from one distribution. Inputs are left as they were drawn: nobody has scaled them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sordino.named import DATA_SETS
from sordino.recipes.frame import Result
from sordino.recipes.trainings import central, cross_entropy, missing, network_for

if TYPE_CHECKING:
    from dp_accounting import DpEvent
    from torch import Tensor, nn

    from sordino.data import Loaded

# torch is imported inside functions, so that a list of the recipes is quick.

Array = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

TEST_ROWS = 5000  # of what is drawn
DELTA = 1e-5


@dataclass(frozen=True)
class Task:
    """Data, what stands in front of the model, and the model."""

    data: str
    model: str
    features: str | None = None
    balanced: bool = False  # whether accuracy over classes is shown too

    @property
    def name(self) -> str:
        return f"{self.data} {self.model_name}"

    @property
    def model_name(self) -> str:
        return self.model if self.features is None else f"{self.features} + {self.model}"

    @property
    def settings(self) -> dict[str, Any]:
        return {"data": self.data, "model": self.model, "features": self.features}


# Rows ---------------------------------------------------------------------------------------------------------


def sparse(rows: int) -> tuple[Array, Labels]:
    """Bags of words: counts of 2,000 words in texts of 10 words and more, four classes.

    The r-th word has the probability 1 / (r + 3) up to a factor, which is Zipf's law; in each class by another factor
    exp(g / 2), g standard normal. A text has 10 words and a Poisson number of mean 20 more. Inputs are counts, and most
    of them 0.
    """
    random = np.random.default_rng(20_001)
    words, classes = 2000, 4
    zipf = 1 / (np.arange(words) + 3.0)
    weights = zipf * np.exp(random.standard_normal((classes, words)) / 2)
    weights /= weights.sum(1, keepdims=True)
    labels = random.integers(classes, size=rows)
    lengths = 10 + random.poisson(20, rows)
    counts = np.stack([random.multinomial(n, weights[y]) for n, y in zip(lengths, labels, strict=True)])
    return counts.astype(np.float64), labels


def heavy_tailed(rows: int) -> tuple[Array, Labels]:
    """Twenty inputs with heavy tails, two classes.

    Five standard normal factors make twenty numbers u, linearly and with variance 1. Ten inputs are sign(u) |u|^3;
    ten are u divided by the root of a chi-squared over its 1.5 degrees of freedom: Student's t, without a variance.
    The label is that of a logistic model of the factors whose margin has deviation 5.
    """
    random = np.random.default_rng(20_002)
    mixing = random.standard_normal((5, 20))
    mixing /= np.linalg.norm(mixing, axis=0)
    factors = random.standard_normal((rows, 5))
    u = factors @ mixing
    degrees = 1.5
    t = u[:, 10:] / np.sqrt(random.chisquare(degrees, (rows, 10)) / degrees)
    direction = random.standard_normal(5)
    margin = 5 * factors @ direction / np.linalg.norm(direction)
    return np.concatenate([np.sign(u[:, :10]) * np.abs(u[:, :10]) ** 3, t], 1), _drawn(margin, random)


def imbalanced(rows: int) -> tuple[Array, Labels]:
    """Fifteen inputs, two classes, 6 % of the second: normal with unit covariance, their means 3 apart.

    By Bayes' rule 97.6 % are right (85.6 % of a mean over the classes), and 94 % if one always says no.
    """
    random = np.random.default_rng(20_003)
    direction = random.standard_normal(15)
    direction *= 3 / np.linalg.norm(direction)
    labels = (random.random(rows) < 0.06).astype(np.int64)
    return random.standard_normal((rows, 15)) + labels[:, None] * direction, labels


def unscaled(rows: int) -> tuple[Array, Labels]:
    """Twenty inputs in units of their own, two classes.

    Standard normal numbers v decide the label by a logistic model whose margin has deviation 5; the inputs are
    scale (v + offset) with scales from a thousandth to a thousand, evenly in their logarithm, and offsets from -100 to
    100.
    """
    random = np.random.default_rng(20_004)
    scales, offsets = 10 ** random.uniform(-3, 3, 20), random.uniform(-100, 100, 20)
    direction = random.standard_normal(20)
    v = random.standard_normal((rows, 20))
    margin = 5 * v @ direction / np.linalg.norm(direction)
    return scales * (v + offsets), _drawn(margin, random)


def _drawn(margin: Array, random: np.random.Generator) -> Labels:
    """Labels of a logistic model."""
    return (random.random(len(margin)) < 1 / (1 + np.exp(-margin))).astype(np.int64)


# The ranges that the data's description publishes: mean, standard error and worst of ten measures of a cell's nucleus.
_RANGES = """
6.981 28.11, 9.71 39.28, 43.79 188.5, 143.5 2501, 0.053 0.163, 0.019 0.345, 0 0.427, 0 0.201, 0.106 0.304, 0.05 0.097,
0.112 2.873, 0.36 4.885, 0.757 21.98, 6.802 542.2, 0.002 0.031, 0.002 0.135, 0 0.396, 0 0.053, 0.008 0.079, 0.001 0.03,
7.93 36.04, 12.02 49.54, 50.41 251.2, 185.2 4254, 0.071 0.223, 0.027 1.058, 0 1.252, 0 0.291, 0.156 0.664, 0.055 0.208
"""


def breast_cancer(rows: int) -> tuple[Array, Labels]:
    """The Wisconsin table bundled with scikit-learn, in an order that never changes; 455 rows are for training.

    Its 30 inputs are scaled to [-1, 1] by the ranges that its description publishes, as a schema's bounds would do it.
    """
    from sklearn.datasets import load_breast_cancer

    raw, labels = load_breast_cancer(return_X_y=True)
    low, high = np.array([[float(end) for end in pair.split()] for pair in _RANGES.split(",")]).T
    order = np.random.default_rng(20_005).permutation(len(raw))[:rows]
    inputs = (raw - (low + high) / 2) / ((high - low) / 2)
    return np.clip(inputs, -1, 1)[order], labels.astype(np.int64)[order]


@dataclass(frozen=True)
class Own:
    """A set of ours: ``make(rows)`` gives training rows and after them test rows."""

    make: Callable[[int], tuple[Array, Labels]]
    train: int
    test: int = TEST_ROWS


OWN = {
    "breast-cancer": Own(breast_cancer, 455, 114),
    "sparse": Own(sparse, 10_000),
    "heavy-tailed": Own(heavy_tailed, 6000),
    "imbalanced": Own(imbalanced, 8000),
    "unscaled": Own(unscaled, 6000),
}


def not_there(data: str) -> str:
    """Why a set cannot be had here; nothing where it can."""
    return "" if data in OWN else missing(data)


@lru_cache(maxsize=2)
def task_rows(data: str, features: str | None = None) -> Loaded:
    """The rows of a task: a named set, with features if any, or a set of ours."""
    from sordino.data import load
    from sordino.features import with_features

    if data in OWN:
        return _own_rows(data)
    if data not in DATA_SETS:
        raise ValueError(DATA_SETS.unknown(data))
    return with_features(load(data), features, public=True) if features else load(data)


def prepared(*, data: str, features: str) -> Result:
    """Features of a named set, into the user's cache for the runs to come, and how long they take.

    Where they lay there already they are computed once more, or the time would be that of reading them.
    """
    import torch

    from sordino.cache import user_cache
    from sordino.data import load
    from sordino.features import with_features

    loaded, cache = load(data), user_cache() / "features"
    before = set(cache.glob("*.npy"))
    begun = time.monotonic()
    with_features(loaded, features, public=True)
    if set(cache.glob("*.npy")) == before:
        begun = time.monotonic()
        with_features(loaded, features, public=False)
    seconds = time.monotonic() - begun
    return {"seconds": round(seconds, 1), "rows": len(loaded.train[1]), "threads": torch.get_num_threads()}


def _own_rows(data: str) -> Loaded:
    import torch

    from sordino.data import Loaded

    own = OWN[data]
    inputs, labels = own.make(own.train + own.test)
    x, y = torch.as_tensor(inputs, dtype=torch.float32), torch.as_tensor(labels)
    train, test = (x[: own.train], y[: own.train]), (x[own.train :], y[own.train :])
    return Loaded(data, train, test, int(labels.max()) + 1, (inputs.shape[1],))


# Trainings ----------------------------------------------------------------------------------------------------


def train_task(
    *,
    data: str,
    model: str,
    features: str | None,
    seed: int,
    batch_factor: int = 1,
    **how: Any,
) -> Result:
    """One seeded run on a task; what is not set is as `sordino.train` has it. Batches are given in times of that."""
    from sordino.defaults import default_batch_size

    loaded = task_rows(data, features)
    if batch_factor != 1:
        n = len(loaded.train[1])
        how["batch_size"] = min(n, batch_factor * default_batch_size(n))
    network = network_for(model, loaded.input_shape, loaded.classes, seed)
    judged: dict[str, float] = {}

    def judge(trained: nn.Module) -> None:
        judged["balanced"] = balanced_accuracy(trained, loaded.test)

    found = central(
        network, cross_entropy(), loaded.train, loaded.test, data=data, seed=seed, evaluations=1, judge=judge, **how
    )  # fmt: skip
    names = ("n", "parameters", "epsilon", "noise_multiplier", "steps", "seconds", "accuracy", "test_loss")
    inputs = math.prod(loaded.input_shape)
    return {**{name: found[name] for name in names}, **judged, "inputs": inputs, "test": len(loaded.test[1])}


def balanced_accuracy(trained: nn.Module, test: Any) -> float:
    """Of each class the share that is right, and the mean of these."""
    import torch

    from sordino.data import as_examples

    examples = as_examples(test)
    right: list[Tensor] = []
    labels: list[Tensor] = []
    trained.eval()
    with torch.no_grad():
        for rows in torch.arange(len(examples)).split(1000):
            inputs, targets = examples.take(rows)
            right.append(trained(inputs).argmax(1) == targets)
            labels.append(targets)
    hit, of = torch.cat(right).double(), torch.cat(labels)
    return float(torch.stack([hit[of == label].mean() for label in of.unique()]).mean())


def priced_noise(*, data: str, epsilon: float, runs: int, mean: float | None) -> Result:
    """The noise of each run where ``runs`` of them spend epsilon; with a ``mean`` as many as random stopping says."""
    from sordino.privacy import Budget, noise_for, repeat
    from sordino.privacy.selection import Stopping

    n = len(task_rows(data).train[1])

    def whole(noise_multiplier: float) -> DpEvent:
        one = cost_of_run(n, noise_multiplier)
        return repeat(one, runs) if mean is None else Stopping(mean).select(one)

    return {"noise_multiplier": noise_for(Budget(epsilon, DELTA), whole), "n": n}


def cost_of_run(n: int, noise_multiplier: float) -> DpEvent:
    """What a candidate costs: those of the grids differ in rate and rule, and not in what they release."""
    from sordino.methods import method_named
    from sordino.training import outlined

    return outlined(method_named("dp-sgd"), n, None, None, None).terms.cost_with(noise_multiplier)
