"""Metrics that the guarantee covers: held-out rows are looked at once, when the training is done, as noisy counts.

Each row adds 1 to one count, or to a sum at most as much as the public range of the target allows, so nobody has to
assume that held-out people are others than those who were trained on: what the counts cost is added to the rest.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from sordino.data import Examples, as_examples, tree_map
from sordino.data.inputs import Target
from sordino.gradients import call_model, evaluating
from sordino.privacy.counts import check_installed, noisy_counts, standard_error
from sordino.tasks import Task

MOST_CLASSES = 20  # with a matrix of who was taken for whom; beyond, only how many were right
GRID = 1 << 20  # steps into which the largest possible error is divided
_BATCH = 256


class NoisyMetrics:
    """What is counted is settled from made-up rows and the schema, before anything is spent.

    Guarantee: what `release` returns is epsilon-DP for one held-out row, whose contribution may be zeroed out. The
    number of held-out rows is public.
    """

    def __init__(
        self, model: nn.Module, task: Task, test: Any, epsilon: float, unit: str, target: Target | None
    ) -> None:
        if unit != "example":
            raise ValueError(
                "how many held-out rows one user has is not known, so noisy metrics have no price for users: leave "
                "them out"
            )
        check_installed()
        self._model, self._task, self._epsilon, self._target = model, task, epsilon, target
        self._rows: Examples = as_examples(test)
        if self._rows.chosen_by_content:
            raise ValueError(
                "of these held-out rows those without a target were left out, and how many are left is not paid for: "
                "read them with whole_test=True"
            )
        scores, targets = self._scored(*self._rows.template(5))
        self._classes = _classes_of(scores, targets)
        if self._classes == 0 and (target is None or target.labels or scores.numel() != 5):
            raise ValueError(
                "noisy metrics count classes, or errors of one number between public bounds, and this is neither: "
                "leave them out"
            )

    def release(self) -> dict[str, Any]:
        """Look at the rows, and return what is left of them under the noise."""
        counts = self._exact()
        sensitivity = 1 if self._classes else GRID
        noisy = noisy_counts(counts.tolist(), sensitivity, self._epsilon)
        return self._regression(noisy[0]) if self._classes == 0 else self._classification(noisy)

    # What leaves, from noisy counts and public numbers alone ----------------------------------------------

    def _classification(self, noisy: list[int]) -> dict[str, Any]:
        n, classes = len(self._rows), self._classes
        one = standard_error(1, self._epsilon) / n
        if classes > MOST_CLASSES:
            return {"test_accuracy": noisy[0] / n, "test_accuracy_noise": one}
        matrix = [noisy[row * classes : (row + 1) * classes] for row in range(classes)]
        right = sum(matrix[each][each] for each in range(classes))
        return {
            "test_accuracy": right
            / max(1, sum(noisy)),  # of the rows that have a label, about as many as that
            "test_accuracy_noise": one * math.sqrt(classes),
            "test_confusion": matrix,  # rows are what they are, columns what they were taken for
        }

    def _regression(self, noisy: int) -> dict[str, Any]:
        assert self._target is not None
        unit = 2 * self._target.half_range / GRID / len(self._rows)
        return {
            "test_mean_absolute_error": noisy * unit,
            "test_mean_absolute_error_noise": standard_error(GRID, self._epsilon) * unit,
        }

    # What does not --------------------------------------------------------------------------------------

    def _exact(self) -> Tensor:
        total = self._nothing()
        with evaluating(self._model), torch.no_grad():
            for start in range(0, len(self._rows), _BATCH):
                places = torch.arange(start, min(start + _BATCH, len(self._rows)))
                kept, inputs, targets = self._rows.take_readable(places)
                total = total + self._counted(kept, inputs, targets, len(places))
                if self._classes == 0:  # what cannot be read is as wrong as can be, and not as right
                    total = total + GRID * (len(places) - len(kept))
        return total

    def _counted(self, kept: Tensor, inputs: Any, targets: Any, rows: int) -> Tensor:
        """Of a batch, in which every row stays at its place, with made-up ones where one cannot be read: else the last
        digits of the others, and with them who is right at a tie, would follow from it. Where the batch cannot be
        computed, each row so by itself; one that cannot counts nowhere."""
        if len(kept) == 0:
            return self._nothing()
        batch = self._rows.with_made_up((inputs, targets), kept, rows)
        try:
            return self._counts(*batch, kept)
        except Exception:
            if len(kept) == 1:
                return self._nothing() if self._classes else torch.tensor([GRID])
        found = self._nothing()
        for row in range(len(kept)):
            one = tree_map(lambda leaf, row=row: leaf[row : row + 1], (inputs, targets))
            found = found + self._counted(kept[row : row + 1], one[0], one[1], rows)
        return found

    def _nothing(self) -> Tensor:
        return torch.zeros(self._classes**2 if 0 < self._classes <= MOST_CLASSES else 1, dtype=torch.int64)

    def _counts(self, inputs: Any, targets: Any, kept: Tensor) -> Tensor:
        scores, targets = (part[kept] for part in self._scored(inputs, targets))
        if self._classes == 0:
            # In the model's numbers the target is from -1 to 1, so no error is above 2.
            errors = (scores.reshape(-1).double().clamp(-1, 1) - targets.reshape(-1).double()).abs()
            shares = torch.nan_to_num(errors / 2, nan=1.0).clamp(0, 1)
            steps: Tensor = (shares * GRID).round().to(torch.int64)
            return steps.sum().reshape(1)
        guesses, classes = scores.argmax(1), self._classes
        known = (targets >= 0) & (targets < classes)
        guesses, targets = guesses[known], targets[known]
        if classes > MOST_CLASSES:
            right: Tensor = guesses == targets
            return right.sum().reshape(1)
        return torch.bincount(targets * classes + guesses, minlength=classes**2)

    def _scored(self, inputs: Any, targets: Any) -> tuple[Tensor, Tensor]:
        device = next((parameter.device for parameter in self._model.parameters()), None)
        inputs = tree_map(lambda leaf: leaf.to(device), inputs)
        with evaluating(self._model), torch.no_grad():
            scores = self._task.scores_of(call_model(self._model, inputs))
        if not isinstance(scores, Tensor) or not isinstance(targets, Tensor):
            raise ValueError(
                "noisy metrics need a model that returns a tensor, or a task that says where scores are"
            )
        return scores.cpu(), targets.cpu()


def _classes_of(scores: Tensor, targets: Tensor) -> int:
    """How many there are; 0 for no classes."""
    of_classes = scores.dim() == 2 and scores.shape[1] > 1
    labels = targets.dim() == 1 and not targets.is_floating_point()
    return int(scores.shape[1]) if of_classes and labels else 0
