"""What is learnt: a loss for each example, and what is measured on held-out rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sordino.data import as_examples, tree_map
from sordino.data.shakespeare import SPECIAL
from sordino.gradients import Loss, Unsuitable, call_model, evaluating
from sordino.gradients.calls import check_loss
from sordino.models import next_word_loss
from sordino.warn import warn


@dataclass(frozen=True)
class Metric:
    """A number over all rows that is more than a mean; a plain function of one value for each example is a metric too.

    Args:
        sums: ``sums(scores, targets)`` of a batch, numbers or tensors, which are added up over batches.
        result: ``result(*sums)`` makes the number of them.

    >>> root = Metric(lambda scores, y: (float(((scores - y) ** 2).sum()), len(y)), lambda total, n: (total / n) ** 0.5)
    >>> task = Task(lambda scores, y: (scores - y) ** 2, {"rmse": root})
    >>> evaluate(nn.Identity(), task, (torch.ones(4), torch.full((4,), 3.0)))
    {'test_rmse': 2.0, 'test_loss': 4.0}
    """

    sums: Callable[[Any, Any], Sequence[Any]]
    result: Callable[..., float]


@dataclass(frozen=True)
class Task:
    """A loss for each example, and metrics by name, as ``train`` and ``federate`` take it in the place of a loss.

    Args:
        loss: ``loss(scores, targets)``, one value for each example.
        metrics: by name; each a function ``(scores, targets)`` of one value for each example, whose mean is shown, or
            a `Metric`. They are measured on held-out rows as ``test_NAME``, beside ``test_loss``, and no guarantee
            covers them.
        scores: where the scores are in what the model returns, if it is no plain tensor (a Hugging Face
            ``ModelOutput``, a tuple, a dict).

    >>> hinge = Task(lambda scores, y: torch.relu(1 - scores.squeeze(1) * y),
    ...              metrics={"accuracy": lambda scores, y: (scores.squeeze(1) * y > 0).float()})
    >>> evaluate(nn.Linear(2, 1), hinge, (torch.ones(4, 2), torch.ones(4))).keys()
    dict_keys(['test_accuracy', 'test_loss'])
    """

    loss: Loss
    metrics: Mapping[str, Callable[[Any, Any], Tensor] | Metric] = field(default_factory=dict)
    scores: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        if not callable(self.loss):
            raise ValueError(f"loss is a function of (scores, targets), not {self.loss!r}")
        if self.scores is not None and not callable(self.scores):
            raise ValueError(
                f"scores is a function of what the model returns, as in lambda output: output.logits, not "
                f"{self.scores!r}"
            )
        if not isinstance(self.metrics, Mapping):
            raise ValueError("metrics have names, as in metrics={'accuracy': function of (scores, targets)}")
        wrong = [
            name for name, each in self.metrics.items() if not (callable(each) or isinstance(each, Metric))
        ]
        if wrong or "loss" in self.metrics:
            raise ValueError(
                f"the metric {(wrong or ['loss'])[0]!r} must have a name of its own and be a function of (scores, "
                "targets)"
            )

    @property
    def per_example(self) -> Loss:
        """The loss as a function of what the model returns."""
        if self.scores is None:
            return self.loss
        loss, scores = self.loss, self.scores
        return lambda output, targets: loss(scores(output), targets)

    def scores_of(self, output: Any) -> Any:
        return output if self.scores is None else self.scores(output)

    def sums(self, scores: Any, targets: Any) -> dict[str, Sequence[Any]]:
        """What a batch adds to each metric."""
        return {name: _sums(name, metric, scores, targets) for name, metric in self.metrics.items()}

    def results(self, totals: Mapping[str, Sequence[Any]]) -> dict[str, float]:
        return {
            name: float(metric.result(*totals[name]) if isinstance(metric, Metric) else _ratio(*totals[name]))
            for name, metric in self.metrics.items()
        }

    def missing(self, scores: Any, targets: Any) -> str | None:
        """What is not measured though it might be expected, and why."""
        return None


def classification(loss: Loss | None = None, scores: Callable[[Any], Any] | None = None) -> Task:
    """Classes: cross-entropy, and accuracy. Scores are [n, classes], targets whole numbers [n].

    Args:
        loss: Another one for each example, in the place of cross-entropy.
        scores: Where the scores are in what the model returns, if it is no plain tensor.

    >>> classification(scores=lambda output: output.logits).metrics.keys()
    dict_keys(['accuracy'])
    """
    return Task(loss or nn.CrossEntropyLoss(reduction="none"), {"accuracy": ACCURACY}, scores)


def regression(
    scores: Callable[[Any], Any] | None = None, scale: float = 1.0, limit: float | None = None
) -> Task:
    """One number for each row or several: squared error (their mean), mean absolute error, and R squared.

    Outputs [n, k], targets [n, k]; where k is 1 both may be [n] too.

    Args:
        scores: Where the scores are in what the model returns, if it is no plain tensor.
        scale: What 1 of the model's numbers is in the owner's units, in which the mean absolute error is shown.
        limit: How far from 0 a target can be, if that is public. Predictions beyond it are put there, so metrics take
            them so (1 for what `Target` describes); the loss takes them as they are, or it would not pull them back.

    >>> evaluate(nn.Identity(), regression(), (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0])))
    {'test_mean_absolute_error': 1.0, 'test_r2': 0.111..., 'test_loss': 2.0}
    >>> evaluate(nn.Identity(), regression(limit=1.0), (torch.tensor([3.0]), torch.tensor([0.5])))["test_loss"]
    6.25
    """
    if limit is not None and not 0 < limit < math.inf:
        raise ValueError(f"limit is a number above 0, how far from 0 a target can be, not {limit!r}")
    r2 = Metric(partial(_spread_sums, limit=limit), _r_squared)
    absolute = partial(_absolute_errors, scale=scale, limit=limit)
    return Task(_squared_errors, {"mean_absolute_error": absolute, "r2": r2}, scores)


def next_words(scores: Callable[[Any], Any] | None = None) -> Task:
    """The next word at each place of a line: mean cross-entropy over its words, and the share predicted.

    Scores are [n, length, words] and targets [n, length], with the special words of `sordino.data.shakespeare`:
    padding counts nowhere, ends of sentences and unknown words do not count as predicted.

    Args:
        scores: Where the scores are in what the model returns, if it is no plain tensor.

    >>> list(next_words().metrics)
    ['next_word_accuracy']
    """
    return Task(next_word_loss, {"next_word_accuracy": Metric(_words_right, _ratio)}, scores)


def reconstruction(scores: Callable[[Any], Any] | None = None) -> Task:
    """What comes out is to be what went in (or the targets): the mean squared error of each row.

    Args:
        scores: Where the scores are in what the model returns, if it is no plain tensor.

    >>> evaluate(nn.Identity(), reconstruction(), (torch.ones(4, 2), torch.ones(4, 2)))
    {'test_loss': 0.0}
    """
    return Task(lambda output, targets: (output - targets).square().flatten(1).mean(1), {}, scores)


def as_task(loss: Loss | Task) -> Task:
    """A plain loss is a task whose metrics follow from what the model returns: accuracy where that is class scores."""
    makers: dict[str, Any] = {
        each.__name__: each for each in (classification, regression, next_words, reconstruction)
    }
    for name, maker in makers.items():
        if loss is maker:
            raise ValueError(f"{name} makes a task: call it, as in {name}()")
    return loss if isinstance(loss, Task) else _Guessed(loss)


class _Guessed(Task):
    """Accuracy if outputs are [n, classes] and targets whole numbers [n]; never left out in silence."""

    def sums(self, scores: Any, targets: Any) -> dict[str, Sequence[Any]]:
        return (
            {"accuracy": _right(scores, targets)}
            if _are_labels(targets) and _are_class_scores(scores)
            else {}
        )

    def missing(self, scores: Any, targets: Any) -> str | None:
        if not _are_labels(targets) or _are_class_scores(scores) or "_said" in vars(self):
            return None
        vars(self)["_said"] = True  # once in a run, however often it is evaluated
        if isinstance(scores, Tensor):
            return (
                f"accuracy is not measured, since the model returns {_shape_of_a_row(scores)} for each row, which are "
                "no scores of classes: in the place of the loss give a Task with metrics of your own"
            )
        return (
            f"accuracy is not measured, since the model returns a {type(scores).__name__}: in the place of the loss "
            "give a task that says where the scores are, as in classification(scores=lambda output: output.logits)"
        )

    def results(self, totals: Mapping[str, Sequence[Any]]) -> dict[str, float]:
        return {name: _ratio(*sums) for name, sums in totals.items()}


def evaluate(
    model: nn.Module, loss: Loss | Task, data: Any, batch: int = 1000, prefix: str = "test_"
) -> dict[str, float]:
    """Metrics of a task, and the mean loss, on held-out rows. Not covered by any guarantee.

    Args:
        model: The model, which is left as it was.
        loss: One value for each example, or a `Task`.
        data: Held-out rows, as for `train`.
        batch: How many of them at a time.
        prefix: Of the names of metrics.

    >>> evaluate(nn.Identity(), classification(), (torch.eye(3), torch.tensor([0, 1, 0])))["test_accuracy"]
    0.6666666666666666
    """
    examples, task = as_examples(data), as_task(loss)
    device = next((parameter.device for parameter in model.parameters()), None)
    total, sums = 0.0, dict[str, Sequence[Any]]()
    with evaluating(model), torch.no_grad():
        for start in range(0, len(examples), batch):
            rows = examples.take(torch.arange(start, min(start + batch, len(examples))))
            inputs, targets = tree_map(lambda leaf: leaf.to(device), rows)
            with _quoting_nothing():
                scores = task.scores_of(call_model(model, inputs))
                losses = _losses(task, scores, targets, quoting=prefix == "test_")
                check_loss(losses, min(batch, len(examples) - start))
                total += float(losses.sum())
                found = task.sums(scores, targets)
                sums = found if start == 0 else {name: _added(sums[name], found[name]) for name in sums}
            missing = task.missing(scores, targets) if start == 0 else None
            if missing is not None:
                warn(missing)
    with _quoting_nothing():
        measured = {f"{prefix}{name}": value for name, value in task.results(sums).items()}
    return {**measured, f"{prefix}loss": total / len(examples)}


def _losses(task: Task, scores: Any, targets: Any, quoting: bool) -> Any:
    try:
        return task.loss(scores, targets)
    except Exception:
        if quoting and _are_labels(targets) and _are_class_scores(scores):
            _check_labels(targets, scores.shape[1])
        raise


def _check_labels(labels: Tensor, scores: int) -> None:
    largest = int(labels.max())
    if largest >= scores:
        raise Unsuitable(
            f"held-out labels reach {largest} and the model has {scores} scores, for labels 0..{scores - 1}: give the "
            "model more of them, or mend the labels"
        )


@contextmanager
def _quoting_nothing() -> Iterator[None]:
    """What fails on held-out rows may say what is in them."""
    try:
        yield
    except Unsuitable:
        raise
    except Exception as error:
        raise ValueError(
            f"the model, the loss or a metric fails on held-out rows with {type(error).__name__} (what it says may "
            "quote them): check their labels and shapes"
        ) from None


def _added(totals: Sequence[Any], part: Sequence[Any]) -> list[Any]:
    return [one + other for one, other in zip(totals, part, strict=True)]


def _sums(
    name: str, metric: Callable[[Any, Any], Tensor] | Metric, scores: Any, targets: Any
) -> Sequence[Any]:
    if isinstance(metric, Metric):
        return metric.sums(scores, targets)
    values = metric(scores, targets)
    if not isinstance(values, Tensor) or values.dim() != 1:
        got = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else f"a {type(values).__name__}"
        raise Unsuitable(f"a metric gives one value for each example, but {name!r} gave {got}")
    return float(values.sum()), len(values)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def _are_labels(targets: Any) -> bool:
    return isinstance(targets, Tensor) and targets.dim() == 1 and not targets.is_floating_point()


def _are_class_scores(scores: Any) -> bool:
    """[n, classes]; of a single column the largest would always be the first."""
    return isinstance(scores, Tensor) and scores.dim() == 2 and scores.shape[1] > 1


def _shape_of_a_row(scores: Tensor) -> str:
    numbers = scores.shape[1:].numel()
    return "one number" if numbers == 1 else f"numbers of shape {list(scores.shape[1:])}"


def _right(scores: Tensor, targets: Tensor) -> Sequence[Any]:
    return int((scores.argmax(1) == targets).sum()), len(targets)


ACCURACY = Metric(_right, _ratio)


def _words_right(scores: Tensor, targets: Tensor) -> Sequence[Any]:
    counted = targets >= SPECIAL
    guesses = scores[counted][:, SPECIAL:].argmax(-1) + SPECIAL
    return int((guesses == targets[counted]).sum()), int(counted.sum())


def _columns(values: Tensor) -> Tensor:
    """[n, k], of one number for each row or several."""
    return values.flatten(1) if values.dim() > 1 else values.unsqueeze(1)


def _errors(outputs: Tensor, targets: Tensor) -> Tensor:
    """Differences [n, k]; shapes that only broadcast ([n, 1] and [n, k]) are a mistake, and an error."""
    outputs, targets = _columns(outputs), _columns(targets)
    if outputs.shape != targets.shape:
        raise Unsuitable(
            f"the model gives {outputs.shape[1]} numbers for each row and the targets have {targets.shape[1]}: make "
            "them as many"
        )
    return outputs - targets


def _squared_errors(outputs: Tensor, targets: Tensor) -> Tensor:
    return _errors(outputs, targets).square().mean(1)


def _within(outputs: Tensor, limit: float | None) -> Tensor:
    """As predictions are given."""
    return outputs if limit is None else outputs.clamp(-limit, limit)


def _absolute_errors(
    outputs: Tensor, targets: Tensor, scale: float = 1.0, limit: float | None = None
) -> Tensor:
    return _errors(_within(outputs, limit), targets).abs().mean(1) * scale


@dataclass(frozen=True)
class _Spread:
    """Squared deviations from the mean, which are added without the loss of digits that sums of squares suffer (Chan,
    Golub and LeVeque 1983): targets may be years, or amounts in cents."""

    count: int
    mean: Tensor  # [k]
    deviations: Tensor  # [k], their squares added up

    def __add__(self, other: _Spread) -> _Spread:
        count, apart = self.count + other.count, other.mean - self.mean
        return _Spread(
            count,
            self.mean + apart * other.count / count,
            self.deviations + other.deviations + apart.square() * self.count * other.count / count,
        )


def _spread_sums(outputs: Tensor, targets: Tensor, limit: float | None = None) -> Sequence[Any]:
    values = _columns(targets).double()
    mean = values.mean(0)
    errors = _errors(_within(outputs, limit).double(), targets.double()).square().sum(0)
    return _Spread(len(values), mean, (values - mean).square().sum(0)), errors


def _r_squared(spread: _Spread, errors: Tensor) -> float:
    """1 - squared errors / squared deviations, the mean over outputs; no number where targets are all alike."""
    rounding = spread.count * (1e-14 * spread.mean).square()
    alike = bool((spread.deviations <= rounding).any())
    return math.nan if alike else float((1 - errors / spread.deviations).mean())
