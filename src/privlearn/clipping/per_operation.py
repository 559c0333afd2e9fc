"""The gradient of every example operation by operation, in one backward pass; and what is seen on made-up rows for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, final

import torch
from torch import Tensor

from privlearn.clipping.backends import Gradients, Problem, layouts_of_draws
from privlearn.clipping.capture import Capture, Layout, NotLayerwise, moving
from privlearn.clipping.derived import CallShapes, shared_calls
from privlearn.clipping.kernels import Kernels
from privlearn.clipping.losses import Leaves
from privlearn.clipping.operations import RULES

#: Where the examples are in each operation's input; what operations that may move rows must not move; what tells the sequence
#: of all operations; where the examples are in what each call that draws random numbers draws; and which calls have nothing
#: to do with the batch.
Seen = tuple[list[Layout], list[set[int]], int, list[Layout], list[bool]]


def layouts(problem: Problem, kernels: Kernels, batches: Sequence[Leaves]) -> Seen:
    """Where the examples are in each operation's input: what explains its shapes at two batch sizes.

    Raises:
        NotLayerwise: nothing does, or examples change their places.
    """
    shapes: list[CallShapes] = []
    for leaves in map(problem.inputs, batches):
        shapes.append(CallShapes())
        own = [leaf.clone() for leaf in leaves]  # the model may write into them
        with problem.computing(torch.enable_grad()), shapes[-1]:
            problem.forward(*own)
    shared = shared_calls(*shapes)
    captures: list[Capture] = []

    def run(*leaves: Tensor) -> None:
        captures.append(Capture(RULES, list(problem.parameters.values()), kernels, len(leaves[0]), shared=shared))
        leaves = problem.inputs(leaves)
        with torch.enable_grad(), captures[-1]:
            problem.forward(*leaves)

    drawn = layouts_of_draws(problem, batches, run)
    one, other = captures
    if len({one.trace, other.trace, *(own.trace for own in shapes)}) > 1:
        raise NotLayerwise("the model calls other operations on a batch of another size")
    sizes = (len(batches[0][0]), len(batches[1][0]))
    between = [Layout.between(*pair, sizes) for pair in zip(one.shapes, other.shapes, strict=True)]
    return between, moving(one, other), one.trace, drawn, shared


@final
class PerOperation:
    """One backward pass in which only gradients of activations flow. For models whose operations have rules.

    Args:
        problem: what is differentiated.
        kernels: for matrix products.
        paths: what was seen on made-up rows, for each path that the model may take. A batch is computed on the first one that
            is its own, and the next batch on that one first.
    """

    name: ClassVar[str] = "layers"

    def __init__(self, problem: Problem, kernels: Kernels, paths: Sequence[Seen]) -> None:
        self._problem, self._kernels, self._paths = problem, kernels, list(paths)
        self._trained = list(problem.parameters.values())

    def __call__(self, *leaves: Tensor) -> Gradients:
        """Gradients and losses of a batch."""
        self._kernels.scratch.next_step()
        inputs = self._problem.inputs(leaves)
        other: NotLayerwise | None = None
        for number, path in enumerate(self._paths):
            try:
                computed = self._on(path, inputs)
            except NotLayerwise as error:
                other = other or error
                continue
            self._paths.insert(0, self._paths.pop(number))
            return computed
        assert other is not None
        raise other

    def _on(self, path: Seen, leaves: Leaves) -> Gradients:
        """The same, if the batch takes this path."""
        problem, copies = self._problem, self._problem.copies
        layouts, batch, trace, drawn, shared = path
        examples = len(leaves[0]) // copies
        capture = Capture(RULES, self._trained, self._kernels, examples, copies, layouts, batch, shared)
        with problem.computing(problem.random.together(drawn)):
            with torch.enable_grad():
                with capture:
                    losses = problem.forward(*leaves)
                total = losses.sum()
            if capture.trace != trace:
                raise NotLayerwise("the model calls other operations than it did on made-up rows")
            ends = [*self._trained, *capture.derived.leaves]
            flows: Sequence[Tensor | None] = torch.autograd.grad(total, ends, allow_unused=True)
            capture.derived.hand_on(capture.uses.of, capture.uses.keep)
        by_name = {}
        for (name, parameter), flow in zip(problem.parameters.items(), flows, strict=False):
            if flow is not None:
                operation = capture.unseen.get(id(parameter), "an operation")
                raise NotLayerwise(f"{name!r} is used by {operation} without a rule for it")
            gradients = capture.uses.of(parameter)
            if gradients is not None:
                by_name[name] = gradients
        return by_name, losses.detach()
