"""What a run is going to spend, and what it has spent so far."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from sordino.privacy import EpsilonCurve, Guarantee, Ledger, compose, epsilon_after, gaussian, price, repeat
from sordino.privacy.events import leaves
from sordino.privacy.loss_distribution import squared_mu
from sordino.terms import Terms

if TYPE_CHECKING:
    from dp_accounting import DpEvent


FIRST = "standardisation of the inputs"  # the key of what is paid before the first step
AFTER = "counts of held-out rows"  # and of what is paid when the training is done


class Promise(Protocol):
    """The guarantee of a whole run, and epsilon as a function of what was released."""

    @property
    def total(self) -> Guarantee: ...
    @property
    def planned(self) -> DpEvent: ...
    def __call__(self, calls: int) -> float: ...
    def paid(self, ledger: Ledger) -> DpEvent: ...


class Spending:
    """Epsilon as a function of gate calls: the accountant is chosen once, for the whole plan.

    ``before`` was released before the first of them, and is paid elsewhere. ``first`` is the run's own to release and
    to pay before them, as ``FIRST``; ``after`` likewise when all are done, as ``AFTER``.
    """

    def __init__(
        self,
        terms: Terms,
        delta: float | None,
        accountant: str,
        before: DpEvent | None = None,
        after: DpEvent | None = None,
        first: DpEvent | None = None,
    ) -> None:
        assert terms.steps is not None
        self._terms, self.before, self.after, self.first = terms, before, after, first
        self._curve: EpsilonCurve | None = None
        step = terms.charge(0)[1]
        if terms.multiplier == 0 or delta is None:
            self.total = price(step, delta if delta is not None else 1e-5, "rdp")
            if delta is None:
                self.total = replace(self.total, delta=0.0)
        elif (before, after, first) != (None, None, None):
            self.total = self._priced_with_all(step, delta, accountant)
        elif squared_mu(terms.cost(terms.steps)) is not None:
            self.total = price(terms.cost(terms.steps), delta, accountant)
        else:
            self._curve = epsilon_after(
                step, delta, planned_steps=self._charges(terms.steps), accountant=accountant
            )
            self.total = self._curve.total

    def _priced_with_all(self, step: DpEvent, delta: float, accountant: str) -> Guarantee:
        """The whole plan; and unless there is a closed form, the curve up to where the training ends."""
        terms = self._terms
        assert terms.steps is not None
        total = price(compose([*self._in_front, self.planned]), delta, accountant)
        if squared_mu(terms.cost(terms.steps)) is None:
            steps = self._charges(terms.steps)
            ahead = compose(self._ahead) if self._ahead else None
            self._curve = epsilon_after(
                step, delta, planned_steps=steps, accountant=total.accountant, before=ahead
            )
        return total

    @property
    def _in_front(self) -> list[DpEvent]:
        return [] if self.before is None else [self.before]

    @property
    def _ahead(self) -> list[DpEvent]:
        """What is released before the first step, whoever pays for it."""
        return [*self._in_front, *([] if self.first is None else [self.first])]

    @property
    def planned(self) -> DpEvent:
        """What the run itself releases."""
        assert self._terms.steps is not None
        training = self._terms.cost(self._terms.steps)
        if self.after is None and self.first is None:
            return training
        besides = [[] if each is None else [each] for each in (self.first, self.after)]
        # Equal ones grouped, as a ledger has them.
        every = leaves(compose([*besides[0], training, *besides[1]]))
        return compose([repeat(leaf, count) for leaf, count in every])

    def _charges(self, calls: int) -> int:
        return self._terms.sampling.charges(calls, self._terms.units)

    def __call__(self, calls: int) -> float:
        if math.isinf(self.total.epsilon):
            return math.inf
        if self._curve is not None:
            return self._curve(self._charges(calls))
        # Plain Gaussians have a closed form, whatever their noise.
        total = self.total
        released = compose([*self._ahead, self._terms.cost(calls)])
        return price(released, total.delta, total.accountant, total.conversion).epsilon

    def paid(self, ledger: Ledger) -> DpEvent:
        """The events of the whole run, which have to be what the ledger was charged, after what came before it."""
        event = self.planned
        if ledger.event != event:
            raise RuntimeError(
                "the ledger does not hold what was planned: this is a bug in Sordino, please report it"
            )
        return compose([*self._in_front, event])


class NothingPromised:
    """Of a run without privacy, which pays nothing: epsilon is infinite, and delta 0."""

    def __init__(self) -> None:
        self.total = replace(price(gaussian(0.0), 0.5, "rdp"), delta=0.0)

    def __call__(self, calls: int) -> float:
        return math.inf

    @property
    def planned(self) -> DpEvent:
        return gaussian(0.0)

    def paid(self, ledger: Ledger) -> DpEvent:
        return self.planned
