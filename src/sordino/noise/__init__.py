"""Noise mechanisms and the randomness they draw from."""

from sordino.noise.gaussian import GaussianNoise
from sordino.noise.independent import Gaussian, joint_split
from sordino.noise.mechanism import Mechanism, Releases
from sordino.noise.randomness import Streams
from sordino.noise.tree import Tree

__all__ = ["Gaussian", "GaussianNoise", "Mechanism", "Releases", "Streams", "Tree", "joint_split"]
