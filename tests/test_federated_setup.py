"""What cannot be a federation is refused before anything is written or spent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sordino as sd
from sordino.federated import Conditions
from test_federate import private, start


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"conditions": Conditions(over_selection=1.5)}, "no price"),
        ({"participation": sd.WithoutReplacement(6), "algorithm": "adabest"}, "no known price"),
        ({"participation": "poisson"}, "Sampling"),
        ({"participation": sd.WithoutReplacement(6), "algorithm": "fedavg", "noise": sd.Tree()}, "order"),
        ({"noise": sd.Tree(), "participation": sd.Poisson(0.3)}, "dealt in an order"),
        ({"clip": sd.PerLayer(1.0)}, "as one vector"),
        ({"clip": sd.Online(), "algorithm": "fedadam"}, "Adam"),
        ({"clip": sd.Unclipped()}, "without clipping"),
        ({"budget": sd.Budget(1, 1e-3)}, "either a budget"),
        ({"participation": sd.Separated(6, separation=9)}, "sit out"),
        ({"delta": None}, "needs a delta"),
        ({"public_examples": 0}, "public_examples"),
    ],
)
def test_what_has_no_price_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        private(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm": "fedbest"}, "no algorithm"),
        ({"local": "lbfgs"}, "no local rule"),
        ({"partition": "dirichlet:x"}, "dirichlet"),
        ({"rounds": 0}, "rounds"),
        ({"per_round": 21}, "per_round"),
        ({"clients": 2000}, "2000"),
        ({"rate": -1.0}, "rate"),
        ({"decay": 2.0}, "decay"),
        ({"engine": "gpu"}, "engine"),
        ({"workers": 0, "patience": 1.0}, "workers"),
        ({"workers": 0}, "workers"),
        ({"store": "disk"}, "memory or in a file"),
        ({"delta": 1e-3}, "budget"),
        ({"secure": True, "seed": None}, "budget"),
        ({"public_examples": 5}, "budget"),
        ({"local": "adadp", "batch_size": 100}, "takes two"),
        ({"algorithm": "scaffold", "local": "adam"}, "sum of gradients"),
        ({"algorithm": "scaffold-m", "local": "adadp"}, "planned rate"),
        ({"partition": [np.arange(5), np.arange(3000, 3005)], "clients": None}, "outside"),
        ({"local_epochs": 0}, "local_epochs"),
        ({"holdout": -1}, "holdout"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_written(
    settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        start(out=tmp_path / "run", **settings)
    assert not (tmp_path / "run").exists()
