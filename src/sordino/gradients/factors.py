"""What one use of a parameter contributes to its per-example gradients, kept in the cheapest exact form.

``B`` examples (or groups), ``T`` positions, ``d`` inputs, ``p`` outputs. A factor can say its squared norms,
its weighted sums (added to the flat ``out``, or written to it if ``fresh``), itself as a dense B x size matrix, and
itself for a part of the examples, once norms are known.
Norms are bounds on what is added (``bounds``): where parts of an example cancel, norm and sum are of the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.gradients.bounds import CANCELLING, row_norms, row_squares

# Below this fraction of the largest value it could have had, a squared norm has lost too many digits to cancellation,
# or vanished, and the same would happen in the sum: those examples are taken out, and their gradients made, in double
# precision. Whether an example is taken out, and what it then contributes, depends on nobody else.
_CANCELLATION = CANCELLING**-2
_TWO_FORMS = 2.0**-2  # the same for a tied embedding and head, which are summed one after the other
_AT_A_TIME = 1 << 22  # numbers, in gradients that are made
_ROWS_OF_A_GROUP, _GRAM_NUMBERS = 4, 1 << 26
_SMALL_POSITION = 2.0**-40
_PIECE = 1024  # of inner products: longer ones are added up in double precision


@dataclass
class Dense:
    """Per-example gradients themselves."""

    values_BN: Tensor
    product: Product | None = None  # whose gradients these values are too: a bias beside its weight

    def squared_norms(self) -> Tensor:
        if self.product is not None:
            return self.product.grad_norms().square()
        return row_squares(self.values_BN)

    def add_weighted_sum(self, weights_B: Tensor, out: Tensor, fresh: bool = False) -> None:
        out.addmv_(self.values_BN.t(), weights_B, beta=0.0 if fresh else 1.0)

    def dense(self) -> Tensor:
        return self.values_BN

    def part(self, start: int, stop: int) -> Dense:
        return Dense(self.values_BN[start:stop])

    def mask(self, keep_B: Tensor) -> None:
        self.values_BN = _keep(self.values_BN, keep_B)

    def regroup(self, groups: Groups) -> Dense:
        summed = self.values_BN.new_zeros(groups.count, self.values_BN.shape[1])
        return Dense(summed.index_add_(0, groups.index_B, self.values_BN))


@dataclass
class Product:
    """One outer product g a' per example: a linear layer on plain vectors."""

    inputs_Bd: Tensor
    grads_Bp: Tensor
    _norms_B: Tensor | None = None

    def grad_norms(self) -> Tensor:
        if self._norms_B is None:
            self._norms_B = row_norms(self.grads_Bp)
        return self._norms_B

    def squared_norms(self) -> Tensor:
        return (row_norms(self.inputs_Bd) * self.grad_norms()).square_()

    def add_weighted_sum(self, weights_B: Tensor, out: Tensor, fresh: bool = False) -> None:
        g, a = self.grads_Bp, self.inputs_Bd
        out.view(g.shape[1], a.shape[1]).addmm_((g * weights_B[:, None]).t(), a, beta=0.0 if fresh else 1.0)

    def dense(self) -> Tensor:
        return self.positions().dense()

    def part(self, start: int, stop: int) -> Product:
        return Product(self.inputs_Bd[start:stop], self.grads_Bp[start:stop])

    def mask(self, keep_B: Tensor) -> None:
        self.inputs_Bd, self.grads_Bp = _keep(self.inputs_Bd, keep_B), _keep(self.grads_Bp, keep_B)

    def regroup(self, groups: Groups) -> Outer:
        return self.positions().regroup(groups)

    def positions(self) -> Outer:
        """The same with a dimension of positions, of which there is one."""
        return Outer(self.inputs_Bd[:, None], self.grads_Bp[:, None])


