"""What a run has left behind, and what of it stands."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from sordino.privacy.sealing import digest_of
from sordino.report.account import Account, mapping, number
from sordino.report.html.budget import Standing


@dataclass(frozen=True)
class Kept:
    """The files of a run: run.json, history.jsonl, certificate.json, inputs.json, clients.json; and what a ledger says
    of the data set, if one was asked."""

    summary: Mapping[str, Any]
    history: Sequence[Mapping[str, Any]]
    certificate: Mapping[str, Any] | None = None
    inputs: Mapping[str, Any] | None = None
    clients: Mapping[str, Any] | None = None
    standing: Standing | None = None
    name: str = ""  # by which it is told from others, on a page of several

    @cached_property
    def account(self) -> Account:
        return Account(self.summary, self.history, mapping(self.clients))

    @cached_property
    def verdict(self) -> Verdict:
        return judged(self)

    @property
    def measured(self) -> Mapping[str, Any]:
        """The metrics at the end; of a run that has not ended, those of the last evaluation."""
        found = mapping(self.summary.get("metrics"))
        if any(name != "covered" for name in found):
            return found
        last = (
            line for line in reversed(self.history) if any(name in line for name in self.account.measures)
        )
        line: Mapping[str, Any] = next(last, {})
        return {name: line[name] for name in self.account.measures if name in line}

    def covers(self, name: str) -> bool:
        """Whether a guarantee covers what was measured under this name: only where it was paid for, and the run says
        so in as many words, and the claim stands."""
        said = mapping(self.summary.get("metrics")).get("covered")
        paid = said is True or (isinstance(said, list) and name in said)
        return paid and name != "loss" and self.verdict.stands


@dataclass(frozen=True)
class Verdict:
    """Whether anything is promised to anybody, and if not, why."""

    kind: str  # stands, void, open, unfinished, doubtful
    title: str
    words: str
    reasons: tuple[str, ...] = field(default=())

    @property
    def stands(self) -> bool:
        return self.kind == "stands"

    @property
    def mark(self) -> str:
        """For epsilon wherever it is shown: empty where the claim stands."""
        return {
            "stands": "",
            "void": "not a guarantee",
            "open": "not private",
            "unfinished": "so far",
            "doubtful": "not confirmed",
        }[self.kind]


def judged(run: Kept) -> Verdict:
    """What is promised. Everything that could void it is asked for here again: that a certificate says of itself that
    it stands is not enough."""
    account, claim = run.account, mapping(mapping(run.certificate).get("claim"))
    words = str(claim.get("words", ""))
    promised = mapping(mapping(run.certificate).get("guarantee"))
    epsilon = number(promised.get("epsilon", run.summary.get("epsilon")))
    if math.isinf(epsilon) or (not account.private and account.finished):
        return Verdict(
            "open", "Not private", words or "Nothing is promised to anybody: no noise protects the rows."
        )
    if not account.finished:
        return Verdict("unfinished", "Not finished", _so_far(account))
    voided = tuple(_voids(run, claim))
    if voided:
        return Verdict("void", "Not a guarantee", words or voided[0], voided)
    doubts = tuple(_doubts(run))
    if doubts:
        return Verdict("doubtful", "Not confirmed", words, doubts)
    return Verdict("stands", "The guarantee stands", words)


def _so_far(account: Account) -> str:
    if not account.private:
        return "The run has not ended: this is as far as it came."
    return (
        "The run has not ended, and has no certificate yet: this is as far as it came. What it has released until now "
        "is spent, and more may have been released since its last line."
    )


def _voids(run: Kept, claim: Mapping[str, Any]) -> list[str]:
    found = []
    chance = mapping(mapping(run.certificate).get("randomness"))
    if run.summary.get("seeded") or chance.get("seeded"):
        found.append("The run used a known seed: whoever knows it can take the noise away.")
    for caveat in dict.fromkeys((run.summary.get("caveat"), claim.get("caveat"))):
        if caveat:
            found.append(str(caveat))
    if run.certificate is not None and claim.get("stands") is not True and not found:
        found.append("The certificate says of itself that its claim does not stand.")
    return found


def _doubts(run: Kept) -> list[str]:
    """What does not agree: numbers of one file with those of another, or a certificate with its own digest."""
    if run.certificate is None:
        return ["There is no certificate beside the run: nobody can check what run.json says."]
    found = []
    promised = mapping(run.certificate.get("guarantee"))
    for name in ("epsilon", "delta", "unit"):
        if promised.get(name) != run.summary.get(name):
            found.append(f"run.json and certificate.json do not have the same {name}.")
    try:
        intact = digest_of(run.certificate) == run.certificate.get("digest")
    except (TypeError, ValueError):
        intact = False
    if not intact:
        found.append("The certificate was changed after it was written: its digest is another one.")
    if not mapping(run.certificate.get("claim")).get("words"):
        found.append("The certificate does not say what it claims.")
    return found
