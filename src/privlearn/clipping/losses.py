"""Losses: one value for each example, of outputs and targets, or of the model and a batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, final

from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_structure

from privlearn.data.rows import Leaves, Rows, nested
from privlearn.errors import BadInput

#: (outputs, targets) to one value for each example, shape (batch,); or (model, batch) to that, where the first parameter is
#: called `model`.
Loss = Callable[..., Tensor]


@final
@dataclass(frozen=True)
class BatchShape:
    """How the tensors of a batch make up what the model and the loss are given.

    Attributes:
        structure: the nest.
        inputs: how many tensors belong to the inputs, the first ones.
        whole: whether the loss is one of the model and the batch.
    """

    structure: TreeSpec
    inputs: int = 1
    whole: bool = False

    def __deepcopy__(self, memo: object) -> BatchShape:
        return self

    @classmethod
    def of(cls, rows: Rows, loss: Loss) -> BatchShape:
        """That of these rows, for this loss.

        Raises:
            BadInput: a loss of outputs and targets, and batches that are no pair.
        """
        whole = takes_model(loss)
        if (not whole and rows.structure.num_children != 2) or (rows.structure.type is dict and not whole):
            given = getattr(rows.structure.type, "__name__", "tensor")
            raise BadInput(
                f"the loss is one of outputs and targets, and a batch is a {given}, not a pair (inputs, targets): give "
                "a loss of the model and the batch, loss(model, batch), whose first parameter is called model"
            )
        if (rows.structure, whole) == (PAIR.structure, False):
            return PAIR
        return cls(rows.structure, len(rows.like) if whole else rows.inputs, whole)


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


def losses_of(model: nn.Module, loss: Loss, leaves: Sequence[Tensor], shape: BatchShape = PAIR) -> Any:
    """What `loss` gives for a batch: a model is called with a tensor, with all of a tuple, or with a dictionary's names."""
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
    """A model and a loss as one module, from the tensors of a batch to one value for each example."""

    def __init__(self, model: nn.Module, loss: Loss, shape: BatchShape = PAIR) -> None:
        super().__init__()
        self.model = model
        self._loss = (loss,)  # its own tensors are not the module's
        self._shape = shape

    def forward(self, *leaves: Tensor) -> Any:
        """One value for each example."""
        return losses_of(self.model, self._loss[0], leaves, self._shape)


__all__ = ["PAIR", "BatchShape", "Leaves", "Loss", "Losses", "losses_of", "takes_model"]
