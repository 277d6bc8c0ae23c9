"""What was measured, by which name it goes, and what covers it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sordino.report.account import number
from sordino.report.html.kept import Kept
from sordino.report.html.numbers import percent, shown
from sordino.report.html.pieces import mark
from sordino.report.html.tags import Html, joined

NOISE = "_noise"  # ends the name of a metric's standard error


def kind_of(name: str) -> str:
    """Accuracy, loss, ...: the measure, whatever rows it is of.

    >>> kind_of("holdout_accuracy"), kind_of("test_loss")
    ('accuracy', 'loss')
    """
    return name.removeprefix("test_").removeprefix("holdout_")


def rows_of(name: str) -> str:
    if name.startswith("holdout_"):
        return "held-out clients"
    return "held-out rows" if name.startswith("test_") else "training rows"


def called(name: str) -> str:
    """
    >>> called("test_next_word_accuracy"), called("loss")
    ('test next word accuracy', 'training loss')
    """
    return "training loss" if name == "loss" else in_words(name).replace("holdout ", "held-out ")


def in_words(name: str) -> str:
    """
    >>> in_words("mean_absolute_error"), in_words("test_r2")
    ('mean absolute error', 'test R squared')
    """
    return re.sub(r"\br2$", "R squared", name.replace("_", " "))


def is_share(name: str) -> bool:
    return name.endswith("accuracy")


def written(name: str, value: object) -> str:
    read = number(value)
    return percent(read) if is_share(name) else shown(read)


def main_measure(run: Kept) -> str | None:
    """What a run is judged by: an accuracy if there is one, else the first that is no loss, else a loss on rows that
    were held out."""
    names = [
        name
        for name in run.measured
        if name not in ("covered", "test_confusion") and not name.endswith(NOISE)
    ]
    held = [name for name in names if name != "loss"]
    ranked = sorted(held, key=lambda name: (not is_share(name), kind_of(name) == "loss"))
    return ranked[0] if ranked else None


def with_mark(run: Kept, name: str, value: object) -> Html:
    """A measure, and that no guarantee covers it, unless one does."""
    return joined(written(name, value), mark(cover_of(run, name)))


def cover_of(run: Kept, name: str) -> str:
    return "" if run.covers(name) else "not covered"


def measured_pairs(run: Kept) -> Iterator[tuple[str, Html]]:
    for name, value in run.measured.items():
        is_number = isinstance(value, int | float | str) and not isinstance(value, bool)
        if name != "covered" and is_number and not name.endswith(NOISE):
            yield called(name), joined(with_mark(run, name, value), _noise_of(run, name))


def _noise_of(run: Kept, name: str) -> str:
    """What was paid for has noise, and says how much."""
    value = number(run.measured.get(f"{name}{NOISE}"))
    if not value > 0:
        return ""
    how_much = f"{shown(100 * value, 2)} points" if is_share(name) else shown(value, 2)
    return f" with noise of {how_much} (its standard deviation)"
