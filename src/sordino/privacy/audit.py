"""From what many runs showed to a lower bound on epsilon: statistics only, no run is made here.

Somebody guesses, from the scores of a run, whether a unit was in it. Differential privacy bounds how good any guess can
be, so a guess that is better refutes the claim (Nasr et al., "Tight auditing of differentially private machine
learning", 2023). Which guess is made (the score, the threshold, the claim to try) is chosen on some runs and judged on
the others, so that no choice has to be paid for; what is judged are two proportions, whose bounds are exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sordino.privacy.accountants import Guarantee, price
from sordino.privacy.events import gaussian
from sordino.privacy.loss_distribution import COARSER, pld_epsilon, pld_supports

if TYPE_CHECKING:
    from dp_accounting import DpEvent

Array = npt.NDArray[np.float64]
Value = Callable[[Array, Array], Array]  # of false alarms (FPR) and misses (FNR), both bounded from above

GDP_ASSUMPTION = (
    "assumes that the trade-off between false alarms and misses is that of a Gaussian everywhere (mu-GDP), which holds "
    "for Gaussian releases without sampling and is an approximation for sampled batches"
)
CONFIDENCES = (0.95, 0.999)
PROFILE_DELTAS = (
    1e-3,
    1e-2,
    0.05,
    0.1,
    0.2,
    0.3,
    0.45,
    0.6,
    0.75,
    0.9,
)  # where hundreds of runs can tell claims apart

_CHOOSING = 0.25  # of the runs choose the guess, the others judge it
LEAST_RUNS = 40
_THRESHOLDS = 200
_NEIGHBOURS = 6  # a threshold is judged with a sixth of them around it
_FAR = 50.0
_SMALLEST_MU = 1e-6
_HANDICAP = 0.2  # by so much another score has to promise more than the first, or it is taken for luck


@dataclass(frozen=True)
class Scores:
    """What was seen in runs with the unit and without it: a row for each run, a column for each score.

    Scores are large where the unit seems to be there, and the first is the best guess if all is as claimed. Runs must
    be independent; scores may be anything.
    """

    present: Array  # [runs, scores]
    absent: Array

    def check(self) -> None:
        for side in (self.present, self.absent):
            if side.ndim != 2 or side.shape[1] != self.present.shape[1]:
                raise ValueError("scores are a row for each run and a column for each score, on both sides")
            if len(side) < LEAST_RUNS:
                raise ValueError(f"{len(side)} runs prove nothing: make at least {LEAST_RUNS} of each kind")
            if np.isnan(side).any():
                raise ValueError("a score is no number: leave out what cannot be judged")

    def parts(self) -> tuple[Scores, Scores]:
        """The runs that choose and the runs that judge, with one more score: the best mix of the others."""
        cuts = [math.ceil(_CHOOSING * len(side)) for side in (self.present, self.absent)]
        weights = _discriminant(self.present[: cuts[0]], self.absent[: cuts[1]])
        present, absent = (
            np.column_stack([side, _finite(side) @ weights]) for side in (self.present, self.absent)
        )
        return Scores(present[: cuts[0]], absent[: cuts[1]]), Scores(present[cuts[0] :], absent[cuts[1] :])


@dataclass(frozen=True)
class Bound:
    """What the runs prove at one confidence."""

    confidence: float
    epsilon: float  # whatever the mechanism is
    gdp_mu: float  # if the trade-off is a Gaussian's: see GDP_ASSUMPTION
    gdp_epsilon: float


@dataclass(frozen=True)
class Refuted:
    """Another point of the claimed profile, and what was seen there: a claim of events is one of all deltas."""

    delta: float
    claimed: float
    epsilon: float  # the lower bound
    confidence: float


@dataclass(frozen=True)
class Audit:
    """A claim beside what the runs prove. ``refuted`` is a point of the profile where the claim fails, if one does."""

    claimed: Guarantee
    runs: int  # of each kind
    bounds: tuple[Bound, ...]  # by rising confidence
    largest: float  # what so many runs could prove at best, at the highest confidence
    refuted: Refuted | None
    gdp_assumption: str = GDP_ASSUMPTION

    @property
    def violated(self) -> bool:
        """Whether the claim is refuted at the highest confidence, by bounds that assume nothing."""
        return self.bounds[-1].epsilon > self.claimed.epsilon or self.refuted is not None

    @property
    def finding(self) -> str:
        """The verdict in one line."""
        surest = self.bounds[-1]
        if surest.epsilon > self.claimed.epsilon:
            seen, claimed, delta = surest.epsilon, self.claimed.epsilon, self.claimed.delta
            promised = f"epsilon {claimed:.4f} at delta {delta:g} was claimed"
        elif self.refuted is not None:
            seen, claimed, delta = self.refuted.epsilon, self.refuted.claimed, self.refuted.delta
            promised = f"the events of the claim promise epsilon {claimed:.4f} at delta {delta:g}"
        else:
            return "the claim stands"
        sure = f"{surest.confidence:.1%} confidence"
        return f"the claim is violated: {promised}, and it is at least {seen:.4f} with {sure}"


def audit(
    scores: Scores,
    claimed: Guarantee,
    profile: Mapping[float, float],
    confidences: Sequence[float] = CONFIDENCES,
) -> Audit:
    """Judge ``claimed`` by ``scores``; ``profile`` has further epsilons that the same events claim, by delta.

    The bound at the claim's own delta and the one on the profile each hold with the highest confidence, so the claim is
    wrongly refuted with at most twice the probability that is left.
    """
    scores.check()
    choosing, judging = scores.parts()
    delta = claimed.delta
    bounds = []
    for confidence in sorted(confidences):
        epsilon, _ = _best(choosing, judging, [_epsilon_at(delta)], confidence)
        mu, _ = _best(choosing, judging, [mu_of_errors], confidence)
        bounds.append(Bound(confidence, max(0.0, epsilon), max(0.0, mu), gdp_epsilon(mu, delta)))
    highest = max(confidences)
    none = _upper(np.zeros(1), min(len(judging.present), len(judging.absent)), (1 - highest) / 2)
    largest = max(0.0, float(epsilon_of_errors(none, none, delta)[0]))
    runs = min(len(scores.present), len(scores.absent))
    return Audit(claimed, runs, tuple(bounds), largest, _refuted(choosing, judging, profile, highest))


def _refuted(
    choosing: Scores, judging: Scores, profile: Mapping[float, float], confidence: float
) -> Refuted | None:
    points = [(delta, epsilon) for delta, epsilon in profile.items() if math.isfinite(epsilon)]
    if not points:
        return None
    # One point is chosen, by how far the claim seems to be missed there, and only that one is judged.
    beyond: list[Value] = [_beyond(*point) for point in points]
    excess, number = _best(choosing, judging, beyond, confidence)
    delta, claimed = points[number]
    return Refuted(delta, claimed, claimed + excess, confidence) if excess > 0 else None


def _epsilon_at(delta: float) -> Value:
    return lambda alarms, misses: epsilon_of_errors(alarms, misses, delta)


def _beyond(delta: float, epsilon: float) -> Value:
    return lambda alarms, misses: epsilon_of_errors(alarms, misses, delta) - epsilon


def epsilon_of_errors(alarms: Array, misses: Array, delta: float) -> Array:
    """The least epsilon with which a guess may err so rarely: each rate is at least (1 - delta - other) / e^epsilon.

    >>> float(epsilon_of_errors(np.array([0.1]), np.array([0.2]), 0.0)[0].round(4))  # log(0.8 / 0.1)
    2.0794
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        one = np.log(np.maximum(1 - delta - alarms, 0)) - np.log(misses)
        two = np.log(np.maximum(1 - delta - misses, 0)) - np.log(alarms)
    return np.asarray(np.fmax(one, two))


