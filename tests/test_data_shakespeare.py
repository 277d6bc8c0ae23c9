from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sordino.data import as_examples, load
from sordino.data.shakespeare import BEGIN, END, LENGTH, PAD, SPECIAL, UNKNOWN, with_vocabulary
from sordino.models import next_word_accuracy, next_word_loss, next_word_lstm
from test_data_named import REAL, no_data_of_this_machine, one_line  # noqa: F401 (a fixture for all tests)

WORDS = ["the", ",", "to", "--", "be", "not", "or", "king", "price_of", "café"]
KEPT = ["the", "to", "be", "not", "or", "king", "café"]  # the tokens 4 to 10
ROLES = {
    "HAMLET": ["To be, or not to be!", "...", "The KING? Café--the slings; O!"],
    "GHOST": [f"be number {i}." for i in range(20)],
    "FOOL": ["to " * 41 + "be"],
}


def write(root: Path, roles: dict[str, list[str]] = ROLES, **changes: Any) -> Path:
    path = root / "shakespeare" / "roles.json.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {
        "users": list(roles),
        "num_speeches": [len(speeches) for speeches in roles.values()],
        "user_data": roles,
    }
    path.write_bytes(gzip.compress(json.dumps(content | changes).encode()))
    return path


def write_words(root: Path, words: list[str] = WORDS) -> Path:
    path = root / "glove" / "glove50_agnews_f16.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        path, words=np.array("\n".join(words)), vectors=np.zeros((len(words), 50), np.float16)
    )
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path)
    write_words(tmp_path)
    return tmp_path


def tokens(text: str) -> list[int]:
    special = {"<": BEGIN, ">": END, "?": UNKNOWN}
    found = [special[word] if word in special else SPECIAL + KEPT.index(word) for word in text.split()]
    return found + [PAD] * (LENGTH - len(found))


def test_sentences_become_rows_by_hand(folder: Path) -> None:
    loaded = load("shakespeare", root=folder)
    inputs, targets = loaded.train
    assert loaded.users is not None
    assert inputs.dtype == targets.dtype == loaded.users.dtype == torch.int64
    assert inputs[:4].tolist() == [
        tokens("< to be or not to be"),
        tokens("< the king"),
        tokens("< café the ? ?"),
        tokens("< be ? ?"),
    ]
    assert targets[:4].tolist() == [
        tokens("to be or not to be >"),
        tokens("the king >"),
        tokens("café the ? ? >"),
        tokens("be ? ? >"),
    ]
    assert (loaded.classes, loaded.input_shape, loaded.task) == (11, (LENGTH,), "next-word")
    assert len(as_examples(loaded.train)) == len(loaded.users)


def test_a_long_sentence_goes_on_in_the_next_row_and_every_word_is_a_target_once(folder: Path) -> None:
    loaded = load("shakespeare", root=folder)
    assert loaded.users is not None
    inputs, targets = (part[loaded.users == 2] for part in loaded.train)
    assert inputs.tolist() == [
        tokens("< " + "to " * 19),
        tokens("to " * 20),
        tokens("to to be"),
    ]
    assert targets.tolist() == [tokens("to " * 20), tokens("to " * 20), tokens("to be >")]


def test_the_last_tenth_of_a_roles_speeches_is_for_testing(folder: Path) -> None:
    loaded = load("shakespeare", root=folder)
    assert loaded.users is not None
    assert loaded.test is not None
    assert loaded.users.bincount().tolist() == [3, 18, 3]  # 2 of 20 speeches, and none of 3 and of 1
    assert loaded.test[0].tolist() == [tokens("< be ? ?")] * 2


def test_the_vocabulary_depends_on_no_speech(folder: Path) -> None:
    before = load("shakespeare", root=folder)
    write(folder, {"FOOL": ["king king zebra zebra zebra."]})
    after = load("shakespeare", root=folder)
    assert before.classes == after.classes
    assert after.train[0].tolist() == [tokens("< king king ? ? ?")]
    assert after.test is None
    assert any("not counted in the speeches" in fact for fact in after.public)


def test_the_public_text_file_serves_as_well(folder: Path) -> None:
    packed = load("shakespeare", root=folder)
    (folder / "glove" / "glove50_agnews_f16.npz").unlink()
    lines = "".join(f"{word} {' '.join(['0.5'] * 50)}\n" for word in WORDS)
    (folder / "glove" / "glove.6B.50d.txt").write_text(lines, encoding="utf-8")
    text = load("shakespeare", root=folder)
    assert torch.equal(packed.train[0], text.train[0])
    assert ("AG News" in packed.public[-1], "AG News" in text.public[-1]) == (True, False)


