"""What is learned, a class for each task: the loss of an example, and how outputs of a network are
read.

To add a task, add a registered class here, and its metrics to the table in `privlearn.metrics`. All
that is declared of targets is public; no method but `fits` looks at more than one example.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from privlearn.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor, nn

    from privlearn._target_ranges import Ranges

#: What may be declared of targets: the number of classes, bounds of a number, names and bounds of
#: several numbers, or the names of several labels.
CLASSES, BOUNDS, RANGES, LABELS = "classes", "target_bounds", "target_ranges", "labels"
#: The task of classes.
CLASSIFICATION = "classification"
_MOST_LABELS = 10_000
_Kind = TypeVar("_Kind", bound="type[Head]")
#: The tasks, by name; the first for each kind of declared targets is what is learned where none is
#: named.
HEADS: dict[str, type[Head]] = {}


def registered(kind: _Kind) -> _Kind:
    """Enter a task."""
    HEADS[kind.task] = kind
    return kind


class Head(ABC):
    """A task: what is declared of its targets, its loss, and how outputs are read.

    Attributes:
        task: its name.
        declared: what has to be declared of the targets.
        unsuited: choices of a run that make no sense for it.
        tempered: whether a temperature is usually fitted to the scores.
        long_clip: whether gradients of a table's rows are clipped to about their length, not
            shorter, in front of a linear model.
        skewed: whether those of any model are: clipped short, they would lead to a median in place
            of the mean.
        scored: whether outputs are scores of classes or labels; else they are numbers.
        named: whether folders say the task by its name; else it follows from the number of classes
            and the bounds.
        reading: how predictions are read, for the card of a named task.
        outputs: of the network that is built for it.
        classes: of the model that is published, as its folder says; 1 if it predicts a number.
    """

    task: ClassVar[str]
    declared: ClassVar[str]
    unsuited: ClassVar[tuple[str, ...]] = (
        "label_smoothing",
        "select",
        "temperature",
        "class_weights",
    )
    tempered: ClassVar[bool] = False
    long_clip: ClassVar[bool] = True
    skewed: ClassVar[bool] = False
    scored: ClassVar[bool] = True
    named: ClassVar[bool] = True
    reading: ClassVar[str] = ""
    outputs: int
    classes: int

    @abstractmethod
    def __init__(self, declared: Mapping[str, Any]) -> None:
        """From what was declared, by name: `classes`, `target_bounds`, `labels`.

        Raises:
            BadInput: that is no such task.
        """

    @classmethod
    def usual_rate(cls, rate: float, clip_norm: float) -> float:
        """SGD's learning rate, from the one that is usual for classes."""
        return rate

    def fits(self, y: NDArray[Any]) -> str:
        """What targets are expected where these are none of the task; empty if they are: a check
        for their curator.
        """
        return ""

    def prepared(self, y: Any) -> Any:
        """The targets as the loss takes them, each by itself."""
        return y

    def predicted(self, outputs: Tensor) -> Tensor:
        """The predictions, of what the published network gives: for scores of classes the highest
        one's.
        """
        return outputs.argmax(1)

    def probabilities(self, outputs: Tensor) -> Tensor:
        """Probabilities of classes, or of labels, of the same shape."""
        return outputs.softmax(1)

    def complete(self, network: nn.Module) -> nn.Module:
        """The network that is trained, of one that was built with `outputs` outputs."""
        return network

    def published(self, network: nn.Module) -> nn.Module:
        """The network that is published, of one that was trained: post-processing, by public
        numbers.
        """
        return network

    def stated(self) -> dict[str, Any]:
        """What certificate and configuration say of it."""
        return {"task": self.task} if self.named else {}

    @abstractmethod
    def loss(self, request: Any) -> Any:
        """One value for each example, of outputs and targets.

        Args:
            request: choices that change it (`training.choices.TrainRequest`).
        """


@final
@registered
class ClassHead(Head):
    """One of so many classes: a score for each, and cross-entropy."""

    task, declared = CLASSIFICATION, CLASSES
    unsuited: ClassVar[tuple[str, ...]] = ()
    tempered, named = True, False

    def __init__(self, declared: Mapping[str, Any]) -> None:
        self.outputs = self.classes = declared.get(CLASSES) or 1

    def loss(self, request: Any) -> nn.CrossEntropyLoss:
        """Cross-entropy, perhaps of smoothed labels, times the weight of the example's class, the
        largest being 1.

        A weight is inside the loss: the example's gradient is clipped after it was multiplied, so
        the sensitivity is that of an unweighted run. An example's loss depends on no other example.
        """
        import torch

        weights = None
        if request.class_weights is not None:
            weights = torch.tensor(request.class_weights, dtype=torch.float64, device="cpu")
            weights = (weights / weights.max()).float().to(request.config.device or "cpu")
        smoothing = request.label_smoothing or 0.0
        return torch.nn.CrossEntropyLoss(weights, reduction="none", label_smoothing=smoothing)


