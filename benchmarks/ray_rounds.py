"""A federated round in one process, in two forked ones, and by one and two workers of Ray; all come to the same model.

100 clients of 450 made-up rows of 784 numbers, 10 a round, 5 local epochs in batches of 45, the network 784-100-100-10,
one thread each. Contenders run one after the other in one process, in a new order in each pass; the first rounds warm
up (rows go to Ray's store when a client first takes part), and the others are compared: their medians, and the fastest
of each, which others on the machine disturbed least. Ray runs from the beginning to the end; its start is measured
apart, and that of its workers is in the time of the first round.

    python benchmarks/ray_rounds.py
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections import defaultdict
from itertools import pairwise
from typing import Any

import torch
from torch import nn

import sordino as sd
from sordino.federated.pool import packed, unpacked
from sordino.federated.ray_pool import joined
from sordino.federated.rounds import Finished

CLIENTS, ROWS, PER_ROUND, ROUNDS, WARM_UP, CHUNK = 100, 450, 10, 20, 5, 5
CONTENDERS = {
    "one process": {"engine": "stacked", "workers": 1},
    "two forked processes": {"engine": "stacked", "workers": 2},
    "Ray, one worker": {"engine": "ray", "workers": 1},
    "Ray, two workers": {"engine": "ray", "workers": 2},
}


def network() -> nn.Module:
    torch.manual_seed(0)
    layers = (nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10))
    return nn.Sequential(*layers)


def rounds_of(algorithm: str, how: dict[str, Any], data: Any) -> tuple[list[float], float, sd.Run]:
    """Seconds of each round but the first ones, and from the start to the end of the first."""
    times = [time.perf_counter()]

    def noted(seen: Any) -> None:
        times.append(time.perf_counter())

    run = sd.federate(
        network(),
        nn.CrossEntropyLoss(reduction="none"),
        data,
        rounds=ROUNDS,
        clients=CLIENTS,
        per_round=PER_ROUND,
        chunk=CHUNK,
        algorithm=algorithm,
        seed=1,
        callbacks=[noted],
        progress=False,
        **how,
    )
    each = [after - before for before, after in pairwise(times)]
    return each[WARM_UP:], each[0], run


def way_back(ray: Any, clients: int, size: int) -> float:
    """Seconds that what so many clients send takes through Ray's store."""
    nothing, times = torch.zeros(clients, 1), []
    part = Finished(tuple(range(clients)), {"update": torch.randn(clients, size)}, {}, nothing, nothing)
    for _ in range(30):
        began = time.perf_counter()
        unpacked(ray.get(ray.put(packed(part))))
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passes", type=int, default=3)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.rand(CLIENTS * ROWS, 784, generator=generator)
    data = inputs, torch.randint(10, (CLIENTS * ROWS,), generator=generator)
    size = sum(p.numel() for p in network().parameters())
    began = time.perf_counter()
    with joined() as cluster:
        print(f"{size:,} parameters; load {os.getloadavg()[0]:.1f}; {os.cpu_count()} cores")
        print(f"Ray {cluster.ray.__version__} started in {time.perf_counter() - began:.1f} s\n")
        print(
            "| algorithm | where | median s a round | / one process | fastest | / one process | first round |"
        )
        print("|---|---|---:|---:|---:|---:|---:|")
        for algorithm in ("fedavg", "adabest"):
            times, firsts, models = (
                defaultdict[str, list[float]](list),
                defaultdict[str, list[float]](list),
                [],
            )
            for number in range(asked.passes):
                order = list(CONTENDERS)
                random.Random(number).shuffle(order)
                for name in order:
                    seconds, first, run = rounds_of(algorithm, CONTENDERS[name], data)
                    assert run.summary["engine"].startswith("stacked"), "another engine was faster this time"
                    times[name] += seconds
                    firsts[name].append(first)
                    models.append(torch.cat([p.detach().flatten() for p in run.model.parameters()]))
            assert all(torch.equal(model, models[0]) for model in models)
            for name in CONTENDERS:
                shown = ""
                for summary in (statistics.median, min):
                    found, base = summary(times[name]), summary(times["one process"])
                    shown += f" {found:.3f} | {found / base:.2f} |"
                print(f"| {algorithm} | {name} |{shown} {statistics.median(firsts[name]):.2f} |")
        whole, alone = (1000 * way_back(cluster.ray, clients, size) for clients in (CHUNK, 1))
        print(f"\nRows of a client: {(784 * 4 + 8) * ROWS / 1e6:.2f} MB, once per machine and client.")
        print(f"Back per chunk: {CHUNK * size * 4 / 1e6:.2f} MB in {whole:.1f} ms through the store;")
        print(f"its sum alone would be {size * 4 / 1e6:.2f} MB in {alone:.1f} ms.")


if __name__ == "__main__":
    main()
