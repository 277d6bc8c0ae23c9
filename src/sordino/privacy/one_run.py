"""From one run with many canaries to a lower bound on epsilon: statistics only, no run is made here.

Each of m canaries was in the run or left out of it, by a fair coin of its own. Somebody who sees what the run released
guesses r of the coins, the r he is surest of, and v of the guesses are right. Three ways to make a bound of that:

- Whatever the mechanism is (Steinke, Nasr and Jagielski, "Privacy auditing with one (1) training run", 2023): under
  pure differential privacy v is below a Binomial(r, e^epsilon / (1 + e^epsilon)), and a delta adds at most
  2 m delta max_i P[v - i <= Binomial < v] / i.
- By the claimed trade-off curve itself (Mahloujifar, Melis and Chaudhuri, "Auditing f-differential privacy in one run",
  2024), of which one delta is a single line. See `curve_p_value`.
- As if each canary had had a run of its own (`audit.py`), if nothing ties the canaries together: noise that is drawn
  for every coordinate anew, and a coordinate for each canary. The other two have to allow that all of them are given
  away at once, with a small probability, and pay for it.

How many guesses are made must not be chosen by how well they do, or the choice has to be paid for: there are a few
numbers, fixed beforehand, and each gets its share of the probability of error. So do the three ways.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sordino.privacy.accountants import Guarantee, price
from sordino.privacy.audit import LEAST_RUNS, Array, Audit, Scores, audit, gdp_epsilon, profile_of
from sordino.privacy.loss_distribution import COARSER, pld_epsilon, pld_supports, squared_mu

if TYPE_CHECKING:
    from dp_accounting import DpEvent

Coins = npt.NDArray[np.bool_]

LEAST_CANARIES = 4 * LEAST_RUNS  # so that coins leave at least so many on each side, but for one time in 1e10
SHARES = (1.0, 1 / 2, 1 / 4, 1 / 8, 1 / 16)  # of the canaries that are guessed
_LINES = (1e-4, 1e-3, 0.003, 0.01, 0.02, 0.04, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97)
_HALVINGS = 50


# Trade-off curves -------------------------------------------------------------------------------------------


class Curve(ABC):
    """What a claim says of every guess at once: how often it is wrong at least, if it is right so often.

    Both directions of the relation are claimed, as `REPLACE_SPECIAL` has them.
    """

    @abstractmethod
    def least(self, right: float) -> float:
        """The least probability, had the unit's coin fallen otherwise, of what has probability ``right`` as it fell."""


@dataclass(frozen=True)
class GaussianCurve(Curve):
    """Of one Gaussian release of multiplier 1 / mu.

    >>> round(GaussianCurve(1.0).least(0.841345), 4)
    0.5
    """

    mu: float

    def least(self, right: float) -> float:
        from scipy.special import ndtr, ndtri  # a slow import

        return float(ndtr(ndtri(min(right, 1.0)) - self.mu))


@dataclass(frozen=True)
class Lines(Curve):
    """The envelope of some of the (epsilon, delta) that are claimed. Those left out would only add to it, so a claim
    that is true is true of it.

    >>> Lines(((math.log(3.0), 0.0),)).least(0.6)  # a third of it; or all but three times what is missing
    0.19...
    """

    points: tuple[tuple[float, float], ...]

    def least(self, right: float) -> float:
        # P <= e^epsilon Q + delta for what was seen, and 1 - Q <= e^epsilon (1 - P) + delta for all else
        found = 0.0
        for epsilon, delta in self.points:
            factor = math.exp(epsilon)
            found = max(found, (right - delta) / factor, 1 - delta - factor * (1 - min(right, 1.0)))
        return found


def curve_of(event: DpEvent, delta: float) -> Curve:
    """The trade-off curve that events claim: exact for plain Gaussians, else a lower bound of it."""
    mu_squared = squared_mu(event)
    if mu_squared is not None:
        return GaussianCurve(math.sqrt(mu_squared))
    deltas = sorted({delta, *(at for at in _LINES if at > delta)})
    if pld_supports(event):
        found = [(pld_epsilon(event, at, coarser=COARSER), at) for at in deltas]
    else:
        found = [(price(event, at, "rdp").epsilon, at) for at in deltas]
    # Beyond a few hundred e^epsilon is no number any more, and the line says nothing.
    return Lines(tuple((epsilon, at) for epsilon, at in found if epsilon < 500))


# How likely it is that so many guesses are right ------------------------------------------------------------


