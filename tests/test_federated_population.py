"""Who has which rows, and that only those who take part cost something."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sordino.federated import Population
from sordino.federated.population import LocalPlan, Work, local_batches
from test_federate import DIGITS, start


def test_a_client_without_rows_sends_nothing() -> None:
    parts = [np.arange(i, 1437, 12) for i in range(12)]
    parts[5] = np.zeros(0, dtype=np.int64)
    run = start(partition=parts, clients=12, per_round=12, rounds=2, algorithm="fedavg")
    for line in run.history:
        assert line["participants"] == 11
        assert list(line["left_out"]) == ["5"]
        assert "no rows" in line["left_out"]["5"]
    with pytest.raises(ValueError, match="no client has a row"):
        start(partition=[[], []], clients=2, per_round=2)


def test_a_row_twice_in_one_client_counts_twice_there_and_is_still_one_client() -> None:
    parts = [np.arange(i, 1437, 12) for i in range(12)]
    parts[5] = np.repeat(parts[5][:10], 2)
    run = start(partition=parts, clients=12, per_round=12, rounds=1, algorithm="fedavg")
    assert run.history[0]["participants"] == 12
    # Needs setup.py's part, where such a row passes for one of two clients: what a client sends is clipped as a whole.
    private: dict[str, Any] = {"noise_multiplier": 1.0, "delta": 1e-2}
    assert start(partition=parts, clients=12, per_round=12, rounds=1, **private).summary["n"] == 12
    parts[6] = np.append(parts[6], parts[5][0])
    with pytest.raises(ValueError, match="a row belongs to two clients"):
        start(partition=parts, clients=12, per_round=12, rounds=1, **private)


def test_only_those_who_take_part_cost_something() -> None:
    asked: set[int] = set()

    def rows(client: int) -> np.ndarray:
        asked.add(client)
        return np.arange(8) + 8 * (client % 150)

    million = Population(DIGITS.train, 10**6, rows, 8.0)
    run = start(data=million, clients=None, per_round=30, rounds=4, algorithm="adabest")
    assert run.summary["n"] == 10**6
    assert len(asked) <= 4 * 30
    assert run.summary["clients_with_state"] == len(asked)


def test_the_batches_of_a_local_round_hold_every_row_once_an_epoch() -> None:
    """The last batch is topped up, or short: then its rows weigh what they would in a batch of that size."""
    rows = np.arange(100, 107)
    for top_up in (True, False):
        indices, weights = local_batches(LocalPlan(epochs=2, batch_size=3, top_up=top_up), rows, seed=5)
        assert indices.shape == weights.shape == (2 * 3, 3)
        for epoch in (0, 3):
            counted = indices[epoch : epoch + 3][weights[epoch : epoch + 3] > 0]
            assert set(counted.tolist()) == set(rows.tolist())
            assert len(counted) == (9 if top_up else 7)
        assert weights.sum(1).tolist() == pytest.approx([1.0] * 6)
        assert weights[2].tolist() == pytest.approx([1 / 3] * 3 if top_up else [1.0, 0.0, 0.0])
    few, _ = local_batches(LocalPlan(epochs=1, batch_size=2, max_examples=4), rows, seed=5)
    assert len(set(few.flatten().tolist())) == 4
    with pytest.raises(ValueError, match="no rows to train on"):
        local_batches(LocalPlan(), rows[:0], seed=5)


def test_clients_of_different_sizes_work_as_long_as_the_longest_of_them() -> None:
    parts = [np.arange(2), np.arange(2, 9)]
    work = Work.of(LocalPlan(epochs=1, batch_size=3, top_up=False), parts, seeds=[1, 2])
    assert work.batches.flatten().tolist() == [1, 3]
    assert work.weights.sum((1, 2)).tolist() == pytest.approx([1.0, 3.0])  # idle steps count nothing
    assert set(work.indices[0].flatten().tolist()) == {0, 1}  # and hold rows of its own
