"""The walk of a batch and of a client update in docs/design.md, followed by a real run, hop after hop."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

import sordino
from conftest import cross_entropy

SOURCE = Path(sordino.__file__).parent
DESIGN = Path(__file__).parent.parent / "docs" / "design.md"
Hop = tuple[str, str]  # function, and its file


def walks() -> list[list[Hop]]:
    """The hops of each table of the section."""
    section = DESIGN.read_text().split("## The walk of one batch")[1].split("\n## ")[0]
    return [
        re.findall(r"^\| `(\S+)` \| `(\S+)` \|", table, re.MULTILINE)
        for table in section.split("|---|---|---|")[1:]
    ]


def calls_of(run: Callable[[], object]) -> list[Hop]:
    """Every call of a function of ours, in order."""
    found: list[Hop] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(SOURCE)):
            found.append((code.co_qualname, Path(code.co_filename).relative_to(SOURCE).as_posix()))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
    return found


def without_later_steps(calls: list[Hop]) -> list[Hop]:
    """All but the steps after the first, in which a hop that was missed could be found after all."""
    names = [name for name, _ in calls]
    steps = [place for place, name in enumerate(names) if name in ("Descent.step", "Rounds.step")]
    return calls[: steps[1]] + calls[names.index("closed_run") :]


def runs(out: Path) -> list[Callable[[], object]]:
    """A run for each table."""
    rows = torch.randn(60, 4, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 2
    common: dict[str, Any] = {"seed": 1, "test": rows, "out": out, "progress": False}
    priced: dict[str, Any] = {"budget": (8, 1e-3), "accountant": "rdp"}
    rounds: dict[str, Any] = {
        "rounds": 3,
        "clients": 6,
        "per_round": 3,
        "algorithm": "adabest",
        "engine": "stacked",
    }

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

    return [
        lambda: sordino.train(model(), cross_entropy, rows, epochs=1, batch_size=20, **common, **priced),
        lambda: sordino.federate(model(), cross_entropy, rows, **rounds, **common, **priced),
        lambda: sordino.federate(model(), cross_entropy, rows, **rounds, **common),
    ]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("which", range(3), ids=["batch", "client update", "without a promise"])
def test_a_run_takes_the_hops_that_are_described(which: int, tmp_path: Path) -> None:
    calls = iter(without_later_steps(calls_of(runs(tmp_path / "run")[which])))
    last = "the beginning"
    for hop in walks()[which]:
        assert hop in calls, f"{hop[0]} in {hop[1]} does not come after {last}"  # takes calls up to it
        last = hop[0]


def test_there_are_hops_to_take() -> None:
    assert [len(walk) > 5 for walk in walks()] == [True] * 3
