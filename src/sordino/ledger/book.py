"""A ledger across runs: what is reserved and spent on which data set, and what may not be passed."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shlex
import unicodedata
from collections.abc import Callable
from decimal import ROUND_CEILING, Context
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sordino.ledger.account import Account, is_closed, is_preparation, may_cost_less, now, spent_so_far
from sordino.ledger.chain import PAYMENT, Head, LedgerError
from sordino.ledger.file import Entries, EntryFile, New
from sordino.ledger.pricing import (
    ORDERS_DIGEST,
    Cap,
    Piece,
    Spent,
    best_order,
    check_aside,
    curve_from,
    curve_of,
    pieces_of,
    pieces_to_json,
)
from sordino.ledger.statement import (
    DataSet,
    PieceRecord,
    RunRecord,
    caps_of,
    data_sets,
    joined,
    known_names,
    piece_records,
    run_records,
    spent_on,
)
from sordino.ledger.verification import check
from sordino.privacy.budget import check_delta, check_epsilon
from sordino.privacy.certificate import UNITS, show_epsilon, sordino_version
from sordino.privacy.events import event_to_json
from sordino.privacy.renyi import relation_of

if TYPE_CHECKING:
    from dp_accounting import DpEvent

KINDS = ("run", "federation", "grid", "selection", "audit", "bounds")
VARIABLE = "SORDINO_LEDGER"
_LONGEST_NAME = 200


class BeyondCap(LedgerError):
    """A plan does not fit under a cap. ``room`` is the RDP that is left at the cap's order, for the cap's unit."""

    def __init__(self, message: str, cap: Cap, room: float) -> None:
        super().__init__(message)
        self.cap, self.room = cap, room


class LedgerFile:
    """A file that counts what every run, federation, grid, selection and audit spends, data set by data set.

    Guarantee: a plan is admitted only if everything on its data set together, this plan included, stays within the cap,
    whatever other processes do meanwhile and however plans follow from what earlier ones showed (an RDP filter at one
    order; Feldman and Zrnic 2021). Data sets are what their owner calls them.

    Args:
        path: Of the file; it is made when the first entry is.

    >>> import tempfile, pathlib
    >>> from sordino.privacy import gaussian
    >>> book = LedgerFile(pathlib.Path(tempfile.mkdtemp()) / "ledger.db")
    >>> book.cap("patients", epsilon=1, delta=1e-6)
    >>> account = book.reserve("patients", gaussian(6.0), delta=1e-6)
    >>> try:
    ...     book.reserve("patients", gaussian(6.0), delta=1e-6)
    ... except BeyondCap as error:
    ...     print(str(error).split(": ")[1])
    1 run has spent or reserved epsilon 0.7698, and with this one it would be 1.0753
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file = EntryFile(self.path)

    # What is written ------------------------------------------------------------------------------------

    def reserve(
        self,
        data: str,
        event: DpEvent,
        *,
        run: str | None = None,
        kind: str = "run",
        unit: str = "example",
        delta: float | None = None,
        label: str = "",
        caveat: str = "",
        before: str | None = None,
    ) -> Account:
        """Set aside what a plan will spend, or raise `BeyondCap`. Under one ``run`` a plan is reserved once.

        ``delta`` is the one at which the run alone is priced, ``label`` what to say beside it, ``caveat`` what is to be
        said wherever it is counted (that its seed is known, for one), ``before`` the name under which something that
        prepared it was paid on the same data set: see `pay`.
        """
        name, run = checked_name(data), secrets.token_hex(8) if run is None else _checked_run(run)
        if kind not in KINDS:
            raise ValueError(f"what is counted is one of {', '.join(KINDS)}, not {kind!r}")
        _check_unit(unit)
        body = {
            "kind": kind,
            "unit": unit,
            "relation": relation_of(event),
            "event": event_to_json(event),
            "delta": None if delta is None else check_delta(delta),
            "label": str(label),
            "caveat": str(caveat),
            "orders": ORDERS_DIGEST,
            **pieces_to_json(event),
            **({} if before is None else {"before": _checked_run(before)}),
            "created": now(),
        }
        curve = curve_of(event)  # before the file is locked: it may take a moment
        self._create()
        with self._file.writing() as (entries, append):
            found = entries.of_run(run)
            if found:
                _check_same(found[0].data, found[0].body, name, body)
            else:
                _refuse_lookalike(entries, name)
                if before is not None and not is_preparation(entries.of_run(before), name):
                    raise LedgerError(
                        f"nothing that prepares a run was paid on {name!r} as {before}: pay for it first"
                    )
                _check_room(
                    entries, name, lambda spent: spent.add(unit, curve_from(curve), pieces=pieces_of(event))
                )
                append([("reserve", name, run, body, curve)])
        return Account(self._file, name, run)

    def pay(
        self, data: str, event: DpEvent, *, what: str, unit: str = "example", delta: float | None = None
    ) -> str:
        """Pay for something that prepares a run, such as private bounds, before it is released; or raise `BeyondCap`.

        The name under which it was paid, for the run's `Before`.
        """
        account = self.reserve(data, event, kind="bounds", unit=unit, delta=delta, label=what)
        account.spend("bounds", event)
        account.close()
        return account.run

    def check_paid(self, run: str, data: str, unit: str, event: DpEvent) -> None:
        """Raise `LedgerError` unless exactly this was paid under this name, for this data set and unit."""
        with self._file.reading() as entries:
            found = entries.of_run(run)
        said = found[0] if found else None
        if (
            said is None
            or said.kind != "reserve"
            or (said.data, said.body["unit"], said.body["kind"]) != (data, unit, "bounds")
            or spent_so_far(found).event != event
        ):
            raise LedgerError(
                f"what was released before this run is not paid in {self.path} as it should be, on {data!r} for one "
                f"{unit}: start afresh"
            )

    def resume(self, run: str) -> Account:
        """The account of a run that was reserved before."""
        with self._file.reading() as entries:
            found = entries.of_run(run)
        if not found or found[0].data is None:
            raise LedgerError(f"{self.path} knows of no run {run}: see sordino ledger runs")
        return Account(self._file, found[0].data, run)

    def cap(
        self, data: str, *, epsilon: float, delta: float, unit: str = "example", aside: float = 0.0
    ) -> None:
        """Set the most that all runs on a data set may spend together.

        It is kept at one order of RDP, which is the best one for this cap; once something is counted it stays.
        """
        name = checked_name(data)
        check_epsilon(epsilon)
        check_aside(aside, check_delta(delta))
        self._create()
        with self._file.writing() as (entries, append):
            _refuse_lookalike(entries, name)
            names = joined(entries, name)
            before = caps_of(entries, names).get(name)
            fresh = before is None or not entries.of_kinds("reserve", "outside", data=names)
            order = best_order(epsilon, delta - aside) if before is None or fresh else before.order
            append([("cap", name, None, Cap(epsilon, delta, unit, order, float(aside)).to_json(), None)])

    def join(self, *names: str) -> None:
        """Declare data sets as one, because they have people in common: what is spent on one counts for all."""
        if len({checked_name(name) for name in names}) < 2:
            raise ValueError("declare at least two data sets as one")
        self._create()
        with self._file.writing() as (entries, append):
            entries.of_kinds("join")  # or refuse what was edited
            append([("join", None, None, {"names": sorted(set(names))}, None)])

    def add(
        self,
        data: str,
        *,
        epsilon: float,
        delta: float = 0.0,
        what: str,
        unit: str = "example",
        released: bool = False,
    ) -> None:
        """Count something of another tool, of which only (epsilon, delta) is known: a private histogram.

        It is refused where a cap has no room for it, so ask before it is released; what is ``released`` already is
        counted in any case.
        """
        name, piece = checked_name(data), Piece(epsilon, delta)
        _check_unit(unit)
        body = {"epsilon": piece.epsilon, "delta": piece.delta, "unit": unit, "what": str(what)}
        body["created"] = now()
        self._create()
        with self._file.writing() as (entries, append):
            _refuse_lookalike(entries, name)
            if not released:
                _check_room(entries, name, lambda spent: spent.add_piece(unit, piece))
            append([("outside", name, None, body, None)])

    def close(self, run: str) -> None:
        """Close a run that will not go on: what it has spent stays spent, the rest of its reservation is free again."""
        account = self.resume(run)
        with self._file.reading() as entries:
            found = entries.of_run(run)
        if is_closed(found):
            raise LedgerError(f"run {run} is closed already")
        if may_cost_less(found):
            raise LedgerError(
                f"run {run} is a selection, and only where it was begun is it known how many runs it has made: repeat "
                "its command to go on with it, or to abandon it there"
            )
        account.close()

    def _create(self) -> None:
        def first(key: bytes) -> list[New]:
            about = {
                "ledger": secrets.token_hex(8),
                "key_sha256": hashlib.sha256(key).hexdigest(),
                "sordino_version": sordino_version(),
                "created": now(),
            }
            return [("begun", None, None, about, None)]

        self._file.create(first)

    # What is read ---------------------------------------------------------------------------------------

    @property
    def identity(self) -> str | None:
        """What tells this ledger from every other; None if it has not begun."""
        if not self.path.exists():
            return None
        with self._file.reading() as entries:
            return entries.identity()

    def begin(self) -> str:
        """Make the file, unless it is there; its identity."""
        self._create()
        with self._file.reading() as entries:
            return entries.identity()

    def knows(self, run: str) -> bool:
        """Whether a run was reserved here."""
        with self._file.reading() as entries:
            return bool(entries.of_run(run))

    def is_idle(self, run: str) -> bool:
        """Whether a run is reserved here and has paid for nothing so far."""
        with self._file.reading() as entries:
            found = entries.of_run(run)
        return bool(found) and not spent_so_far(found).charges

    def show(self, data: str | None = None, delta: float | None = None) -> list[DataSet]:
        """What was spent on each data set, or on one; raise `LedgerError` if entries were edited."""
        delta = None if delta is None else check_delta(delta)
        with self._file.reading() as entries:
            entries.check_links()
            if data is not None:
                self._check_known(entries, data)
            return data_sets(entries, data, delta)

    def runs(self, data: str | None = None) -> list[RunRecord]:
        """Every run that was counted, in the order in which they were reserved, by itself or under names joined."""
        with self._file.reading() as entries:
            entries.check_links()
            if data is not None:
                self._check_known(entries, data)
            return run_records(entries, None if data is None else joined(entries, data))

    def pieces(self, data: str | None = None) -> list[PieceRecord]:
        """Every release of another tool that was counted."""
        with self._file.reading() as entries:
            entries.check_links()
            if data is not None:
                self._check_known(entries, data)
            return piece_records(entries, None if data is None else joined(entries, data))

    def _check_known(self, entries: Entries, data: str) -> None:
        known = known_names(entries)
        if data not in known:
            names = ", ".join(sorted(known)) or "nothing"
            raise LedgerError(f"nothing was counted under {data!r} in {self.path}: it has {names}")

    def verify(self) -> Head:
        """Check that nothing was edited, removed, reordered or cut off; raise `LedgerError` that says what was."""
        with self._file.reading() as entries:
            check(entries, str(self.path))
            return entries.head()

    def holds(self, length: int, head: str) -> bool:
        """Whether this is the ledger that had this head when it had so many entries."""
        with self._file.reading() as entries:
            return entries.digest_at(length) == head

    def had_paid(self, run: str, length: int) -> bool:
        """Whether something of a run was paid, or it was closed, when the ledger had so many entries."""
        with self._file.reading() as entries:
            found = entries.of_run(run)
        return not found or any(e.number <= length for e in found if e.kind in (PAYMENT, "close"))

    def export(self) -> list[dict[str, Any]]:
        """All entries as plain data, without the fingerprints of rows, which stay here."""
        with self._file.reading() as entries:
            entries.check_links()
            return [
                {
                    "number": entry.number,
                    "kind": entry.kind,
                    "data": entry.data,
                    "run": entry.run,
                    "body": {} if entry.kind == "seen" else dict(entry.body),
                    "hash": entry.digest.hex(),
                }
                for entry in entries.all()
            ]


