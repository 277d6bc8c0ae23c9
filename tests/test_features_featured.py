"""Features in front of a private model: of each row by itself, computed once, gone afterwards."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import sordino.features.featured as featured
from conftest import sordino
from sordino.data import Loaded, load
from sordino.data.inputs import inputs_from_json
from sordino.data.schema import Column, Schema, TargetColumn
from sordino.data.table import Table
from sordino.features import features_named, with_features
from sordino.features.featured import of_texts, with_embedding
from sordino.features.scattering import Scattering

CODE = """
import torch
from torch import nn
def halves(rows): return rows.flatten(1)[:, ::2]
def mixed(rows): return rows.flatten(1) - rows.flatten(1).mean(0)
def random(rows): return torch.rand(len(rows), 3)
def lengths(texts): return torch.tensor([[float(len(text)), 1.0] for text in texts])
def single(rows): return rows.sum()
def picky(rows):
    if (rows > 2).any():
        raise ValueError(f"no such value: {rows.max()}")
    return rows.flatten(1)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
    def forward(self, rows): return self.norm(rows)
def wrong(rows): return rows @ torch.zeros(5, 2)
number = 3
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "mine.py").write_text(CODE)
    return str(tmp_path / "mine.py")


def rows(n: int = 10) -> Loaded:
    inputs = torch.rand(n, 4, generator=torch.Generator().manual_seed(0))
    return Loaded("rows", (inputs, torch.arange(n) % 2), None, 2, (4,))


def inputs_of(part: object) -> Tensor:
    found, _ = part.take(torch.arange(len(part)))  # type: ignore[attr-defined, arg-type]
    assert isinstance(found, Tensor)
    return found


def test_features_are_named_or_ones_own(mine: str) -> None:
    assert features_named("none") is None
    assert features_named("scattering,normalised=false") == Scattering(normalised=False)
    assert features_named(Scattering(False).name) == Scattering(False)
    assert features_named(f"{mine}:halves") is not None
    for text, message in (
        ("scatering", "unknown kind of features 'scatering'.*did you mean scattering"),
        ("sentence-transformers", "needs its model"),
        (f"{mine}:nothing", "has no nothing"),
        (f"{mine}:number", "is a int: name a function"),
        ("no_such_module:f", "cannot import no_such_module"),
    ):
        with pytest.raises(ValueError, match=message):
            features_named(text)


def test_a_callable_stands_in_front(mine: str) -> None:
    loaded = with_features(rows(), f"{mine}:halves")
    assert loaded.input_shape == (2,)
    assert torch.equal(inputs_of(loaded.train), rows().train[0][:, ::2])
    assert f"features computed by {mine}:halves, of each row by itself" in loaded.public
    assert with_features(rows(), "none").train[0].shape == (10, 4)


