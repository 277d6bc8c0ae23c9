"""Code of the user's own is found by name or by file, and hides nobody else's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sordino.imported import imported


def test_what_lies_beside_a_file_is_found_and_hides_no_installed_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "colorsys.py").write_text("rgb_to_hsv = 'not this one'")
    (tmp_path / "beside_mine.py").write_text("number = 7")
    (tmp_path / "mine.py").write_text(
        "import beside_mine\nfrom colorsys import rgb_to_hsv\nnumber = beside_mine.number"
    )
    for name in ("colorsys", "beside_mine"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    before = list(sys.path)
    with imported(f"{tmp_path}/mine.py:number", "features") as number:
        assert number == 7
    with imported(f"{tmp_path}/mine.py:rgb_to_hsv", "features") as found:
        assert callable(found)
    assert sys.path == before


def test_what_is_not_there_gets_one_line(tmp_path: Path) -> None:
    for spec, message in (("math:nothing", "math has no nothing"), ("no.such:f", "cannot import no.such")):
        with pytest.raises(ValueError, match=message), imported(spec, "features"):
            pass
    with pytest.raises(ValueError, match="there is no file"), imported(f"{tmp_path}/none.py:f", "features"):
        pass
