"""The mistakes that can be seen in a run of another library, each a rule with a name.

A rule says in a sentence what is wrong, or nothing. A rule that needs a number that was not
declared is listed as unchecked: a run passes only what was looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from privlearn.core.accounting.guarantee import Adjacency, rounded_up
from privlearn.declared.examination import (
    SAME_RATE,
    EventPrice,
    Figures,
    batch_rate,
    count_epochs,
    expected_rounds,
    is_amplified,
    is_drawn_rate,
)
from privlearn.declared.recorded_run import (
    ONCE_AN_EPOCH,
    RecordedRun,
    RecordedSteps,
    RunDeclaration,
)

#: Relative difference below which a smaller epsilon may follow from another accountant: that of
#: privlearn is within 0.35 % of the truth.
ROOM = 0.005


@final
@dataclass(frozen=True)
class PeerFigure:
    """An epsilon that others state for the run.

    Attributes:
        epsilon: the figure.
        source: who or what states it.
        claimed: whether it was stated of the run, and not computed now.
    """

    epsilon: float
    source: str
    claimed: bool


@final
@dataclass(frozen=True)
class Case:
    """All that a rule looks at.

    Attributes:
        run: what the other library's accountant holds.
        declaration: completed by the run's numbers.
        first: the declaration as it was given.
        figures: recomputed.
        theirs: figures of others for the run.
    """

    run: RecordedRun
    declaration: RunDeclaration
    first: RunDeclaration
    figures: Figures
    theirs: tuple[PeerFigure, ...]

    @property
    def is_poisson(self) -> bool:
        """Whether the accountant takes a batch for a Poisson sample."""
        return any(is_amplified(part) for part in self.run.steps)

    @property
    def least(self) -> PeerFigure | None:
        """The least claim; where there is none, what the library's accountant says."""
        claims = [figure for figure in self.theirs if figure.claimed] or self.theirs
        return min(claims, key=lambda figure: figure.epsilon, default=None)

    @property
    def floor(self) -> float | None:
        """What the recorded events cost at least; None where that is not known.

        The laws of a Poisson sample are met by subsets of a fixed size where an example is
        replaced, if all others have one gradient; where one is emptied, they need not be.
        """
        figures, recorded = self.figures, self.figures.recorded
        if figures.one_sided is not None:
            replaced = recorded.adjacency is Adjacency.REPLACE_ONE
            return figures.one_sided if replaced else None
        return recorded.epsilon if recorded.tight else None


#: What a rule says is wrong with a run, and what it lacks to be looked at.
Rule = Callable[[Case], str | None]


def rules() -> dict[str, tuple[Rule, Rule]]:
    """Each mistake by its name: the rule that sees it, and what says which numbers it lacks."""
    return {
        "shuffled-priced-as-poisson": (_is_shuffled, _lacks_nothing),
        "shuffled-priced-as-random-subsets": (_is_cut, _lacks_nothing),
        "other-batches-priced-as-poisson": (_is_no_sample, _lacks_nothing),
        "fixed-size-declared-as-poisson": (_is_fixed, _lacks_nothing),
        "rate-of-the-last-batch": (_is_rate_of_last_batch, _lacks_sizes),
        "rate-is-not-batch-size-over-examples": (_is_another_rate, _lacks_sizes),
        "missing-steps": (_has_missing_steps, _lacks_steps),
        "delta-is-not-below-one-over-examples": (_has_large_delta, _lacks_examples),
        "neighbours-differ": (_has_other_neighbours, _lacks_nothing),
        "sensitivity-not-doubled": (_is_not_doubled, _lacks_doubled_figure),
        "subsets-priced-as-poisson-samples": (_is_one_sided, _lacks_nothing),
        "claims-less-than-its-events-cost": (_claims_less, _lacks_tight_figure),
        "file-and-declaration-differ": (_differs, _lacks_nothing),
    }


def find_refusals(case: Case) -> tuple[dict[str, str], dict[str, str]]:
    """What is wrong with a run, and what could not be looked at: a sentence each, by rule."""
    wrong, unchecked = {}, {}
    for name, (see, lack) in rules().items():
        lacking = lack(case)
        if lacking is not None:
            unchecked[name] = lacking
        elif text := see(case):
            wrong[name] = text
    return wrong, unchecked


def _lacks_nothing(case: Case) -> str | None:
    return None


