"""Auxiliary coordinates: for each example what its hidden layers should give, fitted to that example alone.

Guarantee: an example's coordinates are a function of the released weights, of that example, and, where they are stored, of
its own earlier ones. Losses are added up, never averaged over the batch; optimizers act number by number, and begin
afresh at each visit. So coordinates need no noise: they are never released (Harder et al. 2019, sec. 2.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from torch.nn import functional as F

from privlearn._validate import count, one_of, positive
from privlearn.clipping.rows import clip_rows
from privlearn.methods.mac.expansion import Output, hidden_first
from privlearn.methods.mac.network import Layer

_OPTIMIZERS = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}


@final
@dataclass(frozen=True)
class Coordinates:
    """How auxiliary coordinates are fitted: public numbers.

    Attributes:
        steps: Z-steps at each visit of an example.
        rate: their learning rate.
        optimizer: "adam" or "sgd", which act on each number by itself.
        stored: whether an example's coordinates are kept for its next visit; else they start at what the network gives.
    """

    steps: int = 30
    rate: float = 0.003
    optimizer: str = "adam"
    stored: bool = False

    def __post_init__(self) -> None:
        count("steps of the coordinates", self.steps, most=100_000)
        positive("rate of the coordinates", self.rate)
        one_of("optimizer of the coordinates", self.optimizer, _OPTIMIZERS)

    def describe(self) -> dict[str, Any]:
        """Plain values, for certificates."""
        return dict(vars(self))


@torch.no_grad()
def forward(layers: Sequence[Layer], x: Tensor, radius: float | None = None) -> list[Tensor]:
    """What each hidden layer gives for `x`, shape (examples, inputs), each projected onto the ball before it goes on."""
    found: list[Tensor] = []
    for layer in layers[:-1]:
        assert layer.activation is not None
        x = projected(layer.activation.value(arguments(layer, x)), radius)
        found.append(x)
    return found


@torch.no_grad()
def fitted(
    layers: Sequence[Layer],
    output: Output,
    x: Tensor,
    y: Tensor,
    settings: Coordinates,
    mu: float,
    *,
    radius: float | None = None,
    start: list[Tensor] | None = None,
) -> list[Tensor]:
    """The coordinates of some examples, one tensor of shape (examples, outputs) for each hidden layer.

    They minimise, for each example, (mu sum_k |z_k - f(W_k z_{k-1})|^2 + loss(W z_K, y)) / 2 with z_0 = x (eq. 2).

    Args:
        layers: with the released weights.
        output: the output layer's loss.
        x: inputs, shape (examples, inputs).
        y: targets, shape (examples, outputs).
        settings: steps, rate and optimizer.
        mu: the weight of the hidden layers' objectives.
        radius: of the ball that coordinates are projected onto after each step; None: no ball.
        start: where to start from; by default at what the network gives.
    """
    z = forward(layers, x, radius) if start is None else [projected(each.clone(), radius) for each in start]
    if not z:
        return z
    first = arguments(layers[0], x)  # does not change
    descent = _OPTIMIZERS[settings.optimizer](z, lr=settings.rate)
    for _ in range(settings.steps):
        for each, gradient in zip(z, _gradients(layers, output, first, z, y, mu), strict=True):
            each.grad = gradient
        descent.step()
        for each in z if radius is not None else ():
            each.copy_(projected(each, radius))
    for each in z:
        each.grad = None
    return z


def _gradients(
    layers: Sequence[Layer], output: Output, first: Tensor, z: list[Tensor], y: Tensor, mu: float
) -> list[Tensor]:
    """The gradients of the sum of the examples' objectives by each z: no example's depends on another's."""
    gradients = []
    for k, own in enumerate(z):
        activation = layers[k].activation
        assert activation is not None
        u = first if k == 0 else arguments(layers[k], z[k - 1])
        gradients.append(mu * (own - activation.value(u)))
        if k:
            gradients[k - 1] += mu / 2 * hidden_first(activation, u, own) @ layers[k].linear.weight
    last = output.first(arguments(layers[-1], z[-1]), y)
    gradients[-1] += last @ layers[-1].linear.weight / 2
    return gradients


def arguments(layer: Layer, z: Tensor) -> Tensor:
    """u = W z for each example, the bias included."""
    return F.linear(z, layer.linear.weight, layer.linear.bias)


def projected(rows: Tensor, radius: float | None) -> Tensor:
    """Rows brought into the ball of `radius`, each by itself; those that are not finite become 0."""
    return rows if radius is None else clip_rows(rows, radius)
