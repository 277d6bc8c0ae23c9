"""Clients on Ray: the same as in one process, also where a worker is lost, and nothing of rows in what Ray says."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import sordino as sd
from conftest import sordino as run_sordino
from sordino.data import as_examples
from sordino.federated import OwnLoop, machinery, ray_pool
from sordino.federated.engines.gradients import engine_named
from sordino.federated.ray_pool import Actor, Actors, Shares, joined
from test_federate import DIGITS, private, start, theta
from test_federated_user_level import recorded_sums

FIRST = "ray" not in sys.modules  # or it was told before us what to print
ray = ray_pool._imported()
IDLE: list[Any] = []


@pytest.fixture(scope="module", autouse=True)
def _ray() -> Iterator[None]:
    """One for all: it takes seconds to start. So these tests are those of a program that has Ray already."""
    quiet = {"include_dashboard": False, "log_to_driver": False, "logging_level": "error"}
    with warnings.catch_warnings(action="ignore"):
        ray.init(num_cpus=2, object_store_memory=200 * 2**20, **quiet)
    yield
    IDLE.clear()
    ray.shutdown()


@pytest.fixture(autouse=True)
def _workers_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """From one run for the next, if they are idle: they take seconds to start too."""
    begin = Actors._begun

    def begun(self: Actors, processors: int) -> Any:
        return IDLE.pop() if IDLE else begin(self, processors)

    def end(self: Actor) -> None:
        try:
            ray.get(self.actor.__ray_ready__.remote(), timeout=0.3)
        except (ray.exceptions.RayError, TimeoutError):
            ray.kill(self.actor)
        else:
            IDLE.append(self.actor)

    monkeypatch.setattr(Actors, "_begun", begun)
    monkeypatch.setattr(Actor, "end", end)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def cnn() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 10))


def same(run: sd.Run, other: sd.Run) -> bool:
    """The same model, and the same of all that is said of the rounds."""
    return torch.equal(theta(run), theta(other)) and run.history == other.history


def beside(begin: Any = start, workers: int = 2, model: Any = None, **settings: Any) -> tuple[sd.Run, sd.Run]:
    """On Ray, and in this process with the gradients that were chosen there."""
    on_ray = begin(model=model and model(), engine="ray", workers=workers, **settings)
    engine, where = on_ray.summary["engine"].split(" on ")
    assert (where, on_ray.summary["workers"]) == ("Ray", workers)
    return on_ray, begin(model=model and model(), engine=engine, workers=1, **settings)


# The same result ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [
        {"algorithm": "adabest", "model": cnn, "per_round": 7},
        {"algorithm": "scaffold", "local": "adadp"},
        {"begin": private, "algorithm": "adabest", "local": "adadp", "per_round": 8},
    ],
    ids=["convolutions", "own rates", "private"],
)
def test_one_and_two_workers_of_ray_come_to_the_result_of_one_process(settings: dict[str, Any]) -> None:
    on_ray, here = beside(rounds=3, **settings)
    assert same(on_ray, here)
    assert same(beside(rounds=3, workers=1, **settings)[0], here)


class Shifted(Dataset[tuple[Tensor, Tensor]]):
    """Rows that are others each time."""

    def __len__(self) -> int:
        return 200

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return DIGITS.train[0][row] + 0.1 * torch.randn(()), DIGITS.train[1][row]


def test_rows_that_are_drawn_when_they_are_read_are_drawn_by_the_streams_of_clients() -> None:
    assert same(*beside(data=Shifted(), rounds=2, clients=8, per_round=3, partition="iid"))


def test_rows_of_a_client_as_a_function_and_those_that_cannot_be_had() -> None:
    """A client that raises is left out with the same words, one without rows too, and a row may come twice."""

    def rows(client: int) -> Any:
        if client == 3:
            raise KeyError("nobody")
        return np.arange(0 if client == 4 else 20 + client) % 15 + 7 * client

    crowd = sd.Population(DIGITS.train, 8, rows, mean_examples=22)
    on_ray, here = beside(
        data=crowd, partition="iid", clients=None, per_round=8, rounds=2, max_examples=18, algorithm="fedavg"
    )
    assert same(on_ray, here)
    assert on_ray.history[0]["left_out"]["3"] == "raised KeyError: 'nobody'"
    assert "no rows" in on_ray.history[0]["left_out"]["4"]


def loop(theta_d: Tensor, inputs: Tensor, targets: Tensor, generator: torch.Generator) -> Tensor:
    """Of a module that workers cannot import: it goes along."""
    return theta_d * (1 - 0.01 * inputs.mean() * torch.rand((), generator=generator)) + len(targets) * 1e-4


def test_a_loop_of_ones_own() -> None:
    assert same(*beside(algorithm="fedavg", local=OwnLoop(loop), rounds=2))


def test_a_private_run_goes_on_bit_for_bit_and_only_on_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Cut(Exception):
        pass

    def cut(seen: Any) -> None:
        if seen.step == 3:
            raise Cut

    whole = private(engine="ray", per_round=8)
    with pytest.raises(Cut):
        private(engine="ray", per_round=8, out=tmp_path / "cut", observe=cut)
    with pytest.raises(ValueError, match="engine changed"):
        private(per_round=8, out=tmp_path / "cut", resume=True)
    again = private(engine="ray", per_round=8, out=tmp_path / "cut", resume=True)
    assert same(again, whole)
    assert "Ray cluster" in " ".join(again.certificate["assumptions"])


# A worker that is lost ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("begin", [start, private], ids=["open", "private"])
def test_a_lost_worker_is_replaced_and_its_chunk_done_again(
    begin: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As a whole: mapped convolutions of fewer clients at a time come to other last digits."""
    lost: list[Any] = []
    real = Actor.give

    def give(self: Actor, chunk: Any) -> None:
        real(self, chunk)
        if not lost and len(chunk.clients) == 5:
            lost.append(chunk.clients)
            ray.kill(self.actor)

    def mapped(model: Any, loss: Any, vector: Any, *rest: Any) -> Any:
        return "mapped", engine_named("mapped", model, loss, vector, reuse=True)

    monkeypatch.setattr(Actor, "give", give)
    monkeypatch.setattr(machinery, "measured_engine", mapped)
    on_ray, here = beside(begin, model=cnn, per_round=10, clients=12, rounds=1)
    assert len(lost) == 1
    assert same(on_ray, here)
    assert capfd.readouterr() == ("", "")


