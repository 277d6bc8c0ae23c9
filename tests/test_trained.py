from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import sordino as sd
from sordino.data import Examples, load
from sordino.data.inputs import Target
from sordino.data.npz import Arrays
from sordino.features.featured import runs_code

ROWS = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
LABELS = Target("colour", ("red", "green"))
loss = nn.CrossEntropyLoss(reduction="none")


def net() -> nn.Module:
    return nn.Linear(3, 2)


def trained_in(folder: Path, **given: Any) -> Path:
    y = torch.from_numpy((ROWS[:, 0] > 0).astype(np.int64))
    usual: dict[str, Any] = {"budget": (3, 1e-3), "epochs": 1, "inputs": Arrays(LABELS, (3,))}
    sd.train(net(), loss, (torch.from_numpy(ROWS), y), out=folder / "run", **usual | given)
    return folder / "run"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return trained_in(tmp_path)


def test_a_loaded_model_says_of_raw_rows_what_the_trained_one_said(tmp_path: Path) -> None:
    rows = torch.from_numpy(ROWS)
    y = (rows[:, 0] > 0).long()
    done = sd.train(
        net(),
        loss,
        (rows, y),
        budget=(3, 1e-3),
        epochs=1,
        inputs=Arrays(LABELS, (3,)),
        out=tmp_path / "run",
    )
    trained = sd.load(done, model=net())
    with torch.no_grad():
        scores = done.model(rows)
    np.testing.assert_array_equal(trained.scores(ROWS), scores.numpy())
    assert trained.predict(ROWS) == [LABELS.labels[place] for place in scores.argmax(1)]
    np.testing.assert_allclose(trained.predict_proba(ROWS), scores.double().softmax(1).numpy())
    assert trained.classes == ("red", "green")
    assert (trained.certificate, trained.summary["status"]) == (done.certificate, "complete")


def test_a_model_that_has_a_name_is_built_again(tmp_path: Path) -> None:
    folder = trained_in(tmp_path, details={"model": "linear"}, budget=None, method="sgd")
    with pytest.raises(ValueError, match=r"another model: give the one that was trained"):
        sd.load(folder)  # the linear model has a layer before its first, and other names
    digits, spec = load("digits"), {"model": "mlp:8"}
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 10))
    kept: dict[str, Any] = {"inputs": digits.inputs, "details": spec, "out": tmp_path / "digits"}
    sd.train(model, loss, digits.train, budget=(3, 1e-3), epochs=0.1, **kept)
    trained = sd.load(tmp_path / "digits")
    with torch.no_grad():
        np.testing.assert_array_equal(trained.scores("digits"), model(digits.test[0]).numpy())
    assert trained.evaluate("digits")["rows"] == 360


def test_a_model_of_the_users_own_is_built_by_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("import torch\ndef net():\n    return torch.nn.Linear(3, 2)\n")
    folder = trained_in(tmp_path, details={"model": "mine.py:net"})
    assert len(sd.load(folder, trust_code=True).predict(ROWS)) == 50


def _booby_trapped(folder: Path) -> str:
    (folder / "evil.py").write_text(
        "import pathlib, torch\n"
        f"pathlib.Path({str(folder / 'sprung')!r}).touch()\n"
        "def net(): return torch.nn.Linear(3, 2)\n"
        "def f(rows): return torch.zeros(len(rows), 3)\n"
    )
    return str(folder / "evil.py")


def test_code_that_a_run_names_is_not_run_unless_it_is_trusted(run: Path) -> None:
    evil, file = _booby_trapped(run), run / "inputs.json"
    said = json.loads(file.read_text())
    base = {name: value for name, value in said.items() if name not in ("format", "target")}
    front = {"kind": "featured", "features": {"name": f"{evil}:f"}, "base": base}
    behind = {"kind": "featured", "features": {"name": "scattering"}, "base": front}
    column = {"name": "a", "kind": "text", "embedding": f"{evil}:f"}
    table = {"kind": "table", "schema": {"target": said["target"], "column": [column]}}
    for trap in (front, behind, table):
        file.write_text(json.dumps({"format": said["format"], "target": said["target"], **trap}))
        with pytest.raises(
            ValueError, match=r"names code to run as its features.* trust_code=True \(--trust-code\)"
        ):
            sd.load(run, model=net())
    assert not (run / "sprung").exists()
    sd.load(run, model=net(), trust_code=True).predict({"a": ["x"]})
    assert (run / "sprung").exists()


def test_a_model_that_a_run_names_is_not_imported_unless_it_is_trusted(tmp_path: Path) -> None:
    folder = trained_in(tmp_path, details={"model": "linear:net"})  # which is no size of a linear model
    evil = _booby_trapped(folder)
    for spec in (f"{evil}:net", "linear:net"):
        summary = json.loads((folder / "run.json").read_text()) | {"model": spec}
        (folder / "run.json").write_text(json.dumps(summary))
        with pytest.raises(ValueError, match="names code to run as its model"):
            sd.load(folder)
        sd.load(folder, model=net())  # for which nothing is imported
    assert not (folder / "sprung").exists()


