"""`sordino schema infer`: a draft of what is public about a table, without a look at its rows."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="What is public about a table.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    """What is public about a table."""


@app.command()
def infer(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A .csv or .parquet file.")],
    target: Annotated[str, typer.Option(help="The column that is to be predicted.")],
    out: Annotated[Path | None, typer.Option(help="Where the draft goes; by default to stdout.")] = None,
    user_column: Annotated[str | None, typer.Option(help="The column that says whose a row is.")] = None,
    peek: Annotated[
        bool, typer.Option("--peek", help="Fill it in from the rows: then there is no guarantee.")
    ] = False,
) -> None:
    """Draft a schema: of a CSV file its header is read, of a Parquet file its types; no value, no statistics."""
    from sordino.data.drafting import OPENING, PEEKED, draft, peeked

    if out is not None and out.exists():
        raise ValueError(f"{out} is there already: delete it, or choose another --out")
    if not file.exists():
        raise ValueError(f"{file} does not exist: check the path")
    schema = draft(file, target, user_column)
    opening = OPENING
    if peek:
        print(
            "sordino: --peek reads the private rows: the schema is marked as not private, and a model trained with it "
            "has no guarantee",
            file=sys.stderr,
        )
        schema, opening = peeked(file, schema), PEEKED
    text = schema.to_toml(opening)
    if out is None:
        print(text, end="")
        return
    passing = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        passing.write_text(text, encoding="utf-8")
        passing.replace(out)
    finally:
        passing.unlink(missing_ok=True)
    open_lines = len({each.column for each in schema.missing()})
    print(f"{out}: {len(schema.columns)} columns and the target; {open_lines} to be filled in")
