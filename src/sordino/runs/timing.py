"""How fast a run goes, measured once on made-up rows, and what it makes of the time it is given."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from statistics import median
from typing import Any

import torch
from torch import Tensor

from sordino.data.chance import seeded
from sordino.data.tree import tree_leaves, tree_map
from sordino.defaults import Pace, Speed
from sordino.gradients import Engine, Norms
from sordino.noise import GaussianNoise, Streams
from sordino.terms import Terms
from sordino.warn import warn

_CALLS, _SECONDS = 10, 0.5  # of a measurement, at most
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


def measured_speed(engine: Engine, terms: Terms, rows_per_unit: float, private: bool) -> Speed:
    """Seconds of a gradient and of a step in a run of these terms, by a prepared engine on made-up rows."""
    clip, batch = terms.clip, max(1, round(rows_per_unit * terms.expected_batch))
    state = clip.start([slot.name for slot in engine.vector.slots])
    vectors = 1 + sum(probe.vector for probe in clip.probes(float(private), terms.expected_batch))
    size = sum(leaf[:1].numel() * leaf.element_size() for leaf in tree_leaves(engine.made_up(1)))
    rows = max(1, min(batch, engine.microbatch or 1, _BYTES // max(1, size)))
    inputs, targets = engine.made_up(rows)
    device = engine.vector.theta.device
    order = torch.arange(rows, device=device).flip(0)

    def weigh(norms: Norms) -> Tensor:
        return clip.weights(norms, state)

    def read(leaf: Tensor) -> Tensor:
        return leaf.index_select(0, order)

    def gradients(_: int) -> None:
        engine.sums(tree_map(read, inputs), tree_map(read, targets), weigh, count=vectors)

    with seeded(0):
        per_row = _seconds(gradients, device) / rows
    return Speed(per_row * rows_per_unit, _seconds(_step(engine, terms, vectors, private), device))


def _step(engine: Engine, terms: Terms, vectors: int, private: bool) -> Callable[[int], None]:
    """What a step does besides its gradients, with randomness of its own that nobody keeps."""
    streams = Streams.from_entropy()
    draw, noise = GaussianNoise(streams), terms.releases.start()
    sums = torch.zeros(vectors, len(engine.vector), device=engine.vector.theta.device)

    def step(number: int) -> None:
        terms.sampling.units(number, terms.units, streams)
        if private:
            terms.releases.add_(sums[0], draw, 1.0, 1.0, number, noise)
            for further in sums[1:]:
                draw.add_(further, 1.0, "noise:probe", number)

    return step


def _seconds(act: Callable[[int], None], device: torch.device) -> float:
    """What a call takes, on a machine that is as busy as it is; the first warms up."""
    act(0)
    times: list[float] = []
    while len(times) < _CALLS and sum(times) < _SECONDS:
        begun = time.perf_counter()
        act(len(times) + 1)
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    return median(times)


def _rounded(number: float) -> float:
    return float(f"{number:.2g}")
