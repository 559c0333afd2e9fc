"""`TrainRequest`: what was chosen of a run of DP-SGD, and `Facts`: what is public of its data, for
`training.rules`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar, final

from privlearn._checks import between, checked, one_of, positive
from privlearn.errors import BadInput
from privlearn.models.heads import HEADS
from privlearn.models.network_spec import require_spec
from privlearn.runs.compute import ComputeConfig
from privlearn.training.privacy_config import PrivacyConfig
from privlearn.transforms.pca import components_of

if TYPE_CHECKING:
    from privlearn.core.transform import PublicTransform
    from privlearn.models.networks import NetworkSpec

#: Weights that are one over the declared frequencies.
BALANCED = "balanced"
#: The largest share of a label that may be spread over all classes.
MOST_SMOOTHING = 0.99


@final
@dataclass(frozen=True)
class Facts:
    """What is public of the data that a run learns from; `training.train.facts_of` reads it off a
    data set.

    Attributes:
        examples: the declared number of examples; that of the data where none is declared.
        shape: of one row.
        classes: how many there are.
        low: the declared lower bound of the numbers in rows, as it was declared; None: no range is
            declared.
        front: the public transforms that make features of rows, before everything else.
        numbers: how many numbers there are in a row behind those.
        high: the declared upper bound, as `low`.
        feature_names: of the numbers in a row, where the data name them.
        target_bounds: the declared bounds of targets that are numbers; None: they are classes.
        class_names: what the classes are called, in their order; empty if they have no names.
        labels: what labels are called of which several hold at once; empty: there are none.
        target_ranges: names and declared bounds of targets of several numbers; empty: there are
            none.
        persons: whether rows have person ids.
        sparse: whether rows are those of a sparse matrix, which is never dense as a whole.
    """

    examples: int
    shape: tuple[int, ...] = ()
    classes: int | None = None
    low: object = None
    front: tuple[PublicTransform, ...] = ()
    numbers: int = 0
    high: object = None
    feature_names: tuple[str, ...] = ()
    target_bounds: tuple[float, float] | None = None
    class_names: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    persons: bool = False
    sparse: bool = False
    target_ranges: tuple[tuple[str, float, float], ...] = ()

    @property
    def features(self) -> str | None:
        """The specs of the public features; None: there are none."""
        return ", then ".join(each.spec for each in self.front) or None

    @property
    def public_norm(self) -> float | None:
        """The norm of all rows of public features, where each is normalised by itself."""
        return math.sqrt(self.numbers) if self.front and self.front[-1].normalises else None


#: Beyond the numbers of float32, weights are none after a step.
_LARGEST_RATE = 3e38


@checked
@final
@dataclass(frozen=True)
class TrainRequest(PrivacyConfig):
    """What was chosen of a run of DP-SGD. A field left at its default is chosen by rule (`settle`).

    What decides the guarantee are the fields of `PrivacyConfig`.

    Attributes:
        task: what is learned (`models.heads`): `classification`, or `regression` of numbers; None:
            as the data say.
        discrete: whether noise is on a grid, which goes with independent noise alone; of `pv.train`
            its streams say so.
        model: `linear`, `mlp:100`, `cnn`, or `package.module:function`; or a network, which is
            trained in place; or a function from the shape of one example to one.
        features: public features, `scatter:J=2`, `norm:power=0.5`, `raw`, `package.module:function`
            or a folder of them; or `pca:60`, the same as `pca=60`.
        normalise: `moments`, `moments:share=0.1` or `none`: noisy moments standardise what the
            network is given, and are charged to the ledger.
        pca: project onto so many private principal directions, whose release is charged.
        pca_noise: their noise multiplier.
        select: train on so many privately selected features, whose release is charged.
        select_share: their part of rho.
        temperature: the part of rho that making probabilities of the scores takes
            (`privlearn.core.temperature`); 0: none of it.
        row_norm: declared bound on the norm of (scaled) rows, for `select` and `normalise`.
        coordinate_bound: declared bound on single numbers, for `select`.
        criterion: what features are selected by: `distance`, `t` or `welch`.
        optimizer: the name of a class of torch.optim, or of `privlearn.optim` (`disk`, `adambc`),
            with numbers that it takes: `disk:kappa=0.3`.
        learning_rate: its learning rate.
        momentum: of SGD.
        learning_rate_schedule: the learning rate over the epochs, as `schedule`.
        label_smoothing: the share of a label that is spread over all classes.
        class_weights: what an example of each class weighs in the loss, by the class's name or
            number, or in the classes' order: public numbers, which are never read off the rows.
            Their ratios count: the largest is brought to 1, and gradients are clipped behind. Or
            `balanced`: one over `class_frequencies`.
        class_frequencies: the publicly known shares of the classes, by name or number, for
            `balanced`.
        config: how the run computes. Copies of rows (`augmentation`) don't go behind public
            features: give `features="raw"` with them.

    Raises:
        BadInput: choices out of range, or that do not go together.
    """

    # `train` looks at the model: what it may be needs torch, and a price does not.
    _parsed: ClassVar[tuple[str, ...]] = ("adjacency", "model")

    discrete: bool = False
    model: NetworkSpec = "linear"
    features: str | None = None
    normalise: str | None = None
    pca: int | None = None
    pca_noise: float | None = None
    select: int | None = None
    select_share: float | None = None
    temperature: float | None = None
    row_norm: float | None = None
    coordinate_bound: float | None = None
    criterion: str | None = None
    optimizer: str | None = None
    learning_rate: float | None = None
    momentum: float | None = None
    learning_rate_schedule: str | None = None
    label_smoothing: float | None = None
    task: str | None = None
    class_weights: Any = None
    class_frequencies: Any = None
    config: ComputeConfig = field(default_factory=ComputeConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_spec("model", self.model)
        if self.task is not None:
            one_of("task", self.task, HEADS)
            for name in HEADS[self.task].unsuited:
                if getattr(self, name):
                    raise BadInput(
                        f"{name} is for classes, and the task is {self.task}: leave it out"
                    )
        if self.class_weights is not None and self.temperature:
            raise BadInput(
                "class_weights makes probabilities those of a population where classes come as "
                "often as they weigh, and a temperature is fitted to the one of the rows: leave "
                "out temperature"
            )
        if self.class_frequencies is not None and self.class_weights != BALANCED:
            raise BadInput(
                "class_frequencies is for class_weights='balanced': leave it out, or add that"
            )
        self._read_pca()
        if self.normalise not in (None, "none") and (
            self.select is not None or self.pca is not None
        ):
            other = (
                "select=M"
                if self.select is not None
                else f"pca={self.pca} (or features='pca:{self.pca}')"
            )
            raise BadInput(
                f"normalise={self.normalise!r} does not go with {other}, which has bounds of its "
                "own: leave one of them out"
            )
        if self.select is None:
            for name in ("row_norm", "coordinate_bound", "criterion", "select_share"):
                if getattr(self, name) is not None and not (
                    name == "row_norm" and self.normalise is not None
                ):
                    raise BadInput(
                        f"{name} is for select=M, and for a classifier from noisy statistics: "
                        "leave it out, or add select=M"
                    )
        if self.learning_rate is not None:
            between(
                "learning_rate", positive("learning_rate", self.learning_rate), 0.0, _LARGEST_RATE
            )
        if self.momentum is not None:
            between("momentum", self.momentum, 0.0, 1.0)
            require_momentum_of(self.optimizer or "SGD")
        if self.label_smoothing is not None:
            between("label_smoothing", self.label_smoothing, 0.0, MOST_SMOOTHING)

    def _read_pca(self) -> None:
        """Read `features="pca:60"` as what it is, `pca=60`."""
        components = None if self.features is None else components_of(self.features)
        if components is None:
            return
        if self.pca is not None:
            same = "are the same" if components == self.pca else "both ask for principal directions"
            raise BadInput(f"features={self.features} and pca={self.pca} {same}: give one of them")
        object.__setattr__(self, "features", None)
        object.__setattr__(self, "pca", components)

    @classmethod
    def of_options(cls, options: Any) -> TrainRequest:
        """The request that options describe, by name; those that are none of its fields are passed
        over.

        Raises:
            BadInput: choices out of range, or that do not go together.
        """
        names = [field.name for field in fields(cls) if hasattr(options, field.name)]
        return cls(**{name: getattr(options, name) for name in names})


def require_momentum_of(optimizer: str) -> None:
    """Refuse momentum for a class of torch.optim that takes none.

    Raises:
        BadInput: it takes none, or there is no such class.
    """
    if optimizer.lower() == "sgd":
        return
    from privlearn.training.train import optimizer_kind  # torch, which a price does not need

    kind = optimizer_kind(optimizer)
    if "momentum" not in signature(kind).parameters:
        raise BadInput(
            f"momentum is for an optimizer that takes it, and {kind.__name__} takes none: give "
            "optimizer='SGD' and learning_rate=L with it, or leave it out"
        )


def weights_of(
    request: TrainRequest, classes: int | None, names: tuple[str, ...] = ()
) -> tuple[float, ...] | None:
    """The weight of each class, in their order: as given, or one over declared frequencies; None:
    all weigh alike.

    Guarantee: they follow from what was given, which is public. No row is looked at.

    Args:
        request: what was chosen.
        classes: how many there are; None: the targets are none.
        names: of the classes, in their order; empty if they have none.

    Raises:
        BadInput: not one number above 0 for each class.
    """
    weights = request.class_weights
    if weights is None:
        return None
    if classes is None:
        raise BadInput(
            "class_weights is for classes, and these data have other targets: leave it out"
        )
    if isinstance(weights, str) and weights == BALANCED:
        if request.class_frequencies is None:
            raise BadInput(
                "class_weights='balanced' needs the shares of the classes, and those of private "
                "rows are private: declare public ones, class_frequencies={class: share}, or give "
                "the weights themselves"
            )
        shares = _by_class("class_frequencies", request.class_frequencies, classes, names)
        return tuple(1 / share for share in shares)
    return _by_class("class_weights", weights, classes, names)


def _by_class(what: str, argument: Any, classes: int, names: tuple[str, ...]) -> tuple[float, ...]:
    """A number above 0 for each class, from a mapping by name or number, or from a sequence."""
    if isinstance(argument, Mapping):
        places = {name: number for number, name in enumerate(names)}
        numbered = {str(number): number for number in range(classes)} if not names else {}
        by_place = {
            key if isinstance(key, int) else (places | numbered).get(str(key)): argument[key]
            for key in argument
        }
        values = (
            [by_place.get(number) for number in range(classes)]
            if len(by_place) == classes == len(argument)
            else []
        )
    else:
        values = list(argument) if isinstance(argument, tuple | list) else []
    numbers = [value for value in values if value is not None]
    if len(numbers) != classes:
        of = ", ".join(names[:6]) or f"0 to {classes - 1}"
        raise BadInput(
            f"{what} is {str(argument)[:60]}: expected a number for each of the {classes} classes "
            f"({of[:60]}), by name or number, {{class: number}}"
        )
    return tuple(between(f"a number in {what}", value, 1e-9, 1e9) for value in numbers)
