"""This table has a row for each method: certificates know a method's plans from it, and the command
line its options and runs.

Nothing here imports a method: the module of a plan is imported when a file names the plan's kind,
what settles and trains when it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, final

from privlearn._public import expect
from privlearn.core.plan import AbstractPlan
from privlearn.runs.compute import options_of
from privlearn.runs.post_processing import ROWS


@final
@dataclass(frozen=True)
class Method:
    """A way to learn from private rows: all that the rest of the package asks of it.

    Attributes:
        name: what it is called.
        plans: the kinds of its plans, each with the module, free of torch, that registers its
            class. What the card says of its facts the plans say, too (`AbstractPlan.fact_rows`).
        takes: the names of the options that it takes, of those that not every method takes. What
            says how a run computes (`runs.compute.ComputeConfig`) names its methods itself.
        unsuited: why it takes no others.
        after_steps: whether it takes the rows of `runs.post_processing`.
        fields: options of its own: name, what stands for the value in the help, help, and what
            reads it.
        settle: from the options, by name, and the public facts of the rows (`descent.rules.Facts`)
            to a plan with its noise.
        train: from that plan, the rows, the options, the ledger to charge (None: its own) and the
            random streams to a result.

    The command line has pages of its own for its methods that have neither `settle` nor `train`.
    """

    name: str
    plans: Mapping[str, str]
    takes: frozenset[str] = frozenset()
    unsuited: str = ""
    after_steps: bool = False
    fields: tuple[tuple[str, str, str, Callable[[str], Any]], ...] = ()
    settle: Callable[[Any, Any], AbstractPlan] | None = None
    train: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        for kind, module in self.plans.items():
            expect(kind, module)

    def suits(self, option: str) -> bool:
        """Whether an option is one of those that not every method takes, and this one does."""
        own = (name for name, *_ in self.fields)
        return (
            option in self.takes
            or option in own
            or option in options_of(self.name)
            or (self.after_steps and option in ROWS)
        )


def _settle_boosting(options: Any, facts: Any) -> AbstractPlan:
    from privlearn.boosting.plan import settled

    return settled(options, facts)


def _boost(plan: Any, data: Any, options: Any, *, ledger: Any, streams: Any) -> Any:
    from privlearn.boosting.rounds import boost

    result = boost(plan, data, ledger=ledger, streams=streams)
    bounds = getattr(data, "target_bounds", None)
    stated = {} if bounds is None else {"target_bounds": list(bounds)}
    return replace(result, facts=result.facts | stated, architecture=result.architecture | stated)


_DESCENT = frozenset(
    {
        "rows_per_person",
        "solve",
        "sampling",
        "batch_size",
        "epochs",
        "schedule",
        "clip_norm",
        "pca",
        "pca_noise",
        "model",
        "features",
        "features_cache",
        "optimizer",
        "learning_rate",
        "momentum",
        "lr_schedule",
        "resume",
        "checkpoint_every",
        "plot",
    }
)
_BOUNDS = frozenset({"row_norm", "coordinate_bound", "criterion"})

#: Of DP-SGD and DP-MAC.
_GRADIENTS = {"gradients": "privlearn.core.plan"}
#: The kinds of plans that choose among candidates, each trained by a method's plan, with their
#: modules.
CHOICES = {"blocks": "privlearn.tuning.blocks", "random-stopping": "privlearn.tuning.stopping"}
for _kind, _module in CHOICES.items():
    expect(_kind, _module)

#: The methods, by name; the first is the usual one.
METHODS = {
    method.name: method
    for method in (
        Method(
            "dpsgd",
            _GRADIENTS,
            _DESCENT
            | _BOUNDS
            | {"public", "clip", "tune", "normalise", "explain", "label_smoothing"}
            | {"class_weights", "class_frequencies"}
            | {"select", "select_share", "temperature", "jobs", "start"},
            after_steps=True,
        ),
        Method("dpmac", _GRADIENTS, _DESCENT | {"z_steps", "z_rate"}),
        Method(
            "pate",
            {"pate": "privlearn.teachers.plan"},
            frozenset({"public", "epochs", "model", "learning_rate", "resume", "teacher", "jobs"})
            | {"teachers", "queries", "threshold", "answers", "maps"},
            "epochs, learning rate and model are the student's, teacher the teachers'",
        ),
        Method(
            "features",
            dict.fromkeys(
                ("fisher", "least-squares", "rows", "selection"), "privlearn.statistics.plan"
            )
            | {"ridge": "privlearn.statistics.regression"},
            _BOUNDS | {"features", "features_cache", "keep", "mode"},
            "it makes a linear classifier from released statistics in one go",
        ),
        Method(
            "boosting",
            {"boosting": "privlearn.boosting.plan"},
            unsuited="it adds up tables over binned columns",
            fields=(
                (
                    "trees",
                    "N",
                    "for boosting: random trees beside the histograms of the columns (default: 0)",
                    int,
                ),
                ("depth", "D", "for boosting: splits of a tree (default: 3)", int),
                (
                    "passes",
                    "N",
                    "for boosting: how often all histograms are gone through (default: 4)",
                    int,
                ),
                (
                    "bins",
                    "B",
                    "for boosting: of a column of numbers, of equal width (default: 16)",
                    int,
                ),
            ),
            settle=_settle_boosting,
            train=_boost,
        ),
    )
}
