"""A certificate that was changed anywhere fails, so do a changed model and a changed ledger; one that was not holds."""

from __future__ import annotations

import copy
import json
import math
import shutil
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from torch import Tensor, nn

import sordino as sd
from conftest import cross_entropy
from sordino.ledger import LedgerFile
from sordino.privacy import certificate, compose, gaussian, poisson_gaussian, price, recompute, repeat
from sordino.privacy.events import sampled_without_replacement
from sordino.privacy.sealing import digest_of, sealed, signing_key
from sordino.verifying import Refuted, verify
from sordino.verifying.deployment import FILL_IN, registry_entry
from sordino.verifying.pricing import AT_LEAST, EXACTLY, prices
from sordino.verifying.reading import LARGEST, Malformed, parsed, schema
from sordino.verifying.schema import complaint
from sordino.verifying.telling import told

Document = dict[str, Any]
POISSON = repeat(poisson_gaussian(4.0, 0.5), 10)


def made(event: Any, delta: float = 1e-5, accountant: str = "auto", **more: Any) -> Document:
    facts: Document = {
        "unit": "example",
        "units": 1000,
        "assumptions": ["batches are secret"],
        "seeded": False,
    }
    facts |= {"created": "2026-01-01T00:00:00Z", "data": "patients"}
    return certificate(guarantee=price(event, delta, accountant), event=event, **facts | more)


def trained(toy: tuple[Tensor, Tensor], out: Path | None, **more: Any) -> sd.Run:
    given: Document = {
        "method": "dp-sgd",
        "epochs": 2,
        "batch_size": 12,
        "noise_multiplier": 1.0,
        "delta": 1e-3,
    }
    given |= {"out": out, "data_name": "patients", "progress": False, "test": toy}
    return sd.train(nn.Linear(10, 3), cross_entropy, toy, **given | more)


