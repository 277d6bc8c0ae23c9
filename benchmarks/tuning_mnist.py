"""What tuning costs: a grid, a private selection and one self-tuned run on MNIST, all at the same epsilon.

    SORDINO_DATA=... python benchmarks/tuning_mnist.py [--seeds 3] [--work DIR]

Each line of the table is a command, run once for each seed; runs that are there already are not made again. Writes
benchmarks/results/tuning_mnist.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import mean, stdev
from typing import Any

RESULTS = Path(__file__).parent / "results" / "tuning_mnist.md"
PAID = ["mnist", "--epsilon", "3", "--delta", "1e-5", "--model", "mlp:128"]
RATES = "1e-4,3e-4,1e-3,3e-3,1e-2,3e-2,1e-1"
TUNED = ["--method", "dp-adam", "--over", f"learning_rate={RATES}", "--score", "0.1"]
COMMANDS = {
    "one self-tuned run": ["train", *PAID],
    "grid of 7 rates, dp-adam": ["tune", *PAID, *TUNED],
    "private selection, 7 runs on average": ["tune", *PAID, *TUNED, "--runs", "7"],
}


def made(name: str, seed: int, work: Path) -> dict[str, Any]:
    """run.json of a command, which is run unless it was."""
    folder = work / f"{name.split(',')[0].replace(' ', '-')}-{seed}"
    if not (folder / "done.json").exists():
        command = [
            sys.executable,
            "-m",
            "sordino",
            *COMMANDS[name],
            "--seed",
            str(seed),
            "--out",
            str(folder),
        ]
        if (folder / "checkpoint").exists():
            command.append("--resume")
        started = time.monotonic()
        subprocess.run([*command, "--json"], check=True, stdout=subprocess.DEVNULL)
        seconds = time.monotonic() - started
        (folder / "done.json").write_text(json.dumps({"seconds": seconds}))
    found: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return {**found, "took": json.loads((folder / "done.json").read_text())["seconds"]}


def line(name: str, runs: list[dict[str, Any]]) -> str:
    accuracies = [100 * run["metrics"]["test_accuracy"] for run in runs]
    spread = f" ± {stdev(accuracies):.2f}" if len(accuracies) > 1 else ""
    each = ", ".join(f"{accuracy:.2f}" for accuracy in accuracies)
    winners = [run["tuning"]["winner"]["learning_rate"] if "tuning" in run else "" for run in runs]
    noise = f"{runs[0]['noise_multiplier']:.3f}"
    took = " / ".join(f"{run['took']:.0f}" for run in runs)
    won = ", ".join(f"{winner:g}" if winner else "" for winner in winners).strip(", ")
    return f"| {name} | {mean(accuracies):.2f}{spread} | {each} | {noise} | {won} | {took} |"


def table_of_a_grid(run: dict[str, Any]) -> str:
    head = "| learning rate | private score |\n|---:|---:|\n"
    return head + "".join(
        f"| {each['learning_rate']:g} | {100 * each['score']:.2f} |\n" for each in run["tuning"]["table"]
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--work", type=Path, default=Path("runs/tuning_mnist"))
    asked = parser.parse_args()
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in COMMANDS}
    for seed in range(asked.seeds):
        for name in COMMANDS:
            found[name].append(made(name, seed, asked.work))
            print(line(name, found[name]), flush=True)
    commands = "\n".join(f"    sordino {' '.join(command)} --seed S" for command in COMMANDS.values())
    rows = "\n".join(line(name, runs) for name, runs in found.items())
    grid = found["grid of 7 rates, dp-adam"][0]
    RESULTS.write_text(
        "# Tuning that pays, on MNIST at epsilon 3\n\n"
        f"`python benchmarks/tuning_mnist.py --seeds {asked.seeds}`, which runs\n\n{commands}\n\n"
        f"Test accuracy in per cent, mean and standard deviation over {asked.seeds} seeds, then each; the noise "
        "multiplier of every run; which rates won; seconds.\n\n"
        "| | test accuracy | each seed | noise | winning rates | seconds |\n|---|---:|---|---:|---|---|\n"
        f"{rows}\n\n"
        f"The candidates of the grid, seed 0 (accuracy on 6,000 rows that were not trained on, noisy):\n\n"
        f"{table_of_a_grid(grid)}"
    )


if __name__ == "__main__":
    main()
