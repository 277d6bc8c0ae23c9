"""What the end of a noise generator's tail adds to delta, for plans from 1e4 to 1e8 rows: a table for docs/security.md.

Each plan is what `sordino train` does with so many rows and nothing set. The columns are delta_beyond / delta for noise
that ends at 6.56 standard deviations (a radius of 32 bits, as Sordino had it), at 5.77 (24 bits, `Tensor.normal_`), at
8.49 (52 bits, one double), and for the noise that is in use.

    python benchmarks/tails.py
"""

from __future__ import annotations

import math
from functools import partial

from dp_accounting import DpEvent

from sordino import Budget
from sordino.defaults import default_batch_size, default_epochs
from sordino.noise.gaussian import REACH
from sordino.privacy import noise_for, poisson_gaussian, repeat
from sordino.privacy.tails import NEGLIGIBLE, delta_beyond

REACHES = {bits: math.sqrt(2 * math.log(2.0) * bits) for bits in (24, 31, 52)}


def plan(z: float, rate: float, steps: int) -> DpEvent:
    return repeat(poisson_gaussian(z, rate), steps)


def main() -> None:
    print("| n | epsilon | delta | steps | noise multiplier | 24 bits | 32 bits | 52 bits | in use |")
    print("|---:|---:|---:|---:|---:|---:|---:|---:|---:|")
    worst = 0.0
    for n in (10**4, 10**5, 10**6, 10**7, 10**8):
        batch = default_batch_size(n)
        rate = batch / n
        steps = max(1, round(default_epochs(n) / rate))
        for epsilon in (0.5, 2.0, 8.0, 20.0):
            for delta in (1e-4, 1e-7, 1e-10):
                z = noise_for(Budget(epsilon, delta), partial(plan, rate=rate, steps=steps), "rdp")
                added = [delta_beyond(r, z, steps, rate) / delta for r in (*REACHES.values(), REACH)]
                worst = max(worst, added[-1])
                cells = " | ".join(f"{value:.1e}" if value else "0" for value in added)
                print(f"| {n:.0e} | {epsilon:g} | {delta:g} | {steps} | {z:.3f} | {cells} |")
    print(f"\nworst in use: {worst:g} of delta; allowed {NEGLIGIBLE:g}")


if __name__ == "__main__":
    main()
