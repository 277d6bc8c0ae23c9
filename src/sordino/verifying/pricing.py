"""What the events of a certificate cost, by every accountant that can price them: ours, dp-accounting's own, and where
there is one a closed form.

An accountant proves that the true epsilon is *at most* what it says, so a larger figure contradicts nobody: it is a
looser proof. What can contradict a claim is a bound from below, or the exact value.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from sordino.named import ACCOUNTANTS
from sordino.privacy import dp
from sordino.privacy.accountants import AUTO_LARGEST_EPSILON, AUTO_MOST_MECHANISMS, price
from sordino.privacy.events import event_from_json, known_delta, known_epsilon, leaves, parted
from sordino.privacy.loss_distribution import SMALLEST_DELTA, as_selection, is_poisson_gaussian
from sordino.privacy.renyi import SUBSTITUTION, rdp_epsilon, relation_of
from sordino.privacy.sealing import canonical
from sordino.privacy.selection import gamma_of

if TYPE_CHECKING:
    from dp_accounting import DpEvent

AT_MOST, AT_LEAST, EXACTLY = "at most", "at least", "exactly"
_OURS = "sordino"
_THEIRS = "dp-accounting"
_LEAST_NOISE = 0.4  # below, a distribution at dp-accounting's own grid takes minutes


@dataclass(frozen=True)
class Priced:
    """What one accountant says: the true epsilon is at most, at least or exactly ``epsilon``, or why it cannot say."""

    name: str
    says: str
    epsilon: float | None
    why_not: str | None = None

    @property
    def ours(self) -> bool:
        return self.name.startswith(_OURS)

    def to_json(self) -> dict[str, Any]:
        epsilon = "inf" if self.epsilon is not None and math.isinf(self.epsilon) else self.epsilon
        return {"accountant": self.name, "says": self.says, "epsilon": epsilon, "cannot": self.why_not}


class _Cannot(Exception):
    """An accountant has no price for these events."""


def prices(events: Mapping[str, Any], delta: float) -> tuple[Priced, ...]:
    """Every accountant's epsilon of ``events``, as JSON has them, at ``delta``."""
    return _prices(canonical(events), delta)


@lru_cache(maxsize=64)
def _prices(text: str, delta: float) -> tuple[Priced, ...]:
    events = json.loads(text)
    event = event_from_json(events)
    found = [
        _asked(f"{_OURS} {name}", AT_MOST, partial(_ours, event, delta, name))
        for name in ACCOUNTANTS
        if name != "auto"
    ]
    return (
        *found,
        _asked(f"{_THEIRS} rdp", AT_MOST, lambda: _their_rdp(event, delta)),
        _asked(f"{_THEIRS} pld", AT_MOST, lambda: _their_pld(event, delta)),
        *(_of_pieces(event, delta) if parted(event)[1] else ()),
        _asked(f"{_THEIRS} pld of one run", AT_MOST, lambda: _their_selection(event, delta)),
        _asked(f"{_THEIRS} pld, optimistic", AT_LEAST, lambda: _optimistic(event, delta)),
        _asked("closed form of Gaussians", EXACTLY, lambda: _closed_form(events, delta)),
    )


def _of_pieces(event: DpEvent, delta: float) -> Iterator[Priced]:
    """Two ways to price what is known by its epsilon and delta alone, of which our accountants know nothing."""
    yield _asked(f"{_THEIRS} pld, worst pairs", AT_MOST, lambda: _their_worst_pairs(event, delta))
    yield _asked(f"{_THEIRS} pld, and addition", AT_MOST, lambda: _added(event, delta))


def _asked(name: str, says: str, ask: Callable[[], float]) -> Priced:
    try:
        with _quiet():
            epsilon = float(ask())
    except (_Cannot, ValueError) as error:
        return Priced(name, says, None, " ".join(str(error).split()))
    except (ArithmeticError, MemoryError, RecursionError) as error:
        return Priced(name, says, None, f"it failed ({type(error).__name__})")
    if math.isnan(epsilon):
        return Priced(name, says, None, "it gave no number")
    return Priced(name, says, epsilon)


def _ours(event: DpEvent, delta: float, name: str) -> float:
    return price(event, delta, name).epsilon


