"""Loggers show the lines of the history elsewhere, under names that say what is not covered, and nothing else."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

import sordino as sd
from conftest import cross_entropy, sordino
from sordino.live import NOT_COVERED, logged_values
from sordino.runs.process import HistoryLogger

Rows = tuple[Tensor, Tensor]
NOISE: dict[str, Any] = {"noise_multiplier": 1.0, "delta": 1e-3, "progress": False}


def trained(toy: Rows, **options: Any) -> sd.Run:
    return sd.train(
        nn.Linear(10, 3), cross_entropy, toy, epochs=2, batch_size=10, test=toy, **{**NOISE, **options}
    )


class Kept(HistoryLogger):
    """A logger that keeps what it is told."""

    def __init__(self, fails_at: int | None = None) -> None:
        self.lines: list[tuple[int, dict[str, Any]]] = []
        self.facts: dict[str, Any] = {}
        self.ended: bool | None = None
        self.fails_at, self.done = fails_at, -1

    def begin(self, facts: Mapping[str, Any], done: int) -> None:
        self.facts, self.done = dict(facts), done

    def wrote(self, step: int, line: Mapping[str, Any]) -> None:
        if step == self.fails_at:
            raise OSError("the server is gone")
        self.lines.append((step, dict(line)))
        dict(line).clear()

    def close(self, finished: bool) -> None:
        self.ended = finished


def told(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What event files hold."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return {tag: [(each.step, each.value) for each in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def expected(history: list[dict[str, Any]], promised: bool = True) -> dict[str, list[tuple[int, float]]]:
    names: dict[str, list[tuple[int, float]]] = {}
    for line in history:
        for name, value in logged_values(line, promised):
            names.setdefault(name, []).append((line["step"], value))
    return names


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(
        [step for step, _ in one[name]] == [step for step, _ in other[name]]
        and [value for _, value in one[name]] == pytest.approx([value for _, value in other[name]], rel=1e-6)
        for name in one
    )


def test_what_no_guarantee_covers_is_called_so() -> None:
    line = {
        "step": 1,
        "epoch": 0.5,
        "rate": 0.1,
        "threshold": None,
        "epsilon": 1.0,
        "loss": 2.0,
        "mine": 3,
        "x": True,
    }
    assert dict(logged_values({**line, "covered": False}, True)) == {
        "epoch": 0.5, "rate": 0.1, "epsilon": 1.0, "not_covered/loss": 2.0, "not_covered/mine": 3.0
    }  # fmt: skip
    assert all(name.startswith(NOT_COVERED) for name, _ in logged_values(line, False))
    assert list(logged_values({"epsilon": "inf", "rate": float("nan")}, True)) == []


def test_a_logger_is_told_the_history_and_leaves_nothing_unprotected(toy: Rows, tmp_path: Path) -> None:
    logger = Kept()
    run = trained(toy, callbacks=[logger], out=tmp_path / "run")
    assert [line for _, line in logger.lines] == run.history
    assert [step for step, _ in logger.lines] == [line["step"] for line in run.history]
    assert logger.ended is True
    plain = trained(toy)
    assert run.certificate["unprotected"] == plain.certificate["unprotected"]
    assert not any("callbacks" in each for each in run.certificate["unprotected"])
    both = trained(toy, callbacks=[logger, lambda seen: None])
    assert any("callbacks" in each for each in both.certificate["unprotected"])


def test_what_callbacks_say_is_told_as_not_covered(toy: Rows, tmp_path: Path) -> None:
    board = sd.TensorBoard(tmp_path)
    run = trained(toy, callbacks=[board, lambda seen: {"mine": seen.step}])
    found = told(tmp_path)
    assert [step for step, _ in found["not_covered/mine"]] == list(range(1, run.summary["steps"] + 1))


def test_a_logger_that_fails_costs_nothing_but_itself(toy: Rows, tmp_path: Path) -> None:
    failing, other = Kept(fails_at=6), Kept()
    with pytest.warns(UserWarning, match=r"Kept is told nothing more \(OSError\): the run goes on") as found:
        run = trained(toy, callbacks=[failing, other], out=tmp_path / "run")
    assert len([each for each in found if "told nothing more" in str(each.message)]) == 1
    assert run.summary["status"] == "complete"
    assert [line for _, line in other.lines] == run.history
    assert len(failing.lines) < len(other.lines)


def test_an_interrupted_run_is_closed_and_begun_again_where_it_is_resumed(toy: Rows, tmp_path: Path) -> None:
    def crash(seen: sd.Seen) -> None:
        if seen.step == 8:
            raise KeyboardInterrupt

    first, again = Kept(), Kept()
    with pytest.raises(KeyboardInterrupt):
        trained(toy, callbacks=[first, crash], out=tmp_path / "run")
    assert first.ended is False
    run = trained(toy, callbacks=[again], out=tmp_path / "run", resume=True)
    assert 0 < again.done < 8
    before = [line for step, line in first.lines if step <= again.done]
    assert before + [line for _, line in again.lines] == run.history


def test_tensorboard_has_the_lines_of_the_history(toy: Rows, tmp_path: Path) -> None:
    run = trained(toy, callbacks=[sd.TensorBoard(tmp_path / "new" / "board")])
    found = told(tmp_path / "new" / "board")
    assert same(found, expected(run.history))
    assert {"rate", "epsilon", "not_covered/test_accuracy"} <= found.keys()
    assert "test_accuracy" not in found


@pytest.mark.parametrize("given", [{"seed": 1}, {"noise_multiplier": 0.0, "delta": None}])
def test_of_a_run_that_promises_nothing_nothing_is_called_covered(
    given: Any, toy: Rows, tmp_path: Path
) -> None:
    trained(toy, callbacks=[sd.TensorBoard(tmp_path)], **given)
    assert all(name.startswith("not_covered/") for name in told(tmp_path))


def test_mlflow_has_the_lines_of_the_history(toy: Rows, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    log = sd.MLflow("mine", uri=tmp_path)
    run = trained(toy, callbacks=[log])
    client = MlflowClient(tracking_uri=tmp_path.as_uri())
    assert log.run_id is not None
    made = client.get_run(log.run_id)
    assert made.info.status == "FINISHED"
    assert made.data.params == {}
    assert client.list_artifacts(log.run_id) == []
    found = {
        name: [(each.step, each.value) for each in client.get_metric_history(log.run_id, name)]
        for name in made.data.metrics
    }
    assert same(found, expected(run.history))
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"


def test_a_server_that_is_not_there_is_found_before_anything_is_spent(
    toy: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    log = sd.MLflow(uri="http://127.0.0.1:9")
    steps: list[int] = []
    with pytest.raises(ValueError, match=r"MLflow at http://127.0.0.1:9 takes no run"):
        trained(toy, callbacks=[log, lambda seen: steps.append(seen.step)])
    assert steps == []


def test_a_folder_that_cannot_be_written_is_one_line(toy: Rows, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a file")
    with pytest.raises(ValueError, match="choose another folder"):
        trained(toy, callbacks=[sd.TensorBoard(tmp_path / "file" / "board")])


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [("TensorBoard", "tensorboard", "tensorboard"), ("MLflow", "mlflow", "mlflow")],
)
def test_a_package_that_is_missing_is_named_with_its_extra(
    name: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ValueError, match=rf"pip install 'sordino\[{extra}\]'"):
        getattr(sd, name)("here")


def test_telemetry_is_off_unless_it_was_turned_on(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, found in ((None, "true"), ("false", "false")):
        monkeypatch.delenv("MLFLOW_DISABLE_TELEMETRY", raising=False)
        if given is not None:
            monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", given)
        sd.MLflow("x")
        assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == found


@pytest.mark.parametrize(
    "command", [["train", "digits", "--epochs", "1"], ["federate", "digits", "--rounds", "2"]]
)
def test_the_command_line_takes_both(command: list[str], here: Path, monkeypatch: Any, capsys: Any) -> None:
    asked = [
        "--noise-multiplier",
        "3",
        "--delta",
        "1e-3",
        "--out",
        "run",
        "--tensorboard",
        "tb",
        "--mlflow",
        "./ml",
    ]
    assert sordino(monkeypatch, *command, *asked) == 0
    assert "epsilon" in told(here / "tb/run")
    assert list((here / "ml").glob("*/*/metrics/epsilon"))
