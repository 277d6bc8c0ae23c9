"""`make_private`: for people with a loop and an optimiser of their own."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sordino.clipping import Fixed
from sordino.clipping.policy import ClippingPolicy
from sordino.data import Examples, as_examples
from sordino.data.sampling import sampling_named
from sordino.gate import ExampleGate, Members, Released
from sordino.gradients import Engine, Loss, refuse
from sordino.ledger import Account, ledger_of
from sordino.noise import Gaussian, Streams
from sordino.privacy import Budget, certificate
from sordino.privacy.budget import budget_of
from sordino.privacy.sealing import signing_key as key_of
from sordino.privacy.wording import SEED_WARNING
from sordino.registry import is_number, said
from sordino.runs.counting import Payer, check_named
from sordino.runs.options import UNNAMED
from sordino.runs.plan import inputs_caveat
from sordino.runs.spending import Spending
from sordino.tasks import Task, as_task
from sordino.terms import Terms
from sordino.training import warn_of_delta

_LOOP = (
    "the owner's own loop saw private rows through the gate alone, and took nothing but what it released",
    "the model computes the loss of each example without regard to the others (checked on made-up rows)",
)
_OWN_LOOK = "whatever the owner's own loop computed from private rows itself, if it did"


class PrivateLoop:
    """The planned steps of a loop of one's own, each with a released gradient in ``p.grad``. Made by `make_private`.

    Guarantee: of the whole plan, whether or not all its steps are taken; a step beyond the plan is refused, also if the
    gate is called by hand, and what was released beyond it all the same gets no certificate.

    Args:
        gate: Through which private rows are seen.
        spending: What the plan costs, and how much of it was spent.
        optimizer: Whose parameters get the gradients.
        account: In a ledger across runs, if there is one.
        about: What the certificate says besides.

    >>> model = nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> loss = lambda output, y: (output[:, 0] - y) ** 2
    >>> rows = torch.ones(40, 2), torch.zeros(40)
    >>> private = make_private(model, loss, rows, optimizer=optimizer, epochs=1, batch_size=20, budget=(3, 1e-3))
    >>> released = private.backward()
    >>> model.bias.grad.shape, private.gate.step, len(private)
    (torch.Size([1]), 1, 2)
    """

    def __init__(
        self,
        gate: ExampleGate,
        spending: Spending,
        optimizer: torch.optim.Optimizer,
        account: Account | None,
        about: dict[str, Any],
    ) -> None:
        self.gate, self.optimizer = gate, optimizer
        self._spending, self._account, self._about = spending, account, about
        gate.payer = _Planned(len(self), gate.payer)

    def __len__(self) -> int:
        assert self.gate.terms.steps is not None
        return self.gate.terms.steps

    def __iter__(self) -> Iterator[Released]:
        """The steps that are left of the plan."""
        while self.gate.step < len(self):
            yield self.backward()
        self.close()

    def backward(self) -> Released:
        """In the place of ``loss.backward()``: a batch is drawn, clipped, summed, noised and paid for, and what is
        released lies in ``p.grad``, where the optimiser looks."""
        released = self.gate()
        for slot, part in self.gate.engine.vector.split(released.gradient):
            slot.parameter.grad = part.clone().reshape(slot.parameter.shape)
        return released

    def close(self) -> None:
        """Tell the ledger that no more steps come; what was not spent is free again."""
        if self._account is not None and self._account.is_open:
            self._account.close()

    @property
    def epsilon(self) -> float:
        """What the steps so far have spent, of the plan's; a plan is kept whole, so stopping early saves nothing in the
        certificate."""
        return self._spending(self.gate.step) if self.gate.step else 0.0

    @property
    def certificate(self) -> dict[str, Any]:
        """The guarantee of the whole plan, with every event behind it, as `train` writes it."""
        self._check_within_plan()
        ledger = None if self._account is None else self._account.statement()
        return certificate(
            guarantee=self._spending.total,
            event=self._spending.planned,
            units=self.gate.units,
            unit=self.gate.unit,
            secure=self.gate.terms.secure,
            seeded=self.gate.streams.seeded,
            caveat=_caveat(self.gate),
            ledger=ledger,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            **self._about,
        )

    def _check_within_plan(self) -> None:
        """The gate is in everybody's hands, so what it was charged is looked at, not what the loop did."""
        gate = self.gate
        beyond = gate.step > len(self)
        if beyond or (gate.ledger.charges and gate.ledger.event != gate.terms.cost(gate.step)):
            raise ValueError(
                "the gate has released more than was planned, so the plan's guarantee does not hold: plan more "
                "epochs, and begin again"
            )


