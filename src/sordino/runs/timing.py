"""How fast a run goes, measured once on made-up rows, and what it makes of the time it is given."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from sordino.data import Examples
from sordino.data.chance import seeded
from sordino.data.tree import tree_leaves
from sordino.defaults import Pace, Speed
from sordino.gradients import Engine, Norms
from sordino.noise import GaussianNoise, Streams
from sordino.terms import Terms
from sordino.warn import warn

_CALLS = 100  # at most, and so many seconds:
_FOR_A_HINT, _FOR_A_PLAN = 0.1, 1.0
_BYTES = 64 << 20  # of made-up rows


@dataclass(frozen=True)
class Timing:
    """The default pace, and the one that is taken where minutes are ``asked`` for. Nothing of it follows private rows:
    a plan is made of it."""

    usual: Pace
    speed: Speed
    asked: float | None = None

    @cached_property
    def pace(self) -> Pace:
        return self.usual if self.asked is None else self.usual.within(self.asked, self.speed)

    def describe(self) -> dict[str, Any]:
        """As plain data, for run.json: coarse, since it is of the machine."""
        enough, most = self.usual.enough(self.speed), self.usual.largest
        return {
            "covered": False,
            "expected_minutes": _rounded(self.expected),
            "times_the_default": _rounded(self.pace.gradients / self.usual.gradients),
            "most": {"minutes": enough, "times_the_default": _rounded(most.gradients / self.usual.gradients)},
        }

    @property
    def expected(self) -> float:
        return self.speed.minutes(self.pace.batches, self.pace.batch_size)

    def warn(self) -> None:
        if self.asked is not None and self.expected > self.asked:
            warn(
                f"one pass over the data takes about {self.expected:.2g} minutes, and minutes is {self.asked:g}: it "
                "will take longer than asked"
            )


def measured_speed(
    engine: Engine, examples: Examples, terms: Terms, rows_per_unit: float, noisy: bool, planned: bool
) -> Speed:
    """Seconds of a gradient and of a step in a run of these terms, by a prepared engine on made-up rows; longer looked
    at where a plan is made of them."""
    seconds = _FOR_A_PLAN if planned else _FOR_A_HINT
    clip, batch = terms.clip, max(1, round(rows_per_unit * terms.expected_batch))
    state = clip.start([slot.name for slot in engine.vector.slots])
    vectors = 1 + sum(probe.vector for probe in clip.probes(float(noisy), terms.expected_batch))
    size = sum(leaf[:1].numel() * leaf.element_size() for leaf in tree_leaves(engine.made_up(1)))
    rows = max(1, min(batch, engine.microbatch or 1, _BYTES // max(1, size)))
    inputs, targets = engine.made_up(rows)
    device = engine.vector.theta.device
    reading = examples.reading(rows)

    def weigh(norms: Norms) -> Tensor:
        return clip.weights(norms, state)

    def gradients(_: int) -> None:
        reading()
        engine.sums(inputs, targets, weigh, count=vectors)

    with seeded(0), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as at every step: what there is to say of the model was said
        per_row = _mean(gradients, _CALLS, seconds, device) / rows
    step, most = _step(engine, terms, vectors, noisy), min(_CALLS, (terms.steps or _CALLS) - 1)
    return Speed(per_row * rows_per_unit, _mean(step, most, seconds, device))


def _step(engine: Engine, terms: Terms, vectors: int, noisy: bool) -> Callable[[int], None]:
    """What a step does besides its gradients, with randomness of its own that nobody keeps."""
    streams = Streams.from_entropy()
    draw, noise = GaussianNoise(streams), terms.releases.start()
    sums = torch.zeros(vectors, len(engine.vector), device=engine.vector.theta.device)

    def step(number: int) -> None:
        terms.sampling.units(number, terms.units, streams)
        if noisy:
            terms.releases.add_(sums[0], draw, 1.0, 1.0, number, noise)
            for further in sums[1:]:
                draw.add_(further, 1.0, "noise:probe", number)

    return step


def _mean(act: Callable[[int], None], most: int, seconds: float, device: torch.device) -> float:
    """What a call takes on a machine that is as busy as it is, the mean of ``most`` at most; the first warms up."""
    act(0)
    begun, calls = time.perf_counter(), 0
    while calls == 0 or (calls < most and time.perf_counter() - begun < seconds):
        calls += 1
        act(calls)
        if device.type == "cuda":
            torch.cuda.synchronize()
    return (time.perf_counter() - begun) / calls


def _rounded(number: float) -> float:
    return float(f"{number:.2g}")
