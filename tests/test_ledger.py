"""The ledger across runs: what is admitted, what is counted, what is found out."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import sqlite3
import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sordino.clipping import Fixed
from sordino.data import Poisson
from sordino.federated import federate
from sordino.gate import Gate
from sordino.ledger import Account, BeyondCap, LedgerError, LedgerFile, ledger_of
from sordino.ledger import file as ledger_file
from sordino.ledger.chain import HeadFile
from sordino.ledger.pricing import Cap, Piece, Spent, best_order, curve_from, curve_of, two_hops
from sordino.privacy import compose, gaussian, poisson_gaussian, price, repeat
from sordino.privacy.events import sampled_without_replacement
from sordino.privacy.renyi import ORDERS, rdp_of
from sordino.runs.counting import Payer
from sordino.training import train

PLAN = repeat(poisson_gaussian(1.0, 0.01), 100)
cross_entropy = nn.CrossEntropyLoss(reduction="none")


@pytest.fixture
def book(tmp_path: Path) -> LedgerFile:
    return LedgerFile(tmp_path / "ledger.db")


def known(epsilon: float | None) -> float:
    assert epsilon is not None
    return epsilon


def trained(toy: tuple[Tensor, Tensor], **given: Any) -> Any:
    usual: dict[str, Any] = {
        "method": "dp-sgd",
        "epochs": 2,
        "batch_size": 10,
        "accountant": "rdp",
        "progress": False,
    }
    usual |= {"noise_multiplier": 1.0, "delta": 1e-3, "data_name": "toy"}
    return train(nn.Linear(10, 3), cross_entropy, toy, **usual | given)


# What is admitted -------------------------------------------------------------------------------------------


def test_plans_compose_and_do_not_add_up_as_epsilons(book: LedgerFile) -> None:
    for _ in range(10):
        book.reserve("patients", PLAN, delta=1e-6)
    (found,) = book.show("patients", delta=1e-6)
    alone = price(PLAN, 1e-6, "rdp").epsilon
    assert found.epsilon == pytest.approx(price(repeat(PLAN, 10), 1e-6, "rdp").epsilon, rel=1e-12)
    assert alone < known(found.epsilon) < 4 * alone


def test_a_plan_that_would_pass_the_cap_is_refused_and_leaves_nothing(book: LedgerFile) -> None:
    book.cap("patients", epsilon=2, delta=1e-6)
    book.reserve("patients", gaussian(4.0))
    before = book.verify()
    with pytest.raises(BeyondCap, match=r"the cap of 'patients' \(epsilon 2 at delta 1e-06\) has no room"):
        book.reserve("patients", gaussian(2.0))
    assert book.verify() == before
    book.reserve("others", gaussian(0.1))  # which have no cap


def test_what_a_cap_admits_is_what_its_one_order_allows(book: LedgerFile) -> None:
    book.cap("patients", epsilon=3, delta=1e-5)
    order = best_order(3, 1e-5)
    allowed = 3 - math.log1p(-1 / order) + math.log(1e-5 * order) / (order - 1)
    each = float(rdp_of(gaussian(8.0), (order,))[0])
    fitting = math.floor(allowed / each)
    assert 5 < fitting < 50
    for _ in range(fitting):
        book.reserve("patients", gaussian(8.0))
    with pytest.raises(BeyondCap):
        book.reserve("patients", gaussian(8.0))


def test_the_order_of_a_cap_stays_once_something_was_counted(book: LedgerFile) -> None:
    for epsilon in (1.0, 20.0):
        book.cap("patients", epsilon=epsilon, delta=1e-5)
    (found,) = book.show("patients")
    assert found.caps["patients"].cap.order == best_order(20.0, 1e-5), "nothing was seen so far"
    book.reserve("patients", gaussian(9.0))
    book.cap("patients", epsilon=1.0, delta=1e-5)
    (found,) = book.show("patients")
    cap = found.caps["patients"].cap
    assert cap.epsilon == 1
    assert cap.order == best_order(20.0, 1e-5) != best_order(1.0, 1e-5)
    assert any("was changed after runs had been counted" in note for note in found.notes)


def test_a_cap_never_asks_pld(book: LedgerFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> float:
        raise AssertionError("PLD was asked")

    monkeypatch.setattr("sordino.privacy.accountants.pld_epsilon", refuse)
    monkeypatch.setattr("sordino.privacy.loss_distribution._epsilon_on_a_grid", refuse)
    book.cap("patients", epsilon=9, delta=1e-5)
    book.reserve("patients", PLAN, delta=1e-5)
    assert known(book.show("patients")[0].epsilon) > 0


def test_a_cap_with_no_room_at_all_is_refused(book: LedgerFile) -> None:
    with pytest.raises(ValueError, match="has no room for anything"):
        book.cap("patients", epsilon=1e-4, delta=1e-9)


def test_without_privacy_nothing_fits_under_a_cap(book: LedgerFile) -> None:
    book.reserve("patients", gaussian(0.0))
    assert book.show("patients", delta=1e-5)[0].epsilon == math.inf
    book.cap("others", epsilon=1000, delta=1e-5)
    with pytest.raises(BeyondCap, match="inf"):
        book.reserve("others", gaussian(0.0))


def test_a_cap_that_is_passed_all_the_same_is_said(book: LedgerFile) -> None:
    """What is spent is spent: where data sets turn out to be one, or a cap is set too late, it is not hidden."""
    for name in ("a", "b"):
        book.cap(name, epsilon=1, delta=1e-5)
        book.reserve(name, gaussian(5.0), delta=1e-5)
    assert not any(found.passed for found in book.show())
    book.join("a", "b")
    (found,) = book.show()
    assert found.passed
    assert all(standing.passed and standing.epsilon > 1 for standing in found.caps.values())
    with pytest.raises(BeyondCap):
        book.reserve("b", gaussian(1e6))


@pytest.mark.parametrize(
    "wrong", [{"delta": 0.0}, {"delta": 5.0}, {"delta": math.nan}, {"run": ""}, {"run": 3}]
)
def test_a_reservation_with_nonsense_is_refused(book: LedgerFile, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"delta must lie|needs a name"):
        book.reserve("patients", PLAN, **wrong)
    assert not book.path.exists() or len(book.runs()) == 0


@pytest.mark.parametrize(
    "wrong", [{"epsilon": math.nan}, {"delta": 1.0}, {"aside": 1e-5}, {"aside": -1e-9}, {"unit": "house"}]
)
def test_a_cap_with_nonsense_is_refused(book: LedgerFile, wrong: dict[str, Any]) -> None:
    given: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5, **wrong}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match=r"must|is one of"):
            book.cap("patients", **given)


# What is known without a delta --------------------------------------------------------------------------------


def test_without_a_delta_no_epsilon_is_made_up(book: LedgerFile) -> None:
    book.reserve("patients", gaussian(4.0))
    (found,) = book.show("patients")
    assert found.epsilon is None
    assert any("give one (--delta)" in note for note in found.notes)
    assert book.show("patients", delta=1e-5)[0].epsilon == pytest.approx(
        price(gaussian(4.0), 1e-5, "rdp").epsilon
    )
    with pytest.raises(ValueError, match="delta must lie"):
        book.show("patients", delta=2.0)


def test_pure_pieces_add_up_without_a_delta(book: LedgerFile) -> None:
    book.add("patients", epsilon=0.5, what="a mean")
    assert book.show("patients")[0].epsilon == 0.5
    book.add("patients", epsilon=0.25, what="another")
    assert book.show("patients")[0].epsilon == 0.75
    assert book.show("patients", delta=1e-30)[0].epsilon == 0.75, "and no delta makes it more"
    book.add("patients", epsilon=0.25, delta=1e-9, what="a histogram")
    assert book.show("patients")[0].epsilon is None
    assert book.show("patients", delta=1e-9)[0].epsilon == 1.0
    assert math.isinf(known(book.show("patients", delta=1e-10)[0].epsilon))


# Units and relations ----------------------------------------------------------------------------------------


def test_user_level_runs_bound_examples_by_two_steps(book: LedgerFile) -> None:
    book.cap("patients", epsilon=4, delta=1e-5, unit="example")
    book.reserve("patients", gaussian(4.0), unit="user", delta=1e-5)
    (found,) = book.show("patients")
    # A user's sum moves from one value to another, by 2C at most: a Gaussian of half the multiplier.
    exact = price(gaussian(2.0), 1e-5, "rdp").epsilon
    assert exact <= known(found.epsilon) < 1.35 * exact
    book.reserve("patients", gaussian(100.0), unit="example", delta=1e-5)
    assert any("protect users" in note for note in book.show("patients")[0].notes)


def test_two_hops_bound_the_divergence_of_shifted_gaussians() -> None:
    curve = np.array(ORDERS) / (2 * 3.0**2)  # of a shift by 1 under noise 3
    shifted_by_two = np.array(ORDERS) * 2**2 / (2 * 3.0**2)
    found = two_hops(curve)
    assert (found >= shifted_by_two - 1e-12).all()
    assert np.isfinite(found[np.array(ORDERS) < 500]).all()
    assert math.isinf(found[-1])


def test_what_protects_examples_says_nothing_about_users(book: LedgerFile) -> None:
    book.cap("patients", epsilon=100, delta=1e-5, unit="user")
    with pytest.raises(BeyondCap, match="says nothing about users"):
        book.reserve("patients", gaussian(1e6), unit="example")
    book.reserve("patients", gaussian(2.0), unit="user")


def test_a_price_for_substitution_counts_for_zeroing_out_as_it_is(book: LedgerFile) -> None:
    fixed = repeat(sampled_without_replacement(4.0, 10, 1000), 50)
    book.reserve("patients", fixed, delta=1e-5)
    book.reserve("patients", PLAN, delta=1e-5)
    (found,) = book.show("patients", delta=1e-5)
    spent = Spent()
    spent.add("example", rdp_of(fixed) + rdp_of(PLAN))
    assert found.epsilon == pytest.approx(spent.epsilon("example", 1e-5), rel=1e-12)
    assert any("substitut" in note for note in found.notes)


# Releases of other tools ------------------------------------------------------------------------------------


def test_a_piece_of_another_tool_is_added(book: LedgerFile) -> None:
    book.reserve("patients", PLAN, delta=1e-5)
    before = known(book.show("patients", delta=1e-5)[0].epsilon)
    book.add("patients", epsilon=0.5, delta=1e-7, what="a histogram")
    (after,) = book.show("patients", delta=1e-5)
    assert before < known(after.epsilon) <= before + 0.5 + 0.01
    assert after.pieces == 1


def test_a_piece_with_a_delta_needs_one_that_was_kept_for_it(book: LedgerFile) -> None:
    book.cap("patients", epsilon=3, delta=1e-5)
    with pytest.raises(BeyondCap, match="--aside"):
        book.add("patients", epsilon=0.1, delta=1e-7, what="a histogram")
    book.add("patients", epsilon=0.1, what="a mean")
    book.cap("patients", epsilon=3, delta=1e-5, aside=1e-6)
    book.add("patients", epsilon=0.1, delta=9e-7, what="a histogram")
    with pytest.raises(BeyondCap):
        book.add("patients", epsilon=0.1, delta=9e-7, what="another one")


def test_delta_kept_aside_is_not_spent_on_runs_as_well() -> None:
    spent = Spent()
    spent.add("example", rdp_of(PLAN))
    order = best_order(3, 1e-5)
    whole, part = Cap(3, 1e-5, "example", order), Cap(3, 1e-5, "example", order, aside=9e-6)
    assert part.epsilon_of(spent) > whole.epsilon_of(spent)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_a_pure_piece_is_bounded_at_every_order(epsilon: float) -> None:
    """Randomised response attains it: its divergence is what the curve must not be below."""
    p = math.exp(epsilon) / (1 + math.exp(epsilon))
    for order, bound in zip(ORDERS, Piece(epsilon, 0.0).curve, strict=True):
        log_moments = np.logaddexp(
            order * math.log(p) + (1 - order) * math.log(1 - p),
            order * math.log(1 - p) + (1 - order) * math.log(p),
        )
        assert log_moments / (order - 1) <= bound + 1e-9


def test_a_piece_for_users_that_promises_nothing_for_examples_leaves_the_ledger_readable(
    book: LedgerFile,
) -> None:
    book.add("patients", epsilon=30, delta=1e-5, what="a histogram", unit="user")
    book.reserve("patients", gaussian(4.0), delta=1e-5)
    assert math.isinf(known(book.show("patients")[0].epsilon))


def test_what_is_out_already_is_counted_beyond_a_cap_too(book: LedgerFile) -> None:
    book.cap("patients", epsilon=1, delta=1e-5)
    with pytest.raises(BeyondCap):
        book.add("patients", epsilon=2, what="a mean")
    book.add("patients", epsilon=2, what="a mean", released=True)
    (found,) = book.show("patients")
    assert found.passed
    assert found.pieces == 1


# Names ------------------------------------------------------------------------------------------------------


def test_data_sets_declared_as_one_have_one_budget(book: LedgerFile) -> None:
    book.cap("a", epsilon=2, delta=1e-6)
    book.reserve("b", gaussian(4.0), delta=1e-6)
    book.reserve("c", gaussian(4.0), delta=1e-6)
    book.join("a", "b")
    book.join("b", "c")
    (found,) = book.show("c")
    assert found.names == ("a", "b", "c")
    assert found.runs == 2
    with pytest.raises(BeyondCap, match="cap of 'a'"):
        book.reserve("c", gaussian(2.0))


@pytest.mark.parametrize("name", ["", "  ", "x" * 201, "two\nlines", None, 3])
def test_a_data_set_needs_a_name(book: LedgerFile, name: Any) -> None:
    with pytest.raises(ValueError, match="needs a name"):
        book.reserve(name, gaussian(1.0))


@pytest.mark.parametrize(
    "name", [" patients", "patients ", "two  words", "pati\u0065\u0301nts", "\uff50atients"]
)
def test_a_name_has_one_way_to_be_written(book: LedgerFile, name: str) -> None:
    with pytest.raises(ValueError, match="two names that look alike would be two budgets"):
        book.reserve(name, gaussian(4.0))


@pytest.mark.parametrize("name", ["Patients-2024", "patients_2024", "PATIENTS 2024", "patients2024"])
def test_a_name_in_other_letters_opens_no_fresh_budget(book: LedgerFile, name: str) -> None:
    book.cap("patients-2024", epsilon=1, delta=1e-5)
    for ask in (
        lambda: book.reserve(name, gaussian(100.0)),
        lambda: book.add(name, epsilon=0.1, what="a mean"),
        lambda: book.cap(name, epsilon=9, delta=1e-5),
    ):
        with pytest.raises(LedgerError, match="the ledger knows 'patients-2024'"):
            ask()
    book.join("patients-2024", name)
    book.reserve(name, gaussian(100.0))  # as one, they have one budget
    book.reserve("patients-2025", gaussian(1.0))


def test_edited_rows_warn_and_open_no_fresh_budget(book: LedgerFile, toy: tuple[Tensor, Tensor]) -> None:
    trained(toy, ledger=book)
    with pytest.warns(UserWarning, match="the rows of 'toy' are not those"):
        trained((toy[0] + 1, toy[1]), ledger=book)
    assert book.show("toy")[0].runs == 2
    with pytest.warns(
        UserWarning, match=r"counted as 'toy' before, and now as 'other'.*ledger join toy other"
    ):
        trained(toy, ledger=book, data_name="other")


def test_the_fingerprint_of_rows_stays_in_the_ledger(
    book: LedgerFile, toy: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    run = trained(toy, ledger=book, out=tmp_path / "run")
    with sqlite3.connect(book.path) as connection:
        (body,) = connection.execute("SELECT body FROM entries WHERE kind = 'seen'").fetchone()
        (key,) = connection.execute("SELECT key FROM secret").fetchone()
    rows = json.loads(body)["rows"]
    written = [path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()]
    for text in (*written, json.dumps(book.export()).encode(), json.dumps(run.certificate).encode()):
        assert rows.encode() not in text
        assert key not in text
        assert key.hex().encode() not in text
    other = LedgerFile(tmp_path / "other.db")
    trained(toy, ledger=other)
    with sqlite3.connect(other.path) as connection:
        assert connection.execute("SELECT body FROM entries WHERE kind = 'seen'").fetchone() != (body,), (
            "keyed"
        )


# Accounts ---------------------------------------------------------------------------------------------------


def test_a_charge_is_idempotent_and_another_event_under_its_key_is_refused(book: LedgerFile) -> None:
    account = book.reserve("patients", repeat(gaussian(2.0), 3))
    for _ in range(2):
        account.spend("step:0", gaussian(2.0))
    assert account.spent.charges == 1
    with pytest.raises(ValueError, match="already charged with a different event"):
        account.spend("step:0", gaussian(3.0))


def test_nothing_is_paid_beyond_what_was_reserved(book: LedgerFile) -> None:
    account = book.reserve("patients", repeat(gaussian(2.0), 2))
    account.spend_all({"step:0": gaussian(2.0), "step:1": gaussian(2.0)})
    for key, event in (("step:2", gaussian(2.0)), ("other", gaussian(1.0))):
        with pytest.raises(LedgerError, match="more than it has reserved"):
            account.spend(key, event)
    assert account.spent.charges == 2


def test_what_is_reserved_counts_until_it_is_closed(book: LedgerFile) -> None:
    account = book.reserve("patients", repeat(gaussian(2.0), 4), delta=1e-5)
    account.spend("step:0", gaussian(2.0))
    (found,) = book.show("patients")
    assert found.epsilon == pytest.approx(price(repeat(gaussian(2.0), 4), 1e-5, "rdp").epsilon)
    assert found.spent == pytest.approx(price(gaussian(2.0), 1e-5, "rdp").epsilon)
    assert found.open == 1
    book.close(account.run)
    (found,) = book.show("patients")
    assert found.epsilon == found.spent == pytest.approx(price(gaussian(2.0), 1e-5, "rdp").epsilon)
    with pytest.raises(LedgerError, match="was closed"):
        account.spend("step:1", gaussian(2.0))
    account.spend("step:0", gaussian(2.0))  # a replay is no second release
    account.close()
    with pytest.raises(LedgerError, match="closed already"):
        book.close(account.run)


def test_the_same_run_is_reserved_once_and_never_with_another_plan(book: LedgerFile) -> None:
    one = book.reserve("patients", PLAN, run="r")
    assert book.reserve("patients", PLAN, run="r") == one
    assert len(book.runs()) == 1
    with pytest.raises(LedgerError, match="another plan"):
        book.reserve("patients", gaussian(1.0), run="r")
    with pytest.raises(LedgerError, match="another plan or another data set"):
        book.reserve("others", PLAN, run="r")


def test_parts_of_one_reservation_have_keys_of_their_own(book: LedgerFile) -> None:
    whole = book.reserve("patients", repeat(gaussian(2.0), 2), kind="grid")
    for name in ("candidate:0", "candidate:1"):
        whole.part(name).spend("step:0", gaussian(2.0))
    assert whole.spent.charges == 2
    with pytest.raises(LedgerError, match="more than it has reserved"):
        whole.part("candidate:2").spend("step:0", gaussian(2.0))


def test_a_run_is_never_closed_with_less_than_it_has_spent(book: LedgerFile) -> None:
    account = book.reserve("patients", repeat(gaussian(2.0), 4), delta=1e-5)
    account.spend("step:0", gaussian(2.0))
    with pytest.raises(LedgerError, match="has spent more than what it would be closed with"):
        account.close(gaussian(20.0))
    account.close(repeat(gaussian(2.0), 2))
    assert book.verify().length == 4


def test_a_selection_that_is_abandoned_costs_what_was_run_even_beyond_a_cap(book: LedgerFile) -> None:
    book.cap("patients", epsilon=1.2, delta=1e-5)
    whole, one = gaussian(5.0), gaussian(6.0)
    account = book.reserve("patients", whole, kind="selection", delta=1e-5)
    account.spend("selection", whole)
    account.close(repeat(one, 7))  # more than was reserved
    (found,) = book.show("patients")
    assert found.passed
    cap = found.caps["patients"].cap
    spent = Spent()
    spent.add("example", rdp_of(repeat(one, 7)))
    assert found.spent == found.epsilon == pytest.approx(cap.epsilon_of(spent))
    book.verify()
    other = book.reserve("others", whole, kind="selection", delta=1e-5)
    other.spend("selection", whole)
    other.close(one)  # or less
    assert book.show("others")[0].epsilon == pytest.approx(price(one, 1e-5, "rdp").epsilon)
    book.verify()


def test_a_selection_is_not_closed_by_hand(book: LedgerFile) -> None:
    account = book.reserve("patients", gaussian(5.0), kind="selection", delta=1e-5)
    account.spend("selection", gaussian(5.0))
    with pytest.raises(LedgerError, match="only where it was begun"):
        book.close(account.run)
    assert account.is_open
    account.close()
    with pytest.raises(LedgerError, match="closed already"):
        book.close(account.run)


def test_what_was_not_reserved_cannot_be_closed(book: LedgerFile) -> None:
    account = book.reserve("patients", PLAN, delta=1e-5)
    with pytest.raises(LedgerError, match="knows of no such run"):
        replace(account, run="nobody").close()
    assert book.show("patients")[0].runs == 1


def test_rows_seen_after_a_run_was_closed_do_not_hide_that(book: LedgerFile) -> None:
    account = book.reserve("patients", PLAN, delta=1e-5)
    account.close()
    account.saw(lambda _: "rows")
    account.close()
    book.verify()


def test_an_unknown_run_is_one_line(book: LedgerFile) -> None:
    book.reserve("patients", PLAN)
    with pytest.raises(LedgerError, match="knows of no run"):
        book.close("nobody")


def test_a_gate_of_ones_own_pays_before_it_releases(book: LedgerFile, toy: tuple[Tensor, Tensor]) -> None:
    def gate(account: Account) -> Gate:
        return Gate(
            nn.Linear(10, 3), cross_entropy, toy, clip=Fixed(1.0), noise_multiplier=1.0, sampling=Poisson(0.5),
            ledger=account.as_ledger(),
        )  # fmt: skip

    account = book.reserve("toy", repeat(poisson_gaussian(1.0, 0.5), 2), delta=1e-3)
    release = gate(account)
    release()
    release()
    assert account.spent.charges == 2
    with pytest.raises(LedgerError, match="more than it has reserved"):
        release()
    assert release.step == 2, "nothing was released"


# Runs -------------------------------------------------------------------------------------------------------


def test_a_run_is_counted_with_all_its_events(
    book: LedgerFile, toy: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    run = trained(toy, ledger=book, out=tmp_path / "run")
    (record,) = book.runs()
    assert record.state == "closed"
    assert record.kind == "run"
    assert record.unit == "example"
    assert price(record.event, 1e-3, "rdp").epsilon == pytest.approx(run.epsilon, rel=1e-12)
    head = book.verify()
    where = {"file": book.path.name, "capped": False}
    assert run.summary["ledger"] == {"data": "toy", "run": record.run, **where, **head.to_json()}
    assert book.holds(head.length, head.digest)
    assert not book.holds(head.length, "0" * 64)
    assert not (tmp_path / "run" / ".account.json").exists()


@pytest.mark.parametrize("method", ["dp-sgd", "adadp", "oso", "dp-ftrl", "auto", "sgd"])
def test_every_method_pays_what_it_spends(book: LedgerFile, toy: tuple[Tensor, Tensor], method: str) -> None:
    private: dict[str, Any] = {} if method != "sgd" else {"noise_multiplier": None, "delta": None}
    run = trained(toy, ledger=book, method=method, **private)
    (record,) = book.runs()
    assert record.state == "closed"
    if method != "sgd":
        assert record.epsilon == pytest.approx(run.epsilon, rel=1e-9)
    else:
        assert math.isinf(known(book.show("toy", delta=1e-5)[0].epsilon))


@pytest.mark.filterwarnings("ignore:the noise outweighs")
@pytest.mark.parametrize("private", [True, False])
def test_a_federation_is_counted_by_its_users(
    book: LedgerFile, toy: tuple[Tensor, Tensor], private: bool
) -> None:
    given: dict[str, Any] = {"noise_multiplier": 1.0, "delta": 1e-2} if private else {}
    run = federate(
        nn.Linear(10, 3), cross_entropy, toy, rounds=3, clients=6, per_round=3, progress=False, workers=1,
        accountant="rdp", data_name="toy", ledger=book, **given,
    )  # fmt: skip
    (record,) = book.runs()
    assert (record.kind, record.unit, record.state) == ("federation", "user", "closed")
    assert run.summary["ledger"]["run"] == record.run
    assert (record.epsilon is None) == (not private)
    if private:
        assert record.epsilon == pytest.approx(run.epsilon, rel=1e-9)


def test_a_run_that_does_not_fit_is_told_with_what_it_would(
    book: LedgerFile, toy: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    book.cap("toy", epsilon=2, delta=1e-3)
    with pytest.raises(LedgerError, match=r"no room for this: nothing is spent, .* it would fit") as refused:
        trained(toy, ledger=book, out=tmp_path / "run", noise_multiplier=None, delta=None, budget=(8, 1e-3))
    fitting = float(str(refused.value).split("with epsilon ")[-1].split()[0])
    assert 1 < fitting < 2
    with pytest.raises(LedgerError):
        trained(toy, ledger=book, noise_multiplier=None, delta=None, budget=(fitting + 0.1, 1e-3))
    trained(toy, ledger=book, noise_multiplier=None, delta=None, budget=(fitting, 1e-3))
    with pytest.raises(LedgerError, match=r"it would fit|nothing left"):
        trained(toy, ledger=book)


def test_a_run_without_a_name_for_its_data_is_refused(book: LedgerFile, toy: tuple[Tensor, Tensor]) -> None:
    with pytest.raises(ValueError, match="data_name"):
        train(
            nn.Linear(10, 3), cross_entropy, toy, method="dp-sgd", epochs=1, noise_multiplier=1, delta=1e-3,
            ledger=book,
        )  # fmt: skip


def test_the_environment_names_a_ledger_and_false_is_none(
    book: LedgerFile, toy: tuple[Tensor, Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert trained(toy).summary["ledger"] is None
    monkeypatch.setenv("SORDINO_LEDGER", str(book.path))
    assert trained(toy, ledger=False).summary["ledger"] is None
    assert not book.path.exists()
    assert trained(toy).summary["ledger"]["length"] == book.verify().length
    with pytest.raises(ValueError, match="ledger is the name of a file"):
        ledger_of(3)


class _Stopped(Exception):
    pass


def stopping_at(step: int) -> Callable[[Any], None]:
    def stop(seen: Any) -> None:
        if seen.step == step:
            raise _Stopped

    return stop


def test_a_run_that_can_be_resumed_stays_reserved_and_goes_on_under_its_name(
    book: LedgerFile, toy: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    given: dict[str, Any] = {"ledger": book, "out": tmp_path / "run"}
    with pytest.raises(_Stopped):
        trained(toy, **given, callbacks=[stopping_at(5)])
    (record,) = book.runs()
    assert record.state == "open"
    assert 5 <= record.charges < 12
    with pytest.raises(ValueError, match="counted in a ledger: give it again"):
        trained(toy, out=tmp_path / "run", resume=True)
    with pytest.raises(ValueError, match="counted in another ledger"):
        trained(toy, out=tmp_path / "run", resume=True, ledger=tmp_path / "another.db")
    trained(toy, **given, resume=True)
    (after,) = book.runs()
    assert after.run == record.run
    assert after.state == "closed"
    assert after.charges == 12
    book.verify()


def test_a_run_that_cannot_be_resumed_is_closed_with_what_it_spent(
    book: LedgerFile, toy: tuple[Tensor, Tensor]
) -> None:
    with pytest.raises(_Stopped):
        trained(toy, ledger=book, callbacks=[stopping_at(5)])
    (record,) = book.runs()
    assert record.state == "closed"
    assert 5 <= record.charges < 12


def test_a_run_refused_before_its_first_release_costs_nothing(
    book: LedgerFile, toy: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="held-out rows"):
        trained(toy, ledger=book, out=tmp_path / "run", test=(torch.zeros(4, 3), torch.zeros(4).long()))
    (found,) = book.show("toy", delta=1e-3)
    assert found.epsilon == 0
    assert found.open == 0


def test_a_run_closed_by_hand_releases_nothing_more(
    book: LedgerFile, toy: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    with pytest.raises(_Stopped):
        trained(toy, ledger=book, out=tmp_path / "run", callbacks=[stopping_at(5)])
    book.close(book.runs()[0].run)
    with pytest.raises(LedgerError, match="was closed in the ledger"):
        trained(toy, ledger=book, out=tmp_path / "run", resume=True)


def test_a_run_begun_without_a_ledger_is_counted_whole_when_it_is_resumed_with_one(
    book: LedgerFile, toy: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    with pytest.raises(_Stopped):
        trained(toy, out=tmp_path / "run", callbacks=[stopping_at(7)])
    trained(toy, out=tmp_path / "run", resume=True, ledger=book)
    assert book.runs()[0].charges == 12


def test_an_account_of_somebody_else_pays_and_stays_open(
    book: LedgerFile, toy: tuple[Tensor, Tensor]
) -> None:
    plan = repeat(poisson_gaussian(1.0, 10 / 60), 24)
    whole = book.reserve("toy", plan, kind="grid", delta=1e-3)
    for number in range(2):
        trained(toy, ledger=whole.part(f"candidate:{number}"))
    assert whole.is_open
    assert whole.spent.charges == 24
    with pytest.raises(LedgerError, match="more than it has reserved"):
        trained(toy, ledger=whole.part("candidate:2"))


def test_two_runs_on_one_account_are_two_releases(book: LedgerFile, toy: tuple[Tensor, Tensor]) -> None:
    """Their steps have the same numbers, and are not the same."""
    whole = book.reserve("toy", repeat(poisson_gaussian(1.0, 10 / 60), 24), kind="grid", delta=1e-3)
    for charges in (12, 24):
        trained(toy, ledger=whole)
        assert whole.spent.charges == charges
    with pytest.raises(LedgerError, match="more than it has reserved"):
        trained(toy, ledger=whole)


def test_a_run_on_an_account_that_is_resumed_is_charged_once(
    book: LedgerFile, toy: tuple[Tensor, Tensor], tmp_path: Path
) -> None:
    whole = book.reserve("toy", repeat(poisson_gaussian(1.0, 10 / 60), 12), kind="grid", delta=1e-3)
    with pytest.raises(_Stopped):
        trained(toy, ledger=whole, out=tmp_path / "run", callbacks=[stopping_at(7)])
    with pytest.raises(ValueError, match="counted in a ledger: give it again"):
        trained(toy, out=tmp_path / "run", resume=True)
    other = book.reserve("toy", repeat(poisson_gaussian(1.0, 10 / 60), 12), kind="grid", delta=1e-3)
    with pytest.raises(ValueError, match="counted elsewhere"):
        trained(toy, ledger=other, out=tmp_path / "run", resume=True)
    trained(toy, ledger=whole, out=tmp_path / "run", resume=True)
    assert whole.spent.charges == 12
    assert not (tmp_path / "run" / ".account.json").exists()


def test_an_account_pays_for_its_own_data_and_unit_alone(
    book: LedgerFile, toy: tuple[Tensor, Tensor]
) -> None:
    plan = repeat(poisson_gaussian(1.0, 10 / 60), 12)
    with pytest.raises(LedgerError, match="cannot pay for a run on 'toy'"):
        trained(toy, ledger=book.reserve("other", plan, delta=1e-3))
    with pytest.raises(
        LedgerError, match="protects one user, and cannot pay for a run that protects one example"
    ):
        trained(toy, ledger=book.reserve("toy", plan, unit="user", delta=1e-3))
    assert not any(record.charges for record in book.runs())


def test_a_known_seed_and_what_is_no_guarantee_are_said_beside_the_number(
    book: LedgerFile, toy: tuple[Tensor, Tensor]
) -> None:
    trained(toy, ledger=book, seed=1)
    trained(toy, ledger=book, sampling="shuffled-as-poisson")
    trained(toy, ledger=book)
    notes = " ".join(book.show("toy")[0].notes)
    assert "1 of 3 runs says: The run used a known seed" in notes
    assert notes.count("1 of 3 runs says:") == 2
    assert [bool(record.caveat) for record in book.runs()] == [True, True, False]


def test_a_run_pays_ahead_and_never_behind(book: LedgerFile, toy: tuple[Tensor, Tensor]) -> None:
    released = []

    def behind(seen: Any) -> None:
        (record,) = book.runs()
        released.append(record.charges - seen.step)

    trained(toy, ledger=book, epochs=20, callbacks=[behind])  # 120 steps
    assert min(released) >= 0
    assert max(released) <= math.ceil(120 / 20)
    with book._file.reading() as entries:
        assert len([entry for entry in entries.all() if entry.kind == "spend"]) <= 20


# What is found out ------------------------------------------------------------------------------------------


def filled(book: LedgerFile) -> LedgerFile:
    book.cap("patients", epsilon=20, delta=1e-5)
    for number in range(4):
        account = book.reserve("patients", repeat(gaussian(9.0 + number), 3), delta=1e-5)
        account.spend("step:0", gaussian(9.0 + number))
        account.spend("step:1", gaussian(9.0 + number))
        if number:
            account.close()
    book.add("patients", epsilon=0.1, what="a mean")
    assert book.verify().length == 20 - 2
    return book


def tampered(book: LedgerFile, *statements: str) -> None:
    with sqlite3.connect(book.path) as connection:
        for trigger in ("never_changed", "never_removed"):
            connection.execute(f"DROP TRIGGER {trigger}")
        for statement in statements:
            connection.execute(statement)


_EDITS = {
    "a number": "UPDATE entries SET body = replace(body, '9.0', '99.0') WHERE number = 3",
    "a name": "UPDATE entries SET data = 'others' WHERE number = 3",
    "a run": "UPDATE entries SET run = 'others' WHERE number = 4",
    "a kind": "UPDATE entries SET kind = 'seen' WHERE kind = 'outside'",
    "a price": "UPDATE curves SET curve = zeroblob(length(curve))",
    "a cap": "UPDATE entries SET body = replace(body, '20', '30') WHERE kind = 'cap'",
    "the last entry": "UPDATE entries SET body = replace(body, '0.1', '0.01') WHERE number = 18",
    "the last hash": "UPDATE entries SET digest = zeroblob(32) WHERE number = 18",
    "the key": "UPDATE secret SET key = zeroblob(32)",
    "no key": "DELETE FROM secret",
    "one removed": "DELETE FROM entries WHERE number = 5",
    "the first removed": "DELETE FROM entries WHERE number = 1",
    "the end cut off": "DELETE FROM entries WHERE number = 18",
    "much cut off": "DELETE FROM entries WHERE number > 3",
    "all cut off": "DELETE FROM entries",
    "a price removed": "DELETE FROM curves",
    "no text": "UPDATE entries SET body = x'00' WHERE number = 3",
    "a link": "UPDATE entries SET since = zeroblob(32) WHERE number = 4",
    "a payment": "UPDATE entries SET body = replace(body, '9.0', '99.0') WHERE number = 4",
    "not JSON": "UPDATE entries SET body = 'nothing' WHERE number = 3",
    "something added": "INSERT INTO entries SELECT 19, kind, data, run, body, price, since, digest FROM entries "
    "LIMIT 1",
}


@pytest.mark.parametrize("edit", _EDITS)
def test_verify_finds_every_edit(book: LedgerFile, edit: str) -> None:
    filled(book)
    tampered(book, _EDITS[edit])
    with pytest.raises(LedgerError):
        book.verify()


@pytest.mark.parametrize("edit", sorted(set(_EDITS) - {"the key", "no key"}))
def test_no_number_is_shown_of_a_ledger_that_was_edited(book: LedgerFile, edit: str) -> None:
    filled(book)
    tampered(book, _EDITS[edit])
    for ask in (book.show, book.runs):
        with pytest.raises(LedgerError, match=r"is not what was written|tampered"):
            ask()


# Of the entry of a payment a reservation makes nothing: what is reserved counts, whatever is paid.
@pytest.mark.parametrize("edit", sorted(set(_EDITS) - {"the key", "no key", "a payment", "a run", "a link"}))
def test_nothing_is_admitted_by_a_ledger_that_was_edited(book: LedgerFile, edit: str) -> None:
    filled(book)
    tampered(book, _EDITS[edit])
    with pytest.raises(LedgerError, match=r"is not what was written|tampered"):
        book.reserve("patients", gaussian(1000.0))


def test_a_payment_that_is_left_out_of_the_short_chain_is_still_in_the_long_one(book: LedgerFile) -> None:
    filled(book)
    tampered(book, "UPDATE entries SET kind = 'spend' WHERE number = 2")  # no cap any more
    with pytest.raises(LedgerError):
        book.reserve("patients", gaussian(0.5))
    with pytest.raises(LedgerError):
        book.verify()


def test_the_last_entry_before_a_payment_cannot_be_left_out(book: LedgerFile) -> None:
    filled(book)
    account = book.reserve("patients", gaussian(6.0), delta=1e-5)
    account.spend("step:0", gaussian(6.0))
    with book._file.reading() as entries:
        *_, earlier, _, payment = entries.all()
    tampered(
        book,
        f"UPDATE entries SET kind = 'spend' WHERE number = {payment.number - 1}",
        f"UPDATE entries SET since = x'{earlier.digest.hex()}' WHERE number = {payment.number}",
    )
    with pytest.raises(LedgerError, match="is not what was written"):
        book.reserve("patients", gaussian(1000.0))


def test_an_error_that_is_kept_does_not_keep_the_lock(book: LedgerFile) -> None:
    """A notebook remembers the last traceback, and with it every question that was not read to its end."""
    filled(book)
    tampered(book, _EDITS["a number"])
    kept = []
    for ask in (book.show, book.verify, lambda: book.cap("patients", epsilon=1, delta=1e-5)):
        try:
            ask()
        except LedgerError as error:
            kept.append(error)
    with closing(sqlite3.connect(book.path, timeout=0.1)) as connection:
        connection.execute("BEGIN EXCLUSIVE")
    assert len(kept) == 3


def test_verify_finds_entries_that_changed_places(book: LedgerFile) -> None:
    filled(book)
    tampered(
        book,
        "UPDATE entries SET number = 100 WHERE number = 4",
        "UPDATE entries SET number = 4 WHERE number = 5",
        "UPDATE entries SET number = 5 WHERE number = 100",
    )
    with pytest.raises(LedgerError, match="not where it was written"):
        book.verify()


def rehashed(book: LedgerFile) -> None:
    """What somebody does who knows how the chain is made, but cannot reach the head outside."""
    with sqlite3.connect(book.path) as connection:
        before = since = bytes(32)
        with book._file.reading() as entries:
            everything = list(entries.all())
        for entry in everything:
            before = replace(entry, since=since).digest_after(before)
            update = "UPDATE entries SET digest = ?, since = ? WHERE number = ?"
            connection.execute(update, (before, since, entry.number))
            since = since if entry.kind == "spend" else before


@pytest.mark.parametrize("edit", ["a number", "a payment"])
def test_a_chain_made_anew_has_another_head_than_the_one_outside(book: LedgerFile, edit: str) -> None:
    filled(book)
    tampered(book, _EDITS[edit])
    rehashed(book)
    with pytest.raises(LedgerError, match="its last entry is not the one"):
        book.verify()
    with pytest.raises(LedgerError, match="tampered"):
        book.reserve("patients", gaussian(100.0))


def test_whoever_mends_the_head_as_well_is_found_by_what_entries_mean_and_by_certificates(
    book: LedgerFile, toy: tuple[Tensor, Tensor]
) -> None:
    filled(book)
    stated = trained(toy, ledger=book).summary["ledger"]
    tampered(book, _EDITS["a number"])
    rehashed(book)
    with book._file.reading() as entries:
        book._file.head_file.settle(entries.head())
    with pytest.raises(LedgerError, match="has not the price of its events"):
        book.verify()
    assert not book.holds(stated["length"], stated["head"])


def test_entries_are_not_changed_by_accident(book: LedgerFile) -> None:
    filled(book)
    with sqlite3.connect(book.path) as connection:
        for statement in (_EDITS["a number"], _EDITS["one removed"]):
            with pytest.raises(sqlite3.IntegrityError, match="entries are never"):
                connection.execute(statement)


def test_a_missing_head_is_said_and_nothing_is_counted(book: LedgerFile) -> None:
    filled(book)
    book._file.head_file.path.unlink()
    with pytest.raises(LedgerError, match="is missing"):
        book.verify()
    with pytest.raises(LedgerError, match="is missing"):
        book.reserve("patients", gaussian(100.0))


def test_a_missing_ledger_is_not_begun_anew_beside_its_head(book: LedgerFile) -> None:
    filled(book)
    book.path.unlink()
    with pytest.raises(LedgerError, match="put the ledger back"):
        book.reserve("patients", gaussian(100.0))


def test_killed_between_head_and_commit_it_is_still_right(
    book: LedgerFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(book)
    length = book.verify().length

    class Killed(BaseException):
        pass

    def die(*_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(book._file.head_file, "settle", die)  # after the commit
        with pytest.raises(Killed):
            book.add("patients", epsilon=0.1, what="another")
    assert book.verify().length == length + 1
    with monkeypatch.context() as patch:
        announced = book._file.head_file.announce

        def announce_and_die(*heads: Any) -> None:
            announced(*heads)
            raise Killed

        patch.setattr(book._file.head_file, "announce", announce_and_die)  # before it
        with pytest.raises(Killed):
            book.add("patients", epsilon=0.1, what="a third")
    assert book.verify().length == length + 1
    book.add("patients", epsilon=0.1, what="a fourth")
    assert book.verify().length == length + 2


def test_a_head_that_cannot_be_settled_was_announced(
    book: LedgerFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full after the commit: what was counted is counted, and nobody is told otherwise."""
    filled(book)
    length = book.verify().length
    write = HeadFile._write

    def full(head: HeadFile, content: dict[str, Any]) -> None:
        if "next" not in content:
            raise OSError(28, "No space left on device")
        write(head, content)

    with monkeypatch.context() as patch:
        patch.setattr(HeadFile, "_write", full)
        book.add("patients", epsilon=0.1, what="another")
    assert book.verify().length == length + 1
    book.add("patients", epsilon=0.1, what="a third")
    assert book.verify().length == length + 2