def _lacks_sizes(case: Case) -> str | None:
    declared = case.declaration
    if declared.examples is None or declared.batch_size is None:
        return "the number of examples and the batch size were not declared"
    return None


def _lacks_examples(case: Case) -> str | None:
    return "the number of examples was not declared" if not case.declaration.examples else None


def _lacks_steps(case: Case) -> str | None:
    if expected_rounds(case.run, case.declaration):
        return None
    return "neither steps nor epochs with their batches were declared"


def _lacks_figure(case: Case) -> str | None:
    return "no epsilon was claimed, and the library is not installed" if not case.theirs else None


def _lacks_tight_figure(case: Case) -> str | None:
    recorded, least = case.figures.recorded, case.least
    if least is not None and case.floor is None and least.epsilon < recorded.epsilon:
        return "privlearn's price of these events is an upper bound that is not tight"
    return _lacks_figure(case)


def _lacks_doubled_figure(case: Case) -> str | None:
    return None if case.figures.undoubled is None else _lacks_tight_figure(case)


def in_words(price: EventPrice) -> str:
    """A price for reading, never below the figure."""
    return f"epsilon {rounded_up(price.epsilon)} for {price.adjacency.value} neighbours"


def _is_shuffled(case: Case) -> str | None:
    if case.declaration.sampling not in ONCE_AN_EPOCH or not case.is_poisson:
        return None
    kind = "shuffled" if case.declaration.sampling == "shuffle" else "fixed"
    epochs = count_epochs(case.run, case.declaration)
    return (
        f"batches are {kind}, and the accountant took them for Poisson samples: that gives "
        f"{in_words(case.figures.recorded)}. An example in one {kind} batch of each of {epochs} "
        f"epochs costs {in_words(case.figures.declared)}: no amplification by "
        "shuffling is claimed here"
    )


def _is_cut(case: Case) -> str | None:
    subsets = any(part.sampling == "without-replacement" for part in case.run.steps)
    if case.declaration.sampling not in ONCE_AN_EPOCH or not subsets:
        return None
    return (
        "batches are those of shuffled or fixed epochs, and the accountant took each for a random "
        "subset that is drawn for itself, which has amplification. As declared they cost "
        f"{in_words(case.figures.declared)}"
    )


def _is_no_sample(case: Case) -> str | None:
    if case.declaration.sampling not in ("without-replacement", "full") or not case.is_poisson:
        return None
    return (
        "batches are declared as "
        f"{'all examples' if case.declaration.sampling == 'full' else 'subsets of a fixed size'}, "
        "and the accountant took them for Poisson samples, which gives "
        f"{in_words(case.figures.recorded)}. As declared they cost "
        f"{in_words(case.figures.declared)}"
    )


def _is_fixed(case: Case) -> str | None:
    fixed = any(part.sampling == "without-replacement" for part in case.run.steps)
    if case.declaration.sampling != "poisson" or not fixed:
        return None
    return (
        "batches are declared as Poisson samples, and the accountant took them for subsets of a "
        "fixed size: one of the two is not what happened"
    )


def _is_rate_of_last_batch(case: Case) -> str | None:
    declared = case.declaration
    assert declared.examples is not None
    assert declared.batch_size is not None
    last = declared.examples % declared.batch_size
    taken = any(_is_last(case, part) for part in case.run.steps)
    if not taken:
        return None
    return (
        f"the sampling rate {last / declared.examples:.6g} is that of the last batch of an epoch, "
        f"which has {last} of {declared.examples} examples: batches of {declared.batch_size} have "
        f"the rate {batch_rate(case.run, declared):.6g}. At that rate the run costs "
        f"{in_words(case.figures.declared)}"
    )


def _is_last(case: Case, part: RecordedSteps) -> bool:
    """Whether a step's rate is that of a last, smaller batch."""
    declared = case.declaration
    assert declared.examples is not None
    assert declared.batch_size is not None
    last = declared.examples % declared.batch_size / declared.examples
    same = math.isclose(part.sampling_rate, last, rel_tol=SAME_RATE)
    return same and not is_drawn_rate(case.run, declared, part)


