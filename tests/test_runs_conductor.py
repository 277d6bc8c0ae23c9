"""The hallway: cut off anywhere and taken up again it is the same run; what callbacks see, and what they may say."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sordino as sd
from conftest import cross_entropy
from sordino.federated import federation
from sordino.federated.algorithms import Round
from sordino.federated.process import SeenRound
from sordino.federated.rounds import Workplace
from sordino.gate import Released
from sordino.runs import Checkpoint, RunDirectory, Seen, closing, conductor
from sordino.runs.checkpoint import Saved
from sordino.runs.journal import ReleaseJournal
from sordino.runs.resume import check_same_plan

NOISE: dict[str, Any] = {"noise_multiplier": 1.0, "delta": 1e-3, "accountant": "rdp"}
STEPS = 10
MADE: tuple[str, ...] = ("model.safetensors", "history.jsonl")


class Crash(Exception):
    pass


@pytest.fixture(autouse=True)
def _few_checkpoints(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """After steps 3 and 7, so that there is something to repeat."""
    monkeypatch.setattr(conductor, "_CHECKPOINTS", 3)
    monkeypatch.setattr("os.fsync", lambda _: None)  # no machine crashes here
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def new_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(10, 4), nn.Tanh(), nn.Linear(4, 3))


def central(toy: Any, **options: Any) -> sd.Run:
    usual: dict[str, Any] = {
        "epochs": 2, "batch_size": 12, "seed": 1, "method": sd.sgd(average=0.5), "test": toy, "evaluations": 3
    }  # fmt: skip
    return sd.train(new_model(), cross_entropy, toy, **{**usual, **options})


def central_private(toy: Any, **options: Any) -> sd.Run:
    method = sd.dp_adam(target_quantile=0.5, average=0.5)
    return central(toy, **{"method": method, **NOISE, **options})


def rounds(toy: Any, **options: Any) -> sd.Run:
    usual: dict[str, Any] = {
        "rounds": STEPS, "clients": 12, "per_round": 4, "batch_size": 3, "local_epochs": 1, "seed": 1, "workers": 1,
        "engine": "stacked", "test": toy, "evaluations": 3,
    }  # fmt: skip
    return sd.federate(new_model(), cross_entropy, toy, **{**usual, **options})


def rounds_private(toy: Any, **options: Any) -> sd.Run:
    return rounds(toy, **{"algorithm": "scaffold", **NOISE, **options})


KINDS: dict[str, Callable[..., sd.Run]] = {
    "central": central,
    "central private": central_private,
    "rounds": rounds,
    "rounds private": rounds_private,
}
EVERY = pytest.mark.parametrize("kind", KINDS)
PRIVATE = pytest.mark.parametrize("kind", ["central private", "rounds private"])
pytestmark = pytest.mark.filterwarnings("ignore:the noise outweighs")


def weights(run: sd.Run) -> Tensor:
    return torch.cat([p.detach().flatten() for p in run.model.parameters()])


def assert_same_run(one: Path, other: Path, besides: tuple[str, ...] = ()) -> None:
    for name in MADE:
        assert (one / name).read_bytes() == (other / name).read_bytes(), name
    documents = [json.loads((path / "certificate.json").read_text()) for path in (one, other)]
    assert all(document.pop(name) for document in documents for name in ("created", "digest", *besides))
    assert documents[0] == documents[1]
    summaries = [json.loads((path / "run.json").read_text()) for path in (one, other)]
    for summary in summaries:
        assert summary["status"] == "complete"
        for name in ("seconds", "peak_memory_mib", *besides):
            summary.pop(name)
    assert summaries[0] == summaries[1]
    assert not (other / "checkpoint").exists()


# Cut off anywhere ---------------------------------------------------------------------------------------------


def at_call(number: int, of: Any, name: str, patch: pytest.MonkeyPatch, *, after: bool = False) -> None:
    """Crash at a call of that method, before or after it has done its work."""
    real, calls = getattr(of, name), [0]

    def crashing(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == number and not after:
            raise Crash
        found = real(*args, **kwargs)
        if calls[0] == number:
            raise Crash
        return found

    patch.setattr(of, name, crashing)


CUTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "before the first checkpoint": lambda p: at_call(1, Saved, "save", p),
    "after the first checkpoint": lambda p: at_call(1, Saved, "save", p, after=True),
    "before a checkpoint": lambda p: at_call(2, Saved, "save", p),
    "after a checkpoint": lambda p: at_call(3, Saved, "save", p, after=True),
    "before a line is written": lambda p: at_call(5, RunDirectory, "append_history", p),
    "after a line is written": lambda p: at_call(5, RunDirectory, "append_history", p, after=True),
    "after the last line": lambda p: at_call(STEPS, RunDirectory, "append_history", p, after=True),
    "before the model is written": lambda p: at_call(1, RunDirectory, "write_model", p),
    "before the certificate": lambda p: at_call(2, RunDirectory, "write_json", p),
    "while warnings are given": lambda p: at_call(1, conductor._Score, "warn", p),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Any], Path]:
    """Where the run of that kind is that nobody interrupted."""
    made: dict[str, Path] = {}

    def of(kind: str, toy: Any) -> Path:
        if kind not in made:
            made[kind] = tmp_path_factory.mktemp("whole") / "run"
            KINDS[kind](toy, out=made[kind])
        return made[kind]

    return of


@pytest.mark.parametrize(
    ("kind", "cut"),
    [(kind, cut) for kind in KINDS for place, cut in enumerate(CUTS) if "private" in kind or place % 3 == 0],
)
def test_cut_off_anywhere_it_goes_on_bit_for_bit(
    toy: Any, kind: str, cut: str, whole: Any, tmp_path: Path
) -> None:
    expected = whole(kind, toy)
    with pytest.MonkeyPatch.context() as patch:
        CUTS[cut](patch)
        with pytest.raises(Crash):
            KINDS[kind](toy, out=tmp_path / "cut")
    KINDS[kind](toy, out=tmp_path / "cut", resume=True)
    assert_same_run(expected, tmp_path / "cut")


@EVERY
def test_cut_off_again_and_again(toy: Any, kind: str, whole: Any, tmp_path: Path) -> None:
    """Twice at the same place, before the next checkpoint, and once more at the end."""
    for place, step in enumerate([5, 5, STEPS]):

        def crash(seen: Seen, step: int = step) -> None:
            if seen.step == step:
                raise Crash

        with pytest.raises(Crash):
            KINDS[kind](toy, out=tmp_path / "cut", resume=place > 0, callbacks=[crash])
    KINDS[kind](toy, out=tmp_path / "cut", resume=True)
    assert_same_run(whole(kind, toy), tmp_path / "cut")


@EVERY
def test_a_torn_checkpoint_file_leaves_the_one_before(
    toy: Any, kind: str, whole: Any, tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        real = RunDirectory.history_size

        def torn(self: RunDirectory) -> int:
            if (size := real(self)) and (self.path / "history.jsonl").read_text().count("\n") >= 7:
                (self.checkpoint_folder / ".state.safetensors.tmp").write_bytes(b"half a fi")
                raise Crash
            return size

        patch.setattr(RunDirectory, "history_size", torn)
        with pytest.raises(Crash):
            KINDS[kind](toy, out=tmp_path / "cut")
    KINDS[kind](toy, out=tmp_path / "cut", resume=True)
    assert_same_run(whole(kind, toy), tmp_path / "cut")


@EVERY
def test_without_a_directory_it_is_the_same_run(toy: Any, kind: str, whole: Any) -> None:
    run = KINDS[kind](toy)
    lines = [json.loads(line) for line in (whole(kind, toy) / "history.jsonl").read_text().splitlines()]
    assert run.history == lines
    assert run.path is None


@EVERY
def test_run_json_says_running_and_then_complete(toy: Any, kind: str, tmp_path: Path) -> None:
    said = []

    def look(seen: Seen) -> None:
        said.append(json.loads((tmp_path / "run/run.json").read_text()))

    run = KINDS[kind](toy, out=tmp_path / "run", callbacks=[look])
    assert {each["status"] for each in said} == {"running"}
    assert all(
        said[0][name] == run.summary[name] for name in said[0] if name not in ("status", "planned_epsilon")
    )
    assert said[0]["planned_epsilon"] == run.summary["epsilon"]
    assert json.loads((tmp_path / "run/run.json").read_text())["status"] == "complete"


@EVERY
def test_held_out_rows_are_looked_at_as_often_as_was_asked(toy: Any, kind: str) -> None:
    run = KINDS[kind](toy, evaluations=3)
    looked = [line for line in run.history if "test_accuracy" in line]
    assert [line.get("step", line.get("round")) for line in looked] == [3, 7, 10]
    assert all(line["covered"] is False for line in looked)
    assert run.metrics == {
        **{name: value for name, value in run.history[-1].items() if name.startswith("test_")},
        "covered": False,
    }
    assert "test_accuracy" not in KINDS[kind](toy, test=None).history[-1]


@EVERY
def test_a_checkpoint_of_another_format_is_refused_in_one_line(toy: Any, kind: str, tmp_path: Path) -> None:
    with pytest.raises(Crash):
        KINDS[kind](toy, out=tmp_path / "run", callbacks=[raising])
    found = Checkpoint.load(tmp_path / "run/checkpoint")
    assert found is not None
    for state in (
        {name: value for name, value in found.state.items() if name != "unlogged"},
        {**found.state, "gate_step": 3},
    ):
        Checkpoint(state).save(tmp_path / "run/checkpoint")
        with pytest.raises(ValueError, match="another version of Sordino: start the run afresh") as failure:
            KINDS[kind](toy, out=tmp_path / "run", resume=True)
        assert "\n" not in str(failure.value)


def raising(seen: Seen) -> None:
    raise Crash


BUDGET: dict[str, Any] = {"noise_multiplier": None, "delta": None, "budget": (3, 1e-3)}


@pytest.mark.parametrize(
    ("kind", "first", "then", "what"),
    [
        ("central private", BUDGET, {"budget": (4, 1e-3)}, "epsilon"),
        ("rounds private", BUDGET, {"budget": (4, 1e-3)}, "epsilon"),
        ("central private", BUDGET, {"epochs": 3}, "epochs"),
        ("rounds private", BUDGET, {"rounds": 12}, "rounds"),
        ("central private", {}, {"noise_multiplier": 2.0}, "noise_multiplier"),
        ("rounds", {}, {"assumptions": ["none"]}, "assumptions"),
    ],
)
def test_what_was_changed_is_named_and_not_what_follows_from_it(
    toy: Any, kind: str, first: dict[str, Any], then: dict[str, Any], what: str, tmp_path: Path
) -> None:
    with pytest.raises(Crash):
        KINDS[kind](toy, out=tmp_path / "run", callbacks=[raising], **first)
    with pytest.raises(ValueError, match=f"interrupted: {what} changed; repeat the command as it was"):
        KINDS[kind](toy, out=tmp_path / "run", resume=True, **{**first, **then})


@pytest.mark.parametrize("cause", ["epsilon", "delta", "accountant", "epochs", "rounds"])
def test_noise_that_follows_from_something_is_not_named_beside_it(cause: str) -> None:
    saved: dict[str, Any] = {cause: 1, "noise_multiplier": 1.0, "steps": 10, "batches": 10}
    now = {cause: 2, "noise_multiplier": 2.0}
    now |= {"steps": 20} if cause in ("epochs", "rounds") else {"steps": 10}
    now |= {"batches": 20} if cause == "epochs" else {"batches": 10}
    with pytest.raises(ValueError, match=f"interrupted: {cause} changed;"):
        check_same_plan(saved, now)
    with pytest.raises(ValueError, match="interrupted: batches, noise_multiplier, steps changed;"):
        check_same_plan(saved, {**saved, "noise_multiplier": 2.0, "steps": 20, "batches": 20})


@pytest.mark.parametrize(
    ("kind", "other", "command"), [("central", "rounds", "train"), ("rounds", "central", "federate")]
)
def test_a_run_of_the_other_command_is_called_that(
    toy: Any, kind: str, other: str, command: str, tmp_path: Path
) -> None:
    with pytest.raises(Crash):
        KINDS[kind](toy, out=tmp_path / "run", callbacks=[raising])
    with pytest.raises(ValueError, match=f"^this directory holds a run of sordino {command}: "):
        KINDS[other](toy, out=tmp_path / "run", resume=True)


@pytest.mark.parametrize("kind", ["central private", "rounds private"])
def test_other_data_is_named_and_not_what_follows_from_it(toy: Any, kind: str, tmp_path: Path) -> None:
    with pytest.raises(Crash):
        KINDS[kind](toy, out=tmp_path / "run", callbacks=[raising], data_name="one")
    fewer = (toy[0][:50], toy[1][:50])
    with pytest.raises(ValueError, match="interrupted: data changed; repeat the command as it was"):
        KINDS[kind](fewer, out=tmp_path / "run", resume=True, data_name="another")
    with pytest.raises(ValueError, match="interrupted: data, evaluations changed;"):
        KINDS[kind](fewer, out=tmp_path / "run", resume=True, data_name="another", evaluations=9)


def test_there_is_no_bar_before_a_refusal(toy: Any, capsys: Any) -> None:
    with pytest.raises(ValueError, match="held-out labels reach"):
        central(toy, test=(toy[0], toy[1] + 3), progress=True)
    assert capsys.readouterr().err == ""


# A round that cannot be repeated --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failing", "place"),
    [
        (2, "in a callback"),
        (STEPS, "in a callback"),
        (5, "before its line is written"),
        (STEPS, "in closing"),
    ],
)
def test_a_round_in_which_somebody_failed_is_saved_before_it_is_shown(
    toy: Any, failing: int, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is shown after a resume as it would have been, though the client would not fail again."""
    real, ill = Workplace._finished, True

    def flaky(self: Any, chunk: Any, sent: Any) -> Any:
        if ill and sent.now.number == failing and 5 in chunk.clients:
            raise MemoryError("for now")
        return real(self, chunk, sent)

    monkeypatch.setattr(Workplace, "_finished", flaky)
    options: dict[str, Any] = {"participation": sd.Poisson(1.0), "algorithm": "fedavg"}
    shown: list[Tensor] = []

    def see(seen: Any) -> dict[str, float]:
        if seen.step == failing:
            shown.append(seen.mean["update"].clone())
        return {
            "mean_norm": float(seen.mean["update"].norm()),
            "at": seen.now.number,
            "of": seen.now.participants,
        }

    def crash(seen: Any) -> None:
        saved = Saved.load(tmp_path / "cut/checkpoint")
        assert saved is not None
        assert (saved.step, saved.unlogged) == (failing, True) or seen.step != failing
        if seen.step == failing and place == "in a callback":
            raise Crash

    rounds_private(toy, out=tmp_path / "whole", callbacks=[see], **options)
    with pytest.MonkeyPatch.context() as patch:
        if place == "before its line is written":
            at_call(failing, RunDirectory, "append_history", patch)
        if place == "in closing":
            at_call(1, RunDirectory, "write_model", patch)
        with pytest.raises(Crash):
            rounds_private(toy, out=tmp_path / "cut", callbacks=[see, crash], **options)
    ill = False
    rounds_private(toy, out=tmp_path / "cut", callbacks=[see], resume=True, **options)
    assert_same_run(tmp_path / "whole", tmp_path / "cut")
    assert all(torch.equal(each, shown[0]) for each in shown)


