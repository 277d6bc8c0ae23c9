"""What every reader of a file format returns."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Loaded:
    """A data set in memory, with what about it is taken to be public.

    `train` and `test` are pairs (inputs, targets) for `as_examples`. Inputs are scaled by constants fixed in
    advance, never by statistics of the rows: a raw value v in [0, 1] became (v - mean) / std of its channel.
    """

    name: str  # the identity under which a ledger counts what was spent
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor] | None
    classes: int
    input_shape: tuple[int, ...]
    task: str = "classification"
    public: tuple[str, ...] = ("number of rows", "number of classes", "shape of the inputs")
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    users: Tensor | None = None  # whose each training row is, where the rows have owners
