"""The server's side."""

from sordino.cli.flower_app import app

__all__ = ["app"]
