"""The one door to private data.

Everything that is computed from private rows is computed here: rows are sampled, their gradients clipped and
summed, noise is added, the ledger is charged, and only then something leaves, as a ``Released``. Whatever is
downstream is post-processing. What is summed may be the gradients of rows (``Gate``) or the updates of clients
(``federated/user_level.py``): charge, noise and division are the same ``Door``. (``least_squares.py``, which has no
gradients, and ``standardise/standardiser.py``, which releases moments of inputs once, are the other doors.) Whoever
audits the library reads this file, ``clipping/`` for the sensitivity of what is summed, ``noise/`` for what is added,
and ``data/sampling.py`` for who took part.
"""

from __future__ import annotations

import os
import secrets
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from sordino.clipping.policy import Answer, ClippingPolicy, Probe
from sordino.data import Examples, Sampling, as_examples, tree_map, units_of
from sordino.data.chance import seeded
from sordino.gradients import MOST_UNITS, Engine, Loss, Norms, Unsuitable, rounding_of_sums
from sordino.gradients.calls import where_scores_are
from sordino.noise import Gaussian, GaussianNoise, Mechanism, Streams
from sordino.noise.grid import ROUNDING, grid_for
from sordino.privacy import Ledger
from sordino.ranks import Ranks, refuse_several
from sordino.tasks import Task, as_task
from sordino.terms import Terms
from sordino.vector import holding

if TYPE_CHECKING:
    from dp_accounting import DpEvent

    from sordino.data.inputs import Inputs

ROOM = rounding_of_sums(MOST_UNITS) + ROUNDING + 2e-5  # of sums, to the grid, and of norms: 0.4 %


@dataclass(frozen=True)
class Released:
    """What left the gate: noised, divided by the expected batch size, and paid for.

    Guarantee: whatever is made of it is post-processing, and costs nothing further; but for ``unprotected_loss``.

    Args:
        step: The number of the release, from 0.
        gradient: (clipped sum + noise) / expected batch size.
        noise_std: Of each coordinate of the gradient.
        threshold: C, the one that clipped this batch.
        probes: What else was asked about the batch, likewise noised and divided.
        unprotected_loss: Only on request, and covered by nothing.

    >>> Released(0, torch.zeros(3), noise_std=0.1, threshold=1.0).probes
    {}
    """

    step: int
    gradient: Tensor  # (clipped sum + noise) / expected batch size
    noise_std: float  # of each coordinate of the gradient
    threshold: float  # C, the one that clipped this batch
    probes: Mapping[str, Any] = field(default_factory=dict)  # likewise noised and divided
    unprotected_loss: float | None = None  # only on request, and not covered by any guarantee


class Journal(Protocol):
    """Keeps what tells one release from another, or raises ValueError if a repeated one is another."""

    def record(self, released: Released) -> None: ...
    def sync(self) -> None: ...


