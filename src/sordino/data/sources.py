"""Private examples behind one small interface, whatever they came in.

A row is one unit of privacy when the unit is `example`. Row count, shapes and dtypes are public (outputs list
them as assumptions); everything else about a row is private and only the gate may ask for it.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
    default_collate,
)

from sordino.data.chance import seeded
from sordino.data.datasets import HuggingRows, dataset_behind, is_hugging_face, refuse_overlap
from sordino.data.tree import Tree, tree_leaves, tree_map
from sordino.data.wrong import dtype_word

if TYPE_CHECKING:
    from sordino.data.inputs import Inputs

# Made-up rows are the same everywhere: a model check must not draw from the run's streams of randomness.
_TEMPLATE_SEED = 20_240_229

_TOGETHER = 256  # rows of a data set that are read at a time for a fingerprint
_READ_TWICE = 8  # of them, to see whether reading a row again gives the same

# Dtypes that many torch kernels (index_select among them) lack, and the smallest common one that holds them.
_WIDER = {torch.uint16: torch.int32, torch.uint32: torch.int64, torch.uint64: torch.int64}


class Examples(ABC):
    """An indexable private collection: n rows, each an input tree and a target. Made by `as_examples`."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of rows: public."""

    @abstractmethod
    def take(self, indices: Tensor) -> tuple[Tree, Tree]:
        """The rows at these int64 indices, stacked: (inputs, targets). No indices give tensors of 0 rows.

        Asked for every row in order, it may return the stored tensors themselves: never write to the result.
        """

    # How raw rows became these, where they know: what it took from them follows the rows into the certificate.
    inputs: Inputs | None = None

    chosen_by_content = (
        False  # are they those of more rows that could be read? Then their number is no public one.
    )

    may_draw_randomness = False  # does take() run code of the user's, which may augment?

    def take_readable(self, indices: Tensor) -> tuple[Tensor, Tree, Tree]:
        """Like ``take``, without the rows that cannot be read: which of ``indices`` are left, inputs, targets.

        For the gate, where a bad row must not stop a run: that it stopped would tell of the row.
        """
        return torch.arange(indices.numel()), *self.take(indices)

    @abstractmethod
    def fingerprint(self, key: bytes) -> str | None:
        """A keyed hash of all rows in order, or None if they are other ones at each reading.

        For checkpoints, so that a run goes on with the rows it began with; never for an output.
        """

    @abstractmethod
    def _no_rows(self) -> tuple[Tree, Tree]:
        """Inputs and targets with 0 rows: the shapes and dtypes, and nothing else."""

    @final
    def template(self, k: int, ones: bool = False) -> tuple[Tree, Tree]:
        """k made-up rows with the shapes and dtypes of the real ones and none of their values.

        Floats are uniform in [0, 1), integers and booleans are 0 or 1, or all 1 (where 0 is no length, or no token); so
        a model can be checked before any private row is touched.
        """
        generator = torch.Generator().manual_seed(_TEMPLATE_SEED)

        def made_up(leaf: Tensor) -> Tensor:
            shape = (k, *leaf.shape[1:])
            if leaf.dtype.is_floating_point:
                return torch.rand(shape, generator=generator).to(leaf.dtype).to(leaf.device)
            return torch.randint(int(ones), 2, shape, generator=generator).to(leaf.dtype).to(leaf.device)

        inputs, targets = self._no_rows()
        return tree_map(made_up, inputs), tree_map(made_up, targets)

    @final
    def reading(self, k: int) -> Callable[[], object]:
        """What reads k made-up rows about as real ones are read, for whoever wants to know how long that takes without
        touching any. Code of the user's is not called."""
        made_up = self._imitated(k)
        order = torch.arange(k) * len(made_up) // k
        return lambda: made_up.take_readable(
            order.flip(0)
        )  # in their order they may be handed out as they are

    def _imitated(self, k: int) -> Examples:
        """At least k made-up rows that lie as these do."""
        return _TensorExamples(*self.template(k))

    @final
    def with_made_up(self, some: tuple[Tree, Tree], places: Tensor, rows: int) -> tuple[Tree, Tree]:
        """A batch of so many rows: these at their places, and made-up ones at all others."""
        if len(places) == rows:
            return some

        def filled(part: Tensor, made_up: Tensor) -> Tensor:
            return made_up.repeat(rows, *[1] * (part.dim() - 1)).index_copy_(0, places.to(part.device), part)

        whole: tuple[Tree, Tree] = tree_map(filled, some, self.template(1))
        return whole


