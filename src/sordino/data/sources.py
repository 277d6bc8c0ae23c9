"""Private examples behind one small interface, whatever they came in.

A row is one unit of privacy when the unit is `example`. Row count, shapes and dtypes are public (outputs list
them as assumptions); everything else about a row is private and only the gate may ask for it.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from typing import Any, final

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset, default_collate

from sordino.data.tree import Tree, tree_leaves, tree_map

# Made-up rows are the same everywhere: a model check must not draw from the run's streams of randomness.
_TEMPLATE_SEED = 20_240_229

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

    may_draw_randomness = False  # does take() run code of the user's, which may augment?

    def fingerprint(self, key: bytes) -> str | None:
        """A keyed hash of all rows, where they are at hand; for checkpoints, never for an output."""
        return None

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


def as_examples(data: Any) -> Examples:
    """Wrap private data: a pair `(inputs, targets)`, a map-style `Dataset`, or an `Examples`.

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
    if isinstance(data, TensorDataset):
        tensors = data.tensors
        if len(tensors) < 2:
            raise ValueError("the TensorDataset has no targets: build it as TensorDataset(inputs, targets)")
        return _TensorExamples(tensors[0] if len(tensors) == 2 else tensors[:-1], tensors[-1])
    if type(data) is Subset:  # not a subclass of it, which may change the rows
        return _SubsetExamples(as_examples(data.dataset), torch.as_tensor(data.indices, dtype=torch.int64))
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
            array = leaf.detach().cpu().contiguous()
            digest.update(f"{array.dtype} {tuple(array.shape)}".encode())
            digest.update(array.reshape(-1).view(torch.uint8).numpy().data)
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
    """Rows of other examples, such as a part of `random_split`: indices compose, nothing is copied."""

    def __init__(self, whole: Examples, rows: Tensor) -> None:
        if rows.numel() == 0:
            raise ValueError("the data has no rows: pass at least one example")
        rows = torch.where(rows < 0, rows + len(whole), rows)
        if bool(((rows < 0) | (rows >= len(whole))).any()):
            raise ValueError(
                f"the Subset has indices outside its data set of {len(whole)} rows: fix its indices"
            )
        self._whole = whole
        self._rows = rows
        self.may_draw_randomness = whole.may_draw_randomness

    def __len__(self) -> int:
        return self._rows.numel()

    def take(self, indices: Tensor) -> tuple[Tree, Tree]:
        return self._whole.take(self._rows.index_select(0, indices.to(self._rows.device)))

    def _no_rows(self) -> tuple[Tree, Tree]:
        return self._whole._no_rows()


@final
class _DatasetExamples(Examples):
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

    def __len__(self) -> int:
        return self._count

    def take(self, indices: Tensor) -> tuple[Tree, Tree]:
        if indices.numel() == 0:
            return self._no_rows()
        if int(indices.min()) < 0 or int(indices.max()) >= self._count:
            # the same exception that index_select raises for tensors
            raise IndexError(f"index out of range for {self._count} rows")
        return self._collate(self._rows(indices.tolist()))

    def _no_rows(self) -> tuple[Tree, Tree]:
        return self._empty

    def _rows(self, indices: list[int]) -> list[Any]:
        if hasattr(self._dataset, "__getitems__"):  # torch's own protocol for fetching many rows at once
            return list(self._dataset.__getitems__(indices))
        return [self._dataset[index] for index in indices]

    def _collate(self, rows: list[Any]) -> tuple[Tree, Tree]:
        name = type(self._dataset).__name__
        for row in rows:
            if not isinstance(row, tuple | list) or len(row) != 2:
                raise ValueError(f"a row of {name} is not a pair: __getitem__ must return (input, target)")
        try:
            inputs, targets = default_collate([tuple(row) for row in rows])
        except (TypeError, RuntimeError, KeyError, AttributeError):
            # torch's message spells out shapes or even values of rows, which may be private
            raise ValueError(
                f"rows of {name} cannot be stacked: every row needs the same structure, shapes and number "
                "types (pad or resize them, and return tensors)"
            ) from None
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
            f"{role} have the numpy dtype {array.dtype}: convert them to numbers, such as float32 or int64"
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
