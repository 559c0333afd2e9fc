"""What another library's accountant holds of a run, and what a person declares about that run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import final

from privlearn._checks import between, count, delta, one_of, positive
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.errors import BadInput

#: How accountants of other libraries take batches to be drawn; none: a release on all examples.
RECORDED = ("poisson", "without-replacement", "none")
#: How batches were drawn, as a person declares it, in words.
DRAWN = {
    "poisson": "each example was in each batch independently, with the sampling rate",
    "shuffle": "the examples were shuffled and cut into batches of a fixed size in each epoch",
    "fixed": "each epoch had the same batches of a fixed size, in the order of the data",
    "without-replacement": "each batch was a random subset of a fixed size, drawn for itself",
    "full": "each step was taken on all examples",
}
#: The ways to draw batches in which an example is in one batch of each epoch.
ONCE_AN_EPOCH = ("shuffle", "fixed")
#: Different steps of a run that are read at most.
MOST_STEPS = 10_000


@final
@dataclass(frozen=True)
class RecordedSteps:
    """Equal steps in a row: sums of clipped gradients with Gaussian noise.

    Attributes:
        count: how many.
        sampling: how the accountant takes their batches to be drawn.
        noise_multiplier: standard deviation of the noise, over the clipping norm.
        sampling_rate: the probability of an example to be in a batch; 1 for all examples.

    Raises:
        BadInput: a number that is out of range.
    """

    count: int
    sampling: str
    noise_multiplier: float
    sampling_rate: float

    def __post_init__(self) -> None:
        count("count", self.count)
        one_of("sampling", self.sampling, RECORDED)
        if self.noise_multiplier == 0:
            raise BadInput(
                "the run has steps with noise multiplier 0: such steps have no privacy, and there "
                "is no epsilon to certify"
            )
        between("noise_multiplier", self.noise_multiplier, 1e-6, 1e12)
        between("sampling_rate", self.sampling_rate, 1e-12, 1.0)
        if self.sampling == "none" and self.sampling_rate != 1:
            raise BadInput(
                f"sampling_rate is {self.sampling_rate:g} for steps on all examples: expected 1"
            )


@final
@dataclass(frozen=True)
class RecordedRun:
    """A run as the accountant of another library holds it.

    Attributes:
        library: name of the library.
        accountant: what the library calls its accountant; empty: the file does not say.
        neighbours: the neighbours that the accountant's figure is for.
        steps: in their order.
        cycle: parts of the data that take turns in cyclic Poisson sampling; an example is in the
            steps of one part alone, and only these are recorded.
        iterations: steps of the whole run, where `cycle` is above 1.
        examples: number of examples, if the file states it.
        batch_size: expected examples in a batch, if the file states it.
        delta: where the library states epsilon, if the file states it.
        epsilon: what the library states, if the file states it.
        optimizer_steps: how many steps the optimizer's state in the same file has counted.

    Raises:
        BadInput: no steps, too many different ones, or a number that is out of range.
    """

    library: str
    accountant: str
    neighbours: Adjacency
    steps: tuple[RecordedSteps, ...]
    cycle: int = 1
    iterations: int | None = None
    examples: int | None = None
    batch_size: int | None = None
    delta: float | None = None
    epsilon: float | None = None
    optimizer_steps: int | None = None

    def __post_init__(self) -> None:
        if not 0 < len(self.steps) <= MOST_STEPS:
            raise BadInput(
                f"the run has {len(self.steps)} different steps: expected 1 to {MOST_STEPS}. "
                "Certify a run that has taken steps"
            )
        _require_numbers(self)
        count("cycle", self.cycle)
        for name in ("iterations", "optimizer_steps"):
            if getattr(self, name) is not None:
                count(name, getattr(self, name), least=0)

    @property
    def rounds(self) -> int:
        """How many steps are recorded."""
        return sum(part.count for part in self.steps)


@final
@dataclass(frozen=True)
class RunDeclaration:
    """What a person declares about a run of another library; none of it can be checked here.

    Attributes:
        sampling: how batches were drawn: one of `DRAWN`.
        examples: number of examples.
        batch_size: examples in a batch, or the expected number.
        epochs: passes over the data.
        steps: steps of the optimizer.
        adjacency: the neighbours that the claim is for.
        delta: where epsilon is stated.
        epsilon: what was claimed for the run.

    Raises:
        BadInput: a number that is out of range.
    """

    sampling: str
    examples: int | None = None
    batch_size: int | None = None
    epochs: int | None = None
    steps: int | None = None
    adjacency: Adjacency | None = None
    delta: float | None = None
    epsilon: float | None = None

    def __post_init__(self) -> None:
        one_of("sampling", self.sampling, DRAWN)
        _require_numbers(self)
        for name in ("epochs", "steps"):
            if getattr(self, name) is not None:
                count(name, getattr(self, name))

    def completed(self, run: RecordedRun) -> RunDeclaration:
        """The declaration with the numbers that only the file states.

        Raises:
            BadInput: neither states a delta.
        """
        completed = {
            name: getattr(self, name) or getattr(run, name)
            for name in ("examples", "batch_size", "delta")
        }
        if completed["delta"] is None:
            raise BadInput(
                "no delta was given, and the file states none: give delta=D, the delta at which "
                "epsilon was claimed"
            )
        return replace(self, **completed)


def _require_numbers(numbers: RecordedRun | RunDeclaration) -> None:
    """Refuse sizes, deltas and epsilons that are out of range."""
    for name in ("examples", "batch_size"):
        if getattr(numbers, name) is not None:
            count(name, getattr(numbers, name))
    if numbers.delta is not None:
        delta(numbers.delta)
    if numbers.epsilon is not None:
        positive("epsilon", numbers.epsilon)


def merge_steps(steps: Iterable[RecordedSteps]) -> tuple[RecordedSteps, ...]:
    """The same steps, with equal ones in a row put together."""
    merged: list[RecordedSteps] = []
    for part in steps:
        if merged and replace(merged[-1], count=part.count) == part:
            merged[-1] = replace(part, count=merged[-1].count + part.count)
        else:
            merged.append(part)
    return tuple(merged)
