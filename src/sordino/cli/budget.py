"""`sordino budget`: price or calibrate a mechanism. No data needed, none touched."""

from __future__ import annotations

import json
import math
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

if TYPE_CHECKING:
    from dp_accounting import DpEvent

    from sordino.privacy import Guarantee

T = TypeVar("T")

# The accountants load slowly (scipy): they are imported inside the commands, so that --help is quick.

app = typer.Typer(
    name="budget",
    help="What a plan costs, how much noise it needs, or how many steps it affords. No data needed.",
    no_args_is_help=True,
)

UNIT_NOTE = (
    "per unit of privacy: the example or user whose contribution is clipped; "
    "zeroing it out is the neighbouring relation, so n, rate and steps are public"
)


class Mechanism(StrEnum):
    gaussian = "gaussian"


class Sampling(StrEnum):
    poisson = "poisson"
    disjoint = "disjoint"


class Accountant(StrEnum):
    auto = "auto"
    rdp = "rdp"
    pld = "pld"
    moments = "moments"


class Conversion(StrEnum):
    improved = "improved"
    basic = "basic"


MechanismOption = Annotated[Mechanism, typer.Option(help="The noise added to each clipped sum.")]
NoiseOption = Annotated[
    float | None, typer.Option(help="Std of the noise over the sensitivity; 0 means none, and epsilon inf.")
]
RateOption = Annotated[
    float, typer.Option(help="Expected batch size over n, in (0, 1]; 1 means every step sees all data.")
]
StepsOption = Annotated[int | None, typer.Option(help="Noisy steps (gate calls), at least 1.")]
DeltaOption = Annotated[float | None, typer.Option(help="Strictly between 0 and 1; below 1/n. No default.")]
EpsilonOption = Annotated[float | None, typer.Option(help="The budget, above 0. No default.")]
SamplingOption = Annotated[
    Sampling,
    typer.Option(
        help="poisson: each unit joins each batch independently. disjoint: shuffled or fixed-order batches, "
        "priced without amplification, one release per epoch."
    ),
]
AccountantOption = Annotated[Accountant, typer.Option(help="auto: the tighter of rdp and pld.")]
ConversionOption = Annotated[Conversion, typer.Option(help="From RDP to epsilon; pld takes none.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print exactly one JSON object.")]


@app.command()
def epsilon(
    noise_multiplier: NoiseOption = None,
    steps: StepsOption = None,
    delta: DeltaOption = None,
    sampling_rate: RateOption = 1.0,
    sampling: SamplingOption = Sampling.poisson,
    mechanism: MechanismOption = Mechanism.gaussian,
    accountant: AccountantOption = Accountant.auto,
    conversion: ConversionOption = Conversion.improved,
    as_json: JsonOption = False,
) -> None:
    """The epsilon of a plan, given its noise."""
    from sordino.privacy import price

    z = _given(noise_multiplier, "--noise-multiplier")
    count = _whole(_given(steps, "--steps"))
    event = _plan(z, sampling_rate, count, sampling)
    guarantee = price(event, _given(delta, "--delta"), accountant.value, conversion.value)
    inputs = {"noise_multiplier": z, "sampling_rate": sampling_rate, "steps": count, "delta": delta}
    answer = {"epsilon": guarantee.epsilon}
    _print(answer, guarantee, inputs, mechanism, sampling, sampling_rate, accountant, conversion, as_json)


@app.command()
def noise(
    epsilon: EpsilonOption = None,
    delta: DeltaOption = None,
    steps: StepsOption = None,
    sampling_rate: RateOption = 1.0,
    sampling: SamplingOption = Sampling.poisson,
    mechanism: MechanismOption = Mechanism.gaussian,
    accountant: AccountantOption = Accountant.auto,
    conversion: ConversionOption = Conversion.improved,
    as_json: JsonOption = False,
) -> None:
    """The least noise multiplier that keeps a plan within a budget."""
    from sordino.privacy import Budget, noise_for, price

    budget = Budget(_given(epsilon, "--epsilon"), _given(delta, "--delta"))
    count = _whole(_given(steps, "--steps"))
    _check_rate(sampling_rate)
    z = noise_for(
        budget, lambda z: _plan(z, sampling_rate, count, sampling), accountant.value, conversion.value
    )
    event = _plan(z, sampling_rate, count, sampling)
    guarantee = price(event, budget.delta, accountant.value, conversion.value)
    inputs = {
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "sampling_rate": sampling_rate,
        "steps": count,
    }
    answer = {"noise_multiplier": z, "epsilon": guarantee.epsilon}
    _print(answer, guarantee, inputs, mechanism, sampling, sampling_rate, accountant, conversion, as_json)


