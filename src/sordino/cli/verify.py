"""`sordino verify`: whether what a certificate says is true."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from sordino.cli.options import AsJson

# The accountants load slowly: they are imported inside the command, so that --help is quick. Nothing that trains is.


def verify(
    certificate: Annotated[
        Path, typer.Argument(metavar="CERTIFICATE", help="certificate.json, or the directory of a run.")
    ],
    ledger: Annotated[
        Path | None,
        typer.Option(help="Check it against this ledger. By default the one that SORDINO_LEDGER names."),
    ] = None,
    public_key: Annotated[
        Path | None, typer.Option(help="It must be signed with the key of this PEM file (Ed25519).")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="The model, if it does not lie beside the certificate.")
    ] = None,
    must_stand: Annotated[
        bool,
        typer.Option(
            "--must-stand", help="Fail also if it promises nothing: a known seed, no noise, a caveat."
        ),
    ] = False,
    registry: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Write an entry for OpenDP's registry of deployments; - prints it."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Recompute a guarantee from its events alone, and check everything a certificate says that can be checked.

    Exit code 0 if it holds; 2, with one line that says what does not, if anything is not as stated.
    """
    from sordino.verifying import verify as verified
    from sordino.verifying.deployment import registry_entry
    from sordino.verifying.telling import told

    if registry == "-" and as_json:
        raise ValueError("--registry - and --json both print: give the entry a file")
    found = verified(certificate, ledger=ledger, public_key=public_key, model=model)
    if must_stand and not found.stands:
        raise ValueError(
            f"{certificate} is what was written, and promises nothing: {found.document['claim']['words']}"
        )
    entry = None if registry is None else registry_entry(found)
    if registry == "-":
        print(entry, end="")
        return
    if registry is not None and entry is not None:
        Path(registry).write_text(entry, encoding="utf-8")
    print(json.dumps({**found.to_json(), "certificate": str(certificate)}) if as_json else told(found))
