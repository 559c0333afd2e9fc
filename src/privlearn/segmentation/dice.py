"""The Dice coefficient (Dice 1945): how well two maps of classes agree, class by class."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray
from torch import Tensor

from privlearn.data.dataset import as_tensor
from privlearn.errors import BadInput


def dice(found: Tensor | NDArray[Any], truth: Tensor | NDArray[Any], classes: int) -> list[float]:
    """The mean over volumes of 2 |A and B| / (|A| + |B|), for each class but the background, class 0.

    A class that is in neither map of a volume counts as found there: 1.

    Args:
        found: classes, whole numbers, shape (volumes, *size); a tensor or an array.
        truth: the same.
        classes: how many there are, the background included.

    Raises:
        BadInput: maps of different shapes, or none.
    """
    found, truth = as_tensor(found, "found maps"), as_tensor(truth, "true maps")
    if found.shape != truth.shape or len(found) == 0:
        raise BadInput(
            f"maps of shape {tuple(found.shape)} and {tuple(truth.shape)} can't be compared: expected the same, not empty"
        )
    values = []
    for label in range(1, classes):
        one, other = (found == label).flatten(1), (truth == label).flatten(1)
        both, all_ = (one & other).sum(1).double(), (one.sum(1) + other.sum(1)).double()
        values.append(float((2 * both / all_.clamp(min=1)).where(all_ > 0, 1.0).mean()))
    return values
