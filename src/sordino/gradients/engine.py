"""Clipped sums of per-example gradients from one forward and one backward pass.

``Engine.sums`` gives per-example gradient norms and any number of sums of per-example gradients, weighted by
functions of those norms, at about the price of an ordinary gradient. How each layer does it is in the files
beside this one; how the passes are watched is in ``capture``.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sordino.data.tree import tree_leaves, tree_map
from sordino.gradients import attention, broadcast, convolution, embedding, linear, normalisation, recurrent
from sordino.gradients.bounds import BlockSums
from sordino.gradients.calls import Loss, call_model, check_loss
from sordino.gradients.capture import CannotCapture, Capture, Plan, learn
from sordino.gradients.examine import (
    Watchman,
    all_ones,
    evaluating,
    refuse_mixing,
    shaken,
    variants,
    writes_inputs,
)
from sordino.gradients.factors import Dense, Factor, Groups, join, squared_norms
from sordino.gradients.fallback import SlowGradients, can_be_mapped, loop_gradients, mapped_gradients
from sordino.gradients.refuse import Unsuitable, refuse
from sordino.vector import ParameterVector

RULE_FILES = (attention, broadcast, convolution, embedding, linear, normalisation, recurrent)  # they register

# Convolutions slow down when a micro-batch's unfolded inputs leave the cache, so these set its size; what a
# micro-batch may capture in all bounds the memory of models without them. Both by measurement on the models of
# benchmarks/private_step.py, and neither is visible to the maths.
_UNFOLDED_BYTES = 20 << 20
_CAPTURED_BYTES = 96 << 20

# Squares of norms beyond are not numbers of single precision, and weights for such norms would not be exact.
_LARGEST_SQUARE = float(torch.finfo(torch.float32).max)

_PROBE_SIZES = (3, 5)  # two sizes tell which dimension counts examples
_ROWS = 5  # to look at a model with


@dataclass(frozen=True)
class Norms:
    """Gradient norms of U units (examples or groups); squares by parameter, for per-layer clipping."""

    names: tuple[str, ...]  # of the P parameters
    squares_PU: Tensor
    total_U: Tensor  # norms over all parameters

    def raised(self, by: float) -> Norms:
        """Norms larger by this fraction, to leave room for what rounding adds to the sums."""
        return Norms(self.names, self.squares_PU * (1 + by) ** 2, self.total_U * (1 + by))


Weigh = Callable[[Norms], Tensor]  # -> weights [K, U], or [K, P, U] to weigh parameters apart


class Engine:
    """Weighted sums of per-example gradients of ``loss(model(inputs), targets)``.

    The model must treat the examples of a batch independently; ``prepare`` checks it on made-up rows, by
    comparison with single examples, before any private row is seen.
    """

    debug = False  # raise what goes wrong with a batch, where values may be quoted: for tests

    def __init__(
        self, model: nn.Module, loss: Loss, *, microbatch: int | None = None, keep_loss: bool = False
    ) -> None:
        refuse(model)
        if microbatch is not None and microbatch < 1:
            raise ValueError(f"microbatch must be at least 1, not {microbatch}")
        self.model = model
        self.loss = loss
        self.vector = ParameterVector(model)
        self.microbatch = microbatch
        self._sizes = [slot.stop - slot.start for slot in self.vector.slots]
        self._starts = [slot.start for slot in self.vector.slots]
        self._names = tuple(slot.name for slot in self.vector.slots)
        self._parameters = [slot.parameter for slot in self.vector.slots]
        self.keep_loss = keep_loss
        self.ready = False  # prepare() has learnt how the model treats batches
        self.last_loss = 0.0  # if kept, summed over the last batch of ``sums``: private, see Gate
        self.draws_randomness = True  # does a training pass use torch's generator? prepare() finds out
        self._batchnorms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
        self.everything_unruled = False  # all gradients from torch.func
        self._mappable: bool | None = (
            None  # by vmap, or else one example after the other: prepare() finds out
        )
        self._writes_inputs = False
        self._stand_in: Any = None  # a row on which the model runs
        self._plan: Plan | None = None

    # Learning the model --------------------------------------------------------------------------------

    def prepare(self, inputs: Any, targets: Any) -> None:
        """Learn how the model treats batches from five rows that are made up, or otherwise public, and check it.

        All that is chosen is chosen here: no private row decides how another is computed.
        """
        if _count(targets) < _ROWS:
            raise ValueError(f"prepare needs {_ROWS} rows to learn how the model treats batches")
        rows = _rows(inputs, targets, 0, _ROWS)
        refuse_mixing(self.model, self.loss, *rows)
        self._writes_inputs = writes_inputs(self.model, rows[0])
        with evaluating(self.model), torch.random.fork_rng(devices=[]):
            plan = Plan()
            learn(
                lambda capture, size: self._watch(capture, *_rows(*rows, 0, size)),
                self._parameters,
                _PROBE_SIZES,
                plan,
            )
            for candidate in (plan, _folded_the_other_way(plan)):
                if self._plan_holds(candidate, *rows):
                    self._plan = candidate
                    break
            else:
                self._plan = plan
                self._give_up_rules("no fast rule fits how this model treats its batches")
            if self._plan.unruled and not self.everything_unruled:
                names = ", ".join(self.vector.slots[i].name for i in sorted(self._plan.unruled))
                warnings.warn(
                    f"no fast rule for the way the model uses {names}; their gradients come from torch.func",
                    SlowGradients,
                    stacklevel=3,
                )
        self.draws_randomness = self._finds_randomness(*rows)
        self._stand_in = _rows(*rows, 0, 1)
        # A second pass would draw other dropout masks: then there may be only one, for everything.
        self.everything_unruled |= bool(self._plan.unruled) and self.draws_randomness
        if self.everything_unruled:
            with torch.random.fork_rng(devices=[]):
                self._fallback_factors(*rows, range(len(self._parameters)))
        if self.microbatch is None:
            with evaluating(self.model):
                self.microbatch = self._choose_microbatch(*rows)
        self.ready = True

    def made_up(self, rows: int) -> tuple[Any, Any]:
        """So many times a row that ``prepare`` was given, which is nobody's."""
        return tree_map(lambda x: x.repeat(rows, *[1] * (x.dim() - 1)), self._stand_in)  # type: ignore[no-any-return]

    def _plan_holds(self, plan: Plan, inputs: Any, targets: Any) -> bool:
        """Do norms and sums by this plan agree with single examples, for several arrangements of the rows?"""
        unseen = all_ones(inputs)  # lengths by which it may sort, of which nothing is seen if they are alike
        with shaken(self.vector.theta, [(slot.start, slot.stop) for slot in self.vector.slots]):
            agree = self._agrees(plan, inputs, targets)
            for other in list(variants(inputs, targets))[1:] if agree else []:
                try:
                    agree = agree and self._agrees(plan, *other)
                    unseen = unseen and all_ones(other[0])
                except (RuntimeError, IndexError, AssertionError, TypeError, ValueError):
                    continue  # the model cannot run on rows of that form
        return agree and not unseen and self._agrees(plan, inputs, targets)

    def _agrees(self, plan: Plan, inputs: Any, targets: Any) -> bool:
        """Parameter by parameter: the norms of each example and the sum over them, against single examples."""
        self._plan = plan
        squares: list[Tensor] = []

        def weigh(norms: Norms) -> Tensor:
            squares.append(norms.squares_PU)
            return torch.ones_like(norms.total_U)[None]

        try:
            sums = BlockSums(1, len(self.vector), self.vector.theta.device)
            self._add_sums(inputs, targets, weigh, None, sums)
        except CannotCapture:
            return False
        singles = loop_gradients(self.model, self.loss, self._parameters, inputs, targets)
        keep = torch.stack([rows.isfinite().all(1) for rows in singles]).all(0)
        singles = [torch.where(keep[:, None], rows, 0.0) for rows in singles]
        scale = float(torch.stack([rows.norm(dim=1) for rows in singles]).norm(dim=0).max())
        for got, square, rows in zip(sums.total()[0].split(self._sizes), squares[0], singles, strict=True):
            norms = rows.norm(dim=1)
            # Wide bounds: a wrong layout is wrong by a factor, while a ReLU at a rounding error from its kink
            # moves a gradient by a thousandth; and gradients that cancel exactly are all rounding.
            bound = 0.03 * float(norms.max()) + 1e-4 * scale
            if float((square.clamp_min(0).sqrt() - norms).abs().max()) > bound:
                return False
            if float((got - rows.sum(0)).norm()) > bound:
                return False
        return True

    def _give_up_rules(self, reason: str) -> None:
        warnings.warn(f"{reason}; using torch.func for all of it", SlowGradients, stacklevel=4)
        self.everything_unruled = True
        if self.microbatch is not None:
            self.microbatch = min(self.microbatch, self._dense_microbatch())

    def _finds_randomness(self, inputs: Any, targets: Any) -> bool:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            before = torch.get_rng_state()
            self.loss(call_model(self.model, inputs), targets)
            return not torch.equal(before, torch.get_rng_state())

    def _choose_microbatch(self, inputs: Any, targets: Any) -> int:
        if self.everything_unruled:
            return self._dense_microbatch()
        assert self._plan is not None
        capture = Capture(self._parameters, _count(targets), self._plan)
        self._watch(capture, inputs, targets, backward=True)
        factors = self._joined(capture, inputs, targets)
        captured = sum(t.numel() * t.element_size() for fs in factors for f in fs for t in _tensors(f))
        sizes = [_CAPTURED_BYTES * _count(targets) // max(captured, 1)]
        if capture.unfolded_bytes:
            sizes.append(_UNFOLDED_BYTES * _count(targets) // capture.unfolded_bytes)
        return max(1, min(sizes))

    def _dense_microbatch(self) -> int:
        return max(1, _CAPTURED_BYTES // (8 * len(self.vector)))

    # Sums ----------------------------------------------------------------------------------------------

    def sums(
        self,
        inputs: Any,
        targets: Any,
        weigh: Weigh,
        *,
        count: int = 1,
        groups: Tensor | None = None,
        there: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """``count`` weighted sums of gradients [count, d], and the norms of the units that were weighed.

        Units are examples, or the distinct ids in ``groups`` (one per row), whose gradients are summed before
        anything else. A unit with a non-finite gradient counts as zero: norm 0, no part in any sum. So does a row that
        the model or the loss cannot compute (a label out of range): an error would tell of it. Rows that are not
        ``there`` count as zero as well.
        """
        self.vector.check()
        if any(norm.training for norm in self._batchnorms):  # model.train() after a model that came in eval()
            refuse(self.model)
        rows = _count(targets)
        self.last_loss = 0.0
        if rows == 0:
            nothing = torch.zeros(count, len(self.vector), device=self.vector.theta.device)
            return nothing, nothing.new_zeros(0)
        watchman = Watchman(self.model)
        if self._plan is None and rows >= _ROWS:
            self.prepare(inputs, targets)
        sums = BlockSums(count, len(self.vector), self.vector.theta.device)
        all_norms: list[Tensor] = []
        for part in _microbatches(rows, self.microbatch or 1, groups):
            ids, present = (None if of_rows is None else of_rows[part] for of_rows in (groups, there))
            piece = _take(inputs, part), _take(targets, part)
            all_norms.append(self._add_sums(*piece, weigh, ids, sums, present))
            if self.keep_loss:  # but where a row cannot be computed
                with suppress(Exception, SystemExit), torch.no_grad(), torch.random.fork_rng(devices=[]):
                    self.last_loss += float(self.loss(call_model(self.model, piece[0]), piece[1]).sum())
        watchman.check()
        return sums.total(), all_norms[0] if len(all_norms) == 1 else torch.cat(all_norms)

    def _add_sums(
        self,
        inputs: Any,
        targets: Any,
        weigh: Weigh,
        ids: Tensor | None,
        sums: BlockSums,
        there: Tensor | None = None,
    ) -> Tensor:
        """Add one micro-batch's weighted sums to ``sums``; return its norms."""
        factors, units = self._computable_factors(inputs, targets), _count(targets)
        if there is not None:
            for factor in (f for fs in factors for f in fs):
                factor.mask(there)
        if ids is not None:
            unique, index = torch.unique(ids, return_inverse=True)
            units, grouping = len(unique), Groups(index, len(unique))
            factors = [[f.regroup(grouping) for f in fs] for fs in factors]
        with torch.no_grad():
            zero = torch.zeros(units, dtype=torch.float64, device=self.vector.theta.device)
            squares_PU = torch.stack([squared_norms(fs) if fs else zero for fs in factors])
            square_U = squares_PU.sum(0)
            if not float(square_U.max()) <= _LARGEST_SQUARE:
                keep = square_U <= _LARGEST_SQUARE
                for factor in (f for fs in factors for f in fs):
                    factor.mask(keep)
                squares_PU = torch.where(keep, squares_PU, 0.0)
                square_U = torch.where(keep, square_U, 0.0)
            norms = Norms(self._names, squares_PU, square_U.clamp_min_(0.0).sqrt_())
            weights = weigh(norms).to(torch.float32)
            for start, stop, block, fresh in sums.blocks(units):
                whole = stop - start == units
                parts = factors if whole else [[f.part(start, stop) for f in fs] for fs in factors]
                for k, i in itertools.product(range(len(block)), range(len(parts))):
                    out = block[k, self._starts[i] : self._starts[i] + self._sizes[i]]
                    row = (weights[k, i] if weights.dim() == 3 else weights[k])[start:stop]
                    if fresh and not parts[i]:
                        out.zero_()
                    for n, factor in enumerate(parts[i]):
                        factor.add_weighted_sum(row, out, fresh and n == 0)
        return norms.total_U

    def _own(self, inputs: Any) -> Any:
        """Inputs that the model may write to."""
        return tree_map(torch.clone, inputs) if self._writes_inputs else inputs

    def _computable_factors(self, inputs: Any, targets: Any) -> list[list[Factor]]:
        """``_factors``, with those of rows that cannot be computed as zeros.

        The others are computed as they would have been: beside a made-up row in the place of each such row, with the
        same random numbers. What went wrong is not told, since messages quote values.
        """
        if self.debug:
            return self._factors(inputs, targets)
        before = torch.get_rng_state() if self.draws_randomness else None
        versions = [leaf._version for leaf in tree_leaves(inputs)]
        with suppress(Exception, SystemExit):
            return self._factors(inputs, targets)
        if versions != [leaf._version for leaf in tree_leaves(inputs)]:
            raise Unsuitable("the model writes to its inputs now and then: have it work on a copy of them")
        fine = self._rows_that_run(inputs, targets)
        if before is not None:
            torch.set_rng_state(before)
        if self._stand_in is not None and not bool(fine.all()):
            with suppress(Exception, SystemExit):
                factors = self._factors(*_replaced(inputs, targets, ~fine, self._stand_in))
                for factor in (f for fs in factors for f in fs):
                    factor.mask(fine)
                return factors
            if before is not None:
                torch.set_rng_state(before)
        return self._looped(inputs, targets, lenient=True)

    def _rows_that_run(self, inputs: Any, targets: Any) -> Tensor:
        """Forward and back, each by itself."""
        fine = torch.zeros(_count(targets), dtype=torch.bool, device=self.vector.theta.device)
        for i in range(len(fine)):
            with suppress(Exception, SystemExit), torch.enable_grad():
                row, target = _rows(inputs, targets, i, i + 1)
                losses = self.loss(call_model(self.model, self._own(row)), target)
                check_loss(losses, 1)
                if losses.requires_grad:
                    torch.autograd.grad(losses.sum(), self._parameters, allow_unused=True)
                fine[i] = True
        return fine

    def _looped(self, inputs: Any, targets: Any, lenient: bool = False) -> list[list[Factor]]:
        """One example after the other: the definition."""
        singles = loop_gradients(
            self.model,
            self.loss,
            self._parameters,
            self._own(inputs),
            targets,
            lenient,
            self.draws_randomness,
        )
        return [[Dense(rows)] for rows in singles]

    def _factors(self, inputs: Any, targets: Any) -> list[list[Factor]]:
        """For each parameter, what its per-example gradients are made of, joined over its uses."""
        if self._plan is None:  # too few rows to learn from
            return self._looped(inputs, targets)
        if not self.everything_unruled:
            capture = Capture(self._parameters, _count(targets), self._plan)
            try:
                self._watch(capture, inputs, targets, backward=True)
                return self._joined(capture, inputs, targets)
            except CannotCapture:  # silently, since it may be a private row that does it
                return self._looped(inputs, targets)
        return self._fallback_factors(inputs, targets, range(len(self._parameters)))

    def _watch(self, capture: Capture, inputs: Any, targets: Any, backward: bool = False) -> None:
        with torch.enable_grad():
            with capture:
                losses = self.loss(call_model(self.model, self._own(inputs)), targets)
            check_loss(losses, capture.batch)
            if backward:
                capture.backward(losses)
            capture.forget()

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
        inputs = self._own(inputs)
        if self._mappable is None:  # in prepare(), which tries all that will be used
            self._mappable = can_be_mapped(self.model, self.loss, named, self._own(inputs), targets)
        if self._mappable:
            return [[Dense(g)] for g in mapped_gradients(self.model, self.loss, named, inputs, targets)]
        parameters = [p for _, p in named]
        singles = loop_gradients(
            self.model, self.loss, parameters, inputs, targets, own_numbers=self.draws_randomness
        )
        return [[Dense(rows)] for rows in singles]


def _replaced(inputs: Any, targets: Any, bad: Tensor, stand_in: Any) -> Any:
    """The batch with another row in the place of those that are ``bad``."""

    def put(x: Tensor, row: Tensor) -> Tensor:
        return torch.where(bad.to(x.device).view(-1, *[1] * (x.dim() - 1)), row.to(x.device, x.dtype), x)

    return tree_map(put, (inputs, targets), stand_in)


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
