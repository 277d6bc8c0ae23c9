"""Whose each row is: ids of any kind become numbers, and what is no id is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import sordino as sd
from conftest import cross_entropy
from sordino.data import units_of
from sordino.data.partitions import Natural

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    "groups",
    [
        [7, 3, 7],
        (7, 3, 7),
        torch.tensor([7, 3, 7]),
        torch.tensor([7, 3, 7], dtype=torch.uint8),
        torch.tensor([7.0, 3.0, 7.0]),
        torch.tensor([7.0, 3.0, 7.0], dtype=torch.bfloat16),
        np.array([7, 3, 7], dtype=np.uint64),
        np.array([7.5, -3.5, 7.5]),
        ["bob", "ann", "bob"],
        np.array(["bob", "ann", "bob"]),
        np.array(["bob", "ann", "bob"], dtype=object),
        np.array([b"bob", b"ann", b"bob"]),
        [True, False, True],
        [2**80, -(2**80), 2**80],
        [torch.tensor(7), torch.tensor(3), torch.tensor(7)],
        [7, 3, 7.0],
    ],
)
def test_ids_become_numbers_in_their_order(groups: Any) -> None:
    assert units_of(groups, 3).tolist() == [1, 0, 1]
    assert units_of(groups, 3).dtype == torch.int64


@pytest.mark.parametrize(
    "groups", [torch.tensor([0.0, -0.0]), np.array([0.0, -0.0], dtype=np.float16), [0.0, -0.0]]
)
def test_zero_has_no_sign(groups: Any) -> None:
    assert units_of(groups, 2).tolist() == [0, 0]


MISSING = {
    "nan tensor": torch.tensor([1.0, NAN]),
    "nan array": np.array([1.0, NAN], dtype=np.float32),
    "nan list": [1.0, NAN],
    "nan among text": ["ann", NAN],
    "nan object": np.array([1, NAN], dtype=object),
    "none": [1, None],
    "none among text": np.array(["ann", None], dtype=object),
    "infinite tensor": torch.tensor([1.0, INF]),
    "infinite list": [1.0, -INF],
}


@pytest.mark.parametrize("groups", MISSING.values(), ids=MISSING)
def test_an_id_that_is_missing_is_refused(groups: Any) -> None:
    with pytest.raises(ValueError, match=r"missing or not finite.*give every row an id"):
        units_of(groups, 2)


@pytest.mark.parametrize(
    "groups", [[1, "ann"], [1 + 2j, 1], [object(), object()], np.array(["2020-01-01", "NaT"], dtype="M8[D]")]
)
def test_what_is_no_id_is_refused(groups: Any) -> None:
    with pytest.raises(ValueError, match="one kind"):
        units_of(groups, 2)


@pytest.mark.parametrize("groups", [[1], torch.zeros(3), torch.tensor(1), np.zeros((2, 1)), "ab"])
def test_there_is_one_id_for_each_row(groups: Any) -> None:
    with pytest.raises(ValueError, match="one id for each of the 2 rows"):
        units_of(groups, 2)


def gate_of(groups: Any) -> sd.Gate:
    data = torch.ones(4, 2), torch.zeros(4, dtype=torch.int64)
    return sd.Gate(
        nn.Linear(2, 2), cross_entropy, data, clip=sd.Fixed(1.0), noise_multiplier=1.0, sampling=sd.Poisson(0.5),
        groups=groups,
    )  # fmt: skip


def test_the_gate_refuses_rows_of_nobody() -> None:
    with pytest.raises(ValueError, match="missing or not finite"):
        gate_of(torch.full((4,), NAN))
    with pytest.raises(ValueError, match="missing or not finite"):
        gate_of(torch.tensor([0.0, 0.0, 1.0, NAN]))
    assert gate_of(torch.tensor([0.0, -0.0, 1.0, 2.0])).units == 3
    assert gate_of(["ann", "bob", "ann", "bob"]).units == 2


def test_a_federation_refuses_clients_that_are_nobody() -> None:
    with pytest.raises(ValueError, match="missing or not finite"):
        Natural(np.array([0.0, NAN, NAN]))
    with pytest.raises(ValueError, match="missing or not finite"):
        Natural(np.array(["ann", None, "bob"], dtype=object))


# Needs training.py to number its units by ``units_of`` and not by itself.
@pytest.mark.parametrize("groups", MISSING.values(), ids=MISSING)
def test_training_refuses_rows_of_nobody(groups: Any) -> None:
    with pytest.raises(ValueError, match="missing or not finite"):
        sd.train(
            nn.Linear(2, 2), cross_entropy, (torch.ones(2, 2), torch.zeros(2, dtype=torch.int64)), epochs=1,
            batch_size=1, method="dp-sgd", noise_multiplier=1.0, delta=0.1, groups=groups, seed=1, progress=False,
        )  # fmt: skip
