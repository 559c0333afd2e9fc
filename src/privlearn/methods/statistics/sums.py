"""Sums of products of rows and bounded targets, and of what a classifier says of rows, with their
sensitivities.
"""

from __future__ import annotations

import copy
import math
from typing import Any, final

import torch
from torch import Tensor, nn

from privlearn._checks import positive
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping.bounded import Bounded, Contributions, in_steps, kept
from privlearn.core.clipping.evaluation import RightAnswers
from privlearn.core.clipping.parameters.frozen import FrozenState
from privlearn.core.clipping.row_sums import Prepare, isometric, labelled_blocks, rows_in_a_block
from privlearn.core.sampling import Sample


def ridge_sums(
    x: Any,
    y: Any,
    sample: Sample,
    adjacency: Adjacency,
    *,
    norm: float,
    constant: float,
    prepare: Prepare | None = None,
    weights: Any = None,
) -> tuple[Bounded, Bounded]:
    """X'y and X'X over the rows of the sample, for targets clipped to [-1, 1]; sensitivities
    computed here.

    Rows are clipped to `norm` and followed by a constant, as for `least_squares_sums`: each is at
    most r = sqrt(norm^2 + c^2) long, and adds at most r and r^2. Exchanging one for another moves
    the first by 2 r (the same row, opposite targets) and the second by sqrt(2) r^2. Where a row or
    its target is not finite it adds nothing.

    Args:
        x: as for `class_statistics`.
        y: a number for each row, an array or a tensor of shape (rows,).
        sample: as for `class_statistics`.
        adjacency: as for `class_statistics`.
        norm: the bound on each row's L2 norm; public.
        constant: what follows each row; public.
        prepare: as for `class_statistics`.
        weights: what each row's products are multiplied by, after it was clipped, in [0, 1] or else
            counted as 0 or 1: so a weight only brings a row nearer to none. Shape (rows,); None: 1
            each.

    Returns:
        In double precision: X'y (features + 1, 1), and the vector of X'X, of which `symmetric`
        makes the matrix.
    """
    length = math.hypot(positive("norm", norm), positive("constant", constant))
    linear, square = (Contributions(length**power, "ridge_sums") for power in (1, 2))
    products, gram = torch.zeros((), device="cpu"), torch.zeros((), device="cpu")
    limit, follows = (kept(number, [torch.float64]) for number in (norm, constant))
    targets = torch.as_tensor(y, device="cpu").double()
    # as the classes of which labelled_blocks has one
    present = torch.where(targets.isfinite(), 0, -1)
    for number, (rows, member) in enumerate(labelled_blocks(x, present, sample, 1, None, prepare)):
        first = number * rows_in_a_block(x)
        block_targets = (
            targets[torch.from_numpy(sample.indices[first : first + len(rows)])]
            .nan_to_num(0.0)
            .clamp(-1, 1)
        )
        rows.mul_(limit / torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp_(min=limit))
        longer = torch.cat([rows, follows * member], 1)
        if weights is not None:
            weight = torch.as_tensor(weights, device="cpu").double()[
                torch.from_numpy(sample.indices[first : first + len(rows)])
            ]
            member = member * weight.nan_to_num(0.0).clamp(0, 1)[:, None]
        lengths = torch.linalg.vector_norm(longer, dim=1)
        linear.see(lengths * (block_targets * member[:, 0]).abs())
        square.see(lengths.square() * member[:, 0])
        products, gram = (
            products + longer.T @ (block_targets[:, None] * member),
            gram + longer.T @ (longer * member),
        )
    replaced = adjacency is Adjacency.REPLACE_ONE
    return (
        Bounded(
            (products.contiguous(),), adjacency.sum_sensitivity(length), adjacency, sample, linear
        ),
        Bounded(
            (isometric(gram),),
            length**2 * (math.sqrt(2) if replaced else 1.0),
            adjacency,
            sample,
            square,
        ),
    )


