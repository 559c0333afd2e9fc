"""Noise that is correlated over steps: the matrix mechanism, with lower triangular Toeplitz matrices.

A step adds y_t to its clipped sum g_t, where C y = z: z is independent Gaussian noise, and C is lower triangular and
Toeplitz. The released sums g + y are a function of C g + z: the whole run is one Gaussian release, also where later
sums depend on earlier releases (Denisov et al. 2022, Thm 2.1). The noise of later steps takes back part of that of
earlier ones, so that weights, which are running sums of gradients, hold less of it.

An example that takes part in k steps, at least `separation` apart, changes C g by at most sqrt(k) times its
sensitivity: C is scaled to that. So the run costs no more than k releases with independent noise, and is charged as
these. Which matrices there are is in `matrices`.

The noise may change from step to step where an example's times change disjoint rows of C g. Let D be the diagonal
matrix of the steps' standard deviations, and g + D y be released: a function of C D^-1 g + z. Column t of C D^-1 is
that of C over D_t, so a time in step t moves as many rows as before, by its sensitivity over D_t at most. It costs what
a release with independent noise of D_t costs, and is charged as that. (Of C y = D z, whose noise changes before it is
correlated, the price would follow from the least of the noise in all rows that a time changes.)
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import fields
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from privlearn._checks import between, count
from privlearn.accounting.events import Mechanism
from privlearn.accounting.mechanisms import Gaussian
from privlearn.errors import BadInput, PrivlearnError, UnsoundExtension
from privlearn.streams import NoiseStream

if TYPE_CHECKING:
    from torch import Tensor

    from privlearn.sampling import Sampler

Column = NDArray[np.float64]

#: More bands gain next to nothing, and cost as many tensors, or draws, of the model's size.
MOST_BANDS = 512
#: How many bands are tried where that is left open.
USUAL_BANDS = (2, 4, 8, 16, 32, 64)
#: Draws, of noise that changes, by which the noise in weights is computed.
_DRAWS = 256
#: Numbers by which the noise of two steps is compared.
_COMPARED = 8
#: No rounding of a column, up to 10^6 steps and 512 bands, makes its sensitivity larger by this share.
_ROOM = 1e-6


class Correlation:
    """How the noise of a step depends on that of earlier ones. A final, registered dataclass is known everywhere.

    Its first number says how much is remembered, its momentum is that of the SGD whose weights are to hold little
    noise.
    """

    #: What it is called in specs and in certificates.
    kind: ClassVar[str]
    #: What is tried where the first number is left open.
    tried: ClassVar[tuple[int, ...]]
    #: Whether times that are far enough apart change disjoint rows of C g: batches may be sampled then, and the noise
    #: multiplier may change from step to step.
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
        """The first column of C^-1, shape (steps,): what a step's independent noise adds to this and later steps."""

    @abstractmethod
    def stream(self, noise: NoiseStream, steps: int, separation: int = 1) -> CorrelatedStream:
        """The noise of a run, made of that of `noise`."""

    @abstractmethod
    def text(self) -> str:
        """What a card says of it."""

    def deviation(self, steps: int, separation: int = 1) -> float:
        """Root mean square, over steps, of the noise in the weights: for noise multiplier, rate and sensitivity 1."""
        return deviation_of(self.inverse(steps, separation), self.momentum)

    def relative_deviation(self, steps: int, separation: int = 1) -> float:
        """`deviation` relative to that of independent noise of the same noise multiplier."""
        return self.deviation(steps, separation) / math.sqrt((steps + 1) / 2)

    def require_suited(self, sampling: Sampler, examples: int) -> None:
        """Raise `BadInput` unless the sampler's price holds for noise that is correlated so.

        C is scaled for one batch with each example in an epoch, always the same: an epoch has to cost one Gaussian
        release then.
        """
        one = Gaussian(1.0)
        epoch, unit = sampling.epoch_event(one), sampling.event(one)
        whole = epoch == unit and isinstance(unit, Mechanism) and unit.mu_squared() == 1
        if not whole or sampling.separation(examples) != sampling.steps(examples):
            raise BadInput(
                f"{self.kind} noise is priced for batches in a fixed order, where every example has its step in each "
                f"epoch, and these are {sampling.kind} batches: use fixed sampling, or independent noise"
            )


