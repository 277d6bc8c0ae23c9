"""What a ledger has to say about its data sets and runs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from sordino.ledger.account import before_of, planned, spent_so_far
from sordino.ledger.chain import Entry, LedgerError
from sordino.ledger.file import Entries
from sordino.ledger.pricing import (
    ORDERS_DIGEST,
    Cap,
    Piece,
    Spent,
    curve_from,
    curve_of,
    pieces_in,
    pieces_of,
)
from sordino.privacy.events import event_from_json
from sordino.privacy.renyi import SUBSTITUTION, epsilon_from_rdp

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
_NO_DELTA = "no run says at which delta: give one (--delta)"


@dataclass(frozen=True)
class RunRecord:
    """A run, as the ledger has it. Epsilon is of this run alone, by RDP, at its own delta."""

    run: str
    data: str
    kind: str
    unit: str
    relation: str
    label: str
    caveat: str
    created: str
    state: str  # open: what it has reserved counts; closed: what it has spent
    charges: int
    delta: float | None
    epsilon: float | None  # None without a delta
    event: DpEvent
    before: str | None  # the run under which something that prepared this one was paid


@dataclass(frozen=True)
class PieceRecord:
    """A release of another tool, as the ledger has it."""

    data: str
    unit: str
    what: str
    epsilon: float
    delta: float
    created: str


@dataclass(frozen=True)
class Standing:
    """How much of a cap is taken: epsilon at the cap's delta, by the one order that the cap is kept at."""

    cap: Cap
    epsilon: float  # of all that is spent or reserved
    spent: float  # of that, what is spent for certain
    share: float  # of the cap, spent or reserved: 1 is all of it
    passed: bool


@dataclass(frozen=True)
class DataSet:
    """What was spent on one data set, or on several that were declared as one."""

    names: tuple[str, ...]
    unit: str
    delta: float | None
    epsilon: float | None  # of all that is spent or reserved; None if no delta is known
    spent: float | None  # of that, what is spent for certain
    caps: dict[str, Standing]
    runs: int
    open: int
    pieces: int
    notes: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether more is spent or reserved than a cap allows."""
        return any(standing.passed for standing in self.caps.values())


# What counts ------------------------------------------------------------------------------------------------


def joined(entries: Entries, name: str) -> list[str]:
    """All names that count as one with this one."""
    return next(group for group in _groups(entries, [name]) if name in group)


def _groups(entries: Entries, names: Iterable[str]) -> list[list[str]]:
    """These names and all that were joined, each with those that count as one with it."""
    groups = [{name} for name in names]
    for entry in entries.of_kinds("join"):
        mine = set(entry.body["names"])
        touched = [group for group in groups if group & mine]
        groups = [group for group in groups if not group & mine] + [mine.union(*touched)]
    return sorted(sorted(group) for group in groups)


def known_names(entries: Entries) -> set[str]:
    names = {str(entry.data) for entry in entries.of_kinds("reserve", "cap", "outside")}
    return names.union(*(entry.body["names"] for entry in entries.of_kinds("join")))


def caps_of(entries: Entries, names: Sequence[str]) -> dict[str, Cap]:
    """The cap that holds now for each name that has one."""
    return {str(entry.data): Cap(**entry.body) for entry in entries.of_kinds("cap", data=names)}


def spent_on(entries: Entries, names: Sequence[str], certain: bool = False) -> tuple[Spent, int]:
    """Everything that is spent or reserved, and by how many runs; ``certain`` leaves out what is reserved only.

    Runs that cost the same are folded: thousands of them are a few curves, each times a number.
    """
    counting: dict[str, tuple[str, Entry]] = {}  # by run: its unit, and the entry that says what it costs
    for entry in entries.of_kinds("reserve", "close", data=names):
        run = str(entry.run)
        if entry.kind == "close" and run not in counting:
            raise LedgerError("the ledger was tampered with: a run was closed that was not reserved")
        unit = entry.body["unit"] if entry.kind == "reserve" else counting[run][0]
        counting[run] = unit, entry  # a closed run counts with what it has spent
    spent, folded, of_price = Spent(), Counter[tuple[str, object]](), dict[object, Entry]()
    for run, (unit, entry) in counting.items():
        if certain and entry.kind == "reserve":
            event = spent_so_far(entries.of_run(run)).event
            spent.add(unit, curve_from(curve_of(event)), pieces=pieces_of(event))
            continue
        price: object = (entry.price, pieces_in(entry.body)) if _is_priced(entry) else entry.number
        folded[unit, price] += 1
        of_price[price] = entry
    for (unit, cost), times in folded.items():
        entry = of_price[cost]
        pieces = [Piece(*each) for each in pieces_in(entry.body)]
        spent.add(unit, curve_from(curve_at(entries, entry)), times, pieces)
    for entry in entries.of_kinds("outside", data=names):
        spent.add_piece(entry.body["unit"], Piece(entry.body["epsilon"], entry.body["delta"]))
    return spent, len(counting)


def _is_priced(entry: Entry) -> bool:
    """At the orders that we have now; they may be others in another version."""
    return entry.price is not None and entry.body.get("orders", ORDERS_DIGEST) == ORDERS_DIGEST


def curve_at(entries: Entries, entry: Entry) -> bytes:
    """The RDP of an entry's events, as it was priced when it was written."""
    if _is_priced(entry):
        assert entry.price is not None
        return entries.curve(entry.price)
    return curve_of(event_from_json(entry.body["event"]))


# What is said -----------------------------------------------------------------------------------------------


