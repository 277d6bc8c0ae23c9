"""What one use of a parameter contributes to its per-example gradients, kept in the cheapest exact form.

``B`` examples (or groups), ``T`` positions, ``d`` inputs, ``p`` outputs. A factor can say its squared norms,
its weighted sums (added to the flat ``out``, or written to it if ``fresh``), itself as a dense B x size matrix, and
itself for a part of the examples, once norms are known.
Norms are bounds on what is added (``bounds``): they are of the very numbers that are summed, or where those are never
made, raised so far that the order of additions does not matter.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.gradients.bounds import CANCELLING, row_norms, row_squares

# Below this fraction of the largest value it could have had, a squared norm from inner products has lost too many
# digits to cancellation, or vanished, and the same would happen in the sum: those examples are taken out, and their
# gradients made, in double precision.
_CANCELLATION = CANCELLING**-2
_DENSE_NUMBERS = 1 << 26  # in the gradients of a batch, for that; beyond, their norms are raised instead


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
    _dense: Tensor | None = None
    _few: tuple[Tensor, Tensor] | None = (
        None  # examples whose positions cancel, and the gradients to sum instead
    )

    def squared_norms(self) -> Tensor:
        if self._by_gram:
            return _settled(self, None, self._gram_squared_norms(), self.parts())
        return row_squares(self.dense())

    @property
    def _by_gram(self) -> bool:
        return gram_is_cheaper(self.inputs_BTd.shape[1], self.inputs_BTd.shape[2], self.grads_BTp.shape[2])

    def _gram_squared_norms(self) -> Tensor:
        a, g = self.inputs_BTd, self.grads_BTp
        return (torch.bmm(a, a.mT) * torch.bmm(g, g.mT)).sum((1, 2))

    def unsettled_squared_norms(self) -> tuple[Tensor, Tensor]:
        """Squared norms that may have cancelled, and the norms of what is added up for each example, added up."""
        if self._by_gram:
            return self._gram_squared_norms(), self.parts()
        squares = row_squares(self.dense())
        return squares, squares.sqrt()

    def parts(self) -> Tensor:
        """The norms of what positions add, added up."""
        a, g = self.inputs_BTd, self.grads_BTp
        norms = row_norms(a.reshape(-1, a.shape[2])) * row_norms(g.reshape(-1, g.shape[2]))
        return norms.view(a.shape[:2]).sum(1)

    def add_weighted_sum(self, weights_B: Tensor, out: Tensor, fresh: bool = False) -> None:
        beta = 0.0 if fresh else 1.0
        if self._few is not None:
            examples, values = self._few
            out.view(-1).addmv_(values.t(), weights_B[examples], beta=beta)
            weights_B, beta = weights_B.index_fill(0, examples, 0.0), 1.0
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
        few = None
        if self._few is not None:
            inside = (self._few[0] >= start) & (self._few[0] < stop)
            few = self._few[0][inside] - start, self._few[1][inside]
        dense = None if self._dense is None else self._dense[start:stop]
        return Outer(self.inputs_BTd[start:stop], self.grads_BTp[start:stop], dense, few)

    def mask(self, keep_B: Tensor) -> None:
        self.inputs_BTd = _keep(self.inputs_BTd, keep_B)
        self.grads_BTp = _keep(self.grads_BTp, keep_B)
        if self._dense is not None:
            self._dense = _keep(self._dense, keep_B)
        if self._few is not None:
            self._few = self._few[0], _keep(self._few[1], keep_B[self._few[0]])

    def regroup(self, groups: Groups) -> Outer:
        # A group is one example with all its members' positions; padding rows are zero and add nothing.
        return Outer(groups.stack(self.inputs_BTd), groups.stack(self.grads_BTp))


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
    cross = (products * at_tokens.mT).sum((1, 2)).double()
    (of_outer, parts), of_rows = outer.unsettled_squared_norms(), rows.squared_norms()
    return _settled(outer, rows, of_outer + of_rows + 2 * cross, parts + of_rows.sqrt())


def _settled(outer: Outer, rows: Rows | None, squares: Tensor, parts: Tensor) -> Tensor:
    """Squared norms from inner products, as bounds. Where they cannot tell, gradients are made and taken out."""
    largest, squares = parts.square(), squares.double()
    doubtful = (squares < _CANCELLATION * largest).nonzero().flatten()
    if not len(doubtful):
        return squares
    size = outer.inputs_BTd.shape[2] * outer.grads_BTp.shape[2]
    if len(squares) * size > _DENSE_NUMBERS:  # all of them or none: nobody's part depends on others
        return torch.maximum(squares, _CANCELLATION * largest)
    made = []
    for some in doubtful.split(max(1, _DENSE_NUMBERS // (32 * size))):
        gradients = _outer(outer.inputs_BTd[some].double(), outer.grads_BTp[some].double())
        if rows is not None:
            gradients += Rows(rows.tokens_BT[some], rows.grads_BTd[some].double(), rows.rows).dense()
        squares[some] = gradients.square().sum(1)
        made.append(gradients.to(outer.grads_BTp.dtype))
    outer._few = doubtful, torch.cat(made)
    if rows is not None:
        rows._left_out = doubtful
    return squares


def _outer(a_BTd: Tensor, g_BTp: Tensor) -> Tensor:
    return torch.bmm(g_BTp.mT, a_BTd).flatten(1)


def _keep(x: Tensor, keep_B: Tensor) -> Tensor:
    # where(), not multiplication: 0 * NaN is NaN.
    return torch.where(
        keep_B.view(-1, *[1] * (x.dim() - 1)), x, torch.zeros((), dtype=x.dtype, device=x.device)
    )
