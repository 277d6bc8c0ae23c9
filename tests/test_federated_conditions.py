"""Devices that drop out, are slow, or are too many."""

from __future__ import annotations

import torch

from sordino.federated import Conditions
from test_federate import small, start, theta


def test_drop_outs_deadlines_and_over_selection() -> None:
    run = start(
        rounds=30, conditions=Conditions(drop_out=0.3, slowness=0.6, deadline=1.3, over_selection=1.5)
    )
    why = [reason for line in run.history for reason in line.get("left_out", {}).values()]
    assert {"dropped out", "missed the deadline"} <= set(why)
    assert all(line["participants"] + len(line.get("left_out", {})) == 9 for line in run.history)
    assert all(line["participants"] <= 6 for line in run.history)
    assert 0.2 < why.count("dropped out") / (30 * 9) < 0.4
    crowd = start(rounds=5, conditions=Conditions(over_selection=2.0))
    assert all(line["participants"] == 6 for line in crowd.history)
    assert all(set(line["left_out"].values()) == {"was not needed"} for line in crowd.history)
    same = start(
        partition="iid", rounds=60, local_epochs=1, conditions=Conditions(over_selection=2.0), clients=24
    )
    needed = [int(c) for line in same.history for c in line["left_out"]]
    assert 0.3 < sum(client < 12 for client in needed) / len(needed) < 0.7  # ties are broken by lot


def test_a_round_without_anybody_changes_nothing() -> None:
    run = start(rounds=3, clients=3, per_round=1, conditions=Conditions(drop_out=0.999))
    assert all(line["participants"] == 0 for line in run.history)
    assert torch.equal(theta(run), torch.cat([p.detach().flatten() for p in small().parameters()]))
