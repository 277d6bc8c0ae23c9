"""`sordino budget`: price or calibrate a mechanism. No data needed, none touched."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from sordino.named import ACCOUNTANTS, STOPPINGS

if TYPE_CHECKING:
    from dp_accounting import DpEvent

    from sordino.privacy import Budget, Guarantee

T = TypeVar("T")

# The accountants load slowly (scipy): they are imported inside the commands, so that --help is quick.

app = typer.Typer(
    name="budget",
    help="What a plan costs, how much noise it needs, or how many steps it affords. No data needed.",
    no_args_is_help=True,
)

_UNIT = (
    "per unit of privacy: the example or user whose contribution is clipped; "
    "zeroing it out is the neighbouring relation, so"
)
UNIT_NOTE = f"{_UNIT} n, rate and steps are public"
TREE_UNIT_NOTE = f"{_UNIT} n, steps and restarts are public"
_MANY_UNITS = 10**12
AS_PRINTED = "as printed, not a guarantee"


class Mechanism(StrEnum):
    gaussian = "gaussian"
    banded = "banded"
    buffered = "buffered"
    tree = "tree"


class Sampling(StrEnum):
    poisson = "poisson"
    disjoint = "disjoint"


class Order(StrEnum):
    fixed = "fixed"
    unknown = "unknown"


class Conversion(StrEnum):
    improved = "improved"
    basic = "basic"


def _known_accountant(name: str) -> str:
    if name not in ACCOUNTANTS:
        raise typer.BadParameter(ACCOUNTANTS.unknown(name))
    return name


def _tree_option(text: str, *flags: str, **more: Any) -> Any:
    return typer.Option(*flags, help=f"Tree: {text}", **more)


MechanismOption = Annotated[
    Mechanism,
    typer.Option(
        help="gaussian: fresh noise in each step. banded: noise that the next steps take back in part. buffered: "
        "noise that all later steps take back, for --sampling disjoint. tree: the tree aggregation of DP-FTRL."
    ),
]
NoiseOption = Annotated[
    float | None, typer.Option(help="Std of the noise over the sensitivity; 0 means none, and epsilon inf.")
]
RateOption = Annotated[
    float | None,
    typer.Option(
        help="Expected batch size over n, in (0, 1]; 1 means every step sees all data.", show_default="1.0"
    ),
]
StepsOption = Annotated[int | None, typer.Option(help="Noisy steps (gate calls), at least 1.")]
DeltaOption = Annotated[float | None, typer.Option(help="Strictly between 0 and 1; below 1/n. No default.")]
EpsilonOption = Annotated[float | None, typer.Option(help="The budget, above 0. No default.")]
SamplingOption = Annotated[
    Sampling | None,
    typer.Option(
        help="poisson: each unit joins each batch independently. disjoint: shuffled or fixed-order batches, "
        "priced without amplification, one release per epoch.",
        show_default="poisson",
    ),
]
Accountant = Annotated[str, typer.Option(help=f"{ACCOUNTANTS.help()}.", callback=_known_accountant)]
ConversionOption = Annotated[Conversion, typer.Option(help="From RDP to epsilon; pld takes none.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print exactly one JSON object.")]
BandsOption = Annotated[
    str | None,
    typer.Option(
        help="Banded: over how many steps noise is related; auto: as train does it, for the budget.",
        show_default="auto",
    ),
]
StepsPerEpochOption = Annotated[int | None, _tree_option("batches in an epoch.")]
EpochsOption = Annotated[float | None, _tree_option("passes over the data, whole or not.")]
RestartOption = Annotated[
    str | None,
    _tree_option("a new one every so many epochs; auto: as train does it.", show_default="one tree"),
]
CompletionOption = Annotated[
    bool, _tree_option("fill each but the last with virtual steps up to a power of two.", "--completion")
]
OrderOption = Annotated[
    Order | None,
    _tree_option(
        "fixed order, the same batches in the same order every epoch (until a restart); "
        "or unknown, but for the two limits below.",
        show_default="fixed",
    ),
]
SeparationOption = Annotated[
    int | None,
    _tree_option(
        "unknown order, at least so many steps strictly between two participations of a unit: 0 allows one right after "
        "the other, and an order that repeats every m steps is m - 1."
    ),
]
ParticipationOption = Annotated[
    int | None,
    _tree_option(
        "unknown order, at most so many participations of a unit in the run.", show_default="all that fit"
    ),
]
AsPrintedOption = Annotated[
    bool,
    _tree_option(
        "the formula of the first DP-FTRL paper, by rdp, to compare with its tables. Not a guarantee.",
        "--as-printed",
    ),
]
RunsOption = Annotated[
    float | None,
    typer.Option(
        help="Private selection: the plan is one run, repeated so often on average; the best is shown."
    ),
]
StoppingOption = Annotated[
    str | None, typer.Option(help=f"Private selection: {STOPPINGS.help()}.", show_default="geometric")
]


@dataclass(frozen=True)
class _Plan:
    """What is to be priced: its events for any noise, what was asked, and how to describe it."""

    event: Callable[[float], DpEvent]
    inputs: dict[str, Any]
    facts: dict[str, Any]  # for JSON, with what is fixed by the mechanism
    lines: list[str]  # for people
    unit: str = UNIT_NOTE
    note: str = ""


@app.command()
def epsilon(
    noise_multiplier: NoiseOption = None,
    steps: StepsOption = None,
    delta: DeltaOption = None,
    sampling_rate: RateOption = None,
    sampling: SamplingOption = None,
    mechanism: MechanismOption = Mechanism.gaussian,
    bands: BandsOption = None,
    steps_per_epoch: StepsPerEpochOption = None,
    epochs: EpochsOption = None,
    restart_every: RestartOption = None,
    completion: CompletionOption = False,
    order: OrderOption = None,
    min_separation: SeparationOption = None,
    max_participation: ParticipationOption = None,
    as_printed: AsPrintedOption = False,
    runs: RunsOption = None,
    stopping: StoppingOption = None,
    accountant: Accountant = "auto",
    conversion: ConversionOption = Conversion.improved,
    as_json: JsonOption = False,
) -> None:
    """The epsilon of a plan, given its noise."""
    from sordino.privacy import price

    z = _given(noise_multiplier, "--noise-multiplier")
    plain = _PlainFlags(steps, sampling_rate, sampling)
    tree = _TreeFlags(
        steps_per_epoch,
        epochs,
        restart_every,
        completion,
        order,
        min_separation,
        max_participation,
        as_printed,
    )
    plan = _selected(_plan(mechanism, plain, tree, bands), runs, stopping)
    accountant = _printed_by(accountant, as_printed)
    guarantee = price(plan.event(z), _given(delta, "--delta"), accountant, conversion.value)
    inputs = {"noise_multiplier": z, **plan.inputs, "delta": delta}
    _print({"epsilon": guarantee.epsilon}, guarantee, inputs, plan, accountant, conversion, as_json)


@app.command()
def noise(
    epsilon: EpsilonOption = None,
    delta: DeltaOption = None,
    steps: StepsOption = None,
    sampling_rate: RateOption = None,
    sampling: SamplingOption = None,
    mechanism: MechanismOption = Mechanism.gaussian,
    bands: BandsOption = None,
    steps_per_epoch: StepsPerEpochOption = None,
    epochs: EpochsOption = None,
    restart_every: RestartOption = None,
    completion: CompletionOption = False,
    order: OrderOption = None,
    min_separation: SeparationOption = None,
    max_participation: ParticipationOption = None,
    as_printed: AsPrintedOption = False,
    runs: RunsOption = None,
    stopping: StoppingOption = None,
    accountant: Accountant = "auto",
    conversion: ConversionOption = Conversion.improved,
    as_json: JsonOption = False,
) -> None:
    """The least noise multiplier that keeps a plan within a budget."""
    from sordino.privacy import Budget, noise_for, price

    budget = Budget(_given(epsilon, "--epsilon"), _given(delta, "--delta"))
    plain = _PlainFlags(steps, sampling_rate, sampling)
    tree = _TreeFlags(
        steps_per_epoch,
        epochs,
        restart_every,
        completion,
        order,
        min_separation,
        max_participation,
        as_printed,
    )
    plan = _selected(_plan(mechanism, plain, tree, bands, budget), runs, stopping)
    accountant = _printed_by(accountant, as_printed)
    z = noise_for(budget, plan.event, accountant, conversion.value)
    guarantee = price(plan.event(z), budget.delta, accountant, conversion.value)
    inputs = {"epsilon": budget.epsilon, "delta": budget.delta, **plan.inputs}
    answer = {"noise_multiplier": z, "epsilon": guarantee.epsilon}
    _print(answer, guarantee, inputs, plan, accountant, conversion, as_json)


@app.command()
def steps(
    epsilon: EpsilonOption = None,
    delta: DeltaOption = None,
    noise_multiplier: NoiseOption = None,
    sampling_rate: RateOption = None,
    sampling: SamplingOption = None,
    mechanism: MechanismOption = Mechanism.gaussian,
    accountant: Accountant = "auto",
    conversion: ConversionOption = Conversion.improved,
    as_json: JsonOption = False,
) -> None:
    """The most steps that stay within a budget, given the noise. Not for trees, bands or buffers."""
    from sordino.privacy import Budget, price, steps_for

    if mechanism is Mechanism.tree:
        raise ValueError(
            "budget steps cannot count the steps of trees: try --epochs with budget epsilon --mechanism tree"
        )
    if mechanism in (Mechanism.banded, Mechanism.buffered):
        what = "bands" if mechanism is Mechanism.banded else "buffers"
        raise ValueError(
            f"budget steps cannot count the steps of {what}: try --steps with budget epsilon --mechanism {mechanism}"
        )
    budget = Budget(_given(epsilon, "--epsilon"), _given(delta, "--delta"))
    z = _given(noise_multiplier, "--noise-multiplier")
    rate = _rate(sampling_rate)
    one = _plain_plan(_PlainFlags(1, rate, sampling))
    count = steps_for(budget, one.event(z), accountant, conversion.value)
    if sampling is Sampling.disjoint:
        count *= _batches_per_epoch(rate)
    plan = _plain_plan(_PlainFlags(count, rate, sampling))
    guarantee = price(plan.event(z), budget.delta, accountant, conversion.value)
    inputs = {
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "noise_multiplier": z,
        "sampling_rate": rate,
    }
    answer = {"steps": count, "epsilon": guarantee.epsilon}
    _print(answer, guarantee, inputs, plan, accountant, conversion, as_json)


@dataclass(frozen=True)
class _PlainFlags:
    steps: int | None
    sampling_rate: float | None
    sampling: Sampling | None


@dataclass(frozen=True)
class _TreeFlags:
    steps_per_epoch: int | None
    epochs: float | None
    restart_every: str | None
    completion: bool
    order: Order | None
    min_separation: int | None
    max_participation: int | None
    as_printed: bool


def _printed_by(accountant: str, as_printed: bool) -> str:
    """The papers' own, where their numbers are asked for."""
    return "rdp" if as_printed and accountant == "auto" else accountant


