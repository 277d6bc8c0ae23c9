"""The rounds of a federation: clients train, what they send comes together, the server moves the cloud model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from torch import Tensor

from sordino.described import described
from sordino.federated.aggregate import Aggregate, Gathered, Tally
from sordino.federated.algorithms import Algorithm, Round, rate_of_round
from sordino.federated.conditions import Conditions
from sordino.federated.machinery import Machinery
from sordino.federated.options import LocalTraining
from sordino.federated.population import Population
from sordino.federated.rounds import Broadcast
from sordino.federated.setup import Federation, about_clients
from sordino.federated.store import ClientStore
from sordino.privacy.certificate import epsilon_to_json
from sordino.runs.plan import RunPlan
from sordino.runs.process import Line, Process, Seen, State
from sordino.runs.recording import Recording
from sordino.runs.spending import Promise


@dataclass(frozen=True, kw_only=True)
class FederationPlan(RunPlan):
    """The plan of a federation."""

    private: bool
    algorithm: Algorithm
    training: LocalTraining
    conditions: Conditions
    holdout: int
    partition: Any  # as plain data: how the rows were dealt, never which
    rows: int
    expected: float  # clients of a round
    public_examples: float | None  # what passes for a client's number of examples, under privacy
    engine: str
    chunk: int
    store: str
    kind = "federation"
    deployment = "central, for a federation"

    @property
    def unit_means(self) -> str:
        return "one client with all its rows"

    @property
    def how(self) -> str:
        terms, rule = self.terms, type(self.training.rule).__name__
        clip, noise = type(terms.clip).__name__, type(terms.noise).__name__
        private = f", what clients send bounded by {clip}, noise {noise}" if self.private else ""
        return (
            f"Federated algorithm {self.label}, clients train by {rule}{private}; run.json has the settings."
        )

    @property
    def label(self) -> str:
        return type(self.algorithm).__name__

    @property
    def caveat(self) -> str | None:
        return super().caveat if self.private else None

    def particulars(self) -> dict[str, Any]:
        terms, training = self.terms, self.training
        never = terms.sampling.never_drawn(terms.units)
        return {
            "private": self.private,
            "algorithm": described(self.algorithm),
            "local": described(training.rule),
            "local_plan": asdict(training.plan),
            "rounds": self.steps,
            "clients": terms.units,
            "holdout": self.holdout,
            "partition": self.partition,
            "participation": described(terms.sampling),
            "conditions": asdict(self.conditions),
            "rate": training.rate,
            "decay": training.decay,
            "keep_rates": training.own_rates,
            "rows": self.rows,
            "clip": described(terms.clip) if self.private else None,
            "noise": described(terms.noise) if self.private else None,
            "public_examples": self.public_examples,
            "engine": self.engine,
            "chunk": self.chunk,
            "store": self.store,
            **({"clients_never_asked": never} if never else {}),
        }


@dataclass(frozen=True, eq=False, kw_only=True)
class SeenRound(Seen):
    """After a round of a federation. Under privacy nobody is named."""

    now: Round
    server: Mapping[str, Any]  # what the algorithm keeps, as it is now; do not write to it
    mean: Mapping[str, Tensor]  # of what was sent, by name; empty if nobody sent anything
    participants: tuple[int, ...]  # under privacy always empty
    population: Population | None  # under privacy always None


class Rounds(Process):
    """What is promised, if anything, is kept where what clients send comes together."""

    def __init__(
        self,
        federation: Federation,
        plan: FederationPlan,
        promise: Promise,
        aggregate: Aggregate,
        store: ClientStore,
        recording: Recording,
        machinery: Machinery,
    ) -> None:
        self.model, self.theta, self.promise = federation.model, federation.vector.theta, promise
        self.door = aggregate.door
        self._measure = federation.measure(recording.asked.test)
        self.measures = self._measure is not None
        self._federation, self._plan, self._aggregate, self._store = federation, plan, aggregate, store
        numbers = plan.terms.numbers(federation.vector, plan.steps, plan.expected)
        self._server = plan.algorithm.start(self.theta, numbers, plan.public_examples)
        self._machinery, self.repeats = machinery, machinery.repeats
        self._show_clients = machinery.sees_rows and (self.door is None or recording.asked.show_unprotected)
        mean, public = federation.population.mean_examples, plan.public_examples
        steps = float(plan.training.plan.steps(federation.typical))
        examples = mean if public is None else public
        self._now = Round(1, plan.terms.units, plan.expected, plan.training.rate, steps, examples)
        self._last = Gathered(None, plan.expected)

    def step(self, number: int) -> bool:
        self._begin(number)
        gathered = self._aggregate(self._broadcast())
        self._now = replace(self._now, participants=gathered.participants)
        if gathered.mean is not None:
            mean = {name: value.to(self.theta.device) for name, value in gathered.mean.items()}
            self._plan.algorithm.server_update(self.theta, mean, self._server, self._now)
        if gathered.tally is not None:
            self._plan.algorithm.seen(self._server, gathered.tally.examples)
        self._store.commit()
        if gathered.tally is not None and gathered.tally.all_raised:
            why = next(iter(gathered.tally.left_out.values()))
            raise ValueError(f"nobody was left in round {number + 1}: the first of its clients {why}")
        self._last = gathered
        return not gathered.repeatable

    def _broadcast(self) -> Broadcast:
        told = {name: self._server[name] for name in self._plan.algorithm.told if name in self._server}
        if self.door is None:
            return Broadcast(self.theta, told, self._now)
        return Broadcast(self.theta, told, self._now, self.door.clip_state, bool(self.door.noise_multiplier))

    def _begin(self, number: int) -> None:
        training = self._plan.training
        rate = rate_of_round(training.rate, training.decay, number)
        self._now = replace(self._now, number=number + 1, rate=rate, participants=self._plan.expected)

    def line(self) -> Line:
        line: Line = {"round": self._now.number, "cloud_norm": float(self.theta.norm())}
        own_rates = self._plan.training.own_rates
        if not own_rates:
            line["rate"] = self._now.rate
        if self._last.tally is not None:
            line |= _about_round(self._last.tally, own_rates)
        else:
            assert self.door is not None
            line["threshold"] = self._last.threshold
            line["epsilon"] = epsilon_to_json(self.promise(self.door.step))
        return line

    def measured(self) -> Mapping[str, float]:
        assert self._measure is not None
        return self._measure()

    def seen(self, step: int, steps: int, line: Line | None) -> Seen:
        tally = self._last.tally
        return SeenRound(
            step=step,
            steps=steps,
            theta=self.theta,
            line=line,
            now=self._now,
            server=MappingProxyType(self._server),
            mean=self._last.mean or {},
            participants=() if tally is None else tuple(tally.clients),
            population=None if tally is None else self._federation.population,
        )

    def pins(self, key: bytes) -> Mapping[str, Any]:
        # A replay under privacy has to be the same release to the last bit, which a journal checks.
        return {
            **self._federation.pins(key),
            **({"workers": self._machinery.workers} if self._plan.private else {}),
        }

    def state(self, unlogged: bool = False) -> State:
        state = {
            "theta": self.theta,
            "server": self._server,
            "store": self._store.checkpoint(),
            **self._machinery.kept,
        }
        if self.door is not None:
            state["gate"] = self.door.state()
        if unlogged:  # it has to be shown after a resume, and cannot be made once more
            state["last"] = {
                "number": self._now.number,
                "mean": self._last.mean,
                "participants": self._last.participants,
                "tally": None if self._last.tally is None else self._last.tally.to_state(),
                "threshold": self._last.threshold,
            }
        return state

    def restore(self, state: State) -> None:
        self.theta.copy_(state["theta"])
        self._server.clear()
        self._server.update(state["server"])
        self._store.restore(state["store"])
        if self.door is not None:
            self.door.restore(state["gate"])
        if "last" in state:
            last = dict(state["last"])
            tally = last.pop("tally")
            self._begin(last.pop("number") - 1)
            self._last = Gathered(**last, tally=None if tally is None else Tally.from_state(tally))
            self._now = replace(self._now, participants=self._last.participants)

    def complaints(self, history: Sequence[Line]) -> list[str]:
        if self.door is None:
            return []
        first, last = (
            float(line["threshold"]) for line in (history[0], history[-1])
        )  # read back it may be "inf"
        if last < 10 * first or math.isinf(first):
            return []
        return [
            f"the threshold grew from {first:.3g} to {last:.3g}, so noise may have taken over: use a fixed threshold "
            "or more clients a round"
        ]

    def facts(self) -> Mapping[str, Any]:
        known = {"clients_with_state": len(self._store)} if self.door is None else {}
        return {"workers": self._machinery.workers, **known}

    def files(self) -> Mapping[str, dict[str, Any]]:
        if not self._show_clients:
            return {}
        open_rates = self.door is None and self._plan.training.own_rates
        rates = self._store.column("rate") if open_rates else {}
        return {"clients.json": {"covered": False, **about_clients(self._federation.population, rates)}}


def _about_round(tally: Tally, own_rates: bool) -> Line:
    line: Line = {"participants": len(tally.clients)}
    if own_rates and tally.rates:
        line["client_rates"] = [min(tally.rates), float(np.median(tally.rates)), max(tally.rates)]
    if tally.left_out:
        line["left_out"] = {str(client): why for client, why in sorted(tally.left_out.items())}
    return line
