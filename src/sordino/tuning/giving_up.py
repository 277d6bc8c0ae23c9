"""`abandon`: an interrupted tuning that will not go on."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sordino.ledger import LedgerFile, ledger_of
from sordino.privacy import compose, event_from_json, price, repeat
from sordino.privacy.certificate import epsilon_to_json
from sordino.runs import RunDirectory, claimed, delete_checkpoint
from sordino.runs.closing import CERTIFICATE
from sordino.tuning.opening import opened
from sordino.tuning.state import Standing
from sordino.tuning.trials import folder_of

if TYPE_CHECKING:
    from dp_accounting import DpEvent


def abandon(out: str | Path, *, ledger: Any = None) -> dict[str, Any]:
    """Give up an interrupted tuning: what it has spent is counted and said, and everything else of it is deleted.

    A selection that is not finished is no selection: whoever began its runs could have looked at each of them. So they
    count as what they are, one after the other, which may be more than the selection would have cost. To resume costs
    nothing more.

    Args:
        out: The directory of the tuning.
        ledger: The one it is counted in, as for `train`.

    >>> import tempfile
    >>> abandon(tempfile.mkdtemp())
    Traceback (most recent call last):
    ValueError: there is no interrupted tuning in ...: check the directory
    """
    directory = RunDirectory(Path(out))
    if not directory.is_of_a_run:
        raise ValueError(f"there is no interrupted tuning in {directory.path}: check the directory")
    with claimed(directory, True):
        standing = opened(directory)
        if (directory.path / CERTIFICATE).exists():
            raise ValueError(
                f"the tuning in {directory.path} is finished but for its last file: resume it, which costs nothing"
            )
        event = _begun_event(standing, directory)
        _close_by_hand(standing, event, ledger_of(ledger))
        delta = standing.pinned["budget"][1]
        summary = {
            **(directory.summary or {}),
            "status": "abandoned",
            "epsilon": epsilon_to_json(price(event, delta).epsilon),
            "runs_begun": _begun(standing, directory),
        }
        summary.pop("planned_epsilon", None)
        shutil.rmtree(directory.path / "candidates", ignore_errors=True)
        directory.write_json("run.json", summary)
        delete_checkpoint(directory.checkpoint_folder)
    return summary


def _begun(standing: Standing, directory: RunDirectory) -> int:
    if standing.pinned["protocol"] == "selection":
        return int(standing.progress.get("begun", 0))
    return sum(folder_of(directory, number).exists() for number in range(len(standing.pinned["candidates"])))


def _begun_event(standing: Standing, directory: RunDirectory) -> DpEvent:
    """Of the runs that were begun, as if each had been made to its end."""
    runs = [event_from_json(each) for each in standing.pinned["runs"]]
    begun = _begun(standing, directory)
    return repeat(runs[0], begun) if standing.pinned["protocol"] == "selection" else compose(runs[:begun])


def _close_by_hand(standing: Standing, event: DpEvent, ledger: Any) -> None:
    if standing.ledger is None:
        return
    if not isinstance(ledger, LedgerFile) or ledger.identity != standing.ledger:
        raise ValueError("this tuning is counted in a ledger: give it (--ledger, or SORDINO_LEDGER)")
    if ledger.knows(standing.run):  # and was not killed before it was reserved
        ledger.resume(standing.run).close(event if standing.pinned["protocol"] == "selection" else None)
