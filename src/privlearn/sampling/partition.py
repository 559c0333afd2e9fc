"""Random partitions: each example falls into one batch of an epoch (balls in bins)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from privlearn._checks import count
from privlearn._public import registered
from privlearn.accounting.events import Event
from privlearn.accounting.guarantee import Adjacency
from privlearn.accounting.mechanisms import Gaussian, Partitioned
from privlearn.samples import EpochCharge, Indices, Sample
from privlearn.sampling.base import Sampler


@final
@registered
@dataclass(frozen=True)
class Partition(Sampler):
    """Each example falls into one of `batches` batches, independently and uniformly, afresh every epoch.

    Every example is seen exactly once an epoch, and batches have random sizes (they may be empty). The epoch is the
    unit: it is charged at its first batch.
    """

    batches: int
    adjacencies = (Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT)
    kind: ClassVar[str] = "partition"

    def __post_init__(self) -> None:
        count("batches", self.batches)

    @classmethod
    def of_size(cls, batch_size: int, examples: int) -> Partition:
        """The sampler with batches of about `batch_size` rows."""
        return cls(math.ceil(examples / batch_size))

    def steps(self, examples: int | None = None) -> int:
        """Batches in an epoch."""
        return self.batches

    def expected_batch_size(self, examples: int) -> float:
        """The expected number of rows in a batch."""
        return examples / self.batches

    def event(self, mechanism: Gaussian) -> Event:
        """The epoch, once."""
        return Partitioned(self.batches, mechanism)

    def draw(self, examples: int, rng: np.random.Generator) -> Iterator[Sample]:
        """Draw one epoch of batches."""
        bins = rng.integers(self.batches, size=examples)
        order = np.argsort(bins, kind="stable")
        ends = np.cumsum(np.bincount(bins, minlength=self.batches))[:-1]
        unit = EpochCharge(self.event)
        for rows in np.split(order, ends):
            yield Sample(rows, unit)


def assign(examples: int, blocks: int, rng: np.random.Generator) -> Indices:
    """For each example the block, 0 .. `blocks` - 1, that it falls into: independently, uniformly, whatever it holds.

    So disjoint blocks may be priced as `Parallel`. How many fall into a block is random, and some may be empty.
    """
    return rng.integers(count("blocks", blocks), size=examples)
