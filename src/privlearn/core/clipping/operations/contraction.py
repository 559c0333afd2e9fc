"""This rule covers sums of products over named dimensions, as `torch.einsum` writes them."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor

from privlearn.core.clipping.capture import Call, Capture
from privlearn.core.clipping.layout import NotLayerwise
from privlearn.core.clipping.per_example import Dense


@final
class Contraction:
    """einsum of inputs and a weight.

    Args:
        weight: any number of dimensions, none of which is the batch.
        names: the dimensions of the inputs, of the weight and of the output, one letter each.
    """

    def __init__(self, weight: Tensor, names: tuple[str, str, str]) -> None:
        self._weight, self._names = weight, names
        self.parameters = (weight,)

    def forward(self, x: Tensor) -> Tensor:
        """The output."""
        inputs, weight, outputs = self._names
        return torch.einsum(f"{inputs},{weight}->{outputs}", x, self._weight.to(x.dtype))

    def backward(self, call: Call, x: Tensor, g: Tensor, wanted: bool) -> Tensor | None:
        """Keep gradients of the weight: the same sum, over everything but the batch."""
        inputs, weight, outputs = self._names
        batch = inputs[call.layout.axis]
        if call.layout.rows * call.copies != 1 or batch not in outputs or batch in weight:
            raise NotLayerwise(
                f"einsum {inputs},{weight}->{outputs} has no dimension for the batch alone"
            )
        gradients = torch.einsum(f"{inputs},{outputs}->{batch}{weight}", x.to(g.dtype), g)
        call.keep(self._weight, None, Dense(gradients.to(call.dtype)))
        return (
            torch.einsum(f"{outputs},{weight}->{inputs}", g, self._weight.to(g.dtype))
            if wanted
            else None
        )


def einsum(capture: Capture, *operands: Any) -> Any:
    """`torch.einsum`, of inputs and a weight, or the other way round, without dots or repeated
    letters.
    """
    equation, *tensors = operands
    if len(tensors) == 1 and isinstance(tensors[0], list | tuple):
        tensors = list(tensors[0])
    if (
        not isinstance(equation, str)
        or len(tensors) != 2
        or capture.trains(*tensors) == all(map(capture.trains, tensors))
    ):
        return NotImplemented
    subscripts, arrow, outputs = equation.replace(" ", "").partition("->")
    names = subscripts.split(",")
    if (
        not arrow
        or "." in equation
        or any(len(set(letters)) < len(letters) for letters in (*names, outputs))
    ):
        return NotImplemented
    if capture.trains(tensors[0]):
        names, tensors = names[::-1], tensors[::-1]
    inputs, weight = names
    # Each letter of one must be in another: what is summed over by itself has no gradient of this
    # form.
    if (
        not (set(weight) <= {*inputs, *outputs} and set(inputs) <= {*weight, *outputs})
        or tensors[0].dim() < 2
    ):
        return NotImplemented
    return capture.run(Contraction(tensors[1], (inputs, weight, outputs)), tensors[0])
