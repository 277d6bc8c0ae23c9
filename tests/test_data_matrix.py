"""The private file of encoded rows: what comes back, who can open it, how much of it is in memory."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sordino.data.matrix as matrix
from sordino.data.matrix import MatrixWriter, as_cells, as_floats


def filled(rows: int, slots: int = 3) -> matrix.Matrix:
    with MatrixWriter(slots) as writer:
        for start in range(0, rows, 10):
            count = min(10, rows - start)
            writer.append(
                np.arange(start * slots, (start + count) * slots, dtype=np.int32).reshape(-1, slots)
            )
        return writer.finished()


def test_rows_come_back_in_any_order_and_all_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "_AT_A_TIME", 50)
    found, whole = filled(25), np.arange(75, dtype=np.int32).reshape(25, 3)
    assert len(found) == 25
    assert (found.take(np.array([24, 0, 7])) == whole[[24, 0, 7]]).all()
    assert found.take(np.array([], dtype=np.int64)).shape == (0, 3)
    assert (np.concatenate(list(found.in_order())) == whole).all()


@pytest.mark.parametrize("index", [-1, 25])
def test_an_index_outside_is_an_error_and_not_another_row(index: int) -> None:
    with pytest.raises(IndexError, match="out of range for 25 rows"):
        filled(25).take(np.array([index]))


def test_floats_keep_every_bit_among_whole_numbers() -> None:
    floats = np.array([[0.1, np.nan], [-0.0, np.inf]], dtype=np.float32)
    assert as_floats(as_cells(floats)).tobytes() == floats.tobytes()


def test_what_was_touched_is_handed_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix, "_RESIDENT", 10 * matrix.FAULT)
    given_back: list[int] = []

    class Watched:
        def __init__(self, real: Any) -> None:
            self.real = real

        def madvise(self, advice: int) -> None:
            given_back.append(advice)
            self.real.madvise(advice)

    found = filled(25)
    monkeypatch.setattr(found, "_map", Watched(found._map))
    for _ in range(3):
        found.take(np.arange(25))
    assert len(given_back) == 3
    assert (found.take(np.arange(25)) == np.arange(75).reshape(25, 3)).all()


def test_the_file_has_no_name_that_anybody_could_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    found = filled(25)
    assert list(tmp_path.iterdir()) == []
    assert os.fstat(found._file.fileno()).st_mode & 0o077 == 0


def test_nothing_is_left_of_it_after_a_kill(tmp_path: Path) -> None:
    code = (
        "import os, signal, numpy as np\nfrom sordino.data.matrix import MatrixWriter\n"
        "w = MatrixWriter(2); w.append(np.zeros((9, 2), dtype=np.int32)); m = w.finished()\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(tmp_path)})
    assert done.returncode == -9
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_gets_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = MatrixWriter(2)

    class Full:
        def write(self, _: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writer, "_file", Full())
    with pytest.raises(ValueError, match=r"there is no room.*set TMPDIR"):
        writer.append(np.zeros((1, 2), dtype=np.int32))
