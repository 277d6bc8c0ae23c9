"""The idx format of MNIST (LeCun et al., 1998) and its relatives, such as Fashion-MNIST (Xiao et al., 2017)."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sordino.data.download import Folders, PublicFile
from sordino.data.loaded import Loaded

_UNSIGNED_BYTES = 0x08
_GZIP_MAGIC = b"\x1f\x8b"
_CHUNK = 1 << 20
_REPAIR = "delete it and get it again from its public home"


def read_idx(path: Path) -> npt.NDArray[np.uint8]:
    """Read an idx file of unsigned bytes, gzipped or plain (told apart by content, not by name)."""
    try:
        with path.open("rb") as raw:
            is_gzip = raw.read(2) == _GZIP_MAGIC
            raw.seek(0)
            return _read_stream(cast(IO[bytes], gzip.GzipFile(fileobj=raw)) if is_gzip else raw, path)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise ValueError(
            f"{path} is cut short or damaged (its gzip stream does not end well): {_REPAIR}"
        ) from None
    except OSError as error:
        raise ValueError(
            f"cannot read {path} ({error.strerror or 'it is damaged'}): check the file"
        ) from None


def _read_stream(stream: IO[bytes], path: Path) -> npt.NDArray[np.uint8]:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] != _UNSIGNED_BYTES or magic[3] == 0:
        raise ValueError(f"{path} is not an idx file of unsigned bytes: {_REPAIR}")
    header = stream.read(4 * magic[3])
    if len(header) < 4 * magic[3]:
        raise ValueError(f"{path} ends inside its header: {_REPAIR}")
    shape = struct.unpack(f">{magic[3]}I", header)
    expected = math.prod(shape)
    values = bytearray()
    # In chunks, so that a damaged header cannot ask for all the memory at once; one byte more than expected,
    # which drives gzip to its end, where it checks its own sum.
    while len(values) <= expected and (chunk := stream.read(min(_CHUNK, expected + 1 - len(values)))):
        values += chunk
    if len(values) != expected:
        found = f"{len(values):,}" if len(values) < expected else "more"
        raise ValueError(
            f"{path} should hold {expected:,} values for its shape {shape} and holds {found}: {_REPAIR}"
        )
    return np.frombuffer(values, dtype=np.uint8).reshape(shape)


Bytes = npt.NDArray[np.uint8]


def read_images(images_path: Path, labels_path: Path, known: range) -> tuple[Bytes, Bytes]:
    """Images of 28x28 and as many labels, all of them ``known``."""
    images, labels = read_idx(images_path), read_idx(labels_path)
    if images.ndim != 3 or images.shape[1:] != (28, 28) or len(images) == 0:
        raise ValueError(f"{images_path} has shape {images.shape}, not (rows, 28, 28): {_REPAIR}")
    if labels.shape != images.shape[:1]:
        raise ValueError(f"{labels_path} has shape {labels.shape} for {len(images):,} images: {_REPAIR}")
    if labels.max() > known[-1]:
        raise ValueError(f"{labels_path} has labels above {known[-1]}: {_REPAIR}")
    if labels.min() < known[0]:
        raise ValueError(f"{labels_path} has labels below {known[0]}: {_REPAIR}")
    return images, labels


def scaled(images: Bytes, mean: float, std: float) -> Tensor:
    inputs = torch.from_numpy(images).to(torch.float32).unsqueeze(1)
    return inputs.div_(255).sub_(mean).div_(std)


@dataclass(frozen=True)
class MnistLike:
    """Four idx files: images of 28x28 grey values and labels 0..9, for training and for test."""

    name: str
    home: str
    md5: dict[str, str]  # by file name, without .gz
    mean: float  # published, as part of the set: never computed from the rows at hand
    std: float

    def load(self, folders: Folders) -> Loaded:
        train = self._part("train", folders)
        test = self._part("t10k", folders)
        return Loaded(
            name=self.name,
            train=train,
            test=test,
            classes=10,
            input_shape=(1, 28, 28),
            mean=(self.mean,),
            std=(self.std,),
        )

    def _part(self, prefix: str, folders: Folders) -> tuple[Tensor, Tensor]:
        images_path = self._path(f"{prefix}-images-idx3-ubyte", folders)
        labels_path = self._path(f"{prefix}-labels-idx1-ubyte", folders)
        images, labels = read_images(images_path, labels_path, range(10))
        return scaled(images, self.mean, self.std), torch.from_numpy(labels).to(torch.int64)

    def _path(self, name: str, folders: Folders) -> Path:
        packed = f"{self.name}/{name}.gz"
        found = folders.find(packed, f"{self.name}/{name}")
        return found or folders.fetch(PublicFile(packed, f"{self.home}{name}.gz", self.md5[name]))


MNIST = MnistLike(
    name="mnist",
    home="https://ossci-datasets.s3.amazonaws.com/mnist/",
    md5={
        "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
    },
    mean=0.1307,
    std=0.3081,
)

FASHION_MNIST = MnistLike(
    name="fashion-mnist",
    home="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    md5={
        "train-images-idx3-ubyte": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte": "bb300cfdad3c16e7a12a480ee83cd310",
    },
    mean=0.2860,
    std=0.3530,
)