def _is_another_rate(case: Case) -> str | None:
    declared = case.declaration
    assert declared.examples is not None
    assert declared.batch_size is not None
    strange = [
        part.sampling_rate
        for part in case.run.steps
        if not is_drawn_rate(case.run, declared, part) and not _is_last(case, part)
    ]
    expected = batch_rate(case.run, declared)
    if not strange or expected is None:
        return None
    worst = min(strange) if min(strange) < expected else max(strange)
    way = "below" if worst < expected else "above"
    return (
        f"the sampling rate {worst:.6g} is {way} the declared batch size over the number of "
        f"examples, {declared.batch_size} / {declared.examples}"
        f"{f' (in {case.run.cycle} parts)' if case.run.cycle > 1 else ''} = {expected:.6g}: "
        "accumulated batches, several processes or another sampler were not counted. With the "
        f"larger rate the run costs {in_words(case.figures.declared)}"
    )


def _has_missing_steps(case: Case) -> str | None:
    expected = expected_rounds(case.run, case.declaration)
    source, number = max(expected.items(), key=lambda item: item[1])
    if case.run.rounds >= number:
        return None
    return (
        f"the accountant holds {case.run.rounds} steps, and {source} make {number}: "
        f"{number - case.run.rounds} were not counted (a run that went on without its accountant, "
        "or the last batch of each epoch). With them the run costs "
        f"{in_words(case.figures.declared)}"
    )


def _has_large_delta(case: Case) -> str | None:
    examples, delta = case.declaration.examples, case.declaration.delta
    assert examples is not None
    assert delta is not None
    if delta * examples < 1:
        return None
    return (
        f"delta {delta:g} is not below one over the {examples} examples: a mechanism may then give "
        "away a whole example"
    )


def _has_other_neighbours(case: Case) -> str | None:
    declared, taken = case.first.adjacency, case.run.neighbours
    if declared is Adjacency.ADD_REMOVE and case.declaration.sampling in ONCE_AN_EPOCH:
        return (
            "add_remove neighbours are declared, and shuffled or fixed batches have no price for "
            "them: an example more or less moves others to other batches. It is priced for "
            "zero_out neighbours"
        )
    replaced = Adjacency.REPLACE_ONE
    if declared is None or (declared is replaced) == (taken is replaced):
        return None
    return (
        f"{declared.value} neighbours are declared, and the accountant's figure is for "
        f"{taken.value}: one example moves a sum by "
        f"{'two clipping norms, not one' if declared is replaced else 'one clipping norm, not two'}"
        f". For {declared.value} the run costs {in_words(case.figures.declared)}"
    )


def _is_not_doubled(case: Case) -> str | None:
    least, single = case.least, case.figures.undoubled
    recorded = case.figures.recorded
    if least is None or single is None:
        return None
    if not single * (1 - ROOM) <= least.epsilon < (case.floor or recorded.epsilon) * (1 - ROOM):
        return None
    return (
        f"epsilon {least.epsilon:.6g} ({least.source}) lets one example move a sum by one clipping "
        "norm: where another example takes its place, it moves the sum by two. These events cost "
        f"{in_words(recorded)}"
    )


def _is_one_sided(case: Case) -> str | None:
    least, one_sided = case.least, case.figures.one_sided
    recorded = case.figures.recorded
    if least is None or one_sided is None:
        return None
    if not one_sided * (1 - ROOM) <= least.epsilon < recorded.epsilon * (1 - ROOM):
        return None
    return (
        f"epsilon {least.epsilon:.6g} ({least.source}) prices subsets of a fixed size by the laws "
        "of a Poisson sample. Where an example is replaced or emptied, these are no bound for "
        f"several releases. privlearn's bound for them is {in_words(recorded)}"
    )


def _claims_less(case: Case) -> str | None:
    least, recorded = case.least, case.figures.recorded
    assert least is not None
    floor = case.floor or recorded.epsilon
    if least.epsilon >= floor * (1 - ROOM) or _is_not_doubled(case):
        return None
    return (
        f"epsilon {least.epsilon:.6g} is claimed ({least.source}), and the events that the "
        f"accountant holds cost {in_words(recorded)}: the claim was rounded down, or is not an "
        "upper bound"
    )


def _differs(case: Case) -> str | None:
    for name, phrase in (("examples", "examples"), ("batch_size", "examples in a batch")):
        recorded, declared = getattr(case.run, name), getattr(case.first, name)
        if recorded is not None and declared is not None and recorded != declared:
            return f"the file states {recorded} {phrase}, and {declared} are declared"
    for source, number in expected_rounds(case.run, case.declaration).items():
        if source.startswith("the declared") and case.run.rounds > number:
            return (
                f"the accountant holds {case.run.rounds} steps, and {source} make {number}: the "
                "run is priced with all that it holds"
            )
    return None
