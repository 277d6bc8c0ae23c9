"""Noise mechanisms and the randomness they draw from."""

from sordino.noise.gaussian import GaussianNoise, joint_split
from sordino.noise.randomness import Streams

__all__ = ["GaussianNoise", "Streams", "joint_split"]
