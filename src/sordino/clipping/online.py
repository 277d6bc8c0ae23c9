"""OSO's threshold: it descends its own derivative, which is released with the gradient (Galli et al., 2024)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.clipping.policy import (
    Answer,
    ClippingPolicy,
    Probe,
    State,
    bounded,
    check_threshold,
    clip_factors,
)
from sordino.gradients import Norms
from sordino.hypergradient import check_update, factor


@dataclass(frozen=True)
class Online(ClippingPolicy):
    """OSO's threshold: ``C <- C exp(speed * sign<g_t, q_(t-1)>)``, q the derivative of the clipped sum by C.

    A clipped unit's part in q is the direction of its gradient, norm 1, an unclipped unit's is zero: so q
    costs one more weighted sum of the same backward pass. When a step asks twice at one threshold, it moves
    once: by the second gradient against the first q.

    Args:
        threshold: C_0, where it starts; in T steps it moves by at most e^(speed T).
        speed: How far it moves in a step.
        gradient_noise: How many times the noise it would have alone the gradient takes; q takes the rest,
            7.124 times it at 1.01.
        update_by: ``"sign"``, or ``"cosine"``, which moves in proportion to the cosine.

    Guarantee: a unit moves the sum by at most C and q by at most 1. Under independent noise both are one
    joint Gaussian release (Proposition 1); under tree noise q is priced on its own.

    Reference: Galli, Palamidessi and Cucinotta, "Online sensitivity optimization in differentially private
    learning", AAAI 2024.

    >>> [round(probe.multiplier, 3) for probe in Online().probes(noise_multiplier=1.0, expected_batch=256)]
    [7.124]
    """

    threshold: float = 0.1  # C_0
    speed: float = 2.5e-3  # rho_c
    gradient_noise: float = 1.01  # nu_g / nu
    update_by: str = "sign"
    adapts = True
    needs_threshold = False
    needs_linear_steps = True
    compares_gradients = True

    def __post_init__(self) -> None:
        check_threshold(self.threshold)
        check_update(self.speed, self.update_by)
        if not 1 < self.gradient_noise < 100:
            raise ValueError(f"gradient_noise is above 1 and below 100, not {self.gradient_noise:g}")

    def start(self, names: Sequence[str]) -> State:
        return {"threshold": self.threshold}

    def sensitivity(self, state: State) -> float:
        return float(state["threshold"])

    def weights(self, norms: Norms, state: State) -> Tensor:
        threshold = state["threshold"]
        clip_U = clip_factors(norms.total_U, threshold)
        derivative_U = torch.where(norms.total_U > threshold, clip_U / threshold, 0.0)  # 1 / norm
        return torch.stack([clip_U, derivative_U])

    def probes(self, noise_multiplier: float, expected_batch: float) -> tuple[Probe, ...]:
        multiplier = noise_multiplier / math.sqrt(1 - self.gradient_noise**-2)  # nu_q
        return (Probe("q", sensitivity=1.0, multiplier=multiplier, vector=True),)

    def update(self, state: State, released: Sequence[Answer]) -> State:
        threshold, last = state["threshold"], released[-1]
        before = released[-2].probes["q"] if len(released) > 1 else state.get("q")
        if before is not None:
            threshold = bounded(threshold * factor(last.gradient, before, self.speed, self.update_by))
        return {"threshold": threshold, "q": last.probes["q"]}
