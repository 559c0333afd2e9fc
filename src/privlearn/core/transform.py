"""A plan holds a transform in front of a network as public numbers, a price, and how its module is
made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, final

from privlearn import _public
from privlearn._checks import count
from privlearn.core.accounting.account import Account
from privlearn.core.accounting.events import Event
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor

    from privlearn.core.row_transform import RowTransform
    from privlearn.core.streams import NoiseStream

Shape = tuple[int, ...]
#: With what scales rows, as many as a published model may have.
_MOST_IN_FRONT = 6
#: A certificate lists so many chosen features, the best first. The weights hold all of them.
MOST_CHOSEN = 10_000
#: The modules in which they are defined; none of them imports torch.
_HOMES = ("moments", "packaged", "pca", "select", "sources", "specs")


class Transform(ABC):
    """A transform of rows in front of a network: a frozen value, which is all that a plan knows of
    it.

    It makes a module that treats each row by itself and is never trained. It is either public, or
    made by a release on the private rows, which its `event` prices; nothing else tells the two
    apart.

    Subclasses are frozen dataclasses of plain values, with a `kind` in their class body by which
    files name them.

    Attributes:
        kind: its name in certificates and configurations.
        stated: what a configuration states of its module, beside the kind: see `empty`.
    """

    kind: ClassVar[str]
    stated: ClassVar[frozenset[str]] = frozenset({"shape"})

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        if "kind" in vars(cls):
            _public.enter(cls)

    @abstractmethod
    def event(self) -> Event | None:
        """What it costs; None: nothing, for it is public."""

    @abstractmethod
    def output_shape(self, shape: Shape) -> Shape:
        """The shape of one transformed example, of an example of `shape`.

        Raises:
            BadInput: it does not take such examples.
        """

    @abstractmethod
    def fit(
        self,
        x: Tensor,
        adjacency: Adjacency,
        ledger: Account,
        stream: NoiseStream,
        examples: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> RowTransform:
        """The module, for rows `x` of shape (rows, ...). A public one looks at their shape alone.

        Args:
            x: private rows.
            adjacency: what neighbouring data sets differ in.
            ledger: what is charged.
            stream: the run's noise stream.
            examples: the rows of each example, shape (examples, rows of each), where that is more
                than one.
            labels: a class for each row.

        Raises:
            BadInput: rows that it does not take; before anything is charged.
            BudgetExceeded: by the ledger.
        """

    def require_labels(self, y: Tensor) -> None:
        """Refuse labels that it can't be fitted with, before anything is spent: for the data's
        curator.

        Raises:
            BadInput: as `fit` would.
        """
        return

    @property
    def normalises(self) -> bool:
        """Whether all rows that it makes have the norm sqrt(their length), so that it is public:
        for learning rates.
        """
        return False

    @classmethod
    @abstractmethod
    def empty(cls, stated: Mapping[str, Any], code: str | None = None) -> RowTransform:
        """A module with room for the numbers of a published one.

        Args:
            stated: what its `config` stated, with the fields `stated`, each a text or, for a shape,
                a list of sizes.
            code: the code that the caller names, `package.module:function`; a file's word is not
                enough.

        Raises:
            BadInput: a configuration that describes none.
        """

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, which `from_json` reads."""
        written: dict[str, Any] = _public.to_json(self)
        return written


