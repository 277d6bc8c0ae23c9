"""Bytes, seconds and memory of a round across hosts of their own (network namespaces), with limited bandwidth and
latency, beside what the formulas of docs/scaling.md say. As root, with iproute2:

    python benchmarks/network_scaling.py [--out benchmarks/results/network_scaling.md]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from flower_world import certificates, node_key
from test_network_hosts import HOSTS, Hosts

NODES = ("clinic", "lab")
CASES = [  # hidden units, clients of a node, Mbit/s (0: as fast as it goes), seconds of latency
    (32, 5, 0, 0.0),
    (1400, 5, 0, 0.0),
    (14000, 5, 0, 0.0),
    (1400, 50, 0, 0.0),
    (1400, 5, 100, 0.0),
    (1400, 5, 20, 0.0),
    (1400, 5, 0, 0.025),
    (1400, 5, 0, 0.1),
]


async def delayed(port: int, host: str, target: int, seconds: float) -> None:
    """A wire of so many seconds each way: what comes in goes on later, in order."""

    async def pumped(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def forward() -> None:
            while True:
                due, data = await queue.get()
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                if not data:
                    writer.close()
                    return
                writer.write(data)
                await writer.drain()

        task = asyncio.create_task(forward())
        while True:
            data = await reader.read(1 << 16)
            await queue.put((time.monotonic() + seconds, data))
            if not data:
                break
        await task

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(host, target)
        await asyncio.gather(
            pumped(reader, there_writer), pumped(there_reader, writer), return_exceptions=True
        )

    server = await asyncio.start_server(accepted, "127.0.0.1", port)
    async with server:
        await server.serve_forever()


def parameters(hidden: int) -> int:
    return 65 * hidden + 10 * hidden + 10


def counters(hosts: Hosts, host: str) -> tuple[int, int]:
    """Bytes that came in to a host's interface, and that went out."""
    text = subprocess.run(
        ["ip", "netns", "exec", f"{hosts.tag}-{host}", "cat", "/proc/net/dev"], capture_output=True, text=True
    ).stdout
    words = next(line for line in text.splitlines() if "eth0:" in line).split(":")[1].split()
    return int(words[0]), int(words[8])


def measured(hosts: Hosts, folder: Path, case: tuple[int, int, int, float], rounds: int) -> dict[str, float]:
    hidden, clients, mbit, latency = case
    out = Path(tempfile.mkdtemp(dir=folder)) / "run"
    for host in NODES:
        inside = ["ip", "netns", "exec", f"{hosts.tag}-{host}", "tc", "qdisc"]
        subprocess.run([*inside, "del", "dev", "eth0", "root"], capture_output=True)
        if mbit:
            limit = ["tbf", "rate", f"{mbit}mbit", "burst", "64kb", "latency", "400ms"]
            subprocess.run([*inside, "add", "dev", "eth0", "root", *limit], check=True)
    ours = []
    for host in NODES:
        if latency:
            ours.append(
                hosts.start(host, f"exec {sys.executable} {__file__} --delay {latency}", f"delay-{host}.log")
            )
        where = "127.0.0.1" if latency else HOSTS["server"]
        flags = (
            f"--superlink {where}:8000 --root-certificates ../ca.crt --key ../keys/{host} --clients {clients}"
        )
        ours.append(
            hosts.start(
                host, f"exec sordino node {host} ../rows.npz {flags} --state ../state-{host}", f"{host}.log"
            )
        )
    flags = f"--superlink {HOSTS['server']}:8000 --root-certificates ../ca.crt --superlink-secret ../secret --nodes 2"
    work = f"--rounds {rounds} --per-round {2 * clients} --model mlp:{hidden} --algorithm fedavg --local-epochs 1"
    started = hosts.start(
        "server",
        f"exec sordino federate digits --engine flower {flags} "
        f"--node-keys ../keys {work} --evaluations 1 --out {out}",
        "server.log",
    )
    history = out / "history.jsonl"
    ends: list[float] = []
    marks: list[list[tuple[int, int]]] = []
    while started.poll() is None:
        there = len(history.read_text().splitlines()) if history.exists() else 0
        while len(ends) < there:
            ends.append(time.monotonic())
            marks.append([counters(hosts, host) for host in NODES])
        time.sleep(0.005)
    if started.returncode != 0:
        raise RuntimeError((folder / "server.log").read_text()[-2000:])
    for process in ours:
        process.terminate()
        process.wait()
    hosts.processes = [each for each in hosts.processes if each not in (*ours, started)]
    time.sleep(1)
    per_round = [np.subtract(after, before) for before, after in pairwise(marks)]
    down, up = (statistics.median(float(each[:, way].mean()) for each in per_round) for way in (0, 1))
    memory = float(json.loads((out / "run.json").read_text())["peak_memory_mib"])
    return {"seconds": statistics.median(np.diff(ends).tolist()), "down": down, "up": up, "memory": memory}


