"""A run on a SuperLink, of which this process is the server: begun, kept alive, begun anew when it is lost, and ended.

The SuperLink has to leave the server to us (``flower-superlink --isolation process``). A run of Flower's is transport
and nothing more: what a federation has done and spent is in our own directory, so that a lost one is replaced by the
next.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.cli.build import build_fab_from_files
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL
from flwr.common.serde import fab_to_proto, run_from_proto
from flwr.proto.control_pb2 import RegisterNodeRequest, StartRunRequest, StopRunRequest
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    RegisterNodeFleetRequest,
    UnregisterNodeFleetRequest,
)
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)
from flwr.serverapp import Grid
from flwr.supercore.constant import TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.supercore.fab import Fab
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import HttpGrid
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from sordino.network.flower.link import LOST, GridLink

_HEARTBEAT = 10.0  # seconds
_ABSENCE = 300.0  # seconds that a SuperLink may be away
_CLAIM = 10.0  # seconds within which the run must be ours
_ACQUIRE = "/flwr.proto.Runtime/AcquireTask"
_APP = {
    "pyproject.toml": b"""
[project]
name = "sordino-federation"
version = "1.0.0"
description = "Sordino's ClientApp; nodes have the code"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "sordino"

[tool.flwr.app.components]
serverapp = "sordino_app.server:app"
clientapp = "sordino_app.client:app"

[tool.flwr.app.config]
""",
    "sordino_app/__init__.py": b"",
    "sordino_app/client.py": b"from sordino.network.flower.client import app\n",
    "sordino_app/server.py": b"from sordino.cli.flower_app import app\n",
}


@dataclass(frozen=True)
class SuperLink:
    """Where it is, and how to get in. ``certificates`` is None for those of the system; ``tls`` is off on request."""

    address: str
    certificates: Path | None = None
    secret: Path | None = None
    tls: bool = True

    @property
    def is_loopback(self) -> bool:
        """Whether nothing that is said leaves this machine.

        >>> [SuperLink(each).is_loopback for each in ("127.0.0.1:8000", "localhost:80", "[::1]:80", "10.0.0.1:80")]
        [True, True, True, False]
        """
        host = self.address.rpartition(":")[0].strip("[]")
        with contextlib.suppress(ValueError):
            return ipaddress.ip_address(host).is_loopback
        return host == "localhost"

    @property
    def is_alone(self) -> bool:
        """Whether it is on this machine, and nobody reaches it from another."""
        return self.is_loopback and not _heard_elsewhere(int(self.address.rpartition(":")[2]))

    def client(self, kind: Callable[..., Any], *interceptors: Any) -> Any:
        """Without Flower's own retries, which end the process when a token is not known any more."""
        return kind(
            f"{'https' if self.tls else 'http'}://{self.address}",
            interceptors=[RuntimeVersionHttpInterceptor(component_name="sordino"), *interceptors],
            verify=self._verify,
        )

    @property
    def _verify(self) -> Any:
        if not self.tls or self.certificates is None:
            return self.tls
        import ssl

        return ssl.create_default_context(cafile=str(self.certificates))

    @property
    def _authority(self) -> list[Any]:
        if self.secret is None:
            return []
        return [
            SuperExecAuthHttpInterceptor(master_secret=self.secret.read_bytes(), protected_methods={_ACQUIRE})
        ]

    def takes_anybody(self) -> bool:
        """Whether a node that nobody registered gets in: tried, with a key that nobody knows."""
        key = ec.generate_private_key(ec.SECP384R1())
        public = key.public_key()
        fleet = self.client(FleetHttpClient, NodeAuthHttpInterceptor(key, public))
        try:
            found = fleet.RegisterNode(RegisterNodeFleetRequest(public_key=public_key_to_bytes(public)))
            fleet.UnregisterNode(UnregisterNodeFleetRequest(node_id=found.node_id))
        except httpx.HTTPStatusError as error:
            why = FlowerError.from_json(error.response.text)
            if why is not None and why.code == ApiErrorCode.FLEET_SUPERNODE_REGISTRATION_DISABLED:
                return False
            raise
        finally:
            fleet.close()
        return True

    def lets_anybody_serve(self) -> bool:
        """Whether whoever reaches it can be the server of a run: tried, without asking for one."""
        runtime = self.client(RuntimeHttpClient)
        try:
            runtime.AcquireTask(AcquireTaskRequest())
        except httpx.HTTPStatusError as error:
            if error.response.status_code in (401, 403):
                return False
            raise
        finally:
            runtime.close()
        return True

    def register(self, keys: Iterable[bytes]) -> None:
        """Let nodes with these public keys in, if they are not let in already."""
        control = self.client(ControlHttpClient)
        try:
            for key in keys:
                try:
                    control.RegisterNode(RegisterNodeRequest(public_key=key))
                except httpx.HTTPStatusError as error:
                    why = FlowerError.from_json(error.response.text)
                    if why is None or why.code != ApiErrorCode.PUBLIC_KEY_ALREADY_IN_USE:
                        raise
        finally:
            control.close()

    def knows(self, key: Any, public: Any) -> bool:
        """Whether a node with this key may take part now. One that was killed may not before it has been missed."""
        fleet = self.client(FleetHttpClient, NodeAuthHttpInterceptor(key, public))
        try:
            found = fleet.ActivateNode(
                ActivateNodeRequest(
                    public_key=public_key_to_bytes(public), heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL
                )
            )
            fleet.DeactivateNode(DeactivateNodeRequest(node_id=found.node_id))
        except httpx.HTTPStatusError as error:
            if error.response.status_code == httpx.codes.UNAUTHORIZED:
                raise ValueError(
                    "the SuperLink does not accept this node's signature: check that the clocks of both agree"
                ) from error
            return False
        finally:
            fleet.close()
        return True


