"""A run put to the test: many canaries in one training run, and what is found of them again.

Every canary is in the run or left out of it, by a fair coin. Who sees what the run released guesses the coins; what the
guesses prove is in ``privacy/one_run.py``. The run is the real thing: the plan, the gate, the method and the conductor
of `train` or `federate`, on private rows with canaries among them, charged like any other run. A canary that is left
out is drawn with its batch and then left out there, which is the relation we claim privacy for.

A canary has a parameter of its own, and pulls at it as hard as it can: whatever the model, its clipped gradient is as
long as the threshold, in a direction that it shares with nobody. Or, to be seen from outside, it is a row of noise with
a label, and is sought by the loss of the final model.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sordino.auditing import noise_matrix, zeroed_out
from sordino.data import Examples, Sampling, as_examples
from sordino.data.canaries import WithCanaries, spread
from sordino.data.partitions import Partition
from sordino.descent import Descent, DescentPlan, PublicLoss
from sordino.federated.algorithms import Algorithm
from sordino.federated.federation import Clients, Given, begun
from sordino.federated.options import FederationOptions, LocalTraining, Means, UserPrivacy
from sordino.federated.population import Population, Rows
from sordino.federated.process import FederationPlan
from sordino.federated.setup import population_of
from sordino.gate import ExampleGate, Members, Released
from sordino.gradients import Engine, Loss, call_model, evaluating, refuse
from sordino.methods import Method, method_named
from sordino.noise import Streams
from sordino.privacy import Guarantee
from sordino.privacy.audit import Array, gaussian_ratio, ratios_by_step, sampled_ratio, whitened_ratio
from sordino.privacy.loss_distribution import SMALLEST_DELTA
from sordino.privacy.one_run import LEAST_CANARIES, Coins, OneRun, check_confidence, one_run
from sordino.ranks import refuse_several
from sordino.registry import is_whole, said
from sordino.runs import Run
from sordino.runs.conductor import conduct
from sordino.runs.options import Options, RunOptions, taken
from sordino.runs.plan import RunPlan
from sordino.runs.process import Process
from sordino.runs.recording import Recording, recorded
from sordino.runs.spending import Spending
from sordino.tasks import Task, as_task
from sordino.terms import Terms
from sordino.training import pins_of, planned_descent

SEE = ("releases", "model", "loss")
_PULL = 1e4  # a canary's gradient, in initial thresholds: always clipped
_LEAST_STD = 1e-6  # in thresholds: where noise is missing, scores are large and still numbers


@dataclass(frozen=True)
class RunAudit:
    """What an audit of a run found, and what exactly was audited.

    Args:
        method: What trained.
        unit: Of privacy, and so what a canary is: an example, or a user.
        federated: Whether the run was a federation.
        see: What the guesses were made from: releases, model or loss.
        releases: Gate calls of the run.
        noise_multiplier: Noise over threshold.
        assumption: About the sampling.
        found: The bounds, and the verdict.
        seeded: A known seed voids the guarantee of the run, not what was found about it.
        ledger: What the ledger says of the run, if one counted it.
        caveat: What its rows say of how they were made, if that leaves no guarantee: the claim is then of the training
            alone.

    >>> from sordino.privacy.accountants import price
    >>> from sordino.privacy.events import gaussian
    >>> from sordino.privacy.one_run import one_run
    >>> coins = np.arange(400) % 2 == 0
    >>> found = one_run(coins, np.where(coins, 1.0, -1.0), price(gaussian(1.0), 1e-5), gaussian(1.0))
    >>> RunAudit("dp-sgd", "example", False, "releases", 1, 1.0, "", found, False, None).violated
    True
    """

    method: str
    unit: str
    federated: bool
    see: str
    releases: int
    noise_multiplier: float
    assumption: str
    found: OneRun
    seeded: bool
    ledger: dict[str, Any] | None
    caveat: str | None = None

    @property
    def violated(self) -> bool:
        return self.found.violated

    @property
    def finding(self) -> str:
        """The verdict in one line."""
        return self.found.finding


def audit_run(
    model: nn.Module,
    loss: Loss | Task,
    data: Any,
    *,
    canaries: int = 1000,
    see: str = "releases",
    confidence: float = 0.95,
    rows: tuple[Any, Any] | None = None,
    method: Method | str = "auto",
    epochs: float | None = None,
    batch_size: int | None = None,
    sampling: str | None = None,
    groups: Any = None,
    template: tuple[Any, Any] | None = None,
    public_loss: PublicLoss | None = None,
    microbatch: int | None = None,
    **options: Unpack[RunOptions],
) -> RunAudit:
    """Train once on ``data`` with canaries in it, and prove a lower bound on epsilon by what is found of them.

    The guarantee: a claim that is true is refuted with probability ``1 - confidence`` at most. That it is not refuted
    proves nothing. The run is a use of the data like any other: it is counted in a ledger before it releases anything.
    The model that comes of it has canaries in it and is thrown away; ``model`` stays as it was.

    Args:
        model: as for `train`, and so are ``loss``, ``data``, ``method``, ``epochs``, ``batch_size``, ``sampling``,
            ``groups``, ``template``, ``public_loss`` and ``microbatch``.
        loss: one value for each example, or a `Task`.
        data: a pair of tensors, or a ``Dataset``.
        canaries: how many, each in the run or out of it by a fair coin. They count among the units, so n is larger.
        see: ``releases`` (each noised gradient, the strongest guess), ``model`` (the final parameters), or ``loss``
            (what the final model says of the canaries, which are rows then).
        confidence: with which all bounds hold at once.
        rows: for ``see="loss"`` public rows (inputs, targets) to be canaries; by default made-up ones.
        method: a name, or a `Method`.
        epochs: passes over the data, expected.
        batch_size: expected.
        sampling: how batches are formed.
        groups: an id for each row: then a canary is a user with several rows.
        template: five public rows.
        public_loss: a term of the loss that is a function of theta alone.
        microbatch: how many rows are worked on at a time.
        options: the keywords of `train` about a budget, chance and the ledger; an audit writes no directory.

    Reference: Steinke, Nasr and Jagielski, "Privacy auditing with one (1) training run", NeurIPS 2023; Mahloujifar,
    Melis and Chaudhuri, "Auditing f-differential privacy in one run", ICML 2025.

    >>> rows = torch.randn(200, 4), torch.randint(2, (200,))
    >>> loss = nn.CrossEntropyLoss(reduction="none")
    >>> found = audit_run(nn.Linear(4, 2), loss, rows, canaries=200, budget=(3, 1e-4), epochs=2, method="dp-adam")
    >>> found.found.epsilon < found.found.claimed.epsilon
    True
    """
    refuse_several("an audit")
    (asked,) = taken(options, audit_run, Options)
    asked.refuse_besides("an audit")
    _check(asked, canaries, see, confidence)
    refuse(model)
    model = copy.deepcopy(model)
    method = method_named(method) if isinstance(method, str) else method
    if not isinstance(method, Method) or not method.private:
        named = method.name if isinstance(method, Method) else said(method)
        raise ValueError(f"an audit needs a claim: choose a private method, not {named}")
    examples, task = as_examples(data), as_task(loss)
    asked = asked.with_inputs_of(examples)
    real = Members(len(examples), groups)
    with recorded(asked, model) as recording:
        hidden = _hidden(canaries, real.count, recording.streams)
        if see == "loss":
            made = _as_rows(model, task, examples, real, hidden, rows)
        else:
            made = _with_parameters(model, task, examples, real, hidden, template, _pull(method.clip))
        asked.place(made.model)
        engine = Engine(made.model, made.loss, microbatch=microbatch)
        plan = planned_descent(
            method, made.members, epochs, batch_size, sampling, recording, len(engine.vector)
        )
        _check_claim(plan)
        terms = replace(plan.terms, sampling=hidden.left_out(plan.terms.sampling))
        gate = ExampleGate(
            engine, made.examples, made.members, terms, recording.streams, template=made.template(template)
        )
        descent = Descent(
            gate,
            plan,
            Spending(plan.terms, plan.delta, asked.accountant),
            pins=partial(pins_of, made.examples, made.members, engine),
            public_loss=_of_the_model(public_loss, len(engine.vector) - made.parameters),
        )
        watch = _Watch(plan.terms, hidden, made.parameters, _pull(method.clip), recording.streams)
        run = _conducted(descent, _AuditedDescent, plan, recording, watch if see == "releases" else None)
        scores = watch.scores() if see == "releases" else made.scores(see)
    return _judged(run, descent.promise.total, plan, method.name, hidden, scores, see, confidence)


def audit_federation(
    model: nn.Module,
    loss: Loss | Task,
    data: Any,
    *,
    rounds: int,
    canaries: int = 1000,
    see: str = "releases",
    confidence: float = 0.95,
    clients: int | None = None,
    partition: Partition | list[Rows] | str = "iid",
    algorithm: Algorithm | str | None = None,
    per_round: int = 10,
    participation: Sampling | None = None,
    **options: Unpack[FederationOptions],
) -> RunAudit:
    """The same for a federation with user-level privacy: a canary is a client.

    The guarantee is that of `audit_run`.

    Args:
        model: as for `federate`, and so are ``loss``, ``data``, ``rounds``, ``clients``, ``partition``, ``algorithm``,
            ``per_round`` and ``participation``.
        loss: one value for each example, or a `Task`.
        data: a pair of tensors, a ``Dataset``, or a `Population`.
        rounds: how many.
        canaries: how many clients, each in or out by a fair coin, come on top of ``clients``.
        see: ``releases`` (each noised mean), or ``model`` (the final parameters).
        confidence: with which all bounds hold at once.
        clients: how many are no canaries.
        partition: how the rows are dealt to them.
        algorithm: what puts together what they send.
        per_round: clients of a round, canaries among them; expected.
        participation: who comes when, in its place.
        options: the keywords of `federate`; an audit writes no directory.

    >>> rows = torch.randn(200, 4), torch.randint(2, (200,))
    >>> loss = nn.CrossEntropyLoss(reduction="none")
    >>> found = audit_federation(
    ...     nn.Linear(4, 2), loss, rows, rounds=2, canaries=200, clients=20, per_round=60, budget=(5, 1e-4), workers=1)
    >>> found.unit, found.found.epsilon < found.found.claimed.epsilon
    ('user', True)
    """
    given = Given(*taken(options, audit_federation, Options, LocalTraining, UserPrivacy, Means))
    given.asked.refuse_besides("an audit")
    _check(given.asked, canaries, see, confidence)
    if not given.asked.wants_privacy:
        raise ValueError("an audit needs a claim: give a budget or a noise_multiplier")
    if see == "loss":
        raise ValueError("a federation is seen by its releases or its model: choose one of them")
    refuse(model)
    streams = _own_streams(given.asked.seed)
    real, _ = population_of(data, partition, clients, 0, streams)
    hidden = _hidden(canaries, real.count, streams)
    typical = max(1, round(real.mean_examples))
    made = _among_clients(model, as_task(loss), real, hidden, typical)
    if given.promised.public_examples is None:  # a canary passes for a client like any other
        given = replace(given, promised=replace(given.promised, public_examples=float(typical)))
    who = Clients(made.population, partition, per_round=per_round, participation=participation)
    with begun(made.model, Task(made.loss), who, rounds, algorithm, given, hidden.left_out) as (
        process,
        plan,
        recording,
    ):
        _check_claim(plan)
        sent = len(plan.algorithm.sent_vectors)
        watch = _Watch(plan.terms, hidden, canaries, _PULL, recording.streams, sent)
        run = _conducted(process, _AuditedFederation, plan, recording, watch if see == "releases" else None)
        scores = watch.scores() if see == "releases" else made.model.moved()
    return _judged(run, process.promise.total, plan, plan.label, hidden, scores, see, confidence)


def _conducted(
    process: Process, kind: type[Any], plan: RunPlan, recording: Recording, watch: _Watch | None
) -> Run:
    assert process.door is not None
    if watch is not None:
        process.door.journal = watch  # which sees every release, and no run directory needs it here
    return conduct(process, kind(**{each.name: getattr(plan, each.name) for each in fields(plan)}), recording)


def _judged(
    run: Run,
    claimed: Guarantee,
    plan: RunPlan,
    method: str,
    hidden: _Hidden,
    scores: Array,
    see: str,
    confidence: float,
) -> RunAudit:
    terms = plan.terms
    assert terms.steps is not None
    event = terms.cost(terms.steps)
    found = one_run(
        hidden.coins,
        scores,
        claimed,
        event,
        confidence,
        apart=see != "loss",  # rows share the parameters of the model
        counts=see == "releases" and not _ties(plan),
    )
    return RunAudit(
        method,
        plan.unit,
        isinstance(plan, FederationPlan),
        see,
        terms.steps,
        terms.multiplier,
        terms.sampling.assumption,
        found,
        plan.seeded,
        run.summary["ledger"],
        plan.caveat,
    )


def _ties(plan: RunPlan) -> bool:
    """Whether one canary has to do with another: clients that correct their gradients by what the server has put
    together move in the coordinates of all, and where a fixed number is drawn one takes the place of another."""
    if plan.terms.sampling.fixed_count is not None:
        return True
    return isinstance(plan, FederationPlan) and plan.algorithm.corrects_gradients


class _AuditedDescent(DescentPlan):
    kind = "audit"


class _AuditedFederation(FederationPlan):
    kind = "audit"


def _check(asked: Options, canaries: Any, see: Any, confidence: float) -> None:
    """What is wrong with the audit is said before the run, which cannot be taken back."""
    check_confidence(confidence)
    if not is_whole(canaries) or canaries < LEAST_CANARIES:
        raise ValueError(
            f"canaries must be a whole number of at least {LEAST_CANARIES}, not {said(canaries)}"
        )
    if see not in SEE:
        raise ValueError(f"see is one of {', '.join(SEE)}, not {said(see)}")
    for name in ("out", "resume", "keep_checkpoint", "test", "show_unprotected"):
        if getattr(asked, name):
            raise ValueError(
                f"an audit keeps no run and measures no model, which has canaries in it: leave out {name}"
            )


def _check_claim(plan: RunPlan) -> None:
    if plan.terms.caveat is not None:
        raise ValueError(
            "such batches are priced without a guarantee, so there is nothing to audit: choose others"
        )
    if not plan.terms.multiplier or plan.delta is None:
        raise ValueError("without noise nothing is claimed: give a budget, or a noise multiplier above 0")
    if plan.delta < SMALLEST_DELTA:
        raise ValueError(
            f"an audit cannot judge a claim at so small a delta: take one of {SMALLEST_DELTA:g} at least"
        )


def _pull(clip: Any) -> float:
    return _PULL * float(clip.sensitivity(clip.start(["weight"]))) if not clip.by_layer else _PULL


def _own_streams(seed: int | None) -> Streams:
    # For coins and for who has which rows, which a federation asks for before its run has streams.
    return Streams.from_entropy() if seed is None else Streams.from_seed(seed)


# Canaries ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Hidden:
    """Which units are canaries, and which of them are there: the coins are for the verdict alone."""

    places: npt.NDArray[np.int64]  # of the canaries among all units
    others: npt.NDArray[np.int64]  # of everybody else
    coins: Coins

    def left_out(self, sampling: Sampling) -> Sampling:
        return zeroed_out(sampling, self.places[~self.coins])

    @property
    def count(self) -> int:
        return len(self.places)


def _hidden(canaries: int, others: int, streams: Streams) -> _Hidden:
    places = spread(canaries, others)
    rest = np.setdiff1d(np.arange(canaries + others), places)
    coins = (streams.words("canaries", 0, canaries) & np.uint64(1)).astype(bool)
    return _Hidden(places, rest, coins)


@dataclass(frozen=True, eq=False)
class _Made:
    """A model and rows with canaries among them."""

    model: nn.Module
    loss: Loss
    examples: Examples
    members: Members
    parameters: int  # of the canaries' own; they are the last of the model
    losses: Callable[[], Array] | None = None  # of canaries that are rows, by the model as it is
    before: Array | None = None

    def scores(self, see: str) -> Array:
        """Of the final model: the larger, the more a canary seems to have been there."""
        if see == "model":
            assert isinstance(self.model, WithParameters)
            return self.model.moved()
        assert self.losses is not None
        assert self.before is not None
        return np.nan_to_num(self.before - self.losses())

    def template(self, given: tuple[Any, Any] | None) -> tuple[Any, Any] | None:
        if given is None or not self.parameters:
            return given
        marks = torch.tensor([0, 1, 0, 2, 1])
        return (given[0], marks), (given[1], marks)


class WithParameters(nn.Module):
    """A model, and a parameter for each canary: a row with its mark has that for its loss, and no other row touches it.

    Rows come as (inputs, marks): marks are 0 for rows of others, and 1, 2, ... for those of canaries.
    """

    def __init__(self, model: nn.Module, canaries: int, pull: float) -> None:
        super().__init__()
        self.model = model
        self.pull = pull
        # One row of weights: ``ParameterVector.size`` takes the first dimension for that of the outputs.
        with torch.random.fork_rng(devices=[]):
            self.own = nn.Linear(canaries, 1, bias=False)
        nn.init.zeros_(self.own.weight)
        self.numbers: Tensor
        self.register_buffer("numbers", torch.arange(1, canaries + 1), persistent=False)

    def forward(self, inputs: Any, marks: Tensor) -> tuple[Any, Tensor]:
        mine = torch.eq(marks.unsqueeze(-1), self.numbers).to(self.own.weight.dtype) * self.pull
        return call_model(self.model, inputs), self.own(mine).squeeze(-1)

    def moved(self) -> Array:
        """How far each canary's parameter went where the canary pulls it."""
        found: Array = np.nan_to_num(-self.own.weight.detach().double().cpu().numpy().ravel())
        return found


