"""Threshold policies."""

from sordino.clipping.fixed import Fixed, PerLayer, Unclipped
from sordino.clipping.policy import ClippingPolicy, Probe
from sordino.clipping.quantile import Quantile

__all__ = ["ClippingPolicy", "Fixed", "PerLayer", "Probe", "Quantile", "Unclipped"]
