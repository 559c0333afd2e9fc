"""Which examples a classifier gets right, and how many: counts to which each example adds at most
one, by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor, nn
from torch.func import vmap

from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping.aligned_rows import align_rows
from privlearn.core.clipping.bounded import Bounded, Contributions, in_steps, kept
from privlearn.core.clipping.indices import looking_at
from privlearn.core.clipping.model_check import made_up_batch
from privlearn.core.clipping.randomness import draw_from, drawn_by, unmoved
from privlearn.core.clipping.trained_state import TrainedState
from privlearn.core.devices import place_of
from privlearn.core.memory import is_of_memory, require_memory
from privlearn.core.rows import Rows
from privlearn.core.sampling import Sample
from privlearn.core.temperature import GRID, LEAST_GAIN, NORM

if TYPE_CHECKING:
    from privlearn.core.clipping.own_steps import OwnSteps

#: What a right answer counts, and a wrong one the same below zero: one example moves the count by
#: at most 1/2.
HALF = 0.5
#: Rows that are computed at once, always as many: products of other shapes may be rounded
#: otherwise.
_AT_ONCE = 256
#: Examples whose rows are fetched at once.
_FETCHED = 16 * _AT_ONCE


class RightAnswers:
    """Computes, in evaluation mode, in which rows a model gives the right class the highest score
    of all.

    Guarantee: a row on which the model fails, writes into its trained parameters, or gives scores
    that are not all finite, has neither a right nor a wrong answer, and nothing is said about it;
    what was written is undone. With `apart` each row is computed by itself, whatever the model
    does, so that no row changes another's answer: neither by what it holds nor by making the model
    fail. (A row less shifts others to other places, where two scores that are equal to the last
    digits may be rounded otherwise.)

    Args:
        model: one row of scores, one for each class, for each row of inputs.
        apart: whether rows must not meet: yes for private ones.
        at_once: rows that are computed at once, at most 256.
        computed: called whenever the model has run; by default nothing is.
    """

    #: The shape and the type of one row's answer; of a row without an answer it is 0.
    answer: torch.Tensor = torch.zeros((), dtype=torch.int8, device="cpu")
    _trained: TrainedState

    def __init__(
        self,
        model: nn.Module,
        *,
        apart: bool = True,
        at_once: int | None = None,
        computed: Callable[[], None] | None = None,
    ) -> None:
        self._model, self._apart = model, apart
        self._at_once = min(_AT_ONCE, at_once or _AT_ONCE)
        self._done = computed or (lambda: None)

    @torch.no_grad()
    def __call__(self, x: Tensor, y: Tensor, rows: Tensor | None = None) -> Tensor:
        """1 for a right answer, -1 for a wrong one and 0 for none, for each of `rows` (by default
        all).

        Args:
            x: all inputs, shape (rows, ...).
            y: all targets, whole numbers, shape (rows,).
            rows: the places of those that are wanted.
        """
        rows = torch.arange(len(x), device="cpu") if rows is None else rows
        right = self._none(len(rows))
        self._trained = TrainedState(self._model)
        with evaluating(self._model), self._trained.holding():
            answered = self._few if self._can_be_together(x, y) else self._one_by_one
            for start in range(0, len(rows), self._at_once):
                part = rows[start : start + self._at_once]
                right[start : start + len(part)] = answered(x, y, part)
        return right

    def count(
        self,
        sample: Sample,
        x: Tensor,
        y: Tensor,
        adjacency: Adjacency,
        examples: Tensor | None = None,
    ) -> Bounded:
        """The right answers less the wrong ones, halved, over the examples `sample` drew;
        sensitivity computed here.

        An example adds 1/2 or -1/2. One without an answer adds nothing, like one that is not there:
        it may be the empty one of zero-out neighbours. An example of several rows adds their mean.

        Args:
            sample: the batch; its indices select the examples.
            x: all inputs, shape (rows, ...).
            y: all targets, shape (rows,).
            adjacency: the kind of neighbour.
            examples: the rows of each example, shape (examples, rows of each); None where each is
                one row.

        Returns:
            One tensor of shape (1,), in double precision.
        """
        indices = torch.from_numpy(sample.indices)
        places = indices[:, None] if examples is None else examples.cpu()[indices]
        each = in_steps((HALF * self(x, y, places.flatten()).double()).view(places.shape).mean(1))
        added = Contributions.of(each.abs(), HALF, type(self).__name__)
        return Bounded(
            (each.sum().view(1),), adjacency.sum_sensitivity(HALF), adjacency, sample, added
        )

    def _can_be_together(self, x: Tensor, y: Tensor) -> bool:
        """Whether rows can be computed at once: tried on made-up ones of `x`'s shape and type, so
        that no row decides.

        Not where a model draws random numbers in evaluation mode, too: a row less would give the
        others' to other rows.
        """
        made_up, device = made_up_batch(x, y, self._at_once), place_of(self._model)
        drawn = drawn_by(device)
        try:
            with unmoved(device):
                self._score(self._together, *made_up, torch.arange(self._at_once, device="cpu"))
                return not self._apart or all(map(torch.equal, drawn, drawn_by(device)))
        except Exception:
            return False

    def _few(self, x: Tensor, y: Tensor, rows: Tensor) -> Tensor:
        """The answers on a few rows at once, always as many: the last is repeated if there are
        fewer.

        Another row stands in for each on which the model fails, in its place: so the answers on all
        others come from the same arithmetic, to the last digit, whatever was there.
        """
        few = len(rows)
        rows = torch.cat([rows, rows[-1:].expand(self._at_once - few)])
        try:
            return self._score(self._together, x, y, rows)[:few]
        except Exception:
            fine = ~self._find_failures(x, y, rows)
        try:
            # IndexError if there is none to stand in; and a model may fail at random.
            right = self._score(self._together, x, y, rows.where(fine, rows[fine][0]))
        except Exception as error:
            if is_of_memory(error):  # each fits by itself
                return self._one_by_one(x, y, rows[:few])
            return self._none(few)
        return right.where(fine.view(-1, *[1] * self.answer.dim()), 0)[:few]

    def _find_failures(self, x: Tensor, y: Tensor, rows: Tensor) -> Tensor:
        """On which of `rows` the model fails: halving finds them."""
        try:
            self._score(self._together, x, y, rows)
        except Exception as error:
            if len(rows) == 1:
                require_memory(error)
                return torch.ones(1, dtype=torch.bool, device="cpu")
            return torch.cat([self._find_failures(x, y, half) for half in rows.tensor_split(2)])
        return torch.zeros(len(rows), dtype=torch.bool, device="cpu")

    def _one_by_one(self, x: Tensor, y: Tensor, rows: Tensor) -> Tensor:
        """The answers on a few rows, each computed by itself, and with the same random numbers."""
        return torch.cat([self._alone(x, y, row) for row in rows[:, None]])

    def _alone(self, x: Tensor, y: Tensor, row: Tensor) -> Tensor:
        draw_from(0)
        try:
            return self._score(self._model, x, y, row)
        except Exception as error:
            require_memory(error)
            return self._none(1)

    def _none(self, rows: int) -> Tensor:
        """Of that many rows without an answer."""
        return self.answer.expand(rows, *self.answer.shape).clone()

    def _together(self, x: Tensor) -> Tensor:
        if not self._apart:
            return self._model(x)  # type: ignore[no-any-return]
        return vmap(lambda row: self._model(row[None])[0], randomness="different")(x)  # type: ignore[no-any-return]

    def _score(
        self, scores: Callable[[Tensor], Tensor], x: Tensor, y: Tensor, rows: Tensor
    ) -> Tensor:
        """The answers that are in the scores, of which there must be a row for each of `rows`."""
        where = place_of(self._model)
        try:
            # copies: the model may write into them
            with looking_at(where):
                copies = x[rows.to(x.device)].to(where)
                scored = scores(align_rows(copies) if self._apart else copies).cpu()
        finally:
            self._done()
            self._trained.restore()
        if self._trained.written:
            self._trained.written = ""
            raise ValueError("the model writes into its trained parameters")
        if scored.dim() != 2 or len(scored) != len(rows):
            raise ValueError(f"scores of shape {tuple(scored.shape)} for {len(rows)} rows")
        labels = y[rows.to(y.device)].cpu()
        answered = self._answered_in(scored, labels, x, rows)
        finite = scored.isfinite().all(1).view(-1, *[1] * self.answer.dim())
        return answered.where(finite, 0).to(self.answer.dtype)

    def _answered_in(self, scored: Tensor, labels: Tensor, x: Tensor, rows: Tensor) -> Tensor:
        """The answers in scores of `rows` of the inputs `x`, each row's by itself."""
        return self._answered(scored, labels)

    def _answered(self, scored: Tensor, labels: Tensor) -> Tensor:
        """The answers in scores of shape (rows, classes)."""
        return torch.where(scored.argmax(1) == labels, 1, -1)