@app.command()
def steps(
    epsilon: EpsilonOption = None,
    delta: DeltaOption = None,
    noise_multiplier: NoiseOption = None,
    sampling_rate: RateOption = 1.0,
    sampling: SamplingOption = Sampling.poisson,
    mechanism: MechanismOption = Mechanism.gaussian,
    accountant: AccountantOption = Accountant.auto,
    conversion: ConversionOption = Conversion.improved,
    as_json: JsonOption = False,
) -> None:
    """The most steps that stay within a budget, given the noise."""
    from sordino.privacy import Budget, price, steps_for

    budget = Budget(_given(epsilon, "--epsilon"), _given(delta, "--delta"))
    z = _given(noise_multiplier, "--noise-multiplier")
    _check_rate(sampling_rate)
    if sampling is Sampling.disjoint:
        epochs = steps_for(budget, _plan(z, 1.0, 1, sampling), accountant.value, conversion.value)
        count = epochs * _batches_per_epoch(sampling_rate)
    else:
        step = _plan(z, sampling_rate, 1, sampling)
        count = steps_for(budget, step, accountant.value, conversion.value)
    event = _plan(z, sampling_rate, count, sampling)
    guarantee = price(event, budget.delta, accountant.value, conversion.value)
    inputs = {
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "noise_multiplier": z,
        "sampling_rate": sampling_rate,
    }
    answer = {"steps": count, "epsilon": guarantee.epsilon}
    _print(answer, guarantee, inputs, mechanism, sampling, sampling_rate, accountant, conversion, as_json)


def _plan(noise_multiplier: float, sampling_rate: float, steps: int, sampling: Sampling) -> DpEvent:
    from sordino.privacy import gaussian, poisson_gaussian, repeat

    _check_rate(sampling_rate)
    if sampling is Sampling.disjoint:
        return repeat(gaussian(noise_multiplier), epochs_of(steps, sampling_rate))
    return repeat(poisson_gaussian(noise_multiplier, sampling_rate), steps)


def epochs_of(steps: int, sampling_rate: float) -> int:
    """How often disjoint batches can show the same unit: once per (begun) epoch.

    An epoch has at least floor(1 / rate) full batches; where 1 / rate is not whole, counting on the last,
    shorter batch would be wrong for loaders that drop it.
    """
    return math.ceil(steps / _batches_per_epoch(sampling_rate))


def _batches_per_epoch(sampling_rate: float) -> int:
    return math.floor(1 / sampling_rate + 1e-9)  # 1 / 0.04 must not become 24


def _given(value: T | None, flag: str) -> T:
    if value is None:
        raise ValueError(f"{flag} is missing: it has no default")
    return value


def _whole(steps: int) -> int:
    if steps < 1:
        raise ValueError(f"--steps must be at least 1, not {steps}")
    return steps


def _check_rate(sampling_rate: float) -> None:
    if not 0 < sampling_rate <= 1:
        raise ValueError(f"--sampling-rate must lie in (0, 1], not {sampling_rate}: use batch size / n")


def _print(
    answer: dict[str, Any],
    guarantee: Guarantee,
    inputs: dict[str, Any],
    mechanism: Mechanism,
    sampling: Sampling,
    sampling_rate: float,
    accountant: Accountant,
    conversion: Conversion,
    as_json: bool,
) -> None:
    from sordino.privacy import show_epsilon
    from sordino.privacy.certificate import epsilon_to_json

    drawn = sampling.value if sampling_rate < 1 else "none"  # none: every step sees all data
    if as_json:
        answer = answer | {"epsilon": epsilon_to_json(answer["epsilon"])}
        report = {
            **answer,
            "delta": guarantee.delta,
            "mechanism": mechanism.value,
            "sampling": drawn,
            "sampling_rate": sampling_rate,
            "amplification": drawn == "poisson",
            "relation": guarantee.relation,
            "unit": UNIT_NOTE,
            "accountant": guarantee.accountant,
            "conversion": guarantee.conversion,
            "zcdp_rho": guarantee.zcdp_rho,
            "gdp_mu": guarantee.gdp_mu,
            "inputs": inputs | {"accountant": accountant.value, "conversion": conversion.value},
        }
        print(json.dumps(report, allow_nan=False))
        return

    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)
    if "noise_multiplier" in answer:
        # Upwards, like epsilon: with the digits shown here the plan still fits.
        shown = math.ceil(answer["noise_multiplier"] * 1e5) / 1e5
        console.print(f"[bold]noise multiplier {shown:.5f}[/bold]")
    if "steps" in answer:
        console.print(f"[bold]{answer['steps']} steps[/bold]")
    console.print(f"[bold]epsilon {show_epsilon(guarantee.epsilon)}[/bold] at delta {guarantee.delta:g}")
    how = "every step sees all data" if drawn == "none" else f"{drawn} batches, rate {sampling_rate:g}"
    if drawn == "disjoint":
        how += " (no amplification: one release per epoch)"
    console.print(f"{mechanism.value} noise; {how}")
    conversion_note = "" if guarantee.conversion == "none" else f", {guarantee.conversion} conversion"
    console.print(f"accountant {guarantee.accountant}{conversion_note}; relation {guarantee.relation}")
    if guarantee.zcdp_rho is not None and guarantee.gdp_mu is not None:
        console.print(f"also {guarantee.zcdp_rho:.6g}-zCDP and {guarantee.gdp_mu:.6g}-GDP")
    console.print(f"[dim]{UNIT_NOTE}[/dim]")
