"""This file has the gradient of one parameter, one per example: it computes the norm of each, and
their weighted sum.

Where it can be, both are answered without forming any example's gradient.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Protocol, final

import torch
from torch import Tensor

from privlearn.core.clipping.kernels import Kernels
from privlearn.core.clipping.row_norms import (
    SAFE,
    Assumed,
    RowNorms,
    are_zero,
    norms_of,
    row_norms,
    settle,
)
from privlearn.core.devices import add_rows
from privlearn.core.rows import Rows

#: A Gram matrix tells a norm to about rounding over this; where terms cancel further, the gradient
#: is formed.
CANCELLED = 0.02
#: Roundings of its scale by which such a squared norm may be below the true one, and how many more
#: for each number that products add up: one large number before many small ones loses some of them.
GRAM_ROUNDINGS, GRAM_LOST = 4, 1 / 16


class ExampleGradients(Protocol):
    """The gradients of one parameter.

    A kind whose squares wait for a look at norms in single precision (`settle_all`) has these as
    its `norms`, and one that is put together its `pieces`.

    Attributes:
        squares: the squared L2 norm of each example's gradient, in double precision; shape
            (batch,).
        nbytes: what it holds in memory.
    """

    nbytes: int

    @property
    def squares(self) -> Tensor:
        """The squared norms."""
        ...

    def add_weighted(self, weights: Tensor, into: Tensor) -> None:
        """Add the sum over the examples of weights[i] x gradient i to `into`, which has the
        parameter's shape.

        They are added up in the type of `weights` and `into`, which may have more digits than the
        gradients.
        """
        ...

    def form(self) -> Tensor:
        """The gradients, shape (batch, *parameter)."""
        ...


@final
class Dense:
    """Gradients that were formed: shape (batch, *parameter).

    Attributes:
        any_shape: whether they are added to a tensor of any shape, as numbers in their order.
    """

    any_shape = True

    def __init__(self, gradients: Tensor, norms: RowNorms | None = None) -> None:
        self._gradients, self._norms = gradients, norms
        self.nbytes = gradients.nbytes

    @property
    def norms(self) -> tuple[RowNorms, ...]:
        """Computed when asked for: gradients that are handed on to other parameters need none."""
        self._norms = RowNorms(self._gradients) if self._norms is None else self._norms
        return (self._norms,)

    @property
    def squares(self) -> Tensor:
        """Of their norms."""
        return self.norms[0].values.square()

    def add_weighted(self, weights: Tensor, into: Tensor) -> None:
        """One product with the weights."""
        into.view(-1).addmv_(
            self._gradients.reshape(weights.shape[0], -1).to(into.dtype).T, weights
        )

    def form(self) -> Tensor:
        """What it was made of."""
        return self._gradients


@final
class OuterProduct:
    """One position: the gradient is the outer product g a^T, and its norm is a product of norms."""

    def __init__(self, g: Tensor, a: Tensor, norms: RowNorms, kernels: Kernels) -> None:
        self._g, self._a, self._kernels = g, a, kernels
        self.norms = (RowNorms(a), norms)
        self.nbytes = g.nbytes

    @property
    def squares(self) -> Tensor:
        """Products of the norms, squared."""
        return (self.norms[0].values * self.norms[1].values).square()

    def add_weighted(self, weights: Tensor, into: Tensor) -> None:
        """One matrix product."""
        g, a = self._g.to(into.dtype), self._a.to(into.dtype)
        if g.shape[1] < a.shape[1]:  # the narrower one is scaled
            g = self._kernels.scaled(g, weights)
        else:
            a = self._kernels.scaled(a, weights)
        self._kernels.add_outer(g, a, into.view(g.shape[1], -1))

    def form(self) -> Tensor:
        """Outer products, shape (batch, outputs, inputs)."""
        return self._g[:, :, None] * self._a[:, None, :]


@final
class GramNorms:
    """A sum of outer products over few positions: norms from the positions' Gram matrices, no
    gradient formed.

    |sum_t g_t a_t^T|^2 = sum_st <a_s, a_t> <g_s, g_t>. In an example whose terms nearly cancel,
    that sum says nothing about the norm: such an example's gradient is formed, in double precision,
    and kept apart.

    Args:
        g: gradients of the outputs, shape (batch, positions, outputs).
        a: inputs, shape (batch, positions, inputs).
        shape: the parameter's.
        weighted: (weights, into) adds the weighted sum to `into`.
    """

    def __init__(
        self, g: Tensor, a: Tensor, shape: Sequence[int], weighted: Callable[[Tensor, Tensor], None]
    ) -> None:
        self._weighted, self._factors, self._shape = weighted, (g, a), shape
        inputs, outputs = torch.bmm(a, a.mT), torch.bmm(g, g.mT)
        self.norms = (RowNorms(inputs), RowNorms(outputs))
        self._sums = torch.linalg.vecdot(inputs.flatten(1), outputs.flatten(1))
        # What is added to the sums, in shares of the product of both norms.
        self._room = (GRAM_ROUNDINGS + GRAM_LOST * (g.shape[2] + a.shape[2])) * torch.finfo(
            g.dtype
        ).eps
        self._squares: Tensor | None = None
        self._apart = torch.empty(0, dtype=torch.int64, device=g.device)
        self.nbytes = g.nbytes + a.nbytes + inputs.nbytes + outputs.nbytes

    @property
    def squares(self) -> Tensor:
        """Of the Gram matrices, but for examples whose gradients were formed."""
        if self._squares is None:
            _settle_grams([self])
        assert self._squares is not None
        return self._squares

    def _form_apart(self, examples: Tensor) -> None:
        """The squares of these examples, from their gradients in double precision, which are
        kept.
        """
        (g, a), squares = self._factors, self.squares
        every = len(examples) == len(g)
        lengths = norms_of(*((t if every else t[examples]).flatten(1) for t in (g, a)))
        # A layer that is not reached yet, as behind a gain that starts at zero: nothing to form.
        nothing = (lengths == 0).any(0) & lengths.isfinite().all(0)
        squares[examples[nothing]] = 0.0
        self._apart, lengths = examples[~nothing], lengths[:, ~nothing]
        if len(self._apart):
            exact = (g[self._apart].double().mT @ a[self._apart].double()).view(-1, *self._shape)
            squares[self._apart] = (
                row_norms(exact).square().where(lengths.isfinite().all(0), math.inf)
            )
            self._exact = exact

    def add_weighted(self, weights: Tensor, into: Tensor) -> None:
        """One more weight gradient, of the weighted outputs."""
        if len(self._apart):
            into += torch.tensordot(weights[self._apart].double(), self._exact, 1).to(into.dtype)
            weights = weights.index_fill(0, self._apart, 0.0)
        self._weighted(weights, into)

    def form(self) -> Tensor:
        """One product for each example."""
        g, a = self._factors
        return (g.mT @ a).view(len(g), *self._shape)


def _settle_grams(grams: Iterable[GramNorms], assumed: Assumed | None = None) -> None:
    """Look at the sums of all of `grams` at once, which are of as many examples each, and form what
    they don't tell; or assume that they tell all.
    """
    waiting = [gram for gram in grams if gram._squares is None]
    if not waiting:
        return
    settle((norms for gram in waiting for norms in gram.norms), assumed)
    sizes = torch.stack([norms.values for gram in waiting for norms in gram.norms]).view(
        len(waiting), 2, -1
    )
    scale, squares = sizes.prod(1), torch.stack([gram._sums for gram in waiting]).double()
    # What single precision can't square goes the same way as what cancels: either factor may be too
    # small or too large.
    squarable = (sizes > SAFE[0] ** 2).all(1) & (sizes < SAFE[1] ** 2).all(1)
    safe = (squares > CANCELLED * scale) & squarable
    rooms = [gram._room for gram in waiting]
    squares += torch.stack([row * room for row, room in zip(scale.unbind(), rooms, strict=True)])
    if assumed is not None:
        nothing = [are_zero(g) | are_zero(a) for g, a in (gram._factors for gram in waiting)]

        def undo() -> None:
            for gram in waiting:
                gram._squares = None

        assumed.note((safe | torch.stack(nothing)).all(), undo)
    whole = assumed is not None or bool(safe.all())
    for gram, row, sure in zip(waiting, squares.unbind(), safe.unbind(), strict=True):
        gram._squares = row
        if not whole and len(examples := (~sure).nonzero()[:, 0]):
            gram._form_apart(examples)


@final
class SparseRows:
    """An embedding: an example's gradient has a row for each of its distinct tokens, merged before
    the norm.

    Args:
        tokens: shape (batch, positions).
        g: gradients of the outputs, shape (batch, positions, width).
        shape: (tokens in all, width).
    """

    def __init__(self, tokens: Tensor, g: Tensor, shape: Sequence[int]) -> None:
        self._shape = shape
        batch, total = len(tokens), shape[0]
        owner = torch.arange(batch, device=tokens.device)[:, None]
        self._keys, slot = (owner * total + tokens).unique(return_inverse=True)  # type: ignore[no-untyped-call]
        merged = g.new_zeros(len(self._keys), shape[1])
        self._merged = add_rows(merged, slot.flatten(), g.flatten(0, 1))
        self._batch, self.norms = batch, (RowNorms(self._merged),)
        self.nbytes = g.nbytes

    @property
    def squares(self) -> Tensor:
        """Sums over each example's merged rows."""
        squares = torch.zeros(self._batch, dtype=torch.float64, device=self._keys.device)
        owners = self._keys // self._shape[0]
        return add_rows(squares, owners, self.norms[0].values.square())

    def add_weighted(self, weights: Tensor, into: Tensor) -> None:
        """Every merged row, or rows that cancel would leave more rounding than their norm tells."""
        owners, tokens = self._keys // self._shape[0], self._keys % self._shape[0]
        add_rows(into, tokens, self._merged.to(into.dtype) * weights[owners, None])

    def form(self) -> Tensor:
        """Dense, shape (batch, tokens in all, width)."""
        batch, total = self._batch, self._shape[0]
        dense = self._merged.new_zeros(batch * total, self._shape[1])
        return dense.index_copy_(0, self._keys, self._merged).view(batch, *self._shape)