class BoundedHead(Head):
    """One number or several between declared bounds, each taken to [-1, 1].

    Attributes:
        low: the bound below, or one for each target.
        high: the bound above, or one for each target.
    """

    low: Any
    high: Any

    def prepared(self, y: Any) -> Any:
        """Clipped to the bounds, and scaled to [-1, 1]."""
        middle, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        return ((np.asarray(y, dtype=np.float64).clip(self.low, self.high) - middle) / half).astype(
            np.float32
        )

    def complete(self, network: nn.Module) -> nn.Module:
        """The network, of which the last layer can be rescaled.

        Raises:
            BadInput: it is not linear.
        """
        _last(network)
        return network


@final
@registered
class ValueHead(BoundedHead):
    """A number between declared bounds, taken to [-1, 1]; half the squared error of one output."""

    task, declared = "regression", BOUNDS
    long_clip, named, scored = False, False, False
    outputs = classes = 1
    #: Of the rate for classes, and at most what moves the weights by 1 in a step, half the targets'
    #: range.
    _rate: ClassVar[float] = 0.3

    def __init__(self, declared: Mapping[str, Any]) -> None:
        bounds: tuple[float, float] = declared[BOUNDS]
        self.low, self.high = bounds

    @classmethod
    def usual_rate(cls, rate: float, clip_norm: float) -> float:
        """Less than for classes: values are met, not only ranked."""
        return min(cls._rate * rate, 1 / clip_norm)

    def published(self, network: nn.Module) -> nn.Module:
        """The network in the units of the target."""
        rescale(network, (self.high - self.low) / 2, (self.high + self.low) / 2)
        return network

    def loss(self, request: Any) -> Any:
        """Half the squared error."""
        return squared_error


@final
@registered
class NumbersHead(BoundedHead):
    """Several numbers, each between declared bounds and taken to [-1, 1]; half the sum of their
    squared errors.
    """

    task, declared = "multioutput", RANGES
    long_clip, scored = False, False
    reading = (
        "Predictions are numbers in the units of the targets, each within its declared bounds."
    )

    def __init__(self, declared: Mapping[str, Any]) -> None:
        from privlearn._target_ranges import read_ranges

        self.ranges: Ranges = read_ranges(declared[RANGES])
        self.outputs = self.classes = len(self.ranges)
        self.names = tuple(name for name, _, _ in self.ranges)
        bounds = np.array([pair for _, *pair in self.ranges], dtype=np.float64)
        self.low, self.high = bounds[:, 0], bounds[:, 1]

    @classmethod
    def usual_rate(cls, rate: float, clip_norm: float) -> float:
        """As of one number."""
        return ValueHead.usual_rate(rate, clip_norm)

    def fits(self, y: NDArray[Any]) -> str:
        """A number for each row and target."""
        numbers = y.dtype.kind in "fiub" and y.shape[1:] == (self.outputs,)
        return "" if numbers else f"a number for each row and each of the {self.outputs} targets"

    def published(self, network: nn.Module) -> nn.Module:
        """The network in the units of the targets."""
        import torch

        scale, shift = (
            torch.as_tensor(part / 2, dtype=torch.float32, device=_last(network).weight.device)
            for part in (self.high - self.low, self.high + self.low)
        )
        rescale(network, scale[:, None], shift)
        return network

    def predicted(self, outputs: Tensor) -> Tensor:
        """The numbers within their bounds, shape (rows, targets)."""
        low, high = (outputs.new_tensor(bounds) for bounds in (self.low, self.high))
        return outputs.clamp(low, high)

    def probabilities(self, outputs: Tensor) -> Tensor:
        """None: without columns."""
        return outputs[:, :0]

    def stated(self) -> dict[str, Any]:
        """With the names and bounds of the targets."""
        return {**super().stated(), RANGES: [list(part) for part in self.ranges]}

    def loss(self, request: Any) -> Any:
        """Half the sum of squared errors."""
        return sum_of_squares


