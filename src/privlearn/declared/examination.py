"""What a run of another library costs by privlearn's accountant: as its own accountant took it, and
as it is declared.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import final

from privlearn.core.accounting import accountant
from privlearn.core.accounting.events import Composed, Event, Repeated, compose
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import FixedBatches, Gaussian, PoissonSampled
from privlearn.declared.peer_library import find_library
from privlearn.declared.recorded_run import (
    ONCE_AN_EPOCH,
    RecordedRun,
    RecordedSteps,
    RunDeclaration,
)
from privlearn.declared.subset_sampled import SubsetSampled
from privlearn.errors import BadInput

#: The method of a price that follows from two steps between neighbours: remove one, add another.
IN_TWO_STEPS = "pld, in two steps of add_remove"
#: What a method is followed by where batches are subsets of a fixed size.
SUBSETS = ", subsets as samples at twice the sensitivity"
#: Relative difference below which two sampling rates are one.
SAME_RATE = 1e-6
_MOST_EPOCHS = 1_000_000


@final
@dataclass(frozen=True)
class EventPrice:
    """An upper bound on the epsilon of events.

    Attributes:
        epsilon: at the delta that is declared.
        adjacency: the neighbours that it is for.
        method: of the accountant.
        tight: whether no accountant can give noticeably less for these events.
        event: what is priced.
    """

    epsilon: float
    adjacency: Adjacency
    method: str
    tight: bool
    event: Event


@final
@dataclass(frozen=True)
class Figures:
    """The figures of a run that are recomputed.

    Attributes:
        recorded: the price of the events that the other library's accountant holds.
        declared: the price of the events that follow from the declaration.
        undoubled: under replace-one neighbours, and for subsets of a fixed size, the price of the
            recorded events if one example moved a sum by one clipping norm, not two; else None.
        one_sided: for subsets of a fixed size where examples are replaced or emptied, the price by
            the laws of a Poisson sample, which is no bound for several releases; else None.
    """

    recorded: EventPrice
    declared: EventPrice
    undoubled: float | None
    one_sided: float | None = None


def compute_figures(run: RecordedRun, declaration: RunDeclaration) -> Figures:
    """Price a run twice.

    Args:
        run: what the other library's accountant holds.
        declaration: completed by the run's numbers.

    Raises:
        BadInput: numbers that no run has.
        UnsupportedEvent: no accountant gives a finite epsilon.
    """
    delta = declaration.delta
    assert delta is not None
    recorded = _price(run.steps, run.neighbours, delta)
    undoubled = None
    subsets = any(part.sampling == "without-replacement" for part in run.steps)
    if run.neighbours is Adjacency.REPLACE_ONE or subsets:
        single = _compose(run.steps, 1.0, 1.0)
        undoubled = accountant.guarantee(single, Adjacency.ADD_REMOVE, delta).epsilon
    one_sided = None
    if subsets and run.neighbours is not Adjacency.ADD_REMOVE:
        event = _compose(run.steps, 2.0)
        one_sided = accountant.guarantee(event, Adjacency.ADD_REMOVE, delta).epsilon
    steps, neighbours = declared_steps(run, declaration), declared_neighbours(run, declaration)
    if declaration.sampling in ONCE_AN_EPOCH:
        declared = _price_epochs(steps, count_epochs(run, declaration), neighbours, delta)
    else:
        declared = _price(steps, neighbours, delta)
    return Figures(recorded, declared, undoubled, one_sided)


def declared_neighbours(run: RecordedRun, declaration: RunDeclaration) -> Adjacency:
    """The neighbours of the declared events' price: fixed batches have none for add/remove."""
    neighbours = declaration.adjacency or run.neighbours
    if declaration.sampling in ONCE_AN_EPOCH and neighbours is Adjacency.ADD_REMOVE:
        return Adjacency.ZERO_OUT
    return neighbours


