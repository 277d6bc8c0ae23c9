"""A certificate as it was written: strict JSON of the right shape, or one line that says what is wrong."""

from __future__ import annotations

import json
import math
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from sordino.privacy.certificate import FORMAT
from sordino.privacy.sealing import canonical
from sordino.verifying.schema import complaint

NAME = "certificate.json"
LARGEST = 16 << 20  # bytes; one of a thousand different trees has less than one of these


class Malformed(ValueError):
    """Something that is no certificate."""


def certificate_at(path: Path) -> tuple[dict[str, Any], Path]:
    """The certificate in a file, or in the directory of a run, and where it is."""
    file = path / NAME if path.is_dir() else path
    try:
        if file.stat().st_size > LARGEST:
            raise Malformed(
                f"{file} is too large for a certificate ({file.stat().st_size} bytes): check the name"
            )
        content = file.read_bytes()
    except FileNotFoundError:
        raise Malformed(
            f"there is no {file}: give certificate.json, or the directory of a complete run"
        ) from None
    except OSError as error:
        raise Malformed(f"{file} cannot be read: {error.strerror}") from None
    try:
        return checked(parsed(content)), file
    except Malformed as error:
        raise Malformed(f"{file} is no certificate that can be checked: {error}") from None


def parsed(content: bytes) -> Any:
    """JSON, read strictly: a name once in an object, numbers that are finite."""
    try:
        return json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_once,
            parse_constant=_no_number,
            parse_float=_finite,
        )
    except Malformed:
        raise
    except RecursionError:
        raise Malformed("it is nested too deeply") from None
    except ValueError as error:
        raise Malformed(f"it is not JSON ({error})") from None


def checked(document: Any) -> dict[str, Any]:
    """``document``, if it is of our format and has the shape that the schema describes."""
    if not isinstance(document, dict) or "format" not in document:
        raise Malformed("it does not say its format")
    if document["format"] != FORMAT:
        raise Malformed(f"its format is {document['format']!r}, and this version of Sordino reads {FORMAT!r}")
    try:
        wrong = complaint(document, schema())
        canonical(document)  # or there is something in it that JSON has not
    except RecursionError:
        wrong = "it is nested too deeply"
    except (TypeError, ValueError) as error:
        wrong = f"it is not JSON ({error})"
    if wrong is not None:
        raise Malformed(wrong)
    return document


@lru_cache(maxsize=1)
def schema() -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of certificates."""
    read: dict[str, Any] = json.loads(
        (files("sordino.verifying") / "certificate.schema.json").read_text("utf-8")
    )
    return read


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise Malformed(f"it has {name!r} twice in one place")
        found[name] = value
    return found


def _no_number(text: str) -> Any:
    raise Malformed(f"{text} is no number of JSON")


def _finite(text: str) -> float:
    if not math.isfinite(float(text)):
        raise Malformed(f"{text} is too large a number")
    return float(text)
