"""`verify`: from a certificate to whether it is true, and what was checked to say so."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sordino.ledger import VARIABLE, LedgerFile
from sordino.privacy.certificate import show_epsilon
from sordino.privacy.sealing import digest_of, public_key, wrong_signature
from sordino.verifying.evidence import wrong_ledger, wrong_model
from sordino.verifying.numbers import confirming, wrong_numbers
from sordino.verifying.pricing import Priced, prices
from sordino.verifying.reading import certificate_at, checked

_UNSIGNED = (
    "its digest is that of what it says, so nothing was changed by accident; it is not signed, so who wrote it is not "
    "known"
)
_MOST_COMPLAINTS = 3  # in one line


class Refuted(ValueError):
    """A certificate that is not what was written, or says what is not so: what, in one line."""


@dataclass(frozen=True)
class Check:
    """Something that was checked and is in order; or that could not be checked, and why."""

    what: str
    done: bool
    detail: str

    def to_json(self) -> dict[str, Any]:
        return {"what": self.what, "checked": self.done, "detail": self.detail}


@dataclass(frozen=True)
class Verification:
    """A certificate that holds. ``stands`` is whether it promises anything: that of a seeded run does not."""

    document: Mapping[str, Any]
    checks: tuple[Check, ...]
    prices: tuple[Priced, ...]

    @property
    def stands(self) -> bool:
        return bool(self.document["claim"]["stands"])

    @property
    def epsilon(self) -> float:
        return float(self.document["guarantee"]["epsilon"])

    def to_json(self) -> dict[str, Any]:
        return {
            "verified": True,
            "stands": self.stands,
            "claim": self.document["claim"]["words"],
            "epsilon": self.document["guarantee"]["epsilon"],
            "delta": self.document["guarantee"]["delta"],
            "checks": [each.to_json() for each in self.checks],
            "prices": [each.to_json() for each in self.prices],
        }


def verify(
    certificate: str | Path | Mapping[str, Any],
    *,
    ledger: str | Path | None = None,
    public_key: str | Path | None = None,
    model: str | Path | None = None,
) -> Verification:
    """Check a certificate: its digest and signature, every number in it that follows from its events, the model beside
    it, and the ledger that counted the run.

    Guarantee: what is returned says what it has checked and what it could not; anything that is not as stated raises
    `ValueError` with what it is. No training code takes part, and the private data is not needed.

    Args:
        certificate: certificate.json, the directory of a run, or the document itself.
        ledger: the file in which the run was counted; by default the one that ``SORDINO_LEDGER`` names.
        public_key: a PEM file with the Ed25519 key that must have signed it.
        model: the file of the model; by default the one beside the certificate, if it is there.

    >>> import torch, sordino as sd
    >>> rows = torch.ones(50, 2), torch.zeros(50)
    >>> loss = lambda output, y: (output[:, 0] - y) ** 2
    >>> run = sd.train(torch.nn.Linear(2, 1), loss, rows, budget=(3, 1e-3), epochs=1, accountant="rdp")
    >>> verify(run.certificate).stands
    True
    >>> run.certificate["guarantee"]["epsilon"] /= 2
    >>> try:
    ...     verify(run.certificate)
    ... except ValueError as error:
    ...     print(str(error)[:53])
    the certificate does not hold: its digest is not that
    """
    file: Path | None = None
    if isinstance(certificate, Mapping):
        document = checked(dict(certificate))
    else:
        document, file = certificate_at(Path(certificate))
    found = _Findings("the certificate" if file is None else str(file))
    found.note(*_sealed(document, public_key))
    priced = _repriced(document, found)
    found.note(*_model(document, file, None if model is None else Path(model)))
    found.note(*_counted(document, ledger))
    found.refute()
    return Verification(document, tuple(found.checks), priced)


class _Findings:
    def __init__(self, name: str) -> None:
        self.name, self.checks, self.complaints = name, list[Check](), list[str]()

    def note(self, check: Check, complaints: Sequence[str]) -> None:
        self.checks.append(check)
        self.complaints += complaints

    def refute(self) -> None:
        """Raise, if there is anything to complain of."""
        if not self.complaints:
            return
        more = len(self.complaints) - _MOST_COMPLAINTS
        said = "; ".join(self.complaints[:_MOST_COMPLAINTS]) + (f"; and {more} more" if more > 0 else "")
        raise Refuted(f"{self.name} does not hold: {said}")


Found = tuple[Check, Sequence[str]]


def _sealed(document: Mapping[str, Any], asked: str | Path | None) -> Found:
    complaints = []
    if document["digest"] != digest_of(document):
        complaints.append("its digest is not that of what it says, so something in it was changed")
    wrong = wrong_signature(document)
    if wrong is not None:
        complaints.append(wrong)
    wanted = None if asked is None else public_key(asked)
    signed = document["signature"]
    if wanted is not None and signed is None:
        complaints.append("it is not signed")
    elif wanted is not None and signed["public_key"] != wanted:
        complaints.append(f"it is signed with another key than {asked}: {signed['public_key']}")
    if signed is None:
        return Check("content", True, _UNSIGNED), complaints
    whose = (
        "the key you gave" if wanted else "whether that key is the owner's is for you to know (--public-key)"
    )
    return Check(
        "seal", True, f"digest and signature hold; signed with {signed['public_key']}, {whose}"
    ), complaints


def _repriced(document: Mapping[str, Any], found: _Findings) -> tuple[Priced, ...]:
    try:
        delta = float(document["guarantee"]["delta"])
        # One that is refuted already is not worth the time of every accountant.
        priced = prices(document["events"], delta) if 0 < delta < 1 and not found.complaints else ()
        complaints = wrong_numbers(document, priced)
    except (ValueError, ArithmeticError, RecursionError) as error:
        raise Refuted(f"{found.name} does not hold: its events have no price ({error})") from None
    by = document["accounting"]["accountant"]
    if math.isinf(float(document["guarantee"]["epsilon"])):
        said = "its events promise nothing, as it says"
    else:
        others = [f"{each.name} {show_epsilon(each.epsilon or 0.0)}" for each in confirming(document, priced)]
        confirmed = ", ".join(others) or "nobody besides, whose bounds are all looser"
        said = f"its events cost what it says by {by}; proved independently by {confirmed}"
    found.note(Check("numbers", True, said), complaints)
    return priced


def _model(document: Mapping[str, Any], file: Path | None, given: Path | None) -> Found:
    stated = document["model"]
    if stated["file"] is None:
        wrong = ["it is about no file of a model"] if given is not None else []
        return Check("model", False, stated["note"]), wrong
    path = given or (None if file is None else file.parent / stated["file"])
    if path is None or (given is None and not path.exists()):
        return Check(
            "model",
            False,
            f"there is no {stated['file']} beside it; it would have SHA-256 {stated['sha256']}",
        ), []
    wrong_file = wrong_model(stated, path)
    return Check("model", True, f"{path} is the model that it is about"), [] if wrong_file is None else [
        wrong_file
    ]


def _counted(document: Mapping[str, Any], given: str | Path | None) -> Found:
    stated, named = document["ledger"], given or os.environ.get(VARIABLE) or None
    if not stated["counted"]:
        wrong = [] if given is None else ["it was counted in no ledger"]
        return Check("ledger", False, stated["note"]), wrong
    whose = f"run {stated['run']} on {stated['data']!r}"
    if named is None:
        return Check(
            "ledger", False, f"it says that it was counted as {whose}: give the ledger (--ledger)"
        ), []
    wrong_book = wrong_ledger(document, LedgerFile(named))
    told = f"{named} is whole, and has counted {whose}, with these events"
    return Check("ledger", True, told), [] if wrong_book is None else [wrong_book]
