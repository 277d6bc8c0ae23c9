"""The server's side: the network behind a SuperLink, if it is one to be trusted with clients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import httpx
from flwr.serverapp import Grid

from sordino.network.federation import Across
from sordino.network.flower.link import GridLink
from sordino.network.flower.superlink import SuperLink, linked, node_keys, unreachable

_TRUST = (
    "clients are on nodes across a network and clip what they send; the server that adds it up and makes the noise "
    "sees each client's clipped update, and is trusted with it",
    "how many clients and how many rows each node has is public, and nobody is a client of two nodes",
)
_SEEN = (
    "nobody sees on the wire which nodes were asked, and how much they sent: where clients are sampled, it is priced "
    "for those who do not know who was"
)
_OPEN = "nodes do not prove who they are: whoever reaches the SuperLink can be one, and perhaps the server"
_PLAIN = "messages cross the network in the clear"

_grid: ContextVar[Grid | None] = ContextVar("grid", default=None)


@contextmanager
def given(grid: Grid) -> Iterator[None]:
    """In here Flower has given a grid: this process is the server of a run that it has started."""
    token = _grid.set(grid)
    try:
        yield
    finally:
        _grid.reset(token)


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
        alone = superlink is not None and superlink.is_alone
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
        trust = (*_TRUST, _SEEN, *([] if bound else [_OPEN]), *([] if where.tls else [_PLAIN]))
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
