"""`ClippedGradients` computes the clipped sum of per-example gradients, and its sensitivity."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import wraps
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from privlearn._checks import count
from privlearn._public import is_own
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping.agreement import Choice, physical_batch
from privlearn.core.clipping.augmentation import AsTheyAre, Augmentation, Copies
from privlearn.core.clipping.backends import (
    Backend,
    Gradients,
    Loop,
    PerOperation,
    Problem,
    gradients_apart,
)
from privlearn.core.clipping.bounded import (
    BLOCK,
    MOST_IN_BLOCKS,
    ROOM,
    Bounded,
    Contributions,
    rounded,
)
from privlearn.core.clipping.clips import (
    Clip,
    PerLayer,
    Quantile,
    Weighed,
    require_clipped,
    weigh,
)
from privlearn.core.clipping.indices import OUT_OF_RANGE, Indices
from privlearn.core.clipping.kernels import Kernels, kernels
from privlearn.core.clipping.layout import NotLayerwise
from privlearn.core.clipping.losses import PAIR, BatchShape, Leaves, Loss
from privlearn.core.clipping.model_check import Structure
from privlearn.core.clipping.parameters.frozen import FrozenState
from privlearn.core.clipping.per_example import ExampleGradients, padded, settle_all, shapes
from privlearn.core.clipping.randomness import RowRandom, drawn_by, fresh_key, unmoved
from privlearn.core.clipping.row_norms import Assumed
from privlearn.core.clipping.sharded.models import is_sharded, require_whole
from privlearn.core.devices import add_rows, move, on_processor
from privlearn.core.memory import require_memory
from privlearn.core.precision import single_precision
from privlearn.core.processes import Share, World
from privlearn.core.rows import Rows, TensorRows, digests
from privlearn.core.sampling import Sample
from privlearn.errors import BadInput, PrivlearnError, first_line

#: Called with each physical batch's losses and gradient norms, which are private.
Observer = Callable[[Tensor, Tensor], None]

#: How often a batch is computed, at most, until stand-ins for its examples that are not finite are.
STAND_INS = 4

#: After how many batches an example is compared with autograd's again.
_COMPARED_AGAIN = 256
#: By how much norms differ that are no rounding of one another, in 32 and in 16 bits; and how small
#: ones are let pass.
_UNLIKE, _UNLIKE_IN_16, _SMALL = 0.02, 0.25, 1e-3

_Method = TypeVar("_Method", bound=Callable[..., Any])


def _in_own_types(method: _Method) -> _Method:
    """`method`, outside the caller's autocast, TF32 and the like, which would compute norms and
    sums in few digits.

    And apart from the parameters' `.grad`, where sums lie: some models write unclipped gradients
    there.
    """

    @wraps(method)
    def run(self: ClippedGradients, *args: Any, **kwargs: Any) -> Any:
        kind, every = self._device.type, self.parameters.values()
        cast = torch.is_autocast_enabled(kind)
        cast_off = (
            torch.autocast(kind, enabled=False, cache_enabled=False) if cast else nullcontext()
        )
        with cast_off, gradients_apart(every), single_precision(self._device):
            return method(self, *args, **kwargs)

    return cast(_Method, run)


class ClippedGradients:
    """Computes sums of clipped per-example gradients of a model.

    Guarantee: under the clip's bound, one example changes the returned sum by at most its
    `sensitivity` in L2 norm, whatever the example holds, also for those who know the random numbers
    of dropout and copies; an example whose gradient is not finite, or can't be computed,
    contributes zero. Norms and sums are computed in the type of the parameters, also under
    autocast, and sums of more than 1024 examples in double precision; the clip leaves room for the
    rounding of norms and sums (`rounding` says how much, and what is proven). Once `prepare` has
    chosen a way, nothing is raised for what an example holds, but `OutOfMemory` if one by itself
    has too little memory.

    Args:
        model: per-example (`models.require_per_example` checks); its trainable parameters get
            gradients.
        loss: (outputs, targets) or (model, batch) to one loss for each example, shape (batch,)
            (`clipping.losses`).
        clip: how to clip, one of `clipping.clips`.
        adjacency: the kind of neighbour.
        microbatch: examples that are computed at once, a number or None for what fits into memory,
            and at most 1024.
        expected: the expected number of examples in a batch, public: where it is above 512, sums
            are returned in double precision, and where it is above 16,384, products are computed in
            it, too. 0: as the batch at hand needs.
        augmentation: copies of each example to average over.
        view_seeds: the stream that seeds what dropout and copies draw for each sample; by default
            PyTorch's. What an example draws follows from this seed and its own content: two
            examples that are equal draw the same.
        autocast: `torch.bfloat16` to run the model in low precision.
        rows: for each example its rows of the inputs and targets, shape (examples, rows of each):
            the gradients of all are averaged before clipping. By default every example is one row.
        fast_kernels: whether to use oneDNN's matrix products; by default, where this processor is
            faster with them.
        observe: called with the losses and norms of each physical batch, for private diagnostics.
        world: the processes that compute the sum together.

    Attributes:
        fixed: what the model and the loss hold beside trained parameters. Once `prepare` was called
            it stays as it is.
        way: how gradients are computed once `prepare` has chosen: `layers`, `vmap` or `loop`.
        reason: why it is not `layers`.
        bytes_per_example: what an example takes while it is computed, about; 0 before that.
        clip_norm: the current one; `Quantile` and a clip's schedule move it.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss,
        clip: Clip,
        adjacency: Adjacency,
        *,
        microbatch: int | None = None,
        expected: float = 0.0,
        augmentation: Augmentation | None = None,
        view_seeds: np.random.Generator | None = None,
        autocast: torch.dtype | None = None,
        rows: Tensor | None = None,
        fast_kernels: bool | None = None,
        observe: Observer | None = None,
        world: World = World(),  # noqa: B008 - a frozen value
    ) -> None:
        # A tied parameter stands here once, under its first name.
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise BadInput(
                "the model has no trainable parameter: set requires_grad on what is to be trained"
            )
        other = [
            p.dtype
            for p in self.parameters.values()
            if p.dtype not in (torch.float32, torch.float64)
        ]
        if other and other[0].is_complex:
            raise BadInput(
                f"the model's parameters are {other[0]}: noise is real. Train real and imaginary "
                "parts, and put them together with torch.view_as_complex"
            )
        if other:
            raise BadInput(
                f"the model's parameters are {other[0]}: sums and noise in so few digits break the "
                "bound. Use model.float(), and precision bf16 to compute in bfloat16"
            )
        if autocast not in (None, torch.bfloat16):
            raise BadInput(f"autocast is {autocast}: expected torch.bfloat16 or None")
        self._held, self.clip, self.adjacency = [*self.parameters.values()], clip, adjacency
        self.clip_norm, self._structure = clip.clip_norm, Structure(model)
        self.reason: str | None = None
        self.bytes_per_example = 0
        self._random, self._seeds, self._model = RowRandom(), view_seeds, model
        self._indices = Indices(self._device)
        self._views: Copies = AsTheyAre() if augmentation is None else augmentation.views()
        self.fixed, self._world, self._shape = FrozenState(model, loss), world, PAIR
        self._rows, self._copies = rows, (1 if rows is None else rows.shape[1]) * self._views.copies
        self._autocast, self._loss, self._observe = autocast, loss, observe
        # or on earlier batches
        self._kernels = kernels(fast_kernels, fitted=world.size == 1 and not world.sharded)
        parted = isinstance(clip, PerLayer) and clip.parameters
        layers = [name if parted else name.rpartition(".")[0] for name in self.parameters]
        self._layers = sorted(set(layers))
        # How many norms are clipped, and which of them each parameter's gradient is part of.
        norms = self._layers if isinstance(clip, PerLayer) else [""]
        places = [norms.index(layer) if len(norms) > 1 else 0 for layer in layers]
        self._norms, self._norm_of = len(norms), dict(zip(self.parameters, places, strict=True))
        self._begin_checks()
        self._microbatch = self._chunk = (
            None if microbatch is None else count("microbatch", microbatch)
        )
        # Not by the number that was drawn, which is private: sums of other kinds are rounded
        # otherwise.
        self._in_double = expected > MOST_IN_BLOCKS
        self._wide = expected > BLOCK / 2 if expected else None
        self._apart = not expected or self._in_double or world.part(expected) > BLOCK / 2
        #: Whether sums are added up over processes that share out one process's chunks.
        self._dealt, self._expected = world.sharded and world.size > 1, expected
        self._way: Backend | None = None
        #: For rows of other shapes: the way, and how many are computed at once; None if they can't
        #: be computed.
        self._ways: dict[Any, tuple[Backend, int] | None] = {}
        #: How many examples of the last sample this process had.
        self.taken = 0
        #: Where sums belong that were added up in double precision, until they are released.
        self._out: Sequence[Tensor] | None = None

    def draw_by(self, cipher: str | None) -> None:
        """Draw what dropout and copies draw by a cipher (`clipping.randomness`)."""
        self._random.cipher = cipher

    def state_dict(self) -> dict[str, Any]:
        """What the next sum depends on beside the model and the data, down to its rounding; plain
        and public.
        """
        return {
            "clip_norm": self.clip_norm,
            "microbatch": self._chunk,
            "fast_kernels": type(self._kernels) is not Kernels,
            "rows_met": sorted(self._kernels.met),
            "way": self.way,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where another was, when `prepare` has been called and `fast_kernels` is as it was
        there.

        Raises:
            BadInput: gradients are computed in another way here.
        """
        if state["way"] != self.way or state["fast_kernels"] != (
            type(self._kernels) is not Kernels
        ):
            raise BadInput(
                f"gradients were computed by {state['way']}, and are by {self.way} here: sums "
                "would be rounded otherwise. Go on with the versions and the machine that the run "
                "began with"
            )
        self.clip_norm, self._chunk, self._kernels.met = (
            state["clip_norm"],
            state["microbatch"],
            set(state["rows_met"]),
        )

    def at(self, epoch: int) -> None:
        """Clip as the clip's schedule says for an epoch, if it has one: sensitivities follow."""
        norm = self.clip.at(epoch)
        if norm is not None:
            self.clip_norm = norm

    def warn_of_idle_processes(self) -> None:
        """Say, once `prepare` has chosen a way, if batches are too small to be shared out."""
        if self._dealt and self._expected and self._chunk and self._world.rank == 0:
            from privlearn.core.clipping.slowness import warn_of_idle_processes

            chunk = min(self._chunk, BLOCK)
            warn_of_idle_processes(self._expected, chunk, self._world.size)

    @property
    def way(self) -> str | None:
        """How gradients are computed."""
        return self._way.name if self._way else None

    @_in_own_types
    @torch.no_grad()  # or sums would hold on to the activations of every batch before
    def __call__(
        self,
        sample: Sample,
        rows: Rows | Tensor,
        y: Tensor | None = None,
        out: Sequence[Tensor] | None = None,
    ) -> Bounded:
        """The clipped sum over the rows that `sample` drew.

        Args:
            sample: the batch that was drawn.
            rows: all rows; or all inputs, shape (rows, ...).
            y: if so, all targets, shape (rows, ...).
            out: where to put the sums, as `buffers` makes them; what they hold is lost. New tensors
                by default.

        Returns:
            One tensor for each trained parameter, in the model's order; for `Quantile` one more,
            the count. In double precision where more than 512 examples are expected: `released`
            brings them into the parameters' type.

        Raises:
            NotPerExample: the loss is not one value for each example.
            BadInput: the model's trainable parameters are not those that it had.
        """
        if (
            structure := self._structure.now(self._model, alone=self._world.size == 1)
        ) is not self._structure:
            # `prepare` takes what is there for what has to stay
            self.fixed.restore(thoroughly=True)
            self._structure, self._way, self.reason, self._ways = structure, None, None, {}
        rows = self.prepare(rows, y)
        blocks = self._here(self.buffers() if out is None else out)
        if out is not None:
            torch._foreach_zero_(blocks)
        size = min(self._chunk or BLOCK, BLOCK)
        wide = len(sample) > size if self._wide is None else self._wide
        self._out = blocks if wide else None
        drawn = sample.indices if self._world.sharded else self._world.own(sample.indices)
        several = len(drawn) > size or padded(rows)
        whole = self._dealt or (wide and self._apart)
        sums = [total.double() for total in blocks] if whole or several else blocks
        clipped = torch.zeros(1, dtype=torch.float64, device=self._device)
        self._random.begin(fresh_key() if self._seeds is None else self._seeds.bytes(16))
        self._begin_sum()
        self.fixed.attributes.take()
        with unmoved(self._device), self.fixed.trained.holding():
            self._add_up(sample, rows, sums, blocks, clipped)
        # The types of what is sent and of what noise is added to follow from public numbers alone.
        sums = sums if whole else rounded(sums, blocks)
        share = self._share(
            [*sums, clipped],
            [torch.float64 if wide else block.dtype for block in (*blocks, blocks[0])],
        )
        sums = sums if wide and (share is None or self._world.sharded) else rounded(sums, blocks)
        values = (
            (*sums, clipped.to(sums[0].dtype)) if isinstance(self.clip, Quantile) else tuple(sums)
        )
        sensitivity = self.adjacency.sum_sensitivity(self._contributions.bound)
        return Bounded(
            values, sensitivity, self.adjacency, sample, self._contributions, share=share
        )

    def _begin_checks(self) -> None:
        """Try the clip before anything is spent."""
        self._room = max(ROOM[parameter.dtype.itemsize] for parameter in self._held)
        self._bounds: dict[float, float] = {}
        #: How many batches were computed, and of which shapes and sizes an example was compared
        #: with autograd's.
        self._computations, self._compared = 0, set[Any]()
        self._begin_sum()

    def _begin_sum(self) -> None:
        """The bound of the next sum, once the clip was seen to keep it at its current norm."""
        layers = len(self._layers)
        if not self._bounds or (self.clip_norm not in self._bounds and not is_own(type(self.clip))):
            self._bounds[self.clip_norm] = require_clipped(
                self.clip, self.clip_norm, self._norms, layers
            )
        bound = self._bounds.get(self.clip_norm) or self.clip.norm(self.clip_norm, layers)
        self._contributions = Contributions(bound, type(self.clip).__name__)
        self._contributions.see_none()  # a process may get sums of others' examples alone

    def _add_up(
        self,
        sample: Sample,
        rows: Rows,
        sums: Sequence[Tensor],
        blocks: Sequence[Tensor],
        clipped: Tensor,
    ) -> None:
        """Add the examples of all processes to `sums`, by way of `blocks` what is computed at once,
        and count them.
        """
        for data, part, (*totals, seen) in self._pieces(sample, rows, [*sums, clipped]):
            into = totals if self._in_double else blocks
            self._add_clipped(data, torch.from_numpy(part), into, seen)
            for total, block in zip(totals, into, strict=True):
                if total is not block:
                    total.add_(block)
                    block.zero_()

    def _pieces(
        self, sample: Sample, rows: Rows, totals: Sequence[Tensor]
    ) -> Iterator[tuple[Rows, NDArray[np.int64], Sequence[Tensor]]]:
        """What this process computes at once of a sample, and the tensors to which it adds it."""
        # All of one size but for the last: an example more or less changes the shape of products
        # there alone.
        if not self._world.sharded:
            for examples, into in self._world.parts(sample.indices, totals):
                self.taken = len(examples)
                yield from ((data, part, into) for data, part in self._chunks(rows, examples))
            return
        chunks = list(self._chunks(rows, sample.indices))
        said = b"".join(len(part).to_bytes(8, "little") + part.tobytes() for _, part in chunks)
        said += sample.indices.tobytes()
        first, self.taken = (self._way, self._chunk), 0
        if self._world.rank == 0:  # rows that could not be fetched are in no chunk
            self.taken = len(sample) - sum(len(part) for _, part in chunks)
        for (data, part), into in self._world.deal(chunks, totals, said, alone=not self._in_double):
            self.taken += len(part)
            way, self._chunk = cast(Any, self._ways[shapes(data)])
            self._way = way
            yield data, part, into
            self._ways[shapes(data)] = cast(Backend, self._way), cast(int, self._chunk)
        if padded(rows):
            self._way, self._chunk = first

    def _share(self, totals: list[Tensor], kinds: list[torch.dtype]) -> Share | None:
        return self._world.share(totals, kinds)

    def _here(self, sums: Sequence[Tensor]) -> list[Tensor]:
        """What this process keeps of sums."""
        return list(sums)

    @property
    def _device(self) -> torch.device:
        return next(iter(self.parameters.values())).device

    def buffers(self) -> list[Tensor]:
        """Tensors of zeros for the sums, one for each trainable parameter."""
        return [
            torch.zeros(p.shape, dtype=p.dtype, device=p.device) for p in self.parameters.values()
        ]

    @property
    def scale(self) -> float:
        """What `released` multiplies the next sums by: public."""
        return self.clip.clip_norm / self.clip_norm if isinstance(self.clip, Quantile) else 1.0

    def released(self, noisy: Sequence[Tensor], batch: float) -> Sequence[Tensor]:
        """Take what was released for this clip's own use, and return the gradients' part.

        Args:
            noisy: the released tensors.
            batch: the expected batch size, public.
        """
        sums, clipped = noisy[:-1] if isinstance(self.clip, Quantile) else noisy, noisy[-1]
        if self._out is not None:
            sums = [block.copy_(total) for block, total in zip(self._out, sums, strict=True)]
        if not isinstance(self.clip, Quantile):
            return sums
        for total in sums:
            total.mul_(self.scale)
        self.clip_norm = self.clip.moved(self.clip_norm, float(clipped), batch)
        return sums

    def prepare(self, rows: Rows | Tensor, y: Tensor | None = None) -> Rows:
        """Choose how to compute, from the shapes and types of rows alone; done once.

        Args:
            rows: rows, or inputs of shape (rows, ...).
            y: if so, their targets.

        Returns:
            The rows.

        Raises:
            NotPerExample: the loss is not one value for each example, or couples them.
            BadInput: the model, the loss or the augmentation can't be computed.
        """
        data = TensorRows((rows, y)) if isinstance(rows, Tensor) else rows
        if self._way is None:
            self._begin(data)
        return data

    @_in_own_types
    def _begin(self, rows: Rows) -> None:
        self.fixed, self._shape = (
            FrozenState(self._model, self._loss),
            BatchShape.of(rows, self._loss),
        )
        self._indices, self._random.device = Indices(self._device), self._device
        try:
            with self.fixed.trained.holding():
                self._way, self._chunk = self._choose(rows)
                self._indices.unchecked = bool(self._indices.unchecked)
        except PrivlearnError:
            raise
        except Exception as error:
            # Said here or never: of rows of the data that fail later, nothing is said.
            y = rows.like[-1]
            raise BadInput(
                "the model, the loss or the augmentation fails on made-up rows: "
                f"{type(error).__name__}: {first_line(error)}. Expected a loss that turns outputs "
                f"and targets of shape {tuple(y.shape[1:])} and type {y.dtype} into one number for "
                "each example, through which gradients flow"
            ) from error
        self._ways[shapes(rows)] = self._way, self._chunk
        if self._way.name != "layers":
            from privlearn.core.clipping.slowness import warn_of_slowness  # for slow ways alone

            warn_of_slowness(self._way.name, self.reason, self._loss)

    def _chunks(
        self, rows: Rows, examples: NDArray[np.int64]
    ) -> Iterator[tuple[Rows, NDArray[np.int64]]]:
        """The examples that are computed at once: rows of one shape, whose company changes no other
        row.
        """
        first = (self._way, self._chunk)
        groups: Any = (
            cast(Any, rows).by_shape(examples, self._suits) if padded(rows) else [(rows, examples)]
        )
        for data, group in groups:
            assert self._chunk is not None
            size = min(self._chunk, BLOCK)
            for start in range(0, len(group), size):
                yield data, group[start : start + size]
            # it may have changed on the way
            self._ways[shapes(data)] = cast(Backend, self._way), self._chunk
        if padded(rows):
            self._way, self._chunk = first

    def _suits(self, rows: Rows) -> bool:
        """Turn to rows of the shapes of these; False if made-up rows of these shapes can't be
        computed.
        """
        key = shapes(rows)
        if key not in self._ways:
            before = self._random.active
            try:
                self._ways[key] = self._choose(rows)
            except Exception as error:
                require_memory(error)
                self._ways[key] = None
            self._random.active = before or self._random.active
        if (known := self._ways[key]) is not None:
            self._way, self._chunk = known
        return known is not None

    def _add_clipped(
        self, data: Rows, rows: Tensor, sums: Sequence[Tensor], clipped: Tensor
    ) -> None:
        """Add the clipped gradients of the examples `rows` to `sums`, and their count to
        `clipped`.
        """
        try:
            gradients, losses, squares, finite, weighed = self._finite(data, rows)
        except Exception as error:
            # One of them can't be fetched or computed (a label that the loss refuses): halves find
            # it; it adds nothing. Halves may also fit into memory where all together do not.
            if len(rows) == 1:
                require_memory(error)
            for half in rows.tensor_split(2) if len(rows) > 1 else ():
                self._add_clipped(data, half, sums, clipped)
            return
        if finite is not None and not finite.any():
            return
        count = len(rows)
        weights = self._weights(losses[:count], squares[:, :count], finite, clipped, weighed)
        weights = F.pad(weights, (0, len(losses) - count))  # fillers weigh nothing
        typed = {dtype: weights.to(dtype).unbind() for dtype in {total.dtype for total in sums}}
        for (name, norm), total in zip(self._norm_of.items(), sums, strict=True):
            if name in gradients:
                gradients[name].add_weighted(typed[total.dtype][norm], total)

    def _weigh_gradients(self, squares: Tensor, *, asks: bool = True) -> Weighed:
        bound = self._contributions.bound
        return weigh(self.clip, squares.sqrt(), self.clip_norm, bound, self._room, asks=asks)

    def _weights(
        self,
        losses: Tensor,
        squares: Tensor,
        finite: Tensor | None,
        clipped: Tensor,
        weighed: Weighed | None = None,
    ) -> Tensor:
        """What clips each gradient, by norm and example; those that are not below the norm count in
        `clipped`.
        """
        weighed = weighed or self._weigh_gradients(squares)
        # the clip breaks its word: these examples add nothing, as those not finite
        if weighed.within is not None:
            finite = weighed.within if finite is None else finite & weighed.within
        counted = slice(None) if finite is None else finite
        if self._observe:
            self._observe(losses[counted], squares.sum(0)[counted].sqrt())
        self._contributions.see(weighed.lengths[counted])
        if weighed.counts is not None:
            clipped += weighed.counts[counted].sum().to(clipped.dtype)
        return weighed.weights if finite is None else weighed.weights.where(finite, 0.0)

    def _finite(
        self, data: Rows, rows: Tensor
    ) -> tuple[dict[str, ExampleGradients], Tensor, Tensor, Tensor | None, Weighed | None]:
        """Gradients, losses and squared norms of the examples `rows` and of fillers after them,
        which of the examples count, and what the clip makes of them; None: all count, and the clip
        was not asked yet.

        Another example stands in for one that is not finite, in its place: so the rest of the batch
        comes out the same to the last digit, whatever was there.

        Raises:
            ValueError: stand-ins are not finite either.
            Exception: whatever the rows, the model or the loss raise on these examples.
        """
        counts: Tensor | None = None
        for _ in range(STAND_INS):
            with self._indices.defer():
                if counts is None and not on_processor(self._device):
                    gradients, losses, usual = self._compute_unasked(data, rows)
                    if usual is not None:
                        return gradients, losses, usual[0], None, usual[1]
                else:
                    gradients, losses = self._compute(data, rows)
            squares = self._squares(gradients, losses)
            total, outside = squares.sum() + losses.sum(), self._indices.flag
            # one look at the device for both
            total = total if outside is None else total.where(~outside, math.nan)
            if counts is None and math.isfinite(float(total)):
                return gradients, losses, squares, None, None
            if outside is not None and outside.item():
                raise IndexError(OUT_OF_RANGE)
            finite = squares.isfinite().all(0) & losses.isfinite()
            examples = finite[: len(rows)]
            counts = examples if counts is None else counts & examples
            if finite.all() or not counts.any():
                return gradients, losses, squares, counts, None
            here = counts.to(rows.device)
            rows = rows.where(here, rows[here][0])
        raise ValueError("examples that are finite in one place of the batch are not in another")

    def _compute_unasked(
        self, data: Rows, rows: Tensor
    ) -> tuple[dict[str, ExampleGradients], Tensor, tuple[Tensor, Weighed] | None]:
        """Gradients and losses, and squared norms with what the clip makes of them if all is as it
        nearly always is: which the device answers at once, for all that is asked of it.

        Otherwise, which is None, all of that has to be asked again, by and by.
        """
        assumed = Assumed()
        gradients, losses = self._compute(data, rows, assumed)
        squares = self._squares(gradients, losses, assumed)
        weighed = self._weigh_gradients(squares[:, : len(rows)], asks=False)
        assert weighed.within is not None
        answers = [*assumed.answers, (squares.sum() + losses.sum()).isfinite()]
        if self._indices.flag is not None:
            answers.append(~self._indices.flag)
        if all(torch.stack([*answers, weighed.within.all()]).tolist()):
            return gradients, losses, (squares, weighed._replace(within=None))
        if self._indices.flag is not None and self._indices.flag.item():
            raise IndexError(OUT_OF_RANGE)
        try:
            assumed.withdraw()
        except NotLayerwise as error:
            gradients, losses = self._compute_one_by_one(data, rows, str(error))
        return gradients, losses, None

    def _squares(
        self,
        gradients: dict[str, ExampleGradients],
        losses: Tensor,
        assumed: Assumed | None = None,
    ) -> Tensor:
        """Squared norms, in double precision: by layer if each is clipped by itself, or one; and by
        example.
        """
        if not gradients:
            return torch.zeros(self._norms, len(losses), dtype=torch.float64, device=losses.device)
        settle_all(gradients.values(), assumed)
        squares = torch.stack([gradient.squares for name, gradient in gradients.items()])
        if squares.shape[1] != len(losses):
            raise ValueError("there are gradients of more or fewer examples than losses")
        if self._norms == 1:
            return squares.sum(0, keepdim=True)
        norms = torch.tensor([self._norm_of[name] for name in gradients], device=squares.device)
        return add_rows(squares.new_zeros(self._norms, len(losses)), norms, squares)

    def _compute(self, data: Rows, rows: Tensor, assumed: Assumed | None = None) -> Gradients:
        """Gradients and losses of the examples `rows`, and of fillers after them. The model is
        given copies: it can be done again.
        """
        assert self._way is not None
        taken = self._take(data, rows, self._count_fillers(len(rows)))
        before = [] if self._random.active else drawn_by(self._device)
        trained = self.fixed.trained
        trained.written = ""
        try:
            computed = self._way(*taken)
            untouched = trained.untouched() if assumed is not None else None
            if assumed is not None and untouched is not None:
                assumed.note(untouched, self._require_untouched)
            else:
                self._require_untouched()
            self._require_rules(computed, data, rows, assumed)
            if self._random.active or all(map(torch.equal, before, drawn_by(self._device))):
                return computed
            self._random.active, reason = (
                True,
                "the model draws random numbers that it did not draw on made-up rows",
            )
        except NotLayerwise as error:
            reason = str(error)
        return self._compute_one_by_one(data, rows, reason)

    def _compute_one_by_one(self, data: Rows, rows: Tensor, reason: str) -> Gradients:
        """The same, from here on, where the model went another way than on made-up rows; after a
        single example, which has no other way, as before.
        """
        before = self._way, self.reason
        self._way, self.reason = Loop(self._problem(self._autocast)), reason
        computed = self._compute(data, rows)
        if len(rows) == 1:
            self._way, self.reason = before
        return computed

    def _require_untouched(self) -> None:
        """Raise `NotLayerwise` if the pass wrote into trained parameters.

        One example's write may have changed what others were computed with: one by one it is undone
        first.
        """
        if self.fixed.trained.written and not isinstance(self._way, Loop):
            raise NotLayerwise("the model writes into its trained parameters")

    def _require_rules(
        self, computed: Gradients, data: Rows, rows: Tensor, assumed: Assumed | None
    ) -> None:
        """Compare one example's gradient with its own by autograd: in the first batch of about each
        size, and later on.

        Raises:
            NotLayerwise: a rule of an operation gives another one: these examples are computed one
                after another.
        """
        self._computations += 1
        form = (shapes(data), len(rows).bit_length())
        if not isinstance(self._way, PerOperation) or (
            form in self._compared and self._computations % _COMPARED_AGAIN
        ):
            return
        self._compared.add(form)
        place = self._computations * 40503 % len(rows)  # another one each time
        problem = self._problem(self._autocast)
        ((alone, _),) = Loop(problem).each(*self._take(data, rows[place : place + 1]))
        squares = [gradient.double().square().sum() for gradient in alone]
        expected, tolerance = (
            torch.stack(squares).sum().sqrt(),
            _UNLIKE_IN_16 if self._autocast else _UNLIKE,
        )

        def unlike(assumed: Assumed | None = None) -> Tensor:
            norms = self._squares(*computed, assumed).sum(0).sqrt()
            least = _SMALL * norms.nan_to_num(0.0, 0.0, 0.0).max()
            # of what is not finite nothing is said
            return (norms[place] - expected).abs() > tolerance * expected.maximum(least)

        def require_alike() -> None:
            if unlike():
                raise NotLayerwise(
                    "the rule of an operation gives another gradient than autograd for a single "
                    "example"
                )

        if assumed is None:
            require_alike()
        else:
            assumed.note(~unlike(assumed), require_alike)

    def _count_fillers(self, examples: int) -> int:
        """How many copies of its first example fill up a batch: at most 1 in 32 of it.

        The program of each new size is checked before it runs, which takes longer than a step.
        Random batches have some hundred sizes, and these have a tenth of that.
        """
        if not isinstance(self._way, PerOperation):
            return 0
        multiple = 1 << max(examples.bit_length() - 6, 0)
        most = min(self._chunk or BLOCK, BLOCK)
        return max(min(-examples % multiple, most - examples), 0)

    def _take(self, data: Rows, rows: Tensor, fillers: int = 0) -> Leaves:
        """The batch of the examples `rows`, in all their copies, in memory of their own, and the
        first of them again as often as there are fillers.
        """
        examples = len(rows)
        if self._rows is not None:
            rows = self._rows[rows].flatten()
        if self._random.active or self._views.changes:
            identities = self._identify(data, rows, examples)
            self._random.take(np.append(identities, identities[:1].repeat(fillers)))
        leaves = tuple(move(leaf, self._device) for leaf in data.fetch(rows))
        if fillers:
            first = len(rows) // examples
            leaves = tuple(torch.cat([leaf, *[leaf[:first]] * fillers]) for leaf in leaves)
        return self._views(leaves, self._random)

    def _identify(self, data: Rows, rows: Tensor, examples: int) -> NDArray[np.uint64]:
        """Digests of examples, whose rows are `rows`."""
        identities = data.identities(rows)
        return (
            identities
            if self._rows is None
            else digests(torch.from_numpy(identities.view(np.int64).reshape(examples, -1)))
        )

    def _problem(self, autocast: torch.dtype | None) -> Problem:
        return Problem(
            self._model,
            self._loss,
            self.parameters,
            self._copies,
            autocast,
            random=self._random,
            fixed=self.fixed,
            shape=self._shape,
            indices=self._indices,
        )

    def _choose(self, rows: Rows) -> tuple[Backend, int]:
        """The way for rows of these shapes, and how many examples are computed at once.

        Raises:
            NotPerExample: the loss is not one value for each example.
        """
        choice = Choice(self._problem(self._autocast), self._kernels, self._views, rows.like)
        self.reason, self.bytes_per_example = self.reason or choice.reason, choice.held.total
        expected = self._world.part(self._expected)
        at_once = self._microbatch or physical_batch(choice.held, self._device, expected)
        return choice.way, at_once


def clipped_gradients(model: nn.Module, *arguments: Any, **options: Any) -> ClippedGradients:
    """`ClippedGradients` of a model, whole or under FSDP2, with the arguments of that.

    Raises:
        BadInput: the model is under the FSDP of before.
    """
    require_whole(model)
    if not is_sharded(model):
        return ClippedGradients(model, *arguments, **options)
    # Several processes keep parts of the model: one process by itself has no use for what they
    # need.
    from privlearn.core.clipping.sharded.gradients_in_rounds import ShardedGradients

    return ShardedGradients(model, *arguments, **options)
