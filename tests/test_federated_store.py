"""The client store against a dictionary, in memory and in a file, and after a kill at any time."""

from __future__ import annotations

import copy
import resource
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sordino.federated.store import ClientStore
from sordino.runs import CannotWrite
from test_runs_writing import files_of_at_most

SIZE = 3
Model = dict[
    int, tuple[list[float], list[float], float]
]  # what a store should hold: two vectors and a number

# Clients with a value each; what a round may do; more rounds than slots of the first growth.
WRITES = st.dictionaries(st.integers(0, 30) | st.integers(0, 10**6), st.integers(1, 1000), max_size=20)
ACTIONS = st.one_of(
    st.tuples(st.just("write"), WRITES),
    st.tuples(st.just("write one by one"), WRITES),
    st.tuples(st.sampled_from(["commit", "commit", "forget", "checkpoint", "kill"]), st.none()),
)


def store_at(path: Path | None) -> ClientStore:
    return ClientStore(("h", "velocity"), SIZE, ("round",), path)


def entry(value: int) -> tuple[list[float], list[float], float]:
    return [float(value), value + 0.25, value + 0.5], [-float(value)] * SIZE, value / 3


def write_all(store: ClientStore, values: dict[int, int], one_by_one: bool) -> None:
    found = {client: entry(value) for client, value in values.items()}
    if one_by_one:
        for client, (h, velocity, number) in found.items():
            vectors = {"h": torch.tensor(h), "velocity": torch.tensor(velocity)}
            store.write(client, vectors, {"round": number})
        return
    store.write_many(
        list(found),
        {
            "h": torch.tensor([h for h, _, _ in found.values()]).view(-1, SIZE),
            "velocity": torch.tensor([v for _, v, _ in found.values()]).view(-1, SIZE),
        },
        {"round": torch.tensor([n for _, _, n in found.values()], dtype=torch.float64)},
    )


def check(store: ClientStore, model: Model, also: list[int]) -> None:
    clients = [*model, *(client for client in also if client not in model)]
    vectors, numbers, known = store.read(clients)
    assert len(store) == len(model)
    assert known.tolist() == [client in model for client in clients]
    nothing = ([0.0] * SIZE, [0.0] * SIZE, 0.0)
    for i, client in enumerate(clients):
        h, velocity, number = model.get(client, nothing)
        assert vectors["h"][i].tolist() == h
        assert vectors["velocity"][i].tolist() == velocity
        assert numbers["round"][i].item() == number


