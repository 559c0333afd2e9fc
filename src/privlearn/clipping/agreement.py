"""When two computations on made-up rows agree, and whether a loss is computed example by example."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from privlearn.clipping.capture import NotLayerwise
from privlearn.clipping.generators import drawn_by, foreign_state, generators_at
from privlearn.clipping.ways import Problem, layouts_of_draws
from privlearn.errors import NotPerExample

#: Relative difference up to which two results agree.
TOLERANCE = 2e-3


def require_uncoupled(
    problem: Problem, rows: Tensor, targets: Tensor, batches: Sequence[tuple[Tensor, Tensor]]
) -> tuple[bool, bool]:
    """Refuse a loss whose value for one example depends on other examples, or on earlier batches.

    Every computation starts from the same seeds, and from the state that the model and the loss had.

    Args:
        problem: what is differentiated.
        rows: made-up inputs.
        targets: made-up targets.
        batches: two more such batches, of different sizes.

    Returns:
        Whether the model or the loss writes into the rows that it is given, and whether it draws random numbers.

    Raises:
        NotPerExample: it does, or draws random numbers from elsewhere than PyTorch.
    """
    written, drawn, foreign = False, False, False

    def losses(x: Tensor, y: Tensor) -> Tensor:
        nonlocal written, drawn, foreign
        given = x.clone(), y.clone()
        with generators_at(0), problem.computing(torch.no_grad()):
            own, others = drawn_by(x.device), foreign_state()
            found = problem.forward(*given)
            drawn |= not all(map(torch.equal, drawn_by(x.device), own))
            foreign |= foreign_state() != others
        written |= any(t._version > 0 or not torch.equal(t, own) for t, own in zip(given, (x, y), strict=True))
        return found

    together = losses(rows, targets)
    _require_same(losses(rows, targets), together)
    if foreign:
        raise NotPerExample(
            "the model or the loss draws random numbers from numpy or random, which would differ with the other examples: "
            "draw them with torch"
        )
    starts = range(0, len(rows), problem.copies)
    if not drawn or not _agree_by_example(problem, rows, targets, batches):
        alone = torch.cat([_alone(losses, rows, targets, start, problem.copies, drawn) for start in starts])
        if not _agree(together, alone):
            raise NotPerExample(
                "the loss of one example changes with the other examples of the batch: give a loss without means, weights or "
                "normalisation over the batch"
            )
    losses(larger(rows), targets)
    _require_same(losses(rows, targets), together)
    return written, drawn


def _agree_by_example(
    problem: Problem, rows: Tensor, targets: Tensor, batches: Sequence[tuple[Tensor, Tensor]]
) -> bool:
    """Whether examples have the same losses by themselves and together, if each draws random numbers of its own."""
    examples, copies, random = len(rows) // problem.copies, problem.copies, problem.random
    random.active = True
    random.take(np.arange(examples, dtype=np.uint64))
    with torch.no_grad():
        try:
            drawn = layouts_of_draws(problem, batches)
            with problem.computing(random.together(drawn)):
                together = problem.forward(rows.clone(), targets.clone())
        except NotLayerwise:
            return False
        alone = []
        for number in range(examples):
            own = slice(number * copies, (number + 1) * copies)
            with problem.computing(random.alone(number)):
                alone.append(problem.forward(rows[own].clone(), targets[own].clone()))
    return _agree(together, torch.cat(alone))


def _agree(together: Tensor, alone: Tensor) -> bool:
    usable = alone.isfinite()
    return close(together[usable], alone[usable], rounding_of(alone[usable]))


def _alone(
    losses: Callable[[Tensor, Tensor], Tensor], rows: Tensor, targets: Tensor, start: int, copies: int, drawn: bool
) -> Tensor:
    """The loss of the example whose rows begin at `start`, by itself.

    If random numbers are drawn, they depend on the size of the batch: then beside others than before.
    """
    own = slice(start, start + copies)
    if not drawn:
        return losses(rows[own], targets[own])
    x, y = rows.roll(copies, 0), targets.roll(copies, 0)
    x[own], y[own] = rows[own], targets[own]
    return losses(x, y)[start // copies :][:1]


def _require_same(again: Tensor, losses: Tensor) -> None:
    """Refuse losses that differ from those of the same rows before; on a GPU sums may be taken in another order."""
    rounding = 0.0 if losses.device.type == "cpu" else 1e3 * torch.finfo(losses.dtype).eps
    if not torch.allclose(again, losses, rtol=rounding, atol=0.0, equal_nan=True):
        raise NotPerExample(
            "the loss of the same rows differs from one call to the next, with the same seeds: the model or the loss keeps "
            "something of earlier batches. Keep it in buffers (register_buffer), which are put back after each batch, or "
            "leave it out"
        )


def larger(rows: Tensor) -> Tensor:
    """Rows with other numbers, where they are no indices: what keeps a maximum, say, comes to another."""
    return 2 * rows if rows.is_floating_point() else rows


def rounding_of(values: Tensor) -> float:
    """A difference that tells nothing about values of this size."""
    return math.sqrt(torch.finfo(values.dtype).eps) * float(values.abs().max()) if values.numel() else 0.0


def close(one: Tensor, other: Tensor, rounding: float) -> bool:
    """Whether two results agree, apart from `rounding`."""
    return torch.allclose(one.double(), other.double(), rtol=TOLERANCE, atol=rounding)
