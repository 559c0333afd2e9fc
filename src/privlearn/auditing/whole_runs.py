"""Whole runs of a plan, many times on neighbouring made-up rows, attacked by all that they release.

The attacker knows both data sets, and sees everything that was released: hence also what each
release held before its noise, on either data set, given what was released until then. It runs the
method again on both, and has it release the same. The score of a run is the logarithm of how much
likelier its releases are with the example than without it, by the claimed noise: the best test that
there is (Neyman and Pearson 1933).

Nothing of this rests on how the method computes its sums, their sensitivities or their noise: these
are what is attacked. A score follows from what was released and from random numbers that no run
has seen, so that the test of a sound claim errs as seldom as it says, whatever a method does.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, final
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from privlearn._checks import between, count
from privlearn._checks import delta as valid_delta
from privlearn.auditing.distinguishing import Claim
from privlearn.auditing.report import Audit
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.mechanisms import release as gaussian_releases
from privlearn.core.mechanisms import selection as selections
from privlearn.core.plan import AbstractPlan
from privlearn.core.streams import Streams
from privlearn.errors import BadInput, UnsoundExtension
from privlearn.methods.neighbouring_runs import Attackable, NeighbouringRuns

#: Runs of each kind, by default.
RUNS = 500


def audit_run(
    plan: AbstractPlan,
    delta: float = 1e-5,
    trials: int | None = None,
    confidence: float = 0.99,
    streams: Streams | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Audit:
    """Attack the whole run of a plan that says how it is run on neighbouring rows
    (`methods.neighbouring_runs.Attackable`).

    Args:
        plan: what is claimed, with its noise. Public transforms in front are left out.
        delta: where epsilon is stated.
        trials: runs with the example, and as many without it; by default 500.
        confidence: of all that is said.
        streams: the random streams; by default fresh and secret ones.
        progress: called with (runs done, runs in all).

    Raises:
        BadInput: the plan says nothing of how it is run on neighbouring rows.
        UnsoundExtension: the run itself noticed that it is not what it claims.
    """
    valid_delta(delta)
    between("confidence", confidence, 0.5, 1 - 1e-9)
    trials = RUNS if trials is None else count("trials", trials)
    attacked = runs_of(plan)
    event = plan.event()  # what has no price is not run
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is said of the made-up rows is no news
        scores = _scores(attacked, trials, streams or Streams.new(), progress)
    claim = Claim(
        lambda factor: event if factor == 1.0 else plan.scaled(factor).event(),
        plan.neighbours,
        1.0,
        delta,
        "the run is the claimed one with some other noise",
    )
    return claim.judged(scores[False], scores[True], confidence, attacked.text)


def runs_of(plan: AbstractPlan) -> NeighbouringRuns:
    """How a plan is run on neighbouring rows.

    Raises:
        BadInput: it does not say.
    """
    if isinstance(plan, Attackable):
        return plan.neighbouring_runs()
    chooses = "; attack the plan of one of its candidates" if plan.trainings else ""
    raise BadInput(
        f"a {plan.kind} plan does not say how it is run on neighbouring rows, and can't be audited"
        f"{chooses}: expected a plan with neighbouring_runs(). Attack the code that it is run by: "
        "privlearn audit --code FILE.py, with run(took_part) and a plan"
    )


def _scores(
    attacked: NeighbouringRuns,
    trials: int,
    streams: Streams,
    progress: Callable[[int, int], None] | None,
) -> dict[bool, np.ndarray[Any, np.dtype[np.float64]]]:
    """The scores of so many runs without the example, and with it."""
    again = Streams.new()  # what has been drawn for a run tells nothing of it
    fixed = None if attacked.is_adaptive else _both(attacked, streams, None)
    scores: dict[bool, list[float]] = {False: [], True: []}
    for trial in range(trials):  # alternated, so that nothing that drifts tells them apart
        for took_part in (False, True):
            run = _Run()
            with record_releases(run):
                attacked.run(took_part, Ledger(), streams)
            absent, present = fixed or _both(attacked, again, run)
            scores[took_part].append(run.log_ratio(absent, present))
            if progress is not None:
                progress(2 * trial + took_part + 1, 2 * trials)
    return {took_part: np.array(values) for took_part, values in scores.items()}


def _both(attacked: NeighbouringRuns, streams: Streams, like: _Run | None) -> tuple[_Run, _Run]:
    """A run without the example and one with it; both release what `like` did."""
    runs = _Run(like), _Run(like)
    for took_part, run in zip((False, True), runs, strict=True):
        with record_releases(run):
            attacked.run(took_part, Ledger(), streams)
    return runs


@dataclass
class _Draw:
    """Numbers that were released, and what they were drawn for.

    Attributes:
        before: what the released numbers' distribution follows from.
        after: what was released.
        log_likelihoods: of `after` for two values of `before`, up to what both share: a pair.
    """

    before: Any
    after: Any
    log_likelihoods: Callable[[Any, Any, Any], tuple[float, float]]


@final
@dataclass
class _Run:
    """What a run releases; with `like`, it is made to release what that did."""

    like: _Run | None = None
    draws: list[_Draw] = field(default_factory=list)

    def draw(
        self,
        before: Any,
        make_draw: Callable[[], Any],
        log_likelihoods: Callable[[Any, Any, Any], tuple[float, float]],
    ) -> Any:
        """What is released next: drawn, or as in the other run."""
        if self.like is None:
            after = make_draw()
        else:
            place = len(self.draws)
            _require_same(place < len(self.like.draws))
            after = self.like.draws[place].after
        self.draws.append(_Draw(before, after, log_likelihoods))
        return after

    def log_ratio(self, absent: _Run, present: _Run) -> float:
        """How much likelier the releases are as those of `present` than of `absent`: a
        logarithm.
        """
        _require_same(len(self.draws) == len(absent.draws) == len(present.draws))
        total = 0.0
        for draw, one, other in zip(self.draws, absent.draws, present.draws, strict=True):
            without, among = draw.log_likelihoods(draw.after, one.before, other.before)
            total += among - without
        return total


def _require_same(same: bool) -> None:
    if not same:
        raise UnsoundExtension(
            "a run of the method releases more or fewer values on one of two neighbouring data "
            "sets: the number of releases tells who took part, and no event is priced for that"
        )


@contextmanager
def record_releases(run: _Run) -> Iterator[None]:
    """A block in which all that is released is noted in `run`, or released as it was in another.

    Noise is added by the functions that add it anyway: they are wrapped, for this process.
    """
    add_noise = vars(gaussian_releases)["_add_noise"]
    select_top, randomised = selections.select_top, selections.randomised

    def gaussian(part: Any, multiplier: float, stream: Any) -> tuple[Tensor, ...]:
        before = torch.cat([value.detach().double().flatten() for value in part.values])
        std = multiplier * part.sensitivity

        def make_draw() -> Tensor:
            values = add_noise(part, multiplier, stream)
            return torch.cat([value.detach().double().flatten() for value in values])

        after = run.draw(before, make_draw, lambda *values: _of_gaussian(std, *values))
        start = 0
        for value in part.values:
            value.copy_(after[start : start + value.numel()].view_as(value))
            start += value.numel()
        released: tuple[Tensor, ...] = part.values
        return released

    def top(scores: Any, keep: int, *, epsilon: float, ledger: Any, stream: Any) -> Tensor:
        scale = (2 * scores.sensitivity / epsilon) / (2 if scores.one_way else 1)

        def make_draw() -> Tensor:
            return select_top(scores, keep, epsilon=epsilon, ledger=ledger, stream=stream)

        chosen: Tensor = run.draw(
            -scores.values.double() / scale, make_draw, lambda *values: _of_choices(*values)
        )
        return chosen

    def answers(labels: Tensor, present: Tensor, **options: Any) -> Tensor:
        def make_draw() -> Tensor:
            return randomised(labels, present, **options)

        true = selections.truth(options["epsilon"], options["categories"])
        reported: Tensor = run.draw(
            (labels, present), make_draw, lambda *values: _of_answers(true, options, *values)
        )
        return reported

    with (
        mock.patch.object(gaussian_releases, "_add_noise", gaussian),
        mock.patch.object(selections, "select_top", top),
        mock.patch.object(selections, "randomised", answers),
    ):
        yield


def _of_gaussian(std: float, after: Tensor, one: Tensor, other: Tensor) -> tuple[float, float]:
    """Of normal numbers about one mean or the other; the first is taken as 0."""
    _require_same(after.shape == one.shape == other.shape)
    middle = (one + other) / 2
    return 0.0, float((after - middle) @ (other - one)) / std**2


def _of_choices(after: Tensor, one: Tensor, other: Tensor) -> tuple[float, float]:
    """Of places, drawn one after the other in proportion to the exponentials of values."""

    def logarithm(values: Tensor) -> float:
        left, total = values.clone(), 0.0
        for place in after.tolist():
            total += float(left[place] - left.logsumexp(0))
            left[place] = -math.inf
        return total

    return logarithm(one), logarithm(other)


def _of_answers(
    true: float,
    options: dict[str, Any],
    after: Tensor,
    one: tuple[Tensor, Tensor],
    other: tuple[Tensor, Tensor],
) -> tuple[float, float]:
    """Of randomised answers of rows, of which some are empty."""
    categories = options["categories"]

    def logarithm(labels: Tensor, present: Tensor) -> float:
        lie = (1 - true) / (categories - 1)
        chances = torch.where(after == labels, true, lie).double()
        return float(chances.where(present, 1 / categories).log().sum())

    return logarithm(*one), logarithm(*other)