@final
class RowBlocks:
    """A parameter whose blocks of rows, which don't overlap, were used apart."""

    def __init__(
        self, pieces: Sequence[tuple[slice, ExampleGradients]], shape: Sequence[int]
    ) -> None:
        self._pieces, self._shape = pieces, shape
        self.pieces = [piece for _, piece in pieces]
        self.nbytes = sum(piece.nbytes for _, piece in pieces)

    @property
    def squares(self) -> Tensor:
        """The sum of the pieces'."""
        return torch.stack([piece.squares for _, piece in self._pieces]).sum(0)

    def add_weighted(self, weights: Tensor, into: Tensor) -> None:
        """Each piece adds to its rows."""
        for rows, piece in self._pieces:
            piece.add_weighted(weights, into[rows])

    def form(self) -> Tensor:
        """All pieces in their places; zero elsewhere."""
        first = self._pieces[0][1].form()
        dense = first.new_zeros(len(first), *self._shape)
        for rows, piece in self._pieces:
            # a convolution's may be formed as a matrix
            dense[:, rows] += piece.form().view_as(dense[:, rows])
        return dense


def settle_all(gradients: Iterable[ExampleGradients], assumed: Assumed | None = None) -> None:
    """Look at all that squared norms of `gradients` wait for, together, or assume that it is as it
    nearly always is: on a GPU, to look is to wait.
    """
    pieces = [piece for each in gradients for piece in getattr(each, "pieces", (each,))]
    settle((norms for each in pieces for norms in getattr(each, "norms", ())), assumed)
    _settle_grams((each for each in pieces if isinstance(each, GramNorms)), assumed)


