"""`DerivativeSums`: sums of clipped per-example derivative matrices that are outer products, and their sensitivities.

A layer's first derivatives for one example are d z^T, its second ones the stack of c_h z z^T over units h. So their
norms are products of norms, |d| |z| and |c| |z|^2, and their clipped sums are matrix products: nothing of shape
(examples, outputs, inputs) is ever built.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from privlearn.accounting.adjacency import Adjacency
from privlearn.clipping.bounded import Bounded
from privlearn.clipping.examples import row_norms
from privlearn.clipping.rounding import kept
from privlearn.errors import BadInput
from privlearn.sampling import Sample


@final
@dataclass(frozen=True)
class Products:
    """A layer's derivatives for some examples, as factors.

    Attributes:
        inputs: z, shape (examples, inputs), a column of ones for the bias included.
        first: d, shape (examples, outputs): the first derivatives of example n are d_n z_n^T.
        second: c, shape (examples, outputs): those of second order, halved, are c_nh z_n z_n^T for unit h. None: not wanted.
    """

    inputs: Tensor
    first: Tensor
    second: Tensor | None = None

    def norms(self) -> list[Tensor]:
        """Frobenius norms of each example's matrices, first and halved second order, each of shape (examples,)."""
        z = row_norms(self.inputs)
        return [z * row_norms(self.first)] + ([] if self.second is None else [z * z * row_norms(self.second)])


@final
class DerivativeSums:
    """Adds up clipped derivatives, layer by layer, a few examples at a time.

    Guarantee: one example changes a layer's sum of first derivatives by at most its limit in Frobenius norm, and likewise that
    of second ones, whatever the example holds; an example with a layer that is not finite adds nothing to that layer.
    Limits leave room for the rounding of norms and sums (`rounding` says how much, and what is proven); sums are in double
    precision.

    Args:
        shapes: (outputs, inputs) of each layer, the bias's column included.
        limits: for each layer the largest norm of first derivatives, and, if they are wanted, of halved second ones.
        like: a tensor of the type and on the device that derivatives have.
        adjacency: the kind of neighbour.

    Raises:
        BadInput: limits that are no positive numbers, or not one list for each layer.
    """

    def __init__(
        self,
        shapes: Sequence[tuple[int, int]],
        limits: Sequence[Sequence[float]],
        like: Tensor,
        adjacency: Adjacency,
    ) -> None:
        if len(shapes) != len(limits) or not all(0 < limit < 1e30 for layer in limits for limit in layer):
            raise BadInput(f"limits are {limits}: expected positive numbers for each of {len(shapes)} layers")
        self._limits = [tuple(layer) for layer in limits]
        self._adjacency, self._dtype = adjacency, like.dtype
        like = like.double()
        self._sums = [
            [like.new_zeros(outputs, *[inputs] * order) for order, _ in enumerate(layer, start=1)]
            for (outputs, inputs), layer in zip(shapes, self._limits, strict=True)
        ]

    @torch.no_grad()
    def add(self, products: Sequence[Products]) -> Tensor:
        """Add some examples' derivatives, one `Products` for each layer; at most `rounding.BLOCK` at once.

        Returns:
            Which layers' first derivatives were clipped, shape (layers, examples): private.
        """
        clipped = []
        for sums, limits, found in zip(self._sums, self._limits, products, strict=True):
            norms = found.norms()
            z = _units(found.inputs, norms[0])
            for total, norm, limit, factor in zip(sums, norms, limits, (found.first, found.second), strict=False):
                assert factor is not None
                each = _units(factor, norm) * self._lengths(norm, limit).to(factor.dtype)[:, None]
                if total.dim() == 2:
                    total.add_(each.T @ z)
                else:
                    for unit in range(len(total)):
                        total[unit].add_((z * each[:, unit, None]).T @ z)
            clipped.append(norms[0] > limits[0])
        return torch.stack(clipped)

    def bounded(self, sample: Sample) -> list[Bounded]:
        """The sums as bounded values of `sample`, from whose examples they were: for each layer first, then second order."""
        return [
            Bounded((total,), self._adjacency.sum_sensitivity(limit), self._adjacency, sample)
            for sums, limits in zip(self._sums, self._limits, strict=True)
            for total, limit in zip(sums, limits, strict=True)
        ]

    def _lengths(self, norms: Tensor, limit: float) -> Tensor:
        """The lengths to which matrices of these norms are clipped; 0 where they are not finite."""
        lengths = norms.clamp(max=kept(limit, [self._dtype]))
        return torch.where(norms.isfinite(), lengths, 0.0)


def _units(rows: Tensor, norms: Tensor) -> Tensor:
    """Rows brought to length 1; 0 where they have none, or where `norms` (of what they are a factor of) are not finite."""
    lengths = row_norms(rows)
    usable = norms.isfinite() & lengths.isfinite() & (lengths > 0)
    scaled = rows / lengths.where(usable, 1.0).to(rows.dtype)[:, None]
    return scaled.where(usable[:, None], 0.0)


def histogram(norms: Sequence[Tensor], edges: Sequence[float], sample: Sample, adjacency: Adjacency) -> list[Bounded]:
    """How many examples have norms in each bin, for each of several kinds of norm; sensitivity computed here.

    An example counts in one bin of each histogram; one whose norm is not finite, in none. So it adds a vector of length
    1 to each, and replacing it by another moves at most two numbers by 1.

    Args:
        norms: for each histogram the norms, shape (examples,).
        edges: the ends between bins, rising.
        sample: the batch that they are of.
        adjacency: the kind of neighbour.

    Returns:
        For each histogram its counts, shape (bins,), in double precision.
    """
    moved = 2**0.5 if adjacency is Adjacency.REPLACE_ONE else 1.0
    ends = torch.tensor(edges, dtype=torch.float64)
    parts = []
    for found in norms:
        finite = found[found.isfinite()].double().cpu()
        counts = torch.bincount(torch.bucketize(finite, ends), minlength=len(edges) + 1).double()
        parts.append(Bounded((counts,), moved, adjacency, sample))
    return parts
