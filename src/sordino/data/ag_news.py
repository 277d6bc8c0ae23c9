"""AG News (Zhang et al., 2015) in its public comma-separated format, its words as published GloVe vectors."""

from __future__ import annotations

import csv
import re
import zipfile
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sordino.data.download import Folders
from sordino.data.loaded import Loaded
from sordino.data.wrong import Wrong, wrong_with

_Floats: TypeAlias = npt.NDArray[np.float32]
_Ints: TypeAlias = npt.NDArray[np.int64]

_TRAIN = "ag-news/train.csv"
_TEST = "ag-news/test.csv"
_PACKED_VECTORS = "glove/glove50_agnews_f16.npz"
_VECTORS = "glove/glove.6B.50d.txt"
_WORDS = 15  # of a row that are kept
_DIMENSIONS = 50  # of a word's vector
_CLASSES = ("1", "2", "3", "4")

# What the collector of the set left of HTML's character references, often without the ampersand: `#39;`, `quot;`.
_REFERENCE = re.compile(r"&?(?:#[0-9]+|\b(?:amp|gt|lt|nbsp|quot));")
_WORD = re.compile(r"[^\W_]+")
_REPAIR = "get it again from its public home"


def load_ag_news(folders: Folders) -> Loaded:
    """AG News from `ag-news/train.csv` and `test.csv`: 750 inputs, 15 words by 50 dimensions.

    A row is its title and description in lower case, split into runs of letters and digits; character
    references (`#39;`) are dropped first. The first 15 words that have a vector are kept in order, others are
    skipped, and zeros fill the rest. Vectors are GloVe 6B (Pennington et al. 2014): the public text file
    `glove/glove.6B.50d.txt`, or `glove/glove50_agnews_f16.npz` with arrays `words` (one string, a word on each
    line) and `vectors`. Nothing is downloaded, for want of published checksums.
    """
    train_path, test_path = _locate(folders, _TRAIN), _locate(folders, _TEST)
    vectors_path = _locate(folders, _PACKED_VECTORS, _VECTORS)
    vocabulary: dict[str, int] = {}  # only a numbering: what becomes of a row depends on no other row
    train, test = _read_rows(train_path, vocabulary), _read_rows(test_path, vocabulary)
    vectors, is_known = _read_vectors(vectors_path, vocabulary)
    return Loaded(
        name="ag-news",
        train=(_embed(train, vectors, is_known), train.targets),
        test=(_embed(test, vectors, is_known), test.targets),
        classes=len(_CLASSES),
        input_shape=(_WORDS * _DIMENSIONS,),
        public=(
            *("number of rows", "number of classes", "shape of the inputs"),
            "word vectors (published: GloVe 6B)",
        ),
    )


def load_texts(folders: Folders) -> Loaded:
    """AG News as it is written, for features of texts: each row its title and description, no word left out."""
    parts = []
    for path in (_locate(folders, _TRAIN), _locate(folders, _TEST)):
        texts: list[str] = []
        targets = array("q")
        for label, title, description in _raw_rows(path):
            texts.append(f"{title}. {description}")
            targets.append(int(label) - 1)
        parts.append((texts, torch.tensor(targets, dtype=torch.int64)))
    return Loaded(
        name="ag-news",
        train=parts[0],
        test=parts[1],
        classes=len(_CLASSES),
        input_shape=(),
        public=("number of rows", "number of classes"),
    )


def _locate(folders: Folders, *paths: str) -> Path:
    found = folders.find(*paths)
    if found is None:
        raise ValueError(
            f"ag-news is not downloaded, and there is no {' or '.join(paths)}: set SORDINO_DATA to a folder with "
            f"{_TRAIN}, {_TEST} and {_VECTORS}, from their public homes"
        )
    return found


@dataclass(frozen=True, eq=False)
class _Rows:
    words: _Ints  # of all rows, one after the other, as numbers in the vocabulary
    lengths: _Ints  # how many words each row has
    targets: Tensor


def _read_rows(path: Path, vocabulary: dict[str, int]) -> _Rows:
    """The rows of a file; `vocabulary` grows by their words."""
    words, lengths, targets = array("q"), array("q"), array("q")
    for label, title, description in _raw_rows(path):
        text = f"{title} {description}".lower()
        if ";" in text:  # else there is no reference to look for, which is slow
            text = _REFERENCE.sub(" ", text)
        found = _WORD.findall(text)
        words.extend([vocabulary.setdefault(word, len(vocabulary)) for word in found])
        lengths.append(len(found))
        targets.append(int(label) - 1)
    return _Rows(
        np.array(words, dtype=np.int64),
        np.array(lengths, dtype=np.int64),
        torch.tensor(targets, dtype=torch.int64),
    )


