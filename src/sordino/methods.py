"""Named compositions: a method is a clipping policy, a step rule and a rate controller."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sordino.clipping import ClippingPolicy, Fixed, PerLayer, Quantile, Unclipped
from sordino.rates import Constant, RateController, Scheduled
from sordino.steps import Adam, AdamWithoutSecondMoments, Sgd, StepRule


@dataclass(frozen=True)
class Method:
    """How to train: what is clipped to what, how a gradient becomes a step, and at which rate.

    ``average`` is the decay of an exponential average of the iterates (None for none); the average is free
    post-processing, and when it is on, it is the model that comes out.
    """

    name: str
    clip: ClippingPolicy
    step: StepRule
    rate: RateController
    average: float | None = None
    private: bool = True

    def __post_init__(self) -> None:
        if self.average is not None and not 0 < self.average < 1:
            raise ValueError(f"average is the decay of a mean and must be in (0, 1), not {self.average:g}")

    def describe(self) -> dict[str, Any]:
        """What the method is made of, what it adapts, and what it still asks of the user."""
        adapts = ["threshold"] if isinstance(self.clip, Quantile) else []
        scaled_by_noise = isinstance(
            self.step, AdamWithoutSecondMoments
        )  # its rate is a constant of the paper
        needs = [] if scaled_by_noise else ["learning_rate"]
        if self.private and not adapts:
            needs.append("threshold")
        parts = {
            part: {"kind": type(value).__name__, **asdict(value)}  # type: ignore[call-overload]
            for part, value in (("clip", self.clip), ("step", self.step), ("rate", self.rate))
        }
        return {"name": self.name, **parts, "average": self.average, "adapts": adapts, "needs": needs}


def _rate(learning_rate: float, schedule: str | None) -> RateController:
    return Constant(learning_rate) if schedule in (None, "constant") else Scheduled(learning_rate, schedule)


def _clip(threshold: float, target_quantile: float | None, per_layer: bool) -> ClippingPolicy:
    if target_quantile is not None:
        if per_layer:
            raise ValueError("per_layer and target_quantile cannot be combined: choose one")
        return Quantile(target_quantile, threshold)
    return PerLayer(threshold) if per_layer else Fixed(threshold)


def dp_sgd(
    learning_rate: float = 0.5,
    threshold: float = 1.0,
    momentum: float = 0.0,
    schedule: str | None = None,
    target_quantile: float | None = None,
    per_layer: bool = False,
    average: float | None = None,
) -> Method:
    """DP-SGD (Abadi et al., 2016), with heavy-ball momentum if asked for.

    With ``target_quantile`` the threshold follows that quantile of the norms (Andrew et al., 2021) and
    ``threshold`` is where it starts.
    """
    return Method(
        "dp-sgd",
        _clip(threshold, target_quantile, per_layer),
        Sgd(momentum),
        _rate(learning_rate, schedule),
        average,
    )


def dp_adam(
    learning_rate: float = 1e-3,
    threshold: float = 1.0,
    beta1: float = 0.9,
    beta2: float = 0.999,
    schedule: str | None = None,
    target_quantile: float | None = None,
    per_layer: bool = False,
    average: float | None = None,
) -> Method:
    """Adam on clipped and noised gradients."""
    return Method(
        "dp-adam",
        _clip(threshold, target_quantile, per_layer),
        Adam(beta1, beta2),
        _rate(learning_rate, schedule),
        average,
    )


def adam_wosm(
    learning_rate: float = 1e-3,
    threshold: float = 1.0,
    beta1: float = 0.9,
    schedule: str | None = None,
    target_quantile: float | None = None,
    average: float | None = None,
) -> Method:
    """Adam without second moments (Mohapatra et al., 2022): the step size follows from the noise."""
    return Method(
        "adam-wosm",
        _clip(threshold, target_quantile, per_layer=False),
        AdamWithoutSecondMoments(beta1),
        _rate(learning_rate, schedule),
        average,
    )


def sgd(
    learning_rate: float = 0.1,
    momentum: float = 0.0,
    schedule: str | None = None,
    average: float | None = None,
) -> Method:
    """Plain SGD, without privacy, for comparison."""
    return Method("sgd", Unclipped(), Sgd(momentum), _rate(learning_rate, schedule), average, private=False)


def adam(
    learning_rate: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    schedule: str | None = None,
    average: float | None = None,
) -> Method:
    """Plain Adam, without privacy, for comparison."""
    return Method(
        "adam", Unclipped(), Adam(beta1, beta2), _rate(learning_rate, schedule), average, private=False
    )


METHODS: dict[str, Callable[..., Method]] = {
    "adam": adam,
    "adam-wosm": adam_wosm,
    "dp-adam": dp_adam,
    "dp-sgd": dp_sgd,
    "sgd": sgd,
}


def method_named(name: str, settings: Mapping[str, Any] | None = None) -> Method:
    """The method called ``name`` with some settings changed; unknown names and settings raise and say what there is."""
    key = name.replace("_", "-")
    if key not in METHODS:
        raise ValueError(f"there is no method {name!r}: choose one of {', '.join(sorted(METHODS))}")
    known = inspect.signature(METHODS[key]).parameters
    for setting, value in (settings or {}).items():
        if setting not in known:
            raise ValueError(f"{key} has no setting {setting!r}: it has {', '.join(known)}")
        wanted = str(known[setting].annotation)
        if not _fits(value, wanted):
            raise ValueError(f"{setting} must be of type {wanted}, not {value!r}")
    return METHODS[key](**(settings or {}))


def _fits(value: Any, annotation: str) -> bool:
    if value is None:
        return "None" in annotation
    if isinstance(value, bool):
        return "bool" in annotation
    return "float" in annotation if isinstance(value, (int, float)) else "str" in annotation
