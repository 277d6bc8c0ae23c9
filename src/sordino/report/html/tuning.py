"""The page of a tuning: which candidates there were, and what may be said of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sordino.report.account import mapping, number
from sordino.report.html.kept import Kept
from sordino.report.html.measures import written
from sordino.report.html.numbers import shown
from sordino.report.html.pieces import facts, mark, section, table
from sordino.report.html.tags import Html, Part, joined
from sordino.report.html.written import flat


def tuning(run: Kept) -> Html | None:
    """Of a grid every candidate with its score; of a private selection the winner alone, and which there could have
    been: how many runs were made, and how the others did, nobody may learn."""
    said = mapping(run.summary.get("tuning"))
    if not said:
        return None
    selected = bool(said.get("stopping"))
    winner, score = mapping(said.get("winner")), mapping(said.get("score"))
    pairs: list[tuple[str, Part]] = [
        (
            "how",
            "private selection: the best of a number of runs that is secret"
            if selected
            else "grid: all were tried",
        ),
        ("chosen", ", ".join(f"{name} {value}" for name, value in flat(winner)) or "none"),
        ("its score", joined(_score(said, said.get("winning_score")), mark(_mark(run)))),
        ("scored by", _scored(score)),
    ]
    stopping = mapping(said.get("stopping"))
    if stopping:
        pairs.append(("runs", f"{_number(stopping.get('mean'))} on average, {stopping.get('runs')}"))
    listed = (
        said.get("table") if not selected and isinstance(said.get("table"), list) else said.get("candidates")
    )
    rows = [dict(flat(mapping(each))) for each in listed] if isinstance(listed, list) else []
    # A table of a selection would say how the others did: there it is the candidates, and nothing else.
    hidden = {"run", "score"} if selected else {"run"}
    heads = list(dict.fromkeys(name for row in rows for name in row if name not in hidden))
    cells = [
        [_cell(said, row, head) for head in heads] + ([_chosen(row, winner)] if not selected else [])
        for row in rows
    ]
    grid = (
        table(
            "Candidates",
            [*heads, *([""] if not selected else [])],
            cells,
            [heads.index("score")] if "score" in heads else [],
        )
        if heads
        else None
    )
    note = joined(
        "Epsilon is of all candidates together: everything that was tried is paid for.", mark(_mark(run))
    )
    return section("tuning", "What it was chosen from", facts(pairs), grid, note=note)


def _mark(run: Kept) -> str:
    return run.verdict.mark


def _scored(score: object) -> str:
    said = mapping(score)
    if said.get("public"):
        return f"{said.get('of')} on public rows"
    return f"{said.get('of')} on {said.get('units')} of the private rows, with noise"


def _cell(said: Mapping[str, Any], row: dict[str, object], head: str) -> Part:
    value = row.get(head)
    if value is None:
        return ""
    return _score(said, value) if head == "score" else str(value)


def _score(said: Mapping[str, Any], value: object) -> str:
    """An accuracy as everywhere, in percent; the worth of somebody's own as it is."""
    of = str(mapping(said.get("score")).get("of"))
    return written(of, value) if number(value) == number(value) else "-"


def _chosen(row: dict[str, object], winner: object) -> Part:
    own = {name: value for name, value in row.items() if name not in ("run", "score")}
    return "chosen" if own == dict(flat(mapping(winner))) else ""


def _number(value: object) -> str:
    read = number(value)
    return shown(read) if read == read else "-"
