"""Published experiments beside their published numbers: one file for each, or for a family of them."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sordino.recipes.frame import Recipe

# Where each recipe lives: RECIPE, or one of RECIPES, in a module of this package. They load when first used, since
# most need torch: what a list shows is written here.
_HOMES = {
    "adabest-cifar": (
        "adabest",
        "AdaBest: against FedAvg, SCAFFOLD and FedDyn with a CNN on CIFAR-10 (table 2)",
    ),
    "adabest-emnist": (
        "adabest",
        "AdaBest: against FedAvg, SCAFFOLD and FedDyn under label skew on EMNIST-L (table 2)",
    ),
    "adabest-stability": (
        "adabest_stability",
        "AdaBest: growing cloud models, Theorem 1, beta and mu (figures 1 and 4 to 7)",
    ),
    "adabest-cost": (
        "adabest_cost",
        "AdaBest: cost tables checked by counting vector operations and bytes (supplement, tables 4 and 5)",
    ),
    "adadp-federated": (
        "adadp_federated",
        "ADADP: clients that tune their rates, by class pairs, against tuned SGD and Adam (figures 1 to 3)",
    ),
    "adadp-gmm": (
        "adadp_gmm",
        "ADADP: a Gaussian mixture by private variational inference (supplement, fig. 1)",
    ),
    "adadp-mnist": (
        "adadp_mnist",
        "ADADP: against tuned DP-Adam and carried DP-SGD on MNIST (figures 4 and 5)",
    ),
    "adadp-rates": ("self_tuning", "ours: ADADP from three initial rates on MNIST"),
    "adadp-thresholds": ("self_tuning", "ours: ADADP from four initial thresholds on MNIST"),
    "adadp-tolerance": ("self_tuning", "ours: the tolerance of the plan and its multiples"),
    "default": ("self_tuning", "ours: the default, nothing set, against DP-Adam's best rate"),
    "dp-ftrl-cifar10": ("dp_ftrl", "DP-FTRL: trees against DP-SGD on CIFAR-10 at true epsilons (table 6)"),
    "dp-ftrl-emnist": ("dp_ftrl", "DP-FTRL: trees against DP-SGD on EMNIST at true epsilons (table 6)"),
    "dp-ftrl-mnist": ("dp_ftrl", "DP-FTRL: trees against DP-SGD on MNIST at true epsilons (table 6)"),
    "dp-ftrl-epsilons": (
        "dp_ftrl_epsilons",
        "DP-FTRL: every printed epsilon recomputed, and what the runs really cost (tables 3 to 7)",
    ),
    "dp-ftrl-federated": (
        "dp_ftrl_federated",
        "DP-FTRL: user-level epsilons, and next words on Shakespeare's roles (tables 3 to 5)",
    ),
    "oso-agnews": (
        "oso_grids",
        "OSO: grids of five methods under one budget each, AG News (tables 10 and 13)",
    ),
    "oso-gradients": (
        "oso_gradients",
        "OSO: clipping bias against noise, and what q costs (figures 1 and 2)",
    ),
    "oso-mnist": ("oso_grids", "OSO: grids of five methods under one budget each, MNIST (tables 8 and 11)"),
}


class _Recipes(Mapping[str, "Recipe"]):
    def __getitem__(self, name: str) -> Recipe:
        module = importlib.import_module(f"{__name__}.{_HOMES[name][0]}")
        several: dict[str, Recipe] = getattr(module, "RECIPES", {})
        recipe: Recipe = several[name] if several else module.RECIPE
        assert recipe.name == name, f"{module.__name__} calls itself {recipe.name}"
        return recipe

    def __iter__(self) -> Iterator[str]:
        return iter(LISTED)

    def __len__(self) -> int:
        return len(LISTED)


LISTED: dict[str, str] = {
    name: line
    for name, (home, line) in sorted(_HOMES.items())
    if importlib.util.find_spec(f"{__name__}.{home}") is not None
}
RECIPES: Mapping[str, Recipe] = _Recipes()
