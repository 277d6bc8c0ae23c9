"""How good a candidate is, on rows of the user's: a noisy mean, released like everything else that is private."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sordino.data import Examples, as_examples, tree_leaves, tree_map
from sordino.gate import Members
from sordino.gradients import Unsuitable, call_model, evaluating
from sordino.noise import GaussianNoise, Streams
from sordino.noise.grid import grid_for
from sordino.privacy import gaussian
from sordino.tasks import Task

if TYPE_CHECKING:
    from dp_accounting import DpEvent

Worth = Callable[[Any, Any], Tensor]  # of scores and targets: one value in [0, 1] for each example
_LEAST_NOISE = 4.0
_ROOM = 1.001  # the sum is rounded to its grid and may move by a hair more than 1
_BATCH = 1000
_TRIED = 16  # made-up rows


@dataclass(frozen=True, eq=False)
class Score:
    """The mean over units of what a model is worth to each, in [0, 1]: accuracy, unless something else is given.

    Guarantee: one unit moves the sum by at most 1, and the noise on it has standard deviation ``noise_multiplier``,
    0 if the rows are public. The number of units is public.

    Args:
        data: The rows. They may be rows that were trained on, or others: what is spent is added up either way.
        task: How scores are found in what a model returns.
        worth: Of each example; None for accuracy.
        public: Whether the rows are nobody's secret.
        groups: An id for each row, where the unit is the user.
        least_noise: Of the sum, at least.
    """

    data: Any
    task: Task
    worth: Worth | None = None
    public: bool = False
    groups: Any = None
    least_noise: float = _LEAST_NOISE  # what the budget asks for, if it is more than the rule

    @cached_property
    def members(self) -> Members:
        return Members(len(as_examples(self.data)), self.groups)

    @property
    def noise_multiplier(self) -> float:
        """So that noise tells as much less as drawing the rows does: the deviation of a count of n halves."""
        return 0.0 if self.public else max(self.least_noise, math.sqrt(self.members.count) / 2)

    @property
    def event(self) -> DpEvent | None:
        """What one score costs."""
        return None if self.public else gaussian(self.noise_multiplier)

    def check(self, model: nn.Module, template: tuple[Any, Any] | None = None) -> None:
        """Try it on made-up rows, or on public ones, before a private one is seen and before anything is spent."""
        examples = as_examples(self.data)
        made_up = [examples.template(_TRIED), examples.template(_TRIED, ones=True)]
        batches = made_up if template is None else [template]
        try:
            with evaluating(model), torch.no_grad(), torch.random.fork_rng(devices=[]):
                for inputs, targets in batches:
                    scores = self.task.scores_of(call_model(model, inputs))
                    self._check_alone(scores, targets)
                    # What the model gives may be all alike, so that nothing shows.
                    self._check_alone(tree_map(_scattered, scores), targets)
        except Unsuitable:
            raise
        except Exception as error:
            raise ValueError(
                f"the score cannot be computed on made-up rows like those it is to be taken on "
                f"({type(error).__name__}: {error}): check their shape, or give worth="
            ) from error

    def _check_alone(self, scores: Any, targets: Any) -> None:
        """A row that had a say in what others are worth could move the sum by more than 1."""
        together = self._bounded(scores, targets)
        for row in range(len(together)):
            alone = self._bounded(*_part((scores, targets), [row]))
            if not torch.allclose(alone, together[row : row + 1], atol=1e-6):
                raise Unsuitable(
                    "worth must not look at other examples: it gives a row another number alone than among others; "
                    "a mean over the batch, R squared and the like cannot be scores"
                )

    def of(self, model: nn.Module, streams: Streams, number: int) -> float:
        """The score of a candidate; the same again if it is asked for again."""
        total = self._sum_over_units(model).reshape(1)
        multiplier = self.noise_multiplier
        if multiplier:
            GaussianNoise(streams).add_(total, multiplier * _ROOM, "noise:score", number, grid_for(1.0, 1))
        return float(total) / self.members.count

    def _sum_over_units(self, model: nn.Module) -> Tensor:
        """In double precision: each unit adds the mean over its rows, between 0 and 1."""
        examples, members = as_examples(self.data), self.members
        worth = torch.zeros(len(examples), dtype=torch.float64)
        with evaluating(model), torch.no_grad(), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a model warns of may be a private row
            for start in range(0, len(examples), _BATCH):
                rows = torch.arange(start, min(start + _BATCH, len(examples)))
                worth[rows] = self._worth_of(model, examples, rows)
        if members.groups is None:
            return worth.sum()
        sums = torch.zeros(members.count, dtype=torch.float64).index_add_(0, members.groups, worth)
        return (sums / torch.bincount(members.groups)).sum()

    def _worth_of(self, model: nn.Module, examples: Examples, rows: Tensor) -> Tensor:
        """Rows that cannot be read or computed are worth nothing. A made-up row stands in the place of each, so that
        the others are computed as ever, to the last digit: no row moves what another is worth."""
        kept, inputs, targets = examples.take_readable(rows)
        there = torch.zeros(len(rows), dtype=torch.bool).index_fill_(0, kept, True)
        batch = examples.with_made_up((inputs, targets), kept, len(rows))
        try:
            return self.values(model, *batch).where(there, 0.0)
        except Exception:  # of whatever kind: what it says may quote a row
            fine = [at for at in range(len(rows)) if there[at] and self._can(model, _part(batch, [at]))]
        if not fine:
            return torch.zeros(len(rows), dtype=torch.float64)
        batch = examples.with_made_up(_part(batch, fine), torch.tensor(fine), len(rows))
        try:
            found = self.values(model, *batch)
        except Exception:
            return torch.zeros(len(rows), dtype=torch.float64)
        return torch.zeros_like(found).index_copy_(0, torch.tensor(fine), found[fine])

    def _can(self, model: nn.Module, batch: Any) -> bool:
        try:
            self.values(model, *batch)
        except Exception:
            return False
        return True

    def values(self, model: nn.Module, inputs: Any, targets: Any) -> Tensor:
        device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        inputs, targets = tree_map(lambda leaf: leaf.to(device), (inputs, targets))
        return self._bounded(self.task.scores_of(call_model(model, inputs)), targets)

    def _bounded(self, scores: Any, targets: Any) -> Tensor:
        values = (self.worth or is_right)(scores, targets)
        rows = len(tree_leaves(targets)[0])
        if not isinstance(values, Tensor) or values.shape != (rows,):
            raise Unsuitable("worth gives one number from 0 to 1 for each example: check what it returns")
        return values.detach().to("cpu", torch.float64).nan_to_num(nan=0.0).clamp(0.0, 1.0)


def _scattered(scores: Tensor) -> Tensor:
    """Made-up ones of the same shape."""
    drawn = torch.randn(scores.shape, generator=torch.Generator().manual_seed(5))
    return drawn.to(scores.dtype) if scores.is_floating_point() else scores


def _part(batch: Any, places: list[int]) -> Any:
    return tree_map(lambda leaf: leaf[places], tuple(batch))


def is_right(scores: Tensor, targets: Tensor) -> Tensor:
    """Whether the class with the largest score is the target's."""
    if not isinstance(scores, Tensor) or scores.dim() != 2 or scores.shape[1] < 2 or targets.dim() != 1:
        raise ValueError(
            "accuracy needs scores [n, classes] and targets [n]: give worth=, a function of (scores, targets) with "
            "one number from 0 to 1 for each example"
        )
    return scores.argmax(1) == targets