def _plan(
    mechanism: Mechanism,
    plain: _PlainFlags,
    tree: _TreeFlags,
    bands: str | None,
    budget: Budget | None = None,
) -> _Plan:
    """The plan of the mechanism chosen; flags of the other ones are refused."""
    if bands is not None and mechanism is not Mechanism.banded:
        raise ValueError("--bands needs --mechanism banded")
    if mechanism is Mechanism.tree:
        for flag in _flags_set(plain):
            raise ValueError(
                f"{flag} is not for --mechanism tree: give --steps-per-epoch and --epochs, "
                "a tree is priced by its steps and assumes no sampling"
            )
        return _tree_plan(tree)
    for flag in _flags_set(tree):  # the first will do
        raise ValueError(f"{flag} needs --mechanism tree: without it give --steps and --sampling-rate")
    if mechanism is Mechanism.banded:
        return _banded_plan(plain, bands or "auto", budget)
    if mechanism is Mechanism.buffered:
        return _buffered_plan(plain)
    return _plain_plan(plain)


def _selected(plan: _Plan, runs: float | None, stopping: str | None) -> _Plan:
    """The plan as one run of a private selection, if one is asked for."""
    if runs is None:
        if stopping is not None:
            raise ValueError("--stopping is how a private selection ends: give --runs, its runs on average")
        return plan
    found = STOPPINGS.parsed(stopping or "geometric", runs)
    return replace(
        plan,
        event=lambda noise_multiplier: found.select(plan.event(noise_multiplier)),
        inputs={**plan.inputs, "runs": runs, "stopping": stopping or "geometric"},
        lines=[
            *plan.lines,
            f"the best of {runs:g} such runs on average, {found.name}; nobody learns how many",
        ],
    )