@dataclass
class Outer:
    """Sum over positions of outer products g_t a_t': linear layers, and convolutions over unfolded inputs."""

    inputs_BTd: Tensor
    grads_BTp: Tensor
    by_gram: bool | None = None  # norms from Gram matrices? None: if that is cheaper
    _dense: Tensor | None = None
    _few: Few | None = None  # examples whose positions cancel

    def squared_norms(self) -> Tensor:
        squares, parts = self.unsettled_squared_norms()
        return _settled(self, None, squares, squares < _CANCELLATION * parts.square())

    def unsettled_squared_norms(self) -> tuple[Tensor, Tensor]:
        """Squared norms that may have cancelled, and the norms of what positions add, added up."""
        a, g = self.inputs_BTd, self.grads_BTp
        positions, d, p = a.shape[1], a.shape[2], g.shape[2]
        gram = gram_is_cheaper(positions, d, p) if self.by_gram is None else self.by_gram
        of_a, of_g = (
            row_norms(a.reshape(-1, d)).view(a.shape[:2]),
            row_norms(g.reshape(-1, p)).view(a.shape[:2]),
        )
        squares = self._gram_squared_norms(of_a, of_g) if gram else row_squares(self.dense())
        return squares, (of_a * of_g).sum(1)

    def _gram_squared_norms(self, of_a: Tensor, of_g: Tensor) -> Tensor:
        return (_gram(self.inputs_BTd, of_a) * _gram(self.grads_BTp, of_g)).sum((1, 2))

    def add_weighted_sum(self, weights_B: Tensor, out: Tensor, fresh: bool = False) -> None:
        beta = 0.0 if fresh else 1.0
        if self._few is not None:
            if fresh:
                out.zero_()
            self._few.add_weighted_sum(weights_B, out)
            weights_B, beta = weights_B.index_fill(0, self._few.examples, 0.0), 1.0
        if self._dense is not None:
            out.addmv_(self._dense.t(), weights_B, beta=beta)
            return
        a, g = self.inputs_BTd, self.grads_BTp
        scaled = g * weights_B[:, None, None]
        out.view(g.shape[2], a.shape[2]).addmm_(scaled.flatten(0, 1).t(), a.flatten(0, 1), beta=beta)

    def dense(self) -> Tensor:
        if self._dense is None:
            self._dense = _outer(self.inputs_BTd, self.grads_BTp)
        return self._dense

    def part(self, start: int, stop: int) -> Outer:
        few = None if self._few is None else self._few.part(start, stop)
        dense = None if self._dense is None else self._dense[start:stop]
        return Outer(self.inputs_BTd[start:stop], self.grads_BTp[start:stop], self.by_gram, dense, few)

    def mask(self, keep_B: Tensor) -> None:
        self.inputs_BTd = _keep(self.inputs_BTd, keep_B)
        self.grads_BTp = _keep(self.grads_BTp, keep_B)
        if self._dense is not None:
            self._dense = _keep(self._dense, keep_B)
        if self._few is not None:
            self._few.mask(keep_B)

    def regroup(self, groups: Groups) -> Outer:
        # A group is one example with all its members' positions; padding rows are zero and add nothing. How norms are
        # taken must not depend on how many rows somebody has, unless there would be too many for a Gram matrix.
        a, g = groups.stack(self.inputs_BTd), groups.stack(self.grads_BTp)
        few_rows = gram_is_cheaper(_ROWS_OF_A_GROUP * self.inputs_BTd.shape[1], a.shape[2], g.shape[2])
        return Outer(a, g, few_rows and groups.count * a.shape[1] ** 2 <= _GRAM_NUMBERS)


@dataclass
class Rows:
    """Gradients of an embedding: row ``tokens[b, t]`` receives ``grads[b, t]``."""

    tokens_BT: Tensor
    grads_BTd: Tensor
    rows: int
    _left_out: Tensor | None = None  # examples that are summed elsewhere
    _summed: tuple[Tensor, Tensor, Tensor] | None = None

    def summed(self) -> tuple[Tensor, Tensor, Tensor]:
        """Gradients [K, d] of the different tokens of each example, the token [K] and the example [K] of each.

        A token that an example has twice is added up here, before norms are taken and before anything is weighed: what
        cancels is gone by then.
        """
        if self._summed is None:
            batch, positions, width = self.grads_BTd.shape
            device = self.tokens_BT.device
            owners = torch.arange(batch, device=device)
            if positions == 1:
                self._summed = (self.grads_BTd[:, 0], self.tokens_BT[:, 0], owners)
            else:
                key = (self.tokens_BT + self.rows * owners[:, None]).flatten()
                unique, where = torch.unique(key, return_inverse=True)
                total = self.grads_BTd.new_zeros(len(unique), width)
                total.index_add_(0, where, self.grads_BTd.flatten(0, 1))
                owner = torch.div(unique, self.rows, rounding_mode="floor")
                self._summed = (total, unique - owner * self.rows, owner)
        return self._summed

    def squared_norms(self) -> Tensor:
        total_Kd, _, owner_K = self.summed()
        squares = torch.zeros(len(self.grads_BTd), dtype=torch.float64, device=total_Kd.device)
        return squares.index_add_(0, owner_K, row_squares(total_Kd))

    def add_weighted_sum(self, weights_B: Tensor, out: Tensor, fresh: bool = False) -> None:
        if fresh:
            out.zero_()
        if self._left_out is not None:
            weights_B = weights_B.index_fill(0, self._left_out, 0.0)
        total_Kd, token_K, owner_K = self.summed()
        out.view(self.rows, -1).index_add_(0, token_K, total_Kd * weights_B[owner_K][:, None])

    def dense(self) -> Tensor:
        total_Kd, token_K, owner_K = self.summed()
        batch, _, width = self.grads_BTd.shape
        full = total_Kd.new_zeros(batch * self.rows, width)
        full[owner_K * self.rows + token_K] = total_Kd
        return full.view(batch, -1)

    def part(self, start: int, stop: int) -> Rows:
        total_Kd, token_K, owner_K = self.summed()
        inside = (owner_K >= start) & (owner_K < stop)
        left_out = None
        if self._left_out is not None:
            left_out = self._left_out[(self._left_out >= start) & (self._left_out < stop)] - start
        summed = total_Kd[inside], token_K[inside], owner_K[inside] - start
        return Rows(self.tokens_BT[start:stop], self.grads_BTd[start:stop], self.rows, left_out, summed)

    def mask(self, keep_B: Tensor) -> None:
        self.grads_BTd = _keep(self.grads_BTd, keep_B)
        self._summed = None

    def regroup(self, groups: Groups) -> Rows:
        return Rows(groups.stack(self.tokens_BT[..., None])[..., 0], groups.stack(self.grads_BTd), self.rows)


