"""A round of federated averaging: Sordino against pfl, Flower's simulation and a plain PyTorch loop.

100 clients of 450 MNIST examples, 10 a round, 5 local epochs in batches of 45, SGD at 0.1, nothing evaluated; then the
CIFAR network of AdaBest on random images, with one local epoch unless asked for more. Contenders run one at a time,
each in a process of its own, in a new order in each pass, and all start from the same parameters. The first rounds
warm up; medians over the rounds of all passes are compared, as ratios. Start-up is the time from the start of the
process to the end of its first round, less one round. Memory is that of the process and all its children, pages that
they share counted once, sampled in a run of its own.

pfl and Flower are not among our dependencies. Give the interpreter of an environment that has them:

    python3 -m venv PEERS
    PEERS/bin/pip install torch==2.13.0 "pfl[pytorch]==0.6.0" "flwr[simulation]==1.41.0"
    python benchmarks/federated_round.py --peers-python PEERS/bin/python     # a quarter of an hour on two cores
    python benchmarks/federated_round.py --peers-python pfl=ONE/bin/python --peers-python flower=OTHER/bin/python

Without them they are left out, which the results say.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from sordino.data import load

HERE = Path(__file__).parent
SCRIPTS = HERE / "federated"
sys.path.insert(0, str(SCRIPTS))

from workload import BATCH, CLIENTS, EXAMPLES, PER_ROUND, RATE, SEED, Data  # noqa: E402

CORES = os.cpu_count() or 1
WARM_UP_ROUNDS = 2  # besides the first, which is part of the start-up
MEMORY_ROUNDS, MEMORY_INTERVAL = 3, 0.1
BUSY_LOAD = 0.5  # of others, when we start
LONGEST = 3600.0  # seconds of one contender in one pass
PROBE = 2000

PFL_TARGET, FLOWER_TARGET, START_UP_TARGET, ADABEST_TARGET = 2.0, 3.0, 0.1, 1.15

# The contenders -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contender:
    name: str
    script: str
    package: str | None = None  # a peer's, which needs an interpreter that has it
    threads: int = 1
    more: tuple[str, ...] = ()
    cases: tuple[str, ...] = ("mlp", "cnn")


PEERS = {"pfl": ("pfl",), "flower": ("flwr", "ray")}  # and what an interpreter must be able to import
REFERENCE, REFERENCE_ADABEST = (
    "Sordino FedAvg",
    "Sordino AdaBest",
)  # as they come: as many processes as pay
SORDINO = "sordino_rounds.py"


def contenders() -> list[Contender]:
    """pfl and Flower run with one thread a client and with more, and are judged by the faster."""
    found = [
        Contender("plain loop, one thread", "plain_rounds.py"),
        Contender("pfl, one thread", "pfl_rounds.py", "pfl"),
        Contender(f"pfl, {CORES} threads", "pfl_rounds.py", "pfl", CORES),
        Contender(f"Flower, {CORES} clients at once", "flower_rounds.py", "flower"),
        Contender("Flower, 2 threads a client", "flower_rounds.py", "flower", 2, cases=("mlp",)),
    ]
    for label, algorithm in ((REFERENCE, "fedavg"), (REFERENCE_ADABEST, "adabest")):
        chosen = ("--algorithm", algorithm)
        found += [
            Contender(label, SORDINO, None, CORES, chosen),
            Contender(
                f"{label}, one process, one thread", SORDINO, None, 1, (*chosen, "--workers", "1"), ("mlp",)
            ),
            Contender(f"{label}, one process", SORDINO, None, CORES, (*chosen, "--workers", "1"), ("mlp",)),
        ]
    return found


def interpreters(given: Iterable[str]) -> dict[str, str]:
    """Peer -> interpreter: as named, or the first that can import what the peer needs."""
    found: dict[str, str] = {}
    for text in given:
        name, named, path = text.partition("=")
        wanted = [name] if named else list(PEERS)
        if named and name not in PEERS:
            raise SystemExit(f"{text}: there are {' and '.join(PEERS)}")
        python = path if named else text
        for peer in wanted:
            if peer not in found and can_import(python, PEERS[peer]):
                found[peer] = python
            elif named:
                raise SystemExit(f"{python} cannot import {' and '.join(PEERS[peer])}")
    return found


def can_import(python: str, modules: tuple[str, ...]) -> bool:
    check = f"import importlib.util as u; exit(not all(map(u.find_spec, {modules!r})))"
    try:
        return subprocess.run([python, "-c", check], capture_output=True).returncode == 0
    except OSError as error:
        raise SystemExit(f"cannot run {python}: {error.strerror}") from error


# The cases ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    name: str
    label: str
    epochs: int
    rounds: int  # timed ones of each pass


def write_data(name: str, folder: Path) -> None:
    chance = torch.Generator().manual_seed(SEED)
    rows = CLIENTS * EXAMPLES
    if name == "mlp":
        mnist = load("mnist")
        (inputs, targets), test = mnist.train, mnist.test
        assert test is not None
        chosen = torch.randperm(len(targets), generator=chance)[:rows]
        probe = (test[0][:PROBE].clone(), test[1][:PROBE].clone())
        Data(inputs[chosen], targets[chosen], probe).save(folder)
    else:
        inputs = torch.rand(rows, 3, 32, 32, generator=chance)
        targets = torch.randint(10, (rows,), generator=chance)
        Data(inputs, targets, (inputs[:EXAMPLES].clone(), targets[:EXAMPLES].clone())).save(folder)


# Running --------------------------------------------------------------------------------------------------


@dataclass
class Result:
    contender: str
    package: str | None
    seconds: list[float] = field(default_factory=list)  # of the timed rounds of all passes
    passes: list[float] = field(default_factory=list)  # the median of each
    start_ups: list[float] = field(default_factory=list)
    peak_mb: float | None = None
    last: dict[str, Any] = field(default_factory=dict)  # what it said at the end

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def start_up(self) -> float:
        return statistics.median(self.start_ups)


class Failed(Exception):
    """A contender ended without a result."""


def run(contender: Contender, python: str, case: Case, rounds: int, data: Path, sample: bool) -> Any:
    """One contender from start to end: what it reports, and its peak memory if it is sampled."""
    command = [python, str(SCRIPTS / contender.script), "--case", case.name, "--data", str(data)]
    command += ["--rounds", str(rounds), "--epochs", str(case.epochs), "--threads", str(contender.threads)]
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        command += [*contender.more, "--started", repr(time.time())]
        process = subprocess.Popen(command, stdout=output, stderr=errors, start_new_session=True)
        peak, until = 0.0, time.monotonic() + LONGEST
        try:
            while process.poll() is None:
                if time.monotonic() > until:
                    raise Failed(f"not done after {LONGEST:.0f} s")
                if sample:
                    peak = max(peak, memory_mb(process.pid))
                    time.sleep(MEMORY_INTERVAL)
                else:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(LONGEST)
        finally:
            with contextlib.suppress(ProcessLookupError):  # its session: it and what it left behind
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        errors.seek(0)
        lines = output.read().strip().splitlines()
        if process.returncode != 0 or not lines:
            said = (errors.read().strip().splitlines() or [f"ended with {process.returncode}"])[-1]
            raise Failed(said[:150])
    return json.loads(lines[-1]), peak


def memory_mb(root: int) -> float:
    """Proportional set size of a process and all its descendants; 0 where the system does not tell."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    family = {root}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    total = 0
    for process in family:
        with contextlib.suppress(OSError, StopIteration):
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def measure(case: Case, peers: dict[str, str], passes: int, memory: bool, folder: Path) -> list[Result]:
    say(f"{case.label}: {case.epochs} local epochs, {passes} passes of {case.rounds} timed rounds")
    write_data(case.name, folder)
    taking_part = [
        c for c in contenders() if case.name in c.cases and (c.package is None or c.package in peers)
    ]
    results = {c.name: Result(c.name, c.package) for c in taking_part}
    failed: set[str] = set()
    shuffle = random.Random(SEED).shuffle
    for number in range(passes + memory):
        sampling = number == passes
        shuffle(taking_part)
        for contender in taking_part:
            if contender.name in failed:
                continue
            python = peers[contender.package] if contender.package else sys.executable
            rounds = MEMORY_ROUNDS if sampling else 1 + WARM_UP_ROUNDS + case.rounds
            try:
                said, peak = run(contender, python, case, rounds, folder, sampling)
            except Failed as error:
                say(f"  {contender.name}: FAILED: {error}")
                failed.add(contender.name)
                continue
            add(results[contender.name], said, peak if sampling else None)
    return [result for result in results.values() if result.seconds]


