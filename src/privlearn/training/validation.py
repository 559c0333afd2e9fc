"""A validation gives the accuracies that noise may follow, on public rows, or as a charged release.

An accuracy on private rows is a release like any other. Either the rows are declared public, and it
is nothing but arithmetic on what was released; or the number of right answers gets noise, and the
run is charged for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, final

import numpy as np
import torch
from torch import Tensor, nn

from privlearn.core.accounting.account import Account
from privlearn.core.accounting.filters import PrivacyFilter
from privlearn.core.clipping.evaluation import HALF, RightAnswers, evaluating
from privlearn.core.clipping.indices import looking_at
from privlearn.core.mechanisms.release import release
from privlearn.core.plan import Plan
from privlearn.core.sampling import FullBatch
from privlearn.core.schedules import LEAST_NOISE, ReactingSchedule
from privlearn.core.streams import NoiseStream
from privlearn.core.tensors import as_tensor
from privlearn.data.dataset import Dataset, are_training_rows, overlap
from privlearn.errors import BadInput, first_line
from privlearn.runs.front import through

if TYPE_CHECKING:
    from privlearn.runs.session import TrainingSession
    from privlearn.training.task import Task

_PAY = "noise= in the schedule (validation:...,noise=200)"
_GIVE = "Dataset(x, y, public=True) as validation="


def public_rows(
    plan: Plan, validation: Any, data: Dataset, x: Tensor, y: Tensor
) -> tuple[Tensor, Tensor] | None:
    """The rows to validate on, if the plan's schedule looks at public ones, of the same type as the
    training rows.

    The schedule is one that reacts.

    This looks at the training rows `x` and `y`, once, for the data's curator: before anything is
    spent, outside the guarantee. It sees no training rows that stand among others, or that were
    changed: that rows are public is the caller's word.

    Raises:
        BadInput: rows that are missing, not needed, not declared public, of another form, or the
            training rows.
    """
    schedule = plan.schedule
    assert isinstance(schedule, ReactingSchedule)
    if y.dim() != 1 or y.is_floating_point():
        raise BadInput(
            "a validation schedule follows the accuracy of a classifier, and the targets are "
            f"{y.dtype} of shape {tuple(y.shape[1:])} each: expected one whole number for each "
            "example. Use another schedule"
        )
    if schedule.noise is not None:
        if validation is not None:
            raise BadInput(
                "the validation schedule has noise=, for validations on the training rows, and "
                "validation rows are given, too: give one of the two"
            )
        return None
    if validation is None or not isinstance(validation, Dataset) or not validation.public:
        problem = (
            "none are given"
            if validation is None
            else "those that are given are not declared public"
        )
        raise BadInput(
            f"the validation schedule needs rows to validate on, and {problem}. An accuracy on "
            "private rows is a release, whose noise is not in the plan. So give rows that are "
            f"public, {_GIVE}; or charge validations on the training rows, with {_PAY}"
        )
    public = _tensors(validation, data, x)
    if _are_training_rows(validation, data, public[0], x):
        raise BadInput(
            "the validation rows that are declared public are among the training rows, which are "
            "private: an accuracy on them is a release, which is not in the plan. Give rows of "
            f"others, {_GIVE}, and no training row among them, where a few would not be noticed; "
            f"or charge validations on the training rows, with {_PAY}"
        )
    return public


def _tensors(validation: Dataset, data: Dataset, x: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs of the type of the training rows, and labels."""
    rows, labels = (
        as_tensor(validation.x, whole_is_float=data.low is not None),
        as_tensor(validation.y, "the targets of the public validation rows"),
    )
    if rows.shape[1:] != x.shape[1:] or rows.is_floating_point() is not x.is_floating_point():
        raise BadInput(
            f"the validation rows have shape {tuple(rows.shape[1:])} and type {rows.dtype}, and "
            f"the training rows {tuple(x.shape[1:])} and {x.dtype}: expected rows of the same form"
        )
    if not len(rows) or labels.shape != rows.shape[:1] or labels.is_floating_point():
        raise BadInput(
            f"there are {len(rows)} validation rows, and targets of shape {tuple(labels.shape)} "
            f"and type {labels.dtype}: expected at least one row, and one whole number for each"
        )
    return rows.to(x.dtype), labels


def _are_training_rows(validation: Dataset, data: Dataset, rows: Tensor, x: Tensor) -> bool:
    """Whether they lie in the same memory, or all of them are training rows, or more than twins of
    these explain.
    """
    for one, other in ((validation.x, data.x), (rows, x)):
        if np.may_share_memory(_array(one), _array(other)):
            return True
    return overlap(rows, x)[0] == 1 or are_training_rows(rows, x)


def _array(values: Any) -> Any:
    if not isinstance(values, Tensor):
        return np.asarray(values)
    values = values.detach().cpu()
    return (values.view(torch.int16) if values.dtype is torch.bfloat16 else values).numpy()


