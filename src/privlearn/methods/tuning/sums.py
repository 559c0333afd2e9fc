"""What candidates are judged by: a loss in [0, 1] of each example, added up, with its
sensitivity.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping.bounded import Bounded, Contributions, in_steps
from privlearn.core.clipping.evaluation import CandidateScores, RightAnswers
from privlearn.core.clipping.parameters.frozen import FrozenState
from privlearn.core.sampling import Sample
from privlearn.data.dataset import Dataset, persons_in
from privlearn.errors import BadInput
from privlearn.methods.tuning.stopping import OF_CLASSES, OF_VALUES

#: What a row's log loss is clipped to, and its error, as a share of the distance of the targets'
#: bounds.
MOST_LOSS, MOST_ERROR = 4.0, 0.25


def total_losses(
    models: Sequence[nn.Module | None],
    data: Dataset,
    adjacency: Adjacency,
    metric: str = "accuracy",
) -> CandidateScores:
    """The losses of each model over the examples of `data`; one that is None has the largest loss
    on all.

    An example, added, removed or emptied, adds between 0 and 1 to every sum: all of them move in
    one direction, by at most 1. One that is exchanged for another adds between 0 and 1 before and
    after.
    """
    weights = _weights(data)
    sums = [
        float(
            (weights if model is None else in_steps(weights * _losses(model, data, metric))).sum()
        )
        for model in models
    ]
    return CandidateScores(
        torch.tensor(sums, dtype=torch.float64, device="cpu"),
        1.0,
        adjacency is not Adjacency.REPLACE_ONE,
        adjacency,
    )


def total_gain(
    model: nn.Module, data: Dataset, sample: Sample, adjacency: Adjacency, metric: str = "accuracy"
) -> Bounded:
    """One less its loss of each example of `data`, as a value to be released; `sample` is all of
    them.

    Each adds between 0 and 1, whatever it holds: the sensitivity is 1.
    """
    gains = in_steps(_weights(data) * (1 - _losses(model, data, metric)))
    return Bounded(
        (gains.sum().view(1),),
        1.0,
        adjacency,
        sample,
        Contributions.of(gains.abs(), 1.0, "total_gain"),
    )


def require_targets(data: Dataset, metric: str) -> None:
    """Raise `BadInput` unless the metric is one of targets like these, classes or numbers with
    declared bounds.
    """
    y, numbers = data.tensors()[1], data.target_bounds is not None
    if metric not in (OF_VALUES if numbers else OF_CLASSES):
        raise BadInput(
            f"candidates are to be chosen by {metric}, and the targets are "
            f"{'numbers' if numbers else 'classes'}: expected "
            f"metric={' or '.join(OF_VALUES if numbers else OF_CLASSES)}"
        )
    if y.is_complex() or y.ndim != 1 or (y.is_floating_point() and not numbers):
        raise BadInput(
            f"the targets are {y.dtype} values of shape {tuple(y.shape)}: to judge predictions, "
            "expected one whole number for each row, its class, or a number with "
            "target_bounds=(low, high)"
        )


@final
class _RowLosses(RightAnswers):
    """As `RightAnswers`, but (1, the loss in [0, 1]) of each row."""

    answer = torch.zeros(2, dtype=torch.float64, device="cpu")
    metric: str
    bounds: tuple[float, float] | None

    def _answered(self, scored: Tensor, labels: Tensor) -> Tensor:
        loss = (
            self._of_values(scored, labels)
            if self.metric in OF_VALUES
            else self._of_classes(scored, labels)
        )
        return torch.stack([torch.ones_like(loss), loss.nan_to_num(1.0).clamp(0, 1)], 1)

    def _of_classes(self, scored: Tensor, labels: Tensor) -> Tensor:
        if self.metric == "accuracy":
            return (scored.argmax(1) != labels).double()
        declared = (labels >= 0) & (labels < scored.shape[1])
        classes = labels.long().where(declared, 0)
        losses = -scored.double().log_softmax(1).gather(1, classes[:, None])[:, 0] / MOST_LOSS
        clipped: Tensor = losses.where(declared, 1.0)
        return clipped

    def _of_values(self, scored: Tensor, targets: Tensor) -> Tensor:
        assert self.bounds is not None
        low, high = self.bounds
        predicted, truth = scored[:, 0].double().clamp(low, high), targets.double().clamp(low, high)
        errors = (predicted - truth).abs() / (MOST_ERROR * (high - low))
        return errors**2 if self.metric == "rmse" else errors


def _losses(model: nn.Module, data: Dataset, metric: str) -> Tensor:
    """The loss of each row, which follows from that row alone; 1 where the model fails. float64,
    shape (rows,).
    """
    twin = copy.deepcopy(model).cpu().requires_grad_(False)
    # One by one: in a batch the rounding of a row's outputs could follow from how many others there
    # are.
    answers = _RowLosses(twin, at_once=1, computed=FrozenState(twin).restore)
    answers.metric, answers.bounds = metric, data.target_bounds
    there, losses = answers(*data.tensors()).T
    judged: Tensor = losses.where(there > 0, 1.0)
    return judged


def _weights(data: Dataset) -> Tensor:
    """What each row counts for: 1, or its share of a person's rows; 0 for an empty (not finite)
    row. float64.
    """
    x, _ = data.tensors()
    full = x.isfinite().view(len(x), math.prod(x.shape[1:])).all(1).double()
    if data.groups is None or not persons_in(np.asarray(data.groups)):
        return full
    _, person_of, sizes = np.unique(
        np.asarray(data.groups), return_inverse=True, return_counts=True
    )
    return in_steps(full / torch.from_numpy(sizes[person_of.reshape(-1)]).double())
