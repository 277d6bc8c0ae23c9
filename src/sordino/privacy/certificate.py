"""The guarantee of a run as a JSON document, with every event behind it: anyone can recompute it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import ROUND_CEILING, Decimal, localcontext
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from sordino.privacy import dp
from sordino.privacy.accountants import Guarantee, price
from sordino.privacy.budget import check_delta
from sordino.privacy.events import event_from_json, event_to_json, leaves
from sordino.privacy.renyi import SUBSTITUTION

if TYPE_CHECKING:
    from dp_accounting import DpEvent

FORMAT = "sordino-certificate/1"
UNITS = ("example", "user")
N_IS_PUBLIC = (
    "Neighbouring data sets differ by {how} one {unit}; the number of {unit}s, and with it sampling rate and number of "
    "steps, is public."
)
SEED_WARNING = "The run used a known seed: whoever knows it can remove the noise, so the guarantee is void."


def certificate(
    *,
    guarantee: Guarantee,
    event: DpEvent,
    unit: str,
    assumptions: Sequence[str],
    seeded: bool,
    created: str,
) -> dict[str, Any]:
    """A JSON-able certificate of `guarantee` for `event`.

    `assumptions` are sentences a reader must accept (how batches were drawn, for instance); that n is public
    is always among them. `created` is a timestamp the caller chooses. Epsilon is written in full, never
    rounded; infinity, which JSON lacks, as the string "inf".
    """
    if unit not in UNITS:
        raise ValueError(f"unit must be one of {', '.join(UNITS)}, not {unit!r}")
    how = "replacing" if guarantee.relation == SUBSTITUTION else "zeroing out the contribution of"
    stated = [N_IS_PUBLIC.format(how=how, unit=unit), *assumptions]
    if seeded:
        stated.append(SEED_WARNING)
    return {
        "format": FORMAT,
        "guarantee": {
            "epsilon": epsilon_to_json(guarantee.epsilon),
            "delta": guarantee.delta,
            "zcdp_rho": guarantee.zcdp_rho,
            "gdp_mu": guarantee.gdp_mu,
        },
        "unit": unit,
        "relation": guarantee.relation,
        "accountant": guarantee.accountant,
        "conversion": guarantee.conversion,
        "events": event_to_json(event),
        "assumptions": stated,
        "seeded": seeded,
        "sordino_version": sordino_version(),
        "created": created,
    }


def recompute(certificate: Mapping[str, Any]) -> Guarantee:
    """The guarantee that the events of `certificate` prove; its own epsilon is not looked at."""
    if not isinstance(certificate, Mapping) or certificate.get("format") != FORMAT:
        raise ValueError(f"not a certificate of format {FORMAT}")
    try:
        delta = certificate["guarantee"]["delta"]
        event = event_from_json(certificate["events"])
        accountant, conversion = certificate["accountant"], certificate["conversion"]
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
