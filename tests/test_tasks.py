"""Tasks: losses and metrics against other people's arithmetic, whatever a model returns and whoever trains it."""

from __future__ import annotations

import json
import math
import warnings
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import mean_absolute_error, r2_score
from torch import Tensor, nn

import sordino as sd
from conftest import cross_entropy
from sordino.federated.rounds import Workplace
from sordino.gate import ExampleGate
from sordino.gradients import Unsuitable
from sordino.models import next_word_accuracy, next_word_lstm
from sordino.tasks import Metric, Task, classification, evaluate, next_words, reconstruction, regression

PRIVATE: dict[str, Any] = {"noise_multiplier": 1.0, "delta": 1e-3, "accountant": "rdp"}
CENTRAL: dict[str, Any] = {"epochs": 2, "batch_size": 12, "seed": 1, "method": "dp-sgd", **PRIVATE}
FEDERATED: dict[str, Any] = {
    "rounds": 2, "clients": 6, "per_round": 3, "batch_size": 5, "local_epochs": 1, "seed": 1, "workers": 1
}  # fmt: skip
BATCHES = (1, 7, 60, 1000)  # one by one, with a rest, without one, and all at once
pytestmark = pytest.mark.filterwarnings("ignore:the noise outweighs")


def linear(inputs: int, outputs: int) -> nn.Linear:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Linear(inputs, outputs)


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(8))


# Against other people's arithmetic ----------------------------------------------------------------------------


@pytest.mark.parametrize("batch", BATCHES)
def test_accuracy_and_loss_do_not_depend_on_batches(toy: Any, batch: int) -> None:
    model = linear(10, 3)
    scores = model(toy[0]).detach()
    for task in (classification(), cross_entropy):
        found = evaluate(model, task, toy, batch)
        assert found["test_accuracy"] == int((scores.argmax(1) == toy[1]).sum()) / 60
        assert found["test_loss"] == pytest.approx(float(cross_entropy(scores, toy[1]).mean()))


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("outputs", [1, 3])
def test_regression_agrees_with_scikit_learn(toy: Any, outputs: int, batch: int) -> None:
    model, targets = linear(10, outputs), numbers(60, outputs) + 5
    found = evaluate(model, regression(), (toy[0], targets), batch)
    guesses = model(toy[0]).detach().numpy()
    assert found["test_r2"] == pytest.approx(r2_score(targets, guesses), rel=1e-6)
    assert found["test_mean_absolute_error"] == pytest.approx(mean_absolute_error(targets, guesses), rel=1e-6)
    assert found["test_loss"] == pytest.approx(np.square(guesses - targets.numpy()).mean(), rel=1e-6)


def test_one_number_a_row_may_be_flat_or_a_column(toy: Any) -> None:
    model, targets = linear(10, 1), numbers(60)
    flat = nn.Sequential(model, nn.Flatten(0))
    found = [
        evaluate(m, regression(), (toy[0], t), 7) for m in (model, flat) for t in (targets, targets[:, None])
    ]
    assert all(other == found[0] for other in found)


