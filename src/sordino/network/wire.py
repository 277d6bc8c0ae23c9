"""What crosses the network between a server and its nodes: a header of plain data, and vectors in single precision.

Whoever sends it may be anybody. So nothing is unpickled, nothing is believed that was not checked, and a message that
is not exactly what was asked for raises `Refused`, with a reason that quotes nothing of it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

VERSION = 1
HEADER = 1 << 22  # bytes of a header at most, and so many more for each client of a message
PER_CLIENT = 1 << 8
_MAGIC = b"sordino\n"
_START = len(_MAGIC) + 4
_BRACKETS = 100_000  # in a header


class Refused(ValueError):
    """A message that is not what was asked for; its text is the reason, one of a few."""


def packed(header: Mapping[str, Any], vectors: Mapping[str, Tensor]) -> bytes:
    """A message. Vectors are float32, of any shape.

    >>> header, vectors = unpacked(packed({"kind": "round"}, {"theta": torch.ones(2)}), most=1000)
    >>> header["kind"], vectors["theta"]
    ('round', tensor([1., 1.]))
    """
    listed = [[name, list(value.shape)] for name, value in vectors.items()]
    text = json.dumps({**header, "version": VERSION, "vectors": listed}).encode()
    parts = [value.detach().to(torch.float32).contiguous().numpy().tobytes() for value in vectors.values()]
    return b"".join([_MAGIC, len(text).to_bytes(4, "little"), text, *parts])


def unpacked(message: bytes, most: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and vectors of a message of at most so many bytes; raises `Refused` for anything else."""
    if not isinstance(message, bytes | bytearray | memoryview):
        raise Refused("no bytes")
    if len(message) > most:
        raise Refused("too large")
    message = bytes(message)
    if not message.startswith(_MAGIC) or len(message) < _START:
        raise Refused("malformed")
    end = _START + int.from_bytes(message[len(_MAGIC) : _START], "little")
    if end > len(message):
        raise Refused("malformed")
    header = _header(message[_START:end])
    if header.get("version") != VERSION:
        raise Refused("of another version")
    listed = header.pop("vectors", None)
    vectors: dict[str, Tensor] = {}
    for name, shape in _shapes(listed):
        size = 4 * math.prod(shape)
        if name in vectors or end + size > len(message):
            raise Refused("malformed")
        values = np.frombuffer(message, dtype="<f4", count=math.prod(shape), offset=end)
        vectors[name] = _shaped(values, shape)
        end += size
    if end != len(message):
        raise Refused("malformed")
    return header, vectors


def _shaped(values: np.ndarray[Any, Any], shape: tuple[int, ...]) -> Tensor:
    try:
        return torch.from_numpy(values.astype(np.float32)).view(shape)
    except RuntimeError:  # sizes of which one is 0 and others are out of all proportion
        raise Refused("malformed") from None


def _header(text: bytes) -> dict[str, Any]:
    try:
        if text.count(b"[") + text.count(b"{") > _BRACKETS:
            raise Refused("malformed")
        header = json.loads(text.decode())
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise error if isinstance(error, Refused) else Refused("malformed") from None
    if not isinstance(header, dict):
        raise Refused("malformed")
    return header


def _shapes(listed: Any) -> Sequence[tuple[str, tuple[int, ...]]]:
    if not isinstance(listed, list) or len(listed) > 64:
        raise Refused("malformed")
    found = []
    for each in listed:
        if not (isinstance(each, list) and len(each) == 2 and isinstance(each[0], str)):
            raise Refused("malformed")
        name, shape = each
        if not (isinstance(shape, list) and len(shape) <= 4 and all(map(_is_size, shape))):
            raise Refused("malformed")
        found.append((name, tuple(shape)))
    return found


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 40


# What is asked of a header, value by value ----------------------------------------------------------------------------


def text_of(header: Mapping[str, Any], name: str, longest: int = 200) -> str:
    value = header.get(name)
    if not isinstance(value, str) or len(value) > longest or not value.isprintable():
        raise Refused("malformed")
    return value


def whole_of(header: Mapping[str, Any], name: str, least: int = 0, most: int = 1 << 53) -> int:
    value = header.get(name)
    if type(value) is not int or not least <= value <= most:
        raise Refused("malformed")
    return value


def wholes_of(
    header: Mapping[str, Any], name: str, count: int | None = None, most: int = 1 << 63
) -> list[int]:
    values = header.get(name)
    if not isinstance(values, list) or (count is not None and len(values) != count):
        raise Refused("malformed")
    if not all(type(value) is int and 0 <= value < most for value in values):
        raise Refused("malformed")
    return values


def numbers_of(header: Mapping[str, Any], name: str, count: int, least: float, most: float) -> list[float]:
    values = header.get(name)
    if not isinstance(values, list) or len(values) != count:
        raise Refused("malformed")
    if not all(type(value) in (int, float) and least <= value <= most for value in values):  # and no NaN
        raise Refused("malformed")
    return [float(value) for value in values]


def table_of(header: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = header.get(name)
    if not isinstance(value, dict):
        raise Refused("malformed")
    return value


def check_shapes(vectors: Mapping[str, Tensor], wanted: Mapping[str, tuple[int, ...]]) -> None:
    if {name: tuple(value.shape) for name, value in vectors.items()} != dict(wanted):
        raise Refused("of another shape")
