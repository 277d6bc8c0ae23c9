"""`sordino reproduce` with a tiny recipe: what it prints, writes, resumes and exits with."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from sordino import recipes
from sordino.cli.main import main
from sordino.recipes.frame import Job, Recipe, Report, Run, Table
from sordino.registry import Entry, Registry

RAN: list[int] = []
REGISTERED = recipes.RECIPES  # the real ones


def tiny_job(*, number: int) -> dict[str, Any]:
    RAN.append(number)
    return {"number": number}


def tiny(run: Run, quick: bool) -> Report:
    found = run([Job(f"number {n}", tiny_job, {"number": n}) for n in range(2 if quick else 3)])
    rows = [(f"[{r['number']}]", r["number"], 0.5, None) for r in found]
    table = Table("Numbers, n = 3", ("name", "ours", "published", "with"), rows)

    def draw(figure: Figure) -> None:
        figure.text(0.5, 0.5, "x")

    return Report([table], ["a note in [brackets]"], draw, settings={"a": 1})


def interrupted(run: Run, quick: bool) -> Report:
    tiny(run, quick)
    raise KeyboardInterrupt


def plain(run: Run, quick: bool) -> Report:
    return Report([])


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    made = {
        name: Recipe(name, f"the {name} experiment", function, "two numbers instead of three")
        for name, function in (("interrupted", interrupted), ("plain", plain), ("tiny", tiny))
    }
    entries = {name: Entry(recipe, recipe.summary) for name, recipe in made.items()}
    monkeypatch.setattr(recipes, "RECIPES", Registry("recipe", entries, unknown=REGISTERED.wording))
    monkeypatch.setattr(recipes, "LISTED", {name: recipe.summary for name, recipe in made.items()})
    RAN.clear()
    return tmp_path


def reproduce(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["sordino", "reproduce", *arguments])
    with pytest.raises(SystemExit) as exit_info:
        main()
    return int(exit_info.value.code or 0)


ONE = ("--workers", "1")


def test_it_prints_and_writes(here: Path, monkeypatch: Any, capsys: Any) -> None:
    assert reproduce(monkeypatch, "tiny", "--quick", *ONE) == 0
    out, err = capsys.readouterr()
    for words in (
        "the tiny experiment",
        "two numbers instead",
        "Numbers, n = 3",
        "[1]",
        "published",
        "[brackets]",
    ):
        assert words in out
    assert "quick one" not in err
    folder = here / "runs" / "reproduce-tiny-quick"
    assert {path.name for path in folder.iterdir()} == {"result.json", "figure.png", "jobs"}
    result = json.loads((folder / "result.json").read_text())
    assert result["recipe"] == "tiny"
    assert result["size"] == "quick"
    assert result["settings"] == {"a": 1}
    assert result["notes"] == ["a note in [brackets]"]
    assert result["tables"][0]["rows"] == [["[0]", 0, 0.5, None], ["[1]", 1, 0.5, None]]
    assert result["sordino_version"]


def test_without_a_size_it_is_quick_and_says_so(here: Path, monkeypatch: Any, capsys: Any) -> None:
    assert reproduce(monkeypatch, "tiny", *ONE) == 0
    assert "this is the quick one" in capsys.readouterr().err
    assert (here / "runs" / "reproduce-tiny-quick" / "result.json").exists()


def test_the_same_command_resumes(here: Path, monkeypatch: Any, capsys: Any) -> None:
    assert reproduce(monkeypatch, "tiny", "--full", *ONE) == 0
    first = capsys.readouterr().out
    assert reproduce(monkeypatch, "tiny", "--full", *ONE) == 0
    assert capsys.readouterr().out == first
    assert RAN == [0, 1, 2]
    assert (here / "runs" / "reproduce-tiny-full" / "result.json").exists()


def test_json_is_exactly_one_object(here: Path, monkeypatch: Any, capsys: Any) -> None:
    assert reproduce(monkeypatch, "tiny", "--full", "--json", "--out", "mine", *ONE) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["size"], result["folder"], result["quick"]) == ("full", "mine", None)
    assert len(result["tables"][0]["rows"]) == 3
    assert reproduce(monkeypatch, "plain", "--json", *ONE) == 0
    assert json.loads(capsys.readouterr().out)["tables"] == []


def test_the_list(monkeypatch: Any, capsys: Any) -> None:
    assert reproduce(monkeypatch, "--list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["interrupted", "plain", "tiny"]
    assert reproduce(monkeypatch, "--list", "--json") == 0
    assert json.loads(capsys.readouterr().out)["tiny"] == "the tiny experiment"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["tinny"], "did you mean tiny?"),
        (["Tiny"], "did you mean tiny?"),
        (["zzz"], "there are interrupted, plain, tiny"),
        ([], "say which"),
        (["tiny", "--quick", "--full"], "not both"),
        (["tiny", "--workers", "0"], "--workers must be at least 1"),
        (["tiny", "--workers", "two"], "--workers"),
    ],
)
def test_what_the_user_can_fix(
    here: Path, monkeypatch: Any, capsys: Any, arguments: list[str], message: str
) -> None:
    assert reproduce(monkeypatch, *arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert "Traceback" not in err
    assert not (here / "runs").exists()


def test_an_interrupt_says_how_to_go_on(here: Path, monkeypatch: Any, capsys: Any) -> None:
    assert reproduce(monkeypatch, "interrupted", "--quick", "--out", "my folder", *ONE) == 2
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("sordino:")]
    assert "sordino reproduce interrupted --quick --out 'my folder'" in line
    assert reproduce(monkeypatch, "interrupted", "--quick", "--out", "my folder", *ONE) == 2
    assert RAN == [0, 1]


def test_a_folder_is_for_one_experiment(here: Path, monkeypatch: Any, capsys: Any) -> None:
    assert reproduce(monkeypatch, "tiny", "--quick", "--out", "mine", *ONE) == 0
    assert reproduce(monkeypatch, "tiny", "--full", "--out", "mine", *ONE) == 2
    assert "tiny --quick" in capsys.readouterr().err
    (here / "mine" / "result.json").write_text("{broken")
    assert reproduce(monkeypatch, "tiny", "--full", "--out", "mine", *ONE) == 0


def test_a_list_loads_no_torch() -> None:
    code = (
        "import sys; from sordino.recipes import LISTED, RECIPES; assert list(RECIPES) == sorted(LISTED);"
        "[RECIPES[name] for name in ('oso-gradients', 'oso-mnist', 'oso-agnews')];"
        "sys.exit('torch' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", REGISTERED)
def test_what_is_registered_is_there(name: str) -> None:
    recipe = REGISTERED[name]
    assert recipe.name == name
    assert recipe.summary
    assert recipe.quick


def test_only_parts_that_there_are(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reproduce(monkeypatch, "tiny", "--only", "some", *ONE) == 2
    assert "no part is called some: tiny is run as a whole" in capsys.readouterr().err
    seen: list[Any] = []

    def parted(run: Run, quick: bool, only: Sequence[str] = ()) -> Report:
        seen.append(only)
        return Report([Table("t", ("a",), [("b",)])])

    entry = Entry(Recipe("parted", "of parts", parted, "less", ("one", "two")), "of parts")
    monkeypatch.setattr(recipes, "RECIPES", Registry("recipe", {"parted": entry}, unknown=REGISTERED.wording))
    assert reproduce(monkeypatch, "parted", "--only", "two, one", *ONE) == 0
    assert reproduce(monkeypatch, "parted", *ONE) == 0
    assert seen == [("two", "one"), ()]
    assert reproduce(monkeypatch, "parted", "--only", "three", *ONE) == 2
    assert "there are one, two" in capsys.readouterr().err
