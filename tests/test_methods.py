"""One contract for every method: it trains, it is paid for, it describes itself."""

from __future__ import annotations

import inspect
import json
from itertools import combinations, product
from typing import Any

import pytest
import torch
from torch import nn

from conftest import cross_entropy, in_turn
from sordino import Budget, train
from sordino.clipping import ClippingPolicy, Fixed, Normalised, Online, PerLayer, Quantile, Unclipped
from sordino.methods import METHODS, Method, adadp, auto, dp_dog, dp_ftrl, method, method_named, oso
from sordino.noise import Banded, Gaussian, Mechanism, Tree
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

PRIVATE = [name for name in METHODS if method_named(name).private]


def price(name: str) -> dict[str, Any]:
    return {"budget": Budget(8.0, 1e-3), "accountant": "rdp"} if name in PRIVATE else {}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_trains_and_pays(name: str, small_model: nn.Module, toy: Any) -> None:
    start = {k: v.clone() for k, v in small_model.state_dict().items()}
    run = train(
        small_model,
        cross_entropy,
        toy,
        method=method_named(name),
        epochs=4,
        batch_size=20,
        test=toy,
        seed=1,
        **price(name),
    )
    assert all(not torch.equal(v, start[k]) for k, v in run.model.state_dict().items())
    assert run.summary["batches"] == 12
    assert run.summary["steps"] == (6 if name == "adadp" else 12)
    assert 0 <= run.metrics["test_accuracy"] <= 1
    assert run.metrics["covered"] is False
    if name in PRIVATE:
        assert 7 < run.epsilon <= 8.0
        assert run.certificate["guarantee"]["epsilon"] == run.epsilon
    else:
        assert run.epsilon == float("inf")
        assert run.certificate["guarantee"]["epsilon"] == "inf"


@pytest.mark.parametrize("name", METHODS)
def test_a_method_describes_itself(name: str) -> None:
    described = method_named(name).describe()
    assert json.loads(json.dumps(described))["name"] == name
    assert ("learning_rate" in described["needs"]) == (
        name not in ("adadp", "adam-wosm", "auto", "composed", "dp-dog", "oso")
    )


def test_oso_asks_for_a_rate_only_where_one_is_given() -> None:
    assert method_named("oso").describe()["needs"] == []
    assert method_named("oso", {"learning_rate": 0.3}).describe()["needs"] == ["learning_rate"]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("extra", [{"average": 0.9}, {"schedule": "cosine"}])
def test_options_of_every_method(name: str, extra: dict[str, Any], toy: Any) -> None:
    if not extra.keys() <= inspect.signature(METHODS[name]).parameters.keys():
        with pytest.raises(ValueError, match="has no setting 'schedule'"):
            method_named(name, extra)
        return
    run = train(
        nn.Linear(10, 3),
        cross_entropy,
        toy,
        method=method_named(name, extra),
        epochs=2,
        batch_size=20,
        **price(name),
    )
    assert all(torch.isfinite(p).all() for p in run.model.parameters())


def test_thresholds_of_methods() -> None:
    assert method_named("dp-sgd", {"target_quantile": 0.5}).describe()["adapts"] == ["threshold"]
    assert method_named("dp_adam", {"per_layer": True}).describe()["clip"]["kind"] == "PerLayer"
    with pytest.raises(ValueError, match="choose one"):
        method_named("dp-sgd", {"per_layer": True, "target_quantile": 0.5})


def test_unknown_names_and_settings_say_what_there_is() -> None:
    with pytest.raises(ValueError, match=r"choose one of adadp, adam, adam-wosm.*did you mean dp-sgd\?"):
        method_named("dp-sdg")
    with pytest.raises(ValueError, match="it has learning_rate"):
        method_named("dp-sgd", {"lr": 1})
    with pytest.raises(ValueError, match="average"):
        method_named("dp-sgd", {"average": 1.5})
    with pytest.raises(ValueError, match="learning_rate must be a number, not True"):
        method_named("dp-sgd", {"learning_rate": True})


