"""Runs whose inputs are standardised: when they are, what it costs, and what comes out."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sordino as sd
from conftest import cross_entropy
from conftest import sordino as command
from sordino.data.inputs import Target
from sordino.data.npz import Arrays
from sordino.gate import ExampleGate
from sordino.ledger import LedgerFile
from sordino.privacy import compose, event_from_json, gaussian, price
from sordino.privacy.events import leaves
from sordino.runs.before import Before
from sordino.standardise.folding import Standardised
from sordino.standardise.standardiser import Standardiser
from sordino.verifying import verify

BUDGET = (3.0, 1e-4)
RELEASE = Standardiser.release
SCALES = torch.tensor([1.0, 100.0, 0.01, 1.0])
SHIFTS = torch.tensor([0.0, 500.0, 1.0, 0.0])


def table(n: int = 900, seed: int = 0) -> tuple[Tensor, Tensor]:
    x = torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))
    return x * SCALES + SHIFTS, (x[:, 0] + x[:, 1] > 0).long()


class Skips(nn.Module):
    """Nothing that the moments could be folded into."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(self.inner(x).tanh() + x)
        return output


def network(kind: type[nn.Module] = nn.Linear) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return Skips() if kind is Skips else nn.Linear(4, 2)


def trained(model: nn.Module | None = None, data: Any = None, **settings: Any) -> sd.Run:
    usual: dict[str, Any] = {
        "budget": BUDGET, "epochs": 3, "batch_size": 90, "seed": 3, "accountant": "rdp", "progress": False,
    }  # fmt: skip
    settings = {**usual, **settings}
    return sd.train(model or network(), cross_entropy, data or table(), **settings)


def weights(run: sd.Run) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in run.model.state_dict().items()}


def same(one: sd.Run, other: sd.Run) -> bool:
    mine, theirs = weights(one), weights(other)
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


def turns(run: sd.Run) -> int:
    """How often one unit may take part: once in as many batches as there are bands."""
    batches, bands = run.summary["batches"], run.summary["method"]["noise"]["bands"]
    assert bands == 3
    return int(-(-batches // bands))


# When -------------------------------------------------------------------------------------------------------


def test_the_default_method_standardises_with_a_budget_and_no_other_method_does() -> None:
    assert trained().summary["standardise"]["how"] == "private"
    assert "standardise" not in trained(standardise="none").summary
    assert "standardise" not in trained(budget=None, noise_multiplier=1.0, delta=1e-4).summary
    assert "standardise" not in trained(method="dp-sgd").summary
    assert trained(method="dp-sgd", standardise="private").summary["standardise"]["how"] == "private"


def test_whole_numbers_dicts_and_other_shapes_stay_as_they_are_by_default() -> None:
    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(9, 3), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.head(self.embedding(x).mean(1))
            return output

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.head(x)
            return output

    x, y = table(300)
    generator = torch.Generator().manual_seed(0)
    cases: list[tuple[nn.Module, Any]] = [
        (Tokens(), (torch.randint(0, 9, (300, 5), generator=generator), y)),
        (Named(), ({"x": x}, y)),
        (nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), (x.view(300, 2, 2), y)),
    ]
    for model, data in cases:
        assert "standardise" not in trained(model, data).summary
        with pytest.raises(ValueError, match="inputs are standardised if they are one tensor"):
            trained(model, data, standardise="private")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("publik", "standardise is none, private, or public:MEAN,STD"),
        ("public:1", "two numbers"),
        ("public:a,b", "two numbers"),
        ("public:0,0", "one above 0"),
        ("public:nan,1", "a finite number"),
        (3, "a pair"),
        ((torch.zeros(3), 1.0), "one for each of 4 features"),
    ],
)
def test_what_cannot_be_meant_is_one_line(given: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        trained(standardise=given)
    assert "\n" not in str(refused.value)


def test_a_noise_multiplier_leaves_no_part_of_a_budget() -> None:
    with pytest.raises(ValueError, match="takes a part of the budget"):
        trained(budget=None, noise_multiplier=1.0, delta=1e-4, standardise="private")
    with pytest.raises(ValueError, match="takes a part of the budget"):
        trained(method="sgd", budget=None, standardise="private")


def test_whoever_asked_is_told_where_units_are_too_few() -> None:
    x = torch.randn(150, 40)
    data = x, (x[:, 0] > 0).long()
    with pytest.warns(
        UserWarning, match="too few for an offset and a deviation of each of 40 inputs: one of each"
    ):
        run = trained(nn.Linear(40, 2), data, standardise="private")
    assert run.summary["standardise"]["one_scale"]
    with pytest.warns(UserWarning, match="too few to standardise by: inputs stay as they are"):
        run = trained(nn.Linear(40, 2), (x[:20], data[1][:20]), standardise="private", batch_size=10)
    assert "standardise" not in run.summary


def test_public_moments_cost_nothing_and_say_the_same_as_scaled_rows() -> None:
    x, y = table()
    by_hand = trained(data=((x - SHIFTS) / SCALES, y), standardise="none")
    public = trained(standardise=(SHIFTS, SCALES))
    assert public.epsilon == by_hand.epsilon
    assert public.summary["standardise"]["how"] == "public"
    assert "public: offset and deviation of the inputs" in public.certificate["assumptions"]
    assert torch.allclose(public.model(x), by_hand.model((x - SHIFTS) / SCALES), atol=1e-3)
    assert len(leaves(event_from_json(public.certificate["events"]))) == 1
    image = trained(
        nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), (x.view(-1, 1, 2, 2), y), standardise="public:10,5"
    )
    assert image.summary["standardise"] == {
        "how": "public",
        "offset": [10.0],
        "deviation": [5.0],
        "folded": True,
    }


