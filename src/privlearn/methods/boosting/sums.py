"""Histograms of gradients and curvatures over the cells of one block, and their sensitivity.

A row adds the vector (g, w h) to its cell, of its gradients g and its curvatures h with the public
weight w, clipped to norm C; to other cells it adds nothing. So with a row more the histogram moves
by at most C, and with another one in its place by at most 2 C. Sums are in units of C.

For logistic loss w = 2 costs nothing. With probabilities p, |e_y - p|^2 = 2 p_y + sum p (1 - p)
below its limit 2, and 4 sum p^2 (1 - p)^2 <= sum p (1 - p): gradients and twice the curvatures
together are no longer than gradients can be alone. For two classes and one score, (1 - p)^2 + 4 p^2
(1 - p)^2 <= 1.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from privlearn._checks import positive
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping.bounded import Bounded, Contributions, in_steps, kept
from privlearn.core.sampling import Sample

#: What curvatures are multiplied by.
CURVATURE_WEIGHT = 2.0

Array = NDArray[np.float64]


def gradient_histogram(
    cells: NDArray[np.int64],
    gradients: Array,
    curvatures: Array,
    sample: Sample,
    adjacency: Adjacency,
    *,
    size: int,
    norm: float,
    weights: Array | None = None,
) -> Bounded:
    """The sums of clipped gradients and curvatures in each cell; sensitivity computed here.

    A row whose derivatives are not all finite adds nothing, like one that is not there.

    Args:
        cells: of each row, 0 .. size - 1, shape (rows,); from public splits.
        gradients: shape (rows, outputs).
        curvatures: shape (rows, outputs).
        sample: the rows that take part.
        adjacency: the kind of neighbour.
        size: how many cells there are.
        norm: what a row's derivatives are clipped to, jointly.
        weights: what clipped derivatives are multiplied by, shape (rows,); beyond [0, 1] they count
            as 0 or 1. None: 1 each.

    Returns:
        Two tensors of shape (outputs, size), in double precision and in units of `norm`: the
        gradients' sums, and `CURVATURE_WEIGHT` times the curvatures'.
    """
    positive("norm", norm)
    indices = sample.indices
    rows = torch.from_numpy(
        np.concatenate([gradients[indices], CURVATURE_WEIGHT * curvatures[indices]], 1) / norm
    )
    lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    usable = lengths.isfinite()
    limit = kept(1.0, [rows.dtype])
    rows = rows.where(usable, 0.0) * (limit / lengths.where(usable, 1.0).clamp(min=limit))
    if weights is not None:
        rows = rows * torch.from_numpy(weights[indices]).nan_to_num(0.0).clamp(0, 1)[:, None]
    added = Contributions.of(torch.linalg.vector_norm(rows, dim=1), 1.0, "gradient_histogram")
    sums = torch.zeros(rows.shape[1], size, dtype=torch.float64, device="cpu")
    # in steps: exact, in whatever order
    sums.index_add_(1, torch.from_numpy(cells[indices]), in_steps(rows).T)
    outputs = gradients.shape[1]
    values = (sums[:outputs].clone(), sums[outputs:].clone())
    return Bounded(values, adjacency.sum_sensitivity(1.0), adjacency, sample, added)
