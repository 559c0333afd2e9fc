"""In a random partition each example falls into one batch of an epoch (balls in bins)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from privlearn._checks import count
from privlearn._public import registered
from privlearn.core.accounting.events import Event
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import Gaussian, Partitioned
from privlearn.core.samples import Indices, Sample
from privlearn.core.sampling.sampler import CyclicSampler, Sampler
from privlearn.errors import BadInput


@final
@registered
@dataclass(frozen=True)
class Partition(Sampler):
    """Each example falls into one of `batches` batches, independently and uniformly, afresh every
    epoch.

    Every example is seen exactly once an epoch, and batches have random sizes (they may be empty).
    The epoch is the unit: it is charged at its first batch.
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
        unit = self.epoch_charge()
        for rows in _split(rng.integers(self.batches, size=examples), self.batches):
            yield Sample(rows, unit)


@final
@registered
@dataclass(frozen=True)
class CyclicPartition(CyclicSampler):
    """A random partition of each of `cycle` groups of rows, for noise that is correlated over
    steps.

    Row i is in group i modulo `cycle`. Each example falls into one of the `batches` batches of its
    group, independently and uniformly, afresh every epoch, and step t takes a batch of group t
    modulo `cycle`. So every example is seen exactly once an epoch, and at least `cycle` steps lie
    between two batches with it: where noise is correlated over no more steps, the rows that it
    changes at one time are none of those at another, and an epoch costs what a partition into
    `batches` batches does, whatever `cycle` is. It is charged at its first step. With one batch in
    each group it is a fixed order, with one group a `Partition`. Groups are no secret; which rows
    are in them depends on the number of rows, so not for add/remove neighbours.

    Source: cyclic groups are those of Choquette-Choo et al. 2023; batches are balls in bins (Chua
    et al. 2024).
    """

    batches: int
    cycle: int = 1
    kind: ClassVar[str] = "cyclic-partition"

    def __post_init__(self) -> None:
        count("batches", self.batches)
        count("cycle", self.cycle)

    @classmethod
    def of_size(cls, batch_size: int, examples: int) -> CyclicPartition:
        """The sampler with batches of about `batch_size` rows, and one group."""
        return cls(math.ceil(examples / batch_size))

    def in_cycles(self, cycle: int) -> CyclicPartition:
        """The sampler with about as many batches in an epoch, and at least `cycle` groups.

        Raises:
            BadInput: an epoch has fewer batches.
        """
        if (steps := self.steps()) < cycle:
            raise BadInput(
                f"an epoch has {steps} batches, and noise is correlated over {cycle}: use smaller "
                "batches or fewer bands"
            )
        batches = steps // cycle
        return CyclicPartition(batches, max(cycle, round(steps / batches)))

    def steps(self, examples: int | None = None) -> int:
        """Batches in an epoch."""
        return self.batches * self.cycle

    def expected_batch_size(self, examples: int) -> float:
        """The expected number of rows in a batch."""
        return examples / self.steps()

    def event(self, mechanism: Gaussian) -> Event:
        """The epoch, once: an example is in one group, and in one of its batches."""
        return Partitioned(self.batches, mechanism)

    def draw(self, examples: int, rng: np.random.Generator) -> Iterator[Sample]:
        """Draw one epoch of batches."""
        groups = np.arange(examples) % self.cycle
        # the step that an example is in
        places = groups + self.cycle * rng.integers(self.batches, size=examples)
        unit = self.epoch_charge()
        for rows in _split(places, self.steps()):
            yield Sample(rows, unit)


def _split(places: Indices, steps: int) -> list[Indices]:
    """The rows of each of `steps` batches, ascending."""
    order = np.argsort(places, kind="stable")
    return np.split(order, np.cumsum(np.bincount(places, minlength=steps))[:-1])


def assign(examples: int, blocks: int, rng: np.random.Generator) -> Indices:
    """For each example the block, 0 .. `blocks` - 1, that it falls into: independently, uniformly,
    whatever it holds.

    So disjoint blocks may be priced as `Parallel`. How many fall into a block is random, and some
    may be empty.
    """
    return rng.integers(count("blocks", blocks), size=examples)
