"""Clipped sums of per-example gradients from one forward and one backward pass.

``Engine.sums`` gives per-example gradient norms and any number of sums of per-example gradients, weighted by
functions of those norms, at about the price of an ordinary gradient. How each layer does it is in the files
beside this one; how the passes are watched is in ``capture``.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from sordino.gradients import attention, broadcast, convolution, embedding, linear, normalisation, recurrent
from sordino.gradients.calls import Loss, call_model, check_loss
from sordino.gradients.capture import CannotCapture, Capture, Plan, learn
from sordino.gradients.factors import Dense, Factor, Groups, join, squared_norms
from sordino.gradients.fallback import SlowGradients, loop_gradients, per_example_gradients
from sordino.gradients.refuse import refuse
from sordino.vector import ParameterVector

RULE_FILES = (attention, broadcast, convolution, embedding, linear, normalisation, recurrent)  # they register

# Convolutions slow down when a micro-batch's unfolded inputs leave the cache, so these set its size; what a
# micro-batch may capture in all bounds the memory of models without them. Both by measurement on the models of
# benchmarks/private_step.py, and neither is visible to the maths.
_UNFOLDED_BYTES = 20 << 20
_CAPTURED_BYTES = 96 << 20

_PROBE_SIZES = (3, 5)  # two sizes tell which dimension counts examples


@dataclass(frozen=True)
class Norms:
    """Gradient norms of U units (examples or groups); squares by parameter, for per-layer clipping."""

    names: tuple[str, ...]  # of the P parameters
    squares_PU: Tensor
    total_U: Tensor  # norms over all parameters


Weigh = Callable[[Norms], Tensor]  # -> weights [K, U], or [K, P, U] to weigh parameters apart


class Engine:
    """Weighted sums of per-example gradients of ``loss(model(inputs), targets)``.

    The model must treat the examples of a batch independently; ``prepare`` checks it on made-up rows, by
    comparison with single examples, before any private row is seen.
    """

    def __init__(self, model: nn.Module, loss: Loss, *, microbatch: int | None = None) -> None:
        refuse(model)
        if microbatch is not None and microbatch < 1:
            raise ValueError(f"microbatch must be at least 1, not {microbatch}")
        self.model = model
        self.loss = loss
        self.vector = ParameterVector(model)
        self.microbatch = microbatch
        self._sizes = [slot.stop - slot.start for slot in self.vector.slots]
        self._names = tuple(slot.name for slot in self.vector.slots)
        self._parameters = [slot.parameter for slot in self.vector.slots]
        self.keep_loss = False
        self.last_loss = 0.0  # if kept, summed over the last batch of ``sums``: private, see Gate
        self.draws_randomness = True  # does a training pass use torch's generator? prepare() finds out
        self._batchnorms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        self._plan: Plan | None = None
        self._everything_unruled = False

    # Learning the model --------------------------------------------------------------------------------

    def prepare(self, inputs: Any, targets: Any) -> None:
        """Learn how the model treats batches from five or more rows, made up if possible, and check it."""
        largest = max(_PROBE_SIZES)
        if _count(targets) < largest:
            raise ValueError(f"prepare needs {largest} rows to learn how the model treats batches")
        self._refuse_mixing(*_rows(inputs, targets, 0, largest))
        with _evaluating(self.model), torch.random.fork_rng(devices=[]):
            plan = Plan()
            learn(
                lambda capture, size: self._watch(capture, *_rows(inputs, targets, 0, size)),
                self._parameters,
                _PROBE_SIZES,
                plan,
            )
            rows = _rows(inputs, targets, 0, _PROBE_SIZES[0])
            wanted = self._single_example_sums(*rows)
            for example_first in (True, False):
                if not example_first:
                    plan = _folded_the_other_way(plan)
                if self._agrees(plan, rows, wanted):
                    self._plan = plan
                    break
            else:
                warnings.warn(
                    "no fast rule fits how this model treats its batches; using torch.func for all of it",
                    SlowGradients,
                    stacklevel=3,
                )
                self._plan, self._everything_unruled = plan, True
            if self._plan.unruled and not self._everything_unruled:
                names = ", ".join(self.vector.slots[i].name for i in sorted(self._plan.unruled))
                warnings.warn(
                    f"no fast rule for the way the model uses {names}; their gradients come from torch.func",
                    SlowGradients,
                    stacklevel=3,
                )
        self.draws_randomness = self._finds_randomness(*_rows(inputs, targets, 0, largest))
        if self.microbatch is None:
            with _evaluating(self.model):
                self.microbatch = self._choose_microbatch(*_rows(inputs, targets, 0, largest))

    def _agrees(self, plan: Plan, rows: tuple[Any, Tensor], wanted: tuple[Tensor, Tensor]) -> bool:
        norms, total = wanted
        self._plan = plan
        try:
            got, got_norms = self._sums_of_batch(*rows, _ones, 1, None)
        except CannotCapture:
            return False
        # Wide bounds: a wrong layout is wrong by a factor, while a ReLU at a rounding error from its kink may
        # move a gradient by a thousandth.
        scale = max(float(norms.max()), 1e-30)
        worst = max(float((got_norms - norms).abs().max()), float((got[0] - total).norm()))
        return worst < 0.02 * scale

    def _single_example_sums(self, inputs: Any, targets: Any) -> tuple[Tensor, Tensor]:
        rows = torch.cat(loop_gradients(self.model, self.loss, self._parameters, inputs, targets), 1)
        rows = torch.where(rows.isfinite().all(1, keepdim=True), rows, 0.0)
        return rows.norm(dim=1), rows.sum(0)

    def _refuse_mixing(self, inputs: Any, targets: Any) -> None:
        """Raise if the loss of a row depends on the rows beside it, in the mode the model is in."""
        buffers = [(buffer, buffer.clone()) for buffer in self.model.buffers()]
        first = []
        for rows in (torch.tensor([0, 1, 2]), torch.tensor([0, 3, 4])):
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)  # the same dropout in both
                losses = self.loss(call_model(self.model, _take(inputs, rows)), _take(targets, rows))
            check_loss(losses, 3)
            first.append(losses[0])
            for buffer, before in buffers:
                buffer.copy_(before)
        # Same size, same place in the batch: the arithmetic is the same, so the bound can be tight.
        if not torch.allclose(first[0], first[1], rtol=1e-5, atol=1e-7, equal_nan=True):
            raise ValueError(
                "the loss of an example depends on the other examples of its batch, so nobody's influence is "
                "bounded: remove what mixes them (batch statistics, attention across the batch, a reduced loss)"
            )

    def _finds_randomness(self, inputs: Any, targets: Any) -> bool:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            before = torch.get_rng_state()
            self.loss(call_model(self.model, inputs), targets)
            return not torch.equal(before, torch.get_rng_state())

    def _choose_microbatch(self, inputs: Any, targets: Any) -> int:
        if self._everything_unruled:
            return max(1, _CAPTURED_BYTES // (8 * len(self.vector)))
        assert self._plan is not None
        capture = Capture(self._parameters, _count(targets), self._plan)
        self._watch(capture, inputs, targets, backward=True)
        factors = self._joined(capture, inputs, targets)
        captured = sum(t.numel() * t.element_size() for fs in factors for f in fs for t in _tensors(f))
        sizes = [_CAPTURED_BYTES * _count(targets) // max(captured, 1)]
        if capture.unfolded_bytes:
            sizes.append(_UNFOLDED_BYTES * _count(targets) // capture.unfolded_bytes)
        return max(1, min(sizes))

    # Sums ----------------------------------------------------------------------------------------------

    def sums(
        self, inputs: Any, targets: Any, weigh: Weigh, *, count: int = 1, groups: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """``count`` weighted sums of gradients [count, d], and the norms of the units that were weighed.

        Units are examples, or the distinct ids in ``groups`` (one per row), whose gradients are summed before
        anything else. A unit with a non-finite gradient counts as zero: norm 0, no part in any sum.
        """
        self.vector.check()
        if any(norm.training for norm in self._batchnorms):  # model.train() after a model that came in eval()
            refuse(self.model)
        rows = _count(targets)
        self.last_loss = 0.0
        if rows == 0:
            total = torch.zeros(count, len(self.vector), device=self.vector.theta.device)
            return total, total.new_zeros(0)
        total = torch.empty(count, len(self.vector), device=self.vector.theta.device)
        if self._plan is None:
            repeats = -(-max(_PROBE_SIZES) // rows)
            self.prepare(
                *tree_map(lambda x: torch.cat([x] * repeats) if repeats > 1 else x, (inputs, targets))
            )
            self.last_loss = 0.0
        assert self.microbatch is not None
        all_norms: list[Tensor] = []
        for part in _microbatches(rows, self.microbatch, groups):
            ids = None if groups is None else groups[part]
            norms = self._add_sums(
                _take(inputs, part), _take(targets, part), weigh, ids, total, fresh=not all_norms
            )
            all_norms.append(norms)
        return total, all_norms[0] if len(all_norms) == 1 else torch.cat(all_norms)

    def _sums_of_batch(
        self, inputs: Any, targets: Any, weigh: Weigh, count: int, groups: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        total = torch.empty(count, len(self.vector), device=self.vector.theta.device)
        norms = self._add_sums(inputs, targets, weigh, groups, total, fresh=True)
        return total, norms

    def _add_sums(
        self, inputs: Any, targets: Any, weigh: Weigh, ids: Tensor | None, total: Tensor, *, fresh: bool
    ) -> Tensor:
        """Add one micro-batch's weighted sums to ``total`` (or write them, if ``fresh``); return its norms."""
        factors, batch = self._factors(inputs, targets)
        units = batch
        if ids is not None:
            unique, index = torch.unique(ids, return_inverse=True)
            units, grouping = len(unique), Groups(index, len(unique))
            factors = [[f.regroup(grouping) for f in fs] for fs in factors]
        with torch.no_grad():
            device = total.device
            squares = [squared_norms(fs) if fs else torch.zeros(units, device=device) for fs in factors]
            squares_PU = torch.stack(squares)
            square_U = squares_PU.sum(0)
            if not math.isfinite(float(square_U.sum())):
                keep = square_U.isfinite()
                for factor in (f for fs in factors for f in fs):
                    factor.mask(keep)
                squares_PU = torch.where(keep, squares_PU, 0.0)
                square_U = torch.where(keep, square_U, 0.0)
            norms = Norms(self._names, squares_PU, square_U.clamp_min_(0.0).sqrt_())
            weights = weigh(norms)
            for k in range(len(total)):
                for i, out in enumerate(total[k].split(self._sizes)):
                    row = weights[k, i] if weights.dim() == 3 else weights[k]
                    if fresh and not factors[i]:
                        out.zero_()
                    for n, factor in enumerate(factors[i]):
                        factor.add_weighted_sum(row, out, fresh and n == 0)
        return norms.total_U

    def _factors(self, inputs: Any, targets: Any) -> tuple[list[list[Factor]], int]:
        """For each parameter, what its per-example gradients are made of, joined over its uses."""
        assert self._plan is not None
        batch = _count(targets)
        if not self._everything_unruled:
            capture = Capture(self._parameters, batch, self._plan)
            before = torch.get_rng_state() if self._plan.unruled else None
            try:
                self._watch(capture, inputs, targets, backward=True)
            except CannotCapture as problem:
                warnings.warn(f"{problem}; using torch.func for this batch", SlowGradients, stacklevel=2)
                return self._fallback_factors(inputs, targets, range(len(self._parameters))), batch
            # A second pass would draw other dropout masks: then there may be only one, for everything.
            if before is None or torch.equal(before, torch.get_rng_state()):
                return self._joined(capture, inputs, targets), batch
            torch.set_rng_state(before)
            self._everything_unruled = True
        return self._fallback_factors(inputs, targets, range(len(self._parameters))), batch

    def _watch(self, capture: Capture, inputs: Any, targets: Any, backward: bool = False) -> None:
        with torch.enable_grad():
            with capture:
                losses = self.loss(call_model(self.model, inputs), targets)
            check_loss(losses, capture.batch)
            if backward:
                capture.backward(losses)
            capture.forget()
        if self.keep_loss:
            self.last_loss += float(losses.detach().sum())

    def _joined(self, capture: Capture, inputs: Any, targets: Any) -> list[list[Factor]]:
        factors = [capture.factors.get(i, []) for i in range(len(self._parameters))]
        for number, tensor in capture.derived.items():
            uses = capture.factors.get(number)
            if uses:
                leaves = sorted(capture.leaves(number))
                for leaf, pulled in zip(leaves, self._pull_back(tensor, uses, leaves), strict=True):
                    factors[leaf] = [*factors[leaf], pulled]
        unruled = sorted(capture.plan.unruled)
        for i, fallback in zip(unruled, self._fallback_factors(inputs, targets, unruled), strict=True):
            factors[i] = fallback
        return [join(fs) for fs in factors]

    def _pull_back(self, tensor: Tensor, uses: list[Factor], leaves: list[int]) -> list[Factor]:
        """Per-example gradients by a derived tensor, carried back to the parameters it was made from."""
        cotangents = sum(f.dense() for f in uses)
        assert isinstance(cotangents, Tensor)
        parameters = [self._parameters[i] for i in leaves]
        grads = torch.autograd.grad(
            tensor,
            parameters,
            cotangents.view(-1, *tensor.shape),
            retain_graph=True,
            allow_unused=True,  # a parameter that gave only its shape (view_as)
            is_grads_batched=True,
        )
        return [
            Dense(cotangents.new_zeros(len(cotangents), p.numel()) if g is None else g.reshape(-1, p.numel()))
            for p, g in zip(parameters, grads, strict=True)
        ]

    def _fallback_factors(self, inputs: Any, targets: Any, indices: Any) -> list[list[Factor]]:
        named = [(self.vector.slots[i].name, self._parameters[i]) for i in indices]
        if not named:
            return []
        if self.keep_loss and len(named) == len(self._parameters):
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                self.last_loss += float(self.loss(call_model(self.model, inputs), targets).sum())
        return [[Dense(g)] for g in per_example_gradients(self.model, self.loss, named, inputs, targets)]


