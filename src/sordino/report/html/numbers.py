"""Numbers for people, and how an axis is divided."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from decimal import Decimal


def shown(value: float, digits: int = 4) -> str:
    """A number with so many digits, without an exponent where one can be spared.

    >>> shown(0.05), shown(12345.6), shown(1e-7), shown(0.0), shown(2e9), shown(float("inf"))
    ('0.05', '12,346', '1e-7', '0', '2e9', 'inf')
    """
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    if 1e-4 <= abs(value) < 1e4:
        return f"{value:.{digits}g}"
    if 1e4 <= abs(value) < 1e7:
        return f"{value:,.0f}"
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}"


def percent(value: float) -> str:
    """
    >>> percent(0.91388)
    '91.4 %'
    """
    return f"{100 * value:.1f} %"


def spoken(words: str) -> str:
    """A certificate's sentence, which has its numbers as computers write them, with the same digits for people.

    >>> spoken("no covered result becomes more than 2.98E+3 times as likely, but for probability delta, 1e-05.")
    'no covered result becomes more than 2,980 times as likely, but for probability delta, 1e-5.'
    >>> spoken("more than 5.19E+21 times")
    'more than 5.19e21 times'
    """

    def times(found: re.Match[str]) -> str:
        value = Decimal(found[0])
        return f"{value:,f}" if value < 10**9 else found[0].replace("E+", "e")

    large = re.sub(r"(?<=more than )\d(?:\.\d+)?E\+\d+(?= times)", times, words)
    return re.sub(r"(?<=probability delta, )(\d(?:\.\d+)?e-)0+(?=\d)", r"\1", large)


def even_ticks(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round numbers from ``low`` to ``high``, about as many as wanted.

    >>> even_ticks(0.0, 1.0), even_ticks(3, 41, 4)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [10.0, 20.0, 30.0, 40.0])
    """
    span = high - low
    if not (math.isfinite(span) and span > 0):
        return [low]
    raw = span / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    step = min((factor * power for factor in (1, 2, 5, 10)), key=lambda step: abs(math.log(step / raw)))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{step * place:.12g}") for place in range(first, last + 1)]


def factor_ticks(low: float, high: float) -> list[float]:
    """For an axis of logarithms: powers of ten, with their doubles and fives where there are few.

    >>> factor_ticks(0.8, 130.0), factor_ticks(0.3, 4.0)
    ([1.0, 10.0, 100.0], [0.5, 1.0, 2.0])
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    few = high / low < 100
    every = max(1, len(powers) // 6)
    marks: Sequence[int] = (1, 2, 5) if few else (1,)
    found = [float(f"{mark}e{power}") for power in powers[::every] for mark in marks]
    return [tick for tick in found if low <= tick <= high]
