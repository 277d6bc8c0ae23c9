from __future__ import annotations

import csv
import io
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sordino.data import as_examples, load
from sordino.models import build_model, default_model
from test_data_named import REAL, no_data_of_this_machine, one_line  # noqa: F401 (a fixture for all tests)

WORDS = [
    "the",
    ",",
    "oil",
    "price",
    "39",
    "s",
    "of",
    "2",
    "b",
    "iraq",
    "café",
    "naïve",
    "wall",
    "st",
    "zebra",
]
VECTORS = np.random.default_rng(3).normal(size=(len(WORDS), 50)).astype(np.float16)

Row = tuple[str, str, str]
ROWS: list[Row] = [
    ("3", "Wall St. 2 Fall", 'Quoted "oil" prices; the OIL-price, unheard'),
    ("1", "Iraq #39;s café", "naïve quot;oil quot; &lt;b&gt; price_of 39"),
    ("4", "", "nothing known here"),
    ("2", "the " * 9, "zebra oil " * 9),
    ("2", "", ""),
]


def write_csv(path: Path, rows: Sequence[Sequence[str]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n").writerows(rows)
    path.write_text(text.getvalue(), encoding="utf-8")


def write_packed(root: Path, **arrays: Any) -> Path:
    path = root / "glove" / "glove50_agnews_f16.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as out:
        np.savez_compressed(out, **({"words": np.array("\n".join(WORDS)), "vectors": VECTORS} | arrays))
    return path


def write_text(root: Path, lines: list[str] | None = None) -> Path:
    path = root / "glove" / "glove.6B.50d.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    if lines is None:
        lines = [
            f"{word} {' '.join(str(float(value)) for value in vector)}"
            for word, vector in zip(WORDS, VECTORS, strict=True)
        ]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def write(root: Path, train: Sequence[Row] = ROWS, test: Sequence[Row] = ROWS[1:3]) -> Path:
    write_csv(root / "ag-news" / "train.csv", train)
    write_csv(root / "ag-news" / "test.csv", test)
    write_packed(root)
    return root


def encoded(row: Row) -> torch.Tensor:
    """One row by hand: the oracle."""
    text = re.sub(r"&?(#[0-9]+|\b(amp|gt|lt|nbsp|quot));", " ", f"{row[1]} {row[2]}".lower())
    words = "".join(letter if letter.isalnum() else " " for letter in text).split()
    result = torch.zeros(15, 50)
    for place, word in enumerate([word for word in words if word in WORDS][:15]):
        result[place] = torch.from_numpy(VECTORS[WORDS.index(word)]).to(torch.float32)
    return result.flatten()


def words_of(vector: torch.Tensor) -> list[str]:
    """The way back, which needs no knowledge of how words are split."""
    known = torch.from_numpy(VECTORS).to(torch.float32)
    found = []
    for part in vector.view(15, 50):
        matches = (known == part).all(1).nonzero().flatten().tolist()
        found.append(WORDS[matches[0]] if matches else "")
        assert matches or not part.any()
    return found


@pytest.mark.parametrize("form", ["packed", "text"])
def test_rows_are_encoded_one_by_one_in_their_order(tmp_path: Path, form: str) -> None:
    write(tmp_path)
    if form == "text":
        (tmp_path / "glove" / "glove50_agnews_f16.npz").unlink()
        write_text(tmp_path)
    loaded = load("ag-news", root=tmp_path)
    (inputs, targets), test = loaded.train, loaded.test
    assert test is not None
    assert inputs.dtype == torch.float32
    assert targets.dtype == torch.int64
    assert torch.equal(inputs, torch.stack([encoded(row) for row in ROWS]))
    assert torch.equal(test[0], inputs[1:3])
    assert targets.tolist() == [2, 0, 3, 1, 1]
    assert test[1].tolist() == [0, 3]
    assert (loaded.classes, loaded.input_shape, loaded.task) == (4, (750,), "classification")
    assert len(as_examples(loaded.train)) == 5


def test_golden_words(tmp_path: Path) -> None:
    inputs, _ = load("ag-news", root=write(tmp_path)).train
    padding = [""] * 15
    assert words_of(inputs[0]) == ["wall", "st", "2", "oil", "the", "oil", "price", *padding[:8]]
    # `#39;` is an apostrophe and not the number, the 39 at the end is one
    expected = ["iraq", "s", "café", "naïve", "oil", "b", "price", "of", "39"]
    assert words_of(inputs[1]) == [*expected, *padding[:6]]
    assert words_of(inputs[2]) == padding
    assert words_of(inputs[3]) == ["the"] * 9 + ["zebra", "oil"] * 3
    assert words_of(inputs[4]) == padding


def test_a_word_that_ends_like_a_reference_is_kept(tmp_path: Path) -> None:
    write(tmp_path, [("1", "camp; amp; oil;", "zebra")])
    write_packed(tmp_path, words=np.array("camp\namp\noil"), vectors=VECTORS[:3])
    inputs, _ = load("ag-news", root=tmp_path).train
    assert torch.equal(inputs[0, :100].view(2, 50), torch.from_numpy(VECTORS[[0, 2]]).float())
    assert not inputs[0, 100:].any()


def test_a_row_does_not_depend_on_other_rows(tmp_path: Path) -> None:
    first = load("ag-news", root=write(tmp_path / "a")).train[0]
    second = load("ag-news", root=write(tmp_path / "b", [ROWS[3], ROWS[0]])).train[0]
    assert torch.equal(first[[3, 0]], second)


def test_all_rows_are_read_and_the_public_facts_are_stated(tmp_path: Path) -> None:
    loaded = load("ag-news", root=write(tmp_path, ROWS * 300))
    assert len(loaded.train[1]) == 1500
    assert any("GloVe" in fact for fact in loaded.public)


def test_the_default_model_takes_it() -> None:
    assert default_model("ag-news", (750,)) == "mlp:128"
    assert build_model("mlp:128", (750,), 4)(torch.rand(3, 750)).shape == (3, 4)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('"1","a"\n', " has a row that is not a class, a title and a description"),
        ('"1","a","b","c"\n', " has a row that is not a class, a title and a description"),
        ("\n", " has a row that is not a class, a title and a description"),
        ('"0","a","b"\n', " has a class that is not 1, 2, 3 or 4"),
        ('"5","a","b"\n', " has a class that is not 1, 2, 3 or 4"),
        ('"Class Index","Title","Description"\n', " has a class that is not 1, 2, 3 or 4"),
        ('"1","a","b\n', " has rows that are damaged"),
        ('"1","a"x,"b"\n', " has rows that are damaged"),
    ],
)
def test_bad_rows_get_one_line_with_the_file_alone(tmp_path: Path, content: str, message: str) -> None:
    write(tmp_path)
    (tmp_path / "ag-news" / "train.csv").write_text(f'"1","a","b"\n{content}')
    with pytest.raises(ValueError, match=f"ag-news/train.csv{message}") as caught:
        load("ag-news", root=tmp_path)
    one_line(caught)


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "has no rows"), (b'"1","\xff","b"', "is not a text file in UTF-8")]
)
def test_damaged_files_get_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    write(tmp_path)
    (tmp_path / "ag-news" / "test.csv").write_bytes(content)
    with pytest.raises(ValueError, match=rf"ag-news/test\.csv {message}") as caught:
        load("ag-news", root=tmp_path)
    one_line(caught)


