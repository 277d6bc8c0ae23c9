"""Whatever in a certificate follows from something else in it is computed again, and has to be the same."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sordino.privacy.accountants import Guarantee
from sordino.privacy.certificate import (
    COUNTED,
    DEPLOYMENTS,
    NO_MODEL,
    NOT_COUNTED,
    PROFILE,
    profile,
    recompute,
    source_of_chance,
)
from sordino.privacy.events import event_from_json
from sordino.privacy.wording import (
    SEED_WARNING,
    SELECTION_IS_SECRET,
    about_rho_and_mu,
    claim_in_words,
    events_in_words,
    flavour,
    n_is_public,
    neighbours,
    stands,
)
from sordino.verifying.pricing import AT_MOST, EXACTLY, Priced, gdp_mu_squared

SAME = 1e-6  # relative: libraries that price events may differ in their last digits from version to version


def same(stated: float, found: float) -> bool:
    """Whether two epsilons, or rates, are one number but for its last digits."""
    if math.isinf(stated) or math.isinf(found):
        return stated == found
    return abs(stated - found) <= SAME * max(abs(stated), abs(found)) + 1e-9


def wrong_numbers(document: Mapping[str, Any], priced: Sequence[Priced]) -> list[str]:
    """What a certificate says that its own events do not prove, in sentences that begin with a small letter."""
    found = recompute(document)
    return [
        *_wrong_epsilon(document, found, priced),
        *_wrong_guarantee(document, found),
        *_wrong_words(document),
        *_wrong_notes(document),
    ]


def _wrong_epsilon(document: Mapping[str, Any], found: Guarantee, priced: Sequence[Priced]) -> Iterator[str]:
    claimed, named = float(document["guarantee"]["epsilon"]), document["accounting"]
    if (named["accountant"], named["conversion"]) != (found.accountant, found.conversion):
        yield (
            f"it names accountant {named['accountant']!r} with conversion {named['conversion']!r}, and its events were "
            f"priced by {found.accountant!r} with {found.conversion!r}"
        )
    if not same(claimed, found.epsilon):
        yield f"it states epsilon {claimed!r}, and its events cost {found.epsilon!r} by {found.accountant}"
    for each in priced:
        if each.says != AT_MOST and each.epsilon is not None and below(claimed, each.epsilon):
            yield f"it states epsilon {claimed!r}, and it is {each.says} {each.epsilon!r} ({each.name})"


def below(claimed: float, bound: float) -> bool:
    """Whether a claim is refuted by a bound from below."""
    return claimed < bound * (1 - SAME) - 1e-9


def confirming(document: Mapping[str, Any], priced: Sequence[Priced]) -> list[Priced]:
    """Those that are not ours and prove the claim by themselves."""
    claimed = float(document["guarantee"]["epsilon"])
    return [
        each
        for each in priced
        if not each.ours
        and each.says in (AT_MOST, EXACTLY)
        and each.epsilon is not None
        and (each.epsilon <= claimed or same(each.epsilon, claimed))
    ]


def _wrong_guarantee(document: Mapping[str, Any], found: Guarantee) -> Iterator[str]:
    stated, events = document["guarantee"], document["events"]
    if stated["relation"] != found.relation:
        yield f"it states the relation {stated['relation']!r}, and its events are about {found.relation!r}"
    mu_squared = None if math.isinf(found.epsilon) else gdp_mu_squared(events)
    proved = {
        "gdp_mu": None if mu_squared is None else math.sqrt(mu_squared),
        "zcdp_rho": None if mu_squared is None else mu_squared / 2,
    }
    for name, value in proved.items():
        if not _alike(stated[name], value):
            yield f"it states {name} {stated[name]!r}, and by its events it is {value!r}"
    if same(float(stated["epsilon"]), found.epsilon):  # else all of it is wrong, and that was said
        yield from _wrong_profile(stated["profile"], profile(event_from_json(events), found))
    drawn_from = {units for units in _units(events) if units != stated["units"]}
    if drawn_from:
        yield f"it states {stated['units']!r} units, and its samples are of {min(drawn_from)}"


def _alike(stated: float | None, proved: float | None) -> bool:
    if stated is None or proved is None:
        return stated is proved
    return same(stated, proved)


def _wrong_profile(stated: Sequence[Mapping[str, Any]], proved: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if [point["delta"] for point in stated] != [point["delta"] for point in proved]:
        yield f"its profile is not at the deltas {', '.join(f'{delta:g}' for delta in PROFILE)}"
        return
    for point, found in zip(stated, proved, strict=True):
        if not same(float(point["epsilon"]), float(found["epsilon"])):
            yield (
                f"its profile states epsilon {point['epsilon']!r} at delta {point['delta']:g}, and its events cost "
                f"{found['epsilon']!r}"
            )


def _parts(event: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield event
    for part in [*event.get("events", []), *([event["event"]] if "event" in event else [])]:
        yield from _parts(part)


def _units(event: Mapping[str, Any]) -> Iterator[int]:
    """How many units there were to draw from, wherever an event says so."""
    return (part["units"] for part in _parts(event) if part["type"] == "sampled_without_replacement")


# Sentences --------------------------------------------------------------------------------------------------------


def _wrong_words(document: Mapping[str, Any]) -> Iterator[str]:
    """Sentences that repeat what stands beside them, and do not say the same."""
    stated, claim, seeded = document["guarantee"], document["claim"], document["randomness"]["seeded"]
    epsilon, unit, relation = float(stated["epsilon"]), stated["unit"], stated["relation"]
    must = {
        "claim.stands": (claim["stands"], stands(epsilon, seeded, claim["caveat"])),
        "claim.words": (
            claim["words"],
            claim_in_words(stated, document["data"]["name"], seeded, claim["caveat"]),
        ),
        "guarantee.flavour": (stated["flavour"], flavour(epsilon)),
        "guarantee.neighbours": (stated["neighbours"], neighbours(relation, unit) + "."),
        "guarantee.about_mu_and_rho": (
            stated["about_mu_and_rho"],
            about_rho_and_mu(epsilon, stated["zcdp_rho"], document["events"]),
        ),
        "events_in_words": (document["events_in_words"], events_in_words(document["events"])),
        "assumptions": (document["assumptions"][0], n_is_public(relation, unit)),
        "randomness.source": (document["randomness"]["source"], source_of_chance(seeded)),
        "deployment.trust": (
            document["deployment"]["trust"],
            DEPLOYMENTS.get(document["deployment"]["model"]),
        ),
    }
    for name, (said, meant) in must.items():
        if said != meant:
            yield f"its {name} does not say what its numbers say"
    secret = any(part["type"] == "repeat_and_select" for part in _parts(document["events"]))
    if secret and SELECTION_IS_SECRET not in document["assumptions"]:
        yield "its events are a private selection, and its assumptions do not say what that asks for"
    if seeded and document["randomness"]["seeds_refused"]:
        yield "its randomness came from a seed, and seeds were refused"
    if (SEED_WARNING in document["assumptions"]) != seeded:
        yield "its assumptions do not say what randomness.seeded says"


def _wrong_notes(document: Mapping[str, Any]) -> Iterator[str]:
    """Parts that are there as a whole or not at all."""
    ledger, model = document["ledger"], document["model"]
    counted = [ledger[name] is not None for name in ("data", "run", "length", "head")]
    if counted != [ledger["counted"]] * 4 or ledger["note"] != (
        COUNTED if ledger["counted"] else NOT_COUNTED
    ):
        yield "its ledger section says two things at once"
    if ledger["counted"] and ledger["data"] != document["data"]["name"]:
        yield f"it is about {document['data']['name']!r} and was counted on {ledger['data']!r}"
    if (model["file"] is None) != (model["sha256"] is None) or (model["file"] is None) != (
        model["note"] == NO_MODEL
    ):
        yield "its model section says two things at once"
