"""A node's worker, which stays: Flower starts a process for every message, and this one has torch and the rows already.

It is started by the first message, listens on a socket that only its owner can reach, and ends when the node that
started it does, or when nothing was asked for a while. Whoever finds it gone works by itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_IDLE = 1800.0  # seconds without a question
_START = 60.0  # seconds that it may take to be there
_LENGTHS = struct.Struct("<QQ")


def answered(config: Mapping[str, Any], question: bytes, shared: bytes, owner: int) -> bytes | None:
    """The answer of the resident worker of a node so configured, started if there is none; None if it has none to give.

    ``owner`` is the process without which it has nothing to do.
    """
    try:
        place = _place(config)
        with _reached(place, config, owner) as connection:
            connection.sendall(_LENGTHS.pack(len(question), len(shared)))
            connection.sendall(question)
            connection.sendall(shared)
            (size, _) = _LENGTHS.unpack(_read(connection, _LENGTHS.size))
            return _read(connection, size)
    except (OSError, EOFError, ValueError):
        return None


def _place(config: Mapping[str, Any]) -> Path:
    """A socket for these settings and this installation, in a folder of the user's own."""
    told = json.dumps([dict(config), sys.executable, sys.path], sort_keys=True, default=str)
    digest = hashlib.blake2b(told.encode(), digest_size=8).hexdigest()
    folder = Path(tempfile.gettempdir()) / f"sordino-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ValueError(f"{folder} is open to others")
    return folder / f"{digest}.sock"


def _reached(place: Path, config: Mapping[str, Any], owner: int) -> socket.socket:
    with contextlib.suppress(OSError):
        return _connected(place)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen(
        [sys.executable, "-m", "sordino.network.resident", str(place), str(owner)],
        stdin=subprocess.PIPE,
        start_new_session=True,
        env=environment,
    ) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps(dict(config)).encode())
        process.stdin.close()
        process.stdin = None
        end = time.monotonic() + _START
        while time.monotonic() < end and process.poll() is None:
            with contextlib.suppress(OSError):
                found = _connected(place)
                process.returncode = 0  # it is not waited for: it stays
                return found
            time.sleep(0.05)
    raise OSError("it did not start")


def _connected(place: Path) -> socket.socket:
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        found.connect(str(place))
    except OSError:
        found.close()
        raise
    return found


def _read(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        piece = connection.recv(min(size - len(parts), 1 << 20))
        if not piece:
            raise EOFError
        parts += piece
    return bytes(parts)


def serve(place: Path, owner: int, config: Mapping[str, Any]) -> None:
    """Answer one question after the other, until nobody needs it any more."""
    from sordino.network.node import Node, NodeSettings

    node = Node(NodeSettings.of(config))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        temporary = place.with_name(f"{place.name}.{os.getpid()}")
        listening.bind(str(temporary))
        temporary.chmod(0o600)
        listening.listen(8)
        os.replace(temporary, place)  # whoever was there before is found by nobody any more
        listening.settimeout(1.0)
        mine, last = _inode(place), time.monotonic()
        # Until the name leads to a worker that came later, too.
        while time.monotonic() - last < _IDLE and _is_there(owner) and _inode(place) == mine:
            try:
                connection, _ = listening.accept()
            except TimeoutError:
                continue
            with connection, contextlib.suppress(OSError, EOFError):
                connection.settimeout(None)
                own, shared = _LENGTHS.unpack(_read(connection, _LENGTHS.size))
                answer = node.answer(_read(connection, own), _read(connection, shared))
                connection.sendall(_LENGTHS.pack(len(answer), 0))
                connection.sendall(answer)
            last = time.monotonic()


def _is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _inode(place: Path) -> int | None:
    with contextlib.suppress(FileNotFoundError):
        return place.stat().st_ino
    return None


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.stdin.read()))
