"""Computing with rows leaves what a model and a loss hold as it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import nn

from privlearn.core.clipping.parameters.attributes import SMALL, PlainAttributes
from privlearn.core.clipping.trained_state import TrainedState


@final
class FrozenState:
    """Buffers, frozen parameters and plain attributes: many are published, but no release ever
    fills them.

    A model that writes into them on some data only would carry these data into later batches, and
    into the published model. To refuse it then would tell of the data, too: so what it wrote is
    undone. Trained parameters, which steps of the optimizer change, are held for a block
    (`holding`).

    Args:
        model: as it is now is how it stays, apart from its trainable parameters.
        loss: if it is a module, or a method of one, so does it, with all of its parameters that are
            not the model's.

    Attributes:
        trained: the trained parameters.
        attributes: what modules keep in plain attributes.
    """

    def __init__(self, model: nn.Module, loss: object = None) -> None:
        owners = [
            model,
            *(
                o
                for o in (loss, getattr(loss, "__self__", None), getattr(loss, "func", None))
                if isinstance(o, nn.Module)
            ),
        ]
        trained = {id(p) for p in model.parameters() if p.requires_grad}
        self.trained = TrainedState(model)
        self._buffers = [
            (module, dict(module._buffers)) for owner in owners for module in owner.modules()
        ]
        tensors = [tensor for owner in owners for tensor in (*owner.buffers(), *owner.parameters())]
        held = [tensor for tensor in tensors if id(tensor) not in trained]
        self.attributes = PlainAttributes(
            owners, [p for p in model.parameters() if p.requires_grad]
        )
        self._values: list[list[Any]] = [
            [tensor, tensor.detach().clone(), tensor._version] for tensor in held
        ]

    @contextmanager
    def holding(self) -> Iterator[None]:
        """A block that computes with rows, in which trained parameters, too, are restored; also
        where it fails.
        """
        self.attributes.take()
        with self.trained.holding():
            try:
                yield
            finally:
                self.restore()

    def restore(self, thoroughly: bool = False) -> None:
        """Make everything what it was, trained parameters only in a block that holds them.

        Args:
            thoroughly: also undo what was written into large tensors through `.data`, of which
                PyTorch does not tell.
        """
        for module, buffers in self._buffers:
            module._buffers.clear()
            module._buffers.update(buffers)
        for entry in self._values:
            tensor, value, version = entry
            if thoroughly or tensor.nbytes <= SMALL or tensor._version != version:
                with torch.no_grad():
                    tensor.copy_(value)
                entry[2] = tensor._version
        self.attributes.restore()
        self.trained.restore()
