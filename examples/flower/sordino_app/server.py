"""The server's side."""

from sordino.network.flower.server import app

__all__ = ["app"]
