"""What is public about a table: which columns there are, and how each is read.

It is written by the owner, as TOML, or drafted from names and types alone. Whatever of it was found out from the rows
says so (`obtained`): under the budget, or by looking, and then there is no guarantee.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from sordino.data.inputs import LARGEST_BOUND, Target, are_bounds

KINDS = ("number", "category", "text", "ignore")
OBTAINED = ("public", "private", "peeked")
TO_FILL_IN = "FILL IN"

TEXT_BUCKETS = 4096
TEXT_WORDS = 128

_MOST_BUCKETS = 1 << 20
_MOST_WORDS = 1 << 14
DELIMITERS = (",", ";", "\t", "|")
# What is said beside a line that is to be filled in.
_HINTS = {
    "kind": '"number" with low and high; "category" with values = [...] or buckets = 64; "text"; or "ignore"',
    "low": "what you know, not what the rows hold",
    "high": "values beyond are put here",
    "values": 'such as ["a", "b"]; or buckets = 64 in its place',
    "labels": 'such as ["no", "yes"]; or low and high in its place, for a number',
}


@dataclass(frozen=True)
class Column:
    """How the cells of a column are read. What is None is still to be filled in.

    Args:
        name: as in the header.
        kind: ``number``, ``category``, ``text``, ``ignore``; None if nobody has said.
        low: of a number: what is below counts as this.
        high: of a number: what is above counts as this.
        log: of a number: on the scale of log(1 + value - low).
        values: of a category, in the order of the model's inputs; any other is "another one".
        buckets: in the place of values: they are hashed to so many, so that none need be known. Of a text: its words
            are.
        words: of a text: how many of them count, the first ones.
        embedding: of a text, in the place of hashed words: ``sentence-transformers:NAME`` or ``MODULE:CALLABLE``.
        obtained: how bounds or values were: ``public`` (the owner's own knowledge), ``private`` (from the rows, under
            the budget) or ``peeked`` (from the rows, which voids the guarantee).

    >>> Column("age", "number", low=0, high=120).missing
    ()
    >>> Column("job", "category").missing
    ('values',)
    """

    name: str
    kind: str | None = None
    low: float | None = None
    high: float | None = None
    log: bool = False
    values: tuple[str, ...] | None = None
    buckets: int | None = None
    words: int | None = None
    embedding: str | None = None
    obtained: str = "public"

    def __post_init__(self) -> None:
        _check_name(self.name)
        where = f"column {self.name!r}"
        if self.kind is not None and self.kind not in KINDS:
            raise ValueError(f"{where} has kind {self.kind!r}: choose one of {', '.join(KINDS)}")
        _check_obtained(where, self.obtained)
        if self.values is not None:
            object.__setattr__(self, "values", _texts(where, "values", self.values))
        _set_bounds(self, where)
        if type(self.log) is not bool:
            raise ValueError(f"{where} has a log that is neither true nor false: write log = true")
        _check_whole(where, "buckets", self.buckets, 2, _MOST_BUCKETS)
        _check_whole(where, "words", self.words, 1, _MOST_WORDS)
        if self.embedding is not None and not (isinstance(self.embedding, str) and ":" in self.embedding):
            raise ValueError(
                f"{where} has an embedding that is none: write sentence-transformers:NAME or MODULE:CALLABLE"
            )
        self._check_keys(where)

    def _check_keys(self, where: str) -> None:
        """Each kind has settings of its own."""
        if self.kind is None:
            return
        own = {
            "number": ("low", "high", "log"),
            "category": ("values", "buckets"),
            "text": ("buckets", "words", "embedding"),
            "ignore": (),
        }[self.kind]
        for name in ("low", "high", "log", "values", "buckets", "words", "embedding"):
            value = getattr(self, name)
            if value is not None and value is not False and name not in own:
                raise ValueError(
                    f"{where} has kind {self.kind!r}, which has no {name}: leave that out, or change the kind"
                )
        if self.values is not None and self.buckets is not None:
            raise ValueError(f"{where} has both values and buckets: give one of them")
        if self.values == () and self.obtained == "public":
            raise ValueError(f"{where} has no values: list them, or write buckets = 64 in their place")
        if self.embedding is not None and (self.buckets is not None or self.words is not None):
            raise ValueError(
                f"{where} has an embedding, which needs neither buckets nor words: leave those out"
            )

    @property
    def missing(self) -> tuple[str, ...]:
        """What is still to be filled in."""
        if self.kind is None:
            return ("kind",)
        if self.kind == "number":
            return tuple(name for name in ("low", "high") if getattr(self, name) is None)
        if self.kind == "category" and self.values is None and self.buckets is None:
            return ("values",)
        return ()

    def to_json(self) -> dict[str, Any]:
        """What differs from the defaults, and what is still to be filled in."""
        return _plain(self, ("name", "kind"))


@dataclass(frozen=True)
class TargetColumn:
    """The column that is predicted: labels of classes, or a number between bounds. What is None is to be filled in.

    Args:
        name: as in the header.
        labels: of the classes, in the order of the model's scores; a row with any other contributes nothing.
        low: of a number, in the place of labels.
        high: of a number.
        numeric: a number, whose bounds are still to be filled in.
        obtained: as in `Column`.

    >>> TargetColumn("income", labels=("low", "high")).target.outputs
    2
    """

    name: str
    labels: tuple[str, ...] | None = None
    low: float | None = None
    high: float | None = None
    numeric: bool = False
    obtained: str = "public"

    def __post_init__(self) -> None:
        _check_name(self.name)
        where = f"target {self.name!r}"
        _check_obtained(where, self.obtained)
        if self.labels is not None:
            object.__setattr__(self, "labels", _texts(where, "labels", self.labels))
            assert self.labels is not None
            if len(self.labels) < 2 and self.obtained == "public":
                raise ValueError(f"{where} needs at least two labels: list all of them")
        _set_bounds(self, where)
        if self.low is not None or self.high is not None:
            object.__setattr__(self, "numeric", True)
        if self.labels is not None and self.numeric:
            raise ValueError(f"{where} has both labels and bounds: give labels, or low and high")

    @property
    def missing(self) -> tuple[str, ...]:
        if self.numeric:
            return tuple(name for name in ("low", "high") if getattr(self, name) is None)
        return ("labels",) if self.labels is None else ()

    @property
    def target(self) -> Target:
        """Complete, as a model's inputs have it."""
        assert not self.missing
        return Target(self.name, self.labels or (), self.low, self.high)

    def to_json(self) -> dict[str, Any]:
        said = _plain(self, ("name",))
        said.pop("numeric", None)  # which follows from its bounds, filled in or not
        return said


