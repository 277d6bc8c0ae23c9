"""`--private-bounds`: what a schema lacks is estimated under the budget, paid first, and never twice for a run."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sordino.named import DATA_SETS

if TYPE_CHECKING:
    from dp_accounting import DpEvent

    from sordino.data import Loaded, Schema
    from sordino.methods import Method
    from sordino.privacy import Budget
    from sordino.runs.before import Before

# torch and the accountants load slowly: they are imported inside functions, so that --help is quick.


NO_HELD_OUT = "--metric-epsilon pays for noisy counts of held-out rows: of a table give --test or --holdout"


def check_first(
    data: str,
    epsilon: float | None,
    budget: Budget | None,
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
    from sordino.data.columns import is_table

    _check_held_out(*held_out)
    _check_unit_of_metrics(*metrics)
    if metrics[0] is not None and held_out == (None, None) and data not in DATA_SETS and is_table(data):
        raise ValueError(NO_HELD_OUT)
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
    _check_parts(epsilon, metrics[0], budget)
    _check_folder(out, resume)


def _check_parts(bounds: float, metrics: float | None, budget: Budget | None) -> None:
    both = bounds + (metrics or 0.0)
    if budget is None or budget.epsilon <= both:
        are = "is a part" if metrics is None else "and --metric-epsilon are parts"
        raise ValueError(
            f"--private-bounds {are} of --epsilon, {both:g} in all, which leaves nothing to train with: give more as "
            "--epsilon"
        )


def _check_held_out(test: Path | None, holdout: float | None) -> None:
    if test is not None and holdout is not None:
        raise ValueError(
            "held-out rows are in a file of their own or a share of the table: not --test and --holdout"
        )
    if test is not None and not test.expanduser().is_file():
        raise ValueError(f"{test} does not exist, or is no file: check the path")
    if holdout is not None and not 0 < holdout < 1:
        raise ValueError("--holdout is the share of rows that are held out, between 0 and 1, such as 0.2")


def _check_unit_of_metrics(epsilon: float | None, unit: str) -> None:
    from sordino.privacy.budget import check_epsilon

    if epsilon is None:
        return
    check_epsilon(epsilon)
    if unit != "example":
        raise ValueError("noisy metrics have no price for users: leave out --metric-epsilon, or --unit user")


def _check_folder(out: Path | None, resume: bool) -> None:
    from sordino.runs import RunDirectory
    from sordino.runs.opening import check_directory

    directory = None if out is None else RunDirectory(out)
    if directory is not None and not (resume and directory.is_of_a_run):
        check_directory(directory, resume)


def rehearsal(
    settings_for: Callable[[Loaded, str, Before], dict[str, Any]],
    data: str,
    model: str | None,
    features: str | None,
    held_out: tuple[Path | None, float | None],
    rows_per_user: int | None,
    not_of_tables: tuple[int | None, int | None, bool],
) -> Callable[[Schema, Before], None]:
    """A call of `sordino.train` with made-up rows: what it would refuse is refused before bounds are paid for."""

    def rehearse(known: Schema, cost: Before) -> None:
        from sordino.cli.common import model_for
        from sordino.data.named import refuse_for_table
        from sordino.training import check_call

        refuse_for_table(data, *not_of_tables)
        _check_columns(known, data, held_out[0])
        loaded = _made_up(known, Path(data).stem, features, rows_per_user)
        loaded = loaded if held_out == (None, None) else replace(loaded, test=loaded.train)
        spec = model if _can_be_tried(model, known) else None
        check_call(**settings_for(loaded, spec or model_for(loaded, features), cost))

    return rehearse


def _check_columns(known: Schema, data: str, test: Path | None) -> None:
    """Of the table, and of held-out rows, the names of the columns are looked at and nothing else."""
    from sordino.data.columns import check_names, columns_of

    names = [each.name for each in known.columns if each.kind != "ignore"] + [known.target.name]
    check_names(columns_of(data, known).names(), [*names, *([known.user] if known.user else [])], data)
    if test is not None:
        check_names(columns_of(test, known).names(), names, str(test))


def _made_up(known: Schema, name: str, features: str | None, rows_per_user: int | None) -> Loaded:
    """Two made-up rows, read as those of the table will be."""
    from sordino.cli.common import featured_schema
    from sordino.data import read
    from sordino.data.private_bounds import with_made_up

    schema = replace(featured_schema(with_made_up(known), features), user=None)
    names = [*(each.name for each in schema.columns), schema.target.name]
    return read({each: ["", ""] for each in names}, schema=schema, rows_per_user=rows_per_user, name=name)


def _can_be_tried(model: str | None, known: Schema) -> bool:
    """On made-up rows: a model of the user's own may fit one shape alone, known only where no values are missing."""
    from sordino.data.private_bounds import missing_columns
    from sordino.models import runs_code

    return model is not None and not (runs_code(model) and missing_columns(known)[1])


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
    rehearse: Callable[[Schema, Before], None],
) -> tuple[Path | Schema | None, Before | None]:
    """The schema, complete, and what it cost; as they were where the run is ``resumed``.

    ``rehearse`` is called with the schema as it is and with what will be paid, before it is: to refuse what can be.
    """
    if epsilon is None:
        return schema, None
    from sordino.data.columns import is_table

    if data in DATA_SETS or not is_table(data):
        raise ValueError("--private-bounds is for tables: give a .csv or .parquet file, or leave it out")
    assert budget is not None, "or it is refused by `check_first`"
    if resumed is not None and (resumed / "run.json").exists():
        return _as_before(resumed)
    return _estimated(data, schema, target, user, rows_per_user, epsilon, budget, ledger, data_name, rehearse)


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
    rehearse: Callable[[Schema, Before], None],
) -> tuple[Schema, Before | None]:
    from sordino.data.private_bounds import PARTS_OF_DELTA, cost_of, private_bounds
    from sordino.data.reading import ROWS_PER_USER, schema_for
    from sordino.data.schema import listed
    from sordino.runs.before import Before

    known = schema_for(data, schema, target, user)
    if earlier := known.obtained("private"):
        raise ValueError(
            f"the schema has bounds or values of {listed(earlier)} that were released for another run, and this one "
            "would not count them: leave out --private-bounds, or what was found for these columns"
        )
    cost = cost_of(known, epsilon, budget.delta / PARTS_OF_DELTA)
    if cost is not None:
        rehearse(known, Before(cost, "a rehearsal"))
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
