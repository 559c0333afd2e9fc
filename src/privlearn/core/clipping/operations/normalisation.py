"""This rule covers normalisations within an example: layer, group, instance, root mean square."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor

from privlearn.core.clipping.capture import Call, Capture
from privlearn.core.clipping.per_example import Dense


class _Affine:
    """What the normalisations share: a scale and a shift, either of which may be missing or
    fixed.
    """

    def __init__(self, capture: Capture, weight: Tensor | None, bias: Tensor | None) -> None:
        self.weight, self.bias = weight, bias
        self.parameters = tuple(p for p in (weight, bias) if p is not None and capture.trains(p))

    def keep(self, call: Call, scale: Tensor | None, shift: Tensor | None) -> None:
        """Keep each example's gradients of those that are trained."""
        for parameter, gradients in ((self.weight, scale), (self.bias, shift)):
            if (
                gradients is not None
                and parameter is not None
                and any(parameter is p for p in self.parameters)
            ):
                call.keep(
                    parameter, None, Dense(gradients.reshape(len(gradients), *parameter.shape))
                )


@final
class LayerNorm(_Affine):
    """Over the last dimensions."""

    def __init__(
        self,
        capture: Capture,
        weight: Tensor | None,
        bias: Tensor | None,
        shape: Sequence[int],
        eps: float,
    ) -> None:
        super().__init__(capture, weight, bias)
        self._shape, self._eps = list(shape), eps

    def forward(self, x: Tensor) -> Tensor:
        """The output; mean and scale are kept."""
        out, self._mean, self._rstd = torch.native_layer_norm(
            x, self._shape, self.weight, self.bias, self._eps
        )
        return out

    def backward(self, call: Call, x: Tensor, g: Tensor, wanted: bool) -> Tensor | None:
        """Keep gradients of the scale and of the shift."""
        normal = (x - self._mean).mul_(self._rstd)
        features = len(self._shape)
        scale, shift = (call.positions(t.flatten(-features)).sum(1) for t in (normal.mul_(g), g))
        self.keep(call, scale, shift)
        if not wanted:
            return None
        back: Tensor = torch.ops.aten.native_layer_norm_backward(
            g, x, self._shape, self._mean, self._rstd, self.weight, self.bias, [True, False, False]
        )[0]
        return back


@final
class RMSNorm(_Affine):
    """By the root mean square over the last dimensions."""

    def __init__(
        self, capture: Capture, weight: Tensor, shape: Sequence[int], eps: float | None
    ) -> None:
        super().__init__(capture, weight, None)
        self._dims, self._eps = tuple(range(-len(shape), 0)), eps

    def forward(self, x: Tensor) -> Tensor:
        """The output; the scale is kept."""
        eps = torch.finfo(x.dtype).eps if self._eps is None else self._eps
        self._rstd = x.square().mean(self._dims, keepdim=True).add_(eps).rsqrt_()
        assert self.weight is not None
        return (x * self._rstd).mul_(self.weight)

    def backward(self, call: Call, x: Tensor, g: Tensor, wanted: bool) -> Tensor | None:
        """Keep gradients of the scale."""
        assert self.weight is not None
        normal = x * self._rstd
        self.keep(call, call.positions((normal * g).flatten(self._dims[0])).sum(1), None)
        if not wanted:
            return None
        inner = g * self.weight
        return (inner - normal * (inner * normal).mean(self._dims, keepdim=True)).mul_(self._rstd)


@final
class GroupNorm(_Affine):
    """Over groups of channels. Examples become channels, so one call gives the affine gradients of
    each.
    """

    def __init__(
        self, capture: Capture, weight: Tensor | None, bias: Tensor | None, groups: int, eps: float
    ) -> None:
        super().__init__(capture, weight, bias)
        self._groups, self._eps = groups, eps

    def forward(self, x: Tensor) -> Tensor:
        """The output; mean and scale are kept."""
        x = x.contiguous()
        batch, channels, size = len(x), x.shape[1], x[0, 0].numel()
        out, self._mean, self._rstd = torch.native_group_norm(
            x, self.weight, self.bias, batch, channels, size, self._groups, self._eps
        )
        return out

    def backward(self, call: Call, x: Tensor, g: Tensor, wanted: bool) -> Tensor | None:
        """Keep gradients of the scale and of the shift."""
        batch, channels, size = len(x), x.shape[1], x[0, 0].numel()
        weight = None if self.weight is None else self.weight.repeat(batch)
        back, scale, shift = torch.ops.aten.native_group_norm_backward(
            g.contiguous(),
            x.contiguous(),
            self._mean.view(1, -1),
            self._rstd.view(1, -1),
            weight,
            1,
            batch * channels,
            size,
            batch * self._groups,
            [wanted, True, True],
        )
        self.keep(call, *(call.grouped(t.view(batch, channels)).sum(1) for t in (scale, shift)))
        return back.view_as(x) if wanted else None


def layer_norm(
    capture: Capture,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    """`torch.nn.functional.layer_norm`."""
    if not (capture.trains(weight, bias) and capture.knows(weight, bias)) or input.dim() <= len(
        normalized_shape
    ):
        return NotImplemented
    return capture.run(LayerNorm(capture, weight, bias, normalized_shape, eps), input, low=False)


def rms_norm(
    capture: Capture,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
) -> Any:
    """`torch.nn.functional.rms_norm`."""
    if weight is None or not capture.trains(weight) or input.dim() <= len(normalized_shape):
        return NotImplemented
    return capture.run(RMSNorm(capture, weight, normalized_shape, eps), input, low=False)


def group_norm(
    capture: Capture,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Any:
    """`torch.nn.functional.group_norm`."""
    if not (capture.trains(weight, bias) and capture.knows(weight, bias)) or input.dim() < 2:
        return NotImplemented
    return capture.run(GroupNorm(capture, weight, bias, num_groups, eps), input, low=False)


def instance_norm(
    capture: Capture,
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """`torch.nn.functional.instance_norm`: a group for each channel."""
    if not (capture.trains(weight, bias) and capture.knows(weight, bias)) or input.dim() < 3:
        return NotImplemented
    if running_mean is not None or not use_input_stats:
        return NotImplemented
    return capture.run(GroupNorm(capture, weight, bias, input.shape[1], eps), input, low=False)
