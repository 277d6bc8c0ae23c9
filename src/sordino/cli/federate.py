"""`sordino federate`: a model trained across many clients, simulated."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino.cli.common import (
    Accountant,
    AsJson,
    Classes,
    Data,
    KeepCheckpoint,
    Model,
    Out,
    Resume,
    Secure,
    budget_of,
    drawn_at_last,
    initial_model,
    interruptible,
    loss_for,
    parsed_settings,
    run_folder,
    show_warning,
)
from sordino.named import (
    ALGORITHMS,
    CLIPS,
    ENGINES,
    LOCAL_RULES,
    NOISES,
    PARTICIPATIONS,
    PARTITIONS,
    SERVERS,
)

if TYPE_CHECKING:
    from sordino.clipping.policy import ClippingPolicy
    from sordino.data import Loaded, Sampling
    from sordino.data.partitions import Partition
    from sordino.federated.algorithms import Algorithm
    from sordino.federated.local import LocalRule
    from sordino.noise import Mechanism
    from sordino.runs import Run

# torch and the accountants load slowly: they are imported inside the command, so that --help is quick.


def federate(
    data: Data,
    algorithm: Annotated[
        str | None,
        typer.Option(
            help=f"{ALGORITHMS.help()}. By default adabest; under privacy or with a --server fedavg."
        ),
    ] = None,
    clients: Annotated[
        int | None, typer.Option(help="That train; by default 100, or all there are in the data.")
    ] = None,
    per_round: Annotated[
        int, typer.Option(help="Clients in a round; under privacy expected, or exactly.")
    ] = 10,
    rounds: Annotated[int, typer.Option(help="How many.")] = 100,
    partition: Annotated[
        str | None,
        typer.Option(help=f"Who has which rows: {PARTITIONS.help()}."),
    ] = None,
    holdout: Annotated[int, typer.Option(help="Further clients that never train, to tune by.")] = 0,
    participation: Annotated[
        str | None, typer.Option(help=f"Who comes when: {PARTICIPATIONS.help()}.")
    ] = None,
    local: Annotated[str, typer.Option(help=f"How clients step: {LOCAL_RULES.help()}.")] = "sgd",
    local_epochs: Annotated[int, typer.Option(help="Passes over a client's rows in a round.")] = 5,
    batch_size: Annotated[int, typer.Option(help="Of a local step.")] = 45,
    max_examples: Annotated[int | None, typer.Option(help="Rows a client uses in a round, at most.")] = None,
    short_batches: Annotated[
        bool, typer.Option("--short-batches", help="Leave the last batch short; else it is topped up.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="learning_rate, decay (of it, per round), keep_rates, beta, mu, tol, server_rate, momentum, "
            "threshold, target_quantile, restart_every, ...",
        ),
    ] = None,
    server: Annotated[
        str | None,
        typer.Option(help=f"The server's step: {SERVERS.help()}."),
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="User-level privacy: the budget. No default.")] = None,
    delta: Annotated[float | None, typer.Option(help="Should be below 1/clients. No default.")] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Instead of --epsilon: noise over threshold.")
    ] = None,
    drop_out: Annotated[float, typer.Option(help="Probability that a client asked does not deliver.")] = 0.0,
    slowness: Annotated[float, typer.Option(help="Lognormal spread of how long clients take.")] = 0.0,
    deadline: Annotated[
        float | None, typer.Option(help="In times of an average client's work; later ones are left out.")
    ] = None,
    over_selection: Annotated[
        float, typer.Option(help="Ask that many times the clients wanted, and take the first.")
    ] = 1.0,
    model: Model = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes that share the local work; by default as many as pay.")
    ] = None,
    patience: Annotated[
        float | None, typer.Option(help="Seconds a client may take; without it a round waits.")
    ] = None,
    engine: Annotated[str, typer.Option(help=f"{ENGINES.help()}.")] = "auto",
    store: Annotated[str, typer.Option(help="What clients keep lies in memory or in a file.")] = "memory",
    evaluations: Annotated[int, typer.Option(help="How often the test rows are looked at.")] = 10,
    accountant: Accountant = "auto",
    classes: Classes = None,
    seed: Annotated[
        int | None, typer.Option(help="For experiments: under privacy a known seed voids the guarantee.")
    ] = None,
    secure: Secure = False,
    out: Out = None,
    resume: Resume = False,
    keep_checkpoint: KeepCheckpoint = False,
    show_unprotected: Annotated[
        bool,
        typer.Option(
            "--show-unprotected", help="Under privacy, write down sizes, labels and rates of clients too."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Train one model across many clients, on this machine, with or without privacy for each of them."""
    budget = budget_of(epsilon, delta, noise_multiplier)
    private = budget is not None or noise_multiplier is not None
    if delta is not None and not private:
        raise ValueError("--delta needs an --epsilon or a --noise-multiplier: there are no defaults")
    if resume and out is None:
        raise ValueError("--resume needs the directory of the run: give it as --out")
    chosen = parsed_settings(settings or [])

    from sordino.data import load
    from sordino.federated import Conditions
    from sordino.federated import federate as run_federation
    from sordino.models import default_model, next_word_accuracy
    from sordino.report import draw_federated_report
    from sordino.runs import to_json

    rate = _number(chosen, "learning_rate", 0.1)
    decay = _number(chosen, "decay", 1.0 if local == "adadp" else 0.998)
    keep_rates = chosen.pop("keep_rates", True)
    if not isinstance(keep_rates, bool):
        raise ValueError(f"keep_rates must be true or false, not {keep_rates!r}")
    noise = _noise(chosen, server, private)
    clip = _clip(chosen) if private else None
    rule = _local(local, chosen, server)
    chosen_algorithm = _algorithm(algorithm, server, chosen, private)  # takes the settings that are left
    if resume and out is not None:

        def draw(summary: dict[str, Any], history: list[dict[str, Any]]) -> None:
            draw_federated_report(summary, history, out)

        if drawn_at_last(out, draw, as_json):
            return
    loaded = load(data, classes=classes)
    spec = model or default_model(loaded.name, loaded.input_shape)
    network = initial_model(spec, loaded, seed)
    folder = run_folder(out, loaded.name)
    dealt = _partition(partition, loaded)
    observe: Callable[[Any], dict[str, float] | None] | None = None
    if loaded.task == "next-word" and loaded.test is not None:
        test, every = loaded.test, max(1, rounds // max(1, evaluations))

        def observe(seen: Any) -> dict[str, float] | None:
            if seen.now.number % every and seen.now.number != rounds:
                return None
            return {"next_word_accuracy": next_word_accuracy(network, test)}

    with warnings.catch_warnings(), interruptible(folder):
        warnings.showwarning = show_warning
        run = run_federation(
            network,
            loss_for(loaded),
            loaded.train,
            rounds=rounds,
            clients=clients,
            partition=dealt,
            holdout=holdout,
            algorithm=chosen_algorithm,
            local=rule,
            per_round=per_round,
            participation=_participation(participation, per_round, clients, dealt, holdout),
            local_epochs=local_epochs,
            batch_size=batch_size,
            top_up=not short_batches,
            max_examples=max_examples,
            rate=rate,
            decay=decay,
            keep_rates=keep_rates,
            conditions=Conditions(drop_out, slowness, deadline, over_selection),
            patience=patience,
            budget=budget,
            noise_multiplier=noise_multiplier,
            delta=None if budget is not None else delta,
            clip=clip,
            noise=noise,
            accountant=accountant,
            show_unprotected=show_unprotected,
            test=loaded.test,
            evaluations=evaluations,
            observe=observe,
            seed=seed,
            secure=secure,
            engine=engine,
            workers=workers,
            store=store,
            out=folder,
            resume=resume,
            keep_checkpoint=keep_checkpoint,
            progress=True,
            data_name=loaded.name,
            assumptions=[f"public: {fact}" for fact in loaded.public] if private else [],
            details={"model": spec},
        )
        draw_federated_report(run.summary, run.history, folder)
    if as_json:
        print(to_json({**run.summary, "run": str(folder)}))
    else:
        _print(run, folder)


def _number(chosen: dict[str, Any], name: str, default: float) -> float:
    value = chosen.pop(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number, not {value!r}")
    return float(value)


def _some(chosen: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: chosen.pop(name) for name in names if name in chosen}


def _noise(chosen: dict[str, Any], server: str | None, private: bool) -> Mechanism | None:
    """Tree noise if the server is one of DP-FTRL's, else independent noise."""
    from sordino.federated.algorithms import server_named

    wanted = server is not None and server_named(server).sums_gradients
    given = _some(chosen, "restart_every", "efficient", "completion")
    if given and not (private and wanted):
        raise ValueError(
            f"{next(iter(given))} is for tree noise: give --server dp-ftrl or dp-ftrlm and a budget"
        )
    tree: Mechanism | None = NOISES.named("tree", given) if private and wanted else None
    return tree


def _clip(chosen: dict[str, Any]) -> ClippingPolicy:
    """A threshold that follows a quantile, or stays if one is given alone."""
    given = _some(chosen, "threshold", "target_quantile", "speed")
    start = _number(dict(given), "threshold", 0.1)
    clip: ClippingPolicy = (
        CLIPS.named("fixed", given)
        if set(given) == {"threshold"}
        else CLIPS.named("quantile", given | {"largest": max(1.0, 10 * start)})
    )
    return clip


def _local(name: str, chosen: dict[str, Any], server: str | None) -> LocalRule:
    from sordino.federated.local import local_named

    mine = LOCAL_RULES.settings(LOCAL_RULES.key(name))
    if server is not None:
        mine.pop("momentum", None)  # the server's
    return local_named(name, _some(chosen, *mine))


def _algorithm(name: str | None, server: str | None, chosen: dict[str, Any], private: bool) -> Algorithm:
    from sordino.federated.algorithms import algorithm_named, server_named

    if server is not None:
        if name not in (None, "fedavg", "fedprox"):
            raise ValueError(f"{name} has its own server: leave out --server, or use --algorithm fedavg")
        if server.startswith("dp-") and not private:
            raise ValueError(
                f"--server {server} needs a budget: give --epsilon and --delta (or --noise-multiplier)"
            )
        if "momentum" in chosen and "momentum" not in SERVERS.settings(SERVERS.key(server)):
            raise ValueError(f"the server {server} has no momentum: use sgdm or ftrlm")
        chosen["server"] = server_named(server, _some(chosen, "momentum"))
    return algorithm_named(name or ("fedavg" if server is not None or private else "adabest"), chosen)


def _partition(text: str | None, loaded: Loaded) -> Partition | str:
    from sordino.data.partitions import Natural

    if text == "natural" or (text is None and loaded.users is not None):
        if loaded.users is None:
            raise ValueError(f"{loaded.name} does not say whose its rows are: choose another partition")
        return Natural(loaded.users.numpy())
    return text or "iid"


def _participation(
    text: str | None, per_round: int, clients: int | None, dealt: Partition | str, holdout: int
) -> Sampling | None:
    if text is None:
        return None
    known = None if isinstance(dealt, str) else dealt.clients
    there = clients or (100 if known is None else max(1, known - holdout))
    found: Sampling = PARTICIPATIONS.parsed(text, per_round, there)
    return found


def _print(run: Run, folder: Path) -> None:
    from sordino.privacy import show_epsilon

    summary = run.summary
    measured = {**run.metrics}
    if run.history and "next_word_accuracy" in run.history[-1]:
        measured["next_word_accuracy"] = run.history[-1]["next_word_accuracy"]
    private = summary["private"]
    cover = "; not covered by the guarantee" if private else ""
    for name, value in measured.items():
        if name != "covered":
            shown = f"{value:.2%}" if name.endswith("accuracy") else f"{value:.4f}"
            whose = "held-out clients" if name.startswith("holdout") else "held-out rows"
            print(f"{name.replace('_', ' '):18s} {shown}   ({whose}{cover})")
    print(f"{'clients':18s} {summary['clients']}, {summary['rounds']} rounds, engine {summary['engine']}")
    left = sum(len(line.get("left_out", {})) for line in run.history)
    if left:
        print(f"{'left out':18s} {left} times a client did not deliver (history.jsonl says who and why)")
    if private:
        caveat = f"   {summary['caveat']}" if "caveat" in summary else ""
        print(f"{'epsilon':18s} {show_epsilon(run.epsilon)}{caveat}")
        if run.delta is not None:
            print(f"{'delta':18s} {run.delta:g}")
        print(f"{'unit':18s} one user of {summary['n']}; relation: {summary['relation']}")
        noise = f"noise multiplier {summary['noise_multiplier']:.4f}, accountant {summary['accountant']}"
        print(f"{'spent by':18s} {summary['rounds']} rounds, {noise}")
        if summary["seeded"]:
            print(f"{'seeded':18s} a known seed voids the guarantee: for experiments only")
    else:
        print(f"{'epsilon':18s} {show_epsilon(run.epsilon)}")
    print(f"{'run':18s} {folder}")
