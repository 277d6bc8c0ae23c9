"""A federation over Flower, of real processes on this machine, with TLS and nodes that prove who they are."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import sordino as sd
from flower_world import BIN, World, node_key
from sordino.cli.flower_app import flags_of
from sordino.cli.main import app
from sordino.data import load
from sordino.models import build_model
from sordino.network.flower.superlink import SuperLink
from sordino.noise import Streams

pytest.importorskip("flwr")
DIGITS = load("digits")
MODEL = "mlp:16"
LOSS = torch.nn.CrossEntropyLoss(reduction="none")
TOLERANCE = 1e-6


def dealt(nodes: int, per_node: int) -> list[np.ndarray[Any, Any]]:
    return np.array_split(np.random.default_rng(0).permutation(len(DIGITS.train[1])), nodes * per_node)


def rows_of(folder: Path, node: int, parts: list[np.ndarray[Any, Any]]) -> Path:
    inputs, targets = DIGITS.train
    rows = np.concatenate(parts)
    users = np.repeat(range(len(parts)), [len(part) for part in parts])
    np.savez(folder / f"rows{node}.npz", x=inputs[rows].numpy(), y=targets[rows].numpy(), users=users)
    return folder / f"rows{node}.npz"


def command(world: World, nodes: int, *flags: object) -> list[str]:
    security = ["--root-certificates", world.folder / "ca.crt", "--superlink-secret", world.folder / "secret"]
    return [
        str(each)
        for each in (
            BIN / "sordino", "federate", "digits", "--engine", "flower", "--superlink", world.address,
            *(security if world.secure else []), "--nodes", nodes, "--model", MODEL, *flags,
        )
    ]  # fmt: skip


def federated(
    world: World, nodes: int, *flags: object, timeout: float = 300.0
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(world, nodes, *flags), env=world.environment, capture_output=True, text=True, timeout=timeout
    )


def simulated(parts: list[np.ndarray[Any, Any]], seed: int, **asked: Any) -> dict[str, torch.Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(Streams.from_seed(seed).seed_for("initialisation", 0))
        model = build_model(MODEL, (1, 8, 8), 10)
    sd.federate(model, LOSS, DIGITS.train, clients=len(parts), partition=parts, seed=seed, **asked)
    return model.state_dict()


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    flat = [torch.cat([state[name].flatten() for name in sorted(state)]) for state in (one, other)]
    return float((flat[0] - flat[1]).norm() / flat[0].norm())


def test_two_nodes_with_tls_come_to_the_model_of_the_simulator(tmp_path: Path) -> None:
    """One is `sordino node`, one is Flower's own SuperNode; a third has a key that nobody registered."""
    parts = dealt(2, 3)
    (tmp_path / "elsewhere").mkdir()
    with World(tmp_path) as world:
        world.worker("ours", rows_of(tmp_path, 0, parts[:3]), register=False)  # which the server does
        world.node("theirs", f'data="{rows_of(tmp_path, 1, parts[3:])}" state="{tmp_path}/state-theirs"')
        strange = node_key(tmp_path / "elsewhere", "stranger")
        world.worker("stranger", rows_of(tmp_path, 0, parts[:3]), key=strange, register=False)
        done = federated(
            world,
            2,
            "--node-keys",
            tmp_path,
            "--rounds",
            3,
            "--per-round",
            4,
            "--seed",
            5,
            "--out",
            tmp_path / "run",
            "--json",
        )
        assert done.returncode == 0, done.stderr + world.log("theirs")
        assert "the SuperLink does not take this node yet" in world.log("stranger")
    summary = json.loads(done.stdout)
    assert summary["clients"] == 6
    assert summary["engine"] == "flower"
    model = load_file(tmp_path / "run" / "model.safetensors")
    assert distance(simulated(parts, 5, rounds=3, per_round=4, algorithm="adabest"), model) < TOLERANCE
    assert not list(tmp_path.glob("state-*/federations/*"))  # what clients kept is gone with the federation


# What is refused before anybody is asked


def refused(*flags: object) -> str:
    done = CliRunner().invoke(app, ["federate", "digits", *map(str, flags)])
    assert isinstance(done.exception, ValueError)  # one line, exit code 2
    return str(done.exception)


