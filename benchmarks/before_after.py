"""One private step of two versions of Sordino, in one run: has a change made the gate slower?

Each version lives in a process of its own (two packages of one name cannot share one) and the two take turns, step
by step, on the models of private_step.py; medians are compared, as ratios. With --tree they step by DP-FTRL.

    git worktree add /tmp/before COMMIT
    python benchmarks/before_after.py --before /tmp/before [--models mlp,fc] [--tree]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
MODELS = "mlp,fc,dp_ftrl_cnn,oso_cnn,oso_autoencoder,bag_of_words,text_transformer,text_lstm"
BLOCK = 3  # steps in a turn: the first finds the caches as the other version left them, and is not counted


def worker(tree: bool) -> None:
    import torch

    from private_step import CASES, NOISE_MULTIPLIER, SEED, THRESHOLD
    from sordino import Fixed, FixedOrder, Gate, Poisson, Tree

    torch.set_num_threads(2)
    gate: Any = None
    for line in sys.stdin:
        command, _, name = line.strip().partition(" ")
        if command == "build":
            case = CASES[name]
            model, inputs, targets = case.model_and_batch()
            gate = Gate(
                model, case.loss, (inputs, targets), clip=Fixed(THRESHOLD), noise_multiplier=NOISE_MULTIPLIER,
                seed=SEED, sampling=FixedOrder(case.batch) if tree else Poisson(rate=1.0),
                noise=Tree() if tree else None, steps=4096 if tree else None,
            )  # fmt: skip
        seconds = []
        for _ in range(BLOCK):
            start = time.perf_counter()
            released = gate()
            gate.theta.add_(released.gradient, alpha=-0.01)
            seconds.append(time.perf_counter() - start)
        print(*seconds[1:], flush=True)


def start(tree: Path, arguments: list[str]) -> subprocess.Popen[str]:
    paths = os.pathsep.join([str(tree / "src"), str(ROOT / "benchmarks")])
    return subprocess.Popen(
        [sys.executable, __file__, "--worker", *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip


def ask(process: subprocess.Popen[str], command: str) -> list[float]:
    into, out = process.stdin, process.stdout
    assert into is not None
    assert out is not None
    into.write(command + "\n")
    into.flush()
    return [float(word) for word in out.readline().split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--before", type=Path)
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--tree", action="store_true")
    parser.add_argument("--seconds", type=float, default=25.0)
    parser.add_argument("--worker", action="store_true")
    options = parser.parse_args()
    extra = ["--tree"] if options.tree else []
    if options.worker:
        return worker(options.tree)
    versions = {"before": start(options.before, extra), "after": start(ROOT, extra)}
    print("| model | before (ms) | after (ms) | after / before |\n|---|---:|---:|---:|", flush=True)
    for name in options.models.split(","):
        for process in versions.values():
            ask(process, f"build {name}")
        measured: dict[str, list[float]] = {version: [] for version in versions}
        end = time.monotonic() + options.seconds
        while time.monotonic() < end or len(measured["after"]) < 8:
            for version, process in versions.items():
                measured[version] += ask(process, "step")
        before, after = (1000 * statistics.median(measured[version]) for version in versions)
        print(f"| {name} | {before:.2f} | {after:.2f} | {after / before:.2f} |", flush=True)
    for process in versions.values():
        process.terminate()


if __name__ == "__main__":
    main()
