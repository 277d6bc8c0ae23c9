"""Noise mechanisms and the randomness they draw from."""

from sordino.noise.banded import Banded
from sordino.noise.buffered import Buffered
from sordino.noise.gaussian import GaussianNoise
from sordino.noise.independent import Gaussian, joint_split
from sordino.noise.mechanism import Known, Mechanism, Releases
from sordino.noise.randomness import Streams
from sordino.noise.tree import Tree

__all__ = [
    "Banded",
    "Buffered",
    "Gaussian",
    "GaussianNoise",
    "Known",
    "Mechanism",
    "Releases",
    "Streams",
    "Tree",
    "joint_split",
]
