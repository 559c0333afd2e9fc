"""Poisson sampling takes each example independently, with the same probability."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from privlearn._checks import count, probability
from privlearn._public import registered
from privlearn.core.accounting.events import Event, Repeated
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import Gaussian, PoissonSampled
from privlearn.core.inclusion import taken
from privlearn.core.samples import Sample
from privlearn.core.sampling.sampler import CyclicSampler, Sampler
from privlearn.errors import BadInput


@final
@registered
@dataclass(frozen=True)
class Poisson(Sampler):
    """Each batch takes each example independently with probability `sampling_rate`. Batches may be
    empty.

    An epoch is ceil(1 / sampling_rate) batches. Amplified by sampling, for add/remove and zero-out
    neighbours. Drawing takes time and memory of a batch, however many rows there are (`inclusion`).
    """

    sampling_rate: float
    adjacencies = (Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT)
    kind: ClassVar[str] = "poisson"

    def __post_init__(self) -> None:
        probability("sampling_rate", self.sampling_rate)

    @classmethod
    def of_size(cls, batch_size: int, examples: int) -> Poisson:
        """The sampler with batches of about `batch_size` rows."""
        return cls(batch_size / examples)

    def steps(self, examples: int | None = None) -> int:
        """Batches in an epoch; the number of examples does not matter."""
        return math.ceil(1 / self.sampling_rate - 1e-9)

    def expected_batch_size(self, examples: int) -> float:
        """The expected number of rows in a batch."""
        return self.sampling_rate * examples

    def event(self, mechanism: Gaussian) -> Event:
        """Every batch is a sampled release of its own."""
        return PoissonSampled(self.sampling_rate, mechanism)

    def epoch_event(self, mechanism: Gaussian) -> Event:
        """One sampled release for each batch."""
        return Repeated(self.event(mechanism), self.steps())

    def draw(self, examples: int, rng: np.random.Generator) -> Iterator[Sample]:
        """Draw one epoch of batches."""
        for _ in range(self.steps()):
            chosen = taken(examples, self.sampling_rate, rng)
            yield Sample(chosen, self.epoch_charge())


@final
@registered
@dataclass(frozen=True)
class TruncatedPoisson(Sampler):
    """Poisson batches of which `maximum` rows are kept at most: of larger ones a random part, any
    as likely as others.

    So a batch that is padded to the maximum always has one shape. For zero-out neighbours. What the
    cut costs is part of the price (`accounting.pld.truncation`; after Chua et al. 2024, "Scalable
    DP-SGD"): nothing at the usual maximum.

    Attributes:
        sampling_rate: the probability with which each row is drawn, before the cut.
        examples: how many rows there are at most: a public number.
        maximum: rows that are kept at most; `of_size` takes one that is exceeded once in 1e15
            batches, or less often.
    """

    sampling_rate: float
    examples: int
    maximum: int
    adjacencies = (Adjacency.ZERO_OUT,)
    kind: ClassVar[str] = "truncated-poisson"

    def __post_init__(self) -> None:
        probability("sampling_rate", self.sampling_rate)
        # for truncated batches alone
        from privlearn.core.accounting.pld.truncation import require_maximum

        require_maximum(self.sampling_rate, self.examples, self.maximum)

    @classmethod
    def of_size(cls, batch_size: int, examples: int) -> TruncatedPoisson:
        """The sampler with batches of about `batch_size` rows, and the usual maximum."""
        from privlearn.core.accounting.pld.truncation import (
            usual_maximum,  # for truncated batches alone
        )

        rate = batch_size / examples
        return cls(rate, examples, usual_maximum(rate, examples))

    def steps(self, examples: int | None = None) -> int:
        """Batches in an epoch; the number of examples does not matter."""
        return Poisson(self.sampling_rate).steps()

    def expected_batch_size(self, examples: int) -> float:
        """The expected number of rows in a batch, before the cut."""
        return self.sampling_rate * examples

    def require_rows(self, examples: int) -> None:
        """Of more rows than it was made for, more would be cut."""
        if examples > self.examples:
            raise BadInput(
                f"{self.kind} batches are priced for at most {self.examples} examples, and there "
                f"are {str(examples)[:40]}: make the sampler for them, or declare as many, "
                "examples=N"
            )

    def event(self, mechanism: Gaussian) -> Event:
        """Every batch is a sampled release of its own, whose price holds for what is cut, too."""
        # for truncated batches alone
        from privlearn.core.accounting.pld.truncation import TruncatedPoissonSampled

        return TruncatedPoissonSampled(self.sampling_rate, self.examples, self.maximum, mechanism)

    def epoch_event(self, mechanism: Gaussian) -> Event:
        """One sampled release for each batch."""
        return Repeated(self.event(mechanism), self.steps())

    def draw(self, examples: int, rng: np.random.Generator) -> Iterator[Sample]:
        """Draw one epoch of batches."""
        self.require_rows(examples)
        for _ in range(self.steps()):
            chosen = taken(examples, self.sampling_rate, rng)
            if len(chosen) > self.maximum:  # by places, whatever rows hold
                chosen = chosen[np.sort(rng.permutation(len(chosen))[: self.maximum])]
            yield Sample(chosen, self.epoch_charge())


@final
@registered
@dataclass(frozen=True)
class CyclicPoisson(CyclicSampler):
    """Poisson batches of one of `cycle` groups of rows after the other, for noise that is
    correlated over steps.

    Row i is in group i modulo `cycle`. Step t takes each example of group t modulo `cycle`
    independently with probability `sampling_rate`, so an example takes part at most once in `cycle`
    steps, and these together are the unit: they cost one sampled release, and are charged at the
    first of them. An epoch is ceil(1 / sampling_rate) cycles. Groups are no secret; which rows are
    in them depends on the number of rows, so not for add/remove neighbours (Choquette-Choo et al.
    2023).
    """

    sampling_rate: float
    cycle: int = 1
    kind: ClassVar[str] = "cyclic-poisson"

    def __post_init__(self) -> None:
        probability("sampling_rate", self.sampling_rate)
        count("cycle", self.cycle)

    @classmethod
    def of_size(cls, batch_size: int, examples: int) -> CyclicPoisson:
        """The sampler with batches of about `batch_size` rows, and one group."""
        return cls(batch_size / examples)

    def in_cycles(self, cycle: int) -> CyclicPoisson:
        """The sampler with batches of the same size and `cycle` groups.

        Raises:
            BadInput: so many batches are more than all the data.
        """
        if (rate := self.sampling_rate * cycle / self.cycle) > 1 + 1e-9:
            raise BadInput(
                f"{cycle} batches hold {rate:.3g} times all the examples: use smaller ones or "
                "fewer bands"
            )
        return CyclicPoisson(min(rate, 1.0), cycle)

    def steps(self, examples: int | None = None) -> int:
        """Batches in an epoch; the number of examples does not matter."""
        return self.cycle * math.ceil(1 / self.sampling_rate - 1e-9)

    def expected_batch_size(self, examples: int) -> float:
        """The expected number of rows in a batch."""
        return self.sampling_rate * examples / self.cycle

    def event(self, mechanism: Gaussian) -> Event:
        """A cycle is one sampled release."""
        return PoissonSampled(self.sampling_rate, mechanism)

    def epoch_event(self, mechanism: Gaussian) -> Event:
        """One sampled release for each cycle."""
        return Repeated(self.event(mechanism), self.steps() // self.cycle)

    def draw(self, examples: int, rng: np.random.Generator) -> Iterator[Sample]:
        """Draw one epoch of batches."""
        for _ in range(self.steps() // self.cycle):
            unit = self.epoch_charge()
            for group in range(self.cycle):
                members = len(range(group, examples, self.cycle))
                yield Sample(group + self.cycle * taken(members, self.sampling_rate, rng), unit)
