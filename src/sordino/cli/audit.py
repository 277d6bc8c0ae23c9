"""`sordino audit`: what an adversary can prove about epsilon. `gate` makes up its rows; `run` has its own file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino.cli.audit_run import Unit, run
from sordino.cli.common import budget_of, parsed_settings
from sordino.cli.options import AsJson
from sordino.named import METHODS, SAMPLINGS

if TYPE_CHECKING:
    from sordino.auditing import GateAudit

# torch and the accountants load slowly: they are imported inside the command, so that --help is quick.

app = typer.Typer(
    name="audit",
    help="An empirical lower bound on epsilon, beside what is claimed: of the gate, or of a run.",
    no_args_is_help=True,
)
app.command()(run)


@app.command()
def gate(
    epsilon: Annotated[float | None, typer.Option(help="The budget, above 0. No default.")] = None,
    delta: Annotated[float | None, typer.Option(help="Strictly between 0 and 1. No default.")] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Instead of --epsilon: noise over threshold, above 0.")
    ] = None,
    method: Annotated[str, typer.Option(help=f"{METHODS.help(but='public')}.")] = "auto",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="A setting of the method, e.g. target_quantile=0.5."
        ),
    ] = None,
    releases: Annotated[int, typer.Option(help="Noisy batches of a run, all of which are seen.")] = 4,
    runs: Annotated[
        int, typer.Option(help="Runs with the unit, and as many without it: the more, the closer the bound.")
    ] = 500,
    unit: Annotated[
        Unit, typer.Option(help="Whose contribution is zeroed out: one row, or all rows of a user.")
    ] = Unit.example,
    federated: Annotated[
        bool, typer.Option("--federated", help="Audit the sums of clients' updates; a release is a round.")
    ] = False,
    sampling: Annotated[
        str | None,
        typer.Option(help=f"{SAMPLINGS.help(but='no guarantee')}; with dp-ftrl fixed-order is the default."),
    ] = None,
    sampling_rate: Annotated[
        float | None,
        typer.Option(
            help="Expected batch size over n, in (0, 1]. Bounds come closest where all take part.",
            show_default="1 for poisson, else 0.25",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The same runs again; by default fresh ones.")] = None,
    as_json: AsJson = False,
) -> None:
    """Many runs on two made-up neighbours, no data needed: the claim stands (exit code 0), or a lower bound exceeds it
    (exit code 2)."""
    budget = budget_of(epsilon, delta, noise_multiplier)
    chosen = parsed_settings(settings or [])

    from sordino.auditing import audit_gate
    from sordino.methods import method_named

    recipe = method_named(method, chosen)
    if budget is None and noise_multiplier is None:
        raise ValueError(
            "an audit needs a claim: give --epsilon and --delta (or --noise-multiplier and --delta); there are no "
            "defaults"
        )
    if noise_multiplier is not None and delta is None:
        raise ValueError("--noise-multiplier needs a --delta to be priced at, such as 1e-5")
    found = audit_gate(
        recipe,
        budget=budget,
        noise_multiplier=noise_multiplier,
        delta=delta,
        releases=releases,
        runs=runs,
        unit=unit.value,
        federated=federated,
        sampling=sampling,
        sampling_rate=sampling_rate,
        seed=seed,
        progress=True,
    )
    if as_json:
        from sordino.runs import to_json

        print(to_json(_report(found, seed)))
    else:
        _print(found)
    if found.violated:
        raise ValueError(found.finding)


def _report(found: GateAudit, seed: int | None) -> dict[str, Any]:
    from sordino.privacy.certificate import sordino_version

    audit = found.audit
    refuted = audit.refuted
    return {
        "violated": found.violated,
        "finding": found.finding,
        "claimed_epsilon": audit.claimed.epsilon,
        "delta": audit.claimed.delta,
        "claimed_gdp_mu": audit.claimed.gdp_mu,
        "bounds": [
            {
                "confidence": bound.confidence,
                "epsilon": bound.epsilon,
                "gdp_epsilon": bound.gdp_epsilon,
                "gdp_mu": bound.gdp_mu,
            }
            for bound in audit.bounds
        ],
        "refuted": None
        if refuted is None
        else {"delta": refuted.delta, "claimed_epsilon": refuted.claimed, "epsilon": refuted.epsilon},
        "largest_provable_epsilon": audit.largest,
        "gdp_assumption": audit.gdp_assumption,
        "method": found.method,
        "noise_multiplier": found.noise_multiplier,
        "releases": found.releases,
        "runs": audit.runs,
        "unit": found.unit,
        "federated": found.federated,
        "relation": audit.claimed.relation,
        "accountant": audit.claimed.accountant,
        "sampling": found.assumption,
        "seed": seed,
        "sordino_version": sordino_version(),
    }


def _print(found: GateAudit) -> None:
    from rich.console import Console
    from rich.table import Table

    from sordino.privacy import show_epsilon

    audit = found.audit
    console = Console(highlight=False, soft_wrap=True)
    table = Table(
        title=f"epsilon at delta {audit.claimed.delta:g}: claimed, and at least", title_justify="left"
    )
    for column in ("", "epsilon", "if Gaussian (GDP)"):
        table.add_column(column, justify="left" if not column else "right")
    mu = audit.claimed.gdp_mu
    table.add_row("claimed", show_epsilon(audit.claimed.epsilon), "" if mu is None else f"mu {mu:.4f}")
    for bound in audit.bounds:
        close = f"{bound.gdp_epsilon:.4f} (mu {bound.gdp_mu:.4f})"
        table.add_row(f"at least, {bound.confidence:.1%} sure", f"{bound.epsilon:.4f}", close)
    console.print(table)
    style = "bold red" if found.violated else "bold"
    console.print(found.finding, style=style)
    where = "rounds of a federation" if found.federated else f"releases of {found.method}"
    console.print(
        f"{found.releases} {where}, noise multiplier {found.noise_multiplier:.4f}; {audit.runs} runs with one "
        f"{found.unit} and {audit.runs} without; relation {audit.claimed.relation}"
    )
    console.print(
        f"so many runs prove an epsilon of {audit.largest:.2f} at most: more runs, more proof", style="dim"
    )
    console.print(f"GDP {audit.gdp_assumption}; the verdict does not use it", style="dim")
