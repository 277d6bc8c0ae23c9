"""One private training step: Sordino against plain PyTorch and Opacus, on the models of the papers.

All contenders run in one process and take turns, in a new order each round, on the same batch, so that the
noise of the machine hits all of them alike; medians are compared, as ratios. The *floor* of a private step is
a plain SGD step plus as many Gaussian draws as there are parameters: nobody gets below it without a faster
Gaussian. Peak memory is measured in a fresh process for each contender.

    python benchmarks/private_step.py                      # all, about ten minutes on two cores
    python benchmarks/private_step.py --quick --models mlp,fc
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gc
import json
import math
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sordino import Fixed, Gate, Poisson, SlowGradients, models
from sordino.gradients import Engine

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from opacus import GradSampleModule
        from opacus.grad_sample import GradSampleModuleFastGradientClipping
        from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
        from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
        from opacus.validators import ModuleValidator
    OPACUS = True
except ImportError:
    OPACUS = False

SEED = 20_240_501
LEARNING_RATE = 0.01
THRESHOLD = 1.0
NOISE_MULTIPLIER = 1.0

WARM_UP_STEPS = 3
MOST_REPETITIONS, FEWEST_REPETITIONS = 41, 7
SLOW_STEP_SECONDS = 3.0  # a contender slower than this runs in three rounds only
SETTLING_SECONDS = 0.2  # shorter steps get an untimed one first: the caches hold what the last contender left
SECONDS_PER_MODEL = 12.0
BUSY_LOAD = 0.5  # of others, when we start
MEMORY_STEPS, MEMORY_WARM_UP_ROWS = 5, 8
SANITY_ROWS, SANITY_TOLERANCE = 32, 1e-4

FLOOR_TARGET, MEAN_FLOOR_TARGET, OPACUS_TARGET, MEMORY_TARGET = 1.15, 1.05, 1.8, 1.3

# The cases ------------------------------------------------------------------------------------------------


class Criterion(nn.Module):
    """A loss with one value for each example, or their mean. Opacus' ghost mode switches ``reduction``."""

    def __init__(self, per_example: Callable[[Tensor, Tensor], Tensor], reduction: str = "mean") -> None:
        super().__init__()
        self.per_example, self.reduction = per_example, reduction

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        losses = self.per_example(outputs, targets)
        return losses.mean() if self.reduction == "mean" else losses


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs, targets, reduction="none")


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(outputs, targets, reduction="none").flatten(1).mean(1)


@dataclass(frozen=True)
class Case:
    label: str
    build: Callable[[], nn.Module]
    batch: int
    inputs: Callable[[int], Tensor]
    classes: int = 10
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy

    def model_and_batch(self) -> tuple[nn.Module, Tensor, Tensor]:
        """The same model and batch each time, and in each process."""
        torch.manual_seed(SEED)
        model = self.build().train()
        inputs = self.inputs(self.batch)
        reconstructs = self.loss is squared_error
        return model, inputs, inputs if reconstructs else torch.randint(self.classes, (self.batch,))


def images(batch: int) -> Tensor:
    return torch.rand(batch, 1, 28, 28)


def tokens(batch: int) -> Tensor:
    return torch.randint(5000, (batch, 64))


CASES = {
    "mlp": Case("MLP 784-256-256-256-10", models.mnist_mlp, 256, images),
    "fc": Case("FC 1600-500-500-10", models.cifar_fc, 200, lambda n: torch.rand(n, 1600)),
    "dp_ftrl_cnn": Case("DP-FTRL CNN", models.dp_ftrl_cnn, 250, images),
    "oso_cnn": Case("OSO CNN", models.oso_cnn, 512, images),
    "oso_autoencoder": Case("OSO autoencoder", models.oso_autoencoder, 512, images, loss=squared_error),
    "bag_of_words": Case("Bag of words FC", models.bag_of_words_fc, 512, lambda n: torch.randn(n, 750), 4),
    "text_transformer": Case("Text transformer", models.text_transformer, 64, tokens, 4),
    "text_lstm": Case("Text LSTM", models.text_lstm, 64, tokens, 4),
}
PAPER_CASES = tuple(CASES)[:6]  # those with a target against the floor

