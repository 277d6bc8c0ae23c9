"""The `sordino` command: parse, call, print."""

from __future__ import annotations

import os
import sys
from typing import TextIO

import typer
import typer.core

from sordino.cli import audit, budget, ledger, schema
from sordino.cli.common import told_to_end_is_interrupted
from sordino.cli.federate import federate
from sordino.cli.node import node
from sordino.cli.predict import evaluate, export, predict
from sordino.cli.report import report
from sordino.cli.reproduce import reproduce
from sordino.cli.torchrun import hush_all_but_one, refuse_under_torchrun
from sordino.cli.train import train
from sordino.cli.tune import tune
from sordino.cli.verify import verify

# Help is plain text, and typer before 0.21, which Flower needs, writes \[default: auto] into it where rich is there.
typer.core.HAS_RICH = False

app = typer.Typer(
    name="sordino",
    help="Private and federated training that tunes itself and counts every bit of privacy it spends.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    rich_markup_mode=None,
)
app.command()(train)
app.command()(federate)
app.command()(node)
app.command()(tune)
app.command()(reproduce)
app.command()(predict)
app.command()(evaluate)
app.command()(export)
app.command()(report)
app.command()(verify)
app.add_typer(audit.app, name="audit")
app.add_typer(budget.app, name="budget")
app.add_typer(ledger.app, name="ledger")
app.add_typer(schema.app, name="schema")


@app.callback(invoke_without_command=True)
def _version(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and stop."),
) -> None:
    if version:
        from importlib.metadata import version as installed

        print(f"sordino {installed('sordino')}")
        raise typer.Exit
    refuse_under_torchrun(context.invoked_subcommand)


def main() -> None:
    """Exit codes: 0 done, 2 the user can fix it (one line, no traceback), 1 a bug of ours (a traceback)."""
    hush_all_but_one()
    read = sys.stdout
    try:
        with told_to_end_is_interrupted():
            app()
    except SystemExit as ended:
        if ended.code != 2 and _nobody_reads(read, ended):
            sys.exit(
                0
            )  # as in `sordino predict RUN FILE | head`: whoever reads has had enough, which is no failure
        raise
    except (ValueError, OSError) as error:
        # The library raises ValueError for what a user can fix; typer itself exits with 2 on bad usage.
        print(f"sordino: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)


def _nobody_reads(out: TextIO, ended: SystemExit) -> bool:
    """Whether a command ended because its output had no reader any more, or has something left for one."""
    gone = isinstance(ended.__context__, BrokenPipeError)
    try:
        out.flush()
    except BrokenPipeError:
        gone = True
    if gone:  # what is left goes nowhere, or Python complains of it at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), out.fileno())
    return gone


if __name__ == "__main__":
    main()
