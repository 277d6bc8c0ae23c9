"""Noise that was calibrated before: searches, kept in the user's cache, that need not be made again.

A search asks what a plan costs at a dozen noise multipliers and ends at one of them. Where it ends follows from the
costs, they from the events at those multipliers, delta and the accountant, and from the code. All of that is public,
and no row has a part in it. So an entry is found under a digest of the question, of the versions, sources and machine
that answered it, and holds every multiplier that was asked about with a digest of the events there. If a plan has the
same events at all of them, which takes no pricing to see, the search would ask the same and end at the same multiplier,
bit for bit.

That is no reason to believe a file. Whoever writes to the cache could write a smaller multiplier, so whatever is found
there is priced again, once, before it is used: above the budget it is refused, and far below as well, and the search
is made. Pricing once is not lost time: a run has to state what it spends, and prices are kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import platform
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sordino.cache import user_cache
from sordino.privacy.events import event_to_json

if TYPE_CHECKING:
    from dp_accounting import DpEvent

MakeEvent = Callable[[float], "DpEvent"]

_LARGEST_FILE = 1 << 16
_MOST_ASKED = 1000


@dataclass(frozen=True)
class Search:
    """How a search went: what it asked about, the digest of the events there, and where it ended."""

    asked: tuple[float, ...]
    events: str
    noise_multiplier: float


_known: dict[str, Search] = {}  # of this process


def remembered(
    question: Mapping[str, Any],
    make_event: MakeEvent,
    search: Callable[[MakeEvent], float],
    holds: Callable[[float], bool],
) -> float:
    """``search(make_event)``, or where it ended when it was made before, if that ``holds`` today."""
    try:
        key = _digest({**question, "event": event_to_json(make_event(1.0)), **_answered_by()})
    except (ValueError, OSError):  # an event that cannot be stated, or sources that cannot be read
        return search(make_event)
    path = _folder() / f"{key}.json"
    before = _known.get(key) or _read(path)
    if before is not None and _is_the_same(before, make_event) and holds(before.noise_multiplier):
        _known[key] = before
        return before.noise_multiplier

    asked: dict[float, None] = {}

    def noted(noise_multiplier: float) -> DpEvent:
        asked[noise_multiplier] = None
        return make_event(noise_multiplier)

    noise_multiplier = search(noted)
    made = Search(tuple(asked), _events(tuple(asked), make_event), noise_multiplier)
    _known[key] = made
    _write(path, made)
    return noise_multiplier


def _is_the_same(before: Search, make_event: MakeEvent) -> bool:
    return before.noise_multiplier in before.asked and _events(before.asked, make_event) == before.events


def _events(asked: tuple[float, ...], make_event: MakeEvent) -> str:
    try:
        return _digest([event_to_json(make_event(noise_multiplier)) for noise_multiplier in asked])
    except ValueError:  # no such plan at a multiplier that a file made up
        return ""


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@lru_cache(maxsize=1)
def _answered_by() -> dict[str, str]:
    """Last digits depend on all of these."""
    import numpy as np
    import scipy

    sources = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        sources.update(path.read_bytes())
    return {
        "sordino": _version("sordino"),
        "sources": sources.hexdigest(),
        "dp-accounting": _version("dp-accounting"),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "machine": f"{platform.node()} {platform.machine()}",
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _folder() -> Path:
    try:
        return user_cache() / "noise"
    except RuntimeError:  # a user without a home
        return Path(os.devnull) / "noise"


def _read(path: Path) -> Search | None:
    """What is there, if it is anything we could have written. What cannot be read might as well not be there."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(_LARGEST_FILE))
        asked, noise = found["asked"], found["noise_multiplier"]
        if (
            not all(isinstance(z, float) and 0 < z < math.inf for z in (*asked, noise))
            or len(asked) > _MOST_ASKED
        ):
            return None
        return Search(tuple(asked), str(found["events"]), noise)
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return None


def _write(path: Path, made: Search) -> None:
    """Whole or not at all, whoever else writes the same. Where it cannot be written, the search is made again."""
    part = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.part")
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            kept = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            with os.fdopen(kept, "w") as file:
                file.write(json.dumps(asdict(made)))
            os.replace(part, path)
        finally:
            with contextlib.suppress(OSError):
                part.unlink()
