"""`sordino ledger`: what was spent on which data set, by all runs together."""

from __future__ import annotations

import math
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino.cli.options import AsJson

if TYPE_CHECKING:
    from sordino.ledger import LedgerFile
    from sordino.ledger.statement import DataSet, RunRecord, Standing

# The accountants load slowly: they are imported inside the commands, so that --help is quick.

app = typer.Typer(
    name="ledger",
    help="What was spent on which data set, by all runs together, and how much may be.",
    no_args_is_help=True,
)

File = Annotated[
    Path | None, typer.Option("--ledger", help="The file. By default the one that SORDINO_LEDGER names.")
]
Name = Annotated[str, typer.Argument(metavar="NAME", help="What the owner calls the data set.")]
MaybeName = Annotated[str | None, typer.Argument(metavar="[NAME]", help="One data set; by default all.")]
Unit = Annotated[str, typer.Option(help="Whose privacy: example, or user.")]


@app.command()
def show(
    name: MaybeName = None,
    delta: Annotated[
        float | None, typer.Option(help="Price at this delta; by default that of the cap, or of the runs.")
    ] = None,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """What was spent on each data set, all runs composed, beside its cap. Refused if an entry was edited."""
    found = _opened(file).show(name, delta)
    if as_json:
        return _print_json({"data_sets": [_data_set(each) for each in found]})
    if not found:
        return print("nothing was counted yet")
    print("\n\n".join("\n".join(f"{name:18s} {value}" for name, value in _lines(each)) for each in found))


@app.command()
def cap(
    name: Name,
    epsilon: Annotated[float, typer.Option(help="The most that all runs together may spend.")],
    delta: Annotated[float, typer.Option(help="At this delta, well below 1 over the number of units.")],
    unit: Unit = "example",
    aside: Annotated[
        float,
        typer.Option(
            help="Part of delta kept for releases of other tools (`add`) that have a delta of their own."
        ),
    ] = 0.0,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """Set the most that may be spent on a data set. Runs that would pass it are refused before they touch data."""
    book = _opened(file)
    book.cap(name, epsilon=epsilon, delta=delta, unit=unit, aside=aside)
    show(name, None, file, as_json)


@app.command()
def runs(name: MaybeName = None, file: File = None, as_json: AsJson = False) -> None:
    """Everything that was counted, one by one: what it costs by itself, and whether it is still open."""
    book = _opened(file)
    found, pieces = book.runs(name), book.pieces(name)
    if as_json:
        return _print_json(
            {"runs": [_run(each) for each in found], "pieces": [vars(each) for each in pieces]}
        )
    for each in found:
        what = f"{each.kind} ({each.label})" if each.label else each.kind
        mark = "  with a caveat: see sordino ledger show" if each.caveat else ""
        print(
            f"{each.run}  {each.created}  {each.data}  {what}  unit {each.unit}  {each.state}  {_alone(each)}{mark}"
        )
    for piece in pieces:
        cost = f"epsilon {_shown(piece.epsilon)} at delta {piece.delta:g} by itself"
        print(f"{'another tool':16s}  {piece.created}  {piece.data}  {piece.what}  unit {piece.unit}  {cost}")
    if not found and not pieces:
        print("nothing was counted yet")


@app.command()
def close(
    run: Annotated[str, typer.Argument(metavar="RUN", help="As `sordino ledger runs` names it.")],
    file: File = None,
) -> None:
    """Close a run that will not be resumed: what it reserved and did not spend is free again."""
    _opened(file).close(run)
    print(f"run {run} is closed: what it has spent stays spent, and it can release nothing more")


@app.command()
def join(
    names: Annotated[list[str], typer.Argument(metavar="NAME NAME...", help="Two data sets, or more.")],
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """Declare data sets as one, because they have people in common. This cannot be taken back."""
    _opened(file).join(*names)
    show(names[0], None, file, as_json)


@app.command()
def add(
    name: Name,
    epsilon: Annotated[float, typer.Option(help="What it costs.")],
    what: Annotated[str, typer.Option(help="What is released, in your words.")],
    delta: Annotated[float, typer.Option(help="And at which delta; 0 if it has none.")] = 0.0,
    unit: Unit = "example",
    released: Annotated[
        bool, typer.Option("--released", help="It is out already: count it even if it passes a cap.")
    ] = False,
    file: File = None,
    as_json: AsJson = False,
) -> None:
    """Count a release of another tool, such as a private histogram. Ask before you make it: a cap may refuse."""
    _opened(file).add(name, epsilon=epsilon, delta=delta, what=what, unit=unit, released=released)
    show(name, None, file, as_json)


@app.command()
def verify(file: File = None, as_json: AsJson = False) -> None:
    """Check that no entry was edited, removed, reordered or cut off. Exit code 0 if so, 2 if not."""
    head = _opened(file).verify()
    if as_json:
        return _print_json({"verified": True, **head.to_json()})
    print(f"all is well: {head.length} entries, the last one is {head.digest}")


@app.command()
def export(
    out: Annotated[Path | None, typer.Option(help="A file; by default it is printed.")] = None,
    file: File = None,
) -> None:
    """All entries as JSON, without the key and the fingerprints of rows, which stay in the ledger."""
    from sordino.runs import replace_file, to_json

    entries = to_json({"entries": _opened(file).export()}, indent=2)
    if out is None:
        print(entries)
    else:
        replace_file(out, (entries + "\n").encode())
        print(f"{out}")


def _opened(file: Path | None) -> LedgerFile:
    from sordino.ledger import VARIABLE, LedgerFile

    named = file or os.environ.get(VARIABLE)
    if not named:
        raise ValueError(f"which ledger? Give --ledger FILE, or set {VARIABLE}")
    return LedgerFile(named)


def _print_json(content: dict[str, Any]) -> None:
    from sordino.runs import to_json

    print(to_json(content))


def _shown(epsilon: float) -> str:
    from sordino.privacy import show_epsilon

    return show_epsilon(epsilon)


def _alone(found: RunRecord) -> str:
    if found.epsilon is None:
        from sordino.privacy.renyi import rdp_beside_delta

        return "" if min(rdp_beside_delta(found.event)[0]) < math.inf else "epsilon inf (not private)"
    return f"epsilon {_shown(found.epsilon)} at delta {found.delta:g} by itself, as caps count"


def _some(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _lines(found: DataSet) -> list[tuple[str, str]]:
    at = "" if found.delta is None else f" at delta {found.delta:g}"
    unknown = "unknown"
    lines = [
        ("data", ", ".join(found.names)),
        (
            "epsilon",
            f"{unknown if found.epsilon is None else _shown(found.epsilon)}{at}   spent or reserved, all together",
        ),
    ]
    if found.open:
        spent = unknown if found.spent is None else _shown(found.spent)
        lines.append(("spent so far", f"{spent}{at}   the rest is reserved by runs that are open"))
    lines += [("cap", _standing(standing, name, found)) for name, standing in found.caps.items()]
    if not found.caps:
        lines.append(("cap", f"none: sordino ledger cap {shlex.quote(found.names[0])} --epsilon E --delta D"))
    lines.append(("unit", f"one {found.unit}"))
    counted = f"{found.runs}, of which {found.open} open; {_some(found.pieces, 'release')} of other tools"
    lines.append(("runs", counted))
    return lines + [("note", note) for note in found.notes]


def _standing(standing: Standing, name: str, found: DataSet) -> str:
    cap = standing.cap
    whose = f", of {name}" if len(found.names) > 1 else ""
    aside = f", {cap.aside:g} of it kept aside" if cap.aside else ""
    state = _taken_of(standing) + (": PASSED, nothing more is admitted" if standing.passed else "")
    return f"epsilon {cap.epsilon:g} at delta {cap.delta:g}{aside}, unit {cap.unit}{whose}: {state}"


def _taken_of(standing: Standing) -> str:
    """As an epsilon, and as the share of what a cap has room for: runs add up in RDP, and epsilon does not grow with
    it in proportion, so half of an epsilon is not half of the room."""
    if math.isinf(standing.share):
        return "more than all of it is taken"
    share = f"{math.ceil(1000 * standing.share) / 10:g}% of its room, in which runs add up"
    return f"epsilon {_shown(standing.epsilon)} of it is taken, {share}"


def _data_set(found: DataSet) -> dict[str, Any]:
    caps = {name: {**each.cap.to_json(), **_taken(each)} for name, each in found.caps.items()}
    return {**vars(found), "caps": caps, "passed": found.passed}


def _taken(standing: Standing) -> dict[str, Any]:
    return {
        "taken": standing.epsilon,
        "spent": standing.spent,
        "share": standing.share,
        "passed": standing.passed,
    }


def _run(found: RunRecord) -> dict[str, Any]:
    from sordino.privacy import event_to_json

    return {**vars(found), "event": event_to_json(found.event)}
