"""A threshold that follows a quantile of the gradient norms (Andrew et al., 2021)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.clipping.policy import (
    LARGEST,
    Answer,
    ClippingPolicy,
    Probe,
    State,
    bounded,
    check_threshold,
    clip_factors,
)
from sordino.gradients import Norms


@dataclass(frozen=True)
class Quantile(ClippingPolicy):
    """A threshold C that moves so that a fraction ``target_quantile`` of the units is not clipped.

    Args:
        target_quantile: The fraction, in [0, 1].
        threshold: C_0, where it starts.
        speed: C <- C exp(-speed (fraction within C - target_quantile)).
        largest: C goes no further: noise that makes gradients grow must not make itself grow.

    Guarantee: a unit moves the sum by at most C. The count of units within C is released too, centred, so
    that one unit moves it by 1/2; its noise is max(m/20, z), with m the expected batch. Under independent
    noise both are one joint release.

    Reference: Andrew et al., "Differentially private learning with adaptive clipping", NeurIPS 2021.

    >>> Quantile(0.8).probes(noise_multiplier=1.0, expected_batch=100)[0].sensitivity
    0.5
    """

    target_quantile: float = 0.5  # gamma
    threshold: float = 0.1  # C_0
    speed: float = 0.2  # eta_C
    largest: float = LARGEST  # C goes no further: noise that makes gradients grow must not make itself grow
    adapts = True
    needs_threshold = False

    def __post_init__(self) -> None:
        check_threshold(self.threshold)
        if not 0 <= self.target_quantile <= 1:
            raise ValueError(f"target_quantile must be in [0, 1], not {self.target_quantile:g}")
        check_threshold(self.largest)
        if self.largest < self.threshold:
            raise ValueError(f"largest, {self.largest:g}, must not be below the threshold to start from")
        if not 0 < self.speed < 100:
            raise ValueError(f"speed must be in (0, 100), not {self.speed:g}")

    def start(self, names: Sequence[str]) -> State:
        return {"threshold": self.threshold}

    def sensitivity(self, state: State) -> float:
        return float(state["threshold"])

    def weights(self, norms: Norms, state: State) -> Tensor:
        return clip_factors(norms.total_U, state["threshold"])[None]

    def probes(self, noise_multiplier: float, expected_batch: float) -> tuple[Probe, ...]:
        noise = max(expected_batch / 20, noise_multiplier) if noise_multiplier else 0.0
        return (Probe("fraction_within", sensitivity=0.5, multiplier=2 * noise),)

    def numbers(self, norms: Norms, state: State) -> Tensor:
        within = norms.total_U <= state["threshold"]
        return torch.where(within, 0.5, -0.5)[None].to(norms.total_U.dtype)

    def update(self, state: State, released: Sequence[Answer]) -> State:
        # The gate has divided by the expected batch; undo the centring, which is a public constant.
        within = sum(float(r.probes["fraction_within"]) for r in released) / len(released) + 0.5
        within = min(1.0, max(0.0, within))
        moved = bounded(state["threshold"] * math.exp(-self.speed * (within - self.target_quantile)))
        return {"threshold": min(moved, self.largest)}
