"""The page in a real browser: nothing complains, every section is seen, figures are drawn, on a phone and on a desk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import Browser, View, chromium
from sordino.report.html import Kept, comparison_page, recipe_page, run_page
from test_report_html import ALL, EVIL, every_string_replaced, history_of, kept, summary_of

pytestmark = pytest.mark.skipif(
    chromium() is None, reason="there is no Chromium here to look at the page with"
)

VIEWS = [View(390), View(1280), View(390, dark=True), View(794, media="print")]
LONG = "a" * 300  # a word that cannot be broken anywhere

# What is wrong with what is seen, in words: empty if nothing is.
LOOK = """(() => {
  const wrong = [], wide = document.documentElement.clientWidth;
  const whole = document.documentElement.scrollWidth;
  if (whole > wide) wrong.push(`wider than the screen: ${whole}`);
  for (const part of document.querySelectorAll('header, section, .card, .budget-bar')) {
    const box = part.getBoundingClientRect();
    if (box.height < 20 || box.width < 100) wrong.push(`not to be seen: ${part.textContent.slice(0, 30)}`);
    if (box.left < -0.5 || box.right > wide + 0.5) wrong.push(`beyond the edge: ${part.textContent.slice(0, 30)}`);
  }
  for (const figure of document.querySelectorAll('svg.chart')) {
    const box = figure.getBoundingClientRect();
    const drawn = [...figure.querySelectorAll('path.line, path.column, .dots circle')];
    if (box.height < 100) wrong.push('a figure without height');
    if (!drawn.length) wrong.push('a figure with nothing in it');
    for (const shape of drawn) {
      if (shape.tagName === 'path' && (!(shape.getTotalLength() > 0) || /NaN|Infinity/.test(shape.getAttribute('d'))))
        wrong.push(`an empty path: ${shape.getAttribute('d')}`);
      const at = shape.getBoundingClientRect();
      if (at.left < box.left - 4 || at.right > box.right + 4 || at.top < box.top - 4 || at.bottom > box.bottom + 4)
        wrong.push('a shape outside of its figure');
    }
    for (const text of figure.querySelectorAll('text')) {
      const at = text.getBoundingClientRect();
      if (at.left < box.left - 1 || at.right > box.right + 1 || at.bottom > box.bottom + 1)
        wrong.push(`a text outside of its figure: ${text.textContent}`);
      if (at.height < 8) wrong.push(`a text too small to be read: ${text.textContent}`);
    }
  }
  for (const text of document.querySelectorAll('p, li, dt, dd, th, td, h1, h2, h3, .mark, .badge')) {
    const ratio = contrast(text), said = text.textContent.trim().slice(0, 30);
    if (said && ratio < 4.5) wrong.push(`contrast ${ratio.toFixed(2)}: ${said}`);
  }
  function light([r, g, b]) {
    const [x, y, z] = [r, g, b].map(c => (c /= 255) <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  }
  function colour(text) { return text.match(/[\\d.]+/g).map(Number); }
  function ground(part) {
    for (; part; part = part.parentElement) {
      const found = colour(getComputedStyle(part).backgroundColor);
      if (found.length < 4 || found[3] > 0) return found;
    }
    return [255, 255, 255];
  }
  function contrast(part) {
    const [a, b] = [light(colour(getComputedStyle(part).color)), light(ground(part))];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  }
  return wrong;
})()"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    opened = Browser()
    yield opened
    opened.close()


def pages() -> dict[str, bytes]:
    five = [Kept(summary_of(), history_of(n), name=f"runs/{n}") for n in (2, 8, 40, 100, 300)]
    evil = kept(summary=every_string_replaced(summary_of(), EVIL), name=EVIL)
    wordy = kept(summary=every_string_replaced(summary_of(), LONG), name=LONG)
    tables = [{"title": "t", "columns": ["a", "b"], "rows": [[LONG, 1.5]]}]
    return {
        **{name: run_page(run) for name, run in ALL.items()},
        "five": comparison_page(five),
        "evil": run_page(evil),
        "evil among others": comparison_page([evil, *five]),
        "long words": run_page(wordy),
        "long words among others": comparison_page([wordy, *five]),
        "recipe": recipe_page({"recipe": "r", "tables": tables, "notes": [LONG]}),
    }


PAGES = pages()


@pytest.mark.parametrize("name", PAGES)
def test_every_part_is_seen_and_nothing_complains(name: str, browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_bytes(PAGES[name])
    for view in VIEWS:
        assert browser.open(page, view) == []
        assert browser.run(LOOK) == [], view
    assert browser.run("document.querySelectorAll('section').length") >= 2


def test_light_and_dark_are_different_and_paper_is_white(browser: Browser, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_bytes(PAGES["central"])
    grounds = []
    for view in (View(390), View(390, dark=True), View(390, dark=True, media="print")):
        browser.open(page, view)
        grounds.append(browser.run("getComputedStyle(document.body).backgroundColor"))
    assert grounds == ["rgb(252, 251, 248)", "rgb(22, 22, 20)", "rgb(255, 255, 255)"]


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ("<script>console.error('told')</script>", "console: error"),
        ("<script>nothing.there()</script>", "exception"),
        ("<img src='https://example.invalid/x.png'>", "request: https://example.invalid"),
    ],
)
def test_a_page_that_does_complain_is_noticed(
    broken: str, said: str, browser: Browser, tmp_path: Path
) -> None:
    """Or the tests above could not fail."""
    page = tmp_path / "page.html"
    page.write_text(f"<!doctype html><body>{broken}")
    assert any(each.startswith(said) for each in browser.open(page, View(390)))


@pytest.mark.parametrize(
    ("spoilt", "said"),
    [
        (b"main { width: 900px; }", "wider than the screen"),
        (b"section { height: 0; padding: 0; overflow: hidden; }", "not to be seen"),
        (b".line { d: none; } .chart * { display: none; }", "a shape outside of its figure"),
        (b".note { color: #eee; }", "contrast"),
        (b".chart text { font-size: 5px; }", "a text too small"),
    ],
)
def test_a_page_that_looks_wrong_is_noticed(
    spoilt: bytes, said: str, browser: Browser, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    page.write_bytes(PAGES["central"].replace(b"</style>", spoilt + b"</style>"))
    browser.open(page, View(390))
    found: list[Any] = browser.run(LOOK)
    assert any(each.startswith(said) for each in found), found[:5]


def test_its_own_policy_keeps_scripts_and_requests_out(browser: Browser, tmp_path: Path) -> None:
    """Should a text ever break out of its place, nothing of it would run."""
    page = tmp_path / "page.html"
    inside = b"<script>document.title = 'run'</script><img src='https://example.invalid/x.png'><main>"
    page.write_bytes(PAGES["central"].replace(b"<main>", inside))
    complaints = browser.open(page, View(390))
    assert browser.run("document.title") != "run"
    assert any("Content Security Policy" in each for each in complaints)
