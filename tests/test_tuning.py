"""Tuning: what it spends, what it shows, and that it goes on without spending again."""

from __future__ import annotations

import json
import math
import stat
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sordino.tuning.trials as trials_module
from conftest import cross_entropy
from sordino.data.inputs import Target
from sordino.data.npz import Arrays
from sordino.ledger import BeyondCap, LedgerError, LedgerFile
from sordino.noise import Streams
from sordino.privacy import compose, event_from_json, event_to_json, gaussian, price, repeat
from sordino.privacy.selection import POISSON, Stopping
from sordino.runs import Run
from sordino.tasks import Task, as_task
from sordino.tuning import abandon, tune
from sordino.tuning.candidates import candidates_of
from sordino.tuning.score import Score
from sordino.tuning.state import Seal, Standing

RATES = {"learning_rate": [0.01, 0.3, 3.0]}


def model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Linear(10, 3)


def tuned(toy: tuple[Tensor, Tensor], **given: Any) -> Run:
    usual: dict[str, Any] = {"over": RATES, "score": toy, "method": "dp-sgd", "budget": (3.0, 1e-3)}
    warnings.filterwarnings("ignore", "scores on so few rows")  # there are sixty
    usual |= {"epochs": 2, "batch_size": 12, "accountant": "rdp", "progress": False, "seed": 5}
    return tune(model(), cross_entropy, toy, **usual | given)


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


@pytest.fixture
def book(tmp_path: Path) -> LedgerFile:
    return LedgerFile(tmp_path / "ledger.db")


# What is tried ----------------------------------------------------------------------------------------------


def test_a_grid_has_every_combination() -> None:
    over: dict[str, list[float]] = {"learning_rate": [0.1, 1], "threshold": [1, 2, 3], "epochs": [5]}
    found = candidates_of(over, "dp-sgd")
    assert len(found) == 6
    assert {each.said for each in found} >= {"learning_rate=0.1, threshold=2, epochs=5"}
    assert {each.epochs for each in found} == {5}
    assert found[0].method != found[1].method


def test_a_list_has_what_it_says() -> None:
    found = candidates_of([{"method": "dp-sgd", "learning_rate": 0.1}, {"method": "auto"}], "auto")
    assert [each.method.name for each in found] == ["dp-sgd", "auto"]