def together(
    uses: Sequence[tuple[slice | None, ExampleGradients]], shape: Sequence[int]
) -> ExampleGradients:
    """All uses of one parameter: gradients of several uses are added up before any norm is
    taken.
    """
    if len(uses) == 1 and uses[0][0] is None:
        return uses[0][1]
    pieces = [(slice(0, shape[0]) if rows is None else rows, use) for rows, use in uses]
    covered = sorted((rows.start, rows.stop) for rows, _ in pieces)
    if all(before[1] <= after[0] for before, after in pairwise(covered)):
        return RowBlocks(pieces, shape)
    return Dense(RowBlocks(pieces, shape).form())


def sum_of_outer(g: Tensor, a: Tensor, shape: Sequence[int], kernels: Kernels) -> ExampleGradients:
    """The gradients sum_t g_t a_t^T of a weight, in the cheapest way for their shapes.

    Args:
        g: gradients of the outputs, shape (batch, positions, outputs).
        a: inputs, shape (batch, positions, inputs).
        shape: the parameter's, outputs x inputs numbers in all.
        kernels: for the matrix products.
    """
    positions, outputs, inputs = g.shape[1], g.shape[2], a.shape[2]
    if positions == 1:
        return OuterProduct(g[:, 0], a[:, 0], RowNorms(g[:, 0]), kernels)
    if not worth_forming(positions, outputs, inputs):

        def add_weighted(weights: Tensor, into: Tensor) -> None:
            scaled = kernels.scaled(g.to(into.dtype), weights)
            kernels.add_outer(
                scaled.flatten(0, 1), a.to(into.dtype).flatten(0, 1), into.view(outputs, inputs)
            )

        return GramNorms(g, a, shape, add_weighted)
    return Dense(kernels.each_outer(g, a).view(len(g), *shape))


def worth_forming(positions: int, outputs: int, inputs: int) -> bool:
    """Whether one product for each example is cheaper than Gram matrices and one more weight
    gradient.

    Where gradients are formed, that takes the place of the weight gradient; the costs cross at the
    given line (fitted to measurements). A gradient of more than 16 MiB is not formed: it would fill
    the memory.
    """
    return positions**2 > 18 * outputs * inputs / (outputs + inputs) and outputs * inputs <= 1 << 22


def padded(rows: Rows) -> bool:
    """Whether rows have lengths of their own, so that they are computed in groups."""
    return getattr(rows, "padded", False)


def shapes(rows: Rows) -> tuple[tuple[int, ...], ...]:
    """Of each tensor, the shape of a row."""
    return tuple(tuple(leaf.shape[1:]) for leaf in rows.like)
