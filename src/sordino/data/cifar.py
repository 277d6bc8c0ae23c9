"""CIFAR-10 (Krizhevsky, 2009) in its public binary format: records of one label byte and 3x32x32 pixel bytes."""

from __future__ import annotations

import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sordino.data.download import Folders, PublicFile
from sordino.data.loaded import Loaded

_RECORD = 1 + 3 * 32 * 32
_FOLDER = "cifar-10-batches-bin"
_TRAIN = tuple(f"data_batch_{number}.bin" for number in range(1, 6))
_TEST = ("test_batch.bin",)
_MEAN = (0.4914, 0.4822, 0.4465)  # published, as part of the set: never computed from the rows at hand
_STD = (0.2023, 0.1994, 0.2010)
_REPAIR = "delete it and get it again from its public home"

ARCHIVE = PublicFile(
    path="cifar10/cifar-10-binary.tar.gz",
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    md5="c32a1d4ab5d03f1284b67883e8d87530",
)


def load_cifar10(folders: Folders) -> Loaded:
    """CIFAR-10 from the folder `cifar10/cifar-10-batches-bin`, or from the archive beside it."""
    source = folders.find(f"cifar10/{_FOLDER}", ARCHIVE.path) or folders.fetch(ARCHIVE)
    contents = _read_folder(source) if source.is_dir() else _read_archive(source)
    return Loaded(
        name="cifar10",
        train=_part(contents, _TRAIN, source),
        test=_part(contents, _TEST, source),
        classes=10,
        input_shape=(3, 32, 32),
        mean=_MEAN,
        std=_STD,
    )


def read_cifar10(content: bytes, path: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """The images (rows, 3, 32, 32) and labels of one file's content; `path` is for messages."""
    if len(content) == 0 or len(content) % _RECORD:
        raise ValueError(f"{path} has {len(content):,} bytes, not whole records of {_RECORD:,}: {_REPAIR}")
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, _RECORD)
    labels = records[:, 0]
    if labels.max() > 9:
        raise ValueError(f"{path} has labels above 9, so it is not CIFAR-10 in binary form: {_REPAIR}")
    return records[:, 1:].reshape(-1, 3, 32, 32), labels


def _part(contents: Callable[[str], bytes], names: tuple[str, ...], source: Path) -> tuple[Tensor, Tensor]:
    parts = [read_cifar10(contents(name), source / name) for name in names]
    images = torch.from_numpy(np.concatenate([images for images, _ in parts]))
    labels = torch.from_numpy(np.concatenate([labels for _, labels in parts]))
    # In place: the images of CIFAR-10 are 600 MB as floats, and one copy of them is enough.
    inputs = images.to(torch.float32)
    for channel, (mean, std) in enumerate(zip(_MEAN, _STD, strict=True)):
        inputs[:, channel].div_(255).sub_(mean).div_(std)
    return inputs, labels.to(torch.int64)


def _read_folder(folder: Path) -> Callable[[str], bytes]:
    def content(name: str) -> bytes:
        try:
            return (folder / name).read_bytes()
        except OSError as error:
            problem = f"cannot read {folder / name} ({error.strerror or 'it is damaged'})"
            raise ValueError(f"{problem}: unpack cifar-10-binary.tar.gz there again") from None

    return content


def _read_archive(archive: Path) -> Callable[[str], bytes]:
    found: dict[str, bytes] = {}
    try:
        # One pass, and nothing is written: member names never become paths.
        with tarfile.open(archive, mode="r|gz") as tar:
            for member in tar:
                folder, _, name = member.name.rpartition("/")
                if folder.removeprefix("./") == _FOLDER and name in (*_TRAIN, *_TEST):
                    stream = tar.extractfile(member)
                    found[name] = b"" if stream is None else stream.read()
    except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
        # Not the error's own text: it may quote bytes of the archive.
        raise ValueError(f"cannot read {archive} ({type(error).__name__}): {_REPAIR}") from None

    def content(name: str) -> bytes:
        if name not in found:
            raise ValueError(f"{archive} has no {_FOLDER}/{name}: {_REPAIR}")
        return found[name]

    return content
