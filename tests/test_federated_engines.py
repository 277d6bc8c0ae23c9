"""Gradients of many clients: every way against autograd client by client, and what cannot be had."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import sordino.federated.engines.gradients as gradients_module
from sordino.federated.engines import gradients as engines
from sordino.federated.engines.gradients import choose, engine_named
from sordino.federated.engines.losses import OutputGradients
from sordino.federated.engines.stacked import can_stack
from sordino.named import ENGINES
from sordino.vector import ParameterVector

CROSS_ENTROPY = nn.CrossEntropyLoss(reduction="none")
Rows = tuple[Tensor, Tensor, Tensor, Tensor]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """More have nothing to do in models as small as these."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Residual(nn.Module):
    """Not a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.last(x + self.second(torch.tanh(self.first(x))))
        return output


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm, self.last = (
            nn.Embedding(7, 4),
            nn.LSTM(4, 5, batch_first=True),
            nn.Linear(5, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.last(self.lstm(self.embedding(x))[0][:, -1])
        return output


class Branching(nn.Module):
    """What is done depends on the data, which cannot be mapped."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.last(x)
        output: Tensor = y if y.sum() > 0 else -y
        return output


class Doubled(nn.Sequential):
    """A Sequential with a forward of its own."""

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = 2 * super().forward(x)  # type: ignore[no-untyped-call]
        return output


def twice_the_same_activation() -> nn.Module:
    relu = nn.ReLU()
    return nn.Sequential(nn.Linear(6, 5), relu, nn.Linear(5, 4), relu, nn.Linear(4, 3))


def with_frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    model[0].requires_grad_(False)
    model[2].weight.requires_grad_(False)
    model[4].bias.requires_grad_(False)
    return model


def with_frozen_embedding() -> nn.Module:
    model = nn.Sequential(nn.Embedding(7, 4), nn.GELU(), nn.Flatten(), nn.Linear(20, 3))
    model[0].requires_grad_(False)
    return model


IMAGE = (3, 9, 8)
WAYS = [name for name in ENGINES if name != "debug"]  # which is another name
# name: (model, shape of an example); examples of shape "tokens" are 5 numbers below 7
# fmt: off
STACKABLE: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "one layer": (lambda: nn.Linear(6, 3), (6,)),
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)), (6,)),
    "no bias": (lambda: nn.Sequential(nn.Linear(6, 5, bias=False), nn.Tanh(), nn.Linear(5, 3, bias=False)), (6,)),
    "sigmoid, nested": (
        lambda: nn.Sequential(nn.Sequential(nn.Linear(6, 5), nn.Sigmoid()), nn.Sequential(nn.Linear(5, 3))),
        (6,),
    ),
    "activation twice": (twice_the_same_activation, (6,)),
    "activations of activations": (
        lambda: nn.Sequential(
            nn.ReLU(), nn.Linear(6, 5), nn.ReLU(inplace=True), nn.Sigmoid(), nn.ELU(), nn.Tanh(),
            nn.Identity(), nn.Linear(5, 3), nn.Sigmoid(),
        ),
        (6,),
    ),
    "in place": (
        lambda: nn.Sequential(nn.Linear(6, 5), nn.ELU(inplace=True), nn.Identity(), nn.Linear(5, 3)),
        (6,),
    ),
    "flat image": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(216, 4), nn.GELU(), nn.Linear(4, 3)), IMAGE),
    "sequence of vectors": (
        lambda: nn.Sequential(nn.Linear(6, 4), nn.SiLU(), nn.Flatten(), nn.Linear(16, 3), nn.LogSoftmax(-1)),
        (4, 6),
    ),
    "cnn": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 5, 2, bias=False), nn.Tanh(), nn.Flatten(),
            nn.Linear(20, 3),
        ),
        IMAGE,
    ),
    "cnn, strides": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.AvgPool2d(2),
            nn.Conv2d(4, 4, 3, padding=2, dilation=2, groups=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3),
        ),
        IMAGE,
    ),
    "cnn, same": (
        lambda: nn.Sequential(
            nn.Unflatten(1, IMAGE), nn.Conv2d(3, 4, (3, 5), padding="same"), nn.GroupNorm(2, 4), nn.ReLU(),
            nn.Conv2d(4, 1, 3, padding="valid"), nn.AdaptiveMaxPool2d((3, 1)), nn.Flatten(),
        ),
        (216,),
    ),
    "conv1d": (
        lambda: nn.Sequential(nn.Conv1d(2, 4, 3), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(12, 3)),
        (2, 8),
    ),
    "norms": (
        lambda: nn.Sequential(
            nn.LayerNorm(6), nn.Linear(6, 4), nn.LayerNorm(4, bias=False), nn.ReLU(), nn.Linear(4, 3),
            nn.LayerNorm((4, 3)), nn.Flatten(), nn.LayerNorm(12, elementwise_affine=False), nn.Linear(12, 3),
        ),
        (4, 6),
    ),
    "embedding": (
        lambda: nn.Sequential(nn.Embedding(7, 4, padding_idx=2), nn.ReLU(), nn.Flatten(), nn.Linear(20, 3)),
        "tokens",
    ),
    "frozen": (with_frozen, (6,)),
    "frozen embedding": (with_frozen_embedding, "tokens"),
    "dropout of nothing": (lambda: nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.0)), (6,)),
}
# fmt: on
OTHERS: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "residual": (Residual, (6,)),
    "doubled": (lambda: Doubled(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)), (6,)),
}


