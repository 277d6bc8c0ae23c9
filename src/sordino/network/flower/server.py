"""The server's side: a process of ours that is the server of a run, or the `ServerApp` of an app that Flower runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
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
from sordino.network.flower.superlink import SuperLink, linked, node_keys, unreachable

app = ServerApp()

_TRUST = (
    "clients are on nodes across a network and clip what they send; the server that adds it up and makes the noise "
    "sees each client's clipped update, and is trusted with it",
    "how many clients and how many rows each node has is public",
)
_OPEN = "nodes do not prove who they are: whoever reaches the SuperLink can be one, and perhaps the server"
_PLAIN = "messages cross the network in the clear"

_grid: ContextVar[Grid | None] = ContextVar("grid", default=None)


@contextmanager
def reached(
    superlink: SuperLink | None,
    nodes: int,
    keys: Path | None = None,
    without_tls: bool = False,
    without_authentication: bool = False,
) -> Iterator[Across]:
    """The network behind a SuperLink, if it is one to be trusted with clients, or if the owner has said that it is
    none; without an address the one that Flower has given. ``keys`` are those of the nodes that may take part."""
    grid = _grid.get()
    if superlink is None and grid is None:
        raise ValueError("--engine flower needs --superlink HOST:PORT, where a SuperLink is")
    known = None if keys is None else node_keys(keys)
    with ExitStack() as stack:
        where = superlink or stack.enter_context(_of_grid(grid))
        # What Flower runs is on the SuperLink's own machine, and says nothing about where nodes are.
        alone = superlink is not None and superlink.is_loopback
        if not where.tls and not without_tls and not alone:
            raise ValueError(
                "the SuperLink speaks in the clear: start it with certificates, or say --without-tls"
            )
        bound = known is not None or not _tried(where, SuperLink.takes_anybody)
        if not without_authentication and not alone:
            _check_doors(where, bound, superlink is not None)
        if known is not None and superlink is not None:
            superlink.register(known)
        link = (
            GridLink(grid, keys=known) if superlink is None else stack.enter_context(linked(superlink, known))
        )
        trust = (*_TRUST, *([] if bound else [_OPEN]), *([] if where.tls else [_PLAIN]))
        yield Across(link, nodes, "flower", bound, trust)


def _check_doors(where: SuperLink, bound: bool, ours: bool) -> None:
    """Raise ValueError where a stranger could be a node, or the server."""
    if not bound:
        raise ValueError(
            "the SuperLink lets in nodes that nobody registered: give the public keys of your nodes as --node-keys "
            "(or start it with --enable-supernode-auth), or say --without-node-authentication"
        )
    if ours and _tried(where, SuperLink.lets_anybody_serve):
        raise ValueError(
            "the SuperLink lets anybody be the server, who then sees all updates: start it with "
            "--superexec-auth-secret-file, give that file as --superlink-secret, or say --without-node-authentication"
        )


def _tried(where: SuperLink, question: Callable[[SuperLink], bool]) -> bool:
    try:
        return question(where)
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
    except SystemExit as ended:  # in which Flower sees no end
        if ended.code:
            raise RuntimeError(
                f"sordino federate ended with exit code {ended.code}: the line above says why"
            ) from None
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
