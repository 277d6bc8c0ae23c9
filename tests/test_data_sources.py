from __future__ import annotations

import warnings
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, Subset, TensorDataset, random_split

from sordino.data import Examples, as_examples, tree_leaves

X = torch.arange(24, dtype=torch.float32).reshape(6, 4)
Y = torch.tensor([0, 1, 2, 0, 1, 2])


class Rows(Dataset[Any]):
    """A map-style data set that counts what is fetched."""

    def __init__(self, rows: list[Any]) -> None:
        self.rows = rows
        self.fetched: list[int] = []

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        self.fetched.append(index)
        return self.rows[index]


class Batched(Rows):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self.rows[index] for index in indices]


def rows_of(x: Tensor = X, y: Tensor = Y) -> list[Any]:
    return [(x[i], int(y[i])) for i in range(len(x))]


ONE_OF_EACH: dict[str, Callable[[], Any]] = {
    "tensors": lambda: (X, Y),
    "arrays": lambda: (X.numpy(), Y.numpy()),
    "examples": lambda: as_examples((X, Y)),
    "tensor dataset": lambda: TensorDataset(X, Y),
    "subset": lambda: Subset(TensorDataset(X.flip(0), Y.flip(0)), [5, 4, 3, 2, 1, -6]),
    "map-style": lambda: Rows(rows_of()),
    "map-style, rows at once": lambda: Batched(rows_of()),
}


@pytest.mark.parametrize("kind", ONE_OF_EACH)
@settings(max_examples=40)
@given(indices=st.lists(st.integers(0, 5), max_size=8))
def test_every_source_takes_the_same_rows(kind: str, indices: list[int]) -> None:
    examples = as_examples(ONE_OF_EACH[kind]())
    assert len(examples) == 6
    chosen = torch.tensor(indices, dtype=torch.int64)
    inputs, targets = examples.take(chosen)
    assert torch.equal(inputs, X[chosen])
    assert torch.equal(targets, Y[chosen])
    assert inputs.dtype == torch.float32
    assert targets.dtype == torch.int64


@pytest.mark.parametrize("kind", ONE_OF_EACH)
@pytest.mark.parametrize("indices", [[6], [-1], [0, 7]])
def test_rows_that_do_not_exist_are_refused(kind: str, indices: list[int]) -> None:
    with pytest.raises((IndexError, RuntimeError)):
        as_examples(ONE_OF_EACH[kind]()).take(torch.tensor(indices))


@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_template_has_the_shapes_and_none_of_the_values(kind: str) -> None:
    examples = as_examples(ONE_OF_EACH[kind]())
    inputs, targets = examples.template(50)
    assert inputs.shape == (50, 4)
    assert inputs.dtype == torch.float32
    assert 0 <= inputs.min() < 0.1 < 0.9 < inputs.max() < 1
    assert targets.shape == (50,)
    assert targets.dtype == torch.int64
    assert set(targets.tolist()) == {0, 1}
    other = as_examples((X + 100, Y + 7)).template(50)
    assert torch.equal(inputs, other[0])
    assert torch.equal(targets, other[1])
    assert examples.template(0)[0].shape == (0, 4)


def test_template_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    as_examples((X, Y)).template(3)
    assert torch.equal(before, torch.get_rng_state())


def test_template_covers_trees_and_other_types() -> None:
    inputs = {"flag": torch.ones(3, dtype=torch.bool), "half": torch.ones(3, 2, dtype=torch.bfloat16)}
    made, _ = as_examples((inputs, torch.zeros(3))).template(40)
    assert made["flag"].dtype == torch.bool
    assert 0 < made["flag"].float().mean() < 1
    assert made["half"].dtype == torch.bfloat16
    assert made["half"].shape == (40, 2)


def test_tensors_are_shared_and_the_whole_is_not_copied() -> None:
    array = X.numpy().copy()
    for examples in (as_examples((X, Y)), as_examples(TensorDataset(X, Y))):
        inputs, targets = examples.take(torch.arange(6))
        assert inputs.data_ptr() == X.data_ptr()
        assert targets.data_ptr() == Y.data_ptr()
        assert examples.take(torch.arange(5))[0].data_ptr() != X.data_ptr()
    array[0, 0] = -1
    assert as_examples((array, Y)).take(torch.tensor([0]))[0][0, 0] == -1


def test_a_permutation_is_not_mistaken_for_the_whole() -> None:
    order = torch.tensor([0, 2, 1, 3, 4, 5])
    assert torch.equal(as_examples((X, Y)).take(order)[0], X[order])


def test_examples_pass_through() -> None:
    examples = as_examples((X, Y))
    assert isinstance(examples, Examples)
    assert as_examples(examples) is examples


