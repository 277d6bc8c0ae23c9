"""Federated training: choose clients, have them train, put together what they send, log, save. Only orchestration."""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sordino.clipping import Quantile
from sordino.clipping.policy import ClippingPolicy
from sordino.data import Sampling
from sordino.data.partitions import Partition
from sordino.federated.algorithms import Algorithm, Round, algorithm_named, rate_of_round
from sordino.federated.conditions import Conditions
from sordino.federated.engines.gradients import engine_named
from sordino.federated.local import LocalRule, OwnLoop, local_named
from sordino.federated.pool import Pool
from sordino.federated.population import LocalPlan, Population, Rows
from sordino.federated.rounds import Workplace, made_up_batch, mean_of
from sordino.federated.setup import (
    about_clients,
    check_composition,
    check_disjoint,
    check_own_loop,
    check_private,
    client_store,
    described,
    described_partition,
    draws_randomness,
    fingerprint,
    measured_engine,
    participation_of,
    population_of,
    worthwhile_workers,
)
from sordino.federated.simulator import Simulator, Tally
from sordino.federated.user_level import UserGate
from sordino.gate import Released
from sordino.gradients import Loss, refuse
from sordino.noise import Gaussian, Mechanism
from sordino.privacy import Budget, Ledger, price, show_epsilon
from sordino.privacy.certificate import epsilon_to_json, sordino_version
from sordino.privacy.events import gaussian
from sordino.runs import Checkpoint, Run, RunDirectory, TrainingBar, closed_run, one_run_per_directory
from sordino.runs.journal import ReleaseJournal
from sordino.runs.opening import find_checkpoint
from sordino.runs.resume import (
    behaviour,
    check_same_plan,
    marks,
    restore_constants,
    save_constants,
    streams_of,
)
from sordino.runs.spending import Spending, planned_noise
from sordino.steps import Plan
from sordino.training import evaluate
from sordino.vector import ParameterVector

_CHUNK = 5  # clients that are stepped together: their vectors stay in the cache
_LOGGED_ROUNDS = 40  # under privacy, where each costs the price of a step
_CHECKPOINTS = 20


@dataclass(frozen=True, eq=False)
class Seen:
    """What an observer sees after a round: nothing of it is secret, or under privacy it was released."""

    now: Round
    theta: Tensor  # the cloud model; do not write to it
    server: Mapping[str, Any]
    mean: Mapping[str, Tensor]  # of what was sent, by name; empty if nobody sent anything
    participants: tuple[int, ...]  # under privacy always empty
    population: Population | None  # under privacy always None