def canary_loss(loss: Loss, output: tuple[Any, Tensor], targets: tuple[Any, Tensor]) -> Tensor:
    """The loss of everybody else's rows as it is, and of a canary's its pull alone."""
    scores, pulled = output
    values, marks = loss(scores, targets[0]), targets[1]
    return torch.where(marks > 0, pulled, values) if values.shape == pulled.shape else values


def _with_parameters(
    model: nn.Module,
    task: Task,
    examples: Examples,
    real: Members,
    hidden: _Hidden,
    template: tuple[Any, Any] | None,
    pull: float,
) -> _Made:
    one = examples.template(1) if template is None else _first(template)
    own = WithParameters(model, hidden.count, pull)
    each = 1 if real.groups is None else max(1, round(len(examples) / real.count))
    whole, members = _placed(examples, real, hidden, one, each, marked=True)
    return _Made(own, partial(canary_loss, task.per_example), whole, members, hidden.count)


def _placed(
    examples: Examples, real: Members, hidden: _Hidden, rows: tuple[Any, Any], each: int, *, marked: bool
) -> tuple[Examples, Members]:
    """Private rows with those of canaries, and whose they are: ``each`` rows of every canary."""
    numbers = np.arange(1, hidden.count + 1)
    if real.groups is None:
        whole = WithCanaries(examples, hidden.places, rows, numbers if marked else None)
        return whole, Members(len(whole))
    behind = len(examples) + np.arange(each * hidden.count)
    whole = WithCanaries(examples, behind, rows, np.repeat(numbers, each) if marked else None)
    units = np.concatenate([hidden.others[real.groups.numpy()], np.repeat(hidden.places, each)])
    return whole, Members(len(whole), units)