def add(result: Result, said: dict[str, Any], peak: float | None) -> None:
    if peak is not None:
        result.peak_mb = peak or None
        say(f"  {result.contender}: {peak:.0f} MB")
        return
    seconds = said.pop("seconds")[WARM_UP_ROUNDS:]
    result.seconds += seconds
    result.passes.append(statistics.median(seconds))
    result.start_ups.append(said.pop("start_up"))
    result.last = said
    say(f"  {result.contender}: {result.passes[-1]:.3f} s a round, start-up {result.start_ups[-1]:.1f} s")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# The report -----------------------------------------------------------------------------------------------


def table(heads: list[str], rows: list[list[str]]) -> list[str]:
    rule = ["---"] + ["---:"] * (len(heads) - 1)
    return ["| " + " | ".join(row) + " |" for row in (heads, rule, *rows)]


def of_case(case: Case, results: list[Result]) -> list[str]:
    by_name = {r.contender: r for r in results}
    ours = by_name.get(REFERENCE)
    quality = "accuracy" if case.name == "mlp" else "loss"
    heads = [
        "contender",
        "s a round",
        "quartiles",
        "rounds",
        "passes",
        f"/ {REFERENCE}",
        "start-up, s",
        "peak MB",
    ]
    rows = []
    for r in results:
        low, _, high = statistics.quantiles(r.seconds, n=4, method="inclusive")
        rows.append(
            [
                *(r.contender, f"{r.median:.3f}", f"{low:.3f}-{high:.3f}", str(len(r.seconds))),
                ", ".join(f"{median:.3f}" for median in r.passes),
                "-" if ours is None else f"{r.median / ours.median:.2f}",
                f"{r.start_up:.1f}",
                "-" if r.peak_mb is None else f"{r.peak_mb:.0f}",
                f"{r.last[quality]:.3f}",
            ]
        )
    parameters = {r.last["parameters"] for r in results}
    lines = [f"## {case.label}, {', '.join(f'{n:,}' for n in sorted(parameters))} parameters", ""]
    lines += [
        f"{case.epochs} local epochs: {case.epochs * EXAMPLES // BATCH} steps of each client in each round."
    ]
    if case.name == "cnn":
        lines += [
            "Random images and labels: only the time means something, and the loss of all is that of chance."
        ]
    return [*lines, "", *table([*heads, quality], rows), "", *goals(by_name), ""]