def ledger_of(given: Any) -> LedgerFile | Account | None:
    """What to count in: as told, else as the environment says; ``False`` for nothing at all."""
    if isinstance(given, LedgerFile | Account):
        return given
    if given is False:
        return None
    if given is None:
        given = os.environ.get(VARIABLE) or None
    elif not isinstance(given, str | Path) or not str(given):
        raise ValueError(f"ledger is the name of a file, a LedgerFile or an Account, not {given!r}")
    return None if given is None else LedgerFile(given)


def checked_name(name: str) -> str:
    if not isinstance(name, str) or not name.strip() or not name.isprintable() or len(name) > _LONGEST_NAME:
        raise ValueError(f"a data set needs a name of at most {_LONGEST_NAME} printable characters")
    plain = " ".join(unicodedata.normalize("NFKC", name).split())
    if name != plain:
        raise ValueError(f"two names that look alike would be two budgets: write {name!r} as {plain!r}")
    return name


def _checked_run(run: str) -> str:
    if not isinstance(run, str) or not run.strip() or not run.isprintable() or len(run) > _LONGEST_NAME:
        raise ValueError(f"a run needs a name of at most {_LONGEST_NAME} printable characters")
    return run


def _refuse_lookalike(entries: Entries, name: str) -> None:
    """A new name opens a new budget: not if it is an old one in other letters."""
    known = known_names(entries)
    if name in known:
        return
    for other in sorted(known):
        if _folded(other) == _folded(name):
            raise LedgerError(
                f"the ledger knows {other!r}, and {name!r} would have a budget of its own: write it as it was, or "
                "give a name that differs in more than capitals, spaces and dashes"
            )


