"""Sums over teachers of clipped codes, and counts of their votes, with the most that one teacher
can change them.

Teachers are added one by one, so memory does not grow with their number. One that has no usable
answer to a query, or none at all, counts there as one whose code is the public centre of codes (for
votes: as none), and nothing says so: what a teacher says, its shape and its type included, follows
from its records.

Sums of several teachers can be added, too (`add_sum`), whose answers were bounded and rounded to
integers where the teachers are: `pate.integers`. Here it can be seen only whether that many bounded
answers can have such a sum.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any, Protocol, final

import numpy as np
import torch
from torch import Tensor

from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping.bounded import Bounded, Contributions, kept
from privlearn.core.sampling import Sample
from privlearn.core.tensors import as_tensor
from privlearn.errors import BadInput
from privlearn.methods.pate.plan import Box, Codes, ConfidentVotes, Votes

#: The shapes that a teacher's answer to one query may have.
Shapes = Sequence[tuple[int, ...]]

#: Above this many numbers in a target the bound by |A^T A|, a matrix of that size, is not computed.
_GRAM = 2000
#: Numbers that are encoded at once.
_BLOCK = 1 << 24
#: By how much, relatively, the norm of an exact sum may be computed too large.
_ROUNDING = 1e-6


class Encoder(Protocol):
    """What is asked of a reducer: a public map from targets to codes."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one target."""
        ...

    @property
    def centre(self) -> Tensor:
        """The public target that stands in for one that can't be used."""
        ...

    @property
    def code_centre(self) -> Tensor:
        """The public code that codes are clipped about: the centre's, or 0 for an encoder whose
        codes are bounded.
        """
        ...

    @property
    def matrix(self) -> Tensor | None:
        """The linear map (codes, numbers in a target), applied after the centre is taken off; None
        if not linear.
        """
        ...

    @property
    def is_identity(self) -> bool:
        """Whether codes are the targets themselves, less the centre."""
        ...

    def encode(self, targets: Tensor) -> Tensor:
        """Codes of shape (rows, numbers in a code) of targets (rows, *shape)."""
        ...


def plain(said: Any, rows: int | None = None, shapes: Shapes | None = None) -> Tensor | None:
    """What a teacher said as real numbers in main memory; None for anything else, whatever it is,
    and nothing says so.

    Args:
        said: an array, a tensor or nothing.
        rows: how many there must be; None: as many as there are.
        shapes: what one row's shape must be among; None: any.

    Returns:
        float32 or float64 as given, other floating-point numbers in float32, whole ones and truth
        values in int64.
    """
    # Warnings would tell: of numbers that overflow, say.
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            values = as_tensor(said)
        if values.dim() < 1 or (rows is not None and len(values) != rows):
            return None
        if shapes is not None and tuple(values.shape[1:]) not in [tuple(shape) for shape in shapes]:
            return None
        if values.is_complex() or values.is_quantized or values.layout != torch.strided:
            return None
        kind = torch.int64
        if values.is_floating_point():
            kind = values.dtype if values.dtype in (torch.float32, torch.float64) else torch.float32
        return values.to("cpu", kind)
    except Exception:
        return None


