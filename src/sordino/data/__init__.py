"""Private data: sources, named sets, readers."""

from sordino.data.loaded import Loaded
from sordino.data.named import NAMED_SETS, load
from sordino.data.sources import Examples, as_examples
from sordino.data.tree import Tree, tree_leaves, tree_map

__all__ = ["NAMED_SETS", "Examples", "Loaded", "Tree", "as_examples", "load", "tree_leaves", "tree_map"]
