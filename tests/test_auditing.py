"""`sordino audit gate`: sound methods stay below their claim, and who scripts it can rely on exit codes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import sordino.auditing as auditing
from sordino.auditing import UNITS, GateAudit, audit_gate, noise_matrix, zeroed_out
from sordino.data import FixedOrder, Poisson, Shuffled
from sordino.methods import METHODS, Method, method_named
from sordino.named import SAMPLINGS
from sordino.noise import GaussianNoise, Streams
from sordino.privacy import Budget
from sordino.privacy.loss_distribution import squared_mu

PRIVATE = sorted(name for name in METHODS if METHODS[name]().private)


def audited(method: Method | str = "dp-sgd", **options: Any) -> GateAudit:
    defaults = {"noise_multiplier": 1.0, "delta": 1e-5, "releases": 2, "runs": 70, "seed": 1}
    return audit_gate(method, **{**defaults, "confidences": (0.95, 1 - 1e-6), **options})


def stands(found: GateAudit) -> None:
    assert not found.violated, found.finding
    likely, sure = found.audit.bounds  # a bound at 95 % may be wrong one time in twenty
    assert max(sure.epsilon, sure.gdp_epsilon) < found.audit.claimed.epsilon
    assert likely.gdp_mu > 0.2  # it is not blind


@pytest.mark.parametrize("method", PRIVATE)
def test_every_private_method_stays_below_its_claim(method: str) -> None:
    stands(audited(method, releases=4))


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("dp-sgd", {"target_quantile": 0.5}),
        ("dp-sgd", {"per_layer": True}),
        ("adadp", {"online": True}),
        ("dp-ftrl", {"online": True}),
        ("dp-ftrl", {"target_quantile": 0.5}),
        ("dp-ftrl", {"efficient": False, "completion": False, "restart_every": 1}),
    ],
    ids=str,
)
def test_probes_and_other_trees_stay_below_their_claim(method: str, settings: dict[str, Any]) -> None:
    stands(audited(method_named(method, settings), releases=8))


@pytest.mark.parametrize("clip", ["fixed:1.0", "quantile:0.5"])
@pytest.mark.parametrize(
    "how",
    [
        {"sampling": "fixed-order"},
        {"sampling": "shuffled", "unit": "user"},
        {"sampling": "poisson", "sampling_rate": 0.25},
        {"sampling": "poisson", "sampling_rate": 0.22},
        {"sampling": "poisson", "sampling_rate": 0.2, "federated": True},
    ],
    ids=str,
)
def test_banded_noise_stays_below_its_claim(clip: str, how: dict[str, Any]) -> None:
    settings = {"clip": clip, "rate": "constant:0.1", "noise": "banded:4"}
    stands(audited(method_named("composed", settings), releases=9, noise_multiplier=0.5, **how))


@pytest.mark.parametrize("noise", ["buffered", "buffered:2,horizon=4"])
@pytest.mark.parametrize(
    "how",
    [{"sampling": "fixed-order"}, {"sampling": "shuffled", "unit": "user"}, {"federated": True}],
    ids=str,
)
def test_buffered_noise_stays_below_its_claim(noise: str, how: dict[str, Any]) -> None:
    settings = {"clip": "fixed:1.0", "rate": "constant:0.1", "noise": noise}
    stands(audited(method_named("composed", settings), releases=9, noise_multiplier=1.0, **how))


@pytest.mark.parametrize("method", ["dp-sgd", "oso", "dp-ftrl"])
@pytest.mark.parametrize("how", [{"unit": "user"}, {"federated": True}], ids=["groups", "federation"])
def test_users_and_clients_stay_below_their_claim(method: str, how: dict[str, Any]) -> None:
    found = audited(method, releases=4, **how)
    stands(found)
    assert found.unit == "user"


@pytest.mark.parametrize(
    "sampling", [s for s, e in SAMPLINGS.entries.items() if "no guarantee" not in e.facts]
)
def test_sampled_batches_stay_below_their_claim(sampling: str) -> None:
    found = audited(
        "dp-sgd", sampling=sampling, sampling_rate=0.5, releases=4, noise_multiplier=0.6, runs=100
    )
    stands(found)


def test_counts_on_random_batches_are_part_of_the_score() -> None:
    method = method_named("dp-sgd", {"target_quantile": 0.5})
    stands(audited(method, sampling_rate=0.5, releases=4, noise_multiplier=0.6))


def test_the_bound_of_plain_dp_sgd_comes_within_15_percent() -> None:
    """A federation's gate is the same door, and the fastest to call a few thousand times."""
    found = audited("dp-sgd", noise_multiplier=1 / 3, releases=1, runs=2500, federated=True)
    stands(found)
    assert found.audit.bounds[0].gdp_epsilon > 0.85 * found.audit.claimed.epsilon


def test_what_is_claimed_is_the_price_of_the_ledger_within_the_budget() -> None:
    found = audit_gate("adadp", budget=Budget(3.0, 1e-6), releases=5, runs=40, seed=2)
    assert found.releases == 4  # two for each step
    assert found.audit.claimed.epsilon == pytest.approx(3.0, rel=1e-3)
    assert found.audit.claimed.epsilon <= 3.0
    assert found.audit.claimed.delta == 1e-6


