"""The page of a run: nothing breaks out of it, no number stands without its mark, and only what stands is said to."""

from __future__ import annotations

import copy
import json
import math
import re
import time
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from sordino.data.inputs import FORMAT
from sordino.privacy import approximate, certificate, compose, gaussian, price
from sordino.privacy.certificate import show_epsilon
from sordino.report.html import Kept, comparison_page, recipe_page, run_page
from sordino.report.html.budget import Standing
from sordino.report.html.comparison import in_order
from sordino.report.html.kept import judged
from sordino.report.html.together import together, total

EVIL = "\"><script>alert('x')</script><img src=x onerror=alert(1)>&amp;\u202e</style></title>"


def document(**changes: Any) -> dict[str, Any]:
    """A certificate, as a run writes it."""
    event = gaussian(5.0)
    given: dict[str, Any] = {
        "guarantee": price(event, 1e-5), "event": event, "unit": "example", "units": 1000, "data": "people",
        "assumptions": ["each is in every batch with the same probability"], "seeded": False,
        "unprotected": ["metrics on held-out rows"], "created": "2026-01-01T00:00:00Z",
        "model": {"file": "model.safetensors", "sha256": "ab" * 32},
    }  # fmt: skip
    return dict(json.loads(json.dumps(certificate(**{**given, **changes}))))


EPSILON = document()["guarantee"]["epsilon"]


def summary_of(**changes: Any) -> dict[str, Any]:
    return {
        "status": "complete", "data": "people", "n": 1000, "unit": "example", "delta": 1e-5, "epsilon": EPSILON,
        "method": {"name": "auto", "clip": {"kind": "Fixed", "threshold": 1.0}, "noise": {"kind": "Gaussian"}},
        "epochs": 4.0, "batch_size": 100, "sampling": "poisson", "steps": 40, "noise_multiplier": 5.0,
        "seeded": False, "metrics": {"test_accuracy": 0.875, "test_loss": 0.2713, "covered": False},
        "assumptions": ["so"], "unprotected": ["metrics"], "ledger": None, "accountant": "pld", "seconds": 4321,
        "peak_memory_mib": 512, "seconds_and_memory": {"covered": False}, "sordino_version": "0.1.0",
        **changes,
    }  # fmt: skip


def history_of(lines: int = 8) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for step in range(1, lines + 1):
        line = {
            "step": 5 * step,
            "epoch": step / 2,
            "rate": 0.1 * step,
            "threshold": 1 / step,
            "epsilon": 0.1 * step,
        }
        measured = {"test_accuracy": 0.5 + step / 20, "test_loss": 1 / step, "covered": False}
        found.append({**line, **(measured if step % 2 == 0 else {})})
    return found


def kept(**changes: Any) -> Kept:
    given = {"summary": summary_of(), "history": history_of(), "certificate": document()}
    return Kept(**{**given, **changes})


class Read(HTMLParser):
    """The page as a reader has it: its text, what stands around each piece, and every element."""

    def __init__(self, page: bytes) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.blocks: list[str] = []
        self._open: list[str] = []
        self._text = ""
        self.feed(page.decode())
        self.close()
        self._end()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in ("span", "b", "code"):
            self._end()
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in ("span", "b", "code"):
            self._end()

    def handle_data(self, data: str) -> None:
        if "style" not in self._open[-1:]:
            self._text += data

    def _end(self) -> None:
        if self._text.strip():
            self.blocks.append(" ".join(self._text.split()))
        self._text = ""


def every_string_replaced(value: Any, text: str) -> Any:
    """The same with every string in it, names of fields aside, ended by ``text``."""
    if isinstance(value, dict):
        return {name: every_string_replaced(part, text) for name, part in value.items()}
    if isinstance(value, list):
        return [every_string_replaced(part, text) for part in value]
    return value + text if isinstance(value, str) and value not in ("complete", "inf") else value