# What callbacks see ---------------------------------------------------------------------------------------------


@EVERY
def test_callbacks_are_called_after_every_step_and_see_lines_where_there_are_any(
    toy: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sordino.training._LOGGED_STEPS", 2)
    monkeypatch.setattr(federation, "_LOGGED_ROUNDS", 2)
    seen: list[Any] = []
    order: list[str] = []

    def first(each: Any) -> None:
        order.append("first")
        seen.append((each.step, each.steps, each.line, each.theta.clone()))

    run = KINDS[kind](toy, callbacks=[first, lambda each: order.append("second")], test=None)
    assert [step for step, *_ in seen] == list(range(1, STEPS + 1))
    assert {steps for _, steps, *_ in seen} == {STEPS}
    assert order == ["first", "second"] * STEPS
    assert [line for *_, line, _ in seen if line is not None] == run.history
    lines = [step for step, _, line, _ in seen if line is not None]
    assert lines == ([5, 10] if kind != "rounds" else list(range(1, STEPS + 1)))
    assert len({tuple(theta.tolist()) for *_, theta in seen}) == STEPS  # it moves


@EVERY
def test_callbacks_change_nothing_but_the_history(toy: Any, kind: str, whole: Any, tmp_path: Path) -> None:
    def meddling(seen: Seen) -> None:
        torch.rand(3)
        np.random.rand(3)
        if seen.line is not None:
            seen.line.clear()  # type: ignore[attr-defined]  # it is a copy

    run = KINDS[kind](toy, out=tmp_path / "run", callbacks=[meddling])
    assert_same_run(whole(kind, toy), tmp_path / "run", besides=("unprotected",))
    assert any("callbacks" in stated for stated in run.certificate["unprotected"])


def parts_of(thing: Any) -> Iterator[Any]:
    """Everything that can be reached from what a callback is given."""
    yield thing
    if is_dataclass(thing):
        for each in fields(thing):
            yield from parts_of(getattr(thing, each.name))
    elif isinstance(thing, dict) or hasattr(thing, "items"):
        for value in thing.values():
            yield from parts_of(value)
    elif isinstance(thing, list | tuple):
        for value in thing:
            yield from parts_of(value)


@PRIVATE
def test_under_privacy_nothing_can_be_reached_that_was_not_released(toy: Any, kind: str) -> None:
    plain = (int, float, str, type(None), Tensor, Round, Released, Seen, dict, tuple, list)

    def look(seen: Any) -> None:
        for part in parts_of(seen):
            assert isinstance(part, plain) or type(part).__name__ == "mappingproxy", type(part)
            if isinstance(part, Tensor):
                assert part.numel() in (1, len(seen.theta)), part.shape
        assert getattr(seen, "participants", ()) == ()
        assert getattr(seen, "population", None) is None
        assert all(each.unprotected_loss is None for each in getattr(seen, "released", ()))
        if seen.line is not None:
            assert not {"loss", "participants", "left_out", "client_rates"} & seen.line.keys()

    KINDS[kind](toy, callbacks=[look])


def test_what_a_round_shows_is_looked_over_when_something_is_added() -> None:
    own = {each.name for each in fields(SeenRound)} - {each.name for each in fields(Seen)}
    assert own == {"now", "server", "mean", "participants", "population"}
    assert {each.name for each in fields(Seen)} == {"step", "steps", "theta", "line"}


def test_without_privacy_it_is_seen_who_took_part(toy: Any) -> None:
    who: list[Any] = []
    run = rounds(toy, observe=lambda seen: who.append((seen.participants, seen.population)))
    assert all(len(participants) == 4 and population.count == 12 for participants, population in who)
    assert [line["participants"] for line in run.history] == [4] * STEPS


def test_that_theta_is_not_to_be_written_to_is_said_where_it_is_explained() -> None:
    assert "do not write to it" in inspect.getsource(Seen)


@PRIVATE
def test_the_journal_is_on_the_disk_before_a_callback_sees_anything(
    toy: Any, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    for name in ("record", "sync"):
        real = getattr(ReleaseJournal, name)

        def spied(self: Any, *args: Any, name: str = name, real: Any = real) -> None:
            real(self, *args)
            events.append(name)

        monkeypatch.setattr(ReleaseJournal, name, spied)
    KINDS[kind](toy, out=tmp_path / "run", callbacks=[lambda seen: events.append("seen")])
    for place, event in enumerate(events):
        if event == "seen":
            before = events[:place]
            assert before[::-1].index("sync") < before[::-1].index("record")
    assert events.count("seen") == STEPS


# What callbacks say ---------------------------------------------------------------------------------------------


@EVERY
def test_what_callbacks_return_is_in_the_history_and_covered_by_nothing(
    toy: Any, kind: str, tmp_path: Path
) -> None:
    growing: list[float] = []

    def says(seen: Seen) -> dict[str, Any] | None:
        if seen.step % 2:
            return None
        growing.append(float(seen.step))
        return {
            "norm": seen.theta.norm(),
            "column": torch.tensor([[3]]),
            "single": np.float32(0.5),
            "count": np.int64(3),
            "whether": np.bool_(True),
            "nothing": None,
            "word": "even",
            "list": growing,
            "nested": {"pair": (1, 2)},
            "none": float("nan"),
        }

    run = KINDS[kind](toy, out=tmp_path / "run", callbacks=[says, lambda seen: {"twice": 2 * seen.step}])
    lines = [json.loads(line) for line in (tmp_path / "run/history.jsonl").read_text().splitlines()]
    assert len(run.history) == len(lines) == STEPS
    for number, (line, written) in enumerate(zip(run.history, lines, strict=True), 1):
        assert (line["twice"], line["covered"]) == (2 * number, False)
        if number % 2:
            assert line == written
            continue
        assert isinstance(line["norm"], float)
        assert (line["column"], line["single"], line["count"], line["whether"]) == (3, 0.5, 3, True)
        assert (line["nothing"], line["word"]) == (None, "even")
        assert line["list"] == written["list"] == [float(i) for i in range(2, number + 1, 2)]
        assert line["nested"] == written["nested"] == {"pair": [1, 2]}
        assert (str(line["none"]), written["none"]) == ("nan", "nan")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (
            {"x": torch.ones(2)},
            "returned a Tensor as 'x', which the history cannot hold: return numbers, text",
        ),
        ({"x": np.ones(2)}, "returned a ndarray as 'x'"),
        ({"x": [torch.ones(1)]}, "returned a list as 'x'"),
        ({"x": {1, 2}}, "returned a set as 'x'"),
        ({"x": 1j}, "returned a complex as 'x'"),
        ({"x": b"text"}, "returned a bytes as 'x'"),
        ({"x": nn.ReLU()}, "returned a ReLU as 'x'"),
        (3, "names and numbers for the history, not a int"),
        ([("x", 1)], "names and numbers for the history, not a list"),
        ({"covered": True}, "returned 'covered', which the history has already"),
        ({"epsilon": 0.1}, "returned 'epsilon', which the history has already"),
        ({"test_loss": 0.1}, "returned 'test_loss', which the history has already"),
        ({"again": 0.1}, "returned 'again', which the history has already"),
    ],
)
def test_what_the_history_cannot_hold_is_refused_before_it_is_touched(
    toy: Any, said: Any, message: str, tmp_path: Path
) -> None:
    def bad(seen: Seen) -> Any:
        return said if seen.step == 3 else None  # which has a line with all there is in it

    with pytest.raises(ValueError, match=message) as failure:
        central_private(toy, out=tmp_path / "run", callbacks=[lambda seen: {"again": seen.step}, bad])
    assert "\n" not in str(failure.value)
    assert len((tmp_path / "run/history.jsonl").read_text().splitlines()) == 2