def model_and_rows(
    make: Callable[[], nn.Module], shape: Any, *, clients: int = 3, batch: int = 4, seed: int = 0
) -> tuple[nn.Module, ParameterVector, Rows]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = make()
        vector = ParameterVector(model)
        x = vector.theta + 0.2 * torch.randn(clients, len(vector))
        inputs = (
            torch.randint(0, 7, (clients, batch, 5))
            if shape == "tokens"
            else torch.randn(clients, batch, *shape)
        )
        targets = torch.randint(0, 3, (clients, batch))
        weights = torch.rand(clients, batch) * (torch.rand(clients, batch) > 0.2)
    return model, vector, (x, inputs, targets, weights)


def by_autograd(model: nn.Module, loss: Any, vector: ParameterVector, rows: Rows) -> Tensor:
    """One client at a time, with a copy of the model's parameters."""
    result = []
    for x, inputs, targets, weights in zip(*rows, strict=True):
        leaf = x.clone().requires_grad_()
        parameters = {
            slot.name: leaf[slot.start : slot.stop].view_as(slot.parameter) for slot in vector.slots
        }
        called: Any = ((), inputs) if isinstance(inputs, dict) else ((inputs,), {})
        outputs = torch.func.functional_call(model, parameters, *called)
        total = sum(w * value for w, value in zip(weights, loss(outputs, targets), strict=True))
        result.append(torch.autograd.grad(total, leaf)[0])
    return torch.stack(result)


def assert_same(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-6)
    assert float(expected.norm()) > 1e-3  # or there would be nothing to compare


@pytest.mark.parametrize("name", STACKABLE)
@pytest.mark.parametrize("way", WAYS)
def test_every_way_has_the_gradients_of_autograd(way: str, name: str) -> None:
    for seed in range(3):
        model, vector, rows = model_and_rows(*STACKABLE[name], seed=seed)
        copies = [part.clone() for part in rows]
        before = vector.theta.clone()
        expected = by_autograd(model, CROSS_ENTROPY, vector, rows)
        assert can_stack(model)
        assert_same(engine_named(way, model, CROSS_ENTROPY, vector)(*rows), expected)
        assert torch.equal(vector.theta, before)
        assert all(torch.equal(part, copy) for part, copy in zip(rows, copies, strict=True))


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("way", ["mapped", "looped"])
def test_models_that_are_no_plain_sequence(way: str, name: str) -> None:
    model, vector, rows = model_and_rows(*OTHERS[name])
    expected = by_autograd(model, CROSS_ENTROPY, vector, rows)
    assert not can_stack(model)
    assert_same(engine_named(way, model, CROSS_ENTROPY, vector)(*rows), expected)
    with pytest.raises(ValueError, match=rf"\({type(model).__name__} has no rule .*engine='mapped'"):
        engine_named("stacked", model, CROSS_ENTROPY, vector)
    assert choose(model, CROSS_ENTROPY, vector, *rows[1:])[0] in ("mapped", "looped")


