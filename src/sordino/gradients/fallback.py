"""Per-example gradients without rules: ``torch.func.vmap``, and a loop over examples as the last resort."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sordino.data.tree import tree_leaves, tree_map
from sordino.gradients.calls import Loss, call_model


class SlowGradients(UserWarning):
    """Part of the model has no fast rule; its gradients are right but slow.

    >>> import warnings
    >>> warnings.simplefilter("error", SlowGradients)  # raise instead, to find out which part
    """


def mapped_gradients(
    model: nn.Module, loss: Loss, named: Sequence[tuple[str, nn.Parameter]], inputs: Any, targets: Any
) -> list[Tensor]:
    """The gradient of each example's loss by each of the ``named`` parameters, [B, size] each, by ``vmap``."""
    values = {name: parameter.detach() for name, parameter in named}

    def one(values: dict[str, Tensor], inputs: Any, target: Any) -> Tensor:
        batch_of_one = tree_map(lambda x: x.unsqueeze(0), (inputs, target))
        output = torch.func.functional_call(model, values, *_as_call(batch_of_one[0]))
        return loss(output, batch_of_one[1]).sum()

    mapped = torch.func.vmap(torch.func.grad(one), in_dims=(None, 0, 0), randomness="different")
    gradients = mapped(values, inputs, targets)
    return [gradients[name].reshape(-1, p.numel()) for name, p in named]


def can_be_mapped(
    model: nn.Module, loss: Loss, named: Sequence[tuple[str, nn.Parameter]], inputs: Any, targets: Any
) -> bool:
    """Whether ``vmap`` can differentiate the model, tried on made-up rows; warns if not."""
    try:
        mapped_gradients(model, loss, named, inputs, targets)
    except Exception as error:
        # vmap has no one exception for "not supported".
        warnings.warn(
            f"torch.func.vmap cannot differentiate this model ({_first_line(error)}); looping over single "
            "examples instead, which is slow",
            SlowGradients,
            stacklevel=2,
        )
        return False
    return True


def loop_gradients(
    model: nn.Module,
    loss: Loss,
    parameters: Sequence[nn.Parameter],
    inputs: Any,
    targets: Any,
    lenient: bool = False,
    own_numbers: bool = False,
) -> list[Tensor]:
    """The same by a plain loop over examples: the definition, and the oracle of our tests.

    ``lenient``: an example that the model cannot compute has gradients that are not finite. ``own_numbers``: each draws
    random numbers of its own, so that none changes those of another.
    """
    rows = []
    first = int(torch.randint(2**62, ())) if own_numbers else 0
    for i in range(len(tree_leaves(targets)[0])):
        row, target = tree_map(lambda x, i=i: x[i : i + 1], (inputs, targets))
        if own_numbers:
            torch.manual_seed(first + i)
        try:
            with torch.enable_grad():
                value = loss(call_model(model, row), target).sum()
            grads: Sequence[Tensor | None] = [None] * len(parameters)
            if value.requires_grad:
                grads = torch.autograd.grad(value, parameters, allow_unused=True)
        except (Exception, SystemExit):
            if not lenient:
                raise
            grads = [torch.full_like(p, math.nan) for p in parameters]
        rows.append(
            [torch.zeros_like(p) if g is None else g.detach() for p, g in zip(parameters, grads, strict=True)]
        )
    if own_numbers:
        torch.manual_seed(first - 1)
    return [torch.stack(column).reshape(len(rows), -1) for column in zip(*rows, strict=True)]


def _as_call(inputs: Any) -> tuple[Any, ...]:
    if isinstance(inputs, dict):
        return (), inputs
    return (tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,),)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
