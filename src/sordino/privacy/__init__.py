"""Privacy accounting: budgets, events, what they cost, how much noise they need, and the proof of it."""

from sordino.privacy.accountants import EpsilonCurve, Guarantee, epsilon_after, price
from sordino.privacy.budget import Budget
from sordino.privacy.calibration import noise_for, steps_for
from sordino.privacy.certificate import certificate, recompute, show_epsilon
from sordino.privacy.events import (
    approximate,
    compose,
    event_from_json,
    event_to_json,
    gaussian,
    poisson_gaussian,
    release,
    repeat,
)
from sordino.privacy.ledger import Ledger
from sordino.privacy.trees import (
    fixed_order_sensitivity,
    pattern_sensitivity,
    tree_plan,
    tree_release,
    worst_case_sensitivity,
)

__all__ = [
    "Budget",
    "EpsilonCurve",
    "Guarantee",
    "Ledger",
    "approximate",
    "certificate",
    "compose",
    "epsilon_after",
    "event_from_json",
    "event_to_json",
    "fixed_order_sensitivity",
    "gaussian",
    "noise_for",
    "pattern_sensitivity",
    "poisson_gaussian",
    "price",
    "recompute",
    "release",
    "repeat",
    "show_epsilon",
    "steps_for",
    "tree_plan",
    "tree_release",
    "worst_case_sensitivity",
]
