"""Randomised response: labels that are mostly true, each by itself (Warner 1965; Kairouz et al. 2016)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from privlearn.accounting.adjacency import Adjacency
from privlearn.accounting.events import RandomisedResponse
from privlearn.accounting.ledger import Account
from privlearn.rng import NoiseStream


def truth(epsilon: float, categories: int) -> float:
    """The probability that a label is reported as it is; each other one has e^-epsilon times that."""
    return 1 / (1 + (categories - 1) * math.exp(-epsilon))


def randomised(
    labels: Tensor,
    present: Tensor,
    *,
    epsilon: float,
    categories: int,
    adjacency: Adjacency,
    ledger: Account,
    stream: NoiseStream,
) -> Tensor:
    """Report a label for each row.

    Guarantee: `RandomisedResponse(epsilon, categories)`, for neighbours with as many rows; charged first. An empty row reports
    any label with the same probability, which is within e^epsilon of every other law. Probabilities are steps of 2^-53.

    Args:
        labels: whole numbers 0 .. categories - 1, shape (rows,).
        present: whether there is somebody in the row, shape (rows,).
        epsilon: log of the largest ratio of probabilities.
        categories: how many labels there are.
        adjacency: the kind of neighbour.
        ledger: what is charged.
        stream: the run's noise stream.

    Raises:
        BudgetExceeded, AdjacencyMismatch, UnsupportedEvent: by the ledger.
    """
    ledger.charge(RandomisedResponse(epsilon, categories), adjacency)
    speaks_true, which = _uniform(2 * len(labels), stream).view(2, -1)
    others = 1 + (which * (categories - 1)).long()
    reported = (labels + others.where(speaks_true >= truth(epsilon, categories), 0)) % categories
    found: Tensor = reported.where(present, (which * categories).long())
    return found


def _uniform(count: int, stream: NoiseStream) -> Tensor:
    """`count` draws of the uniform law on [0, 1), multiples of 2^-53; float64."""
    return (torch.from_numpy(stream.words(count)) >> 11).double().mul_(2.0**-53).add_(0.5)
