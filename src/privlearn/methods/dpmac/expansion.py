"""Per-example Taylor coefficients of layers' objectives (Harder et al. 2019, sec. 2.2), as factors
of outer products.

With u = W z_in for the weights W that were released last, the objective of a hidden layer for one
example is sum_h (z_h - f(u_h))^2. Its derivatives by row h of W are d_h z_in with d = 2 f'(u) (f(u)
- z), and, halved, c_h z_in z_in^T with c = f'^2 + f'' (f - z). Output layers differ in d and c
only.

The objective of one layer that was released, as a polynomial in its weights: what is done with it
is post-processing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from privlearn._checks import one_of
from privlearn.core.clipping.derivative_bounds import Analytic, Layerwise
from privlearn.errors import BadInput
from privlearn.methods.dpmac.network import Activation, Layer


@final
@dataclass(frozen=True)
class Output:
    """An output layer's loss, by its arguments u = W z and the targets y; all of shape (examples,
    outputs).

    Attributes:
        name: what to call it.
        losses: (u, y) to one number for each example.
        first: (u, y) to d.
        second: (u, y) to c; None: the second derivatives couple outputs, and only the expansion of
            first order is there.
    """

    name: str
    losses: Callable[[Tensor, Tensor], Tensor]
    first: Callable[[Tensor, Tensor], Tensor]
    second: Callable[[Tensor, Tensor], Tensor] | None


def hidden_first(activation: Activation, u: Tensor, z: Tensor) -> Tensor:
    """d of a hidden layer, shape (examples, outputs)."""
    return 2 * activation.slope(u) * (activation.value(u) - z)


def hidden_second(activation: Activation, u: Tensor, z: Tensor) -> Tensor:
    """c of a hidden layer, shape (examples, outputs)."""
    return activation.slope(u).square() + activation.curvature(u) * (activation.value(u) - z)


def _logistic_slope(u: Tensor) -> Tensor:
    return torch.sigmoid(u) * torch.sigmoid(-u)


SQUARED = Output(
    "mse",
    losses=lambda u, y: (u - y).square().sum(1),
    first=lambda u, y: 2 * (u - y),
    second=lambda u, y: torch.ones_like(u),
)
BINARY = Output(
    "binary_cross_entropy",
    losses=lambda u, y: (F.softplus(u) - y * u).sum(1),
    first=lambda u, y: torch.sigmoid(u) - y,
    second=lambda u, y: _logistic_slope(u) / 2,
)
SOFTMAX = Output(
    "cross_entropy",
    losses=lambda u, y: -(y * F.log_softmax(u, 1)).sum(1),
    first=lambda u, y: torch.softmax(u, 1) - y,
    second=None,
)
OUTPUTS = {output.name: output for output in (SQUARED, BINARY, SOFTMAX)}


def output_named(name: str, order: int) -> Output:
    """The output loss called `name`.

    Raises:
        BadInput: there is none, or none for an expansion of this order.
    """
    output = OUTPUTS[one_of("the loss of dpmac", name, OUTPUTS)]
    if order == 2 and output.second is None:
        raise BadInput(
            "softmax cross-entropy has second derivatives that couple the classes: use the "
            f"expansion of first order, or {BINARY.name}, which is that of each class by itself"
        )
    return output


def targets(output: Output, y: Tensor, outputs: int, like: Tensor) -> Tensor:
    """Targets of shape (rows, outputs), of the type of `like`: for labels, a 1 in the place of the
    class.

    This looks at the data: it is for the data's curator, before anything is spent, and outside the
    guarantee.

    Raises:
        BadInput: labels that are no classes of the network, targets of another shape, or outside
            [0, 1] for cross-entropy.
    """
    if not y.is_floating_point() and y.dim() == 1 and output is not SQUARED:
        if len(y) and (int(y.min()) < 0 or int(y.max()) >= outputs):
            raise BadInput(
                f"there are labels from {int(y.min())} to {int(y.max())}, and the network has "
                f"{outputs} outputs: expected labels from 0 to {outputs - 1}"
            )
        return F.one_hot(y.long(), outputs).to(like)
    if output is SQUARED and y.dim() == 1 and not y.is_floating_point() and outputs > 1:
        raise BadInput(
            f"targets are whole numbers of shape (rows,), and the network has {outputs} outputs: "
            "mse takes numbers of shape (rows, outputs), not labels; for an autoencoder, the "
            "inputs themselves: (x, x.flatten(1))"
        )
    values = y.flatten(1) if y.dim() > 1 else y[:, None]
    if values.shape[1] != outputs:
        raise BadInput(
            f"targets have {values.shape[1]} numbers for each example and the network {outputs} "
            "outputs: expected as many, or whole-number labels of shape (rows,)"
        )
    values = values.to(like)
    if not values.isfinite().all():
        raise BadInput(
            "there are targets that are not finite numbers: fill them in, or leave out such rows"
        )
    if (
        output is not SQUARED
        and len(values)
        and (float(values.min()) < 0 or float(values.max()) > 1)
    ):
        raise BadInput(
            f"there are targets from {float(values.min()):.4g} to {float(values.max()):.4g}: "
            f"{output.name} needs targets in [0, 1]; scale them by public bounds, or use mse"
        )
    if output is SOFTMAX and not torch.allclose(
        values.sum(1), values.new_ones(len(values)), atol=1e-4
    ):
        raise BadInput(
            "targets of an example do not add up to 1: cross_entropy needs probabilities or labels"
        )
    return values


@final
@dataclass(frozen=True, repr=False)
class Surrogate:
    """sum_h w_h.b_h + w_h.C_h w_h, with noise in b and C (Harder et al. 2019, eq. 5, times 2N).

    Attributes:
        linear: b, shape (outputs, inputs).
        curvature: C, symmetric, shape (outputs, inputs, inputs); None for the expansion of first
            order.
        noise: the standard deviation of the noise in C's entries before it was made symmetric.
    """

    linear: Tensor
    curvature: Tensor | None = None
    noise: float = 0.0

    @classmethod
    def of(cls, linear: Tensor, curvature: Tensor, noise: float = 0.0) -> Surrogate:
        """From released sums of b and of halved second derivatives."""
        return cls(linear, symmetrised(curvature), noise)

    @classmethod
    def around(
        cls, weight: Tensor, gradient: Tensor, curvature: Tensor | None, noise: float = 0.0
    ) -> Surrogate:
        """The expansion around `weight`, from released sums of first derivatives and of halved
        second ones.

        b = dT - 2 C w is rebuilt from what was released. (Releasing b itself would cost more: with
        clipped parts its sensitivity has a term for C, too.)
        """
        if curvature is None:
            return cls(gradient)
        C = symmetrised(curvature)
        return cls(gradient - 2 * _times(C, weight), C, noise)

    def gradient(self, weight: Tensor) -> Tensor:
        """Its gradient at `weight`, shape (outputs, inputs)."""
        return (
            self.linear
            if self.curvature is None
            else self.linear + 2 * _times(self.curvature, weight)
        )

    def newton(self, weight: Tensor, damping: float) -> Tensor:
        """The step from `weight`, to be subtracted, to the minimum of a convex polynomial near this
        one.

        Noise makes C indefinite, and the polynomial unbounded below. Eigenvalues below a floor
        count as that: `damping`, or the size that noise alone reaches, whichever is more. (The
        noise is a symmetric Gaussian matrix, whose eigenvalues end near sqrt(2 inputs) times the
        standard deviation.) So no step is longer than |gradient| / (2 floor).
        """
        gradient = self.gradient(weight)
        if self.curvature is None:
            return gradient
        values, vectors = torch.linalg.eigh(self.curvature)
        floor = max(
            damping, self.noise * math.sqrt(2 * weight.shape[1]), torch.finfo(weight.dtype).tiny
        )
        along = (vectors.mT @ gradient[:, :, None]) / values.clamp(min=floor)[:, :, None]
        step: Tensor = (vectors @ along)[:, :, 0] / 2
        return step


def symmetrised(curvature: Tensor) -> Tensor:
    """The mean of each matrix and its transpose: noise in the halves is averaged."""
    return (curvature + curvature.mT) / 2


def _times(curvature: Tensor, weight: Tensor) -> Tensor:
    """C_h w_h for each unit h, shape (outputs, inputs)."""
    product: Tensor = (curvature @ weight[:, :, None])[:, :, 0]
    return product


@final
@dataclass(frozen=True)
class WeightSteps:
    """Steps of an optimizer on the objectives of all layers that were released for one batch.

    Attributes:
        layers: whose weights are changed.
        bound: how derivatives were bounded, which says what was released.
        descent: the optimizer of their parameters.
        divisor: the expected batch size, a public number.
        count: steps on each objective.
        newton: the damping of Newton steps, as curvature for one example; None: steps along
            gradients.
    """

    layers: Sequence[Layer]
    bound: Layerwise
    descent: torch.optim.Optimizer
    divisor: float
    count: int = 1
    newton: float | None = None

    def take(self, released: Sequence[Tensor], noise: Sequence[float]) -> None:
        """Take the steps.

        Args:
            released: for each layer its first, then its second part, as `BatchDerivatives` has
                them.
            noise: the standard deviations of the noise in them.
        """
        objectives = self._objectives(released, noise)
        for _ in range(self.count):
            for layer, objective in zip(self.layers, objectives, strict=True):
                layer.set_gradient(self._direction(layer, objective))
            self.descent.step()

    def _objectives(self, released: Sequence[Tensor], noise: Sequence[float]) -> list[Surrogate]:
        """What was released, as polynomials around the weights at which it was computed."""
        order, objectives = self.bound.order, []
        for number, layer in enumerate(self.layers):
            first, *second = released[number * order : (number + 1) * order]
            noisy = noise[(number + 1) * order - 1]
            if second and isinstance(self.bound, Analytic):
                objectives.append(Surrogate.of(first, second[0], noisy))
            else:
                objectives.append(
                    Surrogate.around(layer.weight(), first, second[0] if second else None, noisy)
                )
        return objectives

    def _direction(self, layer: Layer, objective: Surrogate) -> Tensor:
        """What the optimizer steps against: the gradient of the objective over twice the batch size
        (eq. 5), or the Newton step, which does not change with such factors.
        """
        weight = layer.weight()
        if self.newton is not None:
            return objective.newton(weight, self.newton * self.divisor)
        return objective.gradient(weight) / (2 * self.divisor)
