"""The guarantee of a run as a JSON document, with every event behind it: anyone can recompute it.

It states what NIST SP 800-226 and the highest transparency tier of OpenDP's registry of deployments ask of a claim of
differential privacy. ``docs/certificate.md`` explains every field, ``verifying/certificate.schema.json`` is its schema.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import ROUND_CEILING, Decimal, localcontext
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from sordino.privacy import dp
from sordino.privacy.accountants import Guarantee, price
from sordino.privacy.budget import check_delta
from sordino.privacy.events import event_from_json, event_to_json, leaves
from sordino.privacy.sealing import sealed
from sordino.privacy.wording import (
    SEED_WARNING,
    about_rho_and_mu,
    claim_in_words,
    events_in_words,
    flavour,
    n_is_public,
    neighbours,
    stands,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from dp_accounting import DpEvent

FORMAT = "sordino-certificate/2"
UNITS = ("example", "user")
ONE_ROW = "one row of the data; somebody who has several rows is protected row by row, not as a whole"
_UNIT_MEANS = {"example": ONE_ROW, "user": "all rows of one user"}
# At which deltas the profile says epsilon. Fixed, so that a certificate has nothing to choose.
PROFILE = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-10)

DEPLOYMENTS = {
    "central": (
        "One trusted party holds the rows, trains and adds the noise. Whoever sees what it hands out needs no trust."
    ),
    "central, for a federation": (
        "Clients train on their own rows; a trusted server bounds, adds up and noises what they send, and sees it "
        "before it is noised. Whoever sees what the server hands out needs no trust."
    ),
}
NO_RATIONALE = "None was given: ask the owner why this epsilon, this delta and this unit."
NOT_COUNTED = (
    "The run was counted in no ledger: what others spent on the same people is not known here, and adds up."
)
COUNTED = "Counted in a ledger across runs: this was its last entry when the certificate was written."
NO_MODEL = "No file of a model belongs to this certificate."
POST_PROCESSING = (
    "Everything that is computed from the noisy sums and public numbers alone, and therefore covered without further "
    "cost: the path of the model, its rates and thresholds, averages of models, the final model, this certificate, and "
    "of the history and the figure all that is not listed as unprotected.",
)
IMPLEMENTATION = {
    "method": "not stated",
    "noise": (
        "Gaussian. Sum and noise are whole multiples of one grid and are added exactly; the tails of the noise do not "
        "end."
    ),
    "floating_point": (
        "The most that one unit can add, which the noise is measured by, holds for the numbers as they are computed, "
        "rounding included."
    ),
    "side_channels": (
        "Time, memory, cache and power follow the data and are not covered. No message, choice, file name or exit code "
        "follows the value of a row."
    ),
    "access": "Nothing was written to a disk.",
}


def certificate(
    *,
    guarantee: Guarantee,
    event: DpEvent,
    unit: str,
    assumptions: Sequence[str],
    seeded: bool,
    created: str,
    units: int | None = None,
    unit_means: str | None = None,
    data: str | None = None,
    domain: str | None = None,
    deployment: str = "central",
    unprotected: Sequence[str] = (),
    post_processing: Sequence[str] = POST_PROCESSING,
    implementation: Mapping[str, str] | None = None,
    secure: bool = False,
    caveat: str | None = None,
    rationale: str | None = None,
    model: Mapping[str, str] | None = None,
    ledger: Mapping[str, Any] | None = None,
    paid_before: str | None = None,
    signing_key: Ed25519PrivateKey | None = None,
) -> dict[str, Any]:
    """A JSON-able certificate of ``guarantee`` for ``event``: plain public facts in, a sealed document out.

    Guarantee: epsilon is written in full, never rounded; infinity, which JSON lacks, as the string "inf". Whatever
    follows from the events is computed here and again by ``sordino verify``.

    Args:
        guarantee: What is promised, as ``price`` gives it for ``event``.
        event: All that was released.
        unit: Whose contribution it is about: example, or user.
        assumptions: Sentences a reader must believe; that n is public is always the first.
        seeded: Whether the noise came from a known seed, which voids the claim.
        created: A timestamp.
        units: How many units there are, if that is stated.
        unit_means: What one unit is, in words.
        data: What its owner calls the data set.
        domain: Which data sets it is about, in words.
        deployment: One of ``DEPLOYMENTS``: who has to be trusted.
        unprotected: What was shown, written or can be seen that the guarantee does not cover.
        post_processing: What was done with the noisy releases.
        implementation: Sentences in the place of our own: method, noise, floating_point, side_channels, access.
        secure: Whether seeds were refused.
        caveat: What every output says beside this epsilon, where its price is no guarantee.
        rationale: Why this epsilon, delta and unit, in the owner's words.
        model: ``file`` and ``sha256`` of what was trained.
        ledger: What ``Account.statement()`` says.
        paid_before: Under which name the ledger has what was released before the run, if anything was.
        signing_key: Of the owner.

    >>> from sordino.privacy import gaussian
    >>> made = certificate(guarantee=price(gaussian(5.0), 1e-5), event=gaussian(5.0), unit="user", assumptions=[],
    ...                    seeded=False, created="2026-01-01T00:00:00Z", units=100)
    >>> made["claim"]["stands"], round(made["guarantee"]["gdp_mu"], 4), recompute(made).epsilon < 0.726
    (True, 0.2, True)
    """
    if unit not in UNITS:
        raise ValueError(f"unit must be one of {', '.join(UNITS)}, not {unit!r}")
    events = event_to_json(event)
    promised = _promised(guarantee, event, unit, unit_means or _UNIT_MEANS[unit], units)
    stated = [n_is_public(guarantee.relation, unit), *assumptions, *([SEED_WARNING] if seeded else [])]
    document = {
        "format": FORMAT,
        "claim": {
            "stands": stands(guarantee.epsilon, seeded, caveat),
            "words": claim_in_words(promised, data, seeded, caveat),
            "caveat": caveat,
        },
        "guarantee": promised,
        "assumptions": stated,
        "unprotected": list(unprotected),
        "data": {"name": data, "domain": domain or _domain(unit)},
        "deployment": {"model": deployment, "trust": DEPLOYMENTS[deployment]},
        "events": events,
        "events_in_words": events_in_words(events),
        "accounting": _accounting(guarantee),
        "post_processing": list(post_processing),
        "implementation": {**IMPLEMENTATION, **_no_noise(guarantee), **(implementation or {})},
        "randomness": {"source": source_of_chance(seeded), "seeded": seeded, "seeds_refused": secure},
        "rationale": rationale or NO_RATIONALE,
        "model": _model(model),
        "ledger": _ledger(ledger, paid_before),
        "versions": versions(),
        "created": created,
    }
    return sealed(document, signing_key)


def _promised(
    guarantee: Guarantee, event: DpEvent, unit: str, unit_means: str, units: int | None
) -> dict[str, Any]:
    return {
        "flavour": flavour(guarantee.epsilon),
        "epsilon": epsilon_to_json(guarantee.epsilon),
        "delta": guarantee.delta,
        "unit": unit,
        "unit_means": unit_means,
        "units": units,
        "relation": guarantee.relation,
        "neighbours": neighbours(guarantee.relation, unit) + ".",
        "gdp_mu": guarantee.gdp_mu,
        "zcdp_rho": guarantee.zcdp_rho,
        "about_mu_and_rho": about_rho_and_mu(guarantee.epsilon, guarantee.zcdp_rho, event_to_json(event)),
        "profile": profile(event, guarantee),
    }


def profile(event: DpEvent, guarantee: Guarantee) -> list[dict[str, float | str]]:
    """The same guarantee at other deltas, by the same accountant: for every epsilon in it, delta(epsilon) is at most
    the delta beside it. Empty where nothing is private."""
    if math.isinf(guarantee.epsilon):
        return []
    found = [(_epsilon_at(delta, event, guarantee), delta) for delta in PROFILE]
    return [{"epsilon": epsilon_to_json(epsilon), "delta": delta} for epsilon, delta in found]


def _epsilon_at(delta: float, event: DpEvent, guarantee: Guarantee) -> float:
    try:
        return price(event, delta, guarantee.accountant, guarantee.conversion).epsilon
    except ValueError:  # a distribution is not exact enough there: RDP proves something at every delta
        return price(event, delta, "rdp").epsilon


def _accounting(guarantee: Guarantee) -> dict[str, str]:
    return {
        "accountant": guarantee.accountant,
        "conversion": guarantee.conversion,
        "composition": (
            "All releases are counted, also those of steps that were rejected or batches that were empty. The plan was "
            "laid down before the first of them, and later releases may depend on earlier ones."
        ),
    }


def _no_noise(guarantee: Guarantee) -> dict[str, str]:
    return {} if math.isfinite(guarantee.epsilon) else {"noise": "None was added."}


def _domain(unit: str) -> str:
    return (
        f"All data sets with this number of {unit}s, and rows of the same shape and type. Their values may be "
        "anything: what cannot be computed counts as zero."
    )


def source_of_chance(seeded: bool) -> str:
    key = "a seed that is known" if seeded else "32 bytes from the operating system, kept secret"
    return f"AES-256 in counter mode, a cryptographic stream; its key is {key}."


def _model(model: Mapping[str, str] | None) -> dict[str, str | None]:
    if model is None:
        return {"file": None, "sha256": None, "note": NO_MODEL}
    return {"file": model["file"], "sha256": model["sha256"], "note": "What was trained, beside this file."}


def _ledger(statement: Mapping[str, Any] | None, before: str | None) -> dict[str, Any]:
    if statement is None:
        return {
            "counted": False,
            "data": None,
            "run": None,
            "length": None,
            "head": None,
            "note": NOT_COUNTED,
        }
    stated = {name: statement[name] for name in ("data", "run", "length", "head")}
    return {"counted": True, **stated, **({} if before is None else {"before": before}), "note": COUNTED}


@lru_cache(maxsize=1)
def _versions() -> tuple[tuple[str, str], ...]:
    names = ("cryptography", "dp-accounting", "numpy", "scipy", "torch")
    found = {"sordino": sordino_version(), "python": platform.python_version()}
    return tuple((found | {name: version(name) for name in names}).items())


def versions() -> dict[str, str]:
    """What computed it, and with which libraries."""
    return dict(_versions())


def recompute(certificate: Mapping[str, Any]) -> Guarantee:
    """The guarantee that the events of ``certificate`` prove, by the accountant that it names; its own epsilon is not
    looked at. ``sordino verify`` does more."""
    if not isinstance(certificate, Mapping) or certificate.get("format") != FORMAT:
        raise ValueError(f"not a certificate of format {FORMAT}")
    try:
        delta = certificate["guarantee"]["delta"]
        event = event_from_json(certificate["events"])
        named = certificate["accounting"]
        accountant, conversion = named["accountant"], named["conversion"]
    except (KeyError, TypeError) as err:
        raise ValueError(f"the certificate is incomplete or malformed: {err}") from err
    if isinstance(delta, bool) or not isinstance(delta, int | float):
        raise ValueError(f"the certificate's delta must be a number, not {delta!r}")
    if delta == 0 and leaves(event) and isinstance(leaves(event)[0][0], dp.NonPrivateDpEvent):
        return replace(price(event, 0.5, "rdp"), delta=0.0)  # a run without privacy needs no delta
    return price(event, check_delta(delta), accountant, conversion)


def epsilon_to_json(epsilon: float) -> float | str:
    """`epsilon`, or the string "inf"."""
    return "inf" if math.isinf(epsilon) else float(epsilon)


def show_epsilon(epsilon: float, digits: int = 4) -> str:
    """`epsilon` for people, with `digits` decimals, never rounded down.

    >>> show_epsilon(7.32911), show_epsilon(3.0, 2), show_epsilon(float("inf"))
    ('7.3292', '3.00', 'inf (not private)')
    """
    if math.isnan(epsilon) or epsilon < 0:
        raise ValueError(f"epsilon must be >= 0, not {epsilon}")
    if math.isinf(epsilon):
        return "inf (not private)"
    with localcontext() as context:
        context.prec = 400  # holds any float with its decimals
        # From repr, the shortest decimal that is this float: 0.1 shows as 0.1000, not as 0.1001.
        shown = Decimal(repr(float(epsilon))).quantize(Decimal(1).scaleb(-digits), rounding=ROUND_CEILING)
    return f"{shown:f}"


def sordino_version() -> str:
    """The installed version, or "unknown" when run from a bare source tree."""
    try:
        return version("sordino")
    except PackageNotFoundError:
        return "unknown"
