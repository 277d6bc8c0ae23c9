"""Texts as vectors, by a public sentence model that is not trained further."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from sordino.features.frozen import Frozen
from sordino.imported import one_line

_LARGEST = 1 << 30  # bytes of weights that are hashed, a second or so


@dataclass(frozen=True)
class Sentences(Frozen):
    """A text as the vector that a sentence-transformers model gives it, of length 1.

    Guarantee: each text is embedded by itself; the model is public, and nothing of it is trained.

    Reference: Reimers and Gurevych (2019), Sentence-BERT.

    Args:
        model: A name that sentence-transformers knows, or the path of a folder with a model.
    """

    model: str
    takes: ClassVar[str] = "texts"
    batch: ClassVar[int] = 1  # in a batch, how far a text is filled up depends on the longest
    in_threads: ClassVar[bool] = True
    # A private linear model on AG News (40,000 rows, epsilon 3) is right on 88.4 % of other training rows at 1, on
    # 89.5 at 4, and at 16 too, where its loss is larger.
    scale: ClassVar[float] = 4.0

    @property
    def name(self) -> str:
        return f"sentence-transformers:{self.model}"

    def shape(self, row: tuple[int, ...]) -> tuple[int, ...]:
        return (_width(_loaded(self.model)),)

    def __call__(self, rows: Any) -> Tensor:
        network = _loaded(self.model)
        return torch.stack([_vector(network, text) for text in rows])

    def describe(self) -> dict[str, Any]:
        digest = _digest(self.model)
        return {"name": self.name, **({} if digest is None else {"weights": digest})}


def _vector(network: Any, text: str) -> Tensor:
    with torch.inference_mode():
        found: Tensor = network.encode(
            text, normalize_embeddings=True, convert_to_tensor=True, show_progress_bar=False
        )
    return found.detach().to("cpu", torch.float32).clone()


def _width(network: Any) -> int:
    return int(_vector(network, "a text").numel())


@lru_cache(maxsize=1)
def _loaded(model: str) -> Any:
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError:
        raise ValueError(
            "sentence-transformers is not installed: pip install 'sordino[text]', or leave out these features"
        ) from None
    try:
        with _quietly():
            return SentenceTransformer(model, device="cpu").eval()
    except Exception as error:  # of many kinds: no such model, no network, a damaged file
        said = one_line(error)
        raise ValueError(
            f"features 'sentence-transformers:{model}': it cannot be loaded ({said[:200]}): give the path of a folder "
            "with a model, or get it first where there is a network"
        ) from None


def folders_run_code() -> bool:
    """Before version 6, sentence-transformers took modules from the folder of a model without being told to."""
    try:
        return int(version("sentence-transformers").partition(".")[0]) < 6
    except (PackageNotFoundError, ValueError):  # not there: nothing can be loaded
        return False


@contextmanager
def _quietly() -> Iterator[None]:
    """Without the bars and notes of a library, which are not of the user's command."""
    import transformers.utils.logging

    noisy: Any = transformers.utils.logging

    was_shown = noisy.is_progress_bar_enabled()
    noisy.disable_progress_bar()
    logging.getLogger("sentence_transformers").setLevel(logging.WARNING)
    try:
        yield
    finally:
        if was_shown:
            noisy.enable_progress_bar()


@lru_cache(maxsize=4)
def _digest(model: str) -> str | None:
    """Of the weights, if the model is a folder and they are not too large."""
    folder = Path(model)
    files = sorted(folder.rglob("*.safetensors")) if folder.is_dir() else []
    if not files or sum(each.stat().st_size for each in files) > _LARGEST:
        return None
    digest = hashlib.sha256()
    for each in files:
        with each.open("rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    return f"sha256:{digest.hexdigest()}"