class Door(ABC):
    """Charges, noise and division: what every release of clipped sums over sampled units goes through.

    Each unit moves the clipped sum by at most C, and the noise on the sum has standard deviation
    ``noise_multiplier * C``, so a call is one Gaussian release of that multiplier, sampled as ``sampling`` says. With
    other ``noise`` than independent noise, such as ``Tree()``, what calls cost is that mechanism's to say; ``steps`` is
    how many calls are planned, for mechanisms that are paid in advance.
    """

    unit: str  # of privacy: example or user

    def __init__(
        self,
        names: Sequence[str],
        terms: Terms,
        streams: Streams,
        ledger: Ledger | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        if ranks is None:  # nobody sees to it that one process releases, and one charge is made
            refuse_several("a gate")
        if terms.secure and streams.seeded:
            raise ValueError("secure=True takes its randomness from the operating system: leave out the seed")
        terms.check_sensitivity(names)
        terms.own_multiplier  # noqa: B018  # or refuse
        self.terms = terms
        self.ledger, self._own_ledger = ledger if ledger is not None else Ledger(), ledger is None
        self.streams = streams
        self.streams.take()
        self.step = 0
        self.clip_state = terms.clip.start(names)
        self.noise_state = terms.releases.start()
        # Where releases are written down as digests, before anything is made of them (``runs/journal.py``).
        self.journal: Journal | None = None
        # Where all runs are counted together, before anything is computed (``runs/counting.py``).
        self.payer: Callable[[int], None] | None = None
        # Two gates never share a charge, not even with one seed on one ledger. A resumed run puts back the name under
        # which it charged before, so that a replay is not charged twice.
        self.charged_as = f"{self.streams.identity}-{secrets.token_hex(8)}"
        self._draw = GaussianNoise(self.streams)
        self._process, self._one_at_a_time = os.getpid(), threading.Lock()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "a gate cannot be copied or pickled: its copy would make the same noise, and pay nothing"
        )

    # What is public -------------------------------------------------------------------------------------

    @property
    def clip(self) -> ClippingPolicy:
        return self.terms.clip

    @property
    def noise_multiplier(self) -> float:
        return self.terms.multiplier

    @property
    def sampling(self) -> Sampling:
        return self.terms.sampling

    @property
    def units(self) -> int:
        return self.terms.units

    @property
    def expected_batch(self) -> float:
        return self.terms.expected_batch

    @property
    def threshold(self) -> float:
        """The threshold that will clip the next batch."""
        return self.clip.sensitivity(self.clip_state)

    @property
    def charge_event(self) -> DpEvent:
        """What the first charge costs, as an event for accountants."""
        return self.terms.charge(0)[1]

    def plan(self, steps: int) -> DpEvent:
        """What ``steps`` calls will cost."""
        return self.terms.cost(steps)

    # What a checkpoint holds ----------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Where the releases stand, and what was paid: to be written down at once, for it goes on with them."""
        return {
            "step": self.step,
            "clip": self.clip_state,
            "noise": self.noise_state,
            "ledger": self.ledger.to_state(),
            "charged_as": self.charged_as,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take up where another gate stood that was lost, with its streams. Not for going back."""
        if self.step or self.ledger.charges or not self._own_ledger:
            raise RuntimeError(
                "a gate that has released something, or shares its ledger, cannot be put back: it would make the same "
                "noise once more and pay nothing, so that two answers tell what is behind it"
            )
        self.step, self.clip_state, self.noise_state = state["step"], state["clip"], state["noise"]
        self.ledger, self.charged_as = Ledger.from_state(state["ledger"]), state["charged_as"]

    # The call -------------------------------------------------------------------------------------------

    def __call__(self, at: Any = None, *, adapt: bool = True) -> Released:
        """One release at a point. With ``adapt=False`` the threshold stays until ``adapt`` is called."""
        if os.getpid() != self._process:
            raise RuntimeError(
                "a gate belongs to the process that made it: in another it would make the same noise once more, and "
                "its charges would be lost"
            )
        with self._one_at_a_time:
            released = self._release(at)
            if self.journal is not None:
                self.journal.record(released)
            if adapt:
                self.adapt(released)
            return released

    def _release(self, at: Any) -> Released:
        step = self.step
        if self.noise_multiplier:
            self.terms.releases.check(step, self.noise_state)
        if self.payer is not None:
            self.payer(step)
        key, event = self.terms.charge(step)
        self.ledger.charge(f"{self.charged_as}/{key}", event)  # first, whatever happens
        self.step += 1
        probes = self.clip.probes(self.noise_multiplier, self.expected_batch)
        vectors = 1 + sum(p.vector for p in probes)
        sums, numbers = self._sums_at(at, vectors, len(probes) + 1 - vectors, step)
        threshold = self.threshold
        gradient, noise_std = self._noised_gradient(sums[0], threshold, step)
        answers = self._noised_answers(probes, sums[1:], numbers, step)
        return Released(step, gradient, noise_std, threshold, answers, self._unprotected_loss())

    def _noised_gradient(self, total: Tensor, threshold: float, step: int) -> tuple[Tensor, float]:
        """The sum with its noise, divided by the expected batch size; and the noise's standard deviation."""
        noise_std = 0.0
        if self.noise_multiplier:
            multiplier = self.terms.own_multiplier
            noise_std = self.terms.releases.add_(
                total, self._draw, multiplier, threshold, step, self.noise_state
            )
        # Singles first: whether the sum was one of doubles, which large batches have, must not show in its last digit.
        return total.to(torch.float32).div_(self.expected_batch), noise_std / self.expected_batch

    def _noised_answers(
        self, probes: Sequence[Probe], sums: Tensor, numbers: Tensor, step: int
    ) -> Mapping[str, Any]:
        answers: dict[str, Any] = {}
        further, scalars, batch = iter(sums), iter(numbers), self.expected_batch
        for probe in probes:
            answer = next(further) if probe.vector else next(scalars).reshape(1)
            std = probe.sensitivity * probe.multiplier if self.noise_multiplier else 0.0
            grid = grid_for(probe.sensitivity, answer.numel()) if std else None
            answer = self._draw.add_(answer, std, f"noise:{probe.name}", step, grid)
            answers[probe.name] = (
                answer.to(torch.float32).div_(batch) if probe.vector else float(answer.div_(batch))
            )
        return MappingProxyType(answers)

    def adapt(self, *released: Answer) -> None:
        """Let the clipping policy move its threshold once, by one or more releases that were made at it."""
        self.clip_state = self.clip.update(self.clip_state, released)

    @abstractmethod
    def _sums_at(self, at: Any, vectors: int, numbers: int, step: int) -> tuple[Tensor, Tensor]:
        """Exact sums over the units of a step: clipped vectors and those of vector probes [vectors, d], and scalar
        probes [numbers]. One unit moves them by no more than the clipping policy says."""

    def _unprotected_loss(self) -> float | None:
        return None

    @property
    def room(self) -> float:
        """By how much norms are raised, so that C bounds what a unit can do to a sum *as computed*: rounding of the
        unit, of the others beside it, and to the grid of the noise. Without noise nothing is promised, and nothing
        taken."""
        return ROOM if self.noise_multiplier else 0.0


class ExampleGate(Door):
    """The door with rows for units, or with all the rows of a person: clipped sums of gradients.

    ``engine`` computes them, ``members`` says which rows are whose. A model is tried on made-up rows, or on
    ``template``, before a private row is seen, unless its engine is ready. Batches are cut into ``shares``, for
    ``ranks`` to work on.
    """

    def __init__(
        self,
        engine: Engine,
        examples: Examples,
        members: Members,
        terms: Terms,
        streams: Streams,
        ledger: Ledger | None = None,
        template: tuple[Any, Any] | None = None,
        shares: int = 1,
        ranks: Ranks | None = None,
    ) -> None:
        super().__init__([slot.name for slot in engine.vector.slots], terms, streams, ledger, ranks)
        self.engine, self.unit, self._loss = engine, members.unit, 0.0
        self.shares = Shares(engine, examples, members, terms.clip, shares, ranks)
        if not engine.ready:
            self.shares.prepare(template)

    @property
    def inputs(self) -> Inputs | None:
        """How raw rows became its data, where that is known."""
        return self.shares.examples.inputs

    @property
    def theta(self) -> Tensor:
        """The live parameter vector of the model."""
        return self.engine.vector.theta

    def _sums_at(self, at: Tensor | None, vectors: int, numbers: int, step: int) -> tuple[Tensor, Tensor]:
        question = Question(self.clip_state, self.room, vectors, numbers, self._seeds(step))
        units = self.sampling.units(step, self.units, self.streams)
        with holding(self.theta, at):
            sums, totals, self._loss = self.shares.sums(units, question)
        return sums, totals

    def _unprotected_loss(self) -> float | None:
        return self._loss / self.expected_batch if self.engine.keep_loss else None

    def _seeds(self, step: int) -> tuple[int, ...]:
        """For dropout, and augmentation by a data set, from the run's own streams: a replay is the same, and so is a
        share whoever works on it. None where nothing is drawn."""
        if not self.shares.draws_randomness:
            return ()
        count = self.shares.count
        purposes = ["model"] if count == 1 else [f"model, share {share}" for share in range(count)]
        return tuple(self.streams.seed_for(purpose, step) for purpose in purposes)


@dataclass(frozen=True)
class Question:
    """What is asked about the units of a batch: sums of clipped vectors, and of scalar probes."""

    state: Mapping[str, Any]  # of the clipping policy
    room: float  # by which norms are raised, so that C bounds what is computed
    vectors: int
    numbers: int
    seeds: Sequence[int]  # of each share; none where nothing is drawn

    def packed(self) -> tuple[dict[str, Any], list[Tensor]]:
        """As a message, and tensors of the state."""
        tensors = {name: value for name, value in self.state.items() if isinstance(value, Tensor)}
        plain = {name: value for name, value in self.state.items() if name not in tensors}
        return {**vars(self), "state": plain, "tensors": list(tensors)}, list(tensors.values())

    @classmethod
    def unpacked(cls, message: Mapping[str, Any], tensors: Sequence[Tensor]) -> Question:
        state = {**message["state"], **dict(zip(message["tensors"], tensors, strict=True))}
        return cls(state, *(message[name] for name in ("room", "vectors", "numbers", "seeds")))


class Shares:
    """Exact sums over the units of a batch, which is cut into ``count`` shares: all that touches rows, and what cannot
    release anything. In a run of several processes each of them has one.

    What a share comes to does not depend on who works on it, and shares are added in their order, in doubles: so the
    sum is a function of the batch and of ``count``. Which unit is in which share follows from its place among those of
    the step, which is the same in neighbouring data sets. A unit is whole.
    """

    def __init__(
        self,
        engine: Engine,
        examples: Examples,
        members: Members,
        clip: ClippingPolicy,
        count: int = 1,
        ranks: Ranks | None = None,
    ) -> None:
        self.engine, self.count = engine, count
        self.examples, self.members, self.clip = examples, members, clip
        self._ranks = ranks or Ranks()

    @property
    def theta(self) -> Tensor:
        return self.engine.vector.theta

    @property
    def draws_randomness(self) -> bool:
        return self.engine.draws_randomness or self.examples.may_draw_randomness

    def sums(self, units: np.ndarray[Any, Any], question: Question) -> tuple[Tensor, Tensor, float]:
        """Sums of vectors [vectors, d], of scalar probes [numbers], and the loss, at the theta there is now."""
        if self.count == self._ranks.count == 1:
            return self._of_share(units, question, 0)
        message, tensors = question.packed()
        self._ranks.say(message, self.theta, torch.from_numpy(units), *tensors)
        size = 1 + question.numbers + question.vectors * len(self.theta)
        total = self._ranks.sum_in_order(self.count, size, partial(self._flat, units, question))
        loss, numbers, sums = total.to(self.theta.device).split(
            [1, question.numbers, size - 1 - question.numbers]
        )
        return sums.view(question.vectors, -1), numbers, float(loss)

    def answer(self, message: Mapping[str, Any], tensors: Sequence[Tensor]) -> list[Tensor]:
        """The vectors of the shares of this process, for rank 0."""
        at, units, *state = tensors
        self.theta.copy_(at)
        question = Question.unpacked(message, [each.to(self.theta.device) for each in state])
        mine = range(self._ranks.rank, self.count, self._ranks.count)
        return [self._flat(units.numpy(), question, share) for share in mine]

    def _flat(self, units: np.ndarray[Any, Any], question: Question, share: int) -> Tensor:
        start, stop = (len(units) * end // self.count for end in (share, share + 1))
        sums, numbers, loss = self._of_share(units[start:stop], question, share)
        return torch.cat([torch.tensor([loss]).double(), numbers.cpu(), sums.view(-1).cpu().double()])

    def _of_share(
        self, units: np.ndarray[Any, Any], question: Question, share: int
    ) -> tuple[Tensor, Tensor, float]:
        totals = torch.zeros(question.numbers, dtype=torch.float64, device=self.theta.device)
        state = dict(question.state)

        def weigh(norms: Norms) -> Tensor:
            norms = norms.raised(question.room)
            if question.numbers:
                totals.add_(self.clip.numbers(norms, state).sum(1))
            return self.clip.weights(norms, state)

        rows, ids = self.members.rows(units)
        chance = seeded(question.seeds[share]) if question.seeds else nullcontext()
        with chance, warnings.catch_warnings():
            if not self.engine.debug:
                warnings.simplefilter("ignore")  # what a model warns of may be a private row
            inputs, targets, there = self._readable(rows)
            sums, _ = self.engine.sums(
                inputs, targets, weigh, count=question.vectors, groups=ids, there=there
            )
        return sums, totals, self.engine.last_loss

    def _readable(self, rows: Tensor) -> tuple[Any, Any, Tensor | None]:
        """Inputs and targets, made-up rows in the place of those that cannot be read; and which can, if not all."""
        kept, inputs, targets = self.examples.take_readable(rows)
        if len(kept) == len(rows):
            return *self._on_device((inputs, targets)), None

        whole = self.examples.with_made_up((inputs, targets), kept, len(rows))
        there = torch.zeros(len(rows), dtype=torch.bool).index_fill_(0, kept, True)
        return *self._on_device(whole), there.to(self.theta.device)

    def _on_device(self, batch: Any) -> Any:
        device = self.theta.device
        return batch if device.type == "cpu" else tree_map(lambda x: x.to(device, non_blocking=True), batch)

    def prepare(self, template: tuple[Any, Any] | None) -> None:
        """Check the model on made-up rows, so that an unsuitable one is refused before a private row is seen.

        No private row is looked at for that, since whether a model runs on it, and how, would be visible.
        """
        rows = (
            [self.examples.template(5), self.examples.template(5, ones=True)]
            if template is None
            else [template]
        )
        problems = []
        for inputs, targets in rows:
            try:
                return self.engine.prepare(*self._on_device((inputs, targets)))
            except (Unsuitable, Warning):
                raise
            except Exception as problem:
                problems.append(problem)
        inputs, _ = self._on_device(rows[0])
        raise Unsuitable(
            where_scores_are(self.engine.model, inputs, problems[0])
            or f"the model fails on made-up rows ({type(problems[0]).__name__}: {problems[0]}): mend it, or if it "
            "cannot run on made-up values give five rows that are public, as template=(inputs, targets)"
        ) from problems[0]


class Gate(ExampleGate):
    """Clipped, noised, accounted gradients of ``loss(model(inputs), targets)`` over private ``data``.

    ``gate(theta)`` samples a batch, evaluates it at ``theta`` and returns a ``Released``; the model is left as
    it was. ``gate.theta`` is the live parameter vector: ``gate()`` evaluates there, without a copy.

    Guarantee: for one *unit*, a row or with ``groups`` all the rows of an id: it moves the clipped sum by at most C,
    the noise on the sum has standard deviation ``noise_multiplier * C``, and every call is charged before it answers.

    Args:
        model: Any ``nn.Module``; it is checked on made-up rows before a private one is seen.
        loss: ``loss(output, targets)``, one value for each example.
        data: A pair of tensors (inputs, targets), or a ``Dataset``.
        clip: A clipping policy such as ``Fixed(1.0)``.
        noise_multiplier: Noise over threshold; 0 is no noise, and epsilon infinite.
        sampling: How batches are formed, such as ``Poisson(0.01)``.
        noise: A mechanism; by default independent noise.
        steps: How many calls are planned, for mechanisms that are paid in advance.
        ledger: Where calls are charged; by default one of its own.
        groups: An id for each row.
        seed: For experiments: it voids the guarantee.
        secure: Refuse a seed.
        streams: Of random numbers, in the place of a seed.
        microbatch: How many rows are worked on at a time; by default measured.
        template: Five public rows, for a model that cannot run on made-up ones.
        show_unprotected: Give the loss of each batch too, which no guarantee covers.

    >>> data = torch.ones(8, 2), torch.zeros(8)
    >>> loss = lambda output, target: (output.squeeze(1) - target) ** 2
    >>> from sordino import Fixed, Poisson
    >>> gate = Gate(nn.Linear(2, 1), loss, data, clip=Fixed(1.0), noise_multiplier=1.1, sampling=Poisson(0.5))
    >>> gate().gradient.shape
    torch.Size([3])
    >>> gate.ledger.charges
    1
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss | Task,
        data: Any,
        *,
        clip: ClippingPolicy,
        noise_multiplier: float,
        sampling: Sampling,
        noise: Mechanism | None = None,
        steps: int | None = None,
        ledger: Ledger | None = None,
        groups: Tensor | None = None,
        seed: int | None = None,
        secure: bool = False,
        streams: Streams | None = None,
        microbatch: int | None = None,
        template: tuple[Any, Any] | None = None,
        show_unprotected: bool = False,
    ) -> None:
        engine = Engine(model, as_task(loss).per_example, microbatch=microbatch, keep_loss=show_unprotected)
        examples = as_examples(data)
        members = Members(len(examples), groups)
        terms = Terms(clip, noise or Gaussian(), sampling, members.count, steps, noise_multiplier, secure)
        streams = streams or (Streams.from_entropy() if seed is None else Streams.from_seed(seed))
        super().__init__(engine, examples, members, terms, streams, ledger, template)


class Members:
    """Rows of each unit: one row each, or all the rows of a group (``data/groups.py`` says what may be an id)."""

    def __init__(self, rows: int, groups: Any = None) -> None:
        self.count = rows
        self.groups = None if groups is None else units_of(groups, rows)  # the unit of each row
        if self.groups is not None:
            order = torch.argsort(self.groups, stable=True).numpy()
            sizes = torch.bincount(self.groups).numpy()
            self.count = len(sizes)
            self._members = np.split(order, np.cumsum(sizes)[:-1])

    @property
    def unit(self) -> str:
        return "example" if self.groups is None else "user"

    def fingerprint(self, key: bytes) -> str | None:
        """Of who has which rows, keyed, for checkpoints; None where each row is a unit."""
        groups = self.groups
        return None if groups is None else as_examples((groups, groups)).fingerprint(key)

    def rows(self, units: np.ndarray[Any, Any]) -> tuple[Tensor, Tensor | None]:
        """Row indices of these units, and for groups which unit each row belongs to."""
        if self.groups is None:
            return torch.from_numpy(units), None
        members = [self._members[u] for u in units]
        rows = np.concatenate(members) if members else np.zeros(0, dtype=np.int64)
        ids = np.repeat(units, [len(m) for m in members]) if members else np.zeros(0, dtype=np.int64)
        return torch.from_numpy(rows), torch.from_numpy(ids)
