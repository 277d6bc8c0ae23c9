"""A folder of images, in a folder for each class."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino.data.inputs import Inputs, Target
from sordino.data.kept import KeptExamples, Mapped, counted, nameless
from sordino.data.loaded import Loaded
from sordino.data.sources import Examples

_SIZE = 32  # of a side, if nobody says: what private images have is not looked at
_LARGEST = 1024
_CENTRE = 0.5  # of values 0 to 1: public, where the mean of the images is not
_MOST_PIXELS = 50_000_000  # of a file; a small one that unpacks to more is made to fill a memory
# Not TIFF: its decoder writes to the terminal about what it finds, which would tell of a row.
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM")
_SUFFIXES = frozenset(
    (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm")
)
_LAYOUT = "put images into a folder for each class, as in photos/cat/1.png (or photos/train/cat/1.png)"


def load_images(
    folder: Path,
    *,
    size: int | None = None,
    grey: bool = False,
    labels: Sequence[str] | None = None,
    progress: bool = False,
) -> Loaded:
    """Read class folders, or `train/` and `test/` with class folders in them.

    Names of class folders are public, and their sorted order is that of the classes, unless `labels` are declared.
    Every file in them with the suffix of an image is a row, in the order of classes and names; names of files are
    private. Each is made `size` by `size` pixels, red, green and blue or one grey, stretched if it has another shape.
    """
    train, test = _parts(folder)
    found = {name for part in (train, test) if part is not None for name in _class_folders(part)}
    names = tuple(sorted(found)) if labels is None else tuple(labels)
    if unknown := sorted(found - set(names)):
        raise ValueError(
            f"{folder} has a folder {unknown[0]!r} that is not among the classes: declare it too"
        )
    if len(names) < 2:
        raise ValueError(f"{folder} has {len(names)} class folders: {_LAYOUT}")
    inputs = Images(
        Target("class", names), _SIZE if size is None else size, grey, declared=labels is not None
    )
    held_out = None if test is None else inputs.examples(test, progress=progress)
    return Loaded(
        name=folder.resolve().name,
        train=inputs.examples(train, progress=progress),
        test=held_out,
        classes=len(names),
        input_shape=inputs.shape,
        public=inputs.public,
        inputs=inputs,
    )


@dataclass(frozen=True)
class Images(Inputs):
    """Images of one size, red, green and blue or grey, with values from -0.5 to 0.5."""

    target: Target
    size: int = _SIZE
    grey: bool = False
    declared: bool = False  # were the classes written down, or are they the names of folders?
    kind = "images"

    def __post_init__(self) -> None:
        if not 1 <= self.size <= _LARGEST:
            raise ValueError(f"images of {self.size} by {self.size} pixels: give a size from 1 to {_LARGEST}")

    @property
    def shape(self) -> tuple[int, ...]:
        return (1 if self.grey else 3, self.size, self.size)

    def examples(self, source: Any, *, targets: bool = True, progress: bool = False) -> Examples:
        """Of a folder of class folders; without targets of any folder of images, one image, or a list of files.

        A file that cannot be read as an image keeps its place and contributes nothing.
        """
        files, labels = self._labelled(Path(source)) if targets else (_unlabelled(source), None)
        if not files:
            raise ValueError(f"there are no images in it: {_LAYOUT}")
        rows, readable = self._decoded(files, progress)
        numbers = torch.zeros(len(files), dtype=torch.int64) if labels is None else torch.tensor(labels)
        return KeptExamples(rows, numbers, readable, divisor=255.0, centre=_CENTRE)

    def names(self, source: Any) -> list[str]:
        """Paths of the files: below the folder if one is given, with slashes; of one image its name."""
        files = _unlabelled(source)
        if isinstance(source, str | os.PathLike):
            above = Path(source) if Path(source).is_dir() else Path(source).parent
            files = [each.relative_to(above) for each in files]
        # A file's name is bytes, which need not be text.
        return [os.fsencode(each.as_posix()).decode("utf-8", "replace") for each in files]

    def _labelled(self, folder: Path) -> tuple[list[Path], list[int]]:
        folders = _class_folders(folder)
        if unknown := sorted(set(folders) - set(self.target.labels)):
            raise ValueError(
                f"{folder} has a folder {unknown[0]!r}, which is none of the classes: rename or remove it"
            )
        files: list[Path] = []
        labels: list[int] = []
        for number, name in enumerate(self.target.labels):
            found = _files(folders[name], f"class folder {name!r}") if name in folders else []
            files += found
            labels += [number] * len(found)
        _refuse_twice(files)
        return files, labels

    def _decoded(self, files: Sequence[Path], progress: bool) -> tuple[Mapped, Tensor]:
        """All images, one after the other, and which of them could be read."""
        kept = nameless((len(files), *self.shape), torch.uint8)
        readable = torch.zeros(len(files), dtype=torch.bool)
        # Pillow works without Python's lock; what it warns of would tell of a row.
        with warnings.catch_warnings(), ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
            warnings.simplefilter("ignore")
            images: Iterable[np.ndarray[Any, Any] | None] = pool.map(self._image, files)
            for place, image in enumerate(counted(images, len(files), "reading images", progress)):
                if image is not None:
                    kept.rows[place] = torch.from_numpy(image)
                    kept.touch(1)
                    readable[place] = True
        return kept, readable

    def _image(self, file: Path) -> np.ndarray[Any, Any] | None:
        from PIL import Image, ImageOps

        try:
            with Image.open(file, formats=_FORMATS) as image:
                if image.width * image.height > _MOST_PIXELS:
                    return None
                image.draft(None, (self.size, self.size))  # a photograph need not be unpacked whole
                upright = _in_eight_bits(ImageOps.exif_transpose(image))
                small = upright.convert("L" if self.grey else "RGB").resize(
                    (self.size, self.size), Image.Resampling.BILINEAR
                )
                return np.asarray(small).reshape(self.size, self.size, -1).transpose(2, 0, 1)
        except (Exception, SystemExit):  # of many kinds, for files of many kinds
            return None

    def describe(self) -> dict[str, Any]:
        return {"size": self.size, "grey": self.grey, "declared": self.declared}

    @classmethod
    def from_description(cls, target: Target, said: Mapping[str, Any]) -> Images:
        size, grey, declared = said["size"], said["grey"], said["declared"]
        if type(size) is not int or type(grey) is not bool or type(declared) is not bool:
            raise TypeError
        return cls(target, size, grey, declared)

    @property
    def public(self) -> tuple[str, ...]:
        colour = "one grey" if self.grey else "red, green and blue"
        return (
            "number of rows",
            "names of the classes" + ("" if self.declared else " (the names of their folders)"),
            f"size and colours of the images ({self.size}x{self.size}, {colour}, chosen and not read)",
        )


def _in_eight_bits(image: Any) -> Any:
    """Sixteen bits of grey as eight, and what shines through on white."""
    from PIL import Image

    if image.mode.startswith("I"):
        return Image.fromarray((np.asarray(image).clip(0, 65535) // 257).astype(np.uint8))
    if image.mode == "F":
        return Image.fromarray((np.nan_to_num(np.asarray(image)).clip(0, 1) * 255).astype(np.uint8))
    if "A" in image.mode or "transparency" in image.info:
        layer = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", layer.size, "white"), layer)
    return image


def _parts(folder: Path) -> tuple[Path, Path | None]:
    """The folders with class folders for training and, if there is one, for test."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is no folder: check the path")
    train, test = folder / "train", folder / "test"
    if train.is_dir() and _class_folders(train):
        return train, test if test.is_dir() and _class_folders(test) else None
    return folder, None


