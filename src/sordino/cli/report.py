"""`sordino report`: the figure of a run, drawn again from what the run has written down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino.cli.options import AsJson

if TYPE_CHECKING:
    from sordino.report.account import Account
    from sordino.runs import RunDirectory


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Directories of runs.")],
    as_json: AsJson = False,
) -> None:
    """Draw report.png of each run again; of one that was interrupted, as far as it came."""
    from sordino.runs import to_json

    drawn = [_redrawn(path) for path in runs]
    if as_json:
        print(to_json({"reports": [facts for facts, _ in drawn]}))
        return
    for facts, account in drawn:
        print(facts["report"] if account.finished else f"{facts['report']} ({_how_far(facts, account)})")


def _redrawn(path: Path) -> tuple[dict[str, Any], Account]:
    from sordino.report import drawn
    from sordino.report.account import Account
    from sordino.runs import RunDirectory, claimed, replace_file

    directory = RunDirectory(path)
    if directory.summary is None:
        raise ValueError(
            f"there is no run in {path}: give a directory that sordino train or federate has written"
        )
    with claimed(directory, resume=True):
        summary, history, clients = _written_down(directory)
        replace_file(path / "report.png", drawn(summary, history, clients))
    status = str(summary.get("status", "unknown"))
    last = history[-1] if history else {}
    reached: dict[str, Any] = {name: last[name] for name in ("step", "round") if name in last}
    facts = {"run": str(path), "report": str(path / "report.png"), "status": status, **reached}
    return facts, Account(summary, history)


def _written_down(
    directory: RunDirectory,
) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any] | None]:
    """run.json, history.jsonl and clients.json, read while nobody else writes."""
    about, path = directory.path / "clients.json", directory.path
    try:
        clients = json.loads(about.read_text()) if about.exists() else None
        history = directory.history()
    except ValueError as error:
        raise ValueError(
            f"what lies in {path} cannot be read ({error}): put its files back as they were"
        ) from None
    if any(not isinstance(part, dict) for part in (*history, {} if clients is None else clients)):
        raise ValueError(f"what lies in {path} was not written by a run: put its files back as they were")
    return directory.summary or {}, history, clients


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