def mu_of_errors(alarms: Array, misses: Array) -> Array:
    """The mu of the Gaussian trade-off through these errors.

    >>> float(mu_of_errors(np.array([0.158655]), np.array([0.158655]))[0].round(4))
    2.0
    """
    from scipy.special import ndtri  # a slow import

    return np.asarray(ndtri(1 - alarms) - ndtri(misses), dtype=np.float64)


def gdp_epsilon(mu: float, delta: float) -> float:
    """Epsilon at ``delta`` of a mechanism whose trade-off is that of a Gaussian of this mu."""
    return 0.0 if mu <= _SMALLEST_MU else price(gaussian(1 / mu), delta, "pld").epsilon


def profile_of(event: DpEvent, delta: float) -> dict[float, float]:
    """What events claim at a few larger deltas, where runs can tell more; to a few digits, and never too little."""
    deltas = [at for at in PROFILE_DELTAS if at > delta]
    if pld_supports(event):
        return {at: pld_epsilon(event, at, coarser=COARSER) for at in deltas}
    return {at: price(event, at, "rdp").epsilon for at in deltas}


# Choosing and judging ---------------------------------------------------------------------------------------


def _best(choosing: Scores, judging: Scores, values: Sequence[Value], confidence: float) -> tuple[float, int]:
    """The lower bound on the value that promises most, and which one that is."""
    trials = (len(judging.absent), len(judging.present))
    sizes = (len(choosing.absent), len(choosing.present))
    alpha = (1 - confidence) / 2  # one half for each of the two rates
    best = (-math.inf, 0, 0, 0.0)
    for column in range(choosing.present.shape[1]):
        present, absent = choosing.present[:, column], choosing.absent[:, column]
        thresholds = _candidates(present, absent)
        # As if the judging runs showed the same rates: it keeps away from the far tails, which bounds cannot use. One
        # error more than was seen, since the threshold that is best by luck alone has none.
        rates = [
            (r * n + 1) / (n + 2) for r, n in zip(_errors(present, absent, thresholds), sizes, strict=True)
        ]
        limits = [_upper(rate * n, n, alpha) for rate, n in zip(rates, trials, strict=True)]
        handicap = _HANDICAP if column else 0.0
        for number, value in enumerate(values):
            promised = _smoothed(value(*limits)) - handicap
            at = int(np.argmax(promised))
            if promised[at] > best[0]:
                best = (float(promised[at]), number, column, float(thresholds[at]))
    _, number, column, threshold = best
    seen = _errors(judging.present[:, column], judging.absent[:, column], np.array([threshold]))
    upper = [_upper(rate * n, n, alpha) for rate, n in zip(seen, trials, strict=True)]
    judged = float(np.nan_to_num(values[number](*upper), nan=-math.inf)[0])
    return judged, number


