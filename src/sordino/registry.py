"""What a table of names can do: load a thing, check its settings, say what there is.

The tables themselves are in `named.py`.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

_ALSO_CALLED = {"lr": "learning_rate", "eta": "learning_rate", "C": "threshold", "max_grad_norm": "threshold"}


@dataclass(frozen=True)
class Entry:
    """A line of a table."""

    home: Any  # module:attribute below sordino, loaded when it is asked for; or the thing itself
    about: str  # one line of help
    takes: str = ""  # the setting that may follow a colon, as in dirichlet:0.3
    example: str = ""  # a value of it
    settings: Mapping[str, Any] = field(default_factory=dict)  # those that make it what its name says
    facts: Mapping[str, Any] = field(default_factory=dict)  # what must be known of it before it is loaded


class Registry(Mapping[str, Any]):
    """Names, and what they stand for: functions and classes that make the thing from its settings.

    >>> from sordino.named import METHODS
    >>> METHODS["dp-sgd"](learning_rate=0.1).rate
    Constant(learning_rate=0.1)
    >>> METHODS.named("dp-sgd", {"learning_rate": "fast"})
    Traceback (most recent call last):
    ValueError: learning_rate must be a number, not 'fast'
    """

    def __init__(
        self,
        kind: str,
        entries: Mapping[str, Entry],
        *,
        also: str = "",
        unknown: str = "there is no {kind} {name!r}: choose one of {names}",
        prefix: str = "",
        given: Sequence[str] = (),
        parts: Mapping[str, Registry] | None = None,
    ) -> None:
        """``also`` is what may stand in place of a name, ``prefix`` what may stand before it without a meaning here.
        ``given`` are arguments that are the program's and not the user's, and ``parts`` are settings that have names
        of their own."""
        self.kind, self.entries, self.also, self.prefix = kind, dict(entries), also, prefix
        self.wording, self._given, self._parts = unknown, tuple(given), dict(parts or {})

    def __getitem__(self, name: str) -> Any:
        entry = self.entries[name]
        found = registered(entry.home) if isinstance(entry.home, str) else entry.home
        if isinstance(found, Mapping):  # a family, whose module has a table of its own
            found = found[name]
        return partial(found, **entry.settings) if entry.settings else found

    def __contains__(self, name: object) -> bool:
        return name in self.entries  # without loading it

    def __iter__(self) -> Iterator[str]:
        return iter(self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def key(self, name: str, text: str = "") -> str:
        """The name as the table has it; a name that is not in it raises, and says what there is."""
        key = name.replace("_", "-").removeprefix(self.prefix)
        if key not in self.entries:
            raise ValueError(self.unknown(text or name))
        return key

    def unknown(self, name: str) -> str:
        text = self.wording.format(kind=self.kind, name=name, names=", ".join(map(self.written, self)))
        close = difflib.get_close_matches(name.lower().replace("_", "-"), self, n=1)
        return (
            text
            + (f", or {self.also}" if self.also else "")
            + (f"; did you mean {close[0]}?" if close else "")
        )

    def written(self, name: str) -> str:
        """The name with what may follow it, in capitals."""
        takes = self.entries[name].takes
        return f"{name}:{takes.upper()}" if takes else name

    def help(self, but: str = "") -> str:
        """For an option of the command line: the names with what they are, without those of the fact ``but``."""
        listed = {name: entry.about for name, entry in self.entries.items() if but not in entry.facts}
        text = ", ".join(f"{self.written(name)} ({about})" for name, about in listed.items())
        return text + (f"; or {self.also}" if self.also else "")

    def settings(self, name: str) -> dict[str, inspect.Parameter]:
        """What a user may set."""
        known = inspect.signature(self[name]).parameters
        return {setting: parameter for setting, parameter in known.items() if setting not in self._given}

    def named(self, name: str, settings: Mapping[str, Any] | None = None, /, *given: Any, **more: Any) -> Any:
        """The thing called ``name`` with some settings changed; what does not exist or fit raises and says what does.

        What the program gives besides is not checked.
        """
        key = self.key(name)
        chosen = dict(settings or {})
        known = self.settings(key)
        for setting, value in chosen.items():
            if setting not in known:
                raise ValueError(
                    f"{key} has no setting {setting!r}: it has {', '.join(known) or 'none'}{meant(setting, known)}"
                )
            if setting in self._parts:
                chosen[setting] = self._parts[setting].part(value)
            if not _fits(chosen[setting], known[setting]):
                raise ValueError(f"{setting} must be {_wanted(known[setting])}, not {value!r}")
        for setting, parameter in known.items():
            if parameter.default is parameter.empty and setting not in chosen:
                raise ValueError(f"{key} needs its {setting}{self._as_in(key)}")
        return self[key](*given, **more, **chosen)

    def parsed(self, text: str, /, *given: Any, **more: Any) -> Any:
        """The thing written as NAME, NAME:VALUE or either with ,SETTING=VALUE behind it.

        >>> from sordino.named import PARTITIONS
        >>> PARTITIONS.parsed("dirichlet:0.3,spread=0.5")
        Dirichlet(alpha=0.3, spread=0.5)
        """
        head, *rest = text.replace(" ", "").split(",")
        name, colon, first = head.partition(":")
        key = self.key(name, text)
        takes = self.entries[key].takes
        if colon and not takes:
            raise ValueError(f"{key} takes no number: write {key}")
        known = {setting: p for setting, p in self.settings(key).items() if _is_plain(p)}
        chosen: dict[str, Any] = {}
        for each in ([f"{takes}={first}"] if colon else []) + rest:
            setting, equals, value = each.partition("=")
            if not equals or setting not in known:
                raise ValueError(
                    f"there is no {self.kind} {text!r}: {key} has the settings {', '.join(known) or 'none'}, written "
                    f"as in {key},{next(iter(known), 'setting')}=VALUE"
                )
            chosen[setting] = value_of(value)
            if {"float", "int"} & set(_kinds(known[setting])) and not _fits(chosen[setting], known[setting]):
                wanted = _wanted(known[setting]).removeprefix("a ")
                raise ValueError(f"{value!r} in the {self.kind} {text!r} is no {wanted}")
        return self.named(key, chosen, *given, **more)

    def part(self, value: Any) -> Any:
        """A part that is given as itself, or as what `parsed` reads."""
        return self.parsed(value) if isinstance(value, str) else value

    def markdown(self) -> str:
        """A table for the documents: names, what they are, and their settings with their defaults."""
        rows = [
            (f"`{self.written(name)}`", entry.about, self._defaults(name))
            for name, entry in self.entries.items()
        ]
        heads: tuple[str, ...] = (self.kind, "what it is", "settings")
        if not any(settings for _, _, settings in rows):
            heads, rows = heads[:2], [row[:2] for row in rows]  # type: ignore[misc]
        lines = [heads, ("---",) * len(heads), *rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def _defaults(self, name: str) -> str:
        if not callable(self[name]):
            return ""
        shown = {}
        for setting, p in self.settings(name).items():
            if setting in self._parts:
                shown[setting] = f"={self._parts[setting].name_of(p.default)}"
            elif _is_plain(p):
                shown[setting] = "" if p.default is p.empty else f"={_shown(p.default)}"
        return ", ".join(f"`{setting}{default}`" for setting, default in shown.items())

    def name_of(self, thing: Any) -> str:
        """The name under which a table has a thing that was made with no settings; of a name itself that name."""
        return thing if isinstance(thing, str) else next(name for name in self if self.named(name) == thing)

    def _as_in(self, key: str) -> str:
        example = self.entries[key].example
        return f": write it as in {key}:{example}" if example else ""


def meant(setting: str, known: Iterable[str]) -> str:
    """The end of a message about a setting that there is not: which one may have been meant.

    >>> meant("lr", ["learning_rate", "decay"])
    '; did you mean learning_rate?'
    """
    known = list(known)
    close = difflib.get_close_matches(_ALSO_CALLED.get(setting, setting), known, n=1)
    return f"; did you mean {close[0]}?" if close else ""


def registered(home: str) -> Any:
    """What is at module:attribute below sordino."""
    module, _, path = home.partition(":")
    found = importlib.import_module(f"sordino.{module}")
    for attribute in path.split("."):
        found = getattr(found, attribute)
    return found


def value_of(text: str) -> Any:
    """What somebody writes for a value: a number, true, false, none, or a word.

    >>> [value_of(text) for text in ("3", "1e-3", "True", "none", "nan", "cosine")]
    [3, 0.001, True, None, nan, 'cosine']
    """
    word = text.lower()
    if word == "none":
        return None
    try:
        return json.loads(word if word in ("true", "false") else text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return text


_WORDS = {
    "float": "a number",
    "int": "a whole number",
    "bool": "true or false",
    "str": "a word",
    "None": "none",
}


def _kinds(parameter: inspect.Parameter) -> list[str]:
    """The plain types among those a parameter may have, so not those inside of tuples."""
    words = re.findall(r"\w+", re.sub(r"\w+\[.*\]", "", str(parameter.annotation)))
    return [kind for kind in _WORDS if kind in words]


def _is_plain(parameter: inspect.Parameter) -> bool:
    """Whether somebody can write a value down."""
    return bool(set(_kinds(parameter)) - {"None"})


def _wanted(parameter: inspect.Parameter) -> str:
    return " or ".join(_WORDS[kind] for kind in _kinds(parameter)) or f"a {parameter.annotation}"


def _fits(value: Any, parameter: inspect.Parameter) -> bool:
    kinds, words = _kinds(parameter), set(re.findall(r"\w+", str(parameter.annotation)))
    if parameter.annotation is parameter.empty:
        return True
    if not isinstance(value, bool | int | float | str | None):
        return bool(words - set(_WORDS))  # its owner knows how to check an object, if it takes any
    if isinstance(value, int) and not isinstance(value, bool):
        return "int" in kinds or "float" in kinds
    return ("None" if value is None else type(value).__name__) in kinds


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


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