@final
class Gains(RightAnswers):
    """As `RightAnswers`, but how much less each row's log loss is than that of even scores, at some
    temperatures.

    Gains are at least `LEAST_GAIN`; all gains of a row are then clipped together to the L2 norm
    `NORM`, and divided by it. So one row adds a vector of norm 1 at most, whatever its scores are.

    Args:
        model: one row of scores, one for each class, for each row of inputs.
        own_steps: what each row's own steps did to its scores, which is taken back; None: nothing.
        at_once: rows that are computed at once, at most 256.
        computed: called whenever the model has run; by default nothing is.
    """

    answer = torch.zeros(len(GRID), dtype=torch.float64, device="cpu")

    def __init__(
        self,
        model: nn.Module,
        *,
        own_steps: OwnSteps | None = None,
        at_once: int | None = None,
        computed: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(model, at_once=at_once, computed=computed)
        self._own_steps = own_steps

    def sum(
        self, sample: Sample, rows: Rows, adjacency: Adjacency, examples: Tensor | None = None
    ) -> Bounded:
        """The gains over the examples that `sample` drew; sensitivity computed here.

        An example adds a vector of norm 1 at most, one of several rows their mean, and one without
        an answer nothing.

        Args:
            sample: the batch; its indices select the examples.
            rows: what is fetched of each row, its inputs and its target.
            adjacency: the kind of neighbour.
            examples: the rows of each example, shape (examples, rows of each); None where each is
                one row.

        Returns:
            One tensor of shape (temperatures,), in double precision.
        """
        indices = torch.from_numpy(sample.indices)
        places = indices[:, None] if examples is None else examples.cpu()[indices]
        total, added = self.answer.clone(), Contributions(1.0, type(self).__name__)
        for start in range(0, len(places), _FETCHED):
            part = places[start : start + _FETCHED]
            gains = in_steps(self._of(rows, part.flatten()).view(*part.shape, len(GRID)).mean(1))
            added.see(torch.linalg.vector_norm(gains, dim=1))
            total += gains.sum(0)
        return Bounded((total,), adjacency.sum_sensitivity(1.0), adjacency, sample, added)

    def _of(self, rows: Rows, places: Tensor) -> Tensor:
        try:
            x, y = rows.fetch(places)
        except Exception as error:
            if len(places) == 1:
                require_memory(error)
                return self._none(1)
            return torch.cat([self._of(rows, half) for half in places.tensor_split(2)])
        return self(x, y)

    def _answered_in(self, scored: Tensor, labels: Tensor, x: Tensor, rows: Tensor) -> Tensor:
        if self._own_steps is None:
            return self._answered(scored, labels)
        index = labels.clamp(0, scored.shape[1] - 1).long()
        moved = self._own_steps.movement(scored.double(), index, x[rows.to(x.device)].cpu())
        return self._answered(scored, labels, moved.transpose(0, 1))

    def _answered(self, scored: Tensor, labels: Tensor, moved: Tensor | None = None) -> Tensor:
        classes = scored.shape[1]
        declared = (labels >= 0) & (labels < classes)
        at = scored.double()[:, None].expand(-1, len(GRID), -1)
        at = (at if moved is None else at + moved) / torch.from_numpy(GRID)[:, None]
        index = labels.clamp(0, classes - 1).long()[:, None, None].expand(-1, len(GRID), 1)
        gains = math.log(classes) + at.log_softmax(2).gather(2, index)[:, :, 0]
        gains = gains.clamp(min=LEAST_GAIN)
        norms = torch.linalg.vector_norm(gains, dim=1, keepdim=True)
        clipped = gains / norms.clamp(min=NORM) * kept(1.0, [torch.float64])
        usable: Tensor = declared[:, None] & clipped.isfinite()
        return torch.where(usable, clipped, 0.0)


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode for the block, outside any autocast; modes and PyTorch's generators are then
    what they were.
    """
    modes = [(module, module.training) for module in model.modules()]
    kind = place_of(model).type
    model.eval()
    try:
        with torch.random.fork_rng(), torch.autocast(kind, enabled=False, cache_enabled=False):
            yield
    finally:
        for module, training in modes:
            module.training = training


@final
@dataclass(frozen=True, repr=False)
class CandidateScores:
    """A score for each of several candidates, private until one of them is selected; the lowest is
    best.

    Attributes:
        values: the scores, float64, shape (candidates,).
        sensitivity: the most that one example changes any of them.
        one_way: whether neighbours differ in one direction only: no score rises where another one
            falls.
        adjacency: the kind of neighbour that this holds for.
    """

    values: Tensor
    sensitivity: float
    one_way: bool
    adjacency: Adjacency
