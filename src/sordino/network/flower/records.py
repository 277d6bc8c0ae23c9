"""Our messages inside of Flower's: bytes in arrays, which Flower cuts into pieces and sends once to many."""

from __future__ import annotations

from typing import Any

from flwr.app import Array, ArrayRecord, Message, RecordDict

KIND = "train"  # of all our messages
_OWN, _SHARED = "sordino.question", "sordino.shared"


def content_of(own: bytes, shared: bytes = b"") -> RecordDict:
    """``shared`` is an object of its own: the SuperLink gets it once, whoever it is for."""
    return RecordDict({_OWN: _array(own), **({_SHARED: _array(shared)} if shared else {})})


def bytes_of(message: Message) -> tuple[bytes, bytes]:
    """What a message holds, own and shared; nothing where it holds something else."""
    if not message.has_content():
        return b"", b""
    return _bytes(message.content.get(_OWN)), _bytes(message.content.get(_SHARED))


def _array(content: bytes) -> ArrayRecord:
    return ArrayRecord({"bytes": Array(dtype="uint8", shape=(len(content),), stype="sordino", data=content)})


def _bytes(record: Any) -> bytes:
    if not isinstance(record, ArrayRecord) or list(record) != ["bytes"]:
        return b""
    data = record["bytes"].data
    return data if isinstance(data, bytes) else b""
