"""Damaged files: never a traceback, never a cell in a message, never half a run that looks whole."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from conftest import sordino
from sordino.data.schema import Column, Schema, TargetColumn

SECRET = "Zebulon"  # in cells of every row, and in no name
SCHEMA = Schema(
    TargetColumn("y", labels=("no", "yes")),
    (
        Column("age", "number", low=0, high=100),
        Column("job", "category", values=("a", "b")),
        Column("t", "text", buckets=8),
    ),
)
ROWS = 12
KINDS = ("csv", "toml", "parquet", "npz")
PIECES = [
    b'"',
    b",",
    b"\n",
    b"\r",
    b"\0",
    b"\xff",
    b"=",
    b"[",
    b"]",
    b"'''",
    b"\xef\xbb\xbf",
    b"nan",
    b"1e999",
    b"-",
]


def sound(kind: str, folder: Path) -> bytes:
    """A file in which nothing is wrong, with secrets in its cells."""
    columns = {
        "age": [str(n) for n in range(ROWS)],
        "job": [f"{SECRET}{n}" for n in range(ROWS)],
        "t": [f"{SECRET} and {SECRET}" for _ in range(ROWS)],
        "y": ["no", "yes"] * (ROWS // 2),
    }
    path = folder / f"sound.{kind}"
    if kind == "csv":
        lines = [",".join(row) for row in zip(*columns.values(), strict=True)]
        return "\n".join([",".join(columns), *lines, ""]).encode()
    if kind == "toml":
        return SCHEMA.to_toml().encode()
    if kind == "parquet":
        pq.write_table(pa.table(columns), path, compression="none")
    else:
        np.savez(
            path,
            x=np.frombuffer((SECRET * 12).encode()[: 7 * ROWS], np.uint8).reshape(ROWS, 7),
            y=np.arange(ROWS) % 2,
        )
    return path.read_bytes()


def mutated(raw: bytes, chance: random.Random) -> bytes:
    """One to four changes anywhere: bytes, pieces that mean something, parts cut out, doubled or moved."""
    data = bytearray(raw)
    for _ in range(chance.randint(1, 4)):
        at, length = chance.randrange(len(data) + 1), chance.choice([1, 2, 8, 40])
        change = chance.randrange(6)
        if change == 0 and at < len(data):
            data[at] = chance.randrange(256)
        elif change == 1:
            data[at:at] = chance.choice(PIECES)
        elif change == 2:
            del data[at : at + length]
        elif change == 3:
            data[at:at] = data[at : at + length] * chance.choice([1, 50])
        elif change == 4:
            data = data[:at] if chance.random() < 0.3 else data
        else:
            data[at : at + length] = bytes(chance.randrange(256) for _ in range(length))
    return bytes(data)


def prepared(kind: str, raw: bytes, folder: Path) -> list[str]:
    """The files, and the command that meets them."""
    data = folder / ("rows.csv" if kind == "toml" else f"rows.{kind}")
    (folder / "schema.toml").write_bytes(raw if kind == "toml" else SCHEMA.to_toml().encode())
    data.write_bytes(sound("csv", folder) if kind == "toml" else raw)
    command = [
        "train",
        str(data),
        "--epsilon",
        "3",
        "--delta",
        "1e-3",
        "--epochs",
        "0.1",
        "--model",
        "linear",
    ]
    return [*command, "--seed", "1", "--out", str(folder / "run"), "--evaluations", "1"]


def try_many(
    kind: str, count: int, monkeypatch: pytest.MonkeyPatch, folder: Path, capfd: pytest.CaptureFixture[str]
) -> Counter[int]:
    chance, codes = random.Random(f"{kind} {count}"), Counter[int]()
    raw = sound(kind, folder)
    for number in range(count):
        here = folder / str(number)
        here.mkdir()
        command = prepared(kind, mutated(raw, chance), here)
        code = sordino(monkeypatch, *command)
        out, err = capfd.readouterr()
        codes[code] += 1
        assert code in (0, 2), (kind, number, err)
        header = (here / "rows.csv").read_bytes().splitlines()[:1] if kind == "csv" else []
        if not any(SECRET.encode() in line for line in header):
            assert SECRET not in out + err, (kind, number)
        assert "Traceback" not in err
        if code == 2:
            told = [
                line for line in err.splitlines() if line.startswith("sordino: ") and "warning" not in line
            ]
            assert len(told) == 1, (kind, number, err)
            assert not (here / "run" / "run.json").exists(), (kind, number)
            assert not (here / "run" / "certificate.json").exists(), (kind, number)
    return codes


@pytest.mark.parametrize("kind", KINDS)
def test_a_sound_file_trains(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert sordino(monkeypatch, *prepared(kind, sound(kind, tmp_path), tmp_path)) == 0
    assert SECRET not in "".join(capfd.readouterr())


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_gets_one_line_or_trains(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    codes = try_many(kind, 15, monkeypatch, tmp_path, capfd)
    assert codes[2] > 0


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_thousands_of_damaged_files(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    codes = try_many(kind, 2500, monkeypatch, tmp_path, capfd)
    with capfd.disabled():
        print(f"\n{kind}: {dict(codes)}")
