"""Batch norms, which couple the examples of a batch, replaced by norms that don't."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import torch
from torch import Tensor, nn

from privlearn._checks import checked, count
from privlearn.errors import BadInput


@final
class FrozenBatchNorm(nn.Module):
    """A batch norm with fixed statistics: it scales and shifts channels, of inputs of shape (batch,
    channels, ...).

    Args:
        norm: the batch norm; weight and bias are taken over, and can be trained.
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, norm: nn.modules.batchnorm._BatchNorm) -> None:
        super().__init__()
        if norm.running_mean is None or norm.running_var is None:
            raise BadInput(
                "the batch norm keeps no running statistics, so there are none to freeze: replace "
                "it with groups=N"
            )
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps
        self.register_buffer("mean", norm.running_mean.detach().clone())
        self.register_buffer("variance", norm.running_var.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """Of the same shape."""
        shape = (1, -1, *[1] * (x.dim() - 2))
        y = (x - self.mean.view(shape)) * torch.rsqrt(self.variance + self.eps).view(shape)
        return y if self.weight is None else y * self.weight.view(shape) + self.bias.view(shape)


@checked
def replace_batch_norm(
    model: nn.Module, *, frozen: bool = False, groups: int | None = None
) -> nn.Module:
    """Replace every batch norm of a model, in place: by its own statistics, or by group norms.

    Args:
        model: its other modules stay as they are.
        frozen: declare the running statistics public, as those of a network that was trained on
            public data are, and keep them fixed. The network computes what it computed in
            evaluation mode. Statistics of private rows would be published without noise: no release
            covers them.
        groups: normalise each example over so many groups of channels; of public weights, weight
            and bias are kept.

    Returns:
        The model; another module if it is a batch norm itself.

    Raises:
        BadInput: neither or both are given, or the groups don't divide the channels of a norm, by
            its name.
    """
    if frozen == (groups is not None):
        raise BadInput(
            "expected one of frozen=True, which declares the running statistics public and keeps "
            "them, and groups=N, which normalises each example by itself: give one"
        )

    if groups is not None:
        count("groups", groups)

    def replace_norm(norm: nn.modules.batchnorm._BatchNorm, name: str) -> nn.Module:
        return FrozenBatchNorm(norm) if groups is None else _to_group_norm(norm, groups, name)

    return _replace_norms(model, replace_norm, "")


def _replace_norms(
    module: nn.Module,
    replacement: Callable[[nn.modules.batchnorm._BatchNorm, str], nn.Module],
    name: str,
) -> nn.Module:
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return replacement(module, name)
    for child_name, child in list(module.named_children()):
        setattr(
            module,
            child_name,
            _replace_norms(child, replacement, f"{name}.{child_name}".lstrip(".")),
        )
    return module


def _to_group_norm(norm: nn.modules.batchnorm._BatchNorm, groups: int, name: str) -> nn.Module:
    channels = norm.num_features
    if channels % groups:
        raise BadInput(
            f"groups={groups} does not divide the {channels} channels of {name or 'the norm'!r}: "
            "give a number that divides those of all norms, such as their greatest common divisor"
        )
    group_norm = nn.GroupNorm(groups, channels, norm.eps, norm.affine, device="cpu")
    if norm.affine:
        group_norm.weight, group_norm.bias = norm.weight, norm.bias
    return group_norm.to(norm.weight.device) if norm.affine else group_norm