INPUTS = {
    "format": FORMAT, "kind": "table", "target": {"name": "income", "labels": ["low", "high"]}, "rows": "csv",
    "columns": [
        {"name": "age", "kind": "numeric", "low": 17, "high": 90.5, "obtained": "public"},
        {"name": "work", "kind": "categorical", "values": [f"v{i}" for i in range(30)], "obtained": "private"},
        {"name": "note", "kind": "text", "buckets": 256, "obtained": "peeked"},
        "no mapping",
    ],
}  # fmt: skip
GRID = {
    "protocol": "grid", "candidates": [{"method": "auto"}, {"method": "adadp"}], "stopping": None,
    "score": {"units": 100, "of": "accuracy", "public": False}, "winner": {"method": "auto"}, "winning_score": 0.8,
    "table": [{"method": "auto", "score": 0.8, "run": "candidates/1"}, {"method": "adadp", "score": 0.4321}],
}  # fmt: skip
FEDERATED = {
    "rounds": 8, "clients": 30, "algorithm": {"kind": "FedAvg"}, "local": {"kind": "LocalSgd"}, "method": None,
    "participation": {"kind": "WithoutReplacement", "count": 5}, "partition": {"kind": "Dirichlet"},
}  # fmt: skip
CLIENTS = {
    "covered": False,
    "clients": 3,
    "sizes": [4, 40, 60],
    "labels": [[1, 3], [20, 20], [60, 0]],
    "rates": {"0": 0.1, "1": 0.3},
}


def rounds_of() -> list[dict[str, Any]]:
    return [
        {"round": i, "cloud_norm": float(i), "client_rates": [0.1, 0.2, 0.1 * i + 0.2], "participants": i}
        for i in range(1, 9)
    ]


ALL = {
    "central": kept(),
    "federated": kept(summary=summary_of(**FEDERATED), history=rounds_of(), clients=CLIENTS),
    "tuned": kept(summary=summary_of(tuning=GRID)),
    "table": kept(inputs=INPUTS, standing=Standing("people", "led.db", 2, "example", 1.5, 1e-5, 3.0, 1e-5, 0.5, 0.2)),
    "not private": kept(summary=summary_of(epsilon="inf", noise_multiplier=0.0), certificate=None),
    "running": kept(summary=summary_of(status="running", planned_epsilon=3.0), certificate=None),
    "empty": Kept({}, []),
}  # fmt: skip


@pytest.mark.parametrize("name", ALL)
def test_nothing_that_a_user_wrote_becomes_part_of_the_page(name: str) -> None:
    run = ALL[name]
    parts = {
        field: every_string_replaced(copy.deepcopy(getattr(run, field)), EVIL)
        for field in ("summary", "history", "certificate", "inputs", "clients")
    }
    evil = Kept(**parts, standing=run.standing, name=EVIL)
    named = {f"<b>{field}</b>": EVIL for field in ("x", "y")}
    evil = Kept(
        {**evil.summary, "details": named, **named},
        evil.history,
        evil.certificate,
        evil.inputs,
        evil.clients,
        None,
        EVIL,
    )
    for page in (run_page(evil), comparison_page([evil, run])):
        read = Read(page)
        assert not {"script", "b>", "iframe", "link", "object", "form"} & set(read.tags)
        assert not [each for each in read.attributes if each[1].startswith("on")]
        assert not [each for each in read.attributes if each[1] in ("src", "href", "action", "style")]
        assert read.tags.count("title") >= 1
        assert page.count(b"<style>") == page.count(b"</style>") == 1
        assert page.count(b"<title>") == page.count(b"</title>")
        assert "\u202e" not in page.decode()
    assert "alert(" in page.decode(), "what is escaped is still shown"


