"""What was taken off inputs becomes part of the model: folded where that says the same, else in front of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from sordino.data.standardised import Moments
from sordino.standardise.folding import Standardised, folded_, handed_out, weighs_each_number

FLAT = Moments(torch.tensor([1.0, -3.0, 0.0, 50.0]), torch.tensor([2.0, 0.5, 1.0, 10.0]))
IMAGE = Moments(torch.tensor([1.0, -3.0]).view(2, 1, 1), torch.tensor([2.0, 0.1]).view(2, 1, 1))
PIXELS = Moments(torch.linspace(-3, 3, 72).view(2, 6, 6), torch.logspace(-1, 1, 72).view(2, 6, 6))
CENTRED = Moments(torch.zeros(2, 1, 1), IMAGE.deviation)


class Reshaped(nn.Module):
    """Nothing but `forward` says what happens first."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.head = nn.Linear(5, 3), nn.Linear(2 * 6 * 6, 5)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.last(self.head(x.reshape(len(x), -1)).tanh())
        return output


class Turned(Reshaped):
    """A linear layer over the whole row, in which numbers are elsewhere."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(2, 3))


class Skips(nn.Module):
    """The input is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(self.inner(x).tanh() + x)
        return output


class Squared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.head(x.square())
        return output


class Tied(nn.Module):
    """The first layer's weight is used once more."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.inner(self.inner(x).tanh())
        return output


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    return model


Case = tuple[Callable[[], nn.Module], Moments, tuple[int, ...]]
FOLDS: dict[str, Case] = {
    "linear": (lambda: nn.Linear(4, 3), FLAT, (4,)),
    "mlp": (lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), FLAT, (4,)),
    "dropout first": (lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3)), FLAT, (4,)),
    "flatten": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(72, 3)), IMAGE, (2, 6, 6)),
    "reshaped": (Reshaped, IMAGE, (2, 6, 6)),
    "flatten, by pixel": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(72, 3)), PIXELS, (2, 6, 6)),
    "reshaped, by pixel": (Reshaped, PIXELS, (2, 6, 6)),
    "convolution": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3)),
        IMAGE,
        (2, 6, 6),
    ),
    "padded, around zero": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3)),
        CENTRED,
        (2, 6, 6),
    ),
    "without a bias, around zero": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3, bias=False), nn.Flatten(), nn.LazyLinear(3)),
        CENTRED,
        (2, 6, 6),
    ),
    "one for all": (lambda: nn.Linear(4, 3), Moments(torch.tensor([2.0]), torch.tensor([0.01])), (4,)),
}
WRAPS: dict[str, Case] = {
    "without a bias": (lambda: nn.Linear(4, 3, bias=False), FLAT, (4,)),
    "padded": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Flatten(), nn.LazyLinear(3)),
        IMAGE,
        (2, 6, 6),
    ),
    "groups": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.LazyLinear(3)),
        IMAGE,
        (2, 6, 6),
    ),
    "convolution, by pixel": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.LazyLinear(3)),
        PIXELS,
        (2, 6, 6),
    ),
    "turned round, by pixel": (Turned, PIXELS, (2, 6, 6)),
    "used twice": (Skips, FLAT, (4,)),
    "squared": (Squared, FLAT, (4,)),
    "tied": (Tied, FLAT, (4,)),
    "frozen": (frozen, FLAT, (4,)),
    "no parameters": (nn.Identity, FLAT, (4,)),
    "a norm first": (lambda: nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 3)), FLAT, (4,)),
    "far from zero": (
        lambda: nn.Linear(4, 3),
        Moments(torch.full((4,), 1e7), torch.ones(4)),
        (4,),
    ),  # of which a product keeps no digit
}


def made(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = make()
        model(torch.zeros(1, *shape))  # for what is lazy
    return model


def rows_for(moments: Moments, shape: tuple[int, ...]) -> Tensor:
    noise = torch.randn(40, *shape, generator=torch.Generator().manual_seed(9))
    return moments.offset + 2 * moments.deviation * noise


@pytest.mark.parametrize("name", FOLDS)
def test_the_first_layer_takes_it_in(name: str) -> None:
    make, moments, shape = FOLDS[name]
    model = made(make, shape)
    kinds = {key: value.shape for key, value in model.state_dict().items()}
    rows = rows_for(moments, shape)
    model.eval()
    wanted = model(moments.applied(rows))
    model.train()
    assert handed_out(model, moments, shape) is model
    assert {key: value.shape for key, value in model.state_dict().items()} == kinds
    assert all(module.training for module in model.modules())
    model.eval()
    assert torch.allclose(model(rows), wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))


@pytest.mark.parametrize("name", WRAPS)
def test_else_it_stands_in_front_and_the_model_is_as_it_was(name: str) -> None:
    make, moments, shape = WRAPS[name]
    model = made(make, shape)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    found = handed_out(model, moments, shape)
    assert isinstance(found, Standardised)
    assert found.model is model
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    rows = rows_for(moments, shape)
    assert torch.allclose(found(rows), model(moments.applied(rows)), rtol=1e-5, atol=1e-6)
    assert {"offset", "deviation"} <= found.state_dict().keys()


def test_a_model_that_diverged_is_left_as_it_is() -> None:
    model = nn.Linear(4, 3)
    nn.init.constant_(model.weight, float("nan"))
    assert not folded_(model, FLAT, (4,))


def test_no_hook_stays_behind() -> None:
    model = made(FOLDS["mlp"][0], (4,))
    folded_(model, FLAT, (4,))
    assert all(not module._forward_pre_hooks for module in model.modules())


def test_the_random_numbers_of_the_caller_are_his() -> None:
    before = torch.get_rng_state()
    folded_(made(FOLDS["dropout first"][0], (4,)), FLAT, (4,))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("name", "weighs"),
    [
        ("linear", True),
        ("mlp", True),
        ("dropout first", True),
        ("flatten", True),
        ("reshaped", True),
        ("convolution", False),
        ("without a bias", True),
        ("used twice", True),
        ("no parameters", False),
        ("a norm first", False),
        ("frozen", True),
    ],
)
def test_whether_a_model_has_weights_for_every_number_is_found_by_trying(name: str, weighs: bool) -> None:
    make, _, shape = {**FOLDS, **WRAPS}[name]
    model, before = made(make, shape), torch.get_rng_state()
    weights = {key: value.clone() for key, value in model.state_dict().items()}
    assert weighs_each_number(model, shape) == weighs
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(weights[key], value) for key, value in model.state_dict().items())
    assert all(module.training and not module._forward_pre_hooks for module in model.modules())


def test_weights_for_a_part_of_a_row_are_not_for_every_number() -> None:
    assert not weighs_each_number(nn.Linear(6, 3), (2, 6, 6)), "for those of a line of pixels"
    assert not weighs_each_number(nn.Linear(5, 3), (4,)), "a model for other rows"


def test_a_model_for_rows_of_another_kind_weighs_none() -> None:
    assert not weighs_each_number(nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 3)), (4,))