def _first(template: tuple[Any, Any]) -> tuple[Any, Any]:
    from sordino.data import tree_map

    inputs, targets = tree_map(lambda leaf: torch.as_tensor(leaf)[:1], template)
    return inputs, targets


def _as_rows(
    model: nn.Module,
    task: Task,
    examples: Examples,
    real: Members,
    hidden: _Hidden,
    rows: tuple[Any, Any] | None,
) -> _Made:
    made_up = examples.template(hidden.count) if rows is None else as_examples(rows).take(_all(rows, hidden))
    whole, members = _placed(examples, real, hidden, made_up, 1, marked=False)
    losses = partial(_losses, model, task.per_example, made_up)
    return _Made(model, task.per_example, whole, members, 0, losses, losses())


def _all(rows: Any, hidden: _Hidden) -> Tensor:
    if len(as_examples(rows)) != hidden.count:
        raise ValueError(f"rows must be one for each of the {hidden.count} canaries")
    return torch.arange(hidden.count)


@torch.no_grad()
def _losses(model: nn.Module, loss: Loss, rows: tuple[Any, Any]) -> Array:
    with evaluating(model), torch.random.fork_rng(devices=[]):
        values = loss(call_model(model, rows[0]), rows[1])
    return np.asarray(values.double().cpu().numpy())


