"""What is learned, a class for each task: the loss of an example, and how outputs of a network are read.

To add a task, add a registered class here, and its metrics to the table in `privlearn.metrics`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, final

from privlearn.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor, nn

#: What may be declared of targets: the number of classes, or bounds of a number.
CLASSES, BOUNDS = "classes", "target_bounds"
#: The task of classes.
CLASSIFICATION = "classification"
_Kind = TypeVar("_Kind", bound="type[Head]")
#: The tasks, by name; the first for each kind of declared targets is what is learned where none is named.
HEADS: dict[str, type[Head]] = {}


def registered(kind: _Kind) -> _Kind:
    """Enter a task."""
    HEADS[kind.task] = kind
    return kind


class Head(ABC):
    """A task: what is declared of its targets, its loss, and how outputs are read. All of it is public.

    Attributes:
        task: its name.
        declared: what has to be declared of the targets.
        unsuited: choices of a run that make no sense for it.
        tempered: whether a temperature is usually fitted to the scores.
        long_clip: whether gradients of a table's rows are clipped to about their length, not shorter.
        named: whether folders say the task by its name; else it follows from the number of classes and the bounds.
        reading: how predictions are read, for a card; empty: as the card says of classes and of numbers.
        outputs: of the network that is built.
    """

    task: ClassVar[str]
    declared: ClassVar[str]
    unsuited: ClassVar[tuple[str, ...]] = ("label_smoothing", "select", "temperature", "class_weights")
    tempered: ClassVar[bool] = False
    long_clip: ClassVar[bool] = True
    named: ClassVar[bool] = True
    reading: ClassVar[str] = ""
    outputs: int

    @abstractmethod
    def __init__(self, stated: Mapping[str, Any]) -> None:
        """From what was declared, by name."""

    @classmethod
    def usual_rate(cls, rate: float, clip_norm: float) -> float:
        """SGD's learning rate, from the one that is usual for classes."""
        return rate

    def require_targets(self, y: NDArray[Any], name: str) -> None:
        """Refuse targets that are none of this task: a check for the data's curator, before anything is spent.

        Args:
            y: all of them.
            name: what to call them.

        Raises:
            BadInput: just that.
        """

    def prepared(self, y: Any) -> Any:
        """The targets as the loss takes them, each by itself."""
        return y

    def complete(self, network: nn.Module) -> nn.Module:
        """The network that is trained, of one that was built with `outputs` outputs."""
        return network

    def published(self, network: nn.Module) -> nn.Module:
        """The network that is published, of one that was trained: post-processing, by public numbers."""
        return network

    def stated(self) -> dict[str, Any]:
        """What certificate and configuration say of it."""
        return {"task": self.task} if self.named else {}

    @abstractmethod
    def loss(self, request: Any) -> Any:
        """One value for each example, of outputs and targets: a convex function of the outputs.

        Args:
            request: choices that change it (`descent.choices.TrainRequest`).
        """


@final
@registered
class ClassHead(Head):
    """One of so many classes: a score for each, and cross-entropy."""

    task, declared = CLASSIFICATION, CLASSES
    unsuited: ClassVar[tuple[str, ...]] = ()
    tempered = True
    named = False

    def __init__(self, stated: Mapping[str, Any]) -> None:
        self.outputs = stated[CLASSES] or 1

    def loss(self, request: Any) -> nn.CrossEntropyLoss:
        """Cross-entropy, perhaps of smoothed labels, times the weight of the example's class, the largest being 1.

        A weight is inside the loss: the example's gradient is clipped after it was multiplied, so the sensitivity is
        that of an unweighted run. An example's loss depends on no other example.
        """
        import torch

        weights = None
        if request.class_weights is not None:
            weights = torch.tensor(request.class_weights, dtype=torch.float64)
            weights = (weights / weights.max()).float().to(request.device or "cpu")
        smoothing = request.label_smoothing or 0.0
        return torch.nn.CrossEntropyLoss(weights, reduction="none", label_smoothing=smoothing)


@final
@registered
class ValueHead(Head):
    """A number between declared bounds, taken to [-1, 1]; half the squared error of one output."""

    task, declared = "regression", BOUNDS
    long_clip = False
    named = False
    outputs = 1
    #: Of the rate for classes, and at most what moves the weights by 1 in a step, half the targets' range.
    _rate: ClassVar[float] = 0.3

    def __init__(self, stated: Mapping[str, Any]) -> None:
        self.low, self.high = stated.get(BOUNDS) or (-1.0, 1.0)  # a model of values may state none

    def prepared(self, y: Any) -> Any:
        """Clipped to the bounds, and scaled to [-1, 1]."""
        middle, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        return ((np.asarray(y, dtype=np.float64).clip(self.low, self.high) - middle) / half).astype(np.float32)

    def complete(self, network: nn.Module) -> nn.Module:
        """The network, whose last layer can be rescaled.

        Raises:
            BadInput: it is not linear.
        """
        _last(network)
        return network

    @classmethod
    def usual_rate(cls, rate: float, clip_norm: float) -> float:
        """Less than for classes: values are met, not only ranked."""
        return min(cls._rate * rate, 1 / clip_norm)

    def loss(self, request: Any) -> Any:
        """Half the squared error."""
        return squared_error


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Half the squared error of one output, for each example."""
    return (outputs[:, 0] - targets).square() / 2


def head_of(task: str | None, declared: Any) -> type[Head]:
    """The task of that name; None: the usual one for what is declared of the targets, classes if nothing is.

    Args:
        task: a name.
        declared: what has attributes like `classes` and `target_bounds` (a data set, or its public facts).
    """
    if task is not None:
        return HEADS[task]
    return next((own for own in HEADS.values() if getattr(declared, own.declared, None) is not None), ClassHead)


def require_declared(task: str | None, stated: Mapping[str, Any], name: str) -> None:
    """Refuse a task whose targets are declared as something else, or not at all.

    Args:
        task: its name; None: none is named.
        stated: what was declared of the targets, by name; None where it was not.
        name: what to call the data.

    Raises:
        BadInput: just that.
    """
    if task is None or stated.get(HEADS[task].declared) is not None:
        return
    said = next((text for key, (text, _) in _DECLARED.items() if stated.get(key) is not None), "not declared")
    needed = _DECLARED[HEADS[task].declared][1]
    raise BadInput(f"the task is {task}, and the targets of {name} are {said}: expected {needed}")


#: What targets are that are so declared, and how they are.
_DECLARED = {
    CLASSES: ("classes", "classes=K, or in the schema classes of the target"),
    BOUNDS: ("numbers", "their bounds, target_bounds=(low, high), or in the schema low and high of the target"),
}
