"""Bounded statistics of plain rows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from privlearn._validate import positive
from privlearn.accounting.adjacency import Adjacency
from privlearn.clipping.bounded import Bounded
from privlearn.clipping.rounding import BLOCK, kept

if TYPE_CHECKING:
    from torch import Tensor

    from privlearn.sampling import Sample

#: Numbers in rows that are taken at once.
_AT_ONCE = 1 << 20


def clip_rows(x: Tensor, norm: float) -> Tensor:
    """Scale every row of `x` (rows, features) down to L2 norm at most `norm`; rows that are not finite become 0."""
    lengths = x.norm(dim=1, keepdim=True)
    usable = lengths.isfinite()
    clipped: Tensor = x.where(usable, 0) * (norm / lengths.where(usable, 1).clamp(min=norm))
    return clipped


def second_moment(
    x: Tensor, norm: float, sample: Sample, adjacency: Adjacency, examples: Tensor | None = None
) -> Bounded:
    """The sum over the examples of the sample of x x^T, each row x clipped to `norm`; sensitivity computed here.

    The matrix is given as the vector of its upper triangle with the off-diagonal entries times sqrt(2), in which
    Euclidean length is the matrix's Frobenius norm. One row has length |x|^2 <= norm^2 there, and two rows differ by
    at most sqrt(2) norm^2. An example of several rows adds the mean of their matrices, for which the same holds.

    Args:
        x: all rows, shape (rows, features).
        norm: the bound on each row's L2 norm; public.
        sample: the batch; its indices select the examples.
        adjacency: the kind of neighbour.
        examples: the rows of each example, shape (examples, rows of each); None where each is one row.

    Returns:
        One tensor of shape (features (features + 1) / 2,), in double precision.
    """
    positive("norm", norm)
    import torch

    features, copies = x.shape[1], 1 if examples is None else examples.shape[1]
    gram = torch.zeros(features, features, dtype=torch.float64, device=x.device)
    limit = kept(norm, [gram.dtype])
    step = min(max(1, _AT_ONCE // (features * copies)), BLOCK)
    for start in range(0, len(sample), step):
        own = sample.indices[start : start + step]
        rows = clip_rows(x[own if examples is None else examples[own].flatten()].double(), limit) / math.sqrt(copies)
        gram.addmm_(rows.T, rows)
    factor = math.sqrt(2) if adjacency is Adjacency.REPLACE_ONE else 1.0
    return Bounded((isometric(gram),), factor * norm**2, adjacency, sample)


def isometric(gram: Tensor) -> Tensor:
    """A symmetric matrix as the vector of its upper triangle, off-diagonal entries times sqrt(2): as long as the matrix."""
    upper = gram.triu(1) * math.sqrt(2) + gram.diag().diag()
    i, j = _upper_triangle(len(gram))
    return upper[i, j]


def symmetric(vector: Tensor, features: int) -> Tensor:
    """Undo `isometric`: the symmetric (features, features) matrix."""
    upper = vector.new_zeros(features, features)
    i, j = _upper_triangle(features)
    upper[i, j] = vector
    return (upper.triu(1) + upper.triu(1).T) / math.sqrt(2) + upper.diag().diag()


def _upper_triangle(features: int) -> tuple[Tensor, Tensor]:
    import torch

    i, j = torch.triu_indices(features, features)
    return i, j
