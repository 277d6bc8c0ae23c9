"""Watching a forward pass for every use of a trainable parameter.

During the pass the parameters have a class of ours, whose ``__torch_function__`` sees each call that takes one;
calls that take none run as ever. Where a rule knows the call (a linear map, a convolution, ...), the place of its
output in the autograd graph is noted. The backward pass then asks for the gradients at those places only, so that
weight-gradient kernels never run, and each rule turns the gradient at its output into what the per-example
gradient is made of. Three things can happen to a parameter:

* a *rule* knows the use: it contributes factors;
* the use does not involve the batch (a slice, a transpose, a weight norm): the result is a *derived* parameter,
  tracked like any other, and its per-example gradients are pulled back at the end;
* anything else: the parameter is *unruled*, and the engine falls back to ``torch.func`` for it.

Which dimension of a tensor counts the examples is learnt beforehand by running made-up batches of two sizes
and looking at what changes, so sequence-first models and folded batch dimensions are all right.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from sordino.gradients.factors import Factor

Rule = Callable[..., Any]
Contribution = Callable[[Tensor], None]
RULES: dict[Any, Rule] = {}


def rule_for(*functions: Any) -> Callable[[Rule], Rule]:
    """Register ``rule(capture, *args, **kwargs)`` for torch functions; it may return NotImplemented."""

    def register(rule: Rule) -> Rule:
        for function in functions:
            RULES[function] = rule
        return rule

    return register


@dataclass(frozen=True)
class Layout:
    """Where the examples are in the leading dimensions of a tensor."""

    dim: int
    fold: int = 1  # how many rows of that dimension belong to one example
    example_first: bool = True  # folded as (B, fold) rather than (fold, B)

    def split(self, x: Tensor, batch: int, lead: int) -> Tensor:
        """``x`` as [B, T, ...], T gathering what else is in its first ``lead`` dimensions."""
        if self.fold > 1:
            parts = (batch, self.fold) if self.example_first else (self.fold, batch)
            x = x.unflatten(self.dim, parts)
            return self._gather(x, self.dim if self.example_first else self.dim + 1, lead + 1)
        return self._gather(x, self.dim, lead)

    @staticmethod
    def _gather(x: Tensor, dim: int, lead: int) -> Tensor:
        if dim:
            x = x.movedim(dim, 0)
        if lead == 2:
            return x
        return x.unsqueeze(1) if lead == 1 else x.flatten(1, lead - 1)


class CannotCapture(Exception):
    """The pass cannot be captured by rules; the engine falls back."""


UseKey = tuple[int, int]  # (which tracked tensor, its how-manieth use of that kind)


@dataclass
class Plan:
    """What the passes over made-up batches taught about a model: see ``learn``."""

    layouts: dict[UseKey, Layout | None] = field(
        default_factory=dict
    )  # uses that a rule may take, or declines
    constant: dict[UseKey, bool] = field(
        default_factory=dict
    )  # other uses: does the result ignore the batch?
    unruled: set[int] = field(default_factory=set)
    numbers: dict[UseKey, int] = field(default_factory=dict)  # of derived tensors
    example_first: bool = True


@dataclass
class Observations:
    """Shapes seen, for each of two batch sizes, at uses the plan does not know yet."""

    ruled: dict[UseKey, list[tuple[int, ...]]] = field(default_factory=lambda: defaultdict(list))
    other: dict[UseKey, list[tuple[int, ...]]] = field(default_factory=lambda: defaultdict(list))

    def resolve(self, plan: Plan, sizes: tuple[int, int]) -> bool:
        """Move what was seen into the plan; False when there was nothing new."""
        for key, seen in self.ruled.items():
            plan.layouts[key] = _layout_from(seen, sizes, plan.example_first)
        for key, seen in self.other.items():
            plan.constant[key] = len(seen) == 2 and seen[0] == seen[1]
        return bool(self.ruled or self.other)


def _layout_from(seen: list[tuple[int, ...]], sizes: tuple[int, int], example_first: bool) -> Layout | None:
    if len(seen) != 2 or len(seen[0]) != len(seen[1]):
        return None
    changed = [i for i, (a, b) in enumerate(zip(*seen, strict=True)) if a != b]
    if len(changed) != 1:
        return None
    i = changed[0]
    fold, rest = divmod(seen[0][i], sizes[0])
    if rest or seen[1][i] != fold * sizes[1]:
        return None
    return Layout(i, fold, example_first)


class Capture:
    """One watched pass over a batch of ``batch`` examples, as planned: a context for the forward pass."""

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        batch: int,
        plan: Plan,
        observations: Observations | None = None,
    ) -> None:
        self.parameters = parameters
        self.batch = batch
        self.plan = plan
        self.factors: dict[int, list[Factor]] = defaultdict(list)
        self.derived: dict[int, Tensor] = {}
        self.unfolded_bytes = 0  # of the convolution that unfolds most
        self._observations = observations
        self._index = {id(p): i for i, p in enumerate(parameters) if i not in plan.unruled}
        self._ancestors: dict[int, set[int]] = {i: {i} for i in range(len(parameters))}
        self._ruled_uses: dict[int, int] = defaultdict(int)
        self._other_uses: dict[int, int] = defaultdict(int)
        self._edges: list[GradientEdge] = []
        self._contributions: list[tuple[Contribution, Tensor | None, int]] = []

    # What rules call -----------------------------------------------------------------------------------

    def tracks(self, x: Any) -> int | None:
        """The number of a tracked tensor, or None."""
        return self._index.get(id(x)) if isinstance(x, Tensor) else None

    def layout(self, tracked: int, leading: Sequence[int]) -> Layout | None:
        """Where the examples are at this use of ``tracked``; None if a rule must decline it."""
        key = (tracked, self._ruled_uses[tracked])
        self._ruled_uses[tracked] += 1
        if key in self.plan.layouts:
            layout = self.plan.layouts[key]
            if layout is not None and (
                layout.dim >= len(leading) or leading[layout.dim] != self.batch * layout.fold
            ):
                raise CannotCapture("a layer's input has another shape than when the model was checked")
            return layout
        if self._observations is None:
            raise CannotCapture(
                "the model takes another path for this batch than for the one it was checked on"
            )
        self._observations.ruled[key].append(tuple(leading))
        return Layout(0)  # any will do: layouts matter in the backward pass only

    def watch(self, output: Tensor, contribute: Contribution, held: Tensor | None = None) -> Tensor:
        """Have ``contribute(gradient)`` called with the gradient at ``output``, if there will be one.

        The edge is that of the output as it is now: an activation that overwrites it later does no harm. A
        tensor that ``contribute`` holds on to must not be overwritten before it is used.
        """
        if output.requires_grad:
            self._edges.append(get_gradient_edge(output))
            self._contributions.append((contribute, held, 0 if held is None else held._version))
        return output

    def backward(self, losses: Tensor) -> None:
        """Run the backward pass to the watched outputs, and let the rules contribute."""
        if not (self._edges and losses.requires_grad):
            return
        edges, contributions = self._edges, self._contributions
        self.forget()
        # The gradient at the losses is one for each. Handed over as `grad_outputs` it would be the same, but torch
        # imports sympy to compare its shape, which takes half a second before the first step.
        with torch.enable_grad():
            total = (losses * torch.ones_like(losses)).sum()
        gradients = torch.autograd.grad(total, edges, allow_unused=True)
        with torch.no_grad():
            for gradient, (contribute, held, version) in zip(gradients, contributions, strict=True):
                if gradient is None:
                    continue
                if held is not None and held._version != version:
                    raise RuntimeError(
                        "a tensor needed for gradients was modified by an in-place operation after it was used"
                    )
                contribute(gradient)

    def forget(self) -> None:
        """Drop what was watched. Contributions refer to the capture: kept, they would keep each other alive."""
        self._edges, self._contributions = [], []

    def call(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a torch function with rules in force; rules may do so too."""
        rule = RULES.get(function)
        if rule is not None:
            out = rule(self, *args, **kwargs)
            if out is not NotImplemented:
                return out
        return self._call_without_rule(function, args, kwargs)

    def record(self, tracked: int, factor: Factor) -> None:
        self.factors[tracked].append(factor)

    def leaves(self, tracked: int) -> set[int]:
        """The parameters a tracked tensor was made from."""
        return self._ancestors[tracked]

    # Watching ------------------------------------------------------------------------------------------

    def __enter__(self) -> Capture:
        _ACTIVE.append(self)
        for i, parameter in enumerate(self.parameters):
            if i not in self.plan.unruled:
                if type(parameter) is nn.Parameter:
                    parameter.__class__ = _WatchedParameter
                else:  # a class of the user's, with behaviour of its own
                    self.plan.unruled.add(i)
        return self

    def __exit__(self, *error: object) -> None:
        _ACTIVE.pop()
        for parameter in self.parameters:
            if type(parameter) is _WatchedParameter:
                parameter.__class__ = nn.Parameter  # type: ignore[assignment]
        for tensor in self.derived.values():
            tensor.__class__ = Tensor

    def _call_without_rule(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tracked = self._tracked_in(args)
        if kwargs:
            tracked += self._tracked_in(kwargs.values())
        out = func(*args, **kwargs)
        if not tracked:
            return out
        if isinstance(out, Tensor):
            if id(out) in self._index:
                if _writes_in_place(func):
                    self.plan.unruled.update(*(self._ancestors[i] for i in tracked))
            elif out.requires_grad:
                self._other_use(tracked, out)
        elif isinstance(out, (tuple, list)):
            for part in out:
                if isinstance(part, Tensor) and part.requires_grad:
                    self._other_use(tracked, part)
        return out

    def _tracked_in(self, values: Iterable[Any]) -> list[int]:
        found = []
        for value in values:
            if isinstance(value, Tensor):
                index = self._index.get(id(value))
                if index is not None:
                    found.append(index)
            elif isinstance(value, (tuple, list)):
                found += self._tracked_in(value)
        return found

    def _other_use(self, tracked: list[int], out: Tensor) -> None:
        key = (tracked[0], self._other_uses[tracked[0]])
        self._other_uses[tracked[0]] += 1
        leaves = set().union(*(self._ancestors[i] for i in tracked))
        if key in self.plan.constant:
            if not self.plan.constant[key]:
                if self._observations is None:
                    assert leaves <= self.plan.unruled, "learn() leaves no such use to a planned pass"
                self.plan.unruled |= leaves
                return
        elif self._observations is None:
            raise CannotCapture(
                "the model takes another path for this batch than for the one it was checked on"
            )
        else:
            self._observations.other[key].append(tuple(out.shape))
        number = self.plan.numbers.setdefault(key, len(self.parameters) + len(self.plan.numbers))
        out.__class__ = _WatchedTensor
        self.derived[number] = out
        self._index[id(out)] = number
        self._ancestors[number] = leaves


_ACTIVE: list[Capture] = []


class _WatchedParameter(nn.Parameter):
    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return _ACTIVE[-1].call(func, *args, **(kwargs or {}))


class _WatchedTensor(Tensor):
    __torch_function__ = _WatchedParameter.__torch_function__


def _writes_in_place(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    return (name.endswith("_") and not name.endswith("__") and name != "requires_grad_") or name.startswith(
        "__i"
    )


def learn(
    run: Callable[[Capture, int], None],
    parameters: Sequence[nn.Parameter],
    sizes: tuple[int, int],
    plan: Plan,
) -> None:
    """Fill ``plan`` by running made-up batches of two sizes until nothing new is seen."""
    while True:
        observations, unruled = Observations(), set(plan.unruled)
        for size in sizes:
            run(Capture(parameters, size, plan, observations), size)
        if not observations.resolve(plan, sizes) and unruled == plan.unruled:
            return
