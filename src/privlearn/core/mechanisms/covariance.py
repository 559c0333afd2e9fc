"""This file compares the noise that a correlation makes, any user's class included, with the matrix
that it is priced by.

Of a `Correlation` everything follows from the first column of C. So C has to have the sensitivity
that is charged, `inverse` has to be that of C^-1, and C y has to be independent noise of the
standard deviation that was asked for: this is tried with noise that is no secret. While a run
releases, each step's noise has to take up the random words that it needs, be no copy of that of an
earlier step, and be about as large as C^-1 makes it. What is random is refused where it happens
once in 10^15 tries by chance, so that a few percent too little noise may pass a step of few
numbers.

Nothing here looks at what is released: noise is compared before it is added.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from privlearn.core.mechanisms.correlated import Correlation, sensitivity, times
from privlearn.core.mechanisms.correlated_stream import CorrelatedStream, is_too_small
from privlearn.core.streams import NoiseStream
from privlearn.errors import UnsoundExtension

if TYPE_CHECKING:
    from privlearn.core.sampling import Sampler

#: What is tried: so many steps of so many numbers, with this standard deviation.
_STEPS, _NUMBERS, _STD = 12, 1 << 15, 2.0
#: Rows of C C^-1 that are computed, and by how much they may be off.
_ROWS, _ROUNDING = 1024, 1e-5


def require_priced(correlation: Correlation, sampling: Sampler, examples: int, steps: int) -> None:
    """Raise unless a run of `steps` steps with this noise costs what independent noise does; no row
    is looked at.

    Raises:
        UnsoundExtension: the class departs from the matrix that it states, or that costs more.
        BadInput: it does not go with these batches.
    """
    name, separation = type(correlation).__name__, sampling.separation(examples)
    column = np.trim_zeros(np.asarray(correlation.coefficients(steps, separation), np.float64), "b")
    inverse = np.asarray(correlation.inverse(steps, separation), np.float64)
    if not (
        len(column)
        and np.isfinite(column).all()
        and inverse.shape == (steps,)
        and np.isfinite(inverse).all()
    ):
        raise UnsoundExtension(
            f"the correlation {name} has no finite matrix for {steps} steps: expected coefficients "
            "and inverse of finite numbers, the latter one for each step"
        )
    if not correlation.disjoint:
        Correlation.require_suited(correlation, sampling, examples)
    elif len(column) > separation:
        raise UnsoundExtension(
            f"the correlation {name} mixes the noise of {len(column)} steps, and an example may "
            f"come again after {separation}: the rows that its times change are not disjoint, as "
            "it says"
        )
    whole = np.zeros(steps)
    whole[: len(column)] = column[:steps]
    if sensitivity(whole, separation) > math.sqrt(times(steps, separation)) * (1 + _ROUNDING):
        raise UnsoundExtension(
            f"the matrix of the correlation {name} lets an example change more than is charged: "
            "divide its coefficients by "
            "privlearn.core.mechanisms.correlated.scale(column, separation)"
        )
    first = np.convolve(whole[:_ROWS], inverse[:_ROWS])[: min(steps, _ROWS)]
    first[0] -= 1
    if np.abs(first).max() > _ROUNDING * max(1.0, float(np.abs(inverse).max())):
        raise UnsoundExtension(
            f"the inverse of the correlation {name} is not that of its coefficients: mend inverse()"
        )
    _require_noise(correlation, whole, steps, separation)


def _require_noise(
    correlation: Correlation,
    column: np.ndarray[tuple[int], np.dtype[np.float64]],
    steps: int,
    separation: int,
) -> None:
    """Raise unless C y is independent noise of the standard deviation that is asked for, in the
    first steps.
    """
    import torch

    name, rows = type(correlation).__name__, min(steps, _STEPS)
    stream = correlation.stream(NoiseStream(bytes(16)), steps, separation)
    if not isinstance(stream, CorrelatedStream) or (stream.changes and not correlation.disjoint):
        raise UnsoundExtension(
            f"the stream of the correlation {name} is not a CorrelatedStream, or it is one whose "
            "noise may change from step to step where that has no price"
        )
    noise = torch.zeros(rows, _NUMBERS, dtype=torch.float64, device="cpu")
    try:
        for row in noise:
            CorrelatedStream.add(stream, [row], _STD)
    except UnsoundExtension as error:
        raise UnsoundExtension(f"the correlation {name} makes no sound noise: {error}") from error
    matrix = torch.zeros(rows, rows, dtype=torch.float64, device="cpu")
    for lag in range(rows):
        matrix += column[lag] * torch.ones(rows - lag, dtype=torch.float64, device="cpu").diag(-lag)
    independent = matrix @ noise / _STD
    products = independent @ independent.T / _NUMBERS
    apart = products - products.diag().diag()
    for square in products.diag():
        if is_too_small(float(square), _NUMBERS):
            raise UnsoundExtension(
                f"the stream of the correlation {name} adds noise of "
                f"{math.sqrt(float(square)):.3g} times the standard deviation that is charged: "
                "mend _fill"
            )
    if float(apart.abs().max()) > 9 * float(products.diag().max()) / math.sqrt(_NUMBERS):
        raise UnsoundExtension(
            f"the stream of the correlation {name} does not add C^-1 times noise that is fresh in "
            "each step: mend _fill, or the coefficients"
        )
