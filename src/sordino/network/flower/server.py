"""The server's side: a process of ours that is the server of a run, or the `ServerApp` of an app that Flower runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import httpx
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from sordino.network.federation import Across
from sordino.network.flower.link import GridLink
from sordino.network.flower.superlink import SuperLink, linked, unreachable

app = ServerApp()

_TRUST = (
    "clients are on nodes across a network and clip what they send; the server that adds it up and makes the noise "
    "sees each client's clipped update, and is trusted with it",
    "how many clients and how many rows each node has is public",
)
_OPEN = "nodes do not prove who they are: whoever reaches the SuperLink can be a node"
_PLAIN = "messages cross the network in the clear"

_grid: ContextVar[Grid | None] = ContextVar("grid", default=None)


@contextmanager
def reached(
    superlink: SuperLink | None, nodes: int, without_tls: bool, without_authentication: bool
) -> Iterator[Across]:
    """The network behind a SuperLink, if it is one to be trusted with clients, or if the owner has said that it is
    none; without an address the one that Flower has given."""
    grid = _grid.get()
    if superlink is None and grid is None:
        raise ValueError("--engine flower needs --superlink HOST:PORT, where a SuperLink is")
    with ExitStack() as stack:
        where = superlink or stack.enter_context(_of_grid(grid))
        # What Flower runs is on the SuperLink's own machine, and says nothing about where nodes are.
        alone = superlink is not None and superlink.is_loopback
        if not where.tls and not without_tls and not alone:
            raise ValueError(
                "the SuperLink speaks in the clear: start it with certificates, or say --without-tls"
            )
        bound = not _takes_anybody(where)
        if not bound and not without_authentication and not alone:
            raise ValueError(
                "the SuperLink lets in nodes that nobody registered: start it with --enable-supernode-auth, or say "
                "--without-node-authentication"
            )
        link = GridLink(grid) if superlink is None else stack.enter_context(linked(superlink))
        trust = (*_TRUST, *([] if bound else [_OPEN]), *([] if where.tls else [_PLAIN]))
        yield Across(link, nodes, "flower", bound, trust)


def _takes_anybody(where: SuperLink) -> bool:
    try:
        return where.takes_anybody()
    except httpx.TransportError as error:
        raise ValueError(unreachable(where, error)) from error


@contextmanager
def _of_grid(grid: Any) -> Iterator[SuperLink]:
    """Where the SuperLink of a grid is that Flower has given."""
    with NamedTemporaryFile(suffix=".pem") as file:
        file.write(grid._cert or b"")
        file.flush()
        yield SuperLink(grid._addr, Path(file.name) if grid._cert else None, None, not grid._insecure)


@app.main()  # type: ignore[untyped-decorator]
def main(grid: Grid, context: Context) -> None:
    """`sordino federate` with the flags of the run's configuration: ``rounds = 10`` is ``--rounds 10``."""
    from sordino.cli.main import main as command

    token = _grid.set(grid)
    try:
        sys.argv = ["sordino", "federate", *_flags(dict(context.run_config))]
        command()
    finally:
        _grid.reset(token)


def _flags(config: dict[str, Any]) -> list[str]:
    """The command line that a configuration is.

    >>> _flags({"data": "digits", "rounds": 3, "set": "mu=0.1 beta=0.9", "resume": True, "secure": False})
    ['digits', '--engine', 'flower', '--rounds', '3', '--set', 'mu=0.1', '--set', 'beta=0.9', '--resume']
    """
    found = [str(config.pop("data", "digits")), "--engine", "flower"]
    for name, value in config.items():
        if value is True:
            found.append(f"--{name}")
        elif name == "set":
            found += [word for pair in str(value).split() for word in ("--set", pair)]
        elif value is not False and value != "":
            found += [f"--{name}", str(value)]
    return found
