"""Rows that somebody put among private ones, to see whether they can be found again."""

from __future__ import annotations

from typing import final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sordino.data.sources import Examples
from sordino.data.tree import Tree, tree_map

Places = npt.NDArray[np.int64]


def spread(count: int, among: int) -> Places:
    """Places for ``count`` canaries, evenly among so many others: where batches have an order, none is all canaries.

    >>> spread(2, 4).tolist()
    [1, 4]
    """
    total = count + among
    return np.array([(2 * k + 1) * total // (2 * count) for k in range(count)], dtype=np.int64)


@final
class WithCanaries(Examples):
    """Private rows with canaries at some ``places`` among them, so many rows in all that every place is one.

    ``rows`` are public ones, one for each place, or a single one that stands at all of them. With ``marks``, a number
    from 1 for each place, every row says in inputs and targets whose it is: ``(inputs, mark)``, 0 for the private ones.
    """

    def __init__(
        self, real: Examples, places: Places, rows: tuple[Tree, Tree], marks: Places | None = None
    ) -> None:
        self._real, self._rows = real, rows
        self._count = len(real) + len(places)
        inside = np.zeros(self._count, dtype=bool)
        inside[places] = True
        source = np.empty(
            self._count, dtype=np.int64
        )  # of a private row its number, of a canary -1 - its own
        source[~inside] = np.arange(len(real))
        source[places] = -1 - np.arange(len(places))
        self._source = torch.from_numpy(source)
        self._marks = None
        if marks is not None:
            self._marks = torch.zeros(self._count, dtype=torch.int64)
            self._marks[torch.from_numpy(places)] = torch.from_numpy(marks)
        self.may_draw_randomness, self.inputs = real.may_draw_randomness, real.inputs

    def __len__(self) -> int:
        return self._count

    def take(self, indices: Tensor) -> tuple[Tree, Tree]:
        source = self._source[indices]
        real = (source >= 0).nonzero().flatten()
        return self._together(indices, source, real, self._real.take(source[real]))

    def take_readable(self, indices: Tensor) -> tuple[Tensor, Tree, Tree]:
        source = self._source[indices]
        real = (source >= 0).nonzero().flatten()
        good, inputs, targets = self._real.take_readable(source[real])
        there = source < 0
        there[real[good]] = True
        kept = there.nonzero().flatten()
        # Counted among those that can be read.
        position = torch.cumsum(there, 0)[real[good]] - 1
        return kept, *self._together(indices[kept], source[kept], position, (inputs, targets))

    def _together(
        self, indices: Tensor, source: Tensor, real: Tensor, private: tuple[Tree, Tree]
    ) -> tuple[Tree, Tree]:
        canary = (source < 0).nonzero().flatten()
        which = -1 - source[canary]

        def joined(theirs: Tensor, ours: Tensor) -> Tensor:
            chosen = ours[which] if len(ours) > 1 else ours.expand(len(which), *ours.shape[1:])
            whole = theirs.new_empty(len(source), *theirs.shape[1:])
            return whole.index_copy_(0, real, theirs).index_copy_(0, canary, chosen.to(theirs.dtype))

        inputs, targets = tree_map(joined, private, self._rows)
        return self._marked(inputs, targets, indices)

    def _marked(self, inputs: Tree, targets: Tree, indices: Tensor) -> tuple[Tree, Tree]:
        if self._marks is None:
            return inputs, targets
        marks = self._marks[indices]
        return (inputs, marks), (targets, marks)

    def fingerprint(self, key: bytes) -> str | None:
        """Of the private rows: an audit is of the same data."""
        return self._real.fingerprint(key)

    def _no_rows(self) -> tuple[Tree, Tree]:
        return self._marked(*self._real._no_rows(), torch.zeros(0, dtype=torch.int64))
