"""A step of one process with two threads beside one of two processes with one thread each, under torchrun.

Each way is started anew in every round, one after the other, and times its steps itself. Whatever else the machine does
only adds to a step, so the tenth of the steps that was fastest counts, and of the rounds the fastest. How far apart the
models are that come out, for the same seed, stands beside it.

    python benchmarks/ranks.py            # about two minutes on two cores that do nothing else
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from sordino import dp_sgd, models, train

MODELS: dict[str, Any] = {
    "MLP 784-256-10, 203,530": (lambda: models.build_model("mlp:256", (784,), 10), (784,)),
    "DP-FTRL CNN, 26,010": (models.dp_ftrl_cnn, (1, 28, 28)),
    "FC, 1,055,000": (models.cifar_fc, (1600,)),
}
BATCH, STEPS, FIRST = 256, 60, 10  # the first are not timed
WAYS = {"1 process, 2 threads": (1, 2), "2 processes, 1 thread": (2, 1), "1 process, 1 thread": (1, 1)}


def measured(name: str, out: Path) -> None:
    """In each of the processes: train, and let rank 0 write what a step took, and the model."""
    if os.environ.get("WORLD_SIZE", "1") != "1":
        dist.init_process_group("gloo")
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    make, shape = MODELS[name]
    torch.manual_seed(1)
    data = torch.randn(4 * BATCH, *shape), torch.randint(10, (4 * BATCH,))
    times: list[float] = []
    run = train(
        make(), nn.CrossEntropyLoss(reduction="none"), data, method=dp_sgd(0.1), batch_size=BATCH, epochs=STEPS / 4,
        noise_multiplier=1.0, delta=1e-5, accountant="rdp", seed=1, progress=False,
        callbacks=[lambda _: times.append(time.perf_counter())],
    )  # fmt: skip
    if times:
        steps = [after - before for before, after in zip(times[FIRST:], times[FIRST + 1 :], strict=False)]
        theta = [float(x) for each in run.model.parameters() for x in each.detach().view(-1)]
        out.write_text(json.dumps([statistics.quantiles(steps, n=10)[0], theta]))


def started(name: str, processes: int, threads: int) -> tuple[float, torch.Tensor]:
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "measured.json"
        command = [
            sys.executable, *(torchrun if processes > 1 else []), __file__, "--measure", name, "--out", str(out),
        ]  # fmt: skip
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        subprocess.run(command, env=environment, check=True, capture_output=True)
        seconds, theta = json.loads(out.read_text())
    return seconds, torch.tensor(theta)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        return measured(asked.measure, asked.out)
    print(f"torch {torch.__version__}, batch {BATCH}, {STEPS} steps of DP-SGD, {asked.rounds} rounds\n")
    for name in MODELS:
        rounds = [{way: started(name, *WAYS[way]) for way in WAYS} for _ in range(asked.rounds)]
        first = next(iter(WAYS))
        seconds = {way: min(each[way][0] for each in rounds) for way in WAYS}
        print(f"| {name} | ms a step | ratio | largest difference of a parameter |\n|---|---|---|---|")
        for way in WAYS:
            apart = float((rounds[0][way][1] - rounds[0][first][1]).abs().max())
            ratio = seconds[way] / seconds[first]
            print(f"| {way} | {1000 * seconds[way]:.2f} | {ratio:.2f} | {apart:.1e} |")
        print()


if __name__ == "__main__":
    main()
