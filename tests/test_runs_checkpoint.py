"""A checkpoint is what it was, and for the owner only."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from sordino.runs import Checkpoint, restore_
from test_runs_closing import RUNS, federated

Toy = tuple[Tensor, Tensor]


@pytest.fixture
def no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.usefixtures("no_umask")
def test_everything_in_a_checkpoint_is_for_the_owner_only_whatever_the_umask(
    run: Any, toy: Toy, tmp_path: Path
) -> None:
    more = {"algorithm": "scaffold", "store": "file"} if run is federated else {}
    run(toy, tmp_path / "run", keep_checkpoint=True, **more)
    folder = tmp_path / "run/checkpoint"
    modes = {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in folder.iterdir()}
    assert {"state.safetensors", "constants.safetensors", "releases.txt"} <= set(modes)
    assert ("clients.f32" in modes) is (run is federated)
    assert set(modes.values()) == {"0o600"}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_what_is_saved_comes_back_to_the_last_bit(tmp_path: Path) -> None:
    state = {
        "step": 7,
        "rates": [0.1, 2.0],
        "parts": {"q": torch.tensor([0.1, -2.0]), "deeper": {"none": None}},
    }
    Checkpoint(state).save(tmp_path / "checkpoint")
    found = Checkpoint.load(tmp_path / "checkpoint")
    assert found is not None
    assert torch.equal(found.state["parts"].pop("q"), state["parts"].pop("q"))  # type: ignore[attr-defined]
    assert found.state == state
    assert Checkpoint.load(tmp_path) is None


def test_tensors_are_restored_where_they_are() -> None:
    """A model holds views of them."""
    velocity = torch.zeros(2)
    state: dict[str, Any] = {"velocity": velocity, "steps": 0}
    restore_(state, {"velocity": torch.tensor([1.0, 2.0]), "steps": 3, "more": torch.ones(1)})
    assert state["velocity"] is velocity
    assert velocity.tolist() == [1.0, 2.0]
    assert (state["steps"], float(state["more"])) == (3, 1.0)


def test_half_a_checkpoint_is_said_to_be_one(tmp_path: Path) -> None:
    Checkpoint({"theta": torch.ones(100)}).save(tmp_path)
    file = tmp_path / "state.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(ValueError, match=r"cannot be read .*: start the run afresh"):
        Checkpoint.load(tmp_path)