def _folded(name: str) -> str:
    return re.sub(r"[\s_\-]", "", unicodedata.normalize("NFKC", name).casefold())


def _check_unit(unit: str) -> None:
    if unit not in UNITS:
        raise ValueError(f"the unit of privacy is one of {', '.join(UNITS)}, not {unit!r}")


def _check_same(data: str | None, reserved: Any, name: str, body: dict[str, Any]) -> None:
    if data != name or any(
        reserved.get(part) != body.get(part) for part in ("event", "unit", "kind", "before")
    ):
        raise LedgerError(
            "this run is in the ledger with another plan or another data set: start it afresh, under a new name"
        )


def _check_room(entries: Entries, name: str, add: Callable[[Spent], None]) -> None:
    """Raise `BeyondCap` if with what ``add`` adds a cap would be passed."""
    names = joined(entries, name)
    caps = caps_of(entries, names)
    if not caps:
        return
    before, runs = spent_on(entries, names)
    after = before.copy()
    add(after)
    for owner, cap in sorted(caps.items()):
        if not cap.admits(after):
            outside = len(entries.of_kinds("outside", data=names))
            raise BeyondCap(_no_room(owner, cap, before, after, runs, outside), cap, _room(cap, before))


def _room(cap: Cap, before: Spent) -> float:
    curve, _ = before.about(cap.unit)
    return cap.allowed - float(curve[cap.place])


