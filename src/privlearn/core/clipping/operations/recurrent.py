"""This rule covers LSTM and GRU: the input's products are linear layers; the recurrence runs here,
and keeps what its weights need.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, cast, final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from privlearn.core.clipping.capture import Call, Capture, OperationFunction, no_autocast
from privlearn.core.clipping.kernels import Kernels
from privlearn.core.clipping.operations.linear import projected
from privlearn.core.clipping.per_example import Dense, sum_of_outer


class _Cell(Protocol):
    """The recurrence of one layer in one direction: from the input's products to the states, and
    back.

    tanh(x) is computed as 2 sigmoid(2x) - 1: torch's sigmoid takes a seventh of the time of its
    tanh.
    """

    def forward(
        self,
        x: Tensor,
        start: tuple[Tensor, ...],
        weight: Tensor,
        biases: tuple[Tensor, Tensor] | None,
    ) -> tuple[Tensor, ...]:
        """The states after each step, shape (batch, steps, width), and the last ones, each (batch,
        width).
        """
        ...

    def backward(
        self, states: Tensor, g: Tensor, last: tuple[Tensor, ...], weight: Tensor
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Gradients of the input's products, of the state's products, and of the starting
        states.
        """
        ...


@final
class _LSTM:
    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def forward(
        self,
        x: Tensor,
        start: tuple[Tensor, ...],
        weight: Tensor,
        biases: tuple[Tensor, Tensor] | None,
    ) -> tuple[Tensor, ...]:
        h, c = start
        batch, steps, width = len(x), x.shape[1], h.shape[1]
        empty = self._kernels.scratch.empty
        gates = empty(x.shape, x)
        torch.add(x, 0.0 if biases is None else biases[0] + biases[1], out=gates)
        cells = empty((batch, steps + 1, width), x)
        cells[:, 0] = c
        states, squashed = (empty((batch, steps, width), x) for _ in range(2))
        new = slice(2 * width, 3 * width)
        gates[..., new] *= 2
        weight = _double(weight, new)
        each = zip(
            gates.unbind(1), cells.unbind(1)[1:], squashed.unbind(1), states.unbind(1), strict=True
        )
        for all_gates, cell, squash, state in each:
            self._kernels.add_linear(h, weight, all_gates)
            i, f, n, o = all_gates.sigmoid_().chunk(4, 1)
            c = torch.mul(f, c, out=cell).addcmul_(i, n, value=2).sub_(i)
            torch.mul(c, 2, out=squash).sigmoid_().mul_(2).sub_(1)
            h = torch.mul(o, squash, out=state)
        gates[..., new].mul_(2).sub_(1)
        self._gates, self._cells, self._squashed = gates, cells, squashed
        return states, h.clone(), c.clone()

    def backward(
        self, states: Tensor, g: Tensor, last: tuple[Tensor, ...], weight: Tensor
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        (dh, dc), width = last, states.shape[2]
        i, f, n, o = self._gates.chunk(4, 2)
        # Each gate's slope times what it is worth: to a cell, for the first three, or to a state.
        # For all steps at once.
        empty = self._kernels.scratch.empty
        d = torch.addcmul(
            self._gates, self._gates, self._gates, value=-1, out=empty(self._gates.shape, g)
        )
        d[..., :width] *= n
        d[..., width : 2 * width] *= self._cells[:, :-1]
        torch.mul(
            torch.addcmul(n.new_ones(()), n, n, value=-1), i, out=d[..., 2 * width : 3 * width]
        )
        d[..., 3 * width :] *= self._squashed
        through = torch.addcmul(o, states, self._squashed, value=-1, out=empty(states.shape, g))
        turned = weight.T.contiguous()
        steps = (d.unbind(1), g.unbind(1), through.unbind(1), f.unbind(1))
        for step, gradient, passed, forget in zip(
            *(reversed(parts) for parts in steps), strict=True
        ):
            dh = dh + gradient
            dc = torch.addcmul(dc, dh, passed)
            step[:, : 3 * width].unflatten(1, (3, width)).mul_(dc[:, None])
            step[:, 3 * width :].mul_(dh)
            dc = dc * forget
            dh = self._kernels.linear(step, turned, None)
        return d, d, (dh, dc)


@final
class _GRU:
    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels

    def forward(
        self,
        x: Tensor,
        start: tuple[Tensor, ...],
        weight: Tensor,
        biases: tuple[Tensor, Tensor] | None,
    ) -> tuple[Tensor, ...]:
        (h,) = start
        batch, steps, width = len(x), x.shape[1], h.shape[1]
        gates = x.clone() if biases is None else x + biases[0]
        products, states = (x.new_empty(batch, steps, width) for _ in range(2))
        new = slice(2 * width, 3 * width)
        gates[..., new] *= 2
        weight, bias = _double(weight, new), None if biases is None else _double(biases[1], new)
        each = zip(gates.unbind(1), products.unbind(1), states.unbind(1), strict=True)
        for all_gates, candidate, state in each:
            product = self._kernels.linear(h, weight, bias)
            candidate.copy_(product[:, new])
            r, z = all_gates[:, : 2 * width].add_(product[:, : 2 * width]).sigmoid_().chunk(2, 1)
            n = all_gates[:, new].addcmul_(r, candidate).sigmoid_().mul_(2).sub_(1)
            h = torch.lerp(n, h, z, out=state)
        self._gates, self._products, self._start = gates, products.mul_(0.5), start[0]
        return states, h.clone()

    def backward(
        self, states: Tensor, g: Tensor, last: tuple[Tensor, ...], weight: Tensor
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        (dh,), width = last, states.shape[2]
        r, z, n = self._gates.chunk(3, 2)
        before = torch.cat([self._start[:, None], states[:, :-1]], 1)
        new = (1 - z) * (1 - n * n)
        d = torch.cat([new * self._products * r * (1 - r), (before - n) * z * (1 - z), new * r], 2)
        flows, turned = torch.empty_like(states), weight.T.contiguous()
        steps = (d.unbind(1), g.unbind(1), flows.unbind(1), z.unbind(1))
        for step, gradient, flow, update in zip(*(reversed(parts) for parts in steps), strict=True):
            dh = torch.add(dh, gradient, out=flow)
            step.unflatten(1, (3, width)).mul_(dh[:, None])
            dh = (dh * update).add_(self._kernels.linear(step, turned, None))
        inputs = torch.cat([d[..., : 2 * width], flows * new], 2)
        return inputs, d, (dh,)


def _double(t: Tensor, rows: slice) -> Tensor:
    t = t.clone()
    t[rows] *= 2
    return t


class _Recurrence(OperationFunction):
    @staticmethod
    def forward(
        ctx: Any,
        cell: _Cell,
        call: Call,
        capture: Capture,
        weight: Tensor,
        biases: tuple[Tensor, Tensor] | None,
        x: Tensor,
        *start: Tensor,
    ) -> tuple[Tensor, ...]:
        ctx.cell, ctx.call, ctx.capture, ctx.weight, ctx.biases = (
            cell,
            call,
            capture,
            weight,
            biases,
        )
        states, *last = cell.forward(x, start, weight, biases)
        ctx.save_for_backward(states, start[0])
        return states, *last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor, *last: Tensor) -> tuple[Tensor | None, ...]:
        states, first = ctx.saved_tensors
        inputs, products, start = ctx.cell.backward(states, g, last, ctx.weight)
        call, capture = ctx.call, ctx.capture
        rows = call.positions(products)
        if capture.trains(ctx.weight):
            before = call.positions(torch.cat([first[:, None], states[:, :-1]], 1))
            call.keep(
                ctx.weight, None, sum_of_outer(rows, before, ctx.weight.shape, capture.kernels)
            )
        if capture.trains(*(ctx.biases or ())):
            summed = Dense(rows.sum(1))
            both = (summed if inputs is products else Dense(call.positions(inputs).sum(1)), summed)
            for bias, gradients in zip(ctx.biases, both, strict=True):
                if capture.trains(bias):
                    call.keep(bias, None, gradients)
        return (None, None, None, None, None, inputs, *start)


def _recur(
    capture: Capture,
    kind: type[_LSTM | _GRU],
    x: Tensor,
    start: tuple[Tensor, ...],
    weights: Sequence[Tensor],
) -> tuple[Tensor, ...]:
    """One layer in one direction; `x` has shape (batch, steps, features)."""
    w_in, w_state, *biases = weights
    x = projected(capture, x, w_in, None).to(w_state.dtype)
    call = capture.call(x, w_state.dtype)
    arguments = (
        kind(capture.kernels),
        call,
        capture,
        w_state,
        (biases[0], biases[1]) if biases else None,
        x,
        *start,
    )
    with no_autocast(x):
        outputs = _Recurrence.apply(*arguments)  # type: ignore[no-untyped-call]
    return cast(tuple[Tensor, ...], outputs)


def _stack(
    kind: type[_LSTM | _GRU],
    capture: Capture,
    input: Any,
    start: Any,
    weights: Any,
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: Any,
) -> Any:
    directions, each = 2 if bidirectional else 1, 4 if has_biases else 2
    if not isinstance(weights, list | tuple) or len(weights) != num_layers * directions * each:
        return NotImplemented  # packed sequences, projections
    if not capture.trains(*weights) or not capture.knows(*weights) or input.dim() != 3:
        return NotImplemented
    x = input if batch_first else input.transpose(0, 1)
    finals = []
    for layer in range(num_layers):
        outs = []
        for direction in range(directions):
            number = layer * directions + direction
            layer_weights = weights[number * each : (number + 1) * each]
            rows = x.flip(1) if direction else x
            states, *last = _recur(
                capture, kind, rows, tuple(s[number] for s in start), layer_weights
            )
            outs.append(states.flip(1) if direction else states)
            finals.append(last)
        x = torch.cat(outs, 2) if bidirectional else outs[0]
        if dropout and layer + 1 < num_layers:
            x = F.dropout(x, dropout, train)
    ends = tuple(torch.stack(parts) for parts in zip(*finals, strict=True))
    return (x if batch_first else x.transpose(0, 1), *ends)


def lstm(capture: Capture, input: Tensor, hx: Any, weights: Any, *options: Any) -> Any:
    """`torch.lstm`, on sequences of one length."""
    return (
        NotImplemented
        if isinstance(hx, Tensor)
        else _stack(_LSTM, capture, input, hx, weights, *options)
    )


def gru(capture: Capture, input: Tensor, hx: Tensor, weights: Any, *options: Any) -> Any:
    """`torch.gru`, on sequences of one length."""
    return _stack(_GRU, capture, input, (hx,), weights, *options)
