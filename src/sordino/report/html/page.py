"""Sections, put together to a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib.resources import files
from typing import Any

from sordino.report.html.comparison import comparison, in_order, overlaid
from sordino.report.html.courses import federation, quality, tuned
from sordino.report.html.guarantee import budget, hero, not_covered
from sordino.report.html.kept import Kept
from sordino.report.html.numbers import spoken
from sordino.report.html.recipe import recipe_parts
from sordino.report.html.tags import Html, Part, stylesheet, tag
from sordino.report.html.tuning import tuning
from sordino.report.html.written import assumptions, data, machine, settings_of, verify
from sordino.report.words import title

# Nothing is loaded, run or sent, whatever a text on the page may be; pictures and styles are in the page itself.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def run_page(run: Kept) -> bytes:
    """The page of one run, central, federated or tuned, finished or not."""
    parts = [
        hero(run),
        not_covered(run),
        budget(run),
        quality(run),
        tuned(run),
        federation(run),
        tuning(run),
        data(run),
        assumptions(run),
        settings_of(run),
        machine(run),
        verify(run),
    ]
    return document(title(run.account), parts)


def comparison_page(runs: Sequence[Kept]) -> bytes:
    """The page of several: beside each other, their curves in one figure, and what each of them promises."""
    ordered = _named(in_order(runs))
    names = ", ".join(dict.fromkeys(str(run.summary.get("data", "data")) for run in ordered))
    head = tag(
        "header",
        tag("p", "Sordino report", class_="eyebrow"),
        tag("h1", f"{len(ordered)} runs on {names}"),
        class_="short",
    )
    return document(
        f"{len(ordered)} runs on {names}", [head, comparison(ordered), overlaid(ordered), _promises(ordered)]
    )


def _named(runs: Sequence[Kept]) -> list[Kept]:
    """Who has no name gets a number: a row of the table and a curve must find each other."""
    return [run if run.name else replace(run, name=f"run {place}") for place, run in enumerate(runs, 1)]


def _promises(runs: Sequence[Kept]) -> Html:
    heading = tag("h2", "What each of them promises", id="promises")
    each = [
        tag(
            "article",
            tag("h3", run.name),
            tag("p", tag("span", run.verdict.title, class_="badge"), class_="verdict"),
            tag("p", spoken(run.verdict.words), class_="words"),
            class_=f"promise small {run.verdict.kind}",
        )
        for run in runs
    ]
    return tag("section", heading, each, aria_labelledby="promises")


def recipe_page(result: Mapping[str, Any], figure: bytes | None = None) -> bytes:
    """The page of a reproduced experiment, from its result.json and figure.png."""
    return document(str(result.get("recipe", "recipe")), recipe_parts(result, figure))


def document(name: str, parts: Iterable[Part]) -> bytes:
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"{name} - Sordino report"),
        stylesheet(_style()),
    )
    foot = tag("footer", tag("p", "Made by Sordino. This page loads nothing and sends nothing."))
    body = tag("body", tag("main", parts), foot)
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n".encode()


@lru_cache(maxsize=1)
def _style() -> str:
    return files("sordino.report.html").joinpath("style.css").read_text(encoding="utf-8")
