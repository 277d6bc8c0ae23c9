"""What tells that nobody has changed a document since it was written: its digest, and its owner's signature.

A digest shows that a number was changed by somebody who did not mend the digest. A signature (Ed25519, RFC 8032) shows
that the document is, to the last letter, the one that the holder of a key has written.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

VARIABLE = "SORDINO_SIGNING_KEY"
ALGORITHM = "Ed25519"
_SEAL = ("digest", "signature")  # what is not part of what is sealed
_HOW = "make one with: openssl genpkey -algorithm ed25519 -out key.pem"


def canonical(value: Any) -> str:
    """JSON in the one form that is hashed: names in order, no spaces, numbers as Python writes them.

    >>> canonical({"b": 1e-05, "a": [True, None]})
    '{"a":[true,null],"b":1e-05}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest_of(document: Mapping[str, Any]) -> str:
    """SHA-256 of everything in ``document`` but its digest and its signature."""
    content = {name: value for name, value in document.items() if name not in _SEAL}
    return hashlib.sha256(canonical(content).encode()).hexdigest()


def sealed(document: Mapping[str, Any], key: Ed25519PrivateKey | None = None) -> dict[str, Any]:
    """``document`` with its digest, and signed if there is a key; else its signature is None."""
    whole = {name: value for name, value in document.items() if name not in _SEAL}
    whole["digest"] = digest_of(whole)
    whole["signature"] = None
    if key is not None:
        whole["signature"] = {
            "algorithm": ALGORITHM,
            "public_key": key.public_key().public_bytes_raw().hex(),
            "value": key.sign(signed_message(whole)).hex(),
        }
    return whole


def signed_message(document: Mapping[str, Any]) -> bytes:
    """What is signed: the format, a space, and the digest, so that no signature of something else will do."""
    return f"{document['format']} {document['digest']}".encode()


def wrong_signature(document: Mapping[str, Any]) -> str | None:
    """What is wrong with the signature of a document; None if it is that of the key it names, or there is none."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    signature = document["signature"]
    if signature is None:
        return None
    try:
        known = Ed25519PublicKey.from_public_bytes(bytes.fromhex(signature["public_key"]))
        known.verify(bytes.fromhex(signature["value"]), signed_message(document))
    except (InvalidSignature, ValueError):
        return f"its signature is not one that the key {signature['public_key']} has given to it"
    return None


def signing_key(given: str | Path | None) -> Ed25519PrivateKey | None:
    """The key in a PEM file: the one that is given, else the one that the environment names; None if there is none."""
    named = given or os.environ.get(VARIABLE) or None
    if named is None:
        return None
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    content = _bytes_of(named)
    try:
        key = load_pem_private_key(content, password=None)
    except TypeError:
        raise ValueError(
            f"the signing key {named} asks for a password: give one without, that only you can read"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError(f"{named} holds no private key in PEM form: {_HOW}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError(f"the signing key {named} is no {ALGORITHM} key: {_HOW}")
    return key


def public_key(path: str | Path) -> str:
    """The public key in a PEM file, as a signature names it."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    content = _bytes_of(path)
    try:
        key = load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError(
            f"{path} holds no public key in PEM form: write it with openssl pkey -in key.pem -pubout -out public.pem"
        ) from None
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError(f"the public key {path} is no {ALGORITHM} key")
    return key.public_bytes_raw().hex()


def _bytes_of(path: str | Path) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"the key {path} cannot be read: {error.strerror}") from None
