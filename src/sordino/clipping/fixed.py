"""Thresholds that stay: one for the whole gradient, one per layer, norms made equal, or none at all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.clipping.policy import (
    LARGEST,
    SMALLEST,
    ClippingPolicy,
    State,
    check_threshold,
    clip_factors,
)
from sordino.gradients import Norms


@dataclass(frozen=True)
class Fixed(ClippingPolicy):
    """Clip every unit's gradient to norm ``threshold``.

    Args:
        threshold: C, above 0.

    Guarantee: a unit moves the sum by at most C.

    Reference: Abadi et al., "Deep learning with differential privacy", CCS 2016.

    >>> Fixed(1.0).sensitivity(Fixed(1.0).start(["weight", "bias"]))
    1.0
    """

    threshold: float

    def __post_init__(self) -> None:
        check_threshold(self.threshold)

    def start(self, names: Sequence[str]) -> State:
        return {"threshold": self.threshold}

    def sensitivity(self, state: State) -> float:
        return float(state["threshold"])

    def weights(self, norms: Norms, state: State) -> Tensor:
        return clip_factors(norms.total_U, state["threshold"])[None]


@dataclass(frozen=True)
class PerLayer(ClippingPolicy):
    """Clip each layer's part of the gradient on its own.

    Args:
        thresholds: One number is the total threshold C, shared equally: each of L layers gets C /
            sqrt(L). A tuple gives one threshold per layer, in the order of the model.

    Guarantee: a unit moves the sum by at most the root of the sum of squared thresholds, and noise follows
    that.

    Reference: McMahan et al., "Learning differentially private recurrent language models", ICLR 2018.

    >>> layers = ["0.weight", "0.bias", "2.weight"]
    >>> PerLayer((3.0, 4.0)).sensitivity(PerLayer((3.0, 4.0)).start(layers))
    5.0
    """

    thresholds: float | tuple[float, ...]
    by_layer = True

    def __post_init__(self) -> None:
        for threshold in [self.thresholds] if isinstance(self.thresholds, (int, float)) else self.thresholds:
            check_threshold(threshold)

    def start(self, names: Sequence[str]) -> State:
        count = len(set(_layers(names)))
        if isinstance(self.thresholds, (int, float)):
            total = float(self.thresholds)
            each = [total / math.sqrt(count)] * count
        else:
            each = list(self.thresholds)
            if len(each) != count:
                raise ValueError(
                    f"the model has {count} layers with parameters but {len(each)} thresholds were given"
                )
            total = math.sqrt(sum(c * c for c in each))
        return {"threshold": total, **{f"threshold:{i}": c for i, c in enumerate(each)}}

    def sensitivity(self, state: State) -> float:
        return float(state["threshold"])

    def weights(self, norms: Norms, state: State) -> Tensor:
        layers = torch.tensor(_layers(norms.names), device=norms.squares_PU.device)
        count = int(layers.max()) + 1
        squares_LU = norms.squares_PU.new_zeros(count, norms.squares_PU.shape[1])
        squares_LU.index_add_(0, layers, norms.squares_PU)
        thresholds = torch.tensor([state[f"threshold:{i}"] for i in range(count)], device=layers.device)[
            :, None
        ]
        factors_LU = thresholds / torch.maximum(squares_LU.clamp_min(0).sqrt(), thresholds)
        return factors_LU[layers][None]


def _layers(names: Sequence[str]) -> list[int]:
    """The layer of each parameter: those of one module are one layer."""
    numbers: dict[str, int] = {}
    return [numbers.setdefault(name.rpartition(".")[0], len(numbers)) for name in names]


@dataclass(frozen=True)
class Unclipped(ClippingPolicy):
    """No clipping: for training without privacy. The gate refuses to add noise to it.

    Guarantee: none.

    >>> from sordino import Constant, Sgd, method
    >>> method(clip=Unclipped(), step=Sgd(), rate=Constant(0.1)).private
    False
    """

    bounds = False
    has_threshold = False
    needs_threshold = False

    def start(self, names: Sequence[str]) -> State:
        return {"threshold": math.inf}

    def sensitivity(self, state: State) -> float:
        return math.inf

    def weights(self, norms: Norms, state: State) -> Tensor:
        return torch.ones_like(norms.total_U)[None]


@dataclass(frozen=True)
class Normalised(ClippingPolicy):
    """Divide every unit's gradient by its norm (plus ``stability``), so that no threshold is left to choose.

    What a threshold far below every norm does, up to the scale of the rate. Examples that are learnt well
    have small gradients; those below ``stability`` fade instead of being blown up.

    Args:
        stability: Added to each norm. The paper has 0.01.

    Guarantee: a unit moves the sum by less than 1.

    Reference: Bu et al., "Automatic clipping: differentially private deep learning made easier and
    stronger", NeurIPS 2023.

    >>> Normalised().sensitivity(Normalised().start(["weight"]))
    1.0
    """

    stability: float = 0.1
    has_threshold = False
    needs_threshold = False

    def __post_init__(self) -> None:
        if not SMALLEST <= self.stability <= LARGEST:
            raise ValueError(f"stability must be in [{SMALLEST:g}, {LARGEST:g}], not {self.stability:g}")

    def start(self, names: Sequence[str]) -> State:
        return {"threshold": 1.0}

    def sensitivity(self, state: State) -> float:
        return 1.0

    def weights(self, norms: Norms, state: State) -> Tensor:
        return (norms.total_U + self.stability).reciprocal_()[None]
