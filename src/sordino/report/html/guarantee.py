"""The first screen: what is promised to whom, what is not, and what it cost."""

from __future__ import annotations

import math
from collections.abc import Iterator

from sordino.privacy.certificate import show_epsilon
from sordino.report.account import mapping, number
from sordino.report.html.budget import Standing
from sordino.report.html.kept import Kept
from sordino.report.html.measures import called, main_measure, with_mark
from sordino.report.html.numbers import percent, shown, spoken
from sordino.report.html.pieces import bullets, facts, mark, section
from sordino.report.html.tags import NOTHING, Html, Part, joined, tag
from sordino.report.words import how_much, reservations, title

_OPEN = "Not private: nothing is promised, and everything on this page is outside of any guarantee."


def hero(run: Kept) -> Html:
    """The data, the method, the verdict, and the numbers that matter."""
    verdict = run.verdict
    data, _, how = title(run.account).partition(": ")
    tried = mapping(run.summary.get("tuning")).get("candidates")
    if isinstance(tried, list):
        how = f"{how}, chosen from {len(tried)} candidates"
    badge = tag("p", tag("span", verdict.title, class_="badge"), class_="verdict")
    claim = tag("p", spoken(verdict.words), class_="claim") if verdict.words else None
    reasons = bullets(verdict.reasons) if verdict.reasons else None
    return tag(
        "header",
        tag("p", "Sordino report", class_="eyebrow"),
        tag("h1", data),
        tag("p", how, class_="how"),
        tag("div", badge, claim, reasons, _numbers(run), class_=f"promise {verdict.kind}"),
    )


def _numbers(run: Kept) -> Html:
    boxes = [tag("div", tag("dt", name), tag("dd", value)) for name, value in _key_figures(run)]
    return tag("dl", boxes, class_="numbers")


def _key_figures(run: Kept) -> Iterator[tuple[Part, Part]]:
    summary, account = run.summary, run.account
    if account.private or run.verdict.kind == "open":
        yield "epsilon", epsilon_shown(run)
    if number(summary.get("delta")) > 0 and account.private:
        yield "delta", shown(number(summary.get("delta")))
    if "n" in summary and "unit" in summary:
        many = number(summary["n"])
        yield "protected" if account.private else "units", f"each of {many:,.0f} {summary['unit']}s"
    main = main_measure(run)
    if main is not None:
        yield called(main), with_mark(run, main, run.measured[main])


def epsilon_shown(run: Kept, digits: int = 3) -> Html:
    """Epsilon, never rounded down, and never without a mark where it is no guarantee."""
    epsilon, verdict = run.account.epsilon, run.verdict
    if verdict.kind == "open" or epsilon is None or math.isinf(epsilon):
        return joined("infinite", mark("not private")) if verdict.kind == "open" else joined("not known yet")
    least = "" if run.account.settled else "at least "
    return joined(f"{least}{show_epsilon(epsilon, digits)}", mark(verdict.mark))


def not_covered(run: Kept) -> Html:
    """What the guarantee does not say, and what must not be overlooked."""
    certified = mapping(run.certificate).get("unprotected")
    stated = certified if isinstance(certified, list) else run.summary.get("unprotected")
    lines: list[Part] = [str(line) for line in stated] if isinstance(stated, list) else []
    seen = {*run.verdict.reasons}
    warned = [line for line in reservations(run.account) if line not in seen]
    if run.verdict.kind == "open" and not lines:
        lines = ["everything: no noise was added, and nothing is promised"]
    if not lines:
        lines = ["what is measured on held-out rows, and how long it took"]
    return section(
        "not-covered",
        "What it does not cover",
        bullets(lines),
        tag("div", bullets(warned), class_="warned") if warned else None,
        note=joined("Numbers that no guarantee covers carry this mark:", mark()),
    )


# The budget -----------------------------------------------------------------------------------------------------


def budget(run: Kept) -> Html:
    """A bar for this run, and one for the cap on its data set, where a ledger keeps one."""
    account = run.account
    if run.verdict.kind == "open":
        return section("budget", "The budget", tag("p", _OPEN), facts(_counted(run)))
    bars = [_own_bar(run)]
    if run.standing is not None and run.standing.cap is not None:
        bars.append(_cap_bar(run.standing))
    spent = facts([*_spending(run), *_counted(run)])
    words = mapping(run.certificate).get("events_in_words")
    released = None
    if isinstance(words, list) and words:
        released = joined(
            tag("h3", "What was released"), bullets([*map(str, words), *_besides_the_training(run)])
        )
    note = None if account.private else "No noise was added."
    return section("budget", "The budget", *bars, spent, released, note=note)


def _besides_the_training(run: Kept) -> Iterator[str]:
    """What those releases were of which only a price is known."""
    before, metrics = mapping(run.summary.get("before")), run.summary.get("metric_epsilon")
    if before.get("words"):
        yield f"Of these, before the training. {before['words']}"
    standardise = mapping(run.summary.get("standardise"))
    if standardise.get("how") == "private":
        yield (
            "Of these, before the training: the Gaussian release of noise multiplier "
            f"{number(standardise.get('multiplier')):.4g}, by which inputs are standardised."
        )
    if metrics is not None:
        yield f"Of these, after it, for epsilon {metrics}: held-out rows, as noisy counts."