@dataclass(eq=False)
class Session:
    """One run of Flower's; ``grid`` is good for as long as it is there."""

    superlink: SuperLink
    grid: HttpGrid
    run: int
    _ended: threading.Event = field(default_factory=threading.Event)

    @staticmethod
    def begun(superlink: SuperLink) -> Session:
        run = _started(superlink)
        token = _claimed(superlink, run)
        grid = HttpGrid(
            superlink.address,
            insecure=not superlink.tls,
            root_certificates=superlink.certificates.read_bytes() if superlink.certificates else None,
            token=token,
        )
        grid._retry_invoker = None  # as in SuperLink.client
        found = grid._runtime_client.PullTaskInput(PullTaskInputRequest())
        grid.set_run(run_from_proto(found.run))
        # What Flower's messages take their sender from: one for the process.
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = (
            found.task_id,
            run,
            found.context.node_id,
        )
        session = Session(superlink, grid, run)
        threading.Thread(target=session._stay_alive, daemon=True).start()
        return session

    def _stay_alive(self) -> None:
        while not self._ended.wait(_HEARTBEAT):
            with contextlib.suppress(*LOST):
                self.grid._runtime_client.SendTaskHeartbeat(SendTaskHeartbeatRequest())

    def end(self, well: bool) -> None:
        """Tell the SuperLink, if it can be told, so that nodes are free."""
        self._ended.set()
        with contextlib.suppress(*LOST):
            status = "completed" if well else "failed"
            self.grid._runtime_client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=""))
        with contextlib.suppress(Exception):
            self.grid.close()


def _started(superlink: SuperLink) -> int:
    """A run with the app that nodes need, which does no more than import ours."""
    content, _ = build_fab_from_files(_APP)
    fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
    control = superlink.client(ControlHttpClient)
    try:
        answer = control.StartRun(StartRunRequest(fab=fab_to_proto(fab)))
    finally:
        control.close()
    if not answer.HasField("run_id"):
        raise ValueError("the SuperLink did not take the run: its log says why")
    return int(answer.run_id)


