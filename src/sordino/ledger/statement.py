"""What a ledger has to say about its data sets and runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sordino.ledger.account import planned, spent_so_far
from sordino.ledger.chain import Entry
from sordino.ledger.file import Entries
from sordino.ledger.pricing import ORDERS_DIGEST, Cap, Piece, Spent, curve_from, curve_of, total
from sordino.privacy.certificate import UNITS
from sordino.privacy.events import event_from_json
from sordino.privacy.renyi import SUBSTITUTION, Vector, epsilon_from_rdp

if TYPE_CHECKING:
    from dp_accounting import DpEvent

_SUBSTITUTED = (
    "some runs were priced for substituting a unit; one that contributes nothing is a substitute too, so their price "
    "bounds zeroing out, and was added as it is"
)
_USERS = (
    "some runs protect users; for one example of a user that is worth two steps (out with the user, in without the "
    "example), which were added"
)
_EXAMPLES = (
    "some runs protect examples, which says nothing about users, who may have many: no bound for users"
)
_FIXED = (
    "as if every plan had been laid down before the first run; a cap also bounds plans that follow results"
)


@dataclass(frozen=True)
class RunRecord:
    """A run, as the ledger has it. Epsilon is of this run alone, by RDP, at its own delta."""

    run: str
    data: str
    kind: str
    unit: str
    relation: str
    label: str
    created: str
    state: str  # open: what it has reserved counts; closed: what it has spent
    charges: int
    delta: float | None
    epsilon: float | None  # None without a delta
    event: DpEvent


@dataclass(frozen=True)
class DataSet:
    """What was spent on one data set, or on several that were declared as one."""

    names: tuple[str, ...]
    unit: str
    delta: float | None
    epsilon: float  # of all that is spent or reserved
    spent: float  # of that, what is spent for certain
    caps: dict[str, Cap]
    runs: int
    open: int
    pieces: int
    notes: tuple[str, ...]


def joined(entries: Entries, name: str) -> list[str]:
    """All names that count as one with this one."""
    groups = [set(entry.body["names"]) for entry in entries.of_kinds("join")]
    mine, size = {name}, 0
    while len(mine) > size:
        size = len(mine)
        for group in groups:
            if group & mine:
                mine |= group
    return sorted(mine)


def caps_of(entries: Entries, names: Sequence[str]) -> dict[str, Cap]:
    """The cap that holds now for each name that has one."""
    return {str(entry.data): Cap(**entry.body) for entry in entries.of_kinds("cap", data=names)}


def spent_on(entries: Entries, names: Sequence[str], certain: bool = False) -> tuple[Spent, int]:
    """Everything that is spent or reserved, and by how many runs; ``certain`` leaves out what is reserved only."""
    units: dict[str, str] = {}
    curves: dict[str, Vector] = {}
    still_open: set[str] = set()
    for entry in entries.of_kinds("reserve", "close", data=names):
        assert entry.run is not None
        if entry.kind == "reserve":
            units[entry.run] = entry.body["unit"]
            still_open.add(entry.run)
        else:
            still_open.remove(entry.run)
        curves[entry.run] = curve_at(entry)  # that of a closed run takes the place of what it had reserved
    if certain:
        curves |= {run: _curve_so_far(entries, run) for run in still_open}
    pieces = [
        (entry.body["unit"], Piece(entry.body["epsilon"], entry.body["delta"]))
        for entry in entries.of_kinds("outside", data=names)
    ]
    return total([(units[run], curve) for run, curve in curves.items()], pieces), len(curves)


def _curve_so_far(entries: Entries, run: str) -> Vector:
    return curve_from(curve_of(spent_so_far(entries.of_run(run)).event))


def curve_at(entry: Entry) -> Vector:
    """The RDP of an entry's events, as it was priced when it was written."""
    if entry.curve is not None and entry.body.get("orders", ORDERS_DIGEST) == ORDERS_DIGEST:
        return curve_from(entry.curve)
    return curve_from(curve_of(event_from_json(entry.body["event"])))


def data_sets(entries: Entries, delta: float | None) -> list[DataSet]:
    names = {entry.data for entry in entries.of_kinds("reserve", "cap", "outside")}
    names |= {name for entry in entries.of_kinds("join") for name in entry.body["names"]}
    groups = {tuple(joined(entries, name)) for name in names if name is not None}
    return [_data_set(entries, group, delta) for group in sorted(groups)]


def _data_set(entries: Entries, names: tuple[str, ...], delta: float | None) -> DataSet:
    records = run_records(entries, names)
    everything, _ = spent_on(entries, names)
    caps = caps_of(entries, names)
    tightest = min(caps.values(), key=lambda cap: cap.epsilon, default=None)
    unit = tightest.unit if tightest else ("example" if everything.has("example") else "user")
    certain, _ = spent_on(entries, names, certain=True)
    notes = [_SUBSTITUTED] if any(record.relation == SUBSTITUTION for record in records) else []
    if everything.has("example") and everything.has("user"):
        notes.append(_USERS if unit == "example" else _EXAMPLES)
    if tightest is not None and delta is None:
        delta = tightest.delta
        epsilons = tightest.epsilon_of(everything), tightest.epsilon_of(certain)
    else:
        delta = min((r.delta for r in records if r.delta), default=None) if delta is None else delta
        epsilons = (
            (0.0, 0.0) if delta is None else (everything.epsilon(unit, delta), certain.epsilon(unit, delta))
        )
        if delta is None and (everything.has("example") or everything.has("user")):
            epsilons = everything.epsilon(unit, 0.5), certain.epsilon(unit, 0.5)
        notes += [_FIXED] if len(records) > 1 else []
    pieces = sum(len(everything.pieces[each]) for each in UNITS)
    is_open = sum(record.state == "open" for record in records)
    return DataSet(names, unit, delta, *epsilons, caps, len(records), is_open, pieces, tuple(notes))


def run_records(entries: Entries, names: Sequence[str] | None) -> list[RunRecord]:
    reserved = {str(entry.run): entry for entry in entries.of_kinds("reserve", data=names)}
    closed = {str(entry.run): entry for entry in entries.of_kinds("close", data=names)}
    return [_record(entries, run, entry, closed.get(run)) for run, entry in reserved.items()]


def _record(entries: Entries, run: str, reserved: Entry, closed: Entry | None) -> RunRecord:
    body, last = reserved.body, closed or reserved
    delta = body["delta"]
    charges = closed.body["charges"] if closed else spent_so_far(entries.of_run(run)).charges
    return RunRecord(
        run,
        str(reserved.data),
        body["kind"],
        body["unit"],
        body["relation"],
        body["label"],
        body["created"],
        "open" if closed is None else "closed",
        charges,
        delta,
        None if delta is None else epsilon_from_rdp(curve_at(last), delta, "improved"),
        event_from_json(last.body["event"]) if closed else planned([reserved]),
    )
