"""Whose each row is, when the unit of privacy is all that somebody has."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

_ONE_EACH = "groups must give one id for each of the {} rows"
_NO_ID = (
    "a row's id among groups or users is missing or not finite, and it would count as somebody of its own: give every "
    "row an id, or leave it out"
)
_KINDS = "ids of groups or users must be of one kind: give whole numbers, or names as text"


def units_of(groups: Any, rows: int) -> Tensor:
    """The unit of each row as a number 0, 1, ..., from ids of any kind: numbers or text, a tensor, array or list.

    Units are numbered in the order of their ids. An id that is missing (NaN, None) is refused, since NaN is not even
    equal to itself. Messages quote no id.

    >>> units_of(["ann", "bob", "ann"], 3), units_of(torch.tensor([0.0, 7.0, -0.0]), 3)
    (tensor([0, 1, 0]), tensor([0, 1, 0]))
    """
    if isinstance(groups, Tensor):
        groups = groups.detach().cpu()
        if groups.dtype == torch.bfloat16:  # which NumPy has not
            groups = groups.float()
        ids = groups.numpy()
    elif isinstance(
        groups, list | tuple
    ):  # of which NumPy would make text if one of them is text, NaN included
        ids = np.empty(len(groups), dtype=object)
        ids[:] = [each.item() if isinstance(each, Tensor) and each.dim() == 0 else each for each in groups]
    else:
        ids = np.asarray(groups)
    if ids.shape != (rows,):
        raise ValueError(_ONE_EACH.format(rows))
    if ids.dtype.kind == "O":
        return torch.tensor(_numbered(ids.tolist()), dtype=torch.int64)
    if ids.dtype.kind not in "iubfUS":
        raise ValueError(_KINDS)
    if ids.dtype.kind == "f" and not np.isfinite(ids).all():
        raise ValueError(_NO_ID)
    _, index = np.unique(ids, return_inverse=True)
    return torch.from_numpy(index.astype(np.int64, copy=False))


def _numbered(ids: list[Any]) -> list[int]:
    if any(each is None or type(each).__name__ in ("NAType", "NaTType") for each in ids):  # pandas' two
        raise ValueError(_NO_ID)
    if all(isinstance(each, str) for each in ids) or all(isinstance(each, bytes) for each in ids):
        pass
    elif not all(isinstance(each, Real) for each in ids):
        missing = any(
            isinstance(each, float) and math.isnan(each) for each in ids
        )  # among text, as in a table
        raise ValueError(_NO_ID if missing else _KINDS)
    elif not all(isinstance(each, int | np.integer) or math.isfinite(each) for each in ids):
        raise ValueError(_NO_ID)
    numbers = {each: number for number, each in enumerate(sorted(set(ids)))}
    return [numbers[each] for each in ids]