def _flags_set(flags: _PlainFlags | _TreeFlags) -> list[str]:
    given = [name for name, value in vars(flags).items() if value is not None and value is not False]
    return [f"--{name.replace('_', '-')}" for name in given]


def _plain_plan(flags: _PlainFlags) -> _Plan:
    steps = _at_least("--steps", flags.steps, 1)
    rate = _rate(flags.sampling_rate)
    sampling = flags.sampling or Sampling.poisson

    def event(noise_multiplier: float) -> DpEvent:
        from sordino.privacy import gaussian, poisson_gaussian, repeat

        if sampling is Sampling.disjoint:
            return repeat(gaussian(noise_multiplier), epochs_of(steps, rate))
        return repeat(poisson_gaussian(noise_multiplier, rate), steps)

    drawn = sampling.value if rate < 1 else "none"  # none: every step sees all data
    how = "every step sees all data" if drawn == "none" else f"{drawn} batches, rate {rate:g}"
    if drawn == "disjoint":
        how += " (no amplification: one release per epoch)"
    facts = {
        "mechanism": "gaussian",
        "sampling": drawn,
        "sampling_rate": rate,
        "amplification": drawn == "poisson",
    }
    return _Plan(event, {"sampling_rate": rate, "steps": steps}, facts, [f"gaussian noise; {how}"])


