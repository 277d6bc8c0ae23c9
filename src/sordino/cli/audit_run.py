"""`sordino audit run`: one training run with canaries in it, and what is found of them again."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

import sordino.cli.options as given
from sordino.cli.common import (
    budget_of,
    declared_name,
    initial_model,
    loaded_data,
    model_for,
    parsed_settings,
    task_for,
    warnings_in_one_line,
)
from sordino.cli.federate import partition_of, parts_of
from sordino.named import ALGORITHMS, METHODS, PARTITIONS, SAMPLINGS

if TYPE_CHECKING:
    from sordino.data import Loaded
    from sordino.run_auditing import RunAudit

# torch and the accountants load slowly: they are imported inside the command, so that --help is quick.

_ROUNDS = 10


class Unit(StrEnum):
    example = "example"
    user = "user"


class See(StrEnum):
    releases = "releases"
    model = "model"
    loss = "loss"


NoiseMultiplier = Annotated[
    float | None, typer.Option(help="Instead of --epsilon: noise over threshold, above 0.")
]
Method = Annotated[str | None, typer.Option(help=f"{METHODS.help(but='public')}.", show_default="auto")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting of the method, or of the federation."),
]
Sampling = Annotated[str | None, typer.Option(help=f"{SAMPLINGS.help(but='no guarantee')}.")]
Canaries = Annotated[
    int, typer.Option(help="How many, each in or out by a fair coin: the more, the closer the bound.")
]
Seen = Annotated[
    See,
    typer.Option(
        help="What the canaries are sought in: every noised gradient, the final parameters, or the loss of the final "
        "model on them."
    ),
]
Confidence = Annotated[float, typer.Option(help="With which all bounds hold at once.")]
OfPrivacy = Annotated[
    Unit, typer.Option(help="What a canary is: one row, or all rows of a user, where the data has users.")
]
Federated = Annotated[
    bool, typer.Option("--federated", help="Audit a federation: a canary is a client, a release a round.")
]
Rounds = Annotated[int | None, typer.Option(help="Of a federation.", show_default=str(_ROUNDS))]
Clients = Annotated[
    int | None, typer.Option(help="Of a federation, besides the canaries; by default 100, or all there are.")
]
PerRound = Annotated[
    int | None, typer.Option(help="Clients and canaries in a round, expected; by default a tenth of them.")
]
Partition = Annotated[str | None, typer.Option(help=f"Which client has which rows: {PARTITIONS.help()}.")]
Algorithm = Annotated[
    str | None, typer.Option(help=f"Of a federation: {ALGORITHMS.help()}.", show_default="fedavg")
]
Seed = Annotated[int | None, typer.Option(help="The same run again; by default a fresh one.")]


def run(
    data: given.Data,
    epsilon: given.Epsilon = None,
    delta: given.Delta = None,
    noise_multiplier: NoiseMultiplier = None,
    method: Method = None,
    settings: Settings = None,
    epochs: given.Epochs = None,
    batch_size: given.BatchSize = None,
    model: given.Model = None,
    sampling: Sampling = None,
    canaries: Canaries = 1000,
    see: Seen = See.releases,
    confidence: Confidence = 0.95,
    unit: OfPrivacy = Unit.example,
    federated: Federated = False,
    rounds: Rounds = None,
    clients: Clients = None,
    per_round: PerRound = None,
    partition: Partition = None,
    algorithm: Algorithm = None,
    server: given.Server = None,
    accountant: given.Accountant = "auto",
    classes: given.Classes = None,
    seed: Seed = None,
    ledger: given.Ledger = None,
    data_name: given.DataName = None,
    as_json: given.AsJson = False,
) -> None:
    """One training run with canaries in it: the claim stands (exit code 0), or is refuted (exit code 2). The run spends
    what it claims, like any other on this data; its model has canaries in it and is thrown away."""
    budget = budget_of(epsilon, delta, noise_multiplier)
    if budget is None and (noise_multiplier is None or delta is None):
        raise ValueError(
            "an audit needs a claim: give --epsilon and --delta (or --noise-multiplier and --delta); there are no "
            "defaults"
        )
    chosen = parsed_settings(settings or [])
    _check_kind(
        federated,
        {"--rounds": rounds, "--clients": clients, "--per-round": per_round, "--partition": partition,
         "--algorithm": algorithm, "--server": server},
        {"--method": method, "--epochs": epochs, "--sampling": sampling,
         "--unit": None if unit is Unit.example else unit},
    )  # fmt: skip

    from sordino.methods import method_named
    from sordino.run_auditing import audit_federation, audit_run

    if federated:
        how: dict[str, Any] = parts_of(chosen, algorithm, "sgd", server, True)
        if batch_size is not None:
            how["batch_size"] = batch_size
    else:
        how = {"method": method_named(method or "auto", chosen), "batch_size": batch_size}
    loaded = loaded_data(data, classes)
    network = initial_model(model or model_for(loaded), loaded, seed)
    if federated:
        how |= _federation(loaded, rounds, clients, per_round, partition, canaries)
    else:
        how |= {"epochs": epochs, "sampling": sampling, "groups": _groups(loaded, unit)}
    audited = partial(
        audit_federation if federated else audit_run,
        network,
        task_for(loaded),
        loaded.train,
        canaries=canaries,
        see=see.value,
        confidence=confidence,
        budget=budget,
        noise_multiplier=noise_multiplier,
        delta=None if budget is not None else delta,
        accountant=accountant,
        seed=seed,
        progress=True,
        data_name=declared_name(data, loaded, data_name, ledger),
        ledger=ledger,
        **how,
    )
    with warnings_in_one_line():
        found = audited()
    if as_json:
        from sordino.runs import to_json

        print(to_json({"data": loaded.name, **_report(found, seed)}))
    else:
        _print(found)
    if found.violated:
        raise ValueError(found.finding)


def _check_kind(federated: bool, of_federations: dict[str, Any], of_training: dict[str, Any]) -> None:
    wrong, what = (of_training, "central training") if federated else (of_federations, "a federation")
    for name, value in wrong.items():
        if value is not None:
            remedy = "leave out --federated, or it" if federated else "give --federated too"
            raise ValueError(f"{name} is for {what}: {remedy}")


def _groups(loaded: Loaded, unit: Unit) -> Any:
    if unit is Unit.example:
        return None
    if loaded.users is None:
        raise ValueError(f"{loaded.name} does not say whose its rows are: leave out --unit user")
    return loaded.users


def _federation(
    loaded: Loaded,
    rounds: int | None,
    clients: int | None,
    per_round: int | None,
    partition: str | None,
    canaries: int,
) -> dict[str, Any]:
    dealt = partition_of(partition, loaded)
    known = None if isinstance(dealt, str) else dealt.clients
    there = clients or known or 100
    return {
        "rounds": _ROUNDS if rounds is None else rounds,
        "clients": clients,
        "partition": dealt,
        "per_round": max(1, round((there + canaries) / 10)) if per_round is None else per_round,
    }


def _report(found: RunAudit, seed: int | None) -> dict[str, Any]:
    from sordino.privacy.audit import GDP_ASSUMPTION
    from sordino.privacy.certificate import sordino_version

    judged = found.found
    apart = judged.apart
    return {
        "violated": found.violated,
        "finding": found.finding,
        "claimed_epsilon": judged.claimed.epsilon,
        "delta": judged.claimed.delta,
        "confidence": judged.confidence,
        "epsilon": judged.epsilon,
        "gdp_mu": judged.gdp_mu,
        "gdp_epsilon": judged.gdp_epsilon,
        "claimed_curve_p_value": judged.curve_p,
        "claimed_curve_refuted": judged.curve_refuted,
        "apart": None
        if apart is None
        else {
            "epsilon": apart.bounds[-1].epsilon,
            "gdp_mu": apart.bounds[-1].gdp_mu,
            "gdp_epsilon": apart.bounds[-1].gdp_epsilon,
            "in_the_verdict": judged.counts,
        },
        "gdp_assumption": GDP_ASSUMPTION,
        "canaries": judged.canaries,
        "guesses": [{"made": each.made, "right": each.right} for each in judged.guesses],
        "see": found.see,
        "method": found.method,
        "unit": found.unit,
        "federated": found.federated,
        "releases": found.releases,
        "noise_multiplier": found.noise_multiplier,
        "relation": judged.claimed.relation,
        "accountant": judged.claimed.accountant,
        "sampling": found.assumption,
        "ledger": found.ledger,
        **({} if found.caveat is None else {"caveat": found.caveat}),
        "seed": seed,
        "sordino_version": sordino_version(),
    }


def _print(found: RunAudit) -> None:
    from rich.console import Console
    from rich.table import Table

    from sordino.cli.common import counted_line
    from sordino.privacy import show_epsilon

    judged = found.found
    console = Console(highlight=False, soft_wrap=True)
    table = Table(
        title=f"epsilon at delta {judged.claimed.delta:g}: claimed, and at least ({judged.confidence:.1%} sure)",
        title_justify="left",
    )
    for column in ("", "epsilon", "if Gaussian (GDP)"):
        table.add_column(column, justify="left" if not column else "right")
    table.add_row("claimed", show_epsilon(judged.claimed.epsilon), "")
    close = f"{judged.gdp_epsilon:.4f} (mu {judged.gdp_mu:.4f})"
    table.add_row("at least, whatever was done", f"{judged.epsilon:.4f}", close)
    if judged.apart is not None:
        bound = judged.apart.bounds[-1]
        close = f"{bound.gdp_epsilon:.4f} (mu {bound.gdp_mu:.4f})"
        table.add_row("at least, each canary apart", f"{bound.epsilon:.4f}", close)
    console.print(table)
    console.print(found.finding, style="bold red" if found.violated else "bold")
    best = max(judged.guesses, key=lambda each: each.right / each.made)
    console.print(
        f"{judged.canaries} canaries, each one {found.unit}, sought in the {found.see}: of the {best.made} surest "
        f"guesses {best.right} were right, of all {judged.guesses[0].right}"
    )
    where = "rounds of" if found.federated else "releases of"
    console.print(
        f"{found.releases} {where} {found.method}, noise multiplier {found.noise_multiplier:.4f}; relation "
        f"{judged.claimed.relation}"
    )
    console.print(f"counted {counted_line(found.ledger)}")
    if found.caveat is not None:
        console.print(found.caveat, style="bold red")
    console.print("a low bound proves nothing: it is what these guesses could show", style="dim")
    if judged.apart is not None and not judged.counts:
        console.print("canaries may be tied together here: the verdict does not take them apart", style="dim")
