"""As much of JSON Schema (draft 2020-12) as the schema of certificates uses; it refuses to read anything else."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Schema = Mapping[str, Any]
_NOTES = {"$schema", "$id", "$defs", "title", "description"}


def complaint(value: Any, schema: Schema) -> str | None:
    """What is wrong with ``value``, and where; None if it is as the schema says.

    >>> complaint({"n": -1}, {"type": "object", "properties": {"n": {"minimum": 0}}})
    'n must be at least 0, not -1'
    """
    return next(_wrong(value, schema, schema, ""), None)


def _wrong(value: Any, schema: Schema, root: Schema, where: str) -> Iterator[str]:
    if "$ref" in schema:
        name = schema["$ref"].removeprefix("#/$defs/")
        yield from _wrong(value, root["$defs"][name], root, where)
    if "anyOf" in schema:
        tried = [list(_wrong(value, each, root, where)) for each in schema["anyOf"]]
        if all(tried):
            yield tried[0][0]
    for keyword, asked in schema.items():
        if keyword in ("$ref", "anyOf") or keyword in _NOTES:
            continue
        if keyword in _SIMPLE:
            wrong = _SIMPLE[keyword](value, asked)
            if wrong is not None:
                yield f"{where or 'it'} {wrong}"
        else:
            yield from _PARTS[keyword](value, asked, schema, root, where)


# Of one value -----------------------------------------------------------------------------------------------


def _is(kind: str, value: Any) -> bool:
    if kind in ("number", "integer"):
        numbers = (int, float) if kind == "number" else int
        return isinstance(value, numbers) and not isinstance(value, bool)
    kinds = {"object": dict, "array": list, "string": str, "boolean": bool, "null": type(None)}
    return isinstance(value, kinds[kind])


def _type(value: Any, asked: str | list[str]) -> str | None:
    kinds = [asked] if isinstance(asked, str) else asked
    return None if any(_is(kind, value) for kind in kinds) else f"must be of type {' or '.join(kinds)}"


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _same(value: Any, asked: Any) -> bool:
    return type(value) is type(asked) and value == asked


def _number(value: Any) -> bool:
    return _is("number", value)


_SIMPLE: dict[str, Callable[[Any, Any], str | None]] = {
    "type": _type,
    "const": lambda v, a: None if _same(v, a) else f"must be {a!r}, not {_shown(v)}",
    "enum": lambda v, a: None if any(_same(v, x) for x in a) else f"must be one of {a}, not {_shown(v)}",
    "minimum": lambda v, a: f"must be at least {a}, not {_shown(v)}" if _number(v) and v < a else None,
    "exclusiveMinimum": lambda v, a: f"must be above {a}, not {_shown(v)}" if _number(v) and v <= a else None,
    "exclusiveMaximum": lambda v, a: f"must be below {a}, not {_shown(v)}" if _number(v) and v >= a else None,
    "pattern": lambda v, a: (
        f"must look like {a}, not {_shown(v)}" if isinstance(v, str) and not re.search(a, v) else None
    ),
    "minLength": lambda v, a: "must not be empty" if isinstance(v, str) and len(v) < a else None,
    "minItems": lambda v, a: f"must have at least {a} items" if isinstance(v, list) and len(v) < a else None,
}


# Of its parts -----------------------------------------------------------------------------------------------


def _below(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _required(value: Any, asked: list[str], _: Schema, __: Schema, where: str) -> Iterator[str]:
    for name in asked if isinstance(value, dict) else []:
        if name not in value:
            yield f"{_below(where, name)} is missing"


def _properties(value: Any, asked: Schema, _: Schema, root: Schema, where: str) -> Iterator[str]:
    for name, part in asked.items() if isinstance(value, dict) else []:
        if name in value:
            yield from _wrong(value[name], part, root, _below(where, name))


def _additional(value: Any, asked: bool | Schema, schema: Schema, root: Schema, where: str) -> Iterator[str]:
    for name in value if isinstance(value, dict) else []:
        if name in schema.get("properties", {}):
            continue
        if asked is False:
            yield f"{_shown(_below(where, name))} is nothing that it has"
        elif isinstance(asked, Mapping):
            yield from _wrong(value[name], asked, root, _below(where, name))


def _items(value: Any, asked: Schema, _: Schema, root: Schema, where: str) -> Iterator[str]:
    for number, each in enumerate(value if isinstance(value, list) else []):
        yield from _wrong(each, asked, root, f"{where}[{number}]")


_PARTS: dict[str, Callable[[Any, Any, Schema, Schema, str], Iterator[str]]] = {
    "required": _required,
    "properties": _properties,
    "additionalProperties": _additional,
    "items": _items,
}
