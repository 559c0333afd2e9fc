"""This file has the base of all samplers: a sampler draws its own batches, and says itself what a
release on them amounts to.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from privlearn.core.accounting.events import Event, require_adjacency
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.core.samples import EpochCharge, Sample, require_covered
from privlearn.errors import BadInput


class Sampler:
    """Draws and prices the batches of an epoch. A final class with a `kind` and `@registered` is
    known everywhere.
    """

    #: What it is called on the command line and in certificates.
    kind: ClassVar[str]
    #: The kinds of neighbour that it is priced for; the first is the default.
    adjacencies: ClassVar[tuple[Adjacency, ...]]

    @abstractmethod
    def steps(self, examples: int) -> int:
        """Batches in an epoch over `examples` rows."""

    @abstractmethod
    def expected_batch_size(self, examples: int) -> float:
        """The expected number of rows in a batch: the public divisor of sums."""

    @abstractmethod
    def event(self, mechanism: Gaussian) -> Event:
        """What is charged at once when batches are released through `mechanism`: a batch, or a
        whole epoch.
        """

    def epoch_charge(self) -> EpochCharge:
        """What pays for the batches of one `event`, for the kinds of neighbour that this is priced
        for.
        """
        return EpochCharge(self.event, self.adjacencies)

    def epoch_event(self, mechanism: Gaussian) -> Event:
        """All that is charged in an epoch."""
        return self.event(mechanism)

    def separation(self, examples: int) -> int:
        """How many steps lie at least from one batch of a run with an example to the next with it;
        1: none is known.
        """
        return 1

    @property
    def prices_groups(self) -> bool:
        """Whether the event also holds for several examples of one person, priced as a group."""
        return True

    def in_cycles(self, cycle: int) -> Sampler:
        """The sampler with batches of the same size in which examples rest for `cycle` steps, where
        it has a choice.
        """
        return self

    def require_neighbours(self, adjacency: Adjacency) -> None:
        """Raise `UnsupportedEvent` unless batches are priced for such neighbours, as drawn and as
        an event.
        """
        require_covered(f"{self.kind} batches", adjacency, self.adjacencies)
        require_adjacency(self.event(Gaussian(1.0)), adjacency)

    def require_rows(self, examples: int) -> None:
        """Raise `BadInput` unless its price is for so many rows: asked before anything is spent."""

    def contradictions(self, examples: int) -> list[str]:
        """What contradicts that there are so many rows, which the facts of a run state: each a
        sentence.
        """
        try:
            self.require_rows(examples)
        except BadInput as error:
            return [str(error)]
        return []

    @abstractmethod
    def draw(self, examples: int, rng: np.random.Generator) -> Iterator[Sample]:
        """Draw one epoch of batches over rows 0 .. examples - 1."""

    @property
    def default_adjacency(self) -> Adjacency:
        """The kind of neighbour that a plan has unless it says otherwise."""
        return self.adjacencies[0]

    @classmethod
    @abstractmethod
    def of_size(cls, batch_size: int, examples: int) -> Sampler:
        """The sampler with batches of about `batch_size` out of `examples` rows."""


class CyclicSampler(Sampler):
    """Takes the batches of one of `cycle` groups of rows after the other: row i is in group i
    modulo `cycle`.

    Groups are no secret; which rows are in them depends on the number of rows, so not for
    add/remove neighbours.
    """

    cycle: int
    adjacencies = (Adjacency.ZERO_OUT,)

    def separation(self, examples: int) -> int:
        """The steps of a cycle."""
        return self.cycle

    @property
    def prices_groups(self) -> bool:
        """With one group alone: a person's examples are else drawn in different steps of a
        cycle.
        """
        return self.cycle == 1