@pytest.fixture(scope="module")
def key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.generate()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in a directory, counted in a ledger beside it."""
    folder = tmp_path_factory.mktemp("finished")
    inputs = torch.randn(60, 10, generator=torch.Generator().manual_seed(11))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sordino.runs.closing.drawn", lambda *_: b"a figure")
        trained((inputs, inputs[:, :3].argmax(1)), folder / "run", ledger=folder / "ledger.db")
    return folder


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return tmp_path / "run"


def read(run: Path) -> Document:
    document: Document = json.loads((run / "certificate.json").read_text())
    return document


def public_pem(key: Ed25519PrivateKey, path: Path) -> Path:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    path.write_bytes(key.public_key().public_bytes(serialization.Encoding.PEM, form))
    return path


def private_pem(key: Any, path: Path, password: bytes | None = None) -> Path:
    locked = (
        serialization.NoEncryption() if password is None else serialization.BestAvailableEncryption(password)
    )
    form = serialization.PrivateFormat.PKCS8
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, locked))
    return path


# What is in order holds -----------------------------------------------------------------------------------------

EVENTS = {
    "poisson": POISSON,
    "plain": repeat(gaussian(8.0), 5),
    "both": compose([repeat(poisson_gaussian(2.0, 0.1), 5), gaussian(10.0)]),
    "without replacement": repeat(sampled_without_replacement(4.0, 10, 1000), 5),
    "nothing": repeat(gaussian(1.0), 0),
}


@pytest.mark.parametrize("accountant", ["auto", "rdp", "moments"])
@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
def test_honest_certificates_hold_whatever_priced_them(event: Any, accountant: str) -> None:
    document = made(event, accountant=accountant)
    found = verify(json.loads(json.dumps(document)))
    assert found.stands
    assert found.epsilon == document["guarantee"]["epsilon"]
    assert told(found)


def test_a_run_with_its_model_and_its_ledger_holds(run: Path) -> None:
    found = verify(run, ledger=run.parent / "ledger.db")
    assert {each.what: each.done for each in found.checks} == {
        "content": True, "numbers": True, "model": True, "ledger": True
    }  # fmt: skip
    alone = run.parent / "alone.json"
    shutil.copy(run / "certificate.json", alone)
    said = {each.what: each for each in verify(alone).checks}
    assert (said["model"].done, said["ledger"].done) == (False, False)
    assert "give the ledger" in said["ledger"].detail
    assert verify(alone, model=run / "model.safetensors").stands


@pytest.mark.parametrize("more", [{"groups": True}, {"sampling": "shuffled"}, {"method": "dp-ftrl"}], ids=str)
def test_other_ways_to_train_have_certificates_that_hold(more: Document, toy: Any) -> None:
    more = {name: torch.arange(60) // 2 if value is True else value for name, value in more.items()}
    document = trained(toy, None, accountant="rdp", **more).certificate
    assert verify(document).document["model"]["file"] is None


@pytest.mark.filterwarnings("ignore:the noise outweighs")
def test_a_federation_has_a_certificate_that_holds_and_names_whom_to_trust(toy: Any, tmp_path: Path) -> None:
    given: Document = {
        "rounds": 3,
        "clients": 6,
        "per_round": 3,
        "batch_size": 5,
        "local_epochs": 1,
        "workers": 1,
    }
    given |= {"noise_multiplier": 1.0, "delta": 1e-3, "accountant": "rdp", "ledger": tmp_path / "l.db"}
    given |= {"data_name": "phones", "progress": False, "engine": "looped"}
    document = sd.federate(nn.Linear(10, 3), cross_entropy, toy, **given).certificate
    assert verify(document, ledger=tmp_path / "l.db").stands
    assert document["guarantee"]["unit_means"] == "one client with all its rows"
    assert "trusted server" in document["deployment"]["trust"]


def test_accountants_that_cannot_price_are_named_and_say_why() -> None:
    by_name = {each.name: each for each in verify(made(EVENTS["without replacement"])).prices}
    assert "samples without replacement" in str(by_name["dp-accounting pld"].why_not)
    assert by_name["dp-accounting rdp"].epsilon is not None
    assert "Gaussian releases without samples" in str(by_name["closed form of Gaussians"].why_not)
    small = {each.name: each for each in verify(made(gaussian(0.1), accountant="rdp")).prices}
    assert "left out" in str(small["dp-accounting pld"].why_not)


def test_the_bounds_of_all_accountants_agree_with_each_other() -> None:
    for document in (made(POISSON), made(EVENTS["plain"])):
        found = prices(document["events"], 1e-5)
        least = max(each.epsilon for each in found if each.says == AT_LEAST and each.epsilon is not None)
        most = min(each.epsilon for each in found if each.says != AT_LEAST and each.epsilon is not None)
        assert 0.99 * most < least <= most
    (exact,) = [each.epsilon for each in found if each.says == EXACTLY]
    assert exact == pytest.approx(price(EVENTS["plain"], 1e-5).epsilon, rel=1e-9)


# What promises nothing says so ----------------------------------------------------------------------------------


def test_a_known_seed_no_noise_and_a_wrong_price_promise_nothing_and_say_so() -> None:
    caveat = "NOT A GUARANTEE: batches were shuffled but priced as Poisson samples (assume_poisson)"
    silent = {
        "VOID: the run used a known seed": made(POISSON, seeded=True),
        "NOT PRIVATE: epsilon is infinite": made(gaussian(0.0)),
        caveat: made(POISSON, caveat=caveat),
    }
    for words, document in silent.items():
        found = verify(document)
        assert not found.stands
        assert document["claim"]["words"].startswith(words)
        assert "PROMISES NOTHING" in told(found).splitlines()[0]
        with pytest.raises(ValueError, match="nothing to register"):
            registry_entry(found)


def test_a_seeded_run_and_one_without_noise_say_so_themselves(toy: Any) -> None:
    assert "VOID" in trained(toy, None, seed=3, accountant="rdp").certificate["claim"]["words"]
    open_run = trained(toy, None, method="sgd", noise_multiplier=None, delta=None)
    assert not verify(open_run.certificate).stands
    assert open_run.certificate["guarantee"]["profile"] == []


# What was changed fails -----------------------------------------------------------------------------------------


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where there is a number, a text, a truth value or nothing."""
    inner = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    )
    if inner is None:
        yield path
    else:
        for name, part in inner:
            yield from places(part, (*path, name))


def at(document: Any, path: tuple[Any, ...]) -> Any:
    for name in path:
        document = document[name]
    return document