@final
class Probabilities(RightAnswers):
    """As `RightAnswers`, but the probabilities of the classes, each row by itself; of a row without
    an answer, zeros.

    Args:
        model: gives a score for each class.
        classes: how many.
    """

    def __init__(self, model: nn.Module, classes: int) -> None:
        twin = copy.deepcopy(model).cpu().requires_grad_(False)
        # One by one: in a batch the rounding of a row's scores could follow from how many others
        # there are.
        super().__init__(twin, at_once=1, computed=FrozenState(twin).restore)
        self.answer = torch.zeros(classes, dtype=torch.float64, device="cpu")

    def _answered(self, scored: Tensor, labels: Tensor) -> Tensor:
        if scored.shape[1] != len(self.answer):
            raise ValueError(f"scores of {scored.shape[1]} classes")
        return scored.double().softmax(1)


@final
class PredictedValues(RightAnswers):
    """As `RightAnswers`, but (1, the model's one output) for each row by itself; of a row without
    an answer (0, 0).

    Args:
        model: gives one number for each row.
    """

    answer = torch.zeros(2, dtype=torch.float64, device="cpu")

    def __init__(self, model: nn.Module) -> None:
        twin = copy.deepcopy(model).cpu().requires_grad_(False)
        super().__init__(twin, at_once=1, computed=FrozenState(twin).restore)

    def _answered(self, scored: Tensor, labels: Tensor) -> Tensor:
        if scored.shape[1] != 1:
            raise ValueError(f"{scored.shape[1]} numbers for a row")
        return torch.cat([torch.ones_like(scored), scored], 1).double()


def error_sums(
    answers: Tensor,
    y: Tensor,
    sample: Sample,
    adjacency: Adjacency,
    *,
    bounds: tuple[float, float],
    most_error: float,
) -> Bounded:
    """What metrics of a model of numbers are computed from, over the rows of the sample;
    sensitivity computed here.

    A row adds |e| and e^2 in [0, 1], and t in [-1, 1] with t^2: a vector of norm 2 at most, for
    add/remove neighbours of norm sqrt(5), with the 1 that it counts. Another row in its place moves
    the first two by 1 each, and the others together by 2, as (t - t')^2 (1 + (t + t')^2) <= 4: by
    sqrt(6). A row without an answer, or whose target is not finite, is wrong: it adds (1, 1, 0, 0),
    and nothing for add/remove neighbours, where it is absent. That is a vector of norm sqrt(2), and
    as another row would be: from any other it differs by (1 - |e|, 1 - e^2, -t, -t^2), of norm 2 at
    most.

    Args:
        answers: of `PredictedValues`, shape (rows, 2).
        y: the targets, shape (rows,).
        sample: the rows that take part.
        adjacency: the kind of neighbour.
        bounds: (low, high), which targets and predictions are clipped to; public.
        most_error: what errors are clipped to, as a share of their distance; public.

    Returns:
        In double precision, one tensor: the sums of |e|, e^2, t and t^2; for add/remove neighbours
        the number of rows.
    """
    indices = torch.from_numpy(sample.indices)
    (there, predicted), targets = answers[indices].T, y[indices].double()
    usable = (there > 0) & targets.isfinite()
    low, half = bounds[0], (bounds[1] - bounds[0]) / 2
    counted = adjacency is Adjacency.ADD_REMOVE  # else the number of rows is public
    wrong = torch.zeros(0 if counted else int((~usable).sum()), dtype=torch.float64, device="cpu")
    predicted, targets = (
        ((values[usable] - low) / half - 1).clamp(-1, 1) for values in (predicted, targets)
    )
    errors = torch.cat([((predicted - targets).abs() / (2 * most_error)).clamp(0, 1), wrong + 1])
    targets = torch.cat([targets, wrong])
    parts = [errors, errors**2, targets, targets**2]
    rows = in_steps(torch.stack([*parts, *[torch.ones_like(errors)] * counted], 1))
    added = Contributions.of(
        torch.linalg.vector_norm(rows, dim=1), math.sqrt(4.0 + counted), "error_sums"
    )
    moved = {Adjacency.ADD_REMOVE: 5.0, Adjacency.ZERO_OUT: 4.0, Adjacency.REPLACE_ONE: 6.0}[
        adjacency
    ]
    return Bounded((rows.sum(0),), math.sqrt(moved), adjacency, sample, added)


