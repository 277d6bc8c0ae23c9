"""No unit moves a released sum by more than its sensitivity, as computed: the search, and that it has teeth."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import sordino.gate as gate_module
from search_for_violations import KINDS, POLICIES, search
from sordino.gradients import Engine, bounds, factors
from sordino.gradients.bounds import MOST_UNITS, ROUND_OFF, rounding_of_sums, row_norms
from sordino.gradients.factors import Outer, Product, Rows

ALLOWED = 1 + 1e-5
QUICK = [name for name in KINDS if name != "long linear"]


@pytest.fixture(autouse=True)
def _as_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "debug", False)


# The search ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KINDS)
def test_no_row_moves_a_sum_by_more_than_the_threshold(name: str) -> None:
    found = search([name], ["fixed"])
    assert 0.98 < found.ratio <= ALLOWED, found.where


@pytest.mark.parametrize("policy", [name for name in POLICIES if name != "fixed"])
def test_no_row_moves_a_sum_or_a_probe_by_more_than_its_sensitivity(policy: str) -> None:
    kinds = [
        "linear",
        "sequence by gram",
        "convolution by gram",
        "embedding",
        "tied embedding and head",
        "deep",
    ]
    found = search(kinds, [policy])
    assert 0.98 < found.ratio <= ALLOWED, found.where


@pytest.mark.parametrize(
    ("name", "user"),
    [
        ("linear", 7),
        ("sequence by gram", 2),
        ("embedding", 7),
        ("tied embedding and head", 2),
        ("tied embedding and head", 7),
        ("used twice", 2),
    ],
)
def test_no_user_moves_a_sum_by_more_than_the_threshold(name: str, user: int) -> None:
    found = search([name], ["fixed", "normalised"], user=user)
    assert 0.98 < found.ratio <= ALLOWED, found.where


@pytest.mark.parametrize("threshold", [1e-12, 1e-3, 1e6])
def test_thresholds_of_any_size(threshold: float) -> None:
    found = search(["linear", "wide linear", "sequence by gram", "embedding"], ["fixed"], (threshold,))
    assert found.ratio <= ALLOWED, found.where


def test_micro_batches_do_not_matter() -> None:
    found = search(["linear", "sequence by gram", "embedding"], ["fixed"], microbatch=7)
    assert 0.98 < found.ratio <= ALLOWED, found.where


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("user", [1, 2, 7])
def test_the_whole_search(seed: int, user: int) -> None:
    found = search(list(KINDS), list(POLICIES), (1e-3, 1.0, 100.0), seed + 100, user)
    assert found.ratio <= ALLOWED, found.where


# It has teeth: each of the faults that were mended is found when its mend is taken out --------------------------


def _unjoined_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding 2: an embedding row that gets +G and -G from one unit, summed without regard to the unit."""

    def add(self: Rows, weights_B: Tensor, out: Tensor, fresh: bool = False) -> None:
        if fresh:
            out.zero_()
        scaled = self.grads_BTd * weights_B[:, None, None]
        out.view(self.rows, -1).index_add_(0, self.tokens_BT.flatten(), scaled.flatten(0, 1))

    monkeypatch.setattr(Rows, "add_weighted_sum", add)


def _no_taking_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finding 2: a tied embedding and head that cancel, and positions that do."""
    monkeypatch.setattr(factors, "_CANCELLATION", 0.0)
    monkeypatch.setattr(factors, "_TWO_FORMS", 0.0)


def _single_precision_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Findings 3 and 4: norms that vanish, and norms of long vectors."""

    def norms(x_BN: Tensor) -> Tensor:
        output: Tensor = torch.linalg.vector_norm(x_BN, dim=1).double()
        return output

    monkeypatch.setattr(factors, "row_norms", norms)
    monkeypatch.setattr(factors, "row_squares", lambda x: norms(x).square())
    monkeypatch.setattr(gate_module, "ROOM", 0.0)


def _single_precision_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounds, "MOST_UNITS", 10**9)
    monkeypatch.setattr(gate_module, "ROOM", 0.0)


