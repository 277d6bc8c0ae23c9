"""Private rows in a file without a name."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
import torch

import sordino.data.matrix as matrix
from sordino.data.kept import KeptExamples, counted, nameless


def examples() -> KeptExamples:
    mapped = nameless((4, 3), torch.float16)
    mapped.rows.copy_(torch.arange(12).reshape(4, 3))
    return KeptExamples(mapped, torch.tensor([0, 1, 0, 1]), torch.tensor([True, True, False, True]))


def test_nothing_is_left_on_the_disk_not_even_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    rows = examples()
    assert list(tmp_path.iterdir()) == []
    assert rows.take(torch.tensor([3]))[0].tolist() == [[9, 10, 11]]
    assert list(tmp_path.iterdir()) == []


def test_a_row_that_cannot_be_read_is_left_out_and_is_zeros_to_whom_must_have_all() -> None:
    rows = examples()
    found, inputs, targets = rows.take_readable(torch.tensor([3, 2, 0]))
    assert found.tolist() == [0, 2]
    assert inputs.tolist() == [[9, 10, 11], [0, 1, 2]]
    assert targets.tolist() == [1, 0]
    assert rows.take(torch.tensor([2]))[0].tolist() == [[0, 0, 0]]
    with pytest.raises(IndexError):
        rows.take(torch.tensor([4]))


def test_fingerprints_tell_rows_targets_and_keys_apart() -> None:
    key = b"k"
    one, same, other = examples(), examples(), examples()
    other.stored[1, 1] = 7
    assert one.fingerprint(key) == same.fingerprint(key)
    assert len({one.fingerprint(key), other.fingerprint(key), one.fingerprint(b"l")}) == 3
    readable = KeptExamples(nameless((1, 1), torch.uint8), torch.tensor([0]), torch.tensor([True]))
    unreadable = KeptExamples(nameless((1, 1), torch.uint8), torch.tensor([0]), torch.tensor([False]))
    assert readable.fingerprint(key) != unreadable.fingerprint(key)


def test_a_full_disk_gets_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(
        ValueError, match=r"no room for .* MiB of rows in .* \(No space left on device\): set TMPDIR"
    ):
        nameless((1000, 1000), torch.float32)


def test_memory_is_handed_back_and_nothing_is_lost_by_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "_RESIDENT", 1)
    rows = examples()
    for _ in range(3):
        assert rows.take(torch.tensor([1]))[0].tolist() == [[3, 4, 5]]


def test_a_line_says_how_far_it_is_if_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    assert list(counted(iter("abc"), 3, "reading", show=False)) == ["a", "b", "c"]
    assert capsys.readouterr().err == ""
    assert list(counted(iter("abc"), 3, "reading", show=True)) == ["a", "b", "c"]
    assert "reading" in capsys.readouterr().err
