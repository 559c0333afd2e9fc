"""Eigenvectors and singular vectors have no sign: which of the two is computed depends on the
processor. Here they get one, so that a run gives the same weights on any machine.
"""

from __future__ import annotations

import torch
from torch import Tensor


def with_fixed_signs(vectors: Tensor) -> Tensor:
    """The columns of `vectors` (numbers, columns), each turned so that its product with a fixed
    random vector is positive.
    """
    drawn = torch.Generator("cpu").manual_seed(0)
    fixed = torch.randn(len(vectors), generator=drawn, dtype=torch.float64, device="cpu")
    products = fixed @ vectors.detach().cpu().double()
    return vectors * torch.where(products < 0, -1.0, 1.0).to(vectors)
