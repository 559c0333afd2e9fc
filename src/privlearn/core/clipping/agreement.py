"""This file chooses which way computes the gradients of a model: the fastest that agrees with the
loop over single examples.

When two computations agree, whether a loss is computed example by example, and what a batch may
hold in memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn

from privlearn.core.clipping.augmentation import Copies
from privlearn.core.clipping.backends import (
    Backend,
    Gradients,
    Loop,
    PerOperation,
    Problem,
    Vmap,
    layouts,
    layouts_of_draws,
)
from privlearn.core.clipping.kernels import Kernels
from privlearn.core.clipping.layout import NotLayerwise
from privlearn.core.clipping.losses import Leaves
from privlearn.core.clipping.model_check import layer_of, made_up_rows
from privlearn.core.clipping.per_example import Dense
from privlearn.core.clipping.randomness import drawn_by, foreign_state, generators_at
from privlearn.core.devices import free_memory, on_processor
from privlearn.errors import NotPerExample, PrivlearnError, first_line

#: Made-up batches have so many examples; of those that are compared with single ones.
SIZES, COMPARED = (5, 7), 4
#: Relative difference of squared norms up to which two ways agree in double precision.
_EXACT = 1e-4
#: What a way raises on a model that is not for it.
_UNFIT = (PrivlearnError, RuntimeError, ValueError, IndexError, KeyError, TypeError, AttributeError)


@final
class Choice:
    """The fastest way that agrees with the loop over single examples, on made-up rows of many
    scales.

    Args:
        problem: what is differentiated.
        kernels: for matrix products.
        views: what is done to each row first.
        like: rows of the shapes and types of the data's.

    Attributes:
        way: the way.
        held: what it holds for each example.
        writes: whether the model or the loss writes into what it is given.
        reason: why it is not operation by operation.

    Raises:
        NotPerExample: the loss is not one value for each example.
    """

    def __init__(self, problem: Problem, kernels: Kernels, views: Copies, like: Leaves) -> None:
        self._copies, self._shape = problem.copies, problem.shape
        self.reason: str | None = None
        device = next(iter(problem.parameters.values())).device
        plain = replace(problem, autocast=None)

        def make_up(size: int) -> Leaves:
            leaves = self._shape.made_up(
                made_up_rows(like, self._shape.inputs, size * self._copies)
            )
            return tuple(leaf.to(device) for leaf in leaves)

        batches, rows = [make_up(size) for size in SIZES], make_up(COMPARED)

        def layers(problem: Problem) -> PerOperation:
            return PerOperation(
                problem, kernels, layouts(problem, kernels, batches), writes=self.writes
            )

        with torch.random.fork_rng():
            self.writes, problem.random.active = require_uncoupled(plain, rows, batches)
            problem.random.take(np.arange(COMPARED, dtype=np.uint64))
            views.prepare(rows[0], problem.random)
            try:
                with plain.in_double() as exact:  # where differences tell
                    fit, usable = self._fit(exact, [layers, Vmap], rows)
            except _UNFIT:
                self.reason = None
                fit, usable = self._fit(plain, [layers, Vmap], rows)
            self.way: Backend = Loop(problem)
            try:
                self.way = fit(problem) if fit else self.way
                self.held = held_by(self.way, *self._fresh(usable))
            except _UNFIT as error:
                self.reason, self.way = first_line(error), Loop(problem)
                self.way(*self._fresh(usable))
                self.held = BytesPerExample(
                    0, 2 * sum(p.nbytes for p in problem.parameters.values())
                )

    def _fresh(self, leaves: Leaves) -> Leaves:
        """Rows that may be written into."""
        return tuple(leaf.clone() for leaf in leaves) if self.writes else leaves

    def _fit(
        self, problem: Problem, kinds: Sequence[Callable[[Problem], Backend]], rows: Leaves
    ) -> tuple[Callable[[Problem], Backend] | None, Leaves]:
        """The first of `kinds` that agrees with the loop, and the rows that could be compared."""
        truth = _Truth(problem, self._fresh(rows))
        usable = torch.stack([truth.losses, *truth.squares.values()]).isfinite().all(0)
        if usable.any() and not usable.all():
            rows = tuple(leaf[usable.repeat_interleave(self._copies)] for leaf in rows)
            truth = _Truth(problem, self._fresh(rows))
        for make in kinds if usable.any() else []:
            try:
                if _same_gradients(problem, make(problem)(*self._fresh(rows)), truth):
                    return make, rows
                reason = "its gradients differ from those of single examples"
            except NotPerExample:
                raise
            except _UNFIT as error:
                reason = first_line(error) + layer_of(error, problem.model)
            self.reason = self.reason or reason
        self.reason = self.reason or "its gradients on made-up rows are not finite"
        return None, rows


class _Truth:
    """Losses and squared norms of single examples, by parameter, and one sum in which all count
    about as much.
    """

    def __init__(self, problem: Problem, rows: Leaves) -> None:
        losses, squares, self.weights = [], [], list[float]()
        self.sums = {
            name: torch.zeros_like(parameter) for name, parameter in problem.parameters.items()
        }
        for number, (gradients, loss) in enumerate(Loop(problem).each(*rows)):
            losses += [loss]
            squares += [torch.cat([Dense(gradient[None]).squares for gradient in gradients])]
            least = torch.finfo(loss.dtype).tiny  # the gradient may be zero
            self.weights.append(
                (1 + number / COMPARED) / math.sqrt(max(float(squares[-1].sum()), least))
            )
            for into, gradient in zip(self.sums.values(), gradients, strict=True):
                into.add_(gradient, alpha=self.weights[-1])
            del gradients, gradient
        self.losses, self.squares = (
            torch.stack(losses),
            dict(zip(self.sums, torch.stack(squares, 1), strict=True)),
        )


def _same_gradients(problem: Problem, computed: Gradients, truth: _Truth) -> bool:
    """Whether every example's loss and gradient norms are the same, and so are sums of the
    gradients.
    """
    ours, losses = computed
    if not close(losses, truth.losses, rounding_of(truth.losses)):
        return False
    total = torch.stack(list(truth.squares.values())).sum(0).clamp(min=1e-300)
    rounding = math.sqrt(torch.finfo(truth.losses.dtype).eps)  # of sums that cancel
    tolerance = _EXACT if truth.losses.dtype == torch.float64 else TOLERANCE
    for name, expected in truth.squares.items():
        squares = ours[name].squares if name in ours else torch.zeros_like(total)
        added = torch.zeros_like(truth.sums[name], memory_format=torch.contiguous_format)
        if name in ours:
            ours[name].add_weighted(added.new_tensor(truth.weights), added)
        differ = (squares - expected).abs() > tolerance * expected + rounding * total
        # norms in a row amplify rounding where a group's values are equal, so 1e-5 of the sums is
        # let pass in double
        if differ.any() or not close(added, truth.sums[name], max(10 * rounding, 1e-5)):
            return False
    return True


#: Relative difference up to which two results agree.
TOLERANCE = 2e-3


def require_uncoupled(
    problem: Problem, rows: Leaves, batches: Sequence[Leaves]
) -> tuple[bool, bool]:
    """Refuse a loss whose value for one example depends on other examples, or on earlier batches.

    Every computation starts from the same seeds, and from the state that the model and the loss
    had.

    Args:
        problem: what is differentiated.
        rows: a made-up batch.
        batches: two more such batches, of different sizes.

    Returns:
        Whether the model or the loss writes into the rows that it is given, and whether it draws
        random numbers.

    Raises:
        NotPerExample: it does, or draws random numbers from elsewhere than PyTorch.
    """
    written, drawn, foreign = False, False, False

    def losses(*leaves: Tensor) -> Tensor:
        nonlocal written, drawn, foreign
        clones, device = [leaf.clone() for leaf in leaves], leaves[0].device
        with generators_at(0), problem.computing(torch.no_grad()):
            before, others = drawn_by(device), foreign_state()
            layout = problem.forward(*clones)
            drawn |= not all(map(torch.equal, drawn_by(device), before))
            foreign |= foreign_state() != others
        written |= any(
            t._version > 0 or not torch.equal(t, leaf)
            for t, leaf in zip(clones, leaves, strict=True)
        )
        return layout

    together = losses(*rows)
    _require_same(losses(*rows), together)
    if foreign:
        raise NotPerExample(
            "the model or the loss draws random numbers from numpy or random, which would differ "
            "with the other examples: draw them with torch"
        )
    starts = range(0, len(rows[0]), problem.copies)
    if not drawn or not _agree_by_example(problem, rows, batches):
        alone = torch.cat([_alone(losses, rows, start, problem.copies, drawn) for start in starts])
        if not _agree(together, alone):
            raise NotPerExample(
                "the loss of one example changes with the other examples of the batch: give a loss "
                "without means, weights or normalisation over the batch"
            )
    inputs = problem.shape.inputs
    enlarged = problem.shape.made_up((*map(larger, rows[:inputs]), *rows[inputs:]))
    losses(*(leaf.to(rows[0].device) for leaf in enlarged))
    _require_same(losses(*rows), together)
    return written, drawn


def _agree_by_example(problem: Problem, rows: Leaves, batches: Sequence[Leaves]) -> bool:
    """Whether examples have the same losses by themselves and together, if each draws random
    numbers of its own.
    """
    examples, copies, random = len(rows[0]) // problem.copies, problem.copies, problem.random
    random.active = True
    random.take(np.arange(examples, dtype=np.uint64))
    with torch.no_grad():
        try:
            drawn = layouts_of_draws(problem, batches)
            with problem.computing(random.together(drawn)):
                together = problem.forward(*(leaf.clone() for leaf in rows))
        except NotLayerwise:
            return False
        alone = []
        for number in range(examples):
            example = slice(number * copies, (number + 1) * copies)
            with problem.computing(random.alone(number)):
                alone.append(problem.forward(*(leaf[example].clone() for leaf in rows)))
    return _agree(together, torch.cat(alone))


def _agree(together: Tensor, alone: Tensor) -> bool:
    usable = alone.isfinite()
    return close(together[usable], alone[usable], rounding_of(alone[usable]))


def _alone(
    losses: Callable[..., Tensor], rows: Leaves, start: int, copies: int, drawn: bool
) -> Tensor:
    """The loss of the example whose rows begin at `start`, by itself.

    If random numbers are drawn, they depend on the size of the batch: then beside others than
    before.
    """
    example = slice(start, start + copies)
    if not drawn:
        return losses(*(leaf[example] for leaf in rows))
    others = [leaf.roll(copies, 0) for leaf in rows]
    for leaf, original in zip(others, rows, strict=True):
        leaf[example] = original[example]
    return losses(*others)[start // copies :][:1]


def _require_same(again: Tensor, losses: Tensor) -> None:
    """Refuse losses that differ from those of the same rows before; on a GPU sums may be taken in
    another order.
    """
    rounding = 0.0 if on_processor(losses) else 1e3 * torch.finfo(losses.dtype).eps
    if not torch.allclose(again, losses, rtol=rounding, atol=0.0, equal_nan=True):
        raise NotPerExample(
            "the loss of the same rows differs from one call to the next, with the same seeds: the "
            "model or the loss keeps something of earlier batches. Keep it in buffers "
            "(register_buffer), which are put back after each batch, or leave it out"
        )


def larger(rows: Tensor) -> Tensor:
    """Rows with other numbers, where they are no indices: what keeps a maximum, say, comes to
    another.
    """
    return 2 * rows if rows.is_floating_point() else rows


def rounding_of(values: Tensor) -> float:
    """A difference that tells nothing about values of this size."""
    return (
        math.sqrt(torch.finfo(values.dtype).eps) * float(values.abs().max())
        if values.numel()
        else 0.0
    )


def close(one: Tensor, other: Tensor, rounding: float) -> bool:
    """Whether two results agree, apart from `rounding`."""
    return torch.allclose(one.double(), other.double(), rtol=TOLERANCE, atol=rounding)


#: Bytes that one physical batch may hold, unless its size is given; on a GPU, a share of what is
#: free.
_WORKING_SET, _FREE_SHARE = 1 << 30, 0.5
#: Examples and bytes of the parts that a batch is computed in, at least: smaller ones take longer.
_LEAST_EXAMPLES, _LEAST_BYTES = 32, 1 << 26


class BytesPerExample(NamedTuple):
    """Bytes that a way of computing holds for each example.

    Attributes:
        activations: what a plain step holds for its backward pass, too.
        gradients: what the gradients of the parameters take.
    """

    activations: int
    gradients: int

    @property
    def total(self) -> int:
        """At the end of the backward pass, about."""
        return max(self.activations + self.gradients, 1)


def held_by(way: Backend, *leaves: Tensor) -> BytesPerExample:
    """What `way` holds for each of these examples."""
    # a new program is checked in passes of its own, which hold more
    way(*(leaf.clone() for leaf in leaves))
    holding = _Held()
    with nullcontext() if isinstance(way, Vmap) else holding:  # torch.func allows no hooks
        computed, losses = way(*leaves)
    gradients = sum(gradients.nbytes for gradients in computed.values())
    return BytesPerExample(holding.bytes // len(losses), gradients // len(losses))


class _Held(torch.autograd.graph.saved_tensors_hooks):
    """Adds up the bytes that autograd holds for the backward pass, each piece of memory once."""

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        super().__init__(self._see, lambda tensor: tensor)

    def _see(self, tensor: Tensor) -> Tensor:
        if not isinstance(tensor, nn.Parameter):
            with torch._C.DisableTorchFunction():  # these calls are none of the model's
                storage = tensor.untyped_storage()
                self._sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    @property
    def bytes(self) -> int:
        """What is held."""
        return sum(self._sizes.values())


def room(device: torch.device) -> int:
    """Bytes that one physical batch may hold."""
    if (free := free_memory(device)) is not None:
        return int(free * _FREE_SHARE)
    return _WORKING_SET


def physical_batch(held: BytesPerExample, device: torch.device, expected: float) -> int:
    """How many examples are computed at once: as many as memory has room for. On a processor a
    batch is also computed in equal parts that hold about as much as a plain step does, if these are
    large.

    A plain step holds its activations, and on its way back up to as much again.

    Args:
        held: what an example takes.
        device: where it is computed.
        expected: the expected number of examples in a batch; 0: not known.
    """
    most = max(1, room(device) // held.total)
    if not expected or not held.activations or free_memory(device) is not None:
        return most
    as_plain = 2 * held.activations * expected / held.total
    limit = min(most, max(as_plain, _LEAST_EXAMPLES, _LEAST_BYTES / held.total))
    parts = math.ceil(expected / limit)
    # batches differ by about the root of their size
    return most if parts == 1 else min(most, math.ceil((expected + math.sqrt(expected)) / parts))
