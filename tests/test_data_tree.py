from __future__ import annotations

from collections import OrderedDict, namedtuple

import pytest

from sordino.data import tree_leaves, tree_map

Point = namedtuple("Point", ["x", "y"])


def test_map_keeps_every_kind_of_container() -> None:
    tree = {"b": (1, [2, Point(3, {"z": 4})]), "a": 5}
    mapped = tree_map(lambda leaf: 10 * leaf, tree)
    assert mapped == {"b": (10, [20, Point(30, {"z": 40})]), "a": 50}
    assert isinstance(mapped["b"][1][1], Point)
    assert list(mapped) == ["b", "a"]


def test_leaves_of_one_place_come_together() -> None:
    tree = {"b": (1, [2, Point(3, {"z": 4})]), "a": 5}
    other = {"a": 50, "b": (10, [20, Point(30, {"z": 40})])}
    assert tree_map(lambda one, two: two - one, tree, other) == {
        "b": (9, [18, Point(27, {"z": 36})]),
        "a": 45,
    }
    with pytest.raises(ValueError, match="shorter"):
        tree_map(max, (1, 2), (1,))


def test_leaves_come_in_the_order_of_map() -> None:
    tree = {"b": (1, [2, Point(3, {"z": 4})]), "a": 5}
    assert tree_leaves(tree) == [1, 2, 3, 4, 5]
    assert tree_leaves(OrderedDict(b=1, a=2)) == [1, 2]
    assert tree_leaves(7) == [7]
    assert tree_leaves(((), [], {})) == []
