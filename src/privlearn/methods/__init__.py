"""This table has a row for each method: certificates know a method's plans from it, and `train` and
the command line its options and runs.

Nothing here imports a method: the module of a plan is imported when a file names the plan's kind,
what settles and trains when it is called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
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
        takes: the names of options that it takes; `runs.compute.ComputeConfig` has its own rows.
        unsuited: why it takes no others.
        after_steps: whether it takes the rows of `runs.post_processing`.
        fields: options of its own: name, what stands for the value, help, and what reads it.
        settle: from the options, by name, and the public facts of the rows (`training.rules.Facts`)
            to a plan with its noise.
        train: from that plan, rows, options, the ledger (None: its own) and streams to a result.
        aliases: other names, which `train` takes for it.
        commands: the names of options that it takes on the command line alone.
        targets: what can be learned: `classes`, `values`, `multioutput`, `labels`, `maps`.
        check: refuses options that do not go together, before any data are read.
        pages: the module with its own pages of the command line; empty: it has none.
        command: the method under whose name the command line has it; empty: its own.
    """

    name: str
    plans: Mapping[str, str]
    takes: frozenset[str] = frozenset()
    unsuited: str = ""
    after_steps: bool = False
    fields: tuple[tuple[str, str, str, Callable[[str], Any]], ...] = ()
    settle: Callable[[Any, Any], AbstractPlan] | None = None
    train: Callable[..., Any] | None = None
    aliases: tuple[str, ...] = ()
    commands: frozenset[str] = frozenset()
    targets: frozenset[str] = frozenset({"classes"})
    check: Callable[[Any], None] | None = None
    pages: str = ""
    command: str = ""

    def __post_init__(self) -> None:
        for kind, module in self.plans.items():
            expect(kind, module)

    def suits(self, option: str) -> bool:
        """Whether an option is one of those that not every method takes, and this one does."""
        return (
            option in self.takes
            or option in self.commands
            or option in (name for name, *_ in self.fields)
            or option in options_of(self.name)
            or (self.after_steps and option in ROWS)
        )


def _call(place: str) -> Callable[..., Any]:
    """A function that is imported when it is called, of a place `package.module:function`."""
    module, _, name = place.partition(":")

    def call(*arguments: Any, **named: Any) -> Any:
        return getattr(import_module(f"privlearn.methods.{module}"), name)(*arguments, **named)

    return call


_DESCENT = (
    frozenset({"rows_per_person", "solve", "sampling", "mechanism", "batch_size", "epochs"})
    | {"schedule", "clip_norm", "pca", "pca_noise", "model", "features", "optimizer", "momentum"}
    | {"learning_rate", "learning_rate_schedule", "callbacks", "checkpoint"}
)
_DESCENT_COMMANDS = frozenset(
    {"features_cache", "lr_schedule", "resume", "checkpoint_every", "plot"}
)
_BOUNDS = frozenset({"row_norm", "coordinate_bound", "criterion"})

#: Of DP-SGD and DP-MAC.
_GRADIENTS = {"gradients": "privlearn.core.plan"}
#: The kinds of plans that choose among candidates, each trained by a method's plan, with their
#: modules.
CHOICES = {
    "blocks": "privlearn.methods.tuning.blocks",
    "random-stopping": "privlearn.methods.tuning.stopping",
}
for _kind, _module in CHOICES.items():
    expect(_kind, _module)

#: The methods, by name; the first is the usual one. Those of other packages are entered when they
#: are found.
METHODS = {
    method.name: method
    for method in (
        Method(
            "dpsgd",
            _GRADIENTS,
            _DESCENT
            | _BOUNDS
            | {"clip", "normalise", "label_smoothing", "class_weights", "class_frequencies"}
            | {"select", "select_share", "temperature"},
            after_steps=True,
            commands=_DESCENT_COMMANDS | {"public", "tune", "explain", "jobs", "start"},
            targets=frozenset({"classes", "values", "multioutput", "labels", "maps"}),
        ),
        Method(
            "dpmac",
            _GRADIENTS,
            _DESCENT | {"z_steps", "z_rate"},
            settle=_call("dpmac.layers:settle_layers"),
            train=_call("dpmac.layer_training:train_layers"),
            commands=_DESCENT_COMMANDS,
            targets=frozenset({"classes", "values", "multioutput"}),
            check=_call("dpmac.layers:require_combinable"),
        ),
        Method(
            "pate",
            {"pate": "privlearn.methods.pate.plan"},
            frozenset({"public", "epochs", "model", "learning_rate", "teacher", "jobs"})
            | {"teachers", "queries", "threshold", "answers"},
            "epochs, learning rate and model are the student's, teacher the teachers'",
            settle=_call("pate.answering:settle_answers"),
            train=_call("pate.answering:train_by_answers"),
            commands=frozenset({"resume", "maps", "codes"}),
            targets=frozenset({"classes", "values", "multioutput"}),
            check=_call("pate.votes:require_combinable"),
        ),
        Method(
            "features",
            dict.fromkeys(
                ("fisher", "least-squares", "rows", "selection"),
                "privlearn.methods.statistics.plan",
            )
            | {"ridge": "privlearn.methods.statistics.regression"},
            _BOUNDS | {"features", "keep", "mode"},
            "it makes a linear classifier from released statistics in one go",
            settle=_call("statistics.advice:settle_classifier"),
            train=_call("statistics.features:train_classifier"),
            aliases=("statistics",),
            commands=frozenset({"features_cache"}),
            check=_call("statistics.advice:require_combinable"),
        ),
        Method(
            "boosting",
            {"boosting": "privlearn.methods.boosting.plan"},
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
            settle=_call("boosting.plan:settled"),
            train=_call("boosting.rounds:train_boosted"),
            targets=frozenset({"classes", "values"}),
        ),
    )
}
#: The methods that this package brings.
BUILT_IN = tuple(METHODS)
