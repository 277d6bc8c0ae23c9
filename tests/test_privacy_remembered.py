"""Calibrated noise is kept: the same with and without a cache, and never believed unpriced."""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from dp_accounting import DpEvent

from sordino.privacy import (
    Budget,
    calibration,
    compose,
    gaussian,
    noise_for,
    poisson_gaussian,
    price,
    remembered,
    repeat,
)
from sordino.privacy.renyi import ORDERS

BUDGET = Budget(3.0, 1e-5)


def plan(z: float) -> DpEvent:
    return repeat(poisson_gaussian(z, 0.1), 50)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, in the files and in the process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(remembered, "_known", {})
    return tmp_path / "sordino" / "noise"


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each search that is really made."""
    made: list[str] = []
    search = calibration._searched

    def counted(
        budget: Budget, make_event: Callable[[float], DpEvent], accountant: str, conversion: str
    ) -> float:
        made.append(accountant)
        return search(budget, make_event, accountant, conversion)

    monkeypatch.setattr(calibration, "_searched", counted)
    return made


def only_file(cache: Path) -> Path:
    (path,) = cache.iterdir()
    return path


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a new process."""
    monkeypatch.setattr(remembered, "_known", {})


@pytest.mark.parametrize("accountant", ["auto", "rdp", "pld", "moments"])
def test_what_is_remembered_is_what_would_be_found(
    accountant: str, cache: Path, searches: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = noise_for(BUDGET, plan, accountant)
    again = noise_for(BUDGET, plan, accountant)
    forget(monkeypatch)
    from_file = noise_for(BUDGET, plan, accountant)
    assert searches == [accountant]
    assert first == again == from_file == calibration._searched(BUDGET, plan, accountant, "improved")


def test_another_question_has_another_answer(cache: Path, searches: list[str]) -> None:
    found = [
        noise_for(BUDGET, plan, "rdp"),
        noise_for(Budget(3.0, 1e-6), plan, "rdp"),
        noise_for(Budget(2.9, 1e-5), plan, "rdp"),
        noise_for(BUDGET, lambda z: repeat(poisson_gaussian(z, 0.1), 51), "rdp"),
        noise_for(BUDGET, plan, "rdp", "basic"),
        noise_for(BUDGET, plan, "moments"),
    ]
    assert len(set(found)) == len(found) == len(searches)


def test_plans_that_agree_where_the_search_begins_are_told_apart(cache: Path, searches: list[str]) -> None:
    def with_a_probe(
        z: float,
    ) -> DpEvent:  # as a count is noised: by more where the noise is little, and so on
        return compose([plan(z), gaussian(max(20.0, 20.0 * z))])

    def with_another(z: float) -> DpEvent:
        return compose([plan(z), gaussian(max(20.0, 30.0 * z - 10.0))])

    assert with_a_probe(1.0) == with_another(1.0)
    first, second = noise_for(BUDGET, with_a_probe, "rdp"), noise_for(BUDGET, with_another, "rdp")
    assert len(searches) == 2
    assert first != second


@pytest.mark.parametrize("factor", [0.5, 0.99, 0.999, 1.01, 2.0])
def test_a_multiplier_that_somebody_wrote_is_refused(
    factor: float, cache: Path, searches: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = noise_for(BUDGET, plan, "rdp")
    path = only_file(cache)
    wrong = factor * right
    entry = {
        "asked": [1.0, wrong],
        "events": remembered._events((1.0, wrong), plan),  # as careful as a forger can be
        "noise_multiplier": wrong,
    }
    path.write_text(json.dumps(entry))
    forget(monkeypatch)
    assert noise_for(BUDGET, plan, "rdp") == right
    assert len(searches) == 2
    assert json.loads(path.read_text())["noise_multiplier"] == right  # and it is put right


@pytest.mark.parametrize(
    "content",
    [
        "", "{", "[]", "null", "[" * 100_000, '{"asked": 3, "events": "", "noise_multiplier": 1.0}',
        '{"asked": ["1"], "events": "", "noise_multiplier": 1.0}',
        '{"asked": [NaN], "events": "", "noise_multiplier": NaN}',
        '{"asked": [-1.0], "events": "", "noise_multiplier": -1.0}',
        '{"asked": [1e300], "events": "", "noise_multiplier": 1e300}',
        '{"asked": [], "events": "", "noise_multiplier": 1.0}',
    ],
    ids=range(11),
)  # fmt: skip
def test_a_file_that_is_damaged_is_as_good_as_none(
    content: str, cache: Path, searches: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = noise_for(BUDGET, plan, "rdp")
    only_file(cache).write_bytes(content.encode() or b"\xff\xfe")
    forget(monkeypatch)
    assert noise_for(BUDGET, plan, "rdp") == right
    assert len(searches) == 2


def test_a_cache_that_cannot_be_written_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    right = noise_for(BUDGET, plan, "rdp")
    for where in (tmp_path / "file", Path(os.devnull)):
        monkeypatch.setenv("XDG_CACHE_HOME", str(where))
        forget(monkeypatch)
        assert noise_for(BUDGET, plan, "rdp") == right


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(remembered, "user_cache", nobody)
    forget(monkeypatch)
    assert noise_for(BUDGET, plan, "rdp") > 0


def test_other_versions_or_sources_do_not_share_entries(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noise_for(BUDGET, plan, "rdp")
    stated = remembered._answered_by()
    monkeypatch.setattr(remembered, "_answered_by", lambda: {**stated, "sources": "others"})
    noise_for(BUDGET, plan, "rdp")
    assert len(list(cache.iterdir())) == 2


def test_changed_sources_change_the_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = remembered._answered_by.__wrapped__()
    (tmp_path / "accountants.py").write_text("changed")
    monkeypatch.setattr(remembered, "__file__", str(tmp_path / "remembered.py"))
    assert remembered._answered_by.__wrapped__()["sources"] != before["sources"]


def _calibrate(folder: str, rounds: int) -> list[float]:
    os.environ["XDG_CACHE_HOME"] = folder
    found = []
    for _ in range(rounds):
        remembered._known.clear()
        found.append(noise_for(BUDGET, plan, "rdp"))
        for path in Path(folder).rglob("*.json"):
            path.unlink(missing_ok=True)  # so that all of them write, again and again
    return found


def test_many_who_write_at_once_do_no_harm(tmp_path: Path) -> None:
    right = noise_for(BUDGET, plan, "rdp")
    with multiprocessing.get_context("fork").Pool(3) as pool:
        found = pool.starmap(_calibrate, [(str(tmp_path), 5)] * 3)
    assert {z for each in found for z in each} == {right}
    assert not list(tmp_path.rglob("*.part"))


def test_no_file_is_made_for_what_has_a_closed_form(cache: Path) -> None:
    noise_for(BUDGET, lambda z: repeat(gaussian(z), 10))
    assert not cache.exists()


def test_a_plan_without_privacy_at_any_noise_is_refused_each_time(cache: Path) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="no amount of noise"):
            noise_for(Budget(1e-9, 1e-5), lambda z: repeat(poisson_gaussian(min(z, 1.0), 0.5), 100), "rdp")
    assert not cache.exists()


def test_what_is_returned_fits_the_budget(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        assert price(plan(noise_for(BUDGET, plan)), BUDGET.delta).epsilon <= BUDGET.epsilon
        forget(monkeypatch)


def test_the_orders_are_those_of_dp_accounting_and_ours() -> None:
    from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS

    low = {1 + 0.01 * 2 ** (k / 4) for k in range(1, 14)}
    high = {float(round(64 * 2 ** (k / 4))) for k in range(17)}
    assert tuple(sorted({float(order) for order in DEFAULT_RDP_ORDERS} | low | high)) == ORDERS
