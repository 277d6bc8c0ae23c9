"""Messages that anybody may have sent."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
import torch

from sordino.network.wire import (
    Refused,
    check_shapes,
    numbers_of,
    packed,
    text_of,
    unpacked,
    whole_of,
    wholes_of,
)

HEADER: dict[str, Any] = {"kind": "done", "numbers": [1, 2.5, None, "words"], "more": {"deeper": [1]}}
VECTORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.zeros(0), "c": torch.tensor(1.5)}


def test_what_was_packed_comes_out_as_it_was() -> None:
    header, vectors = unpacked(packed(HEADER, VECTORS), most=10_000)
    assert {name: header[name] for name in HEADER} == HEADER
    assert {name: value.tolist() for name, value in vectors.items()} == {
        k: v.tolist() for k, v in VECTORS.items()
    }


def test_doubles_cross_as_singles_and_not_a_number_stays_one() -> None:
    _, vectors = unpacked(
        packed({}, {"x": torch.tensor([torch.nan, 1e-45, 1 / 3], dtype=torch.float64)}), 1000
    )
    assert vectors["x"].dtype == torch.float32
    assert vectors["x"].isnan().tolist() == [True, False, False]


def test_a_message_is_written_over_by_nobody() -> None:
    message: Any = bytearray(packed({}, {"x": torch.ones(4)}))
    _, vectors = unpacked(message, 1000)
    message[-16:] = bytes(16)
    assert vectors["x"].tolist() == [1.0] * 4
    vectors["x"].zero_()  # and it can be written to


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (b"", "malformed"),
        (b"sordino\n", "malformed"),
        (packed({}, {})[:-1], "malformed"),
        (packed({}, {}) + b"x", "malformed"),
        (packed({}, {"x": torch.ones(3)})[:-4], "malformed"),
        (packed({}, {"x": torch.ones(3)}), "too large"),
        ("text", "no bytes"),
        (None, "no bytes"),
    ],
)
def test_what_is_no_message_is_refused(message: Any, why: str) -> None:
    with pytest.raises(Refused, match=why):
        unpacked(message, 60 if why == "too large" else 10_000)


def _with_header(text: bytes) -> bytes:
    return b"sordino\n" + len(text).to_bytes(4, "little") + text


@pytest.mark.parametrize(
    "text",
    [
        b"[]",
        b"{}",
        b'{"version": 2, "vectors": []}',
        b'{"version": 1}',
        b'{"version": 1, "vectors": [["x", [-1]]]}',
        b'{"version": 1, "vectors": [["x", [1e9]]]}',
        b'{"version": 1, "vectors": [["x", [true]]]}',
        b'{"version": 1, "vectors": [["x", [4611686018427387904, 4611686018427387904]]]}',
        b'{"version": 1, "vectors": [["x", [0]], ["x", [0]]]}',
        b'{"version": 1, "vectors": [["x", [0, 1099511627775, 1099511627775, 5]]]}',
        b'{"version": 1, "vectors": [["x", [0, 0, 0, 0, 0]]]}',
        b'{"version": 1, "vectors": {"x": []}}',
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"\xff\xfe",
        b'{"version": 1, "vectors": []',
    ],
)
def test_headers_that_are_none_are_refused(text: bytes) -> None:
    with pytest.raises(Refused):
        unpacked(_with_header(text), 1 << 24)


def test_values_are_what_they_are_asked_to_be() -> None:
    header = {
        "n": 3,
        "f": 2.5,
        "yes": True,
        "word": "a",
        "long": "x" * 300,
        "bell": "\a",
        "list": [1, 2],
        "nan": [float("nan")],
    }
    assert whole_of(header, "n") == 3
    assert wholes_of(header, "list", 2) == [1, 2]
    assert text_of(header, "word") == "a"
    for call in (
        lambda: whole_of(header, "f"),
        lambda: whole_of(header, "yes"),
        lambda: whole_of(header, "n", most=2),
        lambda: whole_of(header, "absent"),
        lambda: text_of(header, "long"),
        lambda: text_of(header, "bell"),
        lambda: wholes_of(header, "list", 3),
        lambda: wholes_of(header, "list", most=2),
        lambda: numbers_of(header, "nan", 1, 0.0, 1.0),
        lambda: numbers_of(header, "list", 2, 0.0, 1.0),
        lambda: check_shapes({"x": torch.ones(2)}, {"x": (3,)}),
        lambda: check_shapes({"x": torch.ones(2)}, {}),
    ):
        with pytest.raises(Refused):
            call()


def test_random_damage_is_refused_or_gives_what_the_header_says() -> None:
    chance, good = random.Random(0), packed(HEADER, VECTORS)
    refused: list[str] = []
    for _ in range(3000):
        message = bytearray(good)
        for _ in range(chance.choice((1, 1, 2, 8))):
            message[chance.randrange(len(message))] = chance.randrange(256)
        if chance.random() < 0.3:
            del message[chance.randrange(len(message)) :]
        try:
            header, vectors = unpacked(bytes(message), 10_000)
            json.dumps(header)
            assert all(value.dtype == torch.float32 for value in vectors.values())
        except Refused as why:
            refused.append(str(why))
    assert len(refused) > 1000
    assert set(refused) <= {"malformed", "of another version"}  # and nothing is quoted
