"""The handwritten digits bundled with scikit-learn: 1,797 images of 8x8, no download."""

from __future__ import annotations

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from sordino.data.download import Folders
from sordino.data.loaded import Loaded


def load_digits(folders: Folders) -> Loaded:
    """Digits, pixels divided by their public maximum 16; every fifth row (0, 5, ...) is the test part."""
    table = _bundled_table()
    inputs = torch.as_tensor(table[:, :-1].reshape(-1, 1, 8, 8), dtype=torch.float32).div_(16)
    targets = torch.as_tensor(table[:, -1], dtype=torch.int64)
    is_test = torch.arange(len(targets)) % 5 == 0
    return Loaded(
        name="digits",
        train=(inputs[~is_test], targets[~is_test]),
        test=(inputs[is_test], targets[is_test]),
        classes=10,
        input_shape=(1, 8, 8),
    )


def _bundled_table() -> npt.NDArray[np.float64]:
    """Sixty-four pixels and a label in each row: scikit-learn's file, without importing scikit-learn, which is slow."""
    package = find_spec("sklearn")
    if package is None or package.origin is None:
        raise ValueError("digits are part of scikit-learn, which is not installed: pip install scikit-learn")
    path = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
    try:
        with gzip.open(path, "rt") as file:
            return np.loadtxt(file, delimiter=",")
    except (OSError, EOFError, ValueError) as error:
        raise ValueError(f"{path} cannot be read ({error}): install scikit-learn again") from None
