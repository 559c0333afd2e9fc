"""This rule covers parameters that every example is added to or multiplied by: biases, scales,
positions, class tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor

from privlearn.core.clipping.capture import Call, Capture
from privlearn.core.clipping.per_example import Dense


@final
class Broadcast:
    """x + p or x * p, where p has no dimension for the batch."""

    def __init__(self, parameter: Tensor, multiply: bool) -> None:
        self._parameter, self._multiply = parameter, multiply
        self.parameters = (parameter,)

    def forward(self, x: Tensor) -> Tensor:
        """The sum or product."""
        parameter = self._parameter.to(x.dtype)
        return x * parameter if self._multiply else x + parameter

    def backward(self, call: Call, x: Tensor, g: Tensor, wanted: bool) -> Tensor | None:
        """Keep gradients of the parameter."""
        parameter = self._parameter
        # As many dimensions as the examples have; what the parameter lacks or has once is summed
        # over.
        each = call.grouped(g) * call.grouped(x) if self._multiply else call.grouped(g)
        shape = [1] * (x.dim() - parameter.dim()) + list(parameter.shape)
        if call.layout.axis == 1:
            shape[0], shape[1] = shape[1], shape[0]
        over = [
            1,
            *(
                axis + 1
                for axis in range(1, x.dim())
                if shape[axis] == 1 and each.shape[axis + 1] != 1
            ),
        ]
        call.keep(parameter, None, Dense(each.sum(over).reshape(len(each), *parameter.shape)))
        if not wanted:
            return None
        return g * parameter.to(g.dtype) if self._multiply else g


@final
class Expanded:
    """p.expand(batch, ...): a copy of p for every example."""

    def __init__(self, parameter: Tensor, shape: tuple[int, ...]) -> None:
        self._parameter, self._shape = parameter, shape
        self.parameters = (parameter,)

    def forward(self, x: Tensor) -> Tensor:
        """The copies; `x` only has their shape."""
        return self._parameter.expand(self._shape).clone(memory_format=torch.contiguous_format)

    def backward(self, call: Call, x: Tensor, g: Tensor, wanted: bool) -> None:
        """Keep gradients of the parameter."""
        shape = [1] * (g.dim() - self._parameter.dim()) + list(self._parameter.shape)
        each = call.grouped(g)
        over = [
            1,
            *(
                axis + 1
                for axis in range(1, g.dim())
                if shape[axis] == 1 and each.shape[axis + 1] != 1
            ),
        ]
        call.keep(
            self._parameter, None, Dense(each.sum(over).reshape(len(each), *self._parameter.shape))
        )


def copied(capture: Capture, parameter: Tensor, rows: int) -> Tensor:
    """`parameter`, whose first dimension is 1, for every row of a batch."""
    shape = (rows, *parameter.shape[1:])
    if not capture.trains(parameter):
        return parameter.expand(shape)
    return _copies(capture, parameter, shape)


def _broadcast(capture: Capture, one: Any, other: Any, multiply: bool) -> Any:
    x, parameter = (other, one) if capture.trains(one) else (one, other)
    if (
        not capture.trains(parameter)
        or capture.trains(x)
        or not isinstance(x, Tensor)
        or not x.is_floating_point()
    ):
        return NotImplemented
    wide = x.dim() - parameter.dim()
    if x.dim() < 2 or wide < 0:
        return NotImplemented
    shape = [1] * wide + list(parameter.shape)
    # The batch, first or second, must not be among the parameter's dimensions; and x must not grow.
    if shape[0] != 1 or any(size not in (1, x.shape[axis]) for axis, size in enumerate(shape)):
        return NotImplemented
    return capture.run(Broadcast(parameter, multiply), x, low=False)


def add(capture: Capture, input: Any, other: Any, **options: Any) -> Any:
    """`torch.add`."""
    out = NotImplemented if options else _broadcast(capture, input, other, multiply=False)
    return spread(torch.add, capture, input, other, **options) if out is NotImplemented else out


def multiply(capture: Capture, input: Any, other: Any, **options: Any) -> Any:
    """`torch.mul`."""
    out = NotImplemented if options else _broadcast(capture, input, other, multiply=True)
    return spread(torch.mul, capture, input, other, **options) if out is NotImplemented else out


def spread(func: Callable[..., Any], capture: Capture, *args: Any, **kwargs: Any) -> Any:
    """Any operation that broadcasts its tensors: parameters are copied for every row, the rest is
    torch's.
    """
    tensors = [t for t in (*args, *kwargs.values()) if isinstance(t, Tensor)]
    if not capture.trains(*tensors) or all(capture.trains(t) for t in tensors):
        return NotImplemented
    dims = max(t.dim() for t in tensors)
    rows = max(len(t) for t in tensors if t.dim() == dims)

    def copies(t: Any) -> Any:
        if not isinstance(t, Tensor) or not capture.trains(t):
            return t
        shape = (rows, *[1] * (dims - t.dim() - 1), *(t.shape[1:] if t.dim() == dims else t.shape))
        return _copies(capture, t, shape)

    if dims < 1 or any(t.dim() == dims and len(t) != 1 for t in tensors if capture.trains(t)):
        return NotImplemented
    return func(*map(copies, args), **{name: copies(value) for name, value in kwargs.items()})


def expand(capture: Capture, input: Tensor, *sizes: Any, size: Any = None) -> Any:
    """`torch.Tensor.expand`."""
    if not capture.trains(input):
        return NotImplemented
    wanted = size or (
        tuple(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
    )
    shape = tuple(input.detach().expand(wanted).shape)
    wide = len(shape) - input.dim()
    if (wide == 0 and input.shape[0] != 1) or len(shape) < 2:
        return NotImplemented
    return _copies(capture, input, shape)


def expand_as(capture: Capture, input: Tensor, other: Tensor) -> Any:
    """`torch.Tensor.expand_as`."""
    return expand(capture, input, other.shape)


def repeat(capture: Capture, input: Tensor, *sizes: Any) -> Any:
    """`torch.Tensor.repeat`, along the first dimension."""
    wanted = tuple(sizes[0]) if len(sizes) == 1 and not isinstance(sizes[0], int) else sizes
    if not capture.trains(input) or any(size != 1 for size in wanted[1:]):
        return NotImplemented
    wide = input.detach().dim() < len(wanted)
    if not wide and len(input) == 0:
        return NotImplemented
    copies = _copies(
        capture, input, (wanted[0], *[1] * (len(wanted) - 1 - input.dim()), *input.shape)
    )
    return copies if wide else copies.flatten(0, 1)


def _copies(capture: Capture, parameter: Tensor, shape: tuple[int, ...]) -> Tensor:
    """A parameter in every row of a tensor of this shape."""
    return capture.run(
        Expanded(parameter, shape), parameter.detach().new_empty(1).expand(shape), low=False
    )