def goals(results: dict[str, Result]) -> list[str]:
    lines = []
    ours, adabest = results.get(REFERENCE), results.get(REFERENCE_ADABEST)
    if ours is None:
        return []
    for label, peer, target in (("pfl", "pfl", PFL_TARGET), ("Flower", "flower", FLOWER_TARGET)):
        times = [r for r in results.values() if r.package == peer]
        if not times:
            continue
        fastest = min(times, key=lambda r: r.median)
        ratio = fastest.median / ours.median
        how = f"({fastest.contender}, its faster setting)" if len(times) > 1 else f"({fastest.contender})"
        lines.append(
            f"- {label} / {REFERENCE}, at least {target:g}: {ratio:.2f} {how}, {met(ratio >= target)}"
        )
        if peer == "flower":
            quickest = min(r.start_up for r in times)
            share = ours.start_up / quickest
            plain = [r.start_up for name, r in results.items() if name.startswith("plain loop")]
            floor = f"; the plain loop, which imports PyTorch only, {plain[0]:.1f} s" if plain else ""
            lines.append(
                f"- start-up of {REFERENCE} / Flower's, at most {START_UP_TARGET:g}: {share:.3f} "
                f"({ours.start_up:.1f} s of {quickest:.1f} s{floor}), {met(share <= START_UP_TARGET)}"
            )
    if adabest is not None:
        ratio = adabest.median / ours.median
        others = [
            f"{name.removeprefix(REFERENCE).lstrip(', ')} {pair.median / r.median:.3f}"
            for name, r in results.items()
            if name.startswith(f"{REFERENCE}, ")
            and (pair := results.get(name.replace(REFERENCE, REFERENCE_ADABEST)))
        ]
        also = f" ({'; '.join(others)})" if others else ""
        lines.append(
            f"- AdaBest / FedAvg, at most {ADABEST_TARGET:g}: {ratio:.3f}{also}, {met(ratio <= ADABEST_TARGET)}"
        )
    return lines


def met(value: bool) -> str:
    return "met" if value else "MISSED"


