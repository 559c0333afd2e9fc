"""`ShardedGradients` is `ClippedGradients` for a model under FSDP2, in rounds that all processes
make in step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, TypeVar, cast, final

import numpy as np
import torch
from torch import Tensor, nn

from privlearn.core.clipping.agreement import (
    COMPARED,
    SIZES,
    TOLERANCE,
    close,
    held_by,
    physical_batch,
    require_uncoupled,
    rounding_of,
)
from privlearn.core.clipping.backends import PerOperation, Problem, layouts
from privlearn.core.clipping.gradients import STAND_INS, ClippedGradients
from privlearn.core.clipping.layout import NotLayerwise
from privlearn.core.clipping.losses import Leaves
from privlearn.core.clipping.model_check import made_up_rows
from privlearn.core.clipping.randomness import drawn_by
from privlearn.core.clipping.separation.tracker import Coupled, CoupledElsewhere
from privlearn.core.clipping.sharded.groups import Groups, OtherFailed, Shards
from privlearn.core.memory import require_memory
from privlearn.core.processes import Share
from privlearn.core.rows import Rows
from privlearn.core.sampling import Sample
from privlearn.errors import BadInput, ProcessLost, first_line

_Method = TypeVar("_Method", bound=Callable[..., Any])


def _guarded(method: _Method) -> _Method:
    """`method`, in which FSDP2's hooks are none of the model's operations."""

    @wraps(method)
    def run(self: ShardedGradients, *args: Any, **kwargs: Any) -> Any:
        with self._groups.guarded():
            return method(self, *args, **kwargs)

    return cast(_Method, run)


@final
@dataclass(frozen=True, repr=False)
class Waiting:
    """Examples that are to be computed at once.

    Attributes:
        data: where their rows are fetched from.
        rows: which they are.
        path: which of the model's paths they are computed on.
        at: which rows are computed in their places; others stand in for those that are not finite.
        counts: which of them count; None before they were computed.
        tries: how often they were computed.
    """

    data: Rows
    rows: Tensor
    path: int = 0
    at: Tensor | None = None
    counts: Tensor | None = None
    tries: int = 0


@final
class ShardedGradients(ClippedGradients):
    """`ClippedGradients` of a model under FSDP2: each process gets the sums of the shards that it
    keeps.

    Guarantee: that of `ClippedGradients`. Each example is computed and clipped in one process,
    whole; a parameter's sum is formed for one group of modules at a time, and each process is
    handed what it keeps of it.

    All processes compute at the same time, in rounds: one that has no examples left, or whose
    examples can't be computed, computes made-up ones, of which nothing is added. An example on
    which the model takes a path that it takes on no made-up rows counts as absent.
    """

    def __init__(self, model: nn.Module, *arguments: Any, **options: Any) -> None:
        super().__init__(model, *arguments, **options | {"world": options["world"].exact()})
        self._dealt = True  # sums are exact, on any number of processes
        self._groups = Groups(model, self._world)
        self.parameters = self._groups.whole
        self._number = {name: number for number, name in enumerate(self.parameters)}
        self._paths: list[PerOperation] = []
        self._blank: Leaves = ()

    @_guarded
    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """The sums of the shards here; otherwise as for `ClippedGradients`."""
        return super().__call__(*arguments, **options)

    @_guarded
    def prepare(self, *arguments: Any) -> Rows:
        """As for `ClippedGradients`, by passes that all processes make.

        Raises:
            BadInput: the model's gradients can't be computed operation by operation.
        """
        return super().prepare(*arguments)

    def buffers(self) -> list[Tensor]:
        """Tensors of zeros for the sums, sharded as the parameters are."""
        return [torch.zeros_like(shard, requires_grad=False) for shard in self._held]

    def warn_of_idle_processes(self) -> None:
        """All of them compute in every round."""

    def _here(self, sums: Sequence[Any]) -> list[Tensor]:
        return [total.to_local() for total in sums]

    def _share(self, totals: list[Tensor], kinds: list[torch.dtype]) -> Share:
        # the count is the same in all processes, and so is its noise
        return Shards((*self._groups.places, (0, 1)))

    def _problem(self, autocast: torch.dtype | None) -> Problem:
        return replace(
            super()._problem(autocast), in_step=self._groups.in_step, any_process=self._world.any
        )

    def _add_up(
        self,
        sample: Sample,
        rows: Rows,
        sums: Sequence[Tensor],
        blocks: Sequence[Tensor],
        clipped: Tensor,
    ) -> None:
        self.taken = len(self._world.own(sample.indices))
        parts = self._world.parts(
            sample.indices, [torch.zeros(1, dtype=torch.float64, device="cpu")]
        )
        waiting = deque(
            Waiting(data, torch.from_numpy(chunk))
            for examples, _ in parts
            for data, chunk in self._chunks(rows, examples)
        )
        kind = torch.float64 if self._in_double else torch.float32
        while self._world.any(bool(waiting)):
            gradients, weights = self._weigh(waiting, clipped)
            if self._world.any(bool(gradients)):
                self._reduce(gradients, weights.to(kind), sums)
        clipped.copy_(self._world.total(clipped))

    def _reduce(self, gradients: dict[str, Any], weights: Tensor, sums: Sequence[Tensor]) -> None:
        """Add the weighted gradients of all processes to `sums`, of each what is kept here."""
        for group in filter(None, self._groups.pieces):
            totals = [weights.new_zeros(piece.whole.shape) for piece in group]
            for piece, total in zip(group, totals, strict=True):
                if piece.name in gradients:
                    gradients.pop(piece.name).add_weighted(
                        weights[self._norm_of[piece.name]], total
                    )
            for piece, shard in zip(
                group, self._groups.scattered(group, totals, self.clip_norm), strict=True
            ):
                sums[self._number[piece.name]].add_(shard)

    def _weigh(self, waiting: deque[Waiting], clipped: Tensor) -> tuple[dict[str, Any], Tensor]:
        """One round: gradients of the examples that wait first, and their weights by norm; none if
        they add nothing.

        What is to be computed again waits again.
        """
        part = waiting.popleft() if waiting else None
        nothing: tuple[dict[str, Any], Tensor] = ({}, torch.zeros(0, device=self._device))
        taken = self._fetch(part)
        if part is not None and taken is None:
            self._split(part, waiting)
            part = None
        if taken is None:
            self._random.take(np.arange(COMPARED, dtype=np.uint64))
        before = drawn_by(self._device)
        try:
            with self._indices.defer():
                gradients, losses = self._paths[part.path if part else 0](*(taken or self._blank))
        except (OtherFailed, CoupledElsewhere):
            waiting.extendleft([part] if part else [])
            return nothing
        except Coupled:
            if part is not None:
                self._split(part, waiting)
            return nothing
        except Exception as error:
            if part is None or self._groups.passed:
                raise ProcessLost(
                    "another process ended, or a backward pass failed in this one "
                    f"({first_line(error)}): all end here. Start all of them again; a run with a "
                    "checkpoint goes on from it"
                ) from error
            if isinstance(error, NotLayerwise) and part.path + 1 < len(self._paths):
                waiting.appendleft(replace(part, path=part.path + 1))
            else:
                if len(part.rows) == 1:
                    require_memory(error)
                self._split(part, waiting)
            return nothing
        if part is None:
            return nothing
        if not self._random.active and not all(map(torch.equal, before, drawn_by(self._device))):
            # the model draws random numbers that it did not draw on made-up rows
            self._random.active = True
            waiting.appendleft(part)
            return nothing
        if self._indices.flag is not None and self._indices.flag.item():
            self._split(part, waiting)
            return nothing
        squares = self._squares(gradients, losses)
        finite = squares.isfinite().all(0) & losses.isfinite()
        counts = finite if part.counts is None else part.counts & finite
        if not counts.any():
            return nothing
        if not finite.all():
            self._stand_in(part, counts, waiting)
            return nothing
        return gradients, self._weights(losses, squares, counts, clipped)

    def _fetch(self, part: Waiting | None) -> Leaves | None:
        """The rows of a part; None if there is none, or they can't be fetched."""
        try:
            return (
                None
                if part is None
                else self._take(part.data, part.rows if part.at is None else part.at)
            )
        except Exception as error:
            if part is not None and len(part.rows) == 1:
                require_memory(error)
            return None

    def _split(self, part: Waiting, waiting: deque[Waiting]) -> None:
        """One of these examples can't be computed: halves find it; it adds nothing."""
        if len(part.rows) > 1:
            waiting.extend(Waiting(part.data, half) for half in part.rows.tensor_split(2))

    def _stand_in(self, part: Waiting, counts: Tensor, waiting: deque[Waiting]) -> None:
        """Another example stands in for each that is not finite, in its place."""
        if part.tries + 1 == STAND_INS:
            return self._split(part, waiting)
        here = counts.to(part.rows.device)
        at = part.rows.where(here, part.rows[here][0])
        return waiting.appendleft(replace(part, at=at, counts=counts, tries=part.tries + 1))

    def _choose(self, rows: Rows) -> tuple[PerOperation, int]:
        """Operation by operation, for rows of these shapes, and how many examples are computed at
        once.

        Raises:
            NotPerExample: the loss is not one value for each example.
            BadInput: the gradients can't be computed so, or differ from those of FSDP2's own
                backward passes.
        """
        if getattr(rows, "padded", False):
            raise BadInput(
                "rows have lengths of their own, and the model is under fully_shard: pad them to "
                "one length"
            )
        problem = self._problem(self._autocast)
        plain, shape = replace(problem, autocast=None), self._shape

        def make_up(size: int) -> Leaves:
            leaves = shape.made_up(made_up_rows(rows.like, shape.inputs, size * self._copies))
            return tuple(leaf.to(self._device) for leaf in leaves)

        batches, few = [make_up(size) for size in SIZES], make_up(COMPARED)
        with torch.random.fork_rng():
            _, problem.random.active = require_uncoupled(plain, few, batches)
            problem.random.take(np.arange(COMPARED, dtype=np.uint64))
            self._views.prepare(few[0], problem.random)
            with (
                self._groups.recording(),
                problem.computing(problem.random.together()),
                torch.no_grad(),
            ):
                problem.forward(*(leaf.clone() for leaf in few))
            try:
                self._paths = [
                    PerOperation(problem, self._kernels, layouts(problem, self._kernels, batches))
                ]
                if not self._agrees(plain, few, batches):
                    raise NotLayerwise("its gradients differ from those of single examples")
            except NotLayerwise as error:
                why, instead = getattr(self._loss, "slowness", None) or (
                    error,
                    "take these modules out of the model, or train it whole",
                )
                raise BadInput(
                    f"the model's gradients can't be computed operation by operation: {why}. "
                    f"Under fully_shard no other way is known: {instead}"
                ) from error
            held = held_by(self._paths[0], *few)
        self._blank = few
        self.bytes_per_example = held.total
        return self._paths[0], self._microbatch or physical_batch(held, self._device, 0.0)

    def _agrees(self, problem: Problem, rows: Leaves, batches: Sequence[Leaves]) -> bool:
        """Whether losses, norms and a weighted sum are those of single examples by FSDP2's own
        backward passes.
        """
        examples = len(rows[0]) // problem.copies
        problem.random.take(np.arange(examples, dtype=np.uint64))
        way = PerOperation(problem, self._kernels, layouts(problem, self._kernels, batches))
        gradients, losses = way(*(leaf.clone() for leaf in rows))
        none = torch.zeros(examples, dtype=torch.float64, device=self._device)
        squares = torch.stack(
            [gradients[name].squares if name in gradients else none for name in self.parameters]
        )
        usable = squares.isfinite().all(0) & losses.isfinite()
        if not usable.all():
            few = tuple(leaf[usable.repeat_interleave(problem.copies)] for leaf in rows)
            return bool(usable.any()) and self._agrees(problem, few, batches)
        # One sum of all examples, each made to count about as much as any other. All processes add
        # the same.
        total = squares.sum(0).clamp(min=1e-300)
        weights = (torch.linspace(1, 2, examples, device=self._device) / total.sqrt()).float()
        sums, wanted = (
            [torch.zeros_like(shard) for shard in self._here(self._held)] for _ in range(2)
        )
        self._reduce(gradients, (self.clip_norm * weights).expand(self._norms, -1), sums)
        truth = []
        for number in range(examples):
            loss, grads = self._single(problem, rows, number)
            truth.append(
                (
                    loss,
                    self._world.total(
                        torch.stack([grad.double().square().sum() for grad in grads])
                    ),
                )
            )
            for into, grad in zip(wanted, grads, strict=True):
                into.add_(grad * weights[number])
        expected, theirs = (torch.stack(values, -1) for values in zip(*truth, strict=True))
        rounding = torch.finfo(torch.float32).eps ** 0.5
        same = close(losses, expected, rounding_of(expected))
        same &= bool(((squares - theirs).abs() <= TOLERANCE * theirs + rounding * total).all())
        for computed, other in zip(sums, wanted, strict=True):
            same &= close(computed / (self._world.size * self.clip_norm), other, 10 * rounding)
        return not self._world.any(not same)

    def _single(self, problem: Problem, rows: Leaves, number: int) -> tuple[Tensor, list[Tensor]]:
        """The loss of one example, and of its gradients the shards here; the same example in all
        processes.
        """
        example = slice(number * problem.copies, (number + 1) * problem.copies)
        held = [parameter.grad for parameter in self._held]
        with problem.computing(problem.random.alone(number)), torch.enable_grad():
            with problem.in_step():
                loss = problem.forward(*(leaf[example].clone() for leaf in rows))[0]
            for parameter in self._held:
                parameter.grad = None
            loss.backward()  # type: ignore[no-untyped-call]
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._held]
        for parameter, grad in zip(self._held, held, strict=True):
            parameter.grad = grad
        return loss.detach(), [cast(Any, grad).to_local().detach().clone() for grad in grads]
