"""Every place in the source that reads private rows stands in docs/design.md, with its reason, and no other does."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import sordino

SOURCE = Path(sordino.__file__).parent
DESIGN = Path(__file__).parent.parent / "docs" / "design.md"
READS = {"take", "take_readable", "fingerprint", "rows", "rows_or_none"}
INSIDE = {"_inputs", "_targets", "_dataset", "_whole"}  # where data/sources.py holds rows
Place = tuple[str, str]  # file, function


def files() -> Iterator[tuple[str, ast.Module]]:
    """All but those that make rows, and the experiments on public ones."""
    for path in sorted(SOURCE.rglob("*.py")):
        name = path.relative_to(SOURCE).as_posix()
        if not name.startswith(("data/", "recipes/")):
            yield name, ast.parse(path.read_text())


def reading(node: ast.AST, within: str = "") -> Iterator[str]:
    """The functions that call what reads rows; a call without arguments reads none, and numpy's take is another."""
    for child in ast.iter_child_nodes(node):
        inner = within
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            inner = f"{within}.{child.name}".lstrip(".")
        if isinstance(child, ast.Call) and child.args:
            called = ast.unparse(child.func)
            if called.split(".")[-1] in READS and not called.startswith(("np.", "torch.")):
                yield within
        yield from reading(child, inner)


def described() -> dict[Place, str]:
    section = DESIGN.read_text().split("## Who reads private rows")[1].split("\n## ")[0]
    lines = re.findall(r"^\| `(\S+)` \| `(\S+)` \| (.+) \|$", section, re.MULTILINE)
    return {(file, function): why for file, function, why in lines}


def test_rows_are_read_where_it_is_said_and_nowhere_else() -> None:
    found = {(file, function) for file, tree in files() for function in reading(tree)}
    assert found == set(described())
    assert all(described().values())


def test_nobody_reaches_past_what_hands_rows_out() -> None:
    reached = {
        (file, node.attr)
        for file, tree in files()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in INSIDE
    }
    assert reached == set()


def test_a_new_reader_would_be_found() -> None:
    code = "class A:\n    def b(self):\n        return [self.data.take(i) for i in self.members.rows(3)]\n"
    assert list(reading(ast.parse(code))) == ["A.b", "A.b"]
    assert list(reading(ast.parse("def f(streams):\n    streams.take()\n    np.take(a, 1)\n"))) == []