def _price(steps: Iterable[RecordedSteps], neighbours: Adjacency, delta: float) -> EventPrice:
    """The price of steps whose batches are drawn independently of each other.

    Let an example be removed. A random subset of a fixed size then has another one in its place:
    by joint convexity (Balle, Barthe and Gaboardi 2018) that costs, in each direction, what a
    Poisson sample does in which one example moves the sum by two clipping norms. For replaced and
    emptied examples `SubsetSampled` has the price.
    """
    steps = tuple(steps)
    doubled = neighbours is Adjacency.REPLACE_ONE
    subsets = any(part.sampling == "without-replacement" for part in steps)
    moved = 2.0 if doubled else 1.0
    event = _compose(steps, moved)
    if not (doubled and any(is_amplified(part) for part in steps)):
        two_sided = subsets and neighbours is not Adjacency.ADD_REMOVE
        priced = (
            _compose(steps, 2.0 if doubled else 1.0, subset=SubsetSampled) if two_sided else event
        )
        guarantee = accountant.guarantee(priced, neighbours, delta)
        method = f"{guarantee.method}{SUBSETS if subsets else ''}"
        return EventPrice(guarantee.epsilon, neighbours, method, not two_sided, event)
    sampled = _compose(steps, 1.0)
    whole = compose(_repeat(Gaussian(part.noise_multiplier / 2), part.count) for part in steps)
    plain = accountant.guarantee(whole, neighbours, delta)
    epsilon = accountant.pld_in_steps(sampled, delta, 2)
    if plain.epsilon <= epsilon:
        return EventPrice(plain.epsilon, neighbours, plain.method, False, whole)
    return EventPrice(epsilon, neighbours, IN_TWO_STEPS, False, sampled)


def is_amplified(part: RecordedSteps) -> bool:
    """Whether an accountant takes the batches for Poisson samples, which cost less than all."""
    return part.sampling == "poisson" and part.sampling_rate < 1


def _compose(
    steps: Iterable[RecordedSteps],
    moved: float,
    moved_in_subsets: float = 2.0,
    subset: Callable[[float, Gaussian], Event] = PoissonSampled,
) -> Composed:
    """Steps as events, where one example moves a sum by so many clipping norms.

    Args:
        steps: whose batches are drawn independently of each other.
        moved: in Poisson samples, and where all examples take part.
        moved_in_subsets: in random subsets of a fixed size.
        subset: a release on such a subset.
    """
    events: list[Event] = []
    for part in steps:
        if part.sampling == "without-replacement":
            release = Gaussian(part.noise_multiplier / moved_in_subsets)
            event = subset(part.sampling_rate, release)
        else:
            release = Gaussian(part.noise_multiplier / moved)
            event = PoissonSampled(part.sampling_rate, release) if is_amplified(part) else release
        events.append(_repeat(event, part.count))
    return compose(events)


def _repeat(event: Event, times: int) -> Event:
    return event if times == 1 else Repeated(event, times)


def _price_epochs(
    steps: Iterable[RecordedSteps], epochs: int, neighbours: Adjacency, delta: float
) -> EventPrice:
    """The price of epochs in each of which an example is in one batch.

    Which step that is follows from the order of the examples. The epochs are charged with the
    smallest noise multipliers of the run, which is an upper bound whatever the order.
    """
    sensitivity = 2.0 if neighbours is Adjacency.REPLACE_ONE else 1.0
    by_noise = sorted(steps, key=lambda part: part.noise_multiplier)
    # More epochs than steps are charged with the least noise, too.
    more = max(0, epochs - sum(part.count for part in by_noise))
    by_noise[0] = replace(by_noise[0], count=by_noise[0].count + more)
    events: list[Event] = []
    left = epochs
    for part in by_noise:
        times = min(left, part.count)
        if times:
            release = FixedBatches(Gaussian(part.noise_multiplier / sensitivity))
            events.append(_repeat(release, times))
        left -= times
    event = compose(events)
    guarantee = accountant.guarantee(event, neighbours, delta)
    tight = len(events) == 1
    return EventPrice(guarantee.epsilon, neighbours, guarantee.method, tight, event)


# What follows from the declaration


def batches_of_an_epoch(declaration: RunDeclaration) -> int | None:
    """Batches of an epoch with the last, smaller one; None where that is not declared."""
    if declaration.examples is None or declaration.batch_size is None:
        return None
    return max(1, math.ceil(declaration.examples / declaration.batch_size))


