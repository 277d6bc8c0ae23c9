"""The standardisation becomes part of the model that comes out, so that whoever has it gives raw rows.

Where the first thing that happens to a row is a linear map with a bias, (x - offset) / deviation is folded into that:
W' = W / deviation, b' = b - W' offset, and the model is of the same kind as before. Whether it is so is found out by
trying: folded, the model has to say the same on made-up rows. Else it stands behind a module that standardises.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sordino.data.standardised import Moments
from sordino.gradients import call_model, evaluating

AGREEMENT = 1e-4  # of the outputs on made-up rows, in times of the largest
_TRIED = 16  # made-up rows
_SEED = 20_240_301
_FOLDABLE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Standardised(nn.Module):
    """A model behind the standardisation of its inputs.

    Args:
        model: Which takes standardised rows.
        moments: What is taken off, and what it is divided by; both are buffers.

    Guarantee: none of its own; the moments are public, or were released and paid for.

    >>> net = Standardised(nn.Identity(), Moments(torch.tensor([1.0]), torch.tensor([2.0])))
    >>> net(torch.tensor([[5.0]])), sorted(net.state_dict())
    (tensor([[2.]]), ['deviation', 'offset'])
    """

    offset: Tensor
    deviation: Tensor

    def __init__(self, model: nn.Module, moments: Moments) -> None:
        super().__init__()
        self.model = model
        place = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        for name, value in moments.to_state().items():
            self.register_buffer(name, value.detach().clone().to(place))

    def forward(self, rows: Tensor) -> Any:
        return self.model(((rows - self.offset) / self.deviation).to(rows.dtype))


def handed_out(model: nn.Module, moments: Moments, shape: tuple[int, ...]) -> nn.Module:
    """A model for raw rows of this shape: the same one, changed in place, or that behind a `Standardised`."""
    return model if folded_(model, moments, shape) else Standardised(model, moments)


def folded_(model: nn.Module, moments: Moments, shape: tuple[int, ...]) -> bool:
    """Fold the moments into the first layer, if that says the same; whether it did. Else nothing is changed."""
    raw = _made_up(moments, shape, model)
    with evaluating(model), torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            with _first_called(model) as found:
                wanted = call_model(model, moments.applied(raw))
        except Exception:  # a model that cannot run on made-up rows
            return False
        layer = found[0] if found else None
        if layer is None or not isinstance(wanted, Tensor) or not bool(wanted.isfinite().all()):
            return False
        before = [parameter.detach().clone() for parameter in layer.parameters()]
        if _fold_(layer, moments, shape) and _agree(wanted, call_model(model, raw)):
            return True
        for parameter, value in zip(layer.parameters(), before, strict=True):
            parameter.copy_(value)
    return False


def weighs_each_number(model: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether the first layer is a linear one that has weights for every number of a row, as found on made-up rows."""
    rows = _made_up(Moments(torch.zeros(shape), torch.ones(shape)), shape, model)
    with evaluating(model), torch.no_grad(), torch.random.fork_rng(devices=[]):
        try:
            with _first_called(model) as found:
                call_model(model, rows)
        except Exception:  # a model that cannot run on made-up rows
            return False
    return bool(found) and type(found[0]) is nn.Linear and found[0].in_features == torch.Size(shape).numel()


def _made_up(moments: Moments, shape: tuple[int, ...], model: nn.Module) -> Tensor:
    """Rows around the offset, some of them far from it."""
    generator = torch.Generator().manual_seed(_SEED)
    noise = torch.randn(_TRIED, *shape, generator=generator)
    noise[_TRIED // 2 :] *= 3
    place = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    return (moments.offset.cpu() + moments.deviation.cpu() * noise).to(place)


@contextmanager
def _first_called(model: nn.Module) -> Iterator[list[nn.Module]]:
    """The first layer that something is multiplied in: it alone is in the list when the model has been called."""
    found: list[nn.Module] = []

    def note(module: nn.Module, *_: Any) -> None:
        if not found:
            found.append(module)

    hooks = [
        each.register_forward_pre_hook(note)
        for each in model.modules()
        if next(each.parameters(False), None) is not None
    ]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def _fold_(layer: nn.Module, moments: Moments, shape: tuple[int, ...]) -> bool:
    """Change weight and bias in place; whether that could be right."""
    weight, bias = getattr(layer, "weight", None), getattr(layer, "bias", None)
    trained = all(parameter.requires_grad for parameter in layer.parameters())
    if type(layer) not in _FOLDABLE or not isinstance(weight, nn.Parameter) or not trained:
        return False
    offset, deviation = (part.double().to(weight.device) for part in (moments.offset, moments.deviation))
    if isinstance(layer, nn.Linear):
        size = layer.in_features
        if torch.Size(shape).numel() != size:
            return False
        offset, deviation = (part.expand(shape).reshape(1, size) for part in (offset, deviation))
    else:
        if getattr(layer, "groups", 1) != 1 or weight.shape[1] != shape[0]:
            return False
        if offset.numel() not in (1, shape[0]):  # of each pixel
            return False
        dims = [1] * (weight.dim() - 2)
        offset, deviation = (
            part.flatten().expand(shape[0]).reshape(1, shape[0], *dims) for part in (offset, deviation)
        )
    folded = weight.double() / deviation
    if bool((offset != 0).any()):
        if not isinstance(bias, nn.Parameter):
            return False
        bias.copy_(bias.double() - (folded * offset).flatten(1).sum(1))
    weight.copy_(folded)
    return True


def _agree(wanted: Tensor, found: Any) -> bool:
    if not isinstance(found, Tensor) or found.shape != wanted.shape:
        return False
    return bool((found - wanted).abs().max() <= AGREEMENT * wanted.abs().max().clamp(min=1e-30))
