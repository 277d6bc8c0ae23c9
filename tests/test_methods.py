"""One contract for every method: it trains, it is paid for, it describes itself."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import nn

from conftest import cross_entropy
from sordino import Budget, train
from sordino.methods import METHODS, method_named

PRIVATE = [name for name in METHODS if method_named(name).private]


def price(name: str) -> dict[str, Any]:
    return {"budget": Budget(8.0, 1e-3), "accountant": "rdp"} if name in PRIVATE else {}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_trains_and_pays(name: str, small_model: nn.Module, toy: Any) -> None:
    start = {k: v.clone() for k, v in small_model.state_dict().items()}
    run = train(
        small_model,
        cross_entropy,
        toy,
        method=method_named(name),
        epochs=4,
        batch_size=20,
        test=toy,
        seed=1,
        **price(name),
    )
    assert all(not torch.equal(v, start[k]) for k, v in run.model.state_dict().items())
    assert run.summary["steps"] == 12
    assert 0 <= run.metrics["test_accuracy"] <= 1
    assert run.metrics["covered"] is False
    if name in PRIVATE:
        assert 7 < run.epsilon <= 8.0
        assert run.certificate["guarantee"]["epsilon"] == run.epsilon
    else:
        assert run.epsilon == float("inf")
        assert run.certificate["guarantee"]["epsilon"] == "inf"


@pytest.mark.parametrize("name", METHODS)
def test_a_method_describes_itself(name: str) -> None:
    described = method_named(name).describe()
    assert json.loads(json.dumps(described))["name"] == name
    assert ("learning_rate" in described["needs"]) == (name != "adam-wosm")


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("extra", [{"average": 0.9}, {"schedule": "cosine"}])
def test_options_of_every_method(name: str, extra: dict[str, Any], toy: Any) -> None:
    run = train(
        nn.Linear(10, 3),
        cross_entropy,
        toy,
        method=method_named(name, extra),
        epochs=2,
        batch_size=20,
        **price(name),
    )
    assert all(torch.isfinite(p).all() for p in run.model.parameters())


def test_thresholds_of_methods() -> None:
    assert method_named("dp-sgd", {"target_quantile": 0.5}).describe()["adapts"] == ["threshold"]
    assert method_named("dp_adam", {"per_layer": True}).describe()["clip"]["kind"] == "PerLayer"
    with pytest.raises(ValueError, match="choose one"):
        method_named("dp-sgd", {"per_layer": True, "target_quantile": 0.5})


def test_unknown_names_and_settings_say_what_there_is() -> None:
    with pytest.raises(ValueError, match="choose one of adam, adam-wosm"):
        method_named("dp-sdg")
    with pytest.raises(ValueError, match="it has learning_rate"):
        method_named("dp-sgd", {"lr": 1})
    with pytest.raises(ValueError, match="average"):
        method_named("dp-sgd", {"average": 1.5})