def test_folders_of_sentence_models_are_data_if_the_library_takes_them_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for found, wanted in (("6.0.0", False), ("5.2.1", True)):
        monkeypatch.setattr("sordino.features.text.version", lambda name, found=found: found)
        assert runs_code(f"sentence-transformers:{tmp_path}") is wanted
        assert not runs_code("sentence-transformers:all-MiniLM-L6-v2")


def test_a_model_without_a_name_has_to_be_given(run: Path) -> None:
    with pytest.raises(ValueError, match=r"sordino\.load\(run, model=net\)"):
        sd.load(run)
    assert len(sd.load(run, model=net()).predict(ROWS)) == 50


def test_an_unfinished_run_is_refused(run: Path) -> None:
    summary = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**summary, "status": "running"}))
    with pytest.raises(ValueError, match="is not finished"):
        sd.load(run, model=net())


def test_weights_that_are_not_those_of_the_certificate_are_refused(run: Path) -> None:
    file = run / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(ValueError, match="not the file that its certificate is about"):
        sd.load(run, model=net())


@pytest.mark.parametrize("file", ["certificate.json", "model.safetensors"])
def test_what_is_gone_is_said_in_one_line(run: Path, file: str) -> None:
    (run / file).unlink()
    with pytest.raises(ValueError, match=file):
        sd.load(run, model=net())


@pytest.mark.parametrize("said", ["", "{}", "[1]", '{"format": "sordino-inputs/1", "kind": "arrays"}'])
def test_inputs_that_cannot_be_read_are_said_in_one_line(run: Path, said: str) -> None:
    (run / "inputs.json").write_text(said)
    with pytest.raises(ValueError, match=r"inputs\.json cannot be read"):
        sd.load(run, model=net())


def test_rows_that_cannot_be_answered_have_a_place_all_the_same(run: Path) -> None:
    rows = ROWS[:3].copy()
    rows[1, 2] = np.nan
    trained = sd.load(run, model=net())
    assert [answer is None for answer in trained.predict(rows)] == [False, True, False]
    assert np.isnan(trained.predict_proba(rows)[1]).all()


class _Gaps(Arrays):
    """Whose second row cannot be encoded."""

    def examples(self, source: Any, *, targets: bool = True, progress: bool = False) -> Examples:
        whole = super().examples(source, targets=targets)
        vars(whole)["_known"] = torch.arange(len(whole)) != 1
        return whole


def test_rows_that_cannot_be_encoded_have_a_place_all_the_same(run: Path) -> None:
    loaded = sd.load(run, model=net())
    trained = sd.Trained(loaded.model, _Gaps(LABELS, (3,)), loaded.summary, loaded.certificate, loaded.path)
    np.testing.assert_array_equal(trained.scores(ROWS)[[0, 2]], loaded.scores(ROWS)[[0, 2]])
    assert [answer is None for answer in trained.predict(ROWS[:3])] == [False, True, False]


