"""Panels on a page, with a title: placed by hand, since matplotlib's own layouts draw everything several times."""

from __future__ import annotations

import io
import textwrap

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from sordino.report.account import Account
from sordino.report.panels import GREY, RED, panels
from sordino.report.words import reservations, spent, title

_PANEL = (3.1, 2.15)  # inches, of the axes alone
_GAP = (1.2, 0.95)  # with room for the values at the ends of curves
_LEFT, _RIGHT, _BOTTOM, _LINE = 0.75, 0.6, 0.6, 0.22


def _columns(panels: int) -> int:
    """As few empty places as can be, and no more than four beside each other."""
    if panels <= 4:
        return 2 if panels == 4 else panels
    return min((3, 4), key=lambda columns: (-panels % columns, columns))


def page(run: Account) -> bytes:
    """The PNG."""
    shown = panels(run)
    columns = _columns(len(shown))
    rows = -(-len(shown) // columns)
    width = _LEFT + columns * _PANEL[0] + (columns - 1) * _GAP[0] + _RIGHT
    warned = [line for each in reservations(run) for line in textwrap.wrap(each, int(14 * width))]
    head = 0.85 + _LINE * (1 + len(warned))
    height = _BOTTOM + rows * _PANEL[1] + (rows - 1) * _GAP[1] + head
    figure = Figure(figsize=(width, height), dpi=110)
    FigureCanvasAgg(figure)  # which the figure keeps, and draws itself with
    for number, panel in enumerate(shown):
        row, column = divmod(number, columns)
        left = _LEFT + column * (_PANEL[0] + _GAP[0])
        bottom = _BOTTOM + (rows - 1 - row) * (_PANEL[1] + _GAP[1])
        axes = figure.add_axes((left / width, bottom / height, _PANEL[0] / width, _PANEL[1] / height))
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
        axes.set_title(panel.title, fontsize=10, loc="left", y=1.02)  # found once, not at every tick
        panel.draw(axes)
    figure.text(_LEFT / width, 1 - 0.3 / height, title(run), fontsize=13, va="center")
    for line, (text, color) in enumerate([(spent(run), GREY), *((each, RED) for each in warned)]):
        figure.text(
            _LEFT / width, 1 - (0.3 + _LINE * (line + 1)) / height, text, fontsize=9, color=color, va="center"
        )
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png")
    return drawn.getvalue()
