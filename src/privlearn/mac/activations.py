"""Activation functions of MAC layers: value, two derivatives, and the suprema that analytic sensitivities are made of."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

#: Beyond this argument softplus is its asymptote to the last digit of double precision.
_FAR = 40.0
#: Distance of the points at which suprema of softplus are tabulated, and what may lie above them in between, relatively: the
#: functions are at least 0.25 there and have second derivatives below 2, so that it is at most 2 * _STEP^2 / 8 / 0.25.
_STEP = 1e-3
_BETWEEN = 1e-6


@final
@dataclass(frozen=True, repr=False)
class Suprema:
    """Upper bounds of expressions in f, s = f', k = f'' and g = f - u s over |u| <= R_h, for each unit h; shape (units,).

    Attributes:
        product: of |f s|.
        slope: of |s|.
        curvature: of |k|.
        rest: of |s g - k u f|.
        tilt: of |s - u k|.
        bend: of |s^2 + k f|.
        cross: of |2 g + k u^2|.
        constant: of |g^2 + k u^2 f|.
    """

    product: Tensor
    slope: Tensor
    curvature: Tensor
    rest: Tensor
    tilt: Tensor
    bend: Tensor
    cross: Tensor
    constant: Tensor


@final
@dataclass(frozen=True)
class Activation:
    """An elementwise activation function.

    Attributes:
        name: what to call it.
        value: f.
        slope: f'.
        curvature: f''.
        suprema: radii R, shape (units,), in double precision, to bounds over |u| <= R; constants will do. None: analytic
            sensitivities are not known, and are refused.
        lipschitz: the supremum of |f'| everywhere; with `suprema`.
    """

    name: str
    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    curvature: Callable[[Tensor], Tensor]
    suprema: Callable[[Tensor], Suprema] | None = None
    lipschitz: float = 1.0


def constants(radii: Tensor, **bounds: float) -> Suprema:
    """Bounds that hold for every argument, one number for each field of `Suprema`."""
    return Suprema(**{name: torch.full_like(radii, bound) for name, bound in bounds.items()})


def _linear_suprema(radii: Tensor) -> Suprema:
    """Of ReLU and of the identity, whose slope is 1 (or 0) and whose curvature and intercept are 0."""
    flat = constants(
        radii, slope=1.0, curvature=0.0, rest=0.0, tilt=1.0, bend=1.0, cross=0.0, constant=0.0, product=0.0
    )
    return Suprema(**{**vars(flat), "product": radii})


def _softplus_curvature(u: Tensor) -> Tensor:
    return torch.sigmoid(u) * torch.sigmoid(-u)


@lru_cache
def _softplus_table() -> tuple[Tensor, dict[str, Tensor]]:
    """Points 0 .. _FAR, and for each the largest value at points of at most its size, of either sign."""
    points = torch.arange(0, _FAR + _STEP, _STEP, dtype=torch.float64)
    columns = {}
    for name in (field.name for field in fields(Suprema)):
        at = torch.maximum(_softplus_term(name, points), _softplus_term(name, -points))
        columns[name] = torch.cummax(at, 0).values
    return points, columns


def _softplus_term(name: str, u: Tensor) -> Tensor:
    f, s, k = F.softplus(u, threshold=_FAR), torch.sigmoid(u), _softplus_curvature(u)
    g = f - u * s
    terms = {
        "product": lambda: f * s,
        "slope": lambda: s,
        "curvature": lambda: k,
        "rest": lambda: s * g - k * u * f,
        "tilt": lambda: s - u * k,
        "bend": lambda: s * s + k * f,
        "cross": lambda: 2 * g + k * u * u,
        "constant": lambda: g * g + k * u * u * f,
    }
    return terms[name]().abs()


def _softplus_suprema(radii: Tensor) -> Suprema:
    """From the table, and at the ends +-R themselves, so that what rises up to there is exact."""
    points, table = _softplus_table()
    below = torch.searchsorted(points, radii.clamp(max=_FAR), right=True) - 1
    suprema = {}
    for name, tabulated in table.items():
        ends = torch.maximum(_softplus_term(name, radii), _softplus_term(name, -radii))
        suprema[name] = torch.maximum(tabulated[below], ends) * (1 + _BETWEEN)
    return Suprema(**suprema)


def _step(u: Tensor) -> Tensor:
    return (u > 0).to(u.dtype)


def _tanh_slope(u: Tensor) -> Tensor:
    return 1 - torch.tanh(u).square()


def _tanh_curvature(u: Tensor) -> Tensor:
    return -2 * torch.tanh(u) * _tanh_slope(u)


def _tanh_suprema(radii: Tensor) -> Suprema:
    """For all arguments: 2 / (3 sqrt(3)), twice that, and what a search over a fine grid finds, each rounded up."""
    return constants(
        radii, product=0.385, slope=1.0, curvature=0.77, rest=0.655, tilt=1.174, bend=1.0, cross=2.01, constant=1.01
    )


RELU = Activation("relu", torch.relu, _step, torch.zeros_like, _linear_suprema)
SOFTPLUS = Activation("softplus", F.softplus, torch.sigmoid, _softplus_curvature, _softplus_suprema)
TANH = Activation("tanh", torch.tanh, _tanh_slope, _tanh_curvature, _tanh_suprema)
IDENTITY = Activation("identity", lambda u: u, torch.ones_like, torch.zeros_like, _linear_suprema)
#: ln 2, softplus at 0.
LN2 = math.log(2)
