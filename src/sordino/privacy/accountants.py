"""What events cost: epsilon at a given delta, by named accountants, under the zero-out relation.

Samples without replacement alone are priced under substitution, and never together with anything else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sordino.named import ACCOUNTANTS
from sordino.privacy import dp
from sordino.privacy.budget import check_delta
from sordino.privacy.events import compose, leaves, parted, repeat
from sordino.privacy.loss_distribution import (
    COARSER,
    SMALLEST_DELTA,
    as_selection,
    is_poisson_gaussian,
    pld_epsilon,
    pld_supports,
    squared_mu,
)
from sordino.privacy.renyi import (
    MOMENTS_ORDERS,
    ORDERS,
    ZERO_OUT,
    Vector,
    epsilon_from_rdp,
    rdp_epsilon,
    rdp_of,
    relation_of,
)

if TYPE_CHECKING:
    from dp_accounting import DpEvent

CONVERSIONS = ("basic", "improved")
NO_CONVERSION = "none"  # what a PLD guarantee records: it reads epsilon off the distribution

# "auto" asks PLD only where it is fast and its gain matters: both limits are about time, not validity.
# Measured on one core: 0.3 s at noise 1, 1 s at 0.6, 2 s below; each distinct sampled mechanism counts.
AUTO_LARGEST_EPSILON = 50.0
AUTO_MOST_MECHANISMS = 4


@dataclass(frozen=True)
class Guarantee:
    """(epsilon, delta)-DP per unit, and how it was proved. Epsilon is infinite where nothing is private.

    `zcdp_rho` and `gdp_mu` stand beside it where they exist: for compositions of plain Gaussians, which are
    rho-zCDP with rho = sum 1/(2 z^2) (Bun and Steinke 2016) and mu-GDP with mu = sqrt(sum 1/z^2) (Dong,
    Roth and Su 2022).
    """

    epsilon: float
    delta: float
    accountant: str
    conversion: str
    relation: str = ZERO_OUT
    zcdp_rho: float | None = None
    gdp_mu: float | None = None


def price(event: DpEvent, delta: float, accountant: str = "auto", conversion: str = "improved") -> Guarantee:
    """The guarantee of `event`, a plan fixed in advance, at `delta`.

    Neighbouring data sets differ by zeroing out one unit's contribution (`REPLACE_SPECIAL`), so n is public; for
    samples without replacement by substituting one (`REPLACE_ONE`), which `rdp` prices.

    - `rdp`: Renyi DP over a fixed set of orders (Mironov 2017; Mironov, Talwar and Zhang 2019) with the
      `improved` (Canonne, Kamath and Steinke 2020) or the `basic` conversion.
    - `pld`: privacy loss distributions, pessimistic discretisation (Doroshenko et al. 2022); the closed form
      of Balle and Wang (2018) for plain Gaussians; a private selection from the profile of one of its runs (Koskela,
      Redberg and Wang 2024). Takes no conversion.
    - `moments`: Abadi et al. (2016), integer orders 2 to 33; its conversion is always `basic`.
    - `auto`: the smaller of `rdp` and `pld`. Both hold for the same plan, so their minimum does. PLD is left
      out where it does not apply (other mechanisms, delta below 1e-12) or would be slow (RDP epsilon above
      50, more than 4 distinct sampled mechanisms).

    >>> from sordino.privacy.events import poisson_gaussian, repeat
    >>> round(price(repeat(poisson_gaussian(1.5, 0.04), 2250), 1e-5, "rdp").epsilon, 4)
    7.3291
    """
    delta = check_delta(delta)
    check_names(accountant, conversion)
    mu_squared, relation = squared_mu(event), relation_of(event)
    rho = None if mu_squared is None else mu_squared / 2
    mu = None if mu_squared is None else math.sqrt(mu_squared)
    epsilon, by, conversion = ACCOUNTANTS[accountant](event, delta, conversion)
    return Guarantee(epsilon, delta, by, conversion, relation, rho, mu)


Priced = tuple[float, str, str]  # epsilon, and the accountant and the conversion that found it


def by_moments(event: DpEvent, delta: float, conversion: str) -> Priced:
    if parted(event)[1]:
        raise ValueError(
            "the moments accountant of the papers has no price for what is known by its epsilon and delta alone: use "
            "rdp, pld or auto"
        )
    rdp = rdp_of(event, MOMENTS_ORDERS)
    return epsilon_from_rdp(rdp, delta, "basic", MOMENTS_ORDERS), "moments", "basic"


def by_pld(event: DpEvent, delta: float, conversion: str) -> Priced:
    return pld_epsilon(event, delta), "pld", NO_CONVERSION


def by_rdp(event: DpEvent, delta: float, conversion: str) -> Priced:
    return rdp_epsilon(event, delta, conversion), "rdp", conversion


def by_the_tighter(event: DpEvent, delta: float, conversion: str) -> Priced:
    found = by_rdp(event, delta, conversion)
    if not worth_pld(event, delta, found[0]):
        return found
    return min(found, by_pld(event, delta, conversion), key=lambda priced: priced[0])


def check_names(accountant: str, conversion: str) -> None:
    """Raise a `ValueError` for names we do not know, or a conversion where RDP needs one."""
    if accountant not in ACCOUNTANTS:
        raise ValueError(ACCOUNTANTS.unknown(accountant))
    if accountant == "pld" and conversion == NO_CONVERSION:
        return  # as a PLD guarantee states it
    if conversion not in CONVERSIONS:
        raise ValueError(f"unknown conversion {conversion!r}: choose one of {', '.join(CONVERSIONS)}")


def worth_pld(event: DpEvent, delta: float, rdp_epsilon: float) -> bool:
    """Whether "auto" asks PLD about `event`, given what RDP says of it."""
    parts = leaves(event)
    if delta < SMALLEST_DELTA or not pld_supports(event):
        return False
    if any(isinstance(leaf, dp.NonPrivateDpEvent) for leaf, _ in parts):
        return False
    selection = as_selection(event)
    if selection is not None:  # each of its runs is priced, and at a smaller delta
        return worth_pld(selection.event, delta / selection.mean, rdp_epsilon)
    if squared_mu(event) is not None:
        return True  # closed form
    sampled = sum(is_poisson_gaussian(leaf) for leaf, _ in parts)
    return rdp_epsilon <= AUTO_LARGEST_EPSILON and sampled <= AUTO_MOST_MECHANISMS


@dataclass
class EpsilonCurve:
    """Epsilon spent after each step of a fixed plan: `curve(steps)`, cheap enough to call while training.

    The accountant is chosen once, for the whole plan, so values never fall as steps grow and
    `curve(planned_steps) == total.epsilon`. RDP and moments take well under a millisecond a call. PLD takes
    about 20 to 60 ms: before the last step it uses a coarser (still pessimistic) grid, and never shows
    more than the plan's own total, which bounds every prefix of the plan. Values are memoised.
    """

    step: DpEvent
    planned_steps: int
    total: Guarantee
    before: DpEvent | None = None  # released before the first step
    _rdp_of_step: Vector | None = field(default=None, repr=False)
    _orders: tuple[float, ...] = field(default=ORDERS, repr=False)
    _known: dict[int, float] = field(default_factory=dict, repr=False)

    def __call__(self, steps: int) -> float:
        if steps < 0 or steps != int(steps):
            raise ValueError(f"steps must be a whole number >= 0, not {steps}")
        if steps not in self._known:
            self._known[steps] = self._compute(int(steps))
        return self._known[steps]

    def _compute(self, steps: int) -> float:
        if steps == 0 and self.before is None:
            return 0.0
        if steps == self.planned_steps:
            return self.total.epsilon
        if self._rdp_of_step is not None:
            return epsilon_from_rdp(
                steps * self._rdp_of_step, self.total.delta, self.total.conversion, self._orders
            )
        if self.total.accountant != "pld":
            total = self.total
            return price(self._released(steps), total.delta, total.accountant, total.conversion).epsilon
        if steps > self.planned_steps:
            return pld_epsilon(self._released(steps), self.total.delta)
        so_far = pld_epsilon(self._released(steps), self.total.delta, coarser=COARSER)
        return min(so_far, self.total.epsilon)

    def _released(self, steps: int) -> DpEvent:
        taken = repeat(self.step, steps)
        return taken if self.before is None else compose([self.before, taken])


def epsilon_after(
    step: DpEvent,
    delta: float,
    *,
    planned_steps: int,
    accountant: str = "auto",
    conversion: str = "improved",
    before: DpEvent | None = None,
) -> EpsilonCurve:
    """A callable `steps -> epsilon` for a plan of `planned_steps` equal steps, each charging `step`; what was released
    ``before`` them counts from the start.

    >>> from sordino.privacy.events import poisson_gaussian
    >>> curve = epsilon_after(poisson_gaussian(1.5, 0.04), 1e-5, planned_steps=2250, accountant="rdp")
    >>> curve(0) < curve(1000) < curve(2250) == curve.total.epsilon
    True
    """
    if planned_steps < 1 or planned_steps != int(planned_steps):
        raise ValueError(f"planned_steps must be a whole number >= 1, not {planned_steps}")
    if before is not None:
        plan = compose([before, repeat(step, planned_steps)])
        return EpsilonCurve(step, planned_steps, price(plan, delta, accountant, conversion), before)
    total = price(repeat(step, planned_steps), delta, accountant, conversion)
    orders = _ORDERS.get(total.accountant)
    if orders is None:
        return EpsilonCurve(step, planned_steps, total)
    return EpsilonCurve(step, planned_steps, total, None, rdp_of(step, orders), orders)


_ORDERS = {"moments": MOMENTS_ORDERS, "rdp": ORDERS}  # of those that price a step once and multiply
