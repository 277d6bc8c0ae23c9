from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import nn

import sordino as sd
from sordino.data.inputs import Target
from sordino.data.npz import Arrays
from sordino.models import build_model

loss = nn.CrossEntropyLoss(reduction="none")


def trained(folder: Path, spec: str, shape: tuple[int, ...], **given: Any) -> sd.Trained:
    """A run of no steps to speak of, loaded."""
    x = torch.rand(20, *shape)
    inputs = Arrays(Target("y", ("no", "perhaps", "yes")), shape)
    kept: dict[str, Any] = {"inputs": inputs, "details": {"model": spec}, "out": folder / "run"}
    sd.train(
        build_model(spec, shape, 3),
        loss,
        (x, torch.arange(20) % 3),
        noise_multiplier=1.0,
        delta=1e-3,
        epochs=0.5,
        batch_size=10,
        accountant="rdp",
        **{**kept, **given},
    )
    return sd.load(folder / "run")


def by_onnx(path: Path, rows: np.ndarray[Any, Any]) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(path).run(None, {"rows": rows})[0]


def by_torch(path: Path, rows: np.ndarray[Any, Any]) -> Any:
    return torch.export.load(path).module()(torch.from_numpy(rows)).detach().numpy()


@pytest.mark.parametrize(("format", "read"), [("onnx", by_onnx), ("torch-export", by_torch)])
@pytest.mark.parametrize(("spec", "shape"), [("linear", (4,)), ("mlp:8", (4,)), ("cnn", (1, 8, 8))])
def test_an_exported_model_says_the_same_for_batches_of_any_size(
    tmp_path: Path, spec: str, shape: tuple[int, ...], format: str, read: Any
) -> None:
    model = trained(tmp_path, spec, shape)
    file = sd.export(model, format, tmp_path / "file")
    for count in (1, 5, 64):
        rows = np.random.default_rng(0).normal(size=(count, *shape)).astype(np.float32)
        np.testing.assert_allclose(read(file, rows), model.scores(rows), atol=1e-5)


@pytest.mark.parametrize(("format", "read"), [("onnx", by_onnx), ("torch-export", by_torch)])
def test_next_words_are_exported(tmp_path: Path, format: str, read: Any) -> None:
    words = torch.randint(4, 20, (12, 6))
    about = {"model": "lstm:4,8", "input_shape": [6], "classes": 20}
    rows = words.numpy()
    model = build_model("lstm:4,8", (6,), 20)
    kept: dict[str, Any] = {"details": about, "out": tmp_path / "run", "epochs": 0.5, "accountant": "rdp"}
    sd.train(model, sd.next_words(), (words, words), noise_multiplier=1.0, delta=1e-3, **kept)
    loaded = sd.load(tmp_path / "run")
    file = sd.export(loaded, format, tmp_path / "file")
    for count in (1, 12):
        np.testing.assert_allclose(read(file, rows[:count]), loaded.scores(rows[:count]), atol=1e-5)


def facts_in(format: str, path: Path) -> dict[str, str]:
    if format == "onnx":
        import onnx

        return {each.key: each.value for each in onnx.load(path).metadata_props}
    if format == "torch-export":
        extra = {"sordino.json": ""}
        torch.export.load(path, extra_files=extra)
        found: dict[str, str] = json.loads(extra["sordino.json"])
        return found
    with safe_open(path, "pt") as file:
        metadata: dict[str, str] = file.metadata()
        return metadata


@pytest.mark.parametrize("format", ["safetensors", "onnx", "torch-export"])
def test_a_file_says_what_goes_in_what_comes_out_and_whose_certificate_it_has(
    tmp_path: Path, format: str
) -> None:
    model = trained(tmp_path, "linear", (4,))
    path = sd.export(model, format)
    facts = facts_in(format, path)
    assert path.parent == tmp_path / "run"
    assert facts["certificate_digest"] == model.certificate["digest"]
    assert (facts["task"], json.loads(facts["labels"])) == ("classification", ["no", "perhaps", "yes"])
    assert json.loads(facts["inputs"]) == json.loads((tmp_path / "run" / "inputs.json").read_text())
    assert "softmax" in facts["output"]
    assert json.loads(facts["epsilon"]) == model.certificate["guarantee"]["epsilon"]


@pytest.mark.parametrize("format", ["safetensors", "onnx", "torch-export"])
def test_a_file_has_nothing_of_the_machine_and_nothing_of_a_checkpoint(tmp_path: Path, format: str) -> None:
    model = trained(tmp_path, "mlp:8", (4,), keep_checkpoint=True)
    assert (tmp_path / "run" / "checkpoint").exists()
    content = sd.export(model, format).read_bytes()
    for path in (Path(sd.__file__).parent, tmp_path, Path(torch.__file__).parent):
        assert str(path).encode() not in content
    assert len(content) < 40_000


def test_weights_of_a_safetensors_file_are_those_of_the_run(tmp_path: Path) -> None:
    model = trained(tmp_path, "mlp:8", (4,))
    with safe_open(sd.export(model), "pt") as file:
        for name, weights in model.model.state_dict().items():
            torch.testing.assert_close(file.get_tensor(name), weights, rtol=0, atol=0)


def test_a_regression_says_its_bounds(tmp_path: Path) -> None:
    target = Target("price", low=0.0, high=10.0)
    x = torch.rand(20, 4)
    kept: dict[str, Any] = {"inputs": Arrays(target, (4,)), "details": {"model": "linear"}}
    model = build_model("linear", (4,), 1)
    out = tmp_path / "run"
    sd.train(model, sd.regression(), (x, x[:, 0]), budget=(3, 1e-3), epochs=0.5, out=out, **kept)
    facts = facts_in("safetensors", sd.export(sd.load(out)))
    assert (facts["task"], facts["low"], facts["high"]) == ("regression", "0.0", "10.0")
    assert "low + (x + 1) * (high - low) / 2" in facts["output"]


class Branches(nn.Linear):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return super().forward(rows) if float(rows.sum()) > 0 else -super().forward(rows)


@pytest.mark.parametrize("format", ["onnx", "torch-export"])
def test_a_model_that_cannot_be_exported_is_one_line(tmp_path: Path, format: str) -> None:
    made = trained(tmp_path, "linear", (4,))
    model = sd.Trained(Branches(4, 3), made.inputs, made.summary, made.certificate, made.path)
    with pytest.raises(ValueError, match=f"cannot be exported as {format} .*: use safetensors") as raised:
        sd.export(model, format)
    assert "\n" not in str(raised.value)


def test_onnx_without_its_extra_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = trained(tmp_path, "linear", (4,))
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(ValueError, match=r"pip install 'sordino\[export\]'"):
        sd.export(model, "onnx")


def test_the_file_of_the_certificate_is_not_written_over(tmp_path: Path) -> None:
    model = trained(tmp_path, "linear", (4,))
    with pytest.raises(ValueError, match="choose another name"):
        sd.export(model, out=tmp_path / "run" / "model.safetensors")
    sd.load(tmp_path / "run")
