"""One run's account: what it has reserved, and what of it is spent."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sordino.ledger.chain import PAYMENT, Entry, LedgerError
from sordino.ledger.file import EntryFile
from sordino.ledger.pricing import ORDERS_DIGEST, curve_from, curve_of, pieces_to_json
from sordino.privacy.events import compose, event_from_json, event_to_json, leaves, parted, repeat
from sordino.privacy.ledger import Ledger
from sordino.privacy.renyi import Vector
from sordino.warn import warn

if TYPE_CHECKING:
    from dp_accounting import DpEvent


@dataclass(frozen=True)
class Account:
    """An open reservation, from which a run pays before each release.

    Guarantee: what was paid is in the file, whatever happens to the process; nothing is paid beyond what was reserved,
    nor after it was closed. What is reserved counts as spent until then.

    Args:
        file: Of the ledger.
        data: The declared name of the data set.
        run: Under which it was reserved.
        prefix: Of the keys of what it pays, for a part of something larger.

    >>> from sordino.ledger import LedgerFile
    >>> from sordino.privacy import gaussian, repeat
    >>> import tempfile, pathlib
    >>> book = LedgerFile(pathlib.Path(tempfile.mkdtemp()) / "ledger.db")
    >>> account = book.reserve("patients", repeat(gaussian(2.0), 3), delta=1e-5)
    >>> account.spend("step:0", gaussian(2.0))
    >>> account.close()
    >>> book.runs("patients")[0].charges
    1
    """

    file: EntryFile
    data: str
    run: str
    prefix: str = ""

    def part(self, name: str) -> Account:
        """The account of one of several runs that were reserved together."""
        return replace(self, prefix=f"{self.prefix}{name}/")

    def spend(self, key: str, event: DpEvent) -> None:
        """Pay for a release before it is made; a key that was paid before, with the same event, costs nothing more."""
        self.spend_all({key: event})

    def spend_all(self, charges: Mapping[str, DpEvent]) -> None:
        """Pay for several releases at once, before any of them is made."""
        with self.file.writing() as (entries, append):
            found = entries.of_run(self.run)
            spent, new = spent_so_far(found), Ledger()
            for key, event in charges.items():
                if spent.charge(self.prefix + key, event):
                    new.charge(self.prefix + key, event)
            if not new.charges:
                return
            if is_closed(found):
                raise LedgerError(
                    f"run {self.run} was closed in the ledger and may release nothing more: start it afresh"
                )
            if beyond(planned(found), spent.event):
                raise LedgerError(f"run {self.run} would spend more than it has reserved in the ledger")
            append([(PAYMENT, self.data, self.run, new.to_state(), None)])

    def close(self, event: DpEvent | None = None) -> None:
        """Nothing more will be released: what was spent stays spent, and what was reserved beyond it is free again.

        ``event`` is what it comes to, where that is not the sum of what was paid step by step. It is recorded in full,
        also where it is more than was reserved, or than a cap allows: spent is spent. It is never less than what was
        paid, but for a selection, which pays for a whole that it may abandon.
        """
        with self.file.writing() as (entries, append):
            found = entries.of_run(self.run)
            planned(found)  # or it is no run of this ledger
            spent = spent_so_far(found)
            total = spent.event if event is None else event
            body = {"event": event_to_json(total), "charges": spent.charges, "orders": ORDERS_DIGEST}
            body |= pieces_to_json(total)
            for closed in found:
                if closed.kind == "close":
                    if closed.body["event"] != body["event"]:
                        raise LedgerError(f"run {self.run} was closed in the ledger with something else")
                    return
            curve = curve_of(total)
            if not may_cost_less(found) and costs_less(total, curve_from(curve), spent.event):
                raise LedgerError(f"run {self.run} has spent more than what it would be closed with")
            # How long a selection took tells how many runs it made, which nobody may learn.
            body["created"] = found[0].body["created"] if may_cost_less(found) else now()
            append([("close", self.data, self.run, body, curve)])

    def as_ledger(self) -> Ledger:
        """For a gate or an estimator of your own (``ledger=``): what is charged to it is paid here first."""
        return _Paying(self)

    @property
    def spent(self) -> Ledger:
        """What was paid so far, this part and all others."""
        with self.file.reading() as entries:
            return spent_so_far(entries.of_run(self.run))

    @property
    def is_open(self) -> bool:
        with self.file.reading() as entries:
            found = entries.of_run(self.run)
        return bool(found) and not is_closed(found)

    def saw(self, fingerprint: Callable[[bytes], str]) -> None:
        """Note which rows the data set has, under the ledger's own key; warn if they are not those that it had.

        The name is what counts. Other rows under it never open a fresh budget, and the same rows under another name are
        a reason to declare the two as one.
        """
        with self.file.reading() as entries:
            key = entries.key()
        rows = fingerprint(key)
        with self.file.writing() as (entries, append):
            known = entries.seen()
            before = {entry.body["rows"] for entry in known if entry.data == self.data}
            elsewhere = {
                str(entry.data) for entry in known if entry.body["rows"] == rows and entry.data != self.data
            }
            if rows not in before:
                append([("seen", self.data, self.run, {"rows": rows}, None)])
        if before and rows not in before:
            warn(
                f"the rows of {self.data!r} are not those that were counted under this name before: what was spent on "
                "them still counts; if they are other people, give them another name"
            )
        for name in sorted(elsewhere):
            warn(
                f"these rows were counted as {name!r} before, and now as {self.data!r}: if both have one budget, "
                f"declare them as one (sordino ledger join {name} {self.data})"
            )

    def check(self, data: str | None, unit: str) -> None:
        """Refuse to pay for another data set (None if it has no name) or another unit than it was reserved for."""
        with self.file.reading() as entries:
            found = entries.of_run(self.run)
        planned(found)  # or it is no run of this ledger
        if data is not None and data != self.data:
            raise LedgerError(f"this account is for {self.data!r}, and cannot pay for a run on {data!r}")
        reserved = found[0].body["unit"]
        if unit != reserved:
            raise LedgerError(
                f"this account protects one {reserved}, and cannot pay for a run that protects one {unit}: reserve "
                f"with unit={unit!r}"
            )

    @property
    def before(self) -> str | None:
        """Under which name was paid what prepared the run, as it was said when this was reserved."""
        with self.file.reading() as entries:
            found = entries.of_run(self.run)
        planned(found)  # or it is no run of this ledger
        return before_of(found[0])

    @property
    def identity(self) -> str:
        """What tells its ledger from every other."""
        with self.file.reading() as entries:
            return entries.identity()

    def statement(self) -> dict[str, Any]:
        """For a certificate: which entry of which ledger it was that counted the run."""
        from sordino.ledger.statement import caps_of, joined  # which reads accounts

        with self.file.reading() as entries:
            capped = bool(caps_of(entries, joined(entries, self.data)))
            where = {"file": self.file.path.name, "capped": capped}
            return {"data": self.data, "run": self.run, **where, **entries.head().to_json()}


class _Paying(Ledger):
    """What one process charges, each charge in the file before it is made."""

    def __init__(self, account: Account) -> None:
        super().__init__()
        self._account = account

    def charge(self, key: str, event: DpEvent) -> bool:
        if not self.is_copy:  # which is refused below
            self._account.spend(key, event)
        return super().charge(key, event)


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def is_closed(found: Sequence[Entry]) -> bool:
    return any(entry.kind == "close" for entry in found)


def spent_so_far(found: Iterable[Entry]) -> Ledger:
    """All that a run has paid, by key."""
    spent = Ledger()
    for entry in found:
        if entry.kind == PAYMENT:
            spent.absorb(entry.body)
    return spent


def planned(found: Sequence[Entry]) -> DpEvent:
    if not found or found[0].kind != "reserve":
        raise LedgerError("the ledger knows of no such run: reserve it first")
    return event_from_json(found[0].body["event"])


def before_of(reserved: Entry) -> str | None:
    """Under which name was paid what prepared a run; None if nothing did."""
    said = reserved.body.get("before")
    return None if said is None else str(said)


def is_preparation(found: Sequence[Entry], data: str | None) -> bool:
    """Whether these are the entries of something that prepares runs on this data set."""
    return bool(found) and found[0].data == data and found[0].body.get("kind") == "bounds"


def beyond(plan: DpEvent, spent: DpEvent) -> bool:
    """Whether something was spent that was not planned, or more often than planned."""
    allowed = leaves(plan)
    return any(
        count > sum(times for known, times in allowed if known == leaf) for leaf, count in leaves(spent)
    )


def parted_pieces(event: DpEvent) -> DpEvent:
    """What of an event is known by its epsilon and delta alone."""
    return compose([repeat(piece, times) for piece, times in parted(event)[1]])


def below(total: Vector, spent: Vector) -> bool:
    """Whether something costs less than what was spent, at any order, but for rounding."""
    return bool((total < spent * (1 - 1e-9)).any())


def costs_less(total: DpEvent, price: Vector, spent: DpEvent) -> bool:
    """Whether ``total``, whose RDP is ``price``, leaves out something of what was spent: at an order, or of what is
    known by its epsilon and delta alone, which has no RDP."""
    return below(price, curve_from(curve_of(spent))) or beyond(parted_pieces(total), parted_pieces(spent))


def may_cost_less(found: Sequence[Entry]) -> bool:
    """A selection pays for whatever may come; abandoned, it costs the runs that were made, and they alone."""
    return bool(found[0].body["kind"] == "selection")
