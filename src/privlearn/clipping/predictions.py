"""How many examples a model gets right or wrong: counts to which each example adds at most one, by itself."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor, nn

from privlearn.accounting.adjacency import Adjacency
from privlearn.clipping.answers import Answers
from privlearn.clipping.bounded import Bounded
from privlearn.clipping.fixed import Fixed
from privlearn.clipping.rounding import in_steps
from privlearn.data.dataset import Dataset
from privlearn.data.persons import persons_in
from privlearn.errors import BadInput
from privlearn.sampling import Sample


@final
@dataclass(frozen=True, repr=False)
class Scores:
    """A score for each of several candidates, private until one of them is selected; the lowest is best.

    Attributes:
        values: the scores, float64, shape (candidates,).
        sensitivity: the most that one example changes any of them.
        one_way: whether neighbours differ in one direction only: no score rises where another one falls.
        adjacency: the kind of neighbour that this holds for.
    """

    values: Tensor
    sensitivity: float
    one_way: bool
    adjacency: Adjacency


def wrong_predictions(models: Sequence[nn.Module | None], data: Dataset, adjacency: Adjacency) -> Scores:
    """How many examples of `data` each model gets wrong; one that is None gets all wrong.

    An example, added, removed or emptied, adds between 0 and 1 to every count: all of them move in one direction, by at most
    1. One that is exchanged for another adds between 0 and 1 before and after.
    """
    counts = [
        float(_weights(data).sum()) if model is None else float(_weights(data) @ (1 - _right(model, data)))
        for model in models
    ]
    return Scores(torch.tensor(counts, dtype=torch.float64), 1.0, adjacency is not Adjacency.REPLACE_ONE, adjacency)


def right_predictions(model: nn.Module, data: Dataset, sample: Sample, adjacency: Adjacency) -> Bounded:
    """How many examples of `data` the model gets right, as a value to be released; `sample` is all of them.

    Each adds between 0 and 1, whoever the neighbour is: the sensitivity is 1.
    """
    return Bounded((_weights(data) @ _right(model, data),), 1.0, adjacency, sample)


def require_labels(data: Dataset) -> None:
    """Raise `BadInput` unless the targets are classes, so that predictions can be right or wrong."""
    y = data.tensors()[1]
    if y.is_floating_point() or y.is_complex() or y.ndim != 1:
        raise BadInput(
            f"the targets are {y.dtype} values of shape {tuple(y.shape)}: to count right predictions, expected one whole "
            "number for each row, its class"
        )


def _right(model: nn.Module, data: Dataset) -> Tensor:
    """For each row 1 if the model's largest output is that of its class, else 0; float64.

    Rows go through the model one by one. In a batch the rounding of a row's outputs could follow from how many others there
    are, and a model could see them; so each count moves by no more than the row itself. A row that the model fails on is
    wrong, silently.
    """
    twin = copy.deepcopy(model).cpu().requires_grad_(False)
    answers = Answers(twin, at_once=1, computed=Fixed(twin).restore)
    return (answers(*data.tensors()) == 1).double()


def _weights(data: Dataset) -> Tensor:
    """What each row counts for: 1, or its share of a person's rows; 0 for an empty row, which is not finite. float64."""
    x, _ = data.tensors()
    full = x.isfinite().view(len(x), math.prod(x.shape[1:])).all(1).double()
    if data.groups is None or not persons_in(np.asarray(data.groups)):
        return full
    _, person_of, sizes = np.unique(np.asarray(data.groups), return_inverse=True, return_counts=True)
    return in_steps(full / torch.from_numpy(sizes[person_of.reshape(-1)]).double())
