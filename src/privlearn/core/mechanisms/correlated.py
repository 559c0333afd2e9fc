"""The matrix mechanism correlates noise over steps, with lower triangular Toeplitz matrices.

A step adds y_t to its clipped sum g_t, where C y = z: z is independent Gaussian noise, and C is
lower triangular and Toeplitz. The released sums g + y are a function of C g + z: the whole run is
one Gaussian release, also where later sums depend on earlier releases (Denisov et al. 2022, Thm
2.1). The noise of later steps takes back part of that of earlier ones, so that weights, which are
running sums of gradients, hold less of it.

An example that takes part in k steps, at least `separation` apart, changes C g by at most sqrt(k)
times its sensitivity: C is scaled to that. So the run costs no more than k releases with
independent noise, and is charged as these. Which matrices there are is in `matrices`; the noise is
drawn by a `correlated_stream`.

The noise may change from step to step where an example's times change disjoint rows of C g. Let D
be the diagonal matrix of the steps' standard deviations, and g + D y be released: a function of C
D^-1 g + z. Column t of C D^-1 is that of C over D_t, so a time in step t moves as many rows as
before, by its sensitivity over D_t at most. It costs what a release with independent noise of D_t
costs, and is charged as that. (Of C y = D z, whose noise changes before it is correlated, the price
would follow from the least of the noise in all rows that a time changes.)
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from privlearn._checks import between, count
from privlearn._public import expect
from privlearn.core.accounting.events import Mechanism
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.errors import BadInput

if TYPE_CHECKING:
    from privlearn.core.mechanisms.correlated_stream import CorrelatedStream
    from privlearn.core.sampling import Sampler
    from privlearn.core.streams import NoiseStream

#: Where the matrices of this package are entered.
for _kind in ("banded", "bisr", "blt"):
    expect(_kind, f"privlearn.core.mechanisms.{_kind}")

Column = NDArray[np.float64]

#: More bands gain next to nothing, and cost as many tensors, or draws, of the model's size.
MOST_BANDS = 512
#: How many bands are tried where that is left open.
USUAL_BANDS = (2, 4, 8, 16, 32, 64)
#: Draws, of noise that changes, by which the noise in weights is computed.
_DRAWS = 256
#: No rounding of a column, up to 10^6 steps and 512 bands, makes its sensitivity larger by this
#: share.
_ROOM = 1e-6


class Correlation:
    """How the noise of a step depends on that of earlier ones. A final, registered dataclass is
    known everywhere.

    Its first number says how much is remembered, its momentum is that of the SGD whose weights are
    to hold little noise.
    """

    #: What it is called in specs and in certificates.
    kind: ClassVar[str]
    #: What is tried where the first number is left open.
    tried: ClassVar[tuple[int, ...]]
    #: Whether times that are far enough apart change disjoint rows of C g: batches may be sampled
    #: then, and the noise multiplier may change from step to step.
    disjoint: ClassVar[bool] = False
    #: Whether tensors of earlier steps are kept, which checkpoints of several processes lack.
    keeps_tensors: ClassVar[bool] = True
    momentum: float

    @property
    def rest(self) -> int:
        """The steps that have to lie at least between two batches with one example."""
        return 1

    @abstractmethod
    def coefficients(self, steps: int, separation: int = 1) -> Column:
        """The first column of C, without zeros at its end.

        Args:
            steps: of the run.
            separation: the steps from one batch with an example to the next, at least.
        """

    @abstractmethod
    def inverse(self, steps: int, separation: int = 1) -> Column:
        """The first column of C^-1, shape (steps,): what a step's independent noise adds to this
        and later steps.
        """

    @abstractmethod
    def stream(self, noise: NoiseStream, steps: int, separation: int = 1) -> CorrelatedStream:
        """The noise of a run, made of that of `noise`."""

    @abstractmethod
    def text(self) -> str:
        """What a card says of it."""

    def deviation(self, steps: int, separation: int = 1) -> float:
        """Root mean square, over steps, of the noise in the weights: for noise multiplier, rate and
        sensitivity 1.
        """
        return deviation_of(self.inverse(steps, separation), self.momentum)

    def relative_deviation(self, steps: int, separation: int = 1) -> float:
        """`deviation` relative to that of independent noise of the same noise multiplier."""
        return self.deviation(steps, separation) / math.sqrt((steps + 1) / 2)

    def require_suited(self, sampling: Sampler, examples: int) -> None:
        """Raise `BadInput` unless the sampler's price holds for noise that is correlated so.

        C is scaled for one batch with each example in an epoch, always the same: an epoch has to
        cost one Gaussian release then.
        """
        one = Gaussian(1.0)
        epoch, unit = sampling.epoch_event(one), sampling.event(one)
        whole = epoch == unit and isinstance(unit, Mechanism) and unit.mu_squared() == 1
        if not whole or sampling.separation(examples) != sampling.steps(examples):
            raise BadInput(
                f"{self.kind} noise is priced for batches in a fixed order, where every example "
                f"has its step in each epoch, and these are {sampling.kind} batches: use fixed "
                "sampling, or independent noise"
            )


def require_numbers(matrix: Any, most: int) -> None:
    """Raise `BadInput` unless a matrix's first number is at most `most`, and its momentum one of
    SGD.
    """
    name = fields(matrix)[0].name
    count(name, getattr(matrix, name), most=most)
    between(f"the momentum of {matrix.kind} noise", matrix.momentum, 0.0, 0.9999)


def filtered(
    numerator: Sequence[float] | Column, denominator: Sequence[float] | Column, values: Column
) -> Column:
    """The series with these coefficients times numerator / denominator, as many coefficients."""
    from scipy.signal import lfilter

    series: Column = lfilter(numerator, denominator, values)
    return series


def deviation_of(inverse: Column, momentum: float, multipliers: Column | None = None) -> float:
    """Root mean square, over steps, of the noise in weights that SGD trains.

    Args:
        inverse: the first column of C^-1.
        momentum: that of SGD.
        multipliers: what the noise of each step is multiplied by; None: 1. The mean is then taken
            over draws of a few hundred steps, evenly spread.
    """
    if multipliers is not None:
        return math.sqrt(_sum_variances(inverse, momentum, multipliers) / len(inverse))
    for decay in (momentum, 1.0):
        inverse = filtered([1.0], [1.0, -decay], inverse)
    return math.sqrt(float(np.arange(len(inverse), 0, -1.0) @ inverse**2) / len(inverse))


def _sum_variances(inverse: Column, momentum: float, multipliers: Column) -> float:
    """Sum over steps of the variance of the noise in the weights; all draws if they are at most
    `_DRAWS`.
    """
    steps = len(inverse)
    every = max(1, steps // _DRAWS)
    drawn = range(every // 2, steps, every)
    total = 0.0
    for first in drawn:
        weights = multipliers[first:] * inverse[: steps - first]
        for decay in (momentum, 1.0):
            weights = filtered([1.0], [1.0, -decay], weights)
        total += float(weights @ weights)
    return total * steps / len(drawn)


def impulse(steps: int) -> Column:
    """1, 0, 0, ..."""
    series = np.zeros(steps)
    series[0] = 1.0
    return series


def times(steps: int, separation: int) -> int:
    """In how many steps an example takes part at most, where these are at least `separation`
    apart.
    """
    return -(-steps // separation)


def sensitivity(column: Column, separation: int) -> float:
    """How far one example moves C g at most, in Frobenius norm, if it adds vectors of norm at most
    1 to rows of g.

    It does so in steps that are at least `separation` apart, whichever these are, with signs and
    directions of its choice. An upper bound for any column, exact where that has no negative
    numbers and none above an earlier one.

    Let h(n) be the largest absolute value from place n of the column on. By the triangle inequality
    row n of the change has norm at most sum_i h(n - t_i) over the steps t_1 < t_2 < ... of the
    example. The sum of the squares is

        sum_i sum_j sum_m h(m) h(m + |t_i - t_j|),    m from 0 to steps - 1 - max(t_i, t_j).

    As h never rises and |t_i - t_j| >= |i - j| separation, t_i >= (i - 1) separation, no steps make
    it larger than 0, separation, 2 separation, ... (for k participations: Kalinin and Lampert 2024,
    Thm 2). What these steps add up to in one epoch is no less than in the one before: so also the
    first e of k epochs cost at most e / k of all.

    Args:
        column: the first column of C, shape (steps,).
        separation: in steps.
    """
    steps = len(column)
    envelope = np.maximum.accumulate(np.abs(column)[::-1])[::-1]
    blocks = np.zeros(times(steps, separation) * separation)
    blocks[:steps] = envelope
    rows = blocks.reshape(-1, separation).cumsum(0).reshape(-1)[:steps]
    return math.sqrt(float(rows @ rows)) * (1 + _ROOM)


def scale(column: Column, separation: int) -> float:
    """What C is divided by, so that k times of an example cost no more than k independent
    releases.
    """
    return sensitivity(column, separation) / math.sqrt(times(len(column), separation))