@st.composite
def sequences(draw: st.DrawFn) -> tuple[nn.Module, tuple[int, ...]]:
    """Small random models of convolutions, pools, activations and linear layers, and the shape of an example."""

    def integer(low: int, high: int) -> int:
        return draw(st.integers(low, high))

    shape: tuple[int, ...] = (
        (integer(1, 3), integer(5, 9), integer(5, 9)) if draw(st.booleans()) else (integer(1, 7),)
    )
    size, layers = torch.Size(shape), list[nn.Module]()
    torch.manual_seed(integer(0, 1000))
    for _ in range(integer(1, 4)):
        if len(size) == 3 and min(size[1:]) > 2 and draw(st.booleans()):
            if draw(st.booleans()):
                layer: nn.Module = nn.Conv2d(
                    size[0], integer(1, 4), (integer(1, 3), integer(1, 3)), (integer(1, 2), integer(1, 2)),
                    (integer(0, 2), integer(0, 2)), (1, integer(1, 2)), bias=draw(st.booleans()),
                )  # fmt: skip
            else:
                kind = draw(st.sampled_from([nn.MaxPool2d, nn.AvgPool2d]))
                layer = kind(2, integer(1, 2), integer(0, 1))
        elif draw(st.booleans()):
            layer = draw(st.sampled_from([nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU, nn.Identity]))()
        else:
            layer = nn.Sequential(
                nn.Flatten(), nn.Linear(size.numel(), integer(1, 5), bias=draw(st.booleans()))
            )
        layers.append(layer)
        try:
            with torch.no_grad():
                size = nn.Sequential(*layers)(torch.zeros(1, *shape)).shape[1:]
        except RuntimeError:  # a kernel larger than what is left of the image
            reject()
    layers.append(nn.Sequential(nn.Flatten(), nn.Linear(size.numel(), 3)))
    return nn.Sequential(*layers), shape


@settings(max_examples=40, deadline=None)
@given(made=sequences(), clients=st.integers(1, 4), batch=st.integers(1, 4), seed=st.integers(0, 1000))
def test_random_models(made: tuple[nn.Module, tuple[int, ...]], clients: int, batch: int, seed: int) -> None:
    model, shape = made
    model, vector, rows = model_and_rows(lambda: model, shape, clients=clients, batch=batch, seed=seed)
    expected = by_autograd(model, CROSS_ENTROPY, vector, rows)
    for way in ("stacked", "mapped", "looped"):
        found = engine_named(way, model, CROSS_ENTROPY, vector)(*rows)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_debug_is_looped() -> None:
    model, vector, rows = model_and_rows(*STACKABLE["cnn"])
    looped = engine_named("looped", model, CROSS_ENTROPY, vector)(*rows)
    assert torch.equal(engine_named("debug", model, CROSS_ENTROPY, vector)(*rows), looped)


def test_recurrent_models() -> None:
    model, vector, rows = model_and_rows(Recurrent, "tokens")
    expected = by_autograd(model, CROSS_ENTROPY, vector, rows)
    assert_same(engine_named("looped", model, CROSS_ENTROPY, vector)(*rows), expected)
    name, way = choose(model, CROSS_ENTROPY, vector, *rows[1:])
    assert name in ("mapped", "looped")  # whether vmap knows recurrent layers depends on the version of torch
    assert_same(way(*rows), expected)


def test_models_that_look_at_the_data_are_looped() -> None:
    model, vector, rows = model_and_rows(Branching, (4,))
    with pytest.raises(ValueError, match=r"torch.func.vmap: use engine='looped'"):
        engine_named("mapped", model, CROSS_ENTROPY, vector)(*rows)
    assert choose(model, CROSS_ENTROPY, vector, *rows[1:])[0] == "looped"


