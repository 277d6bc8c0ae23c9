"""Private data: sources, named sets, readers, and how batches are sampled."""

from sordino.data.groups import units_of
from sordino.data.loaded import Loaded
from sordino.data.named import NAMED_SETS, load
from sordino.data.reading import read
from sordino.data.sampling import (
    Cyclic,
    FixedOrder,
    Poisson,
    Sampling,
    Separated,
    Shuffled,
    WithoutReplacement,
)
from sordino.data.schema import Column, Schema, TargetColumn
from sordino.data.sources import Examples, as_examples
from sordino.data.tree import Tree, tree_leaves, tree_map

__all__ = [
    "NAMED_SETS",
    "Column",
    "Cyclic",
    "Examples",
    "FixedOrder",
    "Loaded",
    "Poisson",
    "Sampling",
    "Schema",
    "Separated",
    "Shuffled",
    "TargetColumn",
    "Tree",
    "WithoutReplacement",
    "as_examples",
    "load",
    "read",
    "tree_leaves",
    "tree_map",
    "units_of",
]
