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
    from sordino.methods import Method
    from sordino.privacy import Budget
    from sordino.runs.before import Before

# torch and the accountants load slowly: they are imported inside functions, so that --help is quick.


def check_first(
    epsilon: float | None,
    how: Method,
    model: str | None,
    metrics: tuple[float | None, str],
    held_out: tuple[Path | None, float | None],
    out: Path | None,
    resume: bool,
    signing_key: Path | None,
) -> None:
    """Refuse what no row is needed to refuse: when the bounds are paid for it is too late. ``metrics`` is their epsilon
    and the unit of privacy, ``held_out`` a file or a share."""
    if epsilon is None:
        return
    from sordino.models import check_model_name
    from sordino.privacy.sealing import signing_key as key_in

    if not how.private:
        raise ValueError(
            f"{how.name} trains without privacy: leave out --private-bounds, or choose a private method"
        )
    if model is not None:
        check_model_name(model)
    key_in(signing_key)  # or refuse
    _check_held_out(*held_out)
    _check_metrics(*metrics, any(each is not None for each in held_out))
    _check_folder(out, resume)


def _check_held_out(test: Path | None, holdout: float | None) -> None:
    if test is not None and holdout is not None:
        raise ValueError(
            "held-out rows are in a file of their own or a share of the table: not --test and --holdout"
        )
    if test is not None and not test.expanduser().is_file():
        raise ValueError(f"{test} does not exist, or is no file: check the path")
    if holdout is not None and not 0 < holdout < 1:
        raise ValueError("--holdout is the share of rows that are held out, between 0 and 1, such as 0.2")


def _check_metrics(epsilon: float | None, unit: str, any_held_out: bool) -> None:
    from sordino.privacy.budget import check_epsilon

    if epsilon is None:
        return
    check_epsilon(epsilon)
    if unit != "example":
        raise ValueError("noisy metrics have no price for users: leave out --metric-epsilon, or --unit user")
    if not any_held_out:
        raise ValueError("--metric-epsilon pays for noisy counts of held-out rows: give --test or --holdout")


def _check_folder(out: Path | None, resume: bool) -> None:
    from sordino.runs import RunDirectory
    from sordino.runs.opening import check_directory

    directory = None if out is None else RunDirectory(out)
    if directory is not None and not (resume and directory.is_of_a_run):
        check_directory(directory, resume)


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
