"""Going on with a run: it must be the same run, and it is charged as that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conftest import cross_entropy
from sordino.gate import Door
from sordino.runs.resume import marks
from test_runs_closing import trained
from test_runs_journal import interrupted, start

Toy = tuple[Tensor, Tensor]


def test_a_notice_once_given_is_not_lost_on_resume(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"test": toy, "assumptions": ["public: the weather"], "show_unprotected": True}
    interrupted(monkeypatch, 25, start, toy, tmp_path / "run", **options)
    lines = [json.loads(line) for line in (tmp_path / "run/history.jsonl").read_text().splitlines()]
    assert lines
    assert all(line["covered"] is False for line in lines if "loss" in line or "test_loss" in line)
    for name, other in (("show_unprotected", False), ("test", None), ("assumptions", ())):
        with pytest.raises(ValueError, match=f"{name} changed; repeat the command as it was"):
            start(toy, tmp_path / "run", resume=True, **{**options, name: other})
    run = start(toy, tmp_path / "run", resume=True, **options)
    for part, words in (
        ("unprotected", "training loss, which was shown"),
        ("unprotected", "metrics on held-out rows"),
        ("assumptions", "the weather"),
    ):
        assert any(words in stated for stated in run.certificate[part])


def dropping(share: float) -> nn.Module:
    linear = nn.Linear(10, 3)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    return nn.Sequential(nn.Dropout(share), linear)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("model or loss", {"loss": lambda o, t: cross_entropy(o, t) * (1 + 1e-6)}),
        ("model or loss", {"model": dropping(0.5)}),
        ("model or loss", {"model": dropping(0.25).eval()}),
        ("public_loss", {"public_loss": lambda theta: (1 + 1e-6) * theta.square().sum()}),
    ],
    ids=["sixth digit of the loss", "another dropout", "another mode", "sixth digit of the public loss"],
)
def test_a_model_that_computes_something_else_is_another_run(
    name: str, changed: dict[str, Any], toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def options() -> dict[str, Any]:
        return {"model": dropping(0.25), "public_loss": lambda theta: theta.square().sum()}

    interrupted(monkeypatch, 12, start, toy, tmp_path / "run", **options())
    with pytest.raises(ValueError, match=f"{name} changed"):
        start(toy, tmp_path / "run", resume=True, **options() | changed)
    start(toy, tmp_path / "run", resume=True, **options())


def test_looking_at_how_a_model_behaves_leaves_it_as_it_was(toy: Toy) -> None:
    from sordino.data import as_examples
    from sordino.runs.resume import behaviour
    from sordino.vector import ParameterVector

    class Counting(nn.Module):
        calls: Tensor
        last: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(10, 3)
            self.register_buffer("calls", torch.zeros(1))
            self.register_buffer("last", torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            self.calls.add_(1)
            self.last = self.calls.clone()
            out: Tensor = self.linear(x)
            return out

    model: Any = nn.Sequential(nn.Dropout(0.5).eval(), Counting())
    theta, last = ParameterVector(model).theta, model[1].last
    before, drawn = theta.clone(), torch.get_rng_state()
    found = behaviour(model, theta, cross_entropy, as_examples(toy))
    assert None not in found.values()
    assert found["training"] != found["evaluating"]
    assert torch.equal(theta, before)
    assert torch.equal(torch.get_rng_state(), drawn)
    assert (float(model[1].calls), model[1].last is last) == (0.0, True)
    assert [module.training for module in model] == [False, True]


def test_a_resumed_run_is_charged_under_its_old_name(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    original = Door.__call__

    def noting(gate: Any, *args: Any, **kwargs: Any) -> Any:
        names.append(gate.charged_as)
        if gate.step == 7 and len(names) == 8:
            raise KeyboardInterrupt
        return original(gate, *args, **kwargs)

    monkeypatch.setattr(Door, "__call__", noting)
    with pytest.raises(KeyboardInterrupt):
        trained(toy, tmp_path / "run", seed=1)
    trained(toy, tmp_path / "run", seed=1, resume=True)
    assert len(set(names)) == 1
    trained(toy, tmp_path / "other", seed=1)
    assert len(set(names)) == 2


def test_marks_are_spread_evenly_and_the_last_step_is_one() -> None:
    assert marks(100, 4) == {25, 50, 75, 100}
    assert marks(7, 3) == {2, 5, 7}
    assert marks(3, 40) == {1, 2, 3}  # no step before the first
    for steps in (1, 2, 9, 1000):
        assert max(marks(steps, 7)) == steps
        assert min(marks(steps, 7)) >= 1
