"""Local steps of all participants at once: vector formulas on a matrix of parameter vectors, one row per client.

``field(x)`` gives the gradients of every row on its own next batch, offset and pull of the algorithm included. No row
depends on another.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sordino.named import LOCAL_RULES as LOCAL_RULES

State = dict[str, Tensor]  # a row for each client in all of it
Field = Callable[[Tensor], Tensor]  # [P, d] -> [P, d]; every call draws a batch

# Beyond these a single-precision step vanishes or overflows.
_SMALLEST, _LARGEST = 1e-30, 1e38


class LocalRule(ABC):
    """A local step rule. Settings are the fields of a frozen dataclass."""

    batches_per_step = 1
    keeps_rate = False  # whether a client has a rate of its own that may outlive a round

    @property
    def sums_gradients(self) -> bool:
        """Whether a client's update is a sum of gradients times rates."""
        return False

    @property
    def keeps_to_plan(self) -> bool:
        """Whether those rates are the planned ones."""
        return False

    def start(self, x_Pd: Tensor, rates_P1: Tensor) -> State:
        """What a step needs of those before it, in the same round."""
        return {"rates": rates_P1.clone()}

    @abstractmethod
    def move(self, field: Field, x_Pd: Tensor, state: State) -> None:
        """Move x and the state in place, every row."""

    def step(self, field: Field, x_Pd: Tensor, active_P1: Tensor | None, state: State) -> None:
        """Move the active rows of x and of the state in place; the others stay what they are, bit for bit."""
        idle = None if active_P1 is None else (active_P1 == 0).flatten().nonzero().flatten()
        if idle is None or len(idle) == 0:
            self.move(field, x_Pd, state)
            return
        # Rows are put back and not multiplied with 0, as 0 times what overflowed is no number.
        kept = {name: part[idle] for name, part in state.items()}
        kept_x = x_Pd[idle]
        self.move(field, x_Pd, state)
        x_Pd[idle] = kept_x
        for name, part in kept.items():
            state[name][idle] = part

    def length(self, state: State) -> Tensor | None:
        """How often each client's mean gradient went into x, [P, 1], where that is not steps times rate."""
        return None


@dataclass(frozen=True)
class LocalSgd(LocalRule):
    """Local SGD: ``v <- momentum v + g;  x <- x - rate v``.

    Args:
        momentum: Of the heavy ball, in [0, 1), begun anew every round.

    >>> LocalSgd(momentum=0.9).keeps_rate  # the rate is the round's
    False
    """

    momentum: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be in [0, 1), not {self.momentum:g}")

    @property
    def sums_gradients(self) -> bool:
        return not self.momentum

    @property
    def keeps_to_plan(self) -> bool:
        return not self.momentum

    def start(self, x_Pd: Tensor, rates_P1: Tensor) -> State:
        state = super().start(x_Pd, rates_P1)
        if self.momentum:
            state["velocity"] = torch.zeros_like(x_Pd)
            state["weight"] = torch.zeros_like(rates_P1)
            state["length"] = torch.zeros_like(rates_P1)
        return state

    def move(self, field: Field, x_Pd: Tensor, state: State) -> None:
        direction = field(x_Pd)
        if self.momentum:
            direction = state["velocity"].mul_(self.momentum).add_(direction)
            # What a gradient that never changes would have been multiplied with.
            state["length"].addcmul_(state["weight"].mul_(self.momentum).add_(1), state["rates"])
        x_Pd.addcmul_(direction, state["rates"], value=-1)

    def length(self, state: State) -> Tensor | None:
        return state.get("length")


