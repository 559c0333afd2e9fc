"""A method returns a result: a model, the plan that it was trained by, and the facts that only the
run could tell.

What the curator may look at: computed on private data without a release.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn

from privlearn._display import Described, Summary
from privlearn._figures import private_figures
from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.clipping.losses import Loss
from privlearn.core.devices import on_processor
from privlearn.core.plan import AbstractPlan, Plan
from privlearn.core.processes import World
from privlearn.core.row_transform import RowTransform
from privlearn.core.schedules import Schedule, spec
from privlearn.data.dataset import Dataset
from privlearn.errors import BadInput
from privlearn.runs.compute import ComputeConfig

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from privlearn.runs.checkpoint import Checkpoint

#: Stated as the schedule of learning rates where the caller's own script may change the
#: optimizer's.
SCRIPTS_RATES = "the script's own"


def training_facts(
    examples: int,
    steps: int,
    optimizer: torch.optim.Optimizer,
    rates: Schedule,
    features: Sequence[dict[str, Any]],
) -> dict[str, Any]:
    """What every training tells beside its plan: public numbers, for the certificate.

    Args:
        examples: the number of examples that sums are divided by, declared or not.
        steps: in all epochs; a run that reacts tells its own afterwards.
        optimizer: what descends.
        rates: the schedule of its learning rates.
        features: what describes the public features, if there are any.
    """
    defaults = {
        k: v
        for k, v in optimizer.defaults.items()
        if isinstance(v, int | float | str | bool | tuple)
    }
    return {
        "examples": examples,
        "steps": steps,
        "optimizer": {"name": type(optimizer).__name__, **defaults},
        "learning_rate_schedule": spec(rates),
        **public_facts(features),
    }


def public_facts(descriptions: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The fact that names public features, one or several after the other; empty without any."""
    if not descriptions:
        return {}
    return {"public_features": descriptions[0] if len(descriptions) == 1 else list(descriptions)}


def accuracy_facts(config: ComputeConfig, loss: Loss | None) -> dict[str, Any]:
    """What was done for accuracy alone; what was not done is left out.

    Args:
        config: how the run computes: copies of each example, and post-processing.
        loss: PyTorch's cross-entropy may smooth labels, and weigh classes.
    """
    augmentation, loss = config.augmentation, getattr(loss, "function", loss)
    smoothing = loss.label_smoothing if isinstance(loss, nn.CrossEntropyLoss) else 0.0
    weights = loss.weight if isinstance(loss, nn.CrossEntropyLoss) else None
    return {
        "augmentation_copies": augmentation.copies if augmentation else 1,
        **({"augmentation": augmentation.summary} if augmentation else {}),
        **config.post_processing,
        **({"label_smoothing": smoothing} if smoothing else {}),
        **(
            {}
            if weights is None
            else {"class_weights": [float(f"{weight:.9g}") for weight in weights.tolist()]}
        ),
    }


def choice_facts(transforms: Sequence[RowTransform], data: Dataset) -> dict[str, Any]:
    """The features that selections before training chose: released, and so free to tell. Empty
    where there were none.

    Args:
        transforms: what was made of each transform of the plan's front, in their order.
        data: whose features may have names, which stand for them until something else is made of
            them.
    """
    names, choices = data.feature_names, []
    for transform in transforms:
        choice = transform.choice(names)
        choices += [] if choice is None else [choice]
        names = transform.names_after(names)
    return {"chosen": choices} if choices else {}


@final
class PrivateDiagnostics(Described, Mapping[str, Any]):
    """Figures computed on private data without a release: for the curator's eyes. `publish` refuses
    them.

    Each number is a `PrivateFigure`, which `publish` refuses, too.
    """

    def __init__(self, figures: Mapping[str, Any] | Callable[[], Mapping[str, Any]]) -> None:
        self._source = figures

    @cached_property
    def _figures(self) -> dict[str, Any]:
        """On a device they are read when they are asked for: to read is to wait."""
        figures = self._source() if callable(self._source) else self._source
        return dict(private_figures(figures))

    def __getitem__(self, key: str) -> Any:
        return self._figures[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._figures)

    def __len__(self) -> int:
        return len(self._figures)

    def _summary(self) -> Summary:
        """Names alone: what is printed ends up in logs."""
        names = ", ".join(map(repr, self._figures)) or "no figures"
        what = "computed on private data without noise, for the curator's eyes"
        return Summary(f"PrivateDiagnostics with {names}", [("not covered by the guarantee", what)])


