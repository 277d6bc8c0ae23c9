"""Public files: found in a folder of the user's, or downloaded once and checked."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from sordino.cache import user_cache

_SOCKET_TIMEOUT = 30.0  # seconds without a single byte
_CHUNK = 1 << 20


@dataclass(frozen=True)
class PublicFile:
    """A published file: where it stands below a data folder, its public home and its published checksum."""

    path: str  # "mnist/train-images-idx3-ubyte.gz"
    url: str
    md5: str


@dataclass(frozen=True)
class Folders:
    """Where named sets are looked for, in order, and where a download goes."""

    chosen: Path | None  # the user's: `root=` or SORDINO_DATA
    cache: Path

    @staticmethod
    def of(root: str | os.PathLike[str] | None = None) -> Folders:
        """The folders to use: `root`, else the environment's SORDINO_DATA; then the user's cache."""
        source = "root"
        if root is None:
            root, source = os.environ.get("SORDINO_DATA") or None, "SORDINO_DATA"
        if root is not None and not Path(root).expanduser().is_dir():
            raise ValueError(
                f"{source} is {os.fspath(root)}, which is not a folder: create it, or point it elsewhere"
            )
        return Folders(None if root is None else Path(root).expanduser(), user_cache())

    def find(self, *paths: str) -> Path | None:
        """The first of these relative paths that exists, or None."""
        for folder in (self.chosen, self.cache):
            for path in paths:
                if folder is not None and (folder / path).exists():
                    return folder / path
        return None

    def fetch(self, file: PublicFile) -> Path:
        """Download a public file into the chosen folder if it is writable, else into the cache."""
        destination = self.cache / file.path
        if self.chosen is not None:
            wanted = self.chosen / file.path
            if os.access(wanted.parent if wanted.parent.exists() else self.chosen, os.W_OK):
                destination = wanted
        try:
            return download(file.url, destination, file.md5)
        except ValueError as error:
            raise ValueError(
                f"{error}; get it yourself and set SORDINO_DATA to a folder with {file.path}"
            ) from None


def download(url: str, destination: Path, md5: str) -> Path:
    """Fetch `url` to `destination`, which appears only when it is whole and its checksum is right."""
    partial = destination.with_name(f".{destination.name}.{os.getpid()}.part")
    # md5 is what is published: good enough to tell a damaged or swapped file from the real one.
    digest = hashlib.md5(usedforsecurity=False)
    try:
        with urllib.request.urlopen(url, timeout=_SOCKET_TIMEOUT) as response:
            destination.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("wb") as out:
                while chunk := response.read(_CHUNK):
                    digest.update(chunk)
                    out.write(chunk)
        if digest.hexdigest() != md5:
            raise ValueError(f"{url} has the wrong checksum (md5 {digest.hexdigest()}, published {md5})")
        os.replace(partial, destination)
    except (OSError, http.client.HTTPException) as error:
        cause = error.reason if type(error) is urllib.error.URLError else error  # the wrapper says less
        reason = " ".join(str(cause).split()) or type(cause).__name__
        raise ValueError(f"could not download {url} to {destination.parent} ({reason})") from None
    finally:
        with contextlib.suppress(OSError):  # never hide the first failure behind a second one
            partial.unlink()
    return destination
