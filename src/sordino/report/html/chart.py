"""Figures as inline SVG: they follow the colours of the page, are crisp at any width, and need no script."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from sordino.report.html.numbers import even_ticks, factor_ticks, percent, shown
from sordino.report.html.tags import NOTHING, Html, Part, joined, tag

WIDTH, HEIGHT = 420.0, 232.0  # in units that are about a pixel, on a phone and on a desk
_TOP, _RIGHT, _BOTTOM = 10.0, 14.0, 38.0
_LETTER = 6.6  # width of one at the size of a tick
_MOST_POINTS = 160  # of a curve: more could not be told apart
SLOTS = 6  # colours; after these the same ones, dashed


@dataclass(frozen=True)
class Curve:
    name: str
    x: Sequence[float]
    y: Sequence[float]
    slot: int = 0  # which colour, and from SLOTS on dashed
    joined: bool = True  # or points only

    @property
    def ink(self) -> str:
        return f"ink{self.slot % SLOTS}" + (" dashed" if self.slot >= SLOTS else "")


@dataclass(frozen=True)
class Axis:
    """What a number on it is called, and where it lies between 0 and 1."""

    low: float
    high: float
    ticks: Sequence[float]
    logarithmic: bool = False
    written: Callable[[float], str] = shown

    def place(self, value: float) -> float:
        if self.logarithmic:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


def chart(curves: Sequence[Curve], what: str, along: str, across: Axis, up: Axis) -> Html:
    """Curves on axes. ``what`` is said to those who do not see it."""
    labels = [up.written(tick) for tick in up.ticks]
    left = 14.0 + _LETTER * max(map(len, labels), default=1)
    place = _Place(left, across, up)
    # Drawn in this order: what matters is on top.
    return tag(
        "svg",
        tag("title", what),
        *_grid(place, labels),
        *_ground(place, along),
        *(_path(curve, place) for curve in curves if curve.joined),
        *(_points(curve, place, along) for curve in curves),
        class_="chart",
        viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}",
        role="img",
        aria_label=what,
    )


@dataclass(frozen=True)
class _Place:
    left: float
    across: Axis
    up: Axis

    def x(self, value: float) -> float:
        return self.left + (WIDTH - _RIGHT - self.left) * min(1.0, max(0.0, self.across.place(value)))

    def y(self, value: float) -> float:
        return HEIGHT - _BOTTOM - (HEIGHT - _BOTTOM - _TOP) * min(1.0, max(0.0, self.up.place(value)))


def _grid(place: _Place, labels: Sequence[str]) -> Iterator[Html]:
    for tick, label in zip(place.up.ticks, labels, strict=True):
        y = place.y(tick)
        yield tag("path", d=f"M{place.left:.1f} {y:.1f}H{WIDTH - _RIGHT:.1f}", class_="grid")
        yield _text(label, place.left - 7, y + 4, "end")


def _ground(place: _Place, along: str) -> Iterator[Html]:
    ground = HEIGHT - _BOTTOM
    yield tag("path", d=f"M{place.left:.1f} {ground:.1f}H{WIDTH - _RIGHT:.1f}", class_="axis")
    taken = -math.inf
    for tick in place.across.ticks:
        x, label = place.x(tick), place.across.written(tick)
        half = _LETTER * len(label) / 2
        if x - half < taken + 4 or x + half > WIDTH:
            continue
        taken = x + half
        yield tag("path", d=f"M{x:.1f} {ground:.1f}v4", class_="axis")
        yield _text(label, x, ground + 16, "middle")
    yield _text(along, (place.left + WIDTH - _RIGHT) / 2, HEIGHT - 5, "middle", "along")


def _text(text: str, x: float, y: float, anchor: str, kind: str = "tick") -> Html:
    return tag("text", text, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor, class_=kind)


def _path(curve: Curve, place: _Place) -> Html:
    points = [f"{place.x(x):.1f} {place.y(y):.1f}" for x, y in _thinned(curve)]
    return tag("path", d="M" + "L".join(points), class_=f"line {curve.ink}") if len(points) > 1 else NOTHING


def _points(curve: Curve, place: _Place, along: str) -> Html:
    found = _thinned(curve)
    many = len(found) > 30  # then they would be beads on the line: there to be pointed at, and not seen
    dots: list[Part] = []
    for x, y in found:
        said = f"{curve.name}: {place.up.written(y)} at {along} {place.across.written(x)}"
        dots.append(
            tag(
                "circle",
                tag("title", said),
                cx=f"{place.x(x):.1f}",
                cy=f"{place.y(y):.1f}",
                r="6" if many else "3",
            )
        )
    return tag("g", dots, class_=f"dots {curve.ink}" + (" quiet" if many and curve.joined else ""))


def _thinned(curve: Curve) -> list[tuple[float, float]]:
    """Evenly chosen points of a long curve, with its first and last."""
    points = list(zip(curve.x, curve.y, strict=True))
    if len(points) <= _MOST_POINTS:
        return points
    step = (len(points) - 1) / (_MOST_POINTS - 1)
    return [points[round(step * place)] for place in range(_MOST_POINTS)]


# Axes -----------------------------------------------------------------------------------------------------------


def along_axis(values: Sequence[float], low: float | None = 0.0, high: float = math.nan) -> Axis:
    """From left to right: from ``low``, or from the least of the values, to ``high``, or to the greatest."""
    most = max([*values, *([high] if math.isfinite(high) else [])], default=1.0)
    least = min([*values, most]) if low is None else low
    if not most > least:
        most = least + 1.0
    return Axis(least, most, even_ticks(least, most))


def up_axis(values: Sequence[float], share: bool = False, factors: bool = False) -> Axis:
    """Limits from the data, with a margin, and a range that is never so small that noise looks like a trend: ten
    percentage points, a tenth of the value, or on an axis of logarithms a factor of four."""
    low, high = min(values, default=0.0), max(values, default=1.0)
    if not share and low > 0 and (30 * low < high or (factors and high > 3 * low)):
        middle, reach = math.sqrt(low * high), max(2.0, 1.15 * math.sqrt(high / low))
        return Axis(middle / reach, middle * reach, factor_ticks(middle / reach, middle * reach), True)
    least = 0.1 if share else 0.1 * max(abs(low), abs(high)) or 1.0
    middle, reach = low / 2 + high / 2, 0.56 * max(high - low, least)
    bottom, top = middle - reach, middle + reach
    if low >= 0:
        bottom = max(bottom, 0.0)
    if share and low >= 0 and high <= 1:
        top = min(top, 1.0)
        return Axis(bottom, top, even_ticks(bottom, top), written=_whole_percent)
    return Axis(bottom, top, even_ticks(bottom, top), written=percent if share else shown)


def _whole_percent(value: float) -> str:
    """At a tick there is no fraction; at a point there is.

    >>> _whole_percent(0.9), _whole_percent(0.914)
    ('90 %', '91.4 %')
    """
    return percent(value).replace(".0 %", " %")


# Other figures --------------------------------------------------------------------------------------------------


def histogram(values: Sequence[float], what: str, along: str) -> Html:
    """How many clients have how much, in a dozen bins."""
    low, high = min(values), max(values)
    whole = all(value.is_integer() for value in values)
    width = max(1.0, math.ceil((high - low + 1) / 12)) if whole else (high - low) / 12 or 1.0
    first = low - 0.5 if whole else low
    bins = max(1, min(12, math.ceil((high - first) / width + (0 if whole else -1e-9))))
    counts = [0] * bins
    for value in values:
        counts[min(bins - 1, int((value - first) / width))] += 1
    ticks = even_ticks(first, first + bins * width)
    across = Axis(first, first + bins * width, [t for t in ticks if not whole or t.is_integer()])
    top = max(counts) * 1.08
    up = Axis(0.0, top, [tick for tick in even_ticks(0.0, top, 4) if tick == int(tick)])
    labels = [up.written(tick) for tick in up.ticks]
    place = _Place(14.0 + _LETTER * max(map(len, labels), default=1), across, up)
    bars = []
    for number, count in enumerate(counts):
        x, end = place.x(first + number * width), place.x(first + (number + 1) * width)
        said = f"{count} with {shown(first + number * width)} to {shown(first + (number + 1) * width)}"
        y = place.y(count)
        path = (
            f"M{x + 1:.1f} {HEIGHT - _BOTTOM:.1f}V{y:.1f}H{max(x + 2, end - 1):.1f}V{HEIGHT - _BOTTOM:.1f}Z"
        )
        bars.append(tag("path", tag("title", said), d=path, class_="column"))
    parts = joined(tag("title", what), *_grid(place, labels), *_ground(place, along), *bars)
    return _figure(parts, what)


def heat(shares: Sequence[Sequence[float]], what: str, along: str, up: str) -> Html:
    """A row for each label, a column for each client: the darker, the more of its rows have that label."""
    columns, rows = len(shares), len(shares[0])
    left, ground = 30.0, HEIGHT - _BOTTOM
    wide, high = (WIDTH - _RIGHT - left) / columns, (ground - _TOP) / rows
    cells = []
    for column, client in enumerate(shares):
        for row, share in enumerate(client):
            if share > 0:
                x, y = left + column * wide, _TOP + row * high
                across, down = max(1.0, wide - 0.6), max(1.0, high - 0.6)
                path = f"M{x:.1f} {y:.1f}h{across:.1f}v{down:.1f}h{-across:.1f}z"
                said = f"{along} {column}, {up} {row}: {percent(share)}"
                opacity = f"{0.08 + 0.92 * min(1.0, share):.2f}"
                cells.append(tag("path", tag("title", said), d=path, class_="column", fill_opacity=opacity))
    every = max(1, rows // 8)
    names = [_text(str(row), left - 7, _TOP + (row + 0.5) * high + 4, "end") for row in range(0, rows, every)]
    foot = _text(along, (left + WIDTH - _RIGHT) / 2, HEIGHT - 12, "middle", "along")
    return _figure(joined(tag("title", what), *cells, *names, foot), what)


def _figure(parts: Html, what: str) -> Html:
    box = f"0 0 {WIDTH:g} {HEIGHT:g}"
    return tag("svg", parts, class_="chart", viewBox=box, role="img", aria_label=what)
