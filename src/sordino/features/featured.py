"""Frozen features in front of a private model: computed once, of each row by itself."""

from __future__ import annotations

import hashlib
import math
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino.cache import user_cache
from sordino.data import Examples, Loaded, as_examples
from sordino.data.inputs import FORMAT, Inputs, Target, inputs_from_json
from sordino.data.kept import KeptExamples, Mapped, counted, nameless
from sordino.data.schema import Schema
from sordino.features.frozen import Frozen, refuse_mixing
from sordino.features.own import own
from sordino.features.text import folders_run_code
from sordino.named import FEATURES

_WORTH_KEEPING = 5.0  # seconds; what took less is computed again sooner than read
_MADE_UP_TEXTS = [f"{word} text, made up" for word in ("one", "another", "a longer and a longer", "no", "")]


def features_named(text: str) -> Frozen | None:
    """What --features names: `none`, `scattering`, `sentence-transformers:NAME_OR_PATH`, or MODULE:CALLABLE.

    >>> features_named("scattering")
    Scattering(normalised=True, mirrored=False)
    """
    head, colon, rest = text.partition(":")
    if head == "sentence-transformers":
        if not rest:
            raise ValueError("sentence-transformers needs its model: give a name or a path behind the colon")
        found: Frozen = FEATURES["sentence-transformers"](rest)
        return found
    if head.partition(",")[0] in FEATURES:
        parsed: Frozen | None = FEATURES.parsed(text)
        return parsed
    if head and colon and rest:
        return own(text)
    raise ValueError(FEATURES.unknown(text))


def names_of_features(said: Any) -> Iterator[str]:
    """Everything in it by which features are looked up, however deep."""
    if isinstance(said, list):
        for each in said:
            yield from names_of_features(each)
    if isinstance(said, dict):
        features = said.get("features")
        named = features.get("name") if isinstance(features, dict) else None
        yield from (name for name in (named, said.get("embedding")) if isinstance(name, str))
        for each in said.values():
            yield from names_of_features(each)


def runs_code(text: str) -> bool:
    """Whether `features_named` would run code that the name chooses.

    A name or a folder of sentence-transformers is data; before its version 6 a folder could bring modules of its own.

    >>> runs_code("scattering"), runs_code("sentence-transformers:all-MiniLM-L6-v2"), runs_code("mine.py:halves")
    (False, False, True)
    """
    head, _, rest = text.partition(":")
    if head == "sentence-transformers":
        return Path(rest).exists() and folders_run_code()
    return bool(head and rest) and head.partition(",")[0] not in FEATURES


def with_features(
    loaded: Loaded, named: str | Frozen | None, *, public: bool = False, progress: bool = False
) -> Loaded:
    """The data with features in the place of its rows.

    Features of private rows lie in files without a name, which are gone with the process. Those of a ``public`` set are
    kept in the user's cache, if they took long.
    """
    features = features_named(named) if isinstance(named, str) else named
    if features is None:
        return loaded
    if isinstance(loaded.train, tuple) and isinstance(loaded.train[0], list):
        shape = _shape_for_texts(features)
    else:
        check_kind(
            features, "rows"
        )  # before a model of texts is looked for, which takes minutes where there is none
        shape = features.shape(loaded.input_shape)
        refuse_mixing(
            features, torch.rand((5, *loaded.input_shape), generator=torch.Generator().manual_seed(1))
        )
    parts = [
        None if part is None else _featured(part, features, shape, public, progress)
        for part in (loaded.train, loaded.test)
    ]
    said = f"features computed by {features.name}, of each row by itself"
    return replace(
        loaded,
        train=parts[0],
        test=parts[1],
        input_shape=shape,
        public=(*loaded.public, said),
        mean=(0.0,),
        std=(1.0,),
        inputs=None if loaded.inputs is None else Featured(loaded.inputs.target, loaded.inputs, features),
    )


@dataclass(frozen=True)
class Featured(Inputs):
    """Rows of another kind, of which a model sees features."""

    target: Target
    base: Inputs
    features: Frozen
    kind = "featured"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.features.shape(self.base.shape)

    def examples(self, source: Any, *, targets: bool = True, progress: bool = False) -> Examples:
        rows = self.base.examples(source, targets=targets, progress=progress)
        return _computed(rows, self.features, self.shape, progress)

    def names(self, source: Any) -> list[str] | None:
        return self.base.names(source)

    def describe(self) -> dict[str, Any]:
        base = {
            name: value for name, value in self.base.to_json().items() if name not in ("format", "target")
        }
        return {"features": self.features.describe(), "base": base}

    @classmethod
    def from_description(cls, target: Target, said: Mapping[str, Any]) -> Featured:
        base = inputs_from_json({**said["base"], "format": FORMAT, "target": target.to_json()})
        features = features_named(said["features"]["name"])
        if features is None:
            raise KeyError
        _refuse_others(features, said["features"])
        return cls(target, base, features)

    @property
    def public(self) -> tuple[str, ...]:
        return (*self.base.public, f"features computed by {self.features.name}, of each row by itself")

    @property
    def unprotected(self) -> tuple[str, ...]:
        return self.base.unprotected

    @property
    def caveat(self) -> str | None:
        return self.base.caveat

    @property
    def uncounted(self) -> str | None:
        return self.base.uncounted


