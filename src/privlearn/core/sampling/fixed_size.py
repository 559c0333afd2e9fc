"""These samplers draw batches of a fixed size, shuffled or not, or all examples at once: nothing is
gained by sampling.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Self, final

import numpy as np

from privlearn._checks import count
from privlearn._public import registered
from privlearn.core.accounting.events import Event
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import FixedBatches, Gaussian
from privlearn.core.samples import Indices, Sample
from privlearn.core.sampling.sampler import Sampler


@dataclass(frozen=True)
class _FixedSize(Sampler):
    """Disjoint batches of `batch_size` rows; the last may be smaller. The epoch is the unit;
    nothing is amplified.
    """

    batch_size: int
    adjacencies = (Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE)

    def __post_init__(self) -> None:
        count("batch_size", self.batch_size)

    @classmethod
    def of_size(cls, batch_size: int, examples: int) -> Self:
        """The sampler with batches of `batch_size` rows."""
        return cls(batch_size)

    def steps(self, examples: int) -> int:
        """Batches in an epoch."""
        return math.ceil(examples / self.batch_size)

    def expected_batch_size(self, examples: int) -> float:
        """The number of rows in a full batch, also for the last one: a public constant."""
        return float(min(self.batch_size, examples))

    def event(self, mechanism: Gaussian) -> Event:
        """The epoch, once."""
        return FixedBatches(mechanism)

    def _cut(self, order: Indices) -> Iterator[Sample]:
        unit = self.epoch_charge()
        for start in range(0, len(order), self.batch_size):
            yield Sample(order[start : start + self.batch_size], unit)


@final
@registered
@dataclass(frozen=True)
class Shuffle(_FixedSize):
    """Reshuffles every epoch and cuts batches of `batch_size` rows; the last one may be smaller.

    The epoch is the unit, charged at its first batch. There is no amplification: a Poisson-style
    epsilon for shuffled batches would be wrong (Yu et al. 2019; Chua et al. 2024).
    """

    kind: ClassVar[str] = "shuffle"

    def draw(self, examples: int, rng: np.random.Generator) -> Iterator[Sample]:
        """Draw one epoch of batches."""
        yield from self._cut(rng.permutation(examples))


@final
@registered
@dataclass(frozen=True)
class FixedOrder(_FixedSize):
    """Batches of `batch_size` rows in the order of the data, the same in every epoch; the last one
    may be smaller.

    As for `Shuffle`, the epoch is the unit, and nothing is amplified: which batch an example is in
    is no secret.
    """

    kind: ClassVar[str] = "fixed"

    def separation(self, examples: int) -> int:
        """The batches of an epoch."""
        return self.steps(examples)

    def draw(self, examples: int, rng: np.random.Generator | None = None) -> Iterator[Sample]:
        """Yield one epoch of batches."""
        yield from self._cut(np.arange(examples))


@final
@registered
@dataclass(frozen=True)
class FullBatch(Sampler):
    """All the data in one batch."""

    adjacencies = (Adjacency.ZERO_OUT, Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE)
    kind: ClassVar[str] = "full"

    @classmethod
    def of_size(cls, batch_size: int, examples: int) -> FullBatch:
        """The sampler with batches of about `batch_size` rows."""
        return cls()

    def steps(self, examples: int | None = None) -> int:
        """One."""
        return 1

    def expected_batch_size(self, examples: int) -> float:
        """The declared number of rows."""
        return float(examples)

    def event(self, mechanism: Gaussian) -> Event:
        """The release itself."""
        return mechanism

    def draw(self, examples: int, rng: np.random.Generator | None = None) -> Iterator[Sample]:
        """Yield all rows, once."""
        yield Sample(np.arange(examples), self.epoch_charge())
