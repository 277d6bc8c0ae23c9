"""Several processes come to what one comes to, bit for bit; and if one of them ends, all do, with one reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ranks_program import SETTINGS, network, rows, trained, vector
from test_ranks import by_rank


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What two processes come to, in every setting."""
    return by_rank("every setting", tmp_path_factory.mktemp("ranks"))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", SETTINGS)
def test_two_processes_come_to_what_one_comes_to_bit_for_bit(name: str, found: list[Any]) -> None:
    run = trained(name, shares=2, test=rows(40))
    theta, epsilon, history, stands = found[0][name]
    assert theta == vector(run.model) != vector(network())
    assert (epsilon, history) == (run.epsilon, run.history)
    assert stands == run.certificate["claim"]["stands"]
    assert found[1][name] == found[0][name]  # the others return what rank 0 returns


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", sorted(SETTINGS.keys() - {"dropout"}))
def test_a_batch_that_is_cut_is_one_that_is_not_but_for_rounding(name: str) -> None:
    whole, cut = (torch.tensor(vector(trained(name, shares=shares).model)) for shares in (1, 3))
    assert 0 < float((whole - cut).abs().max()) < 2e-6


def test_dropout_is_that_of_the_share(found: list[Any]) -> None:
    """Other draws than one share has, which are as good, and the same whoever makes them."""
    one, two = (vector(trained("dropout", shares=shares).model) for shares in (1, 2))
    assert two == found[0]["dropout"][0] != one


def test_estimators_fit_in_several_processes(found: list[Any]) -> None:
    assert found[0]["estimator"] == found[1]["estimator"]
    assert found[0]["estimator"][1] <= 8


def test_more_shares_than_units_are_none_of_anybody() -> None:
    assert trained("dp-sgd", batch_size=2, epochs=0.1, shares=50).epsilon <= 8


@pytest.mark.parametrize("shares", [0, 1.5, "two", -1])
def test_shares_are_a_whole_number(shares: Any) -> None:
    with pytest.raises(ValueError, match="shares is a whole number"):
        trained("dp-sgd", shares=shares)


def test_what_a_certificate_says_of_shares() -> None:
    run = trained("dp-sgd", shares=2)
    assert run.summary["shares"] == 2
    assert any("exact sums) was seen by nobody else" in each for each in run.certificate["assumptions"])
    assert "shares" not in trained("dp-sgd").summary


def test_a_run_goes_on_with_the_shares_it_has(tmp_path: Path) -> None:
    def stop(seen: Any) -> None:
        if seen.step == 4:
            raise KeyboardInterrupt

    whole = trained("adadp", shares=3)
    with pytest.raises(KeyboardInterrupt):
        trained("adadp", shares=3, out=tmp_path / "run", callbacks=[stop])
    with pytest.raises(ValueError, match="shares changed"):
        trained("adadp", shares=2, out=tmp_path / "run", callbacks=[lambda _: None], resume=True)
    resumed = trained("adadp", out=tmp_path / "run", callbacks=[lambda _: None], resume=True)
    assert vector(resumed.model) == vector(whole.model)


def test_what_differs_or_fails_ends_all_of_them_with_one_reason(tmp_path: Path) -> None:
    first, second = by_rank("a rank that differs", tmp_path)
    for what, where in {"shards": "rows of the data", "threshold": "method", "loss": "model or loss"}.items():
        assert first[what].startswith(f"rank 1 differs from rank 0 in {where}: ")
        assert second[what] == f"rank 0: {first[what]}"
    for what, why in {
        "one that fails": "there is no method 'no such method'",
        "one that fails later": "the model wrote to seen",
        "model": "its model is another than that of rank 0",
    }.items():
        assert second[what].startswith(why)
        assert first[what] == f"rank 1: {second[what]}"
    for what, why in {"refused by rank 0": "is a file", "a callback that fails": "halfway"}.items():
        assert why in first[what]
        assert first[what].removeprefix("ValueError: ") in second[what]
    assert first["interrupted"] == "KeyboardInterrupt: halfway"
    assert second["interrupted"].startswith("ValueError: rank 0: it ended with KeyboardInterrupt")
    assert first["interrupted at work"].startswith("RankLost: another process of this run has ended")
    assert second["interrupted at work"].startswith("KeyboardInterrupt")
    assert first["afterwards"] == second["afterwards"] == 12  # the group of the user is as it was
