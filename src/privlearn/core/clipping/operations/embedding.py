"""This rule covers embeddings."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor
from torch.nn import functional as F

from privlearn.core.clipping.capture import Call, Capture
from privlearn.core.clipping.per_example import SparseRows


@final
class Embedding:
    """A row of the weight for each token; the padding's row stays as it is."""

    def __init__(self, weight: Tensor, padding: int | None) -> None:
        self._weight, self._padding = weight, padding
        self.parameters = (weight,)

    def forward(self, x: Tensor) -> Tensor:
        """The rows."""
        return F.embedding(x, self._weight)

    def backward(self, call: Call, x: Tensor, g: Tensor, wanted: bool) -> None:
        """Keep gradients of the weight."""
        tokens, rows = call.grouped(x).flatten(1), call.positions(g)
        if self._padding is not None:
            rows = rows * (tokens != self._padding)[..., None]
        call.keep(self._weight, None, SparseRows(tokens, rows, self._weight.shape))


def embedding(
    capture: Capture,
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    """`torch.nn.functional.embedding`."""
    del norm_type  # it says how `max_norm` is meant, which is left to PyTorch
    if (
        not capture.trains(weight)
        or max_norm is not None
        or scale_grad_by_freq
        or sparse
        or input.dim() < 1
    ):
        return NotImplemented
    padding = padding_idx if padding_idx is None or padding_idx >= 0 else len(weight) + padding_idx
    return capture.run(Embedding(weight, padding), input)


def rows_of(capture: Capture, input: Tensor, index: Any) -> Any:
    """`torch.Tensor.__getitem__`, of whole numbers: an embedding."""
    if (
        not capture.trains(input)
        or input.dim() != 2
        or not isinstance(index, Tensor)
        or index.dim() < 1
    ):
        return NotImplemented
    if index.is_floating_point() or index.dtype in (torch.bool, torch.uint8):
        return NotImplemented
    return capture.run(Embedding(input, None), index)


def one_hot(capture: Capture, tensor: Tensor, num_classes: int = -1) -> Any:
    """`torch.nn.functional.one_hot`, which reads the classes to refuse those that are out of range.

    Such an example fails, and is computed apart from the rest. So where examples are followed, the
    same is computed by an operation that keeps them apart.
    """
    if not capture.follows or num_classes < 1:
        return NotImplemented
    return (tensor[..., None] == torch.arange(num_classes, device=tensor.device)).long()