# The contenders -------------------------------------------------------------------------------------------

Step = Callable[[], Any]  # one whole step; the model of each contender is its own


@dataclass(frozen=True)
class Setting:
    """What a contender is built from; it may keep the model, so hand each a copy."""

    model: nn.Module
    inputs: Tensor
    targets: Tensor
    loss: Callable[[Tensor, Tensor], Tensor]
    noise_multiplier: float = NOISE_MULTIPLIER
    threshold: float = THRESHOLD


def plain(setting: Setting) -> Step:
    model, criterion = setting.model, Criterion(setting.loss)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)

    def step() -> None:
        optimizer.zero_grad()
        criterion(model(setting.inputs), setting.targets).backward()
        optimizer.step()

    return step


def gaussian_draws(setting: Setting) -> Step:
    values = torch.empty(sum(p.numel() for p in setting.model.parameters()))
    return values.normal_


def sordino(setting: Setting) -> Step:
    gate = sordino_gate(setting)

    def step() -> None:
        released = gate()
        gate.theta.add_(released.gradient, alpha=-LEARNING_RATE)

    return step


def sordino_gate(setting: Setting) -> Gate:
    """A gate whose every batch is the whole of its data: the batch of the other contenders."""
    return Gate(
        setting.model,
        setting.loss,
        (setting.inputs, setting.targets),
        clip=Fixed(setting.threshold),
        noise_multiplier=setting.noise_multiplier,
        sampling=Poisson(rate=1.0),
        seed=SEED,
    )


def opacus_hooks(setting: Setting) -> Step:
    """Opacus' default: per-example gradients are stored, then clipped. Accounting is not timed."""
    model = GradSampleModule(fixed_for_opacus(setting.model), loss_reduction="mean")
    criterion = Criterion(setting.loss)
    optimizer = DPOptimizer(torch.optim.SGD(model.parameters(), lr=LEARNING_RATE), **opacus_options(setting))

    def step() -> nn.Module:
        optimizer.zero_grad(set_to_none=True)
        criterion(model(setting.inputs), setting.targets).backward()
        optimizer.step()
        found: nn.Module = model._module
        return found

    return step


def opacus_ghost(setting: Setting) -> Step:
    """Opacus' ghost clipping: norms in one backward pass, the clipped sum in a second one."""
    fixed = fixed_for_opacus(setting.model)
    model = GradSampleModuleFastGradientClipping(
        fixed, loss_reduction="mean", max_grad_norm=setting.threshold
    )
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(model.parameters(), lr=LEARNING_RATE), **opacus_options(setting)
    )
    criterion = DPLossFastGradientClipping(model, optimizer, Criterion(setting.loss), loss_reduction="mean")

    def step() -> nn.Module:
        optimizer.zero_grad(set_to_none=True)
        criterion(model(setting.inputs), setting.targets).backward()
        optimizer.step()
        found: nn.Module = model._module
        return found

    return step


def fixed_for_opacus(model: nn.Module) -> nn.Module:
    """A copy with the layers that Opacus cannot follow replaced by its own: recurrent ones and attention."""
    fixed: nn.Module = ModuleValidator.fix(model)
    for module in fixed.modules():
        if isinstance(module, nn.Embedding):  # the ghost mode fails on expanded indices: hand it real ones
            module.register_forward_pre_hook(lambda _, args: (args[0].contiguous(),))
    return fixed


def opacus_options(setting: Setting) -> dict[str, Any]:
    return {
        "noise_multiplier": setting.noise_multiplier,
        "max_grad_norm": setting.threshold,
        "expected_batch_size": len(setting.targets),
        "loss_reduction": "mean",
    }


OPACUS_MODES = {"opacus_hooks": opacus_hooks, "opacus_ghost": opacus_ghost} if OPACUS else {}
CONTENDERS: dict[str, Callable[[Setting], Step]] = {
    "plain": plain,
    "gaussian_draws": gaussian_draws,
    "sordino": sordino,
    **OPACUS_MODES,
}
NAMES = {
    "plain": "plain SGD",
    "gaussian_draws": "Gaussian draws",
    "sordino": "Sordino",
    "opacus_hooks": "Opacus hooks",
    "opacus_ghost": "Opacus ghost",
}