@dataclass(frozen=True)
class Guessed:
    """``made`` guesses about the coins of ``canaries``, of which ``right`` were right."""

    canaries: int  # m
    made: int  # r
    right: int  # v

    def __post_init__(self) -> None:
        assert 0 <= self.right <= self.made <= self.canaries


def p_value(seen: Guessed, epsilon: float, delta: float) -> float:
    """At most so likely are so many right guesses under (epsilon, delta)-differential privacy, whatever the mechanism:
    Theorem 5.2 of Steinke, Nasr and Jagielski (2023).

    >>> p_value(Guessed(canaries=3, made=3, right=3), 0.0, 0.0)
    0.125
    """
    from scipy.special import bdtrc  # a slow import

    right, made = seen.right, seen.made
    chance = 1 / (1 + math.exp(-epsilon))
    beyond = float(bdtrc(right - 1, made, chance)) if right else 1.0
    if not right or not delta:
        return beyond
    fewer = np.arange(1, right + 1)
    within = bdtrc(right - 1.0 - fewer, made, chance) - beyond  # P[v - i <= Binomial < v]
    return min(1.0, beyond + 2 * seen.canaries * delta * max(0.0, float((within / fewer).max())))


def epsilon_of_guesses(seen: Guessed, delta: float, error: float) -> float:
    """The largest epsilon that is refuted at ``delta``, wrongly with probability ``error`` at most.

    >>> round(epsilon_of_guesses(Guessed(100, 100, 100), 0.0, 0.05), 3)  # log(p / (1 - p)), p^100 = 0.05
    3.493
    """
    if p_value(seen, 0.0, delta) > error:
        return 0.0
    low, high = 0.0, 1.0
    while p_value(seen, high, delta) <= error:
        low, high = high, 2 * high
    return _largest(lambda epsilon: p_value(seen, epsilon, delta) <= error, low, high)


def curve_p_value(seen: Guessed, curve: Curve) -> float:
    """At most so likely are so many right guesses, if every unit's trade-off is on or above ``curve``.

    Let p_i be the probability of i right guesses of r. Take a canary by chance: that its guess is right, and i with it,
    has probability i p_i / m. Had its coin fallen otherwise, that guess would be wrong and i - 1 right. So for every
    set of i, with Q the curve, which is convex: sum (r - i + 1) p_(i-1) / m >= Q(sum i p_i / m) (Mahloujifar et al.).
    If P[at least v right] is t, then it weighs least if all of that is at v itself; what has to be at v - 1, v - 2, ...
    follows, and if it comes to more than 1, t was too much.

    >>> exact = curve_p_value(Guessed(2, 1, 1), Lines(((0.0, 0.0),)))  # nothing can be known: one half
    >>> round(exact, 6)
    0.5
    """
    if not seen.right:
        return 1.0
    return 1 - _largest(lambda share: _weight(seen, curve, 1 - share) > 1, 0.0, 1.0)


def _weight(seen: Guessed, curve: Curve, tail: float) -> float:
    """What all probabilities add up to at least, if that of ``seen.right`` or more right guesses is ``tail``."""
    m, made = seen.canaries, seen.made
    right, wrong = tail * seen.right / m, tail * (made - seen.right) / m
    for number in range(seen.right - 1, -1, -1):
        needed = curve.least(right) - wrong
        if needed <= 0:
            break  # and so it stays
        wrong += needed
        right += needed * number / (made - number)
        if right + wrong > made / m:
            break
    return (right + wrong) * m / made


def mu_of_guesses(seen: Guessed, error: float) -> float:
    """The largest mu whose Gaussian curve is refuted, wrongly with probability ``error`` at most."""
    if not seen.right:
        return 0.0

    def refuted(mu: float) -> bool:
        return _weight(seen, GaussianCurve(mu), error) > 1

    low, high = 0.0, 1.0
    if not refuted(0.0):
        return 0.0
    while refuted(high):
        low, high = high, 2 * high
    return _largest(refuted, low, high)


