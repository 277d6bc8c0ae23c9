"""What a guarantee says, in words: each sentence follows from numbers that stand beside it, and can be checked."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from decimal import ROUND_CEILING, Context, Decimal
from typing import Any

from sordino.privacy.renyi import SUBSTITUTION
from sordino.privacy.sealing import canonical

FLAVOUR = "approximate differential privacy, (epsilon, delta)-DP"
NO_FLAVOUR = "none"
SELECTION_IS_SECRET = (
    "only the best of a number of runs is shown; nobody learns how many there were, nor anything of the others: not "
    "from files, and not from how long it took"
)
SEED_WARNING = "The run used a known seed: whoever knows it can remove the noise, so the guarantee is void."
_NEIGHBOURS = "Neighbouring data sets differ by {how} one {unit}"
_PUBLIC = "the number of {unit}s, and with it sampling rate and number of steps, is public."


def neighbours(relation: str, unit: str) -> str:
    """Between which data sets nobody can tell, much."""
    how = "replacing" if relation == SUBSTITUTION else "zeroing out the contribution of"
    return _NEIGHBOURS.format(how=how, unit=unit)


def n_is_public(relation: str, unit: str) -> str:
    """The assumption that is behind every guarantee."""
    return f"{neighbours(relation, unit)}; {_PUBLIC.format(unit=unit)}"


def flavour(epsilon: float) -> str:
    return FLAVOUR if math.isfinite(epsilon) else NO_FLAVOUR


def about_rho_and_mu(epsilon: float, rho: float | None, events: Mapping[str, Any]) -> str:
    """Why there is, or is no, zCDP and GDP beside epsilon and delta."""
    if math.isinf(epsilon):
        return "None: nothing is promised."
    if _has_pieces(events):
        return (
            "None is stated: of a part of what was released only epsilon and delta are known, so epsilon, delta and "
            "the profile are the guarantee."
        )
    if rho is None:
        return (
            "None is stated: they cannot express what random samples gain (of any plan with samples they say what it "
            "would cost without), so epsilon, delta and the profile are the guarantee."
        )
    return "Exact: all releases are Gaussian, so they are mu-GDP, and rho-zCDP with rho = mu^2 / 2."


def stands(epsilon: float, seeded: bool, caveat: str | None) -> bool:
    """Whether anything is promised to anybody."""
    return math.isfinite(epsilon) and not seeded and caveat is None


def claim_in_words(guarantee: Mapping[str, Any], data: str | None, seeded: bool, caveat: str | None) -> str:
    """The promise in a sentence, from what a certificate's ``guarantee`` says; or that there is none, and why."""
    epsilon, unit = float(guarantee["epsilon"]), guarantee["unit"]
    if math.isinf(epsilon):
        return "NOT PRIVATE: epsilon is infinite. No noise protects anybody, and nothing is promised."
    whose = f"one {unit}" if guarantee["units"] is None else f"one of the {guarantee['units']} {unit}s"
    of_data = "" if data is None else f" of {data!r}"
    contributes = (
        "is what it is or another one in its place"
        if guarantee["relation"] == SUBSTITUTION
        else "contributes what it does or nothing at all"
    )
    promise = (
        f"Whether any {whose}{of_data} {contributes}: no covered result becomes more than {factor(epsilon)} times as "
        f"likely (e to the power of epsilon), except with probability delta, {guarantee['delta']!r}."
    )
    if seeded:
        return f"VOID: the run used a known seed, and whoever knows it can take the noise away. Otherwise: {promise}"
    if caveat is not None:
        return f"{caveat}. It would be: {promise}"
    return promise


def factor(epsilon: float) -> str:
    """e to the power of epsilon with three digits, never rounded down.

    >>> factor(3.0), factor(0.0), factor(50.0), factor(1e6)
    ('20.1', '1.00', '5.19E+21', 'any number of')
    """
    if epsilon > 700:
        return "any number of"
    # A hair up, for the last digit of exp; at 0 there is nothing to round.
    exact = Decimal(math.exp(epsilon) * (1 + 1e-15 * (epsilon > 0)))
    digits = Context(prec=3, rounding=ROUND_CEILING)
    return str(
        digits.plus(exact)
        if exact >= 100
        else digits.quantize(exact, Decimal("0.01" if exact < 10 else "0.1"))
    )


# Events, as JSON has them -----------------------------------------------------------------------------------


def events_in_words(events: Mapping[str, Any]) -> list[str]:
    """A line for each kind of release, with how often it was made.

    >>> events_in_words({"type": "repeated", "count": 3, "event": {"type": "gaussian", "noise_multiplier": 2.0}})
    ['3 times: Gaussian noise with a standard deviation of 2 times the most that one unit can add']
    """
    counts: dict[str, int] = {}
    for words, times in _released(events, 1):
        counts[words] = counts.get(words, 0) + times
    found = [f"{'once' if times == 1 else f'{times} times'}: {words}" for words, times in counts.items()]
    return found or ["nothing was released"]


def _released(event: Mapping[str, Any], times: int) -> Iterator[tuple[str, int]]:
    kind = event["type"]
    if kind == "repeated":
        yield from _released(event["event"], times * event["count"])
    elif kind == "composed":
        for part in event["events"]:
            yield from _released(part, times)
    elif kind != "nothing":
        yield _one(event), times


def _has_pieces(event: Mapping[str, Any]) -> bool:
    inner = [*event.get("events", []), *([event["event"]] if "event" in event else [])]
    return event["type"] == "approximate" or any(map(_has_pieces, inner))


def _one(event: Mapping[str, Any]) -> str:
    kind = event["type"]
    if kind == "gaussian":
        size = f"{event['noise_multiplier']:.6g}"
        return f"Gaussian noise with a standard deviation of {size} times the most that one unit can add"
    if kind == "poisson_sampled":
        return (
            f"{_one(event['event'])}, in a random sample of the units: each is in it with probability "
            f"{event['sampling_rate']:.6g}"
        )
    if kind == "sampled_without_replacement":
        sample = f"{event['count']} of {event['units']} units"
        return f"{_one(event['event'])} by being replaced, in a random sample of {sample}"
    if kind == "repeat_and_select":
        one_run = "; ".join(events_in_words(event["event"]))
        shapes = {"inf": "Poisson", 0: "logarithmic", 1: "geometric"}
        shape = shapes.get(event["shape"], f"negative binomial of shape {event['shape']}")
        number = f"{event['mean']:.6g} on average, {shape}"
        return f"the best of a number of runs that nobody learns ({number}), where one run is: {one_run}"
    if kind == "approximate":
        known = f"epsilon {event['epsilon']:.6g}" + (
            f" and delta {event['delta']:.6g}" if event["delta"] else ""
        )
        return f"a release of which only {known} is known, whatever it is"
    if kind == "non_private":
        return "a release without noise"
    inner = event.get("event")
    numbers = {name: value for name, value in event.items() if name not in ("type", "event")}
    return f"{kind} {canonical(numbers)}" + (
        "" if inner is None else f" of: {'; '.join(events_in_words(inner))}"
    )