def test_inputs_that_are_trees() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(4, 3), nn.Linear(2, 3)

        def forward(self, left: Tensor, right: Tensor) -> Tensor:  # as in central training
            output: Tensor = self.left(left) + self.right(right)
            return output

    model, vector, (x, inputs, targets, weights) = model_and_rows(Two, (6,))
    tree = {"left": inputs[..., :4], "right": inputs[..., 4:]}
    expected = []
    for p in range(len(x)):
        of_client = {name: part[p] for name, part in tree.items()}
        rows: Any = (x[p : p + 1], [of_client], targets[p : p + 1], weights[p : p + 1])
        expected.append(by_autograd(model, CROSS_ENTROPY, vector, rows))
    for way in ("mapped", "looped"):
        assert_same(
            engine_named(way, model, CROSS_ENTROPY, vector)(x, tree, targets, weights), torch.cat(expected)
        )
    assert choose(model, CROSS_ENTROPY, vector, tree, targets, weights)[0] in ("mapped", "looped")
    single = nn.Linear(6, 3)
    with pytest.raises(ValueError, match="tensors: use engine='looped'"):
        engine_named("stacked", single, CROSS_ENTROPY, ParameterVector(single))(
            x[:, :21], tree, targets, weights
        )


def absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.sum(1) - targets).abs()


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "absolute": absolute_error,
    "smoothed": nn.CrossEntropyLoss(reduction="none", label_smoothing=0.1),
    "by class": nn.CrossEntropyLoss(reduction="none", weight=torch.tensor([1.0, 2.0, 3.0])),
    "without a class": nn.CrossEntropyLoss(reduction="none", ignore_index=1),
    "margin": nn.MultiMarginLoss(reduction="none"),
}
KNOWN = [(way, name) for way in WAYS for name in LOSSES]
KNOWN.remove(("mapped", "margin"))  # vmap has no rule for it


@pytest.mark.parametrize(("way", "name"), KNOWN)
def test_any_loss_with_a_value_per_example(way: str, name: str) -> None:
    model, vector, rows = model_and_rows(*STACKABLE["mlp"])
    loss = LOSSES[name]
    assert_same(engine_named(way, model, loss, vector)(*rows), by_autograd(model, loss, vector, rows))


def test_cross_entropy_has_the_gradient_of_autograd() -> None:
    class Same(nn.CrossEntropyLoss):
        """Not the class itself, so autograd is used."""

    outputs, targets, weights = 5 * torch.randn(50, 6), torch.randint(0, 6, (50,)), torch.rand(50)
    outputs[0, 0] = 200.0  # far beyond what exp can take
    direct, generic = OutputGradients(CROSS_ENTROPY), OutputGradients(Same(reduction="none"))
    torch.testing.assert_close(direct(outputs, targets, weights), generic(outputs, targets, weights))
    left_out = torch.where(torch.arange(50) < 10, -100, targets)
    found = direct(outputs, left_out, weights)
    torch.testing.assert_close(found, generic(outputs, left_out, weights))
    assert not found[:10].any()
    shares = torch.rand(50, 6).softmax(1)
    torch.testing.assert_close(direct(outputs, shares, weights), generic(outputs, shares, weights))


@pytest.mark.parametrize("way", WAYS)
def test_a_loss_must_have_a_value_per_example(way: str) -> None:
    model, vector, rows = model_and_rows(*STACKABLE["mlp"])
    with pytest.raises(ValueError, match="reduction='none'"):
        engine_named(way, model, nn.CrossEntropyLoss(), vector)(*rows)


@pytest.mark.parametrize("name", ["mlp", "cnn", "norms", "embedding"])
@pytest.mark.parametrize("way", WAYS)
def test_clients_are_apart(way: str, name: str) -> None:
    """No weight is no gradient, and what is not finite stays with its client."""
    model, vector, (x, inputs, targets, weights) = model_and_rows(*STACKABLE[name])
    gradients = engine_named(way, model, CROSS_ENTROPY, vector)
    weights[0] = 0
    expected = gradients(x, inputs, targets, weights).clone()
    assert not expected[0].any()
    for bad in (float("nan"), float("inf")):
        broken = x.clone()
        broken[1] = bad
        if inputs.is_floating_point():
            inputs[1, 0] = bad
        found = gradients(broken, inputs, targets, weights)
        assert not found[1].isfinite().all()
        torch.testing.assert_close(found[::2], expected[::2], rtol=1e-5, atol=1e-6)