def environment(results: dict[str, list[Result]]) -> dict[str, Any]:
    versions: dict[str, str] = {}
    for result in (r for some in results.values() for r in some):
        script = result.package or ("sordino" if result.contender.startswith("Sordino") else "torch")
        versions[script] = result.last["version"]
        versions["torch"] = result.last["torch"]
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        **versions,
        "cores": CORES,
        "cpu": cpu_name(),
    }


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or "unknown"


def markdown(
    cases: list[Case], results: dict[str, list[Result]], left_out: list[str], quick: bool, busy: float
) -> str:
    facts = ", ".join(f"{key} {value}" for key, value in environment(results).items())
    lines = ["# A federated round", "", f"Measured with {facts}.", ""]
    if quick or busy > BUSY_LOAD:
        lines += [f"**Rough:** {'a quick run' if quick else f'the machine was busy (load {busy:.1f})'}.", ""]
    if left_out:
        lines += [f"**Left out**, for want of an environment: {', '.join(left_out)}.", ""]
    lines += [
        f"{CLIENTS} clients of {EXAMPLES} examples, {PER_ROUND} a round, batches of {BATCH}, SGD at {RATE:g}, no "
        "evaluation; medians over the rounds of all passes. pfl does not shuffle within a client, the others do. "
        "Made by `python benchmarks/federated_round.py`, which says how everything is measured.",
        "",
    ]
    for case in cases:
        lines += of_case(case, results[case.name])
    return "\n".join(lines)


# The command ----------------------------------------------------------------------------------------------


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--peers-python",
        action="append",
        default=[],
        metavar="[PEER=]PATH",
        help="an interpreter with pfl or Flower",
    )
    parser.add_argument("--cases", default="mlp,cnn", help="mlp, cnn or both")
    parser.add_argument("--rounds", type=int, default=12, help="timed ones of the MLP in each pass")
    parser.add_argument("--cnn-rounds", type=int, default=3, help="timed ones of the CNN in each pass")
    parser.add_argument("--cnn-epochs", type=int, default=1, help="local epochs of the CNN")
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--no-memory", action="store_true", help="measure time only")
    parser.add_argument(
        "--quick", action="store_true", help="one pass of few rounds, no memory, nothing written"
    )
    parser.add_argument("--out", type=Path, default=HERE / "results", metavar="DIR")
    chosen = parser.parse_args()
    chosen.cases = chosen.cases.split(",")
    if unknown := [name for name in chosen.cases if name not in ("mlp", "cnn")]:
        parser.error(f"unknown case {unknown[0]}: choose from mlp, cnn")
    if min(chosen.rounds, chosen.cnn_rounds) < 2:
        parser.error("medians need at least two rounds")
    return chosen


def main() -> None:
    chosen = options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the contender under way ends too
    peers = interpreters(chosen.peers_python)
    left_out = [peer for peer in PEERS if peer not in peers]
    if left_out:
        say(f"left out: {', '.join(left_out)}. Make an environment of their own and pass its interpreter:")
        say(
            '  python3 -m venv PEERS && PEERS/bin/pip install "pfl[pytorch]==0.6.0" "flwr[simulation]==1.41.0"'
        )
        say("  python benchmarks/federated_round.py --peers-python PEERS/bin/python")
    busy = os.getloadavg()[0]
    if busy > BUSY_LOAD:
        say(f"the machine is busy (load {busy:.1f}): threads that wait for each other slow down a lot")
    known = [
        Case("mlp", "MLP 784-100-100-10, MNIST", 5, 4 if chosen.quick else chosen.rounds),
        Case("cnn", "CIFAR CNN", chosen.cnn_epochs, 2 if chosen.quick else chosen.cnn_rounds),
    ]
    cases = [case for case in known if case.name in chosen.cases]
    passes, memory = (1, False) if chosen.quick else (chosen.passes, not chosen.no_memory)
    results: dict[str, list[Result]] = {}
    for case in cases:
        with tempfile.TemporaryDirectory() as folder:
            results[case.name] = measure(case, peers, passes, memory, Path(folder))
    text = markdown(cases, results, left_out, chosen.quick, busy)
    if not chosen.quick:
        chosen.out.mkdir(parents=True, exist_ok=True)
        (chosen.out / "federated_round.md").write_text(text)
        everything = {
            "environment": environment(results),
            "load": busy,
            "left_out": left_out,
            "cases": {
                case.name: asdict(case) | {"results": [asdict(r) for r in results[case.name]]}
                for case in cases
            },
        }
        (chosen.out / "federated_round.json").write_text(json.dumps(everything, indent=2) + "\n")
    print(text)


if __name__ == "__main__":
    main()
