"""report.png of a federation: a panel for each thing that is known, and of clients only what may be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from sordino.report import draw_federated_report
from test_report_figure import words

SUMMARY: dict[str, Any] = {
    "data": "digits", "algorithm": {"kind": "AdaBest"}, "local": {"kind": "LocalSgd"}, "clients": 3, "private": False,
    "delta": 1e-3,
}  # fmt: skip


def line(number: int, **more: Any) -> dict[str, Any]:
    return {"round": number, "cloud_norm": 1.0 + number, **more}


def drawn(history: list[dict[str, Any]], folder: Path, **more: Any) -> Figure:
    kept: list[Figure] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sordino.report.federated.save_figure", lambda figure, path: kept.append(figure))
        draw_federated_report(SUMMARY | more, history, folder)
    return kept[0]


def test_what_is_known_has_a_panel(tmp_path: Path) -> None:
    plain = words(drawn([line(n, test_accuracy=0.2 * n) for n in (1, 2, 3)], tmp_path))
    assert "Accuracy" in plain
    assert "Privacy spent" not in plain
    private = [line(n, epsilon=float(n), threshold=0.1) for n in (1, 2, 3)]
    said = words(drawn(private, tmp_path, private=True, seeded=True))
    for title in ("no test set", "Privacy spent", "Clipping threshold", "seeded: not a guarantee"):
        assert title in said


def test_clients_are_shown_where_they_may_be(tmp_path: Path) -> None:
    about = {
        "clients": 3,
        "sizes": [1, 2, 3],
        "labels": [[1, 0], [0, 2], [1, 2]],
        "rates": {"0": 0.1, "2": 0.2},
    }
    (tmp_path / "clients.json").write_text(json.dumps(about))
    said = words(drawn([line(n, client_rates=[0.1, 0.2, 0.3]) for n in (1, 2, 3)], tmp_path))
    for title in (
        "Rates of the clients of a round",
        "at the end",
        "Sizes of the clients",
        "Share of each label",
    ):
        assert title in said


def test_the_file_is_a_picture(tmp_path: Path) -> None:
    draw_federated_report(SUMMARY, [line(1), line(2)], tmp_path)
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
