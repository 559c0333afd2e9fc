"""A `training_step` as a loss of single examples."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from privlearn.errors import BadInput, NotPerExample


@final
class StepLoss:
    """`training_step` of a LightningModule, called with batches of one example: a loss of (model, batch).

    What it returns for one example is that example's loss, whatever it would do with a batch: a mean over one is the
    example's own. So nothing has to be believed of how it averages. The engine computes all examples of a batch at once
    where `torch.func.vmap` can follow the step, and one after the other where it can't.
    """

    def __call__(self, model: Any, batch: Any) -> Tensor:
        """Shape (batch,)."""
        rows = len(tree_leaves(batch)[0])
        return torch.stack(
            [self._of_one(model, tree_map(lambda leaf, n=n: leaf[n : n + 1], batch)) for n in range(rows)]
        )

    def _of_one(self, model: Any, row: Any) -> Tensor:
        with _quiet(model):
            output = model.training_step(row, 0)
        loss = output.get("loss") if isinstance(output, Mapping) else output
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            given = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
            raise NotPerExample(
                f"training_step gave {given} for a batch of one example: expected its loss, a tensor of one number, or "
                "a dictionary with 'loss'"
            )
        return loss.reshape(())


@contextmanager
def _quiet(module: Any) -> Iterator[None]:
    """A block in which what the step logs goes nowhere: it is private, and it may be a tensor inside vmap."""
    names = [name for name in ("log", "log_dict") if name not in vars(module)]
    for name in names:
        module.__dict__[name] = _nowhere
    try:
        yield
    finally:
        for name in names:
            module.__dict__.pop(name, None)


def _nowhere(*args: Any, **kwargs: Any) -> None:
    """Takes what is logged."""


@contextmanager
def no_metrics_in(module: nn.Module) -> Iterator[None]:
    """A block in which the step is tried: refuse one that updates torchmetrics' metrics, which keep private figures.

    Raises:
        BadInput: naming the metric.
    """
    counts = {name: _updates(own) for name, own in module.named_modules()}
    yield
    for name, own in module.named_modules():
        if _updates(own) != counts.get(name):
            raise BadInput(
                f"training_step updates the metric {name!r} with private rows: its figures would be logged without "
                "noise. Update it in validation_step"
            )


def _updates(module: nn.Module) -> int:
    return int(getattr(module, "_update_count", 0))
