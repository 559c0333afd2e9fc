"""Test metrics of a model: of classes, of probabilities, of values, of maps; by scikit-learn where
it has them.

They are exact, and no guarantee covers the test rows, or they are released with noise and charged,
as the rest is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial, wraps
from itertools import takewhile
from types import MappingProxyType
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset as TorchDataset

from privlearn._checks import checked, count, quoted, require_fit
from privlearn._display import shortened
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.clipping.bounded import Bounded
from privlearn.core.clipping.indices import looking_at
from privlearn.core.clipping.model_check import made_up_rows
from privlearn.core.devices import place_of
from privlearn.core.mechanisms.release import release
from privlearn.core.processes import require_one_process
from privlearn.core.sampling import FullBatch, Sample
from privlearn.core.streams import Streams
from privlearn.core.tensors import as_tensor
from privlearn.data.dataset import Dataset
from privlearn.data.torch_rows import rows_of
from privlearn.errors import BadInput
from privlearn.methods.statistics.metric_figures import (
    Metrics,
    MetricsPlan,
    NoisyMetrics,
    ValueMetricsPlan,
)
from privlearn.methods.statistics.sums import (
    PredictedValues,
    Probabilities,
    error_sums,
    metric_sums,
)
from privlearn.models.heads import Head, stated_head
from privlearn.publishing.model import PublishedModel
from privlearn.runs.front import encoded
from privlearn.runs.result import Result
from privlearn.runs.session import Session
from privlearn.transforms.modules import RowTransform

#: Rows, and volumes, that a network is given at once.
_ROWS_AT_ONCE, _VOLUMES_AT_ONCE = 4096, 4
_MOST_CLASSES = 1 << 16
#: Bins of confidences for the calibration error (Guo et al. 2017).
_BINS = 15
#: Expected counts are at least this, so that a deviance is finite.
_LEAST_COUNT = 1e-9
#: Probabilities are at least this far from 0 and 1, so that a log loss is finite.
_ROUNDING = float(np.finfo(np.float64).eps)
#: R2 is told where the spread of the targets is so many times the noise in it.
_SPREADS = 4.0
#: How often noise is drawn anew to see how much it moves the figures.
_REDRAWS = 100

Floats = NDArray[np.float64]
_Make = TypeVar("_Make", bound=Callable[..., Metrics])
#: Everything that makes exact figures of predictions and targets, by its name.
FIGURES: dict[str, Callable[..., Metrics]] = {}


def _of_finite_rows(make: _Make) -> _Make:
    """Enter what makes figures of (predictions, targets, ...): rows of which one is not finite are
    refused before it.

    They would be counted as rows of some class, or of some error, which they are not.
    """

    @wraps(make)
    def figures(predicted: Any, y: Any, *arguments: Any, **named: Any) -> Metrics:
        for what, values in (("a prediction", predicted), ("a target", y)):
            _require_usable(what, _finite(values).all(1))
        return make(predicted, y, *arguments, **named)

    FIGURES[make.__name__] = figures
    return cast(_Make, figures)


def _finite(values: Any) -> Tensor:
    """Which numbers of each row are finite, shape (rows, numbers)."""
    numbers = values if isinstance(values, Tensor) else torch.as_tensor(values, device="cpu")
    return numbers.isfinite().reshape(len(values), -1)


def _require_usable(what: str, usable: Tensor) -> None:
    """Raise `BadInput` unless all rows are usable; `what` is what is not finite in the others."""
    if not bool(usable.all()):
        raise BadInput(
            f"{int((~usable).sum())} of {len(usable)} rows have {what} that is not finite (NaN or "
            "infinity), so that figures would not be of all rows. Fill such rows by a rule that "
            "looks at no other row; or leave them out, and say how many there were"
        )


def _require_inputs(network: nn.Module, x: Tensor) -> None:
    """Refuse rows with inputs that are not finite; of a model for which NaN is a missing value,
    rows of these alone.
    """
    finite = _finite(x)
    missing = any(getattr(module, "takes_missing", False) for module in network.modules())
    _require_usable("an input", finite.any(1) if missing else finite.all(1))


def evaluate(
    model: Any,
    data: Any,
    targets: Any = None,
    *,
    paid: NoisyMetrics | None = None,
    ledger: Ledger | None = None,
    streams: Streams | None = None,
) -> Metrics:
    """Test metrics of a trained or published model.

    They are computed exactly, and no guarantee covers the rows that are looked at, unless `paid`
    says how much noise they are released with. Guarantee, then: that of `paid`, for a test row as
    for a training row, and the ledger is charged exactly `paid.event()`. To have one guarantee for
    the model and its metrics, charge both to one ledger, and approve both plans before the first
    release, `ledger.approve(plan, paid)`, or begin it with a budget. `pv.train(..., beside=paid)`
    does, and both together meet its target.

    Args:
        model: what a method returned, what `load_model` returned, or a network that gives a score
            for each class (a value for each row where it has one output).
        data: a `pv.Dataset`, whose test rows are taken; a map-style data set of torch.utils.data,
            or a pair (rows, targets), whose rows are all taken; or rows, with `targets`.
        targets: classes, whole numbers from 0, shape (rows,); maps of classes; or values.
        paid: a settled `pv.statistics.MetricsPlan`, for a classifier, or `ValueMetricsPlan`,
            for a model of numbers; None: metrics are exact.
        ledger: what to charge; None: a new one with the plan's budget. Only with `paid`, as
            `streams`.
        streams: the random streams; None: new ones.

    Raises:
        BadInput: a data set without test rows, or rows that the model or the targets do not fit. Of
            exact metrics also rows with an input, a target or a prediction that is not finite. A
            model for which NaN is a missing value says so by an attribute, `takes_missing = True`,
            as boosted ones do: then only rows without any finite input are refused. With `paid`
            nothing is said about such rows: they count as wrong, by the largest error and log loss;
            where the number of rows is private, too (add/remove neighbours), they count as absent.
        BudgetExceeded: the ledger has no room; before any row is looked at.

    >>> scores = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    >>> metrics = evaluate(nn.Identity(), scores, [0, 1, 1])
    >>> round(metrics["accuracy"], 3), metrics.confusion_matrix
    (0.667, ((1, 0), (1, 1)))
    """
    require_fit("model", model, Result | nn.Module)
    require_fit("ledger", ledger, Ledger | None)
    require_fit("streams", streams, Streams | None)
    x, y = _rows(data, targets)
    if len(x) != len(y) or not len(y):
        raise BadInput(
            f"there are {len(x)} rows and {len(y)} targets: expected as many, and at least one"
        )
    network = model.model if isinstance(model, Result) else model
    if paid is not None:
        return _release(network, x, y, paid, ledger, streams)
    if ledger is not None or streams is not None:
        raise BadInput(
            "ledger or streams was given without paid: exact metrics are charged nowhere; leave "
            "them out"
        )
    _require_inputs(network, x)
    try:
        outputs = outputs_of(network, x, at_once=_VOLUMES_AT_ONCE if y.dim() > 2 else _ROWS_AT_ONCE)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise BadInput(f"the model cannot run on these rows: {str(error)[:200]}") from error
    head = _head_of(model)
    if head is not None and head.task in _OF_TASKS:
        return _OF_TASKS[head.task](outputs, y)
    if outputs.dim() > 2:
        return of_maps(outputs, y)
    if outputs.dim() == 1 or outputs.shape[1] == 1:
        bounds = getattr(data if isinstance(data, Dataset) else network, "target_bounds", None)
        return of_values(outputs.double().reshape(-1).numpy(), y.double().numpy(), bounds)
    if y.is_floating_point() and not bool((y == y.round()).all()):
        raise BadInput(
            "the targets are not whole numbers, and the model predicts classes: expected classes "
            "from 0"
        )
    return of_classes(outputs.double().softmax(1).numpy(), y.long().numpy())


def _head_of(model: Any) -> Head | None:
    """The named task of a result or of a published model; None: it has none."""
    if isinstance(model, Result):
        return stated_head({"classes": model.classes, **model.architecture})
    return stated_head(model.config) if isinstance(model, PublishedModel) else None


def outputs_of(network: nn.Module, x: Tensor, at_once: int) -> Tensor:
    """What a network gives for rows, some at a time; public features are made with the cache that
    training had.
    """
    parts = list(network) if isinstance(network, nn.Sequential) else [network]
    front = cast(
        list[RowTransform], list(takewhile(lambda part: isinstance(part, RowTransform), parts))
    )
    x = encoded(front, x.to(place_of(nn.Sequential(*front))), finite=False)  # it is spent
    rest = nn.Sequential(*parts[len(front) :]) if front else network
    place, split = place_of(rest), x.split(at_once)  # type: ignore[no-untyped-call]
    with torch.no_grad(), looking_at(place):
        return torch.cat([rest(part.to(place)).cpu() for part in split])


@_of_finite_rows
def of_classes(probabilities: Floats, y: NDArray[np.int64]) -> Metrics:
    """Metrics of a classifier from its probabilities, shape (rows, classes), and the classes of the
    rows.
    """
    classes = probabilities.shape[1]
    if y.ndim != 1 or y.min() < 0 or y.max() >= classes:
        raise BadInput(
            f"the targets are from {y.min()} to {y.max()}: expected classes from 0 to {classes - 1}"
        )
    predicted = probabilities.argmax(1)
    counts = np.bincount(y * classes + predicted, minlength=classes**2).reshape(classes, classes)
    present = np.flatnonzero(counts.sum(1))
    figures = {
        "accuracy": float((predicted == y).mean()),
        "balanced_accuracy": float(np.mean([counts[c, c] / counts[c].sum() for c in present])),
    }
    if len(present) > 1:  # else no row is of another class
        ranked = present[-1:] if classes == 2 else present
        figures["auc"] = float(
            np.mean([area_under_curve(y == c, probabilities[:, c]) for c in ranked])
        )
    of_own_class = np.take_along_axis(probabilities, y[:, None], 1).clip(_ROUNDING, 1 - _ROUNDING)
    figures["log_loss"] = float(-np.log(of_own_class).mean())
    figures["expected_calibration_error"] = calibration_error(probabilities.max(1), predicted == y)
    matrix = tuple(tuple(int(number) for number in row) for row in counts)
    return Metrics(MappingProxyType(figures), len(y), matrix)


@_of_finite_rows
def of_ranks(outputs: Tensor, y: Tensor) -> Metrics:
    """Metrics of ordered classes, from their scores: those of classes, and by how many places
    predictions are off.
    """
    metrics = of_classes(outputs.double().softmax(1).numpy(), y.long().numpy())
    off = (outputs.argmax(1) - y).abs().double().mean()
    return replace(metrics, figures=MappingProxyType({**metrics.figures, "mae": float(off)}))


@_of_finite_rows
def of_labels(outputs: Tensor, y: Tensor) -> Metrics:
    """Metrics of several labels, from their scores and 0 or 1 for each.

    The AUC is the mean over those labels that hold in some rows and not in others, F1 is of all
    cells together, the log loss is the mean of all cells, and subset accuracy is the share of rows
    of which every label is right.
    """
    from sklearn.metrics import f1_score

    scores, truth = outputs.double().numpy(), y.long().numpy()
    if truth.shape != scores.shape or not np.isin(truth, (0, 1)).all():
        raise BadInput(
            f"the targets have shape {truth.shape}: expected 0 or 1, of shape {scores.shape}"
        )
    predicted = (scores > 0).astype(np.int64)
    both = [label for label in range(truth.shape[1]) if 0 < truth[:, label].sum() < len(truth)]
    figures = {"subset_accuracy": float((predicted == truth).all(1).mean())}
    if both:
        figures["auc"] = float(
            np.mean([area_under_curve(truth[:, label] == 1, scores[:, label]) for label in both])
        )
    figures["f1"] = float(f1_score(truth, predicted, average="micro", zero_division=0.0))
    figures["log_loss"] = float(np.logaddexp(0, np.where(truth == 1, -scores, scores)).mean())
    return Metrics(MappingProxyType(figures), len(truth))


def area_under_curve(holds: NDArray[np.bool_], scores: Floats) -> float:
    """The area under the ROC curve: the share of pairs of a row where something holds and one where
    it does not that their scores put in order, and half of the pairs whose scores are equal.

    scikit-learn's is the same, but takes a second to import.
    """
    _, place, copies = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(copies) - (copies - 1) / 2)[place]
    positive = int(holds.sum())
    in_order = ranks[holds].sum() - positive * (positive + 1) / 2
    return float(in_order / (positive * (len(holds) - positive)))


def calibration_error(confidences: Floats, right: NDArray[np.bool_]) -> float:
    """The mean gap of confidence and accuracy over 15 bins of equal width (Guo et al. 2017, eq.
    3).
    """
    bins = np.minimum((confidences * _BINS).astype(np.int64), _BINS - 1)
    gaps = np.bincount(bins, weights=confidences - right, minlength=_BINS)
    return float(np.abs(gaps).sum() / len(confidences))


def _release(
    network: nn.Module,
    x: Tensor,
    y: Tensor,
    plan: NoisyMetrics,
    ledger: Ledger | None,
    streams: Streams | None,
) -> Metrics:
    """Metrics from one release; what does not fit is refused before anything is spent."""
    require_one_process()
    if not isinstance(plan, MetricsPlan | ValueMetricsPlan):
        raise BadInput(
            f"paid is {shortened(repr(plan), 60)}: expected "
            "pv.statistics.MetricsPlan(classes=K).calibrate(...), or of numbers "
            "ValueMetricsPlan(low, high)"
        )
    whole, none = not y.is_floating_point(), not y.numel()
    plan.require_targets(
        tuple(y.shape),
        whole=whole,
        low=0 if none else float(y.min()),
        high=0 if none else float(y.max()),
    )
    _require_outputs(network, x, plan.outputs)
    session = Session(plan, ledger, streams)
    (sample,) = FullBatch().draw(len(y))
    sums = _sums(network, x, y, plan, sample)
    deviation = plan.noise * sums.sensitivity
    session.count_examples(len(y), None)  # other rows than those of the training
    with session.charging():
        (released,) = release(
            sums, noise_multiplier=plan.noise, ledger=session.ledger, stream=session.streams.noise
        )
    noisy = [part.numpy() for part in released]
    # Where neighbours differ in the number of rows, it is private.
    counted = noisy[0].sum() if isinstance(plan, MetricsPlan) else noisy[0][-1]
    rows = len(y) if plan.neighbours is not Adjacency.ADD_REMOVE else max(1, round(float(counted)))
    figures_of = cast(Any, of_released if isinstance(plan, MetricsPlan) else of_released_values)
    figures = figures_of(*noisy, plan, rows, deviation)
    again_made = figures_of if isinstance(plan, MetricsPlan) else partial(figures_of, least=-1.0)
    redrawn = np.random.default_rng(0)  # of released numbers alone: anyone could do it
    again = []
    for _ in range(_REDRAWS):
        other = [part + redrawn.normal(0, deviation, part.shape) for part in noisy]
        again.append(again_made(*other, plan, rows, deviation))
    errors = {
        name: float(np.std([other[name] for other in again if name in other])) for name in figures
    }
    matrix = noisy[0] if isinstance(plan, MetricsPlan) else None
    counts = (
        None
        if matrix is None
        else tuple(tuple(round(float(number)) for number in row) for row in matrix)
    )
    return Metrics(MappingProxyType(figures), rows, counts, plan, errors, session.streams.seeded)


def _sums(
    network: nn.Module, x: Tensor, y: Tensor, plan: MetricsPlan | ValueMetricsPlan, sample: Sample
) -> Bounded:
    """What is released: each row by itself."""
    if isinstance(plan, ValueMetricsPlan):
        answers, bounds = PredictedValues(network)(x, y), (plan.low, plan.high)
        return error_sums(
            answers, y, sample, plan.neighbours, bounds=bounds, most_error=plan.most_error
        )
    probabilities = Probabilities(network, plan.classes)(x, y)
    return metric_sums(
        probabilities, y, sample, plan.neighbours, bins=plan.bins, most_loss=plan.most_loss
    )


def _require_outputs(network: nn.Module, x: Tensor, classes: int) -> None:
    """Refuse a network that does not give a score for each class, or one number, by made-up
    rows.
    """
    try:
        (made_up,) = made_up_rows((x,), 1, 2)
        shape = tuple(outputs_of(network, made_up, at_once=2).shape)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise BadInput(
            f"the model cannot run on rows of shape {tuple(x.shape[1:])}: {str(error)[:150]}"
        ) from error
    if shape != (2, classes):
        raise BadInput(
            f"the model turns 2 rows into shape {shape}: for paid metrics expected {(2, classes)}"
        )


def of_released(
    matrix: Floats,
    histogram: Floats,
    losses: Floats,
    plan: MetricsPlan,
    rows: int,
    deviation: float,
) -> dict[str, float]:
    """Metrics from what `methods.statistics.sums.metric_sums` adds up, with noise of this
    standard deviation.
    """
    recalls = np.diag(matrix) / np.maximum(matrix.sum(1), 1)
    figures = {
        "accuracy": float(np.clip(np.trace(matrix) / rows, 0, 1)),
        "balanced_accuracy": float(np.mean(recalls.clip(0, 1))),
    }
    if plan.classes == 2:
        # The matrix knows the rows of a class best. Counts below 0 stay: without them the noise
        # would pull to 1/2.
        totals = matrix.sum(1).clip(1)
        below, above = histogram + (totals - histogram.sum(1))[:, None] / plan.bins
        auc = above @ (np.cumsum(below) - below / 2) / totals.prod()  # those of one bin tie
        figures["auc"] = float(np.clip(auc, 0, 1))
    figures["log_loss"] = float(np.clip(losses[0] * plan.most_loss / rows, 0, plan.most_loss))
    middles = (np.arange(plan.bins) + 0.5) / plan.bins
    gaps = middles * histogram[0] - (1 - middles) * histogram[1]
    # which would make gaps where there are none
    of_noise = deviation**2 * (middles**2 + (1 - middles) ** 2)
    figures["expected_calibration_error"] = float(
        np.sqrt((gaps**2 - of_noise).clip(0)).sum() / rows
    )
    return figures


def of_released_values(
    totals: Floats, plan: ValueMetricsPlan, rows: int, deviation: float, *, least: float = 0.0
) -> dict[str, float]:
    """Metrics from what `methods.statistics.sums.error_sums` adds up, with noise of this standard
    deviation.

    Errors of figures are taken from figures that may be below 0 (`least=-1`), or they would be
    small where the noise is large. R2 is left out where the noise in the spread of the targets is
    above a quarter of it.
    """
    width = plan.high - plan.low
    most, (errors, squares, targets, their_squares) = plan.most_error * width, totals[:4] / rows
    squared = float(np.clip(squares, least, 1)) * most**2
    rmse = math.copysign(math.sqrt(abs(squared)), squared)
    figures = {"rmse": rmse, "mae": float(np.clip(errors, least, 1)) * most}
    spread = float(their_squares - targets**2)  # of targets in [-1, 1]
    if spread > _SPREADS * deviation / rows:
        figures["r2"] = 1 - squared / (spread * width**2 / 4)
    return figures


@_of_finite_rows
def of_values(predicted: Floats, y: Floats, bounds: tuple[float, float] | None = None) -> Metrics:
    """Metrics of predicted values, which are clipped to the bounds of the target, if it has
    some.
    """
    errors = y - (predicted if bounds is None else predicted.clip(*bounds))
    squared = float(np.mean(errors**2))
    figures = {"rmse": math.sqrt(squared), "mae": float(np.abs(errors).mean())}
    if len(y) > 1:
        spread = float(np.var(y))
        figures["r2"] = 1 - squared / spread if spread else float(squared == 0)
    return Metrics(MappingProxyType(figures), len(y))


@_of_finite_rows
def of_numbers(outputs: Tensor, y: Tensor) -> Metrics:
    """Metrics of several numbers for each row: the mean over the targets of each target's own, and
    these, as `r2_1` of the first.
    """
    if tuple(y.shape) != tuple(outputs.shape):
        raise BadInput(
            f"the targets have shape {tuple(y.shape)}: expected numbers of shape "
            f"{tuple(outputs.shape)}"
        )
    each = [
        of_values(predicted.numpy(), known.numpy()).figures
        for predicted, known in zip(outputs.double().T, y.double().T, strict=True)
    ]
    figures = {name: float(np.mean([values[name] for values in each])) for name in each[0]}
    figures |= {
        f"{name}_{target}": value
        for target, figures_of_target in enumerate(each, 1)
        for name, value in figures_of_target.items()
    }
    return Metrics(MappingProxyType(figures), len(y))


@_of_finite_rows
def of_counts(outputs: Tensor, y: Tensor) -> Metrics:
    """Metrics of expected counts: those of values, and the mean Poisson deviance."""
    from sklearn.metrics import mean_poisson_deviance

    expected, counts = outputs[:, 0].double().numpy(), y.double().numpy()
    if counts.ndim != 1 or not (counts >= 0).all():
        raise BadInput(
            f"the targets have shape {counts.shape}: expected counts, 0 or more, one for each row"
        )
    metrics = of_values(expected, counts)
    deviance = float(mean_poisson_deviance(counts, expected.clip(_LEAST_COUNT)))
    return replace(metrics, figures=MappingProxyType({"deviance": deviance, **metrics.figures}))


@_of_finite_rows
def of_maps(outputs: Tensor, y: Tensor) -> Metrics:
    """Dice of maps of classes, by scores of shape (rows, classes, *size): of each but the
    background, and the mean.
    """
    each = dice(outputs.argmax(1), y, outputs.shape[1])
    figures = {"dice": sum(each) / len(each)} | {
        f"dice_{label}": value for label, value in enumerate(each, 1)
    }
    return Metrics(MappingProxyType(figures), len(y))


#: The metrics of tasks that have their own, from outputs and targets.
_OF_TASKS: dict[str, Callable[[Tensor, Tensor], Metrics]] = {
    "ordinal": of_ranks,
    "multilabel": of_labels,
    "multioutput": of_numbers,
    "counts": of_counts,
}


def _rows(data: Any, targets: Any) -> tuple[Tensor, Tensor]:
    """Rows and targets as tensors."""
    if targets is None and isinstance(data, tuple) and len(data) == 2:
        data, targets = data
    if targets is None and isinstance(data, TorchDataset):
        read = rows_of(data)
        data, targets = read.x, read.y
    if not isinstance(data, Dataset):
        if targets is None:
            raise BadInput(
                f"data is {quoted(data)}, without targets: give evaluate(model, rows, targets), "
                "or a data set of pv.Dataset or torch.utils.data (of a DataLoader loader.dataset)"
            )
        rows, known = (
            as_tensor(values if isinstance(values, Tensor) else np.asarray(values), what).cpu()
            for values, what in ((data, "the rows"), (targets, "the targets"))
        )
        return rows, known
    if targets is not None:
        raise BadInput(
            "a data set and targets were given: a data set has its own, leave the others out"
        )
    if data.x_test is None:
        raise BadInput("the data set has no test rows: give evaluate(model, rows, targets)")
    rows, known = data.test_tensors()
    return rows.cpu(), known.cpu()


@checked
def dice(
    predicted: Tensor | NDArray[Any], truth: Tensor | NDArray[Any], classes: int
) -> list[float]:
    """The Dice coefficient (Dice 1945): how well two maps of classes agree, class by class.

    It is the mean over volumes of 2 |A and B| / (|A| + |B|), for each class but the background,
    class 0.

    A class that is in neither map of a volume counts as predicted there: 1.

    Args:
        predicted: classes, whole numbers, shape (volumes, *size); a tensor or an array.
        truth: the same.
        classes: how many there are, the background included.

    Raises:
        BadInput: maps of different shapes, or none.
    """
    predicted, truth = as_tensor(predicted, "predicted maps"), as_tensor(truth, "true maps")
    if predicted.shape != truth.shape or len(predicted) == 0:
        raise BadInput(
            f"maps of shape {tuple(predicted.shape)} and {tuple(truth.shape)} can't be compared: "
            "expected the same, not empty"
        )
    count("classes", classes, most=_MOST_CLASSES)
    values = []
    for label in range(1, classes):
        one, other = (predicted == label).flatten(1), (truth == label).flatten(1)
        both, all_ = (one & other).sum(1).double(), (one.sum(1) + other.sum(1)).double()
        values.append(float((2 * both / all_.clamp(min=1)).where(all_ > 0, 1.0).mean()))
    return values
