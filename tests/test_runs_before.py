"""What is released besides the training: part of the noise, of every epsilon, of ledger and certificate."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sordino as sd
from conftest import cross_entropy
from sordino.data.table import Table
from sordino.ledger import LedgerError, LedgerFile
from sordino.privacy import approximate, compose, event_from_json, event_to_json, gaussian, price
from sordino.privacy.events import parted
from sordino.runs.before import Before
from sordino.runs.conductor import COUNTS
from sordino.verifying import Refuted

Rows = tuple[Tensor, Tensor]
BOUNDS = approximate(0.5, 1e-6)


@pytest.fixture
def rows() -> Rows:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(200, 4, generator=generator)
    return inputs, (inputs[:, 0] > 0).long()


def trained(rows: Rows, **more: Any) -> sd.Run:
    given: dict[str, Any] = {
        "budget": (3.0, 1e-3),
        "epochs": 1,
        "batch_size": 50,
        "progress": False,
        "accountant": "rdp",
    }
    given |= {"method": "dp-sgd"}
    return sd.train(nn.Linear(4, 2), cross_entropy, rows, **given | more)


def test_the_budget_includes_what_came_before_and_every_epsilon_counts_it(rows: Rows) -> None:
    before = Before(BOUNDS, "Bounds of two columns.")
    run, plain = trained(rows, before=before), trained(rows)
    assert 2.99 < run.epsilon <= 3.0
    assert run.summary["noise_multiplier"] > plain.summary["noise_multiplier"]
    assert run.history[0]["epsilon"] > 0.5
    assert run.history[-1]["epsilon"] == run.epsilon
    assert run.summary["before"] == before.to_json()
    assert run.certificate["events"]["events"][0] == {"type": "approximate", "epsilon": 0.5, "delta": 1e-6}
    assert run.certificate["post_processing"][0] == "Bounds of two columns."
    assert sd.verify(run.certificate).stands
    assert "before" not in plain.summary
    assert "OpenDP" not in plain.certificate["implementation"]["noise"]


def test_a_charge_that_is_left_out_of_a_certificate_is_found(rows: Rows) -> None:
    from sordino.privacy.sealing import sealed

    document = trained(rows, before=Before(BOUNDS, "Bounds.")).certificate
    cheaper = {**document, "events": {**document["events"], "events": document["events"]["events"][1:]}}
    cheaper = {name: value for name, value in cheaper.items() if name not in ("digest", "signature")}
    with pytest.raises(Refuted, match="its events cost"):
        sd.verify(sealed(cheaper, None))


@pytest.mark.parametrize("accountant", ["auto", "rdp", "pld"])
def test_a_noise_multiplier_is_priced_with_all_of_it(rows: Rows, accountant: str) -> None:
    besides: dict[str, Any] = {"before": Before(BOUNDS, "Bounds."), "metric_epsilon": 0.25, "test": rows}
    run = trained(rows, budget=None, noise_multiplier=2.0, delta=1e-3, accountant=accountant, **besides)
    event = event_from_json(run.certificate["events"])
    rest, pieces = parted(event)
    assert [(piece.epsilon, count) for piece, count in pieces] == [(0.5, 1), (0.25, 1)]
    assert run.epsilon == price(event, 1e-3, run.summary["accountant"]).epsilon
    assert run.epsilon > price(rest, 1e-3, accountant).epsilon + 0.3


def test_what_leaves_nothing_to_train_with_is_refused(rows: Rows) -> None:
    with pytest.raises(ValueError, match=r"takes epsilon 3\.\d+ of 3 .* leaves nothing"):
        trained(rows, before=Before(approximate(3.5), "Bounds."))
    with pytest.raises(ValueError, match="leaves nothing"):
        trained(rows, before=Before(approximate(0.1, 1e-3), "Bounds."))
    with pytest.raises(ValueError, match="need a private run"):
        trained(rows, method="sgd", budget=None, before=Before(BOUNDS, "Bounds."))
    with pytest.raises(ValueError, match="need a private run"):
        trained(rows, budget=None, noise_multiplier=0.0, metric_epsilon=1.0, test=rows)
    with pytest.raises(ValueError, match="give those, as test"):
        trained(rows, metric_epsilon=1.0)
    with pytest.raises(ValueError, match="has no price"):
        sd.federate(
            nn.Linear(4, 2), cross_entropy, rows, rounds=1, clients=4, before=Before(BOUNDS, "Bounds.")
        )


# In a ledger ------------------------------------------------------------------------------------------------


def test_run_and_bounds_together_are_what_the_certificate_states(rows: Rows, tmp_path: Path) -> None:
    book = LedgerFile(tmp_path / "ledger.db")
    book.cap("people", epsilon=5, delta=1e-3, aside=1e-5)
    paid = book.pay("people", BOUNDS, what="bounds", delta=1e-3)
    before = Before(BOUNDS, "Bounds.", paid)
    asked: dict[str, Any] = {"ledger": book, "data_name": "people", "before": before}
    run = trained(rows, metric_epsilon=0.5, test=rows, out=tmp_path / "run", **asked)
    stated = run.certificate["ledger"]
    assert stated["before"] == paid
    assert sd.verify(tmp_path / "run", ledger=book.path).stands
    kinds = [(each.kind, each.state) for each in book.runs()]
    assert kinds == [("bounds", "closed"), ("run", "closed")]
    assert all(each.charges for each in book.runs())
    together = compose([each.event for each in book.runs()])
    assert price(together, 1e-3, "rdp").epsilon == pytest.approx(run.epsilon)
    book.verify()
    assert book.show("people")[0].pieces == 0  # of other tools


def counted_with_bounds(rows: Rows, book: LedgerFile, **more: Any) -> sd.Run:
    paid = book.pay("people", BOUNDS, what="bounds", delta=1e-3)
    return trained(rows, ledger=book, data_name="people", before=Before(BOUNDS, "Bounds.", paid), **more)


def stated_anew(document: dict[str, Any], event: Any, seeded: bool = False, **ledger: Any) -> dict[str, Any]:
    """A certificate that is whole and unsigned, and says other events, at their price, and another ledger."""
    from sordino.privacy import certificate

    guarantee, said = document["guarantee"], document["implementation"]
    return certificate(
        guarantee=price(event, guarantee["delta"], "rdp"),
        event=event,
        unit="example",
        assumptions=document["assumptions"],
        seeded=seeded,
        created=document["created"],
        units=200,
        data=document["data"]["name"],
        unprotected=document["unprotected"],
        implementation={name: said[name] for name in ("method", "access", "noise")},
        ledger={name: document["ledger"][name] for name in ("data", "run", "length", "head")},
        **ledger,
    )


def test_bounds_that_are_cut_out_of_a_certificate_are_found_in_the_ledger(rows: Rows, tmp_path: Path) -> None:
    book = LedgerFile(tmp_path / "ledger.db")
    run = counted_with_bounds(rows, book)
    assert sd.verify(run.certificate, ledger=book.path).stands
    assert [each.before for each in book.runs()] == [None, run.certificate["ledger"]["before"]]
    cut = stated_anew(run.certificate, event_from_json(run.certificate["events"]["events"][1]))
    assert cut["guarantee"]["epsilon"] < run.epsilon
    assert sd.verify(cut).stands  # by itself it says nothing that is wrong
    with pytest.raises(Refuted, match="released before it, and the certificate with nothing"):
        sd.verify(cut, ledger=book.path)


def test_a_caveat_that_is_cut_out_of_a_certificate_is_found_in_the_ledger(rows: Rows, tmp_path: Path) -> None:
    book = LedgerFile(tmp_path / "ledger.db")
    column = sd.Column("x", "number", low=-3, high=3, obtained="peeked")
    table = Table(
        sd.Schema(sd.TargetColumn("y", labels=("no", "yes")), (column, sd.Column("z", "number", 0, 1)))
    )
    for seed in (None, 3):
        run = trained(rows, ledger=book, data_name="people", inputs=table, seed=seed)
        assert "--peek" in run.certificate["claim"]["caveat"]
        sd.verify(run.certificate, ledger=book.path)
        cut = stated_anew(
            run.certificate, event_from_json(run.certificate["events"]), seeded=seed is not None
        )
        with pytest.raises(Refuted, match=r"what the certificate does not: .*--peek"):
            sd.verify(cut, ledger=book.path)


@pytest.mark.parametrize("obtained", ["peeked", "private"])
def test_a_tuning_says_in_the_ledger_what_its_certificate_says_of_its_rows(
    tmp_path: Path, obtained: str
) -> None:
    book = LedgerFile(tmp_path / "ledger.db")
    column = sd.Column("x", "number", low=0, high=99, obtained=obtained)
    table = Table(sd.Schema(sd.TargetColumn("y", labels=("no", "yes")), (column,)))
    people = table.examples({"x": list(range(100)), "y": ["no", "yes"] * 50})
    tuned = sd.tune(
        nn.Linear(2, 2), cross_entropy, people, over={"learning_rate": [0.1, 1.0]}, score=people, method="dp-sgd",
        budget=(3, 1e-3), epochs=1, ledger=book, data_name="people",
    )  # fmt: skip
    assert tuned.certificate["claim"]["caveat"] in book.runs()[0].caveat
    sd.verify(tuned.certificate, ledger=book.path)


def test_a_certificate_names_nothing_before_the_run_that_the_ledger_does_not(
    rows: Rows, tmp_path: Path
) -> None:
    book = LedgerFile(tmp_path / "ledger.db")
    paid = book.pay("people", BOUNDS, what="bounds", delta=1e-3)
    run = trained(rows, ledger=book, data_name="people")
    assert "before" not in next(
        each["body"] for each in book.export() if each["run"] == run.summary["ledger"]["run"]
    )
    more = compose([BOUNDS, event_from_json(run.certificate["events"])])
    with pytest.raises(Refuted, match=f"with nothing released before it, and the certificate with {paid}"):
        sd.verify(stated_anew(run.certificate, more, paid_before=paid), ledger=book.path)


def test_an_account_of_ones_own_says_what_came_before_as_its_run_does(rows: Rows, tmp_path: Path) -> None:
    book = LedgerFile(tmp_path / "ledger.db")
    paid = book.pay("people", BOUNDS, what="bounds", delta=1e-3)
    before, noise = Before(BOUNDS, "Bounds.", paid), {"budget": None, "noise_multiplier": 2.0, "delta": 1e-3}
    plan = event_from_json(trained(rows, ledger=False, **noise).certificate["events"])
    named, plain = book.reserve("people", plan, before=paid), book.reserve("people", plan)
    for account, said in ((named, None), (plain, before)):
        with pytest.raises(ValueError, match="reserve with before="):
            trained(rows, ledger=account, before=said, **noise)
    run = trained(rows, ledger=named, before=before, **noise)
    assert sd.verify(run.certificate, ledger=book.path).stands
    assert trained(rows, ledger=plain, **noise).epsilon < run.epsilon


def test_a_reservation_names_only_what_was_paid_to_prepare_it(tmp_path: Path) -> None:
    book = LedgerFile(tmp_path / "ledger.db")
    paid = book.pay("people", BOUNDS, what="bounds")
    other = book.reserve("people", gaussian(3.0), run="other")
    for data, before in (("people", "never"), ("people", other.run), ("others", paid)):
        with pytest.raises(LedgerError, match="nothing that prepares a run was paid"):
            book.reserve(data, gaussian(3.0), before=before)
    book.reserve("people", gaussian(3.0), run="one", before=paid)
    assert book.reserve("people", gaussian(3.0), run="one", before=paid).before == paid
    with pytest.raises(LedgerError, match="with another plan"):
        book.reserve("people", gaussian(3.0), run="one")
    book.verify()


def test_a_ledger_that_names_before_a_run_what_was_not_paid_is_not_what_was_written(tmp_path: Path) -> None:
    from sordino.ledger.pricing import curve_of

    book = LedgerFile(tmp_path / "ledger.db")
    book.reserve("people", gaussian(3.0), run="one")
    body = next(dict(each["body"]) for each in book.export() if each["run"] == "one")
    with book._file.writing() as (_, append):
        append([("reserve", "people", "two", {**body, "before": "one"}, curve_of(gaussian(3.0)))])
    with pytest.raises(LedgerError, match="names something before it that was not paid"):
        book.verify()


def test_bounds_that_were_not_paid_as_stated_are_refused_before_anything_is_released(
    rows: Rows, tmp_path: Path
) -> None:
    book = LedgerFile(tmp_path / "ledger.db")
    paid = book.pay("people", BOUNDS, what="bounds", delta=1e-3)
    for before, name in (
        (Before(approximate(0.25, 1e-6), "Less.", paid), "people"),
        (Before(BOUNDS, "Elsewhere.", paid), "others"),
        (Before(BOUNDS, "Never.", "0123456789abcdef"), "people"),
        (Before(BOUNDS, "Nowhere."), "people"),
    ):
        with pytest.raises(ValueError, match="before this run"):
            trained(rows, before=before, ledger=book, data_name=name)
    with pytest.raises(ValueError, match="paid in a ledger"):
        trained(rows, before=Before(BOUNDS, "Bounds.", paid), ledger=False)
    assert [each.kind for each in book.runs()] == ["bounds"]


def test_a_cap_refuses_bounds_in_time_and_keeps_their_delta_aside(tmp_path: Path) -> None:
    book = LedgerFile(tmp_path / "ledger.db")
    book.cap("people", epsilon=3, delta=1e-5)
    with pytest.raises(LedgerError, match="keeps 0 of its delta aside"):
        book.pay("people", approximate(0.1, 1e-7), what="bounds")
    with pytest.raises(LedgerError, match="no room"):
        book.pay("people", approximate(4.0), what="bounds")
    book.pay("people", approximate(0.5), what="bounds")
    assert [each.kind for each in book.runs()] == ["bounds"]
    before = book.show("people")[0].epsilon
    account = book.reserve("people", compose([gaussian(30.0), approximate(0.2)]), delta=1e-5)
    after = book.show("people")[0].epsilon
    assert before is not None
    assert after is not None
    assert after > before + 0.1
    account.spend("one", gaussian(30.0))
    account.close()  # without what was never paid
    closed = book.show("people")[0].epsilon
    assert closed is not None
    assert before < closed < after


WITH_PIECES = compose([gaussian(3.0), approximate(0.5, 1e-7), approximate(0.5, 1e-7)])


def test_what_is_known_by_epsilon_and_delta_alone_stands_beside_the_price() -> None:
    from sordino.ledger.pricing import pieces_of, pieces_to_json

    assert [(each.epsilon, each.delta) for each in pieces_of(WITH_PIECES)] == [(0.5, 1e-7)] * 2
    assert pieces_to_json(WITH_PIECES) == {"pieces": [[0.5, 1e-7], [0.5, 1e-7]]}
    assert pieces_to_json(gaussian(3.0)) == {}


@pytest.mark.parametrize("stated", [None, [], [[0.5, 1e-7]], [[0.5, 1e-7], [0.05, 1e-7]], [[0.5, 1e-7]] * 3])
def test_a_ledger_whose_pieces_were_changed_is_not_what_was_written(tmp_path: Path, stated: Any) -> None:
    book = LedgerFile(tmp_path / "ledger.db")
    book.reserve("people", WITH_PIECES, run="one", delta=1e-5)
    book.verify()
    body = next(dict(each["body"]) for each in book.export() if each["run"] == "one")
    assert body.pop("pieces") == [[0.5, 1e-7]] * 2
    appended(book, "reserve", "two", body if stated is None else {**body, "pieces": stated}, WITH_PIECES)
    with pytest.raises(LedgerError, match="has not the pieces of its events"):
        book.verify()


def test_pieces_that_an_entry_has_without_such_an_event_are_found_too(tmp_path: Path) -> None:
    book = LedgerFile(tmp_path / "ledger.db")
    book.reserve("people", gaussian(3.0), run="one", delta=1e-5)
    body = next(dict(each["body"]) for each in book.export() if each["run"] == "one")
    appended(book, "reserve", "two", {**body, "pieces": [[0.5, 0.0]]}, gaussian(3.0))
    with pytest.raises(LedgerError, match="has not the pieces of its events"):
        book.verify()


def test_a_run_that_was_closed_without_the_pieces_it_paid_for_is_found(tmp_path: Path) -> None:
    book = LedgerFile(tmp_path / "ledger.db")
    account = book.reserve("people", WITH_PIECES, run="one", delta=1e-5)
    account.spend_all({"bounds": approximate(0.5, 1e-7), "step": gaussian(3.0)})
    less = {"event": event_to_json(gaussian(3.0)), "charges": 2, "created": "2026-01-01T00:00:00+00:00"}
    with pytest.raises(LedgerError, match="has spent more than what it would be closed with"):
        account.close(gaussian(3.0))
    appended(book, "close", "one", less, gaussian(3.0))
    with pytest.raises(LedgerError, match="was closed with less than it had spent"):
        book.verify()


def appended(book: LedgerFile, kind: str, run: str, body: dict[str, Any], event: Any) -> None:
    """An entry in the chain as it should be, that somebody else wrote."""
    from sordino.ledger.pricing import curve_of

    with book._file.writing() as (_, append):
        append([(kind, "people", run, body, curve_of(event))])


def test_the_epsilon_of_a_run_has_its_pieces_in_it(tmp_path: Path) -> None:
    book = LedgerFile(tmp_path / "ledger.db")
    account = book.reserve("people", WITH_PIECES, run="one", delta=1e-5)
    book.reserve("people", gaussian(3.0), run="two", delta=1e-5)
    account.spend_all({"bounds": approximate(0.5, 1e-7), "step": gaussian(3.0)})
    spent = compose([approximate(0.5, 1e-7), gaussian(3.0)])
    for event in (WITH_PIECES, spent):  # what is reserved, and then what it came to
        with_pieces, without = book.runs()
        assert with_pieces.epsilon is not None
        assert without.epsilon is not None
        assert with_pieces.epsilon >= price(event, 1e-5, "rdp").epsilon * (1 - 1e-9)
        assert with_pieces.epsilon > without.epsilon + 0.1
        account.close()


# Interrupted ------------------------------------------------------------------------------------------------


class _Stop(Exception):
    pass


def test_a_run_that_is_resumed_has_the_same_besides_and_counts_held_out_rows_once(
    rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sordino.runs import conductor

    asked: dict[str, Any] = {"before": Before(BOUNDS, "Bounds."), "metric_epsilon": 0.5, "test": rows}
    asked |= {"out": tmp_path / "run", "seed": 1}

    def stop(*_: Any) -> Any:
        raise _Stop

    with monkeypatch.context() as patched:
        patched.setattr(conductor, "closed_run", stop)  # when the counts were released
        with pytest.raises(_Stop):
            trained(rows, **asked)
    kept = json.loads((tmp_path / "run" / "checkpoint" / COUNTS).read_text())
    with pytest.raises(ValueError, match="interrupted: before changed"):
        trained(rows, **asked | {"before": Before(approximate(0.5, 2e-6), "Bounds."), "resume": True})
    run = trained(rows, **asked, resume=True)
    assert run.metrics == {**kept, "covered": True}
    assert run.epsilon <= 3.0
    assert not math.isnan(run.metrics["test_accuracy"])
