"""Many copies of a model at once: the gradients of a matrix of parameter vectors, one row per client.

For models that are a sequence of layers with a rule in `rules.py`. Autograd is not used for the model as a whole: each
layer's rule writes the gradients of its parameters straight to where they belong in the result.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from sordino.federated.engines.losses import Loss, OutputGradients
from sordino.federated.engines.rules import (
    ACTIVATIONS,
    ActivationRule,
    AutogradRule,
    ConvolutionRule,
    EmbeddingRule,
    LinearRule,
    NormRule,
    Rule,
    ShapeRule,
    padding_of,
)
from sordino.vector import ParameterVector

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
# Without parameters, and every example by itself whatever the settings.
_PER_EXAMPLE = (
    nn.GELU, nn.SiLU, nn.Mish, nn.ELU, nn.CELU, nn.SELU, nn.LeakyReLU, nn.ReLU6, nn.Softplus, nn.Softsign, nn.Hardtanh,
    nn.Hardswish, nn.Hardsigmoid, nn.LogSigmoid, nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d, nn.AdaptiveAvgPool1d,
    nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d, nn.ZeroPad2d,
)  # fmt: skip
_MAX_POOLS = (
    nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.AdaptiveMaxPool3d,
)  # fmt: skip


def can_stack(model: nn.Module) -> bool:
    """Whether `StackedGradients` can work with this model."""
    return why_not_stacked(model) is None


def why_not_stacked(model: nn.Module) -> str | None:
    """What of the model has no rule; None if all has."""
    layers = _layers(model)
    for layer in layers:
        if _is_altered(layer):
            return f"a {type(layer).__name__} has hooks or a forward of its own"
        if not _has_rule(layer):
            name = type(layer).__name__ if list(layer.children()) else str(layer)
            return f"{name} has no rule for many clients at once"
    used = [p for layer in layers for p in layer.parameters(recurse=False)]
    if len({id(p) for p in used}) < len(used):
        return "a parameter is used by several layers"
    return None


def _layers(model: nn.Module) -> list[nn.Module]:
    """The layers in the order in which they are applied; one that is used twice is there twice."""
    # Whoever inherits from Sequential may have a forward of their own.
    if type(model).forward is not nn.Sequential.forward or _is_altered(model):
        return [model]
    assert isinstance(model, nn.Sequential)
    return [layer for child in model for layer in _layers(child)]


def _is_altered(layer: nn.Module) -> bool:
    """Whether this module does something else than others of its class, or is watched."""
    hooks = (layer._forward_hooks, layer._forward_pre_hooks, layer._backward_hooks, layer._backward_pre_hooks)
    return any(hooks) or "forward" in vars(layer)


def _has_rule(layer: nn.Module) -> bool:
    kind = type(layer)  # not isinstance: a subclass may do anything
    if isinstance(layer, nn.Flatten) and kind is nn.Flatten:
        return layer.start_dim >= 1 and layer.end_dim != 0
    if isinstance(layer, nn.Unflatten) and kind is nn.Unflatten:
        return isinstance(layer.dim, int) and layer.dim >= 1
    if isinstance(layer, _CONVOLUTIONS) and kind in _CONVOLUTIONS:
        return layer.padding_mode == "zeros" and padding_of(layer) is not None
    if isinstance(layer, _MAX_POOLS) and kind in _MAX_POOLS:
        return not layer.return_indices
    if isinstance(layer, nn.Softmax | nn.LogSoftmax) and kind in (nn.Softmax, nn.LogSoftmax):
        return layer.dim is not None and (layer.dim >= 1 or layer.dim == -1)
    if isinstance(layer, nn.Embedding) and kind is nn.Embedding:
        return layer.max_norm is None and not layer.scale_grad_by_freq and not layer.sparse
    if isinstance(layer, nn.Dropout) and kind is nn.Dropout:
        return layer.p == 0
    return kind in (nn.Linear, nn.LayerNorm, nn.GroupNorm, nn.Identity, *ACTIVATIONS, *_PER_EXAMPLE)


def _rule(layer: nn.Module, wanted: bool, before: Rule | None) -> Rule:
    if isinstance(layer, nn.Linear):
        return LinearRule(wanted, layer)
    if isinstance(layer, _CONVOLUTIONS):
        return ConvolutionRule(wanted, layer)
    if isinstance(layer, nn.Embedding):
        return EmbeddingRule(wanted, layer)
    if isinstance(layer, nn.LayerNorm | nn.GroupNorm):
        return NormRule(wanted, layer)
    if isinstance(layer, nn.Flatten | nn.Unflatten | nn.Identity):
        return ShapeRule(wanted, layer)
    if type(layer) in ACTIVATIONS:
        in_place = before is not None and not before.keeps_output
        return ActivationRule(wanted, ACTIVATIONS[type(layer)], in_place)
    return AutogradRule(wanted, layer)


class StackedGradients:
    """Gradients [P, d] of weighted sums of losses, client by client, for models that `can_stack`.

    With ``reuse`` the result of a call is overwritten by the next: for callers that are done with it by then.
    """

    def __init__(self, model: nn.Module, loss: Loss, vector: ParameterVector, *, reuse: bool = False) -> None:
        reason = why_not_stacked(model)
        if reason is not None:
            raise ValueError(
                f"this model cannot be stacked ({reason}): use engine='mapped' or engine='looped'"
            )
        self.output_gradients = OutputGradients(loss)
        self.slots, self.reuse = tuple(vector.slots), reuse
        self._sizes = [slot.stop - slot.start for slot in self.slots]
        self._result: Tensor | None = None
        place = {id(slot.parameter): number for number, slot in enumerate(self.slots)}
        layers = _layers(model)
        trained = [any(id(p) in place for p in layer.parameters(recurse=False)) for layer in layers]
        if sum(id(p) in place for p in model.parameters()) < len(place):
            raise ValueError(
                "the parameter vector is not that of this model: make it with ParameterVector(model)"
            )
        self._first = trained.index(True)
        self._rules: list[Rule] = []
        for number, layer in enumerate(layers):
            before = self._rules[-1] if self._rules else None
            self._rules.append(_rule(layer, number > self._first, before))
        # Of each parameter of each rule: its slot, or itself if it is frozen.
        self._sources: list[list[int | Tensor | None]] = [
            [None if p is None else place.get(id(p), p) for p in rule.parameters] for rule in self._rules
        ]
        self._one_by_one = any(rule.one_by_one for rule in self._rules)

    @torch.no_grad()
    def __call__(self, x_Pd: Tensor, inputs_PB: Tensor, targets_PB: Tensor, weights_PB: Tensor) -> Tensor:
        if not isinstance(inputs_PB, Tensor) or not isinstance(targets_PB, Tensor):
            raise ValueError("stacked clients need inputs and targets that are tensors: use engine='looped'")
        result = self._result
        if result is None or result.shape != x_Pd.shape or not self.reuse:
            result = torch.empty_like(x_Pd, memory_format=torch.contiguous_format)
        self._result = result if self.reuse else None
        size = 1 if self._one_by_one else len(x_Pd)
        whole = (x_Pd, inputs_PB, targets_PB, weights_PB, result)
        for parts in zip(*(torch.split(part, size) for part in whole), strict=True):
            self._write(*parts)
        return result

    def _write(
        self, x_Pd: Tensor, inputs_PB: Tensor, targets_PB: Tensor, weights_PB: Tensor, result: Tensor
    ) -> None:
        clients, batch = inputs_PB.shape[:2]
        values, found = self._views(x_Pd), self._views(result)
        passed: list[tuple[Rule, Any, list[Tensor | None], list[Tensor | None]]] = []
        activation = inputs_PB.flatten(0, 1)
        for rule, sources in zip(self._rules, self._sources, strict=True):
            now = [_value(source, values, clients) for source in sources]
            activation, saved = rule.forward(activation, now, clients)
            into = [found[source] if isinstance(source, int) else None for source in sources]
            passed.append((rule, saved, now, into))
        if len(activation) != clients * batch:
            raise ValueError(
                "stacked clients need a model that gives one output per example: use engine='looped'"
            )
        gradient: Tensor | None = self.output_gradients(
            activation, targets_PB.flatten(0, 1), weights_PB.flatten()
        )
        for rule, saved, now, into in reversed(passed[self._first :]):
            assert gradient is not None
            gradient = rule.backward(gradient, saved, now, into)

    def _views(self, matrix: Tensor) -> list[Tensor]:
        parts = torch.split(matrix, self._sizes, dim=1)
        return [
            part.view(len(matrix), *slot.parameter.shape)
            for part, slot in zip(parts, self.slots, strict=True)
        ]


def _value(source: int | Tensor | None, values: list[Tensor], clients: int) -> Tensor | None:
    if isinstance(source, Tensor):
        return source.detach().expand(clients, *source.shape)
    return None if source is None else values[source]