FAULTS: dict[str, tuple[Callable[[Any], None], list[str], dict[str, Any]]] = {
    "embedding rows that cancel inside a row": (_unjoined_rows, ["embedding"], {}),
    "embedding rows that cancel inside a user": (_unjoined_rows, ["embedding"], {"user": 2}),
    "a tied embedding and head that cancel": (_no_taking_out, ["tied embedding and head"], {}),
    "positions that cancel": (_no_taking_out, ["sequence by gram"], {}),
    "norms that vanish": (_single_precision_norms, ["wide linear"], {}),
    "norms of long vectors": (_single_precision_norms, ["long linear"], {}),
    "sums of many rows in single precision": (_single_precision_sums, ["many rows"], {}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_search_finds_what_was_mended(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, kinds, options = FAULTS[fault]
    plant(monkeypatch)
    thresholds = (1e-3, 1.0) if "vanish" in fault else (1.0,)
    assert search(kinds, ["fixed"], thresholds, **options).ratio > ALLOWED


# What the room for rounding is made of --------------------------------------------------------------------------


def test_the_room_covers_the_largest_rounding_of_a_block() -> None:
    """Identical rows, which add up to the longest sums, in every order of magnitude of their length."""
    largest = 0.0
    for seed in range(40):
        torch.manual_seed(seed)
        rows = torch.randn(1, 64).expand(MOST_UNITS, 64) / 8
        weights = torch.full((MOST_UNITS,), 1 / float(rows[0].double().norm()))
        sums = [torch.empty(64), torch.empty(64)]
        factors.Dense(rows.contiguous()).add_weighted_sum(weights, sums[0], fresh=True)
        weights[seed] = 0.0
        factors.Dense(rows.contiguous()).add_weighted_sum(weights, sums[1], fresh=True)
        largest = max(largest, float((sums[0].double() - sums[1].double()).norm()) - 1)
    assert 0 < largest < rounding_of_sums(MOST_UNITS)
    assert rounding_of_sums(MOST_UNITS) == pytest.approx(MOST_UNITS**2 * ROUND_OFF, rel=0.05)


@pytest.mark.parametrize("size", [1, 3, 1023, 1024, 1025, 2048, 2049, 5000, 300_000])
@pytest.mark.parametrize("value", [1.0, 0.7, 1.1, 1e-3, 2.6e-23, 1e-30, 1e15])
def test_norms_are_never_too_small(size: int, value: float) -> None:
    x = torch.full((2, size), value)
    x[1, 1:] *= torch.rand(size - 1)
    exact = x.double().norm(dim=1)
    assert torch.all(row_norms(x) >= exact * (1 - 1e-5))
    assert torch.all(row_norms(x) <= exact * (1 + 1e-5))
    assert torch.equal(row_norms(torch.zeros(2, size)), torch.zeros(2, dtype=torch.float64))


def test_norms_of_slices_and_of_what_is_not_finite() -> None:
    x = torch.randn(4, 6000)
    assert torch.allclose(row_norms(x[:, 7:5007]), x[:, 7:5007].double().norm(dim=1), rtol=1e-5)
    assert torch.allclose(row_norms(x.t().contiguous().t()), x.double().norm(dim=1), rtol=1e-5)
    x[1, 3], x[2, 3], x[3, 3] = math.nan, math.inf, 1e30
    assert row_norms(x).isfinite().tolist() == [True, False, False, False]


def test_examples_that_cancel_are_summed_as_they_are() -> None:
    a = torch.randn(3, 1, 40).expand(3, 2, 40).contiguous()
    g = torch.randn(3, 1, 40)
    outer = Outer(a, torch.cat([g, -g * torch.tensor([1.0, 1.0 - 1e-4, 0.5])[:, None, None]], 1))
    norms = outer.squared_norms().sqrt()
    exact = torch.einsum("btp,btd->bpd", outer.grads_BTp.double(), outer.inputs_BTd.double()).flatten(1)
    assert torch.allclose(norms, exact.norm(dim=1), rtol=1e-5)
    out = torch.full((1600,), 7.0)
    outer.add_weighted_sum(torch.tensor([1e6, 1e6, 1.0]), out, fresh=True)
    assert torch.allclose(out.double(), 1e6 * exact[:2].sum(0) + exact[2], rtol=1e-5, atol=1e-5)


def test_a_product_of_a_vanishing_and_a_huge_vector_has_its_norm() -> None:
    product = Product(torch.full((1, 784), 2.6e-23), torch.full((1, 1), 1.8e19))
    assert float(product.squared_norms().sqrt()) == pytest.approx(2.6e-23 * 28 * 1.8e19, rel=1e-5)
