"""Samplers: each draws its own batches and says itself what a release on them amounts to.

There is no second place where a sampling rate is written down, so what is charged is what was drawn.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Self, final

import numpy as np

from privlearn._checks import count, one_of, parse_spec, probability
from privlearn._public import kinds, registered
from privlearn.accounting.events import Event, Repeated
from privlearn.accounting.guarantee import Adjacency
from privlearn.accounting.mechanisms import FixedBatches, Gaussian, Partitioned, PoissonSampled
from privlearn.accounting.pld.truncation import TruncatedPoissonSampled, require_maximum, usual_maximum
from privlearn.errors import BadInput
from privlearn.inclusion import taken
from privlearn.samples import EpochCharge as EpochCharge
from privlearn.samples import Indices as Indices
from privlearn.samples import Sample as Sample


class Sampler:
    """Draws and prices the batches of an epoch. A final class with a `kind` and `@registered` is known everywhere."""

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
        """What is charged at once when batches are released through `mechanism`: a batch, or a whole epoch."""

    def epoch_event(self, mechanism: Gaussian) -> Event:
        """All that is charged in an epoch."""
        return self.event(mechanism)

    def separation(self, examples: int) -> int:
        """How many steps lie at least from one batch of a run with an example to the next with it; 1: none is known."""
        return 1

    @property
    def prices_groups(self) -> bool:
        """Whether the event also holds for several examples of one person, priced as a group."""
        return True

    def in_cycles(self, cycle: int) -> Sampler:
        """The sampler with batches of the same size in which examples rest for `cycle` steps, where it has a choice."""
        return self

    def require_rows(self, examples: int) -> None:
        """Raise `BadInput` unless its price is for so many rows: asked before anything is spent."""

    def contradictions(self, examples: int) -> list[str]:
        """What contradicts that there are so many rows, which the facts of a run state: each a sentence."""
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


@final
@registered
@dataclass(frozen=True)
class Poisson(Sampler):
    """Each batch takes each example independently with probability `sampling_rate`. Batches may be empty.

    An epoch is ceil(1 / sampling_rate) batches. Amplified by sampling, for add/remove and zero-out neighbours. Drawing
    takes time and memory of a batch, however many rows there are (`inclusion`).
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
            yield Sample(chosen, EpochCharge(self.event))


@final
@registered
@dataclass(frozen=True)
class TruncatedPoisson(Sampler):
    """Poisson batches of which `maximum` rows are kept at most: of larger ones a random part, any as likely as others.

    So a batch that is padded to the maximum always has one shape. For zero-out neighbours. What the cut costs is part
    of the price (`accounting.pld.truncation`; after Chua et al. 2024, "Scalable DP-SGD"): nothing at the usual maximum.

    Attributes:
        sampling_rate: the probability with which each row is drawn, before the cut.
        examples: how many rows there are at most: a public number.
        maximum: rows that are kept at most; `of_size` takes one that is exceeded once in 1e15 batches, or less often.
    """

    sampling_rate: float
    examples: int
    maximum: int
    adjacencies = (Adjacency.ZERO_OUT,)
    kind: ClassVar[str] = "truncated-poisson"

    def __post_init__(self) -> None:
        probability("sampling_rate", self.sampling_rate)
        require_maximum(self.sampling_rate, self.examples, self.maximum)

    @classmethod
    def of_size(cls, batch_size: int, examples: int) -> TruncatedPoisson:
        """The sampler with batches of about `batch_size` rows, and the usual maximum."""
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
                f"{self.kind} batches are priced for at most {self.examples} examples, and there are "
                f"{str(examples)[:40]}: make the sampler for them, or declare as many, examples=N"
            )

    def event(self, mechanism: Gaussian) -> Event:
        """Every batch is a sampled release of its own, whose price holds for what is cut, too."""
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
            yield Sample(chosen, EpochCharge(self.event))


