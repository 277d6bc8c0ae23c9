"""What a tuning will spend: one noise multiplier for all candidates, so that everything together fits the budget."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sordino.noise import gaussian
from sordino.privacy import Budget, Guarantee, compose, event_to_json, noise_for, price, repeat
from sordino.privacy import gaussian as gaussian_release
from sordino.privacy.selection import Stopping
from sordino.privacy.tails import check_reach
from sordino.training import Outline, outlined
from sordino.tuning.candidates import Candidate
from sordino.tuning.score import Score
from sordino.warn import warn

if TYPE_CHECKING:
    from dp_accounting import DpEvent

_OF_SCORES = 0.25  # of epsilon, at most
_MUCH_NOISE = 5.0  # points of accuracy


@dataclass(frozen=True, eq=False)
class TuningPlan:
    """Candidates, their runs, and what they cost. ``stopping`` is None for a grid, of which everything is shown."""

    candidates: tuple[Candidate, ...]
    outlines: tuple[Outline, ...]
    score: Score
    stopping: Stopping | None
    budget: Budget
    multiplier: float
    guarantee: Guarantee

    @property
    def kind(self) -> str:
        return "grid" if self.stopping is None else "selection"

    @property
    def event(self) -> DpEvent:
        return _event(self.outlines, self.score, self.stopping, self.multiplier)

    @property
    def run_event(self) -> DpEvent:
        """One run of a selection with its score."""
        return _run(self.outlines[0], self.score, self.multiplier)

    @property
    def run_events(self) -> list[DpEvent]:
        """Of the runs of a grid one by one; a selection repeats one."""
        different = self.outlines if self.stopping is None else self.outlines[:1]
        return [_run(each, self.score, self.multiplier) for each in different]

    @property
    def caveats(self) -> list[str]:
        """What every output says beside an epsilon that is no guarantee."""
        return [each.terms.caveat for each in self.outlines if each.terms.caveat is not None]

    def describe(self) -> dict[str, Any]:
        """What is public about it, for run.json and to compare a resumed one with."""
        return {
            "protocol": self.kind,
            "candidates": [dict(each.own) for each in self.candidates],
            "stopping": None if self.stopping is None else described(self.stopping),
            "score": {
                "units": self.score.members.count,
                "of": "accuracy"
                if self.score.worth is None
                else getattr(self.score.worth, "__name__", "worth"),
                "public": self.score.public,
                "noise_multiplier": self.score.noise_multiplier,
            },
            "noise_multiplier": self.multiplier,
        }


def described(stopping: Stopping) -> dict[str, Any]:
    shape = "inf" if stopping.shape == float("inf") else stopping.shape
    return {"runs": stopping.name, "mean": stopping.mean, "shape": shape}


def planned(
    candidates: tuple[Candidate, ...],
    score: Score,
    stopping: Stopping | None,
    budget: Budget,
    *,
    units: int,
    sampling: str | None,
    accountant: str,
    secure: bool,
) -> TuningPlan:
    """The plan whose noise fits the budget, or ValueError where there is none."""
    outlines = tuple(
        outlined(each.method, units, each.epochs, each.batch_size, sampling, secure=secure)
        for each in candidates
    )
    if stopping is not None:
        _check_alike(candidates, outlines, 1.0)  # what can be seen before the search

    score = _affordable(score, stopping, len(candidates), budget, accountant)

    def event_with(multiplier: float) -> DpEvent:
        return _event(outlines, score, stopping, multiplier)

    multiplier = noise_for(budget, event_with, accountant)
    releases = sum(each.terms.steps or 0 for each in outlines)
    if stopping is not None:
        _check_alike(candidates, outlines, multiplier)  # probes may follow the noise
        releases = math.ceil(releases / len(outlines) * stopping.mean)
    check_reach(gaussian.REACH, multiplier, releases, budget.delta)
    for each in outlines:
        each.method.step.check(multiplier)
    guarantee = price(event_with(multiplier), budget.delta, accountant)
    assert guarantee.epsilon <= budget.epsilon
    return TuningPlan(candidates, outlines, score, stopping, budget, multiplier, guarantee)


def _affordable(
    score: Score, stopping: Stopping | None, candidates: int, budget: Budget, accountant: str
) -> Score:
    """The score with so much noise that all of them together cost a quarter of epsilon at most."""
    if score.public:
        return score

    def scores_with(multiplier: float) -> DpEvent:
        one = gaussian_release(multiplier)
        return repeat(one, candidates) if stopping is None else stopping.select(one)

    share = Budget(_OF_SCORES * budget.epsilon, budget.delta)
    found = replace(score, least_noise=max(score.least_noise, noise_for(share, scores_with, accountant)))
    points = 100 * found.noise_multiplier / found.members.count
    if points > _MUCH_NOISE:
        warn(
            f"scores on so few rows have noise of {points:.0f} points at this budget, which hides differences: score "
            "on more rows, try fewer candidates, or rows that are public (score_is_public)"
        )
    return found


def _event(
    outlines: tuple[Outline, ...], score: Score, stopping: Stopping | None, multiplier: float
) -> DpEvent:
    if stopping is not None:
        return stopping.select(_run(outlines[0], score, multiplier))
    trained = [each.terms.cost_with(multiplier) for each in outlines]
    scored = [] if score.event is None else [repeat(score.event, len(outlines))]
    return compose([*trained, *scored])


def _run(outline: Outline, score: Score, multiplier: float) -> DpEvent:
    trained = outline.terms.cost_with(multiplier)
    return trained if score.event is None else compose([trained, score.event])


def _check_alike(candidates: tuple[Candidate, ...], outlines: tuple[Outline, ...], multiplier: float) -> None:
    """A selection repeats one mechanism, so all candidates have to cost the same."""
    costs: Mapping[str, str] = {
        each.said: str(event_to_json(outline.terms.cost_with(multiplier)))
        for each, outline in zip(candidates, outlines, strict=True)
    }
    first = next(iter(costs))
    for said, cost in costs.items():
        if cost != costs[first]:
            raise ValueError(
                f"the candidates {first} and {said} do not cost the same, and private selection repeats one mechanism: "
                "let them have the same batches, epochs, clipping and noise, or try them as a grid"
            )
