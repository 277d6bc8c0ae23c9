"""`federate_across`: the federation that `federate` simulates, with clients that are elsewhere. Only orchestration."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

from torch import nn

from sordino.data import Sampling, as_examples
from sordino.federated.algorithms import Algorithm
from sordino.federated.conditions import Conditions
from sordino.federated.federation import Clients, Given, begun, chosen_algorithm, default_clip, federate
from sordino.federated.machinery import workplace_for
from sordino.federated.options import FederationOptions, LocalTraining, Means, UserPrivacy
from sordino.federated.population import Population, Rows
from sordino.federated.setup import Federation
from sordino.network.crowd import PATIENCE, Link, Network, Place, Roll, called, goodbye
from sordino.network.orders import Orders, task_of
from sordino.network.public import made_up_rows
from sordino.runs import Run
from sordino.runs.checkpoint import Saved
from sordino.runs.conductor import conduct
from sordino.runs.directory import RunDirectory
from sordino.runs.options import Options, taken
from sordino.runs.recording import Recording
from sordino.warn import warn

_POLL = 0.5  # seconds between looks for nodes
_OVER_AVERAGE = 4  # times the rows of an average client are the most that one uses in a round, under privacy
_AGAIN = 10.0  # seconds after which a node that was refused is asked again: it may have been mended
_FAREWELL = 30.0  # seconds at most


@dataclass(frozen=True, eq=False)
class Across:
    """A network, as a federation sees it."""

    link: Link
    nodes: int  # how many it begins with
    engine: str  # what carries messages, for run.json
    bound: bool  # nodes prove who they are
    trust: tuple[str, ...]  # what a reader of the guarantee must believe because of it


def federate_across(
    across: Across,
    model: nn.Module,
    spec: str,
    *,
    rounds: int,
    algorithm: Algorithm | str | None = None,
    per_round: int | None = None,
    participation: Callable[[int, int], Sampling] | None = None,
    **options: Unpack[FederationOptions],
) -> Run:
    """Train ``model``, which is called ``spec``, across the clients of nodes elsewhere, on rows as the keyword
    ``inputs`` says.

    Algorithms, promises, ledger and certificate are those of `federate`; the keywords are too, but that a
    ``participation`` is made when it is known how many a round has, and of how many. Clients are trained and, under
    privacy, clipped where their rows are.
    """
    given = Given(*taken(options, federate, Options, LocalTraining, UserPrivacy, Means))
    given.asked.refuse_besides("a federation")
    inputs = given.asked.inputs
    if inputs is None:
        raise ValueError("nodes have to be told what rows are: give inputs")
    _check(given.means)
    private = given.asked.wants_privacy
    chosen = chosen_algorithm(algorithm, private)
    if private:
        given = replace(given, promised=replace(given.promised, clip=given.promised.clip or default_clip()))
    orders = Orders(spec, inputs, chosen, given.training, given.promised.clip if private else None)
    orders.to_json()  # or refuse, before anybody is asked
    patience = given.means.patience or PATIENCE
    roll = _earlier_roll(given.asked, across.bound) or _first_roll(across, orders, patience)
    if private:
        given = replace(given, training=_bounded(given.training, roll))
        orders = replace(orders, training=given.training)
    given = replace(given, means=replace(given.means, patience=patience))  # which the certificate speaks of
    population = Population(
        as_examples(made_up_rows(inputs)), roll.clients, _elsewhere, roll.rows / roll.clients
    )
    per_round = min(10, roll.clients) if per_round is None else per_round
    comes = None if participation is None else participation(per_round, roll.clients)
    who = Clients(population, None, None, 0, per_round, comes)

    def machinery(federation: Federation, recording: Recording, expected: float) -> Network:
        workplace_for(federation, "looped", expected)  # tried on made-up rows, before anybody works or pays
        return Network(across.link, roll, orders, patience, across.engine, across.trust)

    task = task_of(inputs)
    with begun(model, task, who, rounds, chosen, given, machinery_for=machinery) as (
        process,
        plan,
        recording,
    ):
        run = conduct(process, plan, recording)
        try:
            goodbye(across.link, roll, recording.streams.identity, min(patience, _FAREWELL))
        except Exception as error:  # the model is there, and paid for
            warn(
                f"nodes could not be told that the federation is over ({type(error).__name__}): they keep its states"
            )
    return run


def _check(means: Means) -> None:
    """What is simulated here, there is really."""
    conditions = means.conditions or Conditions()
    if replace(conditions, over_selection=1.0) != Conditions():
        raise ValueError(
            "real clients drop out and are late by themselves: leave out drop_out, slowness and deadline"
        )
    if means.workers is not None or means.chunk is not None or means.store != "memory":
        raise ValueError("nodes choose how they work: leave out workers, chunk and store")


def _bounded(training: LocalTraining, roll: Roll) -> LocalTraining:
    """A node answers for all its clients at once, so one of them with very many rows would make all of them late, and
    none may decide about another: under privacy they use a number of rows that follows from public ones, if none is
    given."""
    if training.max_examples is not None or all(place.clients == 1 for place in roll.places):
        return training
    return replace(training, max_examples=max(1, math.ceil(_OVER_AVERAGE * roll.rows / roll.clients)))


def _earlier_roll(asked: Options, bound: bool) -> Roll | None:
    """Who was there when the interrupted run began."""
    if not asked.resume or asked.out is None:
        return None
    saved = Saved.load(RunDirectory(Path(asked.out)).checkpoint_folder)
    if saved is None or "roll" not in saved.process:
        return None  # which is refused where runs are opened, and explained
    return Roll.from_state(saved.process["roll"], bound)


def _first_roll(across: Across, orders: Orders, patience: float) -> Roll:
    """The nodes that there are, when there are as many as were wanted; raises ValueError if they do not come."""
    told, end = orders.to_json(), time.monotonic() + patience
    found: dict[int, Place] = {}
    refused: dict[int, tuple[str, float]] = {}  # why, and until when
    shown: set[str] = set()

    def say(line: str) -> None:
        if line not in shown:
            print(line, file=sys.stderr)
        shown.add(line)

    while len(found) < across.nodes:
        say(f"waiting for nodes: {len(found)} of {across.nodes} are there")
        now = time.monotonic()
        if now > end:
            reasons = sorted({why for why, _ in refused.values()})
            raise ValueError(
                f"{len(found)} of {across.nodes} nodes are there after {patience:g} seconds{_in_brackets(reasons)}: "
                "start the others, or ask for fewer with --nodes"
            )
        waiting = [node for node, (_, until) in refused.items() if now < until]
        new = [node for node in across.link.nodes() if node not in found and node not in waiting]
        places, others = called(across.link, told, new, max(1.0, end - now)) if new else ([], {})
        for place in places:
            if place.name in {known.name for known in found.values()}:
                others[place.node] = f"two nodes are called {place.name!r}"
            else:
                found[place.node] = place
        for node, why in others.items():
            refused[node] = why, time.monotonic() + _AGAIN
            say(f"a node is not taken: {why}")
        if not new:
            time.sleep(_POLL)
    return Roll(sorted(found.values(), key=lambda place: place.name)[: across.nodes], across.bound)


def _in_brackets(reasons: Sequence[str]) -> str:
    return f" ({'; '.join(reasons)})" if reasons else ""


def _elsewhere(client: int) -> Rows:
    raise LookupError("rows of clients are where the clients are")
