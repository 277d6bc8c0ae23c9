"""AdaBest's progressive average: how many examples a client has, over all participations so far.

A server that does not know its population has nothing better, and under privacy not even that: there the average is a
public number that stays what it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from sordino.federated.algorithms.algorithm import Participants, Round, State, check_positive


def start_average(mean_examples: float | None) -> State:
    """The server's share of state: nothing seen yet, or a public number."""
    if mean_examples is None:
        return {"mean_examples": 0.0, "participations": 0}
    check_positive(mean_examples=mean_examples)
    return {"mean_examples": float(mean_examples), "participations": None}


def update_average(server: State, examples: Sequence[float]) -> None:
    """A client counts as often as it took part."""
    before = server["participations"]
    if before is None or not examples:
        return
    count = before + len(examples)
    # Exact as long as all of it is whole numbers, so that equal clients stay exactly equal to their average.
    total = server["mean_examples"] * before + sum(examples)
    server["mean_examples"], server["participations"] = total / count, count


def average_examples(progressive: bool, who: Participants, server: State, now: Round) -> Tensor | float:
    """What a client's examples are compared with: the population's mean, or the average so far.

    Before anything was seen every client passes for an average one, so that balanced clients are treated alike from
    the first round on.
    """
    if not progressive:
        return now.mean_examples
    known = float(server["mean_examples"])
    return known if known > 0 else who.examples