# What comes out ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [nn.Linear, Skips])
def test_the_model_takes_raw_rows_and_is_as_good_on_them_as_was_measured(
    kind: type[nn.Module], tmp_path: Path
) -> None:
    x, y = table(300, seed=5)
    run = trained(network(kind), test=(x, y), out=tmp_path / "run", epochs=10)
    assert isinstance(run.model, Standardised) == (kind is Skips)
    assert run.summary["standardise"]["folded"] == (kind is nn.Linear)
    measured = sd.evaluate(run.model, cross_entropy, (x, y))
    assert measured["test_accuracy"] == pytest.approx(run.metrics["test_accuracy"], abs=0.01)
    assert measured["test_loss"] == pytest.approx(run.metrics["test_loss"], rel=1e-3)
    assert measured["test_accuracy"] > 0.8
    loaded = sd.load(tmp_path / "run", model=network(kind))
    np.testing.assert_allclose(loaded.scores(x), run.model(x).detach().numpy(), rtol=1e-4, atol=1e-4)
    again = sd.load(run, model=run.model)
    np.testing.assert_allclose(again.scores(x), loaded.scores(x), rtol=1e-5)


@pytest.mark.parametrize("factor", [1e-2, 1.0, 1e2])
def test_the_scale_of_the_inputs_makes_no_difference(factor: float) -> None:
    x, y = table(2000)
    run = trained(data=(x * factor, y), test=(x[:500] * factor, y[:500]), epochs=8)
    assert run.metrics["test_accuracy"] > 0.9


