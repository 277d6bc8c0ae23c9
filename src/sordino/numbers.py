"""Is it a number? For arguments that somebody gave, and the one line that says what is wrong with them."""

from __future__ import annotations

from typing import Any


def is_number(value: Any) -> bool:
    """Whether it can be reckoned with: no text, and nothing that only holds numbers.

    >>> [is_number(value) for value in (3, 2.5, "3", None, [3])]
    [True, True, False, False, False]
    """
    return hasattr(value, "__float__") and not isinstance(value, bool) and not getattr(value, "shape", ())


def is_whole(value: Any) -> bool:
    """Whether it is a whole number.

    >>> [is_whole(value) for value in (3, 3.0, 2.5, float("inf"), "3")]
    [True, True, False, False, False]
    """
    return is_number(value) and value % 1 == 0


def said(value: Any) -> str:
    """A value as a message quotes it: a number or a word as it is, of anything else its type.

    >>> said("3"), said(2.5), said([1, 2])
    ("'3'", '2.5', 'a list')
    """
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if value is None or isinstance(value, str | bool):
        return repr(value)
    return str(value) if is_number(value) else f"a {type(value).__name__}"
