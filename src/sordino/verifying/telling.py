"""A certificate for people: what was promised, about whom, by which assumptions, and what was checked."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence

from sordino.privacy.certificate import show_epsilon
from sordino.privacy.events import event_from_json, known_delta, parted
from sordino.verifying.numbers import below, same
from sordino.verifying.pricing import AT_LEAST, AT_MOST, Priced
from sordino.verifying.verification import Verification

_WIDTH = 100
_NAMES = 16
_NOT_IN_A_FILE = (
    "NO   the run itself: that noise and samples were drawn as it says, and nothing else was shown, is the word of "
    "whoever ran it; no file can prove that"
)
_ABOUT_PRICES = (
    "An accountant is a way to prove that epsilon is at most so much. One that proves the claim is enough; others may "
    "prove less."
)


def told(found: Verification) -> str:
    """All of it, to be read from the top."""
    lines = [_verdict(found), ""]
    for name, sentences in _parts(found):
        lines += _column(name, sentences)
    return "\n".join(lines)


def _verdict(found: Verification) -> str:
    if found.stands:
        return (
            "The certificate holds: its numbers follow from the events it states. Its assumptions are its writer's "
            "word."
        )
    return "The certificate holds, and PROMISES NOTHING: see below."


def _parts(found: Verification) -> Iterator[tuple[str, Sequence[str]]]:
    said = found.document
    guarantee = said["guarantee"]
    yield "promised", [said["claim"]["words"]]
    yield (
        "epsilon, delta",
        [
            f"{show_epsilon(found.epsilon)} at {guarantee['delta']:g}",
            *_at_worst(found),
            *_against_n(guarantee["delta"], guarantee["units"], guarantee["unit"]),
        ],
    )
    if guarantee["profile"]:
        yield "at other deltas", [_profile(found)]
    if guarantee["gdp_mu"] is not None:
        yield "mu-GDP, rho-zCDP", [f"mu {_up(guarantee['gdp_mu'])}, rho {_up(guarantee['zcdp_rho'])}"]
    n = "" if guarantee["units"] is None else f" of {guarantee['units']}"
    data = "" if said["data"]["name"] is None else f", in {said['data']['name']!r}"
    yield "about whom", [f"one {guarantee['unit']}{n}{data}: {guarantee['unit_means']}"]
    yield "covered", said["post_processing"]
    yield "whom to trust", [said["deployment"]["trust"]]
    yield "spent by", said["events_in_words"]
    yield "assuming", said["assumptions"]
    yield "not covered", said["unprotected"] or ["nothing else was shown"]
    how = said["implementation"]
    yield (
        "how",
        [
            how["method"],
            how["noise"],
            said["randomness"]["source"],
            how["floating_point"],
            how["side_channels"],
        ],
    )
    yield "why so", [said["rationale"]]
    versions = ", ".join(f"{name} {said['versions'][name]}" for name in ("sordino", "dp-accounting"))
    yield "written", [f"{said['created']}, by {versions}"]
    checks = [f"{'yes' if each.done else 'NO '}  {each.what}: {each.detail}" for each in found.checks]
    yield "checked", [*checks, _NOT_IN_A_FILE]
    if found.prices:
        yield "recomputed", [_ABOUT_PRICES, *(_price(each, found.epsilon) for each in found.prices)]


def _at_worst(found: Verification) -> list[str]:
    """What epsilon means for somebody who guesses: odds grow by e^epsilon at most."""
    if math.isinf(found.epsilon) or not found.stands:
        return []
    sure = 100 / (1 + math.exp(-min(found.epsilon, 700.0)))
    return [
        f"Whoever was unsure whether one {found.document['guarantee']['unit']} contributed (50 %) can be at most "
        f"{math.ceil(sure * 100 - 1e-9) / 100:.2f} % sure after seeing all covered results, delta aside."
    ]


def _against_n(delta: float, units: int | None, unit: str) -> list[str]:
    """Delta is a chance that anything happens to somebody, so it has to be far below one in n."""
    if units is None or delta == 0:
        return []
    if delta * units >= 1:
        return [f"Delta is NOT below one in {units}: it allows to publish one {unit} as it is."]
    return [
        f"Delta is {math.floor(1 / (delta * units)):,} times smaller than one in {units} ({unit}s), or more."
    ]


def _profile(found: Verification) -> str:
    """Epsilons at the deltas for which there is one: what is known by its own delta says nothing below that."""
    points = found.document["guarantee"]["profile"]
    finite = [point for point in points if math.isfinite(float(point["epsilon"]))]
    listed = ", ".join(
        f"{show_epsilon(float(point['epsilon']), 2)} at {point['delta']:g}" for point in finite
    )
    if len(finite) == len(points):
        return listed
    own = known_delta(parted(event_from_json(found.document["events"]))[1])
    return (
        f"{listed}; of releases of which only epsilon and delta are known, delta is {own:g} in all: at deltas up to "
        "that nothing is known, so ask for a larger one"
    )


def _up(value: float) -> str:
    return show_epsilon(value)


def _price(priced: Priced, claimed: float) -> str:
    if priced.epsilon is None:
        return f"{priced.name}: cannot say ({priced.why_not})"
    shown = show_epsilon(priced.epsilon) if priced.says == AT_MOST else f"{priced.epsilon:.4f}"
    return f"{priced.name}: epsilon is {priced.says} {shown}{_verdict_of(priced, claimed)}"


def _verdict_of(priced: Priced, claimed: float) -> str:
    assert priced.epsilon is not None
    if same(priced.epsilon, claimed):
        return ", as claimed"
    if priced.says == AT_LEAST:
        return "" if below(claimed, priced.epsilon) else ", so the claim is not too small by this bound"
    return (
        ", which proves the claim" if priced.epsilon < claimed else ", a looser bound, which refutes nothing"
    )


def _column(name: str, sentences: Sequence[str]) -> list[str]:
    lines = []
    for sentence in sentences:
        marked = f"- {sentence}" if len(sentences) > 1 else sentence
        hang = "  " if len(sentences) > 1 else ""
        lines += textwrap.wrap(
            marked,
            _WIDTH - _NAMES - 2,
            subsequent_indent=hang,
            break_long_words=False,
            break_on_hyphens=False,
        )
    heads = [name, *[""] * (len(lines) - 1)]
    return [f"{head:{_NAMES}s}  {line}" for head, line in zip(heads, lines, strict=True)]
