"""A run in the time it is given. Speeds are injected: no test waits, and none depends on the machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sordino.training
from conftest import cross_entropy
from conftest import sordino as command
from sordino import Run, dp_sgd, sgd, train
from sordino.data import as_examples
from sordino.data.kept import KeptExamples, nameless
from sordino.data.sources import Examples
from sordino.data.standardised import Place, StandardisedExamples
from sordino.defaults import Speed
from sordino.gradients import Engine
from sordino.methods import adadp, auto, dp_ftrl, oso
from sordino.runs.timing import measured_speed
from sordino.training import outlined

SPEED = Speed(per_unit=1e-3, per_step=0.01)
ROWS = torch.randn(400, 6, generator=torch.Generator().manual_seed(1)), torch.arange(400) % 3
BATCH, BATCHES = 160, 80  # of 400 rows: 8 sqrt(n), and 40 epochs of two
USUAL = SPEED.minutes(BATCHES, BATCH)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What was measured; at a speed that is known."""
    calls: list[tuple[Any, ...]] = []

    def measured(*given: Any) -> Speed:
        calls.append(given)
        return SPEED

    monkeypatch.setattr(sordino.training, "measured_speed", measured)
    return calls


def trained(**options: Any) -> Run:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = nn.Linear(6, 3)
    usual: dict[str, Any] = {"budget": (3, 1e-4), "accountant": "rdp", "seed": 1}
    usual["method"] = dp_sgd(learning_rate=0.1, threshold=1.0)
    return train(model, cross_entropy, ROWS, **{**usual, **options})


def weights(run: Run) -> list[float]:
    return torch.cat([p.detach().flatten() for p in run.model.parameters()]).tolist()


def size(run: Run) -> tuple[int, int]:
    return run.summary["batches"], run.summary["batch_size"]


@pytest.mark.usefixtures("asked")
def test_minutes_choose_epochs_and_batch() -> None:
    assert size(trained()) == (BATCHES, BATCH)
    batches, batch = size(trained(minutes=USUAL / 2))
    assert (batch, batches) == (BATCH, int(0.45 * BATCHES))
    batches, batch = size(trained(minutes=2 * USUAL))
    assert (batches, batch) == (BATCHES, 296)
    assert size(trained(minutes=60)) == (BATCHES, 400)  # all there are


@pytest.mark.usefixtures("asked")
def test_a_default_run_is_what_it_was_and_says_what_more_time_would_do() -> None:
    run, told = trained(), trained(epochs=40, batch_size=BATCH)
    assert weights(run) == weights(told)
    assert "time" not in told.summary  # epochs and batch were not ours to choose
    assert "minutes" not in run.summary
    time = run.summary["time"]
    assert time["covered"] is False
    assert (time["expected_minutes"], time["times_the_default"]) == (float(f"{USUAL:.2g}"), 1.0)
    assert time["most"]["times_the_default"] == 2.5
    longer = trained(minutes=time["most"]["minutes"])
    assert longer.summary["time"]["times_the_default"] == 2.5


@pytest.mark.usefixtures("asked")
def test_what_cannot_be_done_in_time_takes_longer_and_says_so() -> None:
    with pytest.warns(UserWarning, match="will take longer than asked"):
        run = trained(minutes=1e-4)
    assert run.summary["batches"] == run.summary["steps_per_epoch"]