@pytest.mark.parametrize("name", ["ag-news/train.csv", "ag-news/test.csv", "glove/glove50_agnews_f16.npz"])
def test_a_missing_file_is_not_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: pytest.fail("a download was tried"))
    write(tmp_path)
    (tmp_path / name).unlink()
    message = f"no {name}.*: set SORDINO_DATA to a folder with ag-news/train.csv, .*glove/glove.6B.50d.txt"
    with pytest.raises(ValueError, match=message) as caught:
        load("ag-news", root=tmp_path)
    one_line(caught)


@pytest.mark.parametrize(
    "name", ["ag-news/train.csv", "glove/glove50_agnews_f16.npz", "glove/glove.6B.50d.txt"]
)
def test_a_folder_in_place_of_a_file_gets_one_line(tmp_path: Path, name: str) -> None:
    write(tmp_path)
    (tmp_path / ("glove/glove50_agnews_f16.npz" if "glove" in name else name)).unlink()
    (tmp_path / name).mkdir()
    with pytest.raises(ValueError, match=f"(cannot read )?.*{name}") as caught:
        load("ag-news", root=tmp_path)
    one_line(caught)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"words": np.array(WORDS)}, "words is not one string"),
        ({"words": np.array(1.0)}, "words is not one string"),
        ({"words": np.array(["a", None], dtype=object)}, "does not hold word vectors"),
        ({"vectors": VECTORS[1:]}, "vectors is not 15 rows of 50 floats"),
        ({"vectors": VECTORS[:, 1:]}, "vectors is not 15 rows of 50 floats"),
        ({"vectors": np.zeros((15, 50), dtype=np.int64)}, "vectors is not 15 rows of 50 floats"),
        ({"vectors": np.full((15, 50), np.nan)}, "vectors that are not finite"),
        ({"words": np.array("\n".join("x" * n for n in range(30, 45)))}, "a vector for no word of the rows"),
    ],
)
def test_wrong_arrays_get_one_line(tmp_path: Path, arrays: dict[str, Any], message: str) -> None:
    write(tmp_path)
    write_packed(tmp_path, **arrays)
    with pytest.raises(ValueError, match=message) as caught:
        load("ag-news", root=tmp_path)
    assert "glove50_agnews_f16.npz" in one_line(caught)


