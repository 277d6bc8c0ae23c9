"""`sordino node`: rows that stay where they are, and take part in federations."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import sordino.cli.options as given
from sordino.cli.flower import superlink_at


def node(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="What the node is called; each has its own name.")
    ],
    data: Annotated[
        str, typer.Argument(metavar="FILE", help="Its rows: a table, an .npz file, a folder of images.")
    ],
    superlink: Annotated[str, typer.Option(help="HOST:PORT of the SuperLink.")],
    key: Annotated[
        Path | None,
        typer.Option(help="Private key by which it proves who it is (ssh-keygen -t ecdsa -b 384)."),
    ] = None,
    root_certificates: given.RootCertificates = None,
    user_column: Annotated[str, typer.Option(help="Of a table: whose a row is. Each user is a client.")] = "",
    clients: Annotated[int, typer.Option(help="Deal the rows to so many clients, in order.")] = 1,
    state: Annotated[
        str, typer.Option(help="Folder for what clients keep between rounds; by default the user's own.")
    ] = "",
    only_private: Annotated[
        bool,
        typer.Option(
            "--only-private",
            help="Take part only where updates are clipped and the server says that it adds noise.",
        ),
    ] = False,
    trust_code: Annotated[
        bool,
        typer.Option(
            "--trust-code", help="Load models and features that the server names as MODULE:CALLABLE."
        ),
    ] = False,
    without_tls: given.WithoutTls = False,
    without_authentication: Annotated[
        bool, typer.Option("--without-authentication", help="Send updates to a server that asks for no key.")
    ] = False,
) -> None:
    """Take part in federations with rows of one's own, which never leave this machine."""
    from sordino.network.flower import check_flower

    check_flower()
    where = superlink_at(superlink, root_certificates, None, without_tls)
    if key is None and not where.is_loopback and not without_authentication:
        raise ValueError("a node proves who it is with a key: give --key, or say --without-authentication")
    from sordino.network.flower.node import serve
    from sordino.network.node import NodeSettings

    settings = {"name": name, "data": data, "state": state, "user-column": user_column, "clients": clients}
    flags = {"only-private": only_private, "trust-code": trust_code}
    try:
        serve(NodeSettings.of({**settings, **flags}), where, key)
    except KeyboardInterrupt:
        raise typer.Exit(0) from None
