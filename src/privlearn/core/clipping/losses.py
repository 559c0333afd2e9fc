"""A loss gives one value for each example, of outputs and targets, or of the model and a batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_structure

from privlearn.core.rows import Leaves as Leaves
from privlearn.core.rows import Rows, nested
from privlearn.errors import BadInput, NotPerExample

#: (outputs, targets) to one value for each example, shape (batch,); or (model, batch) to that,
#: where the first parameter is called `model`. Losses are tried on made-up rows, of random numbers.
#: Where a model or a loss refuses those, the loss has `made_up`, which makes such a batch look like
#: the data; it never sees the data.
Loss = Callable[..., Tensor]


@final
@dataclass(frozen=True)
class BatchShape:
    """How the tensors of a batch make up what the model and the loss are given.

    Attributes:
        structure: the nest.
        inputs: how many tensors belong to the inputs, the first ones.
        whole: whether the loss is one of the model and the batch.
        change: the loss's own `made_up`, if it has one.
    """

    structure: TreeSpec
    inputs: int = 1
    whole: bool = False
    change: Callable[[Any], Any] | None = None

    def __deepcopy__(self, memo: object) -> BatchShape:
        return self

    @classmethod
    def of(cls, rows: Rows, loss: Loss) -> BatchShape:
        """That of these rows, for this loss.

        Raises:
            BadInput: a loss of outputs and targets, and batches that are no pair.
        """
        whole = takes_model(loss)
        if (not whole and rows.structure.num_children != 2) or (
            rows.structure.type is dict and not whole
        ):
            kind = getattr(rows.structure.type, "__name__", "tensor")
            raise BadInput(
                f"the loss is one of outputs and targets, and a batch is a {kind}, not a pair "
                "(inputs, targets): give a loss of the model and the batch, loss(model, batch), "
                "whose first parameter is called model"
            )
        change = getattr(loss, "made_up", None)
        if (rows.structure, whole, change) == (PAIR.structure, False, None):
            return PAIR
        return cls(rows.structure, len(rows.like) if whole else rows.inputs, whole, change)

    def made_up(self, leaves: Leaves) -> Leaves:
        """Made-up rows, changed as the loss says.

        Raises:
            BadInput: what comes out has other tensors, shapes or types.
        """
        if self.change is None:
            return leaves
        batch = self.change(nested([leaf.clone() for leaf in leaves], self.structure))
        # torch's loaders make lists of tuples
        changed, structure = tree_flatten(list(batch) if self.structure.type is list else batch)
        one, other = (
            [(getattr(x, "shape", 0), getattr(x, "dtype", 0)) for x in batch]
            for batch in (leaves, changed)
        )
        if structure != self.structure or one != other:
            raise BadInput(
                "the loss's made_up gives a batch of other tensors, shapes or types than it was "
                "given: expected the same. Change values alone"
            )
        return tuple(changed)


#: Inputs and targets, a tensor each.
PAIR = BatchShape(tree_structure((0, 0)))


def takes_model(loss: Loss) -> bool:
    """Whether a loss is one of (model, batch): its first parameter is called `model`."""
    if isinstance(loss, nn.Module):
        loss = loss.forward
    try:
        names = list(inspect.signature(loss).parameters)
    except (TypeError, ValueError):
        return False
    return names[:1] == ["model"]


def require_one_each(losses: Any, rows: int) -> Tensor:
    """The losses of so many rows, or `NotPerExample` if there is not one for each."""
    if not isinstance(losses, Tensor) or losses.shape != (rows,):
        fault = (
            f"has shape {tuple(losses.shape)}"
            if isinstance(losses, Tensor)
            else f"is a {type(losses).__name__}"
        )
        if isinstance(losses, Tensor) and not losses.dim():
            raise NotPerExample(
                f"the loss has shape () for a batch of {rows}: one number, in which examples "
                "depend on each other, as by class weights, pairs or mixup. It must be one number "
                f"per example, shape ({rows},): give a loss with reduction='none', and average "
                "over all axes but the first",
                shape=(),
            )
        raise NotPerExample(
            f"the loss {fault} for a batch of {rows}: expected one value for each example, shape "
            f"({rows},). Give a loss with reduction='none', and "
            "average over all axes but the first",
            shape=tuple(getattr(losses, "shape", ())),
        )
    return losses


def losses_of(
    model: nn.Module, loss: Loss, leaves: Sequence[Tensor], shape: BatchShape = PAIR
) -> Any:
    """What `loss` gives for a batch: a model is called with a tensor, all of a tuple, or a
    dictionary's names.
    """
    if shape is PAIR:
        return loss(model(leaves[0]), leaves[1])
    batch = nested(leaves, shape.structure)
    if shape.whole:
        return loss(model, batch)
    inputs, targets = batch
    if isinstance(inputs, dict):
        return loss(model(**inputs), targets)
    return loss(model(*inputs) if isinstance(inputs, tuple | list) else model(inputs), targets)


@final
class Losses(nn.Module):
    """A model and a loss as one module, from the tensors of a batch to one value for each
    example.
    """

    def __init__(self, model: nn.Module, loss: Loss, shape: BatchShape = PAIR) -> None:
        super().__init__()
        self.model = model
        self._loss = (loss,)  # its own tensors are not the module's
        self._shape = shape

    def forward(self, *leaves: Tensor) -> Any:
        """One value for each example."""
        return require_one_each(
            losses_of(self.model, self._loss[0], leaves, self._shape), len(leaves[0])
        )
