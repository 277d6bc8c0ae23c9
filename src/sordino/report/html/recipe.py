"""The page of a reproduced experiment: its tables, notes and figure."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Any

from sordino.report.account import mapping
from sordino.report.html.numbers import shown
from sordino.report.html.pieces import bullets, code, facts, section, table
from sordino.report.html.tags import Html, Part, tag
from sordino.report.html.written import flat

_PNG = b"\x89PNG\r\n\x1a\n"
NO_PROMISE = (
    "An experiment on public data, for comparison. Nothing on this page is covered by a guarantee: results of many "
    "runs are shown beside each other, and what is measured is measured on held-out rows."
)


def recipe_parts(result: Mapping[str, Any], figure: bytes | None) -> list[Html]:
    name, size = str(result.get("recipe", "recipe")), str(result.get("size", ""))
    hero = tag(
        "header",
        tag("p", "Sordino report of a reproduction", class_="eyebrow"),
        tag("h1", name),
        tag("p", str(result.get("summary", "")), class_="how"),
        tag(
            "div",
            tag("p", tag("span", "Not covered", class_="badge"), class_="verdict"),
            tag("p", NO_PROMISE, class_="claim"),
            class_="promise open",
        ),
    )
    found = [hero]
    if figure is not None and figure.startswith(_PNG):
        source = f"data:image/png;base64,{b64encode(figure).decode()}"
        picture = tag(
            "img", src=source, alt=f"figure of {name}: the numbers are in the tables below", class_="plate"
        )
        found.append(section("figure", "The figure", picture))
    tables = [mapping(each) for each in result.get("tables") or ()]
    found.append(section("tables", "Ours beside the published", [_table(each) for each in tables]))
    notes = [str(note) for note in result.get("notes") or ()]
    if notes:
        found.append(section("notes", "Notes", bullets(notes)))
    settings: list[tuple[str, Part]] = [("size", size)]
    if result.get("quick"):
        settings.append(("quick means", str(result["quick"])))
    settings += [(each, str(value)) for each, value in flat(mapping(result.get("settings")))]
    settings.append(("sordino", str(result.get("sordino_version", "not stated"))))
    found.append(section("settings", "Settings", facts(settings)))
    found.append(section("verify", "How to check it", code(f"sordino reproduce {name} --{size}")))
    return found


def _table(said: Mapping[str, Any]) -> Html:
    heads = [str(each) for each in said.get("columns") or ()]
    rows = [[_cell(cell) for cell in row] for row in said.get("rows") or () if isinstance(row, list) and row]
    numeric = [
        place
        for place in range(len(heads))
        if rows
        and all(isinstance(row[place], int | float) for row in said.get("rows") or () if place < len(row))
    ]
    return table(str(said.get("title", "")), heads, rows, numeric)


def _cell(cell: Any) -> str:
    if cell is None:
        return "-"
    return shown(cell, 5) if isinstance(cell, float) else str(cell)
