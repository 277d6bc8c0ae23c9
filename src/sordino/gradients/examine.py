"""Looking at a model before private rows reach it: does it treat the examples of a batch independently?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sordino.data.tree import tree_leaves, tree_map
from sordino.gradients.calls import Loss, call_model, check_loss
from sordino.gradients.refuse import Unsuitable

_SEEDS = 16  # of models that draw random numbers, which may mix rows now and then


def refuse_mixing(model: nn.Module, loss: Loss, inputs: Any, targets: Any) -> None:
    """Raise if the loss of a row depends on the rows beside it, or if a pass writes what it saw into the model.

    The model is looked at in the mode it is in, with five rows or more; what it wrote is put back.
    """
    state = [(name, value, value.clone()) for name, value in _untrained(model)]
    mixed, draws = False, False
    for seed, place in ((seed, place) for seed in range(_SEEDS) for place in range(3)):
        if seed and not draws:
            break
        found = []
        for others in ((1, 2), (3, 4)):
            rows = torch.tensor([*others[:place], 0, *others[place:]])
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)  # the same dropout in both
                before = torch.get_rng_state()
                part, part_targets = tree_map(lambda x, rows=rows: x[rows.to(x.device)], (inputs, targets))
                losses = loss(call_model(model, part), part_targets)
                draws = draws or not torch.equal(before, torch.get_rng_state())
            check_loss(losses, 3)
            found.append(losses[place])
        # Same size, same place in the batch: the arithmetic is the same, so the bound can be tight.
        mixed = mixed or not torch.allclose(found[0], found[1], rtol=1e-5, atol=1e-7, equal_nan=True)
    now = dict(_untrained(model))
    for name, value, before in state:
        written = now.get(name) is not value or not torch.equal(value, before)
        if now.get(name) is value:
            value.data.copy_(before)
        if written:
            raise Unsuitable(
                f"the model writes to {name} in its forward pass, so that private rows would end in the saved "
                "model without noise: make it constant while training"
            )
    if mixed:
        raise Unsuitable(
            "the loss of an example depends on the other examples of its batch, so nobody's influence is "
            "bounded: remove what mixes them (batch statistics, attention across the batch, a reduced loss)"
        )


def writes_inputs(model: nn.Module, inputs: Any) -> bool:
    """Whether the model works on its inputs in place: then it must not be given the same ones twice."""
    own = tree_map(torch.clone, inputs)
    versions = [leaf._version for leaf in tree_leaves(own)]
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        call_model(model, own)
    return versions != [leaf._version for leaf in tree_leaves(own)]


class Watchman:
    """Sees whether buffers or frozen parameters are written between two moments."""

    def __init__(self, model: nn.Module) -> None:
        self._seen = [
            (table, key, value, value._version)
            for module in model.modules()
            for table in (module._buffers, module._parameters)
            for key, value in table.items()
            if value is not None and not value.requires_grad
        ]

    def check(self) -> None:
        for table, key, value, version in self._seen:
            if table.get(key) is not value or value._version != version:
                raise Unsuitable(
                    f"the model wrote to {key} in its forward pass, so that private rows would end in the saved "
                    "model without noise: make it constant while training"
                )


def variants(inputs: Any, targets: Any) -> Iterator[tuple[Any, Any]]:
    """Five made-up rows in order, in reverse, with tails of different lengths blanked out, and where they come with
    whole numbers (lengths), with different ones.

    A model that sorts its rows, by length or otherwise, shows it on one of them.
    """
    yield inputs, targets
    yield tree_map(lambda x: x.flip(0), (inputs, targets))
    yield tree_map(_shortened, inputs), targets
    for numbers in _LENGTHS if any(_is_number(leaf) for leaf in tree_leaves(inputs)) else ():
        yield tree_map(lambda x, numbers=numbers: _numbered(x, numbers), inputs), targets


def all_ones(inputs: Any) -> bool:
    """Whether rows come with whole numbers, such as lengths, that are all 1: made-up ones where 0 is none."""
    return any(_is_number(leaf) and bool((leaf == 1).all()) for leaf in tree_leaves(inputs))


_LENGTHS = ((1, 2, 1, 2, 2), (2, 1, 1, 2, 1), (3, 1, 2, 1, 2), (1, 2, 3, 2, 1), (3, 1, 5, 2, 4))


def _is_number(x: Tensor) -> bool:
    return x.dim() == 1 and not x.is_floating_point() and x.dtype != torch.bool


def _numbered(x: Tensor, numbers: tuple[int, ...]) -> Tensor:
    return torch.tensor(numbers[: len(x)], dtype=x.dtype, device=x.device) if _is_number(x) else x


def _shortened(x: Tensor) -> Tensor:
    if x.dim() < 2 or x.shape[1] < 2:
        return x
    x = x.clone()
    for row, part in enumerate((3, 1, 5, 2, 4)[: len(x)]):
        x[row, max(1, part * x.shape[1] // 5) :] = 0
    return x


@contextmanager
def shaken(theta: Tensor, slots: list[tuple[int, int]]) -> Iterator[None]:
    """The parameters moved a little at random, and back: gradients that start at zero are seen too."""
    before = theta.clone()
    generator = torch.Generator().manual_seed(1)
    for start, stop in slots:
        part = theta[start:stop]
        size = float(part.square().mean().sqrt())
        noise = torch.randn(stop - start, generator=generator).to(theta.device)
        part.add_(noise, alpha=0.3 * size if size > 0 else 0.05)
    try:
        yield
    finally:
        theta.copy_(before)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Every module in evaluation mode, and back as each one was."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, mode in modes:
            module.training = mode


def _untrained(model: nn.Module) -> list[tuple[str, Tensor]]:
    frozen = [(name, p) for name, p in model.named_parameters() if not p.requires_grad]
    return [*model.named_buffers(), *frozen]
