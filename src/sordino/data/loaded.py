"""What every reader of a file format returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from sordino.data.inputs import Inputs


@dataclass(frozen=True, eq=False)
class Loaded:
    """A data set in memory, with what about it is taken to be public.

    `train` and `test` are pairs (inputs, targets) for `as_examples`. Inputs are scaled by constants fixed in
    advance, never by statistics of the rows: a raw value v in [0, 1] became (v - mean) / std of its channel.
    """

    name: str  # the identity under which a ledger counts what was spent
    train: Any  # a pair of tensors, or `Examples` where they do not fit into memory
    test: Any  # likewise, or None
    classes: int
    input_shape: tuple[int, ...]
    task: str = "classification"
    public: tuple[str, ...] = ("number of rows", "number of classes", "shape of the inputs")
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    labels: tuple[str, ...] = ()  # names of the classes, where they have any
    inputs: Inputs | None = (
        None  # how raw rows became these, so that a trained model can be given more of them
    )
    users: Tensor | None = None  # whose each training row is, where the rows have owners