def test_batches_do_not_show(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = sd.load(run, model=net())
    whole, found = trained.scores(ROWS), trained.evaluate((ROWS, ROWS[:, 0] > 0))
    monkeypatch.setattr("sordino.trained._TOGETHER", 7)
    np.testing.assert_allclose(trained.scores(ROWS), whole, rtol=1e-6)
    assert trained.evaluate((ROWS, ROWS[:, 0] > 0))["confusion"] == found["confusion"]


def test_evaluation_counts_what_it_says(run: Path) -> None:
    trained = sd.load(run, model=net())
    y = (ROWS[:, 0] > 0).astype(np.int64)
    guessed = np.array(trained.scores(ROWS)).argmax(1)
    found = trained.evaluate((ROWS, y))
    assert found["accuracy"] == float((guessed == y).mean())
    assert found["confusion"] == [[int(((y == a) & (guessed == b)).sum()) for b in (0, 1)] for a in (0, 1)]
    assert (found["rows"], found["left_out"], found["covered"]) == (50, 0, False)
    names = np.array(LABELS.labels)[y]
    assert trained.evaluate((ROWS, names))["accuracy"] == found["accuracy"]


def test_rows_without_a_target_are_left_out_and_counted_and_no_answer_is_a_wrong_one(run: Path) -> None:
    trained = sd.load(run, model=net())
    y = (ROWS[:, 0] > 0).astype(np.int64)
    y[:5] = 7
    rows = ROWS.copy()
    rows[10] = np.nan
    found = trained.evaluate((rows, y))
    assert (found["rows"], found["left_out"], found["unanswered"]) == (45, 5, 1)
    right = sum(found["confusion"][place][place] for place in (0, 1))
    assert found["accuracy"] == right / 45
    with pytest.raises(ValueError, match="no row has a target"):
        trained.evaluate((ROWS, np.full(50, 9)))


def test_numbers_are_answered_and_judged_in_the_owners_units(tmp_path: Path) -> None:
    price = Target("price", low=100.0, high=300.0)
    inputs = Arrays(price, (3,))
    y = 200 + 50 * ROWS[:, 0].astype(np.float64)
    encoded = torch.from_numpy(price.encoded(y)).float()
    model = nn.Linear(3, 1)
    kept: dict[str, Any] = {"inputs": inputs, "out": tmp_path / "run", "epochs": 1}
    sd.train(model, sd.regression(), (torch.from_numpy(ROWS), encoded), budget=(3, 1e-3), **kept)
    trained = sd.load(tmp_path / "run", model=nn.Linear(3, 1))
    answers = np.array(trained.predict(ROWS), dtype=float)
    assert ((answers >= 100) & (answers <= 300)).all()
    found = trained.evaluate((ROWS, y))
    true = np.clip(y, 100, 300)
    assert found["mean_absolute_error"] == pytest.approx(np.abs(answers - true).mean(), rel=1e-5)
    assert found["root_mean_squared_error"] == pytest.approx(
        np.sqrt(((answers - true) ** 2).mean()), rel=1e-5
    )
    spread = ((true - true.mean()) ** 2).sum()
    assert found["r2"] == pytest.approx(1 - ((answers - true) ** 2).sum() / spread, rel=1e-4)
    assert found["covered"] is False
    assert math.isnan(trained.evaluate((ROWS, np.full(50, 150.0)))["r2"])
    with pytest.raises(ValueError, match="use predict"):
        trained.predict_proba(ROWS)


def test_training_and_evaluation_have_one_score_for_one_model(tmp_path: Path) -> None:
    price = Target("price", low=100.0, high=300.0)
    y = 200 + 150 * ROWS[:, 0].astype(np.float64)  # and beyond the bounds
    rows = torch.from_numpy(ROWS), torch.from_numpy(price.encoded(y)).float()
    model = nn.Linear(3, 1)
    nn.init.constant_(model.weight, 2.0)
    task = sd.regression(scale=price.half_range, limit=1.0)
    kept: dict[str, Any] = {"inputs": Arrays(price, (3,)), "out": tmp_path / "run", "epochs": 1}
    run = sd.train(model, task, rows, test=rows, budget=(3, 1e-3), seed=1, **kept)
    trained = sd.load(tmp_path / "run", model=nn.Linear(3, 1))
    assert np.abs(trained.scores(ROWS)).max() > 1.2  # or there would be nothing to put at the bounds
    found = trained.evaluate((ROWS, y))
    for name in ("mean_absolute_error", "r2"):
        assert run.metrics[f"test_{name}"] == pytest.approx(found[name], rel=1e-5)


def test_a_run_that_was_not_told_its_inputs_gives_scores_and_nothing_else(tmp_path: Path) -> None:
    trained = sd.load(trained_in(tmp_path, inputs=None), model=net())
    assert trained.scores(ROWS).shape == (50, 2)
    for call in (trained.predict, trained.evaluate, trained.predict_proba):
        with pytest.raises(ValueError, match="train it with inputs="):
            call(ROWS)
    with pytest.raises(ValueError, match="does not say what raw rows are"):
        trained.scores("people.csv")


def test_what_the_model_says_of_a_row_is_not_passed_on(run: Path) -> None:
    class Talks(nn.Linear):
        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            raise RuntimeError(f"the row {rows[0]}")

    with pytest.raises(ValueError, match=r"fails on these rows with RuntimeError: check") as raised:
        sd.load(run, model=Talks(3, 2)).predict(ROWS)
    assert "tensor" not in str(raised.value)


@pytest.mark.parametrize("rows", [ROWS[:, :2], ROWS[0], ROWS.astype(complex), [[1.0, 2.0, 3.0]], ROWS[:0]])
def test_rows_of_another_kind_are_one_line(run: Path, rows: Any) -> None:
    with pytest.raises(ValueError, match=r"give|make them alike"):
        sd.load(run, model=net()).predict(rows)


def test_tunings_and_federations_are_loaded_too(tmp_path: Path) -> None:
    rows = torch.from_numpy(ROWS), torch.from_numpy((ROWS[:, 0] > 0).astype(np.int64))
    inputs = Arrays(LABELS, (3,), facts=("number of rows", "the moon"))
    kept: dict[str, Any] = {"inputs": inputs, "budget": (3, 1e-3)}
    over = {"learning_rate": [0.1, 1.0]}
    out = tmp_path / "tuned"
    sd.tune(net(), loss, rows, over=over, score=rows, method="dp-sgd", epochs=1, out=out, **kept)
    out = tmp_path / "federated"
    sd.federate(net(), loss, rows, clients=5, per_round=2, rounds=2, algorithm="fedavg", out=out, **kept)
    for folder in (tmp_path / "tuned", tmp_path / "federated"):
        trained = sd.load(folder, model=net())
        assert trained.predict(ROWS[:2])[0] in LABELS.labels
        said = [each for each in trained.certificate["assumptions"] if each.startswith("public: ")]
        assert said == ["public: number of rows, the moon"]
    with pytest.raises(ValueError, match=r"there is no .*certificate"):
        sd.load(tmp_path / "tuned" / "candidates" / "1", model=net())