@final
@dataclass(frozen=True, repr=False)
class Result(Described):
    """A trained model with everything needed to publish it.

    Attributes:
        model: takes raw inputs; its weights are covered by the guarantee.
        ledger: what was spent, this run included.
        plan: what was spent, and how.
        method: the name of the method.
        facts: public values that only the run could tell, for the certificate and the card: plain
            JSON values by name.
        architecture: how to rebuild the model (`publish` fills in what it can).
        seeded: whether anyone may know the random streams' seed.
        private_diagnostics: not covered by the guarantee.
        checkpoint: the file that the run was kept in, which `publish` deletes.
        model_spec: what `models.build` makes the network of, if it can; else None.
        classes: how many it has then.
        world: the processes that trained it; the first one publishes.
        released: writes the rows that were released, too, for `rows.csv`; None: none were.
    """

    model: nn.Module
    ledger: Ledger
    plan: AbstractPlan
    method: str
    facts: dict[str, Any]
    architecture: dict[str, Any]
    seeded: bool
    private_diagnostics: PrivateDiagnostics
    checkpoint: Checkpoint | None = None
    model_spec: str | None = None
    classes: int | None = None
    world: World = World()  # noqa: RUF009 - a frozen value
    released: Callable[[], bytes] | None = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.__post_init__()  # a copy's parameters count their changes anew

    def __post_init__(self) -> None:
        object.__setattr__(self, "_versions", self._versions_now())

    def _versions_now(self) -> list[int]:
        return [parameter._version for parameter in self.model.parameters()]

    def require_unchanged(self) -> None:
        """Raise `BadInput` if the weights were changed after the run."""
        if self._versions != self._versions_now():  # type: ignore[attr-defined]
            raise BadInput(
                "the model's weights were changed after the run: nothing can be claimed for them. "
                "Publish before anything else is done to the model, or go on with a copy of it "
                "(copy.deepcopy). To publish mean weights give average=0.5 when the run is made"
            )

    def _summary(self) -> Summary:
        """Private diagnostics are left out."""
        *_, network = (
            self.model.children() if isinstance(self.model, nn.Sequential) else [self.model]
        )
        plan, weights = (
            self.plan._summary(),
            sum(parameter.numel() for parameter in self.model.parameters()),
        )
        return Summary(
            f"Result of {self.method}",
            [
                ("model", f"{type(network).__name__} with {weights:,} parameters"),
                ("plan", "; ".join(" ".join(row) for row in plan.rows[:2])),
                *plan.rows[-2:],
                (
                    "next",
                    (
                        'pv.publish(result, "folder"), then pv.verify("folder"); the ledger is '
                        "result.ledger"
                    ),
                ),
            ],
        )

    def summary(self) -> str:
        """All that the card would say of how it was trained, as text; quotes no private figure, and
        prices nothing.
        """
        title, known = self._summary()
        rows = [known[0], *self.plan.rows(), *self.plan._summary().rows[-2:]]
        return "\n".join([title, *(f"  {label}: {text}" for label, text in rows)])

    def plot(
        self, axes: Axes | None = None, *, of: str = "epsilon", delta: float | None = None
    ) -> Axes:
        """What the plan's steps spend, or `of="noise"` the noise by epoch, as `Plan.plot`.

        A certificate claims all of it, also for a run that was left early.

        Raises:
            BadInput: the method takes no steps, or nothing says at which delta.
        """
        if not isinstance(self.plan, Plan):
            raise BadInput(
                f"a plan of {self.method} has no steps to draw: expected a result of dpsgd, train "
                "or dpmac"
            )
        return self.plan.plot(axes, of=of, delta=delta)

    @property
    def adjacency(self) -> Adjacency:
        """The kind of neighbour."""
        return self.plan.neighbours

    @property
    def budget(self) -> Budget | None:
        """The target that was set, if any."""
        return self.plan.budget

    @property
    def delta(self) -> float | None:
        """Where epsilon is stated; None if the plan says nothing of it."""
        return self.plan.budget.delta if self.plan.budget else None

    def stated_delta(self, delta: float | None = None) -> float:
        """The delta to state epsilon at: `delta`, else the plan's.

        Raises:
            BadInput: neither is there.
        """
        effective_delta = delta if delta is not None else self.delta
        if effective_delta is None:
            raise BadInput(
                "the plan was not calibrated to a delta: give one, for example delta=1e-5"
            )
        return effective_delta


