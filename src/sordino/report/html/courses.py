"""How a run went: what was measured, what it cost, and what tuned itself."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from sordino.report.account import HARDLY, Series, mapping, number
from sordino.report.html.chart import Curve, along_axis, chart, heat, histogram, up_axis
from sordino.report.html.kept import Kept
from sordino.report.html.measures import (
    called,
    cover_of,
    in_words,
    is_share,
    kind_of,
    main_measure,
    measured_pairs,
    rows_of,
    written,
)
from sordino.report.html.numbers import shown
from sordino.report.html.pieces import card, cards, facts, mark, section
from sordino.report.html.tags import Html, Part, joined, tag
from sordino.report.words import settings

MOVING = {
    "rate": "Learning rate",
    "threshold": "Clipping threshold",
    "error": "Estimated error of a step",
    "tolerance": "Tolerance",
    "cloud_norm": "Norm of the model",
    "participants": "Clients that delivered",
}
_CLIENTS_SHOWN = 60


def quality(run: Kept) -> Html:
    """How good it became, over the run and for what it spent."""
    found = [*_measured(run), *_bought(run), *_spent(run)]
    ends = facts(measured_pairs(run))
    if found or ends.text:
        return section("quality", "How good it became", ends, cards(found))
    why = "No rows were held out to measure on." if run.account.finished else "Nothing was measured yet."
    return section("quality", "How good it became", tag("p", why))


def _measured(run: Kept) -> Iterator[Html]:
    """A figure for each measure, with a curve for each kind of rows; losses come last."""
    names = run.account.measures
    kinds = dict.fromkeys(sorted(map(kind_of, names), key=lambda kind: kind == "loss"))
    for kind in kinds:
        of_kind = [name for name in names if kind_of(name) == kind]
        courses = {name: run.account.series(name) for name in of_kind}
        curves = [
            Curve(rows_of(name), course.x, course.y, slot)
            for slot, (name, course) in enumerate(courses.items())
            if course.y
        ]
        if not curves:
            continue
        cover = "" if all(run.covers(name) for name in of_kind) else "not covered"
        ends = ", ".join(
            f"{written(name, course.y[-1])} on {rows_of(name)}"
            for name, course in courses.items()
            if course.y
        )
        if max(len(curve.x) for curve in curves) < 2:
            continue  # one value is said among the key figures, or below
        name = in_words(kind)
        what = (
            f"{name}{f' ({cover})' if cover else ''}: {ends}"  # a mark for those who do not see the other one
        )
        yield card(
            name[:1].upper() + name[1:],
            _over_the_run(run, curves, what, share=is_share(kind)),
            joined(f"{ends}", _missing(courses.values()), mark(cover)),
            curves,
        )


def _missing(courses: Iterable[Series]) -> str:
    many = sum(course.not_finite for course in courses)
    return f"; {many} {'value is' if many == 1 else 'values are'} not finite" if many else ""


def _over_the_run(
    run: Kept, curves: Sequence[Curve], what: str, share: bool = False, factors: bool = False
) -> Html:
    xs = [x for curve in curves for x in curve.x]
    ys = [y for curve in curves for y in curve.y]
    along = run.account.along
    return chart(
        curves,
        f"{what}, over {along}s",
        along,
        along_axis(xs, high=run.account.end),
        up_axis(ys, share, factors),
    )


def bought(run: Kept) -> Series:
    """The main measure over epsilon; of all values at one epsilon the last: a tree is paid for once, and then used."""
    main = main_measure(run)
    if main is None or not run.account.private:
        return Series([], [])
    course = run.account.series(main, over="epsilon")
    last = dict(zip(course.x, course.y, strict=True))
    return Series(list(last), list(last.values()))


def _bought(run: Kept) -> Iterator[Html]:
    main, course = main_measure(run), bought(run)
    if main is None or len(course.x) < 2:
        return
    curve = Curve(called(main), course.x, course.y)
    what = f"{called(main)} against epsilon spent so far"
    figure = chart([curve], what, "epsilon", along_axis(course.x), up_axis(course.y, is_share(main)))
    yield card(
        "What epsilon bought",
        figure,
        joined(f"{called(main)} when so much was spent", mark(cover_of(run, main)), _epsilon_mark(run)),
    )


def _epsilon_mark(run: Kept) -> Html:
    return mark(f"epsilon {run.verdict.mark}" if run.verdict.mark else "")


def _spent(run: Kept) -> Iterator[Html]:
    course = run.account.series("epsilon")
    if run.account.private and len(course.y) > 1 and course.moved:
        curve = Curve("epsilon", course.x, course.y, 1)
        figure = _over_the_run(run, [curve], "epsilon spent")
        # Metrics that are paid for come after the last line.
        later = (
            ""
            if run.summary.get("metric_epsilon") is None
            else "; metrics, which come after it, are not in it"
        )
        yield card("What was spent", figure, joined(f"epsilon so far{later}", _epsilon_mark(run)))


# What tuned itself ----------------------------------------------------------------------------------------------


def tuned(run: Kept) -> Html:
    """Rate, threshold and their like: curves of what moved, and words for what stood still."""
    found = [figure for name in MOVING for figure in _course(run, name)] + [*_client_rates(run)]
    still = [(name, value) for name, value in settings(run.account) if name in STOOD]
    mark_of_all = mark(_released_mark(run))
    text = (
        joined("Computed from what was released with noise, and covered with it.")
        if run.verdict.stands
        else None
    )
    if not found and not still:
        return section("tuned", "What tuned itself", tag("p", "Nothing of it was logged."))
    return section(
        "tuned",
        "What tuned itself",
        cards(found),
        facts((name, value) for name, value in still),
        note=text or joined("As the run logged it", mark_of_all),
    )


STOOD = ("learning rate", "threshold", "tolerance", "cloud norm", "delivered")


def _released_mark(run: Kept) -> str:
    """For what a standing guarantee would cover."""
    return {"unfinished": "no certificate yet"}.get(run.verdict.kind, run.verdict.mark)


def _course(run: Kept, name: str) -> Iterator[Html]:
    course = run.account.series(name)
    if not course.moved_by(HARDLY) and not (course.not_finite and course.y):
        return
    curve = Curve(MOVING[name].lower(), course.x, course.y, 2)
    first, last = shown(course.y[0]), shown(course.y[-1])
    figure = _over_the_run(run, [curve], f"{MOVING[name]}: from {first} to {last}", factors=True)
    said = joined(
        f"from {first} to {last}{_missing([course])}", mark("" if run.verdict.stands else _released_mark(run))
    )
    yield card(MOVING[name], figure, said)


def _client_rates(run: Kept) -> Iterator[Html]:
    """Lowest, middle and highest of the clients' own rates, where a federation without privacy logs them."""
    lines = [(run.account.place(line, at), line.get("client_rates")) for at, line in enumerate(run.history)]
    points = [
        (x, [number(each) for each in rates])
        for x, rates in lines
        if isinstance(rates, list) and len(rates) == 3
    ]
    points = [(x, rates) for x, rates in points if all(map(math.isfinite, rates)) and math.isfinite(x)]
    if len(points) < 2:
        return
    xs = [x for x, _ in points]
    curves = [
        Curve(name, xs, [rates[place] for _, rates in points], slot)
        for place, (name, slot) in enumerate((("lowest", 3), ("middle", 2), ("highest", 1)))
    ]
    figure = _over_the_run(run, curves, "rates of the clients", factors=True)
    yield card("Rates of the clients", figure, joined("of those that took part", mark()), curves)


