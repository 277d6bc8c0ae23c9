"""The handwritten digits bundled with scikit-learn: 1,797 images of 8x8, no download."""

from __future__ import annotations

import torch

from sordino.data.download import Folders
from sordino.data.loaded import Loaded


def load_digits(folders: Folders) -> Loaded:
    """Digits, pixels divided by their public maximum 16; every fifth row (0, 5, ...) is the test part."""
    from sklearn.datasets import load_digits as bundled  # a slow import, needed for this set only

    digits = bundled()
    inputs = torch.as_tensor(digits.images, dtype=torch.float32).div_(16).unsqueeze(1)
    targets = torch.as_tensor(digits.target, dtype=torch.int64)
    is_test = torch.arange(len(targets)) % 5 == 0
    return Loaded(
        name="digits",
        train=(inputs[~is_test], targets[~is_test]),
        test=(inputs[is_test], targets[is_test]),
        classes=10,
        input_shape=(1, 8, 8),
    )
