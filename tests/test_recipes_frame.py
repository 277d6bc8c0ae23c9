"""Jobs are run once, kept, and given back in their order, however many workers there are."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from sordino.recipes.frame import Contestant, Job, Study, Table, Workshop, check_spent, results_of


def square(*, number: int, log: str) -> dict[str, Any]:
    """Leaves a line for each time it is run."""
    with Path(log).open("a") as file:
        file.write(f"{number}\n")
    if number < 0:
        raise ValueError(f"{number} is negative")
    return {"square": number**2, "root": math.sqrt(number), "loss": math.nan, "pair": (1, 2)}


def cube(*, number: int, log: str) -> dict[str, Any]:
    return {"cube": number**3}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.touch()
    return path


def jobs(log: Path, *numbers: int) -> list[Job]:
    return [Job(f"square of {n}", square, {"number": n, "log": str(log)}) for n in numbers]


def workshop(log: Path, workers: int = 1) -> Workshop:
    return Workshop(log.parent / "work", workers, progress=False)


def test_a_finished_job_is_not_run_again(log: Path) -> None:
    first = workshop(log)(jobs(log, 3, 1, 2))
    again = workshop(log)(jobs(log, 2, 3, 4))
    assert [r["square"] for r in first] == [9, 1, 4]
    assert [r["square"] for r in again] == [4, 9, 16]
    assert log.read_text().split() == ["3", "1", "2", "4"]


def test_a_result_is_the_same_now_and_later(log: Path) -> None:
    fresh = workshop(log)(jobs(log, 2))
    assert fresh == workshop(log)(jobs(log, 2))
    assert fresh[0]["loss"] == "nan"  # JSON has no other
    assert fresh[0]["pair"] == [1, 2]


def test_the_same_job_twice_is_run_once(log: Path) -> None:
    renamed = Job("another name", square, {"number": 5, "log": str(log)})
    assert [r["square"] for r in workshop(log)([*jobs(log, 5, 5), renamed])] == [25, 25, 25]
    assert log.read_text().split() == ["5"]


def test_function_and_settings_make_a_job(log: Path) -> None:
    one, other = jobs(log, 5)[0], Job("square of 5", cube, {"number": 5, "log": str(log)})
    assert one.key != other.key
    assert one.key != jobs(log, 6)[0].key
    assert workshop(log)([one, other])[1] == {"cube": 125}


@pytest.mark.parametrize("content", ["", "{", "[]", "3", '{"name": "x"}', '{"result": 3}', "\x00"])
def test_a_broken_file_is_run_again(log: Path, content: str) -> None:
    workshop(log)(jobs(log, 7))
    (path,) = (log.parent / "work" / "jobs").iterdir()
    path.write_text(content)
    assert workshop(log)(jobs(log, 7))[0]["square"] == 49
    assert log.read_text().split() == ["7", "7"]
    assert json.loads(path.read_text())["result"]["square"] == 49


def test_what_was_finished_before_an_error_is_kept(log: Path) -> None:
    with pytest.raises(ValueError, match="-1 is negative"):
        workshop(log)(jobs(log, 1, -1, 2))
    with pytest.raises(ValueError, match="-1 is negative"):
        workshop(log)(jobs(log, 1, -1, 2))
    assert log.read_text().split() == ["1", "-1", "-1"]


def test_two_workers_give_the_same_as_one(log: Path) -> None:
    numbers = [4, 1, 3, 2, 0]
    alone = workshop(log)(jobs(log, *numbers))
    log.write_text("")
    together = Workshop(log.parent / "other", 2, progress=False)
    assert together(jobs(log, *numbers)) == alone
    assert sorted(log.read_text().split()) == ["0", "1", "2", "3", "4"]
    with pytest.raises(ValueError, match="is negative") as raised:  # and it names the job
        together(jobs(log, 0, -1, -1, -2))
    assert "square of -" in raised.value.__notes__[0]


def test_a_workshop_needs_a_worker(log: Path) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        workshop(log, -1)


def test_a_table_of_rows_that_name_their_columns() -> None:
    table = Table.of("title", [{"a": 1, "b": 2.5}, {"a": "x", "c": None}])
    assert table.columns == ("a", "b", "c")
    assert table.rows == [(1, 2.5, ""), ("x", "", None)]


def test_results_by_what_they_are_of(log: Path) -> None:
    asked = {"small": jobs(log, 1, 2), "none": [], "large": jobs(log, 30)}
    found = results_of(workshop(log), asked)
    assert {key: [r["square"] for r in results] for key, results in found.items()} == {
        "small": [1, 4],
        "none": [],
        "large": [900],
    }


def test_a_studys_jobs_share_its_settings(log: Path) -> None:
    study = Study(square, {"number": 3, "log": str(log)})
    assert study.job("three").key == jobs(log, 3)[0].key
    assert study.job("four", number=4).settings == study.but(number=4).job("four").settings
    who = Contestant("Sgd", "sgd", {"rate": 1})
    assert study.job("chosen", who).settings.items() >= {"method": "sgd", "settings": {"rate": 1}}.items()
    named = Study(square, {}, "algorithm").job("chosen", who).settings
    assert named == {"algorithm": "sgd", "settings": {"rate": 1}}


def test_an_overspent_budget_is_a_bug() -> None:
    check_spent("it", {"epsilon": "inf"}, math.inf)
    with pytest.raises(RuntimeError, match=r"it spent 3.1 of 3"):
        check_spent("it", {"epsilon": 3.1}, 3)


def test_results_of_other_code_are_not_taken_for_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a setting left out means may change with the library."""
    job = Job("one", square, {"n": 1})
    before = job.key
    assert before == Job("another name", square, {"n": 1}).key != Job("one", square, {"n": 2}).key
    monkeypatch.setattr("sordino.recipes.frame._code", lambda module: "other code")
    assert job.key != before