class PublicTransform(Transform):
    """A transform that follows from public numbers and the shape of an example alone, and costs
    nothing.

    Attributes:
        keeps_places: whether each number is made of the one in its place alone, so that images are
            images behind it.
    """

    keeps_places: ClassVar[bool] = False

    @abstractmethod
    def module(
        self, shape: Shape, cache: Path | None = None, begin: Callable[[], None] | None = None
    ) -> RowTransform:
        """The module for examples of `shape`.

        Args:
            shape: of one example; what is learned from made-up images is learned from such.
            cache: a folder to keep that in; None: nowhere.
            begin: called before something is learned, which takes a minute or more; not where it is
                kept already.

        Raises:
            BadInput: it does not take such examples.
        """

    @final
    def event(self) -> None:
        """What it costs: nothing."""
        return

    @final
    def fit(
        self,
        x: Tensor,
        adjacency: Adjacency,
        ledger: Account,
        stream: NoiseStream,
        examples: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> RowTransform:
        """The module for rows of the shape of `x`, which are not looked at."""
        return self.module(tuple(x.shape[1:]))

    @property
    @abstractmethod
    def spec(self) -> str:
        """What it is called, and what `specs.parse` reads where that has a form for it."""


class PrivateTransform(Transform):
    """A transform that is made by a release on the private rows.

    Attributes:
        noise_multiplier: of the one Gaussian release that would cost as much as it does.
    """

    noise_multiplier: float
    #: Whether its price holds for persons who have several rows.
    prices_persons: ClassVar[bool] = False

    @abstractmethod
    def event(self) -> Event:
        """What it costs."""

    @property
    def features_chosen(self) -> int | None:
        """How many features it chooses, which the facts of a run then list; None: it chooses
        none.
        """
        return None

    @abstractmethod
    def text(self) -> str:
        """What a model card says of it."""


def shape_after(transforms: Iterable[Transform], shape: Sequence[int]) -> Shape:
    """The shape of an example of `shape` after `transforms`, one after the other.

    Raises:
        BadInput: one of them does not take such examples.
    """
    current = tuple(shape)
    for transform in transforms:
        current = transform.output_shape(current)
    return current


def priced(transforms: Iterable[Transform]) -> list[Event]:
    """What the transforms cost, in their order: public ones nothing."""
    return [event for transform in transforms if (event := transform.event()) is not None]


def require_chain(front: object, kind: type[Any]) -> None:
    """Raise `BadInput` unless `front` is a tuple of a few transforms of a kind."""
    if not isinstance(front, tuple) or not all(isinstance(transform, kind) for transform in front):
        paid = (
            ", pv.transforms.PrivatePCA(60, 16.0))" if kind is Transform else ",), which are public"
        )
        raise BadInput(
            f"front is {str(front)[:60]}: expected a tuple of transforms, "
            f"(pv.transforms.Scatter(kept=1000){paid}"
        )
    if len(front) > _MOST_IN_FRONT:
        raise BadInput(f"front has {len(front)} transforms: expected at most {_MOST_IN_FRONT}")


def other_features(front: Iterable[Transform], facts: Mapping[str, Any]) -> list[str]:
    """What contradicts the public features of a plan's front in the facts of its run, in a
    sentence; or nothing.
    """
    named = [
        transform.spec
        for transform in front
        if isinstance(transform, PublicTransform) and "spec" in transform.stated
    ]
    if [part["spec"] for part in public_features(facts)] == named:
        return []
    return [
        f"the plan has the public features {', '.join(named)[:80] or 'none'}, and others are stated"
    ]


def check_choices(facts: Mapping[str, Any], keeps: Sequence[int]) -> None:
    """Raise `BadInput` unless `facts`, which strangers wrote, tell of one choice for each of
    `keeps`, and no others.

    Raises:
        KeyError, TypeError: fields are missing or of other types.
    """
    choices = facts.get("chosen", [])
    if len(choices) != len(keeps):
        raise BadInput(
            f"{len(choices)} choices of features are stated, and the plan has {len(keeps)}"
        )
    for choice, keep in zip(choices, keeps, strict=True):
        indices = choice["indices"]
        for index in indices:
            count("a chosen feature", index, least=0)
        if len(indices) != min(keep, MOST_CHOSEN) or len(set(indices)) < len(indices):
            raise BadInput(
                f"{len(indices)} features are said to be chosen, and {keep} to be kept: expected "
                "each once, and as many"
            )


def public_features(facts: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the facts of a run say of its public features, one after the other; not looked at."""
    features = facts.get("public_features", [])
    return features if isinstance(features, list) else [features]


def kinds() -> Mapping[str, type[Transform]]:
    """Every kind of transform by its name: closed, so that a file never chooses what runs."""
    for home in _HOMES:
        import_module(f"privlearn.transforms.{home}")
    return _public.kinds(Transform)


def from_json(data: Mapping[str, Any]) -> Transform:
    """The transform that `to_json` wrote.

    Raises:
        BadInput: no such kind, or numbers that it does not take.
    """
    kinds()  # of all of which the modules are there
    transform = _public.from_json(dict(data))
    if not isinstance(transform, Transform):
        raise BadInput(
            f"a transform is a {str(data.get('kind'))[:40]!r}: expected one of "
            f"{', '.join(sorted(kinds()))}"
        )
    return transform
