"""What it costs when noise ends somewhere: outputs that only one of two neighbours can have."""

from __future__ import annotations

import math

NEGLIGIBLE = 1e-6  # of delta


def delta_beyond(reach: float, noise_multiplier: float, releases: int, rate: float = 1.0) -> float:
    """The delta of noise whose radius never exceeds ``reach`` standard deviations, beside what accountants price.

    Normals are made in pairs from a radius and an angle, and a unit that takes part moves such a pair by 1/z standard
    deviations at most. What lies beyond the reach without it, and is reached with it, gives it away at any epsilon: in
    one release with probability q P(|N + v| > R), in one of T with 1 - (1 - that)^T. In one coordinate alone it would
    be q Phi(1/z - R), which is two to six times less.

    >>> f"{delta_beyond(6.56, 0.5, 3000, 0.004):.1e}"
    '5.7e-05'
    >>> delta_beyond(math.inf, 0.5, 3000)
    0.0
    """
    if noise_multiplier <= 0:
        return 0.0
    if math.isinf(reach):
        return 0.0
    from scipy.stats import ncx2  # a slow import

    once = rate * float(ncx2.sf(reach**2, 2, noise_multiplier**-2))
    return 1.0 if once >= 1 else -math.expm1(releases * math.log1p(-once))


def check_reach(reach: float, noise_multiplier: float, releases: int, delta: float) -> None:
    """Raise unless what is missing of the tail is negligible beside ``delta``, for units that are always there."""
    if delta_beyond(reach, noise_multiplier, releases) > NEGLIGIBLE * delta:
        raise ValueError(
            f"noise that ends at {reach:.2f} standard deviations is not the noise that is priced, at a multiplier of "
            f"{noise_multiplier:g} and delta {delta:g}: use more noise"
        )
