"""What a run can be told, and the plan that follows: wrong words are one line, before anything is touched."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sordino as sd
from conftest import cross_entropy
from sordino.federated.options import FederationOptions, LocalTraining, Means, UserPrivacy
from sordino.gate import Door
from sordino.runs import recording
from sordino.runs.options import Options, RunOptions, taken

CENTRAL: dict[str, Any] = {"epochs": 2, "batch_size": 12, "seed": 1, "method": "dp-sgd", "accountant": "rdp"}
FEDERATED: dict[str, Any] = {
    "rounds": 2, "clients": 6, "per_round": 3, "batch_size": 5, "local_epochs": 1, "seed": 1, "engine": "looped",
    "accountant": "rdp", "workers": 1,
}  # fmt: skip
NOISE = {"noise_multiplier": 1.0, "delta": 1e-3}
pytestmark = pytest.mark.filterwarnings("ignore:the noise outweighs")


def new_model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return nn.Linear(10, 3)


def train(toy: Any, **options: Any) -> sd.Run:
    return sd.train(new_model(), cross_entropy, toy, **{**CENTRAL, **options})


def federate(toy: Any, **options: Any) -> sd.Run:
    return sd.federate(new_model(), cross_entropy, toy, **{**FEDERATED, **options})


KINDS = pytest.mark.parametrize("start", [train, federate])


def weights(run: sd.Run) -> Tensor:
    return torch.cat([p.detach().flatten() for p in run.model.parameters()])


# Types and defaults say the same --------------------------------------------------------------------------------


def test_the_types_name_just_the_keywords_there_are() -> None:
    assert set(RunOptions.__annotations__) == {each.name for each in fields(Options)}
    own = {each.name for kind in (LocalTraining, UserPrivacy, Means) for each in fields(kind)}
    assert set(FederationOptions.__annotations__) == own | set(RunOptions.__annotations__)
    assert not own & set(RunOptions.__annotations__)
    assert not RunOptions.__required_keys__ | FederationOptions.__required_keys__


def test_the_types_of_the_keywords_are_those_of_the_fields() -> None:
    """But for the budget, which may be a pair and is a Budget in the end."""
    typed = FederationOptions.__annotations__
    for kind in (Options, LocalTraining, UserPrivacy, Means):
        for each in fields(kind):
            if each.name != "budget":
                assert getattr(typed[each.name], "__forward_arg__", typed[each.name]) == each.type, each.name


# Wrong words ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("start", "word", "hint"),
    [
        (train, "callback", "did you mean callbacks?"),
        (train, "batchsize", "did you mean batch_size?"),
        (train, "epoch", "did you mean epochs?"),
        (federate, "round", "did you mean rounds?"),
        (federate, "local_epoch", "did you mean local_epochs?"),
        (federate, "patients", "did you mean patience?"),
        (train, "rounds", "there are "),  # another function's
        (train, "epsilon", "give budget=(epsilon, delta), as in budget=(3, 1e-5)"),
        (federate, "epsilon", "give budget=(epsilon, delta), as in budget=(3, 1e-5)"),
        (train, "lr", "a setting of the method, as in method=dp_sgd(learning_rate=0.1)"),
        (train, "learning_rate", "a setting of the method, as in method=dp_sgd(learning_rate=0.1)"),
        (federate, "lr", "did you mean rate?"),
        (federate, "learning_rate", "did you mean rate?"),
        (train, "xyzzy", "there are accountant, assumptions, batch_size, before, budget"),
    ],
)
def test_an_unknown_keyword_is_a_type_error_with_a_hint(toy: Any, start: Any, word: str, hint: str) -> None:
    with pytest.raises(TypeError) as failure:
        start(toy, **NOISE, **{word: 3})
    assert f"there is no keyword {word!r}: " in str(failure.value)
    assert hint in str(failure.value)
    if "there are" not in hint:
        assert "there are" not in str(failure.value)  # thirty names would only distract


def test_what_is_given_goes_to_the_one_it_belongs_to() -> None:
    asked, training = taken({"seed": 3, "rate": 0.5}, sd.federate, Options, LocalTraining)
    assert (asked.seed, training.rate, training.local_epochs) == (3, 0.5, 5)


@KINDS
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 3.0}, "an epsilon and a delta"),
        ({"budget": (3.0,)}, "an epsilon and a delta"),
        ({"budget": (3.0, 1e-3, 1)}, "an epsilon and a delta"),
        ({"budget": ("3", 1e-3)}, "an epsilon and a delta"),
        ({"budget": (True, 1e-3)}, "an epsilon and a delta"),
        ({"budget": (1e-5, 3)}, "delta must lie strictly between 0 and 1"),
        ({"budget": (-3, 1e-3)}, "epsilon must be a finite number above 0"),
        ({"budget": (3, 1e-3), "noise_multiplier": 1.0}, "either a budget"),
        ({"budget": (3, 1e-3), "delta": 1e-4}, "delta is said twice"),
        ({**NOISE, "delta": 2.0}, "delta must lie strictly between 0 and 1"),
        ({**NOISE, "evaluations": 0}, "at least once, not 0"),
        ({**NOISE, "evaluations": 2.5}, r"at least once, not 2\.5"),
        ({**NOISE, "evaluations": "ten"}, "at least once, not 'ten'"),
        ({**NOISE, "evaluations": None}, "at least once, not None"),
        ({**NOISE, "evaluations": float("inf")}, "at least once, not inf"),
        ({**NOISE, "evaluations": float("nan")}, "at least once, not nan"),
        ({**NOISE, "assumptions": "the rows are independent"}, "put yours in brackets"),
        ({**NOISE, "callbacks": [print, 3]}, "give a list of them"),
        ({**NOISE, "callbacks": 3}, "give a list of them"),
        ({**NOISE, "callbacks": None}, "give a list of them"),
        ({**NOISE, "callbacks": "print"}, "give a list of them"),
        ({**NOISE, "secure": True}, "leave out the seed"),
        ({**NOISE, "device": "cuda"}, "there is no device 'cuda' here: leave it out, or use cpu"),
        ({**NOISE, "device": torch.device("cuda", 1)}, "there is no device 'cuda:1' here"),
        ({**NOISE, "device": "gpu"}, "there is no device 'gpu' here"),
        ({**NOISE, "device": 3.5}, r"there is no device '3\.5' here"),
        ({**NOISE, "batch_size": 32.5}, r"must be a whole number.*, not 32\.5"),
        ({**NOISE, "batch_size": "32"}, "must be a whole number.*, not '32'"),
        ({**NOISE, "details": {"n": 1_000_000}}, "details has 'n', which run.json says by itself"),
        ({**NOISE, "details": {"seeded": False}}, "details has 'seeded'"),
        ({**NOISE, "details": {"model": nn.ReLU()}}, "details are names with numbers, text, or lists"),
    ],
)
def test_a_wrong_word_is_one_line_before_anything_is_touched(
    toy: Any,
    start: Any,
    options: dict[str, Any],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if "cuda" in str(options.get("device")) and torch.cuda.is_available():
        pytest.skip("there is one")
    monkeypatch.setattr(Door, "__call__", lambda *_: pytest.fail("something was released"))
    with pytest.raises(ValueError, match=message) as failure:
        start(toy, out=tmp_path / "run", **options)
    assert "\n" not in str(failure.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunk": 0}, "chunk is how many clients"),
        ({"chunk": -1}, "chunk is how many clients"),  # range(0, n, -1) has nobody in it
        ({"patience": 0}, "patience is a number of seconds"),
        ({"patience": float("nan")}, "patience is a number of seconds"),
        ({"workers": 0}, "workers must be at least 1"),
        ({"public_examples": 0.5}, "public_examples is a number of rows"),
        ({"observe": 3}, "give a list of them"),
    ],
)
def test_means_with_which_nobody_would_train_are_refused(
    toy: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        federate(toy, **NOISE, **options)


# Right words ----------------------------------------------------------------------------------------------------


@KINDS
def test_a_budget_may_be_a_pair(toy: Any, start: Any) -> None:
    found = [start(toy, budget=given) for given in (sd.Budget(3, 1e-3), (3, 1e-3), [3.0, 1e-3])]
    assert len({run.epsilon for run in found}) == 1
    assert all(torch.equal(weights(run), weights(found[0])) for run in found)


@KINDS
@pytest.mark.parametrize("device", ["cpu", torch.device("cpu")])
def test_the_device_of_the_model_does_not_move_a_bit(toy: Any, start: Any, device: Any) -> None:
    assert torch.equal(weights(start(toy, **NOISE)), weights(start(toy, device=device, **NOISE)))


@KINDS
def test_a_whole_number_of_evaluations_may_be_a_float_and_one_callback_needs_no_list(
    toy: Any, start: Any
) -> None:
    steps: list[int] = []
    run = start(toy, test=toy, evaluations=2.0, callbacks=lambda seen: steps.append(seen.step), **NOISE)
    assert sum("test_loss" in line for line in run.history) == 2
    assert steps == list(range(1, run.summary["steps"] + 1))


@KINDS
def test_details_and_assumptions_are_written_down(toy: Any, start: Any, tmp_path: Path) -> None:
    run = start(
        toy, details={"model": "mine", "sizes": [1, 2]}, assumptions=["the sun rises"], data_name="toys",
        out=tmp_path / "run", **NOISE
    )  # fmt: skip
    summary = json.loads((tmp_path / "run/run.json").read_text())
    assert (summary["model"], summary["sizes"], summary["data"]) == ("mine", [1, 2], "toys")
    assert "the sun rises" in summary["assumptions"]
    assert "the sun rises" in run.certificate["assumptions"]


@KINDS
def test_the_plan_is_public_and_the_same_whatever_the_rows_hold(
    toy: Any, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of run.json but what was measured: other values in rows of the same shapes change nothing."""
    first = start(toy, **NOISE)
    other = start((toy[0] * 1e3, (toy[1] + 1) % 3), **NOISE)
    measured = {"seconds", "peak_memory_mib", "metrics"}
    assert {k: v for k, v in first.summary.items() if k not in measured} == {
        k: v for k, v in other.summary.items() if k not in measured
    }


