"""Class statistics of bounded rows, in one pass over blocks: counts, sums and second moments, and
their sensitivities.

Of one row x of class c, clipped to L2 norm R, the counts get the unit vector of c, the class sums x
in row c, and the pooled second moments x^2, number by number. So one row adds at most 1, R and R^2
(|x^2|_2 <= |x|_2^2). Exchanging it for another moves the counts by at most sqrt(2) (two classes),
the sums by 2R (one class, opposite rows) and the moments by sqrt(2) R^2 (two vectors without
negative numbers). Second moments of each class by itself get x^2 in row c: a row adds at most R^2
to them, too, and another in its place moves them by at most sqrt(2) R^2, in one row of them or two.

Bounded statistics of plain rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from privlearn._checks import one_of, positive
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping.bounded import BLOCK, Bounded, Contributions, kept
from privlearn.core.clipping.evaluation import CandidateScores
from privlearn.core.sampling import Sample

#: What may be asked for, in the order in which it is handed out.
PARTS = ("counts", "sums", "moments")
#: Numbers in a block of rows.
_AT_ONCE = 1 << 18
#: What is left of a norm so that rounding a row to single precision can't take it beyond.
_ROOM = 1 - 2.0**-20

#: A public transform of a few rows, such as scaling by declared bounds.
Prepare = Callable[[Tensor], Tensor]


def class_statistics(
    x: Any,
    y: Any,
    sample: Sample,
    adjacency: Adjacency,
    *,
    classes: int,
    norm: float,
    parts: Sequence[str] = PARTS,
    columns: Tensor | None = None,
    prepare: Prepare | None = None,
    by_class: bool = False,
) -> tuple[Bounded, ...]:
    """Statistics over the rows of the sample, each row clipped to `norm`; sensitivities computed
    here.

    A row that is not finite, or of no declared class, adds nothing, like one that is not there: it
    may be the empty one of zero-out neighbours. Memory beside the results is that of a block.

    Args:
        x: all rows, an array or a tensor of shape (rows, ...).
        y: their classes, whole numbers 0 .. classes - 1, shape (rows,).
        sample: the batch; its indices select the rows.
        adjacency: the kind of neighbour.
        classes: the declared number of classes.
        norm: the bound on each row's L2 norm (in `columns`, if given); public.
        parts: which of `PARTS` are wanted.
        columns: the features that are looked at; by default all. Public or released.
        prepare: what is done to rows first, each by itself.
        by_class: whether second moments are of each class by itself.

    Returns:
        In the order of `PARTS`, those asked for, in double precision: counts (classes,), sums
        (classes, features) and second moments of all classes together (features,), or of each
        (classes, features).
    """
    positive("norm", norm)
    wanted = [part for part in PARTS if part in {one_of("a part", name, PARTS) for name in parts}]
    totals: dict[str, Tensor] = {}
    limit = kept(norm, [torch.float64])
    bounds = {"counts": 1.0, "sums": norm, "moments": norm**2}
    added = {part: Contributions(bounds[part], "class_statistics") for part in wanted}
    for rows, member in labelled_blocks(x, y, sample, classes, columns, prepare):
        lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        rows.mul_(limit / lengths.clamp_(min=limit))
        for part in wanted:
            if part == "counts":
                added[part].see(member.sum(1))
                part_sum = member.sum(0)
            elif part == "sums":
                added[part].see(torch.linalg.vector_norm(rows, dim=1))
                part_sum = member.T @ rows
            else:
                squares = rows.square_()  # last of all: the rows are used up
                added[part].see(torch.linalg.vector_norm(squares, dim=1))
                part_sum = member.T @ squares if by_class else squares.sum(0)
            totals[part] = part_sum if part not in totals else totals[part].add_(part_sum)
    replaced = adjacency is Adjacency.REPLACE_ONE
    sensitivities = {
        "counts": math.sqrt(2) if replaced else 1.0,
        "sums": adjacency.sum_sensitivity(norm),
        "moments": norm**2 * (math.sqrt(2) if replaced else 1.0),
    }
    return tuple(
        Bounded((totals[part],), sensitivities[part], adjacency, sample, added[part])
        for part in wanted
    )


def least_squares_sums(
    x: Any,
    y: Any,
    sample: Sample,
    adjacency: Adjacency,
    *,
    classes: int,
    norm: float,
    constant: float,
    prepare: Prepare | None = None,
) -> tuple[Bounded, Bounded]:
    """X'Y and X'X over the sample's rows, each clipped to `norm` and followed by a constant, and
    sensitivities.

    With the constant c a row x~ = (x, c) is at most r = sqrt(norm^2 + c^2) long. Of a row of class
    k, the first gets x~ in column k, and the second x~ x~', given in the layout of `isometric`. So
    a row adds at most r and r^2, both at once where it is that long. Exchanging it for another
    moves the first by 2 norm (one class, opposite rows: the constants cancel) or sqrt(2) r (two
    classes), and the second by sqrt(2) r^2. A row that is not finite adds nothing.

    Args:
        x: as for `class_statistics`.
        y: as for `class_statistics`.
        sample: as for `class_statistics`.
        adjacency: as for `class_statistics`.
        classes: as for `class_statistics`.
        norm: the bound on each row's L2 norm; public.
        constant: what follows each row, so that a classifier can have a bias; public.
        prepare: as for `class_statistics`.

    Returns:
        In double precision: X'Y (features + 1, classes), and the vector of X'X, of which
        `symmetric` makes the matrix.
    """
    length = math.hypot(positive("norm", norm), positive("constant", constant))
    first, second = (Contributions(length**power, "least_squares_sums") for power in (1, 2))
    products, gram = torch.zeros((), device="cpu"), torch.zeros((), device="cpu")
    limit, follows = (kept(number, [torch.float64]) for number in (norm, constant))
    for rows, member in labelled_blocks(x, y, sample, classes, None, prepare):
        rows.mul_(limit / torch.linalg.vector_norm(rows, dim=1, keepdim=True).clamp_(min=limit))
        longer = torch.cat([rows, follows * member.sum(1, keepdim=True)], 1)
        lengths = torch.linalg.vector_norm(longer, dim=1)
        first.see(lengths * torch.linalg.vector_norm(member, dim=1))
        second.see(lengths.square())
        products, gram = products + longer.T @ member, gram + longer.T @ longer
    replaced = adjacency is Adjacency.REPLACE_ONE
    moved = max(adjacency.sum_sensitivity(norm), math.sqrt(2) * length) if replaced else length
    square = length**2 * (math.sqrt(2) if replaced else 1.0)
    return (
        Bounded((products.contiguous(),), moved, adjacency, sample, first),
        Bounded((isometric(gram),), square, adjacency, sample, second),
    )


@final
@dataclass(frozen=True, repr=False)
class BoxSums:
    """Counts, to be released, and class sums of rows with numbers clipped to [-bound, bound], which
    stay private.

    Attributes:
        counts: the number of rows of each class.
        sums: shape (classes, features), double precision.
        bound: of each number.
        adjacency: the kind of neighbour.
    """

    counts: Bounded
    sums: Tensor
    bound: float
    adjacency: Adjacency

    def distances(self, counts: Tensor) -> CandidateScores:
        """For each feature, minus the largest distance between class means with the denominators
        `counts`; low is best.

        One row moves the mean of its class by at most bound / count, and so each distance.
        Exchanging it for another moves one mean by twice that or two means by that: 2 bound / the
        least count.

        Args:
            counts: released or public, above 0, shape (classes,).
        """
        least = positive("the least count", float(counts.min()))
        means = self.sums / counts[:, None]
        return CandidateScores(
            means.amin(0) - means.amax(0),
            self.adjacency.sum_sensitivity(self.bound) / least,
            False,
            self.adjacency,
        )


def box_sums(
    x: Any,
    y: Any,
    sample: Sample,
    adjacency: Adjacency,
    *,
    classes: int,
    bound: float,
    prepare: Prepare | None = None,
) -> BoxSums:
    """As `class_statistics`, for numbers clipped to [-bound, bound] one by one."""
    positive("bound", bound)
    added = Contributions(1.0, "box_sums")
    counts, sums, limit = (
        torch.zeros(classes, dtype=torch.float64, device="cpu"),
        torch.zeros((), device="cpu"),
        kept(bound, [torch.float64]),
    )
    for rows, member in labelled_blocks(x, y, sample, classes, None, prepare):
        added.see(member.sum(1))
        counts, sums = counts + member.sum(0), sums + member.T @ rows.clamp_(-limit, limit)
    sensitivity = math.sqrt(2) if adjacency is Adjacency.REPLACE_ONE else 1.0
    return BoxSums(
        Bounded((counts,), sensitivity, adjacency, sample, added), sums, bound, adjacency
    )


def bounded_rows(
    x: Any,
    sample: Sample,
    adjacency: Adjacency,
    *,
    norm: float,
    columns: Tensor,
    prepare: Prepare | None = None,
) -> Bounded:
    """The sample's rows themselves, in some columns, each clipped to `norm`; float32, shape (rows,
    columns).

    For neighbours with as many rows only: another row, or an empty one, takes its place. A row that
    is not finite is 0.
    """
    positive("norm", norm)
    clipped = torch.empty(len(sample), len(columns), device="cpu")
    added = Contributions(norm, "bounded_rows")
    start, one_class = 0, torch.zeros(len(x), dtype=torch.int64, device="cpu")
    for rows, _ in labelled_blocks(x, one_class, sample, 1, columns, prepare):
        lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        clipped[start : start + len(rows)] = rows.mul_(_ROOM * norm / lengths.clamp_(min=norm))
        added.see(torch.linalg.vector_norm(clipped[start : start + len(rows)], dim=1))
        start += len(rows)
    return Bounded((clipped,), adjacency.sum_sensitivity(norm), adjacency, sample, added)


def finite_rows(x: Any, sample: Sample, columns: Tensor, prepare: Prepare | None = None) -> Tensor:
    """Which rows of the sample are finite: those that are not are empty ones. Private."""
    one_class = torch.zeros(len(x), dtype=torch.int64, device="cpu")
    return torch.cat(
        [
            member[:, 0] > 0
            for _, member in labelled_blocks(x, one_class, sample, 1, columns, prepare)
        ]
    )


def labelled_blocks(
    x: Any, y: Any, sample: Sample, classes: int, columns: Tensor | None, prepare: Prepare | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Copies of a few rows at a time, (rows, features), and whose they are, (rows, classes) of 0
    and 1; float64.

    What is no row (not finite) or has no class is 0 in both. There is at least one block, maybe of
    no rows.
    """
    step = rows_in_a_block(x)
    for start in range(0, max(1, len(sample)), step):
        indices = sample.indices[start : start + step]
        rows, labels = _take(x, indices), _take(y, indices)
        rows = rows if prepare is None else prepare(rows)
        rows = rows.flatten(1) if rows.dim() > 1 else rows[:, None]
        rows = rows if columns is None else rows[:, columns]
        rows = rows.to(torch.float64, copy=True)
        member = (labels[:, None] == torch.arange(classes, device="cpu")).double()
        usable = torch.linalg.vector_norm(rows, dim=1).isfinite() & (member.sum(1) > 0)
        yield rows.masked_fill_(~usable[:, None], 0), member.masked_fill_(~usable[:, None], 0)