def as_examples(data: Any) -> Examples:
    """Wrap private data: a pair `(inputs, targets)`, a map-style `Dataset` (also Hugging Face's), or `Examples`.

    Of a plain `DataLoader` the data set is used; batches are drawn by the gate. Whatever would make a row two, or rows
    of other rows, is refused.

    Inputs may be a tensor, a numpy array, or a tuple, list or dict of them with the same number of rows.
    Tensors are not copied, but float64 becomes float32; a `Dataset` is read row by row when asked.

    >>> examples = as_examples((torch.zeros(5, 3), torch.arange(5)))
    >>> len(examples), examples.take(torch.tensor([4, 0]))[1]
    (5, tensor([4, 0]))
    """
    if isinstance(data, Examples):
        return data
    if isinstance(data, tuple):
        if len(data) != 2:
            raise ValueError(f"data is a tuple of {len(data)} parts: pass the pair (inputs, targets)")
        return _TensorExamples(*data)
    if isinstance(data, DataLoader):
        return as_examples(dataset_behind(data))
    if is_hugging_face(data):
        return _DatasetExamples(HuggingRows(data))
    if type(data) is ConcatDataset:
        refuse_overlap(data)
    if isinstance(data, TensorDataset):
        tensors = data.tensors
        if len(tensors) < 2:
            raise ValueError("the TensorDataset has no targets: build it as TensorDataset(inputs, targets)")
        return _TensorExamples(tensors[0] if len(tensors) == 2 else tensors[:-1], tensors[-1])
    if type(data) is Subset:  # not a subclass of it, which may change the rows
        return _SubsetExamples(as_examples(data.dataset), _row_numbers(data.indices))
    if isinstance(data, IterableDataset):
        raise ValueError(
            "an IterableDataset has no fixed rows to sample from: pass a map-style Dataset or tensors"
        )
    if isinstance(data, Dataset):
        return _DatasetExamples(data)
    raise ValueError(
        f"data of type {type(data).__name__} is not supported: pass a pair (inputs, targets) of tensors "
        "or numpy arrays, or a map-style torch Dataset"
    )


@final
class _TensorExamples(Examples):
    def __init__(self, inputs: Tree, targets: Tree) -> None:
        self._inputs = tree_map(lambda leaf: _as_tensor(leaf, "inputs"), inputs)
        self._targets = tree_map(lambda leaf: _as_tensor(leaf, "targets"), targets)
        self._count = _count_rows(self._inputs, self._targets)

    def __len__(self) -> int:
        return self._count

    def take(self, indices: Tensor) -> tuple[Tree, Tree]:
        if self._is_everything(indices):
            return self._inputs, self._targets
        return self._select(indices)

    def fingerprint(self, key: bytes) -> str | None:
        digest = hashlib.blake2b(key=key, digest_size=16)
        for leaf in tree_leaves((self._inputs, self._targets)):
            _digest_tensor(digest, leaf)
        return digest.hexdigest()

    def _is_everything(self, indices: Tensor) -> bool:
        # Only the whole range, and not every contiguous one, is handed out without a copy: a model that works
        # in place on its input would otherwise quietly rewrite the data in every fixed-order epoch.
        return indices.numel() == self._count and torch.equal(
            indices, torch.arange(self._count, device=indices.device)
        )

    def _select(self, indices: Tensor) -> tuple[Tree, Tree]:
        def select(leaf: Tensor) -> Tensor:
            return leaf.index_select(0, indices.to(leaf.device))

        return tree_map(select, self._inputs), tree_map(select, self._targets)

    def _no_rows(self) -> tuple[Tree, Tree]:
        return tree_map(lambda leaf: leaf[:0], self._inputs), tree_map(lambda leaf: leaf[:0], self._targets)


