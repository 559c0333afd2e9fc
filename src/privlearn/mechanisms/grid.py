"""Gaussian noise on a grid, in exact arithmetic: what leaves holds no trace of floating point.

A value is rounded to a grid and gets a Gaussian that is rounded to the same grid. Because the value lies on the grid,
that is the Gaussian mechanism followed by rounding: post-processing, so that every guarantee of the Gaussian mechanism
holds as it stands, by whichever accountant. (The discrete Gaussian of Canonne, Kamath and Steinke 2020 has the same law
up to parts in 2^24 here, but is covered by zCDP and Renyi DP only.) Rounding moves each of d numbers by at most half a
step, so one example can change the rounded value by the sensitivity and step x sqrt(d) at most; the noise is scaled
to that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import mpmath
import numpy as np
import torch
from torch import Tensor

from privlearn.streams import NoiseStream

#: Rounding may raise the sensitivity by this share.
_ROOM = 2.0**-10
#: The error of Box and Muller's method in double precision, relative to the radius: eight times what it can be with functions
#: that are good to one unit in the last place.
_ERROR = 2.0**-46
_BLOCK = 1 << 16
_MORE = 4  # further words of 64 bits where the first do not decide


def add_on_grid(values: Sequence[Tensor], noise_multiplier: float, sensitivity: float, stream: NoiseStream) -> None:
    """Round `values` to a grid and add Gaussian noise that is rounded to it, in place.

    Guarantee: that of a Gaussian release with `noise_multiplier`, if one example changes `values` by at most `sensitivity` in
    L2 norm together. Sums and noise are added up exactly, in whole multiples of the step; only the result is rounded to
    the type of `values`.
    """
    numbers = sum(value.numel() for value in values)
    step = 2.0 ** math.floor(math.log2(sensitivity * _ROOM / math.sqrt(max(numbers, 1))))
    bound = sensitivity + step * math.sqrt(numbers)
    scale = noise_multiplier * bound / step * (1 + 1e-12)  # no rounding of this line makes it less
    for value in values:
        flat = value.view(-1)
        for start in range(0, flat.numel(), _BLOCK):
            own = flat[start : start + _BLOCK]
            noise = rounded_gaussian(own.numel(), scale, stream).to(own.device)
            own.copy_(own.double().div_(step).round_().add_(noise).mul_(step))


def rounded_gaussian(count: int, scale: float, stream: NoiseStream) -> Tensor:
    """`count` independent draws of N(0, scale^2), each rounded to the nearest whole number, exactly; float64.

    By Box and Muller's method from uniform numbers of infinitely many bits, of which 64 are drawn. Where those, or the
    accuracy of double precision, do not tell how to round, more bits are drawn and the result is computed to 300 bits.
    """
    pairs = (count + 1) // 2
    words = stream.words(2 * pairs)
    uniform = torch.from_numpy(words[:pairs]).double().mul_(2.0**-64).add_(0.5)
    angles = torch.from_numpy(words[pairs:]).double().mul_(math.pi * 2.0**-63)
    radii = uniform.log().mul_(-2.0).sqrt_()
    exact = torch.stack([radii * angles.cos(), radii * angles.sin()]).mul_(scale)
    # The uniform number is known to 2^-52 or better, which moves the radius by at most twice that over (uniform x radius).
    error = (radii * _ERROR + 2.0**-51 / (uniform * radii)).mul_(scale)
    whole = exact.round()
    undecided = ~((exact - whole).abs_() + error < 0.5).all(0)
    for pair in undecided.nonzero()[:, 0].tolist():
        whole[:, pair] = whole.new_tensor(_refined(int(words[pair]), int(words[pairs + pair]), scale, stream))
    return whole.view(-1)[:count]


def _refined(radius: int, angle: int, scale: float, stream: NoiseStream) -> list[float]:
    """The pair that begins with these 64 bits each, rounded."""
    bits = 64
    while True:
        more = stream.words(2 * _MORE).view(np.uint64)
        for part in range(_MORE):
            radius, angle = radius << 64 | int(more[part]), angle << 64 | int(more[_MORE + part])
        bits += 64 * _MORE
        with mpmath.workprec(bits + 64):
            uniform = mpmath.mpf(1) / 2 + mpmath.ldexp(radius, -bits)
            if uniform <= 0:
                continue
            reach = scale * mpmath.sqrt(-2 * mpmath.log(uniform))
            turn = mpmath.ldexp(angle, 1 - bits)
            refined = [reach * mpmath.cospi(turn), reach * mpmath.sinpi(turn)]
            whole = [mpmath.nint(value) for value in refined]
            error = (reach + scale**2 / (uniform * reach)) * mpmath.ldexp(1, 8 - bits)
            if all(abs(value - near) + error < 0.5 for value, near in zip(refined, whole, strict=True)):
                return [float(near) for near in whole]
