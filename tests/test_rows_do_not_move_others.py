"""How a unit is computed depends on no other: on no length, failure or missing label, nor on other processes.

Each test is the proof of concept of a fault that was found by reading as an attacker: a row that contributes nothing
itself moved the sum by the contributions of others.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence

from sordino import Fixed, Gate, LeastSquares, Poisson
from sordino.federated.engines.losses import OutputGradients
from sordino.gradients import Engine, SlowGradients, Unsuitable
from sordino.gradients.fallback import loop_gradients
from sordino.noise.gaussian import beside_one
from test_noise_grid import Scripted

ROUNDING = 1e-4  # of the threshold
pytestmark = pytest.mark.filterwarnings(
    "ignore::sordino.gradients.SlowGradients", "ignore:There is a performance drop"
)


@pytest.fixture(autouse=True)
def _as_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "debug", False)


def product(output: Tensor, target: Tensor) -> Tensor:
    return (output * target).flatten(1).sum(1)


def cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(output, target, reduction="none")


def total(
    make: Callable[[], nn.Module], loss: Any, data: Any, threshold: float = 1.0, step: int = 0, **options: Any
) -> Tensor:
    torch.manual_seed(5)
    gate = Gate(
        make(),
        loss,
        data,
        clip=Fixed(threshold),
        noise_multiplier=1.0,
        sampling=Poisson(1.0),
        seed=0,
        **options,
    )
    return gate._sums_at(None, 1, 0, step)[0][0].double()


class Trimmed(nn.Module):
    """Cuts a batch to its longest row, as is usual for text."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.inner = nn.Linear(size, size, bias=False)

    def forward(self, x: Tensor, t: Tensor, n: Tensor) -> Tensor:
        longest = int(n.max())
        mask = (torch.arange(longest) < n[:, None])[..., None]
        output: Tensor = (self.inner(x[:, :longest]) * t[:, :longest] * mask).flatten(1).sum(1)
        return output


def test_the_length_of_a_row_does_not_move_those_whose_positions_cancel() -> None:
    rows, longest, size = 20, 40, 120

    def data(length: int) -> Any:
        x, t, n = torch.zeros(rows, longest, size), torch.zeros(rows, longest, size), torch.full((rows,), 2)
        n[0], x[1:, :2, 0], t[1:, 0, 0], t[1:, 1, 0] = length, 1.0, 1000.0, -999.0
        return (x, t, n), torch.zeros(rows)

    short, long = (
        total(lambda: Trimmed(size), lambda output, _: output, data(length)) for length in (2, longest)
    )
    assert float(short.norm()) > 0.9 * (rows - 1)  # the others are clipped for what they are
    assert float((short - long).norm()) < ROUNDING