@final
class _SubsetExamples(Examples):
    """Rows of other examples, such as a part of `random_split`: indices compose, nothing is copied.

    No row may come twice. It would be counted as two units, and so a person's one row would get noise for half of what
    it moves; of a Subset of a Subset the same holds for each.
    """

    def __init__(self, whole: Examples, rows: Tensor) -> None:
        if rows.numel() == 0:
            raise ValueError("the data has no rows: pass at least one example")
        rows = torch.where(rows < 0, rows + len(whole), rows)
        if bool(((rows < 0) | (rows >= len(whole))).any()):
            raise ValueError(
                f"the Subset has indices outside its data set of {len(whole)} rows: fix its indices"
            )
        if len(torch.unique(rows)) < rows.numel():
            raise ValueError(
                "a row appears more than once in the Subset and would count as several units: make its indices unique"
            )
        self._whole = whole
        self._rows = rows
        self.may_draw_randomness, self.inputs = whole.may_draw_randomness, whole.inputs
        self.chosen_by_content = whole.chosen_by_content

    def __len__(self) -> int:
        return self._rows.numel()

    def take(self, indices: Tensor) -> tuple[Tree, Tree]:
        return self._whole.take(self._rows.index_select(0, indices.to(self._rows.device)))

    def take_readable(self, indices: Tensor) -> tuple[Tensor, Tree, Tree]:
        return self._whole.take_readable(self._rows.index_select(0, indices.to(self._rows.device)))

    def fingerprint(self, key: bytes) -> str | None:
        whole = self._whole.fingerprint(key)
        if whole is None:
            return None
        digest = hashlib.blake2b(whole.encode(), key=key, digest_size=16)
        _digest_tensor(digest, self._rows)
        return digest.hexdigest()

    def _no_rows(self) -> tuple[Tree, Tree]:
        return self._whole._no_rows()

    def _imitated(self, k: int) -> Examples:
        return self._whole._imitated(k)


@final
class _DatasetExamples(Examples):
    """Rows that code of the user's makes when asked. What it raises is not passed on: it may quote a row."""

    may_draw_randomness = True

    def __init__(self, dataset: Dataset[Any]) -> None:
        try:
            self._count = len(dataset)  # type: ignore[arg-type]  # torch's Dataset declares no __len__
        except (TypeError, NotImplementedError):
            raise ValueError(
                f"{type(dataset).__name__} has no length: a private data set needs __len__ and __getitem__"
            ) from None
        if self._count == 0:
            raise ValueError("the data has no rows: pass at least one example")
        self._dataset = dataset
        # One row is read here, for shapes and dtypes alone; an empty batch then needs no row at all.
        inputs, targets = self._collate(self._rows([0]))
        self._empty = (
            tree_map(lambda leaf: leaf[:0].clone(), inputs),
            tree_map(lambda leaf: leaf[:0].clone(), targets),
        )
        self._kinds = tree_map(lambda leaf: _Kind(leaf.dtype, leaf.shape[1:], leaf.device), self._empty)

    def __len__(self) -> int:
        return self._count

    def take(self, indices: Tensor) -> tuple[Tree, Tree]:
        if indices.numel() == 0:
            return self._no_rows()
        if int(indices.min()) < 0 or int(indices.max()) >= self._count:
            # the same exception that index_select raises for tensors
            raise IndexError(f"index out of range for {self._count} rows")
        rows = [self._fitted(row) for row in self._rows(indices.tolist())]
        if any(row is None for row in rows):
            raise self._cannot_be_stacked()
        return self._stacked(rows)

    def take_readable(self, indices: Tensor) -> tuple[Tensor, Tree, Tree]:
        # Each row with random numbers of its own: one that fails half-way must not change those of the next.
        first = int(torch.randint(2**31, ()))
        fitted = []
        for number, index in enumerate(indices.tolist()):
            with seeded(first + number):
                fitted.append(self._fitted(self._rows_or_none([index])[0]))
        good = [place for place, row in enumerate(fitted) if row is not None]
        return torch.tensor(good, dtype=torch.int64), *self._stacked([fitted[place] for place in good])

    def fingerprint(self, key: bytes) -> str | None:
        """Over all rows, read once, with the usual generators seeded for it and afterwards as they were.

        None if reading a few rows twice gives different ones, as when a data set augments from a generator of its own:
        then nothing here tells one data set from another, and the journal of releases has to.
        """
        first = range(min(_READ_TWICE, self._count))
        if self._digest(key, first) != self._digest(key, first):
            return None
        return self._digest(key, range(self._count))

    def _digest(self, key: bytes, indices: range) -> str:
        digest = hashlib.blake2b(f"{self._count} rows".encode(), key=key, digest_size=16)
        for row in self._read_in_order(indices):
            _digest_row(digest, row)
        return digest.hexdigest()

    def _read_in_order(self, indices: range) -> Iterator[Any]:
        for start in range(0, len(indices), _TOGETHER):
            part = list(indices[start : start + _TOGETHER])
            with seeded(_TEMPLATE_SEED + start):
                rows = self._rows_or_none(part)
            yield from rows

    def _no_rows(self) -> tuple[Tree, Tree]:
        return self._empty

    def _rows(self, indices: list[int]) -> list[Any]:
        try:
            if hasattr(self._dataset, "__getitems__"):  # torch's own protocol for fetching many rows at once
                rows = list(self._dataset.__getitems__(indices))
            else:
                rows = [self._dataset[index] for index in indices]
        except (Exception, SystemExit) as error:
            raise ValueError(
                f"{type(self._dataset).__name__} raised {type(error).__name__} when asked for a row (what it said is "
                "not shown, since it may quote the row): make sure that every row can be read"
            ) from None
        if len(rows) != len(indices):
            raise ValueError(
                f"{type(self._dataset).__name__}.__getitems__ did not give one row for each index: fix it"
            )
        return rows

    def _rows_or_none(self, indices: list[int]) -> list[Any]:
        """The rows, with None for those that cannot be read."""
        try:
            return self._rows(indices)
        except ValueError:
            return [None] if len(indices) == 1 else [self._rows_or_none([index])[0] for index in indices]

    def _fitted(self, row: Any) -> list[Any] | None:
        """The leaves of a row as the first row has them, or None if they are of another kind.

        Of each row by itself: in a batch that is collated as a whole one label 2.5 makes floats of all the others.
        """
        leaves: list[Any] = []
        try:
            _fit(self._kinds, row, leaves)
        except (Exception, SystemExit):  # code of the user's may be behind a leaf
            return None
        return leaves

    def _stacked(self, rows: list[Any]) -> tuple[Tree, Tree]:
        if not rows:
            return self._empty
        columns = iter(zip(*rows, strict=True))
        inputs, targets = tree_map(lambda kind: kind.stacked(next(columns)), self._kinds)
        return inputs, targets

    def _cannot_be_stacked(self) -> ValueError:
        return ValueError(
            f"rows of {type(self._dataset).__name__} cannot be stacked: every row needs the same structure, shapes and "
            "number types (pad or resize them, and return tensors)"
        )

    def _collate(self, rows: list[Any]) -> tuple[Tree, Tree]:
        name = type(self._dataset).__name__
        for row in rows:
            if not isinstance(row, tuple | list) or len(row) != 2:
                raise ValueError(f"a row of {name} is not a pair: __getitem__ must return (input, target)")
        try:
            inputs, targets = default_collate([tuple(row) for row in rows])
        except Exception:
            # torch's message spells out shapes or even values of rows, which may be private
            raise self._cannot_be_stacked() from None
        inputs = tree_map(lambda leaf: _as_tensor(leaf, "inputs"), inputs)
        targets = tree_map(lambda leaf: _as_tensor(leaf, "targets"), targets)
        _count_rows(inputs, targets)
        return inputs, targets