def _smoothed(values: Array) -> Array:
    """Averaged over neighbouring thresholds: the best of two hundred is otherwise the luckiest."""
    width = max(1, len(values) // _NEIGHBOURS)
    finite = np.nan_to_num(values, nan=-_FAR, posinf=_FAR, neginf=-_FAR).clip(-_FAR, _FAR)
    padded = np.pad(finite, (width // 2, width - 1 - width // 2), mode="edge")
    found: Array = np.convolve(padded, np.full(width, 1 / width), mode="valid")
    return found


def _candidates(present: Array, absent: Array) -> Array:
    pooled = np.sort(np.concatenate([present, absent]))
    places = np.linspace(0, len(pooled) - 1, min(_THRESHOLDS, len(pooled))).astype(int)
    found: Array = np.unique(pooled[places])
    return found


def _errors(present: Array, absent: Array, thresholds: Array) -> tuple[Array, Array]:
    """False alarms and misses of the guess that the unit is there if its score is above the threshold."""
    below_absent = np.searchsorted(np.sort(absent), thresholds, side="right") / len(absent)
    below_present = np.searchsorted(np.sort(present), thresholds, side="right") / len(present)
    return 1 - below_absent, below_present


def _upper(counts: Array, trials: int, alpha: float) -> Array:
    """Clopper and Pearson: the rate is above this with probability alpha at most."""
    from scipy.special import betaincinv  # a slow import

    counts = np.round(counts)
    limit = betaincinv(counts + 1, np.maximum(trials - counts, 1e-9), 1 - alpha)
    return np.where(counts >= trials, 1.0, limit)


def _discriminant(present: Array, absent: Array) -> Array:
    """Fisher's direction: a fault may show in a score that the claim gives no weight."""
    one, two = _finite(present), _finite(absent)
    spread = np.atleast_2d(np.cov(one, rowvar=False) + np.cov(two, rowvar=False))
    scale = np.sqrt(np.diag(spread))
    scale = np.where(scale > 0, scale, 1.0)  # of a score that never varies
    shrunk = spread / np.outer(scale, scale) + 1e-6 * np.eye(len(scale))  # scores may repeat each other
    weights: Array = np.linalg.solve(shrunk, (one.mean(0) - two.mean(0)) / scale) / scale
    return weights


def _finite(scores: Array) -> Array:
    return np.clip(scores, -1e12, 1e12)


# Scores of Gaussian releases --------------------------------------------------------------------------------


def gaussian_ratio(seen: Array, moved: Array, std: Array) -> Array:
    """The log-likelihood ratio of what was seen, for a unit that moves its mean by ``moved``."""
    return (seen - moved / 2) * moved / np.square(std)


def mixed_ratio(seen: Array, moved: Array, std: Array, means: Array, weights: Array) -> Array:
    """The same where the mean without the unit is itself random: ``means`` [..., K] with probabilities ``weights``."""
    here = _log_mixture(seen, means + moved[..., None], std, weights)
    return here - _log_mixture(seen, means, std, weights)


def _log_mixture(seen: Array, means: Array, std: Array, weights: Array) -> Array:
    with np.errstate(divide="ignore"):
        exponents = np.log(weights) - np.square((seen[..., None] - means) / std[..., None]) / 2
    largest = exponents.max(-1)
    found: Array = largest + np.log(np.exp(exponents - largest[..., None]).sum(-1))
    return found


def sampled_ratio(ratio: Array, rate: float) -> Array:
    """The ratio for a unit that takes part with probability ``rate``, and nobody knows when: log(1 - q + q e^ratio)."""
    if rate == 1:
        return ratio
    found: Array = np.logaddexp(math.log1p(-rate), math.log(rate) + ratio)
    return found


def whitened_ratio(seen: Array, moved: Array, noise: Array) -> Array:
    """The ratio of correlated releases ``seen``, [T] or [T, N]: their noise is ``noise`` [T, K] times normals.

    Where noise is missing the ratio is huge but finite.
    """
    found: Array = ((seen - moved / 2) * _solved(noise, moved)).sum(0)
    return found


def ratios_by_step(seen: Array, moved: Array, noise: Array) -> Array:
    """Of what is seen [T, N] for somebody who takes part in one step alone, by ``moved`` [T], for every step [T, N]."""
    weights = _solved(noise, np.diag(moved))
    found: Array = weights.T @ seen - (moved * np.diag(weights) / 2)[:, None]
    return found


def _solved(noise: Array, moved: Array) -> Array:
    covariance = noise @ noise.T
    floor = 1e-9 * float(np.trace(covariance)) / len(covariance) + 1e-100
    return np.asarray(np.linalg.solve(covariance + floor * np.eye(len(covariance)), moved), dtype=np.float64)
