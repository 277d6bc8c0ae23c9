"""`sordino ledger`: what it prints, as JSON and for people, and what it says when it cannot."""

from __future__ import annotations

import json
import math
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import sordino
from sordino.ledger import LedgerFile
from sordino.privacy import gaussian, price, repeat

Asked = Callable[..., tuple[int, str, str]]


@pytest.fixture
def ask(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Asked:
    """Exit code, stdout and stderr of `sordino ledger ...` in an empty folder, on ``ledger.db`` there."""
    monkeypatch.setenv("SORDINO_LEDGER", "ledger.db")

    def asked(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = sordino(monkeypatch, "ledger", *arguments)
        said = capsys.readouterr()
        return code, said.out, said.err

    return asked


def answer(ask: Asked, *arguments: str) -> dict[str, Any]:
    code, out, err = ask(*arguments, "--json")
    assert code == 0, err
    found: dict[str, Any] = json.loads(out)  # exactly one object
    return found


def refusal(ask: Asked, *arguments: str) -> str:
    """The one line in which it is refused, with exit code 2 and nothing on stdout."""
    code, out, err = ask(*arguments)
    assert code == 2
    assert out == ""
    (line,) = err.splitlines()
    return line


CAP = ("cap", "patients", "--epsilon", "3", "--delta", "1e-5")


@pytest.fixture
def book(here: Path) -> LedgerFile:
    """With a cap, a run that is closed, one that is open, and a release of another tool."""
    book = LedgerFile("ledger.db")
    book.cap("patients", epsilon=3, delta=1e-5)
    done = book.reserve("patients", repeat(gaussian(20.0), 3), run="done", delta=1e-6, label="dp-sgd")
    done.spend_all({f"step:{step}": gaussian(20.0) for step in range(3)})
    done.close()
    still = book.reserve(
        "patients", repeat(gaussian(20.0), 4), run="still", kind="grid", unit="example", delta=1e-6
    )
    still.spend("step:0", gaussian(20.0))
    book.add("patients", epsilon=0.1, what="a histogram")
    return book


# What it prints -----------------------------------------------------------------------------------------------


def test_a_cap_is_set_and_shown(ask: Asked) -> None:
    (found,) = answer(ask, *CAP)["data_sets"]
    assert found["names"] == ["patients"]
    assert found["epsilon"] == found["spent"] == 0
    assert found["passed"] is False
    cap = found["caps"]["patients"]
    assert (cap["epsilon"], cap["delta"], cap["unit"], cap["aside"]) == (3, 1e-5, "example", 0)
    assert (cap["taken"], cap["spent"], cap["share"], cap["passed"]) == (0, 0, 0, False)
    code, out, _ = ask(
        "cap", "others", "--epsilon", "1", "--delta", "1e-6", "--unit", "user", "--aside", "1e-7"
    )
    assert code == 0
    assert (
        "1 at delta 1e-06, 1e-07 of it kept aside, unit user: epsilon 0.0000 of it is taken, 0% of its room"
        in out
    )


def test_what_was_spent_is_shown_beside_its_cap(ask: Asked, book: LedgerFile) -> None:
    (found,) = answer(ask, "show")["data_sets"]
    assert set(found) == {
        "names", "unit", "delta", "epsilon", "spent", "caps", "runs", "open", "pieces", "notes", "passed",
    }  # fmt: skip
    assert (found["runs"], found["open"], found["pieces"]) == (2, 1, 1)
    assert 0 < found["spent"] < found["epsilon"] < 3
    assert found["delta"] == 1e-5
    (same,) = answer(ask, "show", "patients")["data_sets"]
    assert same == found
    (other,) = answer(ask, "show", "patients", "--delta", "1e-7")["data_sets"]
    assert other["delta"] == 1e-7
    code, out, _ = ask("show")
    assert code == 0
    for words in (
        "spent or reserved, all together",
        "the rest is reserved",
        "2, of which 1 open; 1 release of other",
    ):
        assert words in out


def test_shares_of_a_cap_are_never_rounded_down(ask: Asked, book: LedgerFile) -> None:
    share = answer(ask, "show")["data_sets"][0]["caps"]["patients"]["share"]
    shown = float(ask("show")[1].split("is taken, ")[1].split("%")[0])
    assert 100 * share <= shown <= 100 * share + 0.1


def test_a_cap_that_is_passed_is_said_in_capitals(ask: Asked, book: LedgerFile) -> None:
    assert "has no room" in refusal(ask, "add", "patients", "--epsilon", "9", "--what", "a mean")
    code, out, _ = ask("add", "patients", "--epsilon", "9", "--what", "a mean", "--released")
    assert code == 0
    assert "PASSED, nothing more is admitted" in out
    assert answer(ask, "show")["data_sets"][0]["passed"] is True


def test_every_run_is_listed_and_every_release_of_another_tool(ask: Asked, book: LedgerFile) -> None:
    found = answer(ask, "runs")
    done, still = found["runs"]
    assert set(done) == {
        "run", "data", "kind", "unit", "relation", "label", "caveat", "created", "state", "charges", "delta", "epsilon",
        "event", "before",
    }  # fmt: skip
    assert (done["run"], done["state"], done["charges"], done["label"]) == ("done", "closed", 3, "dp-sgd")
    assert done["epsilon"] == pytest.approx(price(repeat(gaussian(20.0), 3), 1e-6, "rdp").epsilon)
    assert done["event"] == {
        "type": "repeated",
        "count": 3,
        "event": {"type": "gaussian", "noise_multiplier": 20.0},
    }
    assert (still["run"], still["kind"], still["state"], still["charges"]) == ("still", "grid", "open", 1)
    (piece,) = found["pieces"]
    assert (piece["what"], piece["epsilon"], piece["delta"], piece["unit"]) == (
        "a histogram",
        0.1,
        0,
        "example",
    )
    lines = ask("runs", "patients")[1].splitlines()
    assert len(lines) == 3
    assert "run (dp-sgd)" in lines[0]
    assert "a histogram" in lines[2]


def test_a_run_is_closed_by_hand_once(ask: Asked, book: LedgerFile) -> None:
    assert ask("close", "still")[0] == 0
    assert answer(ask, "show")["data_sets"][0]["open"] == 0
    assert "closed already" in refusal(ask, "close", "still")


def test_joined_data_sets_are_shown_as_one(ask: Asked, book: LedgerFile) -> None:
    book.reserve("children", gaussian(50.0), delta=1e-6)
    assert len(answer(ask, "show")["data_sets"]) == 2
    (found,) = answer(ask, "join", "patients", "children")["data_sets"]
    assert found["names"] == ["children", "patients"]
    assert found["runs"] == 3
    assert len(answer(ask, "runs", "children")["runs"]) == 3


def test_verify_says_how_long_it_is(ask: Asked, book: LedgerFile) -> None:
    head = book.verify()
    assert answer(ask, "verify") == {"verified": True, "length": head.length, "head": head.digest}
    code, out, _ = ask("verify")
    assert code == 0
    assert out == f"all is well: {head.length} entries, the last one is {head.digest}\n"


def test_an_export_has_every_entry(ask: Asked, book: LedgerFile, here: Path) -> None:
    code, out, _ = ask("export")
    assert code == 0
    entries = json.loads(out)["entries"]
    assert [entry["number"] for entry in entries] == list(range(1, book.verify().length + 1))
    assert set(entries[0]) == {"number", "kind", "data", "run", "body", "hash"}
    assert ask("export", "--out", "all.json")[0] == 0
    assert json.loads((here / "all.json").read_text())["entries"] == entries


def test_what_is_not_private_is_infinite(ask: Asked, here: Path) -> None:
    LedgerFile("ledger.db").reserve("patients", gaussian(0.0))
    (found,) = answer(ask, "show")["data_sets"]
    assert found["epsilon"] == "inf"
    assert "inf (not private)" in ask("show")[1]


def test_without_a_delta_epsilon_is_unknown(ask: Asked, here: Path) -> None:
    LedgerFile("ledger.db").reserve("patients", gaussian(4.0))
    (found,) = answer(ask, "show")["data_sets"]
    assert found["epsilon"] is None
    assert "unknown" in ask("show")[1]
    assert "--delta" in ask("show")[1]
    assert answer(ask, "show", "--delta", "1e-5")["data_sets"][0]["epsilon"] > 1


def test_nothing_was_counted_yet(ask: Asked, here: Path) -> None:
    LedgerFile("ledger.db").begin()
    assert ask("show")[1] == ask("runs")[1] == "nothing was counted yet\n"
    assert answer(ask, "show") == {"data_sets": []}
    assert answer(ask, "runs") == {"runs": [], "pieces": []}


# What it refuses ----------------------------------------------------------------------------------------------


REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "a name nobody counted": (("show", "nobody"), "nothing was counted under 'nobody'"),
    "runs of nobody": (("runs", "nobody"), "nothing was counted under 'nobody'"),
    "an unknown run": (("close", "nobody"), "knows of no run nobody"),
    "a delta of 2": (("show", "--delta", "2"), "delta must lie strictly between 0 and 1"),
    "a negative cap": (("cap", "p", "--epsilon", "-1", "--delta", "1e-5"), "epsilon must be a finite number above 0"),
    "a cap at delta 0": (("cap", "p", "--epsilon", "1", "--delta", "0"), "delta must lie"),
    "all of delta aside": (
        ("cap", "p", "--epsilon", "1", "--delta", "1e-5", "--aside", "1e-5"), "what is kept aside is a part of delta",
    ),
    "another unit": (("cap", "p", "--epsilon", "1", "--delta", "1e-5", "--unit", "house"), "is one of example, user"),
    "no room at all": (("cap", "p", "--epsilon", "1e-5", "--delta", "1e-9"), "has no room for anything"),
    "capitals": (("cap", "Patients", "--epsilon", "1", "--delta", "1e-5"), "the ledger knows 'patients'"),
    "spaces": (("cap", " p", "--epsilon", "1", "--delta", "1e-5"), "write ' p' as 'p'"),
    "one name": (("join", "patients"), "at least two"),
    "a piece that does not fit": (("add", "patients", "--epsilon", "5", "--what", "x"), "has no room for this"),
    "a piece with a delta": (
        ("add", "patients", "--epsilon", "0.1", "--delta", "1e-7", "--what", "x"), "--aside 1e-07",
    ),
    "an export into nowhere": (("export", "--out", "none/all.json"), "could not be written"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_the_user_can_mend_is_one_line(ask: Asked, book: LedgerFile, case: str) -> None:
    arguments, words = REFUSED[case]
    before = book.verify()
    assert words in refusal(ask, *arguments)
    assert book.verify() == before


def test_no_ledger_named_and_none_there(ask: Asked, monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    for command in ("show", "runs", "verify", "export"):
        assert "there is no ledger" in refusal(ask, command)
    assert not (here / "ledger.db").exists(), "to ask makes none"
    monkeypatch.delenv("SORDINO_LEDGER")
    assert "which ledger? Give --ledger FILE, or set SORDINO_LEDGER" in refusal(ask, "show")
    LedgerFile("named.db").reserve("patients", gaussian(4.0), delta=1e-5)
    assert answer(ask, "show", "--ledger", "named.db")["data_sets"][0]["runs"] == 1


def test_another_file_is_not_a_ledger(ask: Asked, here: Path) -> None:
    (here / "ledger.db").write_text("a shopping list" * 100)
    for command in ("show", "verify"):
        assert "is not a ledger of Sordino" in refusal(ask, command)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser writes everywhere")
def test_a_read_only_ledger_is_shown_and_not_written(ask: Asked, book: LedgerFile, here: Path) -> None:
    (here / "ledger.db").chmod(0o400)
    assert ask("show")[0] == ask("verify")[0] == 0
    assert "writable" in refusal(ask, *CAP)


def test_a_newer_ledger_is_one_line(ask: Asked, book: LedgerFile, here: Path) -> None:
    with sqlite3.connect(here / "ledger.db") as connection:
        connection.execute("PRAGMA user_version = 2")
    for arguments in (("show",), ("verify",), CAP):
        assert "newer version of Sordino" in refusal(ask, *arguments)


def test_no_command_believes_an_edited_ledger(ask: Asked, book: LedgerFile, here: Path) -> None:
    with sqlite3.connect(here / "ledger.db") as connection:
        connection.execute("DROP TRIGGER never_changed")
        connection.execute("UPDATE entries SET body = replace(body, '20.0', '200.0') WHERE kind = 'reserve'")
    every = (
        ("show",),
        ("runs",),
        ("export",),
        ("verify",),
        CAP,
        ("join", "a", "b"),
        ("add", "a", "--epsilon", "1"),
    )
    for arguments in every:
        more = ("--what", "x") if arguments[0] == "add" else ()
        line = refusal(ask, *arguments, *more)
        assert "is not what was written: entry 3 (reserve)" in line


# Runs that are counted ----------------------------------------------------------------------------------------


def test_a_run_of_the_command_line_is_counted_or_refused(
    ask: Asked, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    ask("cap", "digits", "--epsilon", "2", "--delta", "1e-5")
    short = (
        "train",
        "digits",
        "--delta",
        "1e-5",
        "--epochs",
        "1",
        "--method",
        "dp-sgd",
        "--accountant",
        "rdp",
        "--json",
    )
    assert sordino(monkeypatch, *short, "--epsilon", "1.5") == 0
    counted = json.loads(capsys.readouterr().out)["ledger"]
    head = LedgerFile("ledger.db").verify()
    where = {"file": "ledger.db", "capped": True}
    assert counted == {
        "data": "digits",
        "run": counted["run"],
        **where,
        "length": head.length,
        "head": head.digest,
    }
    assert sordino(monkeypatch, *short, "--epsilon", "1.5") == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert line.startswith(
        "sordino: the cap of 'digits' (epsilon 2 at delta 1e-05) has no room for this: 1 run has"
    )
    assert "it would fit" in line or "nothing left" in line
    (found,) = answer(ask, "show", "digits")["data_sets"]
    assert found["runs"] == 1
    assert math.isclose(found["epsilon"], found["spent"])


def test_a_file_needs_a_name_to_be_counted(
    ask: Asked, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], here: Path
) -> None:
    (here / "mine.csv").write_text("x,y\n" + "\n".join(f"{row % 7},{row % 2}" for row in range(40)))
    assert (
        sordino(monkeypatch, "train", "mine.csv", "--target", "y", "--epsilon", "1", "--delta", "1e-3") == 2
    )
    assert not (here / "ledger.db").exists()