def rows_in_a_block(x: Any) -> int:
    """Rows of `x` that are taken at once."""
    rows: int = min(max(1, _AT_ONCE // max(1, math.prod(x.shape[1:]))), BLOCK)
    return rows


def _take(values: Any, indices: np.ndarray[Any, np.dtype[np.int64]]) -> Tensor:
    """Some rows of an array or a tensor; neighbours in a row are not copied."""
    along = len(indices) > 0 and int(indices[-1]) - int(indices[0]) == len(indices) - 1
    if along and np.array_equal(indices, np.arange(indices[0], indices[-1] + 1)):
        rows = values[int(indices[0]) : int(indices[-1]) + 1]
    else:
        rows = values[torch.from_numpy(indices) if isinstance(values, Tensor) else indices]
    # PyTorch warns of arrays that can't be written, so those are copied.
    return (
        rows.detach().cpu()
        if isinstance(rows, Tensor)
        else torch.from_numpy(np.require(rows, requirements=("C", "W")))
    )


#: Numbers in rows that are taken at once.
_ROWS_AT_ONCE = 1 << 20


def clip_rows(x: Tensor, norm: float) -> Tensor:
    """Scale every row of `x` (rows, features) down to L2 norm at most `norm`; rows that are not
    finite become 0.
    """
    lengths = x.norm(dim=1, keepdim=True)
    usable = lengths.isfinite()
    clipped: Tensor = x.where(usable, 0) * (norm / lengths.where(usable, 1).clamp(min=norm))
    return clipped


def second_moment(
    x: Any, norm: float, sample: Sample, adjacency: Adjacency, examples: Tensor | None = None
) -> Bounded:
    """The sum over the examples of the sample of x x^T, each row x clipped to `norm`; sensitivity
    computed here.

    The matrix is given as the vector of its upper triangle with the off-diagonal entries times
    sqrt(2), in which Euclidean length is the matrix's Frobenius norm. One row has length |x|^2 <=
    norm^2 there, and two rows differ by at most sqrt(2) norm^2. An example of several rows adds the
    mean of their matrices, for which the same holds.

    Args:
        x: all rows, a tensor or an array of shape (rows, features).
        norm: the bound on each row's L2 norm; public.
        sample: the batch; its indices select the examples.
        adjacency: the kind of neighbour.
        examples: the rows of each example, shape (examples, rows of each); None where each is one
            row.

    Returns:
        One tensor of shape (features (features + 1) / 2,), in double precision.
    """
    positive("norm", norm)
    import torch

    features, copies = math.prod(x.shape[1:]), 1 if examples is None else examples.shape[1]
    gram = torch.zeros(features, features, dtype=torch.float64, device=getattr(x, "device", None))
    limit, added = kept(norm, [gram.dtype]), Contributions(norm**2, "second_moment")
    step = min(max(1, _ROWS_AT_ONCE // (features * copies)), BLOCK)
    for start in range(0, len(sample), step):
        indices = sample.indices[start : start + step]
        places = indices if examples is None else examples[indices].flatten()
        rows = x[places] if isinstance(x, torch.Tensor) else _take(x, np.asarray(places))
        rows = clip_rows(rows.flatten(1).double(), limit) / math.sqrt(copies)
        added.see(torch.linalg.vector_norm(rows, dim=1).square().view(-1, copies).sum(1))
        gram.addmm_(rows.T, rows)
    factor = math.sqrt(2) if adjacency is Adjacency.REPLACE_ONE else 1.0
    return Bounded((isometric(gram),), factor * norm**2, adjacency, sample, added)


def isometric(gram: Tensor) -> Tensor:
    """A symmetric matrix as its upper triangle, off-diagonal entries times sqrt(2): a vector of the
    same norm.
    """
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

    i, j = torch.triu_indices(features, features, device="cpu")
    return i, j