@dataclass(frozen=True)
class Missing:
    """Something of a schema that is still to be filled in."""

    column: str
    what: str  # kind, low, high, values, labels


@dataclass(frozen=True)
class Schema:
    """What is public about a table: its target, its columns in the order of the model's inputs, and whose rows are.

    Nothing in it may come from the rows, unless ``obtained`` says how. Columns of a file that it does not name are not
    read.

    Args:
        target: the column that is predicted.
        columns: all others that are read, none of them twice.
        user: the column that says whose a row is, if there is one; it is never an input of the model.
        delimiter: between the cells of a CSV file.

    >>> schema = Schema(TargetColumn("income", labels=("low", "high")), (Column("age", "number"),))
    >>> schema.missing()
    (Missing(column='age', what='low'), Missing(column='age', what='high'))
    >>> Schema.from_toml(schema.with_bounds("age", 0, 120).to_toml()).columns[0].high
    120.0
    """

    target: TargetColumn
    columns: tuple[Column, ...]
    user: str | None = None
    delimiter: str = ","

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", tuple(self.columns))
        if self.user is not None:
            _check_name(self.user)
        if self.delimiter not in DELIMITERS:
            shown = " ".join(map(repr, DELIMITERS))
            raise ValueError(f"a delimiter is one of {shown}, not {self.delimiter!r}")
        names = [self.target.name, *([] if self.user is None else [self.user])]
        names += [each.name for each in self.columns]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(
                    f"column {name!r} is in the schema twice: name it once, as target, as user or as a column"
                )

    @property
    def _all(self) -> tuple[Column | TargetColumn, ...]:
        return (*self.columns, self.target)

    @property
    def is_complete(self) -> bool:
        return not self.missing()

    def missing(self) -> tuple[Missing, ...]:
        """What is still to be filled in, of the target last."""
        return tuple(Missing(each.name, what) for each in self._all for what in each.missing)

    def check_complete(self) -> None:
        """Refuse, in one line, what is still to be filled in."""
        wanted: dict[str, list[str]] = {}
        for each in self.missing():
            wanted.setdefault(each.column, []).append(each.what)
        if wanted:
            listed = "; ".join(f"{name!r} ({' and '.join(what)})" for name, what in wanted.items())
            raise ValueError(f"the schema is not complete: fill in {listed}")
        if not any(each.kind != "ignore" for each in self.columns):
            raise ValueError(
                "the schema has no column to learn from: give at least one a kind besides ignore"
            )

    def with_bounds(self, name: str, low: float, high: float, obtained: str = "private") -> Schema:
        """Bounds for a number, or for a target that is one."""
        return self._with(name, low=low, high=high, obtained=obtained)

    def with_values(self, name: str, values: Sequence[str], obtained: str = "private") -> Schema:
        """Values for a category, or labels for the target."""
        what = "labels" if name == self.target.name else "values"
        return self._with(name, **{what: tuple(values)}, obtained=obtained)

    def _with(self, name: str, **what: Any) -> Schema:
        if name == self.target.name:
            return replace(self, target=replace(self.target, **what))
        if name not in [each.name for each in self.columns]:
            raise ValueError(
                f"the schema has no column {name!r}: it has {listed(each.name for each in self.columns)}"
            )
        return replace(
            self,
            columns=tuple(replace(each, **what) if each.name == name else each for each in self.columns),
        )

    def obtained(self, how: str) -> tuple[str, ...]:
        """Names of the columns whose bounds or values were obtained so."""
        return tuple(each.name for each in self._all if each.obtained == how)

    def to_json(self) -> dict[str, Any]:
        said: dict[str, Any] = {}
        if self.user is not None:
            said["user"] = self.user
        if self.delimiter != ",":
            said["delimiter"] = self.delimiter
        return {**said, "target": self.target.to_json(), "column": [each.to_json() for each in self.columns]}

    @staticmethod
    def from_json(said: Any) -> Schema:
        """The inverse of `to_json`; also of what a TOML file holds."""
        _check_known("the schema", said, ("user", "delimiter", "target", "column"))
        target, columns = said.get("target"), said.get("column", [])
        if not isinstance(target, Mapping):
            raise ValueError('the schema has no target: write [target] and below it name = "..."')
        if not isinstance(columns, list):
            raise ValueError("the columns of a schema are [[column]], in double brackets, each with its name")
        return Schema(
            _target(target),
            tuple(_column(each) for each in columns),
            user=said.get("user"),
            delimiter=said.get("delimiter", ","),
        )

    def to_toml(self, opening: str = "") -> str:
        """As a file for people; ``opening`` is a comment at its top."""
        said = self.to_json()
        lines = [f"# {line}".rstrip() for line in opening.splitlines()]
        lines += [f"{name} = {_toml(said[name])}" for name in ("user", "delimiter") if name in said]
        for title, table in [
            ("[target]", said["target"]),
            *(("[[column]]", each) for each in said["column"]),
        ]:
            lines += ["", title] if lines else [title]
            lines += [_line(name, value) for name, value in table.items()]
        return "\n".join(lines) + "\n"

    @staticmethod
    def from_toml(text: str) -> Schema:
        try:
            said = tomllib.loads(text)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            reason = "it nests too deeply" if isinstance(error, RecursionError) else str(error)
            raise ValueError(f"the schema is no TOML ({reason}): mend it") from None
        return Schema.from_json(said)

    @staticmethod
    def read(path: str | Path) -> Schema:
        """From a TOML file."""
        try:
            return Schema.from_toml(Path(path).read_bytes().decode("utf-8-sig"))
        except OSError as error:
            raise ValueError(f"cannot read {path} ({error.strerror}): check the path") from None
        except UnicodeDecodeError:
            raise ValueError(f"{path} is not UTF-8: save it as such") from None
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None