def _claimed(superlink: SuperLink, run: int) -> str:
    """The right to be the server of that run; raises ValueError where the SuperLink starts servers itself."""
    runtime = superlink.client(RuntimeHttpClient, *superlink._authority)
    end = time.monotonic() + _CLAIM
    try:
        while time.monotonic() < end:
            answer = runtime.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
            if answer.HasField("task") and answer.task.run_id == run:
                return str(answer.token)
            time.sleep(0.05)
    except httpx.HTTPStatusError as error:
        if error.response.status_code in (401, 403):
            raise ValueError(
                "the SuperLink does not let this process be the server: give the file that it was started with as "
                "--superlink-secret"
            ) from error
        raise
    finally:
        runtime.close()
    control = superlink.client(ControlHttpClient)
    with contextlib.suppress(*LOST):
        control.StopRun(StopRunRequest(run_id=run))
    control.close()
    raise ValueError(
        "the SuperLink starts servers by itself: start it with --isolation process, and try again"
    )


@contextmanager
def linked(superlink: SuperLink, keys: frozenset[bytes] | None = None) -> Iterator[GridLink]:
    """A link over a run of Flower's, and over the next one when that is lost; ended whatever happens. Raises ValueError
    where there is no SuperLink, or none that proves who it is."""
    try:
        sessions = [Session.begun(superlink)]
    except httpx.TransportError as error:
        raise ValueError(unreachable(superlink, error)) from error

    def renewed() -> Grid:
        sessions.pop().end(well=False)
        end = time.monotonic() + _ABSENCE
        while True:
            try:
                sessions.append(Session.begun(superlink))
                return sessions[-1].grid
            except LOST as error:
                if time.monotonic() > end:
                    raise ValueError(
                        f"the SuperLink at {superlink.address} is gone: start it again, and resume the run"
                    ) from error
                time.sleep(1.0)

    well = False
    try:
        yield GridLink(sessions[0].grid, renewed, keys)
        well = True
    finally:
        for session in sessions:
            session.end(well)


def _heard_elsewhere(port: int) -> bool:
    """Whether somebody on this machine listens to others on that port; True where that cannot be known."""
    listening = []
    for file in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        try:
            lines = file.read_text().splitlines()[1:]
        except OSError:
            return True
        listening += [line.split()[1] for line in lines if line.split()[3] == "0A"]
    hosts = [
        host for host, _, number in (each.partition(":") for each in listening) if int(number, 16) == port
    ]
    return not all(host[6:8] == "7F" if len(host) == 8 else _is_loopback_6(host) for host in hosts)


def _is_loopback_6(host: str) -> bool:
    words = b"".join(bytes.fromhex(host[start : start + 8])[::-1] for start in range(0, 32, 8))
    address = ipaddress.IPv6Address(words)
    return address.is_loopback or (address.ipv4_mapped is not None and address.ipv4_mapped.is_loopback)


def node_keys(path: Path) -> frozenset[bytes]:
    """The public keys of nodes, one on a line as ssh-keygen writes them; of a folder, those of its .pub files."""
    files = sorted(path.glob("*.pub")) if path.is_dir() else [path]
    try:
        lines = [line for file in files for line in file.read_bytes().splitlines() if line.strip()]
        found = frozenset(public_key_to_bytes(load_ssh_public_key(line)) for line in lines)
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise ValueError(
            f"{path} does not hold public keys of nodes, one on a line: check the file"
        ) from error
    if not found:
        raise ValueError(f"{path} holds no public key of a node: put the .pub file of each node there")
    return found


def is_about_trust(error: Exception) -> bool:
    """Whether somebody was there, and did not prove who it is."""
    return any(word in str(error).lower() for word in ("certificate", "ssl", "tls"))


def unreachable(superlink: SuperLink, error: Exception) -> str:
    if is_about_trust(error):
        return (
            f"the SuperLink at {superlink.address} does not prove who it is: give the certificate of its authority as "
            "--root-certificates"
        )
    return f"there is no SuperLink at {superlink.address}: start flower-superlink, or check the address"
