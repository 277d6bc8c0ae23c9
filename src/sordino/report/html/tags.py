"""HTML that cannot be broken out of: text becomes part of a page through `tag`, and `tag` escapes it.

Names of data sets, labels, settings and reasons are their owners'. So there is one type for what is HTML already, only
this file makes it, and whatever is not of that type is text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape

_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9-]*\Z")
_VOID = {"meta", "img", "br", "col"}
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True)
class Html:
    """What may stand in a page as it is."""

    text: str

    def __str__(self) -> str:
        return self.text


Part = Html | str | int | float | None
NOTHING = Html("")


def escaped(text: object) -> str:
    """Text, as it is written in a page; what nobody can see (controls, marks that turn the direction of what follows)
    is shown as a box.

    >>> escaped("<b> & \\"c\\" 'd'")
    '&lt;b&gt; &amp; &quot;c&quot; &#x27;d&#x27;'
    """
    return escape(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", str(text)), quote=True)


def tag(name: str, /, *parts: Part | Iterable[Part], **attributes: Part) -> Html:
    """An element. Parts are escaped unless they are `Html`; so are attributes, of which those that are None are left
    out, a trailing underscore is dropped, and other underscores are dashes.

    >>> str(tag("p", "a < b", tag("b", "c"), class_="x", aria_label='"'))
    '<p class="x" aria-label="&quot;">a &lt; b<b>c</b></p>'
    """
    assert _NAME.match(name), name
    said = "".join(_attribute(key, value) for key, value in attributes.items() if value is not None)
    if name in _VOID:
        return Html(f"<{name}{said}>")
    return Html(f"<{name}{said}>{joined(*parts)}</{name}>")


def _attribute(key: str, value: Part) -> str:
    # viewBox and its like keep their case; the trailing underscore is for names that Python has taken.
    name = key.removesuffix("_").replace("_", "-")
    assert _NAME.match(name), name
    assert not name.startswith("on"), name
    return f' {name}="{_written(value)}"'


def joined(*parts: Part | Iterable[Part]) -> Html:
    """Parts after each other."""
    found: list[str] = []
    for part in parts:
        if part is None:
            continue
        if isinstance(part, Html | str | int | float):
            found.append(_written(part))
        else:
            found.append(str(joined(*part)))
    return Html("".join(found))


def _written(part: Part) -> str:
    return part.text if isinstance(part, Html) else escaped(part)


def stylesheet(css: str) -> Html:
    """A style element; ours alone, from a file of the package."""
    assert "</" not in css
    return Html(f"<style>{css}</style>")
