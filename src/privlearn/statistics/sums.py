"""Sums of products of rows and bounded targets, with their sensitivities."""

from __future__ import annotations

import math
from typing import Any

import torch

from privlearn._checks import positive
from privlearn.accounting.guarantee import Adjacency
from privlearn.clipping.bounded import Bounded, kept
from privlearn.clipping.row_sums import Prepare, isometric, labelled_blocks, rows_in_a_block
from privlearn.sampling import Sample


def ridge_sums(
    x: Any,
    y: Any,
    sample: Sample,
    adjacency: Adjacency,
    *,
    norm: float,
    constant: float,
    prepare: Prepare | None = None,
) -> tuple[Bounded, Bounded]:
    """X'y and X'X over the rows of the sample, for targets clipped to [-1, 1]; sensitivities computed here.

    Rows are clipped to `norm` and followed by a constant, as for `least_squares_sums`: each is at most
    r = sqrt(norm^2 + c^2) long, and adds at most r and r^2. Exchanging one for another moves the first by 2 r (the same
    row, opposite targets) and the second by sqrt(2) r^2. Where a row or its target is not finite it adds nothing.

    Args:
        x: as for `class_statistics`.
        y: a number for each row, an array or a tensor of shape (rows,).
        sample: as for `class_statistics`.
        adjacency: as for `class_statistics`.
        norm: the bound on each row's L2 norm; public.
        constant: what follows each row; public.
        prepare: as for `class_statistics`.

    Returns:
        In double precision: X'y (features + 1, 1), and the vector of X'X, of which `symmetric` makes the matrix.
    """
    length = math.hypot(positive("norm", norm), positive("constant", constant))
    products, gram = torch.zeros(()), torch.zeros(())
    limit, follows = (kept(number, [torch.float64]) for number in (norm, constant))
    targets = torch.as_tensor(y).double()
    present = torch.where(targets.isfinite(), 0, -1)  # as the classes of which labelled_blocks has one
    for number, (rows, member) in enumerate(labelled_blocks(x, present, sample, 1, None, prepare)):
        first = number * rows_in_a_block(x)
        own = targets[torch.from_numpy(sample.indices[first : first + len(rows)])].nan_to_num(0.0).clamp(-1, 1)
        rows.mul_(limit / torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp_(min=limit))
        longer = torch.cat([rows, follows * member], 1)
        products, gram = products + longer.T @ (own[:, None] * member), gram + longer.T @ longer
    replaced = adjacency is Adjacency.REPLACE_ONE
    return (
        Bounded((products.contiguous(),), adjacency.sum_sensitivity(length), adjacency, sample),
        Bounded((isometric(gram),), length**2 * (math.sqrt(2) if replaced else 1.0), adjacency, sample),
    )