@final
class Diagnostics:
    """Collects, epoch by epoch, the mean loss, the share of clipped gradients, and how many
    examples were left out because they could not be computed or were not finite: private, for the
    curator. Of an epoch without usable examples means are NaN.

    Only sums are kept: small tensors kept from every batch would split up the memory that the next
    ones need.
    """

    def __init__(self) -> None:
        self.figures: dict[str, list[float]] = {"loss": [], "clipped_share": [], "left_out": []}
        self.clip_norm = math.inf
        self._drawn, self._rows = 0, 0
        #: On a device both are tensors, which are read when they are asked for: to read is to wait.
        self._loss: float | Tensor = 0.0
        self._clipped: float | Tensor = 0
        self._before: tuple[Any, ...] = (0, 0, 0.0, 0)

    def begin(self, clip_norm: float) -> None:
        """A batch comes, clipped to this norm."""
        self._before = (self._drawn, self._rows, self._loss, self._clipped)
        self.clip_norm = clip_norm

    def add_drawn(self, number: int) -> None:
        """So many examples were drawn, whether they could be computed or not."""
        self._drawn += number

    def see(self, losses: Tensor, norms: Tensor) -> None:
        """Some of its examples' losses and gradient norms."""
        self._rows += len(losses)
        loss, clipped = losses.sum(dtype=torch.float64), (norms > self.clip_norm).sum()
        here = on_processor(losses)
        self._loss = self._loss + (float(loss) if here else loss)
        self._clipped = self._clipped + (int(clipped) if here else clipped)

    def batch(self) -> Callable[[], dict[str, float]]:
        """Gives the same figures of the last batch, and how many examples it had; those of none are
        nan.
        """
        now = (self._drawn, self._rows, self._loss, self._clipped)
        drawn, rows, loss, clipped = (
            after - before for after, before in zip(now, self._before, strict=True)
        )
        return partial(_figures_of_batch, drawn, rows, loss, clipped)

    def end_epoch(self) -> None:
        """Add the epoch to `figures`."""
        loss, clipped = _read(self._loss, self._clipped)
        self.figures["loss"].append(mean(loss, self._rows))
        self.figures["clipped_share"].append(mean(clipped, self._rows))
        self.figures["left_out"].append(self._drawn - self._rows)
        self._drawn, self._rows, self._loss, self._clipped = 0, 0, 0.0, 0

    def state_dict(self) -> dict[str, Any]:
        """Plain values, for a checkpoint."""
        return {
            "figures": without_nan(self.figures),
            "epoch": [self._drawn, self._rows, *_read(self._loss, self._clipped)],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state`."""
        self.figures = with_nan(state["figures"])
        self._drawn, self._rows, self._loss, self._clipped = state["epoch"]


def _figures_of_batch(
    drawn: int, rows: int, loss: float | Tensor, clipped: float | Tensor
) -> dict[str, float]:
    loss, clipped = _read(loss, clipped)
    means = {"loss": mean(loss, rows), "clipped_share": mean(clipped, rows)}
    return {**means, "examples": drawn, "left_out": drawn - rows}


def _read(loss: float | Tensor, clipped: float | Tensor) -> tuple[float, float]:
    """Both as numbers, in one wait."""
    if not isinstance(loss, Tensor) or not isinstance(clipped, Tensor):
        return float(loss), int(clipped)
    total, number = torch.stack([loss, clipped.double()]).tolist()
    return total, int(number)


def mean(total: float, number: float) -> float:
    """The mean of `number` values; NaN of none."""
    return total / number if number else math.nan


def without_nan(figures: Any) -> Any:
    """Figures with None in place of NaN, which JSON does not have."""
    if isinstance(figures, Mapping):
        return {name: without_nan(value) for name, value in figures.items()}
    if isinstance(figures, list):
        return [without_nan(value) for value in figures]
    return None if isinstance(figures, float) and math.isnan(figures) else figures


def with_nan(figures: Any) -> Any:
    """Undo `without_nan`."""
    if isinstance(figures, Mapping):
        return {name: with_nan(value) for name, value in figures.items()}
    if isinstance(figures, list):
        return [with_nan(value) for value in figures]
    return math.nan if figures is None else figures


@final
class Scalars:
    """A list of numbers as a part of a run."""

    def __init__(self, values: list[float]) -> None:
        self.values = values

    def state_dict(self) -> dict[str, Any]:
        """The numbers."""
        return {"values": self.values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what they were, in the same list."""
        self.values[:] = state["values"]