# Compositions ---------------------------------------------------------------------------------------------

CLIPS = [Fixed(0.5), PerLayer(0.5), Quantile(0.5, 0.2), Online(0.2), Normalised(), Unclipped()]
STEPS = [
    Sgd(),
    Sgd(0.9),
    Adam(),
    AdamWithoutSecondMoments(),
    Extrapolation(),
    Extrapolation("full", 0.5),
    Ftrl(0.9),
]
NOISES = [Gaussian(), Tree(), Tree(efficient=False, restart_every=1, completion=False)]
RATES = [Constant(0.1), Scheduled(0.1), Tolerance(), Hypergradient(), DistanceOverGradients(), Travel()]
NEED_A_THRESHOLD, MOVE_A_THRESHOLD = (Fixed, PerLayer), (Quantile, Online)
NEED_A_RATE, MOVE_A_RATE = (
    (Constant, Scheduled),
    (Tolerance, Hypergradient, DistanceOverGradients, Travel),
)


def fits(clip: ClippingPolicy, step: StepRule, rate: RateController) -> bool:
    errors = isinstance(step, Extrapolation) or not isinstance(rate, Tolerance)
    along = isinstance(step, Extrapolation) or step == Sgd()
    if isinstance(rate, (DistanceOverGradients, Travel)) and not along:
        return False
    return errors and not (isinstance(clip, Online) and isinstance(step, (Adam, AdamWithoutSecondMoments)))


@pytest.mark.parametrize("step", STEPS, ids=str)
@pytest.mark.parametrize("clip", CLIPS, ids=str)
def test_what_fits_together_describes_itself_truthfully(clip: ClippingPolicy, step: StepRule) -> None:
    for rate in RATES:
        if not fits(clip, step, rate):
            with pytest.raises(ValueError, match=r"follows|steps along something else"):
                method(clip=clip, step=step, rate=rate)
            continue
        described = method(clip=clip, step=step, rate=rate, average=0.9, name="mine").describe()
        assert json.loads(json.dumps(described))["name"] == "mine"
        kinds = [described[part]["kind"] for part in ("clip", "noise", "step", "rate")]
        assert kinds == [type(clip).__name__, "Gaussian", type(step).__name__, type(rate).__name__]
        assert ("learning_rate" in described["adapts"]) == isinstance(rate, MOVE_A_RATE)
        assert ("threshold" in described["adapts"]) == isinstance(clip, MOVE_A_THRESHOLD)
        asks = isinstance(rate, NEED_A_RATE) and not isinstance(step, AdamWithoutSecondMoments)
        assert ("learning_rate" in described["needs"]) == asks
        assert ("threshold" in described["needs"]) == isinstance(clip, NEED_A_THRESHOLD)