def test_flags_that_do_not_belong_together_get_one_line() -> None:
    assert "give --engine flower" in refused("--nodes", 3)
    assert "needs --nodes" in refused("--engine", "flower", "--superlink", "127.0.0.1:1")
    assert "needs --superlink" in refused("--engine", "flower", "--nodes", 2)
    assert "HOST:PORT" in refused("--engine", "flower", "--nodes", 2, "--superlink", "nowhere")
    assert "there is no SuperLink at" in refused(
        "--engine", "flower", "--nodes", 2, "--superlink", "127.0.0.1:9"
    )
    assert "leave out --clients" in refused("--engine", "flower", "--nodes", 2, "--clients", 7)


def test_a_configuration_is_a_command_line() -> None:
    assert flags_of({"data": "people.csv", "nodes": 2, "without-tls": True, "epsilon": 8.0, "out": ""}) == [
        "people.csv", "--engine", "flower", "--nodes", "2", "--without-tls", "--epsilon", "8.0",
    ]  # fmt: skip


def test_outside_of_this_machine_tls_is_the_rule() -> None:
    from sordino.cli.flower import superlink_at

    assert superlink_at("10.0.0.1:8000", None, None, False).tls
    assert not superlink_at("10.0.0.1:8000", None, None, True).tls
    assert not superlink_at("127.0.0.1:8000", None, None, False).tls


def test_a_superlink_that_takes_anybody_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sordino.network.flower.server import reached

    with World(tmp_path, secure=False, database=False) as world:
        here = SuperLink(world.address, tls=False)
        assert here.takes_anybody()
        monkeypatch.setattr(SuperLink, "is_alone", False)
        assert here.lets_anybody_serve()
        with pytest.raises(ValueError, match="speaks in the clear"), reached(here, 2):
            pass
        with pytest.raises(ValueError, match="nobody registered"), reached(here, 2, without_tls=True):
            pass
        node_key(tmp_path, "mine")
        with (
            pytest.raises(ValueError, match="anybody be the server"),
            reached(here, 2, tmp_path, without_tls=True),
        ):
            pass
        with reached(here, 2, None, True, True) as across:
            assert not across.bound
            assert any("in the clear" in each for each in across.trust)


def test_keys_are_read_as_ssh_writes_them(tmp_path: Path) -> None:
    from sordino.network.flower.superlink import node_keys

    node_key(tmp_path, "a")
    node_key(tmp_path, "b")
    assert len(node_keys(tmp_path)) == 2
    assert len(node_keys(tmp_path / "a.pub")) == 1
    (tmp_path / "words").write_text("no key")
    with pytest.raises(ValueError, match="does not hold public keys"):
        node_keys(tmp_path / "words")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="holds no public key"):
        node_keys(tmp_path / "empty")


def test_nodes_whose_keys_are_not_known_are_not_there() -> None:
    from types import SimpleNamespace

    from sordino.network.flower.link import GridLink

    nodes = [
        SimpleNamespace(node_id=1, public_key=b"mine"),
        SimpleNamespace(node_id=2, public_key=b"another"),
    ]
    grid: Any = SimpleNamespace(get_nodes=lambda: nodes)
    assert GridLink(grid).nodes() == [1, 2]
    assert GridLink(grid, keys=frozenset({b"mine"})).nodes() == [1]


def test_answers_are_fetched_as_many_at_a_time_as_memory_allows() -> None:
    from sordino.network.flower.link import _in_parts

    waiting = {"a": 1, "b": 2, "c": 3}
    assert _in_parts(waiting, {1: 10, 2: 10, 3: 10}) == [["a", "b", "c"]]
    assert _in_parts(waiting, {1: 1 << 27, 2: 1 << 27, 3: 1 << 29}) == [["a", "b"], ["c"]]


def test_whether_others_reach_a_port_of_this_machine_is_known() -> None:
    import socket

    for host, alone in (("127.0.0.1", True), ("0.0.0.0", False)):
        with socket.socket() as listening:
            listening.bind((host, 0))
            listening.listen()
            assert SuperLink(f"127.0.0.1:{listening.getsockname()[1]}").is_alone == alone
    assert not SuperLink("10.0.0.1:8000").is_alone


