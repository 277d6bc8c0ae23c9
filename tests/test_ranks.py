"""Processes that work together, and everything that refuses to."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ranks_program import trained
from sordino.ranks import Ranks, _packed, _reason, _unpacked, gathered, processes, refuse_several
from sordino.vector import ParameterVector

PROGRAM = Path(__file__).with_name("ranks_program.py")


def by_rank(what: str, out: Path, count: int = 2, **environment: str) -> list[Any]:
    """What came of it in each of so many processes, which torchrun starts."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    ended = subprocess.run(
        [*command, str(PROGRAM), what, str(out)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(count)]


def test_a_message_arrives_as_it_was_sent() -> None:
    tensors = [
        torch.linspace(-1, 1, 5),
        torch.tensor(1 / 3).double(),
        torch.tensor([True]),
        torch.zeros(2, 0),
    ]
    said = {"threshold": 0.1 + 0.2, "no bound": float("inf"), "text": "ä", "nothing": None}
    message, arrived = _unpacked(_packed(said, tensors))
    assert message == said
    assert [each.dtype for each in arrived] == [each.dtype for each in tensors]
    assert all(torch.equal(a, b) for a, b in zip(arrived, tensors, strict=True))


def test_shares_are_added_in_their_order_in_doubles() -> None:
    parts = [0.0, 1.0, 2.0**-53, 2.0**-53]  # which come to more if the small ones are added first
    total = Ranks().sum_in_order(4, 1, lambda share: torch.tensor([parts[share]]).double())
    assert total.dtype == torch.float64
    assert float(total) == 1.0 < 1.0 + 2.0**-52


def test_one_process_is_alone() -> None:
    with gathered() as ranks:
        assert (ranks.rank, ranks.count) == (0, 1)
        ranks.say({})
        ranks.end({})
    refuse_several("nothing")


@pytest.mark.parametrize("size", ["", "one", "-2", "1"])
def test_a_size_of_the_world_that_is_no_number_of_processes_is_not_ours(
    size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", size)
    assert processes() == 1


def test_processes_that_do_not_know_of_each_other_do_not_train(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would release a model of its own."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="init_process_group"):
        trained("dp-sgd")


def test_errors_that_are_not_ours_are_not_quoted() -> None:
    """A message of somebody else's code may hold a row."""
    with pytest.raises(KeyError) as caught:
        dict[str, int]()["a private value"]
    assert re.fullmatch(r"it ended with KeyError \(test_ranks.py, line \d+\)", _reason(caught.value))
    assert _reason(ValueError("what to do")) == "what to do"


def check_refused(found: dict[str, Any]) -> None:
    assert found.pop("charges") == 0
    assert len(found) == 9
    for entry, said in found.items():
        assert "is for one process, and 2 were started together" in said, entry


def test_whatever_else_releases_something_is_for_one_process(tmp_path: Path) -> None:
    for found in by_rank("other entries", tmp_path):
        check_refused(found)


def test_also_where_nobody_initialised_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ranks_program import other_entries

    monkeypatch.setenv("WORLD_SIZE", "2")
    check_refused(other_entries(0, tmp_path))


def test_the_others_hold_nothing_to_release_with(monkeypatch: pytest.MonkeyPatch) -> None:
    """No key, no noise and no ledger: a process that works for rank 0 has an engine and rows."""
    from sordino.gate import Members, Shares

    names = set(vars(Shares(*[None] * 4)))  # type: ignore[arg-type]
    assert names == {"engine", "count", "examples", "members", "clip", "_ranks"}
    assert not {"streams", "ledger", "_draw"} & (names | set(vars(Members(3))) | set(vars(ParameterVector)))