@final
@registered
@dataclass(frozen=True)
class CyclicPoisson(Sampler):
    """Poisson batches of one of `cycle` groups of rows after the other, for noise that is correlated over steps.

    Row i is in group i modulo `cycle`. Step t takes each example of group t modulo `cycle` independently with
    probability `sampling_rate`, so an example takes part at most once in `cycle` steps, and these together are the
    unit: they cost one sampled release, and are charged at the first of them. An epoch is ceil(1 / sampling_rate)
    cycles. Groups are no secret; which rows are in them depends on the number of rows, so not for add/remove
    neighbours (Choquette-Choo et al. 2023).
    """

    sampling_rate: float
    cycle: int = 1
    adjacencies = (Adjacency.ZERO_OUT,)
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
            raise BadInput(f"{cycle} batches hold {rate:.3g} times all the examples: use smaller ones or fewer bands")
        return CyclicPoisson(min(rate, 1.0), cycle)

    def steps(self, examples: int | None = None) -> int:
        """Batches in an epoch; the number of examples does not matter."""
        return self.cycle * math.ceil(1 / self.sampling_rate - 1e-9)

    def separation(self, examples: int) -> int:
        """The steps of a cycle."""
        return self.cycle

    @property
    def prices_groups(self) -> bool:
        """With one group alone: a person's examples are else drawn in different steps of a cycle."""
        return self.cycle == 1

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
            unit = EpochCharge(self.event)
            for group in range(self.cycle):
                members = len(range(group, examples, self.cycle))
                yield Sample(group + self.cycle * taken(members, self.sampling_rate, rng), unit)


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


@dataclass(frozen=True)
class _FixedSize(Sampler):
    """Disjoint batches of `batch_size` rows; the last may be smaller. The epoch is the unit; nothing is amplified."""

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
        unit = EpochCharge(self.event)
        for start in range(0, len(order), self.batch_size):
            yield Sample(order[start : start + self.batch_size], unit)


@final
@registered
@dataclass(frozen=True)
class Shuffle(_FixedSize):
    """Reshuffles every epoch and cuts batches of `batch_size` rows; the last one may be smaller.

    The epoch is the unit, charged at its first batch. There is no amplification: a Poisson-style epsilon for shuffled
    batches would be wrong (Yu et al. 2019; Chua et al. 2024).
    """

    kind: ClassVar[str] = "shuffle"

    def draw(self, examples: int, rng: np.random.Generator) -> Iterator[Sample]:
        """Draw one epoch of batches."""
        yield from self._cut(rng.permutation(examples))


@final
@registered
@dataclass(frozen=True)
class FixedOrder(_FixedSize):
    """Batches of `batch_size` rows in the order of the data, the same in every epoch; the last one may be smaller.

    As for `Shuffle`, the epoch is the unit, and nothing is amplified: which batch an example is in is no secret.
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
        yield Sample(np.arange(examples), EpochCharge(self.event))


def assign(examples: int, blocks: int, rng: np.random.Generator) -> Indices:
    """For each example the block, 0 .. `blocks` - 1, that it falls into: independently, uniformly, whatever it holds.

    So disjoint blocks may be priced as `Parallel`. How many fall into a block is random, and some may be empty.
    """
    return rng.integers(count("blocks", blocks), size=examples)


def named(name: str, batch_size: int, examples: int) -> Sampler:
    """The sampler called `name` with batches of about `batch_size` out of `examples` rows.

    `truncated-poisson:maximum=700` says how many rows of a batch are kept at most.

    Raises:
        BadInput: an unknown name or number, or a batch larger than the data.
    """
    count("the batch size", batch_size)
    if batch_size > examples:
        raise BadInput(
            f"the batch size is {batch_size}, more than the {examples} examples: choose at most {examples}",
            batch_size=batch_size,
            examples=examples,
        )
    known: dict[str, type[Sampler]] = kinds(Sampler)
    kind, numbers = parse_spec("sampling", name)
    sampler = known[one_of("sampling", kind, known)].of_size(batch_size, examples)
    if not numbers:
        return sampler
    maximum = numbers.get("maximum", math.nan)
    if not isinstance(sampler, TruncatedPoisson) or len(numbers) > 1 or not maximum.is_integer():
        raise BadInput(f"sampling {name!r} cannot be read: expected a name, or truncated-poisson:maximum=ROWS")
    return replace(sampler, maximum=int(maximum))
