"""`load`: a finished run as a model that takes raw rows."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load as tensors_in
from torch import Tensor, nn

from sordino.data import Examples, as_examples, tree_map
from sordino.data.inputs import Inputs, Target, inputs_from_json
from sordino.data.standardised import Moments
from sordino.features.featured import names_of_features
from sordino.features.featured import runs_code as features_run_code
from sordino.gradients import call_model, evaluating
from sordino.models import build_model
from sordino.models import runs_code as model_runs_code
from sordino.runs import Run, RunDirectory
from sordino.runs.directory import INPUTS, MODEL
from sordino.standardise.folding import Standardised
from sordino.verifying.reading import certificate_at

_TOGETHER = 1024  # rows that are in memory at a time

Answers = list[str | float | None]


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained model with what raw rows are to it, and what its answers mean. Made by `load`.

    Rows are whatever the run was trained on, with or without their targets: a path, a data frame, arrays, a list of
    dicts; they are encoded as the training rows were, each by itself, a batch at a time.

    Guarantee: the model is covered by its certificate, and so is what it says of rows that nobody trained it on. What
    it says of *your* rows is about your rows, and `evaluate` on held-out ones is covered by nothing.

    Args:
        model: The network, which takes encoded rows and gives scores.
        inputs: How raw rows become encoded ones; None for a run that was not told.
        summary: What run.json says.
        certificate: What certificate.json says.
        path: The directory of the run.

    >>> import tempfile
    >>> from sordino.data import load as read
    >>> from sordino.training import train
    >>> digits, net = read("digits"), nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = train(net, nn.CrossEntropyLoss(reduction="none"), digits.train, budget=(8, 1e-5), epochs=1,
    ...               inputs=digits.inputs, out=f"{folder}/run")
    ...     trained = load(f"{folder}/run", model=net)
    >>> trained.predict_proba(digits.test[0][:3]).shape, trained.classes[0]
    ((3, 10), '0')
    """

    model: nn.Module
    inputs: Inputs | None
    summary: dict[str, Any] = field(repr=False)
    certificate: dict[str, Any] = field(repr=False)
    path: Path

    @property
    def target(self) -> Target:
        """What is predicted."""
        if self.inputs is None:
            raise ValueError(
                "the run does not say what its model's answers mean: train it with inputs=, or take scores(rows)"
            )
        return self.inputs.target

    @property
    def classes(self) -> tuple[str, ...]:
        """The labels, in the order of scores and probabilities; none for a regression."""
        return self.target.labels

    def scores(self, rows: Any) -> np.ndarray[Any, Any]:
        """What the network gives for each row; not a number for a row that cannot be encoded."""
        return torch.cat(list(self.in_batches(rows))).numpy()

    def predict(self, rows: Any) -> Answers:
        """A label or a number for each row, in the owner's words and units; None where there is no answer."""
        return [answer for scores in self.in_batches(rows) for answer in self.answers(scores)]

    def predict_proba(self, rows: Any) -> np.ndarray[Any, Any]:
        """A probability for each row and class [n, classes], in the order of `classes`."""
        self._check_classes()
        return torch.cat([probabilities(scores) for scores in self.in_batches(rows)]).numpy()

    def evaluate(self, rows: Any) -> dict[str, Any]:
        """How good it is on rows whose targets are known. No guarantee covers it: these rows are somebody's too.

        Classes: accuracy, loss (cross-entropy), and how often each class (a row of ``confusion``) was taken for which.
        A number: mean absolute error, root of the mean squared error and R squared, in the owner's units; targets
        outside the public bounds count as the bound. Rows without a target that can be read are left out and counted.
        """
        target = self.target
        counts: _Classes | _Numbers = _Classes(target) if target.labels else _Numbers(target)
        examples, rows_there = self._examples(rows, targets=True), 0
        for scores, targets in self._passed(examples):
            rows_there += len(targets)
            counts.add(scores, targets)
        if not rows_there:
            raise ValueError("no row has a target that can be read: check the file, or predict in its place")
        left_out = len(examples) - rows_there
        return {**counts.results(), "rows": rows_there, "left_out": left_out, "covered": False}

    def names(self, rows: Any) -> list[str] | None:
        """What rows are called, in the order of `predict`: images by their files. None for rows without names."""
        return None if self.inputs is None else self.inputs.names(rows)

    def answers(self, scores: Tensor) -> Answers:
        """Scores in the owner's words or units; None where they are no numbers."""
        self._check_outputs(scores)
        there = scores.flatten(1).isfinite().all(1).tolist()
        decoded: Answers = [*self.target.decoded(scores)]
        return [answer if known else None for answer, known in zip(decoded, there, strict=True)]

    def in_batches(self, rows: Any) -> Iterator[Tensor]:
        """The scores of rows in order, a batch at a time, so that no more than a batch is in memory."""
        examples = self._examples(rows, targets=False)
        for start in range(0, len(examples), _TOGETHER):
            indices = torch.arange(start, min(start + _TOGETHER, len(examples)))
            kept, inputs, _ = examples.take_readable(indices)
            yield self._scores_of(examples, kept, inputs, len(indices))

    def _scores_of(self, examples: Examples, kept: Tensor, inputs: Any, count: int) -> Tensor:
        if len(kept) == count:
            return self._called(inputs)
        whole = torch.full((count, *self._called(examples.template(1)[0]).shape[1:]), math.nan)
        return whole if len(kept) == 0 else whole.index_copy_(0, kept, self._called(inputs))

    def _passed(self, examples: Examples) -> Iterator[tuple[Tensor, Any]]:
        """Scores and targets of the rows that have one."""
        for start in range(0, len(examples), _TOGETHER):
            indices = torch.arange(start, min(start + _TOGETHER, len(examples)))
            kept, inputs, targets = examples.take_readable(indices)
            if len(kept):
                scores = self._called(inputs)
                self._check_outputs(scores)
                yield scores, targets

    def _examples(self, rows: Any, targets: bool) -> Examples:
        if self.inputs is not None:
            return self.inputs.examples(_columns(rows), targets=targets)
        if not isinstance(rows, Tensor | np.ndarray):
            raise ValueError(
                "the run does not say what raw rows are: give its model's inputs, as a tensor or an array"
            )
        return as_examples((rows, torch.zeros(len(rows))))

    def _called(self, inputs: Any) -> Tensor:
        place = next((parameter.device for parameter in self.model.parameters()), torch.device("cpu"))
        with evaluating(self.model), torch.no_grad():
            try:
                scores = call_model(self.model, tree_map(lambda leaf: leaf.to(place), inputs))
            except Exception as error:  # code of the user's, whose words may quote a row
                raise ValueError(
                    f"the model fails on these rows with {type(error).__name__}: check that they are what it was "
                    "trained on"
                ) from None
        if not isinstance(scores, Tensor):
            raise ValueError(
                f"the model returns a {type(scores).__name__}: load the run with a model that returns its scores"
            )
        return scores.detach().cpu().to(torch.float32)

    def _check_classes(self) -> None:
        if not self.classes:
            raise ValueError("the model predicts a number, which has no probability: use predict")

    def _check_outputs(self, scores: Tensor) -> None:
        wanted = self.target.outputs
        if scores.dim() > 2 or scores.reshape(len(scores), -1).shape[1] < wanted:
            raise ValueError(
                f"the model gives numbers of shape {list(scores.shape[1:])} for a row, where {wanted} are expected: "
                "take scores(rows)"
            )


