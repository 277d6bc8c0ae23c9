"""Published experiments beside their published numbers: one file for each, or for a family of them."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sordino.recipes.frame import Recipe

# They load when first used, since most need torch: what a list shows is written here.
SUMMARIES = {
    "adabest-cifar": "AdaBest: against FedAvg, SCAFFOLD and FedDyn with a CNN on CIFAR-10 (table 2)",
    "adabest-cost": "AdaBest: cost tables checked by counting vector operations and bytes (supplement, tables 4 and 5)",
    "adabest-emnist": "AdaBest: against FedAvg, SCAFFOLD and FedDyn under label skew on EMNIST-L (table 2)",
    "adabest-stability": "AdaBest: growing cloud models, Theorem 1, beta and mu (figures 1 and 4 to 7)",
    "adadp-federated": "ADADP: clients that tune their rates, by class pairs, against tuned SGD and Adam "
    "(figures 1 to 3)",
    "adadp-gmm": "ADADP: a Gaussian mixture by private variational inference (supplement, fig. 1)",
    "adadp-mnist": "ADADP: against tuned DP-Adam and carried DP-SGD on MNIST (figures 4 and 5)",
    "adadp-rates": "ours: ADADP from three initial rates on MNIST",
    "adadp-thresholds": "ours: ADADP from four initial thresholds on MNIST",
    "adadp-tolerance": "ours: the tolerance of the plan and its multiples",
    "default": "ours: the default, nothing set, against DP-Adam's best rate",
    "dp-ftrl-cifar10": "DP-FTRL: trees against DP-SGD on CIFAR-10 at true epsilons (table 6)",
    "dp-ftrl-emnist": "DP-FTRL: trees against DP-SGD on EMNIST at true epsilons (table 6)",
    "dp-ftrl-epsilons": "DP-FTRL: every printed epsilon recomputed, and what the runs really cost (tables 3 to 7)",
    "dp-ftrl-federated": "DP-FTRL: user-level epsilons, and next words on Shakespeare's roles (tables 3 to 5)",
    "dp-ftrl-mnist": "DP-FTRL: trees against DP-SGD on MNIST at true epsilons (table 6)",
    "oso-agnews": "OSO: grids of five methods under one budget each, AG News (tables 10 and 13)",
    "oso-gradients": "OSO: clipping bias against noise, and what q costs (figures 1 and 2)",
    "oso-mnist": "OSO: grids of five methods under one budget each, MNIST (tables 8 and 11)",
}
# Where those live that have no module of their own.
_FAMILIES = {
    "adabest": ("adabest-cifar", "adabest-emnist"),
    "dp_ftrl": ("dp-ftrl-cifar10", "dp-ftrl-emnist", "dp-ftrl-mnist"),
    "oso_grids": ("oso-agnews", "oso-mnist"),
    "self_tuning": ("adadp-rates", "adadp-thresholds", "adadp-tolerance", "default"),
}
_HOMES = {name: module for module, names in _FAMILIES.items() for name in names}


class _Recipes(Mapping[str, "Recipe"]):
    def __getitem__(self, name: str) -> Recipe:
        from sordino.recipes.frame import Recipe

        if name not in SUMMARIES:
            raise KeyError(name)
        module = importlib.import_module(f"{__name__}.{_HOMES.get(name, name.replace('-', '_'))}")
        return next(it for it in vars(module).values() if isinstance(it, Recipe) and it.name == name)

    def __iter__(self) -> Iterator[str]:
        return iter(SUMMARIES)

    def __len__(self) -> int:
        return len(SUMMARIES)


LISTED: dict[str, str] = SUMMARIES
RECIPES: Mapping[str, Recipe] = _Recipes()
