"""What a recipe has from its paper, or says of itself: data beside the code, in `published/`."""

from __future__ import annotations

import sys
import tomllib
from collections import ChainMap
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

from sordino.recipes.frame import Contestant, Table, published_file


class Published:
    """Numbers as printed, protocols, contestants, claims, titles, notes.

    They are read from the file of ``published/`` that is named as the module. In the braces of a text stands what was
    measured, or a constant of the module.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._read: dict[str, Any] = _frozen(tomllib.loads(published_file(module).read_text()))

    def __getitem__(self, name: str) -> Any:
        """By its path: ``tables.accuracy.title``."""
        return reduce(lambda part, key: part[key], name.split("."), self._read)

    def text(self, name: str, /, **measured: Any) -> str:
        known = ChainMap(measured, vars(sys.modules[self._module]))
        return str(self[name]).format_map(known)

    def notes(self, section: str = "notes", /, **measured: Any) -> list[str]:
        """All of a section in their order, but for those whose name is given and means nothing: ``quick=False``."""
        named = [name for name in self[section] if measured.get(name, True)]
        return [self.text(f"{section}.{name}", **measured) for name in named]

    def contestants(self, name: str) -> tuple[Contestant, ...]:
        return tuple(Contestant(**who) for who in self[name])

    def table(
        self, name: str, rows: Iterable[Any], columns: Sequence[str] | None = None, /, **measured: Any
    ) -> Table:
        """A table whose rows have a template takes what stands in its braces instead of them."""
        of = self[f"tables.{name}"]
        lines = [self.text(f"tables.{name}.row", **row) for row in rows] if "row" in of else rows
        known = self.text(f"tables.{name}.columns", **measured) if "columns" in of else None
        return Table.of(self.text(f"tables.{name}.title", **measured), lines, columns or known)


def _frozen(read: Any) -> Any:
    """Lists as tuples: what was published does not change."""
    if isinstance(read, dict):
        return {name: _frozen(value) for name, value in read.items()}
    return tuple(map(_frozen, read)) if isinstance(read, list) else read