# Results --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Timing:
    median_ms: float
    quartiles_ms: tuple[float, float]
    repetitions: int


@dataclass(frozen=True)
class Memory:
    peak_mb: float
    increase_mb: float


@dataclass
class Result:
    name: str
    parameters: int
    batch: int
    times: dict[str, Timing] = field(default_factory=dict)
    memory: dict[str, Memory] = field(default_factory=dict)
    unsupported: dict[str, str] = field(default_factory=dict)  # contender -> why
    sanity: dict[str, float] = field(default_factory=dict)  # Opacus mode -> relative difference
    notes: list[str] = field(default_factory=list)

    def ms(self, contender: str) -> float:
        return self.times[contender].median_ms

    @property
    def floor_ms(self) -> float:
        return self.ms("plain") + self.ms("gaussian_draws")

    @property
    def ratios(self) -> dict[str, float]:
        opacus = [self.ms(mode) for mode in OPACUS_MODES if mode in self.times]
        ratios = {
            "sordino/plain": self.ms("sordino") / self.ms("plain"),
            "sordino/floor": self.ms("sordino") / self.floor_ms,
        }
        if opacus:
            ratios["opacus best/sordino"] = min(opacus) / self.ms("sordino")
        if "plain" in self.memory and "sordino" in self.memory:
            ratios["peak memory/plain"] = self.memory["sordino"].peak_mb / self.memory["plain"].peak_mb
        return ratios


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def in_a_few_words(error: Exception) -> str:
    words = " ".join(f"{type(error).__name__}: {error}".split())
    return words if len(words) <= 90 else words[:87] + "..."


# Do they compute the same? --------------------------------------------------------------------------------


def check_against_opacus(case: Case, result: Result) -> None:
    """Compare clipped mean gradients without noise on a few rows, at a threshold that clips half of them."""
    model, inputs, targets = case.model_and_batch()
    inputs, targets = inputs[:SANITY_ROWS], targets[:SANITY_ROWS]
    try:
        replaced = ModuleValidator.fix(model)
        if not torch.allclose(model(inputs), replaced(inputs), rtol=1e-4, atol=1e-5):
            result.notes.append(
                "Opacus' replacement layers compute another function; compared on these layers"
            )
            model = replaced
    except Exception as error:
        result.notes.append(f"not compared with Opacus: {in_a_few_words(error)}")
        return
    threshold = median_norm(copy.deepcopy(model), case.loss, inputs, targets)
    setting = Setting(model, inputs, targets, case.loss, 0.0, threshold)
    wanted = sordino_gradient(own_copy(setting))
    for mode, build in OPACUS_MODES.items():
        try:
            got = opacus_gradient(build(own_copy(setting)), wanted)
        except Exception:  # the timing will say why
            continue
        squares = [(float((wanted[n] - got[n]).square().sum()), float(got[n].square().sum())) for n in wanted]
        difference = math.sqrt(sum(s[0] for s in squares) / sum(s[1] for s in squares))
        result.sanity[mode] = difference
        said = f"differ by {difference:.1e} (relative): {agreement(difference)}"
        say(f"  sanity: Sordino and {NAMES[mode]} {said}")


def agreement(difference: float) -> str:
    return "ok" if difference < SANITY_TOLERANCE else "DIFFERENT"


def own_copy(setting: Setting) -> Setting:
    model = copy.deepcopy(setting.model)
    return Setting(
        model, setting.inputs, setting.targets, setting.loss, setting.noise_multiplier, setting.threshold
    )


def median_norm(model: nn.Module, loss: Callable[..., Tensor], inputs: Tensor, targets: Tensor) -> float:
    _, norms = Engine(model, loss).sums(inputs, targets, lambda norms: torch.ones_like(norms.total_U)[None])
    return float(norms.median())


# Gradients are compared as state dicts, because Opacus' layers know the names of those that they replace.


def sordino_gradient(setting: Setting) -> dict[str, Tensor]:
    gate = sordino_gate(setting)
    gate.theta.copy_(gate().gradient)
    return dict(setting.model.state_dict())


def opacus_gradient(step: Step, names: dict[str, Tensor]) -> dict[str, Tensor]:
    model = step()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.grad)
    state = model.state_dict()
    return {name: state[name] for name in names}


