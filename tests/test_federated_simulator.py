"""The simulator knows no more than it may."""

from __future__ import annotations

from typing import Any

import pytest

from sordino.federated.simulator import Simulator
from test_federate import start
from test_federated_rounds import faulty


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("trouble", ["nan", "raises", "outside"])
def test_under_privacy_nobody_knows_why_a_client_is_left_out(
    monkeypatch: pytest.MonkeyPatch, trouble: str, workers: int
) -> None:
    """Not even the simulator, so that no later line of code can show it."""
    reasons: list[str] = []
    real = Simulator.finished

    def spied(self: Any, *args: Any) -> Any:
        for part in real(self, *args):
            reasons.extend(part.failed.values())
            yield part

    monkeypatch.setattr(Simulator, "finished", spied)
    data, settings = faulty(trouble)
    start(data=data, workers=workers, engine="looped", rounds=2, noise_multiplier=1.0, delta=1e-2, **settings)
    assert reasons == ["", ""]