def _banded_plan(flags: _PlainFlags, bands: str, budget: Budget | None) -> _Plan:
    from sordino.data.sampling import FixedOrder, Poisson
    from sordino.noise import Banded, Known

    steps, rate = _at_least("--steps", flags.steps, 1), _rate(flags.sampling_rate)
    poisson = flags.sampling in (None, Sampling.poisson) and rate < 1
    per_epoch = _batches_per_epoch(rate)
    # How many units there are is no matter for the price.
    how = Poisson(rate) if poisson else FixedOrder(1)
    units = _MANY_UNITS if poisson else per_epoch
    if bands != "auto" and not (bands.isascii() and bands.isdigit() and int(bands) >= 1):
        raise ValueError(f"--bands must be a whole number, at least 1, or auto, not {bands}")
    if bands == "auto" and poisson and budget is None:
        raise ValueError(
            "--bands auto follows from a budget under Poisson sampling: ask budget noise, or give a number"
        )
    noise = Banded("auto" if bands == "auto" else int(bands))
    noise = noise.planned(steps, how.steps_per_epoch(units), Known(how, units, budget))
    dealt = noise.dealt(how, units)
    releases = noise.over(dealt, units, steps)
    turns, apart = dealt.charges(steps, units), dealt.returns_after(units)
    coin = (dealt.amplified_rate(units) or 1.0) if poisson else None
    facts = {
        "mechanism": "banded",
        "sampling": "poisson" if poisson else "disjoint" if rate < 1 else "none",
        "sampling_rate": rate,
        "amplification": coin is not None and coin < 1,
        "bands": noise.bands,
        "participations": turns,
        "rate_of_group": coin,
    }
    how_drawn = f"poisson batches, rate {rate:g}"
    if coin is None:
        how_drawn = "the same order every epoch; no amplification"
    elif noise.bands != 1:
        how_drawn += f": {noise.bands} groups that take turns, each at rate {coin:.6g}"
    lines = [
        f"banded noise, related over {noise.bands} steps; {how_drawn}",
        f"a unit takes part once in {apart} steps at most, {turns} times in {steps}",
    ]
    inputs = {"sampling_rate": rate, "steps": steps, "bands": bands}
    return _Plan(lambda z: releases.cost(steps, z, ()), inputs, facts, lines)


