"""Gaussian noise from a run's noise stream."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from privlearn.errors import BadInput

#: Draws that are made at once: few enough to stay in a processor's cache.
_BLOCK = 1 << 17


def add_gaussian(values: Sequence[Tensor], std: float, stream: np.random.Generator) -> None:
    """Add independent N(0, std^2) draws to every number of `values`, in place.

    Raises:
        BadInput: values of another type than float32 and float64; nothing is drawn.
    """
    for value in values:
        if value.dtype not in (torch.float32, torch.float64):
            raise BadInput(f"noise can't be added to numbers of type {value.dtype}: expected float32 or float64")
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


def gaussian(count: int, dtype: torch.dtype, stream: np.random.Generator) -> Tensor:
    """`count` independent N(0, 1) draws, of type float64 or else float32, by Box and Muller's method.

    The radius comes from 53 random bits in double precision, so that tails reach to 8.6 standard deviations (further
    out there are 1e-17 of the normal distribution); the angle from 53 bits, or from 32 for float32.
    """
    pairs = (count + 1) // 2
    wide = dtype == torch.float64
    words = torch.from_numpy(_words(pairs if wide else (pairs + 1) // 2, stream))
    angles = words.double().mul_(math.pi * 2.0**-63) if wide else words.view(torch.int32)[:pairs].float()
    if not wide:
        angles.mul_(math.pi * 2.0**-31)
    # In (0, 1): never 0, whose logarithm there isn't.
    uniform = torch.from_numpy(_words(pairs, stream)).bitwise_and_((1 << 53) - 1).double().add_(0.5).mul_(2.0**-53)
    radii = uniform.log_().mul_(-2.0).to(angles.dtype).sqrt_()
    draws = torch.empty(2, pairs, dtype=angles.dtype)
    torch.mul(radii, angles.cos(), out=draws[0])
    torch.mul(radii, angles.sin_(), out=draws[1])
    return draws.view(-1)[:count]


def _words(count: int, stream: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """64 random bits each."""
    return stream.integers(-(2**63), 2**63 - 1, size=count, dtype=np.int64, endpoint=True)
