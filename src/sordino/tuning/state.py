"""Where a tuning stands, in its directory: enough to go on and never to spend again.

What a selection must not show (how many runs there are, the losers, the scores) is sealed: encrypted under the key that
also made the noise. That key lies in checkpoint/ as well, as it does for every run, for the owner alone, and is deleted
at the end. So a seal keeps people from learning more by looking into a file; it does not keep the owner's own code out.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from torch import Tensor

from sordino.noise import Streams
from sordino.runs import replace_file
from sordino.runs.checkpoint import Checkpoint

_FILE = "tuning.safetensors"
_NONCE = 12


@dataclass
class Standing:
    """What a checkpoint of a tuning holds. ``progress`` is sealed when it is written."""

    key: str
    seeded: bool
    run: str  # under which a ledger counts it
    ledger: str | None  # which ledger that is
    pinned: dict[str, Any]
    initial: dict[str, Tensor]  # the weights that every candidate starts from
    progress: dict[str, Any] = field(default_factory=dict)

    @property
    def streams(self) -> Streams:
        return Streams(bytes.fromhex(self.key), seeded=self.seeded)

    def save(self, folder: Path) -> None:
        state = {each.name: getattr(self, each.name) for each in fields(self)}
        sealed = Seal(self.streams).close(json.dumps(self.progress).encode())
        Checkpoint({**state, "progress": sealed.hex()}).save(folder, _FILE)

    @staticmethod
    def load(folder: Path) -> Standing | None:
        found = Checkpoint.load(folder, _FILE)
        if found is None:
            return None
        if set(found.state) != {each.name for each in fields(Standing)}:
            raise ValueError(
                f"the checkpoint in {folder} is of another version of Sordino: start the tuning afresh"
            )
        standing = Standing(**found.state)
        opened = Seal(standing.streams).open(bytes.fromhex(found.state["progress"]))
        standing.progress = json.loads(opened)
        return standing


class Seal:
    """AES-GCM under a key of its own, derived from that of the noise."""

    def __init__(self, streams: Streams) -> None:
        self._cipher = AESGCM(hashlib.blake2b(b"seal", key=streams.key, digest_size=32).digest())

    def close(self, content: bytes) -> bytes:
        nonce = os.urandom(_NONCE)
        return nonce + self._cipher.encrypt(nonce, content, None)

    def open(self, sealed: bytes) -> bytes:
        try:
            return self._cipher.decrypt(sealed[:_NONCE], sealed[_NONCE:], None)
        except InvalidTag as error:
            raise ValueError("a sealed file of the tuning was changed: start it afresh") from error

    def close_folder(self, folder: Path, into: Path) -> None:
        """All the files of a folder as one that cannot be read."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for path in sorted(folder.iterdir()):
                if path.is_file():
                    archive.add(path, arcname=path.name)
        replace_file(into, self.close(packed.getvalue()), mode=0o600)

    def open_folder(self, sealed: Path) -> Mapping[str, bytes]:
        """Its files, by name."""
        with tarfile.open(fileobj=io.BytesIO(self.open(sealed.read_bytes()))) as archive:
            found = {member.name: archive.extractfile(member) for member in archive.getmembers()}
            return {name: file.read() for name, file in found.items() if file is not None}
