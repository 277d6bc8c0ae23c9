"""Metrics that are paid for: a held-out row moves one count by one, and nothing else of it leaves."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sordino as sd
from conftest import cross_entropy
from sordino.data.inputs import Target
from sordino.data.npz import Arrays
from sordino.data.table import Table
from sordino.runs import noisy_metrics as module
from sordino.runs.noisy_metrics import GRID, NoisyMetrics
from sordino.tasks import classification, regression


def counted(monkeypatch: pytest.MonkeyPatch, made: NoisyMetrics) -> tuple[list[int], int, float]:
    seen: list[Any] = []

    def noiseless(counts: list[int], sensitivity: int, epsilon: float) -> list[int]:
        seen.append((counts, sensitivity, epsilon))
        return counts

    monkeypatch.setattr(module, "noisy_counts", noiseless)
    made.release()
    return seen[0]  # type: ignore[no-any-return]


def of_classes(labels: list[int], classes: int = 3) -> NoisyMetrics:
    scores = torch.eye(classes)[torch.arange(len(labels)) % classes]
    test = (scores, torch.tensor(labels))
    return NoisyMetrics(nn.Identity(), classification(), test, 0.5, "example", None)


def test_a_row_is_in_one_cell_and_a_label_that_is_none_in_no_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    counts, sensitivity, epsilon = counted(monkeypatch, of_classes([0, 1, 2, 0, 0, 7, -1]))
    assert (sensitivity, epsilon) == (1, 0.5)
    assert counts == [2, 1, 0, 0, 1, 0, 0, 0, 1]
    other, _, _ = counted(monkeypatch, of_classes([0, 1, 2, 0, 9, 7, -1]))
    assert sum(abs(one - two) for one, two in zip(counts, other, strict=True)) == 1


def test_beyond_twenty_classes_only_those_that_are_right_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    counts, sensitivity, _ = counted(monkeypatch, of_classes([*range(20), 3, 3], classes=22))
    assert (counts, sensitivity) == ([20], 1)


def test_errors_are_clipped_to_the_public_range_and_priced_for_all_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = Target("age", low=0.0, high=100.0)
    outputs = torch.tensor([[0.0], [9.0], [-1.0], [float("nan")]])
    truth = torch.tensor([0.5, -1.0, 1.0, 0.0])
    made = NoisyMetrics(nn.Identity(), regression(), (outputs, truth), 0.5, "example", target)
    counts, sensitivity, _ = counted(monkeypatch, made)
    assert sensitivity == GRID
    assert counts == [GRID // 4 + GRID + GRID + GRID]  # what cannot be computed is as wrong as can be
    released = made.release()  # without noise, as it was replaced
    assert released["test_mean_absolute_error"] == pytest.approx(3.25 * 100 / 4)
    # Laplace noise of scale 100 / epsilon on the sum of four errors.
    assert released["test_mean_absolute_error_noise"] == pytest.approx(2**0.5 * 100 / 0.5 / 4, rel=1e-4)


def test_a_target_that_cannot_be_read_is_as_wrong_as_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    target = Target("age", low=0.0, high=100.0)
    schema = sd.Schema(sd.TargetColumn("age", low=0, high=100), (sd.Column("x", "number", low=-1, high=1),))
    rows = Table(schema).examples({"x": [0, 0, 0, 0], "age": [50, 50, "?", None]})
    made = NoisyMetrics(nn.Linear(2, 1), regression(), rows, 0.5, "example", target)
    nn.init.zeros_(made._model.weight)  # type: ignore[arg-type]
    nn.init.zeros_(made._model.bias)  # type: ignore[arg-type]
    assert counted(monkeypatch, made)[0] == [2 * GRID]


@pytest.mark.parametrize("width", [30, 31, 109, 301])
def test_a_row_that_cannot_be_read_moves_no_other_row_at_a_tie(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Last digits depend on where in a batch a row stands, and at a tie they decide."""
    torch.manual_seed(0)
    model = nn.Linear(width, 2)
    with torch.no_grad():
        rows = torch.randn(500, width)
        across = model.weight[0] - model.weight[1]
        apart = model.bias[0] - model.bias[1]
        rows -= ((rows @ across + apart) / (across @ across))[:, None] * across
    found = []
    for first in ("0", "?"):
        labels = np.array([first, *["0", "1"] * 249, "1"], dtype=object)
        examples = Arrays(Target("y", ("0", "1")), (width,)).examples((rows.numpy(), labels))
        made = NoisyMetrics(model, classification(), examples, 1.0, "example", None)
        found.append(counted(monkeypatch, made)[0])
    assert sum(abs(one - other) for one, other in zip(*found, strict=True)) == 1


