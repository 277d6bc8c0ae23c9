"""The command line, in this process: what it prints, writes and exits with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import sordino

CHEAP = ["--accountant", "rdp", "--epochs", "2"]
PAID = ["--epsilon", "3", "--delta", "1e-5"]


def test_train_prints_what_matters(here: Path, monkeypatch: Any, capsys: Any) -> None:
    assert sordino(monkeypatch, "train", "digits", *PAID, *CHEAP, "--out", "run") == 0
    out, err = capsys.readouterr()
    for word in (
        "test accuracy",
        "epsilon",
        "delta              1e-05",
        "example of 1437",
        "run                run",
    ):
        assert word in out
    assert "rate" in err
    written = {p.name for p in (here / "run").iterdir()}
    assert written == {
        "run.json",
        "history.jsonl",
        "certificate.json",
        "model.safetensors",
        "report.png",
        "inputs.json",
        "report.html",
    }


def test_two_batches_a_step_are_not_called_one(here: Path, monkeypatch: Any, capsys: Any) -> None:
    assert sordino(monkeypatch, "train", "digits", *PAID, *CHEAP, "--method", "adadp", "--out", "run") == 0
    assert "10 noisy batches in 5 steps" in capsys.readouterr().out
    assert '"error"' in (here / "run/history.jsonl").read_text()


def test_json_is_exactly_one_object(here: Path, monkeypatch: Any, capsys: Any) -> None:
    assert sordino(monkeypatch, "train", "digits", *PAID, *CHEAP, "--json", "--method", "dp-adam") == 0
    out, _ = capsys.readouterr()
    summary = json.loads(out)
    assert summary["method"]["name"] == "dp-adam"
    assert summary["epsilon"] <= 3
    assert (here / summary["run"] / "run.json").exists()


def test_settings_and_no_privacy(here: Path, monkeypatch: Any, capsys: Any) -> None:
    code = sordino(
        monkeypatch, "train", "digits", "--method", "sgd", "--set", "learning_rate=0.25", "--set", "momentum=0.9",
        "--model", "linear", "--epochs", "2", "--json",
    )  # fmt: skip
    summary = json.loads(capsys.readouterr().out)
    assert code == 0
    assert summary["epsilon"] == "inf"
    assert summary["method"]["step"]["momentum"] == 0.9
    assert summary["model"] == "linear"


def test_npz_from_end_to_end(here: Path, monkeypatch: Any, capsys: Any) -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(200, 5)).astype(np.float32)
    np.savez(here / "mine.npz", x=x, y=(x[:, 0] > 0).astype(np.int64))
    assert sordino(monkeypatch, "train", "mine.npz", *PAID, *CHEAP, "--json") == 0
    out, err = capsys.readouterr()
    summary = json.loads(out)
    assert (summary["data"], summary["n"]) == ("mine", 200)
    assert err.startswith(
        "sordino: warning: 2 classes, read from the labels: give classes (--classes) if that"
    )


def bad_files(folder: Path) -> None:
    (folder / "broken.npz").write_bytes(b"not a zip")
    np.savez(folder / "words.npz", x=np.zeros((3, 2), np.float32), y=np.array(["a", "b", "c"]))
    np.savez(folder / "uneven.npz", x=np.zeros((3, 2), np.float32), y=np.zeros(4, np.int64))
    (folder / "normed.py").write_text(
        "from torch import nn\n"
        "def net():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))\n"
        "def narrow():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))\n"
        "def wrong():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(63, 10))\n"
        "def none():\n"
        "    return 3\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digit", *PAID], "digits"),
        (["nowhere.npz", *PAID], "nowhere.npz"),
        (["broken.npz", *PAID], "broken.npz"),
        (["words.npz", *PAID], "integer"),
        (["uneven.npz", *PAID], "uneven.npz"),
        (["digits"], "needs a budget"),
        (["digits", "--epsilon", "3"], "--delta"),
        (["digits", "--epsilon", "0", "--delta", "1e-5"], "epsilon"),
        (["digits", "--epsilon", "-1", "--delta", "1e-5"], "epsilon"),
        (["digits", "--epsilon", "nan", "--delta", "1e-5"], "epsilon"),
        (["digits", "--epsilon", "3", "--delta", "0"], "delta"),
        (["digits", "--epsilon", "3", "--delta", "1"], "delta"),
        (["digits", "--epsilon", "3", "--delta", "1e-5", "--noise-multiplier", "1"], "not both"),
        (["digits", "--noise-multiplier", "-1", "--delta", "1e-5"], "noise_multiplier"),
        (["digits", "--epsilon", "1e-7", "--delta", "1e-12", "--accountant", "moments"], "epsilon"),
        (["digits", *PAID, "--method", "dp-sdg"], "choose one of"),
        (["digits", *PAID, "--method", "sgd"], "without privacy"),
        (["digits", *PAID, "--set", "lr=1"], "no setting"),
        (["digits", *PAID, "--set", "learning_rate"], "NAME=VALUE"),
        (["digits", *PAID, "--set", "travel=1", "--set", "travel=2"], "twice"),
        (["digits", *PAID, "--set", "travel=-1"], "positive"),
        (["digits", *PAID, "--method", "adadp", "--set", "tol=0"], "tol"),
        (["digits", *PAID, "--method", "oso", "--set", "update=guess"], "sign or cosine"),
        (["digits", *PAID, "--method", "oso", "--set", "learning_rate=1e39"], "learning_rate"),
        (["digits", *PAID, "--set", "learning_rate=fast"], "learning_rate"),
        (["digits", *PAID, "--model", "resnet"], "model"),
        (["digits", *PAID, "--model", "normed.py:net"], "BatchNorm1d"),
        (["digits", *PAID, "--model", "normed.py:none"], "nn.Module"),
        (["digits", *PAID, "--model", "normed.py:narrow"], "10 scores"),
        (["digits", *PAID, "--model", "normed.py:wrong"], "cannot run on inputs"),
        (["digits", *PAID, "--batch-size", "5000"], "at most"),
        (["digits", *PAID, "--epochs", "0"], "epochs"),
        (["digits", *PAID, "--sampling", "random"], "there is no sampling"),
        (
            ["digits", *PAID, "--secure", "--seed", "1"],
            "--secure takes its randomness from the operating system",
        ),
        (["digits", *PAID, "--secure", "--seed", "1"], "leave out --seed"),
        (["digits", *PAID, "--device", "gpu"], "there is no device 'gpu' here: leave it out, or use cpu"),
        (["digits", *PAID, "--method", "dp-sgd", "--set", "lr=1"], "did you mean learning_rate?"),
        (["digits", *PAID, "--resume"], "--out"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else "",
)
def test_bad_input_gets_one_line_and_exit_code_2(
    here: Path, monkeypatch: Any, capsys: Any, arguments: list[str], message: str
) -> None:
    bad_files(here)
    before = sorted(here.rglob("*"))
    assert sordino(monkeypatch, "train", *arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1, err
    assert err.startswith("sordino: ")
    after = [p for p in sorted(here.rglob("*")) if "__pycache__" not in p.parts]
    assert after == before


def test_a_used_directory_is_not_overwritten(here: Path, monkeypatch: Any, capsys: Any) -> None:
    (here / "run").mkdir()
    (here / "run/precious.txt").write_text("mine")
    assert sordino(monkeypatch, "train", "digits", *PAID, *CHEAP, "--out", "run") == 2
    assert "not empty" in capsys.readouterr().err
    assert [p.name for p in (here / "run").iterdir()] == ["precious.txt"]


def test_help_and_version(monkeypatch: Any, capsys: Any) -> None:
    assert sordino(monkeypatch, "--help") == 0
    assert "train" in capsys.readouterr().out
    assert sordino(monkeypatch, "train", "--help") == 0
    assert "--epsilon" in capsys.readouterr().out
    assert sordino(monkeypatch, "--version") == 0
    assert capsys.readouterr().out.startswith("sordino ")
    assert sordino(monkeypatch, "train", "digits", "--no-such-option") == 2


SCHEMA = """
[target]
name = "y"
{target}
[[column]]
name = "age"
kind = "number"
low = 0
high = 100
"""


def write_table(here: Path, target: str = 'labels = ["no", "yes"]') -> None:
    (here / "people.schema.toml").write_text(SCHEMA.format(target=target))
    label = (lambda n: n) if "low" in target else (lambda n: "no" if n < 50 else "yes")
    rows = "".join(f"{n % 100},{label(n % 100)},u{n % 40}\n" for n in range(400))
    (here / "people.csv").write_text("age,y,id\n" + rows)


def test_a_table_trains_with_its_schema(here: Path, monkeypatch: Any, capsys: Any) -> None:
    write_table(here)
    table = ["train", "people.csv", "--target", "y", "--holdout", "0.25", "--epsilon", "3", "--delta", "1e-3"]
    assert sordino(monkeypatch, *table, *CHEAP, "--out", "run") == 0
    assert "one example of 300" in capsys.readouterr().out
    inputs = json.loads((here / "run/inputs.json").read_text())
    assert (inputs["kind"], inputs["target"]["labels"]) == ("table", ["no", "yes"])
    assert json.loads((here / "run/run.json").read_text())["model"] == "mlp:64"
    assert sordino(monkeypatch, "verify", "run") == 0


def test_a_number_is_predicted_in_the_owners_units(here: Path, monkeypatch: Any, capsys: Any) -> None:
    write_table(here, "low = 0\nhigh = 100")
    table = [
        "train",
        "people.csv",
        "--target",
        "y",
        "--test",
        "people.csv",
        "--epsilon",
        "8",
        "--delta",
        "1e-3",
    ]
    assert sordino(monkeypatch, *table, "--epochs", "20", "--json") == 0
    metrics = json.loads(capsys.readouterr().out)["metrics"]
    assert 1 < metrics["test_mean_absolute_error"] < 40
    assert -3 < metrics["test_r2"] <= 1


def test_users_are_the_units_where_they_are_asked_for(here: Path, monkeypatch: Any, capsys: Any) -> None:
    write_table(here)
    paid = ["--epsilon", "3", "--delta", "1e-3", *CHEAP]
    by_user = ["--unit", "user", "--user-column", "id", "--rows-per-user", "4"]
    assert sordino(monkeypatch, "train", "people.csv", *paid, *by_user, "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["unit"], summary["n"]) == ("user", 40)
    assert sordino(monkeypatch, "train", "people.csv", *paid, "--unit", "user") == 2
    assert "give --user-column" in capsys.readouterr().err
    assert sordino(monkeypatch, "train", "people.csv", *paid, "--user-column", "id") == 2
    assert "give --unit user too" in capsys.readouterr().err
    assert sordino(monkeypatch, "train", "digits", *paid, "--holdout", "0.2") == 2
    assert "digits is no table: leave out --holdout" in capsys.readouterr().err


def test_flags_are_called_as_they_are_written_here(here: Path, monkeypatch: Any, capsys: Any) -> None:
    write_table(here)
    (here / "people.csv.gz").touch()
    (here / "people.xlsx").touch()
    table = ("people.csv", "--schema", "people.schema.toml")
    cases = {
        "not --test and --holdout": (*table, "--test", "people.csv", "--holdout", "0.2"),
        "--holdout is the share": (*table, "--holdout", "2"),
        "give --test or --holdout": (*table, "--metric-epsilon", "1"),
        "leave out --metric-epsilon": (
            *table,
            "--metric-epsilon",
            "1",
            "--unit",
            "user",
            "--user-column",
            "id",
        ),
        "--rows-per-user is": (*table, "--unit", "user", "--user-column", "id", "--rows-per-user", "0"),
        "leave out --schema": ("digits", "--schema", "people.schema.toml"),
        "is not read: decompress it": ("people.csv.gz", *table[1:]),
        "is not read: save it as CSV": ("people.xlsx", *table[1:]),
    }
    for says, given in cases.items():
        assert sordino(monkeypatch, "train", *given, "--epsilon", "3", "--delta", "1e-3") == 2
        assert says in capsys.readouterr().err


def test_that_labels_were_not_looked_at_is_said_whatever_the_rows_hold(
    here: Path, monkeypatch: Any, capsys: Any
) -> None:
    said = []
    for labels in ('labels = ["no", "yes"]', 'labels = ["No", "Yes"]'):
        write_table(here, labels)
        cheap = ("--epsilon", "3", "--delta", "1e-3", *CHEAP)
        assert sordino(monkeypatch, "train", "people.csv", *cheap) == 0
        said += [line for line in capsys.readouterr().out.splitlines() if line.startswith("not looked at")]
    assert len(said) == 2
    assert said[0].lower() == said[1].lower()
    assert "whether 'y' is written as one of 'No', 'Yes'" in said[1]


def test_features_of_another_kind_are_refused_before_anything_is_loaded(
    here: Path, monkeypatch: Any, capsys: Any
) -> None:
    from sordino.features import text

    write_table(here)
    monkeypatch.setattr(text, "_loaded", None)  # a model of texts is not looked for
    cases = {
        "for texts, and the rows are numbers": ("digits", "sentence-transformers:nothing"),
        "no column of kind text": ("people.csv", "sentence-transformers:nothing"),
        "for images, and this is a table": ("people.csv", "scattering"),
    }
    for says, (data, features) in cases.items():
        given = ("train", data, "--features", features, "--epsilon", "3", "--delta", "1e-3")
        assert sordino(monkeypatch, *given) == 2
        assert says in capsys.readouterr().err


def test_a_table_that_was_peeked_at_has_no_guarantee(here: Path, monkeypatch: Any, capsys: Any) -> None:
    write_table(here)
    (here / "people.schema.toml").unlink()
    draft = ["schema", "infer", "people.csv", "--target", "y", "--peek", "--out", "people.schema.toml"]
    assert sordino(monkeypatch, *draft) == 0
    assert (
        sordino(
            monkeypatch, "train", "people.csv", "--epsilon", "3", "--delta", "1e-3", *CHEAP, "--out", "run"
        )
        == 0
    )
    assert "this is no guarantee" in capsys.readouterr().out
    claim = json.loads((here / "run/certificate.json").read_text())["claim"]
    assert claim["stands"] is False


def test_a_table_without_its_schema_or_with_gaps_gets_one_line(
    here: Path, monkeypatch: Any, capsys: Any
) -> None:
    write_table(here)
    (here / "people.schema.toml").unlink()
    command = ["train", "people.csv", "--target", "y", "--epsilon", "3", "--delta", "1e-3", "--out", "run"]
    assert sordino(monkeypatch, *command) == 2
    assert "sordino schema infer people.csv" in capsys.readouterr().err
    assert (
        sordino(monkeypatch, "schema", "infer", "people.csv", "--target", "y", "--out", "people.schema.toml")
        == 0
    )
    assert sordino(monkeypatch, *command) == 2
    err = capsys.readouterr().err
    assert "fill in 'age' (kind); 'id' (kind); 'y' (labels)" in err
    assert err.count("\n") == 1
    assert not (here / "run").exists()


def test_features_of_a_set_are_taken_if_neither_they_nor_a_model_are_named(
    here: Path, monkeypatch: Any, capsys: Any
) -> None:
    from dataclasses import replace

    from sordino.named import DATA_SETS

    entry = DATA_SETS.entries["digits"]
    with_features = replace(entry, facts={**entry.facts, "features": "scattering"})
    monkeypatch.setitem(DATA_SETS.entries, "digits", with_features)
    given = ("train", "digits", *PAID, *CHEAP, "--json")
    found = {}
    for name, own in {"neither": (), "none": ("--features", "none"), "model": ("--model", "mlp:8")}.items():
        assert sordino(monkeypatch, *given, *own) == 0
        said = json.loads(capsys.readouterr().out)
        found[name] = (said["model"], said.get("features"))
    assert found == {
        "neither": ("linear", "scattering"),
        "none": ("mlp:64", "none"),
        "model": ("mlp:8", None),
    }