Factor = Dense | Product | Outer | Rows


class Groups:
    """Which group each of B examples belongs to (0 .. count-1), so that groups can be the unit."""

    def __init__(self, index_B: Tensor, count: int) -> None:
        self.index_B = index_B
        self.count = count
        sizes = torch.bincount(index_B, minlength=count)
        self._largest = int(sizes.max()) if count else 0
        order = torch.argsort(index_B, stable=True)
        first = torch.cumsum(sizes, 0) - sizes
        place = torch.empty_like(index_B)
        place[order] = torch.arange(len(index_B), device=index_B.device) - first[index_B[order]]
        self._place_B = place

    def stack(self, values_BTd: Tensor) -> Tensor:
        """Members of a group side by side along T, padded with zeros."""
        _, positions, width = values_BTd.shape
        stacked = values_BTd.new_zeros(self.count, self._largest, positions, width)
        stacked[self.index_B, self._place_B] = values_BTd
        return stacked.view(self.count, self._largest * positions, width)


def gram_is_cheaper(positions: int, d: int, p: int) -> bool:
    """Norms from T x T Gram matrices, rather than from the p x d gradients themselves?

    By the operations it is T (p + d) < p d; by measurement the dense way, which also gives the weighted sum
    almost for free, is ahead until about half of that.
    """
    return 2 * positions * (p + d) < p * d


def join(factors: list[Factor]) -> list[Factor]:
    """The fewest factors that say the same: uses of one parameter become one where their form allows it."""
    if len(factors) <= 1:
        return factors
    factors = [f.positions() if isinstance(f, Product) else f for f in factors]
    outers = [f for f in factors if isinstance(f, Outer)]
    rows = [f for f in factors if isinstance(f, Rows)]
    denses = [f for f in factors if isinstance(f, Dense)]
    joined: list[Factor] = []
    if outers:
        joined.append(
            outers[0]
            if len(outers) == 1
            else Outer(
                torch.cat([f.inputs_BTd for f in outers], 1), torch.cat([f.grads_BTp for f in outers], 1)
            )
        )
    if rows:
        joined.append(
            rows[0]
            if len(rows) == 1
            else Rows(
                torch.cat([f.tokens_BT for f in rows], 1),
                torch.cat([f.grads_BTd for f in rows], 1),
                rows[0].rows,
            )
        )
    if denses:
        total = denses[0].values_BN
        for f in denses[1:]:
            total = total + f.values_BN
        joined.append(Dense(total))
    if len(joined) == 1 or (len(joined) == 2 and outers and rows):
        return joined
    # Norms of different forms do not add and we have no cheap cross term: sum the gradients themselves.
    total = joined[0].dense()
    for factor in joined[1:]:
        total = total + factor.dense()
    return [Dense(total)]


