"""Which way to a classifier: statistics or noisy rows, all features or few; by public numbers
alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar, final

from privlearn._checks import checked, count, one_of
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.errors import BadInput
from privlearn.methods.statistics.plan import (
    ClassifierPlan,
    FisherPlan,
    LeastSquaresPlan,
    RowsPlan,
    StatisticsPlan,
)
from privlearn.training import rules
from privlearn.training.choices import Facts

_Plan = TypeVar("_Plan", bound=StatisticsPlan)

#: Noise in a class mean, over the size of a row's numbers, from which fewer features were better
#: than all, and the part of them that did well beyond it: on four data sets, within what separates
#: them (docs/results/dfs-cifar10.md, dfs-mnist.md).
_LOUD, _PART = 0.4, 0.25
#: rho for counts, class sums and squares of few features: a noisy count moves the whole mean of its
#: class.
_SPLIT = (0.5, 0.35, 0.15)
_LEAST = 5


@final
@dataclass(frozen=True)
class Advice:
    """A plan, and why this one.

    Attributes:
        plan: settled as the one that it was made from.
        why: in words.
    """

    plan: FisherPlan | RowsPlan
    why: str


@checked
def advised(plan: FisherPlan, examples: int) -> Advice:
    """Choose what is released for a classifier, and how many features are kept; everything else
    stays as in `plan`.

    With the noise multiplier z of one Gaussian release, k classes, p features and n rows, the noise
    in a class mean is t = z k sqrt(p) / n of the size of a row's numbers where statistics are
    released, and sqrt(n / k) times that in noisy rows, which can be the better way only with fewer
    rows than classes. Up to t = 0.4 all features are kept, and a quarter of them beyond. No data
    are looked at, and nothing is spent. It is a rule of thumb: fewer pay from t = 0.2 on where
    classes are hard to tell apart (CIFAR-10's features), and hardly before 1 where they are easy
    (MNIST), which no public number says. It takes `row_norm` for the size of rows.

    Args:
        plan: with a target or a noise multiplier; `keep`, `way` and `split` are chosen anew.
        examples: the declared number of rows; public.

    Returns:
        A `FisherPlan`, or a `RowsPlan` with randomised labels, for the same target; and why.

    Raises:
        BadInput: no number of rows, or a plan that was not settled.
    """
    count("examples", examples)
    whole = _settle(replace(plan, keep=plan.features, way="auto"))
    z, k, p = whole.noise, whole.classes, whole.features
    by_statistics, by_rows = z * k * math.sqrt(p) / examples, z * math.sqrt(k * p / examples)
    keep = p if by_statistics <= _LOUD else min(p, max(_LEAST, round(_PART * p)))
    if by_rows < by_statistics:
        rows = _settle(_rows_plan(plan, keep))
        return Advice(
            rows,
            f"noisy rows of {rows.keep:,} of {p:,} features: there are fewer rows than classes",
        )
    noise = (
        f"the noise in a class mean is {by_statistics:.2g} of the size of a row's numbers (z k √p "
        f"/ n; in noisy rows it would be {by_rows:.2g})"
    )
    if keep >= p:
        return Advice(
            whole, f"statistics of all {p:,} features: {noise}, and fewer pay from {_LOUD:g} on"
        )
    if plan.coordinate_bound is None or plan.criterion != "distance":
        why = (
            f"{noise}, but fewer pay only by distance, and with a declared bound on single numbers"
        )
        return Advice(whole, f"statistics of all {p:,} features: {why}")
    few = _settle(replace(plan, keep=keep, way="gumbel", split=_SPLIT))
    return Advice(
        few, f"statistics of {keep:,} of {p:,} features: {noise}, and fewer pay from {_LOUD:g} on"
    )


def _rows_plan(plan: FisherPlan, keep: int) -> RowsPlan:
    """Noisy rows with randomised labels, and everything else as in `plan`."""
    adjacency = None if plan.adjacency is Adjacency.ADD_REMOVE else plan.adjacency
    same = {field.name: getattr(plan, field.name) for field in fields(plan)}
    return RowsPlan(
        **same | {"keep": keep, "way": "auto", "adjacency": adjacency, "labels": "randomised"}
    )


def _settle(plan: _Plan) -> _Plan:
    """The plan for its target, or at its noise multiplier.

    Raises:
        BadInput: it has neither.
    """
    if (budget := plan.budget) is not None:
        return plan.calibrate(epsilon=budget.epsilon, delta=budget.delta, rho=budget.rho)
    _ = plan.noise
    return plan


#: What a classifier may be made from.
_MODES = ("statistics", "least-squares", "rows", "auto")


def require_combinable(options: Any) -> None:
    """Refuse options that do not go together.

    Raises:
        BadInput: naming the first of them.
    """
    if options.mode is not None:
        one_of("mode", options.mode, _MODES)
    if options.mode == "least-squares" and options.keep is not None:
        raise BadInput(
            "mode='least-squares' takes all features: leave out keep=, or give rows of fewer"
        )
    if options.mode == "auto" and options.keep is not None:
        raise BadInput(
            "mode='auto' says how many features to keep: leave out keep=, or mode='auto'"
        )
    if options.mode == "auto" and options.examples is None:
        raise BadInput(
            "mode='auto' goes by public numbers alone, the number of rows among them: declare it, "
            "examples=N"
        )


def settle_classifier(options: Any, facts: Facts) -> ClassifierPlan:
    """The plan of a classifier from released statistics, with its noise.

    Args:
        options: by name.
        facts: what is public of the rows.

    Raises:
        BadInput: as `advised_classifier`.
    """
    return advised_classifier(options, facts)[0]


def advised_classifier(options: Any, facts: Facts) -> tuple[ClassifierPlan, str | None]:
    """The plan of a classifier from released statistics, with its noise; in the mode `auto` with
    the reason for it.

    Args:
        options: by name.
        facts: what is public of the rows.

    Raises:
        BadInput: numbers out of range, no classes, no bound on the rows, or not exactly one of a
            target and a noise multiplier.
    """
    if (options.epsilon is None and options.rho is None) is (options.noise_multiplier is None):
        raise BadInput(
            "give what may be spent, epsilon=E or rho=R, or the noise of all together, "
            "noise_multiplier=S: one of them"
        )
    if facts.classes is None:
        raise BadInput(
            "features are selected by classes, and these data have other targets: declare them "
            "with classes="
        )
    plan = _draft(options, facts, facts.classes)
    if options.noise_multiplier is None:
        delta = None if options.epsilon is None else options.delta
        plan = plan.calibrate(epsilon=options.epsilon, delta=delta, rho=options.rho)
    if options.mode != "auto" or not isinstance(plan, FisherPlan):
        return plan, None
    advice = advised(plan, options.examples)
    return advice.plan, advice.why


def _draft(options: Any, facts: Facts, classes: int) -> ClassifierPlan:
    """The plan before its noise is solved for."""
    norm, bound = rules.bounds(options, facts)
    shared: dict[str, Any] = {
        "classes": classes,
        "features": facts.numbers,
        "row_norm": norm,
        "noise_multiplier": options.noise_multiplier,
        "group_size": options.group_size,
        "front": facts.front,
        "adjacency": None if options.adjacency is None else Adjacency.parse(options.adjacency),
    }
    if options.mode == "least-squares":
        return LeastSquaresPlan(**shared)
    shared |= {
        "keep": facts.numbers if options.keep is None else options.keep,
        "coordinate_bound": bound,
        "criterion": options.criterion or "distance",
    }
    if options.mode == "rows":
        return RowsPlan(**shared, labels="randomised")
    return FisherPlan(**shared)
