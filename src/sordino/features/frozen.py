"""Features that are fixed before any private row is seen, and computed of each row by itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from torch import Tensor

from sordino.data.chance import seeded

_SEED = 20_240_229


class Frozen(ABC):
    """What stands in front of a private model and is not trained: public, and the same for every run."""

    dtype: ClassVar[torch.dtype] = torch.float32  # in which features are kept
    batch: ClassVar[int] = (
        64  # rows at a time: always so many, so that no row's arithmetic depends on how many there are
    )
    takes: ClassVar[str]  # images, rows or texts
    scale: ClassVar[float] = 1.0  # by which a model sees them multiplied
    in_threads: ClassVar[bool] = False  # may several rows be worked on at once, each by itself?

    @property
    @abstractmethod
    def name(self) -> str:
        """As it is written behind --features."""

    @abstractmethod
    def shape(self, row: tuple[int, ...]) -> tuple[int, ...]:
        """Of a row's features, for rows of this shape; ValueError if it is not for such rows."""

    @abstractmethod
    def __call__(self, rows: Any) -> Tensor:
        """The features [B, ...] of a batch of rows: a tensor [B, ...], or a list of B texts."""

    def describe(self) -> dict[str, Any]:
        """What inputs.json says of it: the name, and whatever tells that it is the same one."""
        return {"name": self.name}


def nothing() -> None:
    """No features: the model sees the rows."""


def refuse_mixing(features: Frozen, rows: Any) -> Tensor:
    """The features of five made-up rows, if no row's depend on the others of a batch and they are always the same.

    The same row at the same place of a batch of the same size, beside other rows: the arithmetic is the same, so the
    bound can be tight.
    """
    found = _of(features, rows)
    if not torch.equal(found, _of(features, rows, seed=_SEED + 1)):
        raise ValueError(
            f"features {features.name!r} are others each time they are computed: leave out what is random, or counts"
        )
    for place in range(3):
        of_one = []
        for others in ((1, 2), (3, 4)):
            chosen = [*others[:place], 0, *others[place:]]
            company = [rows[each] for each in chosen] if isinstance(rows, list) else rows[chosen]
            of_one.append(_of(features, company)[place])
        if not torch.allclose(of_one[0], of_one[1], rtol=1e-5, atol=1e-7, equal_nan=True):
            raise ValueError(
                f"features {features.name!r} of a row depend on the other rows of its batch, so nobody's influence is "
                "bounded: remove what mixes them (statistics of the batch, attention across it)"
            )
    return found


def _of(features: Frozen, rows: Any, seed: int = _SEED) -> Tensor:
    with torch.no_grad(), seeded(seed):
        return features(rows)