def test_a_module_is_frozen_and_in_its_mode_of_use(mine: str) -> None:
    loaded = with_features(rows(), f"{mine}:Net")  # in training it would take the statistics of a batch
    expected = nn.BatchNorm1d(4).eval()(rows().train[0])
    torch.testing.assert_close(inputs_of(loaded.train), expected)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mixed", "of a row depend on the other rows of its batch"),
        ("random", "are others each time"),
        ("single", r"must be one row for each of 5 rows, shape \(5, d\), but were shape \(\)"),
        ("wrong", "cannot be computed of rows of shape"),
    ],
)
def test_what_is_no_feature_of_a_row_is_refused_on_made_up_rows(mine: str, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        with_features(rows(), f"{mine}:{name}")


def test_a_row_at_which_it_fails_counts_as_unreadable_and_moves_no_other(mine: str) -> None:
    data, bad = rows(100), rows(100)
    bad.train[0][70] = 3.0
    good, one_fails = (with_features(each, f"{mine}:picky").train for each in (data, bad))
    kept, _, _ = one_fails.take_readable(torch.arange(100))
    assert kept.tolist() == [*range(70), *range(71, 100)]
    assert torch.equal(inputs_of(good)[kept], inputs_of(one_fails)[kept])


@pytest.mark.parametrize("count", [31, 32, 33, 64])
def test_a_row_has_the_same_features_whoever_else_is_there(count: int) -> None:
    images = torch.rand(70, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    data = Loaded("images", (images, torch.zeros(70, dtype=torch.int64)), None, 2, (1, 8, 8))
    others = torch.cat([images[:1], 9 * torch.rand(count - 1, 1, 8, 8)])
    fewer = replace(data, train=(others, torch.zeros(count, dtype=torch.int64)))
    whole = inputs_of(with_features(data, "scattering").train)
    assert torch.equal(inputs_of(with_features(fewer, "scattering").train)[0], whole[0])
    torch.testing.assert_close(whole, Scattering()(images), rtol=2e-3, atol=2e-3)  # kept in half precision


def test_features_of_private_rows_are_left_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    monkeypatch.setattr(featured, "_WORTH_KEEPING", -1)
    digits = load("digits")
    kept = with_features(digits, "scattering")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    again = with_features(digits, "scattering", public=True)
    assert len(list((tmp_path / "cache").rglob("*.npy"))) == 2  # rows to train on, and to test on
    assert torch.equal(inputs_of(kept.train), inputs_of(again.train))


def test_features_of_a_public_set_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(featured, "_WORTH_KEEPING", -1)
    first = with_features(load("digits"), "scattering", public=True)
    with monkeypatch.context() as patch:
        patch.setattr(featured, "_computed", None)
        second = with_features(load("digits"), "scattering", public=True)
    assert torch.equal(inputs_of(first.train), inputs_of(second.train))
    assert torch.equal(first.train.take(torch.arange(9))[1], second.train.take(torch.arange(9))[1])
    for file in tmp_path.rglob("*.npy"):
        file.write_bytes(b"damaged")
    third = with_features(load("digits"), "scattering", public=True)
    assert torch.equal(inputs_of(first.train), inputs_of(third.train))


def test_a_run_keeps_what_stood_in_front(tmp_path: Path, mine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).random((60, 4)).astype(np.float32)
    np.savez(tmp_path / "rows.npz", x=x, y=np.arange(60) % 2)
    paid = (
        "--noise-multiplier",
        "2",
        "--delta",
        "1e-3",
        "--accountant",
        "rdp",
        "--epochs",
        "1",
        "--classes",
        "2",
    )
    out = tmp_path / "run"
    chosen = ("--features", f"{mine}:halves", "--out", str(out))
    assert sordino(monkeypatch, "train", str(tmp_path / "rows.npz"), *paid, *chosen) == 0
    said = json.loads((out / "inputs.json").read_text())
    assert said["kind"] == "featured"
    assert said["features"] == {"name": f"{mine}:halves"}
    again = inputs_from_json(said)
    assert again.shape == (2,)
    assert again.to_json() == said
    certificate = json.loads((out / "certificate.json").read_text())
    assert any(f"features computed by {mine}:halves" in each for each in certificate["assumptions"])
    assert json.loads((out / "run.json").read_text())["model"] == "linear"


def test_a_folder_of_images_is_trained_on_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for part, count in (("train", 30), ("test", 5)):
        for label, name in enumerate(("dark", "light")):
            for number in range(count):
                file = tmp_path / "shades" / part / name / f"{number}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                level = np.random.default_rng(number).integers(0, 100, (9, 9)) + 150 * label
                Image.fromarray(level.astype(np.uint8)).save(file)
    (tmp_path / "shades" / "train" / "dark" / "3.png").write_bytes(b"Anna Meier")
    out = tmp_path / "run"
    paid = (
        "--noise-multiplier",
        "1",
        "--delta",
        "1e-3",
        "--accountant",
        "rdp",
        "--epochs",
        "2",
        "--out",
        str(out),
    )
    chosen = ("--features", "scattering", "--image-size", "8", "--grey")
    assert sordino(monkeypatch, "train", str(tmp_path / "shades"), *paid, *chosen) == 0
    said = json.loads((out / "inputs.json").read_text())
    assert said["base"] == {"kind": "images", "size": 8, "grey": True, "declared": False}
    assert said["target"] == {"name": "class", "labels": ["dark", "light"]}
    summary = json.loads((out / "run.json").read_text())
    assert (summary["n"], summary["features"]) == (60, "scattering")
    again = inputs_from_json(said).examples(tmp_path / "shades" / "test")
    assert (len(again), inputs_of(again).shape[1:]) == (10, (81, 2, 2))


def test_a_file_of_texts_is_trained_on_with_features(
    tmp_path: Path, mine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [
        f"{'long ' * 9 if number % 2 else 'short'},{'yes' if number % 2 else 'no'}" for number in range(60)
    ]
    (tmp_path / "notes.csv").write_text("\n".join(["note,y", *lines]))
    schema = Schema(TargetColumn("y", labels=("no", "yes")), (Column("note", "text"),))
    (tmp_path / "notes.schema.toml").write_text(schema.to_toml())
    out = tmp_path / "run"
    paid = ("--noise-multiplier", "1", "--delta", "1e-3", "--accountant", "rdp", "--epochs", "1")
    chosen = ("--features", f"{mine}:lengths", "--out", str(out))
    assert sordino(monkeypatch, "train", str(tmp_path / "notes.csv"), *paid, *chosen) == 0
    again = inputs_from_json(json.loads((out / "inputs.json").read_text()))
    assert again.shape == (2,)
    assert f"features computed by {mine}:lengths, of each row by itself" in again.public


def test_features_of_images_are_not_for_rows_or_texts(mine: str) -> None:
    with pytest.raises(ValueError, match="scattering is for images"):
        with_features(rows(), "scattering")
    texts = Loaded("texts", (["a", "b"], torch.tensor([0, 1])), None, 2, ())
    with pytest.raises(ValueError, match="are for images, and the rows are texts"):
        with_features(texts, "scattering")
    found = with_features(texts, f"{mine}:lengths")
    assert inputs_of(found.train).tolist() == [[1, 1], [1, 1]]


def test_a_column_of_texts_may_have_features(mine: str) -> None:
    schema = Schema(TargetColumn("y", labels=("no", "yes")), (Column("note", "text"),))
    table = Table(with_embedding(schema, f"{mine}:lengths"))
    found = table.examples({"note": ["abc", None, ""], "y": ["no", "yes", "no"]})
    assert inputs_of(found).tolist() == [[3, 1], [0, 0], [0, 0]]
    assert inputs_from_json(table.to_json()) == table
    assert of_texts(f"{mine}:lengths")(["ab"]).tolist() == [[2, 1]]
    with pytest.raises(ValueError, match="no column of kind text"):
        with_embedding(Schema(schema.target, (Column("age", "ignore"),)), f"{mine}:lengths")