def _columns(rows: Any) -> Any:
    """A list of dicts, as a program that serves answers has them, by columns; anything else as it is."""
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        return rows
    return {
        name: [row.get(name) for row in rows] for name in dict.fromkeys(key for row in rows for key in row)
    }


def probabilities(scores: Tensor) -> Tensor:
    """The softmax, in double precision."""
    return scores.double().softmax(1)


def load(
    run: str | os.PathLike[str] | Run, model: nn.Module | None = None, *, trust_code: bool = False
) -> Trained:
    """A finished run as a model that takes raw rows.

    It is read from run.json, inputs.json, certificate.json and model.safetensors; nothing is unpickled. A model that
    was named (``mlp:64``) is built again by its name, and so are features. Names that stand for code
    (``MODULE:CALLABLE``: the model in run.json, features or an embedding in inputs.json) are refused unless
    ``trust_code`` is True: whoever wrote the run chooses what they run. Models and features that are known by name, and
    sentence-transformers, which are data wherever they lie, need no trust.

    Guarantee: what is loaded is the file that the certificate is about, or it is refused. An unfinished run is refused.

    Args:
        run: Its directory, or what `train`, `federate` or `tune` returned.
        model: For a run that was given a model object: one of the same architecture, whose weights are replaced.
        trust_code: Import what the run names as ``MODULE:CALLABLE``. Only for runs of your own, or of people you trust.

    >>> load("nowhere")
    Traceback (most recent call last):
    ValueError: there is no run in nowhere: give a directory that sordino train, federate or tune has written
    """
    directory = RunDirectory(_path_of(run))
    summary = directory.summary
    if summary is None:
        raise ValueError(
            f"there is no run in {directory.path}: give a directory that sordino train, federate or tune has written"
        )
    if not directory.is_complete:
        raise ValueError(
            f"the run in {directory.path} is not finished, and nothing on the way is its result: go on with --resume"
        )
    certificate, _ = certificate_at(directory.path)
    inputs = _inputs(directory.path / INPUTS, trust_code)
    weights = _weights(directory.path / MODEL, certificate)
    network = _network(summary, inputs, trust_code) if model is None else model
    network = _with_place_for_moments(network, summary, weights)
    try:
        network.load_state_dict(weights)
    except RuntimeError:
        raise ValueError(
            f"the weights in {directory.path / MODEL} are those of another model: give the one that was trained"
        ) from None
    return Trained(network, inputs, summary, certificate, directory.path)


