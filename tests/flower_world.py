"""A Flower federation on this machine, of real processes: a SuperLink and SuperNodes, with TLS and keys."""

from __future__ import annotations

import contextlib
import datetime
import ipaddress
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

BIN = Path(sys.executable).parent


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def certificates(folder: Path, addresses: Sequence[str] = ("127.0.0.1",)) -> None:
    """ca.crt, server.crt, server.key: an authority of the test's own, and what it says of the SuperLink."""
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1)
    end = start + datetime.timedelta(days=2)

    def signed(
        name: str,
        key: ec.EllipticCurvePrivateKey,
        issuer: x509.Name,
        by: ec.EllipticCurvePrivateKey,
        ca: bool,
    ) -> x509.Certificate:
        found = (
            x509.CertificateBuilder()
            .subject_name(_name(name))
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(start)
            .not_valid_after(end)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(by.public_key()), critical=False
            )
        )
        if ca:
            usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
            found = found.add_extension(usage, critical=True)
        else:
            names = [
                x509.DNSName("localhost"),
                *[x509.IPAddress(ipaddress.ip_address(each)) for each in addresses],
            ]
            found = found.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return found.sign(by, hashes.SHA256())

    authority, server = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    root = signed("test authority", authority, _name("test authority"), authority, True)
    leaf = signed("superlink", server, root.subject, authority, False)
    (folder / "ca.crt").write_bytes(root.public_bytes(serialization.Encoding.PEM))
    (folder / "server.crt").write_bytes(leaf.public_bytes(serialization.Encoding.PEM))
    key = server.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "server.key").write_bytes(key)


def node_key(folder: Path, name: str) -> Path:
    """NAME and NAME.pub, as ssh-keygen -t ecdsa -b 384 makes them."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (folder / name).write_bytes(private)
    (folder / name).chmod(0o600)
    (folder / f"{name}.pub").write_bytes(public)
    return folder / name


class World:
    """Processes that end with it. ``secure``: TLS, nodes that prove who they are, and a server that does."""

    def __init__(
        self, folder: Path, secure: bool = True, database: bool = True, isolation: str = "process"
    ) -> None:
        self.folder, self.secure, self.database, self.isolation = folder, secure, database, isolation
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {
            **os.environ,
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
            "OMP_NUM_THREADS": "1",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        home = folder / "flwr"
        home.mkdir()
        how = f'root-certificates = "{folder}/ca.crt"' if secure else "insecure = true"
        connection = f'[superlink.here]\naddress = "{self.address}"\n{how}\n'
        (home / "config.toml").write_text(f'[superlink]\ndefault = "here"\n\n{connection}')
        if secure:
            certificates(folder)
            (folder / "secret").write_bytes(os.urandom(32))

    def __enter__(self) -> World:
        self.superlink()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in list(self.processes):
            self.end(name)

    def superlink(self) -> None:
        f = self.folder
        tls = [
            "--ssl-certfile", f / "server.crt", "--ssl-keyfile", f / "server.key", "--ssl-ca-certfile", f / "ca.crt",
            "--enable-supernode-auth",
        ]  # fmt: skip
        secret = ["--superexec-auth-secret-file", f / "secret"] if self.isolation == "process" else []
        self.start(
            "superlink", "flower-superlink", "--isolation", self.isolation, "--port", self.port,
            "--disable-runtime-dependency-installation",
            *([*tls, *secret] if self.secure else ["--insecure"]),
            *(["--database", f / "superlink.db"] if self.database else []),
        )  # fmt: skip
        self.wait_for_port(self.port)

    def worker(
        self, name: str, data: object, *flags: object, key: Path | None = None, register: bool = True
    ) -> None:
        """`sordino node`."""
        security: list[object] = []
        if self.secure:
            key = key or node_key(self.folder, name)
            if register:
                self.register(key)
            security = ["--root-certificates", self.folder / "ca.crt", "--key", key]
        state = self.folder / f"state-{name}"
        self.start(
            name,
            "sordino",
            "node",
            name,
            data,
            "--superlink",
            self.address,
            "--state",
            state,
            *security,
            *flags,
        )

    def node(self, name: str, config: str, key: Path | None = None, register: bool = True) -> None:
        """Flower's own SuperNode."""
        f = self.folder
        tls: list[object] = ["--insecure"]
        if self.secure:
            key = key or node_key(f, name)
            if register:
                self.register(key)
            tls = ["--root-certificates", f / "ca.crt", "--auth-supernode-private-key", key]
        self.start(
            name, "flower-supernode", "--superlink", self.address, "--port", free_port(),
            "--node-config", f'name="{name}" {config}', *tls,
        )  # fmt: skip

    def register(self, key: Path) -> None:
        from flwr.cli.supernode.register import try_load_public_key
        from flwr.proto.control_pb2 import RegisterNodeRequest
        from flwr.supercore.control import ControlHttpClient

        from sordino.network.flower.superlink import SuperLink

        control = SuperLink(self.address, self.folder / "ca.crt").client(ControlHttpClient)
        control.RegisterNode(RegisterNodeRequest(public_key=try_load_public_key(Path(f"{key}.pub"))))
        control.close()

    def start(self, name: str, *command: object) -> None:
        program, *rest = map(str, command)
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(BIN / program), *rest], stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                env=self.environment, start_new_session=True,
            )  # fmt: skip

    def end(self, name: str, how: int = signal.SIGKILL) -> None:
        """With all the processes that it has started."""
        process = self.processes.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        process.wait()

    def wait_for_port(self, port: int, seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with socket.socket() as trial:
                if trial.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.1)
        raise TimeoutError((self.folder / "superlink.log").read_text()[-2000:])

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")