@one_run_per_directory
def federate(
    model: nn.Module,
    loss: Loss,
    data: Any,
    *,
    rounds: int,
    clients: int | None = None,
    partition: Partition | Sequence[Rows] | str = "iid",
    holdout: int = 0,
    algorithm: Algorithm | str | None = None,
    local: LocalRule | OwnLoop | str = "sgd",
    per_round: int = 10,
    participation: Sampling | None = None,
    local_epochs: int = 5,
    batch_size: int = 45,
    top_up: bool = True,
    max_examples: int | None = None,
    rate: float = 0.1,
    decay: float = 0.998,
    keep_rates: bool = True,
    conditions: Conditions | None = None,
    patience: float | None = None,
    budget: Budget | None = None,
    noise_multiplier: float | None = None,
    delta: float | None = None,
    clip: ClippingPolicy | None = None,
    noise: Mechanism | None = None,
    public_examples: float | None = None,
    accountant: str = "auto",
    show_unprotected: bool = False,
    test: Any = None,
    evaluations: int = 10,
    observe: Callable[[Seen], Mapping[str, Any] | None] | None = None,
    seed: int | None = None,
    secure: bool = False,
    engine: str = "auto",
    chunk: int | None = None,
    workers: int | None = None,
    store: str = "memory",
    out: str | Path | None = None,
    resume: bool = False,
    keep_checkpoint: bool = False,
    progress: bool | None = None,
    data_name: str = "data",
    assumptions: Sequence[str] = (),
    details: dict[str, Any] | None = None,
) -> Run:
    """Train ``model`` across the clients of a federation, simulated on this machine.

    ``data`` is dealt to ``clients`` clients as ``partition`` says (``iid``, ``dirichlet:0.3``, ``pathological``, a
    `Partition`, or the rows of each client), and ``holdout`` further clients never train: their accuracy is for
    tuning. Every round ``per_round`` of them, or whoever ``participation`` says, take the cloud model, train
    ``local_epochs`` on batches of ``batch_size``, and send what they changed; ``algorithm`` (``adabest``, or under
    privacy ``fedavg``) puts it together and corrects their bias. ``local`` is ``sgd`` at ``rate * decay^round``,
    ``adam``, or ``adadp``, whose clients tune their own rate and keep it between rounds (``keep_rates``).

    With a ``budget``, or a ``noise_multiplier`` and ``delta``, the guarantee is for a whole client (unit ``user``):
    updates are clipped, summed and noised, clients are Poisson samples (or come in order, with ``noise=Tree()``), and
    count alike. ``public_examples`` is then what passes for a client's number of examples. What is known of single
    clients (sizes, labels, rates) is written down only without privacy or with ``show_unprotected``.

    ``workers`` processes share the local work, by default as many as pay; the result is the same. ``patience`` is how
    many seconds a client may take before it is left out; without it a round waits. ``engine="debug"`` trains one client
    after the other in plain loops. With ``store="file"`` what clients keep lies in a file beside the checkpoint.
    ``observe`` is called after every round, and what it returns goes into the history. With ``out`` the run writes a
    directory, and ``resume=True`` goes on from its last checkpoint bit for bit.
    """
    started = time.monotonic()
    refuse(model)  # before any data is touched
    private = budget is not None or noise_multiplier is not None
    if algorithm is None:
        algorithm = "fedavg" if private else "adabest"  # whose correction amplifies noise
    algorithm = algorithm_named(algorithm) if isinstance(algorithm, str) else algorithm
    rule = local_named(local) if isinstance(local, str) else local
    plan_of_client = LocalPlan(local_epochs, batch_size, top_up, max_examples)
    conditions = conditions or Conditions()
    _check_numbers(rounds, rate, decay, workers)
    check_composition(algorithm, rule)
    if not private and (delta is not None or clip or noise or public_examples is not None or secure):
        raise ValueError(
            "clip, noise, delta, public_examples and secure are for user-level privacy: give a budget or a "
            "noise_multiplier too"
        )
    if secure and seed is not None:
        raise ValueError("secure=True takes its randomness from the operating system: leave out the seed")
    if public_examples is not None and not 1 <= public_examples < math.inf:
        raise ValueError(f"public_examples is a number of rows, at least 1, not {public_examples:g}")
    if private and getattr(algorithm, "weighted", False):
        algorithm = replace(algorithm, weighted=False)  # type: ignore[type-var]  # a client counts as a client

    own_rates = isinstance(rule, LocalRule) and rule.keeps_rate and keep_rates

    directory = None if out is None else RunDirectory(Path(out))
    saved = find_checkpoint(directory, resume)
    streams = streams_of(seed, saved)
    population, tuning = population_of(data, partition, clients, holdout, streams)
    examples, count = population.examples, population.count
    typical = (
        float(public_examples) if public_examples is not None else float(round(population.mean_examples))
    )
    if isinstance(rule, LocalRule) and plan_of_client.steps(typical) < rule.batches_per_step:
        raise ValueError(
            f"a client of {typical:g} rows has one batch of {batch_size} in a round, and a step of "
            f"{type(rule).__name__} takes two: use smaller batches or more local epochs"
        )
    noise = (noise or Gaussian()) if private else Gaussian()
    how, wanted = participation_of(participation, per_round, count, private, noise, conditions)
    how.check(count)
    per_epoch = how.steps_per_epoch(count)
    noise = noise.planned(rounds, per_epoch)
    how = noise.dealt(how, count) if private else how
    expected = how.expected_batch(count) if wanted is None else float(wanted)
    multiplier = 0.0
    if private:
        clip = clip or Quantile(largest=1.0)
        check_disjoint(population)
        check_private(algorithm, own_rates, how, clip, noise.independent)
        releases = noise.over(how, count, rounds)
        multiplier, delta = planned_noise(
            releases, clip, expected, rounds, budget, noise_multiplier, delta, accountant
        )
        if delta is not None and delta >= 1 / count:
            warnings.warn(
                f"delta {delta:g} is not below 1/clients = {1 / count:.3g}: it allows publishing somebody whole",
                stacklevel=3,
            )
    if saved is not None:
        assert directory is not None
        torch.set_num_threads(saved["threads"])  # the order of additions depends on it
        restore_constants(model, directory)

    vector = ParameterVector(model)
    theta, size = vector.theta, len(vector)
    if private and noise.independent and multiplier * math.sqrt(size) > expected * math.sqrt(rounds):
        # What noise adds up to over the run, in times of all that clients can send at one threshold.
        warnings.warn(
            f"the noise outweighs what {expected:g} clients a round can say about {size:,} parameters: use more "
            "clients a round, more rounds, a smaller model or a larger epsilon",
            stacklevel=3,
        )
    draws = examples.may_draw_randomness or draws_randomness(model)
    # Under privacy no client may decide about another, so nobody waits for the others of a chunk.
    alone = engine == "debug" or draws or (private and patience is not None)
    chunk = 1 if alone else chunk or max(1, min(_CHUNK, round(expected)))
    if isinstance(rule, OwnLoop):
        check_own_loop(rule, theta, population)
        engine = "looped"
    name = saved["engine"] if saved else engine
    if name == "auto":
        name, gradients = measured_engine(model, loss, vector, population, plan_of_client, chunk)
    else:
        gradients = engine_named(name, model, loss, vector, reuse=True)
    if saved and "workers" in saved["pinned"]:
        workers = workers or saved["pinned"]["workers"]
    if workers is None:
        batches = plan_of_client.steps(typical if private else population.mean_examples)
        batches *= math.ceil(expected / chunk)
        workers = 1
        if not isinstance(rule, OwnLoop):
            call = made_up_batch(population, plan_of_client, chunk)
            workers = worthwhile_workers(gradients, theta, call, batches, math.ceil(expected / chunk))
    workplace = Workplace(
        population, gradients, algorithm, rule, plan_of_client, typical if private else None, draws
    )
    plan: dict[str, Any] = {
        "data": data_name,
        "n": count,
        "unit": "user",
        "private": private,
        "algorithm": described(algorithm),
        "local": described(rule),
        "local_plan": asdict(plan_of_client),
        "rounds": rounds,
        "clients": count,
        "holdout": len(tuning),
        "partition": described_partition(partition),
        "participation": described(how),
        "conditions": asdict(conditions),
        "rate": rate,
        "decay": decay,
        "keep_rates": own_rates,
        "rows": len(examples),
        "clip": described(clip) if private else None,
        "noise": described(noise) if private else None,
        "steps": rounds,
        "noise_multiplier": multiplier,
        "delta": delta,
        "public_examples": typical if private else None,
        "parameters": size,
        "engine": name,
        "chunk": chunk,
        "store": store,
        "seeded": streams.seeded,
        "secure": secure,
        **(details or {}),
    }
    if how.caveat is not None and private:
        plan["caveat"] = how.caveat
    if how.never_drawn(count):
        plan["clients_never_asked"] = how.never_drawn(count)
    pinned: dict[str, Any] = {}
    if directory is not None:
        pinned = {
            "rows of the data": examples.fingerprint(streams.key),
            "rows of the clients": fingerprint(population, streams.key),
            "model or loss": behaviour(model, theta, loss, examples),
            # What was shown once stays said, and what was assumed stays assumed.
            "show_unprotected": show_unprotected,
            "test": test is not None,
            "evaluations": evaluations,
            "patience": patience,
            "assumptions": list(assumptions),
            "accountant": accountant,
        }
        if private:  # a replay has to be the same release to the last bit, which a journal checks
            pinned["workers"] = workers
    if saved is not None:
        check_same_plan({**saved["plan"], **saved["pinned"]}, {**plan, **pinned})

    numbers = Plan(
        size, rounds, rounds, per_epoch, expected, multiplier, vector.size, noise.restart_steps(per_epoch)
    )
    server = algorithm.start(theta, numbers, typical if private else None)
    with ExitStack() as stack:
        folder = None if directory is None else directory.checkpoint_folder
        kept = client_store(store, algorithm, size, folder, stack)
        history: list[dict[str, Any]] = []
        first = 0
        if saved is not None:
            assert directory is not None
            first, server = saved["round"], saved["server"]
            theta.copy_(saved["theta"])
            kept.restore(saved["store"])
            history = directory.cut_history(saved["history_size"])
        work = workplace.in_turn
        if workers > 1 or patience is not None:
            work = stack.enter_context(Pool(workplace, workers, patience))

        now = Round(1, count, expected, rate, float(plan_of_client.steps(typical)), population.mean_examples)
        if private:
            now = replace(now, mean_examples=typical)
        simulate = Simulator(workplace, work, kept, streams, conditions, wanted, chunk, own_rates)

        gate: UserGate | None = None
        spent: Spending | None = None
        if private:
            assert clip is not None
            gate = UserGate(
                lambda chosen: simulate(chosen, theta, server, now),
                algorithm.sent_vectors,
                size,
                count,
                clip=clip,
                noise_multiplier=multiplier,
                sampling=how,
                noise=noise,
                steps=rounds,
                ledger=Ledger.from_state(saved["ledger"]) if saved else Ledger(),
                secure=secure,
                streams=streams,
            )
            spent = Spending(gate, rounds, delta, accountant)
            if saved is not None:
                gate.step, gate.clip_state = saved["gate_step"], saved["clip_state"]
                gate.noise_state, gate.charged_as = saved["noise_state"], saved["charged_as"]

        def save_checkpoint(done: int, unlogged: dict[str, Any] | None = None) -> None:
            if directory is None:
                return
            state: dict[str, Any] = {
                "plan": plan,
                "pinned": pinned,
                "round": done,
                "key": streams.key.hex(),
                "seeded": streams.seeded,
                "engine": name,
                "threads": torch.get_num_threads(),
                "theta": theta,
                "server": server,
                "store": kept.checkpoint(),
                "history_size": directory.history_size(),
            }
            if unlogged is not None:
                state["unlogged"] = unlogged
            if gate is not None:
                state |= {
                    "gate_step": gate.step,
                    "ledger": gate.ledger.to_state(),
                    "charged_as": gate.charged_as,
                    "clip_state": gate.clip_state,
                    "noise_state": gate.noise_state,
                }
            Checkpoint(state).save(directory.checkpoint_folder)

        if progress is None:
            progress = sys.stderr.isatty()
        logged = marks(rounds, _LOGGED_ROUNDS) if private else set(range(1, rounds + 1))
        evaluated = marks(rounds, evaluations) if test is not None or tuning else set()
        saves = marks(rounds, _CHECKPOINTS) - {rounds}
        if directory is not None:
            if saved is None:
                directory.create()
                save_constants(model, directory)
                save_checkpoint(0)
            directory.write_json(
                "run.json", {"status": "running", **plan, "sordino_version": sordino_version()}
            )

        def log(mean: Mapping[str, Tensor], threshold: float | None) -> None:
            """Show what is known of the round that was just done."""
            done, tally, extra = now.number, simulate.tally, {}
            if observe is not None:
                known = ((), None) if private else (tuple(tally.clients), population)
                extra = dict(observe(Seen(now, theta, server, mean, *known)) or {})
            if not (done in logged or done in evaluated or extra):
                bar.update(done)
                return
            line: dict[str, Any] = {"round": done, "cloud_norm": float(theta.norm())}
            if not own_rates:
                line["rate"] = now.rate
            if gate is None:
                line |= _about_round(tally)
            else:
                assert spent is not None
                line |= {"threshold": threshold, "epsilon": epsilon_to_json(spent(gate.step))}
                if how.caveat is not None:
                    line["caveat"] = how.caveat
            if done in evaluated:
                line |= _measures(model, loss, test, examples, tuning)
            line |= extra
            if done in evaluated or extra:
                line["covered"] = False
            history.append(line)
            if directory is not None:
                directory.append_history(line)
            bar.update(done, _facts(line))

        journal = ReleaseJournal(folder, streams.key) if private and folder is not None else None
        with TrainingBar(rounds, progress) as bar:
            if saved is not None and "unlogged" in saved:
                now = replace(now, number=first, rate=rate_of_round(rate, decay, first - 1))
                log(saved["unlogged"]["mean"], saved["unlogged"]["threshold"])
            for number in range(first, rounds):
                now = replace(now, number=number + 1, rate=rate_of_round(rate, decay, number))
                released: Released | None = None
                mean: dict[str, Tensor] | None
                if gate is not None:
                    released = gate(theta)
                    if journal is not None:
                        journal.record(released)
                        journal.sync()  # an observer may show anything, after any round
                    mean = gate.parts(released.gradient)
                else:
                    chosen = how.units(number, count, streams)
                    delivered = simulate(chosen, theta, server, now)
                    mean, present = mean_of(delivered, algorithm.sent_vectors, size, algorithm.weighted)
                    now = replace(now, participants=float(present))
                if mean is not None:
                    algorithm.server_update(theta, mean, server, now)
                if gate is None:
                    algorithm.seen(server, simulate.tally.examples)
                simulate.end_round()
                if gate is None and not simulate.tally.clients and simulate.tally.all_raised:
                    why = next(iter(simulate.tally.left_out.values()))
                    raise ValueError(f"nobody was left in round {number + 1}: the first of its clients {why}")
                if released is not None and simulate.tally.failed:
                    # Who fails may not fail the next time: a round of which anything is shown is not repeated then.
                    save_checkpoint(number + 1, {"mean": mean, "threshold": released.threshold})
                log(mean or {}, None if released is None else released.threshold)
                if number + 1 in saves:
                    save_checkpoint(number + 1)
        clients_seen, rates = len(kept), kept.column("rate") if own_rates else {}

    if not bool(theta.isfinite().all()):
        warnings.warn(
            "training diverged: the model holds numbers that are not finite; use a smaller rate"
            + (" (what was spent is spent)" if private else ""),
            stacklevel=3,
        )
    if private and history[-1]["threshold"] >= 10 * history[0]["threshold"]:
        warnings.warn(
            f"the threshold grew from {history[0]['threshold']:.3g} to {history[-1]['threshold']:.3g}, so noise may "
            "have taken over: use a fixed threshold or more clients a round (what was spent is spent)",
            stacklevel=3,
        )
    last = history[-1]  # evaluated, if there is anything to evaluate on
    metrics = {name: last[name] for name in last if name.startswith(("test_", "holdout_"))} | {
        "covered": False
    }
    event = gaussian(0.0)
    guarantee = replace(price(event, 0.5, "rdp"), delta=0.0)
    if spent is not None:
        guarantee, event = spent.total, spent.paid(rounds)
    files = {}
    if directory is not None and (not private or show_unprotected):
        files["clients.json"] = {"covered": False, **about_clients(population, {} if private else rates)}
    return closed_run(
        model,
        directory,
        guarantee=guarantee,
        event=event,
        unit="user",
        assumptions=[
            *([how.assumption] if private else []),
            *([gate.explanation] if gate is not None and gate.explanation else []),
            *assumptions,
            *_public_facts(private, typical, test is not None or bool(tuning), patience, show_unprotected),
        ],
        plan=plan,
        metrics=metrics,
        facts={"workers": workers, **({} if private else {"clients_with_state": clients_seen})},
        history=history,
        started=started,
        keep_checkpoint=keep_checkpoint,
        files=files,
    )


