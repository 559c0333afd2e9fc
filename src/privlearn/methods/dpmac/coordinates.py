"""Auxiliary coordinates: for each example what its hidden layers should give, fitted to that
example alone.

Guarantee: an example's coordinates are a function of the released weights, of that example, and,
where they are stored, of its own earlier ones. Losses are added up, never averaged over the batch;
optimizers act number by number, and begin afresh at each visit. So coordinates need no noise: they
are never released (Harder et al. 2019, sec. 2.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor
from torch.nn import functional as F

from privlearn._checks import checked, count, one_of, positive
from privlearn.core.clipping.row_sums import clip_rows
from privlearn.errors import BadInput
from privlearn.methods.dpmac.expansion import Output, hidden_first
from privlearn.methods.dpmac.network import Layer

_OPTIMIZERS = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}
_SWEEP = "sweep"


@checked
@final
@dataclass(frozen=True)
class Coordinates:
    """How auxiliary coordinates are fitted: public numbers.

    By default one sweep, with which dpmac's default mu goes; the paper's way is
    `Coordinates(30, 0.003, "adam")` and mu 1.

    Attributes:
        steps: Z-steps at each visit of an example.
        rate: their learning rate; for sweeps, what share of the way each goes, at most 1.
        optimizer: "adam" or "sgd", which act on each number by itself, or "sweep", which goes
            through the layers from the output to the input and back (see `_sweep`): one sweep at
            rate 1 does what thousands of small steps do.
        stored: whether an example's coordinates are kept for its next visit; else they start at
            what the network gives.
    """

    steps: int = 1
    rate: float = 1.0
    optimizer: str = "sweep"
    stored: bool = False

    def __post_init__(self) -> None:
        count("steps of the coordinates", self.steps, most=100_000)
        positive("rate of the coordinates", self.rate)
        one_of("optimizer of the coordinates", self.optimizer, [*_OPTIMIZERS, _SWEEP])
        if self.optimizer == _SWEEP and self.rate > 1:
            raise BadInput(
                f"the rate of the coordinates is {self.rate:g}, and a sweep at rate 1 goes all "
                "the way: expected at "
                "most 1, "
                'for example pv.mac.Coordinates(steps=1, rate=1.0, optimizer="sweep")'
            )

    def describe(self) -> dict[str, Any]:
        """Plain values, for certificates."""
        return dict(vars(self))


@torch.no_grad()
def forward(layers: Sequence[Layer], x: Tensor, radius: float | None = None) -> list[Tensor]:
    """What each hidden layer gives for `x`, shape (examples, inputs), each projected onto the ball
    before the next.
    """
    activities: list[Tensor] = []
    for layer in layers[:-1]:
        assert layer.activation is not None
        x = projected(layer.activation.value(arguments(layer, x)), radius)
        activities.append(x)
    return activities


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
    """The coordinates of some examples, one tensor of shape (examples, outputs) for each hidden
    layer.

    They minimise, for each example, (mu sum_k |z_k - f(W_k z_{k-1})|^2 + loss(W z_K, y)) / 2 with
    z_0 = x (eq. 2).

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
    z = (
        forward(layers, x, radius)
        if start is None
        else [projected(each.clone(), radius) for each in start]
    )
    if not z:
        return z
    first = arguments(layers[0], x)  # does not change
    if settings.optimizer == _SWEEP:
        for _ in range(settings.steps):
            z = _sweep(layers, output, first, z, y, mu, settings.rate, radius)
        return z
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
    """The gradients of the sum of the examples' objectives by each z: no example's depends on
    another's.
    """
    gradients = []
    for k, z_k in enumerate(z):
        activation = layers[k].activation
        assert activation is not None
        u = first if k == 0 else arguments(layers[k], z[k - 1])
        gradients.append(mu * (z_k - activation.value(u)))
        if k:
            gradients[k - 1] += mu / 2 * hidden_first(activation, u, z_k) @ layers[k].linear.weight
    last = output.first(arguments(layers[-1], z[-1]), y)
    gradients[-1] += last @ layers[-1].linear.weight / 2
    return gradients


def _sweep(
    layers: Sequence[Layer],
    output: Output,
    first: Tensor,
    z: list[Tensor],
    y: Tensor,
    mu: float,
    rate: float,
    radius: float | None,
) -> list[Tensor]:
    """Coordinates after one pass through the layers from the output to the input, and one back.

    Where the objective is least, the residuals r_k = z_k - f(W_k z_{k-1}) solve

        r_K = -W_{K+1}' loss'(u) / (2 mu),    r_k = W_{k+1}' (f'(u_{k+1}) r_{k+1})

    which is backpropagation, through the coordinates in place of the activations, of -loss / (2
    mu). So the first pass finds the residuals that belong to z as it is, and the second, from the
    input on, lays out a z that has them (or, at a rate below 1, residuals between those and its
    own). Layers far from the output have residuals as large as their gradients are from the first
    sweep on; steps along gradients move them by the rate to the power of their distance.
    """
    u = [first, *(arguments(layer, z_k) for layer, z_k in zip(layers[1:], z, strict=True))]
    residual = output.first(u[-1], y) @ layers[-1].linear.weight / (-2 * mu)
    residuals = [residual]
    for layer, u_k in zip(layers[-2:0:-1], u[-2:0:-1], strict=True):
        assert layer.activation is not None
        residual = (layer.activation.slope(u_k) * residual) @ layer.linear.weight
        residuals.append(residual)
    updated: list[Tensor] = []
    for layer, old, u_k, wanted in zip(layers[:-1], z, u[:-1], reversed(residuals), strict=True):
        assert layer.activation is not None
        new = layer.activation.value(arguments(layer, updated[-1]) if updated else first)
        old_share = (1 - rate) * (old - layer.activation.value(u_k)) if rate < 1 else 0.0
        updated.append(projected(new + old_share + rate * wanted, radius))
    return updated


def arguments(layer: Layer, z: Tensor) -> Tensor:
    """u = W z for each example, the bias included."""
    return F.linear(z, layer.linear.weight, layer.linear.bias)


def projected(rows: Tensor, radius: float | None) -> Tensor:
    """Rows brought into the ball of `radius`, each by itself; those that are not finite become
    0.
    """
    return rows if radius is None else clip_rows(rows, radius)