@pytest.mark.parametrize("batch", BATCHES)
def test_r_squared_of_targets_far_from_zero(batch: int) -> None:
    """Squares of large numbers have few digits left for their differences."""
    near, away = (numbers(60, 2) * 3).round(), numbers(60, 2).flip(0).round()
    found = evaluate(nn.Identity(), regression(), (1.6e7 + near + away, 1.6e7 + near), batch)
    assert found["test_r2"] == pytest.approx(r2_score(near.double(), (near + away).double()), rel=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
@pytest.mark.parametrize("value", [0.0, 0.1, -3.7e9])
def test_r_squared_of_targets_that_are_all_alike_is_no_number(value: float, dtype: torch.dtype) -> None:
    targets = torch.full((60,), value).to(dtype)
    for batch in BATCHES:
        assert math.isnan(evaluate(nn.Identity(), regression(), (numbers(60), targets), batch)["test_r2"])


@pytest.mark.parametrize("batch", BATCHES)
def test_next_words_are_counted_as_the_model_zoo_counts_them(batch: int) -> None:
    model = next_word_lstm(vocab=9, dim=3, hidden=4)
    ids = torch.randint(0, 9, (60, 6), generator=torch.Generator().manual_seed(1))
    found = evaluate(model, next_words(), (ids, ids.roll(1, 0)), batch)
    assert found["test_next_word_accuracy"] == next_word_accuracy(model, (ids, ids.roll(1, 0)))
    assert math.isnan(
        evaluate(model, next_words(), (ids, torch.zeros_like(ids)), batch)["test_next_word_accuracy"]
    )


def test_reconstruction_is_the_mean_squared_error_of_images_too() -> None:
    images = numbers(20, 1, 4, 4)
    found = evaluate(nn.ReLU(), reconstruction(), (images, images), 7)
    assert found == {"test_loss": pytest.approx(float(images.clamp(max=0).square().mean()))}


def test_a_task_of_ones_own(toy: Any) -> None:
    """A function is averaged over rows, and a Metric made of sums: the root of a mean is no mean of roots."""
    squares = Metric(lambda s, t: (len(t), (s[:, 0] - t).square().sum()), lambda n, total: (total / n).sqrt())
    metrics: dict[str, Any] = {"close": lambda s, t: ((s[:, 0] - t).abs() < 0.5).float(), "rmse": squares}
    model, targets = linear(10, 1), numbers(60)
    task = Task(lambda s, t: (s[:, 0] - t).abs(), metrics)
    found = evaluate(model, task, (toy[0], targets), 7)
    away = model(toy[0]).detach()[:, 0] - targets
    assert found["test_close"] == pytest.approx(float((away.abs() < 0.5).float().mean()))
    assert found["test_rmse"] == pytest.approx(float(away.square().mean().sqrt()))
    assert all(type(value) is float for value in found.values())  # run.json has no tensors


# Whatever a model returns -------------------------------------------------------------------------------------


class ModelOutput(OrderedDict[str, Any]):
    """As transformers has it: a dict whose entries are attributes."""

    @property
    def logits(self) -> Tensor:
        found: Tensor = self["logits"]
        return found


@dataclass
class Scores:
    logits: Tensor
    hidden: Tensor


class Wrapped(nn.Module):
    """A linear model that returns something else than a tensor."""

    def __init__(self, wrap: Callable[[Tensor], Any], outputs: int = 3) -> None:
        super().__init__()
        self.linear, self.wrap = linear(10, outputs), wrap

    def forward(self, inputs: Tensor) -> Any:
        return self.wrap(self.linear(inputs))


FORMS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Any]]] = {
    "tensor": (lambda t: t, lambda o: o),
    "ModelOutput": (lambda t: ModelOutput(logits=t, hidden=2 * t), lambda o: o.logits),
    "dataclass": (lambda t: Scores(t, 2 * t), lambda o: o.logits),
    "tuple": (lambda t: (2 * t, t), lambda o: o[1]),
    "dict": (lambda t: {"logits": t}, lambda o: o["logits"]),
}


def weights(run: sd.Run) -> Tensor:
    return torch.cat([p.detach().flatten() for p in run.model.parameters()])


def check_metrics(run: sd.Run, out: Path, *names: str) -> None:
    """They are in the result, at its end, in the history and in run.json, and said to be covered by nothing."""
    summary = json.loads((out / "run.json").read_text())
    lines = [json.loads(line) for line in (out / "history.jsonl").read_text().splitlines()]
    assert set(run.metrics) == {"covered", *(f"test_{name}" for name in names)}
    assert run.metrics["covered"] is summary["metrics"]["covered"] is False
    for name in run.metrics:
        assert math.isfinite(run.metrics[name])
        assert run.metrics[name] == run.history[-1][name] == lines[-1][name] == summary["metrics"][name]


def test_training_and_the_gate_take_whatever_has_scores_in_it(toy: Any, tmp_path: Path) -> None:
    runs, released = [], []
    for form, (wrap, scores) in FORMS.items():
        task = classification(scores=scores)
        runs.append(sd.train(Wrapped(wrap), task, toy, test=toy, out=tmp_path / form, **CENTRAL))
        check_metrics(runs[-1], tmp_path / form, "accuracy", "loss")
        gate = sd.Gate(
            Wrapped(wrap),
            task,
            toy,
            clip=sd.Fixed(1.0),
            noise_multiplier=1.0,
            sampling=sd.Poisson(0.5),
            seed=1,
        )
        released.append(gate().gradient)
    for run, gradient in zip(runs, released, strict=True):
        assert torch.equal(weights(run), weights(runs[0]))
        assert torch.equal(gradient, released[0])
        assert run.metrics == runs[0].metrics


