"""Rows as a model sees them once the offset and the deviation of each input are known."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from sordino.data.sources import Examples
from sordino.data.tree import Tree


@dataclass(frozen=True, eq=False)
class Moments:
    """What is taken off every input, and what it is divided by then: both released, or public.

    Args:
        offset: Of a shape that broadcasts to that of a row.
        deviation: Likewise, above 0.

    >>> Moments(torch.tensor([1.0, 0.0]), torch.tensor([2.0, 10.0])).applied(torch.tensor([[5.0, 5.0]]))
    tensor([[2.0000, 0.5000]])
    """

    offset: Tensor
    deviation: Tensor

    def applied(self, rows: Tensor) -> Tensor:
        """Standardised rows of the same type; those given stay as they are."""
        offset, deviation = self.offset.to(rows.device), self.deviation.to(rows.device)
        # The offset first: of numbers far from 0 a product would keep fewer digits.
        return rows.to(torch.float32).sub(offset).div_(deviation).to(rows.dtype)

    def to_state(self) -> dict[str, Tensor]:
        return {"offset": self.offset, "deviation": self.deviation}

    @staticmethod
    def from_state(state: dict[str, Tensor]) -> Moments:
        return Moments(state["offset"], state["deviation"])


class Place:
    """Where moments are found as soon as there are any: rows to train on and held-out ones share it."""

    def __init__(self, moments: Moments | None = None) -> None:
        self.moments = moments


@final
class StandardisedExamples(Examples):
    """Other examples, each input standardised when it is read; as they are while there are no moments.

    A fingerprint is that of the rows behind it, and so are made-up rows.
    """

    def __init__(self, whole: Examples, place: Place) -> None:
        self._whole, self._place = whole, place
        self.inputs, self.chosen_by_content = whole.inputs, whole.chosen_by_content
        self.may_draw_randomness = whole.may_draw_randomness

    def __len__(self) -> int:
        return len(self._whole)

    def take(self, indices: Tensor) -> tuple[Tree, Tree]:
        inputs, targets = self._whole.take(indices)
        return self._applied(inputs), targets

    def take_readable(self, indices: Tensor) -> tuple[Tensor, Tree, Tree]:
        kept, inputs, targets = self._whole.take_readable(indices)
        return kept, self._applied(inputs), targets

    def _applied(self, inputs: Any) -> Any:
        moments = self._place.moments
        return inputs if moments is None else moments.applied(inputs)

    def fingerprint(self, key: bytes) -> str | None:
        return self._whole.fingerprint(key)

    def _no_rows(self) -> tuple[Tree, Tree]:
        return self._whole._no_rows()

    def _imitated(self, k: int) -> Examples:
        return StandardisedExamples(self._whole._imitated(k), Place(Moments(torch.zeros(1), torch.ones(1))))
