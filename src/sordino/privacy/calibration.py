"""The inverse of pricing: how much noise, or how many steps, for a budget. Never over it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

from sordino.privacy.accountants import NO_CONVERSION, check_names, price, worth_pld
from sordino.privacy.budget import Budget
from sordino.privacy.events import poisson_gaussian, repeat
from sordino.privacy.loss_distribution import COARSER, pld_epsilon, squared_mu
from sordino.privacy.remembered import MakeEvent, remembered
from sordino.privacy.renyi import rdp_epsilon

if TYPE_CHECKING:
    from dp_accounting import DpEvent

TOLERANCE = 1e-4  # relative, on the noise multiplier; always on the side of more noise
LEAST_NOISE = 1e-2  # nobody calibrates below; saves pricing absurd plans
MOST_NOISE = 1e7
MOST_STEPS = 10**9
_FAR_BELOW = (
    20 * TOLERANCE
)  # the most that epsilon moves within the tolerance: see the powers in `_least_noise`

# None of them whole: those are integrated all at once, and the others summed one by one.
_FEW_ORDERS = (
    1.02, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3, 1.35, 1.4, 1.45, 1.5, 1.6, 1.7, 1.8, 1.9, 2.1, 2.25, 2.5, 2.75, 3.1, 3.4,
    3.75, 4.2, 4.7, 5.3, 5.7, 6.1, 6.6, 7.1, 7.8, 8.5, 9.5, 10.5, 11.5, 12.5, 13.5, 14.5, 15.5, 16.5, 18.5, 20.5, 22.5,
    24.5, 27.5, 30.5, 33.5, 38.5, 45.5, 54.5, 64.5, 76.5, 90.5, 128.5, 180.5, 256.5, 512.5,
)  # fmt: skip

EpsilonOf = Callable[[float], float]


def noise_for(
    budget: Budget,
    make_event: MakeEvent,
    accountant: str = "auto",
    conversion: str = "improved",
) -> float:
    """The smallest noise multiplier z (within 1e-4, rounded up) whose plan `make_event(z)` fits `budget`.

    `price(make_event(z), ...)` is at most `budget.epsilon`: the returned value has itself been priced.
    `make_event` must cost less the larger z is. PLD plans are searched with RDP, then on a coarse grid,
    then on the real one, so that few slow evaluations are needed. A search that was made before is not made again
    (see `remembered`); its result is the same, and is priced again.

    >>> from sordino.privacy.events import poisson_gaussian, repeat
    >>> plan = lambda z: repeat(poisson_gaussian(z, 0.04), 2250)
    >>> round(noise_for(Budget(7.3292, 1e-5), plan, accountant="rdp"), 3)
    1.5
    """
    check_names(accountant, conversion)
    conversion = "improved" if conversion == NO_CONVERSION else conversion  # for the search by RDP

    def search(make_event: MakeEvent) -> float:
        return _searched(budget, make_event, accountant, conversion)

    def holds(z: float) -> bool:
        if not LEAST_NOISE <= z <= MOST_NOISE:
            return False
        epsilon = price(make_event(z), budget.delta, accountant, conversion).epsilon
        return budget.epsilon * (1 - _FAR_BELOW) <= epsilon <= budget.epsilon

    if squared_mu(make_event(1.0)) is not None:
        return search(make_event)  # in closed form, which is as fast as reading a file
    question = {**asdict(budget), "accountant": accountant, "conversion": conversion}
    return remembered(question, make_event, search, holds)


def _searched(budget: Budget, make_event: MakeEvent, accountant: str, conversion: str) -> float:
    def epsilon_by(name: str) -> EpsilonOf:
        return lambda z: price(make_event(z), budget.delta, name, conversion).epsilon

    if accountant not in ("auto", "pld"):
        noise, _ = _least_noise(epsilon_by(accountant), budget.epsilon, start=1.0)
        return _or_unreachable(noise, budget)

    by_rdp, power = _least_noise(epsilon_by("rdp"), budget.epsilon, start=1.0)
    start = 1.0 if by_rdp is None else by_rdp
    if accountant == "auto" and not worth_pld(make_event(start), budget.delta, budget.epsilon):
        return _or_unreachable(by_rdp, budget)

    def coarse_epsilon(z: float) -> float:
        return pld_epsilon(make_event(z), budget.delta, coarser=COARSER)

    if squared_mu(make_event(start)) is None and coarse_epsilon(start) <= budget.epsilon:
        coarse, power = _least_noise(coarse_epsilon, budget.epsilon, start, power=power)
        assert coarse is not None
        start = coarse
    if accountant == "auto" and not worth_pld(make_event(start), budget.delta, epsilon_by("rdp")(start)):
        return _or_unreachable(by_rdp, budget)
    by_pld, _ = _least_noise(epsilon_by(accountant), budget.epsilon, start, power=power)
    if accountant == "auto" and by_rdp is not None and by_pld is not None:
        return min(by_pld, by_rdp)  # auto prices by_rdp at most as RDP does, so it fits as well
    return _or_unreachable(by_pld, budget)


def noise_about(budget: Budget, sampling_rate: float, count: int, start: float = 1.0) -> float:
    """About the noise multiplier at which so many Poisson-sampled releases fit ``budget``, quickly; seldom too little.

    By Renyi DP at few orders, for comparing plans before one of them is priced. The closer ``start``, the faster.

    >>> round(noise_about(Budget(7.3292, 1e-5), 0.04, 2250), 2)
    1.5
    """

    def epsilon_of(z: float) -> float:
        return rdp_epsilon(
            repeat(poisson_gaussian(z, sampling_rate), count), budget.delta, orders=_FEW_ORDERS
        )

    noise, _ = _least_noise(epsilon_of, budget.epsilon, start)
    return _or_unreachable(noise, budget)


def steps_for(
    budget: Budget,
    step: DpEvent,
    accountant: str = "auto",
    conversion: str = "improved",
) -> int:
    """The most steps, each charging `step`, that stay within `budget` as a plan fixed in advance.

    >>> from sordino.privacy.events import poisson_gaussian
    >>> steps_for(Budget(7.3292, 1e-5), poisson_gaussian(1.5, 0.04), accountant="rdp")
    2250
    """
    check_names(accountant, conversion)
    conversion = "improved" if conversion == NO_CONVERSION else conversion  # for the search by RDP

    def epsilon_by(name: str) -> Callable[[int], float]:
        return lambda steps: price(repeat(step, steps), budget.delta, name, conversion).epsilon

    name = "rdp" if accountant in ("auto", "pld") else accountant
    most, _ = _most_steps(epsilon_by(name), budget.epsilon, start=1)
    tries_pld = accountant == "pld" or (
        accountant == "auto" and worth_pld(step, budget.delta, min(budget.epsilon, epsilon_by("rdp")(1)))
    )
    if tries_pld:
        start, power = max(1, most), 0.7
        if squared_mu(step) is None:
            coarse, power = _most_steps(
                lambda n: pld_epsilon(repeat(step, n), budget.delta, coarser=COARSER),
                budget.epsilon,
                start,
                slack=0.01,
            )
            start = max(start, coarse)
        by_pld, _ = _most_steps(epsilon_by(accountant), budget.epsilon, start, power)
        most = max(most, by_pld) if accountant == "auto" else by_pld
    if most == 0:
        raise ValueError(
            f"not even one step fits epsilon {budget.epsilon} at delta {budget.delta}: "
            "use more noise, a smaller sampling rate or a larger budget"
        )
    return most


def _or_unreachable(noise: float | None, budget: Budget) -> float:
    if noise is None:
        raise ValueError(
            f"no amount of noise brings this plan to epsilon {budget.epsilon} at delta {budget.delta}: "
            "use fewer steps, a smaller sampling rate or a larger budget"
        )
    return noise


def _least_noise(
    epsilon_of: EpsilonOf, target: float, start: float, power: float | None = None
) -> tuple[float | None, float | None]:
    """The least z whose epsilon was found to be <= target, or None where there is none; and the power p of
    the local law epsilon ~ z^-p, with which the next, slower search starts.

    Secant steps on log epsilon against log z inside a bracket, aimed a third of the tolerance to the safe
    side. Stops when the law says that z is within the tolerance, or when the bracket is that narrow.
    """
    short: tuple[float, float] | None = None  # too little noise: (z, epsilon above target)
    enough: tuple[float, float] | None = None
    z = min(max(start, LEAST_NOISE), MOST_NOISE)
    for evaluation in range(100):
        epsilon = epsilon_of(z)
        if epsilon <= target:
            enough = (z, epsilon)
        else:
            short = (z, epsilon)
        if short is not None and enough is not None and _usable(short) and _usable(enough):
            slope = math.log(short[1] / enough[1]) / math.log(enough[0] / short[0])
            power = min(max(slope, 0.05), 20.0)
        if enough is None and z == MOST_NOISE:
            return None, power
        if enough is not None:
            if enough[0] == LEAST_NOISE:
                break
            if power is not None and _usable(enough) and math.log(target / enough[1]) <= power * TOLERANCE:
                break
            if short is not None and enough[0] <= short[0] * (1 + TOLERANCE):
                break
        usable = [end for end in (short, enough) if end is not None and _usable(end)]
        stuck = evaluation % 6 == 5 or len(usable) < 2
        if short is not None and enough is not None and stuck:
            z = math.sqrt(short[0] * enough[0])  # a secant can creep along one end; this cannot
            continue
        if enough is None and evaluation % 12 == 11:
            z *= 4  # where a part costs the same whatever the noise, the law below creeps
        elif usable:
            near = min(usable, key=lambda end: abs(math.log(end[1] / target)))
            z = near[0] * min(max((near[1] / target) ** (1 / (power or 1.5)), 0.25), 4.0)
            z *= 1 + TOLERANCE / 3
        else:
            z = z * 4 if enough is None else z / 4
        if enough is not None:
            z = min(z, enough[0] * (1 - TOLERANCE / 2))
        if short is not None:
            z = max(z, short[0] * (1 + TOLERANCE / 2))
        z = min(max(z, LEAST_NOISE), MOST_NOISE)
    return (None if enough is None else enough[0]), power


def _usable(end: tuple[float, float]) -> bool:
    """Whether a logarithm can be taken of its epsilon."""
    return 0 < end[1] < math.inf


def _most_steps(
    epsilon_of: Callable[[int], float], target: float, start: int, power: float = 0.7, slack: float = 0.0
) -> tuple[int, float]:
    """The most steps whose epsilon is <= target (0 if one is too many), and p of the law epsilon ~ steps^p.

    The integer twin of `_least_noise`; with `slack` the result may be that fraction too small.
    """
    fits: tuple[int, float] = (0, 0.0)
    over: tuple[int, float] | None = None
    fitted: bool | None = None
    steps = start
    for evaluation in range(200):
        epsilon = epsilon_of(steps)
        same_side, fitted = (epsilon <= target) == fitted, epsilon <= target
        if fitted:
            fits = (steps, epsilon)
        else:
            over = (steps, epsilon)
        if over is not None and over[0] - fits[0] <= 1 + slack * fits[0]:
            break
        if over is None and fits[0] >= MOST_STEPS:
            raise ValueError(
                f"more than {MOST_STEPS} such steps fit epsilon {target}: the budget sets no limit here"
            )
        usable = [end for end in (fits, over) if end is not None and _usable(end)]
        if len(usable) == 2 and over is not None:
            power = min(max(math.log(over[1] / fits[1]) / math.log(over[0] / fits[0]), 0.05), 2.0)
        if over is not None and (evaluation % 6 == 5 or len(usable) < 2):
            steps = (fits[0] + over[0]) // 2
        elif usable:
            near = min(usable, key=lambda end: abs(math.log(end[1] / target)))
            guess = near[0] * min((target / near[1]) ** (1 / power), 1000.0)
            if same_side:
                guess = 2 * guess - near[0]  # a secant creeps along one end: step over the target instead
            steps = math.floor(min(max(guess, 1.0), MOST_STEPS))
        else:
            steps = 10 * steps
        steps = max(steps, fits[0] + 1)
        steps = min(steps, MOST_STEPS if over is None else over[0] - 1)
    return fits[0], power
