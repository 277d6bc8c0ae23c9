"""Sources of randomness: one key, and from it a separate stream for each purpose and step.

Every random number is a function of (key, purpose, step), so a step replayed after a crash is the *same*
release and never a second one. The streams are AES-256 in counter mode from OpenSSL (through ``cryptography``):
cryptographically strong, random access by construction, and on processors with AES instructions faster than
the generators numerical libraries use.
"""

from __future__ import annotations

import hashlib
import os
from functools import cached_property

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes

_ZEROS = bytes(1 << 20)


class Streams:
    """All the randomness of one run. The key is a secret: whoever has it can subtract the noise.

    >>> streams = Streams.from_seed(7)
    >>> first = streams.words("noise", 3, 4)
    >>> bool((streams.words("noise", 3, 4) == first).all())   # a replay is the same draw
    True
    >>> bool((streams.words("noise", 4, 4) == first).any())
    False
    """

    def __init__(self, key: bytes, *, seeded: bool) -> None:
        assert len(key) == 32
        self.key = key
        self.seeded = seeded
        self._ciphers: dict[str, algorithms.AES256] = {}
        self._taken = False

    @classmethod
    def from_entropy(cls) -> Streams:
        """A fresh key from the operating system: what a guarantee needs."""
        return cls(os.urandom(32), seeded=False)

    @classmethod
    def from_seed(cls, seed: int) -> Streams:
        """For tests and experiments only: a known seed voids the guarantee."""
        return cls(hashlib.blake2b(f"sordino seed {seed}".encode(), digest_size=32).digest(), seeded=True)

    def take(self) -> None:
        """For one gate only: two of them would make the same noise, which then cancels."""
        if self._taken:
            raise ValueError(
                "these streams belong to another gate already: give each gate streams of its own"
            )
        self._taken = True

    @property
    def identity(self) -> str:
        """A public name for this key: charges of different runs never share a key in a ledger."""
        return hashlib.blake2b(b"identity", key=self.key, digest_size=8).hexdigest()

    def fill(self, purpose: str, step: int, buffer: memoryview) -> None:
        """Fill ``buffer`` with the start of the stream of (purpose, step)."""
        Reader(self, purpose, step).fill(buffer)

    def words(self, purpose: str, step: int, count: int) -> npt.NDArray[np.uint64]:
        """``count`` uniform 64-bit integers."""
        result = np.empty(count, dtype=np.uint64)
        self.fill(purpose, step, result.data.cast("B"))
        return result

    def seed_for(self, purpose: str, step: int) -> int:
        """A seed for other libraries' generators (dropout, initial weights)."""
        return int(self.words(purpose, step, 1)[0] >> np.uint64(1))

    def _cipher(self, purpose: str) -> algorithms.AES256:
        if purpose not in self._ciphers:
            key = hashlib.blake2b(purpose.encode(), key=self.key, digest_size=32).digest()
            self._ciphers[purpose] = algorithms.AES256(key)
        return self._ciphers[purpose]


class Reader:
    """The stream of one (purpose, step), read in pieces."""

    def __init__(self, streams: Streams, purpose: str, step: int) -> None:
        self._streams, self._purpose, self._step = streams, purpose, step

    @cached_property
    def _encryptor(self) -> CipherContext:
        # 64 bits of step, 64 bits of block counter: streams of two steps never overlap.
        nonce = self._step.to_bytes(8, "big") + bytes(8)
        return Cipher(self._streams._cipher(self._purpose), modes.CTR(nonce)).encryptor()

    def fill(self, buffer: memoryview) -> None:
        for start in range(0, len(buffer), len(_ZEROS)):
            part = buffer[start : start + len(_ZEROS)]
            self._encryptor.update_into(memoryview(_ZEROS)[: len(part)], part)

    def word(self) -> int:
        """The next 64 bits of the stream, as a whole number."""
        drawn = bytearray(8)
        self.fill(memoryview(drawn))
        return int.from_bytes(drawn, "little")