@pytest.mark.parametrize("in_file", [False, True])
@settings(max_examples=60, deadline=None)
@given(actions=st.lists(ACTIONS, max_size=25))
def test_a_store_is_a_dictionary_with_transactions(in_file: bool, actions: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clients" if in_file else None
        store = store_at(path)
        committed: Model = {}
        staged: Model = {}
        saved, saved_model = copy.deepcopy(store.checkpoint()), dict(committed)
        touched = {0, 5}
        for what, values in actions:
            if what.startswith("write"):
                write_all(store, values, what == "write one by one")
                staged |= {client: entry(value) for client, value in values.items()}
                touched |= values.keys()
            elif what == "commit":
                store.commit()
                committed |= staged
                staged = {}
            elif what == "forget":
                store.forget()
                staged = {}
            elif what == "checkpoint":
                saved, saved_model = copy.deepcopy(store.checkpoint()), dict(committed)
            else:  # killed: a new process has the last checkpoint and the file, whatever was written since
                store = store_at(path)
                store.restore(saved)
                committed, staged = dict(saved_model), {}
            check(store, committed, sorted(touched))
        store.commit()
        check(store, committed | staged, sorted(touched))


@pytest.mark.parametrize("in_file", [False, True])
def test_a_killed_run_finds_what_its_checkpoint_points_at(tmp_path: Path, in_file: bool) -> None:
    path = tmp_path / "clients" if in_file else None
    store = store_at(path)
    for number in range(1, 5):
        write_all(store, {client: 10 * number + client for client in range(10)}, one_by_one=False)
        store.commit()
    saved = copy.deepcopy(store.checkpoint())
    for number in range(5, 40):  # as often as it takes to use every free slot
        write_all(store, {client: 10 * number + client for client in range(12)}, one_by_one=False)
        store.commit()
    write_all(store, {3: 7}, one_by_one=True)  # a round that was under way
    again = store_at(path)
    again.restore(saved)
    check(again, {client: entry(40 + client) for client in range(10)}, [10, 11])
    # And it goes on from there, to another checkpoint and another kill.
    write_all(again, {client: 500 + client for client in range(5)}, one_by_one=False)
    again.commit()
    second = copy.deepcopy(again.checkpoint())
    write_all(again, dict.fromkeys(range(10), 900), one_by_one=False)
    again.commit()
    third = store_at(path)
    third.restore(second)
    check(third, {client: entry((500 if client < 5 else 40) + client) for client in range(10)}, [10])


def test_a_kill_before_the_new_checkpoint_was_saved_leaves_the_old_one(tmp_path: Path) -> None:
    store = store_at(tmp_path / "clients")
    write_all(store, {1: 1, 2: 2}, one_by_one=False)
    store.commit()
    old = copy.deepcopy(store.checkpoint())
    write_all(store, {1: 3}, one_by_one=False)
    store.commit()
    store.checkpoint()  # never reached the disk
    again = store_at(tmp_path / "clients")
    again.restore(old)
    check(again, {1: entry(1), 2: entry(2)}, [])


def test_rows_since_the_last_checkpoint_are_used_again(tmp_path: Path) -> None:
    store = store_at(tmp_path / "clients")
    for number in range(200):
        write_all(store, dict.fromkeys(range(10), number + 1), one_by_one=False)
        store.commit()
        if number % 50 == 0:
            store.checkpoint()
    # Those of the checkpoint, those committed, those staged, and the room to grow.
    assert (tmp_path / "clients").stat().st_size <= 45 * 2 * SIZE * 4


def test_what_was_staged_twice_takes_room_once(tmp_path: Path) -> None:
    store = store_at(tmp_path / "clients")
    for number in range(100):
        write_all(store, dict.fromkeys(range(10), number + 1), one_by_one=False)
    store.commit()
    check(store, {client: entry(100) for client in range(10)}, [])
    assert (tmp_path / "clients").stat().st_size == 16 * 2 * SIZE * 4


@pytest.mark.parametrize("in_file", [False, True])
def test_only_visitors_of_a_million_take_room(tmp_path: Path, in_file: bool) -> None:
    size, population = 10_000, 10**6
    path = tmp_path / "clients" if in_file else None
    store = ClientStore(["h"], size, ["round"], path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    visitors = range(population - 1, 0, -population // 100)
    for client in visitors:
        store.write(client, {"h": torch.full((size,), float(client))}, {"round": 1.0})
        store.commit()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 60_000  # KiB; a population of these vectors would be 40 GB
    assert len(store) == len(visitors)
    if path is not None:
        assert path.stat().st_size <= 1.5 * (len(visitors) + 1) * size * 4
    vectors, _, known = store.read([population - 1, population - 2])
    assert known.tolist() == [True, False]
    assert vectors["h"][:, 0].tolist() == [float(population - 1), 0.0]


@pytest.mark.parametrize("in_file", [False, True])
def test_a_store_of_numbers_alone(tmp_path: Path, in_file: bool) -> None:
    path = tmp_path / "clients" if in_file else None
    store = ClientStore((), 1000, ("round", "rate"), path)
    store.write(7, {}, {"round": 3, "rate": 0.1})
    store.commit()
    saved = store.checkpoint()
    again = ClientStore((), 1000, ("round", "rate"), path)
    again.restore(saved)
    vectors, numbers, known = again.read([6, 7])
    assert vectors == {}
    assert numbers["rate"].tolist() == [0.0, 0.1]  # in double precision
    assert known.tolist() == [False, True]
    assert path is None or not path.exists()


def test_a_store_of_vectors_alone_and_of_nobody() -> None:
    store = ClientStore(("h",), 2, ())
    again = ClientStore(("h",), 2, ())
    again.restore(store.checkpoint())
    assert len(again) == 0
    store.write(1, {"h": torch.tensor([1.0, 2.0])}, {})
    store.commit()
    again.restore(store.checkpoint())
    vectors, numbers, known = again.read([0, 1])
    assert vectors["h"].tolist() == [[0.0, 0.0], [1.0, 2.0]]
    assert numbers == {}
    assert known.tolist() == [False, True]
    vectors, _, known = again.read([])
    assert vectors["h"].shape == (0, 2)
    assert known.shape == (0,)


def test_what_is_read_is_a_copy() -> None:
    store = store_at(None)
    write_all(store, {1: 5}, one_by_one=True)
    store.commit()
    store.read([1])[0]["h"].zero_()
    check(store, {1: entry(5)}, [])
    saved = store.checkpoint()
    write_all(store, {1: 6}, one_by_one=True)
    store.commit()
    again = store_at(None)
    again.restore(saved)
    check(again, {1: entry(5)}, [])


def test_what_a_store_refuses(tmp_path: Path) -> None:
    path = tmp_path / "clients"
    store = store_at(path)
    write_all(store, {1: 5, 2: 6}, one_by_one=False)
    store.commit()
    saved = store.checkpoint()
    with pytest.raises(ValueError, match="once at a time"):
        store.write_many([1, 1], {}, {})
    with pytest.raises(ValueError, match="6 numbers for each client and this run 4"):
        ClientStore(("h",), 4, ("round",), path).restore(saved)
    with pytest.raises(ValueError, match="resume with the store it was made with"):
        store_at(None).restore(saved)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match=r"are not in .*clients: resume where that file is, or begin anew"):
        store_at(path).restore(saved)
    path.unlink()
    with pytest.raises(ValueError, match="resume where that file is"):
        store_at(path).restore(saved)


def test_a_checkpoint_of_memory_can_go_on_in_a_file(tmp_path: Path) -> None:
    store = store_at(None)
    write_all(store, {1: 5, 2: 6}, one_by_one=False)
    store.commit()
    again = store_at(tmp_path / "clients")
    again.restore(store.checkpoint())
    check(again, {1: entry(5), 2: entry(6)}, [])
    third = store_at(tmp_path / "clients")
    third.restore(again.checkpoint())
    check(third, {1: entry(5), 2: entry(6)}, [])


def test_a_failed_write_is_forgotten() -> None:
    store = store_at(None)
    write_all(store, {1: 5}, one_by_one=True)
    store.commit()
    wrong: dict[str, Tensor] = {"h": torch.zeros(1, SIZE), "velocity": torch.zeros(1, SIZE + 1)}
    with pytest.raises(ValueError, match="velocity must be of shape 1 x 3"):
        store.write_many([1], wrong, {"round": torch.ones(1)})
    store.forget()
    check(store, {1: entry(5)}, [])


def test_clients_states_that_find_no_room_are_an_error_and_no_signal(tmp_path: Path) -> None:
    store = ClientStore(["h"], 100, ["round"], tmp_path / "clients.f32")
    with files_of_at_most(2000), pytest.raises(CannotWrite, match=r"clients.f32 could not be written"):
        store.write(1, {"h": torch.ones(100)}, {"round": 1.0})