def test_recipes_are_escaped_as_well() -> None:
    result = every_string_replaced(
        {"recipe": "r", "summary": "s", "size": "quick", "quick": "q", "notes": ["n"], "settings": {"a": ["b"]},
         "tables": [{"title": "t", "columns": ["c", "d"], "rows": [["e", 1], [2.5, None]]}], "sordino_version": "v"},
        EVIL,
    )  # fmt: skip
    read = Read(recipe_page(result, b"no figure"))
    assert not {"script", "img"} & set(read.tags)
    # A title stands in an attribute too: a quote must not end it.
    assert not [each for each in read.attributes if each[1].startswith("on") or each[1] == "src"]
    figure = b"\x89PNG\r\n\x1a\n rest"
    assert [
        value
        for tag, name, value in Read(recipe_page(result, figure)).attributes
        if (tag, name) == ("img", "src")
    ]


# What stands ----------------------------------------------------------------------------------------------------


def test_a_claim_stands_only_if_everything_agrees() -> None:
    assert kept().verdict.stands
    assert b"The guarantee stands" in run_page(kept())


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({"summary": summary_of(seeded=True)}, "void"),
        ({"certificate": document(seeded=True)}, "void"),
        ({"summary": summary_of(caveat="shuffled, priced as if it were not")}, "void"),
        ({"certificate": document(caveat="a schema that was peeked")}, "void"),
        ({"certificate": {**document(), "claim": {"stands": False, "words": "none"}}}, "void"),
        ({"certificate": None}, "doubtful"),
        ({"summary": summary_of(epsilon=EPSILON / 2)}, "doubtful"),
        ({"summary": summary_of(delta=1e-6)}, "doubtful"),
        ({"certificate": {**document(), "unprotected": []}}, "doubtful"),
        ({"summary": summary_of(status="running"), "certificate": None}, "unfinished"),
        ({"summary": summary_of(epsilon="inf", noise_multiplier=0.0), "certificate": None}, "open"),
    ],
)
def test_what_does_not_stand_is_never_said_to(changed: dict[str, Any], kind: str) -> None:
    run = kept(**changed)
    assert judged(run).kind == kind
    page = run_page(run)
    assert b"The guarantee stands" not in page
    assert b"promise stands" not in page
    shown = next(
        block for block in Read(page).blocks if block.startswith(("infinite", "at least", "0.", "1."))
    )
    assert run.verdict.mark
    assert shown.endswith(run.verdict.mark), "epsilon itself has its mark"


@pytest.mark.parametrize("name", [name for name in ALL if name != "empty"])
def test_no_measure_stands_without_its_mark(name: str) -> None:
    """Every place that has the accuracy, the loss, or the seconds, on the page of one run and of several."""
    run = ALL[name]
    for page in (run_page(run), comparison_page([run, kept()])):
        blocks = Read(page).blocks
        heads = "test accuracy not covered" in blocks
        for block in blocks:
            if re.search(r"\b87\.5 %|\b0\.2713\b|^4321\b|512 MiB", block) and " at epoch " not in block:
                # In a table of runs the mark is that of the column.
                assert "not covered" in block or (heads and block == "87.5 %"), block


def test_a_measure_that_was_paid_for_has_no_mark() -> None:
    paid = kept(summary=summary_of(metrics={"test_accuracy": 0.875, "covered": True}))
    assert "87.5 %" in Read(run_page(paid)).blocks
    void = kept(summary=summary_of(metrics={"test_accuracy": 0.875, "covered": True}, seeded=True))
    assert "87.5 %" not in Read(run_page(void)).blocks


def test_epsilon_is_never_rounded_down() -> None:
    found = document()["guarantee"]["epsilon"]
    text = next(block for block in Read(run_page(kept())).blocks if re.fullmatch(r"\d\.\d{3}", block))
    assert found <= float(text) < found + 0.001


# What is shown --------------------------------------------------------------------------------------------------


def test_how_each_bound_was_obtained_is_said() -> None:
    blocks = Read(run_page(ALL["table"])).blocks
    assert "17 to 90.5" in blocks
    assert "stated as public" in blocks
    assert "estimated with noise, under a budget" in blocks
    assert "read off the private rows not private" in blocks
    assert "hashed into 256" in blocks
    assert any("and 18 more" in block for block in blocks)
    assert any("No description of raw rows was kept" in block for block in Read(run_page(kept())).blocks)