def require_numbers(own: Any, most: int) -> None:
    """Raise `BadInput` unless a matrix's first number is at most `most`, and its momentum one of SGD."""
    name = fields(own)[0].name
    count(name, getattr(own, name), most=most)
    between(f"the momentum of {own.kind} noise", own.momentum, 0.0, 0.9999)


def filtered(numerator: Sequence[float] | Column, denominator: Sequence[float] | Column, values: Column) -> Column:
    """The series with these coefficients times numerator / denominator, as many coefficients."""
    from scipy.signal import lfilter

    made: Column = lfilter(numerator, denominator, values)
    return made


def deviation_of(inverse: Column, momentum: float, multipliers: Column | None = None) -> float:
    """Root mean square, over steps, of the noise in weights that SGD trains.

    Args:
        inverse: the first column of C^-1.
        momentum: that of SGD.
        multipliers: what the noise of each step is multiplied by; None: 1. The mean is then taken over draws of a few
            hundred steps, evenly spread.
    """
    if multipliers is not None:
        return math.sqrt(_scaled_squares(inverse, momentum, multipliers) / len(inverse))
    for decay in (momentum, 1.0):
        inverse = filtered([1.0], [1.0, -decay], inverse)
    return math.sqrt(float(np.arange(len(inverse), 0, -1.0) @ inverse**2) / len(inverse))


def _scaled_squares(inverse: Column, momentum: float, multipliers: Column) -> float:
    """Sum over steps of the variance of the noise in the weights; all draws if they are at most `_DRAWS`."""
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
    made = np.zeros(steps)
    made[0] = 1.0
    return made