@pytest.mark.parametrize("engine", ["mapped", "looped", "debug"])
def test_federations_take_whatever_has_scores_in_it(toy: Any, tmp_path: Path, engine: str) -> None:
    found = []
    forms = (
        ("tensor", "ModelOutput", "tuple") if engine == "mapped" else FORMS
    )  # mapping takes its time to begin
    for form, (wrap, scores) in ((form, FORMS[form]) for form in forms):
        options = {**FEDERATED, "engine": engine, "test": toy, "out": tmp_path / form}
        run = sd.federate(Wrapped(wrap), classification(scores=scores), toy, **options)
        check_metrics(run, tmp_path / form, "accuracy", "loss")
        found.append(run)
    assert all(torch.equal(weights(run), weights(found[0])) for run in found)
    assert all(run.metrics == found[0].metrics for run in found)


def test_stacked_clients_may_have_scores_among_other_outputs(toy: Any, tmp_path: Path) -> None:
    task, found = classification(scores=lambda output: output[:, :3]), []
    for engine in ("stacked", "mapped", "looped", "debug"):
        run = sd.federate(
            linear(10, 5), task, toy, engine=engine, test=toy, out=tmp_path / engine, **FEDERATED, **PRIVATE
        )
        check_metrics(run, tmp_path / engine, "accuracy", "loss")
        found.append(weights(run))
    for other in found:
        torch.testing.assert_close(other, found[0], rtol=0, atol=1e-5)


@pytest.mark.parametrize("engine", ["stacked", "mapped", "looped", "debug"])
def test_other_tasks_in_federations(toy: Any, tmp_path: Path, engine: str) -> None:
    options = {**FEDERATED, "engine": engine}
    targets = toy[0] @ numbers(10, 2)
    run = sd.federate(
        linear(10, 2), regression(), (toy[0], targets), test=(toy[0], targets), out=tmp_path / "r", **options
    )
    check_metrics(run, tmp_path / "r", "mean_absolute_error", "r2", "loss")
    same = (toy[0], toy[0])
    run = sd.federate(linear(10, 10), reconstruction(), same, test=same, out=tmp_path / "a", **options)
    check_metrics(run, tmp_path / "a", "loss")


def test_next_words_in_federations_and_training(tmp_path: Path) -> None:
    ids = torch.randint(0, 9, (60, 6), generator=torch.Generator().manual_seed(1))
    rows = ids, ids.roll(1, 0)
    run = sd.federate(
        nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 9)), next_words(), rows, test=rows, holdout=2,
        engine="stacked", out=tmp_path / "f", **FEDERATED
    )  # fmt: skip
    assert run.metrics["test_next_word_accuracy"] == next_word_accuracy(run.model, rows)
    assert {"holdout_next_word_accuracy", "holdout_loss"} < set(run.metrics)
    central = sd.train(next_word_lstm(9, 3, 4), next_words(), rows, test=rows, out=tmp_path / "c", **CENTRAL)
    check_metrics(central, tmp_path / "c", "next_word_accuracy", "loss")
    assert central.metrics["test_next_word_accuracy"] == next_word_accuracy(central.model, rows)


def test_training_learns_numbers_and_measures_them_on_the_way(toy: Any) -> None:
    targets = toy[0] @ numbers(10, 2) / 3
    run = sd.train(
        linear(10, 2), regression(), (toy[0], targets), test=(toy[0], targets), evaluations=4, epochs=60,
        batch_size=20, seed=1, method=sd.sgd(learning_rate=0.1)
    )  # fmt: skip
    assert run.metrics["test_r2"] > 0.9
    assert sum("test_r2" in line for line in run.history) == 4


@pytest.mark.parametrize("inputs", [lambda x: {"a": x, "b": x}, lambda x: (x, x)])
@pytest.mark.parametrize("engine", ["mapped", "looped"])
def test_federations_call_models_as_training_does(toy: Any, inputs: Any, engine: str) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = linear(10, 3)

        def forward(self, a: Tensor, b: Tensor) -> Any:
            return self.linear((a + b) / 2)

    rows = inputs(toy[0]), toy[1]
    run = sd.federate(Two(), classification(), rows, engine=engine, test=rows, **FEDERATED)
    plain = sd.federate(linear(10, 3), classification(), toy, engine=engine, test=toy, **FEDERATED)
    torch.testing.assert_close(weights(run), weights(plain))
    assert run.metrics == pytest.approx(plain.metrics)


# What is not measured is said, and what is wrong is refused ---------------------------------------------------


def warned(call: Callable[[], Any]) -> tuple[Any, list[warnings.WarningMessage]]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        result = call()
    return result, [each for each in found if "not measured" in str(each.message)]


def loss_of_output(output: Any, targets: Tensor) -> Tensor:
    return cross_entropy(output["logits"], targets)


