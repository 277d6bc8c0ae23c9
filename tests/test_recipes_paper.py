"""What recipes have from papers is data: files that are read whole, texts with braces, tables with titles."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

import sordino.recipes.oso_grids as grids
from sordino.recipes import frame
from sordino.recipes.dp_ftrl_epsilons import priced
from sordino.recipes.paper import Published

FILES = sorted((Path(frame.__file__).parent / "published").glob("*.toml"))


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Published:
    path = tmp_path / "some.toml"
    path.write_text(
        'numbers = [[1, 2], [3]]\n[notes]\nalways = "{who} has {BATCH}"\nquick = "less"\n'
        '[tables.plain]\ntitle = "of {who}"\ncolumns = "a | b"\n'
        '[tables.filled]\ntitle = "t"\ncolumns = "a | b"\nrow = "{a:.1f} | {b}"\n'
    )
    monkeypatch.setattr("sordino.recipes.paper.published_file", lambda module: path)
    return Published(grids.__name__)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_file_is_that_of_a_module(path: Path) -> None:
    assert (path.parents[1] / f"{path.stem}.py").exists()
    assert tomllib.loads(path.read_text())


def test_what_was_published_cannot_change(said: Published) -> None:
    assert said["numbers"] == ((1, 2), (3,))


def test_texts_are_filled_with_what_was_measured_and_constants_of_the_recipe(said: Published) -> None:
    assert said.notes(who="OSO", quick=True) == [f"OSO has {grids.BATCH}", "less"]
    with pytest.raises(KeyError, match="who"):
        said.notes()


def test_a_note_that_does_not_apply_is_left_out(said: Published) -> None:
    assert said.notes(who="OSO", quick=False) == [f"OSO has {grids.BATCH}"]


def test_a_table_takes_rows_as_they_are_or_what_fills_its_template(said: Published) -> None:
    plain = said.table("plain", [("x", 1), "y | z", {"b": 2}], who="OSO")
    assert (plain.title, plain.columns) == ("of OSO", ("a", "b"))
    assert plain.rows == [("x", 1), ("y", "z"), ("", 2)]
    assert said.table("filled", [{"a": 1, "b": "c"}]).rows == [("1.0", "c")]


def test_a_job_is_another_when_what_it_reads_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of published tables are jobs by their number alone."""
    job = frame.Job("a line", priced, {"table": 3, "line": 0})
    before = job.key
    (tmp_path / "other.toml").write_text("changed = true")
    monkeypatch.setattr(frame, "published_file", lambda module: tmp_path / "other.toml")
    frame._code.cache_clear()
    try:
        assert job.key != before
    finally:
        frame._code.cache_clear()