def test_a_reply_that_is_no_message_is_that_node_s_own_fault() -> None:
    from types import SimpleNamespace

    from sordino.network.flower.link import GridLink

    def pull(numbers: list[str]) -> list[Any]:
        if "bad" in numbers:
            raise AttributeError("'RecordDict' object has no attribute 'metadata'")
        return [SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id=each)) for each in numbers]

    grid: Any = SimpleNamespace(pull_messages=pull)
    found = dict(GridLink(grid)._pulled(["good", "bad", "fine"]))
    assert found["bad"] is None
    assert found["good"] is not None
    assert found["fine"] is not None


# Kills, for `make soak`

KILLS: dict[str, list[object]] = {
    "adabest": ["--algorithm", "adabest"],
    "dp-ftrlm": ["--server", "dp-ftrlm", "--epsilon", 8, "--delta", 1e-2, "--set", "learning_rate=0.1"],
}


@pytest.mark.soak
@pytest.mark.parametrize("victim", ["node", "server", "superlink"])
@pytest.mark.parametrize("kind", KILLS)
def test_killed_in_the_middle_of_a_round_it_completes_or_resumes(
    victim: str, kind: str, tmp_path: Path
) -> None:
    parts, flags = (
        dealt(3, 3),
        [*KILLS[kind], "--rounds", 6, "--per-round", 9, "--seed", 5, "--out", tmp_path / "run"],
    )
    flags += [
        "--ledger",
        tmp_path / "ledger.db",
        "--data-name",
        "rows",
        "--local-epochs",
        200,
        "--patience",
        60,
    ]
    with World(tmp_path) as world:
        keys = [node_key(tmp_path, f"node{node}") for node in range(3)]
        files = [rows_of(tmp_path, node, parts[3 * node : 3 * node + 3]) for node in range(3)]
        for node in range(3):
            world.worker(f"node{node}", files[node], key=keys[node])
        log = (tmp_path / "server.log").open("w")
        server = subprocess.Popen(command(world, 3, *flags), env=world.environment, stdout=log, stderr=log)
        history = tmp_path / "run" / "history.jsonl"
        _until(lambda: history.exists() and len(history.read_text().splitlines()) >= 2, server)
        time.sleep(0.7)  # in the middle of round 3 or 4
        if victim == "node":
            world.end("node1")
            world.worker("node1", files[1], key=keys[1], register=False)
        elif victim == "superlink":
            world.end("superlink")
            time.sleep(2)
            world.superlink()
        else:
            server.send_signal(signal.SIGKILL)
            server.wait()
            spent = json.loads((tmp_path / "run" / "run.json").read_text())["planned_epsilon"]
            again = federated(world, 3, *flags, "--resume")
            assert again.returncode == 0, again.stderr
        code = server.wait(timeout=240)
        assert code == (-9 if victim == "server" else 0), (tmp_path / "server.log").read_text()
    summary = json.loads((tmp_path / "run" / "run.json").read_text())
    assert summary["status"] == "complete" if "status" in summary else True
    if victim == "server" and kind != "adabest":
        assert summary["epsilon"] <= spent
    checked = subprocess.run(
        [str(BIN / "sordino"), "verify", str(tmp_path / "run"), "--ledger", str(tmp_path / "ledger.db")],
        capture_output=True, text=True,
    )  # fmt: skip
    if kind != "adabest":
        assert checked.returncode == 0, checked.stderr + checked.stdout
    if victim != "node":  # nobody was missing in any round, so it is the uninterrupted run
        asked: dict[str, Any] = {"rounds": 6, "per_round": 9, "local_epochs": 200, "algorithm": "adabest"}
        if kind == "adabest":
            model = load_file(tmp_path / "run" / "model.safetensors")
            assert distance(simulated(parts, 5, **asked), model) < 1e-4  # 200 passes amplify last digits


def _until(true: Any, process: subprocess.Popen[Any], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        assert process.poll() is None
        time.sleep(0.02)
