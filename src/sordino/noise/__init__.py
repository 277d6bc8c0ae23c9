"""Noise mechanisms and the randomness they draw from."""

from sordino.noise.gaussian import Gaussian, GaussianNoise, joint_split
from sordino.noise.randomness import Streams

__all__ = ["Gaussian", "GaussianNoise", "Streams", "joint_split"]