def _check_numbers(rounds: int, rate: float, decay: float, workers: int | None) -> None:
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1, not {workers}")
    if rounds < 1 or rounds != int(rounds):
        raise ValueError(f"rounds must be a whole number of at least 1, not {rounds:g}")
    if not 0 < rate < math.inf:
        raise ValueError(f"the learning rate must be positive, not {rate:g}")
    if not 0 < decay <= 1:
        raise ValueError(f"decay must be in (0, 1], not {decay:g}")


def _measures(
    model: nn.Module, loss: Loss, test: Any, examples: Any, tuning: Sequence[Rows]
) -> dict[str, float]:
    """On test rows, and on those of clients that were held out. Not covered by any guarantee."""
    found = evaluate(model, loss, test) if test is not None else {}
    if tuning:
        rows = torch.from_numpy(np.sort(np.concatenate(tuning)))
        held = evaluate(model, loss, examples.take(rows))
        found |= {name.replace("test_", "holdout_"): value for name, value in held.items()}
    return found


def _about_round(tally: Tally) -> dict[str, Any]:
    line: dict[str, Any] = {"participants": len(tally.clients)}
    if tally.rates:
        line["client_rates"] = _spread(tally.rates)
    if tally.left_out:
        line["left_out"] = {str(client): why for client, why in sorted(tally.left_out.items())}
    return line


