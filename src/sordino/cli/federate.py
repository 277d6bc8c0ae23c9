"""`sordino federate`: a model trained across many clients, simulated, or across a network."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import sordino.cli.options as given
from sordino.cli.common import (
    Lines,
    about_model,
    budget_of,
    check_chance,
    declared_name,
    initial_model,
    loaded_data,
    loggers,
    measured_lines,
    model_for,
    parsed_settings,
    promised_lines,
    public_facts,
    run_and_show,
    run_folder,
    task_for,
)
from sordino.cli.flower import FlowerFlags, across_flower
from sordino.named import ALGORITHMS, CLIPS, LOCAL_RULES, NOISES, PARTICIPATIONS, SERVERS
from sordino.registry import meant

if TYPE_CHECKING:
    from sordino.clipping.policy import ClippingPolicy
    from sordino.data import Loaded
    from sordino.data.partitions import Partition
    from sordino.federated.algorithms import Algorithm
    from sordino.federated.local import LocalRule
    from sordino.noise import Mechanism
    from sordino.runs import Run

# torch and the accountants load slowly: they are imported inside the command, so that --help is quick.

_EVERYBODYS = ("learning_rate", "decay", "keep_rates")  # settings of any federation
_CLIPPING = ("threshold", "target_quantile", "speed")
_CLIENTS = 100  # where neither an option nor the data says how many


def federate(
    data: given.Data,
    algorithm: given.Algorithm = None,
    clients: given.Clients = None,
    per_round: given.PerRound = None,
    rounds: given.Rounds = 100,
    partition: given.Partition = None,
    holdout: given.Holdout = 0,
    participation: given.Participation = None,
    local: given.Local = "sgd",
    local_epochs: given.LocalEpochs = 5,
    batch_size: given.LocalBatch = 45,
    max_examples: given.MaxExamples = None,
    short_batches: given.ShortBatches = False,
    settings: given.FederatedSettings = None,
    server: given.Server = None,
    epsilon: given.UserEpsilon = None,
    delta: given.UserDelta = None,
    noise_multiplier: given.NoiseMultiplier = None,
    drop_out: given.DropOut = 0.0,
    slowness: given.Slowness = 0.0,
    deadline: given.Deadline = None,
    over_selection: given.OverSelection = 1.0,
    model: given.Model = None,
    workers: given.Workers = None,
    patience: given.Patience = None,
    engine: given.Engine = "auto",
    store: given.Store = "memory",
    evaluations: given.Evaluations = 10,
    accountant: given.Accountant = "auto",
    classes: given.Classes = None,
    seed: given.Seed = None,
    secure: given.Secure = False,
    device: given.Device = None,
    out: given.Out = None,
    resume: given.Resume = False,
    keep_checkpoint: given.KeepCheckpoint = False,
    show_unprotected: given.ShowClients = False,
    ledger: given.Ledger = None,
    data_name: given.DataName = None,
    rationale: given.Rationale = None,
    signing_key: given.SigningKey = None,
    tensorboard: given.TensorBoard = None,
    mlflow: given.MLflow = None,
    superlink: given.SuperLink = None,
    nodes: given.Nodes = None,
    root_certificates: given.RootCertificates = None,
    superlink_secret: given.SuperLinkSecret = None,
    node_keys: given.NodeKeys = None,
    without_tls: given.WithoutTls = False,
    without_node_authentication: given.WithoutNodeAuthentication = False,
    as_json: given.AsJson = False,
) -> None:
    """Train one model across many clients, on this machine or across a network, with or without privacy for each."""
    budget = budget_of(epsilon, delta, noise_multiplier, _well_below(clients))
    private = budget is not None or noise_multiplier is not None
    if delta is not None and not private:
        raise ValueError("--delta needs an --epsilon or a --noise-multiplier: there are no defaults")
    check_chance(seed, secure)
    if resume and out is None:
        raise ValueError("--resume needs the directory of the run: give it as --out")
    parts = parts_of(parsed_settings(settings or []), algorithm, local, server, private)

    from sordino.federated import Conditions
    from sordino.federated import federate as run_federation

    conditions = Conditions(drop_out, slowness, deadline, over_selection)
    network = FlowerFlags(
        superlink, nodes, root_certificates, superlink_secret, node_keys, without_tls, without_node_authentication
    )  # fmt: skip
    common: dict[str, Any] = {
        **parts, "rounds": rounds, "local_epochs": local_epochs, "batch_size": batch_size,
        "top_up": not short_batches, "max_examples": max_examples, "conditions": conditions, "patience": patience,
        "workers": workers, "store": store, "device": device, "budget": budget,
        "noise_multiplier": noise_multiplier, "delta": None if budget is not None else delta,
        "accountant": accountant, "seed": seed, "secure": secure, "show_unprotected": show_unprotected,
        "evaluations": evaluations, "ledger": ledger, "rationale": rationale, "signing_key": signing_key,
        "resume": resume, "keep_checkpoint": keep_checkpoint, "progress": True,
    }  # fmt: skip
    if network.meant(engine, clients, partition, holdout):
        elsewhere = tensorboard, mlflow
        comes = None if participation is None else partial(PARTICIPATIONS.parsed, participation)
        common |= {"per_round": per_round, "participation": comes}
        return across_flower(network, data, classes, model, out, data_name, elsewhere, as_json, common)
    loaded = loaded_data(data, classes)
    spec = model or model_for(loaded)
    folder = run_folder(out, loaded.name)
    dealt = partition_of(partition, loaded)
    there = _clients(clients, dealt, holdout)
    per_round = min(10, there) if per_round is None else per_round
    run = partial(
        run_federation, initial_model(spec, loaded, seed), task_for(loaded), loaded.train, **common,
        clients=clients, partition=dealt, holdout=holdout, per_round=per_round, engine=engine,
        participation=None if participation is None else PARTICIPATIONS.parsed(participation, per_round, there),
        test=loaded.test, details=about_model(spec, loaded), out=folder,
        data_name=declared_name(data, loaded, data_name, ledger), callbacks=loggers(folder, tensorboard, mlflow),
        assumptions=public_facts(loaded) if private else [], inputs=loaded.inputs,
    )  # fmt: skip
    run_and_show(folder, as_json, run, federation_lines)


def parts_of(
    chosen: dict[str, Any], algorithm: str | None, local: str, server: str | None, private: bool
) -> dict[str, Any]:
    """What the settings are settings of; each part takes its own, and the algorithm those that are left."""
    rate = _number(chosen, "learning_rate", 0.1)
    decay = _number(chosen, "decay", 1.0 if local == "adadp" else 0.998)
    keep_rates = chosen.pop("keep_rates", True)
    if not isinstance(keep_rates, bool):
        raise ValueError(f"keep_rates must be true or false, not {keep_rates!r}")
    others = {
        "noise": _noise(chosen, server, private),
        "clip": _clip(chosen) if private else None,
        "local": _local(local, chosen, server),
    }
    named = algorithm or ("fedavg" if server is not None or private else "adabest")
    _check_left(
        chosen,
        named,
        [*_EVERYBODYS, *((*_CLIPPING, "noise") if private else ()), *_locals(local, server)],
        server,
    )
    return {
        "rate": rate,
        "decay": decay,
        "keep_rates": keep_rates,
        **others,
        "algorithm": _algorithm(named, server, chosen, private),
    }


def _check_left(chosen: dict[str, Any], algorithm: str, elsewhere: list[str], server: str | None) -> None:
    """What no other part took must be the algorithm's, or its server's."""
    own = [*ALGORITHMS.settings(ALGORITHMS.key(algorithm)), *(["momentum"] if server is not None else [])]
    for name in chosen:
        if name not in own:
            raise ValueError(
                f"{algorithm} has no setting {name!r}: it has {', '.join(own) or 'none'}, and a federation like "
                f"this has {', '.join(elsewhere)}{meant(name, [*elsewhere, *own])}"
            )


def _number(chosen: dict[str, Any], name: str, default: float) -> float:
    value = chosen.pop(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number, not {value!r}")
    return float(value)


def _some(chosen: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: chosen.pop(name) for name in names if name in chosen}


def _noise(chosen: dict[str, Any], server: str | None, private: bool) -> Mechanism | None:
    """As told; else tree noise if the server is one of DP-FTRL's, and independent noise if not."""
    from sordino.federated.algorithms import server_named

    named = chosen.pop("noise", None)
    if named is not None and not private:
        raise ValueError("noise is for user-level privacy: give --epsilon and --delta")
    wanted = named is None and server is not None and server_named(server).sums_gradients
    given = _some(chosen, "restart_every", "efficient", "completion")
    if given and not (private and wanted):
        raise ValueError(
            f"{next(iter(given))} is for tree noise: give --server dp-ftrl or dp-ftrlm and a budget, or write it as in "
            "noise=tree:1"
        )
    if private and wanted:
        named = NOISES.named("tree", given)
    noise: Mechanism | None = None if named is None else NOISES.part(named)
    return noise


