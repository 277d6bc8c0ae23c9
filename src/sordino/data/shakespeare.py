"""Speeches of Shakespeare's roles as a federation for next-word prediction: a role is a client."""

from __future__ import annotations

import gzip
import json
import re
import zipfile
import zlib
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from sordino.data.download import Folders
from sordino.data.loaded import Loaded
from sordino.data.wrong import Wrong, wrong_with

PAD, BEGIN, END, UNKNOWN = range(4)  # then come the words, the most frequent first
SPECIAL = 4
LENGTH = 20  # tokens of a row
VOCABULARY = 10_000  # words, as in the papers' StackOverflow task

_ROLES = "shakespeare/roles.json.gz"
_PACKED_VECTORS = "glove/glove50_agnews_f16.npz"
_VECTORS = "glove/glove.6B.50d.txt"
_SENTENCE_ENDS = re.compile(r"[.?!]+")
_WORD = re.compile(r"[^\W_]+")
_REPAIR = "get it again from where it came"


def load_shakespeare(folders: Folders) -> Loaded:
    """Next-word prediction on `shakespeare/roles.json.gz` (`users`, `num_speeches`, `user_data`), a user per role.

    A sentence ends at `.`, `?` or `!`; its words are runs of letters and digits in lower case. The input is `BEGIN`
    and the words, the target is the words and `END`: 20 tokens a row, `PAD` behind them. A longer sentence goes on in
    the next row, whose first input is the last word before it, so every word is a target once. The last tenth of
    each role's speeches, rounded down, is for testing; a role of fewer than ten has no test rows.

    The vocabulary is not counted in the speeches, which would tell about them. It is the first 10,000 words of
    GloVe 6B (Pennington et al. 2014), which are ordered by how frequent they are in news and Wikipedia; other words
    are `UNKNOWN`. Read from the public `glove/glove.6B.50d.txt`, or from `glove/glove50_agnews_f16.npz`, which has
    the words of AG News alone, in the same order. Nothing is downloaded.
    """
    path, words_path = _locate(folders, _ROLES), _locate(folders, _PACKED_VECTORS, _VECTORS)
    speeches = _read_speeches(path)
    words = list(islice(filter(_WORD.fullmatch, _glove_words(words_path)), VOCABULARY))
    if not words:
        raise ValueError(f"{words_path} holds no words: get it again from its public home")
    numbers = {word: SPECIAL + i for i, word in enumerate(words)}
    kept = [len(of_role) - len(of_role) // 10 for of_role in speeches]
    train, users = _rows((of_role[:cut] for of_role, cut in zip(speeches, kept, strict=True)), numbers)
    test, _ = _rows((of_role[cut:] for of_role, cut in zip(speeches, kept, strict=True)), numbers)
    if not len(users):
        raise ValueError(f"{path} has no words to train on: {_REPAIR}")
    source = "of AG News, " if words_path.suffix == ".npz" else ""
    return Loaded(
        name="shakespeare",
        train=train,
        test=test if len(test[0]) else None,
        classes=SPECIAL + len(words),
        input_shape=(LENGTH,),
        task="next-word",
        public=(
            *("number of rows", "number of roles", "shape of the inputs"),
            f"vocabulary (published: the first {len(words):,} words {source}in GloVe 6B; not counted in the speeches)",
        ),
        users=users,
    )


def with_vocabulary(loaded: Loaded, words: int) -> Loaded:
    """The same rows where all but the `words` most frequent words are unknown."""
    if not 1 <= words <= loaded.classes - SPECIAL:
        raise ValueError(
            f"the vocabulary has {loaded.classes - SPECIAL:,} words: use at least 1 and at most those, not {words}"
        )

    def cut(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        inputs, targets = (part.masked_fill(part >= SPECIAL + words, UNKNOWN) for part in pair)
        return inputs, targets

    return replace(
        loaded,
        train=cut(loaded.train),
        test=None if loaded.test is None else cut(loaded.test),
        classes=SPECIAL + words,
        public=(*loaded.public, f"of the vocabulary its first {words:,} words"),
    )


def _locate(folders: Folders, *paths: str) -> Path:
    found = folders.find(*paths)
    if found is None:
        raise ValueError(
            f"shakespeare is not downloaded, and there is no {' or '.join(paths)}: set SORDINO_DATA to a folder with "
            f"{_ROLES} and {_VECTORS}"
        )
    return found


def _read_speeches(path: Path) -> list[list[str]]:
    """The speeches of each role, in the order of the file."""
    try:
        content = json.loads(gzip.decompress(path.read_bytes()))
    except (gzip.BadGzipFile, zlib.error, EOFError, ValueError, RecursionError):
        # Damaged JSON and UTF-8 are ValueErrors, and their texts quote what they stumbled over.
        raise ValueError(f"{path} is damaged, not JSON in a gzip file: {_REPAIR}") from None
    except OSError as error:
        raise ValueError(
            f"cannot read {path} ({error.strerror or 'it is damaged'}): check the file"
        ) from None
    try:
        users, counts, data = content["users"], content["num_speeches"], content["user_data"]
        speeches = [list(data[user]) for user in users]
        texts = all(isinstance(speech, str) for of_role in speeches for speech in of_role)
    except (KeyError, TypeError):
        raise ValueError(f"{path} does not hold users, num_speeches and user_data: {_REPAIR}") from None
    if not speeches or not texts or len(set(users)) < len(users):
        raise ValueError(f"{path} does not hold lists of speeches, one for each of its users: {_REPAIR}")
    if [len(of_role) for of_role in speeches] != counts:
        raise ValueError(f"{path} does not hold as many speeches as its num_speeches says: {_REPAIR}")
    return speeches


def _glove_words(path: Path) -> Iterator[str]:
    if path.suffix == ".npz":
        try:
            if not zipfile.is_zipfile(path):
                raise Wrong("not a zip archive")
            with np.load(path, allow_pickle=False) as archive:
                words = archive["words"]
            if words.ndim != 0 or words.dtype.kind != "U":
                raise Wrong("words is not one string")
        except Exception as error:  # a damaged zip raises a dozen unrelated types
            raise ValueError(
                f"{path} does not hold words ({wrong_with(error)}): use {_VECTORS} instead"
            ) from None
        yield from str(words).split("\n")
        return
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            for line in file:
                yield line.partition(" ")[0]
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not a text file in UTF-8: get it again from its public home") from None
    except OSError as error:
        raise ValueError(
            f"cannot read {path} ({error.strerror or 'it is damaged'}): check the file"
        ) from None


def _rows(speeches: Iterable[list[str]], numbers: dict[str, int]) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Inputs and targets (rows, 20), and the role of each row."""
    inputs, targets, users = array("q"), array("q"), array("q")
    for user, of_role in enumerate(speeches):
        for speech in of_role:
            for sentence in _SENTENCE_ENDS.split(speech.lower()):
                words = [numbers.get(word, UNKNOWN) for word in _WORD.findall(sentence)]
                if not words:
                    continue
                tokens = [BEGIN, *words, END]
                for start in range(0, len(tokens) - 1, LENGTH):
                    piece = tokens[start : start + LENGTH + 1]
                    padding = [PAD] * (LENGTH + 1 - len(piece))
                    inputs.extend([*piece[:-1], *padding])
                    targets.extend([*piece[1:], *padding])
                    users.append(user)
    shape = (len(users), LENGTH)
    pair = tuple(torch.tensor(part, dtype=torch.int64).view(shape) for part in (inputs, targets))
    return (pair[0], pair[1]), torch.tensor(users, dtype=torch.int64)
