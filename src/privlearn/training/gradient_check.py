"""Whether the clipped sum of a model is what autograd says, for every weight that is to be trained;
on made-up rows.
"""

from __future__ import annotations

import warnings

import numpy as np
import torch
from torch import Tensor, nn

from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping.clips import Flat
from privlearn.core.clipping.gradients import ClippedGradients
from privlearn.core.clipping.indices import looking_at
from privlearn.core.clipping.losses import BatchShape, Leaves, Loss, losses_of
from privlearn.core.clipping.model_check import made_up_rows
from privlearn.core.clipping.randomness import RowRandom
from privlearn.core.clipping.sharded.models import is_sharded
from privlearn.core.rows import Rows, TensorRows, nested
from privlearn.core.sampling import FullBatch
from privlearn.errors import BadInput, NotPerExample, PrivlearnError, first_line

_EXAMPLES = 4
#: Relative difference of sums in single precision.
_AGREE = 1e-3
#: What random numbers of losses follow from, in both sums.
_SEED = 0


def require_gradients(model: nn.Module, loss: Loss | None, rows: Rows) -> None:
    """Compare the clipped sum on made-up rows with autograd's, one example at a time, for every
    trainable parameter. Of a model under FSDP2, all processes do so when its sums are prepared.

    That weights moved in training proves nothing: the noise moves them all. Nothing private is
    looked at, and no release is made.

    Args:
        model: as it is to be trained; it is left as it was.
        loss: of the model.
        rows: whose shapes and types made-up rows have.

    Raises:
        BadInput: a parameter is trained to which no gradient flows.
        NotPerExample: the sums differ.
    """
    assert loss is not None
    if is_sharded(model):
        return
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()  # without dropout, which two computations would draw differently
        device = next(model.parameters()).device
        shape = BatchShape.of(rows, loss)
        made_up = tuple(
            leaf.to(device)
            for leaf in shape.made_up(made_up_rows(rows.like, shape.inputs, _EXAMPLES))
        )
        like_data = TensorRows(nested(made_up, rows.structure))
        random = _draws_of(like_data)
        try:
            true, norm = _by_autograd(model, loss, made_up, shape, random)
        except _CannotRun:
            model.train()  # some models give losses in this mode alone
            try:
                true, norm = _by_autograd(model, loss, made_up, shape, random)
            except _CannotRun as error:
                raise BadInput(str(error)) from error.__cause__
        if not 0 < norm < float("inf"):
            return  # made-up rows tell nothing of this model
        # which lets all pass
        gradients = ClippedGradients(
            model,
            loss,
            Flat(2.0 * norm),
            Adjacency.ZERO_OUT,
            view_seeds=np.random.default_rng(_SEED),
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the run itself says what is slow
            gradients.prepare(like_data)
        (sample,) = FullBatch().draw(_EXAMPLES, np.random.default_rng(0))
        sums = gradients(sample, like_data)
    finally:
        for module, training in modes:
            module.training = training
    for name, value in zip(gradients.parameters, sums.values, strict=True):
        if float((value - true.pop(name)).norm()) > _AGREE * norm:
            raise NotPerExample(
                f"the clipped sum of {name!r} differs from autograd's on made-up rows: its "
                "gradient is not that of the loss. Freeze it with requires_grad_(False), or "
                "report the model",
                parameter=name,
            )
    if true:
        raise NotPerExample(
            f"{next(iter(true))!r} is trained, and not in the clipped sum: it would not be "
            "protected"
        )


class _CannotRun(BadInput):
    """The model or the loss fails on made-up rows."""


def _draws_of(rows: Rows) -> RowRandom:
    """The random numbers that the clipped sum's first batch has for these rows: a loss may draw
    some, as that of a variational autoencoder does.
    """
    random = RowRandom()
    random.active = True
    random.begin(np.random.default_rng(_SEED).bytes(16))
    random.take(rows.identities(torch.arange(_EXAMPLES, device="cpu")))
    return random


def _by_autograd(
    model: nn.Module, loss: Loss, made_up: Leaves, shape: BatchShape, random: RowRandom
) -> tuple[dict[str, Tensor], float]:
    """The sum of the gradients of single examples, by name, and the largest norm of one.

    Raises:
        BadInput: a parameter has none.
    """
    trained = {
        name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad
    }
    sums, norms = {name: torch.zeros_like(parameter) for name, parameter in trained.items()}, []
    for row in range(_EXAMPLES):
        try:
            with torch.enable_grad(), random.alone(row), looking_at(made_up[0].device):
                total_loss = losses_of(
                    model, loss, [leaf[row : row + 1] for leaf in made_up], shape
                ).sum()
        except PrivlearnError:
            raise
        except Exception as error:
            raise _CannotRun(
                f"the model or the loss fails on made-up rows: {type(error).__name__}: "
                f"{first_line(error)}. If rows must hold certain values, give made_up, which "
                "changes such a batch into one as the data are"
            ) from error
        gradients = dict(
            zip(
                trained,
                torch.autograd.grad(total_loss, list(trained.values()), allow_unused=True),
                strict=True,
            )
        )
        missing = [name for name, gradient in gradients.items() if gradient is None]
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise BadInput(
                f"no gradient flows to {missing[0]!r}{more}, and it is to be trained: noise alone "
                "would move it. Freeze it with requires_grad_(False), or use it in the loss",
                parameters=missing,
            )
        norms.append(sum(float(gradient.square().sum()) for gradient in gradients.values()) ** 0.5)
        for name, gradient in gradients.items():
            sums[name] += gradient
    return sums, max(norms)