def _clip(chosen: dict[str, Any]) -> ClippingPolicy:
    """A threshold that follows a quantile, or stays if one is given alone."""
    given = _some(chosen, *_CLIPPING)
    start = _number(dict(given), "threshold", 0.1)
    clip: ClippingPolicy = (
        CLIPS.named("fixed", given)
        if set(given) == {"threshold"}
        else CLIPS.named("quantile", given | {"largest": max(1.0, 10 * start)})
    )
    return clip


def _local(name: str, chosen: dict[str, Any], server: str | None) -> LocalRule:
    from sordino.federated.local import local_named

    return local_named(name, _some(chosen, *_locals(name, server)))


def _locals(name: str, server: str | None) -> list[str]:
    """The settings of the clients' rule; a momentum is the server's if there is one."""
    mine = LOCAL_RULES.settings(LOCAL_RULES.key(name))
    return [setting for setting in mine if server is None or setting != "momentum"]


def _algorithm(name: str, server: str | None, chosen: dict[str, Any], private: bool) -> Algorithm:
    from sordino.federated.algorithms import algorithm_named, server_named

    if server is not None:
        if name not in ("fedavg", "fedprox"):
            raise ValueError(f"{name} has its own server: leave out --server, or use --algorithm fedavg")
        if server.startswith("dp-") and not private:
            raise ValueError(
                f"--server {server} needs a budget: give --epsilon and --delta (or --noise-multiplier)"
            )
        if "momentum" in chosen and "momentum" not in SERVERS.settings(SERVERS.key(server)):
            raise ValueError(f"the server {server} has no momentum: use sgdm or ftrlm")
        chosen["server"] = server_named(server, _some(chosen, "momentum"))
    return algorithm_named(name, chosen)