# dp-accounting as it comes, with its own orders and its own grid --------------------------------------------------


def _relation(event: DpEvent) -> Any:
    relations = dp.NeighboringRelation
    return relations.REPLACE_ONE if relation_of(event) == SUBSTITUTION else relations.REPLACE_SPECIAL


def _their_rdp(event: DpEvent, delta: float) -> float:
    if parted(event)[1]:
        raise _Cannot("it has no price for such events")
    accountant = dp.rdp.RdpAccountant(neighboring_relation=_relation(event))
    try:
        return float(accountant.compose(event).get_epsilon(delta))
    except dp.UnsupportedEventError:
        raise _Cannot("it has no price for such events") from None


def _their_pld(event: DpEvent, delta: float) -> float:
    _check_pld(event, delta)
    if parted(event)[1]:
        raise _Cannot("it has no price for such events by itself")
    accountant = dp.pld.PLDAccountant(_relation(event))
    try:
        return float(accountant.compose(event).get_epsilon(delta))
    except dp.UnsupportedEventError:
        raise _Cannot("it has no price for such events") from None


def _their_worst_pairs(event: DpEvent, delta: float) -> float:
    """What is known by its epsilon and delta alone as dp-accounting's own worst pair for them, with the rest."""
    distributions, total = dp.pld.privacy_loss_distribution, None
    for leaf, count in _check_pld(event, delta):
        if isinstance(leaf, dp.EpsilonDeltaDpEvent):
            known = dp.pld.common.DifferentialPrivacyParameters(leaf.epsilon, leaf.delta)
            one = distributions.from_privacy_parameters(known)
        elif is_poisson_gaussian(leaf) or isinstance(leaf, dp.GaussianDpEvent):
            one = _gaussian_distribution(leaf)
        else:
            raise _Cannot("it knows Gaussian releases besides, plain or on Poisson samples")
        part = one.self_compose(count)
        total = part if total is None else total.compose(part)
    assert total is not None
    return float(total.get_epsilon_for_delta(delta))


def _added(event: DpEvent, delta: float) -> float:
    """Known epsilons and deltas added to what the rest costs at the delta that they leave."""
    rest, pieces = parted(event)
    left = delta - known_delta(pieces)
    if left < 0 or (left == 0 and leaves(rest)):
        return math.inf
    return known_epsilon(pieces) + (_their_pld(rest, left) if leaves(rest) else 0.0)


def _gaussian_distribution(leaf: DpEvent, **more: Any) -> Any:
    sampled = is_poisson_gaussian(leaf)
    return dp.pld.privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=leaf.event.noise_multiplier if sampled else leaf.noise_multiplier,
        sampling_prob=leaf.sampling_probability if sampled else 1.0,
        neighboring_relation=dp.NeighboringRelation.REPLACE_SPECIAL,
        **more,
    )


def _their_selection(event: DpEvent, delta: float) -> float:
    """A private selection, from dp-accounting's profile of one run: docs/proofs.md has the formula."""
    selection = as_selection(event)
    if selection is None:
        raise _Cannot("it is for private selections")
    from scipy.optimize import minimize_scalar

    run, mean, shape = selection.event, float(selection.mean), float(selection.shape)
    _check_pld(run, delta / mean)
    accountant = dp.pld.PLDAccountant(_relation(run)).compose(run)
    first = float(accountant.get_epsilon(delta / mean))
    if math.isinf(shape):
        return first + mean * float(accountant.get_delta(0.0))
    gamma = gamma_of(mean, shape)

    def ratio(other: float) -> float:
        beyond = float(accountant.get_delta(other))
        at_zero = 1 + (1 - gamma) / gamma * beyond
        return max(at_zero, 1 / (gamma + (1 - gamma) * (1 - beyond) * math.exp(-other)))

    best = minimize_scalar(ratio, bounds=(0.0, first + 1.0), method="bounded", options={"xatol": 1e-9})
    return first + (1 + shape) * math.log(float(best.fun))


