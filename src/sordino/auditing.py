"""The gate put to the test: many short runs on two made-up neighbours, and what they prove about epsilon.

One unit, the canary, pulls as hard as it can in a direction of its own; in the neighbouring runs its contribution is
zeroed out, which is the relation we claim privacy for. All else is known to the adversary, who sees every release and
what goes with it (Nasr et al., 2023). Rows are made up, so it costs no privacy. What is audited is the real thing:
``Gate`` with its engine or ``UserGate``, called as the method calls it, and the claim is the price of what stands in
the ledger.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sordino.clipping import ClippingPolicy, Probe
from sordino.data import Poisson, Sampling, as_examples
from sordino.data.sampling import sampling_named
from sordino.federated.engines.gradients import threads
from sordino.federated.rounds import Broadcast, Finished
from sordino.federated.user_level import UserGate
from sordino.gate import Door, ExampleGate, Members, Released
from sordino.gradients import Engine
from sordino.methods import Method, method_named
from sordino.named import SAMPLINGS
from sordino.noise import GaussianNoise, Known, Streams
from sordino.privacy import Budget, price
from sordino.privacy.audit import (
    CONFIDENCES,
    LEAST_RUNS,
    Array,
    Audit,
    Scores,
    audit,
    gaussian_ratio,
    mixed_ratio,
    profile_of,
    ratios_by_step,
    sampled_ratio,
    whitened_ratio,
)
from sordino.ranks import refuse_several
from sordino.runs.progress import TrainingBar
from sordino.terms import Terms

if TYPE_CHECKING:
    from dp_accounting import DpEvent

UNITS = 16
CANARY = 0  # with batches in order it is in the first of every epoch, below as many nodes of a tree as a unit can be
_PARAMETERS = 4
_PULL = 1e4  # the canary's norm, in initial thresholds: always clipped
_OTHERS = 0.5  # the norm of the others, in initial thresholds: a threshold may move across it
_ROWS_OF_CANARY, _ROWS_OF_OTHERS = 3, 2  # with users for units
_LEAST_STD = 1e-6  # where noise is missing, ratios are large and still numbers


@dataclass(frozen=True)
class GateAudit:
    """What an audit of the gate found, and what exactly was audited."""

    method: str
    unit: str  # example or user
    federated: bool
    releases: int  # gate calls of a run
    noise_multiplier: float
    assumption: str  # about the sampling
    audit: Audit
    unpaid: str | None  # what is wrong with the ledger, if anything is
    seeded: bool

    @property
    def violated(self) -> bool:
        return self.unpaid is not None or self.audit.violated

    @property
    def finding(self) -> str:
        """The verdict in one line."""
        return self.unpaid or self.audit.finding


def audit_gate(
    method: Method | str = "auto",
    *,
    budget: Budget | None = None,
    noise_multiplier: float | None = None,
    delta: float | None = None,
    releases: int = 4,
    runs: int = 500,
    unit: str = "example",
    federated: bool = False,
    sampling: str | None = None,
    sampling_rate: float | None = None,
    seed: int | None = None,
    confidences: Sequence[float] = CONFIDENCES,
    progress: bool = False,
) -> GateAudit:
    """An empirical lower bound on the epsilon of ``releases`` gate calls of a method, beside what is claimed.

    ``runs`` runs are made with the canary and as many without it, each with randomness of its own. ``unit="user"``
    gives every unit several rows; ``federated=True`` audits the sums of clients' updates, one a round. ``sampling`` is
    ``poisson``, ``shuffled`` or ``fixed-order`` (for tree noise the default), at ``sampling_rate`` of the units.

    >>> found = audit_gate("dp-sgd", noise_multiplier=2.0, delta=1e-5, releases=1, runs=60, seed=1)
    >>> found.violated, found.audit.bounds[0].epsilon < found.audit.claimed.epsilon
    (False, True)
    """
    refuse_several("an audit")
    if isinstance(method, str):
        method = method_named(method)
    setting = _setting(
        method, budget, noise_multiplier, delta, releases, unit, federated, sampling, sampling_rate
    )
    if runs < LEAST_RUNS:
        raise ValueError(f"{runs} runs prove nothing: make at least {LEAST_RUNS} of each kind")
    setting.method.step.check(setting.noise_multiplier)
    sides = []
    # A model of four parameters leaves a second thread nothing to do but to wait.
    with threads(1), TrainingBar(2 * runs, progress) as bar:
        for present in (True, False):
            seen = _Seen()
            for run in range(runs):
                # Noise that the two sides shared would cancel, and every guess would be right.
                seed_of_run = None if seed is None else (seed << 41) + 2 * run + present
                _observe(setting, seed_of_run, present, seen)
                if run % 20 == 19 or run == runs - 1:
                    bar.update((1 - present) * runs + run + 1)
            sides.append(seen)
    with_canary, without = sides
    event = with_canary.event
    assert event is not None
    claimed = price(event, setting.delta)
    scores = Scores(_scores(setting, with_canary), _scores(setting, without))
    return GateAudit(
        setting.method.name,
        setting.unit,
        federated,
        setting.calls,
        setting.noise_multiplier,
        setting.sampling.assumption,
        audit(scores, claimed, profile_of(event, setting.delta), confidences),
        with_canary.unpaid or without.unpaid,
        seed is not None,
    )


@dataclass(frozen=True)
class _Setting:
    """All that is public about the runs of an audit."""

    method: Method
    steps: int
    terms: Terms
    delta: float
    unit: str
    federated: bool

    @property
    def calls(self) -> int:
        assert self.terms.steps is not None
        return self.terms.steps

    @property
    def sampling(self) -> Sampling:
        return self.terms.sampling

    @property
    def noise_multiplier(self) -> float:
        return self.terms.multiplier

    @property
    def clip(self) -> ClippingPolicy:
        return self.terms.clip

    @cached_property
    def scale(self) -> float:
        """The threshold that runs start from."""
        return self.clip.sensitivity(self.clip.start(["weight"]))

    @property
    def expected_batch(self) -> float:
        return self.sampling.expected_batch(UNITS)

    @cached_property
    def probes(self) -> tuple[Probe, ...]:
        return self.clip.probes(self.noise_multiplier, self.expected_batch)

    @cached_property
    def engine(self) -> Engine:
        """Learnt once: a gate for each run would otherwise look at the model each time."""
        with torch.random.fork_rng(devices=[]):
            model = nn.Linear(_PARAMETERS, 1, bias=False)
        return self._gate(Engine(model, _its_output), self.sampling, Streams.from_entropy()).engine

    @cached_property
    def groups(self) -> Tensor | None:
        if self.unit == "example":
            return None
        return torch.tensor(
            [CANARY] * _ROWS_OF_CANARY + [u for u in range(1, UNITS) for _ in range(_ROWS_OF_OTHERS)]
        )

    @cached_property
    def rows(self) -> tuple[Tensor, Tensor]:
        """Each row is its own gradient. Every row of the canary pulls with all its force, whoever is the unit."""
        ids = torch.arange(UNITS) if self.groups is None else self.groups
        sizes = torch.bincount(ids)[ids]
        inputs = torch.zeros(len(ids), _PARAMETERS)
        inputs[:, 0] = torch.where(ids == CANARY, _PULL * self.scale, 0.0)
        inputs[:, 1] = torch.where(ids == CANARY, 0.0, _OTHERS * self.scale / sizes)
        return inputs, torch.zeros(len(ids))

    def door(self, streams: Streams, present: bool) -> Door:
        sampling = self.sampling if present else zeroed_out(self.sampling, CANARY)
        if self.federated:
            terms = replace(self.terms, sampling=sampling)
            return UserGate(partial(_updates, self.rows[0]), ("update",), _PARAMETERS, terms, streams)
        return self._gate(self.engine, sampling, streams)

    def _gate(self, engine: Engine, sampling: Sampling, streams: Streams) -> ExampleGate:
        members = Members(len(self.rows[0]), self.groups)
        terms = replace(self.terms, sampling=sampling)
        return ExampleGate(engine, as_examples(self.rows), members, terms, streams)


def _setting(
    method: Method,
    budget: Budget | None,
    noise_multiplier: float | None,
    delta: float | None,
    releases: int,
    unit: str,
    federated: bool,
    sampling: str | None,
    sampling_rate: float | None,
) -> _Setting:
    if not method.private:
        raise ValueError(f"{method.name} trains without privacy and claims nothing: choose a private method")
    if releases < 1:
        raise ValueError(f"a run has at least 1 release, not {releases}")
    if unit not in ("example", "user"):
        raise ValueError(f"the unit is example or user, not {unit!r}")
    name = sampling or ("poisson" if method.noise.sampling == "poisson" else "fixed-order")
    # Of how many bands a plan has, one may be the best: then batches are those of independent noise.
    for independent in (method.noise.independent, True):
        how = _sampling(name, sampling_rate, independent)
        per_epoch = how.steps_per_epoch(UNITS)
        steps, calls = (releases, releases) if federated else method.step.steps(releases, per_epoch)
        noise = method.noise.planned(calls, per_epoch, Known(how, UNITS, budget, _PARAMETERS))
        if noise.independent == independent:
            break
    how = noise.dealt(how, UNITS)
    terms = Terms(method.clip, noise, how, UNITS, calls)
    terms, delta = terms.within(budget, noise_multiplier, delta, "auto")
    if not terms.multiplier or delta is None:
        raise ValueError("without noise nothing is claimed: give a noise multiplier above 0 and a delta")
    return _Setting(
        replace(method, noise=noise),
        steps,
        terms,
        delta,
        "user" if federated else unit,
        federated,
    )


def _sampling(name: str, rate: float | None, independent: bool) -> Sampling:
    if SAMPLINGS.entries[SAMPLINGS.key(name)].facts.get("no guarantee"):
        raise ValueError(
            f"{name} is priced without a guarantee, so there is nothing to audit: choose another"
        )
    if rate is None:
        rate = 1.0 if name == "poisson" and independent else 0.25
    if not 0 < rate <= 1:
        raise ValueError(f"the sampling rate must be in (0, 1], not {rate:g}")
    if name == "poisson":
        return Poisson(rate)
    return sampling_named(name, max(1, round(rate * UNITS)), UNITS)


def zeroed_out(sampling: Sampling, these: int | npt.NDArray[np.int64]) -> Sampling:
    """The same sampling, in which the contribution of some units is nothing: drawn as ever, and then left out.

    A row of zeros would not do: it still counts as one that is not clipped.
    """

    def units(step: int, n: int, source: Any) -> npt.NDArray[np.int64]:
        drawn = sampling.units(step, n, source)
        left: npt.NDArray[np.int64] = drawn[~np.isin(drawn, these)]
        return left

    other = copy.copy(sampling)
    object.__setattr__(other, "units", units)
    return other


# One run ----------------------------------------------------------------------------------------------------


@dataclass
class _Seen:
    """What the adversary saw of the runs of one side: a row for each run, a column for each release."""

    canary: list[list[float]] = field(default_factory=list)  # the sums, in the canary's direction
    others: list[list[float]] = field(default_factory=list)  # and in that of the others
    stds: list[list[float]] = field(default_factory=list)  # of the sums, as released
    thresholds: list[list[float]] = field(default_factory=list)
    probes: list[list[list[float]]] = field(default_factory=list)  # and then one for each probe
    turns: list[list[bool]] = field(default_factory=list)  # where batches have an order: was it the canary's?
    event: DpEvent | None = None  # what the ledger holds after a run
    unpaid: str | None = None


def _observe(setting: _Setting, seed: int | None, present: bool, seen: _Seen) -> None:
    streams = Streams.from_entropy() if seed is None else Streams.from_seed(seed)
    door = setting.door(streams, present)
    batch = door.expected_batch
    canary, others, stds, thresholds, probes = [], [], [], [], []

    def note(released: Released) -> Released:
        one, two = released.gradient[:2].tolist()
        canary.append(one * batch)
        others.append(two * batch)
        stds.append(released.noise_std * batch)
        thresholds.append(released.threshold)
        answers = released.probes
        probes.append(
            [float(answers[p.name][0] if p.vector else answers[p.name]) * batch for p in setting.probes]
        )
        return released

    if setting.federated:
        for _ in range(setting.calls):
            note(door())
    else:
        assert isinstance(door, ExampleGate)
        _follow(setting, door, note)
    seen.canary.append(canary)
    seen.others.append(others)
    seen.stds.append(stds)
    seen.thresholds.append(thresholds)
    seen.probes.append(probes)
    if setting.sampling.coin is None:
        turns = [CANARY in setting.sampling.units(step, UNITS, streams) for step in range(setting.calls)]
        seen.turns.append(turns)
    _check_paid(door, setting.calls, seen)


def _follow(setting: _Setting, gate: ExampleGate, note: Any) -> None:
    """The steps of the method, as in training: how often it asks, and when the threshold moves, is its own matter."""
    method, theta = setting.method, gate.theta.zero_()
    plan = gate.terms.numbers(gate.engine.vector, setting.steps)
    step_state, rate_state = method.step.start(theta, plan), method.rate.start(plan, theta)
    for step in range(setting.steps):
        rate = partial(method.rate.rate, step, rate_state)
        limit = method.rate.limit(rate_state)
        result = method.step.step(lambda at: note(gate(at, adapt=False)), theta, rate, step_state, limit)
        rate_state = method.rate.update(rate_state, result, theta)
        gate.adapt(*result.gradients)


def _check_paid(door: Door, calls: int, seen: _Seen) -> None:
    event = door.ledger.event
    if seen.event is None:
        seen.event = event
    if seen.unpaid is None and event != door.plan(calls):
        seen.unpaid = (
            f"the ledger does not hold the price of {calls} releases: {event} and not {door.plan(calls)}"
        )


def _its_output(output: Tensor, _: Tensor) -> Tensor:
    return output.squeeze(1)  # linear in the parameters, so that a row is its own gradient, wherever theta is


def _updates(rows: Tensor, clients: npt.NDArray[np.int64], _: Broadcast) -> Iterator[Finished]:
    nothing = torch.zeros(len(clients), 1)
    sent = rows[torch.from_numpy(clients)]
    yield Finished(tuple(clients.tolist()), {"update": sent}, {}, nothing, nothing)


# Scores -----------------------------------------------------------------------------------------------------


def _scores(setting: _Setting, seen: _Seen) -> Array:
    """For each run the log-likelihood ratio of all that was seen; beside it that of each part, and the others' sum.

    The ratio is the best guess if all is as claimed. The parts are there for what is not.
    """
    thresholds = np.array(seen.thresholds)
    pull = _PULL * setting.scale
    stds = np.maximum(np.array(seen.stds), _LEAST_STD * setting.scale)
    probes = np.array(seen.probes)
    independent, coin = setting.method.noise.independent, setting.sampling.coin
    ratios = [] if independent or coin is not None else [_correlated_ratios(setting, seen)]
    parts = [
        _probe_ratio(setting, probe, probes[..., number], thresholds)
        for number, probe in enumerate(setting.probes)
    ]
    if independent:
        parts.append(gaussian_ratio(np.array(seen.canary), np.minimum(thresholds, pull), stds))
    elif coin is not None:
        parts.append(_ratios_of_turns(setting, seen))
    ratios += [_over_steps(setting, seen, part) for part in parts]
    together = np.sum(ratios, axis=0)
    if coin is not None:  # one for all that a release shows
        together = _over_steps(setting, seen, np.sum(parts, axis=0))
    others = (np.array(seen.others) / stds).sum(1)
    return np.column_stack([together, *ratios, others])


def _over_steps(setting: _Setting, seen: _Seen, ratios: Array) -> Array:
    """The ratio of a run from those of its releases, for a canary whose turns are known or left to chance."""
    coin = setting.sampling.coin
    if coin is not None:
        turns = [setting.sampling.turns(step, np.array([CANARY])) for step in range(setting.calls)]
        return np.asarray((sampled_ratio(ratios, coin) * np.stack(turns, axis=1)).sum(1))
    return np.asarray((ratios * np.array(seen.turns)).sum(1))


def _probe_ratio(setting: _Setting, probe: Probe, seen: Array, thresholds: Array) -> Array:
    std = np.full_like(seen, max(probe.sensitivity * probe.multiplier, _LEAST_STD))
    clipped = thresholds < _PULL * setting.scale
    # By how much a unit moves it is not asked of the probe, whose word for it is on trial.
    if probe.vector:  # q: the direction of whoever is clipped
        return gaussian_ratio(seen, np.where(clipped, 1.0, 0.0), std)
    # A count, centred: one more within, or one less. The others of the batch count too, however many there are.
    moved = np.where(clipped, -0.5, 0.5)
    each = np.where(thresholds < _OTHERS * setting.scale, -0.5, 0.5)
    coin = setting.sampling.coin
    if coin is not None:
        others = int(setting.sampling.turns(CANARY, np.arange(UNITS)).sum()) - 1  # whose turn is the canary's
        many = np.arange(others + 1)
        weights = _binomial(others, coin)
    else:
        many, weights = np.array([int(setting.expected_batch) - 1]), np.ones(1)
    return mixed_ratio(seen, moved, std, each[..., None] * many, weights)


def _binomial(trials: int, rate: float) -> Array:
    return np.array([math.comb(trials, k) * rate**k * (1 - rate) ** (trials - k) for k in range(trials + 1)])


def _ratios_of_turns(setting: _Setting, seen: _Seen) -> Array:
    """For each run and step, correlated releases for a canary that takes part in that one, whitened: they add up for a
    canary whose parts do not overlap then, each with a coin of its own."""
    pull = _PULL * setting.scale
    matrices: dict[tuple[float, ...], Array] = {}
    found = []
    for canary, thresholds in zip(seen.canary, seen.thresholds, strict=True):
        key = tuple(thresholds)
        if key not in matrices:
            if len(matrices) > 100:
                matrices.clear()
            matrices[key] = noise_matrix(setting.terms, key)
        moved = np.minimum(thresholds, pull)
        found.append(ratios_by_step(np.array(canary)[:, None], moved, matrices[key])[:, 0])
    return np.array(found)


def _correlated_ratios(setting: _Setting, seen: _Seen) -> Array:
    """Releases whose noise is correlated: whitened by the noise that these thresholds make."""
    pull = _PULL * setting.scale
    matrices: dict[tuple[float, ...], Array] = {}
    found = []
    for canary, thresholds, turns in zip(seen.canary, seen.thresholds, seen.turns, strict=True):
        key = tuple(thresholds)
        if key not in matrices:
            if len(matrices) > 100:
                matrices.clear()
            matrices[key] = noise_matrix(setting.terms, key)
        moved = np.minimum(thresholds, pull) * np.array(turns)
        found.append(float(whitened_ratio(np.array(canary), moved, matrices[key])))
    return np.array(found)


def noise_matrix(terms: Terms, thresholds: Sequence[float]) -> Array:
    """How the noise of each release [T] is made of independent normals [K]: asked of the mechanism itself."""
    releases, multiplier = terms.releases, terms.own_multiplier
    state, recorder = releases.start(), _Recorder(len(thresholds))
    rows = []
    for step, threshold in enumerate(thresholds):
        row = torch.zeros(recorder.room, dtype=torch.float64)
        releases.add_(row, recorder, multiplier, threshold, step, state)
        rows.append(row.numpy().copy())
    return np.stack(rows)


class _Recorder(GaussianNoise):
    """Draws nothing: every normal that would be drawn has a coordinate, and that is where its size is noted."""

    def __init__(self, steps: int) -> None:
        self.room = 4 * steps + 4
        self._places: dict[tuple[str, int], int] = {}

    def add_(self, vector: Tensor, std: float, purpose: str, step: int, grid: float | None = None) -> Tensor:
        place = self._places.setdefault((purpose, step), len(self._places))
        vector[place] += std
        return vector

    def accumulate_(self, vector: Tensor, std: float, purpose: str, step: int) -> None:
        self.add_(vector, std, purpose, step)
