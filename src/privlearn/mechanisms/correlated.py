"""Noise that is correlated over steps: matrix factorisation with a banded matrix (BandMF).

A step adds y_t to its clipped sum g_t, where C y = z: z is independent Gaussian noise, and C is lower triangular and
Toeplitz, with `bands` coefficients whose squares add up to at most 1. The released sums g + y are a function of
C g + z. There an example that takes part in steps at least `bands` apart changes other rows each time, and these by at
most its sensitivity, since no column of C is longer than 1. So each of its times costs what a release with independent
noise costs, also where batches are sampled and where later sums depend on earlier releases (Denisov et al. 2022;
Choquette-Choo et al. 2023, "(Amplified) banded matrix factorization"). The noise of later steps takes back part of that
of earlier ones, so that weights, which are running sums of gradients, hold less of it.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from privlearn._checks import between, count, one_of, parse_spec
from privlearn._public import kinds, registered
from privlearn.errors import BadInput, PrivlearnError
from privlearn.streams import NoiseStream

if TYPE_CHECKING:
    from torch import Tensor

    from privlearn.sampling import Sampler

#: Bands beyond this many gain next to nothing and take as many tensors of the model's size.
_MOST_BANDS = 512
#: What is tried where the number is left open.
_USUAL_BANDS = (2, 4, 8, 16, 32, 64)
#: No rounding of coefficients makes a column longer than 1.
_ROOM = 1e-12


class Correlation:
    """How the noise of a step depends on that of earlier ones. A final, registered dataclass is known everywhere."""

    #: What it is called in specs and in certificates.
    kind: ClassVar[str]
    bands: int

    @abstractmethod
    def coefficients(self, steps: int) -> NDArray[np.float64]:
        """The first column of C, at most `bands` numbers of norm at most 1, for a run of so many steps."""

    @abstractmethod
    def deviation(self, steps: int) -> float:
        """Root mean square, over steps, of the noise in the weights: for noise multiplier, rate and sensitivity 1."""

    def relative_deviation(self, steps: int) -> float:
        """`deviation` relative to that of independent noise of the same noise multiplier."""
        return self.deviation(steps) / math.sqrt((steps + 1) / 2)

    def require_suited(self, sampling: Sampler, examples: int) -> None:
        """Raise `BadInput` unless an example rests for as many steps as the matrix has bands."""
        rest = sampling.separation(examples)
        if rest < self.bands:
            raise BadInput(
                f"noise is correlated over {self.bands} steps, and with {sampling.kind} batches an example may take "
                f"part again after {rest}: expected at least as many. Use cyclic-poisson sampling, fixed batches with "
                "more in an epoch, fewer bands or independent noise"
            )

    def text(self) -> str:
        """What a card says of it."""
        return f"correlated over {self.bands} steps ({self.kind})"


@final
@registered
@dataclass(frozen=True)
class Banded(Correlation):
    """Coefficients that make the mean squared error of the weights as small as they can, for SGD at a constant rate.

    Attributes:
        bands: over how many steps noise is correlated; 1 is independent noise. bands - 1 tensors of the model's size
            are kept.
        momentum: that of SGD, for which the error is computed.

    Source: Choquette-Choo et al. 2023, with Toeplitz matrices (McKenna 2024); the starting point is the banded square
    root (Kalinin and Lampert 2024).
    """

    bands: int
    momentum: float = 0.0
    kind: ClassVar[str] = "banded"

    def __post_init__(self) -> None:
        count("bands", self.bands, most=_MOST_BANDS)
        between("the momentum of banded noise", self.momentum, 0.0, 0.9999)

    def coefficients(self, steps: int) -> NDArray[np.float64]:
        """As of every `Correlation`."""
        return np.asarray(_optimised(min(self.bands, count("steps", steps)), self.momentum, steps))

    def deviation(self, steps: int) -> float:
        """As of every `Correlation`."""
        return deviation(self.coefficients(steps), self.momentum, steps)


def choices(spec: str) -> list[Correlation] | list[None]:
    """The correlations that a spec leaves open: one for `banded:bands=8,momentum=0.9`, several without bands.

    None for `independent`.

    Raises:
        BadInput: an unknown name or number.
    """
    name, numbers = parse_spec("mechanism", spec)
    known: dict[str, type[Any]] = kinds(Correlation)
    if one_of("mechanism", name, ["independent", *known]) == "independent":
        if numbers:
            raise BadInput(f"mechanism {spec!r}: independent noise has no parameters", spec=spec)
        return [None]
    allowed = [part.name for part in fields(known[name])]
    if unknown := sorted(set(numbers) - set(allowed)):
        raise BadInput(
            f"mechanism {spec!r} has no parameter {unknown[0]!r}: expected {', '.join(allowed)}, for example "
            f"{name}:bands=8",
            spec=spec,
        )
    bands = numbers.pop("bands", None)
    if bands is None:
        return [known[name](bands, **numbers) for bands in _USUAL_BANDS]
    return [known[name](int(bands) if bands.is_integer() else bands, **numbers)]


def deviation(coefficients: Sequence[float] | NDArray[np.float64], momentum: float, steps: int) -> float:
    """Root mean square, over steps, of the noise in weights that SGD trains: C y = z with z of variance 1."""
    return math.sqrt(_squares(np.asarray(coefficients), momentum, steps)[0] / steps)


def _squares(c: NDArray[np.float64], momentum: float, steps: int) -> tuple[float, NDArray[np.float64]]:
    """Sum over steps of the variance of the noise in the weights, and its derivative by the coefficients `c`."""
    from scipy.signal import lfilter

    own = lfilter([1.0], [1.0, -1.0], lfilter([1.0], [1.0, -momentum], np.eye(1, steps)[0]))  # what weights sum up
    w = lfilter([1.0], c, own)
    left = np.arange(steps, 0, -1.0)
    gained = lfilter([1.0], c, w)  # - dw / dc_j, shifted by j
    slopes = [-2 * float((left[j:] * w[j:]) @ gained[: steps - j]) for j in range(len(c))]
    return float(left @ w**2), np.array(slopes)


@lru_cache(maxsize=64)
def _optimised(bands: int, momentum: float, steps: int) -> tuple[float, ...]:
    """Coefficients of norm 1 that minimise the error, starting from those of the banded square root."""
    from scipy.optimize import minimize

    start = np.cumprod([1.0, *((2 * j - 1) / (2 * j) for j in range(1, bands))])

    def objective(rest: Any) -> tuple[float, NDArray[np.float64]]:
        """The logarithm of the error at norm 1, which does not depend on the scale of the coefficients."""
        c = np.concatenate([[1.0], rest])
        with np.errstate(over="ignore", invalid="ignore"):
            error, slopes = _squares(c, momentum, steps)
        norm = float(c @ c)
        if not (math.isfinite(error) and np.isfinite(slopes).all()):
            return math.inf, np.zeros(bands - 1)
        return math.log(error * norm), (slopes / error + 2 * c / norm)[1:]

    least = minimize(objective, start[1:], jac=True, method="L-BFGS-B").x if bands > 1 else start[1:]
    best = min((start[1:], least), key=lambda rest: objective(rest)[0])
    c = np.concatenate([[1.0], best])
    return tuple((c / (math.sqrt(float(c @ c)) * (1 + _ROOM))).tolist())


@final
class CorrelatedStream:
    """The noise of one run's steps, drawn from a noise stream and correlated over them: one `add` a step, in order.

    It is a part of the run that a checkpoint keeps: as secret as the noise stream is.

    Args:
        stream: where independent noise comes from.
        coefficients: the first column of C.
    """

    def __init__(self, stream: NoiseStream, coefficients: Sequence[float] | NDArray[np.float64]) -> None:
        if stream.discrete:
            raise BadInput(
                "correlated noise is no whole number of grid steps: leave out discrete noise, or the mechanism"
            )
        self._stream, self._coefficients = stream, [float(c) for c in coefficients]
        self._past: list[list[Tensor]] = []  # the noise of earlier steps, the latest first
        self._std: float | None = None

    def add(self, values: Sequence[Tensor], std: float) -> None:
        """Add the noise of the next step to `values`, in place; `std` is that of the independent noise.

        Raises:
            PrivlearnError: another standard deviation than before, for which rows of C are not priced.
        """
        import torch

        from privlearn.mechanisms import noise

        if self._std not in (None, std):
            raise PrivlearnError(
                f"correlated noise began with standard deviation {self._std:g}, and a later step asks for {std:g}: all "
                "steps need the same noise multiplier and clipping norm"
            )
        self._std = std
        fresh = [torch.zeros_like(value) for value in values]
        noise.add_gaussian(fresh, std, self._stream)
        for coefficient, earlier in zip(self._coefficients[1:], self._past, strict=False):
            torch._foreach_add_(fresh, earlier, alpha=-coefficient)
        torch._foreach_div_(fresh, self._coefficients[0])
        torch._foreach_add_(list(values), fresh)
        self._past = [fresh, *self._past][: len(self._coefficients) - 1]

    def state_dict(self) -> dict[str, Any]:
        """What later steps depend on."""
        return {"coefficients": list(self._coefficients), "std": self._std, "past": [list(one) for one in self._past]}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Go on from a state."""
        self._coefficients, self._std = list(state["coefficients"]), state["std"]
        self._past = [list(one) for one in state["past"]]