def _of_the_model(public_loss: PublicLoss | None, size: int) -> PublicLoss | None:
    return None if public_loss is None else lambda theta: public_loss(theta[:size])


@dataclass(frozen=True, eq=False)
class _Federated:
    model: WithParameters
    loss: Loss
    population: Population


def _among_clients(model: nn.Module, task: Task, real: Population, hidden: _Hidden, each: int) -> _Federated:
    examples, m = real.examples, hidden.count
    behind = len(examples) + np.arange(each * m)
    whole = WithCanaries(examples, behind, examples.template(1), np.repeat(np.arange(1, m + 1), each))
    client = np.empty(m + real.count, dtype=np.int64)  # of others their number, of canaries -1 - theirs
    client[hidden.others], client[hidden.places] = np.arange(real.count), -1 - np.arange(m)

    def rows(number: int) -> Rows:
        which = int(client[number])
        return real.rows(which) if which >= 0 else behind[(-1 - which) * each : -which * each]

    population = Population(whole, m + real.count, rows, real.mean_examples)
    own = WithParameters(copy.deepcopy(model), m, _PULL)
    return _Federated(own, partial(canary_loss, task.per_example), population)


# What is seen of them ---------------------------------------------------------------------------------------


class _Watch:
    """Sees every release as it leaves the gate (a ``Journal``), and adds up what it says of each canary: the logarithm
    of how much likelier it is if the canary is there. That is the best guess if all is as claimed."""

    def __init__(
        self,
        terms: Terms,
        hidden: _Hidden,
        parameters: int,
        pull: float,
        streams: Streams,
        vectors: int = 1,
    ) -> None:
        self._terms, self._hidden, self._pull, self._streams = terms, hidden, pull, streams
        self._parameters, self._vectors = parameters, vectors
        # With what probability a canary takes part, where the price counts on nobody knowing who does.
        number = terms.sampling.fixed_count
        self._coin = terms.sampling.coin if number is None else number / terms.units
        self._total = np.zeros(hidden.count)
        self._thresholds: list[float] = []
        self._sums: list[Array] = []
        self._probes: list[Array] = []
        self._turns: list[npt.NDArray[np.bool_]] = []

    def record(self, released: Released) -> None:
        ratio = self._of_probes(released)
        sampling, coin, independent = self._terms.sampling, self._coin, self._terms.noise.independent
        if independent:
            ratio = ratio + self._of_gradient(released)
        if coin is None:
            units = sampling.units(released.step, self._terms.units, self._streams)
            turns = np.isin(self._hidden.places, units)
            self._total += ratio * turns
        else:
            turns = sampling.turns(released.step, self._hidden.places)
            if independent:
                self._total += sampled_ratio(ratio, coin) * turns  # one coin for all that a release shows
        if not independent:
            self._thresholds.append(released.threshold)
            self._sums.append(self._seen(released.gradient))
            self._probes.append(ratio)
            self._turns.append(turns)

    def sync(self) -> None:
        return None

    def scores(self) -> Array:
        if self._sums:
            self._total = self._total + self._whitened()
        self._sums = []
        return np.nan_to_num(self._total)

    def _seen(self, vector: Tensor) -> Array:
        """The sums in the canaries' own coordinates, which are the last of the model. Of several vectors, such as
        SCAFFOLD's clients send, the mean direction: how they share the threshold is not known."""
        own = vector.view(self._vectors, -1)[:, -self._parameters :].double().cpu().numpy()
        found: Array = own.sum(0) * (self._terms.expected_batch / math.sqrt(self._vectors))
        return found

    def _of_gradient(self, released: Released) -> Array:
        threshold = released.threshold
        std = max(released.noise_std * self._terms.expected_batch, _LEAST_STD * threshold)
        seen = self._seen(released.gradient)
        return gaussian_ratio(seen, np.asarray(min(threshold, self._pull)), np.asarray(std))

    def _of_probes(self, released: Released) -> Array:
        """OSO's q has the direction of whoever is clipped. A count is one number for all, and tells nothing of one."""
        total = np.zeros(self._hidden.count)
        for probe in self._terms.clip.probes(self._terms.multiplier, self._terms.expected_batch):
            if probe.vector:
                std = np.asarray(max(probe.sensitivity * probe.multiplier, _LEAST_STD))
                total += gaussian_ratio(self._seen(released.probes[probe.name]), np.ones(()), std)
        return total

    def _whitened(self) -> Array:
        """Releases whose noise is correlated: whitened by the noise that these thresholds make."""
        noise, sums = noise_matrix(self._terms, self._thresholds), np.stack(self._sums)
        moved, turns = np.minimum(self._thresholds, self._pull), np.stack(self._turns)
        if self._coin is None:
            return whitened_ratio(sums, moved[:, None] * turns, noise)
        # A canary's turns do not overlap once whitened, and each has a coin of its own.
        ratios = ratios_by_step(sums, moved, noise) + np.stack(self._probes)
        found: Array = (sampled_ratio(ratios, self._coin) * turns).sum(0)
        return found
