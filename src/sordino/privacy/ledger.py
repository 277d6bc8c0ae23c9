"""What one run has released so far. What outlives runs is in ``sordino.ledger``."""

from __future__ import annotations

import contextlib
import json
from bisect import bisect_right
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sordino.privacy.events import compose, event_from_json, event_to_json, repeat

if TYPE_CHECKING:
    from dp_accounting import DpEvent

_FORMAT = 1


class Ledger:
    """Every charge of one run, each under a key that makes it idempotent.

    A step replayed after a crash is the same release, not a second one: charging a key again with the same
    event changes nothing. Keys that end in a number (`"step:17"`) are kept as ranges and equal events are
    counted, so thousands of steps take a few bytes; a charge costs a few microseconds.

    Guarantee: what it holds is what was spent, by all gates that were given this ledger.
    ``price(ledger.event, delta)`` of ``sordino.privacy`` says what that comes to.

    >>> from sordino.privacy.events import poisson_gaussian
    >>> ledger = Ledger()
    >>> [ledger.charge(f"step:{i}", poisson_gaussian(1.1, 0.01)) for i in (0, 1, 1)]
    [True, True, False]
    >>> ledger.charges
    2
    """

    def __init__(self) -> None:
        self._events: list[DpEvent] = []
        self._counts: list[int] = []
        self._index_by_hash: dict[DpEvent, int] = {}
        self._index_by_json: dict[str, int] = {}
        self._named: dict[str, int] = {}
        self._numbered: dict[str, _Ranges] = {}
        self._last: tuple[DpEvent | None, int] = (None, -1)
        self._is_copy = False

    @property
    def is_copy(self) -> bool:
        """Whether it was copied or pickled: then it can be read but not charged."""
        return self._is_copy

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_is_copy": True}

    def charge(self, key: str, event: DpEvent) -> bool:
        """Record `event` under `key`. True if it is new, False if this very charge was made before.

        The same key with another event raises `ValueError`: two different releases cannot be one. So does a charge to
        a copy (another process has one): it would be lost to the original.
        """
        if self._is_copy:
            raise ValueError(
                "this is a copy of a ledger, and what is charged to it would be lost to the original: stay in one "
                "process (n_jobs=1), or give each its own ledger and add up"
            )
        event_known, index = self._last
        if event is not event_known:
            index = self._index_of(event)
            self._last = (event, index)
        prefix, number = _split(key)
        if number is None:
            found = self._named.setdefault(key, -1)
            if found == -1:
                self._named[key] = index
        else:
            ranges = self._numbered.get(prefix)
            if ranges is None:
                ranges = self._numbered[prefix] = _Ranges()
            found = ranges.add(number, index)
        if found == -1:
            self._counts[index] += 1
            return True
        if found != index:
            raise ValueError(f"{key!r} was already charged with a different event: give each release a key")
        return False

    @property
    def charges(self) -> int:
        """How many charges were made, replays not counted."""
        return sum(self._counts)

    @property
    def event(self) -> DpEvent:
        """All charges as one event, equal ones grouped."""
        return compose([repeat(e, n) for e, n in zip(self._events, self._counts, strict=True) if n > 0])

    def to_state(self) -> dict[str, Any]:
        """A plain dict for checkpoints, compact and JSON-able."""
        return {
            "format": _FORMAT,
            "events": [event_to_json(event) for event in self._events],
            "numbered": {prefix: ranges.to_lists() for prefix, ranges in self._numbered.items()},
            "named": dict(self._named),
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Ledger:
        """The ledger that `to_state` described."""
        if state.get("format") != _FORMAT:
            raise ValueError(
                f"ledger state of format {state.get('format')!r} cannot be read: expected {_FORMAT}"
            )
        ledger = cls()
        try:
            for data in state["events"]:
                ledger._index_of(event_from_json(data))
            if len(ledger._events) != len(state["events"]):
                raise ValueError("ledger state lists an event twice")
            for prefix, lists in state["numbered"].items():
                ranges = ledger._numbered[prefix] = _Ranges()
                for first, last, index in lists:
                    ranges.append(first, last, index)
                    ledger._counts[index] += last - first + 1
            for key, index in state["named"].items():
                ledger._named[key] = index
                ledger._counts[index] += 1
        except (KeyError, IndexError, TypeError, AttributeError) as err:
            raise ValueError(f"ledger state is malformed: {err!r}") from err
        return ledger

    def absorb(self, state: Mapping[str, Any]) -> None:
        """Charge everything that another one holds, under its keys; given what its `to_state` says."""
        if state.get("format") != _FORMAT:
            raise ValueError(
                f"ledger state of format {state.get('format')!r} cannot be read: expected {_FORMAT}"
            )
        try:
            events = [event_from_json(data) for data in state["events"]]
            for prefix, lists in state["numbered"].items():
                for first, last, index in lists:
                    if not 0 <= first <= last or index < 0:
                        raise ValueError("ledger state has ranges that are none")
                    self._charge_all(prefix, first, last, events[index])
            for key, index in state["named"].items():
                self.charge(key, events[index])
        except (KeyError, IndexError, TypeError, AttributeError) as err:
            raise ValueError(f"ledger state is malformed: {err!r}") from err

    def _charge_all(self, prefix: str, first: int, last: int, event: DpEvent) -> None:
        if not self._is_copy:
            index = self._index_of(event)
            if self._numbered.setdefault(prefix, _Ranges()).add_free(first, last, index):  # thousands at once
                self._counts[index] += last - first + 1
                return
        for number in range(first, last + 1):
            self.charge(f"{prefix}:{number}", event)

    def _index_of(self, event: DpEvent) -> int:
        try:
            known = self._index_by_hash.get(event)
        except TypeError:  # compositions hold a list and have no hash
            known = None
        if known is not None:
            return known
        # Also the check that a certificate can state this event: better refused now than after training.
        as_json = _json_of(event)
        index = self._index_by_json.setdefault(as_json, len(self._events))
        if index == len(self._events):
            self._events.append(event)
            self._counts.append(0)
            with contextlib.suppress(TypeError):
                self._index_by_hash[event] = index
        return index


def _json_of(event: DpEvent) -> str:
    try:
        return _known_json_of(event)
    except TypeError:  # it has no hash
        return json.dumps(event_to_json(event), sort_keys=True)


@lru_cache(maxsize=256)
def _known_json_of(event: DpEvent) -> str:
    return json.dumps(event_to_json(event), sort_keys=True)


def _split(key: str) -> tuple[str, int | None]:
    """`"step:17"` as ("step", 17); keys whose number would not print back the same are plain names."""
    prefix, colon, tail = key.rpartition(":")
    if colon and tail.isascii() and tail.isdecimal() and (tail[0] != "0" or tail == "0"):
        return prefix, int(tail)
    return key, None


class _Ranges:
    """A map from whole numbers to small indices, stored as sorted, disjoint, maximal ranges."""

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        self._indices: list[int] = []

    def add(self, number: int, index: int) -> int:
        """Map `number` to `index` and return -1, or return the index it already has."""
        at = bisect_right(self._firsts, number) - 1  # the last range that starts at or before `number`
        if at >= 0 and number <= self._lasts[at]:
            return self._indices[at]
        extends_left = at >= 0 and self._lasts[at] == number - 1 and self._indices[at] == index
        right = at + 1
        extends_right = (
            right < len(self._firsts) and self._firsts[right] == number + 1 and self._indices[right] == index
        )
        if extends_left and extends_right:
            self._lasts[at] = self._lasts[right]
            del self._firsts[right], self._lasts[right], self._indices[right]
        elif extends_left:
            self._lasts[at] = number
        elif extends_right:
            self._firsts[right] = number
        else:
            self._firsts.insert(right, number)
            self._lasts.insert(right, number)
            self._indices.insert(right, index)
        return -1

    def add_free(self, first: int, last: int, index: int) -> bool:
        """Map all of ``first`` to ``last`` to ``index`` if none of them has one yet; else do nothing and say so."""
        at = (
            bisect_right(self._firsts, last) - 1
        )  # the last range that starts at or before the end of this one
        if at >= 0 and self._lasts[at] >= first:
            return False
        self.add(first, index)
        at = bisect_right(self._firsts, first) - 1
        if last > self._lasts[at]:  # what follows, if it joined up, was there before
            self._lasts[at] = last
            right = at + 1
            if (
                right < len(self._firsts)
                and self._firsts[right] == last + 1
                and self._indices[right] == index
            ):
                self._lasts[at] = self._lasts[right]
                del self._firsts[right], self._lasts[right], self._indices[right]
        return True

    def append(self, first: int, last: int, index: int) -> None:
        if not 0 <= first <= last or index < 0 or (self._lasts and first <= self._lasts[-1]):
            raise ValueError("ledger state has overlapping or unordered ranges")
        self._firsts.append(first)
        self._lasts.append(last)
        self._indices.append(index)

    def to_lists(self) -> list[list[int]]:
        return [list(entry) for entry in zip(self._firsts, self._lasts, self._indices, strict=True)]