def test_accuracy_never_vanishes_in_silence(toy: Any) -> None:
    """Once in a run, however often and in however many batches it is evaluated; and on the line that called us."""
    model = Wrapped(FORMS["ModelOutput"][0])
    calls: list[Callable[[], Any]] = [
        lambda: sd.train(model, loss_of_output, toy, test=toy, evaluations=5, **CENTRAL).metrics,
        lambda: (
            sd.federate(
                model, loss_of_output, toy, test=toy, holdout=1, evaluations=2, engine="looped", **FEDERATED
            ).metrics
        ),
        lambda: (
            sd.federate(model, loss_of_output, toy, test=toy, engine="looped", **FEDERATED, **PRIVATE).metrics
        ),
        lambda: evaluate(model, loss_of_output, toy, batch=7),
    ]
    for call in calls:
        metrics, (warning,) = warned(call)
        assert "returns a ModelOutput" in str(warning.message)
        assert "classification(scores=lambda output: output.logits)" in str(warning.message)
        assert warning.filename == __file__
        assert "test_loss" in metrics
        assert "test_accuracy" not in metrics


def test_a_warning_that_is_an_error_is_not_taken_for_a_failure_of_the_model(toy: Any) -> None:
    with warnings.catch_warnings(action="error"), pytest.raises(UserWarning, match="not measured"):
        evaluate(Wrapped(FORMS["dict"][0]), loss_of_output, toy)


