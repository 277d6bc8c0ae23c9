"""What is tried: settings that differ from candidate to candidate."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sordino.methods import Method, method_named

Over = Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Any]]
_OF_THE_RUN = ("method", "epochs", "batch_size")  # what is not a setting of the method
_MOST = 10_000


@dataclass(frozen=True)
class Candidate:
    """One of them: what it has of its own, and the run that follows."""

    own: Mapping[str, Any]
    method: Method
    epochs: float | None
    batch_size: int | None

    @property
    def said(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in self.own.items()) or "as it is"


def candidates_of(
    over: Over,
    method: str | Method,
    settings: Mapping[str, Any] | None = None,
    epochs: float | None = None,
    batch_size: int | None = None,
) -> tuple[Candidate, ...]:
    """Every combination of the values of each name, or a list of settings; checked before anything is run.

    >>> [each.said for each in candidates_of({"learning_rate": [0.1, 1.0]}, "dp-sgd")]
    ['learning_rate=0.1', 'learning_rate=1.0']
    """
    found = [_candidate(own, method, settings or {}, epochs, batch_size) for own in _combinations(over)]
    if not found:
        raise ValueError("there is nothing to try: give values, as in over={'learning_rate': [0.1, 1]}")
    if len(found) > _MOST:
        raise ValueError(f"{len(found)} candidates are too many: give fewer values")
    said = [each.said for each in found]
    twice = next((name for name in said if said.count(name) > 1), None)
    if twice is not None:
        raise ValueError(f"the candidate {twice} is there twice: it would be trained and paid for twice")
    return tuple(found)


def _combinations(over: Over) -> Iterable[Mapping[str, Any]]:
    if isinstance(over, Mapping):
        for name, values in over.items():
            if isinstance(values, str) or not isinstance(values, Iterable) or not list(values):
                raise ValueError(f"give values to try for {name}, as in over={{{name!r}: [...]}}")
        names = list(over)
        # One dimension at a time, so that a wrong number of them is refused before it is multiplied out.
        size = 1
        for name in names:
            size *= len(list(over[name]))
            if size > _MOST:
                raise ValueError(f"{size} candidates and more are too many: give fewer values")
        return (
            [dict(zip(names, values, strict=True)) for values in itertools.product(*over.values())]
            if names
            else []
        )
    if isinstance(over, str) or not all(isinstance(each, Mapping) for each in over):
        raise ValueError(
            "over says what to try: values for each setting, as in {'learning_rate': [0.1, 1]}, or a list of settings"
        )
    return over


def _candidate(
    own: Mapping[str, Any],
    method: str | Method,
    settings: Mapping[str, Any],
    epochs: float | None,
    batch_size: int | None,
) -> Candidate:
    mine = {name: value for name, value in own.items() if name not in _OF_THE_RUN}
    both = sorted(mine.keys() & settings.keys())
    if both:
        raise ValueError(f"{both[0]} is said twice, as a setting and as what is tried: leave out one")
    chosen = own.get("method", method)
    if isinstance(chosen, str):
        made = method_named(chosen, {**settings, **mine})
    elif mine or settings:
        raise ValueError("to try settings of a method, give it by its name, as in method='dp-sgd'")
    else:
        made = chosen
    if not isinstance(made, Method):
        raise ValueError(f"a method is a name or a Method such as adadp(), not {made!r}")
    if not made.private:
        raise ValueError(
            f"{made.name} trains without privacy: there is nothing to pay for, so tune it as you like"
        )
    return Candidate(dict(own), made, own.get("epochs", epochs), own.get("batch_size", batch_size))
