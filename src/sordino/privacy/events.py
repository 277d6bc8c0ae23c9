"""What happened, as `dp_accounting` events; what it costs is the accountants' business.

Builders for the events this library emits, their JSON form (for certificates and checkpoints), and
`leaves`, which unrolls nested compositions into single mechanisms with their counts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sordino.privacy import dp
from sordino.privacy.budget import check_delta, check_epsilon

if TYPE_CHECKING:
    from dp_accounting import DpEvent


LEAST, MOST = 1e-9, 1e12  # noise multipliers that can be priced
LARGEST_MEAN = 1e6  # number of runs of a selection
_SHAPES = (
    1e-6,
    1e4,
)  # of their distribution, besides 0 and infinity: beyond, floats do not draw what is priced


def gaussian(noise_multiplier: float) -> DpEvent:
    """One Gaussian release; noise has std `noise_multiplier` times the l2 sensitivity.

    >>> gaussian(1.1)
    GaussianDpEvent(noise_multiplier=1.1)
    >>> gaussian(0)
    NonPrivateDpEvent()
    """
    if not (math.isfinite(noise_multiplier) and noise_multiplier >= 0):
        raise ValueError(f"noise_multiplier must be a finite number >= 0, not {noise_multiplier}")
    if noise_multiplier == 0:
        return dp.NonPrivateDpEvent()
    if not LEAST <= noise_multiplier <= MOST:  # beyond, its square is no number
        raise ValueError(
            f"noise_multiplier must be 0 or from {LEAST:g} to {MOST:g}, not {noise_multiplier:g}"
        )
    return dp.GaussianDpEvent(float(noise_multiplier))


def poisson_gaussian(noise_multiplier: float, sampling_rate: float) -> DpEvent:
    """One step on a Poisson sample: each unit is in it with probability `sampling_rate`, independently.

    A rate of 1 is a plain Gaussian release, and is recorded as one.
    """
    if not 0 < sampling_rate <= 1:
        raise ValueError(f"sampling_rate must lie in (0, 1], not {sampling_rate}: use batch size / n")
    release = gaussian(noise_multiplier)
    if sampling_rate == 1 or isinstance(release, dp.NonPrivateDpEvent):
        return release
    return dp.PoissonSampledDpEvent(float(sampling_rate), release)


def release(noise_multiplier: float, amplified_rate: float | None) -> DpEvent:
    """One release of the gate: on a Poisson sample of that rate, or unamplified if the rate is None."""
    if amplified_rate is None:
        return gaussian(noise_multiplier)
    return poisson_gaussian(noise_multiplier, amplified_rate)


def sampled_without_replacement(noise_multiplier: float, count: int, units: int) -> DpEvent:
    """One step on ``count`` of ``units`` units, drawn without replacement; noise has std `noise_multiplier` times C.

    This is about substituting a unit: its clipped contribution goes and another comes, so the sum moves by 2C, and
    the event records half the multiplier. All of the units are a sample too: nothing is amplified then.

    >>> sampled_without_replacement(1.0, 10, 100).event
    GaussianDpEvent(noise_multiplier=0.5)
    """
    if not 1 <= count <= units:
        raise ValueError(f"{count} units cannot be drawn from {units} without replacement")
    release = gaussian(noise_multiplier / 2)
    if isinstance(release, dp.NonPrivateDpEvent):
        return release
    return dp.SampledWithoutReplacementDpEvent(int(units), int(count), release)


def approximate(epsilon: float, delta: float = 0.0) -> DpEvent:
    """A release of which only (epsilon, delta) is known: private counts or bounds, or one of another tool.

    Args:
        epsilon: Finite, above 0.
        delta: 0 for a pure one.

    >>> approximate(0.5)
    EpsilonDeltaDpEvent(epsilon=0.5, delta=0.0)
    """
    return dp.EpsilonDeltaDpEvent(check_epsilon(epsilon), 0.0 if delta == 0 else check_delta(delta))


def parted(event: DpEvent) -> tuple[DpEvent, list[tuple[DpEvent, int]]]:
    """``event`` without what is `approximate` in it, and that, with how often it occurs."""
    parts = leaves(event)
    pieces = [(leaf, count) for leaf, count in parts if isinstance(leaf, dp.EpsilonDeltaDpEvent)]
    if not pieces:
        return event, []
    rest = [repeat(leaf, count) for leaf, count in parts if not isinstance(leaf, dp.EpsilonDeltaDpEvent)]
    return compose(rest), pieces


def known_epsilon(pieces: Sequence[tuple[DpEvent, int]]) -> float:
    """The epsilons of `approximate` events, added up."""
    return math.fsum(count * piece.epsilon for piece, count in pieces)


def known_delta(pieces: Sequence[tuple[DpEvent, int]]) -> float:
    """Their deltas, added up."""
    return math.fsum(count * piece.delta for piece, count in pieces)


def repeat(event: DpEvent, count: int) -> DpEvent:
    """`event`, `count` times in a row (each may depend on what the ones before it released)."""
    if count < 0 or count != int(count):
        raise ValueError(f"count must be a whole number >= 0, not {count}")
    if count == 0:
        return dp.NoOpDpEvent()
    return event if count == 1 else dp.SelfComposedDpEvent(event, int(count))


def compose(events: Sequence[DpEvent]) -> DpEvent:
    """All of `events` on the same data."""
    if len(events) == 0:
        return dp.NoOpDpEvent()
    return events[0] if len(events) == 1 else dp.ComposedDpEvent(list(events))


def repeat_and_select(event: DpEvent, mean: float, shape: float) -> DpEvent:
    """`event`, a number of times that is drawn at random and kept secret, of which only the best result is shown.

    See `sordino.privacy.selection`: a shape of 1 is geometric, 0 logarithmic, infinity Poisson.
    """
    if not 1 <= mean <= LARGEST_MEAN:
        raise ValueError(f"a selection has a mean number of runs from 1 to {LARGEST_MEAN:g}, not {mean}")
    check_shape(shape)
    if any(isinstance(leaf, dp.RepeatAndSelectDpEvent) for leaf, _ in leaves(event)):
        raise ValueError("a selection among selections has no price here: select once")
    if any(isinstance(leaf, dp.EpsilonDeltaDpEvent) for leaf, _ in leaves(event)):
        raise ValueError(
            "a selection among runs with a part of which only (epsilon, delta) is known has no price here: leave it out"
        )
    if any(isinstance(leaf, dp.NonPrivateDpEvent) for leaf, _ in leaves(event)):
        return dp.NonPrivateDpEvent()
    return dp.RepeatAndSelectDpEvent(event, float(mean), float(shape))


def check_shape(shape: float) -> None:
    """Raise unless it is one with which the number of runs of a selection can be drawn as it is priced."""
    if not (shape in (0, math.inf) or _SHAPES[0] <= shape <= _SHAPES[1]):
        raise ValueError(
            f"the shape of a selection is 0 (logarithmic), 1 (geometric), inf (Poisson), or from {_SHAPES[0]:g} to "
            f"{_SHAPES[1]:g}, not {shape!r}"
        )


def leaves(event: DpEvent) -> list[tuple[DpEvent, int]]:
    """`event` as (mechanism, count) pairs: compositions unrolled, equal mechanisms grouped.

    Mechanisms come in the order of their first appearance; no-ops vanish. The cost of a fixed plan does
    not depend on order or grouping, so every accountant prices this form.

    >>> leaves(compose([repeat(gaussian(2.0), 3), gaussian(1.0), gaussian(2.0)]))
    [(GaussianDpEvent(noise_multiplier=2.0), 4), (GaussianDpEvent(noise_multiplier=1.0), 1)]
    """
    found: list[tuple[DpEvent, int]] = []

    def unroll(part: DpEvent, count: int) -> None:
        if isinstance(part, dp.SelfComposedDpEvent):
            unroll(part.event, part.count * count)
        elif isinstance(part, dp.ComposedDpEvent):
            for inner in part.events:
                unroll(inner, count)
        elif not isinstance(part, dp.NoOpDpEvent) and count > 0:
            # Linear search: events can hold lists and then have no hash; there are few distinct ones.
            for i, (known, times) in enumerate(found):
                if known == part:
                    found[i] = (known, times + count)
                    return
            found.append((part, count))

    if not isinstance(event, dp.DpEvent):
        raise ValueError(f"expected a dp_accounting DpEvent, not {type(event).__name__}")
    unroll(event, 1)
    return found


def event_to_json(event: DpEvent) -> dict[str, Any]:
    """`event` as plain JSON, read back by `event_from_json`. Types we never emit raise `ValueError`.

    >>> event_to_json(repeat(poisson_gaussian(1.5, 0.04), 2250))["count"]
    2250
    """
    # Exact types: a subclass may mean something else, and events never change meaning.
    kind = type(event)
    if kind is dp.GaussianDpEvent:
        return {"type": "gaussian", "noise_multiplier": float(event.noise_multiplier)}
    if kind is dp.PoissonSampledDpEvent:
        inner = event_to_json(event.event)
        return {"type": "poisson_sampled", "sampling_rate": float(event.sampling_probability), "event": inner}
    if kind is dp.SampledWithoutReplacementDpEvent:
        size = {"units": int(event.source_dataset_size), "count": int(event.sample_size)}
        return {"type": "sampled_without_replacement", **size, "event": event_to_json(event.event)}
    if kind is dp.SelfComposedDpEvent:
        return {"type": "repeated", "count": int(event.count), "event": event_to_json(event.event)}
    if kind is dp.ComposedDpEvent:
        return {"type": "composed", "events": [event_to_json(part) for part in event.events]}
    if kind is dp.RepeatAndSelectDpEvent:
        shape = "inf" if math.isinf(event.shape) else float(event.shape)
        how = {"mean": float(event.mean), "shape": shape}
        return {"type": "repeat_and_select", **how, "event": event_to_json(event.event)}
    if kind is dp.EpsilonDeltaDpEvent:
        return {"type": "approximate", "epsilon": float(event.epsilon), "delta": float(event.delta)}
    if kind is dp.NoOpDpEvent:
        return {"type": "nothing"}
    if kind is dp.NonPrivateDpEvent:
        return {"type": "non_private"}
    raise ValueError(f"events of type {kind.__name__} have no JSON form here")


def event_from_json(data: Mapping[str, Any]) -> DpEvent:
    """The inverse of `event_to_json`; anything it could not have written raises `ValueError`."""
    if not isinstance(data, Mapping):
        raise ValueError(f"an event must be a JSON object, not {type(data).__name__}")
    kind = data.get("type")
    try:
        if kind == "gaussian":
            z = _number(data["noise_multiplier"])
            # No builder here: a certificate must come back as exactly what it says, or not at all.
            if not (math.isfinite(z) and z > 0):
                raise ValueError(f"a gaussian event needs a finite noise_multiplier above 0, not {z}")
            return dp.GaussianDpEvent(z)
        if kind == "poisson_sampled":
            rate = _number(data["sampling_rate"])
            if not 0 < rate <= 1:
                raise ValueError(f"a poisson_sampled event needs a sampling_rate in (0, 1], not {rate}")
            return dp.PoissonSampledDpEvent(rate, event_from_json(data["event"]))
        if kind == "sampled_without_replacement":
            units, drawn = data["units"], data["count"]
            whole = all(isinstance(x, int) and not isinstance(x, bool) for x in (units, drawn))
            if not whole or not 1 <= drawn <= units:
                raise ValueError(
                    f"a sample of {drawn!r} of {units!r} units cannot be drawn without replacement"
                )
            return dp.SampledWithoutReplacementDpEvent(units, drawn, event_from_json(data["event"]))
        if kind == "repeated":
            count = data["count"]
            if not isinstance(count, int) or isinstance(count, bool) or count < 1:
                raise ValueError(f"a repeated event needs a whole count >= 1, not {count!r}")
            return dp.SelfComposedDpEvent(event_from_json(data["event"]), count)
        if kind == "repeat_and_select":
            shape = math.inf if data["shape"] == "inf" else _number(data["shape"])
            found = repeat_and_select(event_from_json(data["event"]), _number(data["mean"]), shape)
            if math.isnan(shape) or not isinstance(found, dp.RepeatAndSelectDpEvent):
                raise ValueError("a repeat_and_select event needs a private event to repeat")
            return found
        if kind == "approximate":
            return dp.EpsilonDeltaDpEvent(_number(data["epsilon"]), _number(data["delta"]))
        if kind == "composed":
            return dp.ComposedDpEvent([event_from_json(part) for part in data["events"]])
    except (KeyError, TypeError) as err:
        raise ValueError(f"a {kind} event is incomplete or malformed: {err}") from err
    if kind == "nothing":
        return dp.NoOpDpEvent()
    if kind == "non_private":
        return dp.NonPrivateDpEvent()
    raise ValueError(f"unknown event type {kind!r}")


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    return float(value)
