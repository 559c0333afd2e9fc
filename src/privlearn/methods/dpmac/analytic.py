"""Analytic sensitivities of DP-MAC's Taylor coefficients: what one example can add, from weights
and bounds on vectors.

Of the bounds printed in Harder et al. 2019, appendices E to G, examples that meet the stated
assumptions exceed those on a and b, by up to 1.68 and 1.40. That on C holds (0.66 was reached),
but not for the second derivative, which is twice C (1.41). The bounds here hold for any weights,
and are nearly attained: tests search for the worst example.

Throughout, a layer's input has norm at most `inputs` (the bias's 1 included), its targets norm at
most `outputs`, and R_h = |w_h| inputs bounds the size of the argument u_h. With s = f', k = f'' and
g = f - u s the coefficients of an example are

    a = sum_h (g - z_h)^2 + k u^2 (f - z_h),    b_h = 2 [(s g - k u f) - z_h (s - k u)] z_in,
    dT_h = 2 s (f - z_h) z_in,                  C_h = [s^2 + k (f - z_h)] z_in z_in^T = d2T_h / 2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from privlearn.errors import BadInput
from privlearn.methods.dpmac.network import IDENTITY, LN2, Activation


@final
@dataclass(frozen=True)
class Sensitivities:
    """The most that one example adds to each coefficient of a layer, in Euclidean (Frobenius) norm.

    Attributes:
        constant: |a|.
        linear: |b|, over all units.
        gradient: |dT|, which is all that the expansion of first order needs.
        curvature: |C|, over all units, with C = d2T / 2.
    """

    constant: float
    linear: float
    gradient: float
    curvature: float


def hidden(weight: Tensor, activation: Activation, inputs: float, outputs: float) -> Sensitivities:
    """Of a layer whose objective is |z_out - f(W z_in)|^2.

    Args:
        weight: shape (units, inputs), the bias as its last column.
        activation: f.
        inputs: the bound on |z_in|, the bias's 1 included.
        outputs: the bound on |z_out|.

    Raises:
        BadInput: no bounds are known of the activation.
    """
    if activation.suprema is None:
        raise BadInput(
            f"no bounds are known of the activation {activation.name}: analytic sensitivities need "
            "its suprema (see privlearn.methods.dpmac.network), or clip with pv.mac.Derivatives"
        )
    W = weight.detach().double()
    sup = activation.suprema(torch.linalg.vector_norm(W, dim=1) * inputs)
    largest = float(torch.linalg.matrix_norm(W, 2)) * inputs  # of |u|
    at_zero = float(activation.value(W.new_zeros(1)).abs())
    steepest = activation.lipschitz
    # |f s| <= steepest (|f(0)| + steepest |u|), or unit by unit: whichever is less.
    product = min(_norm(sup.product), steepest * (math.sqrt(len(W)) * at_zero + steepest * largest))
    return Sensitivities(
        constant=outputs**2 + outputs * _norm(sup.cross) + float(sup.constant.sum()),
        linear=2 * inputs * (_norm(sup.rest) + outputs * float(sup.tilt.max())),
        gradient=2 * inputs * (product + outputs * float(sup.slope.max())),
        curvature=inputs**2 * (_norm(sup.bend) + outputs * float(sup.curvature.max())),
    )


def squared(weight: Tensor, inputs: float, outputs: float) -> Sensitivities:
    """Of an output layer with the squared loss |y - W z|^2, |y| at most `outputs`; arguments as for
    `hidden`.
    """
    return hidden(weight, IDENTITY, inputs, outputs)


def binary(weight: Tensor, inputs: float) -> Sensitivities:
    """Of an output layer with binary cross-entropy for each class, targets in [0, 1]; arguments as
    for `hidden`.

    Here dT_h = (s - y_h) z and C_h = k z z^T / 2 with the logistic function s and its slope k, and
    b_h = (s - y_h - k u) z.
    """
    radii = torch.linalg.vector_norm(weight.detach().double(), dim=1) * inputs
    s = torch.sigmoid(radii)
    tilt = s - radii * s * torch.sigmoid(-radii)  # of s - k u, which rises in u
    return Sensitivities(
        constant=len(weight) * LN2,  # of f - u s + k u^2 / 2, which is largest at 0
        linear=inputs * _norm(tilt),
        gradient=inputs * _norm(s),
        curvature=inputs**2 * math.sqrt(len(weight)) / 8,
    )


def softmax(inputs: float) -> float:
    """|dT| of an output layer with softmax cross-entropy: dT = z (p - y)^T; distributions differ by
    sqrt(2) at most.
    """
    return math.sqrt(2) * inputs


def with_bias(norm: float, bias: bool) -> float:
    """The bound on a layer's input when the bias's 1 is appended to it."""
    return math.hypot(norm, 1.0) if bias else norm


def _norm(values: Tensor) -> float:
    return float(torch.linalg.vector_norm(values))