def _rounded_up(delta: float) -> float:
    """To three digits, never down."""
    return float(Context(prec=3, rounding=ROUND_CEILING).create_decimal(repr(delta)))


def _no_delta(owner: str, cap: Cap, needed: float) -> str:
    """What to do where releases with a delta of their own, such as private bounds, need more of it than is kept."""
    known = "for releases of which only (epsilon, delta) is known"
    if needed >= cap.delta:
        return f"has no room for this: {known} all of its delta would be needed, and runs need some too"
    enough = f"{_rounded_up(needed):g}"
    unit = "" if cap.unit == "example" else f" --unit {cap.unit}"
    again = (
        f"sordino ledger cap {shlex.quote(owner)} --epsilon {cap.epsilon:.12g} --delta {cap.delta:.12g}{unit}"
    )
    return (
        f"keeps {cap.aside:g} of its delta aside {known}, and with this one it has to be {enough}: if it is yours to "
        f"set, {again} --aside {enough}"
    )


def _no_room(owner: str, cap: Cap, before: Spent, after: Spent, runs: int, pieces: int) -> str:
    of_cap = f"the cap of {owner!r} (epsilon {cap.epsilon:g} at delta {cap.delta:g}"
    of_cap += ")" if cap.unit == "example" else f", unit {cap.unit})"
    if cap.unit == "user" and after.has("example"):
        return f"{of_cap} has no room for this: what protects examples says nothing about users, who may have many"
    if after.about(cap.unit)[1] > cap.aside:
        return f"{of_cap} {_no_delta(owner, cap, after.about(cap.unit)[1])}"
    spent = show_epsilon(cap.epsilon_of(before))
    who = f"{runs} run{'' if runs == 1 else 's'}" + (f" and {pieces} of other tools" if pieces else "")
    have = f"{who} {'has' if runs == 1 and not pieces else 'have'} spent or reserved epsilon {spent}"
    so_far = have if runs or pieces else "nothing is spent"
    then = show_epsilon(cap.epsilon_of(after))
    return f"{of_cap} has no room for this: {so_far}, and with this one it would be {then}"
