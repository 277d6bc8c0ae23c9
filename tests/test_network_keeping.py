"""What clients keep on their node: two states each, so that a round that did not count can be asked for again."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import torch

from sordino.network.keeping import Kept, forget
from sordino.network.wire import Refused
from sordino.runs.writing import replace_file


def worked(folder: Path, client: int, counted: int, number: int) -> float:
    """A round in which a client adds 1 to what it had after the round that counted; what it had."""
    with Kept.opened(folder, ("h",), 3) as kept:
        vectors, _, _ = kept.read([client], [counted], number)
        had = float(vectors["h"][0, 0])
        kept.write([client], [counted], number, {"h": vectors["h"] + 1}, torch.tensor([0.1 * number]))
    return had


def test_a_round_starts_from_the_last_one_that_counted(tmp_path: Path) -> None:
    assert worked(tmp_path, 5, counted=0, number=1) == 0
    assert worked(tmp_path, 5, counted=1, number=2) == 1
    assert worked(tmp_path, 5, counted=1, number=4) == 1  # the answer of round 2 was lost
    assert worked(tmp_path, 5, counted=1, number=4) == 1  # and the server died in round 4
    assert worked(tmp_path, 5, counted=4, number=6) == 2
    with Kept.opened(tmp_path, ("h",), 3) as kept:
        _, rates, known = kept.read([5, 6], [6, 0], 7)
    assert rates.tolist() == pytest.approx([0.6, 0.0])
    assert known.tolist() == [True, False]


def test_a_round_before_the_last_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    worked(tmp_path, 0, 0, 1)
    worked(tmp_path, 0, 1, 3)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(Refused, match="of an earlier round"):
        worked(tmp_path, 0, 1, 2)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_state_that_is_lost_is_a_client_that_comes_for_the_first_time(tmp_path: Path) -> None:
    worked(tmp_path / "a", 0, 0, 1)
    forget(tmp_path / "a")
    assert not (tmp_path / "a").exists()
    with Kept.opened(tmp_path / "a", ("h",), 3) as kept:
        vectors, _, known = kept.read([0], [1], 2)
    assert not bool(vectors["h"].any())
    assert not bool(known[0])


def test_nothing_counts_before_all_of_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    worked(tmp_path, 0, 0, 1)
    worked(tmp_path, 1, 0, 1)

    def full_disk(source: object, target: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full_disk)
        with pytest.raises(ValueError, match="could not be written"):
            worked(tmp_path, 0, 1, 2)
    assert worked(tmp_path, 0, 1, 2) == 1  # what round 1 left, and nothing of round 2
    assert worked(tmp_path, 1, 1, 2) == 1


def test_a_new_name_is_on_the_disk_before_anybody_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that crashes must not come back with the checkpoint before: a round would be seen twice."""
    done: list[str] = []
    sync, rename = os.fsync, os.replace

    def noted_sync(descriptor: int) -> None:
        done.append("folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "file")
        sync(descriptor)

    def noted_rename(*names: Path) -> None:
        done.append("name")
        rename(*names)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(os, "replace", noted_rename)
    replace_file(tmp_path / "state", b"new")
    assert done == ["file", "name", "folder"]


def test_only_the_owner_reads_it_and_one_at_a_time(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    worked(folder, 0, 0, 1)
    assert all(not path.stat().st_mode & 0o077 for path in [folder, *folder.iterdir()])
    with Kept.opened(folder, ("h",), 3), pytest.raises(ValueError, match="another run is writing"):  # noqa: SIM117
        with Kept.opened(folder, ("h",), 3):
            pass


def test_rates_are_kept_without_vectors_too(tmp_path: Path) -> None:
    with Kept.opened(tmp_path, (), 3) as kept:
        kept.write([2], [0], 1, {}, torch.tensor([0.25]))
    with Kept.opened(tmp_path, (), 3) as kept:
        assert kept.read([2], [1], 2)[1].tolist() == [0.25]
