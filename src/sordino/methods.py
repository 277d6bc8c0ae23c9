"""Named compositions: a method is a clipping policy, a noise mechanism, a step rule and a rate controller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sordino.clipping import ClippingPolicy, Fixed, Normalised, Online, PerLayer, Quantile, Unclipped
from sordino.described import described
from sordino.named import CLIPS, NOISES, RATES, STEPS
from sordino.named import METHODS as METHODS
from sordino.noise import Gaussian, Mechanism, Tree
from sordino.rates import (
    Constant,
    DistanceOverGradients,
    Hypergradient,
    RateController,
    Scheduled,
    Tolerance,
    Travel,
)
from sordino.steps import Adam, AdamWithoutSecondMoments, Extrapolation, Ftrl, Sgd, StepRule
from sordino.terms import check_together


@dataclass(frozen=True)
class Method:
    """How to train: what is clipped to what, with which noise, how a gradient becomes a step, at which rate.

    Made by the functions below (``auto``, ``adadp``, ...), or composed by ``method``.

    Args:
        name: What it is called in run.json.
        clip: The clipping policy: how much a unit may say.
        step: The step rule: how gradients move theta.
        rate: The rate controller: how far.
        noise: The mechanism: ``Gaussian()``, ``Banded()``, ``Buffered()`` or ``Tree()``.
        average: The share of the run that an exponential average of the iterates looks back over (None
            for none), and 1 is the plain average of all of them, from the first: online-to-batch conversion.
            It is free post-processing, and when it is on, it is the model that comes out.
        private: False for methods without clipping and noise.
        standardises: Whether inputs are standardised under the budget if the caller of `train` says nothing of it.

    >>> auto().describe()["adapts"], dp_sgd().describe()["needs"]
    (['learning_rate'], ['learning_rate', 'threshold'])
    """

    name: str
    clip: ClippingPolicy
    step: StepRule
    rate: RateController
    noise: Mechanism = field(default_factory=Gaussian)
    average: float | None = None
    private: bool = True
    standardises: bool = False

    def __post_init__(self) -> None:
        if self.average is not None and not 0 < self.average <= 1:
            raise ValueError(f"average is a share of the run and must be in (0, 1], not {self.average:g}")
        if self.rate.needs_error and not self.step.estimates_error:
            raise ValueError(
                f"{_kind(self.rate)} follows an error estimate and {_kind(self.step)} gives none: "
                "use step=Extrapolation() or another rate"
            )
        if self.rate.needs_plain_steps and not self.step.plain:
            raise ValueError(
                f"{_kind(self.rate)} measures gradients and {_kind(self.step)} steps along something else: use Sgd "
                "without momentum or Extrapolation, or another rate"
            )
        if self.rate.needs_independent_noise and not self.noise.independent:
            raise ValueError(
                f"{_kind(self.rate)} compares gradients of different batches, and the noise of {_kind(self.noise)} "
                "cancels that of the batch before, which it would take for a sign to slow down; nor could a step that "
                "is taken back leave the sums: use another rate"
            )
        if self.step.scaled_by_noise and not self.noise.independent:
            raise ValueError(
                f"{_kind(self.step)} scales its steps by the noise of a release, most of which {_kind(self.noise)} "
                "cancels later: use another step"
            )
        if not (self.step.uses_every_gradient or self.noise.independent):
            raise ValueError(
                f"{_kind(self.step)} leaves gradients out, and the noise of {_kind(self.noise)} cancels only if all of "
                "them are used: use keep='hat'"
            )
        check_together(self.clip, self.noise)
        if self.clip.needs_linear_steps and not self.step.linear:
            raise ValueError(
                f"{_kind(self.clip)} follows the derivative of a step by the threshold, which for {_kind(self.step)} "
                "is not the q it releases: use Sgd or Extrapolation, or a Quantile threshold"
            )

    def describe(self) -> dict[str, Any]:
        """What the method is made of, what it adapts, and what it still asks of the user."""
        adapts = ["learning_rate"] * self.rate.adapts + ["threshold"] * self.clip.adapts
        needs = ["learning_rate"] * (self.rate.needs_rate and self.step.needs_rate)
        needs += ["threshold"] * (self.clip.needs_threshold and self.private)
        parts = {"clip": self.clip, "noise": self.noise, "step": self.step, "rate": self.rate}
        return {
            "name": self.name,
            **described(parts),
            "average": self.average,
            "adapts": adapts,
            "needs": needs,
        }


def method(
    *,
    clip: ClippingPolicy | str = "normalised",
    step: StepRule | str = "sgd",
    rate: RateController | str = "travel",
    noise: Mechanism | str | None = "gaussian",
    average: float | None = None,
    name: str = "composed",
) -> Method:
    """Compose a method of one's own, of parts or their names; what does not go together raises and says why.

    Args:
        clip: ``Fixed``, ``PerLayer``, ``Normalised``, ``Quantile``, ``Online``, or without privacy
            ``Unclipped``.
        step: ``Sgd``, ``Adam``, ``AdamWithoutSecondMoments``, ``Extrapolation`` or ``Ftrl``.
        rate: ``Constant``, ``Scheduled``, ``Tolerance``, ``Hypergradient``, ``Travel`` or
            ``DistanceOverGradients``.
        noise: ``Gaussian()``, the default, ``Banded()``, ``Buffered()`` or ``Tree()``.
        average: The share of the run that an average of the iterates looks back over; 1 is the average of
            all.
        name: What run.json calls it.

    Guarantee: that of its clipping policy and noise; step and rate are post-processing. A combination whose
    price is not known is refused.

    >>> method(clip="quantile:0.8", step="sgd", rate="constant:0.1", noise="gaussian").rate
    Constant(learning_rate=0.1)
    >>> method(clip=Quantile(), step=Extrapolation(), rate=Tolerance()).describe()["needs"]
    []
    >>> method(clip=Quantile(), step=Sgd(), rate=Tolerance())
    Traceback (most recent call last):
    ValueError: Tolerance follows an error estimate and Sgd gives none: use step=Extrapolation() or another rate
    """
    parts = {
        "clip": (CLIPS.part(clip), ClippingPolicy),
        "step": (STEPS.part(step), StepRule),
        "rate": (RATES.part(rate), RateController),
        "noise": (NOISES.part(noise or "gaussian"), Mechanism),
    }
    for part, (value, kind) in parts.items():
        if not isinstance(value, kind):
            raise ValueError(f"{part} must be a {kind.__name__}, not {value!r}")
    made = {part: value for part, (value, _) in parts.items()}
    return Method(name, **made, average=average, private=made["clip"].bounds)


def _kind(part: object) -> str:
    return type(part).__name__


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
    """DP-SGD, with heavy-ball momentum if asked for.

    Args:
        learning_rate: The rate; with a ``schedule`` where it starts.
        threshold: Every unit's gradient is clipped to this norm; with ``target_quantile`` where it starts.
        momentum: Of the heavy ball, in [0, 1).
        schedule: ``linear`` or ``cosine``, down to 0 over the run; None is a constant rate.
        target_quantile: The threshold follows this quantile of the norms (Andrew et al., 2021).
        per_layer: Clip each layer on its own; ``threshold`` is shared among them.
        average: The share of the run that an average of the iterates looks back over; None for none.

    Guarantee: one Gaussian release a step, amplified under Poisson sampling; a quantile's count is part of
    it.

    Reference: Abadi et al., "Deep learning with differential privacy", CCS 2016.

    >>> dp_sgd(learning_rate=0.5, target_quantile=0.5).describe()["needs"]
    ['learning_rate']
    """
    return Method(
        "dp-sgd",
        _clip(threshold, target_quantile, per_layer),
        Sgd(momentum),
        _rate(learning_rate, schedule),
        average=average,
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
    """Adam on clipped and noised gradients.

    Args:
        learning_rate: The rate; with a ``schedule`` where it starts.
        threshold: Every unit's gradient is clipped to this norm; with ``target_quantile`` where it starts.
        beta1: How much of the mean gradient is kept at each step.
        beta2: Likewise of the mean squared gradient.
        schedule: ``linear`` or ``cosine``, down to 0 over the run; None is a constant rate.
        target_quantile: The threshold follows this quantile of the norms (Andrew et al., 2021).
        per_layer: Clip each layer on its own; ``threshold`` is shared among them.
        average: The share of the run that an average of the iterates looks back over; None for none.

    Guarantee: one Gaussian release a step, amplified under Poisson sampling; a quantile's count is part of
    it.

    Reference: Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015.

    >>> dp_adam(learning_rate=0.002, schedule="cosine").describe()["rate"]["kind"]
    'Scheduled'
    """
    return Method(
        "dp-adam",
        _clip(threshold, target_quantile, per_layer),
        Adam(beta1, beta2),
        _rate(learning_rate, schedule),
        average=average,
    )


def adam_wosm(
    learning_rate: float = 1e-3,
    threshold: float = 1.0,
    beta1: float = 0.9,
    schedule: str | None = None,
    target_quantile: float | None = None,
    average: float | None = None,
) -> Method:
    """Adam without second moments: the step size follows from the noise.

    Args:
        learning_rate: The rate; with a ``schedule`` where it starts.
        threshold: Every unit's gradient is clipped to this norm; with ``target_quantile`` where it starts.
        beta1: How much of the mean gradient is kept at each step.
        schedule: ``linear`` or ``cosine``, down to 0 over the run; None is a constant rate.
        target_quantile: The threshold follows this quantile of the norms (Andrew et al., 2021).
        average: The share of the run that an average of the iterates looks back over; None for none.

    Guarantee: one Gaussian release a step, amplified under Poisson sampling; a quantile's count is part of
    it.

    Reference: Mohapatra et al., "The role of adaptive optimizers for honest private hyperparameter
    selection", AAAI 2022.

    >>> adam_wosm(target_quantile=0.5).describe()["needs"]
    []
    """
    return Method(
        "adam-wosm",
        _clip(threshold, target_quantile, per_layer=False),
        AdamWithoutSecondMoments(beta1),
        _rate(learning_rate, schedule),
        average=average,
    )


def adadp(
    learning_rate: float = 0.1,
    threshold: float | None = None,
    tol: float | None = None,
    target_quantile: float | None = None,
    online: bool = False,
    keep: str = "hat",
    exponent: float = 1.0,
    discard: bool = False,
    reduction: str = "mean",
    freeze_after: float | None = None,
    average: float | None = None,
) -> Method:
    """ADADP: the learning rate found by extrapolation, two batches per step.

    Gradients are normalised unless a threshold is asked for, so that none is left to choose.

    Args:
        learning_rate: A mere starting point.
        threshold: The paper's fixed one, or where ``target_quantile`` and ``online`` start.
        tol: The error of a step to hold; None follows from the plan.
        target_quantile: The threshold follows this quantile of the norms (Andrew et al., 2021).
        online: The threshold follows OSO's rule.
        keep: ``hat`` goes on from the two half steps, ``full`` from the full one.
        exponent: Of tol / error, by which the rate is multiplied.
        discard: Take steps with an error above tol back; they are charged all the same.
        reduction: ``sum`` reads ``learning_rate`` as one for sums of gradients, as the paper has it.
        freeze_after: After so many epochs single steps at the rate found.
        average: The share of the run that an average of the iterates looks back over; None for none.

    Guarantee: one Gaussian release a batch, two a step, amplified under Poisson sampling. The rate is free
    post-processing.

    Reference: Koskela and Honkela, "Learning rate adaptation for differentially private learning", AISTATS
    2020.

    >>> adadp().describe()["needs"], adadp(online=True).describe()["adapts"]
    ([], ['learning_rate', 'threshold'])
    """
    clip: ClippingPolicy
    if online:
        if target_quantile is not None:
            raise ValueError("online and target_quantile are two rules for one threshold: choose one")
        clip = Online(0.1 if threshold is None else threshold)
    elif threshold is None and target_quantile is None:
        clip = Normalised()
    else:
        clip = _clip(0.1 if threshold is None else threshold, target_quantile, per_layer=False)
    return Method(
        "adadp",
        clip,
        Extrapolation(keep, freeze_after),
        Tolerance(learning_rate, tol, exponent, discard=discard, reduction=reduction),
        average=average,
        standardises=True,
    )


def oso(
    learning_rate: float | None = None,
    threshold: float = 0.1,
    momentum: float = 0.0,
    threshold_speed: float = 2.5e-3,
    rate_speed: float = 2.5e-3,
    gradient_noise: float = 1.01,
    update: str = "sign",
    average: float | None = None,
) -> Method:
    """OSO-DPSGD: threshold and learning rate optimised online, each along its own derivative.

    Args:
        learning_rate: Where the rate starts; it moves by at most e^(rate_speed T) in T steps. None starts where
            the default's rule does, by the first gradient.
        threshold: Where the threshold starts; it moves by at most e^(threshold_speed T).
        momentum: Of the heavy ball, in [0, 1).
        threshold_speed: How far the threshold moves in a step.
        rate_speed: How far the rate moves in a step.
        gradient_noise: How many times the noise it would have alone the gradient takes; the threshold's
            derivative takes the rest.
        update: ``sign`` or ``cosine``.
        average: The share of the run that an average of the iterates looks back over; None for none.

    Guarantee: gradient and derivative are one joint Gaussian release a step (Proposition 1), amplified
    under Poisson sampling.

    Reference: Galli, Palamidessi and Cucinotta, "Online sensitivity optimization in differentially private
    learning", AAAI 2024.

    >>> oso(learning_rate=0.3, threshold=0.1).describe()["adapts"]
    ['learning_rate', 'threshold']
    """
    return Method(
        "oso",
        Online(threshold, threshold_speed, gradient_noise, update),
        Sgd(momentum),
        Hypergradient(learning_rate, rate_speed, update),
        average=average,
        standardises=True,
    )


def auto(
    travel: float | None = None,
    stability: float = 0.1,
    average: float | None = 0.1,
    noise: Mechanism | str = "banded",
) -> Method:
    """The default: nothing is left to choose, neither a learning rate nor a threshold.

    Gradients are normalised, the rate is D / (G sqrt(T)) with the gradients' size G measured and the
    distance D from the model's shapes, layer by layer; the noise is banded, with as many bands as make it least
    for the budget; and the model that comes out is an average over the last tenth of the run. Inputs are
    standardised under the budget first, so that their scale does not matter.

    Args:
        travel: D, in times of the norm that weights of such shapes have at 1/sqrt(fan-in); None follows from
            the number of layers.
        stability: Added to the norms that gradients are divided by.
        average: The share of the run that an average of the iterates looks back over; None for none.
        noise: ``gaussian`` is independent noise.

    Guarantee: that of `Banded`: at one band one Gaussian release a step, amplified under Poisson sampling.

    Reference: ours; what was measured is in docs/results.md.

    >>> auto().describe()["needs"]
    []
    """
    return Method(
        "auto",
        Normalised(stability),
        Sgd(by_layer=True),
        Travel(travel),
        NOISES.part(noise),
        average=average,
        standardises=True,
    )


def dp_dog(initial: float = 0.1, stability: float = 0.1, average: float | None = None) -> Method:
    """Distance over gradients on normalised gradients: no rate and no threshold.

    Args:
        initial: The distance taken for granted at first, relative to ``1 + |theta_0|``.
        stability: Added to the norms that gradients are divided by.
        average: The share of the run that an average of the iterates looks back over; None for none.

    Guarantee: one Gaussian release a step, amplified under Poisson sampling.

    Reference: Ivgi, Hinder and Carmon, "DoG is SGD's best friend: a parameter-free dynamic step size
    schedule", ICML 2023.

    >>> dp_dog().describe()["needs"]
    []
    """
    return Method(
        "dp-dog",
        Normalised(stability),
        Sgd(),
        DistanceOverGradients(initial),
        average=average,
        standardises=True,
    )


def dp_ftrl(
    learning_rate: float = 0.05,
    threshold: float = 1.0,
    momentum: float = 0.9,
    efficient: bool = True,
    restart_every: int | str | None = "auto",
    completion: bool = True,
    fresh_start: bool = False,
    radius: float | None = None,
    target_quantile: float | None = None,
    online: bool = False,
    average: float | None = None,
) -> Method:
    """DP-FTRL: no batch needs to be random, batches come in an order that may be known.

    Args:
        learning_rate: The paper's 1 / lambda.
        threshold: Every unit's gradient is clipped to this norm; where ``target_quantile`` and ``online``
            start.
        momentum: DP-FTRLM: a step's effect is 1 / (1 - momentum) times as large.
        efficient: Honaker's estimator: less noise at the same price.
        restart_every: After so many epochs a new tree begins, whose batches are dealt anew; ``auto`` as
            often as makes the noise least, None never.
        completion: Fill a tree up with steps without data before the next begins.
        fresh_start: Forget sum and momentum at a restart.
        radius: Keep the model in a ball around its start.
        target_quantile: The threshold follows this quantile of the norms (Andrew et al., 2021).
        online: The threshold follows OSO's rule.
        average: The share of the run that an average of the iterates looks back over; 1 is the paper's
            online-to-batch conversion.

    Guarantee: nothing is assumed about sampling; a tree is charged whole when it is opened.

    Reference: Kairouz et al., "Practical and private (deep) learning without sampling or shuffling", ICML
    2021.

    >>> dp_ftrl(restart_every=1).describe()["noise"]["kind"]
    'Tree'
    """
    if online and target_quantile is not None:
        raise ValueError("online and target_quantile are two rules for one threshold: choose one")
    return Method(
        "dp-ftrl",
        Online(threshold) if online else _clip(threshold, target_quantile, per_layer=False),
        Ftrl(momentum, radius, fresh_start),
        Constant(learning_rate),
        Tree(efficient, restart_every, completion),
        average=average,
    )


def sgd(
    learning_rate: float = 0.1,
    momentum: float = 0.0,
    schedule: str | None = None,
    average: float | None = None,
) -> Method:
    """Plain SGD, without privacy, for comparison.

    Args:
        learning_rate: The rate; with a ``schedule`` where it starts.
        momentum: Of the heavy ball, in [0, 1).
        schedule: ``linear`` or ``cosine``, down to 0 over the run; None is a constant rate.
        average: The share of the run that an average of the iterates looks back over; None for none.

    Guarantee: none; epsilon is infinite.

    >>> sgd(momentum=0.9).private
    False
    """
    return Method(
        "sgd", Unclipped(), Sgd(momentum), _rate(learning_rate, schedule), average=average, private=False
    )


def adam(
    learning_rate: float = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    schedule: str | None = None,
    average: float | None = None,
) -> Method:
    """Plain Adam, without privacy, for comparison.

    Args:
        learning_rate: The rate; with a ``schedule`` where it starts.
        beta1: How much of the mean gradient is kept at each step.
        beta2: Likewise of the mean squared gradient.
        schedule: ``linear`` or ``cosine``, down to 0 over the run; None is a constant rate.
        average: The share of the run that an average of the iterates looks back over; None for none.

    Guarantee: none; epsilon is infinite.

    Reference: Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015.

    >>> adam(schedule="linear").private
    False
    """
    return Method(
        "adam",
        Unclipped(),
        Adam(beta1, beta2),
        _rate(learning_rate, schedule),
        average=average,
        private=False,
    )


def method_named(name: str, settings: Mapping[str, Any] | None = None) -> Method:
    """The method called ``name`` with some settings changed; unknown names and settings raise and say what there is."""
    found: Method = METHODS.named(name, settings)
    return found
