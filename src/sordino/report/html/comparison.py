"""Several runs beside each other: a table, and their curves in one figure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from sordino.report.account import HARDLY, Series, mapping, number
from sordino.report.html.chart import SLOTS, Axis, Curve, along_axis, chart, up_axis
from sordino.report.html.courses import MOVING, bought
from sordino.report.html.guarantee import epsilon_shown
from sordino.report.html.kept import Kept
from sordino.report.html.measures import called, is_share, main_measure, with_mark, written
from sordino.report.html.numbers import shown
from sordino.report.html.pieces import bullets, card, cards, facts, mark, section, table
from sordino.report.html.tags import NOTHING, Html, Part, joined, tag
from sordino.report.html.together import together

MOST_CURVES = 2 * SLOTS


def in_order(runs: Sequence[Kept]) -> list[Kept]:
    """By data set, then from the strictest epsilon to none at all, and of equals the best first."""

    def rank(run: Kept) -> tuple[str, bool, float, float, str]:
        epsilon = run.account.epsilon
        spent = math.inf if epsilon is None or run.verdict.kind == "open" else epsilon
        main = main_measure(run)
        best = 0.0 if main is None else number(run.measured[main])
        value = math.inf if math.isnan(best) else best
        better = -value if main is not None and is_share(main) else value
        # Epsilons that were meant to be the same differ in a digit that nobody chose.
        return str(run.summary.get("data", "")), math.isinf(spent), float(f"{spent:.2g}"), better, run.name

    return sorted(runs, key=rank)


def comparison(runs: Sequence[Kept]) -> Html:
    mains = {main for run in runs if (main := main_measure(run)) is not None}
    bare = bool(mains) and not any(run.covers(main) for run in runs for main in mains)
    measure = called(next(iter(mains))) if len(mains) == 1 else "result"
    # A mark that is the same for a whole column stands above it.
    result = joined(measure, mark()) if bare else measure
    heads = [
        "run",
        result,
        "epsilon",
        "method",
        "delta",
        "unit",
        "steps",
    ]  # what matters most: a phone shows three
    many = len({str(run.summary.get("data")) for run in runs}) > 1
    rows = [_row(run, bare, len(mains) > 1) for run in runs]
    if many:
        heads.append("data")
        rows = [[*row, str(run.summary.get("data", "-"))] for row, run in zip(rows, runs, strict=True)]
    found = table(f"{len(runs)} runs", heads, rows, [1, 2, 4, 6])
    return section("runs", "Side by side", found, facts(together(runs)), bullets(_to_keep_in_mind(runs)))


def _row(run: Kept, bare: bool, several: bool) -> list[Part]:
    summary, main = run.summary, main_measure(run)
    result: Part = "-"
    if main is not None:
        value = run.measured[main]
        number_of = tag("b", written(main, value) if bare else with_mark(run, main, value))
        result = joined(f"{called(main)} " if several else "", number_of)
    rounds = f"{_number(summary['rounds'])} rounds" if "rounds" in summary else ""
    return [
        run.name,
        result,
        epsilon_shown(run),
        joined(method_of(run), mark("seeded") if summary.get("seeded") else None),
        _number(summary.get("delta")) if run.account.private else "-",
        str(summary.get("unit", "-")),
        rounds or _number(summary.get("steps")),
    ]


def method_of(run: Kept) -> str:
    summary = run.summary
    if not run.account.federated:
        name = str(mapping(summary.get("method")).get("name", "-"))
        return f"{name}, tuned" if mapping(summary.get("tuning")) else name
    return f"{mapping(summary.get('algorithm')).get('kind', 'federation')}, federated"


def _number(value: object) -> str:
    read = number(value)
    return "-" if math.isnan(read) else shown(read)


def _to_keep_in_mind(runs: Sequence[Kept]) -> Iterator[Part]:
    units = {str(run.summary.get("unit")) for run in runs if run.account.private}
    if len(units) > 1:
        yield "Epsilons for different units (examples, users) say different things: they cannot be compared."
    names = [run.summary.get("data") for run in runs if run.account.private]
    if len(names) > len(set(map(str, names))):
        yield (
            "Runs on the same data add up: what all of them spent together is more than each of them says, these and "
            "any others; a ledger counts them. Who picks one by what is shown here owes the epsilon of all."
        )
    if any(not run.verdict.stands for run in runs):
        yield joined("An epsilon with a mark is none that anybody is promised.")
    if len(runs) > MOST_CURVES:
        yield f"Curves are of the first {MOST_CURVES} runs of the table."


# Curves ---------------------------------------------------------------------------------------------------------


def overlaid(runs: Sequence[Kept]) -> Html:
    shown_runs = list(enumerate(runs[:MOST_CURVES]))
    mains = [main for _, run in shown_runs if (main := main_measure(run)) is not None]
    found: list[Html] = []
    for main in dict.fromkeys(mains):
        found += _measured(shown_runs, main)
    for name in ("rate", "threshold"):
        found += _moved(shown_runs, name)
    return section("curves", "Their courses", legend(shown_runs), cards(found)) if found else NOTHING


def legend(runs: Sequence[tuple[int, Kept]]) -> Html:
    """One for all figures: whoever is green in one is green in all."""
    names = []
    for slot, run in runs:
        curve = Curve(run.name, [], [], slot)
        names.append(tag("li", tag("span", "", class_=f"key {curve.ink}"), _in_legend(run)))
    return tag("ul", names, class_="legend common")


def _in_legend(run: Kept) -> str:
    """Its name, and its method unless the name says it."""
    method = method_of(run)
    return run.name if method in run.name else f"{run.name} ({method})"


def _measured(runs: Sequence[tuple[int, Kept]], main: str) -> Iterator[Html]:
    of = [(slot, run) for slot, run in runs if main_measure(run) == main]
    cover = "" if all(run.covers(main) for _, run in of) else "not covered"
    over = [(slot, run, run.account.series(main)) for slot, run in of]
    yield from _figure(
        over,
        called(main)[:1].upper() + called(main)[1:],
        f"{called(main)} over the run",
        cover,
        is_share(main),
    )
    priced = [(slot, run, bought(run)) for slot, run in of]
    priced = [each for each in priced if len(each[2].x) > 1]
    if priced:
        curves = [Curve(run.name, course.x, course.y, slot) for slot, run, course in priced]
        xs, ys = [x for c in curves for x in c.x], [y for c in curves for y in c.y]
        figure = chart(
            curves, f"{called(main)} against epsilon", "epsilon", along_axis(xs), up_axis(ys, is_share(main))
        )
        void = "" if all(run.verdict.stands for _, run, _ in priced) else "some epsilons are no guarantee"
        yield card("What epsilon bought", figure, joined(called(main), mark(cover), mark(void)))


def _moved(runs: Sequence[tuple[int, Kept]], name: str) -> Iterator[Html]:
    courses = [(slot, run, run.account.series(name)) for slot, run in runs]
    if any(course.moved_by(HARDLY) for _, _, course in courses):
        void = "" if all(run.verdict.stands for _, run, _ in courses) else "some runs promise nothing"
        yield from _figure(courses, MOVING[name], f"{MOVING[name]} over the run", void, False)


def _figure(
    courses: Sequence[tuple[int, Kept, Series]], title: str, what: str, cover: str, share: bool
) -> Iterator[Html]:
    known = [(slot, run, course) for slot, run, course in courses if course.y]
    if not known:
        return
    along, xs_of, end = _common(known)
    curves = [Curve(run.name, xs_of[slot], course.y, slot) for slot, run, course in known]
    xs, ys = [x for c in curves for x in c.x], [y for c in curves for y in c.y]
    across: Axis = along_axis(xs, high=end)
    yield card(
        title, chart(curves, what, along, across, up_axis(ys, share, not share)), joined(what, mark(cover))
    )


def _common(known: Sequence[tuple[int, Kept, Series]]) -> tuple[str, dict[int, list[float]], float]:
    """What the runs have in common to be counted in: epochs or rounds, or the part of each that is done."""
    kinds = {run.account.along for _, run, _ in known}
    if len(kinds) == 1:
        ends = [run.account.end for _, run, _ in known if math.isfinite(run.account.end)]
        return kinds.pop(), {slot: list(course.x) for slot, _, course in known}, max(ends, default=math.nan)
    parts = {}
    for slot, run, course in known:
        end = run.account.end if run.account.end > 0 else max(course.x)
        parts[slot] = [100 * x / end for x in course.x]
    return "percent of the run", parts, 100.0
