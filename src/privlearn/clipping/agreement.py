"""When two computations on made-up rows agree, and whether a loss is computed example by example."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from privlearn.clipping.ways import Problem
from privlearn.errors import NotPerExample

#: Relative difference up to which two results agree.
TOLERANCE = 2e-3


def require_uncoupled(problem: Problem, rows: Tensor, targets: Tensor) -> bool:
    """Refuse a loss whose value for one example depends on the others: it is not the one that would be trained.

    Returns:
        Whether the model or the loss writes into the rows that it is given.
    """
    copies = problem.copies
    singles = [slice(start, start + copies) for start in range(0, len(rows), copies)]
    with torch.no_grad():
        alone = torch.cat([problem.forward(rows[own].clone(), targets[own].clone()) for own in singles])
        given = [(rows.clone(), targets.clone()) for _ in range(2)]
        together = [problem.forward(*pair) for pair in given]
    usable = alone.isfinite()
    draws = not torch.equal(together[0][usable], together[1][usable])  # its own random numbers: nothing to compare
    if not draws and not close(together[0][usable], alone[usable], rounding_of(alone[usable])):
        raise NotPerExample(
            "the loss of one example changes with the other examples of the batch: give a loss without means, weights or "
            "normalisation over the batch"
        )
    written = [not torch.equal(t, own) for pair in given for t, own in zip(pair, (rows, targets), strict=True)]
    return any(written) or any(t._version > 0 for pair in given for t in pair)


def rounding_of(values: Tensor) -> float:
    """A difference that tells nothing about values of this size."""
    return math.sqrt(torch.finfo(values.dtype).eps) * float(values.abs().max()) if values.numel() else 0.0


def close(one: Tensor, other: Tensor, rounding: float) -> bool:
    """Whether two results agree, apart from `rounding`."""
    return torch.allclose(one.double(), other.double(), rtol=TOLERANCE, atol=rounding)
