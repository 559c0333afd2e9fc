"""Whether the clipped sum of a model is what autograd says, for every weight that is to be trained; on made-up rows."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from privlearn.accounting.guarantee import Adjacency
from privlearn.clipping.clips import Flat
from privlearn.clipping.gradients import ClippedGradients
from privlearn.clipping.losses import BatchShape, Leaves, Loss, losses_of
from privlearn.data.rows import Rows, TensorRows, nested
from privlearn.errors import BadInput, NotPerExample
from privlearn.models.check import made_up_rows
from privlearn.sampling import FullBatch

_EXAMPLES = 4
#: Relative difference of sums in single precision.
_AGREE = 1e-3


def require_gradients(model: nn.Module, loss: Loss, rows: Rows) -> None:
    """Compare the clipped sum on made-up rows with autograd's, one example at a time, for every trainable parameter.

    That weights moved in training proves nothing: the noise moves them all. Nothing private is looked at, and no release is
    made.

    Args:
        model: as it is to be trained; it is left as it was.
        loss: of the model.
        rows: whose shapes and types made-up rows have.

    Raises:
        BadInput: a parameter is trained to which no gradient flows.
        NotPerExample: the sums differ.
    """
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()  # without dropout, which two computations would draw differently
        device = next(model.parameters()).device
        shape = BatchShape.of(rows, loss)
        made_up = tuple(leaf.to(device) for leaf in made_up_rows(rows.like, shape.inputs, _EXAMPLES))
        true = _by_autograd(model, loss, made_up, shape)
        total = sum(float(own.square().sum()) for own in true.values()) ** 0.5
        if not 0 < total < float("inf"):
            return  # made-up rows tell nothing of this model
        clip = Flat(2.0 * _EXAMPLES * total)  # which lets all pass, as far as one sum can tell
        gradients = ClippedGradients(model, loss, clip, Adjacency.ZERO_OUT)
        (sample,) = FullBatch().draw(_EXAMPLES, np.random.default_rng(0))
        own = gradients(sample, TensorRows(nested(made_up, rows.structure)))
    finally:
        for module, training in modes:
            module.training = training
    for name, value in zip(gradients.parameters, own.values, strict=True):
        if float((value - true.pop(name)).norm()) > _AGREE * total:
            raise NotPerExample(
                f"the clipped sum of {name!r} differs from autograd's on made-up rows: its gradient is not that of the loss. "
                "Freeze it with requires_grad_(False), or report the model",
                parameter=name,
            )
    if true:
        raise NotPerExample(f"{next(iter(true))!r} is trained, and not in the clipped sum: it would not be protected")


def _by_autograd(model: nn.Module, loss: Loss, made_up: Leaves, shape: BatchShape) -> dict[str, Tensor]:
    """The gradient of the sum of the losses of single examples, by name.

    Raises:
        BadInput: a parameter has none.
    """
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    with torch.enable_grad():
        losses = [losses_of(model, loss, [leaf[row : row + 1] for leaf in made_up], shape) for row in range(_EXAMPLES)]
        gradients = torch.autograd.grad(torch.cat(losses).sum(), list(trained.values()), allow_unused=True)
    missing = [name for name, own in zip(trained, gradients, strict=True) if own is None]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise BadInput(
            f"no gradient flows to {missing[0]!r}{more}, and it is to be trained: noise alone would move it. Freeze it with "
            "requires_grad_(False), or use it in the loss",
            parameters=missing,
        )
    return dict(zip(trained, gradients, strict=True))
