"""This rule covers convolutions and transposed convolutions in one to three dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, final

import torch
from torch import Tensor
from torch.nn import functional as F

from privlearn.core.clipping.capture import Call, Capture
from privlearn.core.clipping.per_example import (
    Dense,
    ExampleGradients,
    GramNorms,
    sum_of_outer,
    worth_forming,
)
from privlearn.core.devices import on_processor
from privlearn.core.precision import callers_precision

#: Bytes of gradients up to which one call forms those of all examples, and what one call forms
#: where they are more. The system clears all memory of a larger result, which takes longer than to
#: compute it, and longer than to copy the parts.
_WHOLE, _PART = 1 << 24, 1 << 21


@final
class Convolution:
    """A convolution; all sizes are tuples with one entry for each spatial dimension."""

    def __init__(
        self,
        capture: Capture,
        weight: Tensor,
        bias: Tensor | None,
        sizes: tuple[Sequence[int], Sequence[int], Sequence[int]],
        transposed: bool,
        output_padding: Sequence[int],
        groups: int,
    ) -> None:
        self._weight, self._bias = weight, bias
        self._sizes = self._stride, self._padding, self._dilation = sizes
        self._transposed, self._output_padding, self._groups = transposed, output_padding, groups
        self._kernels = capture.kernels
        self.parameters = tuple(p for p in (weight, bias) if p is not None and capture.trains(p))
        self._trains = (capture.trains(weight), capture.trains(bias))
        self._handed_on = weight in capture.derived

    def forward(self, x: Tensor) -> Tensor:
        """The output."""
        bias = None if self._bias is None else self._bias.to(x.dtype)
        return torch.convolution(
            x,
            self._weight.to(x.dtype),
            bias,
            self._stride,
            self._padding,
            self._dilation,
            self._transposed,
            self._output_padding,
            self._groups,
        )

    def backward(self, call: Call, x: Tensor, g: Tensor, wanted: bool) -> Tensor | None:
        """Keep gradients of the weight and of the bias."""
        inputs, outputs = call.grouped(x), call.grouped(g)  # (examples, rows, channels, ...)
        if self._trains[0]:
            call.keep(self._weight, None, self._weight_gradients(inputs, outputs))
        if self._trains[1]:
            assert self._bias is not None
            call.keep(self._bias, None, Dense(outputs.flatten(3).sum((1, 3))))
        if not wanted:
            return None
        with callers_precision():
            return self._native(g, x, self._weight.to(g.dtype), self._groups, 0)

    def _native(self, g: Tensor, x: Tensor, weight: Tensor, groups: int, which: int) -> Tensor:
        """The gradient of the input (0) or of the weight (1)."""
        gradient: Tensor = torch.ops.aten.convolution_backward(
            g,
            x,
            weight,
            None,
            self._stride,
            self._padding,
            self._dilation,
            self._transposed,
            self._output_padding,
            groups,
            [which == 0, which == 1, False],
        )[which]
        return gradient

    def _weight_gradients(self, x: Tensor, g: Tensor) -> ExampleGradients:
        weight = self._weight
        shape, kernel = weight.shape, weight.shape[2:]
        unpadded = (
            not any(self._padding) and not any(self._output_padding) and set(self._dilation) == {1}
        )
        if self._groups == 1 and unpadded and tuple(kernel) == tuple(self._stride):
            # Patches don't overlap: a linear layer on them.
            if self._transposed:
                return sum_of_outer(_channels_last(x), _patches(g, kernel), shape, self._kernels)
            if math.prod(kernel) == 1:
                outputs, inputs = _channels_last(g), _channels_last(x)
                if not self._handed_on:
                    return sum_of_outer(outputs, inputs, shape, self._kernels)
                sums = self._hand_on(outputs, inputs)
                formed = worth_forming(inputs.shape[1], *shape[:2])
                return Dense(sums.form()) if formed else sums
        unfolds = len(kernel) <= 2 or not on_processor(x)
        if unfolds and self._groups == 1 and not self._transposed:
            positions = x.shape[1] * math.prod(g.shape[3:])
            if not worth_forming(positions, shape[0], math.prod(shape[1:])):
                outputs, inputs = _channels_last(g), self._unfold(x)
                if self._handed_on:
                    return self._hand_on(outputs, inputs)
                return GramNorms(outputs, inputs, shape, partial(self._add_weighted, x, g))
        if not on_processor(x) and self._groups == 1 and not self._transposed:
            from privlearn.core.clipping.operations.patches import form  # for accelerators alone

            return Dense(form(x, g, self._weight.shape, self._sizes))
        return Dense(self._form(x, g))

    def _hand_on(self, g: Tensor, a: Tensor) -> ExampleGradients:
        """The gradients of weights that were made of others, such as standardised ones."""
        from privlearn.core.clipping.parameters.standardisation import OuterSums  # for these alone

        return OuterSums(g, a, self._weight.shape, self._kernels)

    def _form(self, x: Tensor, g: Tensor) -> Tensor:
        """Each example's gradient, shape (examples, *weight)."""
        nbytes = self._weight.numel() * x.itemsize
        if len(x) * nbytes <= _WHOLE or not on_processor(x):
            return self._form_at_once(x, g)
        formed = self._kernels.scratch.empty((len(x), *self._weight.shape), x)
        parts = (t.split(max(_PART // nbytes, 1)) for t in (formed, x, g))  # type: ignore[no-untyped-call]
        for part, inputs, outputs in zip(*parts, strict=True):
            part.copy_(self._form_at_once(inputs, outputs))
        return formed

    def _form_at_once(self, x: Tensor, g: Tensor) -> Tensor:
        """Each example becomes a group of channels of one wide image, so one call gives every
        example's gradient.
        """
        examples, rows, kernel = len(x), x.shape[1], self._weight.shape[2:]
        wide_x, wide_g = (t.transpose(0, 1).reshape(rows, -1, *t.shape[3:]) for t in (x, g))
        if (
            len(kernel) == 2
            and rows == 1
            and self._weight.shape[1] == 1
            and self._groups == 1
            and not self._transposed
        ):
            # One input channel: a convolution of each image with its gradients, which change places
            # with the strides.
            kernels = wide_g.reshape(-1, 1, *g.shape[3:])
            out = F.conv2d(
                wide_x, kernels, None, self._dilation, self._padding, self._stride, groups=examples
            )
            return out[..., : kernel[0], : kernel[1]].reshape(examples, *self._weight.shape)
        shape = [examples * self._weight.shape[0], *self._weight.shape[1:]]
        weight = self._kernels.scratch.empty(shape, x)  # only its shape matters
        gradients = self._native(wide_g, wide_x, weight, examples * self._groups, 1)
        return gradients.reshape(examples, *self._weight.shape)

    def _unfold(self, x: Tensor) -> Tensor:
        """Patches, shape (examples, positions, channels x kernel)."""
        kernel = self._weight.shape[2:]
        rows = x.flatten(0, 1)
        if not on_processor(x):
            from privlearn.core.clipping.operations.patches import unfold  # for accelerators alone

            return unfold(rows, kernel, self._sizes).reshape(
                len(x), -1, kernel.numel() * x.shape[2]
            )
        if len(kernel) == 1:
            patches = F.unfold(
                rows[:, :, None],
                (1, *kernel),
                (1, *self._dilation),
                (0, *self._padding),
                (1, *self._stride),
            )
        else:
            patches = F.unfold(
                rows, kernel, tuple(self._dilation), tuple(self._padding), tuple(self._stride)
            )
        return patches.mT.reshape(len(x), -1, patches.shape[1])

    def _add_weighted(self, x: Tensor, g: Tensor, weights: Tensor, into: Tensor) -> None:
        scaled = self._kernels.scaled(g.to(into.dtype), weights)
        weight = self._weight.to(into.dtype)  # for its shape
        into += self._native(
            scaled.flatten(0, 1), x.to(into.dtype).flatten(0, 1), weight, self._groups, 1
        )


def _channels_last(t: Tensor) -> Tensor:
    """(examples, rows, channels, ...) as (examples, positions, channels)."""
    return t.flatten(3).mT.flatten(1, 2)


def _patches(t: Tensor, kernel: Sequence[int]) -> Tensor:
    """(examples, rows, channels, ...) as patches of the kernel's size, (examples, positions,
    channels x kernel).
    """
    spatial = len(kernel)
    for axis, size in enumerate(kernel):
        t = t.unflatten(3 + 2 * axis, (-1, size))  # type: ignore[no-untyped-call]
    places = [3 + 2 * axis for axis in range(spatial)]
    inside = [4 + 2 * axis for axis in range(spatial)]
    return t.permute(0, 1, *places, 2, *inside).flatten(2 + spatial).flatten(1, -2)


def _tuple(value: Any, spatial: int) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * spatial
    values = tuple(value)
    return values * spatial if len(values) == 1 else values


def convolution(
    spatial: int,
    capture: Capture,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Any:
    """`torch.conv1d` to `torch.conv3d`."""
    stride, dilation = _tuple(stride, spatial), _tuple(dilation, spatial)
    if isinstance(padding, str):
        total = (
            [d * (k - 1) for d, k in zip(dilation, weight.shape[2:], strict=True)]
            if padding == "same"
            else [0]
        )
        padding = [t // 2 for t in total]
        if any(t % 2 for t in total):  # one more on the far side
            input = F.pad(input, [n for t in reversed(total) for n in (0, t % 2)])
    return _run(
        capture,
        input,
        weight,
        bias,
        (stride, _tuple(padding, spatial), dilation),
        False,
        0,
        groups,
        spatial,
    )


def transposed_convolution(
    spatial: int,
    capture: Capture,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Any:
    """`torch.conv_transpose1d` to `torch.conv_transpose3d`."""
    sizes = (_tuple(stride, spatial), _tuple(padding, spatial), _tuple(dilation, spatial))
    return _run(capture, input, weight, bias, sizes, True, output_padding, groups, spatial)


def _run(
    capture: Capture,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    sizes: tuple[Sequence[int], Sequence[int], Sequence[int]],
    transposed: bool,
    output_padding: Any,
    groups: int,
    spatial: int,
) -> Any:
    if not (capture.trains(weight, bias) and capture.knows(weight, bias)) or x.dim() != spatial + 2:
        return NotImplemented
    operation = Convolution(
        capture, weight, bias, sizes, transposed, _tuple(output_padding, spatial), groups
    )
    return capture.run(operation, x)
