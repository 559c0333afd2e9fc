"""The objective of one layer that was released, as a polynomial in its weights: what is done with it is post-processing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor


@final
@dataclass(frozen=True)
class Surrogate:
    """sum_h w_h.b_h + w_h.C_h w_h, with noise in b and C (Harder et al. 2019, eq. 5, times 2N).

    Attributes:
        linear: b, shape (outputs, inputs).
        curvature: C, symmetric, shape (outputs, inputs, inputs); None for the expansion of first order.
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
    def around(cls, weight: Tensor, gradient: Tensor, curvature: Tensor | None, noise: float = 0.0) -> Surrogate:
        """The expansion around `weight`, from released sums of first derivatives and of halved second ones.

        b = dT - 2 C w is rebuilt from what was released. (Releasing b itself would cost more: with clipped parts its
        sensitivity has a term for C, too.)
        """
        if curvature is None:
            return cls(gradient)
        C = symmetrised(curvature)
        return cls(gradient - 2 * _times(C, weight), C, noise)

    def gradient(self, weight: Tensor) -> Tensor:
        """Its gradient at `weight`, shape (outputs, inputs)."""
        return self.linear if self.curvature is None else self.linear + 2 * _times(self.curvature, weight)

    def newton(self, weight: Tensor, damping: float) -> Tensor:
        """The step from `weight`, to be subtracted, to the minimum of a convex polynomial near this one.

        Noise makes C indefinite, and the polynomial unbounded below. Eigenvalues below a floor count as that: `damping`, or
        the size that noise alone reaches, whichever is more. (The noise is a symmetric Gaussian matrix, whose eigenvalues end
        near sqrt(2 inputs) times the standard deviation.) So no step is longer than |gradient| / (2 floor).
        """
        gradient = self.gradient(weight)
        if self.curvature is None:
            return gradient
        values, vectors = torch.linalg.eigh(self.curvature)
        floor = max(damping, self.noise * math.sqrt(2 * weight.shape[1]), torch.finfo(weight.dtype).tiny)
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