@pytest.mark.parametrize(
    ("over", "says"),
    [
        ({}, "nothing to try"),
        ([], "nothing to try"),
        ({"learning_rate": []}, "give values"),
        ({"learning_rate": 0.1}, "give values"),
        ({"learning_rate": [0.1, 0.1]}, "twice"),
        ({"learning_rat": [0.1]}, "learning_rate"),
        ({"learning_rate": ["fast"]}, "number"),
        ("learning_rate", "over says what to try"),
        ({"method": ["sgd"]}, "without privacy"),
        ({"threshold": range(1, 200), "learning_rate": range(1, 200)}, "too many"),
    ],
)
def test_what_cannot_be_tried_is_refused_before_anything_runs(over: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        candidates_of(over, "dp-sgd")


# What it spends ---------------------------------------------------------------------------------------------


def test_a_grid_is_one_mechanism_within_the_budget(toy: tuple[Tensor, Tensor]) -> None:
    run = tuned(toy)
    event, plan = event_from_json(run.certificate["events"]), run.summary["tuning"]
    steps, rate = 2 * 5, 12 / 60
    one = {
        "type": "poisson_sampled",
        "sampling_rate": rate,
        "event": event_to_json(gaussian(plan["noise_multiplier"])),
    }
    expected = compose(
        [repeat(event_from_json(one), 3 * steps), repeat(gaussian(plan["score"]["noise_multiplier"]), 3)]
    )
    assert price(event, 1e-3, "rdp").epsilon == pytest.approx(price(expected, 1e-3, "rdp").epsilon, rel=1e-12)
    assert 2.99 < run.epsilon <= 3


def test_every_candidate_had_the_noise_that_was_priced(toy: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    run = tuned(toy, out=tmp_path / "run")
    for number in (1, 2, 3):
        summary = json.loads((tmp_path / "run/candidates" / str(number) / "run.json").read_text())
        assert summary["noise_multiplier"] == run.summary["noise_multiplier"]
        assert summary["epsilon"] < run.epsilon


def test_a_selection_costs_what_its_event_says(toy: tuple[Tensor, Tensor]) -> None:
    run = tuned(toy, stopping=Stopping(4.0))
    stated = run.certificate["events"]
    assert (stated["type"], stated["mean"], stated["shape"]) == ("repeat_and_select", 4.0, 1.0)
    assert price(event_from_json(stated), 1e-3, "rdp").epsilon == run.epsilon
    assert 2.99 < run.epsilon <= 3


def test_scores_on_public_rows_cost_nothing_and_are_exact(toy: tuple[Tensor, Tensor]) -> None:
    run = tuned(toy, score_is_public=True)
    assert run.summary["noise_multiplier"] < tuned(toy).summary["noise_multiplier"]
    right = (run.model(toy[0]).argmax(1) == toy[1]).float().mean()
    assert run.summary["tuning"]["winning_score"] == pytest.approx(float(right))
    assert any("scored on are public" in each for each in run.certificate["assumptions"])


def test_candidates_of_a_selection_must_cost_the_same(toy: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(ValueError, match="do not cost the same"):
        tuned(toy, over={"batch_size": [6, 12]}, stopping=Stopping(2.0))
    assert len(tuned(toy, over={"batch_size": [6, 12]}).summary["tuning"]["table"]) == 2


def test_candidates_that_cost_the_same_at_other_noise_only_are_refused() -> None:
    """A count of a quantile has noise of at least a twentieth of the batch: alike at noise 1, and not below."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(1240, 10, generator=generator), torch.randint(3, (1240,), generator=generator)
    keywords: dict[str, Any] = {"method": "dp-ftrl", "settings": {"target_quantile": 0.5}, "epochs": 1}
    keywords |= {"over": {"batch_size": [19, 10]}, "stopping": Stopping(2.0), "budget": (30.0, 1e-5)}
    with pytest.raises(ValueError, match="do not cost the same"):
        tuned(rows, **keywords, batch_size=None)


def test_the_best_score_wins(toy: tuple[Tensor, Tensor]) -> None:
    run = tuned(toy, score_is_public=True, budget=(50.0, 1e-3))
    table = run.summary["tuning"]["table"]
    best = max(table, key=lambda line: line["score"])
    assert run.summary["tuning"]["winner"] == {"learning_rate": best["learning_rate"]}
    assert len({line["score"] for line in table}) > 1


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"budget": None}, "needs a budget"),
        ({"noise_multiplier": 1.0}, "leave out noise_multiplier"),
        ({"callbacks": [print]}, "callbacks would see"),
        ({"show_unprotected": True}, "not covered"),
        ({"keep_checkpoint": True}, "keeps no checkpoint"),
        ({"groups": torch.arange(60) // 2}, "score_groups"),
        ({"score": (torch.zeros(5, 4), torch.zeros(5).long())}, "score cannot be computed"),
        ({"worth": lambda scores, targets: scores}, "one number from 0 to 1"),
        ({"resume": True}, "give its directory"),
    ],
)
def test_bad_calls_are_one_line_before_anything_is_spent(
    toy: tuple[Tensor, Tensor], book: LedgerFile, given: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        tuned(toy, ledger=book, data_name="toy", **given)
    assert not book.path.exists() or not book.runs()


# The score --------------------------------------------------------------------------------------------------


def scored(data: Any, network: nn.Module, **given: Any) -> Score:
    return Score(data, as_task(cross_entropy), **given)


@pytest.mark.parametrize(("wrong", "passes"), [(1.0, True), (2 / 3, False), (3 / 2, False)])
def test_the_noise_of_a_score_is_what_was_priced(
    toy: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch, wrong: float, passes: bool
) -> None:
    network, score = model(), scored(toy, model())
    monkeypatch.setattr("sordino.tuning.score._ROOM", 1.001 * wrong)
    exact = Score(toy, as_task(cross_entropy), public=True).of(network, Streams.from_seed(0), 0)
    draws = np.array([score.of(network, Streams.from_seed(seed), 3) for seed in range(2000)])
    deviation = (draws - exact).std() * 60 / score.noise_multiplier
    assert bool(0.94 < deviation < 1.06) is passes
    assert abs((draws - exact).mean() * 60) < 5 * score.noise_multiplier / math.sqrt(2000)


def test_a_score_asked_for_again_is_the_same_and_another_candidates_is_not(
    toy: tuple[Tensor, Tensor],
) -> None:
    network, score, streams = model(), scored(toy, model()), Streams.from_seed(1)
    assert score.of(network, streams, 4) == score.of(network, streams, 4) != score.of(network, streams, 5)


def test_one_unit_moves_a_score_by_one_over_n_at_most(toy: tuple[Tensor, Tensor]) -> None:
    inputs, targets = toy
    network = model()

    def exact(rows: Any, **given: Any) -> float:
        return Score(rows, as_task(cross_entropy), public=True, **given).of(network, Streams.from_seed(0), 0)

    before = exact(toy)
    for value in (math.nan, math.inf, 1e30, -1e30, 0.0):
        changed = inputs.clone()
        changed[7] = value
        assert abs(exact((changed, targets)) - before) <= 1 / 60 + 1e-12
    users = torch.arange(60) // 6
    before = exact(toy, groups=users)
    changed = inputs.clone()
    changed[users == 2] = math.nan
    assert abs(exact((changed, targets), groups=users) - before) <= 1 / 10 + 1e-12


def test_worth_beyond_its_bounds_is_cut_off(toy: tuple[Tensor, Tensor]) -> None:
    for value, expected in ((5.0, 1.0), (-5.0, 0.0), (math.nan, 0.0)):

        def worth(scores: Tensor, targets: Tensor, value: float = value) -> Tensor:
            return torch.full((len(targets),), value)

        score = Score(toy, as_task(cross_entropy), worth=worth, public=True)
        assert score.of(model(), Streams.from_seed(0), 0) == expected


class _Fragile(nn.Module):
    """Fails on rows that begin with a large number."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = model()

    def forward(self, inputs: Tensor) -> Tensor:
        if bool((inputs[:, 0] > 100).any()):
            raise IndexError("row 104.5 is out of range")
        out: Tensor = self.inner(inputs)
        return out


def test_a_row_that_cannot_be_computed_is_worth_nothing_and_moves_no_other(
    toy: tuple[Tensor, Tensor],
) -> None:
    inputs, targets = toy
    network = _Fragile()
    right = network.inner(inputs).argmax(1) == targets
    broken = inputs.clone()
    broken[5, 0] = broken[9, 0] = 1000.0
    right[[5, 9]] = False
    score = Score((broken, targets), as_task(cross_entropy), public=True)
    assert score.of(network, Streams.from_seed(0), 0) == pytest.approx(float(right.double().mean()))


def r_squared(scores: Tensor, targets: Tensor) -> Tensor:
    """What looks at all rows of a batch."""
    right = (scores.argmax(1) == targets).double()
    return right - right.mean() + 0.5


def only_some(scores: Tensor, targets: Tensor) -> Tensor:
    return (scores.argmax(1) == targets)[targets != -100]


def test_a_worth_that_looks_at_other_rows_is_refused(toy: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(ValueError, match="must not look at other examples"):
        tuned(toy, worth=r_squared)


def test_a_row_for_which_worth_gives_nothing_is_worth_nothing(toy: tuple[Tensor, Tensor]) -> None:
    inputs, targets = toy[0], toy[1].clone()
    network = model()
    right = network(inputs).argmax(1) == targets
    targets[[4, 30]] = -100
    right[[4, 30]] = False
    score = Score((inputs, targets), as_task(cross_entropy), worth=only_some, public=True)
    assert score.of(network, Streams.from_seed(0), 0) == pytest.approx(float(right.double().mean()))


@pytest.mark.parametrize("stopping", [None, Stopping(5.0)], ids=["grid", "selection"])
def test_scores_cost_a_quarter_of_the_budget_at_most(
    toy: tuple[Tensor, Tensor], stopping: Stopping | None
) -> None:
    with pytest.warns(UserWarning, match="noise of .* points"):
        run = tune(
            model(), cross_entropy, toy, over=RATES, score=toy, method="dp-sgd", budget=(0.5, 1e-3), epochs=1,
            accountant="rdp", progress=False, seed=1, stopping=stopping,
        )  # fmt: skip
    one = gaussian(run.summary["tuning"]["score"]["noise_multiplier"])
    scores = repeat(one, 3) if stopping is None else stopping.select(one)
    assert 0.12 < price(scores, 1e-3, "rdp").epsilon <= 0.125


def test_who_chooses_is_promised_something_too(toy: tuple[Tensor, Tensor]) -> None:
    judges = toy[0][:20] + 1, toy[1][:20]
    assert tuned(toy, score=judges).certificate["guarantee"]["units"] == 80
    assert tuned(toy).certificate["guarantee"]["units"] == 60
    assert tuned(toy, score=judges, score_is_public=True).certificate["guarantee"]["units"] == 60


class _Particular(nn.Module):
    """Fails on rows that were made up, whose numbers lie between 0 and 1."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = model()

    def forward(self, inputs: Tensor) -> Tensor:
        if bool((inputs >= 0).all()):
            raise ValueError("no such rows")
        out: Tensor = self.inner(inputs)
        return out


def test_a_model_that_cannot_run_on_made_up_rows_takes_public_ones(toy: tuple[Tensor, Tensor]) -> None:
    keywords: dict[str, Any] = {
        "over": RATES,
        "score": toy,
        "method": "dp-sgd",
        "budget": (30.0, 1e-3),
        "epochs": 1,
    }
    keywords |= {"accountant": "rdp", "progress": False, "score_is_public": True}
    with pytest.raises(ValueError, match="made-up rows"):
        tune(_Particular(), cross_entropy, toy, **keywords)
    public = toy[0][:5] - 5, toy[1][:5]
    assert tune(_Particular(), cross_entropy, toy, template=public, **keywords).epsilon <= 30


def test_a_tuning_by_users_scores_users(toy: tuple[Tensor, Tensor]) -> None:
    users = torch.arange(60) // 3
    run = tuned(toy, groups=users, score_groups=users)
    assert run.summary["unit"] == "user"
    assert run.summary["tuning"]["score"]["units"] == 20


def test_a_task_of_ones_own_needs_its_worth(toy: tuple[Tensor, Tensor]) -> None:
    inputs = toy[0]
    task = Task(lambda scores, y: (scores.squeeze(1) - y).square())
    rows = inputs, inputs[:, 0]

    def closeness(scores: Tensor, targets: Tensor) -> Tensor:
        return (1 - (scores.squeeze(1) - targets).abs()).clamp(0, 1)

    keywords: dict[str, Any] = {"over": RATES, "score": rows, "method": "dp-sgd", "budget": (3.0, 1e-3)}
    keywords |= {"epochs": 1, "accountant": "rdp", "progress": False}
    with pytest.raises(ValueError, match="worth="):
        tune(nn.Linear(10, 1), task, rows, **keywords)
    run = tune(nn.Linear(10, 1), task, rows, worth=closeness, **keywords)
    assert run.summary["tuning"]["score"]["of"] == "closeness"


# What a selection shows -------------------------------------------------------------------------------------


def test_a_selection_shows_the_winner_alone(toy: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    run = tuned(toy, stopping=Stopping(6.0), out=tmp_path / "run", seed=None)
    written = {path.name for path in (tmp_path / "run").rglob("*")}
    assert written == {"run.json", "history.jsonl", "certificate.json", "model.safetensors"} | {
        "report.png",
        "report.html",
    }
    summary = json.loads((tmp_path / "run/run.json").read_text())
    assert summary["tuning"]["table"] is None
    assert not {"seconds", "peak_memory_mib", "runs_begun"} & summary.keys()
    assert run.summary["tuning"]["winner"] is not None


def test_how_many_runs_there_were_shows_nowhere(
    toy: tuple[Tensor, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """The same selection with one run and with seven: everything that is written or printed is alike but the winner."""
    seen = []
    for runs in (1, 7):
        book = LedgerFile(tmp_path / f"{runs}.db")
        monkeypatch.setattr(Stopping, "runs", lambda self, uniform, runs=runs: runs)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            run = tuned(toy, stopping=Stopping(3.0), ledger=book, data_name="toy", progress=True)
        record = book.runs("toy")[0]
        seen.append((record.charges, record.epsilon, set(run.summary), len(run.history), capsys.readouterr()))
    assert seen[0] == seen[1]


def test_nobody_hears_that_a_candidate_diverged(
    toy: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stopping, "runs", lambda *_: 2)
    over = {"learning_rate": [1e38]}
    with pytest.warns(UserWarning, match="diverged"):
        tuned(toy, over=over, epochs=20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tuned(toy, over=over, epochs=20, stopping=Stopping(2.0))


def test_losers_are_deleted_and_the_best_is_sealed(
    toy: tuple[Tensor, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stopping, "runs", lambda *_: 5)
    folder, seen = tmp_path / "run/checkpoint", []
    forget = trials_module._forget

    def look(at: Path, keep: str) -> None:
        forget(at, keep)
        seen.append(sorted(path.name for path in at.iterdir()))
        sealed = (at / keep).read_bytes()
        assert b"learning_rate" not in sealed
        assert b"weight" not in sealed
        assert stat.S_IMODE(at.stat().st_mode) == 0o700
        assert stat.S_IMODE((at / keep).stat().st_mode) == 0o600

    monkeypatch.setattr(trials_module, "_forget", look)
    tuned(toy, stopping=Stopping(3.0), out=tmp_path / "run")
    assert len(seen) == 5
    assert all(len(names) == 2 and names[-1] == "tuning.safetensors" for names in seen)
    assert not folder.exists()


def test_the_number_of_runs_is_drawn_before_the_first_and_follows_from_the_key(
    toy: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[float] = []

    def noted(uniform: float) -> int:
        drawn.append(uniform)
        return 1

    monkeypatch.setattr(Stopping, "runs", lambda self, uniform: noted(uniform))
    for seed in (1, 1, 2):
        tuned(toy, stopping=Stopping(3.0), seed=seed)
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(0 <= each < 1 for each in drawn)


def test_with_no_run_at_all_nothing_is_selected(
    toy: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stopping, "runs", lambda *_: 0)
    with pytest.warns(UserWarning, match="no run was made"):
        run = tuned(toy, stopping=Stopping(2.0, POISSON))
    assert run.summary["tuning"]["winner"] is None
    assert same_weights(run.model, model())
    assert 2.9 < run.epsilon <= 3


def test_candidates_are_drawn_evenly(toy: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def trained(self: Any, number: int, candidate: Any, *_: Any) -> nn.Module:
        tried.append(candidate.said)
        raise KeyboardInterrupt

    monkeypatch.setattr(Stopping, "runs", lambda *_: 1)
    monkeypatch.setattr(trials_module.Trials, "trained", trained)
    for seed in range(150):
        with pytest.raises(KeyboardInterrupt):
            tuned(toy, stopping=Stopping(3.0), seed=seed)
    counts = [tried.count(name) for name in sorted(set(tried))]
    assert len(counts) == 3
    assert min(counts) > 30


def test_a_seal_that_was_changed_is_not_opened() -> None:
    seal = Seal(Streams.from_seed(1))
    sealed = bytearray(seal.close(b"the winner"))
    assert seal.open(bytes(sealed)) == b"the winner"
    sealed[-1] ^= 1
    with pytest.raises(ValueError, match="was changed"):
        seal.open(bytes(sealed))
    with pytest.raises(ValueError, match="was changed"):
        Seal(Streams.from_seed(2)).open(seal.close(b"the winner"))


# Interrupted and resumed ------------------------------------------------------------------------------------


class _Interrupted(BaseException):
    pass


def interrupted(monkeypatch: pytest.MonkeyPatch, where: str, after: int, before_it: bool) -> None:
    """Stop at the call of this number, before it is made or when it is done."""
    real, calls = getattr(trials_module.Trials, where), [0]

    def counted(self: Any, *given: Any) -> Any:
        calls[0] += 1
        if calls[0] == after and before_it:
            raise _Interrupted
        result = real(self, *given)
        if calls[0] == after:
            raise _Interrupted
        return result

    monkeypatch.setattr(trials_module.Trials, where, counted)


@pytest.mark.parametrize("stopping", [None, Stopping(3.0)], ids=["grid", "selection"])
@pytest.mark.parametrize(
    ("where", "after", "before_it"),
    [
        ("trained", 2, True),
        ("trained", 2, False),
        ("scored", 2, False),
        ("save", 2, True),
        ("save", 2, False),
    ],
)
def test_an_interrupted_tuning_goes_on_the_same_and_spends_nothing_more(
    toy: tuple[Tensor, Tensor],
    book: LedgerFile,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stopping: Stopping | None,
    where: str,
    after: int,
    before_it: bool,
) -> None:
    monkeypatch.setattr(Stopping, "runs", lambda *_: 3)
    whole = tuned(toy, stopping=stopping, ledger=book, data_name="whole")
    keywords: dict[str, Any] = {
        "stopping": stopping,
        "ledger": book,
        "data_name": "parts",
        "out": tmp_path / "run",
    }
    with monkeypatch.context() as patch:
        interrupted(patch, where, after, before_it)
        with pytest.raises(_Interrupted):
            tuned(toy, **keywords)
    assert book.runs("parts")[0].state == "open"
    again = tuned(toy, **keywords, resume=True)
    assert same_weights(again.model, whole.model)
    assert again.summary["tuning"] == whole.summary["tuning"]
    one, other = book.runs("whole")[0], book.runs("parts")[0]
    assert (other.state, other.charges, other.epsilon) == ("closed", one.charges, one.epsilon)
    book.verify()


def test_a_candidate_interrupted_in_the_middle_goes_on(
    toy: tuple[Tensor, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sordino.descent import Descent

    whole = tuned(toy)
    real, steps = Descent.step, [0]

    def step(self: Any, number: int) -> bool:
        steps[0] += 1
        if steps[0] == 17:
            raise _Interrupted
        return real(self, number)

    with monkeypatch.context() as patch:
        patch.setattr(Descent, "step", step)
        with pytest.raises(_Interrupted):
            tuned(toy, out=tmp_path / "run")
    assert (tmp_path / "run/candidates/2/checkpoint").exists()
    again = tuned(toy, out=tmp_path / "run", resume=True)
    assert again.summary["tuning"]["table"] == whole.summary["tuning"]["table"]


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"over": {"learning_rate": [0.01, 0.3]}}, "candidates"),
        ({"budget": (2.0, 1e-3)}, "budget"),
        ({"stopping": Stopping(3.0)}, "protocol"),
        ({"score": (torch.ones(60, 10), torch.zeros(60).long())}, "rows of the score"),
        ({"settings": {"threshold": 50.0}}, "methods"),
        ({"worth": lambda scores, targets: scores.argmax(1) != targets}, "model or loss"),
        ({"groups": torch.arange(60) // 2, "score_groups": torch.arange(60) // 2}, "groups"),
    ],
)
def test_another_tuning_is_not_resumed(
    toy: tuple[Tensor, Tensor],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changed: dict[str, Any],
    says: str,
) -> None:
    with monkeypatch.context() as patch:
        interrupted(patch, "trained", 1, True)
        with pytest.raises(_Interrupted):
            tuned(toy, out=tmp_path / "run")
    with pytest.raises(ValueError, match=says):
        tuned(toy, out=tmp_path / "run", resume=True, **changed)


def test_a_complete_tuning_is_not_resumed_nor_overwritten(toy: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    tuned(toy, out=tmp_path / "run")
    with pytest.raises(ValueError, match="complete"):
        tuned(toy, out=tmp_path / "run", resume=True)
    with pytest.raises(ValueError, match="not empty"):
        tuned(toy, out=tmp_path / "run")
    with pytest.raises(ValueError, match=r"nothing to resume|no interrupted"):
        abandon(tmp_path / "run")


def test_other_users_are_another_tuning(
    toy: tuple[Tensor, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users, others = torch.arange(60) // 3, torch.arange(60) % 20
    with monkeypatch.context() as patch:
        interrupted(patch, "trained", 1, False)
        with pytest.raises(_Interrupted):
            tuned(toy, out=tmp_path / "run", groups=users, score_groups=users)
    with pytest.raises(ValueError, match="groups"):
        tuned(toy, out=tmp_path / "run", groups=others, score_groups=users, resume=True)
    with pytest.raises(ValueError, match="groups of the score"):
        tuned(toy, out=tmp_path / "run", groups=users, score_groups=others, resume=True)


def test_a_grid_leaves_no_key_and_one_certificate(
    toy: tuple[Tensor, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after a candidate's run.json and before its checkpoint was deleted."""
    with monkeypatch.context() as patch:
        patch.setattr("sordino.runs.closing.delete_checkpoint", lambda _: None)
        interrupted(patch, "scored", 1, True)
        with pytest.raises(_Interrupted):
            tuned(toy, out=tmp_path / "run")
    assert (tmp_path / "run/candidates/1").exists()
    tuned(toy, out=tmp_path / "run", resume=True)
    names = [path.relative_to(tmp_path / "run").as_posix() for path in (tmp_path / "run").rglob("*")]
    assert not [name for name in names if "checkpoint" in name]
    assert [name for name in names if name.endswith("certificate.json")] == ["certificate.json"]


def test_a_candidate_that_was_put_there_is_not_taken_for_ours(
    toy: tuple[Tensor, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sordino.training import train

    with monkeypatch.context() as patch:
        interrupted(patch, "trained", 1, True)
        with pytest.raises(_Interrupted):
            tuned(toy, out=tmp_path / "run")
    without_noise: dict[str, Any] = {
        "noise_multiplier": 0.0,
        "epochs": 2,
        "batch_size": 12,
        "progress": False,
    }
    train(model(), cross_entropy, toy, method="dp-sgd", out=tmp_path / "run/candidates/1", **without_noise)
    with pytest.raises(ValueError, match="not hold the candidate"):
        tuned(toy, out=tmp_path / "run", resume=True)


def test_what_is_finished_but_for_its_last_file_is_not_abandoned(
    toy: tuple[Tensor, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("sordino.tuning.closing.forget_candidates_keys", interrupt)
        with pytest.raises(_Interrupted):
            tuned(toy, out=tmp_path / "run", stopping=Stopping(2.0))
    with pytest.raises(ValueError, match="finished but for its last file"):
        abandon(tmp_path / "run")
    assert tuned(toy, out=tmp_path / "run", stopping=Stopping(2.0), resume=True).epsilon <= 3


def interrupt(*_: Any) -> None:
    raise _Interrupted


# In a ledger ------------------------------------------------------------------------------------------------


def test_a_grid_is_counted_with_all_its_events(toy: tuple[Tensor, Tensor], book: LedgerFile) -> None:
    run = tuned(toy, ledger=book, data_name="toy")
    (record,) = book.runs("toy")
    assert (record.kind, record.state, record.charges) == ("grid", "closed", 3 * 10 + 3)
    assert record.epsilon == pytest.approx(run.epsilon, rel=1e-9)
    assert run.summary["ledger"]["run"] == record.run


def test_a_selection_is_paid_as_a_whole_before_its_first_run(
    toy: tuple[Tensor, Tensor], book: LedgerFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = trials_module.Trials.trained

    def look(self: Any, *given: Any) -> Any:
        (record,) = book.runs("toy")
        assert record.charges == 1
        return real(self, *given)

    monkeypatch.setattr(trials_module.Trials, "trained", look)
    run = tuned(toy, ledger=book, data_name="toy", stopping=Stopping(2.0))
    (record,) = book.runs("toy")
    assert (record.kind, record.state) == ("selection", "closed")
    assert record.epsilon == pytest.approx(run.epsilon, rel=1e-9)


def test_a_tuning_that_does_not_fit_is_refused_and_trains_nothing(
    toy: tuple[Tensor, Tensor], book: LedgerFile, tmp_path: Path
) -> None:
    book.cap("toy", epsilon=1.0, delta=1e-3)
    with pytest.raises(BeyondCap, match="no room"):
        tuned(toy, ledger=book, data_name="toy", out=tmp_path / "run")
    assert not book.runs("toy")
    assert not (tmp_path / "run/candidates").exists()


def test_a_tuning_that_was_refused_leaves_room_for_a_smaller_one(
    toy: tuple[Tensor, Tensor], book: LedgerFile, tmp_path: Path
) -> None:
    book.cap("toy", epsilon=2.0, delta=1e-3)
    with pytest.raises(BeyondCap):
        tuned(toy, ledger=book, data_name="toy", out=tmp_path / "run", budget=(5.0, 1e-3))
    assert tuned(toy, ledger=book, data_name="toy", out=tmp_path / "run", budget=(0.8, 1e-3)).epsilon <= 0.8


@pytest.mark.parametrize("stopping", [None, Stopping(3.0)], ids=["grid", "selection"])
def test_interrupted_before_anything_was_paid_it_can_be_resumed(
    toy: tuple[Tensor, Tensor],
    book: LedgerFile,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stopping: Stopping | None,
) -> None:
    keywords: dict[str, Any] = {
        "ledger": book,
        "data_name": "toy",
        "out": tmp_path / "run",
        "stopping": stopping,
    }
    with monkeypatch.context() as patch:
        patch.setattr("sordino.ledger.Account.saw", interrupt)
        with pytest.raises(_Interrupted):
            tuned(toy, **keywords)
    tuned(toy, **keywords, resume=True)
    assert book.runs("toy")[0].state == "closed"


def test_the_ledger_says_what_every_output_says_and_not_how_long_a_selection_took(
    toy: tuple[Tensor, Tensor], book: LedgerFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter(f"2026-01-01T00:00:{second:02d}+00:00" for second in range(60))
    monkeypatch.setattr("sordino.ledger.account.now", lambda: next(times))
    monkeypatch.setattr("sordino.ledger.book.now", lambda: next(times))
    run = tuned(toy, ledger=book, data_name="toy", stopping=Stopping(2.0), sampling="shuffled-as-poisson")
    (record,) = book.runs("toy")
    assert "NOT A GUARANTEE" in record.caveat
    assert "known seed" in record.caveat
    created = {entry["kind"]: entry["body"].get("created") for entry in book.export()}
    assert created["close"] == created["reserve"]
    assert len(run.certificate["created"]) == len("2026-01-01")


@pytest.mark.parametrize("stopping", [None, Stopping(3.0)], ids=["grid", "selection"])
def test_a_certificate_of_a_tuning_is_verified_with_its_ledger_and_only_as_it_is(
    toy: tuple[Tensor, Tensor], book: LedgerFile, tmp_path: Path, stopping: Stopping | None
) -> None:
    from sordino.privacy.sealing import sealed
    from sordino.verifying import verify

    path = tmp_path / "run/certificate.json"
    tuned(toy, ledger=book, data_name="toy", out=tmp_path / "run", stopping=stopping, seed=None)
    assert verify(path, ledger=book.path).stands
    written = json.loads(path.read_text())
    first = {"length": 1, "head": book.export()[0]["hash"]}
    for change in (
        {"events": written["events"]["event"]} if stopping else {},
        {"ledger": {**written["ledger"], **first}},
    ):
        if change:
            path.write_text(json.dumps(sealed({**written, **change})))
            with pytest.raises(ValueError, match="hold"):
                verify(path, ledger=book.path)
    if stopping is not None:
        kept = [each for each in written["assumptions"] if "nobody learns" not in each]
        path.write_text(json.dumps(sealed({**written, "assumptions": kept})))
        with pytest.raises(ValueError, match="private selection"):
            verify(path, ledger=book.path)


def test_a_tuning_begun_in_one_ledger_goes_on_in_no_other(
    toy: tuple[Tensor, Tensor], book: LedgerFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keywords: dict[str, Any] = {"out": tmp_path / "run", "data_name": "toy"}
    with monkeypatch.context() as patch:
        interrupted(patch, "trained", 2, True)
        with pytest.raises(_Interrupted):
            tuned(toy, ledger=book, **keywords)
    for other in (None, tmp_path / "other.db"):
        with pytest.raises(ValueError, match="another ledger"):
            tuned(toy, ledger=other, resume=True, **keywords)
    with pytest.raises(ValueError, match="counted in a ledger"):
        abandon(tmp_path / "run", ledger=tmp_path / "other.db")
    assert not (tmp_path / "other.db").exists()


def test_what_a_ledger_cannot_count_is_refused_before_anything_is_written(
    toy: tuple[Tensor, Tensor], book: LedgerFile, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="data_name"):
        tuned(toy, ledger=book, out=tmp_path / "run")
    with pytest.raises(ValueError, match="give the ledger's file"):
        tuned(toy, ledger=book.reserve("toy", gaussian(9.0)), data_name="toy", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("begun", [1, 3])
def test_an_abandoned_selection_counts_as_the_runs_that_were_begun(
    toy: tuple[Tensor, Tensor], book: LedgerFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: int
) -> None:
    monkeypatch.setattr(Stopping, "runs", lambda *_: 5)
    keywords: dict[str, Any] = {"stopping": Stopping(3.0), "out": tmp_path / "run"}
    with monkeypatch.context() as patch:
        interrupted(patch, "trained", begun, False)
        with pytest.raises(_Interrupted):
            tuned(toy, ledger=book, data_name="toy", **keywords)
    run_event = event_from_json(Standing.load(tmp_path / "run/checkpoint").pinned["runs"][0])  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="counted in a ledger"):
        abandon(tmp_path / "run")
    with pytest.raises(LedgerError, match="where it was begun"):
        book.close(book.runs("toy")[0].run)
    summary = abandon(tmp_path / "run", ledger=book)
    (record,) = book.runs("toy")
    expected = price(repeat(run_event, begun), 1e-3, "rdp").epsilon
    assert (record.state, summary["status"], summary["runs_begun"]) == ("closed", "abandoned", begun)
    assert record.epsilon == pytest.approx(expected, rel=1e-9)
    assert {path.name for path in (tmp_path / "run").iterdir()} == {"run.json", "history.jsonl"}
    book.verify()


def test_a_selection_that_cannot_be_resumed_counts_as_its_runs(
    toy: tuple[Tensor, Tensor], book: LedgerFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Stopping, "runs", lambda *_: 5)
    interrupted(monkeypatch, "trained", 2, False)
    with pytest.raises(_Interrupted):
        tuned(toy, ledger=book, data_name="toy", stopping=Stopping(3.0))
    (record,) = book.runs("toy")
    assert record.state == "closed"
    assert event_to_json(record.event)["type"] in ("repeated", "composed")


def test_an_abandoned_grid_frees_what_it_has_not_spent(
    toy: tuple[Tensor, Tensor], book: LedgerFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        interrupted(patch, "trained", 2, True)
        with pytest.raises(_Interrupted):
            tuned(toy, ledger=book, data_name="toy", out=tmp_path / "run")
    abandon(tmp_path / "run", ledger=book)
    (record,) = book.runs("toy")
    assert (record.state, record.charges) == ("closed", 11)
    assert not (tmp_path / "run/candidates").exists()


@pytest.mark.figures
def test_its_page_says_what_raw_rows_are(toy: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    inputs = Arrays(Target("kind", ("oak", "elm", "ash")), (10,))
    tuned(toy, inputs=inputs, out=tmp_path / "run")
    page = (tmp_path / "run" / "report.html").read_text()
    assert "inputs.json" not in page
    assert "oak, elm, ash" in page


def test_the_figure_says_that_it_is_of_the_best(toy: tuple[Tensor, Tensor]) -> None:
    from sordino.report.account import Account
    from sordino.report.words import settings

    run = tuned(toy, score=(toy[0][:20] + 1, toy[1][:20]), test=toy)
    said = dict(settings(Account(run.summary, run.history)))
    assert said["best of"] == "a grid of 3 candidates; epsilon is of all"
    assert said["batch"].startswith("12 of 60")
    assert run.history[-1]["test_accuracy"] == run.metrics["test_accuracy"]