def count_epochs(run: RecordedRun, declaration: RunDeclaration) -> int:
    """How many epochs the run has, each begun one counted as a whole.

    Without declared epochs they follow from the steps and the batches of an epoch without the last,
    smaller one, which gives more of them.

    Raises:
        BadInput: the numbers that decide it are not declared.
    """
    if counts_epochs(run, declaration):
        return max([run.rounds, *expected_rounds(run, declaration).values()])
    batches = batches_of_an_epoch(declaration)
    if batches is None:
        raise BadInput(
            "the price of shuffled or fixed batches follows from the number of epochs: give "
            "examples=N and batch_size=B"
        )
    assert declaration.examples is not None
    assert declaration.batch_size is not None
    fewest = max(1, declaration.examples // declaration.batch_size)
    steps = run.cycle * max([run.rounds, *expected_rounds(run, declaration).values()])
    if declaration.epochs is None:
        epochs = math.ceil(steps / fewest)
    else:
        epochs = max(declaration.epochs, math.ceil(steps / batches))
    if epochs > _MOST_EPOCHS:
        raise BadInput(f"the run has {epochs} epochs: expected at most {_MOST_EPOCHS}")
    return epochs


def counts_epochs(run: RecordedRun, declaration: RunDeclaration) -> bool:
    """Whether the accountant counts one release for each epoch of shuffled or fixed batches."""
    return declaration.sampling in ONCE_AN_EPOCH and all(
        part.sampling == "none" for part in run.steps
    )


def expected_rounds(run: RecordedRun, declaration: RunDeclaration) -> dict[str, int]:
    """How many steps the accountant should hold, by what says so."""
    batches = batches_of_an_epoch(declaration)
    if counts_epochs(run, declaration):
        if declaration.epochs is not None:
            return {f"the declared {declaration.epochs} epochs": declaration.epochs}
        steps = {"the declared steps": declaration.steps, "the optimizer": run.optimizer_steps}
        return {
            f"{name} ({number} steps)": math.ceil(number / batches)
            for name, number in steps.items()
            if number and batches
        }
    expected = {}
    if run.optimizer_steps:
        expected[f"the optimizer's state, which counted {run.optimizer_steps} steps,"] = (
            run.optimizer_steps
        )
    if run.iterations is not None:
        expected[f"the configuration's {run.iterations} iterations"] = run.iterations
    if declaration.steps is not None:
        expected[f"the declared {declaration.steps} steps"] = declaration.steps
    elif declaration.epochs is not None and batches is not None:
        text = f"the declared {declaration.epochs} epochs of {batches} batches"
        expected[text] = declaration.epochs * batches
    return {text: math.ceil(steps / run.cycle) for text, steps in expected.items()}


def batch_rate(run: RecordedRun, declaration: RunDeclaration) -> float | None:
    """Batch size over examples, of the examples that may be in a batch; None where that is not
    declared.
    """
    if declaration.examples is None or declaration.batch_size is None:
        return None
    return min(1.0, declaration.batch_size / max(1, declaration.examples // run.cycle))


def is_drawn_rate(run: RecordedRun, declaration: RunDeclaration, part: RecordedSteps) -> bool:
    """Whether a step's sampling rate is batch size over examples, or one at which the library's
    own sampler draws.
    """
    expected = batch_rate(run, declaration)
    if expected is None or part.sampling == "none":
        return True
    assert declaration.examples is not None
    assert declaration.batch_size is not None
    others = find_library(run.library).other_rates(declaration.examples, declaration.batch_size)
    if part.sampling != "poisson":
        others = ()
    return any(
        math.isclose(part.sampling_rate, each, rel_tol=SAME_RATE) for each in (expected, *others)
    )


def declared_steps(run: RecordedRun, declaration: RunDeclaration) -> tuple[RecordedSteps, ...]:
    """The steps that follow from the declaration.

    They are sampled as declared; those that were recorded as steps on all examples stay such. A
    rate that does not follow from the batch size is replaced by the larger of both. Missing steps
    are added, with the least noise and the largest rate of the run.
    """
    steps = []
    for part in run.steps:
        kind = declaration.sampling if part.sampling != "none" else "none"
        if kind not in ("poisson", "without-replacement"):
            steps.append(RecordedSteps(part.count, "none", part.noise_multiplier, 1.0))
            continue
        rate = part.sampling_rate
        # Rates of a library's own sampler are those of Poisson samples alone.
        if kind != "poisson" or not is_drawn_rate(run, declaration, part):
            rate = max(rate, batch_rate(run, declaration) or rate)
        steps.append(RecordedSteps(part.count, kind, part.noise_multiplier, rate))
    missing = max(expected_rounds(run, declaration).values(), default=0) - run.rounds
    if missing > 0:
        least = min(part.noise_multiplier for part in steps)
        rate = max(part.sampling_rate for part in steps)
        steps.append(replace(steps[-1], count=missing, noise_multiplier=least, sampling_rate=rate))
    return tuple(steps)
