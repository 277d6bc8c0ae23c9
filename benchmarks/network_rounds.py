"""A federation of eight nodes over loopback, with TLS and nodes that prove who they are: seconds to the first round,
and of a round, beside the simulator and beside the same federation written with Flower's own FedAvg. All in one run.

    python benchmarks/network_rounds.py [--nodes 8] [--rounds 8] [--out benchmarks/results/network_rounds.md]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import sordino as sd
from sordino.data import load

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from flower_world import BIN, World

APP = Path(__file__).parent / "network"
PRIVATE = ["--server", "dp-ftrlm", "--epsilon", "8", "--delta", "1e-2"]
DIGITS = load("digits")


@dataclass(frozen=True)
class Times:
    """Of a run that started at 0: when each round was over."""

    ends: list[float]

    @property
    def first(self) -> float:
        return self.ends[0]

    @property
    def round(self) -> float:
        return statistics.median(np.diff(self.ends).tolist())


def rows(folder: Path, nodes: int) -> tuple[list[Path], list[np.ndarray[Any, Any]]]:
    """One client to a node, so that FedAvg's app does the same work."""
    x, y = DIGITS.train
    parts = np.array_split(np.random.default_rng(0).permutation(len(y)), nodes)
    files = []
    for i, part in enumerate(parts):
        files.append(folder / f"rows{i}.npz")
        np.savez(files[-1], x=x[part].numpy(), y=y[part].numpy())
    return files, parts


def watched(process: subprocess.Popen[Any], file: Path, start: float, rounds: int) -> Times:
    ends: list[float] = []
    while len(ends) < rounds:
        there = len(file.read_text().splitlines()) if file.exists() else 0
        ends += [time.time() - start] * (there - len(ends))
        if process.poll() is not None and there < rounds:
            raise RuntimeError("it ended before its rounds were over")
        time.sleep(0.005)
    return Times(ends)


def ours(world: World, nodes: int, rounds: int, *flags: str) -> Times:
    out = Path(tempfile.mkdtemp(dir=world.folder)) / "run"
    command = [
        BIN / "sordino", "federate", "digits", "--engine", "flower", "--superlink", world.address,
        "--root-certificates", world.folder / "ca.crt", "--superlink-secret", world.folder / "secret",
        "--nodes", nodes, "--rounds", rounds, "--per-round", nodes, "--model", "mlp:32", "--out", out,
        "--evaluations", 1, *flags,
    ]  # fmt: skip
    start = time.time()
    with (world.folder / "server.log").open("ab") as log:
        process = subprocess.Popen(list(map(str, command)), env=world.environment, stdout=log, stderr=log)
    times = watched(process, out / "history.jsonl", start, rounds)
    if process.wait() != 0:
        raise RuntimeError(world.log("server")[-2000:])
    return times


def theirs(world: World, nodes: int, rounds: int) -> Times:
    out = world.folder / "rounds.txt"
    config = f'nodes={nodes} rounds={rounds} out="{out}"'
    start = time.time()
    process = subprocess.Popen(
        [str(BIN / "flwr"), "run", str(APP), "--stream", "--run-config", config],
        env=world.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    times = watched(process, out, start, rounds)
    process.wait()
    return times


def simulated(parts: list[np.ndarray[Any, Any]], rounds: int) -> Times:
    ends: list[float] = []
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10)
    )
    start = time.time()
    sd.federate(
        model, torch.nn.CrossEntropyLoss(reduction="none"), DIGITS.train, partition=parts, clients=len(parts),
        per_round=len(parts), rounds=rounds, algorithm="adabest",
        callbacks=[lambda seen: ends.append(time.time() - start)],
    )  # fmt: skip
    return Times(ends)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    nodes, rounds = given.nodes, given.rounds
    found: dict[str, Times] = {}
    folder = Path(tempfile.mkdtemp(prefix="sordino-"))
    files, parts = rows(folder, nodes)
    found["simulator, AdaBest"] = simulated(parts, 10 * rounds)
    (folder / "ours").mkdir()
    with World(folder / "ours") as world:
        for i in range(nodes):
            world.worker(f"node{i}", files[i])
        time.sleep(30)  # nodes are up; what is measured is the federation
        found["`sordino node`, AdaBest"] = ours(world, nodes, rounds, "--algorithm", "adabest")
        found["`sordino node`, AdaBest once more"] = ours(world, nodes, rounds, "--algorithm", "adabest")
        found["`sordino node`, DP-FTRLM"] = ours(world, nodes, rounds, *PRIVATE)
    (folder / "stock").mkdir()
    with World(folder / "stock") as world:
        for i in range(nodes):
            world.node(f"node{i}", f'data="{files[i]}" state="{folder}/state{i}"')
        time.sleep(30)
        found["`flower-supernode`, AdaBest"] = ours(world, nodes, rounds, "--algorithm", "adabest")
    (folder / "theirs").mkdir()
    with World(folder / "theirs", isolation="subprocess") as world:
        for i in range(nodes):
            world.node(f"node{i}", f'data="{files[i]}"')
        time.sleep(30)
        found["Flower's FedAvg, `flower-supernode`"] = theirs(world, nodes, rounds)
    base, network = found["simulator, AdaBest"].round, found["`sordino node`, AdaBest"].round
    lines = [
        "| federation | to the end of the first round, s | a round, s | over the simulator, s | times `sordino node` |"
    ]
    lines.append("|---|---|---|---|---|")
    for name, times in found.items():
        over = "" if name.startswith("simulator") else f"{times.round - base:.2f}"
        lines.append(
            f"| {name} | {times.first:.2f} | {times.round:.3f} | {over} | {times.round / network:.2f} |"
        )
    text = "\n".join(lines)
    print(text)
    if given.out is not None:
        command = f"python benchmarks/network_rounds.py --nodes {nodes} --rounds {rounds}"
        about = f"{nodes} nodes on one machine of two cores, TLS, keys, one client each, digits, 2,410 parameters."
        given.out.write_text(f"# A federation over loopback\n\n`{command}`: {about}\n\n{text}\n")


if __name__ == "__main__":
    main()