def listed(names: Any) -> str:
    """Names of columns, which are public, in a message."""
    return ", ".join(map(repr, names)) or "none"


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or not name.strip():
        raise ValueError("a column of the schema has no name: give each one as in the header")
    _check_text("a column's name", name)


def _check_text(what: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} has characters that no file can hold: mend it") from None


def _check_obtained(where: str, obtained: Any) -> None:
    if obtained not in OBTAINED:
        raise ValueError(f"{where} has obtained {obtained!r}: it is one of {', '.join(OBTAINED)}")


def _texts(where: str, what: str, values: Any) -> tuple[str, ...]:
    """Values or labels as text without spaces around them, as cells are compared with them."""
    if isinstance(values, str) or not isinstance(values, Sequence):
        raise ValueError(f'{where} needs a list of {what}, such as ["a", "b"]')
    found = []
    for each in values:
        if type(each) is int:
            each = str(each)
        if not isinstance(each, str):
            raise ValueError(f'{where} has {what} that are no text: put them in quotes, as in ["a", "b"]')
        _check_text(f"one of the {what} of {where}", each)
        found.append(each.strip())
    if "" in found:
        raise ValueError(
            f"{where} has an empty one among its {what}: an empty cell is a missing value, leave it out"
        )
    if len(set(found)) < len(found):
        raise ValueError(f"{where} has one of its {what} twice: name each once")
    return tuple(found)


