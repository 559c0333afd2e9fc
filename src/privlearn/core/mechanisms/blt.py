"""Noise that is correlated over all steps with the memory of a few: a buffered linear Toeplitz
matrix (BLT).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np

from privlearn._checks import count, with_plain_numbers
from privlearn._public import registered
from privlearn.core.mechanisms.correlated import (
    Column,
    Correlation,
    deviation_of,
    filtered,
    impulse,
    require_numbers,
    scale,
)
from privlearn.core.mechanisms.correlated_stream import CorrelatedStream
from privlearn.core.streams import NoiseStream

if TYPE_CHECKING:
    from torch import Tensor

#: Buffers beyond these gain nothing.
_MOST_BUFFERS = 8
#: Where the search ends: what is further to win is not worth the time.
_SEARCH = {"ftol": 1e-8, "maxfun": 400}
#: Logarithms of the gaps between rates are looked for between these.
_GAPS = (-12.0, 3.0)


@final
@registered
@dataclass(frozen=True)
class BLT(Correlation):
    """C is a rational function of degree `buffers`: its column is a sum of a few decaying
    exponentials.

    C = product of (1 - z_i x) / (1 - p_i x) with rates 1 > p_1 > z_1 > p_2 > z_2 > ... >= 0, so
    that its column is positive and falls. The rates are those of least mean squared error of the
    weights that were found, for the plan's steps and times of an example, by L-BFGS from two
    beginnings. As for `BISR`, C is scaled for all times of an example together, for batches in a
    fixed order, so that no guarantee rests on how good the rates are.

    Attributes:
        buffers: so many tensors of the model's size are kept.
        momentum: that of SGD, for which the error is computed.

    Source: Dvijotham, McMahan, Pillutla, Steinke and Thakurta 2024; several times of an example:
    McMahan, Xu and Zhang 2024.
    """

    buffers: int
    momentum: float = 0.0
    kind: ClassVar[str] = "blt"
    tried = (1, 2)

    def __post_init__(self) -> None:
        require_numbers(self, _MOST_BUFFERS)

    @with_plain_numbers
    def coefficients(self, steps: int, separation: int = 1) -> Column:
        """As of every `Correlation`."""
        return self._column(steps, separation) / self._scale(steps, separation)

    @with_plain_numbers
    def inverse(self, steps: int, separation: int = 1) -> Column:
        """As of every `Correlation`."""
        poles, zeros = self.rates(steps, separation)
        return _product(poles, zeros, steps) * self._scale(steps, separation)

    def stream(self, noise: NoiseStream, steps: int, separation: int = 1) -> BufferedStream:
        """The noise of a run."""
        poles, zeros = self.rates(steps, separation)
        return BufferedStream(noise, self._scale(steps, separation), poles, zeros, steps)

    def text(self) -> str:
        """As of every `Correlation`."""
        return f"correlated over all steps ({self.kind}, buffers={self.buffers})"

    def rates(self, steps: int, separation: int = 1) -> tuple[list[float], list[float]]:
        """The rates p and z."""
        rates = _fit(
            self.buffers, self.momentum, count("steps", steps), count("separation", separation)
        )
        return list(rates[0::2]), list(rates[1::2])

    def _column(self, steps: int, separation: int) -> Column:
        poles, zeros = self.rates(steps, separation)
        return _product(zeros, poles, steps)

    def _scale(self, steps: int, separation: int) -> float:
        return scale(self._column(steps, separation), separation)


def _product(zeros: Sequence[float], poles: Sequence[float], steps: int) -> Column:
    """The series of the product of (1 - z x) / (1 - p x)."""
    series = impulse(steps)
    for zero, pole in zip(zeros, poles, strict=True):
        series = filtered([1.0, -zero], [1.0, -pole], series)
    return series


@lru_cache(maxsize=64)
def _fit(buffers: int, momentum: float, steps: int, separation: int) -> tuple[float, ...]:
    """The rates p_1, z_1, p_2, z_2, ... with the least error that was found."""
    from scipy.optimize import minimize

    def rates(gaps: Any) -> Any:
        """From the logarithms of the gaps between the logarithms of 1 - rate, from 0 up."""
        return -np.expm1(-np.cumsum(np.exp(gaps)))[::-1]

    def objective(gaps: Any) -> float:
        """The logarithm of the error, once C is scaled."""
        poles, zeros = rates(gaps)[0::2], rates(gaps)[1::2]
        error = deviation_of(_product(poles, zeros, steps), momentum)
        return math.log(error * scale(_product(zeros, poles, steps), separation))

    starts = [np.full(2 * buffers, math.log(max(math.log(steps), 1.0) / (2 * buffers)))]
    if buffers > 1:  # the best with one buffer less, its last gap cut in three
        less = np.diff(
            -np.log1p(-np.array(_fit(buffers - 1, momentum, steps, separation)))[::-1],
            prepend=0.0,
        )
        starts.append(np.clip(np.log([less[0] / 3] * 3 + list(less[1:])), *_GAPS))
    bounds = [_GAPS] * (2 * buffers)
    optima = [
        minimize(objective, start, method="L-BFGS-B", bounds=bounds, options=_SEARCH).x
        for start in starts
    ]
    return tuple(rates(min((*starts, *optima), key=objective)).tolist())


@final
class BufferedStream(CorrelatedStream):
    """Noise of which `buffers` weighted sums are kept, each over all earlier steps.

    Args:
        stream: where independent noise comes from.
        factor: what independent noise is multiplied by: what C was divided by.
        poles, zeros: the rates of C, as of `BLT`.
        steps: how many steps C is scaled for.
    """

    def __init__(
        self,
        stream: NoiseStream,
        factor: float,
        poles: Sequence[float],
        zeros: Sequence[float],
        steps: int,
    ) -> None:
        super().__init__(stream, steps)
        self._factor, self._rates = factor, list(zip(poles, zeros, strict=True))
        self._buffers: list[list[Tensor]] = []

    def _fill(
        self, fresh: list[Tensor], std: float, places: Sequence[tuple[int, int]] | None
    ) -> None:
        import torch

        from privlearn.core.mechanisms import noise

        noise.add_gaussian(fresh, std * self._factor, self._stream, places)
        if not self._buffers:
            self._buffers = [[torch.zeros_like(tensor) for tensor in fresh] for _ in self._rates]
        for (pole, zero), buffer in zip(self._rates, self._buffers, strict=True):
            # (1 - pole x) / (1 - zero x): what comes out is what goes in, and the buffer; which is
            # then zero times what came out, less pole times what went in.
            torch._foreach_add_(fresh, buffer)
            torch._foreach_mul_(buffer, pole)
            torch._foreach_add_(buffer, fresh, alpha=zero - pole)

    def _save(self) -> dict[str, Any]:
        rates = [list(pair) for pair in self._rates]
        return {
            "factor": self._factor,
            "rates": rates,
            "buffers": [list(one) for one in self._buffers],
        }

    def _go_on(self, state: dict[str, Any]) -> None:
        self._factor, self._rates = state["factor"], [(pole, zero) for pole, zero in state["rates"]]
        self._buffers = [list(one) for one in state["buffers"]]