@pytest.mark.parametrize("at_once", [4, 1 << 22])
def test_how_many_rows_a_user_has_does_not_move_users_whose_rows_cancel(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sordino.gradients.factors._AT_A_TIME", at_once)
    size, users = 200, 40

    def data(own: int) -> tuple[Any, Tensor]:
        x, t = torch.zeros(own + 2 * users, size), torch.zeros(own + 2 * users, size)
        x[own:, 0], t[own::2, 0], t[own + 1 :: 2, 0] = 1.0, 1000.0, -999.0
        return (x, t), torch.cat([torch.zeros(own), 1 + torch.arange(users).repeat_interleave(2)])

    sums = []
    for own in (1, 130):
        rows, ids = data(own)
        sums.append(
            total(lambda: nn.Linear(size, size, bias=False), product, rows, groups=ids, microbatch=64)
        )
    assert float(sums[0].norm()) > 0.9 * users
    assert float((sums[0] - sums[1]).norm()) < ROUNDING


class RaisesOnTheWayBack(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        if not bool(ctx.saved_tensors[0].isfinite().all()):
            raise RuntimeError("not finite")
        return gradient


class Delicate(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.inner, self.dropout = nn.Linear(64, 64, bias=False), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        inner = RaisesOnTheWayBack.apply(self.inner(x))  # type: ignore[no-untyped-call]
        output: Tensor = self.dropout(inner)
        return output


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_row_that_fails_on_the_way_back_counts_as_zero_and_moves_nobody(dropout: float) -> None:
    x, t = torch.zeros(40, 2, 64), torch.zeros(40, 2, 64)
    x[1:, :, 0], t[1:, 0, 0], t[1:, 1, 0] = 1.0, 1000.0, -999.0
    bad = x.clone()
    bad[0] = float("nan")
    sums = [total(lambda: Delicate(dropout), product, (inputs, t)) for inputs in (x, bad)]
    assert float((sums[0] - sums[1]).norm()) < ROUNDING


class WorksInPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.inner(x.sub_(0.13).div_(0.31))
        return output


def test_a_model_that_works_in_place_gets_the_rows_as_they_are_however_often() -> None:
    x, labels = torch.rand(100, 6), torch.randint(0, 3, (100,))
    wrong, nobody = labels.clone(), labels.clone()
    wrong[0] = 7
    before = x.clone()
    sums = [total(WorksInPlace, cross_entropy, (x, which)) for which in (nobody, wrong)]
    assert float((sums[0] - sums[1]).norm()) <= 1.0
    assert torch.equal(x, before)


class Sorts(nn.Module):
    """By length, packs, and puts back."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm, self.head = (
            nn.Embedding(50, 8),
            nn.LSTM(8, 8, batch_first=True),
            nn.Linear(8, 3),
        )

    def forward(self, tokens: Tensor, n: Tensor) -> Tensor:
        n, order = n.sort(descending=True, stable=True)
        packed = pack_padded_sequence(self.embedding(tokens[order]), n, batch_first=True)
        output: Tensor = self.head(self.lstm(packed)[1][0][-1])[order.argsort()]
        return output


def test_a_model_that_sorts_by_lengths_of_which_none_may_be_0_is_seen_to() -> None:
    tokens, n, labels = torch.randint(0, 50, (40, 6)), torch.randint(1, 7, (40,)), torch.randint(0, 3, (40,))
    without = total(Sorts, cross_entropy, ((tokens[1:], n[1:]), labels[1:]), 0.1)
    for length in (1, 3, 6):
        other = n.clone()
        other[0] = length
        moved = total(Sorts, cross_entropy, ((tokens, other), labels), 0.1) - without
        assert float(moved.norm()) <= 0.1


class MixesNowAndThen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and float(torch.rand(())) < 0.3:
            x = 0.5 * x + 0.5 * x[torch.randperm(len(x))]
        output: Tensor = self.inner(x)
        return output


def test_a_model_that_mixes_rows_now_and_then_is_refused() -> None:
    with pytest.raises(Unsuitable, match="depends on the other examples"):
        total(MixesNowAndThen, cross_entropy, (torch.randn(20, 6), torch.randint(0, 3, (20,))))


def test_a_row_of_which_the_loss_says_nothing_stops_no_run() -> None:
    def leaves_out(output: Tensor, target: Tensor) -> Tensor:
        return cross_entropy(output[target >= 0], target[target >= 0])

    x, labels = torch.randn(20, 6), torch.randint(0, 3, (20,))
    bad = labels.clone()
    bad[3] = -1
    sums = [total(lambda: nn.Linear(6, 3), leaves_out, (x, which)) for which in (labels, bad)]
    assert 0.1 < float((sums[0] - sums[1]).norm()) <= 1.0


def test_a_missing_label_does_not_change_how_others_are_computed() -> None:
    outputs, weights = torch.randn(8, 5), torch.rand(8)
    labels = torch.randint(0, 5, (8,))
    missing = labels.clone()
    missing[2] = -100
    of = OutputGradients(nn.CrossEntropyLoss(reduction="none"))
    one, other = of(outputs, labels, weights), of(outputs, missing, weights)
    assert torch.equal(one[[0, 1, 3, 4, 5, 6, 7]], other[[0, 1, 3, 4, 5, 6, 7]])
    assert not other[2].any()
    expected = torch.autograd.functional.jacobian(
        lambda o: (weights * F.cross_entropy(o, missing, reduction="none")).sum(), outputs
    )
    assert torch.allclose(other, expected, atol=1e-6)


def test_a_gate_refuses_another_process() -> None:
    gate = Gate(nn.Linear(3, 1), product, (torch.randn(8, 3), torch.ones(8, 1)), clip=Fixed(1.0), noise_multiplier=1.0,
                sampling=Poisson(0.5))  # fmt: skip
    model = LeastSquares(horizon=8, noise_multiplier=5.0).fit(
        torch.randn(4, 2).numpy(), torch.randn(4).numpy()
    )
    child = os.fork()
    if child == 0:
        code = 0
        for call in (gate, lambda: model.partial_fit([[0.1, 0.2]], [0.1])):
            try:
                call()
                code = 1
            except (RuntimeError, ValueError) as error:
                code = code or ("process" not in str(error))
        os._exit(int(code))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert gate().step == 0


def test_threads_take_turns() -> None:
    gate = Gate(nn.Linear(3, 1), product, (torch.randn(8, 3), torch.ones(8, 1)), clip=Fixed(1.0), noise_multiplier=1.0,
                sampling=Poisson(0.5))  # fmt: skip
    steps: list[int] = []
    inside, most, sums_at = 0, 0, gate._sums_at

    def slow(*args: Any) -> Any:
        nonlocal inside, most
        inside, most = inside + 1, max(most, inside + 1)
        time.sleep(0.002)  # whoever does not wait comes in now
        found = sums_at(*args)
        inside -= 1
        return found

    gate._sums_at = slow  # type: ignore[assignment]
    threads = [
        threading.Thread(target=lambda: steps.extend(gate().step for _ in range(10))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert sorted(steps) == list(range(40))
    assert gate.ledger.charges == 40


def test_radii_near_0_have_no_gaps() -> None:
    """A uniform number of 1 stands for all of (1 - 2^-52, 1], of which further bits tell which."""
    assert beside_one(1.0, Scripted(2**63)) == pytest.approx(2.0**-53)
    assert beside_one(1.0, Scripted(0, 2**63)) == pytest.approx(2.0**-105)
    assert beside_one(1 - 2.0**-52, Scripted(2**63)) == pytest.approx(1.5 * 2.0**-52)


def test_slow_gradients_are_still_warned_of_on_made_up_rows() -> None:
    with pytest.warns(SlowGradients):
        total(
            lambda: nn.Sequential(nn.Linear(6, 3), nn.PReLU(3)),
            cross_entropy,
            (torch.randn(9, 6), torch.zeros(9).long()),
        )


def test_random_numbers_of_a_row_in_a_loop_are_its_own() -> None:
    """A row that draws more of them, or fails half-way, does not change those of the next."""

    class Drawing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 1)

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(3 if float(x[0, 0]) > 1e6 else 1):
                x = F.dropout(x, 0.5)
            output: Tensor = self.linear(x).squeeze(1)
            return output

    model, found = Drawing(), []
    for first in (1.0, 1e9):
        rows = torch.ones(5, 3)
        rows[1, 0] = first
        torch.manual_seed(7)
        parameters = list(model.parameters())
        found.append(
            loop_gradients(model, lambda o, _: o, parameters, rows, torch.zeros(5), own_numbers=True)[0]
        )
    assert torch.equal(found[0][2:], found[1][2:])
    assert len(set(map(tuple, found[0].tolist()))) > 1  # and not all rows draw the same
