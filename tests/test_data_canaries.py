"""Rows put among private ones: each at its place, with its mark, and nothing else moved."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from sordino.data import as_examples
from sordino.data.canaries import WithCanaries, spread

REAL = torch.arange(6, dtype=torch.float32)[:, None].repeat(1, 2), torch.arange(6)


def test_canaries_lie_evenly_among_the_others() -> None:
    places = spread(100, 900)
    assert len(set(places.tolist())) == 100
    assert set(np.diff(places).tolist()) == {10}
    assert 0 <= places[0] < places[-1] < 1000
    assert sorted(spread(5, 0).tolist()) == [0, 1, 2, 3, 4]


def test_every_row_is_at_its_place() -> None:
    rows = -torch.ones(2, 2), torch.tensor([90, 91])
    mixed = WithCanaries(as_examples(REAL), np.array([1, 4]), rows)
    assert len(mixed) == 8
    inputs, targets = mixed.take(torch.arange(8))
    assert targets.tolist() == [0, 90, 1, 2, 91, 3, 4, 5]
    assert inputs[:, 0].tolist() == [0, -1, 1, 2, -1, 3, 4, 5]
    assert mixed.take(torch.tensor([4, 0]))[1].tolist() == [91, 0]
    assert mixed.take(torch.zeros(0, dtype=torch.int64))[0].shape == (0, 2)


def test_marks_say_whose_a_row_is_and_one_row_may_stand_for_all() -> None:
    one = torch.full((1, 2), 7.0), torch.tensor([3])
    mixed = WithCanaries(as_examples(REAL), np.array([6, 7, 8]), one, np.array([1, 1, 2]))
    (inputs, marks), (targets, again) = mixed.take(torch.tensor([8, 2, 6]))
    assert marks.tolist() == again.tolist() == [2, 0, 1]
    assert targets.tolist() == [3, 2, 3]
    assert inputs[:, 0].tolist() == [7, 2, 7]
    (made_up, numbers), _ = mixed.template(5)
    assert made_up.shape == (5, 2)
    assert numbers.dtype == torch.int64


class Torn(Dataset[Any]):
    """Row 2 cannot be read."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        if index == 2:
            raise OSError("torn")
        return torch.full((2,), float(index)), index


def test_rows_that_cannot_be_read_are_missing_and_no_others() -> None:
    one = torch.full((1, 2), 7.0), torch.tensor([30])
    mixed = WithCanaries(as_examples(Torn()), np.array([0, 3]), one, np.array([1, 2]))
    kept, (inputs, marks), (targets, _) = mixed.take_readable(torch.tensor([5, 4, 3, 0, 1]))
    assert kept.tolist() == [0, 2, 3, 4]  # place 4 has the torn row
    assert targets.tolist() == [3, 30, 30, 0]
    assert marks.tolist() == [0, 2, 1, 0]
    assert inputs[:, 0].tolist() == [3, 7, 7, 0]


def test_an_audit_is_of_the_same_data() -> None:
    """Or a ledger would take it for an edited file."""
    mixed = WithCanaries(as_examples(REAL), np.array([1]), (torch.ones(1, 2), torch.zeros(1).long()))
    assert mixed.fingerprint(b"key") == as_examples(REAL).fingerprint(b"key")
    with pytest.raises(IndexError):
        mixed.take(torch.tensor([7]))
