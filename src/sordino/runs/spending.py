"""The noise a plan needs, and what a run has spent so far."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from sordino.clipping.policy import ClippingPolicy
from sordino.gate import Door
from sordino.noise import Releases, gaussian
from sordino.privacy import Budget, EpsilonCurve, epsilon_after, noise_for, price
from sordino.privacy.loss_distribution import squared_mu
from sordino.privacy.tails import check_reach

if TYPE_CHECKING:
    from dp_accounting import DpEvent


def planned_noise(
    releases: Releases,
    clip: ClippingPolicy,
    expected_batch: float,
    calls: int,
    budget: Budget | None,
    noise_multiplier: float | None,
    delta: float | None,
    accountant: str,
) -> tuple[float, float | None]:
    """The noise multiplier and delta of a run of so many calls, from whatever the user gave."""
    if (budget is None) == (noise_multiplier is None):
        raise ValueError("give either a budget (epsilon and delta) or a noise multiplier")
    if budget is not None:

        def plan(z: float) -> DpEvent:
            return releases.cost(calls, z, [probe.multiplier for probe in clip.probes(z, expected_batch)])

        noise_multiplier, delta = noise_for(budget, plan, accountant), budget.delta
    assert noise_multiplier is not None
    if noise_multiplier > 0:
        if delta is None:
            raise ValueError("a noise multiplier needs a delta to be priced at")
        check_reach(gaussian.REACH, noise_multiplier, calls, delta)
    return noise_multiplier, delta


class Spending:
    """Epsilon as a function of gate calls: the accountant is chosen once, for the whole plan."""

    def __init__(self, gate: Door, calls: int, delta: float | None, accountant: str) -> None:
        self._gate = gate
        self._curve: EpsilonCurve | None = None
        if gate.noise_multiplier == 0 or delta is None:
            self.total = price(gate.charge_event, delta if delta is not None else 1e-5, "rdp")
            if delta is None:
                self.total = replace(self.total, delta=0.0)
        elif squared_mu(gate.plan(calls)) is not None:
            self.total = price(gate.plan(calls), delta, accountant)
        else:
            charges = gate.sampling.charges(calls, gate.units)
            self._curve = epsilon_after(
                gate.charge_event, delta, planned_steps=charges, accountant=accountant
            )
            self.total = self._curve.total

    def __call__(self, calls: int) -> float:
        if math.isinf(self.total.epsilon):
            return math.inf
        if self._curve is not None:
            return self._curve(self._gate.sampling.charges(calls, self._gate.units))
        # Plain Gaussians have a closed form, whatever their noise.
        total = self.total
        return price(self._gate.plan(calls), total.delta, total.accountant, total.conversion).epsilon

    def paid(self, calls: int) -> DpEvent:
        """The events of the whole run, which have to be what the ledger was charged."""
        event = self._gate.plan(calls)
        if self._gate.ledger.event != event:
            raise RuntimeError(
                "the ledger does not hold what was planned: this is a bug in Sordino, please report it"
            )
        return event
