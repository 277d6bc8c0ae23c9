"""The `ServerApp` of an app that Flower runs: `sordino federate`, with a configuration for its command line."""

from __future__ import annotations

import sys
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from sordino.cli.main import main as command
from sordino.network.flower.server import given

app = ServerApp()


@app.main()  # type: ignore[untyped-decorator]
def main(grid: Grid, context: Context) -> None:
    """`sordino federate` with the flags of the run's configuration: ``rounds = 10`` is ``--rounds 10``."""
    sys.argv = ["sordino", "federate", *flags_of(dict(context.run_config))]
    try:
        with given(grid):
            command()
    except SystemExit as ended:  # in which Flower sees no end
        if ended.code:
            raise RuntimeError(
                f"sordino federate ended with exit code {ended.code}: the line above says why"
            ) from None


def flags_of(config: dict[str, Any]) -> list[str]:
    """The command line that a configuration is.

    >>> flags_of({"data": "digits", "rounds": 3, "set": "mu=0.1 beta=0.9", "resume": True, "secure": False})
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
