"""`train`: from private rows and a budget to a plan, and from a plan to a model. Nothing but orchestration."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from torch import Tensor, nn

from sordino.data import Examples, as_examples
from sordino.data.sampling import sampling_named
from sordino.defaults import default_batch_size, default_epochs
from sordino.descent import Descent, DescentPlan
from sordino.gate import ExampleGate, Members, Shares
from sordino.gradients import Engine, Loss, refuse
from sordino.methods import Method, method_named
from sordino.noise import Known, Streams
from sordino.privacy import Budget, approximate, compose
from sordino.ranks import Ranks, gathered
from sordino.registry import is_number, is_whole, said
from sordino.runs import Run
from sordino.runs.conductor import conduct
from sordino.runs.noisy_metrics import NoisyMetrics
from sordino.runs.options import Options, RunOptions, taken
from sordino.runs.recording import Recording, recorded
from sordino.runs.resume import behaviour
from sordino.runs.spending import Spending
from sordino.standardise.choice import Standardising, check_choice, standardising
from sordino.standardise.folding import weighs_each_number
from sordino.standardise.standardiser import Standardiser
from sordino.tasks import Task, as_task, evaluate
from sordino.terms import Terms, check_besides
from sordino.together import ended, follow, lead, tell_moments
from sordino.warn import warn

if TYPE_CHECKING:
    from dp_accounting import DpEvent

_MANY = 1_000_000  # units, where nobody has counted them yet
_LOGGED_STEPS = 40  # pricing a step with PLD takes a twentieth of a second


def train(
    model: nn.Module,
    loss: Loss | Task,
    data: Any,
    *,
    method: Method | str = "auto",
    epochs: float | None = None,
    batch_size: int | None = None,
    sampling: str | None = None,
    groups: Any = None,
    standardise: Any = None,
    template: tuple[Any, Any] | None = None,
    public_loss: Callable[[Tensor], Tensor] | None = None,
    microbatch: int | None = None,
    shares: int | None = None,
    **options: Unpack[RunOptions],
) -> Run:
    """Train ``model`` privately on ``data`` and return it with its guarantee.

    The guarantee: what comes out, and every release on the way, is (epsilon, delta)-differentially private for one
    unit, whose contribution may be zeroed out; certificate.json says under which assumptions. Metrics on held-out rows
    are not covered, unless a ``metric_epsilon`` pays for them.

    Args:
        model: any ``nn.Module``. It is checked on made-up rows before a private one is seen.
        loss: ``loss(output, target)``, one value for each example, or a `Task`.
        data: a pair of tensors (inputs, targets), or a ``Dataset``.
        method: a name, or a `Method` such as ``adadp()``. The default tunes itself.
        epochs: passes over the data, expected; by default they follow from the number of units.
        batch_size: expected; by default it follows from the number of units.
        sampling: ``poisson`` (the default; under banded noise, which the default method has, of groups of units that
            take turns), ``shuffled`` or ``fixed-order``. Tree noise takes ``shuffled``, which
            it then is when a tree begins, or ``fixed-order``.
        groups: an id for each row: then the unit of privacy is all the rows of an id.
        standardise: ``private`` estimates offset and deviation of every input for a small part of the budget (of images
            of every channel, or where the first layer is a linear one of every pixel), ``public:MEAN,STD`` or a pair
            (mean, std) of numbers or tensors says them, ``none`` leaves inputs as they are. By default the default
            method standardises privately where it has a budget and inputs are floating-point numbers in rows of
            features, or images. It becomes part of the model that comes out, which takes rows as they were given here.
        template: five public rows (inputs, targets), for a model that cannot run on made-up ones.
        public_loss: a term of the loss that is a function of theta alone: a prior, weight decay.
        microbatch: how many rows are worked on at a time; by default measured.
        shares: into how many parts a batch is cut, for as many processes to work on; by default their number, which is
            that of the initialised ``torch.distributed`` group. The sum depends on it in its last digits, and on the
            number of processes not at all.
        budget: `Budget` (epsilon, delta), to which the noise is calibrated, or a pair of numbers.
        noise_multiplier: in its place, with a ``delta``; 0 is no noise, and epsilon infinite. Methods without privacy
            take neither.
        delta: at which a noise multiplier is priced.
        accountant: ``auto`` (the tighter of ``rdp`` and ``pld``), or one of them.
        seed: for experiments: it voids the guarantee.
        secure: refuse a seed.
        test: held-out rows.
        evaluations: how often they are looked at.
        callbacks: functions of a `Seen`, called after every step; what they return goes into the history.
        device: where to train; the model is moved there, and batches follow. Only the CPU is tested.
        show_unprotected: show the training loss, which no guarantee covers.
        out: the directory the run writes.
        resume: go on, bit for bit, with the run in it.
        keep_checkpoint: keep checkpoint/, which holds the key of the noise.
        progress: a live line on stderr; by default if that is a terminal.
        data_name: under which what is spent is counted: what its owner calls the data.
        ledger: a file in which everything spent on the data is counted, a `LedgerFile`, or an `Account`; by default the
            file that ``SORDINO_LEDGER`` names. ``False`` for none.
        assumptions: sentences that go into the certificate.
        rationale: why this epsilon, delta and unit, for the certificate.
        signing_key: a PEM file with the Ed25519 key that signs it; by default the one that ``SORDINO_SIGNING_KEY``
            names.
        details: plain data that goes into run.json.
        inputs: how raw rows became ``data``; kept in the run, so that the trained model can be given raw rows. By
            default what the rows of a table say themselves.
        before: what was released on the same budget before the run, a `Before`: the noise makes room for it.
        metric_epsilon: the part of the budget for noisy counts of the held-out rows, which are then looked at once, at
            the end, and covered.

    >>> import torch
    >>> rows = torch.randn(60, 4), torch.randint(2, (60,))
    >>> run = train(nn.Linear(4, 2), nn.CrossEntropyLoss(reduction="none"), rows, budget=(3, 1e-3), epochs=2)
    >>> run.epsilon <= 3, sorted(run.metrics)
    (True, ['covered'])
    """
    with gathered() as ranks:
        (asked,) = taken(options, train, Options)
        task, examples = as_task(loss), as_examples(data)
        asked = asked.with_inputs_of(examples)
        refuse(model)  # before any data is touched
        method = method_named(method) if isinstance(method, str) else method
        if not isinstance(method, Method):
            raise ValueError(f"method must be a name or a Method such as adadp(), not {said(method)}")
        members = Members(len(examples), groups)
        how = _standardising(standardise, model, examples, members, method, asked)
        given, (examples, asked) = examples, _behind(how, examples, asked)
        if ranks.rank > 0:
            return _followed(model, task, examples, members, method, asked, template, ranks, how)
        with recorded(asked, model) as recording:
            microbatch = recording.chosen("microbatch", microbatch)
            engine = Engine(model, task.per_example, microbatch=microbatch, keep_loss=asked.show_unprotected)
            cut = _shares(shares, recording, ranks)
            plan = planned_descent(
                method, members, epochs, batch_size, sampling, recording, len(engine.vector), cut, how
            )
            streams = recording.streams
            gate = ExampleGate(
                engine, examples, members, plan.terms, streams, template=template, shares=cut, ranks=ranks
            )
            lead(ranks, gate.shares, partial(_in_common, gate.shares, method))
            noisy = noisy_metrics(model, task, plan, asked)
            descent = Descent(
                gate,
                plan,
                Spending(plan.terms, plan.delta, asked.accountant, *_besides(asked), _first(how)),
                pins=partial(pins_of, examples, members, engine),
                measure=None if asked.test is None or noisy else partial(evaluate, model, task, asked.test),
                public_loss=public_loss,
                counts=None if noisy is None else noisy.release,
                standardiser=_standardiser(how, given, members, streams),
                placed=None if how is None else partial(tell_moments, ranks, how.place),
            )
            return ended(ranks, gate.shares, conduct(descent, plan, recording))


def _followed(
    model: nn.Module,
    task: Task,
    examples: Examples,
    members: Members,
    method: Method,
    asked: Options,
    template: tuple[Any, Any] | None,
    ranks: Ranks,
    how: Standardising | None = None,
) -> Run:
    """The part of a process that works for rank 0: it releases, writes and shows nothing."""
    asked.place(model)
    engine = Engine(model, task.per_example, keep_loss=asked.show_unprotected)
    shares = Shares(engine, examples, members, method.clip, ranks=ranks)
    place = None if how is None else how.place
    return follow(ranks, shares, partial(_in_common, shares, method), template, place)


def _standardising(
    given: Any, model: nn.Module, examples: Examples, members: Members, method: Method, asked: Options
) -> Standardising | None:
    budget = asked.budget if method.private else None
    besides = [each for each in _besides(asked) if each is not None]
    beside = compose(besides) if besides else None
    return standardising(
        given,
        examples,
        members.count,
        budget,
        asked.accountant,
        beside,
        by_default=method.standardises,
        each_number=partial(weighs_each_number, model),
    )


def _behind(how: Standardising | None, examples: Examples, asked: Options) -> tuple[Examples, Options]:
    """Rows as the model sees them, those to train on and those held out."""
    if how is None:
        return examples, asked
    return how.behind(examples), asked if asked.test is None else replace(asked, test=how.behind(asked.test))


def _first(how: Standardising | None) -> DpEvent | None:
    return None if how is None else how.event


def _standardiser(
    how: Standardising | None, examples: Examples, members: Members, streams: Streams
) -> Standardiser | None:
    return None if how is None or how.plan is None else Standardiser(how.plan, examples, members, streams)


def _in_common(shares: Shares, method: Method, key: bytes) -> Mapping[str, Any]:
    """What decides about the sums of a share, and must be the same in every process."""
    return {
        **pins_of(shares.examples, shares.members, shares.engine, key),
        "method": method.describe(),
        "show_unprotected": shares.engine.keep_loss,
    }


def _shares(given: int | None, recording: Recording, ranks: Ranks) -> int:
    """As told, else as the interrupted run had it, else as many as there are processes."""
    if given is not None:
        if not is_whole(given) or given < 1:
            raise ValueError(f"shares is a whole number of parts of a batch, at least 1, not {said(given)}")
        return int(given)
    return ranks.count if recording.saved is None else recording.saved.plan.get("shares", 1)


def check_call(
    model: nn.Module,
    method: Method,
    epochs: float | None,
    batch_size: int | None,
    sampling: str | None,
    standardise: Any = None,
    **options: Unpack[RunOptions],
) -> None:
    """Refuse what `train` would refuse whatever the rows are, and how many: for those who pay for something before it.

    No row is read, and nothing is trained or written. ``model`` may be one of the same kind.
    """
    (asked,) = taken(options, train, Options)
    asked.check_device()
    check_choice(standardise)
    refuse(model)
    units = max(_MANY, batch_size or 1)
    outlined(method, units, epochs, batch_size, sampling, secure=asked.secure)
    besides = [each for each in _besides(asked) if each is not None]
    if besides and asked.budget is not None:
        check_besides(compose(besides), asked.budget, asked.accountant)


def planned_descent(
    method: Method,
    members: Members,
    epochs: float | None,
    batch_size: int | None,
    sampling: str | None,
    recording: Recording,
    parameters: int,
    shares: int = 1,
    how: Standardising | None = None,
) -> DescentPlan:
    """What is laid down from public numbers: steps, batches, and the noise they need."""
    units, asked = members.count, recording.asked
    outline = outlined(
        method,
        units,
        epochs,
        batch_size,
        sampling,
        secure=asked.secure,
        budget=asked.budget,
        parameters=parameters,
    )
    method = outline.method
    terms, delta = _noised(method, outline.terms, asked, _first(how))
    method.step.check(terms.multiplier)
    if delta is not None:
        warn_of_delta(delta, units)
    terms.warn_if_alone()
    return DescentPlan(
        data=asked.data_name,
        unit=members.unit,
        terms=terms,
        delta=delta,
        steps=outline.steps,
        lines=_LOGGED_STEPS,
        parameters=parameters,
        seeded=recording.streams.seeded,
        assumptions=_assumptions(terms, members.unit, asked, shares, how),
        unprotected=_unprotected(asked),
        details=asked.details or {},
        inputs=asked.inputs,
        before=asked.before,
        metric_epsilon=asked.metric_epsilon,
        standardise=how,
        method=method,
        epochs=outline.epochs,
        batch_size=outline.batch_size,
        sampling=outline.sampling,
        shares=shares,
    )


@dataclass(frozen=True)
class Outline:
    """A run before its noise: what follows from the method and from public numbers."""

    method: Method
    terms: Terms
    steps: int
    epochs: float
    batch_size: int
    sampling: str


def outlined(
    method: Method,
    units: int,
    epochs: float | None,
    batch_size: int | None,
    sampling: str | None,
    *,
    secure: bool = False,
    budget: Budget | None = None,
    parameters: int | None = None,
) -> Outline:
    """Steps and batches of a run on so many units; what was left open is chosen by public numbers."""
    batch_size = default_batch_size(units) if batch_size is None else batch_size
    epochs = default_epochs(units) if epochs is None else epochs
    sampling = sampling or method.noise.sampling
    how = sampling_named(sampling, batch_size, units)
    if not is_number(epochs) or not epochs > 0 or not math.isfinite(epochs):
        raise ValueError(f"epochs must be a positive number, not {said(epochs)}")
    per_epoch = how.steps_per_epoch(units)
    steps, batches = method.step.steps(max(1, round(epochs * per_epoch)), per_epoch)
    noise = method.noise.planned(batches, per_epoch, Known(how, units, budget, parameters))
    terms = Terms(method.clip, noise, noise.dealt(how, units), units, batches, secure=secure)
    return Outline(replace(method, noise=noise), terms, steps, epochs, batch_size, sampling)


def warn_of_delta(delta: float, units: int) -> None:
    if delta >= 1 / units:
        warn(f"delta {delta:g} is not below 1/n = {1 / units:.3g}: it allows publishing somebody whole")


def _noised(
    method: Method, terms: Terms, asked: Options, first: DpEvent | None
) -> tuple[Terms, float | None]:
    """The terms with their noise, and delta, from whatever the user gave."""
    besides = [each for each in (*_besides(asked), first) if each is not None]
    if besides and not (method.private and (asked.budget or asked.noise_multiplier)):
        raise ValueError(
            "bounds or metrics that are paid for need a private run: give it a budget, or leave them out"
        )
    if method.private:
        event = compose(besides) if besides else None
        return terms.within(asked.budget, asked.noise_multiplier, asked.delta, asked.accountant, event)
    if asked.budget is not None or asked.noise_multiplier:
        raise ValueError(
            f"{method.name} trains without privacy: leave out the budget, or choose a private method"
        )
    return terms, None


def _besides(asked: Options) -> tuple[DpEvent | None, DpEvent | None]:
    """What is released on the same budget before the training, and after it."""
    before = None if asked.before is None else asked.before.event
    return before, None if asked.metric_epsilon is None else approximate(asked.metric_epsilon)


def noisy_metrics(model: nn.Module, task: Task, plan: DescentPlan, asked: Options) -> NoisyMetrics | None:
    if asked.metric_epsilon is None:
        return None
    target = None if asked.inputs is None else asked.inputs.target
    return NoisyMetrics(model, task, asked.test, asked.metric_epsilon, plan.unit, target)


def pins_of(examples: Examples, members: Members, engine: Engine, key: bytes) -> Mapping[str, Any]:
    return {
        "rows of the data": examples.fingerprint(key),
        "groups": members.fingerprint(key),
        "model or loss": behaviour(engine.model, engine.vector.theta, engine.loss, examples),
    }


def _assumptions(
    terms: Terms, unit: str, asked: Options, shares: int, how: Standardising | None
) -> tuple[str, ...]:
    """What a reader of the guarantee must believe."""
    facts = [terms.sampling.assumption]
    never = terms.sampling.never_drawn(terms.units)
    if never:
        facts.append(
            f"{never} of {terms.units} {unit}s are in no batch, since the batches of an epoch are whole and in one "
            "order"
        )
    if terms.explanation:
        facts.append(terms.explanation)
    if how is not None:
        facts.append(how.words)
    if shares > 1:
        facts.append(
            f"batches were cut into {shares} shares for several processes of the owner's, and what those sent each "
            "other (which units were in a batch, and exact sums) was seen by nobody else"
        )
    facts += [
        *asked.assumptions,
        *([] if asked.inputs is None else [f"public: {', '.join(asked.inputs.public)}"]),
        "shapes, number of rows and number of classes of the data are public",
        "the model computes the loss of each example without regard to the others (checked on made-up rows)",
    ]
    return tuple(facts)


def _unprotected(asked: Options) -> tuple[str, ...]:
    """What the guarantee does not cover."""
    held_out = "metrics on held-out rows, which are the data of somebody too"
    loss = "the training loss, which was shown on request"
    of_inputs = () if asked.inputs is None else asked.inputs.unprotected
    looks = asked.test is not None and asked.metric_epsilon is None
    shown = (*([held_out] if looks else []), *([loss] if asked.show_unprotected else []))
    return (*of_inputs, *shown)
