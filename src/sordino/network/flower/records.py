"""Our messages inside of Flower's: bytes in as few objects as there can be, since each is a request of its own."""

from __future__ import annotations

from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

KIND = "train"  # of all our messages
_OWN, _SHARED = "sordino.question", "sordino.shared"
_LARGE = 1 << 22  # bytes from which on an array is better, which Flower cuts into pieces


def content_of(own: bytes, shared: bytes = b"") -> RecordDict:
    """``shared`` is an object of its own: the SuperLink gets it once, whoever it is for."""
    return RecordDict({_OWN: _record(own), **({_SHARED: _record(shared)} if shared else {})})


def bytes_of(message: Message) -> tuple[bytes, bytes]:
    """What a message holds, own and shared; nothing where it holds something else."""
    if not message.has_content():
        return b"", b""
    return _bytes(message.content.get(_OWN)), _bytes(message.content.get(_SHARED))


def _record(content: bytes) -> ConfigRecord | ArrayRecord:
    if len(content) < _LARGE:
        return ConfigRecord({"bytes": content})
    return ArrayRecord({"bytes": Array(dtype="uint8", shape=(len(content),), stype="sordino", data=content)})


def _bytes(record: Any) -> bytes:
    if not isinstance(record, ConfigRecord | ArrayRecord) or list(record) != ["bytes"]:
        return b""
    held = record["bytes"]
    data = held.data if isinstance(held, Array) else held
    return data if isinstance(data, bytes) else b""
