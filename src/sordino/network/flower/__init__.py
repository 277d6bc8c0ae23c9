"""The federation over Flower: its SuperLink carries our messages, its SuperNodes run our `ClientApp`.

Flower's clipping, noise and strategies are not used; what it adds is transport, TLS and nodes that prove who they are.
"""

import importlib.util
import os


def check_flower() -> None:
    """Raise ValueError if Flower is not installed. Its telemetry is off, unless the environment says otherwise."""
    if importlib.util.find_spec("flwr") is None:
        raise ValueError("--engine flower needs Flower: pip install 'sordino[flower]'")
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # which it reads when it is imported
