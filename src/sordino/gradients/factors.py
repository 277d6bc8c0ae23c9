"""What one use of a parameter contributes to its per-example gradients, kept in the cheapest exact form.

``B`` examples (or groups), ``T`` positions, ``d`` inputs, ``p`` outputs. A factor can say its squared norms,
its weighted sums (added to the flat ``out``, or written to it if ``fresh``), and itself as a dense B x size matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# Below this fraction of the largest value it could have had, a Gram-matrix norm has lost too many digits to
# cancellation to bound anybody's sensitivity; those examples are computed again from dense gradients.
_CANCELLATION = 1e-4


@dataclass
class Dense:
    """Per-example gradients themselves."""

    values_BN: Tensor
    product: Product | None = None  # whose gradients these values are too: a bias beside its weight

    def squared_norms(self) -> Tensor:
        if self.product is not None:
            return self.product.grad_norms().square()
        return _row_squares(self.values_BN)

    def add_weighted_sum(self, weights_B: Tensor, out: Tensor, fresh: bool = False) -> None:
        out.addmv_(self.values_BN.t(), weights_B, beta=0.0 if fresh else 1.0)

    def dense(self) -> Tensor:
        return self.values_BN

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
            self._norms_B = _row_norms(self.grads_Bp)
        return self._norms_B

    def squared_norms(self) -> Tensor:
        return (_row_norms(self.inputs_Bd) * self.grad_norms()).square_()

    def add_weighted_sum(self, weights_B: Tensor, out: Tensor, fresh: bool = False) -> None:
        g, a = self.grads_Bp, self.inputs_Bd
        out.view(g.shape[1], a.shape[1]).addmm_((g * weights_B[:, None]).t(), a, beta=0.0 if fresh else 1.0)

    def dense(self) -> Tensor:
        return self.positions().dense()

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

    def squared_norms(self) -> Tensor:
        a, g = self.inputs_BTd, self.grads_BTp
        positions, d, p = a.shape[1], a.shape[2], g.shape[2]
        return self._gram_squared_norms() if gram_is_cheaper(positions, d, p) else _row_squares(self.dense())

    def _gram_squared_norms(self) -> Tensor:
        a, g = self.inputs_BTd, self.grads_BTp
        squares = (torch.bmm(a, a.mT) * torch.bmm(g, g.mT)).sum((1, 2))
        largest = (a.norm(dim=2) * g.norm(dim=2)).sum(1).square()
        doubtful = squares < _CANCELLATION * largest
        if doubtful.any():
            # The sum will come from another order of additions: allow for its rounding.
            exact = _row_norms(_outer(a[doubtful], g[doubtful]))
            squares[doubtful] = (exact + 5e-7 * largest[doubtful].sqrt()).square_()
        return squares

    def add_weighted_sum(self, weights_B: Tensor, out: Tensor, fresh: bool = False) -> None:
        beta = 0.0 if fresh else 1.0
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

    def mask(self, keep_B: Tensor) -> None:
        self.inputs_BTd = _keep(self.inputs_BTd, keep_B)
        self.grads_BTp = _keep(self.grads_BTp, keep_B)
        if self._dense is not None:
            self._dense = _keep(self._dense, keep_B)

    def regroup(self, groups: Groups) -> Outer:
        # A group is one example with all its members' positions; padding rows are zero and add nothing.
        return Outer(groups.stack(self.inputs_BTd), groups.stack(self.grads_BTp))


@dataclass
class Rows:
    """Gradients of an embedding: row ``tokens[b, t]`` receives ``grads[b, t]``."""

    tokens_BT: Tensor
    grads_BTd: Tensor
    rows: int

    def squared_norms(self) -> Tensor:
        batch, positions, width = self.grads_BTd.shape
        if positions == 1:
            return _row_squares(self.grads_BTd[:, 0])
        key = (
            self.tokens_BT + self.rows * torch.arange(batch, device=self.tokens_BT.device)[:, None]
        ).flatten()
        unique, where = torch.unique(key, return_inverse=True)
        summed = self.grads_BTd.new_zeros(len(unique), width).index_add_(
            0, where, self.grads_BTd.flatten(0, 1)
        )
        owner = torch.div(unique, self.rows, rounding_mode="floor")
        return self.grads_BTd.new_zeros(batch).index_add_(0, owner, _row_squares(summed))

    def add_weighted_sum(self, weights_B: Tensor, out: Tensor, fresh: bool = False) -> None:
        if fresh:
            out.zero_()
        scaled = self.grads_BTd * weights_B[:, None, None]
        out.view(self.rows, -1).index_add_(0, self.tokens_BT.flatten(), scaled.flatten(0, 1))

    def dense(self) -> Tensor:
        batch, _, width = self.grads_BTd.shape
        key = (
            self.tokens_BT + self.rows * torch.arange(batch, device=self.tokens_BT.device)[:, None]
        ).flatten()
        full = self.grads_BTd.new_zeros(batch * self.rows, width)
        return full.index_add_(0, key, self.grads_BTd.flatten(0, 1)).view(batch, -1)

    def mask(self, keep_B: Tensor) -> None:
        self.grads_BTd = _keep(self.grads_BTd, keep_B)

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
    squares = outer.squared_norms() + rows.squared_norms()
    total = squares + 2 * (products * at_tokens.mT).sum((1, 2))
    doubtful = total < _CANCELLATION * squares
    if doubtful.any():
        some = Outer(outer.inputs_BTd[doubtful], outer.grads_BTp[doubtful]).dense()
        other = Rows(rows.tokens_BT[doubtful], rows.grads_BTd[doubtful], rows.rows).dense()
        total[doubtful] = _row_squares(some + other)
    return total


def _outer(a_BTd: Tensor, g_BTp: Tensor) -> Tensor:
    return torch.bmm(g_BTp.mT, a_BTd).flatten(1)


def _row_norms(x_BN: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(x_BN, dim=1)
    return norms


def _row_squares(x_BN: Tensor) -> Tensor:
    return _row_norms(x_BN).square_()


def _keep(x: Tensor, keep_B: Tensor) -> Tensor:
    # where(), not multiplication: 0 * NaN is NaN.
    return torch.where(
        keep_B.view(-1, *[1] * (x.dim() - 1)), x, torch.zeros((), dtype=x.dtype, device=x.device)
    )