def trained(composed: Method, toy: Any, **options: Any) -> Any:
    """Two steps of Poisson batches, four where a step takes two."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        model = nn.Linear(10, 3)
    defaults: dict[str, Any] = {"noise_multiplier": 1.0, "delta": 1e-3} if composed.private else {}
    epochs = 1 if isinstance(composed.step, Extrapolation) else 0.5
    return train(
        model, cross_entropy, toy, method=composed, epochs=epochs, batch_size=15, seed=1, accountant="rdp",
        **{**defaults, **options},
    )  # fmt: skip


def meetings() -> list[tuple[ClippingPolicy, StepRule, RateController]]:
    """Compositions in which every two parts that fit meet; all of them would be four times as many runs."""
    chosen, met = [], set[Any]()
    fitting = [parts for parts in product(CLIPS, STEPS, RATES) if fits(*parts)]
    while new := max(({*combinations(parts, 2)} - met for parts in fitting), key=len):
        parts = next(parts for parts in fitting if {*combinations(parts, 2)} - met == new)
        chosen.append(parts)
        met |= new
    return chosen


@pytest.mark.parametrize(("clip", "step", "rate"), meetings(), ids=lambda part: type(part).__name__)
def test_what_fits_together_trains(
    clip: ClippingPolicy, step: StepRule, rate: RateController, toy: Any
) -> None:
    composed = method(clip=clip, step=step, rate=rate)
    if isinstance(clip, Unclipped) and isinstance(step, AdamWithoutSecondMoments):
        with pytest.raises(ValueError, match="needs some"):
            trained(composed, toy)
        return
    run = trained(composed, toy)
    assert run.summary["steps"] == (3 if step == Extrapolation("full", 0.5) else 2)
    assert run.summary["batches"] == (4 if isinstance(step, Extrapolation) else 2)
    assert (run.epsilon == float("inf")) == isinstance(clip, Unclipped)
    assert all(torch.isfinite(p).all() for p in run.model.parameters())
    rates, thresholds = ([line[key] for line in run.history] for key in ("rate", "threshold"))
    if isinstance(rate, Constant):
        assert rates == [0.1] * len(rates)
    if isinstance(rate, DistanceOverGradients) or (isinstance(rate, Tolerance) and len(rates) == 2):
        assert len(set(rates)) > 1
    if isinstance(clip, (Fixed, PerLayer)):
        assert thresholds == pytest.approx([0.5] * len(thresholds))
    if isinstance(clip, Quantile):
        assert len(set(thresholds)) == len(thresholds)


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ({"rate": Tolerance()}, "Tolerance follows an error estimate and Sgd gives none"),
        ({"clip": Online(), "step": Adam()}, "for Adam is not the q it releases"),
        ({"clip": Online(), "step": AdamWithoutSecondMoments()}, "for AdamWithoutSecondMoments is not"),
        (
            {"rate": Travel(), "step": Sgd(0.9)},
            "Travel measures gradients and Sgd steps along something else",
        ),
        ({"rate": DistanceOverGradients(), "step": Adam()}, "Adam steps along something else"),
        ({"clip": 0.5}, "clip must be a ClippingPolicy, not 0.5"),
        ({"step": ["sgd"]}, r"step must be a StepRule, not \['sgd'\]"),
        ({"step": "sdg"}, "there is no step rule 'sdg': choose one of adam, .*; did you mean sgd?"),
        ({"clip": "fixed"}, "fixed needs its threshold: write it as in fixed:1.0"),
        ({"clip": "quantile:half"}, "'half' in the clipping policy 'quantile:half' is no number"),
        ({"rate": 0.1}, "rate must be a RateController, not 0.1"),
        ({"noise": 1.0}, "noise must be a Mechanism, not 1.0"),
        ({"average": 1.5}, "average is a share"),
        ({"noise": Tree(), "rate": Hypergradient()}, "cancels that of the batch before"),
        (
            {"noise": Tree(), "step": Extrapolation(), "rate": Tolerance(discard=True)},
            "nor could a step that is taken back leave",
        ),
        ({"noise": Tree(), "step": AdamWithoutSecondMoments()}, "cancels later"),
        ({"noise": Tree(), "step": Extrapolation("full")}, "Extrapolation leaves gradients out"),
        ({"noise": Tree(), "step": Ftrl(), "rate": Travel()}, "Ftrl steps along something else"),
        ({"noise": Tree(), "step": Ftrl(), "rate": Tolerance()}, "Ftrl gives none"),
    ],
)
def test_what_does_not_fit_says_why(parts: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        method(**{"clip": Fixed(1.0), "step": Sgd(), "rate": Constant(0.1), **parts})


def test_without_clipping_there_is_no_privacy_to_buy(toy: Any) -> None:
    free = method(clip=Unclipped(), step=Sgd(), rate=Constant(0.1))
    assert not free.private
    with pytest.raises(ValueError, match="without privacy"):
        trained(free, toy, noise_multiplier=1.0, delta=1e-3)


def under_a_tree() -> list[tuple[ClippingPolicy, StepRule]]:
    return [
        (clip, step)
        for clip, step in product(CLIPS[:-1], STEPS)
        if fits(clip, step, Constant(0.1)) and step.uses_every_gradient and not step.scaled_by_noise
    ]


@pytest.mark.parametrize(
    ("clip", "step", "noise"),
    [(*parts, noise) for parts, noise in in_turn(under_a_tree(), NOISES[1:])],
    ids=str,
)
def test_tree_noise_goes_with_every_rule_and_threshold(
    clip: ClippingPolicy, step: StepRule, noise: Mechanism, toy: Any
) -> None:
    run = trained(method(clip=clip, step=step, rate=Constant(0.1), noise=noise), toy)
    assert run.summary["sampling"] == "shuffled"
    assert 0 < run.epsilon < float("inf")
    assert all(torch.isfinite(p).all() for p in run.model.parameters())


@pytest.mark.parametrize("rate", [Scheduled(0.1), Travel(), DistanceOverGradients()], ids=str)
def test_tree_noise_goes_with_rates_that_compare_no_gradients(rate: RateController, toy: Any) -> None:
    run = trained(method(clip=Normalised(), step=Sgd(), rate=rate, noise=Tree()), toy)
    assert all(torch.isfinite(p).all() for p in run.model.parameters())


def test_a_tree_of_poisson_batches_is_refused(toy: Any) -> None:
    with pytest.raises(ValueError, match="fixed-order or shuffled"):
        trained(dp_ftrl(), toy, sampling="poisson")


def test_named_methods_are_compositions() -> None:
    found = dp_ftrl(0.2, 0.3, momentum=0.5, efficient=False, restart_every=4, completion=False, radius=2.0)
    assert (found.clip, found.step, found.rate) == (Fixed(0.3), Ftrl(0.5, 2.0), Constant(0.2))
    assert found.noise == Tree(False, 4, False)
    assert dp_ftrl(target_quantile=0.7).clip == Quantile(0.7, 1.0)
    assert dp_ftrl(online=True).clip == Online(1.0)
    with pytest.raises(ValueError, match="choose one"):
        dp_ftrl(online=True, target_quantile=0.7)
    found = oso(
        0.2, 0.3, momentum=0.5, threshold_speed=0.01, rate_speed=0.02, gradient_noise=1.1, update="cosine"
    )
    assert found.clip == Online(0.3, 0.01, 1.1, "cosine")
    assert (found.step, found.rate) == (Sgd(0.5), Hypergradient(0.2, 0.02, "cosine"))
    found = dp_dog(0.2, 0.05)
    assert (found.clip, found.step, found.rate) == (Normalised(0.05), Sgd(), DistanceOverGradients(0.2))
    found = adadp(
        0.2, 0.3, tol=0.7, target_quantile=None, keep="full", exponent=0.5, discard=True, freeze_after=3
    )
    assert (found.clip, found.step) == (Fixed(0.3), Extrapolation("full", 3))
    assert isinstance(found.rate, Tolerance)
    assert (found.rate.tol, found.rate.exponent, found.rate.discard) == (0.7, 0.5, True)
    assert adadp(threshold=0.3).describe()["needs"] == ["threshold"]
    assert isinstance(adadp(online=True).clip, Online)
    assert isinstance(adadp(target_quantile=0.3).clip, Quantile)
    with pytest.raises(ValueError, match="choose one"):
        adadp(online=True, target_quantile=0.3)
    for found in (adadp(), auto(), dp_dog()):
        assert isinstance(found.clip, Normalised)
        assert found.describe()["needs"] == []
    found = auto()
    assert (found.step, found.rate, found.noise) == (Sgd(by_layer=True), Travel(None), Banded("auto"))
    assert found.standardises
    assert (auto(travel=3.0).rate, auto(noise="gaussian").noise) == (Travel(3.0), Gaussian())
    assert auto(noise=Banded(4)).noise == Banded(4)