def test_a_seed_makes_the_same_audit_and_none_another() -> None:
    first, second = audited(runs=40), audited(runs=40)
    assert first == second
    assert audited(runs=40, seed=None).audit.bounds != first.audit.bounds
    assert audited(runs=40, seed=2).audit.bounds != first.audit.bounds


def test_no_two_runs_share_their_randomness(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = []
    from_seed = Streams.from_seed.__func__  # type: ignore[attr-defined]

    def noted(cls: type[Streams], seed: int) -> Streams:
        streams = from_seed(cls, seed)
        keys.append(streams.key)
        found: Streams = streams
        return found

    monkeypatch.setattr(Streams, "from_seed", classmethod(noted))
    audited(runs=40)
    assert len(keys) == len(set(keys)) == 80  # 40 of each kind


def test_torch_is_left_as_it_was() -> None:
    torch.manual_seed(7)
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    audited(runs=40)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("sampling", [Poisson(0.5), Poisson(1.0), Shuffled(4), FixedOrder(4)], ids=str)
def test_a_unit_that_is_zeroed_out_is_drawn_and_left_out(sampling: Any) -> None:
    other, streams = zeroed_out(sampling, 3), Streams.from_seed(1)
    missing = 0
    for step in range(20):
        units = sampling.units(step, 16, streams)
        np.testing.assert_array_equal(other.units(step, 16, streams), units[units != 3])
        missing += 3 in units
    assert missing > 0
    assert other.expected_batch(16) == sampling.expected_batch(16)
    assert other == sampling  # in all that is priced


@pytest.mark.parametrize("settings", [{}, {"efficient": False}, {"restart_every": 1}], ids=str)
def test_the_noise_of_a_tree_is_what_its_matrix_says(settings: dict[str, Any]) -> None:
    """Thresholds move; the variance of every release, and of every sum, against the noise that is really drawn."""
    setting = auditing._setting(
        method_named("dp-ftrl", settings), None, 1.0, 1e-5, 8, "example", False, None, None
    )
    thresholds = [1.0, 1.2, 0.7, 0.7, 1.5, 1.1, 1.0, 0.9]
    matrix = noise_matrix(setting.terms, thresholds)
    size = 20_000
    releases = setting.method.noise.over(setting.sampling, UNITS, setting.calls)
    state, draw = releases.start(), GaussianNoise(Streams.from_seed(3))
    drawn = torch.zeros(8, size, dtype=torch.float64)
    for step, threshold in enumerate(thresholds):
        row = torch.zeros(size)
        std = releases.add_(row, draw, 1.0, threshold, step, state)
        assert np.linalg.norm(matrix[step]) == pytest.approx(std, rel=1e-4)  # both are on the grid
        drawn[step] = row
    whitened = np.linalg.pinv(matrix[:, np.abs(matrix).sum(0) > 0]) @ drawn.numpy()
    np.testing.assert_allclose(np.cov(whitened), np.eye(8), atol=6 * np.sqrt(2 / size))


@pytest.mark.parametrize("releases", [5, 8, 12])
@pytest.mark.parametrize("efficient", [True, False])
@pytest.mark.parametrize("restart", ["auto", 1, None])
def test_what_a_tree_shows_of_any_unit_is_paid_for(releases: int, efficient: bool, restart: Any) -> None:
    """Exactly, from the noise of all releases together: mu^2 = m' Sigma^-1 m, whichever unit it is about."""
    method = method_named("dp-ftrl", {"efficient": efficient, "restart_every": restart})
    setting = auditing._setting(method, None, 1.0, 1e-5, releases, "example", False, None, None)
    matrix = noise_matrix(setting.terms, [1.0] * releases)
    covariance, streams = matrix @ matrix.T, Streams.from_seed(1)
    batches = [setting.sampling.units(step, UNITS, streams) for step in range(releases)]
    moved = np.array([[float(unit in batch) for batch in batches] for unit in range(UNITS)])
    shown = np.einsum("ut,tu->u", moved, np.linalg.solve(covariance, moved.T))
    event = setting.method.noise.over(setting.sampling, UNITS, releases).cost(releases, 1.0, [])
    paid = squared_mu(event)
    assert paid is not None
    assert shown.max() <= paid * (1 + 1e-9)
    assert shown.max() > 0.8 * paid  # and not much more than needed


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "sgd"}, "claims nothing"),
        ({"method": "dp_nothing"}, "there is no method"),
        ({"noise_multiplier": 0.0}, "without noise nothing is claimed"),
        ({"noise_multiplier": None}, "either a budget"),
        ({"delta": None}, "needs a delta"),
        ({"releases": 0}, "at least 1 release"),
        ({"runs": 10}, "prove nothing"),
        ({"unit": "house"}, "example or user"),
        ({"sampling": "weighted"}, "choose one of poisson"),
        ({"sampling_rate": 1.5}, r"in \(0, 1\]"),
        ({"method": "dp-ftrl", "sampling": "poisson"}, "tree noise needs batches"),
    ],
    ids=str,
)
def test_what_cannot_be_audited_is_refused_with_what_to_do(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        audited(**options)


# The command --------------------------------------------------------------------------------------------------
