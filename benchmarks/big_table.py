"""A table larger than memory should be: five gigabytes of CSV, in how much memory, and how fast beside pandas?

The table is made up: 36 numbers with up to five digits after the point, three categories, a missing cell in a hundred,
and a class that follows from some of them. It is written once and read twice, each time by a process of its own whose
memory is watched: by `sordino train` (encoded row by row into a memory-mapped file that has no name, trained on
Poisson samples), and by pandas, which reads the same file into memory and does nothing with it.

    python benchmarks/big_table.py [--gigabytes 5] [--folder DIR] [--epochs 1] [--write]
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

RESULTS = Path(__file__).parent / "results" / "big_table.md"
NUMBERS, CATEGORIES = 36, ("red", "green", "blue", "black", "white")
ROWS_AT_A_TIME = 200_000
MISSING = 0.01


def made_up(rows: int, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(rows, NUMBERS)).round(5)
    hidden = rng.random((rows, NUMBERS)) < MISSING
    kinds = rng.integers(0, len(CATEGORIES), size=(rows, 3))
    score = values[:, :6].sum(1) + 0.5 * (kinds[:, 0] == 1) + rng.normal(size=rows)
    names = np.array(CATEGORIES)
    columns = {f"x{place}": pa.array(values[:, place], mask=hidden[:, place]) for place in range(NUMBERS)}
    columns |= {f"c{place}": pa.array(names[kinds[:, place]]) for place in range(3)}
    return pa.table({**columns, "y": pa.array(np.where(score > 0, "yes", "no"))})


def write_table(path: Path, gigabytes: float) -> int:
    """As many rows as that takes; how many."""
    rows = 0
    with path.open("wb") as file:
        while file.tell() < gigabytes * 1e9:
            options = pa.csv.WriteOptions(include_header=rows == 0, quoting_style="none")
            pa.csv.write_csv(made_up(ROWS_AT_A_TIME, rows), file, options)
            rows += ROWS_AT_A_TIME
    return rows


def write_schema(path: Path) -> None:
    numbers = [
        f'[[column]]\nname = "x{place}"\nkind = "number"\nlow = -4.0\nhigh = 4.0' for place in range(NUMBERS)
    ]
    values = ", ".join(f'"{name}"' for name in CATEGORIES)
    categories = [
        f'[[column]]\nname = "c{place}"\nkind = "category"\nvalues = [{values}]' for place in range(3)
    ]
    target = '[target]\nname = "y"\nlabels = ["no", "yes"]'
    path.write_text("\n\n".join([target, *numbers, *categories]) + "\n")


@dataclass
class Watched:
    """A process and the most memory it had: resident, and of that its own (the rest is the page cache's)."""

    seconds: float
    resident: float  # GB
    own: float
    said: str


def watched(command: list[str]) -> Watched:
    started, most = time.monotonic(), {"VmHWM": 0.0, "RssAnon": 0.0}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=sys.stderr, text=True) as process:
        done = threading.Event()

        def watch() -> None:
            while not done.wait(0.05):
                try:
                    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
                        name, _, rest = line.partition(":")
                        if name in most:
                            most[name] = max(most[name], int(rest.split()[0]) * 1024 / 1e9)
                except OSError:
                    return

        thread = threading.Thread(target=watch)
        thread.start()
        said = process.stdout.read() if process.stdout else ""
        code = process.wait()
        done.set()
        thread.join()
    if code:
        raise SystemExit(f"{command} ended with {code}")
    return Watched(time.monotonic() - started, most["VmHWM"], most["RssAnon"], said)


PANDAS = (
    "import sys, time, pandas; begun = time.monotonic(); table = pandas.read_csv(sys.argv[1]); "
    "print(len(table), time.monotonic() - begun)"
)
ENCODED = (
    "import sys, time; from sordino.data import load; begun = time.monotonic(); "
    "loaded = load(sys.argv[1], target='y', schema=sys.argv[2]); print(len(loaded.train), time.monotonic() - begun)"
)


def measured(folder: Path, gigabytes: float, epochs: float) -> list[str]:
    table, schema = folder / "big.csv", folder / "big.schema.toml"
    if not table.exists():
        write_table(table, gigabytes)
    write_schema(schema)
    size = table.stat().st_size / 1e9
    python = sys.executable
    encoded = watched([python, "-c", ENCODED, str(table), str(schema)])
    in_memory = watched([python, "-c", PANDAS, str(table)])
    command = [
        "train",
        str(table),
        "--target",
        "y",
        "--schema",
        str(schema),
        "--epsilon",
        "3",
        "--delta",
        "1e-9",
    ]
    out = ["--epochs", str(epochs), "--out", str(folder / "run"), "--holdout", "0.01"]
    trained = watched([python, "-m", "sordino", *command, *out])
    lines = [f"{size:.2f} GB of CSV, {NUMBERS} numbers and 3 categories.", ""]
    lines += ["| what | rows | seconds | rows a second | most resident, GB | of that its own, GB |"]
    lines += ["|---|---|---|---|---|---|"]
    for what, found in (("sordino encodes", encoded), ("pandas reads into memory", in_memory)):
        rows, seconds = (float(part) for part in found.said.split())
        lines.append(
            f"| {what} | {int(rows):,} | {seconds:.0f} | {rows / seconds:,.0f} | {found.resident:.2f} | "
            f"{found.own:.2f} |"
        )
    lines.append(
        f"| `sordino train`, {epochs:g} epoch, all of it | | {trained.seconds:.0f} | | {trained.resident:.2f} | "
        f"{trained.own:.2f} |"
    )
    return [*lines, "", "```", *trained.said.strip().splitlines(), "```"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=5.0)
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument("--folder", type=Path, help="where the table is kept; by default a temporary folder")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/big_table.md")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        lines = measured(folder, asked.gigabytes, asked.epochs)
    head = [
        "# A table larger than memory should be",
        "",
        f"`python benchmarks/big_table.py --gigabytes {asked.gigabytes:g} --epochs {asked.epochs:g} --write`, "
        f"{os.cpu_count()} cores, Python {platform.python_version()}.",
        "",
    ]
    text = "\n".join([*head, *lines]) + "\n"
    print(text)
    if asked.write:
        RESULTS.write_text(text.replace(str(asked.folder or ""), "DIR"))


if __name__ == "__main__":
    main()
