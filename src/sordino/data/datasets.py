"""Other people's containers of rows: what of them is sound to read, and what is refused with a reason."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
    default_convert,
)

_OWN_BATCHES = "batches are drawn by Sordino, at random and by row"
_TARGETS = ("label", "labels", "target", "targets")


def dataset_behind(loader: DataLoader[Any]) -> Dataset[Any]:
    """The data set of a plain `DataLoader`: its batches, order and shuffling are not used.

    What would be lost with them is refused: rows that come from a sampler, or are made by a collate function.
    """
    dataset = loader.dataset
    if isinstance(dataset, IterableDataset):
        raise ValueError(
            "the DataLoader is of an IterableDataset, which has no fixed rows to sample from: pass a map-style Dataset"
        )
    if loader.collate_fn is not default_collate and loader.collate_fn is not default_convert:
        raise ValueError(
            f"the DataLoader has a collate_fn of its own, and {_OWN_BATCHES}: do to each row in __getitem__ what it "
            "does to a batch, and pass the Dataset"
        )
    sampler = loader.sampler
    plain = type(sampler) is SequentialSampler or (
        type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == len(dataset)  # type: ignore[arg-type]
    )
    if not plain or (loader.batch_sampler is not None and type(loader.batch_sampler) is not BatchSampler):
        raise ValueError(
            f"the DataLoader has a sampler of its own, and {_OWN_BATCHES}: pass its Dataset (or a Subset of it)"
        )
    return dataset


def refuse_overlap(data: ConcatDataset[Any]) -> None:
    """A row in two parts would count as two units. It is seen where parts are of one data set, or of one tensor."""
    seen: dict[Any, list[Tensor]] = {}
    for part in _leaves(data):
        base, rows = _base_of(part)
        seen.setdefault(base, []).append(rows)
    for parts in seen.values():
        every = torch.cat(parts)
        if len(torch.unique(every)) < len(every):
            raise ValueError(
                "a row is in two parts of the ConcatDataset and would count as several units: leave it in one of them"
            )


def _leaves(data: ConcatDataset[Any]) -> list[Dataset[Any]]:
    found: list[Dataset[Any]] = []
    for part in data.datasets:
        found += _leaves(part) if type(part) is ConcatDataset else [part]
    return found


def _base_of(data: Dataset[Any]) -> tuple[Any, Tensor]:
    """What a chain of subsets is of, so that the same can be known again, and which of its rows."""
    count = len(data)  # type: ignore[arg-type]
    rows = torch.arange(count)
    while type(data) is Subset:
        inner = torch.as_tensor(data.indices, dtype=torch.int64)
        rows, data = inner[rows], data.dataset
    rows = torch.where(rows < 0, rows + len(data), rows)  # type: ignore[arg-type]
    if isinstance(data, TensorDataset):
        return tuple((each.data_ptr(), tuple(each.shape)) for each in data.tensors), rows
    return id(data), rows


def is_hugging_face(data: Any) -> bool:
    return type(data).__module__.partition(".")[0] == "datasets"


class HuggingRows(Dataset[Any]):
    """A map-style Hugging Face data set: the column of targets is `label` (or `target`), all others are inputs.

    Its format stays as it was set; without one, numbers become tensors.
    """

    def __init__(self, data: Any) -> None:
        kind = type(data).__name__
        if kind.endswith("DatasetDict"):
            raise ValueError(f"a {kind} has several splits: pass one of them, such as data['train']")
        if kind != "Dataset":
            raise ValueError(
                f"a Hugging Face {kind} has no fixed rows to sample from: pass a map-style Dataset"
            )
        columns = list(data.format["columns"])
        targets = [name for name in _TARGETS if name in columns]
        if len(targets) != 1 or len(columns) < 2:
            raise ValueError(
                "a Hugging Face Dataset needs one column called label, and others for inputs: rename or select its "
                "columns (rename_column, select_columns)"
            )
        self._target = targets[0]
        self._names = [name for name in columns if name != self._target]
        _refuse_texts(data, columns)
        _refuse_selected_twice(data)
        self._data = data if data.format["type"] is not None else data.with_format("torch")

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> Any:
        row = self._data[index]
        inputs = row[self._names[0]] if len(self._names) == 1 else {name: row[name] for name in self._names}
        return inputs, row[self._target]


def _refuse_texts(data: Any, columns: list[str]) -> None:
    if data.format["type"] == "custom":  # what the user's transform makes is seen when a row is
        return
    for name in columns:
        if getattr(data.features[name], "dtype", "") in ("string", "large_string"):
            raise ValueError(
                f"column {name!r} holds texts: make numbers of them (with_transform, or a table with a schema)"
            )


def _refuse_selected_twice(data: Any) -> None:
    indices = getattr(data, "_indices", None)  # what select() leaves; there is no other way to it
    if indices is not None:
        rows = torch.from_numpy(indices.column(0).to_numpy().astype("int64"))
        if len(torch.unique(rows)) < len(rows):
            raise ValueError(
                "a row was selected more than once and would count as several units: select each row once"
            )