def _path_of(run: str | os.PathLike[str] | Run) -> Path:
    if not isinstance(run, Run):
        return Path(run)
    if run.path is None:
        raise ValueError("the run has written nothing: train it with out=, or use its model")
    return run.path


def _inputs(path: Path, trust_code: bool) -> Inputs | None:
    if not path.exists():
        return None
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({error}): put it back as it was") from None
    for name in names_of_features(said):
        if features_run_code(name) and not trust_code:
            raise _refused("features", name)
    try:
        return inputs_from_json(said)
    except ValueError as error:
        raise ValueError(f"{path} cannot be read ({error}): put it back as it was") from None


def _refused(what: str, name: str) -> ValueError:
    return ValueError(
        f"the run names code to run as its {what}, {name!r}: if you trust whoever wrote it, load it with "
        "trust_code=True (--trust-code)"
    )


def _weights(path: Path, certificate: dict[str, Any]) -> dict[str, Tensor]:
    """The file that the certificate is about, and no other."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): put it back as it was") from None
    written = (certificate.get("model") or {}).get("sha256")
    if hashlib.sha256(content).hexdigest() != written:
        raise ValueError(f"{path} is not the file that its certificate is about: put it back as it was")
    return tensors_in(content)


def _network(summary: dict[str, Any], inputs: Inputs | None, trust_code: bool) -> nn.Module:
    spec = summary.get("model")
    if not isinstance(spec, str):
        raise ValueError(
            "the run was given a model that has no name: load it in Python, with one of the same architecture, as "
            "sordino.load(run, model=net)"
        )
    if model_runs_code(spec) and not trust_code:
        raise _refused("model", spec)
    if inputs is not None:
        return build_model(spec, inputs.shape, inputs.target.outputs)
    shape, outputs = summary.get("input_shape"), summary.get("classes")
    if not isinstance(shape, list) or not isinstance(outputs, int):
        raise ValueError(
            "the run does not say which rows its model takes: load it in Python, with one of the same architecture, as "
            "sordino.load(run, model=net)"
        )
    return build_model(spec, shape, outputs)


def _with_place_for_moments(
    network: nn.Module, summary: dict[str, Any], weights: dict[str, Tensor]
) -> nn.Module:
    """Behind a standardisation of its inputs, if the run says that it is no part of the network's own weights."""
    said = summary.get("standardise")
    if not isinstance(said, dict) or said.get("folded") is not False or isinstance(network, Standardised):
        return network
    if not {"offset", "deviation"} <= weights.keys():
        return network
    return Standardised(network, Moments(weights["offset"], weights["deviation"]))


class _Classes:
    """How often which class was taken for which."""

    def __init__(self, target: Target) -> None:
        self._labels, self._loss, self._unanswered = target.labels, 0.0, 0
        self._confusion = torch.zeros(len(target.labels), len(target.labels), dtype=torch.int64)

    def add(self, scores: Tensor, targets: Tensor) -> None:
        there = scores.isfinite().all(1)
        self._unanswered += int((~there).sum())
        scores, targets = scores[there], targets[there]
        self._loss += float(nn.functional.cross_entropy(scores.double(), targets, reduction="sum"))
        count = len(self._labels)
        guessed = scores[:, :count].argmax(1)
        self._confusion += torch.bincount(targets * count + guessed, minlength=count**2).reshape(count, count)

    def results(self) -> dict[str, Any]:
        answered = int(self._confusion.sum())
        return {
            "accuracy": int(self._confusion.diagonal().sum()) / (answered + self._unanswered),
            "loss": self._loss / answered if answered else math.nan,
            "classes": list(self._labels),
            "confusion": self._confusion.tolist(),
            **({"unanswered": self._unanswered} if self._unanswered else {}),
        }


class _Numbers:
    """Errors in the owner's units; what is added up lies between -1 and 1, where squares lose no digits."""

    def __init__(self, target: Target) -> None:
        self._unit = target.half_range
        self._count = self._unanswered = 0
        self._absolute = self._squared = self._sum = self._squares = 0.0

    def add(self, scores: Tensor, targets: Tensor) -> None:
        outputs, targets = scores.reshape(len(scores), -1)[:, 0].double(), targets.double().flatten()
        there = outputs.isfinite()
        self._unanswered += int((~there).sum())
        outputs, targets = outputs[there].clamp(-1, 1), targets[there]
        errors = outputs - targets
        self._count += len(errors)
        self._absolute += float(errors.abs().sum())
        self._squared += float(errors.square().sum())
        self._sum += float(targets.sum())
        self._squares += float(targets.square().sum())

    def results(self) -> dict[str, Any]:
        count = self._count
        spread = self._squares - self._sum**2 / count if count else 0.0
        alike = spread <= 1e-12 * max(1, count)
        return {
            "mean_absolute_error": self._unit * self._absolute / count if count else math.nan,
            "root_mean_squared_error": self._unit * math.sqrt(self._squared / count) if count else math.nan,
            "r2": math.nan if alike else 1 - self._squared / spread,
            **({"unanswered": self._unanswered} if self._unanswered else {}),
        }