def test_trees_of_inputs_keep_their_structure() -> None:
    Pair = namedtuple("Pair", ["left", "right"])
    inputs = {"a": X, "b": [X[:, 0], Pair(Y, (X,))]}
    taken, _ = as_examples((inputs, Y)).take(torch.tensor([2, 0]))
    assert list(taken) == ["a", "b"]
    assert isinstance(taken["b"][1], Pair)
    assert all(len(leaf) == 2 for leaf in tree_leaves(taken))


def test_a_tensor_dataset_of_three_has_two_inputs() -> None:
    inputs, targets = as_examples(TensorDataset(X, 2 * X, Y)).take(torch.tensor([1]))
    assert torch.equal(inputs[1], 2 * inputs[0])
    assert targets.tolist() == [1]


def test_parts_of_a_random_split_need_no_copies() -> None:
    part, _ = random_split(TensorDataset(X, Y), [4, 2], generator=torch.Generator().manual_seed(0))
    examples = as_examples(part)
    inputs, targets = examples.take(torch.arange(4))
    assert torch.equal(inputs, torch.stack([part[i][0] for i in range(4)]))
    assert targets.tolist() == [int(part[i][1]) for i in range(4)]
    nested = as_examples(Subset(part, [3, 1]))
    assert torch.equal(nested.take(torch.tensor([0, 1]))[0], inputs[[3, 1]])


def test_a_dataset_is_read_lazily() -> None:
    rows = Rows(rows_of())
    examples = as_examples(rows)
    rows.fetched.clear()
    examples.template(4)
    examples.take(torch.tensor([], dtype=torch.int64))
    assert rows.fetched == []
    examples.take(torch.tensor([4, 1]))
    assert rows.fetched == [4, 1]


def test_rows_of_dicts_and_numbers_are_collated() -> None:
    rows = Rows([({"image": np.ones((2, 2)), "age": 3.5}, [1.0, 2.0]) for _ in range(3)])
    inputs, targets = as_examples(rows).take(torch.tensor([0, 2]))
    assert inputs["image"].shape == (2, 2, 2)
    assert {leaf.dtype for leaf in tree_leaves((inputs, targets))} == {torch.float32}
    empty_inputs, empty_targets = as_examples(rows).take(torch.tensor([], dtype=torch.int64))
    assert empty_inputs["image"].shape == (0, 2, 2)
    assert [leaf.shape for leaf in empty_targets] == [(0,), (0,)]


@pytest.mark.parametrize(
    ("given_dtype", "kept"),
    [
        (np.float64, torch.float32),
        (np.float32, torch.float32),
        (np.float16, torch.float16),
        (np.uint8, torch.uint8),
        (np.int32, torch.int32),
        (np.int64, torch.int64),
        (np.bool_, torch.bool),
        (np.uint16, torch.int32),
        (np.dtype(">f4"), torch.float32),
        (np.dtype(">i8"), torch.int64),
    ],
)
def test_dtypes(given_dtype: Any, kept: torch.dtype) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        inputs, _ = as_examples((np.ones((6, 2), dtype=given_dtype), Y)).take(torch.tensor([1, 3]))
    assert inputs.dtype == kept
    assert (inputs == 1).all()


def test_arrays_that_torch_cannot_share_are_copied_without_a_warning() -> None:
    frozen = X.numpy().copy()
    frozen.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(as_examples((frozen, Y)).take(torch.tensor([3]))[0], X[[3]])
        assert torch.equal(as_examples((X.numpy()[::-1], Y)).take(torch.tensor([0]))[0], X[[5]])


def test_inputs_that_need_gradients_are_detached() -> None:
    inputs, _ = as_examples((X.clone().requires_grad_(), Y)).take(torch.tensor([0]))
    assert not inputs.requires_grad


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(())


