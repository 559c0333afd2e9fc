"""This file draws Gaussian noise from a run's noise stream, in floating point, or on a grid in
exact arithmetic.

What leaves a grid holds no trace of floating point. A value is rounded to the grid and gets a
Gaussian that is rounded to the same grid. Because the value lies on the grid, that is the Gaussian
mechanism followed by rounding: post-processing, so that every guarantee of the Gaussian mechanism
holds as it stands, by whichever accountant. (The discrete Gaussian of Canonne, Kamath and Steinke
2020 has the same law up to parts in 2^24 here, but is covered by zCDP and Renyi DP only.) Rounding
moves each of d numbers by at most half a step, so one example can change the rounded value by the
sensitivity and step x sqrt(d) at most; the noise is scaled to that.

A stream of AES makes its words in order, on the processor, and they are copied to where the values
are. A stream of ChaCha20 makes them where the values are: number j of a release has bytes 8 j to 8
j + 7 behind the stream's place for its own, whatever is made of the others, where, and how much at
once. Eight numbers are one block of 16 words of 32 bits: lanes 0 to 3 are the upper halves of four
uniform numbers, lanes 4 to 7 the lower halves, 8 to 11 and 12 to 15 those of four angles; the
cosines come first, then the sines. On a grid results have the same bits on all devices; else they
agree to 2^-18 of a standard deviation in single and to 2^-46 in double precision, by how devices
round logarithms and products.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import mpmath
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privlearn.core import chacha
from privlearn.core.devices import PROCESSOR, on_processor
from privlearn.core.mechanisms.noise_kernel import BUILT, NoiseKernel
from privlearn.core.streams import NoiseStream
from privlearn.errors import BadInput

#: Draws that are made at once: few enough to stay in a processor's cache.
_BLOCK = 1 << 17
#: Draws that are made at once on an accelerator: many, since each call of an operation takes time.
_BLOCK_ON_DEVICE = 1 << 22
_LANES = 8  # draws that one block of ChaCha20 makes
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
    if _is_placed(stream):
        _add_by_place(values, std, stream, places)
        return
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


def _is_placed(stream: NoiseStream) -> bool:
    """Whether every number of the stream can be made by itself, where it is wanted."""
    return NoiseStream.is_one(stream) and stream.cipher == "chacha20"


def _add_by_place(
    values: Sequence[Tensor], std: float, stream: NoiseStream, places: Places
) -> None:
    """`add_gaussian` from a stream of ChaCha20: where the values are, and no more than is here."""
    key = stream.chacha_key
    for dtype in dict.fromkeys(value.dtype for value in values):
        parts, size = _line_up(
            [
                (value, place)
                for value, place in zip(values, places, strict=True)
                if value.dtype == dtype
            ]
        )
        before = stream.take(-(-size // _LANES))
        for gathered in _gather(parts):
            device = _where_made(gathered.device)
            draws = _normals_at(key, gathered.blocks(before), dtype, device).to(gathered.device)
            torch._foreach_add_(
                gathered.pieces,
                [draws[at : at + len(piece)] for at, piece in gathered.placed()],
                alpha=std,
            )


def _where_made(device: torch.device) -> torch.device:
    """A device, or the processor where it lacks double precision, or the cipher's operations."""
    from privlearn.core import chacha_blocks  # not for AES

    return device if chacha_blocks.works_on(device, in_double=True) else PROCESSOR


def _line_up(
    values: Sequence[tuple[Tensor, tuple[int, int]]],
) -> tuple[list[tuple[int, Tensor]], int]:
    """Values one after the other, as the numbers that are here of wholes: where each begins, and
    how many numbers all wholes have.
    """
    size, parts = 0, []
    for value, (start, whole) in values:
        parts += [(size + start, value.view(-1))] * (value.numel() > 0)
        size += whole
    return parts, size


