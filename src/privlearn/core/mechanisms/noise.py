"""This file draws Gaussian noise from a run's noise stream, in floating point, or on a grid in
exact arithmetic.

What leaves a grid holds no trace of floating point. A value is rounded to the grid and gets a
Gaussian that is rounded to the same grid. Because the value lies on the grid, that is the Gaussian
mechanism followed by rounding: post-processing, so that every guarantee of the Gaussian mechanism
holds as it stands, by whichever accountant. (The discrete Gaussian of Canonne, Kamath and Steinke
2020 has the same law up to parts in 2^24 here, but is covered by zCDP and Renyi DP only.) Rounding
moves each of d numbers by at most half a step, so one example can change the rounded value by the
sensitivity and step x sqrt(d) at most; the noise is scaled to that.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import mpmath
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privlearn.core.mechanisms.noise_kernel import BUILT, NoiseKernel
from privlearn.core.streams import NoiseStream
from privlearn.errors import BadInput

#: Draws that are made at once: few enough to stay in a processor's cache.
_BLOCK = 1 << 17
_ENDS = np.iinfo(np.int64)
#: sin(pi t / 2) / t to 7e-9 and cos(pi t / 2) to 5e-10 for t in [-1, 1], in powers of t^2
#: (Chebyshev fits).
_SINE = (1.5167170e-4, -4.67414384e-3, 7.968991833e-2, -0.6459637596, 1.570796320)
_COSINE = (-2.38241524e-5, 9.17722924e-4, -2.086268671e-2, 0.2536693222, -1.233700534, 0.9999999998)


def require_noisable(values: Sequence[Tensor]) -> None:
    """Raise `BadInput` unless noise can be added to all of `values` in place: contiguous float32
    and float64.
    """
    for value in values:
        if value.dtype not in (torch.float32, torch.float64):
            raise BadInput(
                f"noise can't be added to numbers of type {value.dtype}: expected float32 or "
                "float64"
            )
        if not value.is_contiguous():
            raise BadInput(
                f"noise can't be added to a tensor of shape {tuple(value.shape)} and strides "
                f"{value.stride()}: expected a contiguous one; give value.contiguous()"
            )


#: For each value that noise is added to: at which of its whole's numbers it begins, and how many
#: that whole has.
Places = Sequence[tuple[int, int]]


def add_gaussian(
    values: Sequence[Tensor], std: float, stream: NoiseStream, places: Places | None = None
) -> None:
    """Add independent N(0, std^2) draws to every number of `values`, in place.

    Values that are parts of larger wholes, which several processes share, get what these numbers
    would get if the wholes were here: every number of a whole has a place of its own in the stream,
    and the stream moves past all.

    Raises:
        BadInput: values of another type than float32 and float64; nothing is drawn.
    """
    require_noisable(values)
    places = [(0, value.numel()) for value in values] if places is None else places
    for dtype in dict.fromkeys(value.dtype for value in values):
        size, parts = 0, []
        for value, (start, whole) in zip(values, places, strict=True):
            if value.dtype == dtype:
                parts += [(size + start, value.view(-1))] * (value.numel() > 0)
                size += whole
        # words of blocks of which nothing is here; the first part that is not done
        passed, part = 0, 0
        for first in range(0, size, _BLOCK):
            draws, last = None, min(first + _BLOCK, size)
            while part < len(parts) and parts[part][0] < last:
                if draws is None:
                    stream.skip(passed)
                    passed, draws = 0, gaussian(last - first, dtype, stream)
                at, flat = parts[part]
                begin, end = max(at, first), min(at + flat.numel(), last)
                flat[begin - at : end - at].add_(
                    draws[begin - first : end - first].to(flat.device), alpha=std
                )
                if at + flat.numel() > last:
                    break
                part += 1
            passed += _words(last - first, dtype) if draws is None else 0
        stream.skip(passed)


def _words(count: int, dtype: torch.dtype) -> int:
    """Words of 64 bits that so many draws take."""
    fours = (count + 3) // 4
    return 5 * fours if dtype == torch.float64 else 2 * fours + (3 * fours + 1) // 2


def gaussian(count: int, dtype: torch.dtype, stream: NoiseStream) -> Tensor:
    """`count` independent N(0, 1) draws, of type float64 or else float32, four at a time.

    Four draws are a radius times a uniform direction on the sphere in four dimensions. The squared
    radius is -2 ln(u v) for uniform u and v, half as many logarithms as Box and Muller's method
    takes; it is split at a uniform point between two pairs, each of which gets an angle. Radii come
    from 53 bits and double precision, so that tails reach beyond 8.6 standard deviations (further
    out there are 1e-17 of the normal distribution); split and angles from 53 bits, or from 32 for
    float32.
    """
    make = kernel() or by_operations
    return make(stream.words(_words(count, dtype)), (count + 3) // 4, dtype)[:count]


def by_operations(random_words: NDArray[np.int64], fours: int, dtype: torch.dtype) -> Tensor:
    """The draws that words of 64 random bits make, by PyTorch's operations: four for each of
    `fours`.
    """
    wide, words = dtype == torch.float64, torch.from_numpy(random_words)
    # In (0, 1]: never 0, whose logarithm there isn't.
    uniform = words[: 2 * fours].double().mul_(2.0**-64).add_(0.5 + 2.0**-53)
    size = uniform[:fours].mul_(uniform[fours:]).log_().to(dtype).mul_(-2.0)
    # Numbers in [-1, 1]
    more = (
        words[2 * fours :].double()
        if wide
        else words[2 * fours :].view(torch.int32)[: 3 * fours].float()
    )
    more.mul_(2.0**-63 if wide else 2.0**-31)
    radii = torch.empty(2, fours, dtype=dtype, device="cpu")
    torch.mul(size, more[:fours].mul_(0.5).add_(0.5), out=radii[0])
    torch.sub(size, radii[0], out=radii[1])
    radii.sqrt_()
    return _on_circles(radii, more[fours:].view(2, fours)).view(-1)


@lru_cache
def kernel(path: Path = BUILT) -> NoiseKernel | None:
    """The compiled form of `by_operations`, if it was built and makes the same draws, to the last
    bit.
    """
    try:
        built = NoiseKernel(path, _SINE, _COSINE)
    except (OSError, AttributeError):
        return None
    for dtype in (torch.float32, torch.float64):
        for fours in (1, 7, 1024):  # shorter and longer than what a processor computes at once
            # Any bits do; a stream's own would count as drawn where that is watched.
            bits = hashlib.shake_256(b"noise kernel").digest(8 * _words(4 * fours, dtype))
            words = np.frombuffer(bits, np.int64).copy()
            words[0], words[2 * fours - 1], words[-1] = _ENDS.min, _ENDS.max, _ENDS.min
            if not torch.equal(built(words, fours, dtype), by_operations(words, fours, dtype)):
                return None
    return built


def _on_circles(radii: Tensor, turns: Tensor) -> Tensor:
    """radii x (cos pi t, sin pi t) for turns t in [-1, 1], stacked; in float32 by polynomials, in
    half the time.
    """
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


#: Rounding may raise the sensitivity by this share.
_ROOM = 2.0**-10
#: The error of Box and Muller's method in double precision, relative to the radius: eight times
#: what it can be with functions that are good to one unit in the last place.
_ERROR = 2.0**-46
_BLOCK_ON_GRID = 1 << 16
_MORE = 4  # further words of 64 bits where the first do not decide


def add_on_grid(
    values: Sequence[Tensor],
    noise_multiplier: float,
    sensitivity: float,
    stream: NoiseStream,
    places: Places | None = None,
) -> None:
    """Round `values` to a grid and add Gaussian noise that is rounded to it, in place.

    Guarantee: that of a Gaussian release with `noise_multiplier`, if one example changes `values`
    by at most `sensitivity` in L2 norm together. Sums and noise are added up exactly, in whole
    multiples of the step; only the result is rounded to the type of `values`. Of values that are
    parts of larger wholes, noise is made for the wholes: how much of the stream it takes is known
    when it is made.
    """
    places = [(0, value.numel()) for value in values] if places is None else places
    numbers = sum(whole for _, whole in places)
    step = 2.0 ** math.floor(math.log2(sensitivity * _ROOM / math.sqrt(max(numbers, 1))))
    bound = sensitivity + step * math.sqrt(numbers)
    scale = noise_multiplier * bound / step * (1 + 1e-12)  # no rounding of this line makes it less
    for value, (start, whole) in zip(values, places, strict=True):
        flat = value.view(-1)
        for first in range(0, whole, _BLOCK_ON_GRID):
            noise = rounded_gaussian(min(whole - first, _BLOCK_ON_GRID), scale, stream)
            begin, end = max(start, first), min(start + flat.numel(), first + len(noise))
            if begin < end:
                block = flat[begin - start : end - start]
                noise = noise[begin - first : end - first].to(block.device)
                block.copy_(block.double().div_(step).round_().add_(noise).mul_(step))


def rounded_gaussian(count: int, scale: float, stream: NoiseStream) -> Tensor:
    """`count` independent draws of N(0, scale^2), each rounded to the nearest whole number,
    exactly; float64.

    By Box and Muller's method from uniform numbers of infinitely many bits, of which 64 are drawn.
    Where those, or the accuracy of double precision, do not tell how to round, more bits are drawn
    and the result is computed to 300 bits.
    """
    pairs = (count + 1) // 2
    words = stream.words(2 * pairs)
    uniform = torch.from_numpy(words[:pairs]).double().mul_(2.0**-64).add_(0.5)
    angles = torch.from_numpy(words[pairs:]).double().mul_(math.pi * 2.0**-63)
    radii = uniform.log().mul_(-2.0).sqrt_()
    exact = torch.stack([radii * angles.cos(), radii * angles.sin()]).mul_(scale)
    # The uniform number is known to 2^-52 or better, which moves the radius by at most twice that
    # over (uniform x radius).
    error = (radii * _ERROR + 2.0**-51 / (uniform * radii)).mul_(scale)
    whole = exact.round()
    undecided = ~((exact - whole).abs_() + error < 0.5).all(0)
    for pair in undecided.nonzero()[:, 0].tolist():
        whole[:, pair] = whole.new_tensor(
            _refine(int(words[pair]), int(words[pairs + pair]), scale, stream)
        )
    return whole.view(-1)[:count]


def _refine(radius: int, angle: int, scale: float, stream: NoiseStream) -> list[float]:
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
            if all(
                abs(value - near) + error < 0.5 for value, near in zip(refined, whole, strict=True)
            ):
                return [float(near) for near in whole]


def known_answer() -> tuple[bytes, bytes]:
    """Two blocks of the key stream for NIST's key and counter (SP 800-38A, F.5.1), and what they
    have to be.
    """
    key, counter = bytes.fromhex("2b7e151628aed2a6abf7158809cf4f3c"), bytes(range(0xF0, 0x100))
    expected = bytes.fromhex("ec8cdf7398607cb0f2d21675ea9ea1e4362b7c3c6773516318a077d7fc5073ae")
    return NoiseStream(key, int.from_bytes(counter, "big")).words(
        len(expected) // 8
    ).tobytes(), expected