def metric_sums(
    probabilities: Tensor,
    y: Tensor,
    sample: Sample,
    adjacency: Adjacency,
    *,
    bins: int,
    most_loss: float,
) -> Bounded:
    """What metrics of a classifier are computed from, over the rows of the sample; sensitivity
    computed here.

    A row adds 1 to one cell of each table, and a number in [0, 1] to the sum: a vector of norm
    sqrt(3) at most. Another row in its place moves each table by sqrt(2) and the sum by 1, together
    sqrt(5). A row without an answer, or of no class, is wrong: it adds 1 to the sum, and nothing
    for add/remove neighbours, where it is absent. From any other row it differs by 1 in a cell of
    each table, and by at most 1 in the sum: by sqrt(3) at most.

    Args:
        probabilities: shape (rows, classes); zeros where a row has no answer.
        y: the classes of the rows, shape (rows,).
        sample: the rows that take part.
        adjacency: the kind of neighbour.
        bins: of equal width, of scores.
        most_loss: what log losses are clipped to; public.

    Returns:
        In double precision: the confusion matrix (class, predicted class); the rows by score, shape
        (2, bins): of two classes those of each class by the second one's probability, of more those
        that were predicted wrong and right by the largest probability; and the sum of log losses
        over `most_loss`.
    """
    indices = torch.from_numpy(sample.indices)
    answers, labels, classes = probabilities[indices], y[indices].long(), probabilities.shape[1]
    usable = (answers.sum(1) > 0) & (labels >= 0) & (labels < classes)
    answers, labels = answers[usable], labels[usable]
    predicted = answers.argmax(1)
    matrix = (
        torch.bincount(labels * classes + predicted, minlength=classes**2)
        .double()
        .view(classes, classes)
    )
    score, side = (
        (answers[:, 1], labels) if classes == 2 else (answers.amax(1), (predicted == labels).long())
    )
    cells = side * bins + (score * bins).long().clamp(0, bins - 1)
    histogram = torch.bincount(cells, minlength=2 * bins).double().view(2, bins)
    losses = -answers.gather(1, labels[:, None])[:, 0].log() / positive("most_loss", most_loss)
    wrong = torch.ones(
        0 if adjacency is Adjacency.ADD_REMOVE else int((~usable).sum()),
        dtype=torch.float64,
        device="cpu",
    )
    losses = in_steps(losses.clamp(0, 1))
    added = Contributions.of(
        torch.cat([(2 + losses.square()).sqrt(), wrong]), math.sqrt(3), "metric_sums"
    )
    total = in_steps(torch.cat([losses, wrong])).sum().view(1)
    replaced = adjacency is Adjacency.REPLACE_ONE
    return Bounded(
        (matrix, histogram, total), math.sqrt(5.0 if replaced else 3.0), adjacency, sample, added
    )


def cell_counts(
    cells: list[Any], sizes: list[int], sample: Sample, adjacency: Adjacency
) -> Bounded:
    """How many rows of the sample are in each cell, for several columns; sensitivity computed here.

    A row adds 1 to at most one cell of each of k columns: a vector of norm sqrt(k) at most. Another
    row in its place moves two cells of each: sqrt(2 k).

    Args:
        cells: for each column an array of the rows' cells, shape (rows,); below 0: the row is in
            none.
        sizes: how many cells each column has.
        sample: the rows that take part.
        adjacency: the kind of neighbour.

    Returns:
        For each column a tensor of shape (size,), in double precision.
    """
    counts, cells_of = [], torch.zeros(len(sample), dtype=torch.float64, device="cpu")
    for column_cells, size in zip(cells, sizes, strict=True):
        there = torch.from_numpy(column_cells[sample.indices])
        counted = (there >= 0) & (there < size)
        cells_of += counted
        counts.append(torch.bincount(there[counted], minlength=size).double())
    moved = len(counts) * (2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0)
    added = Contributions.of(cells_of.sqrt(), math.sqrt(len(counts)), "cell_counts")
    return Bounded(tuple(counts), math.sqrt(moved), adjacency, sample, added)
