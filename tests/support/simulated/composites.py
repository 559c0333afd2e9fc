"""Operations that accelerators compute in one kernel, and that the processor has none for."""

from __future__ import annotations

import torch
from torch import Tensor

_Maybe = Tensor | None


def lstm_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    cell: Tensor,
    input_bias: _Maybe = None,
    hidden_bias: _Maybe = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The next hidden state and cell, and what the backward pass needs."""
    gates = input_gates + hidden_gates
    if input_bias is not None:
        gates = gates + input_bias + hidden_bias
    let_in, forget, new, let_out = gates.chunk(4, 1)
    let_in = let_in.sigmoid()
    forget = forget.sigmoid()
    new = new.tanh()
    let_out = let_out.sigmoid()
    following = forget * cell + let_in * new
    workspace = torch.cat([let_in, forget, new, let_out], 1)
    return let_out * following.tanh(), following, workspace


def lstm_cell_backward(
    hidden_gradient: _Maybe,
    cell_gradient: _Maybe,
    cell: Tensor,
    following: Tensor,
    workspace: Tensor,
    has_bias: bool,
) -> tuple[Tensor, Tensor, _Maybe]:
    """Gradients of the gates, of the cell, and of the bias."""
    let_in, forget, new, let_out = workspace.chunk(4, 1)
    squashed = following.tanh()
    if hidden_gradient is None:
        hidden_gradient = torch.zeros_like(following)
    through_cell = hidden_gradient * let_out * (1 - squashed * squashed)
    if cell_gradient is not None:
        through_cell = through_cell + cell_gradient
    parts = [
        through_cell * new * let_in * (1 - let_in),
        through_cell * cell * forget * (1 - forget),
        through_cell * let_in * (1 - new * new),
        hidden_gradient * squashed * let_out * (1 - let_out),
    ]
    gates = torch.cat(parts, 1)
    return gates, through_cell * forget, gates.sum(0) if has_bias else None


def gru_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hidden: Tensor,
    input_bias: _Maybe = None,
    hidden_bias: _Maybe = None,
) -> tuple[Tensor, Tensor]:
    """The next hidden state, and what the backward pass needs."""
    if input_bias is not None:
        input_gates = input_gates + input_bias
        hidden_gates = hidden_gates + hidden_bias
    input_reset, input_update, input_new = input_gates.chunk(3, 1)
    hidden_reset, hidden_update, hidden_new = hidden_gates.chunk(3, 1)
    reset = (input_reset + hidden_reset).sigmoid()
    update = (input_update + hidden_update).sigmoid()
    new = (input_new + reset * hidden_new).tanh()
    workspace = torch.cat([reset, update, new, hidden, hidden_new], 1)
    return (hidden - new) * update + new, workspace


def gru_cell_backward(
    gradient: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, _Maybe, _Maybe]:
    """Gradients of both gates, of the hidden state, and of both biases."""
    reset, update, new, hidden, hidden_new = workspace.chunk(5, 1)
    of_new = gradient * (1 - update) * (1 - new * new)
    of_update = gradient * (hidden - new) * update * (1 - update)
    of_reset = of_new * hidden_new * reset * (1 - reset)
    inputs = torch.cat([of_reset, of_update, of_new], 1)
    hiddens = torch.cat([of_reset, of_update, of_new * reset], 1)
    biases = (inputs.sum(0), hiddens.sum(0)) if has_bias else (None, None)
    return inputs, hiddens, gradient * update, *biases