@pytest.mark.parametrize("also", [{"epochs": 2}, {"batch_size": 10}, {"epochs": 2, "batch_size": 10}])
def test_minutes_stand_in_the_place_of_epochs_and_batch(also: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^minutes chooses epochs and batch size: leave those out$"):
        trained(minutes=3, **also)


@pytest.mark.parametrize("minutes", [0, -1, float("inf"), float("nan"), "five", True])
def test_minutes_are_a_positive_number(minutes: Any) -> None:
    with pytest.raises(ValueError, match="minutes must be a positive number"):
        trained(minutes=minutes)


@pytest.mark.parametrize("minutes", [None, USUAL / 2, 2 * USUAL])
def test_a_resumed_run_has_the_plan_it_had_whatever_the_machine_does_by_then(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, minutes: float | None
) -> None:
    def stop(seen: Any) -> None:
        if seen.step == 7:
            raise KeyboardInterrupt

    whole = trained(minutes=minutes)
    with pytest.raises(KeyboardInterrupt):
        trained(minutes=minutes, out=tmp_path / "run", callbacks=[stop])
    measurements = len(asked)
    monkeypatch.setattr(sordino.training, "measured_speed", lambda *_: pytest.fail("measured once more"))
    with pytest.raises(ValueError, match="interrupted: minutes changed; "):
        trained(minutes=USUAL, out=tmp_path / "run", callbacks=[stop], resume=True)
    resumed = trained(minutes=minutes, out=tmp_path / "run", callbacks=[lambda _: None], resume=True)
    assert weights(resumed) == weights(whole)
    assert resumed.summary["time"] == whole.summary["time"]
    assert len(asked) == measurements


METHODS = {
    "two batches a step": adadp(),
    "bands that the plan chooses": auto(),
    "trees": dp_ftrl(learning_rate=0.1, threshold=1.0),
    "a vector besides": oso(learning_rate=0.1),
}


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize("times", [0.3, 2.0, 50.0])
@pytest.mark.parametrize("name", METHODS)
def test_every_method_keeps_to_its_time(name: str, times: float) -> None:
    usual = trained(method=METHODS[name])
    takes = SPEED.minutes(*size(usual))
    run = trained(method=METHODS[name], minutes=times * takes)
    batches, batch = size(run)
    assert SPEED.minutes(batches, batch) <= times * takes
    assert run.epsilon <= 3
    if times > 1:
        assert (batches, batch > BATCH) == (usual.summary["batches"], True)


@pytest.mark.usefixtures("asked")
def test_in_a_fixed_order_larger_batches_leave_few_rows_over() -> None:
    run = trained(sampling="fixed-order", minutes=1.4 * USUAL)
    assert size(run) == (BATCHES, 200)
    assert "units_in_no_batch" not in run.summary


def test_a_user_takes_as_long_as_the_rows_he_has(asked: list[Any]) -> None:
    trained(groups=torch.arange(400) // 4)
    trained()
    trained(shares=3)
    terms, rows, noisy, planned = asked[0][2:]
    assert (rows, noisy, planned, terms.units) == (4.0, True, False, 100)
    assert [call[3] for call in asked] == [4.0, 1.0, 1.0]  # one process has all the shares


def test_what_is_measured_follows_what_is_asked(asked: list[Any]) -> None:
    trained(minutes=USUAL)
    trained(budget=None, noise_multiplier=0.0)
    trained(method=sgd(learning_rate=0.1), budget=None)
    assert [call[4:] for call in asked] == [(True, True), (False, False), (False, False)]


# Measuring ----------------------------------------------------------------------------------------------------


class Unreadable(Examples):
    """Rows that nobody may touch."""

    def __len__(self) -> int:
        return 400

    def take(self, indices: Tensor) -> Any:
        raise AssertionError("a private row was read")

    take_readable = fingerprint = take  # type: ignore[assignment]

    def _no_rows(self) -> Any:
        return torch.zeros(0, 6), torch.zeros(0, dtype=torch.int64)


@pytest.mark.parametrize("name", [*METHODS, "dropout"])
def test_measuring_reads_no_row_and_draws_from_nobodys_generator(name: str) -> None:
    model = nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5))
    engine, rows = Engine(model, cross_entropy), StandardisedExamples(Unreadable(), Place())
    engine.prepare(*rows.template(5))
    terms = outlined(METHODS.get(name, dp_sgd(learning_rate=0.1, threshold=1.0)), 400, None, None, None).terms
    before, state = engine.vector.theta.clone(), torch.get_rng_state()
    speed = measured_speed(engine, rows, terms, 1.0, True, False)
    assert speed.per_unit > 0
    assert speed.per_step > 0
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(engine.vector.theta, before)


def test_so_many_made_up_rows_are_worked_on_as_a_batch_has(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    sums = Engine.sums

    def watched(self: Engine, inputs: Any, *given: Any, **more: Any) -> Any:
        seen.append(len(inputs))
        return sums(self, inputs, *given, **more)

    monkeypatch.setattr(Engine, "sums", watched)
    terms = outlined(dp_sgd(learning_rate=0.1, threshold=1.0), 400, None, None, None).terms
    for microbatch, rows_per_unit, expected in ((None, 1.0, 160), (50, 1.0, 50), (None, 0.5, 80)):
        engine = Engine(nn.Linear(6, 3), cross_entropy, microbatch=microbatch)
        engine.prepare(*as_examples(ROWS).template(5))
        seen.clear()
        measured_speed(engine, as_examples(ROWS), terms, rows_per_unit, True, False)
        assert set(seen) == {expected}


def test_made_up_rows_are_read_from_where_real_ones_lie() -> None:
    kept = KeptExamples(
        nameless((50, 6), torch.float16), torch.zeros(50, dtype=torch.int64), torch.ones(50).bool()
    )
    place = Place()
    for examples in (kept, StandardisedExamples(kept, place), as_examples(ROWS)):
        read: Any = examples.reading(8)()
        _, inputs, targets = read
        assert (inputs.shape, len(targets), inputs.dtype) == ((8, 6), 8, torch.float32)
    assert place.moments is None


# The command --------------------------------------------------------------------------------------------------

PAID = ["--epsilon", "3", "--delta", "1e-5", "--accountant", "rdp"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            [],
            "0.57 minutes of training, by its speed on made-up rows; with --minutes 3 it would take 4 times the",
        ),
        (
            ["--minutes", "1.2"],
            "1.1 minutes of training, by its speed on made-up rows, 2 times the default epochs and",
        ),
        (["--minutes", "30"], "no use is known for more than 3: the rest is left unused"),
        (["--minutes", "0.3"], "0.47 times the default epochs; more time would be of use, up to --minutes 3"),
        (["--minutes", "0.3", "--method", "adadp"], "times the default epochs; more time"),
    ],
)
@pytest.mark.usefixtures("asked")
def test_the_command_says_what_it_made_of_the_time(
    here: Path, monkeypatch: Any, capsys: Any, arguments: list[str], said: str
) -> None:
    monkeypatch.setattr(sordino.training, "measured_speed", lambda *_: Speed(5e-4, 0.02))
    assert (
        command(monkeypatch, "train", "digits", *PAID, *arguments, "--model", "linear", "--out", "run") == 0
    )
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("time")]
    assert said in line
    summary = json.loads((here / "run/run.json").read_text())
    assert summary.get("minutes") == (float(arguments[1]) if arguments else None)


@pytest.mark.parametrize("also", [["--epochs", "2"], ["--batch-size", "10"]])
def test_the_command_refuses_epochs_beside_minutes(
    here: Path, monkeypatch: Any, capsys: Any, also: list[str]
) -> None:
    assert command(monkeypatch, "train", "digits", *PAID, "--minutes", "3", *also) == 2
    _, err = capsys.readouterr()
    assert err.strip() == "sordino: --minutes chooses epochs and batch size: leave those out"
    assert list(here.iterdir()) == []
