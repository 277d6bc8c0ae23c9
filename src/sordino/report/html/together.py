"""What several runs on the same data have spent together: more than each of them says, often less than their sum."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sordino.privacy import event_from_json
from sordino.privacy.certificate import show_epsilon
from sordino.report.account import mapping, number
from sordino.report.html.kept import Kept
from sordino.report.html.numbers import shown
from sordino.report.html.tags import Part


@dataclass(frozen=True)
class Total:
    """What all of them have spent, and by which rule that is known."""

    epsilon: float
    delta: float
    how: str


def together(runs: Sequence[Kept]) -> Iterator[tuple[str, Part]]:
    """For each data set of which there are several runs that promise something: what they have spent together."""
    by_data: dict[str, list[Kept]] = {}
    for run in runs:
        by_data.setdefault(_data(run), []).append(run)
    for data, of in by_data.items():
        promising = {_digest(run): run for run in of if run.verdict.stands}  # the same run twice spends once
        if len(promising) > 1:
            yield f"together on {data!r}", _words(list(promising.values()), of)


def total(runs: Sequence[Kept]) -> Total:
    """Composed by Renyi DP, as a ledger does; or, where that says nothing, epsilons and deltas added up. Both hold for
    whoever is in the rows of all of them."""
    epsilons = [number(run.summary.get("epsilon")) for run in runs]
    deltas = [number(run.summary.get("delta")) for run in runs]
    added = Total(math.fsum(epsilons), math.fsum(deltas), "their epsilons and deltas added up")
    composed = _composed(runs, max(deltas))
    if composed is None or not composed < added.epsilon:
        return added
    return Total(composed, max(deltas), "composed by Renyi DP")


def _composed(runs: Sequence[Kept], delta: float) -> float | None:
    """From the events in their certificates; None where these cannot be read or priced."""
    from sordino.ledger.pricing import Spent, curve_from, curve_of, pieces_of

    spent = Spent()
    try:
        for run in runs:
            event = event_from_json(mapping(run.certificate)["events"])
            spent.add(str(run.summary["unit"]), curve_from(curve_of(event)), pieces=pieces_of(event))
        return spent.epsilon(str(runs[0].summary["unit"]), delta)
    except (ArithmeticError, LookupError, NotImplementedError, TypeError, ValueError):
        return None


def _words(promising: list[Kept], of: list[Kept]) -> str:
    if len({run.summary.get("unit") for run in promising}) > 1:
        return "not added up: some of them protect examples and some users"
    spent = total(promising)
    said = (
        f"epsilon {show_epsilon(spent.epsilon, 3)} at delta {shown(spent.delta)} by {len(promising)} runs, "
    )
    said += f"{spent.how}, as if all had been planned before the first"
    if not _in_one_ledger(promising):
        said += "; if they are of the same rows: no ledger has counted all of them, and a name proves nothing"
    others = [run for run in of if not run.verdict.stands]
    if others:
        one = len(others) == 1
        said += ". 1 more promises nothing" if one else f". {len(others)} more promise nothing"
        said += f", and no number bounds what {'it shows' if one else 'they show'}"
    return f"{said}."


def _in_one_ledger(runs: Sequence[Kept]) -> bool:
    files = {str(mapping(run.summary.get("ledger")).get("file") or "") for run in runs}
    return len(files) == 1 and files != {""}


def _data(run: Kept) -> str:
    return str(mapping(run.summary.get("ledger")).get("data") or run.summary.get("data", ""))


def _digest(run: Kept) -> str:
    return str(mapping(run.certificate).get("digest"))
