"""report.png of a run: a panel for each thing that was measured or moved, and what is not known is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from sordino.report import draw_report

SUMMARY: dict[str, Any] = {"data": "digits", "method": {"name": "auto"}, "delta": 1e-5, "unit": "example"}


def line(epoch: float, **more: Any) -> dict[str, Any]:
    return {"step": epoch, "epoch": epoch, "rate": 0.1, "threshold": None, "epsilon": epoch / 2, **more}


def drawn(history: list[dict[str, Any]], **more: Any) -> Figure:
    kept: list[Figure] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sordino.report.figure.save_figure", lambda figure, path: kept.append(figure))
        draw_report(SUMMARY | more, history, Path("nowhere.png"))
    return kept[0]


def words(figure: Figure) -> str:
    return " ".join(
        [text.get_text() for axes in figure.axes for text in axes.texts]
        + [axes.get_title() for axes in figure.axes]
        + [figure.get_suptitle()]
    )


def test_what_moved_has_a_panel() -> None:
    plain = drawn([line(e, test_accuracy=0.1 * e) for e in range(1, 5)])
    moved = [line(e, test_accuracy=0.1 * e, threshold=0.1 * e, error=0.2, tolerance=0.1) for e in range(1, 5)]
    assert "Clipping threshold" not in words(plain)
    for title in ("Clipping threshold", "Error estimate", "Learning rate", "Privacy spent"):
        assert title in words(drawn(moved))


def test_an_infinite_epsilon_is_said_and_not_drawn() -> None:
    figure = drawn([line(e, epsilon="inf", test_accuracy=0.5) for e in range(1, 5)])
    assert "epsilon is infinite" in words(figure)
    (spent,) = [axes for axes in figure.axes if axes.get_ylabel() == "epsilon"]
    assert not spent.lines
    assert "epsilon is infinite" not in words(drawn([line(e) for e in range(1, 5)]))


def test_measures_that_are_missing_and_guarantees_that_are_void_are_said() -> None:
    assert "no test set" in words(drawn([line(1.0), line(2.0)]))
    said = words(drawn([line(1.0), line(2.0)], seeded=True, caveat="NOT A GUARANTEE"))
    assert "seeded: not a guarantee" in said
    assert "NOT A GUARANTEE" in said


def test_the_file_is_a_picture(tmp_path: Path) -> None:
    draw_report(
        SUMMARY, [line(1.0, test_accuracy=0.5), line(2.0, test_accuracy=0.6)], tmp_path / "report.png"
    )
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
