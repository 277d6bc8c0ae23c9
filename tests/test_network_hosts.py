"""The page about networks, command by command, between hosts of their own: network namespaces with a wire between them.

For `make soak`, as root on Linux with iproute2, tcpdump, openssl and ssh-keygen; elsewhere it is skipped.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from flower_world import BIN

PAGE = Path(__file__).parent.parent / "docs" / "networks.md"
TOOLS = ("ip", "tcpdump", "openssl", "ssh-keygen")
pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(
        os.getuid() != 0 or not all(map(shutil.which, TOOLS)), reason="needs root and iproute2"
    ),
]
HOSTS = {"server": "10.0.0.1", "clinic": "10.0.0.2", "lab": "10.0.0.3"}


def commands(step: str) -> str:
    """The shell of a step of the page."""
    text = PAGE.read_text()
    part = text[text.index(step) :]
    found = re.search(r"```sh\n(.*?)```", part, re.S)
    assert found is not None
    return found.group(1)


class Hosts:
    """Namespaces on one switch."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.tag = folder, f"sd{os.getpid() % 10000}"
        self.processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Hosts:
        def run(*words: str) -> None:
            subprocess.run(words, check=True)

        run("ip", "netns", "add", f"{self.tag}-switch")
        inside = ("ip", "-n", f"{self.tag}-switch")
        run(*inside, "link", "add", "br0", "type", "bridge")
        run(*inside, "link", "set", "br0", "up")
        for i, (name, address) in enumerate(HOSTS.items()):
            space = f"{self.tag}-{name}"
            run("ip", "netns", "add", space)
            run(
                "ip",
                "link",
                "add",
                "eth0",
                "netns",
                space,
                "type",
                "veth",
                "peer",
                "name",
                f"p{i}",
                "netns",
                f"{self.tag}-switch",
            )
            run(*inside, "link", "set", f"p{i}", "master", "br0", "up")
            run("ip", "-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
            run("ip", "-n", space, "link", "set", "eth0", "up")
            run("ip", "-n", space, "link", "set", "lo", "up")
        return self

    def __exit__(self, *args: object) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for name in ("switch", *HOSTS):
            subprocess.run(["ip", "netns", "del", f"{self.tag}-{name}"], check=False)

    def environment(self, host: str) -> dict[str, str]:
        return {
            **os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_HOME": str(self.folder / f"flwr-{host}"), "HOME": str(self.folder / f"home-{host}"),
            "FLWR_DISABLE_UPDATE_CHECK": "1", "OMP_NUM_THREADS": "1",
        }  # fmt: skip

    def words(self, host: str, shell: str) -> list[str]:
        return ["ip", "netns", "exec", f"{self.tag}-{host}", "bash", "-ec", shell]

    def start(self, host: str, shell: str, log: str) -> subprocess.Popen[bytes]:
        with (self.folder / log).open("wb") as file:
            process = subprocess.Popen(
                self.words(host, shell), cwd=self.folder / host, env=self.environment(host), stdout=file, stderr=file,
                start_new_session=True,
            )  # fmt: skip
        self.processes.append(process)
        return process

    def run(self, host: str, shell: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.words(host, shell), cwd=self.folder / host, env=self.environment(host), capture_output=True, text=True,
            timeout=400,
        )  # fmt: skip


SCHEMA = """
[target]
name = "ill"
labels = ["no", "yes"]

[[column]]
name = "age"
kind = "number"
low = 0
high = 100

[[column]]
name = "pressure"
kind = "number"
low = 50
high = 250

[[column]]
name = "patient"
kind = "ignore"
"""


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    chance = np.random.default_rng(0)
    for host in HOSTS:
        (tmp_path / host).mkdir()
        (tmp_path / f"home-{host}").mkdir()
    for host in ("clinic", "lab"):
        lines = ["age,pressure,patient,ill"]
        for patient in range(150):
            for _ in range(4):
                age, pressure = chance.uniform(0, 100), chance.uniform(50, 250)
                ill = "yes" if age + pressure / 2 + chance.normal(0, 10) > 125 else "no"
                lines.append(f"{age:.0f},{pressure:.0f},{host}{patient},{ill}")
        (tmp_path / host / f"{host}.csv").write_text("\n".join(lines))
    (tmp_path / "server" / "people.schema.toml").write_text(SCHEMA)
    with Hosts(tmp_path) as made:
        yield made


def test_the_page_is_enough_and_the_wire_shows_nothing(hosts: Hosts, tmp_path: Path) -> None:
    server = tmp_path / "server"
    made = hosts.run("server", commands("**1. On the server"))
    assert made.returncode == 0, made.stderr
    (server / "nodes").mkdir()
    for host in ("clinic", "lab"):
        made = hosts.run(host, commands("**2. At each hospital").replace("clinic", host))
        assert made.returncode == 0, made.stderr
        shutil.copy(tmp_path / host / f"{host}.pub", server / "nodes")
        shutil.copy(server / "ca.crt", tmp_path / host)
    capture = hosts.start("server", "exec tcpdump -i eth0 -U -w capture.pcap tcp port 8000", "tcpdump.log")
    hosts.start("server", commands("**3. On the server"), "superlink.log")
    time.sleep(3)
    for host in ("clinic", "lab"):
        hosts.start(host, commands("**4. At each hospital").replace("clinic", host), f"{host}.log")
    # A stranger with a key of its own, which nobody gave to the server, and one without a key.
    made = hosts.run("lab", "ssh-keygen -q -t ecdsa -b 384 -N '' -f stranger")
    knock = commands("**4. At each hospital").replace("clinic clinic.csv", "stranger lab.csv")
    hosts.start("lab", knock.replace("--key clinic", "--key stranger"), "stranger.log")
    nobody = hosts.run("lab", knock.replace("--key clinic", "--without-authentication"))
    assert nobody.returncode == 2
    assert "give the node's key as --key" in nobody.stderr
    asked = commands("**5. On the server").replace("--rounds 100", "--rounds 12")
    done = hosts.run("server", asked)
    assert done.returncode == 0, done.stderr + (tmp_path / "clinic.log").read_text()[-2000:]
    print(done.stdout)
    summary = json.loads((server / "runs/us/run.json").read_text())
    assert summary["clients"] == 300
    assert "clear" not in str(summary["assumptions"])
    checked = hosts.run(
        "server", "sordino verify runs/us --ledger us.db && sordino ledger verify --ledger us.db"
    )
    assert checked.returncode == 0, checked.stderr + checked.stdout
    stranger = (tmp_path / "stranger.log").read_text()
    assert "the SuperLink does not take this node" in stranger
    assert "federation" not in stranger
    capture.terminate()
    capture.wait()
    wire = (server / "capture.pcap").read_bytes()
    assert len(wire) > 100_000
    for word in (b"sordino", b"theta", b"pressure", b"clinic", b"flwr.proto", b"v1/fleet"):
        assert word not in wire
    for value in load_file(server / "runs/us/model.safetensors").values():
        assert value.numpy().tobytes()[:12] not in wire


def test_in_the_clear_the_same_capture_shows_it(hosts: Hosts, tmp_path: Path) -> None:
    """Or the test above would see nothing because there is nothing to see."""
    server = tmp_path / "server"
    capture = hosts.start("server", "exec tcpdump -i eth0 -U -w capture.pcap tcp port 8000", "tcpdump.log")
    hosts.start(
        "server",
        "flower-superlink --host 10.0.0.1 --port 8000 --isolation process --insecure",
        "superlink.log",
    )
    time.sleep(3)
    for host in ("clinic", "lab"):
        known = f"sordino node {host} {host}.csv --superlink 10.0.0.1:8000 --user-column patient"
        refused = hosts.run(host, known)
        assert refused.returncode == 2  # TLS is the rule, and a key
        hosts.start(host, f"{known} --without-tls --without-authentication", f"{host}.log")
    plain = (
        "sordino federate people.schema.toml --engine flower --superlink 10.0.0.1:8000 --nodes 2 --rounds 2"
    )
    plain += " --out runs/us"
    refused = hosts.run("server", f"{plain} --without-tls")
    assert refused.returncode == 2
    assert "--without-node-authentication" in refused.stderr
    done = hosts.run("server", f"{plain} --without-tls --without-node-authentication")
    assert done.returncode == 0, done.stderr
    assert "in the clear" in str(json.loads((server / "runs/us/run.json").read_text())["assumptions"])
    capture.terminate()
    capture.wait()
    wire = (server / "capture.pcap").read_bytes()
    assert b"sordino" in wire
    assert b"pressure" in wire
