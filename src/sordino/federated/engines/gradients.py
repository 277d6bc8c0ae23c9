"""The gradients of many clients at once, by the fastest way that a model allows.

* stacked: each layer has a rule of its own for many clients (`stacked.py`).
* mapped: `torch.func.vmap` over clients.
* looped: plain autograd, one client after the other. Anything works, and it can be stepped through; "debug" is another
  name for it.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from sordino.data.tree import tree_map
from sordino.federated.engines.losses import Loss
from sordino.federated.engines.stacked import StackedGradients
from sordino.gradients.calls import arguments_of, call_model
from sordino.named import ENGINES
from sordino.vector import ParameterVector

_TOLERANCE = 1e-4  # relative, by client, between two ways
_SECONDS = 0.5  # how long to try a way out
_CALLS = 5  # how often at most
_ADVANTAGE = 0.9  # a way that comes later in the order must take less than this share of the time


@contextmanager
def threads(count: int) -> Iterator[None]:
    """So many threads for torch, and afterwards as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Gradients(Protocol):
    """Gradients [P, d]: row p is that of sum_b weights[p, b] * loss(model at x[p] (inputs[p, b]), targets[p, b])."""

    def __call__(self, x_Pd: Tensor, inputs_PB: Any, targets_PB: Any, weights_PB: Tensor) -> Tensor: ...


def stacked(model: nn.Module, loss: Loss, vector: ParameterVector, *, reuse: bool = False) -> Gradients:
    """Rules for many clients, layer by layer. ``reuse``: the result is overwritten by the next call."""
    return StackedGradients(model, loss, vector, reuse=reuse)


def mapped(model: nn.Module, loss: Loss, vector: ParameterVector, *, reuse: bool = False) -> Gradients:
    """`torch.func.vmap` over clients: for models made of anything that it can batch."""
    random = next(
        (
            m
            for m in model.modules()
            if isinstance(m, nn.modules.dropout._DropoutNd) and m.training and m.p > 0
        ),
        None,
    )
    if random is not None:
        raise ValueError(f"clients of a model with {random} cannot be mapped: use engine='looped'")
    names = [slot.name for slot in vector.slots]

    def weighted_loss(x_d: Tensor, inputs_B: Any, targets_B: Any, weights_B: Tensor) -> Tensor:
        parts = [part for _, part in vector.split(x_d)]
        called = dict(zip(names, parts, strict=True))
        outputs = functional_call(model, called, *arguments_of(inputs_B))
        return _weighted(loss(outputs, targets_B), weights_B)

    gradients: Gradients = vmap(grad(weighted_loss), randomness="error")  # type: ignore[arg-type]
    return _explained(gradients)


def looped(model: nn.Module, loss: Loss, vector: ParameterVector, *, reuse: bool = False) -> Gradients:
    """One client after the other, in plain autograd. Random layers draw from torch's own generator."""
    parameters = [slot.parameter for slot in vector.slots]

    def gradients(x_Pd: Tensor, inputs_PB: Any, targets_PB: Any, weights_PB: Tensor) -> Tensor:
        result = torch.empty_like(x_Pd, memory_format=torch.contiguous_format)
        before = vector.theta.clone()
        try:
            for row, (x_d, weights_B, into) in enumerate(zip(x_Pd, weights_PB, result, strict=True)):
                vector.theta.copy_(x_d)
                inputs_B, targets_B = (_row(tree, row) for tree in (inputs_PB, targets_PB))
                with torch.enable_grad():
                    total = _weighted(loss(call_model(model, inputs_B), targets_B), weights_B)
                    parts = torch.autograd.grad(total, parameters, materialize_grads=True)
                torch.cat([part.flatten() for part in parts], out=into)
        finally:
            vector.theta.copy_(before)
        return result

    return gradients


def _row(tree: Any, row: int) -> Any:
    return tree_map(lambda leaf: leaf[row], tree)


