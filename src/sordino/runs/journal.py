"""What was released, as digests under the run's key: a replayed release is the same, or the run does not go on."""

from __future__ import annotations

import hashlib
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from torch import Tensor

from sordino.gate import Released
from sordino.runs.writing import Lines


class ReleaseJournal:
    """Noise is a function of (key, step). A replay that comes to another sum, because rows, the model or the machine
    changed, or a client failed that did not fail before, would give away the difference of the two.

    So each release, gradient and probes, is digested before anything is made of it. The lines are in the file at
    once, which is what a killed process needs; ``sync`` brings them to the disk, which is what a crash of the machine
    needs, before anything that follows from them is shown or written elsewhere.

    The digest is GMAC (AES-GCM of no text), under a key of its own that lies beside the run's. Whoever chooses rows
    does not know that key, and for whoever does not, two different messages have the same tag with a probability below
    their number of blocks over 2^128. Hashes that are safe without a key cost more than is needed: for a million
    numbers 2.6 ms (SHA-256) or 6.7 (BLAKE2b), and GMAC 0.5, less than a tenth of what their noise takes.
    """

    def __init__(self, folder: Path, key: bytes) -> None:
        self._lines = Lines(folder / "releases.txt", mode=0o600)
        self._mac = AESGCM(hashlib.blake2b(b"release journal", key=key, digest_size=32).digest())
        self._known = dict(line.split(" ", 1) for line in self._lines.read())

    def record(self, released: Released) -> None:
        """Before anything is made of a release. Raises ValueError if it is another than the first time."""
        digest = self._digest(released)
        known = self._known.get(str(released.step))
        if known is None:
            self._lines.append(f"{released.step} {digest}")
        elif known != digest:
            raise ValueError(
                "a repeated step came to another result, which under the same noise must not be shown: resume as the "
                "run was started, with the same rows on the same machine (a client may have failed this time only)"
            )

    def sync(self) -> None:
        """Before anything that follows from a release is shown, or written where a crash would not lose it."""
        self._lines.sync()

    def _digest(self, released: Released) -> str:
        parts: list[bytes | memoryview] = [_bytes_of(released.gradient)]
        numbers = ""
        for name, value in sorted(released.probes.items()):
            if isinstance(value, Tensor):
                parts.append(_bytes_of(value))
            numbers += f"{name} {'vector' if isinstance(value, Tensor) else float(value).hex()} "
        parts.append(numbers.encode())
        step = released.step.to_bytes(
            8, "big", signed=True
        )  # what comes before the first step has one below 0
        return b"".join(
            self._mac.encrypt(step + place.to_bytes(4, "big"), b"", part) for place, part in enumerate(parts)
        ).hex()


def _bytes_of(vector: Tensor) -> memoryview:
    return vector.detach().cpu().contiguous().view(-1).numpy().data.cast("B")
