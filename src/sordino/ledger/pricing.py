"""What everything on one data set comes to: curves of Renyi DP that add up, and caps that no plan may pass.

A cap is kept by a filter (Feldman and Zrnic 2021): the RDP of all runs at *one* order, fixed when the cap was first
set, stays below what the cap allows there. So the next plan may depend on everything that was seen before. PLD is
tighter for one plan, but proves nothing about plans that follow results, and is never asked here.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from sordino.privacy.budget import check_delta, check_epsilon
from sordino.privacy.certificate import UNITS
from sordino.privacy.renyi import ORDERS, Vector, epsilon_from_rdp, rdp_of

if TYPE_CHECKING:
    from dp_accounting import DpEvent

ORDERS_DIGEST = hashlib.sha256(repr(ORDERS).encode()).hexdigest()[:16]


def curve_of(event: DpEvent) -> bytes:
    """The RDP of an event at all our orders, as an entry keeps it: priced once, and then only added."""
    return np.asarray(rdp_of(event), dtype="<f8").tobytes()


def curve_from(blob: bytes) -> Vector:
    curve: Vector = np.frombuffer(blob, dtype="<f8").astype(np.float64)
    if len(curve) != len(ORDERS) or np.isnan(curve).any() or (curve < 0).any():
        raise ValueError("a curve of the ledger is not one: it was tampered with")
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
        check_epsilon(self.epsilon)
        if self.delta != 0:
            check_delta(self.delta)

    @property
    def curve(self) -> Vector:
        """It is rho-zCDP with rho = epsilon^2 / 2, but for its delta (Bun and Steinke 2016, lemma 8.8)."""
        curve: Vector = np.minimum(self.epsilon, np.array(ORDERS) * self.epsilon**2 / 2)
        return curve

    def two_hops(self) -> Piece:
        return Piece(2 * self.epsilon, min(1.0, self.delta * (1 + math.exp(min(self.epsilon, 700.0)))))


@dataclass
class Spent:
    """What was spent on a data set, by the unit that each run protects."""

    curves: dict[str, Vector] = field(default_factory=lambda: {unit: np.zeros(len(ORDERS)) for unit in UNITS})
    pieces: dict[str, list[Piece]] = field(default_factory=lambda: {unit: [] for unit in UNITS})

    def add(self, unit: str, curve: Vector) -> None:
        self.curves[unit] = self.curves[unit] + curve

    def copy(self) -> Spent:
        return Spent(dict(self.curves), {unit: list(pieces) for unit, pieces in self.pieces.items()})

    def add_piece(self, unit: str, piece: Piece) -> None:
        self.pieces[unit].append(piece)

    def has(self, unit: str) -> bool:
        return bool(self.curves[unit].any() or self.pieces[unit])

    def about(self, unit: str) -> tuple[Vector, float]:
        """RDP, and delta beside it, of everything, for neighbours that differ in one ``unit``."""
        other = "user" if unit == "example" else "example"
        pieces = list(self.pieces[unit])
        curve = self.curves[unit]
        if self.has(other):
            if unit == "user":  # a user may have any number of examples
                return np.full(len(ORDERS), math.inf), 0.0
            curve = curve + two_hops(self.curves["user"])
            pieces += [piece.two_hops() for piece in self.pieces["user"]]
        return curve + sum((piece.curve for piece in pieces), np.zeros(len(ORDERS))), math.fsum(
            piece.delta for piece in pieces
        )

    def epsilon(self, unit: str, delta: float) -> float:
        """Of all of it together, as if every plan had been laid down before the first run."""
        curve, aside = self.about(unit)
        left = delta - aside
        return epsilon_from_rdp(curve, left, "improved") if left > 0 else math.inf


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
        check_epsilon(self.epsilon)
        check_delta(self.delta)
        if self.unit not in UNITS:
            raise ValueError(f"the unit of a cap is one of {', '.join(UNITS)}, not {self.unit!r}")
        if not 0 <= self.aside < self.delta:
            raise ValueError(f"the part of delta for pieces must lie below delta, not {self.aside:g}")
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


def total(runs: Sequence[tuple[str, Vector]], pieces: Sequence[tuple[str, Piece]] = ()) -> Spent:
    """Of runs, each with its unit and curve, and of pieces."""
    spent = Spent()
    for unit in UNITS:
        curves = [curve for of, curve in runs if of == unit]
        if curves:
            spent.add(unit, np.sum(curves, axis=0))
    for unit, piece in pieces:
        spent.add_piece(unit, piece)
    return spent