def _weighted(losses_B: Tensor, weights_B: Tensor) -> Tensor:
    if losses_B.shape != weights_B.shape:
        raise ValueError(
            f"the loss must give one value per example, not a tensor of shape {tuple(losses_B.shape)}: use "
            "reduction='none'"
        )
    return (losses_B * weights_B).sum()


def engine_named(
    name: str, model: nn.Module, loss: Loss, vector: ParameterVector, *, reuse: bool = False
) -> Gradients:
    """The way of that name; a model that it cannot be used with is an error, here or at the first call.

    With ``reuse`` the result of a call may be overwritten by the next one.
    """
    found: Gradients = ENGINES.named(name, None, model, loss, vector, reuse=reuse)
    return found if vector.theta.device.type == "cpu" else _where_the_model_is(found)


def _where_the_model_is(gradients: Gradients) -> Gradients:
    """With batches moved to the device of the clients' vectors."""

    def moved(x_Pd: Tensor, inputs_PB: Any, targets_PB: Any, weights_PB: Tensor) -> Tensor:
        batch = (inputs_PB, targets_PB, weights_PB)
        inputs_PB, targets_PB, weights_PB = tree_map(lambda leaf: leaf.to(x_Pd.device), batch)
        return gradients(x_Pd, inputs_PB, targets_PB, weights_PB)

    return moved


def _explained(gradients: Gradients) -> Gradients:
    """With a hint if `vmap` does not know what to do."""

    def explained(x_Pd: Tensor, inputs_PB: Any, targets_PB: Any, weights_PB: Tensor) -> Tensor:
        try:
            return gradients(x_Pd, inputs_PB, targets_PB, weights_PB)
        except (RuntimeError, NotImplementedError) as error:
            raise ValueError(
                "the clients of this model cannot be mapped with torch.func.vmap: use engine='looped' "
                f"({str(error).splitlines()[0]})"
            ) from error

    return explained


def choose(
    model: nn.Module,
    loss: Loss,
    vector: ParameterVector,
    inputs_PB: Any,
    targets_PB: Any,
    weights_PB: Tensor,
    *,
    reuse: bool = False,
) -> tuple[str, Gradients]:
    """The fastest way for this model and rows of these shapes, among those that agree with plain autograd.

    The rows may be made up, but should be such as the model can work with. torch's random numbers, the model and its
    parameters are afterwards what they were. Mapping is tried where stacking is not possible. Of ways that take about
    the same time it is the first of stacked, mapped, looped.
    """
    clients = len(weights_PB)
    draws = torch.Generator().manual_seed(
        0
    )  # every client at a place of its own, or a mix-up would not be seen
    away = torch.randn(clients, len(vector), generator=draws).to(vector.theta.device)
    x_Pd = vector.theta + away * (0.1 * vector.size)
    rows = (x_Pd, inputs_PB, targets_PB, weights_PB)
    plain = engine_named("looped", model, loss, vector)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # vmap warns of what it cannot batch, and that is seen in its time
        expected = plain(*rows)
        ways: dict[str, Gradients] = {}
        for name in ("stacked", "mapped"):
            try:
                way = engine_named(name, model, loss, vector, reuse=reuse)
                found = way(*rows)
            except Exception:
                continue
            if _agree(found, expected):
                ways[name] = way
                break  # mapping was never faster than stacking, and its first call takes a second
        ways["looped"] = plain
        if len(ways) == 1:
            return "looped", plain
        best, least = "", float("inf")
        for name, way in ways.items():
            seconds = seconds_of(way, rows)
            if seconds < least * _ADVANTAGE:
                best, least = name, seconds
    return best, ways[best]


def _agree(found: Tensor, expected: Tensor) -> bool:
    differences, sizes = (found - expected).norm(dim=1), expected.norm(dim=1)
    return bool((differences <= _TOLERANCE * sizes + 1e-12).all())


def seconds_of(way: Gradients, rows: tuple[Tensor, Any, Any, Tensor]) -> float:
    """The least time of a few calls."""
    times: list[float] = []
    while len(times) < _CALLS and sum(times) < _SECONDS:
        start = time.perf_counter()
        way(*rows)
        if rows[0].is_cuda:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return min(times)
