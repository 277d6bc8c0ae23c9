"""What may be said about a file or an array that is wrong: never what is in it.

Texts of other people's exceptions quote what they stumbled over (a cell, a label, bytes), and a message ends up in
terminals, logs and bug reports. So only reasons of our own are passed on.
"""

from __future__ import annotations

from typing import Any

import numpy as np


class Wrong(Exception):
    """Raised by a reader for what it found itself, in words that quote nothing of the rows."""


def wrong_with(error: Exception) -> str:
    """Our own words for a failure of any kind: a damaged file raises a dozen unrelated types."""
    if isinstance(error, Wrong):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return "it is damaged, or lacks an array"


def dtype_word(dtype: np.dtype[Any]) -> str:
    """A dtype by name, where the name depends on no value: that of text holds the length of the longest.

    >>> dtype_word(np.dtype("int16")), dtype_word(np.array(["", "HIV+"]).dtype)
    ('int16', 'text')
    """
    return {"U": "text", "S": "bytes", "V": "void"}.get(dtype.kind, str(dtype))