@PRIVATE
def test_a_callback_that_was_mended_goes_on_with_the_run(toy: Any, kind: str, tmp_path: Path) -> None:
    def good(seen: Seen) -> dict[str, int]:
        return {"number": seen.step}

    with pytest.raises(ValueError, match="returned a object as 'x'"):
        KINDS[kind](
            toy,
            out=tmp_path / "cut",
            callbacks=[good, lambda seen: {"x": object()} if seen.step == 6 else None],
        )
    KINDS[kind](toy, out=tmp_path / "cut", callbacks=[good], resume=True)
    KINDS[kind](toy, out=tmp_path / "whole", callbacks=[good])
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def test_a_list_that_holds_itself_is_refused(toy: Any) -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(ValueError, match="returned a list as 'x'"):
        central(toy, callbacks=[lambda seen: {"x": endless}])


def test_names_that_the_screen_knows_may_mean_something_else_to_a_callback(toy: Any) -> None:
    said = {"loss": "low", "client_rates": None, "left_out": 3, "test_my_accuracy": "fine"}
    run = central(toy, callbacks=[lambda seen: said], progress=False)
    assert run.history[-1]["loss"] == "low"
    assert run.metrics["test_my_accuracy"] == "fine"


# What is said in the end ----------------------------------------------------------------------------------------