def _own_bar(run: Kept) -> Html:
    spent, planned = run.account.epsilon or 0.0, number(run.summary.get("planned_epsilon"))
    share = 1.0 if run.account.settled or not planned > 0 else min(1.0, spent / planned)
    said = (
        joined("This run: epsilon ", epsilon_shown(run))
        if run.account.settled
        else joined("This run: epsilon ", how_much(run.account), mark(run.verdict.mark))
    )
    what = "all that was planned" if run.account.settled else f"{percent(share)} of what was planned"
    return _bar(said, [("own", share, f"this run: {what}")], what)


def _cap_bar(standing: Standing) -> Html:
    assert standing.cap is not None
    total, own = standing.share, standing.own_share
    whole = max(1.0, total) if math.isfinite(total) else 1.0
    parts = [("own", (own or 0.0) / whole, f"this run: {_share(own)} of the cap")]
    rest = (min(total, whole) - (own or 0.0)) / whole
    parts.append(("others", max(0.0, rest), f"everything else: {_share(total - (own or 0.0))} of the cap"))
    cap = f"epsilon {shown(standing.cap)} at delta {shown(standing.cap_delta or 0.0)}"
    said = joined(f"Cap on {standing.data!r}: {cap}", mark("passed") if standing.passed else None)
    known = "" if own is not None else " This run is not in that ledger."
    others = _share(total - (own or 0.0))
    text = f"{_share(total)} is taken: {_share(own)} by this run, {others} by others.{known}"
    return _bar(said, parts, text)


def _share(share: float | None) -> str:
    """Rounded up, as all that is spent.

    >>> _share(0.1411), _share(0.0), _share(float("inf"))
    ('14.2 %', '0 %', 'more than all')
    """
    if share is None or share <= 1e-12:
        return "0 %"
    return f"{math.ceil(1000 * share - 1e-9) / 10:g} %" if math.isfinite(share) else "more than all"


def _bar(title: Part, parts: list[tuple[str, float, str]], text: str) -> Html:
    shapes, start = [tag("rect", x=0, y=0, width=1000, height=24, class_="track")], 0.0
    for kind, share, said in parts:
        if share > 0:
            wide = max(4.0, 1000 * share)
            x = min(start, 1000 - wide)
            shapes.append(
                tag(
                    "rect", tag("title", said), x=f"{x:.1f}", y=0, width=f"{wide:.1f}", height=24, class_=kind
                )
            )
            start += 1000 * share
    label = "; ".join(said for _, share, said in parts if share > 0)
    svg = tag(
        "svg",
        shapes,
        viewBox="0 0 1000 24",
        preserveAspectRatio="none",
        class_="bar",
        role="img",
        aria_label=label,
    )
    return tag(
        "div",
        tag("p", title, class_="bar-title"),
        svg,
        tag("p", text, class_="bar-text"),
        class_="budget-bar",
    )


def _spending(run: Kept) -> Iterator[tuple[str, Part]]:
    summary, promised = run.summary, mapping(mapping(run.certificate).get("guarantee"))
    for name, shown_name in (("zcdp_rho", "zCDP rho"), ("gdp_mu", "GDP mu")):
        if number(summary.get(name)) >= 0:
            yield shown_name, joined(show_epsilon(number(summary[name]), 4), mark(run.verdict.mark))
    multiplier = number(summary.get("noise_multiplier"))
    if multiplier > 0:
        yield "noise multiplier", shown(multiplier)
    if "accountant" in summary:
        yield "accountant", str(summary["accountant"])
    if "relation" in summary:
        yield "relation", str(summary["relation"])
    if promised.get("unit_means"):
        yield "unit", f"{promised.get('unit')}: {promised['unit_means']}"


def _counted(run: Kept) -> Iterator[tuple[str, Part]]:
    ledger, standing = mapping(run.summary.get("ledger")), run.standing
    if not ledger and standing is None:
        yield "counted", "in no ledger: what others spent on the same people is not known here, and adds up"
        return
    if ledger:
        where = str(ledger.get("file", "a ledger")).replace("\\", "/").rpartition("/")[2]
        yield "counted", f"in {where}, on {ledger.get('data')!r} as run {ledger.get('run')}"
    if standing is None:
        yield "the data set", "sordino report RUN --ledger FILE adds what else was spent on it"
        return
    if standing.spent is not None and math.isfinite(standing.spent) and standing.delta is not None:
        many = "1 run" if standing.runs == 1 else f"{standing.runs} runs"
        spent = f"epsilon {show_epsilon(standing.spent, 3)} at delta {shown(standing.delta)}"
        so = f"{spent} by {many}, composed by Renyi DP, as a ledger does"
        yield f"spent on {standing.data!r}", so
    if standing.cap is None:
        yield "cap", "none is set: sordino ledger cap sets one"
    if standing.notes:
        yield "the ledger notes", "; ".join(standing.notes)


def no_ledger(reason: str) -> Html:
    return tag("p", reason, class_="note") if reason else NOTHING
