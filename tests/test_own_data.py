"""From a file of one's own to a model, predictions, a certificate that holds and a page: as a new user does it."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import sordino as sd
from conftest import sordino
from sordino.data.table import Table
from sordino.features import with_features
from sordino.features.own import own

JOBS = ("baker", "smith", "weaver")
QUICK = (
    "--epochs",
    "4",
    "--accountant",
    "rdp",
    "--method",
    "dp-sgd",
    "--set",
    "learning_rate=0.5",
    "--delta",
    "1e-4",
)


class User:
    """Somebody at a terminal."""

    def __init__(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.folder, self._monkeypatch, self._capsys = folder, monkeypatch, capsys
        monkeypatch.chdir(folder)

    def types(self, *words: str) -> str:
        self._capsys.readouterr()
        code = sordino(self._monkeypatch, *words)
        out, err = self._capsys.readouterr()
        assert code == 0, err
        return str(out)

    def fills_in(self, schema: str, **columns: str) -> None:
        """What the draft asks for, column by column, as somebody who has the code book."""
        text = Path(schema).read_text()
        for name, lines in columns.items():
            text, times = re.subn(
                rf'(name = "{name}"\n)(?:kind|labels) = "FILL IN".*\n', rf"\1{lines}\n", text
            )
            assert times == 1, f"the draft asks for {name} once"
        Path(schema).write_text(text)

    def trains_and_shows(self, data: str, *how: str, new: str) -> list[str]:
        """Train, verify, evaluate, predict ``new`` rows and write the page; the predictions."""
        run = json.loads(self.types("train", data, "--out", "run", "--json", *how, *QUICK))
        assert run["epsilon"] <= 3
        self.types("verify", "run")
        assert sd.verify("run").stands
        self.types("evaluate", "run", new)
        predicted = list(csv.DictReader(self.types("predict", "run", new).splitlines()))
        images = Path(new).is_dir()
        assert all([*line] == [*(["file"] if images else []), "prediction"] for line in predicted)
        assert not images or all(Path(new, line["file"]).is_file() for line in predicted)
        self.types("report", "run")
        page = Path("run/report.html").read_text()
        assert "no covered result becomes more than" in page  # the guarantee in its sentence
        assert "<script" not in page
        return [line["prediction"] for line in predicted]


@pytest.fixture
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> User:
    return User(tmp_path, monkeypatch, capsys)


def write(path: str, names: tuple[str, ...], rows: list[list[Any]]) -> None:
    with Path(path).open("w", newline="") as file:
        written = csv.writer(file)
        written.writerow(names)
        written.writerows(rows)


def census(count: int, seed: int) -> list[list[Any]]:
    """Ages with gaps, jobs with one that nobody listed, and who earns more."""
    rng = np.random.default_rng(seed)
    rows: list[list[Any]] = []
    for age, job in zip(rng.integers(17, 91, count), rng.integers(0, 3, count), strict=True):
        shown: Any = "" if rng.random() < 0.05 else age
        rows.append(
            [shown, "astronaut" if rng.random() < 0.01 else JOBS[job], ">50K" if age > 45 else "<=50K"]
        )
    return rows


@pytest.mark.parametrize("epsilon", ["1", "3"])
def test_a_census(user: User, epsilon: str) -> None:
    names = ("age", "job", "income")
    write("people.csv", names, census(1500, 0))
    write("later.csv", names, census(200, 1))
    user.types("schema", "infer", "people.csv", "--target", "income", "--out", "people.schema.toml")
    values = ", ".join(f'"{job}"' for job in JOBS)
    user.fills_in(
        "people.schema.toml",
        income='labels = ["<=50K", ">50K"]',
        age='kind = "number"\nlow = 17\nhigh = 90',
        job=f'kind = "category"\nvalues = [{values}]',
    )
    told = ("--target", "income", "--epsilon", epsilon, "--test", "later.csv")
    predicted = user.trains_and_shows("people.csv", *told, new="later.csv")
    truth = [row[2] for row in census(200, 1)]
    assert np.mean([one == other for one, other in zip(predicted, truth, strict=True)]) > 0.7
    page = Path("run/report.html").read_text()
    for shown in ("age", "job", "astronaut"):
        assert (shown in page) == (shown != "astronaut")  # its schema, and nothing of a row


def test_a_table_with_a_number_to_predict(user: User) -> None:
    rng = np.random.default_rng(0)
    sizes = rng.uniform(20, 200, 1200)
    prices = 1000 * sizes + rng.normal(0, 5000, 1200)
    write(
        "flats.csv", ("size", "price"), [[f"{x:.1f}", f"{y:.0f}"] for x, y in zip(sizes, prices, strict=True)]
    )
    user.types("schema", "infer", "flats.csv", "--target", "price", "--out", "schema.toml")
    user.fills_in("schema.toml", price="low = 0\nhigh = 250000", size='kind = "number"\nlow = 10\nhigh = 250')
    told = ("--target", "price", "--epsilon", "3", "--holdout", "0.2", "--model", "linear")
    predicted = np.array(user.trains_and_shows("flats.csv", *told, new="flats.csv"), dtype=float)
    assert np.corrcoef(predicted, sizes)[0, 1] > 0.9
    assert 0 <= predicted.min() <= predicted.max() <= 250_000
    metrics = json.loads(Path("run/run.json").read_text())["metrics"]
    assert metrics["test_mean_absolute_error"] < 60_000  # in the owner's units
    assert metrics["covered"] is False


def test_a_folder_of_images(user: User) -> None:
    rng = np.random.default_rng(0)
    for part, count in (("train", 300), ("test", 40)):
        for number in range(count):
            kind = ("dark", "light")[number % 2]
            file = Path("pictures", part, kind, f"{number}.png")
            file.parent.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 120, (8, 8)) + (120 if kind == "light" else 0)
            Image.fromarray(pixels.astype(np.uint8)).save(file)
    told = ("--epsilon", "3", "--image-size", "8", "--grey", "--model", "linear")
    predicted = user.trains_and_shows("pictures", *told, new="pictures/test")
    assert predicted[:20].count("dark") + predicted[20:].count("light") >= 34
    user.types("predict", "run", "pictures/test", "--proba", "--out", "said.parquet")
    said = pq.read_table("said.parquet").to_pydict()
    assert [*said] == ["file", "prediction", "probability of dark", "probability of light"]
    assert said["prediction"] == predicted
    assert [Path(each).parts[0] for each in said["file"]] == ["dark"] * 20 + ["light"] * 20


def test_a_file_of_texts(user: User) -> None:
    rng = np.random.default_rng(0)
    words = {"sport": ("goal", "match", "striker", "cup"), "money": ("shares", "bank", "profit", "loan")}
    rows = []
    for number in range(1200):
        topic = ("sport", "money")[number % 2]
        rows.append([" ".join(rng.choice([*words[topic], "the", "and", "today"], 8)), topic])
    write("notes.csv", ("text", "topic"), rows)
    user.types("schema", "infer", "notes.csv", "--target", "topic", "--out", "notes.schema.toml")
    user.fills_in(
        "notes.schema.toml",
        topic='labels = ["sport", "money"]',
        text='kind = "text"\nbuckets = 256\nwords = 16',
    )
    told = ("--target", "topic", "--epsilon", "3", "--holdout", "0.1")
    predicted = user.trains_and_shows("notes.csv", *told, new="notes.csv")
    assert np.mean([one == row[1] for one, row in zip(predicted, rows, strict=True)]) > 0.9


def test_bounds_that_another_run_paid_for_are_said_and_not_paid_for_in_part(
    user: User, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write("people.csv", ("age", "income"), [[row[0], row[2]] for row in census(300, 0)])
    schema = sd.Schema(
        sd.TargetColumn("income", labels=("<=50K", ">50K")),
        (sd.Column("age", "number", low=17, high=90, obtained="private"),),
    )
    Path("schema.toml").write_text(schema.to_toml())
    user.types("train", "people.csv", "--epsilon", "3", "--out", "run", *QUICK)
    claim = json.loads(Path("run/certificate.json").read_text())["claim"]
    assert claim["stands"] is False
    assert "'age'" in claim["caveat"]
    assert "not counted here" in claim["caveat"]
    half = ("train", "people.csv", "--epsilon", "3", "--private-bounds", "1", *QUICK)
    assert sordino(monkeypatch, *half) == 2
    assert "released for another run" in capsys.readouterr().err


def _peeked() -> Any:
    age = sd.Column("age", "number", low=0, high=99, obtained="peeked")
    schema = sd.Schema(sd.TargetColumn("y", labels=("no", "yes")), (age,))
    return sd.read({"age": list(range(100)), "y": ["no", "yes"] * 50}, schema=schema).train


def test_a_schema_that_was_read_from_the_rows_voids_the_guarantee_whoever_says_so(tmp_path: Path) -> None:
    loss, rows = torch.nn.CrossEntropyLoss(reduction="none"), _peeked()
    halves = torch.utils.data.Subset(rows, range(0, 100, 2))
    for part in (rows, halves):
        run = sd.train(
            torch.nn.Linear(2, 2), loss, part, budget=(3, 1e-3), epochs=1, out=tmp_path / str(len(part))
        )
        assert run.certificate is not None
        assert not run.certificate["claim"]["stands"]
        assert (tmp_path / str(len(part)) / "inputs.json").exists()
    tuned = sd.tune(
        torch.nn.Linear(2, 2), loss, rows, over={"learning_rate": [0.1, 1.0]}, score=rows, method="dp-sgd",
        budget=(3, 1e-3), epochs=1,
    )  # fmt: skip
    federated = sd.federate(
        torch.nn.Linear(2, 2), loss, rows, clients=20, rounds=1, per_round=5, budget=(3, 1e-3)
    )
    for result in (tuned, federated):
        assert result.certificate is not None
        assert not result.certificate["claim"]["stands"]


def test_inputs_that_are_given_do_not_undo_what_the_rows_say() -> None:
    loss, rows = torch.nn.CrossEntropyLoss(reduction="none"), _peeked()
    clean = Table(sd.Schema(rows.inputs.schema.target, (sd.Column("age", "number", low=0, high=99),)))
    paid = Table(clean.schema.with_bounds("age", 0, 99, "private"))
    how: dict[str, Any] = {"budget": (3, 1e-3), "epochs": 1, "method": "dp-sgd"}
    for peeked, words in (
        (rows, "--peek"),
        (paid.examples({"age": [1, 2] * 50, "y": ["no"] * 100}), "not counted here"),
    ):
        with pytest.raises(
            ValueError, match=f"the rows say what the inputs given do not .*{words}.*: leave out inputs"
        ):
            sd.train(torch.nn.Linear(2, 2), loss, peeked, inputs=clean, **how)
        with pytest.raises(ValueError, match="leave out inputs"):
            sd.tune(
                torch.nn.Linear(2, 2),
                loss,
                peeked,
                over={"learning_rate": [0.1]},
                score=rows,
                inputs=clean,
                **how,
            )
        with pytest.raises(ValueError, match="leave out inputs"):
            sd.federate(
                torch.nn.Linear(2, 2),
                loss,
                peeked,
                clients=20,
                rounds=1,
                per_round=5,
                budget=(3, 1e-3),
                inputs=clean,
            )
    same = Table(rows.inputs.schema)
    told = sd.train(torch.nn.Linear(2, 2), loss, rows, inputs=same, **how)
    more = sd.train(
        torch.nn.Linear(2, 2), loss, (torch.zeros(100, 2), torch.zeros(100).long()), inputs=same, **how
    )
    for run in (told, more):  # whoever says more than the rows is believed
        assert run.certificate is not None
        assert "--peek" in run.certificate["claim"]["caveat"]


def test_features_do_not_undo_how_their_rows_were_made() -> None:
    loaded = sd.read({"age": list(range(100)), "y": ["no", "yes"] * 50}, schema=_peeked().inputs.schema)
    featured = with_features(loaded, own("torch:tanh"))
    assert featured.train.inputs is not None
    assert featured.train.inputs == featured.inputs
    assert "--peek" in str(featured.train.inputs.caveat)
