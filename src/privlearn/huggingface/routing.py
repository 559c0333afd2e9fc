"""Each position is multiplied with the weight of the expert that it was routed to; a rule of the
operation gives each example's gradients.

As every rule, it is compared with single examples before a run relies on it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, final

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function

from privlearn.core.clipping.capture import Call, Capture
from privlearn.core.clipping.operations import RULES
from privlearn.core.clipping.row_norms import row_norms
from privlearn.core.devices import add_rows

#: So many numbers of products are formed at once; if those of all examples are no more, they are
#: kept from the norms to the sum.
_AT_ONCE = 1 << 24


def multiply_routed(
    x: Tensor, weight: Tensor, experts: Tensor, *, transposed: bool = False
) -> Tensor:
    """Each row times the weight of its expert.

    Args:
        x: shape (rows, inputs).
        weight: shape (experts in all, outputs, inputs).
        experts: the expert of each row, shape (rows,).
        transposed: whether weights have the shape (experts in all, inputs, outputs).

    Returns:
        Shape (rows, outputs).
    """
    if has_torch_function((x, weight, experts)):
        return handle_torch_function(
            multiply_routed, (x, weight, experts), x, weight, experts, transposed=transposed
        )
    return _by_expert(x, weight, experts, transposed)


def _by_expert(x: Tensor, weight: Tensor, experts: Tensor, transposed: bool) -> Tensor:
    """One product for each expert, of all of its rows."""
    order = experts.argsort(stable=True)
    rows = torch.bincount(experts, minlength=len(weight)).tolist()
    products = [
        part @ (one if transposed else one.mT).to(part.dtype)
        for part, one in zip(torch.split(x[order], rows), weight.unbind(), strict=True)
        if len(part)
    ]
    width = weight.shape[2 if transposed else 1]
    if not products:
        return x.new_zeros(0, width)
    return x.new_zeros(len(x), width).index_copy(0, order, torch.cat(products))


def _row_by_row(x: Tensor, weight: Tensor, experts: Tensor, transposed: bool) -> Tensor:
    """The same, where no row changes its place: every expert computes all rows."""
    out = x.new_zeros(len(x), weight.shape[2 if transposed else 1])
    for number, one in enumerate(weight.unbind()):
        product = x @ (one if transposed else one.mT).to(x.dtype)
        out = torch.where((experts == number)[:, None], product, out)
    return out


@final
class RoutedProducts:
    """The weights of experts: an example's gradient has a sum of outer products for each expert
    that one of its positions was routed to, formed before the norm.

    Those of all examples can be too large to be kept: they are then formed again for the sum.

    Args:
        experts: shape (batch, positions).
        left: shape (batch, positions, rows of a weight).
        right: shape (batch, positions, columns of a weight).
        shape: the parameter's, (experts in all, rows, columns).
    """

    def __init__(self, experts: Tensor, left: Tensor, right: Tensor, shape: Sequence[int]) -> None:
        self._shape, self._batch, total = shape, len(experts), shape[0]
        owner = torch.arange(self._batch, device=experts.device)[:, None]
        keys, order = (owner * total + experts).flatten().sort(stable=True)
        self._keys, positions = torch.unique_consecutive(keys, return_counts=True)
        self._positions = positions.tolist()
        self._left, self._right = left.flatten(0, 1)[order], right.flatten(0, 1)[order]
        self._products: Tensor | None = None
        squares = torch.zeros(self._batch, dtype=torch.float64, device=left.device)
        for part, products in self._formed():
            add_rows(squares, self._keys[part] // total, row_norms(products).square())
            self._products = products if len(products) == len(self._keys) else None
        self.squares = squares
        self.nbytes = sum(t.nbytes for t in (left, right, self._products) if t is not None)

    def _formed(self) -> Iterator[tuple[slice, Tensor]]:
        """The products of examples and experts, in the order of their keys, some at a time."""
        if self._products is not None:
            yield slice(None), self._products
            return
        at_once = max(1, _AT_ONCE // (self._shape[1] * self._shape[2]))
        lefts, rights = (torch.split(t, self._positions) for t in (self._left, self._right))
        for start in range(0, len(self._keys), at_once):
            part = slice(start, start + at_once)
            pairs = zip(lefts[part], rights[part], strict=True)
            yield part, torch.stack([left.mT @ right for left, right in pairs])

    def add_weighted(self, weights: Tensor, into: Tensor) -> None:
        """Every product, or terms that cancel would leave more rounding than their norm tells."""
        for part, products in self._formed():
            owners, experts = self._keys[part] // self._shape[0], self._keys[part] % self._shape[0]
            add_rows(into, experts, products.to(into.dtype) * weights[owners, None, None])

    def form(self) -> Tensor:
        """Dense, shape (batch, *parameter)."""
        dense = self._left.new_zeros(self._batch * self._shape[0], *self._shape[1:])
        for part, products in self._formed():
            dense[self._keys[part]] = products
        return dense.view(self._batch, *self._shape)


@final
class Routed:
    """Rows times the weights of their experts, as `multiply_routed`."""

    def __init__(self, capture: Capture, weight: Tensor, experts: Tensor, transposed: bool) -> None:
        self._weight, self._experts, self._transposed = weight, experts, transposed
        self._follows = capture.follows
        self.parameters = (weight,)

    def forward(self, x: Tensor) -> Tensor:
        """The output."""
        compute = _row_by_row if self._follows else _by_expert
        return compute(x, self._weight, self._experts, self._transposed)

    def backward(self, call: Call, x: Tensor, g: Tensor, wanted: bool) -> Tensor | None:
        """Keep gradients of the weight."""
        experts, rows, columns = call.grouped(self._experts), call.positions(g), call.positions(x)
        if self._transposed:
            rows, columns = columns, rows
        gradients = RoutedProducts(experts, rows, columns, self._weight.shape)
        call.keep(self._weight, None, gradients)
        if not wanted:
            return None
        return _by_expert(g, self._weight, self._experts, not self._transposed)


def compute_routed(
    capture: Capture, x: Tensor, weight: Tensor, experts: Tensor, *, transposed: bool = False
) -> Any:
    """`multiply_routed`, which sorts rows by their experts: where examples are followed, no row
    changes its place.
    """
    if capture.trains(weight) and not capture.trains(x) and x.dim() == 2 and weight.dim() == 3:
        return capture.run(Routed(capture, weight, experts, transposed), x)
    if capture.follows and not capture.trains(x, weight):
        return _row_by_row(x, weight, experts, transposed)
    return NotImplemented


RULES[multiply_routed] = compute_routed