# Federations ----------------------------------------------------------------------------------------------------


def federation(run: Kept) -> Html | None:
    """Rounds and clients, with what clients.json tells of them where it may."""
    if not run.account.federated:
        return None
    found = [*_about_clients(run)]
    wanted = ("rounds", "clients a round", "local", "partition", "rows of a client")
    pairs: list[tuple[str, Part]] = [("clients", str(run.summary.get("clients", "not stated")))]
    pairs += [
        (name, value)
        for name, value in settings(run.account)
        if name in wanted and name != "rows of a client"
    ]
    pairs += [
        (name, joined(value, mark())) for name, value in settings(run.account) if name == "rows of a client"
    ]
    if not found:
        pairs.append(("of single clients", "nothing was written down"))
    note = joined("What single clients have", mark()) if found else None
    return section("federation", "The federation", facts(pairs), cards(found), note=note)


def _about_clients(run: Kept) -> Iterator[Html]:
    clients = mapping(run.clients)
    rates = [rate for rate in map(number, mapping(clients.get("rates")).values()) if math.isfinite(rate)]
    if Series([], rates).moved:
        yield card(
            "Rates of the clients at the end",
            histogram(rates, "rates of the clients at the end", "rate"),
            mark(),
        )
    sizes = run.account.sizes
    if sizes.moved_by(HARDLY):
        yield card(
            "Rows of the clients", histogram(sizes.y, "how many rows the clients have", "rows"), mark()
        )
    shares = _shares(clients.get("labels"))
    if shares:
        more = len(clients.get("labels") or ()) > _CLIENTS_SHOWN
        along = f"client (the first {_CLIENTS_SHOWN})" if more else "client"
        said = joined("the darker, the more of a client's rows", mark())
        yield card(
            "Labels of the clients",
            heat(shares, "share of each label, client by client", along, "label"),
            said,
        )


def _shares(labels: object) -> list[list[float]]:
    rows = labels[:_CLIENTS_SHOWN] if isinstance(labels, list) else []
    counts = [[number(count) for count in row] for row in rows if isinstance(row, list)]
    whole = all(math.isfinite(count) and count >= 0 for row in counts for count in row)
    if not counts or not whole or len({len(row) for row in counts}) != 1 or not 0 < len(counts[0]) <= 100:
        return []
    return [[count / max(1.0, sum(row)) for count in row] for row in counts]
