"""Central training, step by step: the method asks the gate, moves theta, and learns from what was released."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sordino.data.sampling import Cyclic
from sordino.data.standardised import Moments
from sordino.gate import ExampleGate, Released
from sordino.methods import Method
from sordino.privacy.certificate import ONE_ROW, epsilon_to_json
from sordino.runs import restore_
from sordino.runs.plan import RunPlan
from sordino.runs.process import Line, Process, Seen, State
from sordino.runs.resume import digest, made_up_theta
from sordino.runs.spending import Promise
from sordino.runs.timing import Timing
from sordino.standardise.folding import handed_out
from sordino.standardise.plan import PARTS
from sordino.standardise.standardiser import Standardiser
from sordino.steps import StepResult
from sordino.vector import holding

if TYPE_CHECKING:
    from dp_accounting import DpEvent

PublicLoss = Callable[[Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class DescentPlan(RunPlan):
    """The plan of central training."""

    method: Method
    epochs: float
    batch_size: int
    sampling: str
    shares: int = 1  # into which a batch is cut
    timing: Timing | None = None  # where epochs and batch size are ours to choose
    kind = "run"
    deployment = "central"

    @property
    def unit_means(self) -> str:
        return ONE_ROW if self.unit == "example" else "all rows that carry the id of one user"

    @property
    def how(self) -> str:
        parts = self.method
        kinds = (type(part).__name__ for part in (parts.clip, parts.noise, parts.step, parts.rate))
        clip, noise, step, rate = kinds
        return (
            f"Method {parts.name!r}: contributions bounded by {clip}, noise {noise}, steps {step}, learning rate "
            f"{rate}; run.json has the settings."
        )

    @property
    def label(self) -> str:
        return self.method.name

    def _turns(self) -> dict[str, Any]:
        """Where units are in groups that take turns, which batch size and sampling alone do not say."""
        how = self.terms.sampling
        return {"turns": {"groups": how.groups, "rate": how.rate}} if isinstance(how, Cyclic) else {}

    def particulars(self) -> dict[str, Any]:
        never = self.terms.sampling.never_drawn(self.terms.units)
        return {
            "method": self.method.describe(),
            "epochs": float(self.epochs),
            "batch_size": self.batch_size,
            **({} if self.timing is None or self.timing.asked is None else {"minutes": self.timing.asked}),
            "sampling": self.sampling,
            **self._turns(),
            "steps_per_epoch": self.terms.per_epoch,
            "batches": self.terms.steps,
            **({"units_in_no_batch": never} if never else {}),
            **({"shares": self.shares} if self.shares > 1 else {}),
        }


@dataclass(frozen=True, eq=False, kw_only=True)
class SeenStep(Seen):
    """After a step of central training."""

    rate: float
    released: tuple[Released, ...]  # the gradients of the step


class Descent(Process):
    """``measure`` gives the metrics of the model as it is, None where there are no held-out rows.

    ``standardiser`` releases the moments of the inputs before the first step, where that is in the plan; ``placed`` is
    called when they are known.
    """

    def __init__(
        self,
        gate: ExampleGate,
        plan: DescentPlan,
        promise: Promise,
        *,
        pins: Callable[[bytes], Mapping[str, Any]],
        measure: Callable[[], Mapping[str, float]] | None = None,
        public_loss: PublicLoss | None = None,
        counts: Callable[[], dict[str, Any]] | None = None,
        standardiser: Standardiser | None = None,
        placed: Callable[[], None] | None = None,
    ) -> None:
        self.door = self.gate = gate
        self._standardiser, self._placed = standardiser, placed
        self._counts = counts
        self.model, self.theta, self.promise = gate.engine.model, gate.theta, promise
        self.measures = measure is not None
        self._plan, self._method, self._pins, self._measure = plan, plan.method, pins, measure
        self._public_loss = public_loss
        numbers = plan.terms.numbers(gate.engine.vector, plan.steps)
        self._step_state = self._method.step.start(self.theta, numbers)
        self._rate_state = self._method.rate.start(numbers, self.theta)
        self._average = None if self._method.average is None else self.theta.clone()
        self._result: StepResult | None = None
        self._done, self._folded = 0, False

    def first(self, pay: Callable[[DpEvent], None]) -> None:
        """Moments of the inputs: released, unless they are public, or those of a run that goes on."""
        how = self._plan.standardise
        if how is None:
            return
        if how.place.moments is None:
            assert self._standardiser is not None
            how.place.moments = self._standardiser.release(pay, self._record)
        if self._placed is not None:
            self._placed()

    def _record(self, number: int, noisy: Tensor) -> None:
        """A release before the first step, in the journal: there its steps are below 0."""
        if self.gate.journal is not None:
            self.gate.journal.record(Released(number - len(PARTS), noisy, noise_std=0.0, threshold=0.0))

    def step(self, number: int) -> bool:
        method = self._method
        self._average_before(number)
        rate = partial(method.rate.rate, number, self._rate_state)
        limit = method.rate.limit(self._rate_state)
        result = method.step.step(self.field, self.theta, rate, self._step_state, limit)
        self._rate_state = method.rate.update(self._rate_state, result, self.theta)
        self.gate.adapt(*result.gradients)  # once, when all the gradients of the step are there
        self._average_after(number)
        self._result, self._done = result, number + 1
        return False

    def field(self, theta: Tensor) -> Released:
        """A noisy gradient at theta; that of a public term of the loss is added after the gate."""
        released = self.gate(theta, adapt=False)
        if self._public_loss is None:
            return released
        return replace(released, gradient=released.gradient + public_gradient(self._public_loss, theta))

    def _average_before(self, number: int) -> None:
        if self._average is not None and self._method.average == 1:
            self._average.lerp_(
                self.theta, 1 / (number + 1)
            )  # of the points at which gradients were asked for

    def _average_after(self, number: int) -> None:
        if self._average is None or self._method.average == 1:
            return
        decay = 1 - 1 / max(1.0, (self._method.average or 0.0) * self._plan.steps)
        self._average.lerp_(self.theta, 1 - min(decay, (number + 1) / (number + 10)))

    def line(self) -> Line:
        assert self._result is not None
        result, released = self._result, self._released[-1]
        line: Line = {
            "step": self._done,
            "epoch": self.gate.step / self._plan.terms.per_epoch,
            "rate": result.rate,
            "threshold": released.threshold if self._method.clip.has_threshold else None,
            "epsilon": epsilon_to_json(self.promise(self.gate.step)),
        }
        if result.error is not None:
            line["error"] = result.error
        if "tol" in self._rate_state:
            line["tolerance"] = self._rate_state["tol"]
        if released.unprotected_loss is not None:
            line |= {"loss": released.unprotected_loss, "covered": False}
        return line

    @property
    def _released(self) -> tuple[Released, ...]:
        assert self._result is not None
        return tuple(each for each in self._result.gradients if isinstance(each, Released))

    def measured(self) -> Mapping[str, float]:
        assert self._measure is not None
        with holding(self.theta, self._average):
            return self._measure()

    def seen(self, step: int, steps: int, line: Line | None) -> Seen:
        assert self._result is not None
        return SeenStep(
            step=step,
            steps=steps,
            theta=self.theta,
            line=line,
            rate=self._result.rate,
            released=self._released,
        )

    def pins(self, key: bytes) -> Mapping[str, Any]:
        loss = self._public_loss
        point = made_up_theta(self.theta)
        return {
            **self._pins(key),
            "public_loss": None if loss is None else digest(public_gradient(loss, point)),
        }

    def state(self, unlogged: bool = False) -> State:
        return {
            "gate": self.gate.state(),
            "microbatch": self.gate.engine.microbatch,
            **({} if self._plan.timing is None else {"speed": self._plan.timing.speed.to_state()}),
            "theta": self.theta,
            "step_state": self._step_state,
            "rate_state": self._rate_state,
            **({} if self._average is None else {"average": self._average}),
            **({} if self._moments is None else {"moments": self._moments.to_state()}),
        }

    @property
    def _moments(self) -> Moments | None:
        return None if self._plan.standardise is None else self._plan.standardise.place.moments

    def restore(self, state: State) -> None:
        self.gate.restore(state["gate"])
        self.theta.copy_(state["theta"])
        restore_(self._step_state, state["step_state"])
        self._rate_state = state["rate_state"]
        if self._average is not None:
            self._average.copy_(state["average"])
        if self._plan.standardise is not None and "moments" in state:
            self._plan.standardise.place.moments = Moments.from_state(state["moments"])

    def finish(self) -> None:
        if self._average is not None:
            self.theta.copy_(self._average)

    def handed_out(self) -> nn.Module:
        how, moments = self._plan.standardise, self._moments
        if how is None or moments is None:
            return self.model
        found = handed_out(self.model, moments, how.shape)
        self._folded = found is self.model
        return found

    def counts(self) -> dict[str, Any]:
        assert self._counts is not None
        return self._counts()

    def complaints(self, history: Sequence[Line]) -> list[str]:
        thresholds = [line["threshold"] for line in history if line["threshold"]]
        names = [slot.name for slot in self.gate.engine.vector.slots]
        clip = self._method.clip
        if not thresholds or 1e-3 < thresholds[-1] / clip.sensitivity(clip.start(names)) < 1e3:
            return []
        return [
            f"the threshold ran away, to {thresholds[-1]:.3g}: use a smaller learning rate, a fixed threshold or the "
            "default method"
        ]

    def facts(self) -> Mapping[str, Any]:
        how = self._plan.standardise
        folded = {} if how is None else {"standardise": {**how.describe(), "folded": self._folded}}
        timing = {} if self._plan.timing is None else {"time": self._plan.timing.describe()}
        return {"microbatch": self.gate.engine.microbatch, **folded, **timing}


def public_gradient(public_loss: PublicLoss, theta: Tensor) -> Tensor:
    point = theta.detach().clone().requires_grad_()
    with torch.enable_grad():
        value = public_loss(point)
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise ValueError("public_loss(theta) must return one number, as a tensor")
        (gradient,) = torch.autograd.grad(value, point)
    return gradient