def _set_bounds(column: Any, where: str) -> None:
    for name in ("low", "high"):
        bound = getattr(column, name)
        if bound is None:
            continue
        try:
            number = math.nan if isinstance(bound, bool | str) else float(bound)
        except (TypeError, ValueError, OverflowError):
            number = math.nan
        if not math.isfinite(number):
            raise ValueError(f"{where} has a {name} that is no number: write one, such as {name} = 100")
        if abs(number) > LARGEST_BOUND:
            raise ValueError(f"{where} has a {name} beyond {LARGEST_BOUND:g}: write one nearer to zero")
        object.__setattr__(column, name, number)
    if column.low is not None and column.high is not None and not are_bounds(column.low, column.high):
        raise ValueError(f"{where} has low {column.low:g} and high {column.high:g}: low must be below high")


def _check_whole(where: str, name: str, value: Any, least: int, most: int) -> None:
    if value is not None and not (type(value) is int and least <= value <= most):
        raise ValueError(f"{where} needs {name} as a whole number from {least} to {most}")


def _check_known(where: str, said: Any, known: Sequence[str]) -> None:
    if not isinstance(said, Mapping):
        raise ValueError(f"{where} is no table of names and values: see docs/tables.md for its form")
    for name in said:
        if name not in known:
            raise ValueError(f"{where} has an unknown key {name!r}: there are {', '.join(known)}")


def _plain(column: Any, always: tuple[str, ...]) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for each in fields(column):
        value = getattr(column, each.name)
        if each.name in column.missing:
            said[each.name] = TO_FILL_IN
        elif each.name in always or value != each.default:
            said[each.name] = list(value) if isinstance(value, tuple) else value
    return said


def _filled(said: Mapping[str, Any]) -> dict[str, Any]:
    return {name: None if value == TO_FILL_IN else value for name, value in said.items()}


def _column(said: Any) -> Column:
    known = [each.name for each in fields(Column)]
    _check_known("a [[column]] of the schema", said, known)
    return Column(**{"name": None, **_filled(said)})


def _target(said: Mapping[str, Any]) -> TargetColumn:
    _check_known("the [target] of the schema", said, ("name", "labels", "low", "high", "obtained"))
    numeric = "low" in said or "high" in said
    if numeric and said.get("labels") == TO_FILL_IN:  # left over in a draft, beside bounds
        said = {name: value for name, value in said.items() if name != "labels"}
    return TargetColumn(**{"name": None, **_filled(said)}, numeric=numeric)


def _line(name: str, value: Any) -> str:
    hint = f"  # {_HINTS[name]}" if value == TO_FILL_IN and name in _HINTS else ""
    return f"{name} = {_toml(value)}{hint}"


def _toml(value: Any) -> str:
    """A value as TOML has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    assert isinstance(value, str)
    return f'"{"".join(map(_escaped, value))}"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return f"\\{character}"
    code = ord(character)
    return f"\\u{code:04x}" if code < 0x20 or 0x7F <= code < 0xA0 or code in (0x2028, 0x2029) else character