@dataclass(frozen=True)
class LocalAdam(LocalRule):
    """Adam, begun anew every round.

    Args:
        beta1: How much of the mean gradient is kept at each step.
        beta2: Likewise of the mean squared gradient.
        eps: Added to the root of the second moment.

    Reference: Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015.

    >>> LocalAdam(beta2=0.99).batches_per_step
    1
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def __post_init__(self) -> None:
        if not (0 <= self.beta1 < 1 and 0 <= self.beta2 < 1 and self.eps > 0):
            raise ValueError("Adam needs beta1 and beta2 in [0, 1) and eps > 0")

    def start(self, x_Pd: Tensor, rates_P1: Tensor) -> State:
        moments = {"first": torch.zeros_like(x_Pd), "second": torch.zeros_like(x_Pd)}
        # The powers of the betas, not a number of steps: rows may have taken different ones.
        powers = {"power1": torch.ones_like(rates_P1), "power2": torch.ones_like(rates_P1)}
        return super().start(x_Pd, rates_P1) | moments | powers

    def move(self, field: Field, x_Pd: Tensor, state: State) -> None:
        gradients = field(x_Pd)
        first = state["first"].mul_(self.beta1).add_(gradients, alpha=1 - self.beta1)
        second = state["second"].mul_(self.beta2).addcmul_(gradients, gradients, value=1 - self.beta2)
        left1, left2 = 1 - state["power1"].mul_(self.beta1), 1 - state["power2"].mul_(self.beta2)
        scale = (second / left2).sqrt_().add_(self.eps)
        x_Pd.addcdiv_(first * (state["rates"] / left1), scale, value=-1)


@dataclass(frozen=True)
class LocalExtrapolation(LocalRule):
    """ADADP's step with a rate of its own for every client.

    A full step against two half steps, each on a batch of its own. Their distance, each coordinate relative
    to ``max(1, |full|)``, is the error, and the rate is multiplied by tol / error, within [shrink, grow]. The
    two half steps are what is kept.

    Args:
        tol: The error to hold.
        discard: Take steps with an error above tol back.
        shrink: The least factor of the rate in a step.
        grow: The largest.

    Reference: Koskela and Honkela, "Learning rate adaptation for differentially private learning", AISTATS
    2020 (adaptive federated averaging).

    >>> LocalExtrapolation().keeps_rate, LocalExtrapolation().batches_per_step
    (True, 2)
    """

    tol: float = 0.1
    discard: bool = True
    shrink: float = 0.9
    grow: float = 1.1
    batches_per_step = 2
    keeps_rate = True
    sums_gradients = True

    def __post_init__(self) -> None:
        if not 0 < self.tol < math.inf:
            raise ValueError(f"tol must be positive and finite, not {self.tol:g}")
        if not 0 < self.shrink <= 1 <= self.grow < math.inf:
            raise ValueError("LocalExtrapolation needs 0 < shrink <= 1 <= grow")

    def start(self, x_Pd: Tensor, rates_P1: Tensor) -> State:
        return super().start(x_Pd, rates_P1) | {"length": torch.zeros_like(rates_P1)}

    def move(self, field: Field, x_Pd: Tensor, state: State) -> None:
        rates = state["rates"]
        before = x_Pd.clone()
        first = field(x_Pd)
        full = torch.addcmul(before, first, rates, value=-1)
        x_Pd.addcmul_(first, rates, value=-0.5)
        x_Pd.addcmul_(field(x_Pd), rates, value=-0.5)
        size = full.abs().clamp_min_(1)
        error = full.sub_(x_Pd).div_(size).norm(dim=1, keepdim=True)
        moved = rates
        if self.discard:
            fine = error <= self.tol  # not of an error that is no number
            undone = (~fine).flatten().nonzero().flatten()
            if len(undone):
                x_Pd[undone] = before[undone]
            moved = rates * fine
        state["length"] += moved
        factor = (self.tol / error).clamp_(self.shrink, self.grow).nan_to_num_(self.shrink)
        state["rates"] = (rates * factor).clamp_(_SMALLEST, _LARGEST)

    def length(self, state: State) -> Tensor | None:
        return state["length"]


@dataclass(frozen=True)
class OwnLoop:
    """A client's local training in one's own words: no step rule, but all of a round of one client.

    Offset and pull of the algorithm are not in its gradients, so it goes with algorithms that have none:
    FedAvg and FedAdam.

    Args:
        function: ``function(theta, inputs, targets, generator)`` gets the server's parameters [d], the
            client's own rows, and a generator that is seeded for this round and this client, and returns the
            client's parameters [d]. It must not write into what it gets, and take all its randomness from the
            generator.

    Guarantee: under user-level privacy what it returns is clipped like any client's update, so it may do
    what it likes.

    >>> lazy = OwnLoop(lambda theta, inputs, targets, generator: theta - 0.1 * inputs.mean(0))
    >>> lazy.function(torch.zeros(2), torch.ones(5, 2), None, torch.Generator())
    tensor([-0.1000, -0.1000])
    """

    function: Callable[[Tensor, Any, Any, torch.Generator], Tensor]


def local_named(name: str, settings: Mapping[str, Any] | None = None) -> LocalRule:
    """The local rule of this name, with some settings changed.

    >>> local_named("adadp", {"tol": 0.2})
    LocalExtrapolation(tol=0.2, discard=True, shrink=0.9, grow=1.1)
    """
    found: LocalRule = LOCAL_RULES.named(name, settings)
    return found