def _refuse_others(features: Frozen, said: Mapping[str, Any]) -> None:
    weights = said.get("weights")
    if weights is not None and features.describe().get("weights", weights) != weights:
        raise ValueError(
            f"features {features.name!r} have other weights than those the model was trained behind: put them back"
        )


def check_kind(features: Frozen, kind: str) -> None:
    """Refuse features of something else than ``rows`` of numbers, ``texts``, or the columns of a ``table``; nothing is
    loaded for it."""
    if kind == "rows" and features.takes == "texts":
        raise ValueError(
            f"features {features.name!r} are for texts, and the rows are numbers: leave them out"
        )
    if kind == "texts" and features.takes == "images":
        raise ValueError(f"features {features.name!r} are for images, and the rows are texts: leave them out")
    if kind == "table" and features.takes == "images":
        raise ValueError(
            f"features {features.name!r} are for images, and this is a table: leave them out, or give its columns of "
            "texts sentence-transformers:NAME_OR_PATH or MODULE:CALLABLE"
        )


def _shape_for_texts(features: Frozen) -> tuple[int, ...]:
    check_kind(features, "texts")
    return tuple(refuse_mixing(features, list(_MADE_UP_TEXTS)).shape[1:])


def _featured(
    part: Any, features: Frozen, shape: tuple[int, ...], public: bool, progress: bool
) -> KeptExamples:
    if not public:
        return _computed(part, features, shape, progress)
    file = user_cache() / "features" / f"{_content(part, features, shape)}.npy"
    targets = part[1] if _is_texts(part) else _targets(part)
    readable = torch.ones(len(targets), dtype=torch.bool)
    found = _kept(file, (len(targets), *shape), features.dtype)
    if found is not None:
        return KeptExamples(found, targets, readable, divisor=1 / features.scale)
    begun = time.monotonic()
    computed = _computed(part, features, shape, progress)
    if time.monotonic() - begun > _WORTH_KEEPING:
        _keep(computed.stored, file)
    return computed