def _as_tensor(leaf: Any, role: str) -> Tensor:
    """A plain tensor that shares memory where it can; float64 becomes float32, other dtypes stay."""
    if isinstance(leaf, np.ndarray):
        leaf = _from_numpy(leaf, role)
    if not isinstance(leaf, Tensor):
        raise ValueError(
            f"{role} hold a {type(leaf).__name__}: use tensors or numpy arrays, one row per example"
        )
    if leaf.layout != torch.strided or leaf.is_complex() or leaf.is_quantized:
        raise ValueError(f"{role} are a sparse, complex or quantized tensor: convert them to a plain one")
    if leaf.dtype == torch.float64:
        leaf = leaf.to(torch.float32)
    tensor: Tensor = leaf.detach().to(_WIDER.get(leaf.dtype, leaf.dtype))
    return tensor


def _from_numpy(array: np.ndarray[Any, Any], role: str) -> Tensor:
    if array.dtype.kind not in "fiub" or array.dtype.itemsize > 8:
        raise ValueError(
            f"{role} have the numpy dtype {dtype_word(array.dtype)}: convert them to numbers, such as float32 or int64"
        )
    if not (array.dtype.isnative and array.flags.writeable and all(stride >= 0 for stride in array.strides)):
        array = array.astype(
            array.dtype.newbyteorder("="), order="C", copy=True
        )  # forms that torch cannot share
    return torch.from_numpy(array)


def _count_rows(inputs: Tree, targets: Tree) -> int:
    """The common number of rows, or a ValueError that says which parts disagree."""
    counts: dict[str, set[int]] = {}
    for role, tree in (("inputs", inputs), ("targets", targets)):
        leaves = tree_leaves(tree)
        if not leaves:
            raise ValueError(f"{role} hold no tensors: pass at least one")
        if any(leaf.dim() == 0 for leaf in leaves):
            raise ValueError(f"{role} hold a single number: the first dimension must count the rows")
        counts[role] = {leaf.shape[0] for leaf in leaves}
    every = counts["inputs"] | counts["targets"]
    if len(every) > 1:
        rows = {role: " or ".join(map(str, sorted(found))) for role, found in counts.items()}
        raise ValueError(
            f"inputs have {rows['inputs']} rows and targets have {rows['targets']}: "
            "give every part one row per example"
        )
    (count,) = every
    if count == 0:
        raise ValueError("the data has no rows: pass at least one example")
    return count


