"""Threshold policies."""

from sordino.clipping.fixed import Fixed, Normalised, PerLayer, Unclipped
from sordino.clipping.online import Online
from sordino.clipping.policy import ClippingPolicy, Probe
from sordino.clipping.quantile import Quantile

__all__ = ["ClippingPolicy", "Fixed", "Normalised", "Online", "PerLayer", "Probe", "Quantile", "Unclipped"]