def times(steps: int, separation: int) -> int:
    """In how many steps an example takes part at most, where these are at least `separation` apart."""
    return -(-steps // separation)


def sensitivity(column: Column, separation: int) -> float:
    """How far one example moves C g at most, in Frobenius norm, if it adds vectors of norm at most 1 to rows of g.

    It does so in steps that are at least `separation` apart, whichever these are, with signs and directions of its
    choice. An upper bound for any column, exact where that has no negative numbers and none above an earlier one.

    Let h(n) be the largest absolute value from place n of the column on. By the triangle inequality row n of the change
    has norm at most sum_i h(n - t_i) over the steps t_1 < t_2 < ... of the example. The sum of the squares is

        sum_i sum_j sum_m h(m) h(m + |t_i - t_j|),    m from 0 to steps - 1 - max(t_i, t_j).

    As h never rises and |t_i - t_j| >= |i - j| separation, t_i >= (i - 1) separation, no steps make it larger than 0,
    separation, 2 separation, ... (for k participations: Kalinin and Lampert 2024, Thm 2). What these steps add up to in
    one epoch is no less than in the one before: so also the first e of k epochs cost at most e / k of all.

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
    """What C is divided by, so that k times of an example cost no more than k independent releases."""
    return sensitivity(column, separation) / math.sqrt(times(len(column), separation))


def is_too_small(share: float, numbers: int) -> bool:
    """Whether the mean square of so many independent normal numbers is this share of their variance once in 10^15."""
    return share < 1 and (share <= 0 or numbers / 2 * (share - 1 - math.log(share)) > 15 * math.log(10))


class CorrelatedStream(ABC):
    """The noise of one run's steps, drawn from a noise stream and correlated over them: one `add` a step, in order.

    It is a part of the run that a checkpoint keeps: as secret as the noise stream is.

    Args:
        stream: where independent noise comes from.
        steps: how many steps C is scaled for; None: any number.
    """

    #: Whether each step may have a standard deviation of its own, by which what is correlated is multiplied.
    changes: ClassVar[bool] = False

    def __init__(self, stream: NoiseStream, steps: int | None = None) -> None:
        if stream.discrete:
            raise BadInput(
                "correlated noise is not a whole number of grid steps: leave out discrete noise, or the mechanism"
            )
        self._stream, self._steps = stream, steps
        self._taken, self._std = 0, None  # type: int, float | None
        self._sizes: Any = None  # of the values of each step
        self._variances: Column | None = None
        self._seen: set[bytes] = set()

    def drawing_for(
        self, values: Sequence[Tensor], places: Sequence[tuple[int, int]] | None = None
    ) -> AbstractContextManager[None]:
        """A block in which the noise of a step is drawn, for `values`: as of the stream that it is made of."""
        return self._stream.drawing_for(values, places)

    def add(self, values: Sequence[Tensor], std: float, places: Sequence[tuple[int, int]] | None = None) -> None:
        """Add the noise of the next step to `values`, in place.

        Args:
            values: what is released; of the same sizes and types in each step.
            std: the noise multiplier times the sensitivity: the standard deviation of z, or this step's entry of D.
            places: where several processes have parts of the values, as of `noise.add_gaussian`.

        Raises:
            PrivlearnError: another standard deviation or other sizes than before, or a step more than C is scaled for:
                neither is priced.
        """
        import torch

        if self._std not in (None, std) and not self.changes:
            raise PrivlearnError(
                f"correlated noise began with standard deviation {self._std:g}, and a later step asks for {std:g}: all "
                "steps need the same noise multiplier and clipping norm"
            )
        if not NoiseStream.is_one(self._stream):
            raise UnsoundExtension(f"{type(self).__name__} draws from another stream than the run's: pass it on")
        sizes = [(value.numel(), value.dtype) for value in values], places
        if self._sizes is not None and self._sizes != sizes:
            raise PrivlearnError(
                "correlated noise began with values of other sizes or types: release the same values in each step"
            )
        if self._steps is not None and self._taken >= self._steps:
            raise PrivlearnError(
                f"the noise is correlated for a run of {self._steps} steps, and these are over: one more has no price. "
                "Begin another run"
            )
        self._std, self._sizes = std, sizes
        fresh = [torch.zeros_like(value) for value in values]
        before, unit = (self._stream.key, self._stream.position), 1.0 if self.changes else std
        self._fill(fresh, unit, places)
        self._require_fresh(fresh, unit, before)
        torch._foreach_add_(list(values), fresh, alpha=std if self.changes else 1.0)
        self._taken += 1

    def expect(self, inverse: Column) -> None:
        """Compare the noise of each step with what the first column of C^-1 makes of independent noise."""
        self._variances = np.cumsum(inverse**2)

    def _require_fresh(self, fresh: list[Tensor], std: float, before: tuple[bytes, int]) -> None:
        """Raise `UnsoundExtension` if a step's noise is none, too little or that of an earlier step. It is not added.

        No value that is released is looked at.
        """
        name, numbers = type(self).__name__, sum(own.numel() for own in fresh)
        if numbers and (self._stream.key, self._stream.position) == before:
            raise UnsoundExtension(f"{name} drew no random words for the noise of a step: nothing was released of it")
        if numbers and self._variances is not None:
            squares = math.fsum(float(own.double().square().sum()) for own in fresh)
            expected = std**2 * float(self._variances[min(self._taken, len(self._variances) - 1)])
            if is_too_small(squares / (numbers * expected), numbers):
                raise UnsoundExtension(
                    f"{name} made {math.sqrt(squares / (numbers * expected)):.3g} times the noise that its matrix says "
                    "and that is charged: nothing was released of this step"
                )
        first = b"".join(own.view(-1)[:_COMPARED].cpu().numpy().tobytes() for own in fresh)
        digest = hashlib.blake2b(first, digest_size=16).digest()
        if numbers >= _COMPARED and digest in self._seen:
            raise UnsoundExtension(f"{name} made the noise of an earlier step again: nothing was released of it")
        self._seen.add(digest)

    @abstractmethod
    def _fill(self, fresh: list[Tensor], std: float, places: Sequence[tuple[int, int]] | None) -> None:
        """Make zeros the noise of the next step, for independent noise of standard deviation `std`."""

    @abstractmethod
    def _kept(self) -> dict[str, Any]:
        """What `_fill` goes by, to be kept."""

    @abstractmethod
    def _go_on(self, kept: dict[str, Any]) -> None:
        """Go by what was kept."""

    def state_dict(self) -> dict[str, Any]:
        """What later steps depend on."""
        return {"std": self._std, "taken": self._taken, "changes": self.changes, **self._kept()}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Go on from a state.

        Raises:
            BadInput: an earlier version kept it, with noise of another standard deviation.
        """
        if state.get("changes", False) != self.changes:
            raise BadInput(
                "the correlated noise of this checkpoint was kept by an earlier version of privlearn, in other units: "
                "finish the run with that version, or begin it again"
            )
        self._std, self._taken, self._sizes = state["std"], state["taken"], None
        self._go_on(state)