class Lengthless(Dataset[Any]):
    pass


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((X, Y[:4]), "inputs have 6 rows and targets have 4"),
        (({"a": X, "b": X[:5]}, Y), "inputs have 5 or 6 rows"),
        ((X[:0], Y[:0]), "no rows"),
        ((X, torch.tensor(1)), "single number"),
        (((), Y), "no tensors"),
        ((X, Y, Y), "tuple of 3 parts"),
        ((X, ["cat"] * 6), "targets hold a str"),
        ((X, np.array(["cat"] * 6)), "dtype text"),
        ((np.array([object()] * 6), Y), "dtype object"),
        ((X.to_sparse(), Y), "sparse"),
        ((X.to(torch.complex64), Y), "complex"),
        ((X, None), "NoneType"),
        ([X, Y], "type list"),
        (X, "type Tensor"),
        ("mnist", "type str"),
        (None, "type NoneType"),
        (Endless(), "map-style"),
        (Lengthless(), "no length"),
        (Rows([]), "no rows"),
        (Rows([X[0]]), "not a pair"),
        (Rows([("text", 1)]), "inputs hold a str"),
        (Rows([(object(), 1)]), "cannot be stacked"),
        (TensorDataset(X), "no targets"),
        (Subset(TensorDataset(X, Y), []), "no rows"),
        (Subset(TensorDataset(X, Y), [6]), "outside"),
        (Subset(TensorDataset(X, Y), [0, 1, 0]), "a row appears more than once in the Subset"),
        (Subset(TensorDataset(X, Y), [0, -6]), "a row appears more than once in the Subset"),
        (Subset(Subset(TensorDataset(X, Y), [4, 5]), [1, 1]), "a row appears more than once in the Subset"),
        (Subset(Subset(TensorDataset(X, Y), [4, 4]), [0, 1]), "a row appears more than once in the Subset"),
        (Subset(Rows(rows_of()), [2, 2]), "a row appears more than once in the Subset"),
        (Subset(TensorDataset(X, Y), torch.tensor([True, False])), "not row numbers"),  # type: ignore[arg-type]
        (Subset(TensorDataset(X, Y), np.array([0.0, 1.5])), "not row numbers"),  # type: ignore[arg-type]
    ],
)
def test_bad_data_gets_one_line_that_helps(data: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        as_examples(data)
    assert "\n" not in str(caught.value)
    assert ":" in str(caught.value)


def test_ragged_rows_are_refused_without_quoting_them() -> None:
    examples = as_examples(Rows([(torch.ones(2), 0), (torch.ones(3), 1)]))
    with pytest.raises(ValueError, match="same structure, shapes") as caught:
        examples.take(torch.tensor([0, 1]))
    assert "\n" not in str(caught.value)


# Rows that cannot be read ---------------------------------------------------------------------------------


class Odd(Rows):
    """A row that is an exception is raised."""

    def __getitem__(self, index: int) -> Any:
        row = super().__getitem__(index)
        if isinstance(row, Exception):
            raise row
        return row


class OddAtOnce(Odd):
    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [self[index] for index in indices]


BAD_ROWS = {
    "raises": KeyError("secret"),
    "longer": (torch.ones(5), 0),
    "a target that is no whole number": (X[0], 2.5),
    "text": (X[0], "cat"),
    "no pair": X[0],
    "three": (X[0], 0, 0),
    "nothing": None,
}


@pytest.mark.parametrize("kind", [Odd, OddAtOnce])
@pytest.mark.parametrize("bad", BAD_ROWS.values(), ids=BAD_ROWS)
def test_rows_that_cannot_be_read_are_left_out_and_the_others_are_what_they_are(kind: Any, bad: Any) -> None:
    rows = rows_of()
    rows[3] = bad
    examples = as_examples(kind(rows))
    kept, inputs, targets = examples.take_readable(torch.tensor([5, 3, 0, 3, 1]))
    assert kept.tolist() == [0, 2, 4]
    assert torch.equal(inputs, X[[5, 0, 1]])
    assert torch.equal(targets, Y[[5, 0, 1]])
    assert targets.dtype == torch.int64
    nobody, inputs, targets = examples.take_readable(torch.tensor([3]))
    assert (len(nobody), len(inputs), len(targets)) == (0, 0, 0)
    part = as_examples(Subset(kind(rows), [3, 4]))
    assert part.take_readable(torch.tensor([0, 1]))[0].tolist() == [1]
    with pytest.raises(ValueError, match=r"read|stacked"):
        examples.take(torch.tensor([0, 3]))


@pytest.mark.parametrize("kind", ONE_OF_EACH)
def test_where_all_rows_can_be_read_none_is_left_out(kind: str) -> None:
    kept, inputs, targets = as_examples(ONE_OF_EACH[kind]()).take_readable(torch.tensor([4, 0, 4]))
    assert kept.tolist() == [0, 1, 2]
    assert torch.equal(inputs, X[[4, 0, 4]])
    assert torch.equal(targets, Y[[4, 0, 4]])


def test_whether_a_row_counts_depends_on_no_other_row() -> None:
    """Collated together, whole numbers among floats or truth values among numbers take the kind of the others."""
    rows = [(X[0], 0.5), (X[1], 1), (X[2], True), (X[3], "cat"), (X[4], np.float32(2.5))]
    examples = as_examples(Odd(rows))
    alone = [len(examples.take_readable(torch.tensor([i]))[0]) for i in range(5)]
    together = examples.take_readable(torch.arange(5))
    assert alone == [1, 1, 1, 0, 1]
    assert together[0].tolist() == [0, 1, 2, 4]
    assert together[2].tolist() == [0.5, 1.0, 1.0, 2.5]


def test_numbers_of_a_row_become_what_the_first_row_has() -> None:
    rows = [
        (0.5, 1),
        (1e300, 2),
        (np.float64(2.0), np.int32(3)),
        (3, True),
        (torch.tensor(0.25), torch.tensor(4)),
    ]
    inputs, targets = as_examples(Rows(rows)).take(torch.arange(5))
    assert inputs.tolist() == [0.5, float("inf"), 2.0, 3.0, 0.25]
    assert targets.tolist() == [1, 2, 3, 1, 4]
    assert (inputs.dtype, targets.dtype) == (torch.float32, torch.int64)
    part = as_examples(Rows(rows)).take(torch.tensor([1, 0]))
    assert part[0].tolist() == [float("inf"), 0.5]
    needy = Rows([(torch.ones(2, requires_grad=True), 0)])
    assert not as_examples(needy).take(torch.tensor([0, 0]))[0].requires_grad


# Fingerprints ---------------------------------------------------------------------------------------------

KEY, OTHER_KEY = b"k" * 32, b"o" * 32


class Augmented(Rows):
    """Noise from the usual generators, as most augmentation has it."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x + torch.randn(4) + np.random.normal(), y


class Restless(Rows):
    """Noise from a generator of its own, which nobody can set back."""

    def __init__(self, rows: list[Any]) -> None:
        super().__init__(rows)
        self.generator = torch.Generator().manual_seed(0)

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return x + torch.randn(4, generator=self.generator), y


SOURCES: dict[str, Any] = {
    "tensors": lambda x, y: (x, y),
    "tensor dataset": lambda x, y: TensorDataset(x, y),
    "subset": lambda x, y: Subset(TensorDataset(x, y), [4, 0, 2]),
    "nested subset": lambda x, y: Subset(Subset(TensorDataset(x, y), [5, 4, 2, 0]), [1, 3, 2]),
    "map-style": lambda x, y: Rows(rows_of(x, y)),
    "map-style, rows at once": lambda x, y: Batched(rows_of(x, y)),
    "subset of map-style": lambda x, y: Subset(Rows(rows_of(x, y)), [4, 0, 2]),
    "augmented": lambda x, y: Augmented(rows_of(x, y)),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_a_fingerprint_is_of_the_rows_and_the_key(kind: str) -> None:
    def of(x: Tensor, y: Tensor, key: bytes = KEY) -> str | None:
        return as_examples(SOURCES[kind](x, y)).fingerprint(key)

    first = of(X, Y)
    torch.randn(3)  # whatever the generators are at
    assert first is not None
    assert of(X.clone(), Y.clone()) == first
    assert of(X, Y, OTHER_KEY) != first
    changed, relabelled = X.clone(), Y.clone()
    changed[4, 1] += 1e-3
    relabelled[2] += 1
    assert len({first, of(changed, Y), of(X, relabelled), of(X.flip(0), Y)}) == 4


def test_the_fingerprint_of_a_subset_is_of_its_rows_in_order() -> None:
    whole = TensorDataset(X, Y)
    found = [
        as_examples(Subset(whole, rows)).fingerprint(KEY) for rows in ([0, 1], [1, 0], [0, 2], [0, 1, 2])
    ]
    assert len({*found, as_examples(whole).fingerprint(KEY)}) == 5
    assert as_examples(Subset(whole, [0, -5])).fingerprint(KEY) == found[0]


def test_a_data_set_that_is_other_at_each_reading_has_no_fingerprint() -> None:
    assert as_examples(Restless(rows_of())).fingerprint(KEY) is None
    assert as_examples(Subset(Restless(rows_of()), [0, 1])).fingerprint(KEY) is None


def test_a_fingerprint_reads_every_row_and_leaves_the_generators_alone() -> None:
    rows = Augmented([(X[i % 6], i) for i in range(600)])
    examples = as_examples(rows)
    rows.fetched.clear()
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()  # type: ignore[index]
    assert examples.fingerprint(KEY) is not None
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.random.get_state()[1].tolist() == before[1]  # type: ignore[index]
    assert sorted(set(rows.fetched)) == list(range(600))
    assert len(rows.fetched) <= 600 + 2 * 8


@pytest.mark.parametrize("bad", BAD_ROWS.values(), ids=BAD_ROWS)
def test_a_row_that_cannot_be_read_does_not_stop_a_fingerprint(bad: Any) -> None:
    rows = rows_of()
    whole = as_examples(Odd(rows)).fingerprint(KEY)
    rows[3] = bad
    found = as_examples(Odd(rows)).fingerprint(KEY)
    assert found is not None
    assert found != whole
