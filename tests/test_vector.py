from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sordino.vector import ParameterVector


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def two_layers() -> Any:  # torch does not know of a layer what it holds
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters() if p.requires_grad])


def test_parameters_become_views_of_one_vector() -> None:
    model = two_layers()
    before, objects = flat(model).clone(), list(model.parameters())
    vector = ParameterVector(model)
    assert torch.equal(vector.theta, before)
    assert len(vector) == 3 * 4 + 4 + 4 * 2 + 2
    assert vector.theta.dtype == torch.float32
    assert vector.theta.is_contiguous()
    assert not vector.theta.requires_grad
    assert all(a is b for a, b in zip(model.parameters(), objects, strict=True)), "the same parameter objects"
    assert all(p.is_leaf and p.requires_grad for p in model.parameters())
    storage = vector.theta.untyped_storage().data_ptr()
    assert all(p.untyped_storage().data_ptr() == storage for p in model.parameters())
    vector.theta.fill_(2.0)
    assert all((p == 2.0).all() for p in model.parameters())
    with torch.no_grad():
        model[2].bias.fill_(5.0)
    assert vector.theta[-2:].tolist() == [5.0, 5.0]
    vector.check()


def test_slots_follow_named_parameters() -> None:
    vector = ParameterVector(two_layers())
    assert [(s.name, s.start, s.stop) for s in vector.slots] == [
        ("0.weight", 0, 12),
        ("0.bias", 12, 16),
        ("2.weight", 16, 24),
        ("2.bias", 24, 26),
    ]


def test_frozen_parameters_stay_out() -> None:
    model = two_layers()
    model[0].requires_grad_(False)
    frozen = model[0].weight.clone()
    vector = ParameterVector(model)
    assert [s.name for s in vector.slots] == ["2.weight", "2.bias"]
    vector.theta.zero_()
    assert torch.equal(model[0].weight, frozen)


def test_tied_parameters_count_once() -> None:
    model: Any = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
    model[1].weight = model[0].weight
    vector = ParameterVector(model)
    assert len(vector) == 15
    vector.theta.fill_(1.5)
    assert model[1].weight is model[0].weight
    assert (model[1].weight == 1.5).all()


def test_parameters_of_no_dimension_and_of_other_memory_formats() -> None:
    model = nn.Module()
    model.scale = nn.Parameter(torch.tensor(3.0))
    model.weight = nn.Parameter(torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last))
    values = model.weight.detach().clone()
    vector = ParameterVector(model)
    assert float(vector.theta[0]) == 3.0
    assert torch.equal(model.weight, values)
    assert torch.equal(vector.theta[1:].view(2, 3, 4, 5), values)
    vector.check()


def test_split_gives_views_in_the_shapes_of_the_parameters() -> None:
    vector = ParameterVector(two_layers())
    other = torch.arange(float(len(vector)))
    parts = list(vector.split(other))
    assert [part.shape for _, part in parts] == [p.shape for p in vector.model.parameters()]
    assert torch.equal(torch.cat([part.flatten() for _, part in parts]), other)
    parts[-1][1].zero_()
    assert other[-2:].tolist() == [0.0, 0.0]
    for slot, part in vector.split(vector.theta):
        assert part.data_ptr() == slot.parameter.data_ptr()


# State dicts, copies and ordinary training -----------------------------------------------------------------


def test_state_dict_can_be_saved_and_loaded() -> None:
    model, other = two_layers(), two_layers()
    vector = ParameterVector(model)
    file = io.BytesIO()
    torch.save(other.state_dict(), file)
    file.seek(0)
    model.load_state_dict(torch.load(file))
    assert torch.equal(vector.theta, flat(other))
    vector.check()
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    fresh = two_layers()
    fresh.load_state_dict(torch.load(file))
    assert torch.equal(flat(fresh), vector.theta)


def test_a_deep_copy_is_independent() -> None:
    model = two_layers()
    vector = ParameterVector(model)
    copied = copy.deepcopy(model)
    before = flat(copied).clone()
    vector.theta.zero_()
    assert torch.equal(flat(copied), before)
    with torch.no_grad():
        for p in copied.parameters():
            p.fill_(7.0)
    assert not vector.theta.any()
    vector.check()
    ParameterVector(copied).theta.fill_(1.0)
    assert (flat(copied) == 1.0).all()
    assert not vector.theta.any()