def test_a_schema_says_where_its_bounds_are_from_and_says_nothing_of_public_ones() -> None:
    columns = [
        {"name": "age", "kind": "numeric", "low": 17, "high": 90},
        {"name": "job", "kind": "text", "buckets": 8},
    ]
    peeked = {"name": "pay", "kind": "numeric", "low": 0, "high": 9, "obtained": "peeked"}
    schema = {"target": {"name": "income", "obtained": "private"}, "column": [*columns, peeked]}
    blocks = Read(run_page(kept(inputs={"format": FORMAT, "kind": "table", "schema": schema}))).blocks
    assert blocks[blocks.index("17 to 90") - 2] == "stated as public"
    assert blocks[blocks.index("hashed into 8") - 2] == "-"
    assert blocks[blocks.index("0 to 9") - 2] == "read off the private rows not private"
    assert blocks[blocks.index("target obtained") + 1] == "estimated with noise, under a budget"


def test_of_a_selection_nothing_is_shown_but_the_winner() -> None:
    grid = Read(run_page(ALL["tuned"])).blocks
    assert {"80.0 %", "43.2 %"} <= {*grid}  # accuracies, as everywhere
    assert "auto, chosen from 2 candidates" in grid
    assert "chosen" in grid
    tried = [*GRID["table"], {"method": "tried-by-chance", "score": 0.1}]  # type: ignore[misc]
    secret = {**GRID, "stopping": {"runs": "geometric", "mean": 2.0}, "table": tried}
    page = run_page(kept(summary=summary_of(tuning=secret))).decode()
    assert "43.2 %" not in page
    assert "0.4321" not in page
    assert "tried-by-chance" not in page
    assert "the best of a number of runs that is secret" in page


def test_shares_of_the_cap_add_up_in_the_bar() -> None:
    page = run_page(ALL["table"]).decode()
    assert "50 % is taken: 20 % by this run, 30 % by others." in page
    widths = [
        float(each) for each in re.findall(r'width="([\d.]+)" height="24" class="(?:own|others)"', page)
    ]
    assert widths[-2:] == [200.0, 300.0]


def test_strange_numbers_break_no_figure() -> None:
    lines = [
        {**line, "rate": each, "test_accuracy": each}
        for line, each in zip(history_of(), ["nan", "inf", 0, -1, 1e300, 1e-300, True, None], strict=True)
    ]
    page = run_page(kept(history=lines)).decode()
    for figure in re.findall(r"<svg.*?</svg>", page):
        assert "nan" not in figure.replace("nan</title>", "")
        assert "inf" not in figure


def test_runs_are_compared_in_a_sensible_order() -> None:
    def run(name: str, epsilon: float | str, accuracy: float, **more: Any) -> Kept:
        found = summary_of(epsilon=epsilon, metrics={"test_accuracy": accuracy, "covered": False}, **more)
        return Kept(found, history_of(), name=name)

    public = run("public", "inf", 0.99, noise_multiplier=0.0)
    runs = [
        public,
        run("eight", 7.999, 0.9),
        run("worse", 2.9999, 0.7),
        run("better", 2.9997, 0.8),
        run("one", 1.0, 0.6),
    ]
    assert [each.name for each in in_order(runs)] == ["one", "better", "worse", "eight", "public"]
    page = comparison_page(runs * 3).decode()
    assert "Curves are of the first 12 runs of the table." in page
    assert "Runs on the same data add up" in page


def spending(noise: float, name: str, **changes: Any) -> Kept:
    """A run with a certificate of its own."""
    event = gaussian(noise)
    said = document(event=event, guarantee=price(event, 1e-5), created=name)
    return kept(
        summary=summary_of(epsilon=said["guarantee"]["epsilon"], **changes), certificate=said, name=name
    )


