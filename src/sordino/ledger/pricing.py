"""What everything on one data set comes to: curves of Renyi DP that add up, and caps that no plan may pass.

A cap is kept by a filter (Feldman and Zrnic 2021): the RDP of all runs at *one* order, fixed when the cap was first
set, stays below what the cap allows there. So the next plan may depend on everything that was seen before. PLD is
tighter for one plan, but proves nothing about plans that follow results, and is never asked here.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from sordino.ledger.chain import LedgerError
from sordino.privacy.budget import check_delta, check_epsilon
from sordino.privacy.certificate import UNITS
from sordino.privacy.events import parted
from sordino.privacy.renyi import ORDERS, Vector, epsilon_from_rdp, pure_rdp, rdp_of
from sordino.registry import is_number, said

if TYPE_CHECKING:
    from dp_accounting import DpEvent

ORDERS_DIGEST = hashlib.sha256(repr(ORDERS).encode()).hexdigest()[:16]


def curve_of(event: DpEvent) -> bytes:
    """The RDP of an event at all our orders, as an entry keeps it: priced once, and then only added. What is known by
    its epsilon and delta alone is left out, and stands beside it (`pieces_of`)."""
    return np.asarray(rdp_of(parted(event)[0]), dtype="<f8").tobytes()


def pieces_of(event: DpEvent) -> list[Piece]:
    """What of an event is known by its epsilon and delta alone."""
    return [Piece(each.epsilon, each.delta) for each, times in parted(event)[1] for _ in range(times)]


def pieces_to_json(event: DpEvent) -> dict[str, list[list[float]]]:
    """The same for an entry, so that adding up need not read events; nothing where there is none."""
    found = [[each.epsilon, each.delta] for each in pieces_of(event)]
    return {"pieces": found} if found else {}


def pieces_in(body: Mapping[str, Any]) -> tuple[tuple[float, float], ...]:
    return tuple((epsilon, delta) for epsilon, delta in body.get("pieces", ()))


def curve_from(blob: bytes) -> Vector:
    curve: Vector = np.frombuffer(blob, dtype="<f8").astype(np.float64)
    if len(curve) != len(ORDERS) or np.isnan(curve).any() or (curve < 0).any():
        raise LedgerError("a price in the ledger is not one: it was tampered with")
    return curve


def two_hops(curve: Vector) -> Vector:
    """RDP for neighbours of neighbours: what protects a user zeroed out as a whole says of one of their examples, with
    which the user is not zeroed out but somebody else (Mironov 2017, corollary 4).

    D_a(P || Q) <= (a - 1/2) / (a - 1) D_2a(P || R) + D_(2a-1)(R || Q). Between our orders the next larger one is taken.
    """
    orders = np.array(ORDERS)

    def at(wanted: Vector) -> Vector:
        places = np.searchsorted(orders, wanted)
        padded = np.append(curve, math.inf)
        found: Vector = padded[places]
        return found

    hops: Vector = (orders - 0.5) / (orders - 1) * at(2 * orders) + at(2 * orders - 1)
    return hops


@dataclass(frozen=True)
class Piece:
    """Something released elsewhere of which only (epsilon, delta) is known, such as a private histogram."""

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", check_epsilon(self.epsilon))
        object.__setattr__(self, "delta", 0.0 if self.delta == 0 else check_delta(self.delta))

    @property
    def curve(self) -> Vector:
        """Up to its delta it is pure: RDP at most epsilon, and at most order times epsilon^2 / 2 (Bun and Steinke 2016,
        proposition 1.4 and lemma 8.8)."""
        return _pure(self.epsilon)

    def two_hops(self) -> tuple[float, float]:
        """Epsilon and delta for neighbours of neighbours. Delta may be 1, or more: then nothing is promised."""
        return 2 * self.epsilon, self.delta * (1 + math.exp(min(self.epsilon, 700.0)))


def _pure(epsilon: float) -> Vector:
    curve: Vector = pure_rdp(epsilon, np.array(ORDERS))
    return curve


@dataclass
class Spent:
    """What was spent on a data set, by the unit that each run protects."""

    curves: dict[str, Vector] = field(default_factory=lambda: {unit: np.zeros(len(ORDERS)) for unit in UNITS})
    pieces: dict[str, list[Piece]] = field(default_factory=lambda: {unit: [] for unit in UNITS})

    def add(self, unit: str, curve: Vector, times: int = 1, pieces: Sequence[Piece] = ()) -> None:
        self.curves[unit] = self.curves[unit] + times * curve
        self.pieces[unit] += [piece for piece in pieces for _ in range(times)]

    def copy(self) -> Spent:
        return Spent(dict(self.curves), {unit: list(pieces) for unit, pieces in self.pieces.items()})

    def add_piece(self, unit: str, piece: Piece) -> None:
        self.pieces[unit].append(piece)

    def has(self, unit: str) -> bool:
        return bool(self.curves[unit].any() or self.pieces[unit])

    def about(self, unit: str) -> tuple[Vector, float]:
        """RDP, and delta beside it, of everything, for neighbours that differ in one ``unit``.

        Deltas of pieces add up beside the RDP (approximate RDP composes so, also where the next piece follows from what
        was seen: Whitehouse, Ramdas, Rogers and Wu 2023, theorem 1).
        """
        pairs = self._pairs(unit)
        if pairs is None:
            return np.full(len(ORDERS), math.inf), 0.0
        curve = self.curves[unit]
        if unit == "example" and self.curves["user"].any():
            curve = curve + two_hops(self.curves["user"])
        for epsilon, _ in pairs:
            curve = curve + _pure(epsilon)
        return curve, math.fsum(delta for _, delta in pairs)

    def _pairs(self, unit: str) -> list[tuple[float, float]] | None:
        """Epsilon and delta of the pieces, for neighbours that differ in one ``unit``; None if there is no bound."""
        if unit == "user" and self.has("example"):
            return None  # a user may have any number of examples
        pairs = [(piece.epsilon, piece.delta) for piece in self.pieces[unit]]
        return pairs + [piece.two_hops() for piece in self.pieces["user"] if unit == "example"]

    def epsilon(self, unit: str, delta: float) -> float:
        """Of all of it together, as if every plan had been laid down before the first run."""
        curve, aside = self.about(unit)
        left = delta - aside
        by_rdp = epsilon_from_rdp(curve, left, "improved") if left > 0 else math.inf
        added = self._added(unit, delta)
        return by_rdp if added is None else min(by_rdp, added)

    def pure_epsilon(self, unit: str) -> float | None:
        """The same at no delta: known of nothing, of pure pieces alone, and where nothing is private; else None."""
        added = self._added(unit, 0.0)
        return math.inf if added is None and not np.isfinite(self.about(unit)[0]).any() else added

    def _added(self, unit: str, delta: float) -> float | None:
        """Epsilons added up, where there are no runs and ``delta`` is enough for the pieces."""
        pairs = self._pairs(unit)
        if pairs is None or any(self.curves[each].any() for each in UNITS):
            return None
        if math.fsum(of_piece for _, of_piece in pairs) > delta:
            return None
        return math.fsum(epsilon for epsilon, _ in pairs)


@dataclass(frozen=True)
class Cap:
    """(epsilon, delta) that everything on a data set together stays within, for one unit of privacy.

    ``aside`` is the part of delta that is kept for pieces of which only (epsilon, delta) is known. It and the order
    are fixed with the cap, since a filter must not depend on what was seen.
    """

    epsilon: float
    delta: float
    unit: str
    order: float
    aside: float = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", check_epsilon(self.epsilon))
        object.__setattr__(self, "delta", check_delta(self.delta))
        if self.unit not in UNITS:
            raise ValueError(f"the unit of a cap is one of {', '.join(UNITS)}, not {self.unit!r}")
        check_aside(self.aside, self.delta)
        if self.order not in ORDERS:
            raise ValueError(f"{self.order:g} is none of the orders at which events are priced")

    @property
    def place(self) -> int:
        return ORDERS.index(self.order)

    @property
    def allowed(self) -> float:
        """The RDP at the cap's order that comes to its epsilon."""
        delta, order = self.delta - self.aside, self.order
        return self.epsilon - math.log1p(-1 / order) + math.log(delta * order) / (order - 1)

    def epsilon_of(self, spent: Spent) -> float:
        """Epsilon at the cap's delta, by its one order; infinite where pieces need more delta than is kept for them."""
        curve, aside = spent.about(self.unit)
        if aside > self.aside:
            return math.inf
        rdp = curve[self.place : self.place + 1]
        return epsilon_from_rdp(rdp, self.delta - self.aside, "improved", (self.order,))

    def share_of(self, spent: Spent) -> float:
        """Which part of the cap is taken, from 0 to 1, or more where it is passed. Shares of runs add up."""
        curve, aside = spent.about(self.unit)
        rdp = float(curve[self.place])
        if rdp == 0 and aside == 0:
            return 0.0
        return math.inf if self.allowed <= 0 or aside > self.aside else rdp / self.allowed

    def admits(self, spent: Spent) -> bool:
        return self.epsilon_of(spent) <= self.epsilon

    def to_json(self) -> dict[str, Any]:
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "unit": self.unit,
            "order": self.order,
            "aside": self.aside,
        }


def check_aside(aside: float, delta: float) -> None:
    if not (is_number(aside) and 0 <= aside < delta):
        raise ValueError(
            f"what is kept aside is a part of delta: it must be 0 or more, and below delta, not {said(aside)}"
        )


def best_order(epsilon: float, delta: float) -> float:
    """The order at which a cap has room for most Gaussian releases: RDP that it allows there, over the order.

    >>> best_order(3.0, 1e-5)
    7.5
    """
    orders = np.array(ORDERS)
    allowed = epsilon - np.log1p(-1 / orders) + np.log(delta * orders) / (orders - 1)
    best = int(np.argmax(allowed / orders))
    if allowed[best] <= 0:
        raise ValueError(
            f"a cap of epsilon {epsilon:g} at delta {delta:g} has no room for anything: take a larger one"
        )
    return ORDERS[best]