def squared_norms(joined: list[Factor]) -> Tensor:
    """Squared norms of the summed contributions of one parameter (the output of ``join``)."""
    if len(joined) == 1:
        return joined[0].squared_norms()
    outer, rows = joined  # a tied embedding and head
    assert isinstance(outer, Outer)
    assert isinstance(rows, Rows)
    products = torch.bmm(rows.grads_BTd, outer.inputs_BTd.mT)  # <g_emb_t, a_s>
    index = rows.tokens_BT[:, None, :].expand(-1, outer.grads_BTp.shape[1], -1)
    at_tokens = torch.gather(outer.grads_BTp, 2, index)  # g_head_s[token_t]
    cross = (products * at_tokens.mT).sum((1, 2), dtype=torch.float64)
    (of_outer, parts), of_rows = outer.unsettled_squared_norms(), rows.squared_norms()
    squares = of_outer + of_rows + 2 * cross
    # The cross term is of tokens before they are joined.
    of_tokens = (
        row_norms(rows.grads_BTd.reshape(-1, rows.grads_BTd.shape[2])).view(rows.tokens_BT.shape).sum(1)
    )
    doubtful = squares < _CANCELLATION * (parts + of_tokens).square()
    doubtful |= squares < _TWO_FORMS * (of_outer.clamp_min(0).sqrt() + of_rows.sqrt()).square()
    return _settled(outer, rows, squares, doubtful)


def _settled(outer: Outer, rows: Rows | None, squares: Tensor, doubtful: Tensor) -> Tensor:
    """Squared norms, where the ``doubtful`` are those of gradients that are made, and taken out of the factors."""
    examples = doubtful.nonzero().flatten()
    if len(examples):
        outer._few = Few(examples, outer, rows)
        for some, gradients in outer._few.made():
            squares[some] = gradients.square().sum(1)
        if rows is not None:
            rows._left_out = examples
    return squares


@dataclass
class Few:
    """Examples whose gradients are made, a few at a time, in double precision: positions, and tokens if tied."""

    examples: Tensor
    outer: Outer
    rows: Rows | None
    first: int = 0  # the number of the first example, in a part

    def made(self) -> Iterator[tuple[Tensor, Tensor]]:
        a, g = self.outer.inputs_BTd, self.outer.grads_BTp
        for some in self.examples.split(max(1, _AT_A_TIME // (a.shape[2] * g.shape[2]))):
            which = some + self.first
            gradients = _outer(a[which].double(), g[which].double())
            if self.rows is not None:
                rows = self.rows
                gradients += Rows(rows.tokens_BT[which], rows.grads_BTd[which].double(), rows.rows).dense()
            yield some, gradients

    def add_weighted_sum(self, weights_B: Tensor, out: Tensor) -> None:
        for some, gradients in self.made():
            out.view(-1).addmv_(gradients.to(out.dtype).t(), weights_B[some])

    def part(self, start: int, stop: int) -> Few:
        inside = self.examples[(self.examples >= start) & (self.examples < stop)]
        return Few(inside - start, self.outer, self.rows, self.first + start)

    def mask(self, keep_B: Tensor) -> None:
        self.examples = self.examples[keep_B[self.examples]]


def _gram(x_BTd: Tensor, norms_BT: Tensor) -> Tensor:
    """Inner products of the positions of each example, [B, T, T] in double precision, of which none vanishes.

    Positions whose squares would vanish or overflow are scaled by powers of two first, which changes no digit; of long
    positions the inner products of pieces are added up in double precision.
    """
    extreme = (norms_BT > 0) & ((norms_BT < _SMALL_POSITION) | (norms_BT > 1 / _SMALL_POSITION))
    powers: Tensor | None = None
    if bool(extreme.any()):
        powers = torch.where(extreme, -torch.log2(norms_BT.clamp(1e-60, 1e60)).round(), 0.0)
        half = (powers / 2).floor()
        for part in (half, powers - half):  # in two steps, each within single precision
            x_BTd = x_BTd * torch.exp2(part).to(x_BTd.dtype)[..., None]
    size = x_BTd.shape[2]
    whole = size - size % _PIECE
    if size <= 2 * _PIECE:
        total = torch.bmm(x_BTd, x_BTd.mT).double()
    else:
        pieces = x_BTd[:, :, :whole].unflatten(2, (-1, _PIECE)).transpose(1, 2)
        rest = x_BTd[:, :, whole:]
        total = torch.matmul(pieces, pieces.mT).sum(1, dtype=torch.float64) + torch.bmm(rest, rest.mT)
    if powers is not None:
        total = total * torch.exp2(-powers)[:, :, None] * torch.exp2(-powers)[:, None, :]
    return total


def _outer(a_BTd: Tensor, g_BTp: Tensor) -> Tensor:
    return torch.bmm(g_BTp.mT, a_BTd).flatten(1)


def _keep(x: Tensor, keep_B: Tensor) -> Tensor:
    # where(), not multiplication: 0 * NaN is NaN.
    return torch.where(
        keep_B.view(-1, *[1] * (x.dim() - 1)), x, torch.zeros((), dtype=x.dtype, device=x.device)
    )