def test_what_runs_spent_together_is_what_a_ledger_would_say() -> None:
    counted = {"file": "led.db", "data": "people", "run": "a"}
    runs = [spending(5.0, "one", ledger=counted), spending(4.0, "two", ledger=counted)]
    said = total(runs)
    both = price(compose([gaussian(5.0), gaussian(4.0)]), 1e-5, accountant="rdp").epsilon
    assert said.epsilon == pytest.approx(both)
    assert max(run.summary["epsilon"] for run in runs) < said.epsilon
    assert said.epsilon < sum(run.summary["epsilon"] for run in runs)
    page = Read(comparison_page([*runs, runs[0]])).blocks  # the same run twice has spent once
    at = page.index("together on 'people'")
    assert page[at + 1].startswith(
        f"epsilon {show_epsilon(both, 3)} at delta 1e-5 by 2 runs, composed by Renyi DP"
    )
    assert "if they are of the same rows" not in page[at + 1]


def test_releases_besides_the_training_are_in_the_total() -> None:
    event = compose([gaussian(5.0), approximate(0.5)])
    said = document(event=event, guarantee=price(event, 1e-5))
    more = kept(summary=summary_of(epsilon=said["guarantee"]["epsilon"]), certificate=said, name="more")
    alone, both = (total([spending(4.0, "one"), run]).epsilon for run in (spending(5.0, "two"), more))
    assert alone + 0.1 < both <= alone + 0.5


def test_what_cannot_be_composed_is_added_up_or_left_out_and_said() -> None:
    one, two = spending(5.0, "one"), spending(4.0, "two", ledger={"file": "led.db", "data": "people"})
    unreadable = {**(one.certificate or {}), "events": {"type": "unheard of"}}
    said = total([replace(one, certificate=unreadable), two])
    assert said.epsilon == one.summary["epsilon"] + two.summary["epsilon"]
    assert (said.delta, said.how) == (2e-5, "their epsilons and deltas added up")
    seeded = spending(5.0, "seeded", seeded=True)
    for others, ending in (
        ((), "a name proves nothing."),
        ((seeded,), "and no number bounds what it shows."),
    ):
        (found,) = together([one, two, *others])
        assert str(found[1]).endswith(ending)
        assert " by 2 runs" in str(found[1])
    assert [*together([one, seeded])] == []  # there is nothing to add
    users = replace(two, summary={**two.summary, "unit": "user"}, certificate=document(unit="user"))
    users = replace(users, summary={**users.summary, "epsilon": EPSILON})
    assert users.verdict.stands
    ((_, words),) = together([one, users])
    assert words == "not added up: some of them protect examples and some users"


def test_who_has_no_name_gets_a_number_where_several_are_compared() -> None:
    page = Read(comparison_page([replace(spending(5.0, "x"), name=""), spending(4.0, "auto-4")])).blocks
    assert "run 1 (auto)" in page
    assert "auto-4" in page  # whose name says the method
    assert not any(block.startswith((":", "(")) for block in page)


def test_large_factors_are_written_for_people() -> None:
    event = gaussian(0.5)
    said = document(event=event, guarantee=price(event, 1e-5))
    words = said["claim"]["words"]
    assert "E+" in words
    run = kept(summary=summary_of(epsilon=said["guarantee"]["epsilon"]), certificate=said)
    assert run.verdict.stands
    for page in (run_page(run), comparison_page([run, kept()])):
        assert "E+" not in page.decode()
        times = re.search(r"more than ([\d,]+|\d\.\d+e\d+) times", page.decode())
        assert times is not None
        assert float(times[1].replace(",", "")) >= math.exp(
            said["guarantee"]["epsilon"]
        )  # never rounded down


def test_the_page_is_the_same_for_the_same_run_and_costs_little() -> None:
    run: dict[str, Any] = {"summary": summary_of(), "history": history_of(100), "certificate": document()}
    first = run_page(Kept(**run))
    took = math.inf
    for _ in range(5):
        began = time.process_time()  # others may have the processor meanwhile
        assert run_page(Kept(**copy.deepcopy(run))) == first
        took = min(took, time.process_time() - began)
    assert took < 0.05
    assert len(first) < 200_000
