"""Settings as plain data: what may be read by anyone, and nothing of whose rows are whose."""

from __future__ import annotations

import json

import numpy as np
import torch

from sordino import Fixed, Natural, OwnLoop
from sordino.described import described


def test_arrays_are_said_by_their_length_alone() -> None:
    """The users of rows, the rows of clients: run.json is for everybody."""
    assert described(Natural(np.array([3, 1, 4, 1]))) == {"kind": "Natural", "users": "4 values"}
    assert described(torch.arange(3)) == "3 values"
    assert described([np.arange(2), np.arange(5)]) == "2 values"


def test_what_is_described_is_json() -> None:
    def loop() -> None: ...

    parts = {"clip": Fixed(1.0), "loop": OwnLoop(loop), "numbers": (1, 2.5, float("nan"))}  # type: ignore[arg-type]
    assert json.loads(json.dumps(described(parts))) == {
        "clip": {"kind": "Fixed", "threshold": 1.0},
        "loop": {"kind": "OwnLoop", "function": "test_what_is_described_is_json.<locals>.loop"},
        "numbers": [1, 2.5, None],
    }
