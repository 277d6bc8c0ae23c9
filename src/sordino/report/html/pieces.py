"""What sections are made of: marks, lists, tables, cards."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sordino.report.html.chart import Curve
from sordino.report.html.tags import NOTHING, Html, Part, joined, tag

NOT_COVERED = "not covered"


def mark(text: str = NOT_COVERED) -> Html:
    """Beside a number that no guarantee covers."""
    return joined(" ", tag("span", text, class_="mark")) if text else NOTHING


def section(name: str, title: str, *parts: Part | Iterable[Part], note: Part = None) -> Html:
    """A part of the page, with a heading that can be linked to."""
    heading = tag("h2", title, id=name)
    said = tag("p", note, class_="note") if note else None
    return tag("section", heading, said, *parts, aria_labelledby=name)


def bullets(lines: Iterable[Part]) -> Html:
    return tag("ul", [tag("li", line) for line in lines])


def facts(pairs: Iterable[tuple[str, Part]]) -> Html:
    """Names, and what is so called."""
    rows = [tag("div", tag("dt", name), tag("dd", value)) for name, value in pairs]
    return tag("dl", rows, class_="facts") if rows else NOTHING


def table(
    title: str, heads: Sequence[Part], rows: Iterable[Sequence[Part]], numeric: Iterable[int] = ()
) -> Html:
    """With a caption; the first cell of a row names it. ``numeric`` columns are set to the right. On a phone the table
    is scrolled, and not the page."""
    right = set(numeric)

    def kind(column: int) -> str | None:
        return "number" if column in right else None

    head = [tag("th", each, scope="col", class_=kind(place)) for place, each in enumerate(heads)]
    body = []
    for row in rows:
        first, *rest = row
        cells = [tag("td", each, class_=kind(place)) for place, each in enumerate(rest, 1)]
        body.append(tag("tr", tag("th", first, scope="row"), cells))
    whole = tag("table", tag("caption", title), tag("thead", tag("tr", head)), tag("tbody", body))
    return tag("div", whole, class_="scroll", tabindex=0, role="region", aria_label=title)


def card(title: str, figure: Html, said: Part = None, curves: Sequence[Curve] = ()) -> Html:
    """A figure with its heading, what is to be said of it, and a legend if there is more than one curve."""
    legend = NOTHING
    if len(curves) > 1:
        names = [tag("li", tag("span", "", class_=f"key {each.ink}"), each.name) for each in curves]
        legend = tag("ul", names, class_="legend")
    text = tag("p", said) if said else None
    return tag("figure", tag("figcaption", tag("h3", title), text), figure, legend, class_="card")


def cards(found: Sequence[Html]) -> Html:
    return tag("div", found, class_="cards") if found else NOTHING


def clock(value: Part) -> Html:
    """What differs between two runs that are the same but for the time they were made at."""
    return tag("span", value, class_="clock")


def code(*lines: str) -> Html:
    return tag("pre", tag("code", "\n".join(lines)))