def test_results_are_overwritten_only_if_asked_for() -> None:
    model, vector, rows = model_and_rows(*STACKABLE["mlp"])
    fresh = engine_named("stacked", model, CROSS_ENTROPY, vector)
    first, second = fresh(*rows), fresh(rows[0] + 1, *rows[1:])
    assert first.data_ptr() != second.data_ptr()
    reused = engine_named("stacked", model, CROSS_ENTROPY, vector, reuse=True)
    again = reused(*rows)
    torch.testing.assert_close(again, first)
    assert reused(rows[0] + 1, *rows[1:]).data_ptr() == again.data_ptr()
    torch.testing.assert_close(again, second)
    torch.testing.assert_close(reused(*(part[:2] for part in rows)), first[:2])


def test_parameters_that_do_nothing_have_no_gradient() -> None:
    class Idle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.idle, self.last = nn.Linear(2, 2), nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.last(x)
            return output

    model, vector, rows = model_and_rows(Idle, (6,))
    expected = by_autograd(model, CROSS_ENTROPY, vector, rows)
    assert not expected[:, :6].any()
    for way in ("mapped", "looped"):
        assert_same(engine_named(way, model, CROSS_ENTROPY, vector)(*rows), expected)


def test_tied_parameters_are_not_stacked() -> None:
    def tied() -> nn.Module:
        model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 3))
        model[2].weight = model[0].weight
        return model

    model, vector, rows = model_and_rows(tied, (6,))
    with pytest.raises(ValueError, match="used by several layers"):
        engine_named("stacked", model, CROSS_ENTROPY, vector)
    expected = by_autograd(model, CROSS_ENTROPY, vector, rows)
    for way in ("mapped", "looped"):
        assert_same(engine_named(way, model, CROSS_ENTROPY, vector)(*rows), expected)


def hooked(part: Callable[[nn.Sequential], nn.Module]) -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 3))
    part(model).register_forward_hook(lambda module, inputs, output: 2 * output)
    return model


def altered() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 3))
    forward = model[0].forward
    model[0].forward = lambda x: 2 * forward(x)
    return model


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.5)),
        nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)),
        nn.Sequential(nn.Linear(6, 3), nn.Flatten(0)),
        nn.Sequential(nn.Linear(6, 3), nn.Unflatten(0, (2, 2))),
        nn.Sequential(nn.Linear(6, 3), nn.Softmax(0)),
        nn.Sequential(nn.Conv2d(3, 3, 3, padding=1, padding_mode="circular")),
        nn.Sequential(nn.Conv2d(3, 3, 2, padding="same")),
        nn.Sequential(nn.Conv2d(3, 3, 2), nn.MaxPool2d(2, return_indices=True)),
        nn.Sequential(nn.Embedding(3, 3, max_norm=1.0)),
        nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 3))),
        hooked(lambda model: model),
        hooked(lambda model: model[0]),
        altered(),
    ],
    ids=lambda model: str(model[-1]),
)
def test_what_cannot_be_stacked(model: nn.Module) -> None:
    assert not can_stack(model)
    with pytest.raises(ValueError, match="cannot be stacked"):
        engine_named("stacked", model, CROSS_ENTROPY, ParameterVector(model))


def test_dropout_is_looped_and_draws_from_torch() -> None:
    model, vector, rows = model_and_rows(
        lambda: nn.Sequential(nn.Linear(6, 30), nn.Dropout(0.5), nn.Linear(30, 3)), (6,)
    )
    with pytest.raises(ValueError, match=r"Dropout\(p=0.5.*use engine='looped'"):
        engine_named("mapped", model, CROSS_ENTROPY, vector)
    state = torch.get_rng_state()
    name, way = choose(model, CROSS_ENTROPY, vector, *rows[1:])
    assert name == "looped"
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(1)
    first, second = way(*rows), way(*rows)
    torch.manual_seed(1)
    assert torch.equal(way(*rows), first)
    assert not torch.equal(first, second)


def test_dropout_functions_cannot_be_mapped() -> None:
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.last(F.dropout(x, 0.5))
            return output

    model, vector, rows = model_and_rows(Dropping, (6,))
    with pytest.raises(ValueError, match="use engine='looped'"):
        engine_named("mapped", model, CROSS_ENTROPY, vector)(*rows)
    assert choose(model, CROSS_ENTROPY, vector, *rows[1:])[0] == "looped"


