"""Descent on a derivative that noise blurs: how OSO moves its threshold and its rate (Galli et al., 2024)."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def factor(gradient: Tensor, derivative: Tensor, speed: float, update_by: str) -> float:
    """What a setting is multiplied by, given the gradient now and the last step's derivative by the setting.

    ``sign``: exp(speed * sign<gradient, derivative>), the paper's (20) and (21). ``cosine``: 1 + speed * cosine,
    its (19).

    >>> round(factor(torch.tensor([1.0, 0.0]), torch.tensor([3.0, 4.0]), 0.1, "cosine"), 6)
    1.06
    """
    # A copy of its own: how a sum is rounded depends on where in memory it starts, and a checkpoint moves that.
    derivative = derivative.to(gradient.device, copy=True)
    product = float(torch.dot(gradient, derivative))
    if update_by == "sign":
        return math.exp(speed * ((product > 0) - (product < 0)))
    size = float(gradient.norm()) * float(derivative.norm())
    cosine = product / size if size > 0 else 0.0
    return 1 + speed * cosine if math.isfinite(cosine) else 1.0


def check_update(speed: float, update_by: str) -> None:
    if not 0 < speed < 1:
        raise ValueError(f"speed must be in (0, 1), not {speed:g}")
    if update_by not in ("sign", "cosine"):
        raise ValueError(f"update must be sign or cosine, not {update_by!r}")
