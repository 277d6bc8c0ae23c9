"""Rounds of AdaBest in populations of 5,000, 10,000 and a million clients, of whom the same 5,000 ever take part.

Neither the time of a round nor memory should depend on how many clients there are: only on those who take part. A
round asks 1,000 of the first 5,000 clients, each with 20 made-up rows and a network 20-50-10 of which it keeps a vector
between rounds, in memory or in a file. Two more runs let anybody of the million take part: their rounds should be as
fast, and their memory grows with those who came. The work is little on purpose, so that what a client costs apart
from it shows.

Each run is a process of its own, one after the other, in a new order in each pass. Medians are over the rounds of all
passes but the first two of each; the ratio is to the population of 5,000 with the same store. CPU time beside it is
what remains comparable when the machine is busy. Memory is the peak of the process; pages of a mapped file count,
though the system takes them back when it needs them.

    python benchmarks/million_clients.py                # about five minutes on two cores
    python benchmarks/million_clients.py --quick        # one short pass, nothing written
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sordino.data import WithoutReplacement, as_examples
from sordino.data.sampling import Words
from sordino.federated import federate
from sordino.federated.population import Population

HERE = Path(__file__).parent
REGULARS, PER_ROUND = 5_000, 1_000
ROWS, FEATURES, CLASSES, EXAMPLES, BATCH = 20_000, 20, 10, 20, 10
POPULATIONS = (REGULARS, 10_000, 1_000_000)
STORES = ("memory", "file")
WARM_UP = 2
BUSY_LOAD = 0.5  # of others, when we start
LONGEST = 1800.0  # seconds of a run
TIME_TARGET, MEMORY_TARGET = 1.1, 1.05  # of a million clients, over 5,000

# One run, in a process of its own -------------------------------------------------------------------------


@dataclass(frozen=True)
class Regulars(WithoutReplacement):
    """Of all clients only the first ``among`` ever take part."""

    among: int = REGULARS

    def units(self, step: int, n: int, source: Words) -> np.ndarray[Any, np.dtype[np.int64]]:
        return super().units(step, min(n, self.among), source)


def population_of(clients: int) -> Population:
    """Client i has the rows that begin at 7 i, around the end of the data."""
    chance = torch.Generator().manual_seed(1)
    inputs = torch.randn(ROWS, FEATURES, generator=chance)
    targets = (inputs @ torch.randn(FEATURES, CLASSES, generator=chance)).argmax(1)

    def rows(client: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        return (7 * client + np.arange(EXAMPLES)) % ROWS

    return Population(as_examples((inputs, targets)), clients, rows, float(EXAMPLES))


def run_one(clients: int, store: str, anybody: bool, rounds: int) -> dict[str, Any]:
    torch.set_num_threads(1)  # the matrices are too small for more
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(FEATURES, 50), torch.nn.ReLU(), torch.nn.Linear(50, CLASSES))
    ends = [(time.perf_counter(), time.process_time())]

    def observe(_: object) -> None:
        ends.append((time.perf_counter(), time.process_time()))

    run = federate(
        model,
        torch.nn.CrossEntropyLoss(reduction="none"),
        population_of(clients),
        rounds=rounds,
        algorithm="adabest",
        participation=WithoutReplacement(PER_ROUND) if anybody else Regulars(PER_ROUND),
        local_epochs=1,
        batch_size=BATCH,
        workers=1,
        engine="stacked",  # fixed, so that no measurement decides about it
        chunk=50,
        store=store,
        observe=observe,
        progress=False,
        seed=1,
    )
    seconds, cpu_seconds = np.diff(np.array(ends), axis=0).T.tolist()
    return {
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "took_part": run.summary["clients_with_state"],
        "parameters": run.summary["parameters"],
        "cloud_norm": run.history[-1]["cloud_norm"],
    }


# All of them ----------------------------------------------------------------------------------------------


@dataclass
class Case:
    clients: int
    store: str
    anybody: bool = False
    seconds: list[float] = field(default_factory=list)  # of a round
    cpu_seconds: list[float] = field(default_factory=list)  # of the same rounds
    peaks_mib: list[float] = field(default_factory=list)  # of each pass
    took_part: int = 0
    cloud_norm: float = 0.0

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def cpu(self) -> float:
        return statistics.median(self.cpu_seconds)

    @property
    def peak(self) -> float:
        return statistics.median(self.peaks_mib)


def measured(passes: int, rounds: int) -> list[Case]:
    cases = [Case(clients, store) for store in STORES for clients in POPULATIONS]
    cases += [Case(POPULATIONS[-1], store, anybody=True) for store in STORES]
    for number in range(passes):
        for case in random.sample(cases, len(cases)):
            who = f"{case.clients:,} clients, {case.store}{', anybody' if case.anybody else ''}"
            said = in_a_process(case, rounds)
            case.seconds += said["seconds"][WARM_UP:]
            case.cpu_seconds += said["cpu_seconds"][WARM_UP:]
            case.peaks_mib.append(said["peak_mib"])
            case.took_part, case.cloud_norm = said["took_part"], said["cloud_norm"]
            median = statistics.median(said["seconds"][WARM_UP:])
            print(
                f"pass {number + 1}: {who}: {median:.3f} s a round, {said['peak_mib']:.0f} MiB",
                file=sys.stderr,
                flush=True,
            )
    norms = {case.cloud_norm for case in cases if not case.anybody}
    if len(norms) > 1:  # the same clients do the same work
        raise SystemExit(f"the runs did not train the same model: {sorted(norms)}")
    return cases


def in_a_process(case: Case, rounds: int) -> dict[str, Any]:
    asked = json.dumps([case.clients, case.store, case.anybody, rounds])
    done = subprocess.run(
        [sys.executable, __file__, "--one", asked], capture_output=True, text=True, timeout=LONGEST
    )
    if done.returncode != 0:
        raise SystemExit(f"a run of {case.clients:,} clients failed:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


# The report -----------------------------------------------------------------------------------------------


def markdown(cases: list[Case], passes: int, rounds: int, busy: float) -> str:
    facts = ", ".join(f"{key} {value}" for key, value in environment().items())
    lines = ["# A million clients", "", f"Measured with {facts}.", ""]
    if busy > BUSY_LOAD:
        lines += [f"**Rough:** the machine was busy (load {busy:.1f}).", ""]
    lines += [
        f"AdaBest, {PER_ROUND:,} clients a round of {EXAMPLES} rows each, {EXAMPLES // BATCH} local steps, a network "
        f"{FEATURES}-50-{CLASSES}, {rounds} rounds, {passes} passes, one thread. Only the first {REGULARS:,} clients "
        "ever take part, but where anybody may. Made by `python benchmarks/million_clients.py`, which says how.",
        "",
        f"| clients | take part | came | store | s a round | quartiles | / {REGULARS:,} | CPU s a round "
        f"| / {REGULARS:,} | peak MiB | / {REGULARS:,} |",
        "| ---: | --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for case in cases:
        base = base_of(case, cases)
        low, _, high = statistics.quantiles(case.seconds, n=4, method="inclusive")
        who = "anybody" if case.anybody else f"the first {REGULARS:,}"
        memory = "" if case.anybody else f"{case.peak / base.peak:.3f}"  # not the same states
        lines.append(
            f"| {case.clients:,} | {who} | {case.took_part:,} | {case.store} | {case.median:.3f} | "
            f"{low:.3f}-{high:.3f} | {case.median / base.median:.2f} | {case.cpu:.3f} | {case.cpu / base.cpu:.2f} | "
            f"{case.peak:.0f} | {memory} |"
        )
    lines.append("")
    for case in cases:
        if case.clients == POPULATIONS[-1] and not case.anybody:
            base = base_of(case, cases)
            slower, larger = case.median / base.median, case.peak / base.peak
            lines.append(
                f"- {case.clients:,} clients over {REGULARS:,}, store {case.store}: time at most {TIME_TARGET:g}: "
                f"{slower:.2f} ({case.cpu / base.cpu:.2f} of CPU time), {met(slower <= TIME_TARGET)}; "
                f"memory at most {MEMORY_TARGET:g}: {larger:.3f}, {met(larger <= MEMORY_TARGET)}"
            )
    return "\n".join([*lines, ""])


def base_of(case: Case, cases: list[Case]) -> Case:
    return next(c for c in cases if (c.clients, c.store, c.anybody) == (REGULARS, case.store, False))


def met(value: bool) -> str:
    return "met" if value else "MISSED"


def environment() -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "sordino": version("sordino"),
        "cores": os.cpu_count(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20, help="of each run, two of which warm up")
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="one pass of five rounds, nothing written")
    parser.add_argument("--out", type=Path, default=HERE / "results", metavar="DIR")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.one:
        print(json.dumps(run_one(*json.loads(chosen.one))))
        return
    passes, rounds = (1, 5) if chosen.quick else (chosen.passes, chosen.rounds)
    if passes < 1 or rounds < WARM_UP + 2:
        parser.error(f"medians need at least one pass of {WARM_UP + 2} rounds")
    busy = os.getloadavg()[0]
    cases = measured(passes, rounds)
    text = markdown(cases, passes, rounds, busy)
    if not chosen.quick:
        chosen.out.mkdir(parents=True, exist_ok=True)
        (chosen.out / "million_clients.md").write_text(text)
        everything = {
            "environment": environment(),
            "load": busy,
            "rounds": rounds,
            "passes": passes,
            "cases": [asdict(case) for case in cases],
        }
        (chosen.out / "million_clients.json").write_text(json.dumps(everything, indent=2) + "\n")
    print(text)


if __name__ == "__main__":
    main()
