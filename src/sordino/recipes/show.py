"""How recipes say and draw what they found: one word for each idea, and one way to write it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes

from sordino.recipes.frame import Result

# Numbers ----------------------------------------------------------------------------------------------------------


def percent(share: float, digits: int = 2) -> str:
    """Without its sign.

    >>> percent(0.9512), percent(0.9512, 1)
    ('95.12', '95.1')
    """
    return f"{100 * share:.{digits}f}"


def percents(shares: Iterable[float]) -> list[float]:
    return [100 * share for share in shares]


def share(value: float) -> str:
    """
    >>> share(0.33), share(0.005)
    ('33 %', '0.5 %')
    """
    return f"{100 * value:g} %"


def spread(values: Sequence[float], digits: int = 2) -> str:
    """The mean, and of several the lowest and highest.

    >>> spread([1.0]), spread([1.0, 2.0], 1)
    ('1.00', '1.5 (1.0 to 2.0)')
    """
    between = f" ({min(values):.{digits}f} to {max(values):.{digits}f})" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{between}"


def spaced(low: float, high: float, count: int, digits: int = 7) -> tuple[float, ...]:
    """Values from 10^low to 10^high, evenly spaced in their logarithms; rounded, as settings are a job's identity.

    >>> spaced(-2.5, 1.5, 5)
    (0.003162278, 0.03162278, 0.3162278, 3.162278, 31.62278)
    """
    step = (high - low) / (count - 1)
    return tuple(float(f"{10 ** (low + step * i):.{digits}g}") for i in range(count))


def mean_accuracy(results: Iterable[Result]) -> float:
    return fmean(float(result["accuracy"]) for result in results)


def accuracy(results: Sequence[Result], digits: int = 2) -> str:
    """In percent, with its spread over seeds."""
    return spread([100 * float(result["accuracy"]) for result in results], digits)


def seeds(count: int, several: str = "mean of {} seeds") -> str:
    return "one seed" if count == 1 else several.format(count)


def numbers(stored: Any) -> Any:
    """As it was before it was stored: JSON has no infinity."""
    if isinstance(stored, dict):
        return {name: numbers(value) for name, value in stored.items()}
    if isinstance(stored, list):
        return [numbers(value) for value in stored]
    return float(stored) if stored in ("inf", "-inf", "nan") else stored


def upwards(epsilon: float, digits: int = 2) -> str:
    """So many decimals, or with two of them a large one as a power of ten: no epsilon is shown smaller than it is.

    >>> upwards(8.501), upwards(8.5011, 3), upwards(15413800.5), upwards(math.inf)
    ('8.51', '8.502', '1.55e7', 'inf')
    """
    if math.isinf(epsilon):
        return "inf"
    if epsilon >= 1e4 and digits == 2:
        power = math.floor(math.log10(epsilon))
        return f"{math.ceil(epsilon / 10 ** (power - 2)) / 100:.2f}e{power}"
    return f"{math.ceil(epsilon * 10**digits) / 10**digits:.{digits}f}"


def several(count: int, what: str) -> str:
    """
    >>> several(1, "epoch"), several(2, "epoch")
    ('1 epoch', '2 epochs')
    """
    return f"{count} {what}" + "s" * (count > 1)


def tried(scores: Mapping[float, float]) -> str:
    return ", ".join(f"{value:g}: {score:.1f}" for value, score in scores.items())


def best(scores: Mapping[float, float]) -> float:
    """What has the highest score; of equals the first."""
    return max(scores, key=lambda value: scores[value])


def scored(history: Iterable[Result]) -> list[Result]:
    """The lines of a history at which the test rows were looked at."""
    return [line for line in history if "test_accuracy" in line]


def curve(history: Iterable[Result]) -> tuple[list[float], list[float]]:
    """Epochs, and test accuracy (%) at them."""
    lines = scored(history)
    return [line["epoch"] for line in lines], [100 * line["test_accuracy"] for line in lines]


# What is claimed --------------------------------------------------------------------------------------------------


def verdict(held: Sequence[bool]) -> str:
    return "yes" if all(held) else "in part" if any(held) else "no"


def judged(held: Sequence[bool], shown: str) -> str:
    return f"{verdict(held)} ({shown})"


def crossing(at: Sequence[float], leads: Sequence[float], rising: bool) -> float | None:
    """Where ``leads`` first rises to zero, or falls below it: between two of ``at``, on a line of logarithms.

    >>> round(crossing((1, 10, 1000), (-1.0, -0.5, 0.5), rising=True))
    100
    """
    for k in range(1, len(leads)):
        if (leads[k - 1] < 0, leads[k] < 0) == (rising, not rising):
            part = leads[k - 1] / (leads[k - 1] - leads[k])
            return math.exp(math.log(at[k - 1]) * (1 - part) + math.log(at[k]) * part)
    return None


def log_ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    return [math.log(a / b) for a, b in zip(above, below, strict=True)]


# Figures ----------------------------------------------------------------------------------------------------------


def shades(palette: str, count: int, first: float, last: float) -> list[Any]:
    """So many colours of a palette, from one place on it to another."""
    steps = max(1, count - 1)
    return [colormaps[palette](first + (last - first) * i / steps) for i in range(count)]


def dressed(
    axes: Axes,
    title: str | None = None,
    size: float | None = None,
    grid: bool = False,
    open_frame: bool = False,
    legend: float | None = None,
    boxed: bool = True,
    **set_: Any,
) -> None:
    """Title (of a font size), grid, a frame without top and right, a legend of a font size, and what axes can set."""
    axes.set(**set_)
    if title is not None:
        axes.set_title(title)
    if size is not None:
        axes.title.set_fontsize(size)
    if grid:
        axes.grid(alpha=0.3)
    if open_frame:
        axes.spines[["top", "right"]].set_visible(False)
    if legend is not None:
        axes.legend(fontsize=legend, frameon=boxed)