def _optimistic(event: DpEvent, delta: float) -> float:
    """A bound from below: the same distribution, with every loss rounded down."""
    # Without what is known by its epsilon and delta alone: with it, it is no less.
    parts = _check_pld(parted(event)[0], delta)
    if not all(is_poisson_gaussian(leaf) or isinstance(leaf, dp.GaussianDpEvent) for leaf, _ in parts):
        raise _Cannot("it knows Gaussian releases alone, plain or on Poisson samples")
    total = None
    for leaf, count in parts:
        one = _gaussian_distribution(leaf, pessimistic_estimate=False, use_connect_dots=False)
        one = one.self_compose(count)
        total = one if total is None else total.compose(one)
    assert total is not None
    return float(total.get_epsilon_for_delta(delta))


def _check_pld(event: DpEvent, delta: float) -> list[tuple[DpEvent, int]]:
    """The parts of ``event``, or that there is no distribution of them, or none within a few seconds."""
    parts = leaves(event)
    if not parts or any(isinstance(leaf, dp.NonPrivateDpEvent) for leaf, _ in parts):
        raise _Cannot("there is no noise to price")
    if relation_of(event) == SUBSTITUTION:
        raise _Cannot("it has no price for samples without replacement")
    if delta < SMALLEST_DELTA:
        raise _Cannot(f"it is not exact enough for delta below {SMALLEST_DELTA:g}")
    if len(parts) > AUTO_MOST_MECHANISMS:
        raise _Cannot(f"left out: {len(parts)} different mechanisms would take it long")
    if not min(_noise(leaf) for leaf, _ in parts) >= _LEAST_NOISE:
        raise _Cannot("left out: noise this small would take it long")
    if not rdp_epsilon(event, delta) <= AUTO_LARGEST_EPSILON:
        raise _Cannot(f"left out: above epsilon {AUTO_LARGEST_EPSILON:g} it would take long")
    return parts


def _noise(leaf: DpEvent) -> float:
    inner = getattr(leaf, "event", leaf)
    return float(getattr(inner, "noise_multiplier", math.inf))


@contextmanager
def _quiet() -> Iterator[None]:
    """Orders whose series does not converge are left out, and each time somebody says so."""
    loggers = [logging.getLogger(name) for name in ("absl", "root", None)]
    levels = [each.level for each in loggers]
    for each in loggers:
        each.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for each, level in zip(loggers, levels, strict=True):
            each.setLevel(level)


# From the JSON and scipy alone ------------------------------------------------------------------------------------


def _closed_form(events: Mapping[str, Any], delta: float) -> float:
    """Balle and Wang (2018): many Gaussians are one, and delta(epsilon) = Phi(m/2 - e/m) - exp(e) Phi(-m/2 - e/m)."""
    mu_squared = gdp_mu_squared(events)
    if mu_squared is None:
        raise _Cannot("there is none but for Gaussian releases without samples")
    if mu_squared == 0:
        return 0.0
    from scipy.special import log_ndtr

    mu = math.sqrt(mu_squared)

    def too_small(epsilon: float) -> bool:
        first = float(log_ndtr(mu / 2 - epsilon / mu))
        second = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
        return math.exp(first) * -math.expm1(min(0.0, second - first)) > delta

    few, many = 0.0, mu_squared / 2 + mu * math.sqrt(2 * math.log(1 / delta))
    if not too_small(few):
        return 0.0
    for _ in range(200):
        middle = (few + many) / 2
        few, many = (middle, many) if too_small(middle) else (few, middle)
    return many


def gdp_mu_squared(events: Mapping[str, Any]) -> float | None:
    """mu^2 = sum of 1/z^2 over all releases, read from the JSON itself; None if one of them is no plain Gaussian."""
    parts = list(_multipliers(events, 1))
    if any(z is None for z, _ in parts):
        return None
    return math.fsum(times / z**2 for z, times in parts if z is not None)


def _multipliers(event: Mapping[str, Any], times: int) -> Iterator[tuple[float | None, int]]:
    kind = event["type"]
    if kind == "repeated":
        yield from _multipliers(event["event"], times * event["count"])
    elif kind == "composed":
        for part in event["events"]:
            yield from _multipliers(part, times)
    elif kind != "nothing":
        yield (float(event["noise_multiplier"]) if kind == "gaussian" else None), times
