"""DataLoaders, concatenations and Hugging Face's data sets: read where that is sound, refused where it is not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    random_split,
)

from sordino.data import as_examples

X = torch.arange(12, dtype=torch.float32).reshape(6, 2)
Y = torch.tensor([0, 1, 0, 1, 0, 1])
ROWS = TensorDataset(X, Y)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([(X[0], 0)])


def everything(data: Any) -> tuple[Any, Any]:
    examples = as_examples(data)
    return examples.take(torch.arange(len(examples)))


@pytest.mark.parametrize(
    "loader",
    [
        DataLoader(ROWS, batch_size=4),
        DataLoader(ROWS, batch_size=4, shuffle=True, drop_last=True),
        DataLoader(ROWS, batch_size=None),
    ],
    ids=["plain", "shuffled", "unbatched"],
)
def test_of_a_plain_loader_all_rows_are_read_in_the_order_of_the_data(loader: Any) -> None:
    inputs, targets = everything(loader)
    assert torch.equal(inputs, X)
    assert torch.equal(targets, Y)


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (DataLoader(ROWS, collate_fn=lambda rows: default_collate(rows[:1])), "a collate_fn of its own"),
        (DataLoader(ROWS, sampler=WeightedRandomSampler([1.0] * 6, 6)), "a sampler of its own"),
        (DataLoader(ROWS, sampler=RandomSampler(ROWS, replacement=True)), "a sampler of its own"),
        (DataLoader(ROWS, sampler=RandomSampler(ROWS, num_samples=3)), "a sampler of its own"),
        (DataLoader(ROWS, batch_sampler=[[0, 1], [0, 2]]), "a sampler of its own"),
        (DataLoader(Stream()), "an IterableDataset, which has no fixed rows"),
    ],
    ids=["collate", "weighted", "replacement", "some", "batches", "stream"],
)
def test_a_loader_whose_rows_are_not_those_of_its_data_set_is_refused(loader: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        as_examples(loader)


def test_a_usual_batch_sampler_is_a_usual_loader() -> None:
    loader: Any = DataLoader(ROWS, batch_sampler=BatchSampler(SequentialSampler(ROWS), 2, False))
    assert len(as_examples(loader)) == 6


def test_a_row_in_two_parts_is_found() -> None:
    other = TensorDataset(X, Y)  # another object, of the same tensors
    for parts in (
        [ROWS, ROWS],
        [ROWS, other],
        [Subset(ROWS, [0, 1, 2]), Subset(ROWS, [2, 3])],
        [Subset(ROWS, [0]), Subset(ROWS, [-6])],
        [Subset(Subset(ROWS, [3, 4]), [0]), Subset(other, [3])],
        [ConcatDataset([Subset(ROWS, [0])]), Subset(ROWS, [0])],
    ):
        with pytest.raises(ValueError, match="a row is in two parts of the ConcatDataset"):
            as_examples(ConcatDataset(parts))


def test_parts_that_share_nothing_are_read() -> None:
    halves = random_split(ROWS, [4, 2])
    assert len(as_examples(ConcatDataset(halves))) == 6
    inputs, _ = everything(ConcatDataset([Subset(ROWS, [0, 1]), TensorDataset(X.clone(), Y)]))
    assert torch.equal(inputs, torch.cat([X[:2], X]))


# Hugging Face ----------------------------------------------------------------------------------------------

datasets = pytest.importorskip("datasets")


def hugging(**columns: Any) -> Any:
    return datasets.Dataset.from_dict(columns or {"x": X.tolist(), "label": Y.tolist()})


def test_rows_of_hugging_face_are_inputs_and_a_label() -> None:
    for data in (hugging(), hugging().with_format("torch"), hugging().with_format("numpy")):
        inputs, targets = everything(data)
        assert torch.equal(inputs, X)
        assert torch.equal(targets, Y)
    several = hugging(a=[1.0, 2.0], b=[3.0, 4.0], label=[0, 1])
    inputs, _ = everything(several)
    assert {name: part.tolist() for name, part in inputs.items()} == {"a": [1, 2], "b": [3, 4]}
    chosen = hugging(x=[1.0, 2.0], name=["Anna", "Ben"], label=[0, 1]).select_columns(["x", "label"])
    assert everything(chosen)[0].tolist() == [1, 2]


def test_a_part_of_it_is_read_and_a_row_selected_twice_is_not() -> None:
    assert everything(hugging().select([4, 2]))[0].tolist() == X[[4, 2]].tolist()
    assert len(as_examples(hugging().train_test_split(0.5, seed=0)["train"])) == 3
    with pytest.raises(ValueError, match="a row was selected more than once"):
        as_examples(hugging().select([0, 3, 0]))


def test_what_cannot_be_read_soundly_is_refused() -> None:
    for data, message in (
        (
            datasets.DatasetDict({"train": hugging()}),
            r"several splits: pass one of them, such as data\['train'\]",
        ),
        (hugging().to_iterable_dataset(), "IterableDataset has no fixed rows"),
        (hugging(x=[1.0], y=[0]), "one column called label"),
        (hugging(label=[0, 1]), "one column called label"),
        (hugging(text=["Anna", "Ben"], label=[0, 1]), "column 'text' holds texts"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            as_examples(data)
        assert "Anna" not in str(caught.value)


def test_a_transform_of_the_users_own_runs() -> None:
    def lengths(rows: dict[str, list[str]]) -> dict[str, Any]:
        return {"x": [torch.tensor([float(len(each))]) for each in rows["text"]], "label": rows["label"]}

    data = hugging(text=["a", "abc"], label=[0, 1])
    data.set_transform(lengths)
    with pytest.raises(ValueError, match=r"raised KeyError|not a pair"):
        as_examples(data)  # its columns are those of the table, and the transform gives another one
    data.set_transform(lambda rows: {"text": lengths(rows)["x"], "label": rows["label"]})
    assert everything(data)[0].tolist() == [[1], [3]]