@final
@registered
class OrdinalHead(Head):
    """One of so many classes in their order: a proportional-odds model, and cross-entropy."""

    task, declared = "ordinal", CLASSES
    outputs = 1
    reading = (
        "Scores add up to 1: probabilities of the classes, in their order, by a proportional-odds "
        "model. No temperature was fitted."
    )

    def __init__(self, declared: Mapping[str, Any]) -> None:
        self.classes = declared[CLASSES]

    def fits(self, y: NDArray[Any]) -> str:
        """Classes, as whole numbers."""
        whole = y.dtype.kind in "iub" and y.ndim == 1
        inside = whole and (not len(y) or 0 <= int(y.min()) <= int(y.max()) < self.classes)
        return "" if inside else f"whole numbers from 0 to {self.classes - 1}, one for each row"

    def complete(self, network: nn.Module) -> nn.Module:
        """The network, then thresholds: scores of the classes."""
        from torch import nn

        from privlearn.models.last_layers import CumulativeLogits

        return nn.Sequential(network, CumulativeLogits(self.classes))

    def loss(self, request: Any) -> Any:
        """Cross-entropy."""
        import torch

        return torch.nn.CrossEntropyLoss(reduction="none")


@final
@registered
class LabelsHead(Head):
    """Several labels, each of which holds or does not: a score for each, and the sum of their
    logistic losses.
    """

    task, declared = "multilabel", LABELS
    reading = (
        "Each label has a score from 0 to 1: the probability that it holds, whatever the others "
        "are. No temperature was fitted."
    )

    def __init__(self, declared: Mapping[str, Any]) -> None:
        labels = declared[LABELS]
        plain = isinstance(labels, list | tuple) and all(
            isinstance(name, str) and name for name in labels
        )
        if not plain or not 2 <= len(labels) == len(set(labels)) <= _MOST_LABELS:
            raise BadInput(f"labels is {str(labels)[:60]}: expected different names, two or more")
        self.labels: tuple[str, ...] = tuple(labels)
        self.outputs = self.classes = len(labels)

    def fits(self, y: NDArray[Any]) -> str:
        """Zeros and ones."""
        numbers = y.dtype.kind in "fiub" and y.shape[1:] == (self.classes,)
        inside = numbers and bool(np.isin(y, (0, 1)).all())
        return "" if inside else f"0 or 1 for each row and each of the {self.classes} labels"

    def prepared(self, y: Any) -> Any:
        """As numbers."""
        return np.asarray(y, dtype=np.float32)

    def predicted(self, outputs: Tensor) -> Tensor:
        """0 or 1 for each label, shape (rows, labels)."""
        return (outputs > 0).long()

    def probabilities(self, outputs: Tensor) -> Tensor:
        """That each label holds."""
        return outputs.sigmoid()

    def stated(self) -> dict[str, Any]:
        """With the names of the labels."""
        return {**super().stated(), LABELS: list(self.labels)}

    def loss(self, request: Any) -> Any:
        """The sum over the labels: an example has one loss, and so one gradient that is clipped."""
        return sum_of_labels


@final
@registered
class CountHead(Head):
    """A count up to a declared bound: the logarithm of its expectation, and the Poisson likelihood.

    The network's output 0 stands for the root of the bound, the middle of 1 and the bound on the
    scale of logarithms. Losses are divided by that root, the standard deviation of a count whose
    expectation is the bound: so gradients are about as long as those of classes, and clipping does
    not take the large counts' part away. Beyond the bound the loss goes on along its tangent: it is
    convex, and its derivative by the output at most the root of the bound.
    """

    task, declared = "counts", BOUNDS
    skewed, scored = True, False
    outputs = classes = 1
    reading = (
        "Predictions are expected counts, within the declared bounds: the mean of a Poisson "
        "distribution for each row."
    )

    def __init__(self, declared: Mapping[str, Any]) -> None:
        bounds: tuple[float, float] = declared[BOUNDS]
        self.low, self.high = bounds
        if self.low < 0 or self.high < 1:
            raise BadInput(
                f"bounds of counts are {self.low:g} and {self.high:g}: expected 0 or more, and 1 "
                "or more"
            )

    def fits(self, y: NDArray[Any]) -> str:
        """Whole numbers from 0 on."""
        numbers = y.dtype.kind in "fiub" and y.ndim == 1
        inside = numbers and bool(((y >= 0) & (y == np.floor(y))).all())
        return "" if inside else "whole numbers from 0 on, one for each row"

    def prepared(self, y: Any) -> Any:
        """As numbers, clipped to the bounds."""
        return np.asarray(y, dtype=np.float64).clip(self.low, self.high).astype(np.float32)

    def published(self, network: nn.Module) -> nn.Module:
        """The network, then expected counts."""
        from torch import nn

        from privlearn.models.last_layers import Rate

        return nn.Sequential(network, Rate(math.sqrt(self.high), self.high))

    def loss(self, request: Any) -> Any:
        """The negative logarithm of the Poisson likelihood, without what depends on the count
        alone.
        """
        return PoissonLoss(float(self.high))


