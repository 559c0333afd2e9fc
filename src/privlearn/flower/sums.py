"""Sums of clients' updates, with the most that one client can change them."""

from __future__ import annotations

import torch
from torch import Tensor

from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping.bounded import Bounded, Contributions
from privlearn.core.sampling import Sample


def bound_sum(
    total: Tensor, nodes: int, bound: float, adjacency: Adjacency, sample: Sample
) -> Bounded:
    """A sum over clients with its sensitivity, which follows from the clip.

    Clients are clipped where they are, to a grid on which sums are exact. What is seen of it here
    is the length of the sum over how many clients are in it, which is the bound at most.

    Args:
        total: the sum, in multiples of the grid's step.
        nodes: how many clients are in it: private.
        bound: the largest norm of what a client adds.
        adjacency: the kind of neighbour.
        sample: the clients that were drawn.

    Raises:
        UnsoundExtension: the sum is longer than clipped updates can make it.
    """
    along = torch.linalg.vector_norm(total) / max(nodes, 1)
    seen = Contributions.of(along, bound, "a client of a federation")
    return Bounded((total,), adjacency.sum_sensitivity(bound), adjacency, sample, seen)
