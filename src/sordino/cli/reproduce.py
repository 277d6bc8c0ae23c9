"""`sordino reproduce`: a published experiment, run here, beside its published numbers."""

from __future__ import annotations

import io
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from sordino.recipes.frame import Recipe, Report

# torch and matplotlib load slowly: they are imported inside the command, so that --help is quick.

_LEAST_WIDTH = 170  # of tables that go to a file or a pipe


def reproduce(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Which experiment; --list shows what there is.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A stated part of it, in minutes on two cores; the default.")
    ] = False,
    full: Annotated[
        bool, typer.Option("--full", help="The whole published protocol: hours, or weeks.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Where results go; default runs/reproduce-NAME-quick or -full.")
    ] = None,
    only: Annotated[
        str | None,
        typer.Option(metavar="PART,...", help="Only these parts of it, if it has any: --only digits,eps=3."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Trainings at a time; by default one for each core.")
    ] = None,
    as_list: Annotated[bool, typer.Option("--list", help="Show what can be reproduced, and stop.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print exactly one JSON object on stdout.")] = False,
) -> None:
    """Run a published experiment and print ours beside theirs. The same command again goes on where it stopped."""
    from sordino.recipes import LISTED, RECIPES

    if as_list:
        _list(LISTED, as_json)
        return
    if name is None:
        raise ValueError(f"say which experiment: there are {', '.join(LISTED)}")
    if quick and full:
        raise ValueError("give --quick or --full, not both")
    if workers is not None and workers < 1:
        raise ValueError(f"--workers must be at least 1, not {workers}")
    if name not in RECIPES:
        raise ValueError(RECIPES.unknown(name))
    size = "full" if full else "quick"
    folder = out or Path("runs") / f"reproduce-{name}-{size}"
    _check_folder(folder, name, size)
    if not quick and not full:
        print("sordino: this is the quick one; --full runs the whole published protocol", file=sys.stderr)

    from sordino.recipes.frame import Workshop
    from sordino.runs import RunDirectory
    from sordino.runs.lock import locked

    recipe: Recipe = RECIPES[name]
    parts = [part.strip() for part in only.split(",")] if only else []
    command = ["sordino", "reproduce", name, f"--{size}", *(["--only", ",".join(parts)] if parts else [])]
    command += ["--out", str(out)] if out else []
    with locked(folder):
        RunDirectory(folder).tidy()  # in case it was that of a run before
        try:
            report = recipe.report(Workshop(folder, workers), size == "quick", parts)
        except KeyboardInterrupt:
            raise ValueError(
                f"interrupted; what is finished is kept, and to go on give the same command: {shlex.join(command)}"
            ) from None
        result = _write(recipe, report, size, folder)
    if as_json:
        from sordino.runs import to_json

        print(to_json({**result, "folder": str(folder)}))
    else:
        _print(recipe, report, size, folder)


def _list(listed: dict[str, str], as_json: bool) -> None:
    if as_json:
        import json

        print(json.dumps(listed))
        return
    width = max(len(name) for name in listed)
    for name, line in listed.items():
        print(f"{name:{width}s}   {line}")


def _check_folder(folder: Path, name: str, size: str) -> None:
    """A folder holds the results of one experiment; finished jobs of another would only lie in the way."""
    import json

    try:
        before = json.loads((folder / "result.json").read_text())
        there = f"{before['recipe']} --{before['size']}"
    except (OSError, ValueError, LookupError, TypeError):
        return
    if there != f"{name} --{size}":
        raise ValueError(f"{folder} holds the results of {there}: choose another --out")


def _write(recipe: Recipe, report: Report, size: str, folder: Path) -> dict[str, Any]:
    from sordino.privacy.certificate import sordino_version
    from sordino.runs import replace_file, to_json

    result = {
        "recipe": recipe.name,
        "summary": recipe.summary,
        "size": size,
        "quick": recipe.quick if size == "quick" else None,
        "settings": report.settings,
        "tables": [
            {"title": table.title, "columns": list(table.columns), "rows": [list(row) for row in table.rows]}
            for table in report.tables
        ],
        "notes": report.notes,
        "sordino_version": sordino_version(),
    }
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / "result.json", to_json(result, indent=1).encode())
    if report.draw is not None:
        from matplotlib.figure import Figure

        figure = Figure(figsize=report.size, layout="constrained")
        report.draw(figure)
        png = (
            io.BytesIO()
        )  # whole or not at all: half a figure on a full disk would pass for one that is there
        figure.savefig(png, format="png", dpi=120)
        replace_file(folder / "figure.png", png.getvalue())
    return result


def _print(recipe: Recipe, report: Report, size: str, folder: Path) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    # Where there is no terminal there is no width to keep to.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else _LEAST_WIDTH)
    console.print(Text(recipe.summary, style="bold"))
    if size == "quick":
        console.print(Text(f"quick: {recipe.quick}"))
    for table in report.tables:
        console.print()
        console.print(Text(table.title))  # not as the table's own title, which would be wrapped to its width
        grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False)
        for number, column in enumerate(table.columns):
            cells = [row[number] for row in table.rows]
            numeric = all(isinstance(cell, (int, float)) for cell in cells)
            grid.add_column(Text(column), justify="right" if numeric else "left")
        for row in table.rows:
            grid.add_row(*(Text(_shown(cell)) for cell in row))
        console.print(grid)
    for note in report.notes:
        console.print(Text(f"- {note}"))
    drawn = ", figure.png" if report.draw is not None else ""
    console.print(Text(f"\nresult.json{drawn} in {folder}"))


def _shown(cell: Any) -> str:
    if cell is None:
        return "-"
    return f"{cell:.5g}" if isinstance(cell, float) else str(cell)