@pytest.mark.parametrize(
    "optimiser",
    [lambda p: torch.optim.SGD(p, 0.1, momentum=0.9), lambda p: torch.optim.Adam(p, 0.05)],
    ids=["sgd", "adam"],
)
def test_ordinary_training_moves_the_vector(optimiser: Callable[..., torch.optim.Optimizer]) -> None:
    model, twin = two_layers(), two_layers()
    twin.load_state_dict(model.state_dict())
    vector = ParameterVector(model)
    start = vector.theta.clone()
    x, y = torch.randn(20, 3), torch.randn(20, 2)
    losses = []
    for trained in (model, twin):
        steps = optimiser(trained.parameters())
        for _ in range(20):
            steps.zero_grad()
            loss = nn.functional.mse_loss(trained(x), y)
            loss.backward()
            steps.step()
            losses.append(loss.item())
    assert losses[19] < losses[0]
    assert not torch.equal(vector.theta, start)
    assert torch.allclose(vector.theta, flat(twin), rtol=1e-5, atol=1e-6)
    vector.check()


def test_a_model_can_be_wrapped_twice() -> None:
    model = two_layers()
    first = ParameterVector(model)
    second = ParameterVector(model)
    first.check()
    second.check()
    second.theta.fill_(3.0)
    assert (first.theta == 3.0).all()


def test_wrapping_again_after_freezing() -> None:
    model = two_layers()
    whole = ParameterVector(model)
    model[0].requires_grad_(False)
    part = ParameterVector(model)
    assert [s.name for s in part.slots] == ["2.weight", "2.bias"]
    part.check()
    part.theta.fill_(4.0)
    assert (model[2].weight == 4.0).all()
    assert not (model[0].weight == 4.0).any()
    with pytest.raises(ValueError, match="frozen"):
        whole.check()


# What is an error at the next check ------------------------------------------------------------------------


def replace_layer(model: Any) -> None:
    model[2] = nn.Linear(4, 2)


def replace_parameter(model: Any) -> None:
    model[2].weight = nn.Parameter(torch.randn(2, 4))


def remove_layer(model: Any) -> None:
    del model[2]


def add_layer(model: Any) -> None:
    model.append(nn.Linear(2, 2))


def add_parameter(model: Any) -> None:
    model.extra = nn.Parameter(torch.zeros(1))


def add_parameter_to_a_layer_without(model: Any) -> None:
    model[1].slope = nn.Parameter(torch.zeros(1))


def add_layer_to_a_leaf(model: Any) -> None:
    model[0].adapter = nn.Linear(3, 4)


def parametrise(model: Any) -> None:
    nn.utils.parametrizations.weight_norm(model[0])


def reassign_data(model: Any) -> None:
    model[0].bias.data = torch.zeros(4)


MOVES: dict[str, Callable[[Any], object]] = {
    "to float64": lambda m: m.to(torch.float64),
    "half": lambda m: m.half(),
    "there and back": lambda m: m.double().float(),
    "load with assign": lambda m: m.load_state_dict(two_layers().state_dict(), assign=True),
    "replaced layer": replace_layer,
    "replaced parameter": replace_parameter,
    "removed layer": remove_layer,
    "added layer": add_layer,
    "added parameter": add_parameter,
    "added parameter of a layer without": add_parameter_to_a_layer_without,
    "added layer below a leaf": add_layer_to_a_leaf,
    "parametrised": parametrise,
    "new data": reassign_data,
    "frozen": lambda m: m[0].requires_grad_(False),
}


@pytest.mark.parametrize("name", MOVES)
def test_leaving_the_vector_is_an_error(name: str) -> None:
    model = two_layers()
    vector = ParameterVector(model)
    vector.check()
    MOVES[name](model)
    with pytest.raises(ValueError, match="wrap"):
        vector.check()
    with pytest.raises(ValueError, match="wrap"):  # and stays one
        vector.check()
    ParameterVector(model.float()).check()


def test_unfreezing_is_an_error() -> None:
    model = two_layers()
    model[0].requires_grad_(False)
    vector = ParameterVector(model)
    vector.check()
    model[0].requires_grad_(True)
    with pytest.raises(ValueError, match="unfrozen"):
        vector.check()


