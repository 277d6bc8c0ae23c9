"""What it costs when noise ends somewhere: outputs that only one of two neighbours can have."""

from __future__ import annotations

import math

NEGLIGIBLE = 1e-6  # of delta


def delta_beyond(reach: float, noise_multiplier: float, releases: int, rate: float = 1.0) -> float:
    """The delta of noise that never exceeds ``reach`` standard deviations, beside what accountants price.

    A unit that takes part moves a sum by 1/z standard deviations. What lies beyond the reach without it, and is reached
    with it, gives it away at any epsilon: in one release with probability q Phi(1/z - R), in one of T with
    1 - (1 - that)^T.

    >>> f"{delta_beyond(6.56, 0.5, 3000, 0.004):.1e}"
    '3.1e-05'
    >>> delta_beyond(math.inf, 0.5, 3000)
    0.0
    """
    if noise_multiplier <= 0:
        return 0.0
    once = rate * 0.5 * math.erfc((reach - 1 / noise_multiplier) / math.sqrt(2))
    return 1.0 if once >= 1 else -math.expm1(releases * math.log1p(-once))


def check_reach(reach: float, noise_multiplier: float, releases: int, delta: float) -> None:
    """Raise unless what is missing of the tail is negligible beside ``delta``, for units that are always there."""
    if delta_beyond(reach, noise_multiplier, releases) > NEGLIGIBLE * delta:
        raise ValueError(
            f"noise that ends at {reach:.2f} standard deviations is not the noise that is priced, at a multiplier of "
            f"{noise_multiplier:g} and delta {delta:g}: use more noise"
        )