def test_a_worker_that_is_gone_before_it_begins_is_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine that is gone, of which Ray does not know yet."""
    begin, made = Actors._begun, []

    def begun(self: Actors, processors: int) -> Any:
        actor = begin(self, processors)
        made.append(actor)
        if len(made) == 1:
            ray.kill(actor)
        return actor

    monkeypatch.setattr(Actors, "_begun", begun)
    monkeypatch.setattr(ray_pool, "_UNTIL_NEXT", (0, 0))
    assert same(*beside(rounds=1))
    assert len(made) == 3
    monkeypatch.setattr(ray_pool, "_UNTIL_NEXT", ())
    with pytest.raises(ValueError, match="cannot keep workers alive"):
        start(engine="ray", rounds=1)


TWO_MACHINES = """
import os, sys, time
from sordino.federated import ray_pool
ray = ray_pool._imported()
from ray.cluster_utils import Cluster
import torch
torch.set_num_threads(1)
from test_federate import start, theta

room = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
cluster = Cluster(initialize_head=True, head_node_args={**room, "include_dashboard": False})
other = cluster.add_node(**room)
os.environ["RAY_ADDRESS"] = cluster.address

def watch(seen):
    where = {each["Address"]["NodeID"] for each in ray._private.state.actors().values() if each["State"] == "ALIVE"}
    assert len(where) == (2 if seen.step <= 3 else 1), (seen.step, where)
    if seen.step == 3:
        cluster.remove_node(other, allow_graceful=False)
        time.sleep(8)  # its workers notice by then