def _spread(values: Sequence[float]) -> list[float]:
    """Least, median and largest."""
    return [min(values), float(np.median(values)), max(values)]


def _facts(line: dict[str, Any]) -> dict[str, str]:
    facts = {}
    if "test_accuracy" in line:
        facts["accuracy"] = f"{line['test_accuracy']:.1%}"
    facts["cloud norm"] = f"{line['cloud_norm']:.3g}"
    if "epsilon" in line:
        spent = float(line["epsilon"])
        facts["threshold"] = f"{line['threshold']:.3g}"
        facts["epsilon"] = "inf" if math.isinf(spent) else show_epsilon(spent, 3)
    if "client_rates" in line:
        facts["client rates"] = "{:.2g} to {:.2g}".format(line["client_rates"][0], line["client_rates"][-1])
    if "left_out" in line:
        facts["left out"] = str(len(line["left_out"]))
    return facts


def _public_facts(
    private: bool, typical: float, tested: bool, patience: float | None, shown: bool
) -> list[str]:
    facts = ["this is a simulation: the data of all clients lies on one machine"]
    if private:
        facts += [
            "shapes of the data, number of rows and number of classes are public, and that a client passes for one "
            f"of {typical:g} examples",
            "a client's local training depends on its own rows, what it kept, and the cloud model alone, and no row "
            "belongs to two clients",
        ]
        if patience is not None:
            facts.append("whether a client is back in time does not depend on the rows of another")
        if shown:
            facts.append("sizes and labels of clients were written down and are not covered by the guarantee")
    if tested:
        facts.append("metrics on held-out rows are not covered by the guarantee")
    return facts