def test_a_head_that_cannot_be_announced_counts_nothing(
    book: LedgerFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(book)
    before = book.verify()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(HeadFile, "_write", full)
        with pytest.raises(LedgerError, match="No space left on device"):
            book.add("patients", epsilon=0.1, what="another")
    assert book.verify() == before


def test_a_ledger_keeps_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it is called by: from another folder, through a link, or by a name that SQLite takes for memory."""
    monkeypatch.chdir(tmp_path)
    book = LedgerFile(":memory:")
    book.reserve("patients", gaussian(4.0), delta=1e-5)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    book.reserve("patients", gaussian(4.0), delta=1e-5)
    link = tmp_path / "elsewhere" / "link.db"
    link.symlink_to(tmp_path / ":memory:")
    LedgerFile(link).reserve("patients", gaussian(4.0), delta=1e-5)
    assert len(LedgerFile(tmp_path / ":memory:").runs()) == 3
    assert not list((tmp_path / "elsewhere").glob("*.head"))


# Files that are no ledgers, disks that are full -----------------------------------------------------------------


def test_a_newer_ledger_is_left_alone(book: LedgerFile) -> None:
    filled(book)
    with sqlite3.connect(book.path) as connection:
        connection.execute("PRAGMA user_version = 99")
    for ask in (book.verify, book.show, lambda: book.reserve("patients", gaussian(100.0))):
        with pytest.raises(LedgerError, match="newer version of Sordino"):
            ask()


def test_another_file_is_not_a_ledger(book: LedgerFile) -> None:
    book.path.write_bytes(b"a shopping list, and more than a hundred bytes of it" * 40)
    with pytest.raises(LedgerError, match="is not a ledger"):
        book.reserve("patients", gaussian(1.0))
    book.path.unlink()
    with sqlite3.connect(book.path) as connection:
        connection.execute("CREATE TABLE other (x)")
    with pytest.raises(LedgerError, match="is not a ledger"):
        book.show()


def test_a_ledger_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="there is no ledger"):
        LedgerFile(tmp_path / "none.db").show()


def test_a_full_disk_loses_nothing(book: LedgerFile, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(book)
    before = book.verify()
    connect = book._file._connect

    def small() -> sqlite3.Connection:
        connection = connect()
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
        return connection

    with monkeypatch.context() as patch:
        patch.setattr(book._file, "_connect", small)
        with pytest.raises(LedgerError, match="the disk is full"):
            book.add("patients", epsilon=0.001, what="x" * 50_000)
    assert book.verify() == before


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser writes everywhere")
def test_a_ledger_that_may_not_be_written_is_one_line(book: LedgerFile) -> None:
    filled(book)
    book.path.chmod(0o400)
    with pytest.raises(LedgerError, match="make it, and its folder, writable"):
        book.reserve("patients", gaussian(100.0))


def test_a_read_only_ledger_is_one_line(book: LedgerFile, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(book)

    def read_only() -> sqlite3.Connection:
        return sqlite3.connect(f"file:{book.path}?mode=ro", uri=True, isolation_level=None)

    monkeypatch.setattr(book._file, "_connect", read_only)
    with pytest.raises(LedgerError, match="make it, and its folder, writable"):
        book.reserve("patients", gaussian(100.0))
    assert book.show("patients")


def test_a_network_file_system_is_refused(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"server:/x {tmp_path} nfs4 rw 0 0\n/dev/sda / ext4 rw 0 0\n")
    with pytest.raises(LedgerError, match=r"on a network file system \(nfs4\)"):
        ledger_file._refuse_network(tmp_path / "ledger.db", mounts)
    mounts.write_text(f"/dev/sdb {tmp_path} ext4 rw 0 0\nserver:/x / nfs rw 0 0\n")
    ledger_file._refuse_network(tmp_path / "ledger.db", mounts)
    ledger_file._refuse_network(tmp_path / "ledger.db", tmp_path / "none")


def test_the_ledger_is_for_its_owner_alone(book: LedgerFile) -> None:
    filled(book)
    assert book.path.stat().st_mode & 0o077 == 0


# Many at once -----------------------------------------------------------------------------------------------


def _reserve_one(path: Path, start: Any, results: Any) -> None:
    start.wait()
    try:
        LedgerFile(path).reserve("patients", PLAN, delta=1e-5)
    except LedgerError as refused:  # beyond the cap, or whatever should not happen
        results.put(str(refused))
    else:
        results.put(None)


def cap_for(count: int) -> float:
    """A cap that admits so many of our plan, and not one more."""
    epsilon = 1.0
    while True:
        order = best_order(epsilon, 1e-5)
        allowed = Cap(epsilon, 1e-5, "example", order).allowed
        fitting = math.floor(allowed / float(rdp_of(PLAN, (order,))[0]))
        if fitting == count:
            return epsilon
        epsilon += 0.01


def test_of_sixteen_processes_at_once_exactly_as_many_are_admitted_as_fit(book: LedgerFile) -> None:
    book.cap("patients", epsilon=cap_for(6), delta=1e-5)
    context = multiprocessing.get_context("fork")
    start, results = context.Event(), context.Queue()
    workers = [context.Process(target=_reserve_one, args=(book.path, start, results)) for _ in range(16)]
    for worker in workers:
        worker.start()
    start.set()
    said = [results.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join()
    assert said.count(None) == 6
    assert all("has no room for this: 6 runs have spent or reserved" in line for line in said if line)
    book.verify()
    (found,) = book.show("patients")
    assert found.runs == 6
    assert known(found.epsilon) <= found.caps["patients"].cap.epsilon
    assert not found.passed


def _begin(path: Path, start: Any) -> None:
    start.wait()
    LedgerFile(path).reserve("patients", gaussian(100.0))


def test_eight_processes_may_begin_one_ledger(book: LedgerFile) -> None:
    context = multiprocessing.get_context("fork")
    start = context.Event()
    workers = [context.Process(target=_begin, args=(book.path, start)) for _ in range(8)]
    for worker in workers:
        worker.start()
    start.set()
    for worker in workers:
        worker.join()
    book.verify()
    assert len(book.runs()) == 8


# Prices -----------------------------------------------------------------------------------------------------


def test_a_curve_is_kept_to_the_last_bit() -> None:
    event = compose([PLAN, gaussian(3.0), repeat(gaussian(0.0), 1)])
    assert np.array_equal(curve_from(curve_of(PLAN)), rdp_of(PLAN))
    assert np.isinf(curve_from(curve_of(event))).all()
    for wrong in (b"12345678", np.full(len(ORDERS), np.nan).tobytes(), np.full(len(ORDERS), -1.0).tobytes()):
        with pytest.raises(ValueError, match="tampered"):
            curve_from(wrong)


def test_a_payer_pays_a_twentieth_ahead() -> None:
    class Noted:
        def __init__(self) -> None:
            self.paid: list[list[str]] = []

        def spend_all(self, charges: dict[str, Any]) -> None:
            self.paid.append(sorted(charges))

    class Forty:
        steps = 40

        def charge(self, step: int) -> tuple[str, Any]:
            return f"epoch:{step // 4}", gaussian(1.0)

    noted = Noted()
    pay = Payer(noted, Forty())  # type: ignore[arg-type]
    for step in (0, 1, 2, 3, 9):
        pay(step)
    assert noted.paid == [["epoch:0"], ["epoch:0"], ["epoch:1", "epoch:2"]]


def test_ten_thousand_runs_are_added_and_not_priced_again(
    book: LedgerFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(book)
    calls: list[Any] = []

    def noted(event: Any) -> bytes:
        calls.append(event)
        return curve_of(event)

    monkeypatch.setattr("sordino.ledger.statement.curve_of", noted)
    book.show("patients")
    assert len(calls) == 1, "only the one that is open, of what it has spent so far"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        book.reserve("patients", gaussian(50.0))