@final
class PoissonLoss:
    """The Poisson loss of one output for each example, as `CountHead` says.

    Args:
        high: the bound of the counts; part of its name, by which a checkpoint knows the loss again.
    """

    def __init__(self, high: float) -> None:
        self.high = high
        self.__qualname__ = f"PoissonLoss({high!r})"

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """One value for each example."""
        top = math.log(self.high)
        logs = outputs[:, 0] + top / 2
        expected = logs.clamp(max=top).exp() * (1 + (logs - top).clamp(min=0.0))
        return (expected - targets * logs) / math.sqrt(self.high)


def sum_of_labels(outputs: Tensor, targets: Tensor) -> Tensor:
    """The sum of the labels' logistic losses, for each example."""
    from torch.nn.functional import binary_cross_entropy_with_logits

    return binary_cross_entropy_with_logits(outputs, targets, reduction="none").sum(1)


def sum_of_squares(outputs: Tensor, targets: Tensor) -> Tensor:
    """Half the sum of the outputs' squared errors, for each example."""
    return (outputs - targets).square().sum(1) / 2


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Half the squared error of one output, for each example."""
    return (outputs[:, 0] - targets).square() / 2


def rescale(model: nn.Module, scale: float | Tensor, shift: float | Tensor) -> None:
    """Multiply the output of a released network and add to it, in its last layer:
    post-processing. Of several outputs `scale` has shape (outputs, 1), and `shift` (outputs,).
    """
    import torch

    last = _last(model)
    with torch.no_grad():
        last.weight.mul_(scale)
        last.bias.mul_(scale if isinstance(scale, float) else scale[:, 0]).add_(shift)


def _last(model: nn.Module) -> nn.Linear:
    """The last layer, whose outputs can be rescaled.

    Raises:
        BadInput: it is not linear.
    """
    from torch import nn

    *_, last = (
        module
        for module in model.modules()
        if next(module.parameters(recurse=False), None) is not None
    )
    if not isinstance(last, nn.Linear) or last.bias is None:
        raise BadInput(
            f"the network ends in a {type(last).__name__}: expected a last layer Linear(features, "
            "1) with a bias"
        )
    return last


def head_of(task: str | None, declared: Any) -> type[Head]:
    """The task of that name; None: the usual one for what is declared of the targets, classes if
    nothing is.

    Args:
        task: a name.
        declared: what has attributes like `classes` and `target_bounds` (a data set, or its public
            facts).
    """
    if task is not None:
        return HEADS[task]
    return next(
        (head for head in HEADS.values() if getattr(declared, head.declared, None)), ClassHead
    )


def stated_head(config: Mapping[str, Any]) -> Head | None:
    """The named task of a published model, from its configuration; None: it has none.

    Raises:
        BadInput: an unknown one, or one that the rest does not suit.
    """
    if "task" not in config:
        return None
    kind = HEADS.get(config["task"]) if isinstance(config["task"], str) else None
    if kind is None or not kind.named or config.get(kind.declared) is None:
        raise BadInput(
            f"the task of the model is {str(config['task'])[:40]!r}, which is unknown: get an "
            "unchanged copy"
        )
    head = kind(config)
    if head.classes != config["classes"]:
        raise BadInput(
            f"a model of the task {head.task} has {head.classes} classes: get an unchanged copy"
        )
    return head


def require_declared(task: str | None, declared: Mapping[str, Any], name: str) -> None:
    """Refuse a task whose targets are declared as something else, or not at all.

    Args:
        task: its name; None: none is named.
        declared: what was declared of the targets, by name; None where it was not.
        name: what to call the data.

    Raises:
        BadInput: just that.
    """
    if task is None or declared.get(HEADS[task].declared):
        return
    said = next((text for key, (text, _) in _DECLARED.items() if declared.get(key)), "not declared")
    needed = _DECLARED[HEADS[task].declared][1]
    raise BadInput(f"the task is {task}, and the targets of {name} are {said}: expected {needed}")


#: What targets are that are so declared, and how they are.
_DECLARED = {
    CLASSES: ("classes", "classes=K, or in the schema classes of the target"),
    LABELS: (
        "several labels",
        "labels=(name, name, ...), or in the schema several columns as target",
    ),
    RANGES: (
        "several numbers",
        "target_ranges={name: (low, high), ...}, or in the schema several columns as target, each "
        "with low and high",
    ),
    BOUNDS: (
        "numbers",
        "their bounds, target_bounds=(low, high), or in the schema low and high of the target",
    ),
}