def predicted(case: tuple[int, int, int, float], base: dict[str, float], trips: float) -> dict[str, float]:
    """docs/scaling.md: bytes of a node, and the seconds that wire and latency add to those of the base case."""
    hidden, clients, mbit, latency = case
    size = parameters(hidden)
    down, up = 4 * size + 6000 + 60 * clients, 4 * size * clients + 6000
    wire = 8 * up / (1e6 * mbit) if mbit else 0.0
    return {"down": down, "up": up, "added": wire + trips * 2 * latency}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--delay", type=float)
    given = parser.parse_args()
    if given.delay is not None:
        return asyncio.run(delayed(8000, HOSTS["server"], 8000, given.delay))
    folder = Path(tempfile.mkdtemp(prefix="sordino-"))
    certificates(folder, (HOSTS["server"], "127.0.0.1"))
    (folder / "secret").write_bytes(os.urandom(32))
    chance = np.random.default_rng(0)
    np.savez(
        folder / "rows.npz", x=chance.random((500, 1, 8, 8), dtype=np.float32), y=chance.integers(0, 10, 500)
    )
    (folder / "keys").mkdir()
    for host in HOSTS:
        (folder / host).mkdir()
        (folder / f"home-{host}").mkdir()
        node_key(folder / "keys", host)
    rows: list[tuple[tuple[int, int, int, float], dict[str, float]]] = []
    with Hosts(folder) as hosts:
        hosts.start(
            "server",
            f"exec flower-superlink --host {HOSTS['server']} --port 8000 --isolation process "
            "--ssl-certfile ../server.crt --ssl-keyfile ../server.key "
            "--ssl-ca-certfile ../ca.crt --enable-supernode-auth "
            "--superexec-auth-secret-file ../secret",
            "superlink.log",
        )
        time.sleep(4)
        for case in CASES:
            rows.append((case, measured(hosts, folder, case, given.rounds)))
            print(case, rows[-1][1], flush=True)
    table = _table(rows)
    print(table)
    if given.out is not None:
        head = "# A round across hosts of their own\n\n`python benchmarks/network_scaling.py`: two nodes and a server, "
        given.out.write_text(
            f"{head}network namespaces on one machine of two cores, TLS, `sordino node`, FedAvg.\n\n{table}\n"
        )


def _table(rows: list[tuple[Any, dict[str, float]]]) -> str:
    bases = {case[:2]: found for case, found in rows if case[2:] == (0, 0.0)}
    slow = [(case, found) for case, found in rows if case[3]]
    trips = (
        statistics.mean((f["seconds"] - bases[c[:2]]["seconds"]) / (2 * c[3]) for c, f in slow)
        if slow
        else 0.0
    )
    lines = [
        "| parameters | clients of a node | Mbit/s | latency | KB to a node, formula | KB from it, formula | seconds "
        "| formula | server MB |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for case, found in rows:
        hidden, clients, mbit, latency = case
        said, base = predicted(case, found, trips), bases[case[:2]]["seconds"]
        lines.append(
            f"| {parameters(hidden):,} | {clients} | {mbit or 'free'} | {1000 * latency:.0f} ms "
            f"| {found['down'] / 1e3:,.0f}, {said['down'] / 1e3:,.0f} "
            f"| {found['up'] / 1e3:,.0f}, {said['up'] / 1e3:,.0f} "
            f"| {found['seconds']:.2f} | {base + said['added']:.2f} | {found['memory']:,.0f} |"
        )
    return "\n".join([*lines, "", f"Round trips of a round, from the two slow wires: {trips:.0f}."])


if __name__ == "__main__":
    main()