def test_a_smaller_vocabulary_is_what_a_shorter_list_of_words_gives(folder: Path) -> None:
    smaller = with_vocabulary(load("shakespeare", root=folder), 3)
    write_words(folder, ["the", "to", "be"])
    short = load("shakespeare", root=folder)
    assert smaller.test is not None
    assert short.test is not None
    assert smaller.classes == short.classes == 7
    for mine, theirs in zip((*smaller.train, *smaller.test), (*short.train, *short.test), strict=True):
        assert torch.equal(mine, theirs)
    for words in (0, 4):
        with pytest.raises(ValueError, match=f"has 3 words.*not {words}"):
            with_vocabulary(short, words)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"users": ["NOBODY"]}, "does not hold users"),
        ({"users": 3}, "does not hold users"),
        ({"users": []}, "one for each"),
        ({"users": ["FOOL", "FOOL"]}, "one for each"),
        ({"user_data": {role: [7] for role in ROLES}}, "one for each"),
        ({"num_speeches": [3, 20, 2]}, "num_speeches"),
        ({"users": ["MUTE"], "num_speeches": [1], "user_data": {"MUTE": ["--"]}}, "no words to train on"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(folder: Path, changes: dict[str, Any], said: str) -> None:
    path = write(folder, **changes)
    with pytest.raises(ValueError, match=said) as error:
        load("shakespeare", root=folder)
    assert str(path) in one_line(error)


@pytest.mark.parametrize("damage", ["cut", "bytes", "text"])
def test_a_damaged_file_is_refused_in_one_line(folder: Path, damage: str) -> None:
    path = write(folder)
    whole = path.read_bytes()
    path.write_bytes(
        {"cut": whole[: len(whole) // 2], "bytes": b"not gzip", "text": gzip.compress(b"{")}[damage]
    )
    with pytest.raises(ValueError, match="damaged") as error:
        load("shakespeare", root=folder)
    assert str(path) in one_line(error)


def test_missing_files_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"roles\.json\.gz.*SORDINO_DATA"):
        load("shakespeare", root=tmp_path)
    write(tmp_path)
    with pytest.raises(ValueError, match=r"glove\.6B\.50d\.txt.*SORDINO_DATA"):
        load("shakespeare", root=tmp_path)
    write_words(tmp_path, [",", "--"])
    with pytest.raises(ValueError, match="holds no words"):
        load("shakespeare", root=tmp_path)
    (tmp_path / "glove" / "glove50_agnews_f16.npz").write_bytes(b"nothing")
    with pytest.raises(ValueError, match="not a zip archive"):
        load("shakespeare", root=tmp_path)


@pytest.mark.skipif(
    REAL is None or not (REAL / "shakespeare" / "roles.json.gz").exists(),
    reason="the public file is not here",
)
def test_the_real_file() -> None:
    loaded = load("shakespeare", root=REAL)
    assert loaded.users is not None
    assert loaded.test is not None
    rows = loaded.users.bincount()
    assert len(rows) == 1120
    assert rows.min() >= 1  # every role can take part
    assert (len(loaded.users), len(loaded.test[0])) == (67_525, 6_971)
    targets = loaded.train[1]
    assert loaded.classes == 10_004
    assert 0.1 < float((targets == UNKNOWN).sum() / (targets != PAD).sum()) < 0.2


# The model and its measures -----------------------------------------------------------------------------


def test_the_models_size() -> None:
    model = next_word_lstm()
    assert sum(p.numel() for p in model.parameters()) == 4_050_748 + 4 * 670
    small = next_word_lstm(20, 4, 6)
    assert small(torch.zeros(3, 5, dtype=torch.int64)).shape == (3, 5, 20)


def test_a_guess_depends_on_nothing_that_comes_later() -> None:
    torch.manual_seed(0)
    model = next_word_lstm(20, 4, 6)
    one = torch.randint(20, (1, 8))
    other = torch.cat([one[:, :5], torch.randint(20, (1, 3))], 1)
    assert torch.equal(model(one)[:, :5], model(other)[:, :5])


def test_the_loss_is_the_mean_over_the_tokens_of_each_row() -> None:
    torch.manual_seed(1)
    logits = torch.randn(3, 4, 9)
    targets = torch.tensor([[5, 6, END, PAD], [7, UNKNOWN, 8, END], [PAD] * 4])
    logs = logits.log_softmax(-1)
    by_hand = [
        -sum(float(logs[i, t, y]) for t, y in enumerate(row) if y != PAD) / max(1, sum(y != PAD for y in row))
        for i, row in enumerate(targets.tolist())
    ]
    assert torch.allclose(next_word_loss(logits, targets), torch.tensor(by_hand))
    whole = next_word_loss(logits.repeat(2, 1, 1), targets.repeat(2, 1))
    assert torch.equal(whole[:3], whole[3:])


class _Fixed(nn.Module):
    def __init__(self, scores: torch.Tensor) -> None:
        super().__init__()
        self.scores = scores

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.scores[ids]


def test_accuracy_counts_words_alone() -> None:
    scores = torch.zeros(8, 8)
    scores[:, UNKNOWN] = 9.0  # never a guess
    scores[BEGIN, 5] = scores[5, 6] = scores[6, 7] = 1.0
    inputs = torch.tensor([[BEGIN, 5, 6, PAD], [BEGIN, 7, 5, 6]])
    targets = torch.tensor([[5, 6, END, PAD], [4, UNKNOWN, 6, 4]])
    model = _Fixed(scores).train()
    # 5 and 6 are right in the first row; 4 is wrong, 6 right, 4 wrong in the second; the rest does not count.
    assert next_word_accuracy(model, (inputs, targets)) == pytest.approx(3 / 5)
    assert next_word_accuracy(model, (inputs, targets), batch=1) == pytest.approx(3 / 5)
    assert model.training
    nothing = (inputs[:, 2:], torch.full_like(targets[:, 2:], END))
    assert np.isnan(next_word_accuracy(model, nothing))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Threads that wait for each other make tiny models slow on a busy machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
def test_the_model_learns_from_rows() -> None:
    torch.manual_seed(2)
    model = next_word_lstm(12, 8, 16)
    rows = torch.tensor([[BEGIN, 4, 5, 6, 7, END], [BEGIN, 8, 9, 10, 11, END]])
    pair = (rows[:, :-1], rows[:, 1:])
    for _ in range(200):
        loss = next_word_loss(model(pair[0]), pair[1]).mean()
        for parameter, slope in zip(
            model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True
        ):
            parameter.data.sub_(slope)
    # What follows the beginning is one of two words; all else is certain.
    assert next_word_accuracy(model, pair) == pytest.approx(7 / 8)