def test_the_fastest_way_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    model, vector, rows = model_and_rows(*STACKABLE["mlp"])
    before, expected = vector.theta.clone(), by_autograd(model, CROSS_ENTROPY, vector, rows)
    order = iter(tuple[float, ...]())

    def pretended(way: Any, _: Any) -> float:
        return next(order)

    monkeypatch.setattr(engines, "seconds_of", pretended)
    for best, times in (
        ("stacked", (1.0, 1.0)),
        ("stacked", (1.0, 0.95)),  # too close to tell
        ("looped", (1.0, 0.4)),
    ):
        order = iter(times)
        name, way = choose(model, CROSS_ENTROPY, vector, *rows[1:])
        assert name == best
        assert_same(way(*rows), expected)
    assert torch.equal(vector.theta, before)
    monkeypatch.setattr(engines, "stacked", unstackable)
    for best, times in (
        ("mapped", (0.5, 0.6)),
        ("looped", (0.6, 0.5)),
    ):  # mapping is tried where nothing stacks
        order = iter(times)
        assert choose(model, CROSS_ENTROPY, vector, *rows[1:])[0] == best


def unstackable(*arguments: Any, **options: Any) -> engines.Gradients:
    raise ValueError("not to be stacked")


def test_a_way_that_disagrees_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    model, vector, rows = model_and_rows(*STACKABLE["mlp"])
    right = engines.stacked

    def wrong(*arguments: Any, **options: Any) -> engines.Gradients:
        way = right(*arguments, **options)
        return lambda x, *rest: way(x.roll(1, 0), *rest)  # clients mixed up

    monkeypatch.setattr(engines, "stacked", wrong)
    monkeypatch.setattr(engines, "seconds_of", lambda way, rows: 1.0)
    assert choose(model, CROSS_ENTROPY, vector, *rows[1:])[0] == "mapped"


def test_a_loss_of_the_whole_batch_is_not_stacked() -> None:
    """One value per example, but each depends on the others: clients may not be put together for it."""

    def centred(outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs - outputs.mean(0), targets, reduction="none")

    model, vector, rows = model_and_rows(*STACKABLE["mlp"])
    name, way = choose(model, centred, vector, *rows[1:])
    assert name in ("mapped", "looped")
    assert_same(way(*rows), by_autograd(model, centred, vector, rows))


def test_choosing_does_not_hide_that_a_model_fails() -> None:
    model = nn.Sequential(nn.Linear(5, 3))
    rows = torch.randn(2, 4, 6), torch.zeros(2, 4, dtype=torch.long), torch.ones(2, 4)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        choose(model, CROSS_ENTROPY, ParameterVector(model), *rows)


def test_a_model_is_as_it_was_after_a_failure() -> None:
    model, vector, (x, inputs, targets, weights) = model_and_rows(*STACKABLE["mlp"])
    before = vector.theta.clone()
    with pytest.raises(IndexError, match="out of bounds"):
        engine_named("looped", model, CROSS_ENTROPY, vector)(x, inputs, targets + 10, weights)
    assert torch.equal(vector.theta, before)


def test_errors() -> None:
    model, other = nn.Linear(6, 3), nn.Linear(6, 3)
    with pytest.raises(ValueError, match="no engine 'fast': use one of stacked, mapped, looped, debug"):
        engine_named("fast", model, CROSS_ENTROPY, ParameterVector(model))
    with pytest.raises(ValueError, match="not that of this model"):
        engine_named("stacked", model, CROSS_ENTROPY, ParameterVector(other))


def test_batches_go_where_the_clients_are() -> None:
    """Only the CPU is here to try it on: moving there changes nothing, and every leaf is moved."""
    moved: list[tuple[str, torch.device]] = []

    class Leaf(Tensor):
        def to(self, *args: Any, **kwargs: Any) -> Any:
            moved.append(("leaf", args[0]))
            found: Tensor = super().to(*args, **kwargs)
            return found

    def plain(x_Pd: Tensor, inputs_PB: Any, targets_PB: Any, weights_PB: Tensor) -> Tensor:
        found: Tensor = x_Pd + inputs_PB["a"].sum() + targets_PB.sum() + weights_PB.sum()
        return found

    one = torch.ones(2).as_subclass(Leaf)
    found = gradients_module._where_the_model_is(plain)(torch.zeros(2, 3), {"a": one}, one, one)
    assert torch.equal(found, torch.full((2, 3), 6.0))
    assert moved == [("leaf", torch.device("cpu"))] * 3
