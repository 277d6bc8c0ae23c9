"""`--private-bounds`: what a schema lacks is estimated under the budget, paid first, and never twice for a run."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dp_accounting import DpEvent

    from sordino.data import Schema
    from sordino.privacy import Budget
    from sordino.runs.before import Before

# torch and the accountants load slowly: they are imported inside functions, so that --help is quick.


def bounds_for(
    data: str,
    schema: Path | None,
    target: str | None,
    user: str | None,
    rows_per_user: int | None,
    epsilon: float | None,
    budget: Budget | None,
    ledger: Path | None,
    data_name: str | None,
    resumed: Path | None,
) -> tuple[Path | Schema | None, Before | None]:
    """The schema, complete, and what it cost; as they were where the run is ``resumed``."""
    if epsilon is None:
        return schema, None
    from sordino.data.columns import is_table
    from sordino.named import DATA_SETS

    if data in DATA_SETS or not is_table(data):
        raise ValueError("--private-bounds is for tables: give a .csv or .parquet file, or leave it out")
    if budget is None or budget.epsilon <= epsilon:
        raise ValueError("--private-bounds is a part of --epsilon, which includes it: give more as --epsilon")
    if resumed is not None and (resumed / "run.json").exists():
        return _as_before(resumed)
    return _estimated(data, schema, target, user, rows_per_user, epsilon, budget, ledger, data_name)


def _estimated(
    data: str,
    schema: Path | None,
    target: str | None,
    user: str | None,
    rows_per_user: int | None,
    epsilon: float,
    budget: Budget,
    ledger: Path | None,
    data_name: str | None,
) -> tuple[Schema, Before | None]:
    from sordino.data.private_bounds import PARTS_OF_DELTA, private_bounds
    from sordino.data.reading import ROWS_PER_USER, schema_for
    from sordino.data.schema import listed
    from sordino.runs.before import Before

    known = schema_for(data, schema, target, user)
    if earlier := known.obtained("private"):
        raise ValueError(
            f"the schema has bounds or values of {listed(earlier)} that were released for another run, and this one "
            "would not count them: leave out --private-bounds, or what was found for these columns"
        )
    most = None if user is None else ROWS_PER_USER if rows_per_user is None else rows_per_user
    paid: dict[str, str] = {}

    def pay(event: DpEvent, words: str) -> None:
        run = _paid(
            event, words, budget.delta, data, ledger, data_name, "example" if user is None else "user"
        )
        paid.update({} if run is None else {"run": run})

    found = private_bounds(known, data, epsilon, budget.delta / PARTS_OF_DELTA, pay, rows_per_user=most)
    if found is None:
        print("sordino: the schema lacks nothing: --private-bounds was not spent", file=sys.stderr)
        return known, None
    return found.schema, Before(found.event, found.words, paid.get("run"))


def _paid(
    event: DpEvent, what: str, delta: float, data: str, ledger: Path | None, name: str | None, unit: str
) -> str | None:
    """Under which name of a run it is paid; None where nobody counts."""
    from sordino.ledger import LedgerFile, ledger_of

    book = ledger_of(ledger)
    if book is None:
        return None
    if name is None:
        raise ValueError(
            f"a ledger counts by the name that its owner gives to a data set: give one to {data}, with --data-name"
        )
    assert isinstance(book, LedgerFile)
    return book.pay(name, event, what=what, unit=unit, delta=delta)


def _as_before(folder: Path) -> tuple[Schema, Before | None]:
    """What an interrupted run began with: its rows were looked at once, and are not again."""
    from sordino.data.inputs import inputs_from_json
    from sordino.data.table import Table
    from sordino.runs.before import Before
    from sordino.runs.directory import INPUTS

    said = [_read(folder / name) for name in (INPUTS, "run.json")]
    inputs = inputs_from_json(said[0])
    if not isinstance(inputs, Table):
        raise ValueError(f"the run in {folder} is not one of a table: repeat its command as it was")
    before = said[1].get("before")
    return inputs.schema, None if before is None else Before.from_json(before)


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        raise ValueError(f"{os.fspath(path)} cannot be read: start the run afresh") from None
