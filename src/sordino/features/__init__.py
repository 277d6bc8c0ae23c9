"""Frozen public features in front of a private model."""

from sordino.features.featured import Featured, check_kind, features_named, with_embedding, with_features
from sordino.features.frozen import Frozen

__all__ = ["Featured", "Frozen", "check_kind", "features_named", "with_embedding", "with_features"]
