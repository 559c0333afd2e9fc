"""Test metrics of a model: of classes, of probabilities, of values, of maps; by scikit-learn where it has them.

Metrics of test rows are exact, and no guarantee covers these rows: where they are private, nothing of it may be
    published.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import takewhile
from types import MappingProxyType
from typing import Any, cast, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from privlearn._display import Described, Summary
from privlearn.data.dataset import Dataset, as_tensor
from privlearn.errors import BadInput
from privlearn.runs.front import encoded
from privlearn.runs.result import Result
from privlearn.transforms.modules import RowTransform
from privlearn.volumes.training import dice

#: Rows, and volumes, that a network is given at once.
_ROWS_AT_ONCE, _VOLUMES_AT_ONCE = 4096, 4
#: Bins of confidences for the calibration error (Guo et al. 2017).
_BINS = 15

Floats = NDArray[np.float64]


@final
@dataclass(frozen=True, repr=False)
class Metrics(Described):
    """Figures by name (`metrics["accuracy"]`), of how many rows, and the confusion matrix of a classifier.

    Attributes:
        figures: of classes `accuracy`, `balanced_accuracy`, `auc` (the mean over classes, one against the rest),
            `log_loss` and `expected_calibration_error`; of values `rmse`, `mae` and `r2`; of maps `dice`.
        rows: how many rows they are of.
        confusion_matrix: how many rows of each class (first index) were predicted to be of each class.
    """

    figures: Mapping[str, float]
    rows: int
    confusion_matrix: tuple[tuple[int, ...], ...] | None = None

    def __getitem__(self, name: str) -> float:
        return self.figures[name]

    def to_json(self) -> dict[str, Any]:
        """Everything as plain values."""
        matrix = {} if self.confusion_matrix is None else {"confusion_matrix": [*map(list, self.confusion_matrix)]}
        return {**self.figures, "rows": self.rows, **matrix}

    def _summary(self) -> Summary:
        figures = [(name.replace("_", " "), f"{value:.4f}") for name, value in self.figures.items()]
        return Summary(f"Metrics of {self.rows} rows, exact: no guarantee covers these rows", figures)


def evaluate(model: Any, data: Any, targets: Any = None) -> Metrics:
    """Test metrics of a trained or published model.

    They are computed exactly: no guarantee covers the rows that are looked at.

    Args:
        model: what a method returned, what `load_model` returned, or a network that gives a score for each class (a
            value for each row where it has one output).
        data: a data set, whose test rows are taken; or rows, with `targets`.
        targets: classes, whole numbers from 0, shape (rows,); maps of classes; or values.

    Raises:
        BadInput: a data set without test rows, or rows that the model or the targets do not fit.

    >>> scores = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    >>> metrics = evaluate(nn.Identity(), scores, [0, 1, 1])
    >>> round(metrics["accuracy"], 3), metrics.confusion_matrix
    (0.667, ((1, 0), (1, 1)))
    """
    x, y = _rows(data, targets)
    if len(x) != len(y) or not len(y):
        raise BadInput(f"there are {len(x)} rows and {len(y)} targets: expected as many, and at least one")
    network = model.model if isinstance(model, Result) else model
    try:
        outputs = outputs_of(network, x, at_once=_VOLUMES_AT_ONCE if y.dim() > 1 else _ROWS_AT_ONCE)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise BadInput(f"the model cannot run on these rows: {str(error)[:200]}") from error
    if outputs.dim() > 2:
        return of_maps(outputs.argmax(1), y, outputs.shape[1])
    if outputs.dim() == 1 or outputs.shape[1] == 1:
        return of_values(outputs.double().reshape(-1).numpy(), y.double().numpy())
    if y.is_floating_point() and not bool((y == y.round()).all()):
        raise BadInput("the targets are no whole numbers, and the model gives classes: expected classes from 0")
    return of_classes(outputs.double().softmax(1).numpy(), y.long().numpy())


def outputs_of(network: nn.Module, x: Tensor, at_once: int) -> Tensor:
    """What a network gives for rows, some at a time; public features are made with the cache that training had."""
    parts = list(network) if isinstance(network, nn.Sequential) else [network]
    front = cast(list[RowTransform], list(takewhile(lambda part: isinstance(part, RowTransform), parts)))
    x = encoded(front, x, finite=False)  # what was spent is spent
    rest = nn.Sequential(*parts[len(front) :]) if front else network
    with torch.no_grad():
        return torch.cat([rest(part) for part in x.split(at_once)])  # type: ignore[no-untyped-call]


def of_classes(probabilities: Floats, y: NDArray[np.int64]) -> Metrics:
    """Metrics of a classifier from its probabilities, shape (rows, classes), and the classes of the rows."""
    from sklearn.metrics import confusion_matrix, log_loss, roc_auc_score

    classes = probabilities.shape[1]
    if y.ndim != 1 or y.min() < 0 or y.max() >= classes:
        raise BadInput(f"the targets are from {y.min()} to {y.max()}: expected classes from 0 to {classes - 1}")
    usable = np.isfinite(probabilities).all(1, keepdims=True)  # rows without an answer say nothing
    probabilities = np.where(usable, probabilities, 1 / classes)
    predicted = probabilities.argmax(1)
    counts = confusion_matrix(y, predicted, labels=np.arange(classes))
    present = np.flatnonzero(counts.sum(1))
    figures = {
        "accuracy": float((predicted == y).mean()),
        "balanced_accuracy": float(np.mean([counts[c, c] / counts[c].sum() for c in present])),
    }
    if len(present) > 1:  # else no row is of another class
        ranked = present[-1:] if classes == 2 else present
        figures["auc"] = float(np.mean([roc_auc_score(y == c, probabilities[:, c]) for c in ranked]))
    figures["log_loss"] = float(log_loss(y, probabilities, labels=np.arange(classes)))
    figures["expected_calibration_error"] = calibration_error(probabilities.max(1), predicted == y)
    matrix = tuple(tuple(int(number) for number in row) for row in counts)
    return Metrics(MappingProxyType(figures), len(y), matrix)


def calibration_error(confidences: Floats, right: NDArray[np.bool_]) -> float:
    """The mean gap of confidence and accuracy over 15 bins of equal width (Guo et al. 2017, eq. 3)."""
    bins = np.minimum((confidences * _BINS).astype(np.int64), _BINS - 1)
    gaps = np.bincount(bins, weights=confidences - right, minlength=_BINS)
    return float(np.abs(gaps).sum() / len(confidences))


def of_values(predicted: Floats, y: Floats) -> Metrics:
    """Metrics of predicted values."""
    from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

    figures = {"rmse": float(root_mean_squared_error(y, predicted)), "mae": float(mean_absolute_error(y, predicted))}
    if len(y) > 1:
        figures["r2"] = float(r2_score(y, predicted))
    return Metrics(MappingProxyType(figures), len(y))


def of_maps(predicted: Tensor, y: Tensor, classes: int) -> Metrics:
    """Dice of maps of classes: of each but the background, and their mean."""
    each = dice(predicted, y, classes)
    figures = {"dice": sum(each) / len(each)} | {f"dice_{label}": value for label, value in enumerate(each, 1)}
    return Metrics(MappingProxyType(figures), len(y))


def _rows(data: Any, targets: Any) -> tuple[Tensor, Tensor]:
    """Rows and targets as tensors."""
    if not isinstance(data, Dataset):
        if targets is None:
            raise BadInput("rows were given without targets: give evaluate(model, rows, targets), or a data set")
        return as_tensor(data if isinstance(data, Tensor) else np.asarray(data), "the rows"), as_tensor(
            targets if isinstance(targets, Tensor) else np.asarray(targets), "the targets"
        )
    if targets is not None:
        raise BadInput("a data set and targets were given: a data set has its own, leave the others out")
    if data.x_test is None:
        raise BadInput("the data set has no test rows: give evaluate(model, rows, targets)")
    return data.test_tensors()