@pytest.mark.parametrize("damage", ["empty", "not a zip", "cut", "flipped", "no vectors"])
def test_a_broken_npz_gets_one_line(tmp_path: Path, damage: str) -> None:
    path = write_packed(write(tmp_path))
    whole = path.read_bytes()
    other = io.BytesIO()
    np.savez(other, words=np.array("the"))
    middle = len(whole) // 2
    path.write_bytes(
        {
            "empty": b"",
            "not a zip": b"<html>",
            "cut": whole[:middle],
            "flipped": whole[:middle]
            + bytes(255 - byte for byte in whole[middle : middle + 9])
            + whole[middle + 9 :],
            "no vectors": other.getvalue(),
        }[damage]
    )
    with pytest.raises(ValueError, match=r"glove50_agnews_f16\.npz does not hold word vectors") as caught:
        load("ag-news", root=tmp_path)
    one_line(caught)


NUMBERS = " ".join(["0.5"] * 50)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([f"the {NUMBERS}", f"oil {NUMBERS} 1"], " has lines that do not hold a word and 50 numbers"),
        ([f"the {NUMBERS}", "oil"], " has lines that do not hold a word and 50 numbers"),
        ([f"oil {NUMBERS.replace('0.5', 'half', 1)}"], " has lines that do not hold a word and 50 numbers"),
        ([f"oil {NUMBERS.replace('0.5', 'nan', 1)}"], " has vectors that are not finite"),
        (["<html>"], " has a vector for no word of the rows"),
        ([], " has a vector for no word of the rows"),
    ],
)
def test_a_broken_text_file_gets_one_line(tmp_path: Path, lines: list[str], message: str) -> None:
    write(tmp_path)
    (tmp_path / "glove" / "glove50_agnews_f16.npz").unlink()
    write_text(tmp_path, lines)
    with pytest.raises(ValueError, match=f"glove.6B.50d.txt{message}") as caught:
        load("ag-news", root=tmp_path)
    one_line(caught)


def test_odd_words_of_the_text_file_do_no_harm(tmp_path: Path) -> None:
    """Spaces and line breaks of other alphabets are words in some releases of GloVe."""
    write(tmp_path)
    (tmp_path / "glove" / "glove50_agnews_f16.npz").unlink()
    write_text(tmp_path, [f"\x85 {NUMBERS}", f"\u2028 {NUMBERS}", f"\xa0 {NUMBERS}", f"oil {NUMBERS}"])
    inputs, _ = load("ag-news", root=tmp_path).train
    assert inputs[0].tolist() == [0.5] * 100 + [0.0] * 650


def test_the_real_files() -> None:
    glove = [] if REAL is None else [*(REAL / "glove").glob("glove*50*")]
    if REAL is None or not glove or not (REAL / "ag-news" / "train.csv").exists():
        pytest.skip("no real data on this machine")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loaded = load("ag-news", root=REAL)
    (inputs, targets), test = loaded.train, loaded.test
    assert test is not None
    assert inputs.shape == (len(targets), 750)
    assert test[0].shape == (7600, 750)
    assert test[1].bincount().tolist() == [1900] * 4
    assert targets.bincount(minlength=4).min() > 0.2 * len(targets)
    assert inputs.isfinite().all()
    full = inputs.view(-1, 15, 50).any(2).all(1)
    assert full.float().mean() > 0.99  # almost every row has its fifteen words
