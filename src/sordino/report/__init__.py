"""The figure of a run, central or federated: how good it became, what it spent, and what tuned itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sordino.report.account import Account

__all__ = ["drawn"]


def drawn(
    summary: Mapping[str, Any],
    history: Sequence[Mapping[str, Any]],
    clients: Mapping[str, Any] | None = None,
) -> bytes:
    """report.png of a run, from run.json, the lines of history.jsonl and, of a federation, clients.json.

    There is a panel for each thing that was measured or that moved. What never moved is said in words. An unfinished
    run is drawn as far as it came. Nothing of this is shared with figures of the caller's own: no global state.
    """
    from sordino.report.page import page  # matplotlib takes long to load, and is needed here only

    return page(Account(summary, history, clients or {}))
