"""EMNIST (Cohen et al., 2017): handwritten letters and digits, in the public idx files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from sordino.data.download import Folders
from sordino.data.idx import read_images, scaled
from sordino.data.loaded import Loaded

# Published with the set. It is one archive of half a gigabyte, so nothing is fetched by itself.
_HOME = "https://www.nist.gov/itl/products-and-services/emnist-dataset"
_MEAN, _STD = 0.1736, 0.3317


@dataclass(frozen=True)
class Emnist:
    """One of the splits. Its images are stored with rows and columns exchanged, and its labels may begin at 1."""

    split: str
    labels: range

    def load(self, folders: Folders) -> Loaded:
        name = f"emnist-{self.split}"
        parts = []
        for part in ("train", "test"):
            stem = f"emnist/{name}-{part}"
            images, labels = read_images(
                _find(f"{stem}-images-idx3-ubyte", folders),
                _find(f"{stem}-labels-idx1-ubyte", folders),
                self.labels,
            )
            inputs = scaled(np.ascontiguousarray(images.transpose(0, 2, 1)), _MEAN, _STD)
            parts.append((inputs, torch.from_numpy(labels).to(torch.int64) - self.labels[0]))
        return Loaded(
            name=name,
            train=parts[0],
            test=parts[1],
            classes=len(self.labels),
            input_shape=(1, 28, 28),
            mean=(_MEAN,),
            std=(_STD,),
        )


def _find(path: str, folders: Folders) -> Path:
    found = folders.find(f"{path}.gz", path)
    if found is None:
        raise ValueError(
            f"there is no {path}.gz: get the archive of idx files from {_HOME}, unpack it into a folder emnist, "
            "and set SORDINO_DATA to the folder around it"
        )
    return found


BYMERGE = Emnist("bymerge", range(47))
LETTERS = Emnist("letters", range(1, 27))
