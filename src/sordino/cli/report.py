"""`sordino report`: one page of a run or of several, and the figure of each, from what the runs have written down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino.cli.options import AsJson

if TYPE_CHECKING:
    from sordino.report.account import Account
    from sordino.report.html import Kept

PAGE, FIGURE = "report.html", "report.png"


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN...", help="Directories of runs, or one of sordino reproduce.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Where the page goes; default RUN/report.html, of several runs report.html here."),
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(help="Show what was spent on the data set. By default the ledger that counted the run."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """One HTML page that needs no network: what is promised, what was spent, how training went. Of several runs, a
    comparison. An interrupted run is shown as far as it came."""
    from sordino.runs import replace_file, to_json

    page = _place(runs, out)
    if len(runs) == 1 and (runs[0] / "result.json").is_file():
        facts = _reproduced(runs[0], page)
        return print(to_json(facts) if as_json else facts["page"])
    read = [_read(path, ledger) for path in runs]
    replace_file(page, _page([kept for _, kept in read]), mode=0o644)
    if as_json:
        return print(to_json({"page": str(page), "reports": [facts for facts, _ in read]}))
    _say(page, read)


def _place(runs: list[Path], out: Path | None) -> Path:
    if out is None:
        return runs[0] / PAGE if len(runs) == 1 else Path(PAGE)
    if out.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--out is the page, a file that ends in .html, not {out}")
    if not out.parent.is_dir():
        raise ValueError(f"there is no folder {out.parent}: make it, or choose another --out")
    return out


def _page(runs: list[Kept]) -> bytes:
    from sordino.report.html import comparison_page, run_page

    return run_page(runs[0]) if len(runs) == 1 else comparison_page(runs)


def _say(page: Path, read: list[tuple[dict[str, Any], Kept]]) -> None:
    unfinished = [(facts, kept.account) for facts, kept in read if not kept.account.finished]
    if len(read) == 1:
        ends = f" ({_how_far(*unfinished[0])})" if unfinished else ""
        return print(f"{page}{ends}")
    print(page)
    for facts, account in unfinished:
        print(f"{facts['run']}: {_how_far(facts, account)}")


def _read(path: Path, ledger: Path | None) -> tuple[dict[str, Any], Kept]:
    """What a run has written down, read while nobody else writes; its figure is drawn again meanwhile."""
    from sordino.report import drawn
    from sordino.report.html import Kept
    from sordino.runs import RunDirectory, claimed, replace_file

    directory = RunDirectory(path)
    if directory.summary is None:
        raise ValueError(
            f"there is no run in {path}: give a directory that sordino train, tune, federate or reproduce has written"
        )
    with claimed(directory, resume=True):
        summary, history = directory.summary or {}, _history(directory)
        clients, inputs = _json(path, "clients.json"), _json(path, "inputs.json")
        certificate = _json(path, "certificate.json") if summary.get("status") == "complete" else None
        replace_file(path / FIGURE, drawn(summary, history, clients))
    standing = _standing(summary, ledger)
    last = history[-1] if history else {}
    reached: dict[str, Any] = {name: last[name] for name in ("step", "round") if name in last}
    status = str(summary.get("status", "unknown"))
    facts = {"run": str(path), "report": str(path / FIGURE), "status": status, **reached}
    return facts, Kept(summary, history, certificate, inputs, clients, standing, _name(path))


def _name(path: Path) -> str:
    """As it was given, unless that says nothing."""
    return path.resolve().name if path.name in ("", "..") else str(path)


def _history(directory: Any) -> list[dict[str, Any]]:
    try:
        history: list[dict[str, Any]] = directory.history()
    except ValueError as error:
        raise _unreadable(directory.path, error) from None
    _check(directory.path, history)
    return history


def _json(path: Path, name: str) -> dict[str, Any] | None:
    """A file of the run, if it is there."""
    try:
        read = json.loads((path / name).read_text()) if (path / name).exists() else None
    except ValueError as error:
        raise _unreadable(path, error) from None
    _check(path, [] if read is None else [read])
    return None if read is None else dict(read)


def _unreadable(path: Path, error: ValueError) -> ValueError:
    return ValueError(f"what lies in {path} cannot be read ({error}): put its files back as they were")


def _check(path: Path, parts: list[Any]) -> None:
    if any(not isinstance(part, dict) for part in parts):
        raise ValueError(f"what lies in {path} was not written by a run: put its files back as they were")


def _standing(summary: dict[str, Any], given: Path | None) -> Any:
    """What the ledger says of the data set. One that is named has to be there; one that the run names may be gone."""
    from sordino.report.html.budget import standing_of
    from sordino.warn import warn

    counted = summary.get("ledger")
    counted = counted if isinstance(counted, dict) else {}
    file = given or (Path(str(counted["file"])) if counted.get("file") else None)
    data = str(counted.get("data") or summary.get("data", ""))
    if file is None or (given is None and not file.is_file()):
        return None
    before = summary.get("before")
    entries = {str(each["run"]) for each in (counted, before) if isinstance(each, dict) and each.get("run")}
    try:
        return standing_of(file, data, str(summary.get("unit", "example")), entries)
    except ValueError as error:
        if given is not None:
            raise
        warn(f"the page is without what else was spent on {data!r}: {error}")
        return None


def _reproduced(path: Path, page: Path) -> dict[str, Any]:
    from sordino.report.html import recipe_page
    from sordino.runs import replace_file

    result = _json(path, "result.json") or {}
    figure = path / "figure.png"
    replace_file(page, recipe_page(result, figure.read_bytes() if figure.is_file() else None), mode=0o644)
    return {"page": str(page), "recipe": str(result.get("recipe", "")), "run": str(path)}


def _how_far(facts: dict[str, Any], account: Account) -> str:
    reached = next((f", {name} {facts[name]}" for name in ("step", "round") if name in facts), "")
    go_on = f"to go on, repeat its command with --out {facts['run']} --resume"
    return f"the run is not finished{_spent(account) or reached}: {go_on}"


def _spent(account: Account) -> str:
    """What the last line knew is no less than what was spent, and may be less than what was."""
    from sordino.report.words import how_much

    if not account.private or account.epsilon is None:
        return ""
    return f", epsilon {how_much(account)}, and more may have been released since"