def changed(document: Document, path: tuple[Any, ...], value: Any) -> Document:
    other = copy.deepcopy(document)
    at(other, path[:-1])[path[-1]] = value
    return other


def slightly(value: Any) -> Any:
    """As little another value as there is."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, float):
        return math.nextafter(value, math.inf)
    if isinstance(value, int):
        return value + 1
    return 1 if value is None else f"{value[:-1]}{'0' if value[-1:] != '0' else '1'}"


@pytest.mark.parametrize("signed", [False, True], ids=["not signed", "signed"])
def test_whatever_one_value_is_changed_it_fails(signed: bool, key: Ed25519PrivateKey, run: Path) -> None:
    document = sealed(read(run), key if signed else None)
    assert verify(document).stands
    tried = list(places(document))
    numbers = [path for path in tried if isinstance(at(document, path), int | float)]
    assert len(tried) > 70
    assert len(numbers) > 25
    for path in tried:
        with pytest.raises((Refuted, Malformed)):
            verify(changed(document, path, slightly(at(document, path))))


def test_whatever_is_added_or_left_out_it_fails(run: Path) -> None:
    document = read(run)
    folders = {path[:length] for path in places(document) for length in range(len(path))}
    for folder in folders:
        more = copy.deepcopy(document)
        where = at(more, folder)
        where.append("more") if isinstance(where, list) else where.update(more=1)
        less = copy.deepcopy(document)
        where = at(less, folder)
        where.pop() if isinstance(where, list) else where.popitem()
        for other in (more, less):
            with pytest.raises((Refuted, Malformed)):
                verify(other)


GUARANTEE = ("guarantee",)
MENDED: dict[str, tuple[Any, tuple[Any, ...], Any, str]] = {
    "epsilon": (POISSON, (*GUARANTEE, "epsilon"), 0.5, "states epsilon 0.5, and its events cost"),
    "a little less": (POISSON, (*GUARANTEE, "epsilon"), price(POISSON, 1e-5).epsilon - 1e-5, "its events cost"),
    "more than it is": (POISSON, (*GUARANTEE, "epsilon"), 7.0, "states epsilon 7.0"),
    "delta": (POISSON, (*GUARANTEE, "delta"), 1e-6, "its events cost"),
    "mu": (EVENTS["plain"], (*GUARANTEE, "gdp_mu"), 0.1, "states gdp_mu 0.1"),
    "rho": (EVENTS["plain"], (*GUARANTEE, "zcdp_rho"), 0.01, "states zcdp_rho 0.01"),
    "a mu that there is not": (POISSON, (*GUARANTEE, "gdp_mu"), 0.1, "states gdp_mu 0.1"),
    "a point of the profile": (POISSON, (*GUARANTEE, "profile", 2, "epsilon"), 0.1, "its profile states"),
    "a delta of the profile": (POISSON, (*GUARANTEE, "profile", 2, "delta"), 1e-9, "not at the deltas"),
    "the relation": (POISSON, (*GUARANTEE, "relation"), "substitution (REPLACE_ONE)", "relation"),
    "the noise": (POISSON, ("events", "event", "event", "noise_multiplier"), 4.1, "its events cost"),
    "the rate": (POISSON, ("events", "event", "sampling_rate"), 0.1, "its events cost"),
    "the steps": (POISSON, ("events", "count"), 9, "its events cost"),
    "the sample": (EVENTS["without replacement"], ("events", "event", "count"), 9, "its events cost"),
    "all units": (EVENTS["without replacement"], ("events", "event", "units"), 1001, "its events cost"),
    "units": (EVENTS["without replacement"], (*GUARANTEE, "units"), 2000, "its samples are of 1000"),
    "units in words": (POISSON, (*GUARANTEE, "units"), 2000, "claim.words does not say"),
    "the unit": (POISSON, (*GUARANTEE, "unit"), "user", "claim.words does not say"),
    "the steps in words": (POISSON, ("events_in_words", 0), "once", "events_in_words does not say"),
    "the accountant": (POISSON, ("accounting", "accountant"), "rdp", "does not hold"),
    "an assumption": (POISSON, ("assumptions", 0), "nothing", "assumptions does not say"),
    "a seed": (POISSON, ("randomness", "seeded"), True, "claim.stands does not say"),
    "a caveat": (POISSON, ("claim", "caveat"), "NOT A GUARANTEE", "claim.stands does not say"),
    "the flavour": (POISSON, (*GUARANTEE, "flavour"), "none", "flavour does not say"),
    "the data": (POISSON, ("data", "name"), "doctors", "claim.words does not say"),
    "no ledger": (POISSON, ("ledger", "counted"), True, "two things at once"),
    "no model": (POISSON, ("model", "file"), "model.safetensors", "two things at once"),
    "private": (gaussian(0.0), (*GUARANTEE, "epsilon"), 3.0, "its events cost inf"),
}  # fmt: skip


@pytest.mark.parametrize(("event", "path", "value", "says"), MENDED.values(), ids=MENDED)
def test_a_number_that_follows_from_others_is_found_though_the_digest_was_mended(
    event: Any, path: tuple[Any, ...], value: Any, says: str
) -> None:
    other = changed(made(event), path, value)
    other["digest"] = digest_of(other)
    with pytest.raises(Refuted, match=says):
        verify(other)


def test_a_seed_that_is_denied_is_found_by_its_sentence_and_after_that_by_the_signature_alone(
    key: Ed25519PrivateKey, tmp_path: Path
) -> None:
    document = made(POISSON, seeded=True, signing_key=key)
    denied = made(POISSON)  # all of it mended, as only the owner could
    other = {**denied, "signature": document["signature"]}
    with pytest.raises(Refuted, match="signature"):
        verify(other)
    assert verify({**denied}).stands
    with pytest.raises(Refuted, match="it is not signed"):
        verify(denied, public_key=public_pem(key, tmp_path / "public.pem"))


def test_a_mistake_of_our_own_accountants_is_found_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for event in (POISSON, EVENTS["plain"]):
        half = replace(price(event, 1e-5), epsilon=price(event, 1e-5).epsilon / 2)
        facts: Document = {"unit": "example", "assumptions": [], "seeded": False, "created": "now"}
        document = certificate(guarantee=half, event=event, **facts)
        monkeypatch.setattr("sordino.verifying.numbers.recompute", lambda _, half=half: half)
        with pytest.raises(Refuted, match=r"it is (at least|exactly)"):
            verify(document)


# The model and the ledger ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 9, -1], ids=["first", "header", "last"])
def test_a_model_with_one_byte_changed_fails(run: Path, place: int) -> None:
    file = run / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)
    with pytest.raises(Refuted, match="is not the model that it is about"):
        verify(run)


def test_a_model_that_is_cut_or_longer_fails(run: Path) -> None:
    file = run / "model.safetensors"
    content = file.read_bytes()
    for other in (content[:-1], content + b"\0", b""):
        file.write_bytes(other)
        with pytest.raises(Refuted, match="is not the model"):
            verify(run)


def tampered(ledger: Path, *statements: str) -> None:
    with sqlite3.connect(ledger) as connection:
        connection.execute("DROP TRIGGER never_changed")
        connection.execute("DROP TRIGGER never_removed")
        for statement in statements:
            connection.execute(statement)
    connection.close()


LAST = "(SELECT max(number) FROM entries)"
TAMPERED = {
    "edited": ["UPDATE entries SET body = replace(body, '\"count\"', '\"counts\"') WHERE kind = 'reserve'"],
    "its name edited": ["UPDATE entries SET data = 'doctors' WHERE kind = 'close'"],
    "removed": ["DELETE FROM entries WHERE number = 4"],
    "removed and closed up": ["DELETE FROM entries WHERE number = 4"]
    + [f"UPDATE entries SET number = {number - 1} WHERE number = {number}" for number in range(5, 20)],
    "reordered": [
        "UPDATE entries SET number = 1000 WHERE number = 4",
        "UPDATE entries SET number = 4 WHERE number = 5",
        "UPDATE entries SET number = 5 WHERE number = 1000",
    ],
    "cut at the end": [f"DELETE FROM entries WHERE number = {LAST}"],
    "cut by half": [f"DELETE FROM entries WHERE number > {LAST} / 2"],
}


@pytest.mark.parametrize("statements", TAMPERED.values(), ids=TAMPERED)
def test_a_ledger_that_was_tampered_with_fails(run: Path, statements: list[str]) -> None:
    ledger = run.parent / "ledger.db"
    assert verify(run, ledger=ledger).stands
    tampered(ledger, *statements)
    with pytest.raises(Refuted, match="ledger"):
        verify(run, ledger=ledger)


def test_a_ledger_that_was_cut_and_whose_head_was_mended_is_found_by_the_certificate(run: Path) -> None:
    ledger = LedgerFile(run.parent / "ledger.db")
    tampered(ledger.path, f"DELETE FROM entries WHERE number = {LAST}")
    with ledger._file.reading() as entries:
        ledger._file.head_file.settle(entries.head())
    ledger.verify()
    with pytest.raises(Refuted, match="is not the ledger that counted it, or not all of it"):
        verify(run, ledger=ledger.path)


def test_a_ledger_that_goes_on_still_holds_and_another_does_not(run: Path, toy: Any) -> None:
    ledger = run.parent / "ledger.db"
    trained(toy, None, ledger=ledger)
    assert verify(run, ledger=ledger).stands
    trained(toy, None, ledger=run.parent / "other.db")
    with pytest.raises(Refuted, match="is not the ledger that counted it"):
        verify(run, ledger=run.parent / "other.db")
    with pytest.raises(Refuted, match="there is no ledger"):
        verify(run, ledger=run.parent / "none.db")


def test_a_certificate_of_other_events_or_another_run_than_was_counted_fails(run: Path) -> None:
    ledger, document = run.parent / "ledger.db", read(run)
    spent = recompute(document)
    less = repeat(poisson_gaussian(4.0, 0.2), 9)
    stated: Document = {"unit": "example", "units": 60, "assumptions": [], "seeded": False, "created": "now"}
    stated |= {"data": "patients", "ledger": document["ledger"]}
    forged = certificate(guarantee=price(less, spent.delta), event=less, **stated)
    assert verify(forged).stands
    with pytest.raises(Refuted, match="has counted other events"):
        verify(forged, ledger=ledger)
    with pytest.raises(Refuted, match="knows of no run"):
        verify(sealed(changed(document, ("ledger", "run"), "0123456789abcdef")), ledger=ledger)


def test_a_run_that_was_counted_nowhere_says_so_and_does_not_pass_for_one_that_was(
    toy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = trained(toy, None, accountant="rdp").certificate
    assert "counted in no ledger" in document["ledger"]["note"]
    trained(toy, None, ledger=tmp_path / "l.db", accountant="rdp")
    with pytest.raises(Refuted, match="counted in no ledger"):
        verify(document, ledger=tmp_path / "l.db")
    monkeypatch.setenv("SORDINO_LEDGER", str(tmp_path / "l.db"))
    assert verify(document).stands


def test_the_ledger_of_the_environment_is_asked(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SORDINO_LEDGER", str(run.parent / "ledger.db"))
    assert all(each.done for each in verify(run).checks)
    tampered(run.parent / "ledger.db", f"DELETE FROM entries WHERE number = {LAST}")
    with pytest.raises(Refuted, match="the end was cut off"):
        verify(run)


# Signatures -----------------------------------------------------------------------------------------------------


def test_a_run_is_signed_with_the_key_that_the_environment_names(
    toy: Any, tmp_path: Path, key: Ed25519PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SORDINO_SIGNING_KEY", str(private_pem(key, tmp_path / "key.pem")))
    document = trained(toy, None, accountant="rdp", rationale="As our board decided.").certificate
    assert document["rationale"] == "As our board decided."
    public = public_pem(key, tmp_path / "public.pem")
    assert "the key you gave" in verify(document, public_key=public).checks[0].detail
    assert "is for you to know" in verify(document).checks[0].detail
    other = public_pem(Ed25519PrivateKey.generate(), tmp_path / "other.pem")
    with pytest.raises(Refuted, match="signed with another key"):
        verify(document, public_key=other)


def test_a_bad_signature_fails(key: Ed25519PrivateKey) -> None:
    document = made(POISSON, signing_key=key)
    mended = changed(document, ("rationale",), "none of your business")
    mended["digest"] = digest_of(mended)
    with pytest.raises(Refuted, match="its signature is not one that the key"):
        verify(mended)
    with pytest.raises(Refuted, match="its signature is not one that the key"):
        verify(changed(document, ("signature", "public_key"), "00" * 32))


def test_a_key_that_openssl_made_signs_and_openssl_s_public_key_is_read(tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl here")
    for command in (
        "openssl genpkey -algorithm ed25519 -out key.pem",
        "openssl pkey -in key.pem -pubout -out public.pem",
    ):
        subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True)
    document = made(POISSON, signing_key=signing_key(tmp_path / "key.pem"))
    assert verify(document, public_key=tmp_path / "public.pem").stands


def test_keys_that_are_none_are_refused_before_anything_is_spent(
    toy: Any, tmp_path: Path, key: Ed25519PrivateKey
) -> None:
    (tmp_path / "text.pem").write_text("not a key")
    files = {
        "cannot be read": tmp_path / "none.pem",
        "openssl genpkey -algorithm ed25519": tmp_path / "text.pem",
        "is no Ed25519 key": private_pem(ec.generate_private_key(ec.SECP256R1()), tmp_path / "ec.pem"),
        "asks for a password": private_pem(key, tmp_path / "locked.pem", b"secret"),
    }
    for says, file in files.items():
        with pytest.raises(ValueError, match=says):
            trained(toy, tmp_path / "run", signing_key=file)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match="rationale is a text"):
        trained(toy, None, rationale=" ")
    for file in (tmp_path / "text.pem", tmp_path / "locked.pem"):
        with pytest.raises(ValueError, match="holds no public key"):
            verify(made(POISSON), public_key=file)


# Schema ---------------------------------------------------------------------------------------------------------


def test_the_schema_describes_every_certificate_and_every_part_of_it(run: Path) -> None:
    for document in (read(run), made(gaussian(0.0), seeded=True), *(made(each) for each in EVENTS.values())):
        assert complaint(document, schema()) is None

    def described(part: Document, where: str) -> Iterator[str]:
        for name, each in part.get("properties", {}).items():
            yield f"{where}{name}"
            yield from described(each, f"{where}{name}.")

    document = read(run)
    sometimes = ("signature.", "ledger.before")  # signed, or with something that was released before the run
    for name in described(schema(), ""):
        assert name.startswith(sometimes) or at(document, tuple(name.split("."))) is not Ellipsis
    assert schema()["required"] == list(schema()["properties"]) == list(document)


WRONG: dict[str, tuple[tuple[Any, ...], Any, str]] = {
    "epsilon below 0": ((*GUARANTEE, "epsilon"), -1.0, "guarantee.epsilon must be at least 0"),
    "epsilon true": ((*GUARANTEE, "epsilon"), True, "guarantee.epsilon must be of type number"),
    "delta 1": ((*GUARANTEE, "delta"), 1, "guarantee.delta must be below 1"),
    "delta a text": ((*GUARANTEE, "delta"), "1e-5", "guarantee.delta must be of type number"),
    "half a unit": ((*GUARANTEE, "units"), 0.5, "guarantee.units must be of type integer or null"),
    "a path for a name": (("model", "file"), "../secret", "model.file must look like"),
    "no sentence": (("assumptions",), [], "assumptions must have at least 1"),
    "an empty sentence": (("rationale",), "", "rationale must not be empty"),
    "a profile of texts": ((*GUARANTEE, "profile"), ["x"], r"guarantee.profile\[0\] must be of type object"),
    "events without a type": (("events",), {}, "events.type is missing"),
    "another algorithm": (("signature",), {"algorithm": "RSA"}, "signature"),
}


@pytest.mark.parametrize(("path", "value", "says"), WRONG.values(), ids=WRONG)
def test_the_schema_names_the_place_that_is_wrong(path: tuple[Any, ...], value: Any, says: str) -> None:
    with pytest.raises(Malformed, match=says):
        verify(changed(made(POISSON), path, value))


@pytest.mark.parametrize(
    "events",
    [
        {"type": "no such thing"},
        {"type": "gaussian"},
        {"type": "gaussian", "noise_multiplier": 10**400},
        {"type": "gaussian", "noise_multiplier": 1e-200},
        {"type": "repeated", "count": 10**5000, "event": {"type": "gaussian", "noise_multiplier": 1.0}},
        {"type": "repeated", "count": -1, "event": {"type": "gaussian", "noise_multiplier": 1.0}},
        {"type": "composed", "events": [{"type": "gaussian", "noise_multiplier": True}]},
    ],
    ids=["unknown", "incomplete", "too large", "too small", "too often", "less than never", "no number"],
)  # fmt: skip
def test_events_that_cannot_have_been_are_refused(events: Document) -> None:
    other = {**made(EVENTS["plain"]), "events": events}
    with pytest.raises((Refuted, Malformed), match=r"does not hold|not JSON"):
        verify(other)


# Reading --------------------------------------------------------------------------------------------------------

UNREADABLE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "nothing": (lambda _: b"", "it is not JSON"),
    "half of it": (lambda content: content[: len(content) // 2], "it is not JSON"),
    "bytes": (lambda _: bytes(range(256)), "it is not JSON"),
    "not a number": (lambda content: content.replace(b'"delta": 0.001', b'"delta": NaN', 1), "NaN is no number"),
    "infinity": (lambda content: content.replace(b'"delta": 0.001', b'"delta": Infinity', 1), "no number of"),
    "1e999": (lambda content: content.replace(b'"delta": 0.001', b'"delta": 1e999', 1), "1e999 is too large"),
    "long": (lambda content: content.replace(b'"delta": 0.001', b'"delta": 1' + b"0" * 5000, 1), "not JSON"),
    "twice": (lambda content: content.replace(b'"delta": 0.001', b'"delta": 0.1, "delta": 0.001', 1), "twice"),
    "deep": (lambda _: b"[" * 100_000 + b"]" * 100_000, "nested too deeply"),
    "a list": (lambda _: b"[1, 2]", "it does not say its format"),
    "a number": (lambda _: b"3", "it does not say its format"),
    "of old": (lambda content: content.replace(b"certificate/2", b"certificate/1", 1), "'sordino-certificate/1'"),
    "of tomorrow": (lambda content: content.replace(b"certificate/2", b"certificate/9", 1), "this version of"),
    "empty": (lambda _: b"{}", "it does not say its format"),
    "a format alone": (lambda _: b'{"format": "sordino-certificate/2"}', "claim is missing"),
}  # fmt: skip


@pytest.mark.parametrize(("damage", "says"), UNREADABLE.values(), ids=UNREADABLE)
def test_what_is_no_certificate_is_refused_in_one_line(
    damage: Callable[[bytes], bytes], says: str, tmp_path: Path
) -> None:
    path = tmp_path / "certificate.json"
    content = json.dumps(made(POISSON, 1e-3), indent=2).encode()
    path.write_bytes(damage(content))
    with pytest.raises(Malformed, match=says) as caught:
        verify(path)
    assert len(str(caught.value).splitlines()) == 1


def test_files_that_are_not_there_too_large_or_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Malformed, match="there is no"):
        verify(tmp_path / "none.json")
    with pytest.raises(Malformed, match="or the directory of a complete run"):
        verify(tmp_path)
    with (tmp_path / "huge.json").open("wb") as file:
        file.truncate(LARGEST + 1)
    with pytest.raises(Malformed, match="too large for a certificate"):
        verify(tmp_path / "huge.json")
    assert parsed(b'{"a": 1}') == {"a": 1}


# For the registry -----------------------------------------------------------------------------------------------


def test_the_registry_s_entry_has_what_the_certificate_knows_and_leaves_the_rest_open(run: Path) -> None:
    entry = registry_entry(verify(run))
    lines = entry.splitlines()
    for name in (
        "variant_name",
        "privacy_unit",
        "privacy_parameters",
        "model_name",
        "composition",
        "mechanisms",
    ):
        assert any(line.strip().startswith(f"{name}:") for line in lines), name
    document = read(run)
    assert f"epsilon: {document['guarantee']['epsilon']!r}" in entry
    assert "      delta: 0.001\n" in entry
    assert entry.count(FILL_IN) == 8
    assert document["digest"] in entry
    small = registry_entry(verify(made(gaussian(5.0), 1e-5)))
    assert "      delta: 1.0e-05\n" in small, "YAML 1.1 takes 1e-05 for a text"
    assert "      rho: 0.02\n" in small