def _largest(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The end of an interval that begins at ``low``, where something holds, found from inside."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


# The verdict ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OneRun:
    """A claim beside what one run proves. All bounds that belong to the verdict hold at once, with probability
    ``confidence``; where ``apart`` does not count, it is not one of them."""

    claimed: Guarantee
    confidence: float
    canaries: int
    present: int  # of them
    guesses: tuple[Guessed, ...]
    epsilon: float  # at least, whatever the mechanism is
    gdp_mu: float  # at least, if the trade-off is a Gaussian's
    gdp_epsilon: float
    curve_p: float  # of the claimed curve, all numbers of guesses together
    curve_refuted: bool
    apart: Audit | None  # each canary as a run of its own, where nothing ties them together
    counts: bool  # whether ``apart`` belongs to the verdict

    @property
    def violated(self) -> bool:
        above = self.epsilon > self.claimed.epsilon
        apart = self.counts and self.apart is not None and self.apart.violated
        return above or self.curve_refuted or apart

    @property
    def finding(self) -> str:
        """The verdict in one line."""
        if not self.violated:
            return "the claim stands"
        claimed = f"epsilon {self.claimed.epsilon:.4f} at delta {self.claimed.delta:g} was claimed"
        sure = f"{self.confidence:.1%} confidence"
        if self.epsilon > self.claimed.epsilon:
            return f"the claim is violated: {claimed}, and it is at least {self.epsilon:.4f} with {sure}"
        if self.curve_refuted:
            best = max(self.guesses, key=lambda each: each.right / each.made)
            how = f"{best.right} of {best.made} guesses were right, which its events do not allow"
            return f"the claim is violated: {claimed}, and {how} ({sure})"
        assert self.apart is not None
        refuted = self.apart.refuted
        if refuted is not None:
            claimed = (
                f"the events of the claim promise epsilon {refuted.claimed:.4f} at delta {refuted.delta:g}"
            )
        least = self.apart.bounds[-1].epsilon if refuted is None else refuted.epsilon
        return f"the claim is violated: {claimed}, and the canaries show at least {least:.4f} ({sure})"


def one_run(
    coins: Coins,
    scores: Array,
    claimed: Guarantee,
    event: DpEvent,
    confidence: float = 0.95,
    *,
    apart: bool = True,
    counts: bool = True,
) -> OneRun:
    """Judge ``claimed``, the price of ``event``, by the scores of canaries that were in the run where coins say so.

    Scores are the larger, the more a canary seems to have been there. With ``apart`` each canary is also taken for a
    run of its own, and ``counts`` says whether that is part of the verdict: it must not be where canaries are tied
    together. The claim is wrongly refuted with probability ``1 - confidence`` at most.
    """
    _check(coins, scores, confidence)
    ways = 3 if apart and counts else 2
    error = (1 - confidence) / ways
    each = error / len(SHARES)
    guesses = tuple(guessed(coins, scores, share) for share in SHARES)
    curve = curve_of(event, claimed.delta)
    mu = max(mu_of_guesses(seen, each) for seen in guesses)
    curve_p = min(1.0, len(SHARES) * min(curve_p_value(seen, curve) for seen in guesses))
    return OneRun(
        claimed,
        confidence,
        len(coins),
        int(coins.sum()),
        guesses,
        max(epsilon_of_guesses(seen, claimed.delta, each) for seen in guesses),
        mu,
        gdp_epsilon(mu, claimed.delta),
        curve_p,
        curve_p <= error,
        # One half for the bound at the claim's own delta, the other for the profile.
        _apart(coins, scores, claimed, event, 1 - (1 - confidence) / 6) if apart else None,
        counts,
    )


def guessed(coins: Coins, scores: Array, share: float) -> Guessed:
    """Guesses about the canaries whose scores are farthest from the middle: fair coins leave half of them on each side.
    Where scores are equal, the order of the canaries decides, which has nothing to do with their coins.
    """
    made = max(1, round(share * len(scores)))
    around = scores - np.median(scores)
    surest = np.argsort(-np.abs(around), kind="stable")[:made]
    return Guessed(len(scores), made, int(((around[surest] > 0) == coins[surest]).sum()))


def _apart(coins: Coins, scores: Array, claimed: Guarantee, event: DpEvent, confidence: float) -> Audit:
    sides = Scores(scores[coins][:, None], scores[~coins][:, None])
    return audit(sides, claimed, profile_of(event, claimed.delta), (confidence,))


def check_confidence(confidence: float) -> None:
    if not 0.5 <= confidence < 1:
        raise ValueError(f"the confidence must be in [0.5, 1), not {confidence:g}")


def _check(coins: Coins, scores: Array, confidence: float) -> None:
    check_confidence(confidence)
    assert coins.shape == scores.shape == (len(coins),)
    assert not np.isnan(scores).any()
    if min(coins.sum(), (~coins).sum()) < LEAST_RUNS:
        raise ValueError(f"so few canaries prove nothing: take at least {LEAST_CANARIES}")