def _computed(part: Any, features: Frozen, shape: tuple[int, ...], progress: bool) -> KeptExamples:
    """Features of all rows, a fixed number at a time, in a file without a name."""
    count = len(part[1]) if _is_texts(part) else len(as_examples(part))
    kept = nameless((count, *shape), features.dtype)
    readable = torch.zeros(count, dtype=torch.bool)
    targets = torch.zeros(0)
    batches = _texts(part, features) if _is_texts(part) else _batches(as_examples(part), features)
    what = f"computing {features.name.partition(':')[0]}"
    size = 1 if _is_texts(part) else features.batch
    for number, (good, found, labels) in enumerate(counted(batches, -(-count // size), what, progress)):
        start = number * size
        places = start + good
        if start == 0:
            targets = torch.zeros((count, *labels.shape[1:]), dtype=labels.dtype)
        kept.rows[places] = found.to(features.dtype)
        kept.touch(len(places))
        readable[places] = True
        targets[start : start + len(labels)] = labels
    inputs = _inputs_behind(part, features)
    rows = KeptExamples(kept, targets, readable, divisor=1 / features.scale, inputs=inputs)
    rows.chosen_by_content = not _is_texts(part) and as_examples(part).chosen_by_content
    return rows


def _inputs_behind(part: Any, features: Frozen) -> Featured | None:
    """What the rows say of how they were made, which features do not undo; None if they say nothing."""
    base = None if _is_texts(part) else as_examples(part).inputs
    return None if base is None else Featured(base.target, base, features)


def _batches(examples: Examples, features: Frozen) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Of every batch the places that can be used, their features, and the targets of all.

    Batches are always of one size, with made-up rows in the place of those that cannot be read or are not there: so a
    row's features do not depend on what the others are, to the last digit.
    """
    size = features.batch
    template, labels = examples.template(1)
    if not isinstance(template, Tensor) or not isinstance(labels, Tensor):
        raise ValueError(
            "features are computed of rows that are one tensor each: give them as one, or no features"
        )
    for start in range(0, len(examples), size):
        wanted = torch.arange(start, min(start + size, len(examples)))
        good, inputs, targets = examples.take_readable(wanted)
        whole, every = examples.with_made_up((inputs, targets), good, size)
        every = every[: len(wanted)]
        found = _or_none(features, whole)
        if found is None:
            yield *_one_by_one(features, whole, template, good), every
        else:
            yield good, found[good], every


def _one_by_one(features: Frozen, whole: Tensor, template: Tensor, good: Tensor) -> tuple[Tensor, Tensor]:
    """A row that code of the user's fails at counts as one that cannot be read: which it is must not show."""
    kept, rows = [], []
    for place in good.tolist():
        alone = template.repeat(len(whole), *[1] * (template.dim() - 1))
        alone[place] = whole[place]
        found = _or_none(features, alone)
        if found is not None:
            kept.append(place)
            rows.append(found[place])
    shape = features.shape(tuple(whole.shape[1:]))
    return torch.tensor(kept, dtype=torch.int64), torch.stack(rows) if rows else torch.zeros((0, *shape))


def _texts(part: Any, features: Frozen) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """One text at a time: in a batch, how far it is filled up, and so its last digits, depend on the others."""
    texts, targets = part
    for place, found in enumerate(_of_each(features, texts)):
        good = torch.arange(0 if found is None else 1)
        yield good, torch.zeros(0) if found is None else found, targets[place : place + 1]


def _of_each(features: Frozen, texts: Sequence[str]) -> Iterator[Tensor | None]:
    """Of every text by itself, on one thread: so what comes out depends neither on the others nor on the machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(threads if features.in_threads else 1) as pool:
            yield from pool.map(lambda text: _or_none(features, [text]), texts)
    finally:
        torch.set_num_threads(threads)


def of_texts(text: str) -> Callable[[list[str]], np.ndarray[Any, Any]]:
    """A function from texts to their features [n, d], each of its text alone; zeros where they cannot be computed.

    What `embedding = ...` of a text column stands for.
    """
    features = features_named(text)
    if features is None:
        raise ValueError("an embedding of texts cannot be none: leave it out for hashed words")
    width = math.prod(_shape_for_texts(features))

    def vectors(texts: list[str]) -> np.ndarray[Any, Any]:
        made = np.zeros((len(texts), width), dtype=np.float32)
        for place, found in enumerate(_of_each(features, texts)):
            if found is not None:
                made[place] = features.scale * found.reshape(-1).numpy()
        return made

    return vectors


def with_embedding(schema: Schema, text: str) -> Schema:
    """The schema with these features in the place of hashed words, in every column of texts.

    >>> from sordino.data.schema import Column, TargetColumn
    >>> schema = Schema(TargetColumn("y", labels=("no", "yes")), (Column("note", "text"),))
    >>> with_embedding(schema, "my.module:function").columns[0].embedding
    'my.module:function'
    """
    if not any(each.kind == "text" for each in schema.columns):
        raise ValueError(
            f"features {text!r} of a table are of its texts, and the schema has no column of kind text: leave them "
            "out, or make a column one"
        )
    return replace(
        schema,
        columns=tuple(
            replace(each, embedding=text, buckets=None, words=None) if each.kind == "text" else each
            for each in schema.columns
        ),
    )


def _or_none(features: Frozen, rows: Any) -> Tensor | None:
    try:
        with torch.no_grad():
            return features(rows)
    except (Exception, SystemExit):  # what it says may quote a row
        return None


def _is_texts(part: Any) -> bool:
    return isinstance(part, tuple) and isinstance(part[0], list)


def _targets(part: Any) -> Tensor:
    targets = part[1] if isinstance(part, tuple) else None
    assert isinstance(targets, Tensor), "named sets are pairs"
    return targets


# What is kept of public sets


def _content(part: Any, features: Frozen, shape: tuple[int, ...]) -> str:
    """What tells one set and one way of computing from others. Of public rows: of private ones it would be a test of
    who is among them."""
    digest = hashlib.blake2b(f"2 {features.describe()} {shape} {features.dtype}".encode(), digest_size=20)
    if _is_texts(part):
        for text in part[0]:
            digest.update(text.encode() + b"\0")
    else:
        digest.update((as_examples(part).fingerprint(b"public") or "").encode())
    return digest.hexdigest()


def _kept(file: Path, shape: tuple[int, ...], dtype: torch.dtype) -> Mapped | None:
    try:
        # as a private map: nobody writes to the file through it
        found = np.load(file, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError, EOFError, TypeError):
        return None
    fits = isinstance(found, np.memmap) and found.shape == shape
    return Mapped(found) if fits and torch.from_numpy(found).dtype == dtype else None


def _keep(rows: Tensor, file: Path) -> None:
    """A cache that cannot be written is none."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=file.parent, prefix=".", suffix=".part")
        try:
            with os.fdopen(handle, "wb") as out:
                np.save(out, rows.numpy(), allow_pickle=False)
            os.replace(partial, file)
        except BaseException:
            os.unlink(partial)
            raise
    except OSError:
        return
