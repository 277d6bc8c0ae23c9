"""The nodes' side."""

from sordino.network.flower.client import app

__all__ = ["app"]