def _buffered_plan(flags: _PlainFlags) -> _Plan:
    from sordino.data.sampling import FixedOrder
    from sordino.noise.buffered import Buffered, BufferedReleases

    steps, rate = _at_least("--steps", flags.steps, 1), _rate(flags.sampling_rate)
    if rate < 1 and flags.sampling is not Sampling.disjoint:
        raise ValueError(
            "buffered noise is not amplified by sampling: give --sampling disjoint, or use --mechanism banded"
        )
    per_epoch = _batches_per_epoch(rate)
    releases = Buffered().over(FixedOrder(1), per_epoch, steps)
    assert isinstance(releases, BufferedReleases)
    moved, buffers = releases.decays.sensitivity(steps, per_epoch), len(releases.decays.rates)
    facts = {
        "mechanism": "buffered",
        "sampling": "disjoint" if rate < 1 else "none",
        "sampling_rate": rate,
        "amplification": False,
        "buffers": buffers,
        "participations": -(-steps // per_epoch),
        "sensitivity": moved,
    }
    visits = facts["participations"]
    lines = [
        f"buffered noise, {buffers} decaying sums of earlier noise; the same order every epoch; no amplification",
        f"a unit takes part once in {per_epoch} steps, {visits} times in {steps}: sensitivity {moved:.6g}",
    ]
    inputs = {"sampling_rate": rate, "steps": steps}
    return _Plan(lambda z: releases.cost(steps, z, ()), inputs, facts, lines)


def _tree_plan(flags: _TreeFlags) -> _Plan:
    from sordino.privacy.trees import trees_plan

    per_epoch = _at_least("--steps-per-epoch", flags.steps_per_epoch, 1)
    epochs = _given(flags.epochs, "--epochs")
    if not 0 < epochs < math.inf:
        raise ValueError(f"--epochs must be positive, not {epochs:g}")
    steps = max(1, round(epochs * per_epoch))
    if flags.restart_every is None and flags.completion:
        raise ValueError("--completion needs --restart-every: the last tree of a run is never completed")
    restart = _restart(flags, steps, per_epoch)
    trees = _trees(flags, steps, per_epoch, restart)
    count = sum(how_many for _, how_many in trees)
    total = sum(square * how_many for square, how_many in trees)
    order = flags.order or Order.fixed
    facts = {
        "mechanism": "tree",
        "sampling": None,
        "sampling_rate": None,
        "amplification": False,
        "order": order.value,
        "trees": count,
        "squared_sensitivity": total,
    }
    inputs = vars(flags) | {"order": order.value, "restart_every": restart}
    note = AS_PRINTED if flags.as_printed else ""
    if note:
        facts["note"] = note
    run = f"{epochs:g} epochs of {per_epoch} steps" if steps > per_epoch else f"{steps} steps"
    lines = [_trees_line(run, restart, flags.completion, count, total), _order_line(flags, count)]
    return _Plan(lambda z: trees_plan(z, trees), inputs, facts, lines, TREE_UNIT_NOTE, note)


def _restart(flags: _TreeFlags, steps: int, per_epoch: int) -> int | None:
    """After how many epochs a new tree begins, None for never."""
    every = flags.restart_every
    if every is None:
        return None
    if every == "auto":
        from sordino.noise import Tree

        planned = Tree(completion=flags.completion).planned(steps, per_epoch).restart_steps(per_epoch)
        return None if planned is None else planned // per_epoch
    if not (every.isascii() and every.isdigit()) or int(every) < 1:
        raise ValueError(
            f"--restart-every must be a whole number of epochs, at least 1, or auto, not {every}"
        )
    return int(every)


def _trees(flags: _TreeFlags, steps: int, per_epoch: int, restart: int | None) -> list[tuple[int, int]]:
    from sordino.privacy.trees import as_printed_trees, fixed_order_trees, worst_case_trees

    run = (steps, per_epoch, restart)
    completion = flags.completion and restart is not None
    limits = {"--min-separation": flags.min_separation, "--max-participation": flags.max_participation}
    if flags.order is Order.unknown:
        if flags.as_printed:
            raise ValueError("--as-printed has no unknown order: leave out one of --as-printed and --order")
        separation = _at_least("--min-separation", flags.min_separation, 0)
        if flags.max_participation is not None:
            _at_least("--max-participation", flags.max_participation, 1)
        return worst_case_trees(
            *run,
            completion,
            min_separation=separation,
            max_participation=flags.max_participation,
        )
    for flag, value in limits.items():
        if value is not None:
            raise ValueError(f"{flag} is for --order unknown: a fixed order says when each unit takes part")
    if flags.as_printed:
        if flags.completion:
            raise ValueError("--as-printed has no completion: leave out one of --as-printed and --completion")
        return as_printed_trees(*run)
    return fixed_order_trees(*run, completion)


def _trees_line(run: str, restart: int | None, completion: bool, count: int, total: int) -> str:
    trees = "one tree"
    if count > 1:
        every = "every epoch" if restart == 1 else f"every {restart} epochs"
        trees = f"{count} trees, a new one {every}"
        trees += ", all but the last completed" if completion else ""
    return f"tree noise; {run}, {trees}; squared sensitivity {total}"


def _order_line(flags: _TreeFlags, count: int) -> str:
    if flags.order is not Order.unknown:
        return "the same order every epoch" + (" until a restart" if count > 1 else "") + "; no amplification"
    separation = _given(flags.min_separation, "--min-separation")
    line = (
        f"unknown order, at least {separation} steps between two participations of a unit: steps 1 and "
        f"{separation + 2} at the nearest"
    )
    if separation == flags.steps_per_epoch:
        line += f" (an order that repeats every {separation} steps is --min-separation {separation - 1})"
    if flags.max_participation is not None:
        line += f", at most {flags.max_participation} in the run"
        line += " (each tree priced as if all were in it)" if count > 1 else ""
    return f"{line}; no amplification"


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


def _at_least(flag: str, value: int | None, least: int) -> int:
    if _given(value, flag) < least:
        raise ValueError(f"{flag} must be at least {least}, not {value}")
    return _given(value, flag)


def _rate(sampling_rate: float | None) -> float:
    rate = 1.0 if sampling_rate is None else sampling_rate
    if not 0 < rate <= 1:
        raise ValueError(f"--sampling-rate must lie in (0, 1], not {rate}: use batch size / n")
    return rate


def _print(
    answer: dict[str, Any],
    guarantee: Guarantee,
    inputs: dict[str, Any],
    plan: _Plan,
    accountant: str,
    conversion: Conversion,
    as_json: bool,
) -> None:
    from sordino.privacy import show_epsilon
    from sordino.privacy.certificate import epsilon_to_json

    if as_json:
        answer = answer | {"epsilon": epsilon_to_json(answer["epsilon"])}
        report = {
            **answer,
            "delta": guarantee.delta,
            **plan.facts,
            "relation": guarantee.relation,
            "unit": plan.unit,
            "accountant": guarantee.accountant,
            "conversion": guarantee.conversion,
            "zcdp_rho": guarantee.zcdp_rho,
            "gdp_mu": guarantee.gdp_mu,
            "inputs": inputs | {"accountant": accountant, "conversion": conversion.value},
        }
        print(json.dumps(report, allow_nan=False))
        return

    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True)

    def show(line: str, style: str = "") -> None:
        console.print(f"{line} ({plan.note})" if plan.note else line, style=style)

    if "noise_multiplier" in answer:
        # Upwards, like epsilon: with the digits shown here the plan still fits.
        shown = math.ceil(answer["noise_multiplier"] * 1e5) / 1e5
        show(f"[bold]noise multiplier {shown:.5f}[/bold]")
    if "steps" in answer:
        show(f"[bold]{answer['steps']} steps[/bold]")
    show(f"[bold]epsilon {show_epsilon(guarantee.epsilon)}[/bold] at delta {guarantee.delta:g}")
    for line in plan.lines:
        show(line)
    conversion_note = "" if guarantee.conversion == "none" else f", {guarantee.conversion} conversion"
    show(f"accountant {guarantee.accountant}{conversion_note}; relation {guarantee.relation}")
    if guarantee.zcdp_rho is not None and guarantee.gdp_mu is not None:
        show(f"also {guarantee.zcdp_rho:.6g}-zCDP and {guarantee.gdp_mu:.6g}-GDP")
    show(plan.unit, style="dim")