def test_what_holds_nothing_trainable_may_change_but_not_be_unfrozen_later() -> None:
    model = two_layers()
    vector = ParameterVector(model)
    model[1] = nn.Tanh()
    model.append(nn.Linear(2, 2).requires_grad_(False))
    vector.check()
    model[3].requires_grad_(True)
    with pytest.raises(ValueError, match="unfrozen"):
        vector.check()


def test_moves_that_change_nothing_are_allowed() -> None:
    model = two_layers()
    vector = ParameterVector(model)
    model.to(torch.float32).to("cpu").eval().train()
    model.zero_grad()
    vector.check()


# What cannot be wrapped ------------------------------------------------------------------------------------


def test_no_trainable_parameters() -> None:
    with pytest.raises(ValueError, match="no trainable parameters"):
        ParameterVector(two_layers().requires_grad_(False))
    with pytest.raises(ValueError, match="no trainable parameters"):
        ParameterVector(nn.ReLU())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_only_float32(dtype: torch.dtype) -> None:
    model = two_layers()
    model[2].to(dtype)
    with pytest.raises(ValueError, match=r"2\.weight.*float32.*model\.float\(\)"):
        ParameterVector(model)


def test_frozen_parameters_may_have_any_type() -> None:
    model = two_layers()
    model[0].half().requires_grad_(False)
    ParameterVector(model).check()


def test_several_devices() -> None:
    model = two_layers()
    model[2] = nn.Linear(4, 2, device="meta")
    with pytest.raises(ValueError, match="several devices"):
        ParameterVector(model)


def test_the_size_of_parameters_follows_from_their_shapes() -> None:
    """The root mean square of 1/sqrt(fan-in): (4 * 3 / 3 + 2 * 4 / 4) / (12 + 8) here. Values do not matter."""
    model: Any = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    size = ParameterVector(model).size
    assert size == pytest.approx((6 / 20) ** 0.5)
    with torch.no_grad():
        model[0].weight.zero_()
    assert ParameterVector(model).size == size
    assert ParameterVector(nn.Conv2d(3, 8, 5)).size == pytest.approx(1 / 75**0.5)
    assert ParameterVector(nn.LayerNorm(4)).size == 0.1


def test_the_sizes_of_parameters_one_by_one() -> None:
    """sqrt(3) times the root mean square of weights; a bias has that of its weights, other vectors the least."""
    model: Any = nn.Sequential(nn.Conv2d(3, 8, 5), nn.LayerNorm(4), nn.Linear(4, 2))
    model[2].bias.requires_grad_(False)
    vector = ParameterVector(model)
    counts, sizes = zip(*vector.sizes, strict=True)
    assert counts == tuple(slot.stop - slot.start for slot in vector.slots) == (600, 8, 4, 4, 8)
    conv, linear = (math.sqrt(3 * float(model[at].weight.square().mean())) for at in (0, 2))
    assert sizes == pytest.approx([conv, conv, min(conv, linear), min(conv, linear), linear])
    assert conv == pytest.approx(75**-0.5, rel=0.1)  # what torch starts it with
    assert vector.layers == 2
    # Of two weights a bias stands beside the first.
    recurrent = ParameterVector(nn.LSTM(9, 4))
    first, second = (size for _, size in recurrent.sizes[:2])
    assert recurrent.sizes == ((144, first), (64, second), (16, first), (16, first))
    assert recurrent.layers == 2


def test_weights_that_are_all_but_nothing_have_the_size_of_their_shape() -> None:
    model: Any = nn.Module()
    model.none, model.weight = nn.Parameter(torch.zeros(0, 3)), nn.Parameter(torch.zeros(2, 4))
    model.scale = nn.Parameter(torch.tensor(1.0))
    assert ParameterVector(model).sizes == ((0, 1.0), (8, 0.5), (1, 1.0))
    tiny = nn.Linear(4, 2, bias=False)
    with torch.no_grad():
        tiny.weight.fill_(1e-9)
    assert ParameterVector(tiny).sizes[0][1] == pytest.approx(0.05)
    with torch.no_grad():
        tiny.weight.fill_(2.0)
    assert ParameterVector(tiny).sizes[0][1] == pytest.approx(2 * math.sqrt(3)), "a scale of its own"
    norm = ParameterVector(nn.LayerNorm(4))
    assert norm.sizes == ((4, 0.1), (4, 0.1))
    assert norm.layers == 1
