"""What a report says in words: its title, and the settings, among them what could have moved and did not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from sordino.privacy.certificate import show_epsilon
from sordino.report.account import HARDLY, Account, Series, mapping, number

Setting = tuple[str, str]


def title(run: Account) -> str:
    return f"{run.summary.get('data', 'data')}: {', '.join(_what(run))}"


def _what(run: Account) -> Iterator[str]:
    if not run.federated:
        yield str(mapping(run.summary.get("method")).get("name", "a method"))
        return
    algorithm = mapping(run.summary.get("algorithm"))
    yield str(algorithm.get("kind", "a federation"))
    if "kind" in mapping(algorithm.get("server")):
        yield f"server {_spaced(algorithm['server']['kind'])}"
    local = str(mapping(run.summary.get("local")).get("kind", "")).removeprefix("Local")
    yield f"local {_spaced(local)}" if local else "local steps"
    if "clients" in run.summary:
        yield f"{run.summary['clients']} clients"


def spent(run: Account) -> str:
    """The guarantee in a line; epsilon is never rounded down."""
    if run.epsilon is None:
        return "epsilon is not known yet: nothing is logged" if run.private and not run.finished else ""
    if not run.private:
        return "not private: epsilon is infinite"
    delta, unit = run.summary.get("delta"), run.summary.get("unit", "unit")
    return f"epsilon {how_much(run)} at delta {short(delta)} for each {unit}"


def how_much(run: Account) -> str:
    """Epsilon; of a run that has not ended, that it is no less, since more is released than is logged."""
    shown = show_epsilon(run.epsilon or 0.0, 3)
    if run.settled:
        return shown
    planned = run.summary.get("planned_epsilon")
    in_all = f", {show_epsilon(planned, 3)} in all if it ends" if isinstance(planned, float) else ""
    return f"at least {shown} so far" + (f" (at {run.priced_at})" if run.priced_at else "") + in_all


def reservations(run: Account) -> list[str]:
    """What must not be overlooked."""
    found = []
    if not run.finished:
        more = "; more may have been released since its last line" if run.private else ""
        found.append(f"the run is unfinished, and drawn as far as it came{more}")
    if run.summary.get("seeded") and run.private:
        found.append("seeded: not a guarantee")
    if run.summary.get("caveat"):
        found.append(str(run.summary["caveat"]))
    if run.diverged:
        found.append("diverged: some figures of the training are no finite numbers")
    return [*found, *_measured_without_number(run)]


def _measured_without_number(run: Account) -> Iterator[str]:
    """Measures of rows that were not trained on: they can be infinite though the model is not."""
    for name in run.measures:
        course = run.series(name)
        if course.not_finite and name != "loss":
            what = name.replace("holdout_", "held-out ").replace("_", " ")
            often = f" at {course.not_finite} of {course.not_finite + len(course.y)} evaluations"
            yield f"{what} is no finite number{often if course.y else ''}"


def settings(run: Account) -> list[Setting]:
    """Name and value, for the panel of words."""
    return [
        *_never_moved(run),
        *(_federation(run) if run.federated else _training(run)),
        *_privacy(run),
        *_size(run),
    ]


def _never_moved(run: Account) -> Iterator[Setting]:
    for name, shown in (
        ("rate", "learning rate"),
        ("threshold", "threshold"),
        ("tolerance", "tolerance"),
        ("cloud_norm", "cloud norm"),
        ("participants", "delivered"),
    ):
        course = run.series(name)
        if course.y and not course.moved_by(HARDLY) and not course.not_finite:
            yield shown, _stood(course)


def _stood(course: Series) -> str:
    if len(course.y) == 1:
        return short(course.y[0])
    if course.moved:
        return f"{short(course.y[0])}, at the end {short(course.y[-1])}"
    return f"{short(course.y[0])}, throughout"


def _training(run: Account) -> Iterator[Setting]:
    summary = run.summary
    if isinstance(summary.get("tuning"), dict):
        tuning = summary["tuning"]
        how = "private selection" if tuning.get("stopping") else "grid"
        yield "best of", f"a {how} of {len(tuning.get('candidates', []))} candidates; epsilon is of all"
    parts = mapping(summary.get("method"))
    for name, shown in (("clip", "clipping"), ("step", "step"), ("rate", "rate")):
        if "kind" in mapping(parts.get(name)):
            yield shown, _spaced(parts[name]["kind"])
    if "epochs" in summary:
        yield "epochs", f"{short(summary['epochs'])}, {_steps(summary)}"
    if "batch_size" in summary:
        rows = summary.get("trained_on", summary.get("n", "?"))
        groups = mapping(summary.get("turns")).get("groups")
        by = f"{summary.get('sampling', '')}{f' in {groups} groups that take turns' if groups else ''}"
        yield "batch", f"{summary['batch_size']} of {rows}, {by}".rstrip(", ")


def _steps(summary: Mapping[str, Any]) -> str:
    steps, batches = summary.get("steps", "?"), summary.get("batches", summary.get("steps"))
    return (
        f"{steps} steps"
        if steps == batches
        else f"{steps} steps of {number(batches) / number(steps):.3g} batches"
    )


def _federation(run: Account) -> Iterator[Setting]:
    summary = run.summary
    if "rounds" in summary:
        yield "rounds", str(summary["rounds"])
    dealt = mapping(summary.get("participation"))
    if dealt:
        yield "clients a round", f"{_drawn(run, dealt)} {_spaced(dealt.get('kind', ''))}".strip()
    plan = mapping(summary.get("local_plan"))
    if plan:
        yield "local", f"{short(plan.get('epochs'))} epochs, batches of {plan.get('batch_size', '?')}"
    yield "partition", _spaced(mapping(summary.get("partition")).get("kind", "given"))
    sizes = run.sizes
    if sizes.y and not sizes.moved_by(HARDLY):
        low, high = min(sizes.y), max(sizes.y)
        yield "rows of a client", short(low) if low == high else f"{short(low)} to {short(high)}"


def _drawn(run: Account, dealt: Mapping[str, Any]) -> str:
    many = dealt.get("batch_size", dealt.get("count"))
    if many is not None or "rate" not in dealt:
        return str(many or "")
    whom = "all" if "groups" not in dealt else f"one of {dealt['groups']} groups"
    rate, expected = f"{short(dealt['rate'])} of {whom}", run.expected_clients
    return f"{rate}," if expected is None else f"{short(expected)} expected ({rate}),"


def _privacy(run: Account) -> Iterator[Setting]:
    if number(run.summary.get("noise_multiplier")) > 0:
        kind = run.noise.get("kind")
        yield (
            "noise multiplier",
            short(run.summary["noise_multiplier"]) + (f", {_spaced(kind)}" if kind else ""),
        )
        if kind == "Banded":
            yield "noise is related over", _many(run.noise.get("bands"), "step")
        if kind == "Buffered":
            yield "earlier noise is kept in", f"{_many(run.noise.get('buffers'), 'buffer')} at most"
        if kind == "Tree":
            every = run.noise.get("restart_every")
            yield "trees", "one" if every is None else f"a new one every {_many(every, 'epoch')}"
    if run.private and "accountant" in run.summary:
        yield "accountant", str(run.summary["accountant"])


def _size(run: Account) -> Iterator[Setting]:
    if "model" in run.summary:
        yield "model", str(run.summary["model"])
    if "parameters" in run.summary:
        yield "parameters", f"{run.summary['parameters']:,}"
    if "seconds" in run.summary:
        yield "took", f"{short(run.summary['seconds'])} s"


def _many(count: Any, what: str) -> str:
    return what if count == 1 else f"{short(count)} {what}s"


def _spaced(kind: Any) -> str:
    """WithoutReplacement as "without replacement"."""
    return "".join(f" {letter.lower()}" if letter.isupper() else letter for letter in str(kind)).strip()


def short(value: Any) -> str:
    """A number for people.

    >>> short(0.05), short(1000000), short("inf"), short(1e-5), short(152)
    ('0.05', '1e+06', 'inf', '1e-05', '152')
    """
    read = number(value)
    return str(value) if math.isnan(read) else f"{read:.4g}"
