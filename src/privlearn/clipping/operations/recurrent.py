"""LSTM and GRU: the input's products are linear layers; the recurrence runs here, and keeps what its weights need."""

from __future__ import annotations

from typing import Any, Protocol, cast, final

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from privlearn.clipping.capture import Call, Capture
from privlearn.clipping.examples import Formed, sum_of_outer
from privlearn.clipping.operations.linear import projected


class _Cell(Protocol):
    """The recurrence of one layer in one direction: from the input's products to the states, and back."""

    #: Blocks of the weight: gates.
    gates: int

    def forward(self, x: Tensor, start: tuple[Tensor, ...], weight: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
        """The states after each step, shape (batch, steps, width), and the last ones, each (batch, width)."""
        ...

    def backward(
        self, states: Tensor, g: Tensor, last: tuple[Tensor, ...], weight: Tensor
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Gradients of the input's products, of the state's products, and of the starting states."""
        ...


@final
class _LSTM:
    gates = 4

    def forward(self, x: Tensor, start: tuple[Tensor, ...], weight: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
        h, c = start
        batch, steps, width = len(x), x.shape[1], h.shape[1]
        self._gates = x + bias if bias is not None else x.clone()
        self._cells = x.new_empty(batch, steps + 1, width)
        self._cells[:, 0] = c
        states = x.new_empty(batch, steps, width)
        for t in range(steps):
            gates = self._gates[:, t].addmm_(h, weight.T)
            gates[:, : 2 * width].sigmoid_()
            gates[:, 2 * width : 3 * width].tanh_()
            gates[:, 3 * width :].sigmoid_()
            i, f, g, o = gates.chunk(4, 1)
            c = torch.mul(f, c, out=self._cells[:, t + 1]).addcmul_(i, g)
            h = torch.mul(o, c.tanh(), out=states[:, t])
        return states, h.clone(), c.clone()

    def backward(
        self, states: Tensor, g: Tensor, last: tuple[Tensor, ...], weight: Tensor
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        (dh, dc), (batch, steps, width) = last, states.shape
        i, f, n, o = self._gates.chunk(4, 2)
        squashed = self._cells[:, 1:].tanh()
        # What each gate is worth to a cell's gradient, for all steps at once; the output gate goes to the state's.
        worth = torch.cat([n * i * (1 - i), self._cells[:, :-1] * f * (1 - f), i * (1 - n * n)], 2)
        opened, through = squashed * o * (1 - o), o * (1 - squashed * squashed)
        d = torch.empty_like(self._gates)
        for t in reversed(range(steps)):
            dh = dh + g[:, t]
            dc = torch.addcmul(dc, dh, through[:, t])
            step = d[:, t]
            torch.mul(dc[:, None], worth[:, t].view(batch, 3, width), out=step[:, : 3 * width].view(batch, 3, width))
            torch.mul(dh, opened[:, t], out=step[:, 3 * width :])
            dc = dc * f[:, t]
            dh = step @ weight
        return d, d, (dh, dc)


@final
class _GRU:
    gates = 3

    def forward(self, x: Tensor, start: tuple[Tensor, ...], weight: Tensor, bias: Tensor | None) -> tuple[Tensor, ...]:
        (h,) = start
        batch, steps, width = len(x), x.shape[1], h.shape[1]
        self._start = h
        self._gates = x.clone()
        self._product = x.new_empty(batch, steps, width)
        states = x.new_empty(batch, steps, width)
        for t in range(steps):
            product = h @ weight.T if bias is None else torch.addmm(bias, h, weight.T)
            gates = self._gates[:, t]
            r, z = gates[:, : 2 * width].add_(product[:, : 2 * width]).sigmoid_().chunk(2, 1)
            self._product[:, t] = product[:, 2 * width :]
            n = gates[:, 2 * width :].addcmul_(r, self._product[:, t]).tanh_()
            h = torch.lerp(n, h, z, out=states[:, t])
        return states, h.clone()

    def backward(
        self, states: Tensor, g: Tensor, last: tuple[Tensor, ...], weight: Tensor
    ) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        ((dh,), (batch, steps, width)) = last, states.shape
        r, z, n = self._gates.chunk(3, 2)
        before = torch.cat([self._start[:, None], states[:, :-1]], 1)
        new = (1 - z) * (1 - n * n)
        reset = new * self._product * r * (1 - r)
        update = (before - n) * z * (1 - z)
        worth = torch.cat([reset, update, new * r], 2)
        d, flows = torch.empty_like(self._gates), torch.empty_like(states)
        for t in reversed(range(steps)):
            dh = torch.add(dh, g[:, t], out=flows[:, t])
            step = d[:, t]
            torch.mul(dh[:, None], worth[:, t].view(batch, 3, width), out=step.view(batch, 3, width))
            dh = torch.addmm(dh * z[:, t], step, weight)
        inputs = torch.cat([d[..., : 2 * width], flows * new], 2)
        return inputs, d, (dh,)


class _Recurrence(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, cell: _Cell, call: Call, kept: tuple[bool, bool], kernels: Any, weight: Tensor, bias: Tensor | None,
        x: Tensor, *start: Tensor,
    ) -> tuple[Tensor, ...]:  # fmt: skip
        ctx.cell, ctx.call, ctx.kept, ctx.kernels = cell, call, kept, kernels
        ctx.weight, ctx.bias = weight, bias
        states, *last = cell.forward(x, start, weight, bias)
        ctx.save_for_backward(states, start[0])
        return states, *last

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor, *last: Tensor) -> tuple[Tensor | None, ...]:
        states, first = ctx.saved_tensors
        inputs, products, start = ctx.cell.backward(states, g, last, ctx.weight)
        rows = ctx.call.positions(products)
        if ctx.kept[0]:
            before = ctx.call.positions(torch.cat([first[:, None], states[:, :-1]], 1))
            ctx.call.keep(ctx.weight, None, sum_of_outer(rows, before, ctx.weight.shape, None, ctx.kernels))
        if ctx.kept[1]:
            ctx.call.keep(ctx.bias, None, Formed(rows.sum(1)))
        return (None, None, None, None, None, None, inputs, *start)


def _recur(
    capture: Capture, cell: _Cell, x: Tensor, start: tuple[Tensor, ...], weights: list[Tensor | None]
) -> tuple[Tensor, ...]:
    """One layer in one direction; `x` has shape (batch, steps, features)."""
    w_in, w_state, b_in, b_state = weights
    assert w_in is not None
    assert w_state is not None
    x = projected(capture, x, w_in, b_in).to(w_state.dtype)
    call = capture.call(x.shape, w_state.dtype)
    kept = (capture.trains(w_state), capture.trains(b_state))
    with torch.autocast(x.device.type, enabled=False):
        found = _Recurrence.apply(cell, call, kept, capture.kernels, w_state, b_state, x, *start)  # type: ignore[no-untyped-call]
    return cast(tuple[Tensor, ...], found)


def _stack(
    kind: type[_LSTM | _GRU], capture: Capture, input: Any, start: Any, weights: Any, has_biases: bool,
    num_layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: Any,
) -> Any:  # fmt: skip
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
            own = [*weights[number * each : (number + 1) * each], None, None][:4]
            rows = x.flip(1) if direction else x
            states, *last = _recur(capture, kind(), rows, tuple(s[number] for s in start), own)
            outs.append(states.flip(1) if direction else states)
            finals.append(last)
        x = torch.cat(outs, 2) if bidirectional else outs[0]
        if dropout and layer + 1 < num_layers:
            x = F.dropout(x, dropout, train)
    ends = tuple(torch.stack(parts) for parts in zip(*finals, strict=True))
    return (x if batch_first else x.transpose(0, 1), *ends)


def lstm(capture: Capture, input: Tensor, hx: Any, weights: Any, *options: Any) -> Any:
    """`torch.lstm`, on sequences of one length."""
    return NotImplemented if isinstance(hx, Tensor) else _stack(_LSTM, capture, input, hx, weights, *options)


def gru(capture: Capture, input: Tensor, hx: Tensor, weights: Any, *options: Any) -> Any:
    """`torch.gru`, on sequences of one length."""
    return _stack(_GRU, capture, input, (hx,), weights, *options)