@dataclass(frozen=True)
class _Kind:
    """What a leaf of every row has to be."""

    dtype: torch.dtype
    shape: torch.Size  # of one row
    device: torch.device

    def fitted(self, leaf: Any) -> Any:
        """As a tensor, or a plain number, which is stacked faster; any exception if it does not fit."""
        if type(leaf) is Tensor and leaf.dtype == self.dtype and leaf.shape == self.shape:
            if leaf.layout != torch.strided:
                raise TypeError
            return (leaf.detach() if leaf.requires_grad else leaf).to(self.device)
        if type(leaf) is int and not self.shape and self.dtype == torch.int64:
            if not -(2**63) <= leaf < 2**63:
                raise OverflowError
            return leaf
        if type(leaf) is float and not self.shape and self.dtype == torch.float32:
            return leaf
        tensor = _from_numpy(leaf, "rows") if isinstance(leaf, np.ndarray) else torch.as_tensor(leaf).detach()
        if tensor.shape != self.shape or tensor.layout != torch.strided or tensor.is_quantized:
            raise ValueError
        if not torch.can_cast(tensor.dtype, self.dtype):
            raise TypeError
        return tensor.to(self.device, self.dtype)

    def stacked(self, column: Sequence[Any]) -> Tensor:
        if all(type(leaf) is int for leaf in column):
            return torch.tensor(column, dtype=self.dtype, device=self.device)
        if all(type(leaf) is float for leaf in column):
            # Of doubles first, as one too large for a single becomes infinite and raises nothing.
            return torch.tensor(column, dtype=torch.float64, device=self.device).to(self.dtype)
        return torch.stack([self._tensor(leaf).to(self.device) for leaf in column])

    def _tensor(self, leaf: Any) -> Tensor:
        return leaf if isinstance(leaf, Tensor) else self.stacked([leaf])[0]


def _fit(kinds: Tree, row: Any, leaves: list[Any]) -> None:
    """Add the leaves of a row to ``leaves``; any exception if they are of other kinds than these."""
    if isinstance(kinds, _Kind):
        leaves.append(kinds.fitted(row))
    elif isinstance(kinds, dict):
        if set(row) != set(kinds):
            raise ValueError
        for key, child in kinds.items():
            _fit(child, row[key], leaves)
    else:
        if not isinstance(row, tuple | list):
            raise TypeError
        for child, part in zip(kinds, row, strict=True):
            _fit(child, part, leaves)


def part_of(whole: Examples, rows: Tensor) -> Examples:
    """Some rows of examples, by their numbers; nothing is copied."""
    return _SubsetExamples(whole, rows)


def _row_numbers(indices: Any) -> Tensor:
    """The indices of a Subset; a mask, or what is no whole number, would quietly become other rows."""
    try:
        rows = torch.as_tensor(indices)
    except Exception:
        rows = torch.zeros(1)
    if (
        rows.dim() != 1
        or rows.is_complex()
        or (len(rows) and (rows.is_floating_point() or rows.dtype == torch.bool))
    ):
        raise ValueError("the indices of the Subset are not row numbers: give a list of whole numbers")
    return rows.to(torch.int64)


def _digest_tensor(digest: hashlib.blake2b, leaf: Tensor) -> None:
    array = leaf.detach().cpu().contiguous()
    digest.update(f"{array.dtype} {tuple(array.shape)}".encode())
    digest.update(array.reshape(-1).view(torch.uint8).numpy().data)


def _digest_row(digest: hashlib.blake2b, row: Any) -> None:
    """Whatever a data set gave for a row, also if it is not fit for training."""
    for leaf in tree_leaves(row):
        if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "fiub" and leaf.dtype.itemsize <= 8:
            leaf = _from_numpy(leaf, "rows")
        if isinstance(leaf, Tensor) and leaf.layout == torch.strided and not leaf.is_quantized:
            _digest_tensor(digest, leaf)
        else:
            plain = leaf if isinstance(leaf, str | bytes | int | float | np.generic) else None
            digest.update(f"{type(leaf).__name__} {plain!r};".encode())
