"""From the shell to the first step: how long until `sordino` does something, before and after a change?

Every figure is a process of its own, started as a shell would start it; versions take turns, and medians are compared.
A first step is the first call of the gate in `sordino train digits --epsilon 3 --delta 1e-5`; PyTorch's import is
timed inside of the same process. All sources are compiled beforehand, as they are where a package is installed.

    git worktree add /tmp/before COMMIT
    python benchmarks/start_up.py [--before /tmp/before] [--rounds 5]
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parent.parent
TRAIN = ["train", "digits", "--epsilon", "3", "--delta", "1e-5"]
HELP = "import sys; sys.argv = ['sordino', '--help']; from sordino.cli.main import main; main()"


class After(importlib.abc.MetaPathFinder):
    """Calls ``then(module, seconds, cpu_seconds)`` when a module of that name has been imported."""

    def __init__(self, name: str, then: Callable[[ModuleType, float, float], None]) -> None:
        self.name, self.then = name, then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        assert spec is not None
        loader: Any = spec.loader
        run = loader.exec_module

        def timed(module: ModuleType) -> None:
            start, start_cpu = time.perf_counter(), time.process_time()
            run(module)
            self.then(module, time.perf_counter() - start, time.process_time() - start_cpu)

        loader.exec_module = timed
        return spec


def worker() -> None:
    """`sordino train digits`, up to its first step; then what it took so far goes to stdout."""
    took: dict[str, float] = {}

    def torch_is_there(_: ModuleType, seconds: float, cpu: float) -> None:
        took.update(torch=seconds, torch_cpu=cpu)

    def gate_is_there(module: ModuleType, *_: float) -> None:
        def first_step(*_: Any, **__: Any) -> None:
            print(json.dumps({**took, "at": time.time(), "cpu": time.process_time()}), flush=True)
            os._exit(0)

        module.Door.__call__ = first_step

    sys.meta_path[:0] = [After("torch", torch_is_there), After("sordino.gate", gate_is_there)]
    from sordino.cli.main import main

    with tempfile.TemporaryDirectory() as folder:
        sys.argv = ["sordino", *TRAIN, "--out", f"{folder}/run"]
        main()


def started(arguments: list[str], environment: dict[str, str]) -> tuple[float, float, str]:
    """Wall seconds, CPU seconds and the output of a process."""
    before, start = os.times(), time.perf_counter()
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=True
    )
    wall, after = time.perf_counter() - start, os.times()
    cpu = after.children_user - before.children_user + after.children_system - before.children_system
    return wall, cpu, done.stdout


def measure(environment: dict[str, str], into: dict[str, list[tuple[float, float]]]) -> None:
    into["`import torch` alone"].append(started(["-c", "import torch"], environment)[:2])
    into["`sordino --help`"].append(started(["-c", HELP], environment)[:2])
    with tempfile.TemporaryDirectory() as cache:
        for when in ("first time", "again"):
            start = time.time()
            _, _, output = started([__file__, "--worker"], {**environment, "XDG_CACHE_HOME": cache})
            told = json.loads(output.splitlines()[-1])
            whole = told["at"] - start, told["cpu"]
            torch = told["torch"], told["torch_cpu"]
            into[f"to the first step, {when}"].append(whole)
            into[f"of which PyTorch's import, {when}"].append(torch)
            into[f"beside PyTorch's import, {when}"].append((whole[0] - torch[0], whole[1] - torch[1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--before", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--worker", action="store_true")
    options = parser.parse_args()
    if options.worker:
        return worker()
    versions = {"before": options.before, "after": ROOT} if options.before else {"after": ROOT}
    found: dict[str, dict[str, list[tuple[float, float]]]] = {name: defaultdict(list) for name in versions}
    with tempfile.TemporaryDirectory() as compiled:
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = compiled
        for number in range(options.rounds + 1):
            for name, tree in versions.items():
                own = {**environment, "PYTHONPATH": str(tree.resolve() / "src")}
                measure(own, found[name] if number else defaultdict(list))  # the first round compiles
    print(f"Medians of {options.rounds}, in seconds: wall (CPU).\n")
    print(f"| | {' | '.join(versions)} |\n|---|{'---:|' * len(versions)}")
    for row in found["after"]:
        cells = [
            "{:.2f} ({:.2f})".format(
                *(statistics.median(part) for part in zip(*found[name][row], strict=True))
            )
            for name in versions
        ]
        print(f"| {row} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
