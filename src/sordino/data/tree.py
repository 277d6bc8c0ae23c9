"""Trees of tensors: a tensor, or a tuple, list, dict or namedtuple of trees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

Tree: TypeAlias = Any  # mypy has no use for a recursive alias whose leaves may be of any type


def tree_map(fn: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Apply `fn` to every leaf and keep the containers (a dict keeps its order of keys).

    Further trees are of the same form, and `fn` gets the leaves of one place together.

    >>> tree_map(lambda leaf: leaf + 1, {"a": 1, "b": (2, [3])})
    {'a': 2, 'b': (3, [4])}
    >>> tree_map(max, {"a": 1, "b": (2, [3])}, {"a": 2, "b": (1, [5])})
    {'a': 2, 'b': (2, [5])}
    """
    if isinstance(tree, dict):
        return {key: tree_map(fn, child, *(other[key] for other in others)) for key, child in tree.items()}
    if isinstance(tree, tuple | list):
        children = [tree_map(fn, *each) for each in zip(tree, *others, strict=True)]
        if hasattr(tree, "_fields"):  # a namedtuple takes its fields one by one
            return type(tree)(*children)
        return tuple(children) if isinstance(tree, tuple) else children
    return fn(tree, *others)


def tree_leaves(tree: Tree) -> list[Any]:
    """The leaves, in the order in which `tree_map` meets them.

    >>> tree_leaves({"a": 1, "b": (2, [3])})
    [1, 2, 3]
    """
    leaves: list[Any] = []
    tree_map(leaves.append, tree)
    return leaves
