"""Noise that is correlated over a few steps: matrix factorisation with a banded matrix (BandMF)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from privlearn._checks import count, with_plain_numbers
from privlearn._public import registered
from privlearn.core.mechanisms.correlated import (
    MOST_BANDS,
    USUAL_BANDS,
    Column,
    Correlation,
    filtered,
    impulse,
    require_numbers,
)
from privlearn.core.mechanisms.correlated_stream import CorrelatedStream
from privlearn.core.streams import NoiseStream
from privlearn.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor

    from privlearn.core.sampling import Sampler

#: No rounding of coefficients makes a column longer than 1.
_ROOM = 1e-12


@final
@registered
@dataclass(frozen=True)
class Banded(Correlation):
    """Coefficients that make the mean squared error of the weights as small as they can, for SGD at
    a constant rate.

    An example that takes part in steps at least `bands` apart changes other rows of C g each time,
    and these by at most its sensitivity, since no column of C is longer than 1. So each of its
    times costs what a release with independent noise costs, also where batches are sampled
    (Choquette-Choo et al. 2023, "(Amplified) banded matrix factorization").

    Attributes:
        bands: over how many steps noise is correlated; 1 is independent noise. bands - 1 tensors of
            the model's size are kept.
        momentum: that of SGD, for which the error is computed.

    Source: Choquette-Choo et al. 2023, with Toeplitz matrices (McKenna 2024); the starting point is
    the banded square root (Kalinin and Lampert 2024).
    """

    bands: int
    momentum: float = 0.0
    kind: ClassVar[str] = "banded"
    tried = USUAL_BANDS
    disjoint = True

    def __post_init__(self) -> None:
        require_numbers(self, MOST_BANDS)

    @property
    def rest(self) -> int:
        """As many steps as there are bands."""
        return self.bands

    @with_plain_numbers
    def coefficients(self, steps: int, separation: int = 1) -> Column:
        """As of every `Correlation`: at most `bands` numbers of norm at most 1, for any
        separation.
        """
        return np.asarray(_optimise(min(self.bands, count("steps", steps)), self.momentum, steps))

    @with_plain_numbers
    def inverse(self, steps: int, separation: int = 1) -> Column:
        """As of every `Correlation`."""
        return filtered([1.0], self.coefficients(steps), impulse(steps))

    @with_plain_numbers
    def deviation(self, steps: int, separation: int = 1) -> float:
        """As of every `Correlation`."""
        return deviation(self.coefficients(steps), self.momentum, steps)

    def require_suited(self, sampling: Sampler, examples: int) -> None:
        """Raise `BadInput` unless an example rests for as many steps as the matrix has bands."""
        rest = sampling.separation(examples)
        if rest < self.bands:
            raise BadInput(
                f"noise is correlated over {self.bands} steps (bands), and with these "
                f"{sampling.kind} batches an example may take part again after {rest}: expected at "
                f"most {rest} bands. Use fewer bands, cyclic-partition or cyclic-poisson sampling "
                "with a longer cycle, smaller batches in a fixed order, or independent noise"
            )

    def stream(self, noise: NoiseStream, steps: int, separation: int = 1) -> BandedStream:
        """The noise of a run."""
        return BandedStream(noise, self.coefficients(steps))

    def text(self) -> str:
        """As of every `Correlation`."""
        return f"correlated over {self.bands} steps ({self.kind})"


def deviation(coefficients: Sequence[float] | Column, momentum: float, steps: int) -> float:
    """Root mean square, over steps, of the noise in weights that SGD trains: C y = z with z of
    variance 1.
    """
    return math.sqrt(_squares(np.asarray(coefficients), momentum, steps)[0] / steps)


def _squares(c: Column, momentum: float, steps: int) -> tuple[float, Column]:
    """Sum over steps of the variance of the noise in the weights, and its derivative by the
    coefficients `c`.
    """
    # what weights sum up
    response = filtered([1.0], [1.0, -1.0], filtered([1.0], [1.0, -momentum], impulse(steps)))
    w = filtered([1.0], c, response)
    left = np.arange(steps, 0, -1.0)
    gained = filtered([1.0], c, w)  # - dw / dc_j, shifted by j
    slopes = [-2 * float((left[j:] * w[j:]) @ gained[: steps - j]) for j in range(len(c))]
    return float(left @ w**2), np.array(slopes)


@lru_cache(maxsize=64)
def _optimise(bands: int, momentum: float, steps: int) -> tuple[float, ...]:
    """Coefficients of norm 1 that minimise the error, starting from those of the banded square
    root.
    """
    from scipy.optimize import minimize

    start = np.cumprod([1.0, *((2 * j - 1) / (2 * j) for j in range(1, bands))])

    def objective(rest: Any) -> tuple[float, NDArray[np.float64]]:
        """The logarithm of the error at norm 1, which does not depend on the scale of the
        coefficients.
        """
        c = np.concatenate([[1.0], rest])
        with np.errstate(over="ignore", invalid="ignore"):
            error, slopes = _squares(c, momentum, steps)
        norm = float(c @ c)
        if not (math.isfinite(error) and np.isfinite(slopes).all()):
            return math.inf, np.zeros(bands - 1)
        return math.log(error * norm), (slopes / error + 2 * c / norm)[1:]

    least = (
        minimize(objective, start[1:], jac=True, method="L-BFGS-B").x if bands > 1 else start[1:]
    )
    best = min((start[1:], least), key=lambda rest: objective(rest)[0])
    c = np.concatenate([[1.0], best])
    return tuple((c / (math.sqrt(float(c @ c)) * (1 + _ROOM))).tolist())


@final
class BandedStream(CorrelatedStream):
    """Noise of which a few steps are kept: C y = z, where C has the given bands; each step's may be
    scaled by itself.

    Args:
        stream: where independent noise comes from.
        coefficients: the first column of C.
    """

    changes = True

    def __init__(self, stream: NoiseStream, coefficients: Sequence[float] | Column) -> None:
        super().__init__(stream)
        self._coefficients = [float(c) for c in coefficients]
        self._past: list[list[Tensor]] = []  # the noise of earlier steps, the latest first

    def _fill(
        self, fresh: list[Tensor], std: float, places: Sequence[tuple[int, int]] | None
    ) -> None:
        import torch

        from privlearn.core.mechanisms import noise

        noise.add_gaussian(fresh, std, self._stream, places)
        for coefficient, earlier in zip(self._coefficients[1:], self._past, strict=False):
            torch._foreach_add_(fresh, earlier, alpha=-coefficient)
        torch._foreach_div_(fresh, self._coefficients[0])
        self._past = [fresh, *self._past][: len(self._coefficients) - 1]

    def _save(self) -> dict[str, Any]:
        return {"coefficients": list(self._coefficients), "past": [list(one) for one in self._past]}

    def _go_on(self, state: dict[str, Any]) -> None:
        self._coefficients = list(state["coefficients"])
        self._past = [list(one) for one in state["past"]]