def _ones(norms: Norms) -> Tensor:
    return torch.ones_like(norms.total_U)[None]


def _tensors(factor: Factor) -> list[Tensor]:
    return [value for value in vars(factor).values() if isinstance(value, Tensor)]


def _folded_the_other_way(plan: Plan) -> Plan:
    layouts = {
        key: None if layout is None else type(layout)(layout.dim, layout.fold, False)
        for key, layout in plan.layouts.items()
    }
    return Plan(layouts, plan.constant, plan.unruled, plan.numbers, example_first=False)


def _rows(inputs: Any, targets: Any, start: int, stop: int) -> tuple[Any, Tensor]:
    return tree_map(lambda x: x[start:stop], (inputs, targets))  # type: ignore[no-any-return]


def _count(targets: Any) -> int:
    return len(targets) if isinstance(targets, Tensor) else len(tree_leaves(targets)[0])


def _take(tree: Any, rows: slice | Tensor) -> Any:
    return tree[rows] if isinstance(tree, Tensor) else tree_map(lambda x: x[rows], tree)


def _microbatches(n: int, size: int, groups: Tensor | None) -> Iterator[slice | Tensor]:
    """Rows of each micro-batch: equal parts of at most ``size``; a group is never cut."""
    if groups is None:
        parts = -(-n // size)
        for i in range(parts):
            yield slice(i * n // parts, (i + 1) * n // parts)
        return
    order = torch.argsort(groups, stable=True)
    sizes = torch.unique_consecutive(groups[order], return_counts=True)[1].tolist()
    start = stop = 0
    for members in sizes:
        if stop > start and stop + members - start > size:
            yield order[start:stop]
            start = stop
        stop += members
    yield order[start:stop]


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Every module in evaluation mode, and back as each one was."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, mode in modes:
            module.training = mode