@final
class CodeSums:
    """Adds up the codes of all teachers, each clipped; sensitivity computed here.

    Args:
        aggregate: what codes are clipped to.
        encoder: from targets to codes; public.
        queries: how many there are.

    Raises:
        BadInput: a box, and an encoder that is not linear or that takes other targets.
    """

    def __init__(self, aggregate: Codes, encoder: Encoder, queries: int) -> None:
        self.aggregate, self.encoder, self.queries = aggregate, encoder, queries
        self.shape = encoder.shape
        self._box = isinstance(aggregate, Box)
        centre = encoder.centre.double()
        if isinstance(aggregate, Box):
            _require_box(aggregate, encoder)
            # Inside the box, or taking its place would move a teacher by more than one that is
            # inside.
            self._centre = centre.nan_to_num().clamp(0, 1)
            self._matrix = None if encoder.matrix is None else encoder.matrix.double()
            self.sensitivity = box_sensitivity(self._matrix, aggregate.dimensions)
            self._origin = self._encode(self._centre[None])[0]
        else:
            self._centre, self._matrix = centre, None
            self.sensitivity = aggregate.sensitivity
            self._radius = aggregate.radius
            self._origin = encoder.code_centre.double()
        self.sums = torch.zeros(queries, len(self._origin), dtype=torch.float64, device="cpu")
        self.added = Contributions(
            self.sensitivity if self._box else self._radius, type(encoder).__name__
        )

    @property
    def origin(self) -> Tensor:
        """What codes were counted from, as the encoder has it, to be added to their means;
        public.
        """
        return self.encoder.encode(self._centre[None]).double()[0] if self._box else self._origin

    @property
    def shapes(self) -> Shapes:
        """The shape of one answer."""
        return (self.shape,)

    def add(self, predictions: Any) -> bool:
        """Add one teacher's answers: targets of shape (queries, *shape). Anything else is the
        origin, silently.

        Returns:
            Whether it had answers of that shape: private.
        """
        targets = plain(predictions, self.queries, self.shapes)
        if targets is None:
            return False
        rows = max(1, _BLOCK // max(1, math.prod(self.shape)))
        for start in range(0, self.queries, rows):
            codes = self._try_to_encode(targets[start : start + rows])
            self.added.see(torch.linalg.vector_norm(codes, dim=1))
            self.sums[start : start + rows] += codes
        return True

    def add_sum(self, integers: Tensor, teachers: int, step: float) -> None:
        """Add the sum of several teachers' answers, each bounded and rounded elsewhere by
        `pate.integers`.

        That each is bounded rests on the code that ran there, which measures it. Measured here is
        the sum alone: whether that many bounded answers can have it.

        Args:
            integers: their sum, int64: codes of shape (queries, numbers in a code); for a box
                targets less the centre, (queries, numbers in a target).
            teachers: how many are in it: private.
            step: what the integer 1 stands for; public.

        Raises:
            BadInput: so many bounded answers can't have such a sum.
        """
        numbers = integers.double() * step
        lengths = numbers.abs() if self._box else torch.linalg.vector_norm(numbers, dim=1)
        most = teachers * (1.0 if self._box else self._radius)
        _require_possible(bool((lengths <= most * (1 + _ROUNDING)).all()))
        self.added.see_none()  # each was measured where it was bounded
        self.sums += self.encode_sum(numbers)

    def encode_sum(self, numbers: Tensor) -> Tensor:
        """The codes of a sum of answers, which for a box are targets less the centre; exact as the
        map is linear.

        Args:
            numbers: as of `add_sum`, times the step; float64.
        """
        return numbers if self._matrix is None else numbers @ self._matrix.T

    def _try_to_encode(self, targets: Tensor) -> Tensor:
        """The codes of some targets as `_clip_codes`; 0 where the encoder fails on these targets,
        but not on the centre.
        """
        try:
            return self._clip_codes(targets)
        except Exception:
            # What is wrong with the encoder itself fails here again, and says nothing of the
            # targets.
            return 0 * self._clip_codes(self._centre.to(targets.dtype).expand_as(targets))

    def _clip_codes(self, targets: Tensor) -> Tensor:
        """The codes of some targets less the origin, bounded; 0 for those that are not finite."""
        finite = targets.flatten(1).isfinite().all(1)
        centre = self._centre.to(targets.dtype if targets.is_floating_point() else torch.float64)
        values = targets.to(centre.dtype)
        if not bool(finite.all()):
            values = torch.where(finite.view(-1, *[1] * (values.dim() - 1)), values, centre)
        codes = self._encode(values.clamp(0, 1) if self._box else values) - self._origin
        if not self._box:
            codes = clip_to_ball(codes, self._radius)
        return torch.where((finite & codes.isfinite().all(1))[:, None], codes, 0.0)

    def _encode(self, targets: Tensor) -> Tensor:
        """Codes in double precision. A box's rest on the map itself, then in double precision,
        too.
        """
        if not self._box:
            return self.encoder.encode(targets).double()
        rows = targets.double().flatten(1)
        return rows if self._matrix is None else rows @ self._matrix.T

    def bounded(self, query: int, sample: Sample, adjacency: Adjacency) -> Bounded:
        """The sum of the codes for one query, one tensor of shape (numbers in a code,)."""
        return Bounded((self.sums[query].clone(),), self.sensitivity, adjacency, sample, self.added)


@final
class VoteCounts:
    """Counts the votes of all teachers; sensitivity computed here.

    Args:
        aggregate: the classes.
        queries: how many there are.
    """

    def __init__(self, aggregate: Votes | ConfidentVotes, queries: int) -> None:
        self.aggregate, self.queries = aggregate, queries
        self.counts = torch.zeros(queries, aggregate.classes, dtype=torch.float64, device="cpu")
        self.added = Contributions(1.0, type(aggregate).__name__)

    @property
    def shapes(self) -> Shapes:
        """The shapes that one answer may have: a class, or a score for each."""
        return ((), (self.aggregate.classes,))

    def add(self, predictions: Any) -> bool:
        """Add one teacher's votes: classes (queries,), or scores (queries, classes), of which the
        largest wins.

        A class that there isn't, a number that is no whole one and scores that are not all finite
        are no vote. Anything else is none either, silently: which classes a teacher knows follows
        from its records.

        Returns:
            Whether it had answers of one of these shapes: private.
        """
        answers = plain(predictions, self.queries, self.shapes)
        if answers is None:
            return False
        if answers.dim() == 2:
            votes, valid = answers.argmax(1), answers.isfinite().all(1)
        else:
            numbers = answers.double()
            valid = (
                (numbers >= 0) & (numbers < self.aggregate.classes) & (numbers == numbers.floor())
            )
            votes = numbers.where(valid, 0).long()
        self.added.see(valid.double())
        self.counts[torch.arange(self.queries, device="cpu"), votes] += valid.double()
        return True

    def add_sum(self, integers: Tensor, teachers: int) -> None:
        """Add the counts of several teachers' votes, who voted elsewhere.

        That each gave at most one vote to a query rests on the code that ran there, which measures
        it. Measured here are the counts alone: whether that many votes can have them.

        Args:
            integers: the counts, int64, shape (queries, classes).
            teachers: how many are in them: private.

        Raises:
            BadInput: so many teachers can't have such counts.
        """
        counts = integers.double()
        _require_possible(bool(((counts >= 0).all(1) & (counts.sum(1) <= teachers)).all()))
        self.added.see_none()  # each was measured where it voted
        self.counts += counts

    def bounded(self, query: int, sample: Sample, adjacency: Adjacency) -> Bounded:
        """The counts for one query, one tensor of shape (classes,)."""
        return Bounded(
            (self.counts[query].clone(),),
            self.aggregate.sensitivity,
            adjacency,
            sample,
            self.added,
        )

    def largest(self, query: int, sample: Sample, adjacency: Adjacency) -> Bounded:
        """The largest count for one query, one tensor of shape (1,): one teacher moves it by 1 at
        most.
        """
        largest = self.counts[query].max().view(1)
        return Bounded((largest,), ConfidentVotes.test_sensitivity, adjacency, sample, self.added)


def clip_to_ball(codes: Tensor, radius: float) -> Tensor:
    """Scale rows of `codes` (rows, numbers), in double precision, down to L2 norm at most `radius`,
    or hardly less.

    (The room for rounding, `rounding`: of sums of up to 2048 teachers in the worst case.)
    """
    radius = kept(radius, [codes.dtype])
    lengths = torch.linalg.vector_norm(codes, dim=1, keepdim=True)
    clipped: Tensor = codes * (radius / lengths.clamp(min=radius))
    return clipped


def box_sensitivity(matrix: Tensor | None, dimensions: int) -> float:
    """An upper bound on |A s| over all s in [-1, 1]^d: the most that one target in [0, 1]^d moves
    its code.

    The least of sqrt(d) |A|, of the sum of the columns' norms, and, for small d, of the root of the
    sum of |A^T A|. (The exact maximum takes 2^d trials; what a search finds is no bound.)

    Args:
        matrix: A, shape (numbers in a code, d); None for the identity.
        dimensions: d.
    """
    if matrix is None:
        return math.sqrt(dimensions)
    wide = matrix.double()
    norm = math.sqrt(max(float(torch.linalg.eigvalsh(wide @ wide.T)[-1]), 0.0))
    bounds = [math.sqrt(dimensions) * norm, float(torch.linalg.vector_norm(wide, dim=0).sum())]
    if dimensions <= _GRAM:
        bounds.append(math.sqrt(float((wide.T @ wide).abs().sum())))
    return min(bounds) * (1 + 1e-9)


def _require_possible(possible: bool) -> None:
    # Sites that run privlearn never come here, whatever their records are.
    if not possible:
        raise BadInput(
            "the sites' answers add up to more than bounded answers can: a site runs other code. "
            "Nothing was charged. Expected privlearn.flower.teacher_app at every site: check what "
            "the sites run, and ask again"
        )


def _require_box(aggregate: Box, encoder: Encoder) -> None:
    if encoder.matrix is None and not encoder.is_identity:
        raise BadInput(
            "a box bounds targets, and a code of theirs only through a linear map: use "
            "pv.teachers.Ball(radius) with this reducer"
        )
    numbers = math.prod(encoder.shape)
    if numbers != aggregate.dimensions:
        raise BadInput(
            f"the box has {aggregate.dimensions} dimensions, and targets of shape "
            f"{tuple(encoder.shape)} have {numbers} numbers: give "
            f"pv.teachers.Box(dimensions={numbers})"
        )