class _Gathered:
    """Pieces of values, on one device, whose noise is made at once."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.pieces, self.numbers = device, list[Tensor](), 0
        self._at: list[int] = []  # where each piece begins, in draws
        self._runs: list[list[int]] = []  # blocks of draws, first to last

    def add(self, at: int, piece: Tensor) -> None:
        """Take a piece whose first number is number `at`."""
        first, last = at // _LANES, -(-(at + len(piece)) // _LANES)
        if self._runs and self._runs[-1][0] <= first <= self._runs[-1][1]:
            self._runs[-1][1] = max(last, self._runs[-1][1])
        else:
            self._runs.append([first, last])
        before = sum(end - begin for begin, end in self._runs[:-1]) - self._runs[-1][0]
        self._at.append(at + before * _LANES)
        self.pieces.append(piece)
        self.numbers += len(piece)

    def blocks(self, before: int) -> list[chacha.Range]:
        """The blocks of the stream that make their draws, `before` of which come first."""
        return [(before + first, before + last) for first, last in self._runs]

    def placed(self) -> Iterator[tuple[int, Tensor]]:
        """Each piece, and where its draws begin among those of `blocks`."""
        return zip(self._at, self.pieces, strict=True)


def _gather(parts: Sequence[tuple[int, Tensor]]) -> Iterator[_Gathered]:
    """Parts cut up and put together, so that as much is made at once as suits their device."""
    gathered = None
    for at, flat in parts:
        most = _BLOCK if on_processor(flat) else _BLOCK_ON_DEVICE
        begin = 0
        while begin < len(flat):
            if gathered and (gathered.device != flat.device or gathered.numbers >= most):
                yield gathered
                gathered = None
            gathered = gathered or _Gathered(flat.device)
            end = min(len(flat), begin + most - gathered.numbers)
            gathered.add(at + begin, flat[begin:end])
            begin = end
    if gathered:
        yield gathered


def _normals_at(
    key: bytes, blocks: Sequence[chacha.Range], dtype: torch.dtype, device: torch.device
) -> Tensor:
    """The draws of blocks, eight for each, on a device."""
    from privlearn.core import chacha_blocks  # not for AES

    # Whether by a kernel, which rounds otherwise, follows from the size alone: a step that is
    # repeated has the same noise to the last bit, or it would be refused.
    if dtype == torch.float32 and not on_processor(device) and chacha_blocks.are_many(blocks):
        draw = _kernel_on(device)
        if draw is not None:
            return draw(key, chacha.NOISE, blocks, device)
    return normals_of(chacha_blocks.words_at(key, chacha.NOISE, blocks, device), dtype)


@lru_cache
def _kernel_on(device: torch.device) -> Callable[..., Tensor] | None:
    """What makes the draws of `normals_of` in single precision by one call on an accelerator, if it
    can be compiled and does.
    """
    try:
        from privlearn.core.mechanisms import normals_kernel  # Triton is not everywhere

        return normals_kernel.draw_normals if normals_kernel.works_on(device) else None
    except Exception:  # whatever a compiler may raise: the operations are there
        return None


def _wide(upper: Tensor, lower: Tensor) -> Tensor:
    """Whole numbers of 64 bits."""
    return (upper.long() << 32) | (lower.long() & 0xFFFFFFFF)


def normals_of(words: Tensor, dtype: torch.dtype) -> Tensor:
    """Independent N(0, 1) draws from words of ChaCha20, by Box and Muller's method: eight a block.

    Radii come from 64 bits and double precision, the finer the further out: tails reach to 9.4
    standard deviations. Angles come from 64 bits, or from 32 for float32.

    Args:
        words: int32, shape (16, blocks).
        dtype: float64, or else float32.
    """
    uniform = _wide(words[:4], words[4:8]).double() * 2.0**-64
    # In (0, 1]: the smallest is 2^-65.
    uniform = torch.where(uniform < 0, uniform + 1, uniform) + 2.0**-65
    radii = (uniform.log() * -2.0).to(dtype).sqrt()
    turns = (
        _wide(words[8:12], words[12:]).double() * 2.0**-63
        if dtype == torch.float64
        else words[8:12].float() * 2.0**-31
    )
    return _on_circles(radii, turns).view(_LANES, -1).T.reshape(-1)


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
    float32. Of a stream of ChaCha20 they are those of `normals_of`.
    """
    if _is_placed(stream):
        blocks = -(-count // _LANES)
        first = stream.take(blocks)
        at = [(first, first + blocks)]
        return _normals_at(stream.chacha_key, at, dtype, PROCESSOR)[:count]
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
    if _is_placed(stream):
        _add_on_grid_by_place(values, step, scale, stream, places)
        return
    for value, (start, whole) in zip(values, places, strict=True):
        flat = value.view(-1)
        for first in range(0, whole, _BLOCK_ON_GRID):
            noise = rounded_gaussian(min(whole - first, _BLOCK_ON_GRID), scale, stream)
            begin, end = max(start, first), min(start + flat.numel(), first + len(noise))
            if begin < end:
                block = flat[begin - start : end - start]
                noise = noise[begin - first : end - first].to(block.device)
                block.copy_(block.double().div_(step).round_().add_(noise).mul_(step))


def _add_on_grid_by_place(
    values: Sequence[Tensor], step: float, scale: float, stream: NoiseStream, places: Places
) -> None:
    """Round to the grid and add noise from a stream of ChaCha20, where the values are."""
    key = stream.chacha_key
    parts, size = _line_up([*zip(values, places, strict=True)])
    before = stream.take(-(-size // _LANES))
    for gathered in _gather(parts):
        device = _where_made(gathered.device)
        whole = rounded_at(key, gathered.blocks(before), scale, device)
        for at, piece in gathered.placed():
            there = piece.to(whole.device, torch.float64).div_(step).round_()
            piece.copy_(there.add_(whole[at : at + len(piece)]).mul_(step))


def rounded_at(
    key: bytes, blocks: Sequence[chacha.Range], scale: float, device: torch.device
) -> Tensor:
    """What `rounded_gaussian` draws, from blocks of ChaCha20, eight draws for each; float64, with
    the same bits on every device.

    Where double precision does not decide, the bits of a pair are made again on the processor, and
    more of them: they have places of their own, so that nothing depends on how many there are. The
    device is waited for once.
    """
    from privlearn.core import chacha_blocks  # not for AES

    words = chacha_blocks.words_at(key, chacha.NOISE, blocks, device)
    radius, angle = _wide(words[:4], words[4:8]), _wide(words[8:12], words[12:])
    uniform = radius.double().mul_(2.0**-64).add_(0.5)
    angles = angle.double().mul_(math.pi * 2.0**-63)
    whole, undecided = _rounded(uniform, angles, scale)
    pairs = undecided.nonzero().tolist()
    for pair, block in pairs:
        place = _block_number(blocks, block)
        bits = chacha.by_openssl(key, chacha.NOISE, place, 1)[0].astype(np.uint32).tolist()
        radius_bits, angle_bits = (
            chacha.to_signed(bits[at + pair] << 32 | bits[at + 4 + pair]) for at in (0, 8)
        )
        further = _further_bits(key, 4 * place + pair)
        refined = _refine(radius_bits, angle_bits, scale, further)
        whole[:, pair, block] = whole.new_tensor(refined)
    return whole.view(_LANES, -1).T.reshape(-1)


def _block_number(blocks: Sequence[chacha.Range], at: int) -> int:
    """The counter of the block at place `at` of those in ranges."""
    for first, last in blocks:
        if at < last - first:
            return first + at
        at -= last - first
    raise IndexError


def _further_bits(key: bytes, pair: int) -> Callable[[], NDArray[np.uint64]]:
    """What hands out the further words of a pair of draws: blocks at the pair's place, which are
    for refinement.
    """
    rounds = iter(range(1 << 31))

    def more() -> NDArray[np.uint64]:
        nonce = chacha.REFINEMENT | next(rounds) << 32
        return chacha.by_openssl(key, nonce, pair, 1).reshape(-1).view(np.uint64)

    return more


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
    whole, undecided = _rounded(uniform, angles, scale)
    for pair in undecided.nonzero()[:, 0].tolist():
        whole[:, pair] = whole.new_tensor(
            _refine(
                int(words[pair]),
                int(words[pairs + pair]),
                scale,
                lambda: stream.words(2 * _MORE).view(np.uint64),
            )
        )
    return whole.view(-1)[:count]


def _rounded(uniform: Tensor, angles: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Pairs of draws, rounded, and for which pairs that is not decided."""
    radii = uniform.log().mul_(-2.0).sqrt_()
    exact = torch.stack([radii * angles.cos(), radii * angles.sin()]).mul_(scale)
    # The uniform number is known to 2^-52 or better, which moves the radius by at most twice that
    # over (uniform x radius).
    error = (radii * _ERROR + 2.0**-51 / (uniform * radii)).mul_(scale)
    whole = exact.round()
    return whole, ~((exact - whole).abs_() + error < 0.5).all(0)


def _refine(
    radius: int, angle: int, scale: float, further: Callable[[], NDArray[np.uint64]]
) -> list[float]:
    """The pair that begins with these 64 bits each, rounded; `further` hands out eight more words
    of 64 bits.
    """
    bits = 64
    while True:
        more = further()
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