def data_sets(entries: Entries, name: str | None, delta: float | None) -> list[DataSet]:
    """What was spent on each data set, or on this one."""
    groups = _groups(entries, known_names(entries))
    return [_data_set(entries, tuple(group), delta) for group in groups if name is None or name in group]


def _data_set(entries: Entries, names: tuple[str, ...], delta: float | None) -> DataSet:
    everything, count = spent_on(entries, names)
    certain, _ = spent_on(entries, names, certain=True)
    reserved = entries.of_kinds("reserve", data=names)
    still_open = count - len(entries.of_kinds("close", data=names))
    caps = {name: _standing(cap, everything, certain) for name, cap in caps_of(entries, names).items()}
    nearest = min(caps.values(), key=lambda found: (not found.passed, found.cap.epsilon), default=None)
    unit = nearest.cap.unit if nearest else ("example" if everything.has("example") else "user")
    pieces = len(entries.of_kinds("outside", data=names))
    notes = list(_notes(reserved, everything, unit)) + _set_anew(entries, names)
    epsilons: tuple[float | None, float | None]
    if nearest is not None and delta is None:
        delta, epsilons = nearest.cap.delta, (nearest.epsilon, nearest.spent)
    else:
        if delta is None:
            delta = min((entry.body["delta"] for entry in reserved if entry.body["delta"]), default=None)
        if delta is None:
            epsilons = everything.pure_epsilon(unit), certain.pure_epsilon(unit)
            notes += [_NO_DELTA] if epsilons[0] is None else []
        else:
            epsilons = everything.epsilon(unit, delta), certain.epsilon(unit, delta)
            notes += _below_known(everything.about(unit)[1], delta, epsilons[0])
        notes += [_FIXED] if count + pieces > 1 else []
    return DataSet(names, unit, delta, *epsilons, caps, count, still_open, pieces, tuple(notes))


def _standing(cap: Cap, everything: Spent, certain: Spent) -> Standing:
    epsilons = cap.epsilon_of(everything), cap.epsilon_of(certain)
    return Standing(cap, *epsilons, cap.share_of(everything), not cap.admits(everything))


def _notes(reserved: Sequence[Entry], everything: Spent, unit: str) -> Iterable[str]:
    """What a number does not say by itself."""
    caveats = Counter(entry.body["caveat"] for entry in reserved if entry.body["caveat"])
    for caveat, times in sorted(caveats.items()):
        yield f"{times} of {len(reserved)} runs {'says' if times == 1 else 'say'}: {caveat}"
    if any(entry.body["relation"] == SUBSTITUTION for entry in reserved):
        yield _SUBSTITUTED
    if everything.has("example") and everything.has("user"):
        yield _USERS if unit == "example" else _EXAMPLES


def _below_known(known: float, delta: float, epsilon: float | None) -> list[str]:
    """Why there is no epsilon where there would be one at a larger delta."""
    if not known or epsilon is None or math.isfinite(epsilon):
        return []
    return [
        f"of releases of which only epsilon and delta are known, delta is {known:g} in all: at {delta:g} nothing is "
        "known of them, so ask for a larger one (--delta)"
    ]


def _set_anew(entries: Entries, names: Sequence[str]) -> list[str]:
    """Which caps were changed when something was counted already: a filter is fixed before anything is seen."""
    counted, first, changed = False, dict[str, object](), list[str]()
    for entry in entries.of_kinds("cap", "reserve", "outside", data=names):
        if entry.kind != "cap":
            counted = True
        elif counted and first.get(str(entry.data), entry.body) != entry.body:
            changed.append(str(entry.data))
        if entry.kind == "cap":
            first[str(entry.data)] = entry.body
    return [
        f"the cap of {name!r} was changed after runs had been counted: it bounds them all if that was not decided by "
        "their results; otherwise what bounds them is the largest cap that would ever have been set"
        for name in sorted(set(changed))
    ]


def piece_records(entries: Entries, names: Sequence[str] | None) -> list[PieceRecord]:
    return [PieceRecord(str(entry.data), **entry.body) for entry in entries.of_kinds("outside", data=names)]


def run_records(entries: Entries, names: Sequence[str] | None) -> list[RunRecord]:
    closed = {str(entry.run): entry for entry in entries.of_kinds("close", data=names)}
    return [
        _record(entries, entry, closed.get(str(entry.run)))
        for entry in entries.of_kinds("reserve", data=names)
    ]


def _record(entries: Entries, reserved: Entry, closed: Entry | None) -> RunRecord:
    body, last, run = reserved.body, closed or reserved, str(reserved.run)
    delta = body["delta"]
    charges = closed.body["charges"] if closed else spent_so_far(entries.of_run(run)).charges
    return RunRecord(
        run,
        str(reserved.data),
        body["kind"],
        body["unit"],
        body["relation"],
        body["label"],
        body["caveat"],
        body["created"],
        "open" if closed is None else "closed",
        charges,
        delta,
        None if delta is None else _epsilon_of(curve_at(entries, last), pieces_in(last.body), delta),
        event_from_json(last.body["event"]) if closed else planned([reserved]),
        before_of(reserved),
    )


@lru_cache(maxsize=4096)
def _epsilon_of(curve: bytes, pieces: tuple[tuple[float, float], ...], delta: float) -> float:
    if not pieces:
        return epsilon_from_rdp(curve_from(curve), delta, "improved")
    alone = Spent()
    alone.add("example", curve_from(curve), pieces=[Piece(*each) for each in pieces])
    return alone.epsilon("example", delta)