def _raw_rows(path: Path) -> Iterator[tuple[str, str, str]]:
    """Class, title and description of every row."""
    some = False
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.reader(file, strict=True):
                if len(row) != 3:
                    # Neither what the row holds nor its line: the file may be one of the user's own.
                    wrong = "a row that is not a class, a title and a description"
                    raise ValueError(f"{path} has {wrong}: {_REPAIR}")
                if row[0] not in _CLASSES:
                    raise ValueError(f"{path} has a class that is not 1, 2, 3 or 4: {_REPAIR}")
                some = True
                yield row[0], row[1], row[2]
    except csv.Error:
        raise ValueError(f"{path} has rows that are damaged: {_REPAIR}") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file in UTF-8: {_REPAIR}") from None
    except OSError as error:
        raise ValueError(
            f"cannot read {path} ({error.strerror or 'it is damaged'}): check the file"
        ) from None
    if not some:
        raise ValueError(f"{path} has no rows: {_REPAIR}")


def _read_vectors(path: Path, vocabulary: dict[str, int]) -> tuple[_Floats, npt.NDArray[np.bool_]]:
    """A vector for each word of the vocabulary and, last, zeros for no word; and which of the words are known."""
    words, found = (_read_packed if path.suffix == ".npz" else _read_text)(path, vocabulary)
    if not words:
        raise ValueError(f"{path} has a vector for no word of the rows: {_REPAIR}")
    if not np.isfinite(found).all():
        raise ValueError(f"{path} has vectors that are not finite: {_REPAIR}")
    vectors = np.zeros((len(vocabulary) + 1, _DIMENSIONS), dtype=np.float32)
    is_known = np.zeros(len(vocabulary), dtype=np.bool_)
    numbers = [vocabulary[word] for word in words]
    vectors[numbers] = found
    is_known[numbers] = True
    return vectors, is_known


def _read_packed(path: Path, vocabulary: dict[str, int]) -> tuple[list[str], _Floats]:
    try:
        if not zipfile.is_zipfile(path):
            raise Wrong("not a zip archive")
        with np.load(path, allow_pickle=False) as archive:
            words, vectors = archive["words"], archive["vectors"]
        if words.ndim != 0 or words.dtype.kind != "U":
            raise Wrong("words is not one string")
        every = str(words).split("\n")
        if vectors.dtype.kind != "f" or vectors.shape != (len(every), _DIMENSIONS):
            raise Wrong(f"vectors is not {len(every):,} rows of {_DIMENSIONS} floats")
    except (
        Exception
    ) as error:  # a damaged zip raises a dozen unrelated types, and all of them mean the same here
        reason = wrong_with(error)
        raise ValueError(f"{path} does not hold word vectors ({reason}): use {_VECTORS} instead") from None
    wanted = [number for number, word in enumerate(every) if word in vocabulary]
    return [every[number] for number in wanted], vectors[wanted].astype(np.float32)


def _read_text(path: Path, vocabulary: dict[str, int]) -> tuple[list[str], _Floats]:
    words: list[str] = []
    vectors: list[list[float]] = []
    try:
        with path.open(encoding="utf-8", newline="\n") as file:  # some words are made of other line breaks
            for line in file:
                word, _, values = line.rstrip("\n").partition(" ")
                if word not in vocabulary:
                    continue
                try:
                    vector = [float(value) for value in values.split()]
                except ValueError:
                    vector = []
                if len(vector) != _DIMENSIONS:
                    # Not which line: that it was looked at tells of a word in the rows.
                    wrong = f"lines that do not hold a word and {_DIMENSIONS} numbers"
                    raise ValueError(f"{path} has {wrong}: {_REPAIR}")
                words.append(word)
                vectors.append(vector)
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file in UTF-8: {_REPAIR}") from None
    except OSError as error:
        raise ValueError(
            f"cannot read {path} ({error.strerror or 'it is damaged'}): check the file"
        ) from None
    return words, np.array(vectors, dtype=np.float32)


def _embed(rows: _Rows, vectors: _Floats, is_known: npt.NDArray[np.bool_]) -> Tensor:
    """The vectors of each row's first known words, side by side: (rows, 750)."""
    count = len(rows.lengths)
    known = is_known[rows.words]
    words, owners = rows.words[known], np.repeat(np.arange(count), rows.lengths)[known]
    starts = np.searchsorted(owners, np.arange(count))  # the owners ascend
    places = np.arange(len(words)) - starts[owners]  # 0 for the first known word of a row
    kept = places < _WORDS
    chosen = np.full((count, _WORDS), len(vectors) - 1)
    chosen[owners[kept], places[kept]] = words[kept]
    return torch.from_numpy(vectors[chosen].reshape(count, -1))
