"""A ledger of ten thousand runs: how long until it says what was spent, admits one more run, or is verified?

Runs are written by the code that counts them, in one transaction per ledger: a mixture of plans (thirty of them, by
examples and by users), each reserved, paid in twenty parts and closed; one in a hundred was interrupted and is still
open. Every question is asked by a process that has just opened the file. Then: what counting adds to a run of
`sordino train digits --epsilon 3 --delta 1e-5`, in processes of their own that take turns.

    python benchmarks/ledger.py [--runs 1 100 1000 10000] [--rounds 3] [--write]
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sordino.ledger import LedgerFile
from sordino.ledger.account import now
from sordino.ledger.file import New
from sordino.ledger.pricing import ORDERS_DIGEST, curve_of
from sordino.privacy import Ledger, event_to_json, poisson_gaussian, repeat
from sordino.privacy.renyi import relation_of

RESULTS = Path(__file__).parent / "results" / "ledger.md"
PAYMENTS = 20
TRAIN = ["-m", "sordino.cli.main", "train", "digits", "--epsilon", "3", "--delta", "1e-5"]


def plans() -> list[tuple[str, Any, int]]:
    """Unit, one step, and how many of them."""
    return [
        ("user" if number % 5 == 0 else "example", poisson_gaussian(8.0 + number, 0.01), 200 + 40 * number)
        for number in range(30)
    ]


def entries_of(number: int, curves: dict[tuple[int, int], bytes]) -> list[New]:
    """What a run writes, from its reservation to its end."""
    which = number % 30
    unit, step, steps = plans()[which]
    run, each, is_open = f"{number:016x}", steps // PAYMENTS, number % 100 == 99
    paid = steps // 2 if is_open else steps

    def priced(count: int) -> bytes:
        if (which, count) not in curves:
            curves[which, count] = curve_of(repeat(step, count))
        return curves[which, count]

    plan = repeat(step, steps)
    body: dict[str, Any] = {
        "kind": "run",
        "unit": unit,
        "relation": relation_of(plan),
        "event": event_to_json(plan),
    }
    body |= {"delta": 1e-6, "label": "dp-adam", "caveat": "", "orders": ORDERS_DIGEST, "created": now()}
    found: list[New] = [("reserve", "patients", run, body, priced(steps))]
    for first in range(0, paid, each):
        payment = Ledger()
        for index in range(first, min(first + each, paid)):
            payment.charge(f"step:{index}", step)
        found.append(("spend", "patients", run, payment.to_state(), None))
    if not is_open:
        end = {"event": body["event"], "charges": steps, "orders": ORDERS_DIGEST, "created": now()}
        found.append(("close", "patients", run, end, priced(steps)))
    return found


def filled(path: Path, runs: int) -> LedgerFile:
    book, curves = LedgerFile(path), dict[tuple[int, int], bytes]()
    book.cap("patients", epsilon=1000, delta=1e-5)
    with book._file.writing() as (_, append):
        for number in range(runs):
            append(entries_of(number, curves))
    return book


def seconds(ask: Callable[[], Any], rounds: int) -> str:
    """By the clock, and of the processor: other work on the machine is in the first alone."""
    by_clock, of_processor = [], []
    for _ in range(rounds):
        start, start_processor = time.perf_counter(), time.process_time()
        ask()
        by_clock.append(time.perf_counter() - start)
        of_processor.append(time.process_time() - start_processor)
    return f"{statistics.median(by_clock):.3f} s ({statistics.median(of_processor):.3f})"


def row(runs: int, rounds: int) -> str:
    with tempfile.TemporaryDirectory() as folder:
        book = filled(Path(folder) / "ledger.db", runs)
        length, size = book.verify().length, book.path.stat().st_size / 2**20
        plan = repeat(poisson_gaussian(30.0, 0.01), 400)
        account = book.reserve("patients", plan, delta=1e-6)  # whatever is loaded at first
        payments = iter(range(400))
        taken = [
            seconds(book.show, rounds),
            seconds(book.runs, rounds),
            seconds(lambda: book.reserve("patients", plan, delta=1e-6), rounds),
            seconds(lambda: account.spend(f"step:{next(payments)}", poisson_gaussian(30.0, 0.01)), rounds),
            seconds(book.verify, rounds),
        ]
    return f"| {runs:,} | {length:,} | {size:.1f} MiB | " + " | ".join(taken) + " |"


def trained(ledger: Path | None, out: Path) -> float:
    given = [] if ledger is None else ["--ledger", str(ledger)]
    environment = {name: value for name, value in os.environ.items() if name != "SORDINO_LEDGER"}
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, *TRAIN, "--out", str(out), *given], check=True, capture_output=True, env=environment
    )
    return time.perf_counter() - start


def counting(rounds: int) -> list[str]:
    without, with_one = [], []
    with tempfile.TemporaryDirectory() as folder:
        ledger = Path(folder) / "ledger.db"
        trained(ledger, Path(folder) / "warm")
        for number in range(rounds):
            without.append(trained(None, Path(folder) / f"without-{number}"))
            with_one.append(trained(ledger, Path(folder) / f"with-{number}"))
    return [
        "| `sordino train digits --epsilon 3 --delta 1e-5` | seconds (median) |",
        "|---|---|",
        f"| without a ledger | {statistics.median(without):.2f} |",
        f"| with one | {statistics.median(with_one):.2f} |",
    ]


def report(counts: Sequence[int], rounds: int) -> str:
    lines = [
        "# The ledger at size",
        "",
        f"`python benchmarks/ledger.py --rounds {rounds} --write`, {os.cpu_count()} cores, Python "
        f"{platform.python_version()}.",
        f"Medians of {rounds}, by the clock on a machine with other work, and of the processor (in brackets).",
        "Thirty different plans; each run pays in twenty parts, and one in a hundred is still open.",
        "",
        "| runs | entries | file | `show` | `runs` | a reservation under a cap | a payment | `verify` |",
        "|---|---|---|---|---|---|---|---|",
        *(row(count, rounds) for count in counts),
        "",
        *counting(rounds),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, nargs="+", default=[1, 100, 1000, 10_000])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help=f"into {RESULTS.name}")
    asked = parser.parse_args()
    text = report(asked.runs, asked.rounds)
    print(text)
    if asked.write:
        RESULTS.write_text(text)


if __name__ == "__main__":
    main()