class _Planned:
    """Refuses what is beyond the plan, whoever calls the gate, before anything is paid or looked at."""

    def __init__(self, steps: int, payer: Callable[[int], None] | None) -> None:
        self._steps, self._payer = steps, payer

    def __call__(self, step: int) -> None:
        if step >= self._steps:
            raise ValueError(
                f"all {self._steps} planned steps are taken, and the noise is made for so many: plan more epochs"
            )
        if self._payer is not None:
            self._payer(step)


def make_private(
    model: nn.Module,
    loss: Loss | Task,
    data: Any,
    *,
    optimizer: torch.optim.Optimizer,
    epochs: float,
    batch_size: int,
    budget: Budget | tuple[float, float] | None = None,
    noise_multiplier: float | None = None,
    delta: float | None = None,
    max_grad_norm: float | ClippingPolicy = 1.0,
    sampling: str = "poisson",
    groups: Any = None,
    accountant: str = "auto",
    seed: int | None = None,
    secure: bool = False,
    microbatch: int | None = None,
    template: tuple[Any, Any] | None = None,
    data_name: str = UNNAMED,
    ledger: Any = None,
    assumptions: Sequence[str] = (),
    rationale: str | None = None,
    signing_key: str | Path | None = None,
) -> PrivateLoop:
    """Private gradients for a loop and an optimiser of your own: ``for _ in make_private(...): optimizer.step()``.

    Guarantee: everything that is made of the gradients in ``p.grad`` is (epsilon, delta)-differentially private for one
    unit, with noise that is calibrated to the planned steps; that the loop looks at private rows in no other way is for
    you to see to, and the certificate says so.

    Args:
        model: Any ``nn.Module``; it is checked on made-up rows before a private one is seen.
        loss: ``loss(output, target)``, one value for each example (``reduction="none"``), or a `Task`.
        data: A pair of tensors (inputs, targets), or a ``Dataset``. Batches are drawn from it; no loader is needed.
        optimizer: Any ``torch.optim`` optimiser over parameters of the model.
        epochs: Passes over the data, expected; with the batch size they give the steps that are planned.
        batch_size: Expected: batches are random.
        budget: `Budget` (epsilon, delta) of the whole plan, or a pair of numbers.
        noise_multiplier: In its place, with a ``delta``.
        delta: At which a noise multiplier is priced.
        max_grad_norm: The clipping threshold, or a clipping policy such as ``Quantile()``.
        sampling: ``poisson``, or ``shuffled`` or ``fixed-order``, priced as what they are.
        groups: An id for each row: then the unit of privacy is all the rows of an id.
        accountant: ``auto`` (the tighter of ``rdp`` and ``pld``), or one of them.
        seed: For experiments: it voids the guarantee.
        secure: Refuse a seed.
        microbatch: How many rows are worked on at a time; by default measured.
        template: Five public rows, for a model that cannot run on made-up ones.
        data_name: What the owner calls the data.
        ledger: A file that counts everything spent on it, as for `train`.
        assumptions: Sentences that go into the certificate.
        rationale: Why this epsilon, delta and unit.
        signing_key: A PEM file with the key that signs the certificate.

    >>> x = torch.randn(200, 4)
    >>> model = nn.Linear(4, 2)
    >>> optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    >>> private = make_private(model, nn.CrossEntropyLoss(reduction="none"), (x, (x[:, 0] > 0).long()),
    ...                        optimizer=optimizer, epochs=2, batch_size=50, budget=(3, 1e-3))
    >>> for released in private:
    ...     optimizer.step()
    >>> len(private), private.epsilon <= 3, private.certificate["claim"]["stands"]
    (8, True, True)
    """
    refuse(model)  # before any data is touched
    _check_optimizer(optimizer, model)
    examples = as_examples(data)
    members = Members(len(examples), groups)
    how = sampling_named(sampling, batch_size, members.count)
    if not is_number(epochs) or not epochs > 0 or not math.isfinite(epochs):
        raise ValueError(f"epochs must be a positive number, not {said(epochs)}")
    steps = max(1, round(epochs * how.steps_per_epoch(members.count)))
    clip = max_grad_norm if isinstance(max_grad_norm, ClippingPolicy) else Fixed(max_grad_norm)
    terms = Terms(clip, Gaussian(), how, members.count, steps, secure=secure)
    terms, delta = terms.within(budget_of(budget), noise_multiplier, delta, accountant)
    if delta is not None:
        warn_of_delta(delta, members.count)
    streams = Streams.from_entropy() if seed is None else Streams.from_seed(seed)
    engine = Engine(model, as_task(loss).per_example, microbatch=microbatch)
    gate = ExampleGate(engine, examples, members, terms, streams, template=template)
    spending = Spending(terms, delta, accountant)
    about = {
        "data": data_name,
        "assumptions": [how.assumption, *assumptions, *_public(examples), *_LOOP],
        "unprotected": [*_unprotected(examples), _OWN_LOOK],
        "implementation": {"method": f"a loop of the owner's own, with torch's {type(optimizer).__name__}"},
        "rationale": rationale,
        "signing_key": key_of(signing_key),
    }
    account = _counted(ledger, data_name, gate, spending, delta, lambda key: str(examples.fingerprint(key)))
    return PrivateLoop(gate, spending, optimizer, account, about)


