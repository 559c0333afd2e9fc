"""Gaussian noise from a run's noise stream."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def gaussian(like: Tensor, std: float, stream: np.random.Generator) -> Tensor:
    """Independent N(0, std^2) draws with the shape, type and device of `like`.

    Float64 draws for float64 tensors, float32 for every other type.
    """
    dtype = np.float64 if like.dtype == torch.float64 else np.float32
    draws = stream.standard_normal(tuple(like.shape), dtype=dtype)
    return torch.from_numpy(np.asarray(draws)).to(like).mul_(std)