run = start(engine="ray", rounds=6, per_round=20, observe=watch)
assert run.summary["workers"] == 2 and not ray.is_initialized()
here = start(engine=run.summary["engine"].split()[0], rounds=6, per_round=20, workers=1)
assert torch.equal(theta(run), theta(here)) and run.history == here.history
cluster.shutdown()
"""


@pytest.mark.soak
def test_a_machine_that_is_lost_changes_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", TWO_MACHINES], cwd=Path(__file__).parent, capture_output=True, timeout=300
    )
    assert done.returncode == 0, done.stderr.decode()[-2000:]


def test_a_client_that_takes_its_worker_along_is_left_out_without_a_sound(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def wicked(theta_d: Tensor, inputs: Tensor, targets: Tensor, generator: torch.Generator) -> Tensor:
        if len(targets) == 21:
            os._exit(1)
        if len(targets) == 22:
            raise ValueError("what only this row says")
        return theta_d + inputs.mean() * 0.01

    parts = [np.arange(20), np.arange(100, 121), np.arange(200, 222)]
    settings: dict[str, Any] = {"partition": parts, "clients": 3, "rounds": 1, "algorithm": "fedavg"}
    settings |= {"clip": sd.Fixed(0.05), "participation": sd.Poisson(1.0), "chunk": 1}
    with warnings.catch_warnings(action="ignore"):
        (found,) = recorded_sums(**settings, local=OwnLoop(wicked), engine="ray", workers=1)
        (alone,) = recorded_sums(**{**settings, "partition": parts[:1], "clients": 1}, local=OwnLoop(wicked))
    assert torch.equal(found, alone)
    said = capfd.readouterr()
    assert said == ("", "") or not FIRST
    logs = Path(ray._private.worker._global_node.get_logs_dir_path())
    assert not [path for path in logs.iterdir() if path.is_file() and b"only this row" in path.read_bytes()]


def test_a_client_that_takes_too_long_is_left_out() -> None:
    def slow(theta_d: Tensor, inputs: Tensor, targets: Tensor, generator: torch.Generator) -> Tensor:
        if len(targets) == 21:
            threading.Event().wait(60)
        return theta_d + inputs.mean() * 0.01

    parts = [np.arange(20), np.arange(100, 121)]
    base: dict[str, Any] = {"partition": parts, "clients": 2, "per_round": 2, "rounds": 1}
    base |= {"algorithm": "fedavg", "local": OwnLoop(slow), "patience": 0.5, "chunk": 1}
    run = start(**base, engine="ray", workers=2)
    assert run.history[0]["left_out"] == {"1": "never came back"}


def test_what_goes_wrong_in_a_worker_is_not_said() -> None:
    """Ray would send it here, and write it down: it may quote a row."""
    place = ray_pool.Place()
    assert place.work(b"no chunk") is None
    assert "UnpicklingError" in place.ready(b"no model") or "RuntimeError" in place.ready(b"no model")


# What each worker has -----------------------------------------------------------------------------------------


def test_rows_are_stored_once_and_let_go_before_the_store_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    crowd = sd.Population((torch.zeros(100, 10), torch.zeros(100)), 9, lambda c: np.arange(10), 10)  # type: ignore[arg-type]
    shares = Shares(ray, crowd)
    shares._room = 3 * 10 * 11 * 4
    first = shares.of(0)
    assert shares.of(0) is first
    kept = [shares.of(client) for client in (1, 2, 0, 3)]  # 1 was asked for least recently
    assert list(shares._held) == [2, 0, 3]
    assert kept[2] is first
    assert shares._bytes == shares._room


def test_rows_reach_a_chunk_as_they_are_whatever_their_kind() -> None:
    inputs = {"a": torch.randn(9, 2).bfloat16(), "b": (torch.arange(9), torch.rand(9, 3) > 0.5)}
    crowd = sd.Population((inputs, torch.rand(9)), 3, lambda c: np.arange(c, 9, 3), 3)  # type: ignore[arg-type]
    nobody = sd.Population(crowd.examples.template(1), 1, ray_pool._nobodys, 1)  # type: ignore[arg-type]
    rows = ray.get([Shares(ray, crowd).of(client) for client in (2, 0)])
    chunk = ray_pool._of_chunk(nobody, (2, 0), rows)
    for client in (2, 0):
        found = chunk.examples.take(torch.from_numpy(chunk.rows(client)))
        torch.testing.assert_close(found, crowd.examples.take(torch.from_numpy(crowd.rows(client))))


def test_what_is_sent_once_holds_no_row_and_the_parameters_once() -> None:
    model = nn.Sequential(*[nn.Linear(100, 100) for _ in range(10)])
    vector = sd.ParameterVector(model)
    held = ray_pool._portable(ray, (model, as_examples((torch.zeros(1, 100), torch.zeros(1)))))
    assert len(held) < 1.1 * 4 * len(vector)


# One line -----------------------------------------------------------------------------------------------------


def test_a_missing_package_is_one_line(monkeypatch: pytest.MonkeyPatch, here: Path, capsys: Any) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    arguments = ("federate", "digits", "--engine", "ray", "--rounds", "1", "--seed", "1")
    assert run_sordino(monkeypatch, *arguments) == 2
    assert "pip install 'sordino[ray]'" in capsys.readouterr().err


def test_what_cannot_be_sent_is_one_line() -> None:
    lock = threading.Lock()

    def locked(theta_d: Tensor, inputs: Tensor, targets: Tensor, generator: torch.Generator) -> Tensor:
        with lock:
            return theta_d

    with pytest.raises(ValueError, match=r"cannot be sent to Ray's workers: .*lock"):
        start(algorithm="fedavg", local=OwnLoop(locked), engine="ray", rounds=1)


def test_what_workers_cannot_import_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_pool, "_own_modules", list)
    with pytest.raises(ValueError, match="cannot load what they are sent: ModuleNotFoundError"):
        start(algorithm="fedavg", local=OwnLoop(loop), engine="ray", workers=1, rounds=1)


def test_a_device_is_refused() -> None:
    with pytest.raises(ValueError, match="on processors"):
        start(engine="ray", device="meta", rounds=1)


def test_ray_is_ended_if_it_was_begun_here_and_else_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.delenv("RAY_USAGE_STATS_ENABLED", raising=False)  # the real one may have set it

    def begin(**options: Any) -> None:
        assert os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
        assert options["log_to_driver"] is False
        calls.append("init")

    running = SimpleNamespace(is_initialized=lambda: True)
    absent = SimpleNamespace(
        is_initialized=lambda: False, init=begin, shutdown=lambda: calls.append("shutdown")
    )
    monkeypatch.setitem(sys.modules, "ray", running)
    with joined():
        pass
    assert calls == []
    monkeypatch.setitem(sys.modules, "ray", absent)
    with pytest.raises(KeyError), joined():
        raise KeyError
    assert calls == ["init", "shutdown"]
    absent.init = lambda **options: (_ for _ in ()).throw(ConnectionError("nobody at 10.0.0.1\nmore"))
    with pytest.raises(ValueError, match=r"reached: nobody at 10\.0\.0\.1$"), joined():
        pass


def test_as_many_workers_as_the_cluster_has_processors_or_a_round_has_chunks() -> None:
    assert start(engine="ray", per_round=4, rounds=1).summary["workers"] == 1
    assert start(engine="ray", per_round=20, rounds=1).summary["workers"] == 2
    many = start(engine="ray", per_round=20, rounds=1, workers=3)  # than there are processors
    assert many.summary["workers"] == 3