def test_a_place_is_found_before_the_directory_is(
    toy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording, "claimed", lambda *_: pytest.fail("the directory was claimed"))
    with pytest.raises(ValueError, match="there is no device 'gpu' here"):
        train(toy, device="gpu", out=tmp_path / "run", **NOISE)


@pytest.mark.parametrize(
    ("start", "options", "message"),
    [
        (train, {"epochs": "3"}, "epochs must be a positive number, not '3'"),
        (train, {"epochs": [3]}, "epochs must be a positive number, not a list"),
        (train, {"method": torch.optim.SGD([torch.zeros(2)])}, r"a Method such as adadp\(\), not a SGD$"),
        (federate, {"rounds": "3"}, "rounds must be a whole number of at least 1, not '3'"),
        (federate, {"rounds": 2.5}, r"rounds must be a whole number of at least 1, not 2\.5"),
        (federate, {"local_epochs": "3"}, "local_epochs must be a whole number of at least 1, not '3'"),
        (federate, {"conditions": {"drop_out": 0.1}}, r"as in Conditions\(drop_out=0\.1\), and not a dict$"),
    ],
)
def test_a_thing_of_another_type_is_named_by_its_type(
    toy: Any, start: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as failure:
        start(toy, **NOISE, **options)
    assert "\n" not in str(failure.value)


@pytest.mark.parametrize("start", [sd.train, sd.federate])
@pytest.mark.parametrize(
    ("model", "what"), [(nn.Linear, "the class Linear, which has to be called"), ("mlp", "'mlp'")]
)
def test_a_model_is_a_module_and_not_its_class(toy: Any, start: Any, model: Any, what: str) -> None:
    more = {"rounds": 1} if start is sd.federate else {}
    with pytest.raises(ValueError, match=rf"such as nn\.Linear\(10, 2\), not {what}"):
        start(model, cross_entropy, toy, **NOISE, **more)
