"""Gaussian noise from a run's noise stream."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from privlearn.errors import BadInput
from privlearn.streams import NoiseStream

#: Draws that are made at once: few enough to stay in a processor's cache.
_BLOCK = 1 << 17
#: sin(pi t / 2) / t to 7e-9 and cos(pi t / 2) to 5e-10 for t in [-1, 1], in powers of t^2 (Chebyshev fits).
_SINE = (1.5167170e-4, -4.67414384e-3, 7.968991833e-2, -0.6459637596, 1.570796320)
_COSINE = (-2.38241524e-5, 9.17722924e-4, -2.086268671e-2, 0.2536693222, -1.233700534, 0.9999999998)


def require_noisable(values: Sequence[Tensor]) -> None:
    """Raise `BadInput` unless noise can be added to all of `values` in place: contiguous float32 and float64."""
    for value in values:
        if value.dtype not in (torch.float32, torch.float64):
            raise BadInput(f"noise can't be added to numbers of type {value.dtype}: expected float32 or float64")
        if not value.is_contiguous():
            raise BadInput(
                f"noise can't be added to a tensor of shape {tuple(value.shape)} and strides {value.stride()}: expected a "
                "contiguous one; give value.contiguous()"
            )


def add_gaussian(values: Sequence[Tensor], std: float, stream: NoiseStream) -> None:
    """Add independent N(0, std^2) draws to every number of `values`, in place.

    Raises:
        BadInput: values of another type than float32 and float64; nothing is drawn.
    """
    require_noisable(values)
    for dtype in dict.fromkeys(value.dtype for value in values):
        flats = [value.view(-1) for value in values if value.dtype == dtype]
        left = sum(flat.numel() for flat in flats)
        draws = torch.empty(0, dtype=dtype)
        for flat in flats:
            start = 0
            while start < flat.numel():
                if not draws.numel():
                    draws = gaussian(min(left, _BLOCK), dtype, stream)
                    left -= draws.numel()
                own = flat[start : start + draws.numel()]
                own.add_(draws[: own.numel()].to(own.device), alpha=std)
                draws = draws[own.numel() :]  # each is used once
                start += own.numel()


def gaussian(count: int, dtype: torch.dtype, stream: NoiseStream) -> Tensor:
    """`count` independent N(0, 1) draws, of type float64 or else float32, four at a time.

    Four draws are a radius times a uniform direction on the sphere in four dimensions. The squared radius is -2 ln(u v)
    for uniform u and v, half as many logarithms as Box and Muller's method takes; it is split at a uniform point between
    two pairs, each of which gets an angle. Radii come from 53 bits and double precision, so that tails reach beyond 8.6
    standard deviations (further out there are 1e-17 of the normal distribution); split and angles from 53 bits, or from
    32 for float32.
    """
    fours = (count + 3) // 4
    wide = dtype == torch.float64
    words = torch.from_numpy(stream.words(5 * fours if wide else 2 * fours + (3 * fours + 1) // 2))
    # In (0, 1]: never 0, whose logarithm there isn't.
    uniform = words[: 2 * fours].double().mul_(2.0**-64).add_(0.5 + 2.0**-53)
    size = uniform[:fours].mul_(uniform[fours:]).log_().to(dtype).mul_(-2.0)
    # Numbers in [-1, 1]
    more = words[2 * fours :].double() if wide else words[2 * fours :].view(torch.int32)[: 3 * fours].float()
    more.mul_(2.0**-63 if wide else 2.0**-31)
    radii = torch.empty(2, fours, dtype=dtype)
    torch.mul(size, more[:fours].mul_(0.5).add_(0.5), out=radii[0])
    torch.sub(size, radii[0], out=radii[1])
    radii.sqrt_()
    return _on_circles(radii, more[fours:].view(2, fours)).view(-1)[:count]


def _on_circles(radii: Tensor, turns: Tensor) -> Tensor:
    """radii x (cos pi t, sin pi t) for turns t in [-1, 1], stacked; in single precision by polynomials, in half the time."""
    draws = radii.new_empty(2, *radii.shape)
    if radii.dtype == torch.float64:
        torch.mul(radii, (turns * math.pi).cos_(), out=draws[0])
        torch.mul(radii, (turns * math.pi).sin_(), out=draws[1])
        return draws
    # Of half the angle: cos a = 1 - 2 sin^2 (a / 2), sin a = 2 sin (a / 2) cos (a / 2).
    squared = turns * turns
    sine, cosine = _polynomial(_SINE, squared).mul_(turns), _polynomial(_COSINE, squared)
    reach = torch.mul(radii, sine, out=squared)
    torch.addcmul(radii, reach, sine, value=-2, out=draws[0])
    torch.mul(reach, cosine.mul_(2), out=draws[1])
    return draws


def _polynomial(coefficients: Sequence[float], x: Tensor) -> Tensor:
    first, *middle, last = coefficients
    value = x * first
    for coefficient in middle:
        value.add_(coefficient).mul_(x)
    return value.add_(last)