@pytest.mark.parametrize("spec", ["mlp:8", "test_standardise_choice:skipping"])
def test_predict_evaluate_and_export_take_raw_rows(
    spec: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    x, y = table(1200, seed=2)
    np.savez(
        "d.npz",
        X_train=x[:900].numpy(),
        y_train=y[:900].numpy(),
        X_test=x[900:].numpy(),
        y_test=y[900:].numpy(),
    )
    arguments = [
        "--epsilon",
        "8",
        "--delta",
        "1e-4",
        "--model",
        spec,
        "--seed",
        "1",
        "--out",
        "run",
        "--epochs",
        "8",
    ]
    trust = ["--trust-code"] if ":" in spec and "mlp" not in spec else []
    assert command(monkeypatch, "train", "d.npz", "--classes", "2", *arguments) == 0
    assert "standardised       4 inputs, for" in capsys.readouterr().out
    summary = json.loads(Path("run/run.json").read_text())
    assert summary["standardise"]["folded"] == (spec == "mlp:8")
    assert summary["metrics"]["test_accuracy"] > 0.8
    assert command(monkeypatch, "evaluate", "run", "d.npz", "--json", *trust) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["accuracy"] > 0.8
    loaded = sd.load("run", trust_code=bool(trust))
    wanted = loaded.scores(x[900:].numpy())
    for form in ("safetensors", "torch-export", "onnx"):
        file = sd.export(loaded, form)
        if form == "torch-export":
            program = torch.export.load(file).module()
            np.testing.assert_allclose(program(x[900:]).detach().numpy(), wanted, rtol=1e-3, atol=1e-3)
        if form == "onnx":
            onnxruntime = pytest.importorskip("onnxruntime")
            session = onnxruntime.InferenceSession(str(file))
            (scores,) = session.run(None, {"rows": x[900:].numpy()})
            np.testing.assert_allclose(scores, wanted, rtol=1e-3, atol=1e-3)


def skipping(shape: Any, outputs: int) -> nn.Module:
    return Skips()


def test_an_estimator_answers_for_raw_rows() -> None:
    x, y = table(1500)
    private = sd.SordinoClassifier(3, 1e-4, model="linear", classes=[0, 1], random_state=0).fit(
        x.numpy(), y.numpy()
    )
    assert (private.predict(x.numpy()) == y.numpy()).mean() > 0.9


def test_noisy_counts_are_of_the_model_on_standardised_rows() -> None:
    x, y = table(2000, seed=4)
    labels = Target("y", ("no", "yes"))
    how = Arrays(labels, (4,), (), (), ("number of rows",))
    run = trained(test=(x, y), metric_epsilon=1.0, inputs=how, budget=(6.0, 1e-4), epochs=8)
    assert run.metrics["covered"]
    assert run.metrics["test_accuracy"] > 0.85
    assert run.epsilon <= 6


# What it costs ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
@pytest.mark.parametrize("sampling", ["poisson", "fixed-order"])
def test_its_price_is_part_of_the_budget_and_the_first_event_of_the_certificate(
    accountant: str, sampling: str
) -> None:
    run = trained(accountant=accountant, sampling=sampling)
    events = event_from_json(run.certificate["events"])
    z = run.summary["standardise"]["multiplier"]
    (first, count), *rest = leaves(events)
    assert (first, count) == (gaussian(z), 1)
    assert run.epsilon == price(events, BUDGET[1], accountant).epsilon <= BUDGET[0]
    assert run.epsilon > 0.98 * BUDGET[0]
    without = price(
        compose([leaf for leaf, times in rest for _ in range(times)]), BUDGET[1], accountant
    ).epsilon
    assert without < run.epsilon
    assert run.history[-1]["epsilon"] == run.epsilon
    alone = price(gaussian(z), BUDGET[1], accountant).epsilon
    assert alone < run.history[0]["epsilon"] < run.epsilon
    assert verify(run.certificate).stands is False  # for its seed
    assert any("standardised before the first step" in said for said in run.certificate["assumptions"])


def test_a_ledger_counts_it_first_and_the_certificate_stands_beside_it(tmp_path: Path) -> None:
    book = LedgerFile(tmp_path / "ledger.db")
    run = trained(seed=None, out=tmp_path / "run", ledger=book, data_name="people")
    (entry,) = book.runs("people")
    assert entry.charges == turns(run) + 1
    arguments = ["verify", str(tmp_path / "run"), "--ledger", str(tmp_path / "ledger.db")]
    told = subprocess.run(
        [sys.executable, "-m", "sordino", *arguments], capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stdout + told.stderr


def test_a_ledger_that_refuses_it_lets_no_row_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    real = Standardiser._readable

    def note(self: Standardiser, places: Tensor, start: int) -> Any:
        read.append(start)
        return real(self, places, start)

    monkeypatch.setattr(Standardiser, "_readable", note)
    book = LedgerFile(tmp_path / "ledger.db")
    book.cap("people", epsilon=1.0, delta=1e-4)
    with pytest.raises(Exception, match="with epsilon"):
        trained(ledger=book, data_name="people")
    assert read == []
    trained(budget=(0.4, 1e-5), ledger=book, data_name="people")
    assert read != []


def test_what_was_released_before_the_run_is_made_room_for_too() -> None:
    from sordino.privacy import approximate

    run = trained(before=Before(approximate(1.0), "bounds"))
    assert run.epsilon <= 3
    kinds = [type(leaf).__name__ for leaf, _ in leaves(event_from_json(run.certificate["events"]))]
    assert kinds == ["EpsilonDeltaDpEvent", "GaussianDpEvent", "PoissonSampledDpEvent"]
    assert run.summary["standardise"]["multiplier"] > trained().summary["standardise"]["multiplier"]
    with pytest.raises(ValueError, match="leaves nothing to train with"):
        trained(before=Before(approximate(3.0), "bounds"))


def test_users_are_units_of_it() -> None:
    x, y = table(900)
    groups = torch.arange(900) // 3
    run = trained(groups=groups, batch_size=30)
    assert run.summary["unit"] == "user"
    assert run.summary["n"] == 300
    more, seen = (
        torch.cat([x, x[:1].repeat(5000, 1) * 1e6]),
        torch.cat([groups, torch.zeros(5000, dtype=torch.int64)]),
    )
    wild = trained(data=(more, torch.cat([y, y[:1].repeat(5000)])), groups=seen, batch_size=30)
    first, other = run.summary["standardise"], wild.summary["standardise"]
    assert first == other
    assert all(bool(value.isfinite().all()) for value in weights(wild).values())


# The same run again -----------------------------------------------------------------------------------------


class Gone(Exception):
    """The machine is gone."""


@pytest.mark.parametrize("kind", [nn.Linear, Skips])
@pytest.mark.parametrize("step", [1, 17])
def test_a_run_that_was_killed_goes_on_bit_for_bit(kind: type[nn.Module], step: int, tmp_path: Path) -> None:
    def gone(seen: Any) -> None:
        if seen.step == step:
            raise Gone

    book = LedgerFile(tmp_path / "ledger.db")
    whole = trained(network(kind))
    settings: dict[str, Any] = {"out": tmp_path / "run", "ledger": book, "data_name": "people"}
    with pytest.raises(Gone):
        trained(network(kind), callbacks=[gone], **settings)
    run = trained(network(kind), resume=True, **settings)
    assert same(whole, run)
    assert run.epsilon == whole.epsilon
    assert book.runs("people")[0].charges == turns(run) + 1, "paid once"


def test_moments_of_a_run_that_goes_on_are_those_of_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No row is read for them once more."""

    def gone(seen: Any) -> None:
        if seen.step == 17:
            raise Gone

    with pytest.raises(Gone):
        trained(out=tmp_path / "run", callbacks=[gone])
    monkeypatch.setattr(Standardiser, "release", None)
    assert same(trained(out=tmp_path / "run", resume=True), trained_before())


def trained_before() -> sd.Run:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Standardiser, "release", RELEASE)
        return trained()


@pytest.mark.parametrize("number", range(4))
def test_killed_in_the_middle_of_its_releases_it_makes_the_same_ones(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = trained()
    real, seen = Standardiser._released, []

    def released(self: Standardiser, which: int, *rest: Any) -> Any:
        found = real(self, which, *rest)
        seen.append((which, found[0].clone()))
        if which == number:
            raise Gone
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Standardiser, "_released", released)
        with pytest.raises(Gone):
            trained(out=tmp_path / "run")

    def note(self: Standardiser, which: int, *rest: Any) -> Any:
        found = real(self, which, *rest)
        assert which > number or torch.equal(found[0], seen[which][1])
        return found

    monkeypatch.setattr(Standardiser, "_released", note)
    assert same(whole, trained(out=tmp_path / "run", resume=True))


def test_other_rows_under_the_same_noise_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the journal, where a data set gives no fingerprint."""
    from sordino.data.sources import _TensorExamples

    def gone(*_: Any, **__: Any) -> None:
        raise Gone

    monkeypatch.setattr(_TensorExamples, "fingerprint", lambda self, key: None)
    monkeypatch.setattr(ExampleGate, "__call__", gone)  # so that of gradients nothing is known
    with pytest.raises(Gone):
        trained(out=tmp_path / "run")
    x, y = table()
    x[7] = 1e4
    with pytest.raises(ValueError, match="came to another result"):
        trained(data=(x, y), out=tmp_path / "run", resume=True)


def test_a_run_is_not_resumed_with_another_standardisation(tmp_path: Path) -> None:
    def gone(seen: Any) -> None:
        raise Gone

    with pytest.raises(Gone):
        trained(out=tmp_path / "run", callbacks=[gone])
    for other in ("none", "public:0,1"):
        with pytest.raises(ValueError, match="standardise changed"):
            trained(out=tmp_path / "run", resume=True, standardise=other)
    assert "standardise" in trained(out=tmp_path / "run", resume=True).summary


def test_a_big_table_is_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, sizes = trained(), []
    real = Standardiser._readable

    def note(self: Standardiser, places: Tensor, start: int) -> Any:
        sizes.append(len(places))
        return real(self, places, start)

    monkeypatch.setattr(Standardiser, "_readable", note)
    monkeypatch.setattr("sordino.standardise.standardiser._TOGETHER", 400)
    assert same(whole, trained())
    assert set(sizes) == {100}
    assert math.isfinite(whole.epsilon)


def test_callbacks_see_the_run_as_ever() -> None:
    seen: list[int] = []
    trained(callbacks=[lambda each: seen.append(each.step)])
    assert seen == list(range(1, 31))