def partition_of(text: str | None, loaded: Loaded) -> Partition | str:
    from sordino.data.partitions import Natural

    if text == "natural" or (text is None and loaded.users is not None):
        if loaded.users is None:
            raise ValueError(f"{loaded.name} does not say whose its rows are: choose another partition")
        return Natural(loaded.users.numpy())
    return text or "iid"


def _clients(given: int | None, dealt: Partition | str, holdout: int) -> int:
    """How many train."""
    known = None if isinstance(dealt, str) else dealt.clients
    return max(1, given or (_CLIENTS if known is None else known - holdout))


def _well_below(clients: int | None) -> str:
    """For a delta, in words: a tenth of 1/clients or less, as a power of ten."""
    exponent = math.ceil(math.log10(max(1, clients or _CLIENTS))) + 1
    return f"1/clients, such as 1e-{exponent}"


def federation_lines(run: Run) -> Lines:
    from sordino.privacy import show_epsilon

    summary = run.summary
    private = summary["private"]
    yield from measured_lines(run, "; not covered by the guarantee" if private else "")
    yield "clients", f"{summary['clients']}, {summary['rounds']} rounds, engine {summary['engine']}"
    left = sum(len(line.get("left_out", {})) for line in run.history)
    if left:
        yield "left out", f"{left} times a client did not deliver (history.jsonl says who and why)"
    if private:
        yield from promised_lines(run, f"{summary['rounds']} rounds")
    else:
        yield "epsilon", show_epsilon(run.epsilon)
