"""This rule covers linear layers, on rows and on sequences."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor
from torch.nn import functional as F

from privlearn.core.clipping.capture import Call, Capture
from privlearn.core.clipping.operations.elementwise import Broadcast, spread
from privlearn.core.clipping.per_example import Dense, ExampleGradients, OuterProduct, sum_of_outer
from privlearn.core.clipping.row_norms import RowNorms
from privlearn.core.precision import callers_precision


@final
class Linear:
    """y = x W^T + b over the last dimension, for blocks of rows of a weight and of a bias.

    Args:
        capture: says which parameters are trained.
        weight: shape (outputs, inputs).
        bias: shape (outputs,), or None.
        rows: the block of the weight that is used; None: all.
        bias_rows: the block of the bias.
    """

    def __init__(
        self,
        capture: Capture,
        weight: Tensor,
        bias: Tensor | None,
        rows: slice | None = None,
        bias_rows: slice | None = None,
    ) -> None:
        self._weight, self._bias, self._rows, self._bias_rows = weight, bias, rows, bias_rows
        self._kernels = capture.kernels
        self._trains = (capture.trains(weight), capture.trains(bias))
        self.parameters = tuple(
            p
            for p, trained in zip((weight, bias), self._trains, strict=True)
            if trained and p is not None
        )

    def forward(self, x: Tensor) -> Tensor:
        """The output."""
        weight, bias = _block(self._weight, self._rows), self._bias
        bias = None if bias is None else _block(bias, self._bias_rows).to(x.dtype)
        return self._kernels.linear(x, weight.to(x.dtype), bias)

    def backward(self, call: Call, x: Tensor, g: Tensor, wanted: bool) -> Tensor | None:
        """Keep gradients of the weight and of the bias."""
        weight = _block(self._weight, self._rows)
        single = call.single(g)
        rows, norms = (g, RowNorms(g)) if single else (call.positions(g), None)
        if self._trains[0]:
            gradients: ExampleGradients
            if norms is not None:
                gradients = OuterProduct(g, x.to(g.dtype), norms, self._kernels)
            else:
                gradients = sum_of_outer(rows, call.positions(x), weight.shape, self._kernels)
            call.keep(self._weight, self._rows, gradients)
        if self._bias is not None and self._trains[1]:
            call.keep(self._bias, self._bias_rows, Dense(rows if single else rows.sum(1), norms))
        if not wanted:
            return None
        with callers_precision():
            return self._kernels.back(g, weight.to(g.dtype))


def _block(parameter: Tensor, rows: slice | None) -> Tensor:
    return parameter if rows is None else parameter[rows]


def linear(capture: Capture, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    """`torch.nn.functional.linear`."""
    if (
        not (capture.trains(weight, bias) and capture.knows(weight, bias))
        or weight.dim() != 2
        or input.dim() < 2
    ):
        return NotImplemented
    return capture.run(Linear(capture, weight, bias), input)


@final
class Product:
    """y = x W over the last dimension, where W has shape (inputs, outputs)."""

    def __init__(self, capture: Capture, weight: Tensor) -> None:
        self._weight, self._kernels = weight, capture.kernels
        self.parameters = (weight,)

    def forward(self, x: Tensor) -> Tensor:
        """The output."""
        return self._kernels.back(x, self._weight.to(x.dtype))

    def backward(self, call: Call, x: Tensor, g: Tensor, wanted: bool) -> Tensor | None:
        """Keep gradients of the weight."""
        gradients = sum_of_outer(
            call.positions(x), call.positions(g), self._weight.shape, self._kernels
        )
        call.keep(self._weight, None, gradients)
        if not wanted:
            return None
        with callers_precision():
            return self._kernels.back(g, self._weight.T.to(g.dtype))


def matmul(capture: Capture, input: Any, other: Any) -> Any:
    """`torch.matmul`, of inputs with a weight, or of anything with what is the same for all
    examples.
    """
    if (
        capture.trains(other)
        and not capture.trains(input)
        and other.dim() == 2
        and input.dim() >= 2
    ):
        weight = capture.derived.transposed(other)
        return capture.run(
            Product(capture, other) if weight is None else Linear(capture, weight, None), input
        )
    if min(input.dim(), other.dim()) < 2 or max(input.dim(), other.dim()) < 3:
        return NotImplemented
    return spread(torch.matmul, capture, input, other)


def addmm(capture: Capture, input: Tensor, mat1: Tensor, mat2: Tensor, **options: Any) -> Any:
    """`torch.addmm`, of a bias, inputs and a weight."""
    if (
        options
        or not capture.trains(mat2)
        or capture.trains(mat1)
        or input.dim() != 1
        or not capture.knows(input)
    ):
        return NotImplemented
    out = capture.run(Product(capture, mat2), mat1)
    return (
        capture.run(Broadcast(input, multiply=False), out, low=False)
        if capture.trains(input)
        else out + input
    )


def projected(
    capture: Capture,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    rows: slice | None = None,
    bias_rows: slice | None = None,
) -> Tensor:
    """A linear layer inside another operation, whether or not its parameters are trained."""
    if capture.trains(weight, bias):
        return capture.run(Linear(capture, weight, bias, rows, bias_rows), x)
    return F.linear(x, _block(weight, rows), None if bias is None else _block(bias, bias_rows))