def require_scores(network: nn.Module, row: Tensor) -> None:
    """Raise `BadInput` unless the network turns a made-up `row`, shape (1, ...), into one score for
    each class.
    """
    try:
        with torch.no_grad(), evaluating(network), looking_at(row.device):
            shape = tuple(network(row).shape)
    except Exception as error:
        raise BadInput(
            "the model can't be validated: in evaluation mode it fails on a made-up row: "
            f"{first_line(error)}"
        ) from error
    if len(shape) != 2 or shape[1] < 2:
        raise BadInput(
            "a validation schedule follows the accuracy of a classifier, and the model turns one "
            f"row into shape {shape}: expected (1, classes), a score for each of at least two "
            "classes. Use another schedule"
        )


def reacting_noise(task: Task, session: TrainingSession) -> ReactingNoise:
    """The noise of a run whose schedule follows validations."""
    plan, public = task.plan, task.validation
    schedule = plan.schedule
    assert isinstance(schedule, ReactingSchedule)
    at_once = task.compute.microbatch
    answers = RightAnswers(
        task.network, apart=public is None, at_once=at_once, computed=task.gradients.fixed.restore
    )

    def on_public_rows(account: Account, x: Tensor, y: Tensor) -> float:
        assert public is not None
        return float(
            (answers(through(task.front.modules, public[0]), public[1]) == 1).double().mean()
        )

    def charge_score(account: Account, x: Tensor, y: Tensor) -> float:
        assert schedule.noise is not None
        (sample,) = FullBatch().draw(task.present)
        counted = answers.count(sample, x, y, plan.neighbours, task.persons)
        ((noisy,),) = release(
            counted, noise_multiplier=schedule.noise, ledger=account, stream=session.noise
        )
        return min(1.0, max(0.0, HALF + float(noisy) / task.examples))

    def validate(account: Account, x: Tensor, y: Tensor) -> float:
        score = charge_score(account, x, y) if public is None else on_public_rows(account, x, y)
        return session.world.once(lambda: score, "the accuracy")

    facts = {
        "rows": task.examples if public is None else len(public[0]),
        "public": public is not None,
    }
    return ReactingNoise(plan, schedule, validate, task.accuracies, facts, lambda: session.noise)


#: (what the run's releases are charged to, inputs, targets) to the accuracy of the model as it is
#: now.
Validate = Callable[[Account, Tensor, Tensor], float]


@final
class ReactingNoise:
    """Noise that follows the accuracies seen so far, under the plan's filter.

    Guarantee: the ledger is charged the filter's limit, as a whole, before the first epoch. Each
    release is charged to the filter; an epoch begins only if all of it, and the validation after it
    if that is charged, still fits. So no epoch is ever broken off, and how many there are follows
    from released or public values alone.

    Args:
        plan: with a schedule that reacts, and its filter.
        schedule: the plan's.
        validate: computes an accuracy, and charges it where it is a release.
        accuracies: those seen so far, one for each epoch, in a run that is continued; new ones are
            appended.
        facts: public facts of the validation, for the certificate.
        stream: gives what the noise of a step is drawn from.
    """

    def __init__(
        self,
        plan: Plan,
        schedule: ReactingSchedule,
        validate: Validate,
        accuracies: list[float],
        facts: dict[str, Any],
        stream: Callable[[], NoiseStream],
    ) -> None:
        self._plan, self._schedule, self._validate, self._stream = plan, schedule, validate, stream
        self._accuracies, self._facts = accuracies, facts
        self._filter: PrivacyFilter | None = None
        self._noise_multipliers: list[float] = []

    @property
    def stream(self) -> NoiseStream:
        """What the noise of the next step is drawn from."""
        return self._stream()

    @property
    def epochs(self) -> int:
        """Epochs that were begun."""
        return len(self._noise_multipliers)

    def begin(self, ledger: Account) -> Account:
        """Charge the limit, and return the filter, which the epochs' releases are to be charged
        to.
        """
        assert self._plan.filter is not None
        self._filter = PrivacyFilter(ledger, self._plan.filter, self._plan.neighbours)
        return self._filter

    def __iter__(self) -> Iterator[tuple[int, float]]:
        assert self._filter is not None
        for epoch in range(self._plan.epochs):
            assert len(self._accuracies) >= epoch, "an epoch went by without its validation"
            noise = self._schedule.after(self._accuracies[:epoch])
            if not LEAST_NOISE <= noise < math.inf or not self._filter.has_room(
                self._plan.epoch_event(noise)
            ):
                return
            self._noise_multipliers.append(noise)
            yield epoch, noise

    def end_epoch(self, x: Tensor, y: Tensor) -> None:
        """Validate the model."""
        assert self._filter is not None
        self._accuracies.append(self._validate(self._filter, x, y))

    def facts(self, steps: int) -> dict[str, Any]:
        """What only the run itself could tell: it follows from released and public values."""
        return {
            "epochs": self.epochs,
            "steps": self.epochs * steps,
            "noise_multipliers": list(self._noise_multipliers),
            "validation": {
                **self._facts,
                "noise": self._schedule.noise,
                "accuracies": list(self._accuracies),
            },
        }
