"""One run per directory: a lock that its holder takes along when it dies."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor, nn

from conftest import cross_entropy, sordino
from sordino.federated import federate
from sordino.methods import dp_sgd
from sordino.runs.lock import LOCK, locked
from sordino.training import train

Toy = tuple[Tensor, Tensor]


def trained(toy: Toy, out: Path, **more: Any) -> Any:
    given: dict[str, Any] = {"method": dp_sgd(), "epochs": 2, "batch_size": 12, "noise_multiplier": 1.0}
    given |= {"delta": 1e-3, "seed": 1, "accountant": "rdp", "out": out, "progress": False}
    return train(nn.Linear(10, 3), cross_entropy, toy, **given | more)


def federated(toy: Toy, out: Path, **more: Any) -> Any:
    given: dict[str, Any] = {"rounds": 2, "clients": 6, "per_round": 2, "batch_size": 5, "engine": "looped"}
    return federate(
        nn.Linear(10, 3), cross_entropy, toy, workers=1, seed=1, out=out, progress=False, **given | more
    )


RUNS = [trained, federated]


@contextmanager
def forked(function: Callable[[Callable[[], None]], None]) -> Iterator[int]:
    """``function`` in another process, from when it says that it is ready; killed in the end."""
    ready, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            function(lambda: (os.write(tell, b"x"), None)[1])
        finally:
            os._exit(1)
    os.close(tell)
    try:
        assert os.read(ready, 1) == b"x"
        yield child
    finally:
        os.close(ready)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("resume", [False, True])
def test_the_second_comer_gets_one_line_and_writes_nothing(
    run: Any, resume: bool, toy: Toy, tmp_path: Path
) -> None:
    out = tmp_path / "run"

    def hold(ready: Callable[[], None]) -> None:
        with locked(out):
            ready()
            time.sleep(60)

    with forked(hold) as holder:
        before = contents(tmp_path)
        message = rf"^another run is writing to {out} \(process {holder}\): wait for it, or choose another"
        with pytest.raises(ValueError, match=message):
            run(toy, out, resume=resume)
        assert contents(tmp_path) == before
    run(toy, out)  # whose holder was killed is free again
    assert not (out / LOCK).exists()


def test_two_threads_are_two_runs(toy: Toy, tmp_path: Path) -> None:
    refused = []

    def second() -> None:
        try:
            trained(toy, tmp_path / "run")
        except ValueError as error:
            refused.append(str(error))

    with locked(tmp_path / "run"):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
    assert refused
    assert "another run is writing" in refused[0]


def test_a_worker_that_outlives_its_run_does_not_hold_the_lock(tmp_path: Path) -> None:
    orphan, told = os.pipe()

    def hold(ready: Callable[[], None]) -> None:
        with locked(tmp_path / "run"):
            if os.fork() == 0:
                os.write(told, f"{os.getpid():10d}".encode())
                time.sleep(60)
                os._exit(0)
            ready()
            time.sleep(60)

    with forked(hold):
        worker = int(os.read(orphan, 10))
        with pytest.raises(ValueError, match="another run"), locked(tmp_path / "run"):
            pass
    try:
        with locked(tmp_path / "run"):
            os.kill(worker, 0)  # it is still there
    finally:
        os.kill(worker, signal.SIGKILL)


def test_a_fork_that_leaves_through_the_lock_does_not_open_it(tmp_path: Path) -> None:
    owner = os.getpid()
    try:
        with locked(tmp_path / "run"):
            child = os.fork()
            if child == 0:
                raise SystemExit  # through the end of the block
            os.waitpid(child, 0)
            assert (tmp_path / "run" / LOCK).exists()
            with pytest.raises(ValueError, match="another run"), locked(tmp_path / "run"):
                pass
    finally:
        if os.getpid() != owner:
            os._exit(0)


def test_never_two_at_a_time_however_many_come_and_go(tmp_path: Path) -> None:
    """The file is unlinked by whoever leaves, while others have it open: their lock on it must not count."""
    folder, children = tmp_path / "a/run", []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            try:
                until, entered = time.monotonic() + 1.0, 0
                while time.monotonic() < until:
                    try:
                        with locked(folder):
                            os.close(os.open(tmp_path / "inside", os.O_CREAT | os.O_EXCL))
                            os.unlink(tmp_path / "inside")
                            entered += 1
                    except ValueError as error:
                        if "another run" not in str(error):
                            raise
                os._exit(0 if entered else 3)
            except BaseException:
                os._exit(1)
        children.append(child)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    assert set(codes) <= {0, 3}
    assert 0 in codes
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_folders_made_for_the_lock_are_removed_if_nothing_came_of_the_run(toy: Toy, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="batch of 5000"):
        trained(toy, tmp_path / "a/b/run", batch_size=5000)
    assert list(tmp_path.iterdir()) == []


def test_without_locks_on_the_file_system_no_run_begins(
    toy: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", unsupported)
    with pytest.raises(ValueError, match=r"without locks .*: choose a directory on a local disk"):
        trained(toy, tmp_path / "run")
    assert not (tmp_path / "run/run.json").exists()
    monkeypatch.undo()
    trained(toy, tmp_path / "run")  # what the attempt has left is in nobody's way


def test_the_command_refuses_a_directory_in_use_with_code_2(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    paid = ["--noise-multiplier", "1", "--delta", "1e-5", "--epochs", "1", "--out", "run"]
    for command in (["train", "digits", *paid], ["reproduce", "adadp-gmm", "--out", "run"]):
        with locked(here / "run"):
            assert sordino(monkeypatch, *command) == 2
        err = capsys.readouterr().err
        assert "another run is writing to run (process" in err
        assert err.splitlines()[-1].startswith("sordino: another run")
    assert list(here.iterdir()) == []