# Time -----------------------------------------------------------------------------------------------------


def time_case(case: Case, result: Result, quick: bool) -> None:
    steps = built_and_warm(case, result)
    seconds = {name: timed(step) for name, step in steps.items()}
    rounds, repetitions = schedule(seconds, quick)
    some_rounds = {0, rounds // 2, rounds - 1}
    measured: dict[str, list[float]] = {name: [] for name in steps}
    order = list(steps)
    shuffle = random.Random(SEED).shuffle
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        for number in range(rounds):
            shuffle(order)
            for name in order:
                if seconds[name] > SLOW_STEP_SECONDS and number not in some_rounds:
                    continue
                if seconds[name] < SETTLING_SECONDS:
                    steps[name]()
                measured[name] += [timed(steps[name]) for _ in range(repetitions[name])]
            gc.collect()
    finally:
        gc.enable()
        gc.unfreeze()
    result.times = {name: summary(values) for name, values in measured.items()}


def built_and_warm(case: Case, result: Result) -> dict[str, Step]:
    model, inputs, targets = case.model_and_batch()
    setting = Setting(model, inputs, targets, case.loss)
    steps: dict[str, Step] = {}
    for name, build in CONTENDERS.items():
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                step = build(own_copy(setting))
                for _ in range(WARM_UP_STEPS):
                    step()
            steps[name] = step
        except Exception as error:
            if name not in OPACUS_MODES:
                raise
            result.unsupported[name] = in_a_few_words(error)
            say(f"  {NAMES[name]}: not supported: {result.unsupported[name]}")
            continue
        slow = sorted({str(w.message) for w in caught if issubclass(w.category, SlowGradients)})
        result.notes += [f"Sordino warns: {message}" for message in slow]
    return steps


def schedule(seconds: dict[str, float], quick: bool) -> tuple[int, dict[str, int]]:
    """How many rounds, and how many timed steps of each contender a round; the cheap ones get several."""
    most, fewest, budget = (5, 3, 3.0) if quick else (MOST_REPETITIONS, FEWEST_REPETITIONS, SECONDS_PER_MODEL)
    one_round = sum(s for s in seconds.values() if s <= SLOW_STEP_SECONDS)
    rounds = max(fewest, min(most, int(budget / max(one_round, 1e-9))))
    affordable = {name: int(0.1 * budget / max(s, 1e-9) / rounds) for name, s in seconds.items()}
    return rounds, {name: max(1, min(-(-most // rounds), n)) for name, n in affordable.items()}


def timed(step: Step) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def summary(seconds: list[float]) -> Timing:
    values = [1000 * s for s in seconds]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return Timing(statistics.median(values), (low, high), len(values))


# Memory ---------------------------------------------------------------------------------------------------


def measure_memory(case_name: str, contender: str) -> Memory:
    """The peak of this process over a few steps, and how far it is above what it held before them.

    Everything is imported by now, whoever the contender. A step on a few rows first loads what libraries load
    when first used.
    """
    case = CASES[case_name]
    model, inputs, targets = case.model_and_batch()
    setting = Setting(model, inputs, targets, case.loss)
    few = Setting(model, inputs[:MEMORY_WARM_UP_ROWS], targets[:MEMORY_WARM_UP_ROWS], case.loss)
    build = CONTENDERS[contender]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        build(own_copy(few))()
        gc.collect()
        reset_peak()
        before = peak_mb()
        step = build(setting)
        for _ in range(MEMORY_STEPS):
            step()
    peak = peak_mb()
    return Memory(peak, peak - before)


def reset_peak() -> None:
    """Make the present size of the process its peak, where the system can (Linux); else nothing changes."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_mb() -> float:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
    except (OSError, StopIteration):
        unit = 1 << 20 if sys.platform == "darwin" else 1 << 10
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit


def memory_of_case(name: str, result: Result) -> None:
    for contender in result.times:
        if contender == "gaussian_draws":
            continue
        command = [sys.executable, __file__, "--measure-memory", name, contender]
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode == 0:
            result.memory[contender] = Memory(**json.loads(run.stdout))
            continue
        last_line = (run.stderr.strip().splitlines() or [f"ended by signal {-run.returncode}"])[-1]
        result.notes.append(f"no memory measured for {NAMES[contender]}: {last_line[:90]}")


# The report -----------------------------------------------------------------------------------------------


def verdict(value: float, target: float, *, at_most: bool = True) -> str:
    met = value <= target if at_most else value >= target
    return "met" if met else "MISSED"


def environment() -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        **{package: version_of(package) for package in ("torch", "opacus", "sordino")},
        "threads": torch.get_num_threads(),
        "cpu": cpu_name(),
    }


def version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"


def table(heads: list[str], rows: list[list[str]]) -> list[str]:
    rule = ["---"] + ["---:"] * (len(heads) - 1)
    return ["| " + " | ".join(row) + " |" for row in (heads, rule, *rows)]


def markdown(results: list[Result], quick: bool, busy: float) -> str:
    facts = ", ".join(f"{key} {value}" for key, value in environment().items())
    lines = ["# One private step", "", f"Measured with {facts}.", ""]
    if quick or busy > BUSY_LOAD:
        lines += [f"**Rough:** {'a quick run' if quick else f'the machine was busy (load {busy:.1f})'}.", ""]
    lines += ["Floor: plain SGD step plus as many Gaussian draws as parameters. Made by `make bench`.", ""]
    lines += ["## Time of a step (median, ms)", "", *time_table(results), ""]
    lines += ["## Ratios", "", *ratio_table(results), ""]
    if any(result.memory for result in results):
        lines += [
            "## Peak memory of a process (MB; in brackets what the steps added)",
            "",
            *memory_table(results),
        ]
        lines += [""]
    lines += ["## Targets", "", *target_lines(results), ""]
    if notes := note_lines(results):
        lines += ["## Notes", "", *notes, ""]
    return "\n".join(lines)


def time_table(results: list[Result]) -> list[str]:
    contenders = list(CONTENDERS)
    heads = ["model", "parameters", "batch", *(NAMES[c] for c in contenders), "floor"]
    rows = []
    for r in results:
        cells = [f"{r.ms(c):.2f}" if c in r.times else "not supported" for c in contenders]
        rows.append([CASES[r.name].label, f"{r.parameters:,}", str(r.batch), *cells, f"{r.floor_ms:.2f}"])
    return table(heads, rows)


def ratio_table(results: list[Result]) -> list[str]:
    names = ["sordino/plain", "sordino/floor", "opacus best/sordino"]
    rows = [[CASES[r.name].label, *(in_cell(r.ratios.get(name)) for name in names)] for r in results]
    return table(["model", *names], rows)


def in_cell(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}"


def memory_table(results: list[Result]) -> list[str]:
    contenders = [c for c in CONTENDERS if c != "gaussian_draws"]
    heads = ["model", *(NAMES[c] for c in contenders), "sordino/plain", "of what was added"]
    rows = []
    for r in results:
        m = r.memory
        cells = [f"{m[c].peak_mb:.0f} ({m[c].increase_mb:+.0f})" if c in m else "-" for c in contenders]
        both = "plain" in m and "sordino" in m
        added = m["sordino"].increase_mb / max(m["plain"].increase_mb, 0.1) if both else None
        rows.append([CASES[r.name].label, *cells, in_cell(r.ratios.get("peak memory/plain")), in_cell(added)])
    return table(heads, rows)


def target_lines(results: list[Result]) -> list[str]:
    papers = [r for r in results if r.name in PAPER_CASES]
    lines = [*each_target(papers, "sordino/floor", FLOOR_TARGET)]
    if papers:
        mean = mean_over_floor(papers)
        lines.append(
            f"- sordino/floor, geometric mean of {len(papers)} of {len(PAPER_CASES)} models, at most "
            f"{MEAN_FLOOR_TARGET}: {verdict(mean, MEAN_FLOOR_TARGET)} ({mean:.3f})"
        )
    lines += each_target(results, "opacus best/sordino", OPACUS_TARGET, at_most=False)
    lines += each_target(results, "peak memory/plain", MEMORY_TARGET)
    return lines


def mean_over_floor(results: list[Result]) -> float:
    return statistics.geometric_mean(r.ratios["sordino/floor"] for r in results)


def each_target(results: list[Result], ratio: str, target: float, *, at_most: bool = True) -> list[str]:
    values = {r.name: r.ratios[ratio] for r in results if ratio in r.ratios}
    if not values:
        return []
    shown = ", ".join(f"{n} {v:.2f} {verdict(v, target, at_most=at_most)}" for n, v in values.items())
    return [f"- {ratio}, each at {'most' if at_most else 'least'} {target}: {shown}"]


def note_lines(results: list[Result]) -> list[str]:
    lines = []
    for r in results:
        lines += [f"- {r.name}: {NAMES[c]} not supported: {why}" for c, why in r.unsupported.items()]
        lines += [f"- {r.name}: {note}" for note in r.notes]
    for r in results:
        for mode, difference in r.sanity.items():
            lines.append(
                f"- {r.name}: clipped mean gradient without noise, Sordino against {NAMES[mode]}: relative "
                f"difference {difference:.1e}, {agreement(difference)}"
            )
    return lines


def as_json(results: list[Result], quick: bool) -> dict[str, Any]:
    papers = [r for r in results if r.name in PAPER_CASES]
    return {
        "environment": environment(),
        "quick": quick,
        "targets": {
            "sordino/floor": FLOOR_TARGET,
            "sordino/floor geometric mean": MEAN_FLOOR_TARGET,
            "opacus best/sordino": OPACUS_TARGET,
            "peak memory/plain": MEMORY_TARGET,
        },
        "sordino/floor geometric mean": mean_over_floor(papers) if papers else None,
        "models": [{**asdict(r), "floor_ms": r.floor_ms, "ratios": r.ratios} for r in results],
    }


# The command ----------------------------------------------------------------------------------------------


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Compare one private step with plain PyTorch and Opacus.")
    parser.add_argument("--models", default=",".join(CASES), help=f"some of {', '.join(CASES)}")
    parser.add_argument("--quick", action="store_true", help="few repetitions, no memory")
    parser.add_argument("--no-memory", action="store_true", help="measure time only")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results", metavar="DIR")
    parser.add_argument("--measure-memory", nargs=2, metavar=("MODEL", "CONTENDER"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    chosen.models = chosen.models.split(",")
    if unknown := [name for name in chosen.models if name not in CASES]:
        parser.error(f"unknown model {unknown[0]}: choose from {', '.join(CASES)}")
    return chosen


def run_case(name: str, quick: bool, memory: bool) -> Result:
    case = CASES[name]
    parameters = sum(p.numel() for p in case.build().parameters())
    result = Result(name, parameters, case.batch)
    say(f"{case.label}: {parameters:,} parameters, batch {case.batch}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if OPACUS:
            check_against_opacus(case, result)
        time_case(case, result, quick)
    say(
        "  ms: "
        + ", ".join(f"{NAMES[c]} {t.median_ms:.2f} (n={t.repetitions})" for c, t in result.times.items())
    )
    if memory:
        memory_of_case(name, result)
        say("  MB: " + ", ".join(f"{NAMES[c]} {m.peak_mb:.0f}" for c, m in result.memory.items()))
    say("  " + ", ".join(f"{name} {value:.2f}" for name, value in result.ratios.items()))
    return result


def main() -> None:
    chosen = options()
    if chosen.measure_memory:
        print(json.dumps(asdict(measure_memory(*chosen.measure_memory))))
        return
    if not OPACUS:
        say("Opacus is not installed, so it is left out: pip install 'sordino[bench]'")
    say(f"{torch.get_num_threads()} threads, torch {torch.__version__}")
    busy = os.getloadavg()[0]
    if busy > BUSY_LOAD:
        say(f"the machine is busy (load {busy:.1f}): threads that wait for each other slow down a lot")
    memory = not (chosen.quick or chosen.no_memory)
    results = [run_case(name, chosen.quick, memory) for name in chosen.models]
    text = markdown(results, chosen.quick, busy)
    chosen.out.mkdir(parents=True, exist_ok=True)
    (chosen.out / "private_step.md").write_text(text)
    (chosen.out / "private_step.json").write_text(json.dumps(as_json(results, chosen.quick), indent=2) + "\n")
    print(text)


if __name__ == "__main__":
    main()