@pytest.mark.parametrize("model", [linear(10, 1), nn.Sequential(linear(10, 1), nn.Flatten(0))])
def test_one_number_a_row_is_no_score_of_classes(toy: Any, model: nn.Module) -> None:
    """The largest of one column is always the first: the share of label 0 would pass for accuracy."""

    def logistic(output: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.softplus(output.flatten() * (1 - 2 * targets))

    metrics, (warning,) = warned(lambda: evaluate(model, logistic, (toy[0], toy[1] % 2)))
    assert metrics.keys() == {"test_loss"}
    assert "one number for each row" in str(warning.message)


def test_what_has_no_classes_is_not_warned_of(toy: Any) -> None:
    for targets in (numbers(60, 1), torch.ones(60, 1, dtype=torch.int64)):
        metrics, found = warned(
            lambda t=targets: evaluate(linear(10, 1), regression().loss, (toy[0], t))  # type: ignore[misc]
        )
        assert (metrics.keys(), found) == ({"test_loss"}, [])


@pytest.mark.parametrize("engine", ["auto", "stacked", "mapped", "looped", "debug"])
@pytest.mark.parametrize("private", [True, False])
@pytest.mark.parametrize(
    ("task", "message"),
    [
        (regression(), "the model gives 1 numbers for each row and the targets have 3"),
        (nn.MSELoss(), "reduction='none'"),
    ],
)
def test_federations_refuse_before_a_row_is_touched(
    toy: Any, engine: str, private: bool, task: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each client would fail by itself, nobody would know, and the budget would be spent on noise."""
    monkeypatch.setattr(Workplace, "finished", lambda *_: pytest.fail("a client was asked"))
    options = {**FEDERATED, **(PRIVATE if private else {}), "engine": engine}
    with pytest.raises(Unsuitable, match=message) as failure:
        sd.federate(linear(10, 1), task, (toy[0], numbers(60, 3)), **options)
    assert "\n" not in str(failure.value)


def test_training_refuses_before_a_row_is_touched(toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExampleGate, "_sums_at", lambda *_: pytest.fail("a row was touched"))
    with pytest.raises(Unsuitable, match="the model gives 1 numbers for each row and the targets have 3"):
        sd.train(linear(10, 1), regression(), (toy[0], numbers(60, 3)), **CENTRAL)


def test_a_public_model_that_cannot_run_on_made_up_rows_may_still_train(toy: Any) -> None:
    """Made-up rows are in [0, 1)."""

    class Picky(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = linear(10, 3)

        def forward(self, inputs: Tensor) -> Any:
            if float(inputs.max()) < 1:
                raise RuntimeError("these rows are made up")
            return self.linear(inputs)

    options = {**FEDERATED, "engine": "looped"}
    assert (
        sd.federate(Picky(), classification(), (toy[0] + 9, toy[1]), **options).summary["status"]
        == "complete"
    )
    with pytest.raises(Unsuitable, match="fail on made-up rows: RuntimeError: these rows are made up"):
        sd.federate(Picky(), classification(), (toy[0] + 9, toy[1]), **options, **PRIVATE)


def secretive(*_: Any) -> Any:
    raise ValueError("the row 31.4159 is odd")


@pytest.mark.parametrize(
    "metric",
    [
        secretive,
        Metric(secretive, lambda *_: 0.0),
        Metric(lambda *_: [1.0], secretive),
        Metric(lambda s, t: [1.0] * len(t), lambda *_: 0.0),  # another number of sums in the last batch
        Metric(lambda *_: [1.0], lambda _: "the row 31.4159"),  # type: ignore[arg-type, return-value]
    ],
)
def test_a_metric_that_fails_quotes_nothing(toy: Any, metric: Any) -> None:
    with pytest.raises(ValueError, match="a metric fails on held-out rows with ValueError") as failure:
        evaluate(linear(10, 3), Task(cross_entropy, {"odd": metric}), toy, 7)
    assert "31.4159" not in str(failure.value)
    assert failure.value.__suppress_context__


def test_a_metric_gives_one_value_for_each_row(toy: Any) -> None:
    for metric in (lambda s, t: s.mean(), lambda s, t: s, lambda s, t: 3.0):
        with pytest.raises(Unsuitable, match=r"one value for each example, but 'odd' gave (shape|a float)"):
            evaluate(linear(10, 3), Task(cross_entropy, {"odd": metric}), toy)  # type: ignore[dict-item]


@pytest.mark.parametrize("task", [classification(), cross_entropy])
def test_held_out_labels_that_have_no_score_are_said_plainly(toy: Any, task: Any) -> None:
    with pytest.raises(Unsuitable, match="held-out labels reach 5 and the model has 3 scores"):
        evaluate(linear(10, 3), task, (toy[0], toy[1] + 3))
    with pytest.raises(ValueError, match="may quote them") as failure:  # rows of clients are not test rows
        evaluate(linear(10, 3), task, (toy[0], toy[1] + 3), prefix="holdout_")
    assert "5" not in str(failure.value)


@pytest.mark.parametrize("maker", [classification, regression, next_words, reconstruction])
def test_what_makes_a_task_has_to_be_called(toy: Any, maker: Any) -> None:
    with pytest.raises(ValueError, match=rf"call it, as in {maker.__name__}\(\)"):
        sd.train(linear(10, 3), maker, toy, **CENTRAL)
    with pytest.raises(ValueError, match=rf"call it, as in {maker.__name__}\(\)"):
        sd.federate(linear(10, 3), maker, toy, **FEDERATED)


@pytest.mark.parametrize("privacy", [PRIVATE, {}], ids=["private", "open"])
@pytest.mark.parametrize("task", [classification(), cross_entropy, regression()])
@pytest.mark.parametrize(
    ("wrap", "kind"), [(lambda s: (s, s), "tuple"), (lambda s: {"logits": s}, "dict")], ids=["tuple", "dict"]
)
def test_a_model_that_returns_no_tensor_is_told_where_to_say_so(
    toy: Any, wrap: Any, kind: str, task: Any, privacy: dict[str, Any]
) -> None:
    words = rf"the model returns a {kind}: say where the scores are, as in classification\(scores=lambda"
    with pytest.raises(Unsuitable, match=words):
        sd.federate(Wrapped(wrap), task, toy, **FEDERATED, **privacy)
    with pytest.raises(Unsuitable, match=words):
        sd.train(Wrapped(wrap), task, toy, **CENTRAL)


def test_a_model_that_fails_by_itself_is_not_said_to_return_something(toy: Any) -> None:
    def failing(scores: Tensor) -> Any:
        raise TypeError("linear(): argument 'input' must be Tensor, not tuple")

    with pytest.raises(Unsuitable, match=r"fails on made-up rows \(TypeError: linear.*: mend it, or"):
        sd.train(Wrapped(failing), classification(), toy, **CENTRAL)
    with pytest.raises(Unsuitable, match=r"fail on made-up rows: TypeError: linear.* \(mend it, so that"):
        sd.federate(Wrapped(failing), classification(), toy, **FEDERATED)


def test_a_reduced_loss_is_not_averaged_once_more(toy: Any) -> None:
    with pytest.raises(Unsuitable, match="one value per example"):
        evaluate(linear(10, 3), nn.CrossEntropyLoss(), toy, 7)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": 3}, "loss is a function"),
        ({"scores": "logits"}, "lambda output: output.logits"),
        ({"metrics": {"loss": cross_entropy}}, "'loss' must have a name of its own"),
        ({"metrics": {"accuracy": 0.5}}, "'accuracy' must have"),
        ({"metrics": [cross_entropy]}, "metrics have names"),
    ],
)
def test_a_wrong_task_is_refused_when_it_is_made(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Task(**{"loss": cross_entropy, **settings})
