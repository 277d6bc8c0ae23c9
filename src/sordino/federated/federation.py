"""`federate`: from rows, clients and perhaps a budget to a plan, and from a plan to a model. Only orchestration."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Unpack

from torch import nn

from sordino.clipping import ClippingPolicy, Quantile, Unclipped
from sordino.data import Sampling
from sordino.data.partitions import Partition
from sordino.federated.aggregate import Aggregate, Crowd, OpenMean, PrivateMean
from sordino.federated.algorithms import Algorithm, algorithm_named
from sordino.federated.machinery import Machinery, MachineryFor
from sordino.federated.machinery import machinery_for as simulation_for
from sordino.federated.options import FederationOptions, LocalTraining, Means, UserPrivacy
from sordino.federated.population import Rows
from sordino.federated.process import FederationPlan, Rounds
from sordino.federated.ray_pool import joined
from sordino.federated.setup import (
    Federation,
    check_composition,
    check_disjoint,
    check_private,
    described_partition,
    participation_of,
    population_of,
)
from sordino.federated.user_level import UserGate
from sordino.gradients import Loss, refuse
from sordino.noise import Gaussian, Known, Streams
from sordino.ranks import refuse_several
from sordino.registry import is_whole, said
from sordino.runs import Run
from sordino.runs.conductor import conduct
from sordino.runs.options import Callback, Options, taken
from sordino.runs.recording import Recording, recorded
from sordino.runs.spending import NothingPromised, Spending
from sordino.tasks import Task, as_task
from sordino.terms import Terms
from sordino.vector import ParameterVector
from sordino.warn import warn

_LOGGED_ROUNDS = 40  # under privacy, where each costs the price of a step


def federate(
    model: nn.Module,
    loss: Loss | Task,
    data: Any,
    *,
    rounds: int,
    clients: int | None = None,
    partition: Partition | Sequence[Rows] | str = "iid",
    holdout: int = 0,
    algorithm: Algorithm | str | None = None,
    per_round: int = 10,
    participation: Sampling | None = None,
    observe: Callback | None = None,
    **options: Unpack[FederationOptions],
) -> Run:
    """Train ``model`` across the clients of a federation, simulated on this machine.

    The guarantee, with a ``budget`` or a ``noise_multiplier``: what comes out is (epsilon, delta)-differentially
    private for a whole client. Its updates are clipped, summed and noised; clients are Poisson samples (or come in
    order, with ``noise=Tree()``), and count alike. Without either nothing is promised.

    Args:
        model: as for `train`.
        loss: as for `train`.
        data: as for `train`, or a `Population`.
        rounds: how many. In each some clients take the cloud model, train, and send what they changed.
        clients: how many train; by default 100, or as many as the data has users.
        partition: how the rows are dealt to them: ``iid``, ``dirichlet:0.3``, ``pathological``, a partition such as
            ``Dirichlet(0.3)``, or lists of rows.
        holdout: so many further clients never train: their accuracy is for tuning.
        algorithm: what puts together what they send, and corrects their bias: ``adabest``, or under privacy
            ``fedavg``.
        per_round: clients of a round; under Poisson sampling expected.
        participation: who comes when, in its place: a sampling such as ``Poisson(0.1)``.
        observe: one callback, as in ``callbacks``; it sees the round, and without privacy who took part.
        local: ``sgd`` at ``rate * decay^round``, ``adam``, or ``adadp``, whose clients tune their own rate; or
            `OwnLoop`.
        local_epochs: passes over a client's rows in a round.
        batch_size: of a local step.
        top_up: the last batch of an epoch is filled with rows drawn again; else it is a short one.
        max_examples: rows that a client uses in a round, at most.
        rate: the local learning rate, or where ``adadp`` starts.
        decay: of the rate, from round to round.
        keep_rates: clients that tune their rate go on from the one they had.
        clip: under privacy; by default a quantile of the norms.
        noise: under privacy; by default independent noise.
        public_examples: under privacy, what passes for a client's number of examples.
        conditions: clients that drop out or are slow.
        patience: how many seconds a client may take before it is left out; without it a round waits.
        engine: how gradients are computed; ``debug`` trains one client after the other in plain loops, and ``ray`` has
            workers of Ray train them, with gradients in the fastest way.
        chunk: clients that are stepped together.
        workers: processes that share the work, by default as many as pay; the result is the same.
        store: ``memory``, or ``file``: what clients keep lies in a file beside the checkpoint.
        options: all the keywords of `train` about a budget, chance, evaluation and recording. ``show_unprotected``
            writes down sizes and labels of clients under privacy too.

    >>> import torch
    >>> rows = torch.randn(60, 4), torch.randint(2, (60,))
    >>> run = federate(nn.Linear(4, 2), nn.CrossEntropyLoss(reduction="none"), rows, rounds=2, clients=6, per_round=3)
    >>> run.epsilon, len(run.history)
    (inf, 2)
    """
    given = Given(*taken(options, federate, Options, LocalTraining, UserPrivacy, Means))
    given.asked.refuse_besides("a federation")
    if observe is not None:
        asked = replace(given.asked, callbacks=(*given.asked.callbacks, observe))
        given = replace(given, asked=asked)
    who = Clients(data, partition, clients, holdout, per_round, participation)
    with begun(model, loss, who, rounds, algorithm, given) as (process, plan, recording):
        return conduct(process, plan, recording)


@dataclass(frozen=True, eq=False)
class Given:
    """The keywords of `federate` that others have too, checked."""

    asked: Options
    training: LocalTraining
    promised: UserPrivacy
    means: Means


@dataclass(frozen=True, eq=False)
class Clients:
    """Who trains, as `federate` is told."""

    data: Any
    partition: Partition | Sequence[Rows] | str | None = "iid"  # None where clients have rows of their own
    clients: int | None = None
    holdout: int = 0
    per_round: int = 10
    participation: Sampling | None = None


@contextmanager
def begun(
    model: nn.Module,
    loss: Loss | Task,
    who: Clients,
    rounds: int,
    algorithm: Algorithm | str | None,
    given: Given,
    but: Callable[[Sampling], Sampling] | None = None,
    machinery_for: MachineryFor = simulation_for,
) -> Iterator[tuple[Rounds, FederationPlan, Recording]]:
    """All that a federation needs but for being conducted. ``but`` leaves clients out at the door, for an audit;
    ``machinery_for`` says where clients are, if not here."""
    refuse_several("a federation")
    asked, training, promised, means = given.asked, given.training, given.promised, given.means
    refuse(model)  # before any data is touched
    task, private = as_task(loss), asked.wants_privacy
    algorithm = chosen_algorithm(algorithm, private)
    _check(rounds, algorithm, training, promised, asked)
    with recorded(asked, model) as recording, ExitStack() as stack:
        population, tuning = population_of(
            who.data, who.partition or "iid", who.clients, who.holdout, recording.streams
        )
        asked = asked.with_inputs_of(population.examples)
        recording = replace(recording, asked=asked)
        typical = promised.public_examples or float(round(population.mean_examples))
        training.check(typical)
        federation = Federation(
            model,
            task,
            ParameterVector(model),
            population,
            tuning,
            algorithm,
            training,
            means,
            typical,
            private,
        )
        terms, delta, wanted = _terms(federation, rounds, who.per_round, who.participation, promised, asked)
        expected = terms.expected_batch if wanted is None else float(wanted)
        if means.engine == "ray":
            machinery_for = partial(simulation_for, cluster=stack.enter_context(joined()))
        machinery = machinery_for(federation, recording, expected)
        partition = described_partition(who.partition)
        plan = _plan(federation, terms, delta, expected, partition, machinery, recording)
        store = machinery.store(federation, recording, stack)
        crowd = machinery.crowd(federation, store, recording.streams, wanted, stack)
        promise = Spending(terms, delta, asked.accountant) if private else NothingPromised()
        aggregate = _aggregate(crowd, plan, recording.streams, but)
        process = Rounds(federation, plan, promise, aggregate, store, recording, machinery)
        yield process, plan, recording


def chosen_algorithm(given: Algorithm | str | None, private: bool) -> Algorithm:
    if given is None:
        given = "fedavg" if private else "adabest"  # whose correction amplifies noise
    algorithm = algorithm_named(given) if isinstance(given, str) else given
    if private and getattr(algorithm, "weighted", False):
        return replace(algorithm, weighted=False)  # type: ignore[type-var]  # a client counts as a client
    return algorithm


def _check(
    rounds: int, algorithm: Algorithm, training: LocalTraining, promised: UserPrivacy, asked: Options
) -> None:
    if not is_whole(rounds) or rounds < 1:
        raise ValueError(f"rounds must be a whole number of at least 1, not {said(rounds)}")
    check_composition(algorithm, training.rule)
    if not asked.wants_privacy and (asked.delta is not None or asked.secure or promised != UserPrivacy()):
        raise ValueError(
            "clip, noise, delta, public_examples and secure are for user-level privacy: give a budget or a "
            "noise_multiplier too"
        )


def _terms(
    federation: Federation,
    rounds: int,
    per_round: int,
    participation: Sampling | None,
    promised: UserPrivacy,
    asked: Options,
) -> tuple[Terms, float | None, int | None]:
    """What is promised, its delta, and at most how many of those that are asked are taken."""
    private, count = federation.private, federation.population.count
    noise = promised.noise or Gaussian()
    how, wanted = participation_of(participation, per_round, count, private, noise, federation.conditions)
    how.check(count)
    sent = len(federation.vector) * len(federation.algorithm.sent_vectors)
    noise = noise.planned(rounds, how.steps_per_epoch(count), Known(how, count, asked.budget, sent))
    if not private:
        return Terms(Unclipped(), noise, how, count, rounds), None, wanted
    how, clip = noise.dealt(how, count), promised.clip or default_clip()
    check_disjoint(federation.population)
    check_private(federation.algorithm, federation.training.own_rates, how, clip, noise.independent)
    terms = Terms(clip, noise, how, count, rounds, secure=asked.secure)
    terms, delta = terms.within(asked.budget, asked.noise_multiplier, asked.delta, asked.accountant)
    _warn_of_noise(terms, delta, len(federation.vector))
    return terms, delta, wanted


def default_clip() -> ClippingPolicy:
    """What bounds a client under privacy, if nobody says."""
    return Quantile(largest=1.0)


def _warn_of_noise(terms: Terms, delta: float | None, size: int) -> None:
    if delta is not None and delta >= 1 / terms.units:
        warn(
            f"delta {delta:g} is not below 1/clients = {1 / terms.units:.3g}: it allows publishing somebody whole"
        )
    terms.warn_if_alone()
    assert terms.steps is not None
    expected = terms.expected_batch
    if terms.noise.independent and terms.multiplier * math.sqrt(size) > expected * math.sqrt(terms.steps):
        # What noise adds up to over the run, in times of all that clients can send at one threshold.
        warn(
            f"the noise outweighs what {expected:g} clients a round can say about {size:,} parameters: use more "
            "clients a round, more rounds, a smaller model or a larger epsilon"
        )


def _plan(
    federation: Federation,
    terms: Terms,
    delta: float | None,
    expected: float,
    partition: Any,
    machinery: Machinery,
    recording: Recording,
) -> FederationPlan:
    asked = recording.asked
    assert terms.steps is not None
    return FederationPlan(
        data=asked.data_name,
        unit="user",
        terms=terms,
        delta=delta,
        steps=terms.steps,
        lines=_LOGGED_ROUNDS if federation.private else terms.steps,
        parameters=len(federation.vector),
        seeded=recording.streams.seeded,
        assumptions=_assumptions(federation, terms, asked, machinery.assumptions),
        unprotected=_unprotected(federation, asked),
        details=asked.details or {},
        inputs=asked.inputs,
        private=federation.private,
        algorithm=federation.algorithm,
        training=federation.training,
        conditions=federation.conditions,
        holdout=len(federation.tuning),
        partition=partition,
        rows=machinery.rows,
        expected=expected,
        public_examples=federation.public_examples,
        engine=machinery.engine,
        chunk=machinery.chunk,
        store=federation.means.store,
    )


def _aggregate(
    crowd: Crowd,
    plan: FederationPlan,
    streams: Streams,
    but: Callable[[Sampling], Sampling] | None,
) -> Aggregate:
    terms, names = plan.terms, plan.algorithm.sent_vectors
    if but is not None:
        terms = replace(terms, sampling=but(terms.sampling))
    if plan.private:
        return PrivateMean(UserGate(crowd, names, plan.parameters, terms, streams))
    return OpenMean(crowd, terms.sampling, terms.units, plan.parameters)


def _assumptions(
    federation: Federation, terms: Terms, asked: Options, where: tuple[str, ...]
) -> tuple[str, ...]:
    """What a reader of the guarantee must believe."""
    private = federation.private
    facts = [terms.sampling.assumption] if private else []
    if private and terms.explanation:
        facts.append(terms.explanation)
    of_inputs = [] if asked.inputs is None else [f"public: {', '.join(asked.inputs.public)}"]
    facts += [
        *asked.assumptions,
        *(of_inputs if private else []),
        *where,
    ]
    if private:
        facts += [
            "shapes of the data, number of rows and number of classes are public, and that a client passes for one "
            f"of {federation.typical:g} examples",
            "a client's local training depends on its own rows, what it kept, and the cloud model alone, and no row "
            "belongs to two clients",
        ]
        if federation.means.patience is not None:
            facts.append("whether a client is back in time does not depend on the rows of another")
    return tuple(facts)


def _unprotected(federation: Federation, asked: Options) -> tuple[str, ...]:
    """What the guarantee does not cover."""
    facts = [] if asked.inputs is None else [*asked.inputs.unprotected]
    if asked.test is not None or federation.tuning:
        facts.append("metrics on held-out rows, which are the data of somebody too")
    if federation.private and asked.show_unprotected:
        facts.append("sizes and labels of clients, which were written down on request (clients.json)")
    return tuple(facts)
