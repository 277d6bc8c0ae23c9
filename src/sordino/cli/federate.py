"""`sordino federate`: a model trained across many clients, simulated."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino.cli.common import (
    AsJson,
    Classes,
    KeepCheckpoint,
    Out,
    Resume,
    Secure,
    budget_of,
    draw_federated_report,
    drawn_at_last,
    initial_model,
    interruptible,
    loss_for,
    parsed_settings,
    run_folder,
    show_warning,
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
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="digits, mnist, fashion-mnist, emnist-bymerge, emnist-letters, cifar10, adult, ag-news, shakespeare, "
            "or a path to an .npz file.",
        ),
    ],
    algorithm: Annotated[
        str | None,
        typer.Option(
            help="adabest, the default; fedavg (under privacy or with a --server), fedprox, fedadam, scaffold, "
            "scaffold-m, feddyn."
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
        typer.Option(
            help="Who has which rows: iid, dirichlet:ALPHA, pathological, pathological:SHARE (of rows dealt at "
            "random), natural (the users in the data); lognormal sizes as in dirichlet:0.3,spread=0.3."
        ),
    ] = None,
    holdout: Annotated[int, typer.Option(help="Further clients that never train, to tune by.")] = 0,
    participation: Annotated[
        str | None,
        typer.Option(
            help="fixed (so many a round, the default), poisson (the default under privacy), shuffled (with tree "
            "noise), in-order, separated:ROUNDS (a client sits out that many)."
        ),
    ] = None,
    local: Annotated[
        str, typer.Option(help="How clients step: sgd, adam, or adadp (each tunes its own rate).")
    ] = "sgd",
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
        typer.Option(
            help="The server's step: sgd, sgdm, adam, ftrl, ftrlm; dp-ftrl, dp-ftrlm with tree noise."
        ),
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
    model: Annotated[
        str | None,
        typer.Option(
            help="linear, mlp[:sizes], cnn, lstm, or MODULE:CALLABLE; by default chosen for the data."
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes that share the local work; by default as many as pay.")
    ] = None,
    patience: Annotated[
        float | None, typer.Option(help="Seconds a client may take; without it a round waits.")
    ] = None,
    engine: Annotated[
        str, typer.Option(help="auto (the fastest), stacked, mapped, looped, debug (plain loops).")
    ] = "auto",
    store: Annotated[str, typer.Option(help="What clients keep lies in memory or in a file.")] = "memory",
    evaluations: Annotated[int, typer.Option(help="How often the test rows are looked at.")] = 10,
    accountant: Annotated[str, typer.Option(help="auto (the tighter of rdp and pld), rdp, pld.")] = "auto",
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
    from sordino.noise import Tree

    wanted = server is not None and server.removeprefix("dp-") in ("ftrl", "ftrlm")
    given = _some(chosen, "restart_every", "efficient", "completion")
    if given and not (private and wanted):
        raise ValueError(
            f"{next(iter(given))} is for tree noise: give --server dp-ftrl or dp-ftrlm and a budget"
        )
    return Tree(**given) if private and wanted else None


def _clip(chosen: dict[str, Any]) -> ClippingPolicy:
    """A threshold that follows a quantile, or stays if one is given alone."""
    from sordino.clipping import Fixed, Quantile

    given = _some(chosen, "threshold", "target_quantile", "speed")
    for name, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{name} must be a number, not {value!r}")
    if set(given) == {"threshold"}:
        return Fixed(given["threshold"])
    return Quantile(**given, largest=max(1.0, 10 * given.get("threshold", 0.1)))


def _local(name: str, chosen: dict[str, Any], server: str | None) -> LocalRule:
    from dataclasses import fields, replace

    from sordino.federated.local import local_named

    rule = local_named(name)
    mine = [f.name for f in fields(rule)]  # type: ignore[arg-type]
    if server is not None:
        mine = [each for each in mine if each != "momentum"]  # the server's
    return replace(rule, **_some(chosen, *mine))  # type: ignore[type-var]


def _algorithm(name: str | None, server: str | None, chosen: dict[str, Any], private: bool) -> Algorithm:
    from dataclasses import replace

    from sordino.federated.algorithms import algorithm_named, server_named

    if server is not None:
        if name not in (None, "fedavg", "fedprox"):
            raise ValueError(f"{name} has its own server: leave out --server, or use --algorithm fedavg")
        if server.startswith("dp-") and not private:
            raise ValueError(
                f"--server {server} needs a budget: give --epsilon and --delta (or --noise-multiplier)"
            )
        step = server_named(server)
        if "momentum" in chosen:
            if not hasattr(step, "momentum"):
                raise ValueError(f"the server {server} has no momentum: use sgdm or ftrlm")
            step = replace(step, **_some(chosen, "momentum"))  # type: ignore[type-var]
        chosen["server"] = step
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
    from sordino.data import FixedOrder, Poisson, Separated, Shuffled, WithoutReplacement
    from sordino.data.partitions import Natural

    if text is None:
        return None
    kind, _, number = text.partition(":")
    if kind == "separated":
        if not number.isdigit():
            raise ValueError("say how many rounds a client sits out, as in --participation separated:10")
        return Separated(per_round, int(number))
    if number:
        raise ValueError(f"--participation {kind} takes no number")
    if kind == "poisson":
        there = clients or (len(set(dealt.users.tolist())) - holdout if isinstance(dealt, Natural) else 100)
        return Poisson(min(1.0, per_round / there))
    kinds: dict[str, Callable[[], Sampling]] = {
        "fixed": lambda: WithoutReplacement(per_round),
        "in-order": lambda: FixedOrder(per_round),
        "shuffled": lambda: Shuffled(per_round, every=None),
    }
    if kind not in kinds:
        raise ValueError(
            f"there is no participation {text!r}: choose fixed, poisson, shuffled, in-order or separated:ROUNDS"
        )
    return kinds[kind]()


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