class _Fails(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        if bool((inputs > 99).any()):
            raise RuntimeError(str(inputs))
        return inputs


def test_a_row_that_the_model_cannot_compute_counts_nowhere_and_says_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scores = torch.eye(3).repeat(4, 1)
    scores[5, 0] = 1000.0
    test = scores, torch.arange(12) % 3
    counts, _, _ = counted(monkeypatch, NoisyMetrics(_Fails(), classification(), test, 0.5, "example", None))
    assert sum(counts) == 11


def test_users_and_what_has_no_classes_or_bounds_are_refused_before_anything_is_spent() -> None:
    rows = torch.randn(6, 3), torch.zeros(6, dtype=torch.int64)
    with pytest.raises(ValueError, match="no price for users"):
        NoisyMetrics(nn.Identity(), classification(), rows, 0.5, "user", None)
    with pytest.raises(ValueError, match="this is neither"):
        NoisyMetrics(nn.Linear(3, 1), regression(), (rows[0], torch.zeros(6)), 0.5, "example", None)


def test_covered_metrics_are_said_to_be_and_are_looked_at_once_when_they_were_paid(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from sordino.ledger import LedgerFile

    inputs = torch.randn(100, 4, generator=torch.Generator().manual_seed(1))
    rows = inputs, (inputs[:, 0] > 0).long()
    book, looked = LedgerFile(tmp_path / "ledger.db"), list[Any]()
    release = NoisyMetrics.release

    def watched(self: NoisyMetrics) -> dict[str, Any]:
        paid = book.resume(book.runs()[0].run).spent
        looked.append([leaf.epsilon for leaf in paid.event.events if hasattr(leaf, "epsilon")])
        return release(self)

    monkeypatch.setattr(NoisyMetrics, "release", watched)
    given: dict[str, Any] = {
        "budget": (4, 1e-3),
        "epochs": 1,
        "accountant": "rdp",
        "progress": False,
        "test": rows,
    }
    given |= {"ledger": book, "data_name": "people", "method": "dp-sgd"}
    run = sd.train(nn.Linear(4, 2), cross_entropy, rows, metric_epsilon=1.0, **given)
    assert looked == [[1.0]]
    assert run.metrics["covered"] is True
    assert run.metrics["test_accuracy_noise"] == pytest.approx(2**0.5 * 1.357 / 100, rel=1e-3)
    assert not any("held-out" in each for each in run.certificate["unprotected"])
    assert not any("test_accuracy" in line for line in run.history)
    assert sd.verify(run.certificate, ledger=book.path).stands
    open_run = sd.train(nn.Linear(4, 2), cross_entropy, rows, **given | {"ledger": False})
    assert open_run.metrics["covered"] is False
    assert any("held-out" in each for each in open_run.certificate["unprotected"])


@pytest.mark.parametrize("label", ["yes", "?"])
def test_rows_that_were_chosen_by_what_is_in_them_have_no_public_number(label: str) -> None:
    from sordino.features import with_features
    from sordino.features.own import own

    age = sd.Column("age", "number", low=0, high=99)
    schema = sd.Schema(sd.TargetColumn("y", labels=("no", "yes")), (age,))
    rows = {"age": list(range(100)), "y": ["no", label] * 50}
    model, task = nn.Linear(2, 2), classification()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # how many have no target
        some = [sd.read(rows, schema=schema, **how) for how in ({"holdout": 0.2}, {"test": rows})]
    for loaded in [*some, with_features(some[0], own("torch:tanh"))]:
        part = torch.utils.data.Subset(loaded.test, range(3))
        for test in (loaded.test, part):
            with pytest.raises(
                ValueError, match="how many are left is not paid for: read them with whole_test=True"
            ):
                NoisyMetrics(model, task, test, 0.5, "example", None)
    whole = sd.read(rows, schema=schema, holdout=0.2, whole_test=True)
    assert "test_accuracy" in NoisyMetrics(model, task, whole.test, 0.5, "example", None).release()