def _class_folders(folder: Path) -> dict[str, Path]:
    try:
        found = {
            each.name: each for each in folder.iterdir() if not each.name.startswith(".") and each.is_dir()
        }
    except OSError as error:
        raise ValueError(f"cannot read {folder} ({error.strerror}): check the path") from None
    if any(each.is_symlink() for each in found.values()):
        raise ValueError(f"{folder} has a class folder that is a link: put the folder itself there")
    return found


def _files(folder: Path, called: str) -> list[Path]:
    """The images in a folder and those in it, by name. Links are refused: they lead out, or to a row that is there
    already, which would count as two people."""
    found: list[Path] = []

    def unreadable(error: OSError) -> None:
        raise ValueError(f"cannot read all of {called} ({error.strerror}): check its permissions") from None

    for place, folders, names in os.walk(folder, onerror=unreadable):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        here = [Path(place, name) for name in names if not name.startswith(".")]
        images = [each for each in here if each.suffix.lower() in _SUFFIXES]
        if any(each.is_symlink() for each in (*images, *(Path(place, name) for name in folders))):
            raise ValueError(f"{called} holds links: put the images themselves there")
        found += images
    return sorted(found, key=lambda each: each.relative_to(folder).parts)


def _refuse_twice(files: Sequence[Path]) -> None:
    """One file under two names is one person in two rows."""
    seen = {(status.st_dev, status.st_ino) for status in (each.stat() for each in files)}
    if len(seen) < len(files):
        raise ValueError("a file is there under two names and would count as two rows: keep one of them")


def _unlabelled(source: Any) -> list[Path]:
    if isinstance(source, str | os.PathLike):
        path = Path(source)
        if path.is_dir():
            return _files(path, "the folder")
        if not path.is_file():
            raise ValueError(f"{path} does not exist: check the path")
        if path.suffix.lower() not in _SUFFIXES:
            raise ValueError(f"{path} is no image: give an image, or a folder of images")
        return [path]
    return [Path(each) for each in source]
