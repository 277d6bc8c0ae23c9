"""Private data: sources, named sets, readers, and how batches are sampled."""

from sordino.data.groups import units_of
from sordino.data.loaded import Loaded
from sordino.data.named import NAMED_SETS, load
from sordino.data.sampling import (
    FixedOrder,
    Poisson,
    Sampling,
    Separated,
    Shuffled,
    WithoutReplacement,
)
from sordino.data.sources import Examples, as_examples
from sordino.data.tree import Tree, tree_leaves, tree_map

__all__ = [
    "NAMED_SETS",
    "Examples",
    "FixedOrder",
    "Loaded",
    "Poisson",
    "Sampling",
    "Separated",
    "Shuffled",
    "Tree",
    "WithoutReplacement",
    "as_examples",
    "load",
    "tree_leaves",
    "tree_map",
    "units_of",
]