def test_an_infinite_threshold_does_not_grow_nor_stop_a_run_that_goes_on(toy: Any, tmp_path: Path) -> None:
    """Read back from the history it is the word inf."""
    options: dict[str, Any] = {"noise_multiplier": 0.0, "clip": sd.Unclipped(), "algorithm": "fedavg"}

    def crash(seen: Seen) -> None:
        if seen.step == 5:
            raise Crash

    with pytest.raises(Crash):
        rounds(toy, out=tmp_path / "run", callbacks=[crash], **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conductor, "warn", lambda text: pytest.fail(text))
        run = rounds(toy, out=tmp_path / "run", resume=True, **options)
    assert run.history[0]["threshold"] == "inf"


def test_the_checkpoint_is_kept_only_on_request(toy: Any, tmp_path: Path) -> None:
    run = rounds_private(toy, out=tmp_path / "run", keep_checkpoint=True)
    assert run.summary["checkpoint_kept"] is True
    assert (tmp_path / "run/checkpoint/state.safetensors").exists()


def test_a_figure_that_cannot_be_drawn_costs_nothing_but_itself(
    toy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(closing, "drawn", lambda *_: 1 / 0)
    with pytest.warns(UserWarning, match=r"report.png could not be drawn \(ZeroDivisionError") as found:
        run = central(toy, out=tmp_path / "run")
    assert run.summary["status"] == "complete"
    assert found[0].filename == __file__


def test_a_callback_that_writes_to_the_model_is_stopped(toy: Any) -> None:
    with pytest.raises(ValueError, match="wrote to the model"):
        sd.train(
            new_model(), cross_entropy, toy, noise_multiplier=1.0, delta=1e-3, epochs=1, callbacks=[zeroing]
        )


def zeroing(seen: Any) -> None:
    seen.theta.zero_()


@pytest.mark.parametrize("name", ["epsilon", "status", "metrics", "rounds"])
def test_details_cannot_pass_for_what_the_run_says(toy: Any, name: str) -> None:
    with pytest.raises(ValueError, match="call it otherwise"):
        sd.train(
            new_model(), cross_entropy, toy, noise_multiplier=1.0, delta=1e-3, epochs=1, details={name: 0.1}
        )


def test_a_run_under_way_says_what_it_will_have_spent(toy: Any, tmp_path: Path) -> None:
    def crash(seen: Any) -> None:
        raise KeyboardInterrupt

    options: dict[str, Any] = {"noise_multiplier": 1.0, "delta": 1e-3, "epochs": 1, "accountant": "rdp"}
    with pytest.raises(KeyboardInterrupt):
        sd.train(new_model(), cross_entropy, toy, out=tmp_path / "run", callbacks=[crash], **options)
    said = json.loads((tmp_path / "run/run.json").read_text())
    assert said["status"] == "running"
    assert said["planned_epsilon"] == sd.train(new_model(), cross_entropy, toy, **options).epsilon
