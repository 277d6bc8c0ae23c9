"""`sordino federate --engine flower`: the same federation, with clients behind a SuperLink."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sordino.cli.common import (
    about_model,
    declared_name,
    initial_model,
    loggers,
    model_for,
    run_and_show,
    run_folder,
)

if TYPE_CHECKING:
    from sordino.network.flower.superlink import SuperLink
    from sordino.runs import Run

_FLAGS = {
    "address": "--superlink",
    "nodes": "--nodes",
    "certificates": "--root-certificates",
    "secret": "--superlink-secret",
    "keys": "--node-keys",
    "without_tls": "--without-tls",
    "without_node_authentication": "--without-node-authentication",
}


@dataclass(frozen=True)
class FlowerFlags:
    """The flags of a network, as they were given."""

    address: str | None
    nodes: int | None
    certificates: Path | None
    secret: Path | None
    keys: Path | None
    without_tls: bool
    without_node_authentication: bool

    def meant(self, engine: str, clients: int | None, partition: str | None, holdout: int) -> bool:
        """Whether clients are across a network; raises ValueError for flags that do not belong together."""
        if engine != "flower":
            for each in fields(self):
                if getattr(self, each.name):
                    raise ValueError(
                        f"{_FLAGS[each.name]} is for clients across a network: give --engine flower"
                    )
            return False
        if self.nodes is None or self.nodes < 1:
            raise ValueError("--engine flower needs --nodes N: how many nodes the federation begins with")
        if clients is not None or partition is not None or holdout:
            raise ValueError(
                "nodes say how many clients they have: leave out --clients, --partition and --holdout"
            )
        return True

    @property
    def superlink(self) -> SuperLink | None:
        """Where it is, if it was said; a server that Flower started knows it already."""
        if self.address is None:
            return None
        return superlink_at(self.address, self.certificates, self.secret, self.without_tls)


def superlink_at(
    address: str, certificates: Path | None, secret: Path | None, without_tls: bool
) -> SuperLink:
    """TLS is the rule; on this machine, where nothing can be overheard, it is for those who give certificates."""
    from sordino.network.flower.superlink import SuperLink

    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"the address of a SuperLink is HOST:PORT, such as 10.0.0.1:8000, not {address!r}")
    for file in (certificates, secret):
        if file is not None and not file.is_file():
            raise ValueError(f"{file} does not exist: check the path")
    if without_tls and certificates is not None:
        raise ValueError("--root-certificates and --without-tls contradict each other: leave one out")
    here = SuperLink(address, certificates, secret)
    return replace(here, tls=not without_tls and (certificates is not None or not here.is_loopback))


def across_flower(
    flags: FlowerFlags,
    data: str,
    classes: int | None,
    model: str | None,
    out: Path | None,
    data_name: str | None,
    elsewhere: tuple[Path | None, str | None],
    as_json: bool,
    common: dict[str, Any],
) -> None:
    """Train, and show what came of it, as for a simulation."""
    from sordino.network.flower import check_flower

    check_flower()
    from sordino.cli.federate import federation_lines
    from sordino.network.federation import federate_across
    from sordino.network.flower.server import reached
    from sordino.network.public import known

    loaded = known(data, classes)
    spec = model or model_for(loaded)
    folder = run_folder(out, loaded.name)
    network = initial_model(spec, loaded, common["seed"])

    def run() -> Run:
        with reached(
            flags.superlink,
            flags.nodes or 1,
            flags.keys,
            flags.without_tls,
            flags.without_node_authentication,
        ) as across:
            return federate_across(
                across,
                network,
                spec, **common,
                test=loaded.test, out=folder, details=about_model(spec, loaded), inputs=loaded.inputs,
                data_name=declared_name(data, loaded, data_name, common["ledger"]),
                callbacks=loggers(folder, *elsewhere),
            )  # fmt: skip

    run_and_show(folder, as_json, run, federation_lines)
