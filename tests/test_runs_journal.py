"""A replayed release is the same, or nothing of it is shown; and what is not pinned cannot be resumed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from conftest import cross_entropy
from sordino.federated import federate
from sordino.gate import Door, Released
from sordino.methods import adadp, dp_ftrl, dp_sgd
from sordino.runs import Checkpoint, RunDirectory, conductor
from sordino.runs.journal import ReleaseJournal
from sordino.runs.writing import Lines
from sordino.training import train

Toy = tuple[Tensor, Tensor]
KEY = bytes(32)
RELEASED = Released(
    3, torch.tensor([0.1, -0.2]), 1.0, 1.0, MappingProxyType({"count": 0.25, "q": torch.tensor([1.0, 2.0])})
)


class Crash(Exception):
    pass


class Listed(torch.utils.data.Dataset[Any]):
    """A data set of the user's own, whose rows nobody but itself knows."""

    def __init__(self, toy: Toy) -> None:
        self.toy = toy

    def __len__(self) -> int:
        return len(self.toy[1])

    def __getitem__(self, index: int) -> Any:
        return self.toy[0][index], self.toy[1][index]


def stop_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    original = Door.__call__

    def crashing(gate: Any, *args: Any, **kwargs: Any) -> Any:
        if gate.step == step:
            raise Crash
        return original(gate, *args, **kwargs)

    monkeypatch.setattr(Door, "__call__", crashing)


def linear() -> nn.Module:
    model = nn.Linear(10, 3)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    return model


def start(
    data: Any, out: Path, model: nn.Module | None = None, loss: Any = cross_entropy, **more: Any
) -> Any:
    given: dict[str, Any] = {"method": dp_sgd(), "epochs": 6, "batch_size": 12, "noise_multiplier": 1.0}
    given |= {"delta": 1e-3, "accountant": "rdp", "out": out, "progress": False}
    return train(model or linear(), loss, data, **given | more)


def interrupted(
    monkeypatch: pytest.MonkeyPatch, step: int, run: Callable[..., Any], *given: Any, **more: Any
) -> None:
    with monkeypatch.context() as patch:
        stop_at(patch, step)
        with pytest.raises(Crash):
            run(*given, **more)


@pytest.mark.parametrize(
    "method",
    [adadp(tol=0.5, online=True), adadp(target_quantile=0.5), dp_ftrl()],
    ids=["online", "quantile", "tree"],
)
def test_a_resume_with_another_row_is_refused_and_shows_nothing(
    method: Any, toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the rows cannot be hashed beforehand; and afterwards the right rows can still go on."""
    monkeypatch.setattr("sordino.data.sources._DatasetExamples.fingerprint", lambda *_: None)
    monkeypatch.setattr(conductor, "_CHECKPOINTS", 2)
    options: dict[str, Any] = {"method": method, "seed": 4, "sampling": "fixed-order"}
    if method.name != "dp-ftrl":
        options["sampling"] = "poisson"
    start(Listed(toy), tmp_path / "whole", **options)
    interrupted(monkeypatch, 13, start, Listed(toy), tmp_path / "run", **options)
    shown = (tmp_path / "run/history.jsonl").read_bytes()
    inputs = toy[0].clone()
    inputs[::2] *= -3
    with pytest.raises(ValueError, match="under the same noise must not be shown"):
        start(Listed((inputs, toy[1])), tmp_path / "run", resume=True, **options)
    assert shown.startswith((tmp_path / "run/history.jsonl").read_bytes())
    start(Listed(toy), tmp_path / "run", resume=True, **options)
    for name in ("history.jsonl", "model.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.mark.parametrize(
    "other",
    [
        replace(RELEASED, gradient=torch.nextafter(RELEASED.gradient, torch.tensor(9.0))),
        replace(RELEASED, gradient=-RELEASED.gradient),
        replace(RELEASED, probes={**RELEASED.probes, "count": 0.25 + 2**-50}),
        replace(RELEASED, probes={**RELEASED.probes, "q": torch.tensor([2.0, 1.0])}),
        replace(RELEASED, probes={"count": 0.25}),
    ],
    ids=["last bit", "sign", "scalar probe", "vector probe", "probe missing"],
)
def test_gradient_and_probes_are_compared_to_the_last_bit(other: Released, tmp_path: Path) -> None:
    ReleaseJournal(tmp_path, KEY).record(RELEASED)
    again = ReleaseJournal(tmp_path, KEY)
    again.record(RELEASED)
    again.record(replace(other, step=4))  # another step is another release
    with pytest.raises(ValueError, match="same noise"):
        again.record(other)
    assert len((tmp_path / "releases.txt").read_text().splitlines()) == 2


def test_half_a_line_of_the_journal_is_cut_off_and_does_not_spoil_the_next(tmp_path: Path) -> None:
    journal = ReleaseJournal(tmp_path, KEY)
    journal.record(RELEASED)
    whole = (tmp_path / "releases.txt").read_bytes()
    (tmp_path / "releases.txt").write_bytes(whole + b"4 8a8a")
    journal = ReleaseJournal(tmp_path, KEY)
    journal.record(replace(RELEASED, step=4))
    lines = (tmp_path / "releases.txt").read_text().splitlines()
    assert [line.split(" ")[0] for line in lines] == ["3", "4"]
    ReleaseJournal(tmp_path, KEY).record(replace(RELEASED, step=4))


def test_a_digest_tells_nothing_without_the_key(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    ReleaseJournal(tmp_path, KEY).record(RELEASED)
    ReleaseJournal(tmp_path / "other", bytes(31) + b"1").record(RELEASED)
    assert (tmp_path / "releases.txt").read_bytes() != (tmp_path / "other/releases.txt").read_bytes()


def test_every_release_is_on_the_disk_before_anything_is_shown(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    def noting(owner: Any, name: str, what: str) -> None:
        original = getattr(owner, name)

        def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not isinstance(self, Lines) or self.path.name == "releases.txt":
                events.append(what)
            return original(self, *args, **kwargs)

        monkeypatch.setattr(owner, name, noted)

    noting(Door, "__call__", "release")
    noting(Lines, "append", "recorded")
    noting(Lines, "sync", "synced")
    noting(RunDirectory, "append_history", "shown")
    noting(Checkpoint, "save", "saved")
    noting(RunDirectory, "write_model", "shown")
    start(toy, tmp_path / "run")
    assert events.count("release") == events.count("recorded") == 30
    state = "synced"
    for event in events:
        if event in ("shown", "saved"):
            assert state == "synced"
        else:
            assert (state, event) != ("release", "release")  # recorded before the next one is asked for
            state = event


def test_what_is_shown_of_a_federation_covers_its_probes(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The count behind a threshold is a release as the sum is: another count under the same noise is refused."""

    def run(**more: Any) -> Any:
        return federate(
            linear(), cross_entropy, toy, rounds=4, clients=6, per_round=3, batch_size=5, noise_multiplier=1.0,
            delta=1e-3, accountant="rdp", engine="looped", workers=1, out=tmp_path / "run", progress=False, **more
        )  # fmt: skip

    monkeypatch.setattr("sordino.runs.conductor._CHECKPOINTS", 1)
    interrupted(monkeypatch, 2, run)
    original = Door._release

    def counted_otherwise(gate: Any, *args: Any, **kwargs: Any) -> Released:
        released = original(gate, *args, **kwargs)
        (name,) = released.probes
        return replace(released, probes={name: released.probes[name] + 1e-9})

    with monkeypatch.context() as patch:
        patch.setattr(Door, "_release", counted_otherwise)
        with pytest.raises(ValueError, match="same noise"):
            run(resume=True)
    run(resume=True)