def _public(examples: Examples) -> list[str]:
    return [] if examples.inputs is None else [f"public: {', '.join(examples.inputs.public)}"]


def _unprotected(examples: Examples) -> tuple[str, ...]:
    return () if examples.inputs is None else examples.inputs.unprotected


def _caveat(gate: ExampleGate) -> str | None:
    """Why there is no guarantee: of how batches are drawn, or of how the rows were made."""
    return gate.terms.caveat or inputs_caveat(gate.inputs)


def _check_optimizer(optimizer: Any, model: nn.Module) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(
            f"optimizer is one of torch.optim over the model's parameters, not {said(optimizer)}"
        )
    theirs = {id(each) for group in optimizer.param_groups for each in group["params"]}
    if not theirs <= {id(each) for each in model.parameters()}:
        raise ValueError(
            "the optimizer has parameters that are not the model's: make it of model.parameters()"
        )


def _counted(
    ledger: Any, data: str, gate: ExampleGate, spending: Spending, delta: float | None, digest: Any
) -> Account | None:
    """The account of the loop: all of the plan is reserved before a private row is looked at."""
    found = ledger_of(ledger)
    if found is None:
        return None
    if isinstance(found, Account):
        raise ValueError("give the ledger itself, in which the loop gets an account of its own")
    check_named(data)
    account = found.reserve(
        data,
        spending.planned,
        run=secrets.token_hex(8),
        unit=gate.unit,
        delta=delta,
        label="a loop of the owner's own",
        caveat=" ".join(filter(None, (_caveat(gate), SEED_WARNING if gate.streams.seeded else None))),
    )
    account.saw(digest)
    gate.payer = Payer(account, gate.terms)
    return account
