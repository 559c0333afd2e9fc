"""What stands in front of a network: the data's own scale and features, and the plan's chain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn

from privlearn.data import catalogue
from privlearn.data.dataset import Dataset
from privlearn.errors import BadInput
from privlearn.plan import Plan
from privlearn.transforms.base import PrivateTransform, PublicTransform
from privlearn.transforms.chain import Encoding
from privlearn.transforms.modules import ExternalModule, RowTransform, Scale

if TYPE_CHECKING:
    from privlearn.runs.session import TrainingSession


def front(data: Dataset, x: Tensor, *, finite: bool = True) -> tuple[list[RowTransform], Tensor]:
    """The data's own public transforms, which stand first: what scales rows, and what makes features of them.

    Args:
        data: says which.
        x: rows of it, or of the same form.
        finite: whether features by the user's own code must be finite: before anything is spent, never afterwards.

    Returns:
        the transforms, and what they make of `x`.

    Raises:
        BadInput: features that are not finite, or rows that the encoder does not take.
    """
    transforms: list[RowTransform] = [] if data.low is None else [Scale(*data.bounds())]
    x = through(transforms, x)
    if data.features is None:
        return transforms, x
    return [*transforms, data.features.encoder], encoded([data.features], x, finite=finite)


def encoded(encodings: Iterable[Encoding], x: Tensor, *, finite: bool = True) -> Tensor:
    """Features of all rows, made once; `finite` says whether those by the user's own code must be finite.

    Raises:
        BadInput: features that are not finite, or rows that an encoder does not take.
    """
    for encoding in encodings:
        features = encoding(x)
        if finite and isinstance(encoding.encoder, ExternalModule):
            encoding.encoder.require_finite(features, x)
        x = features
    return x


def public_modules(plan: Plan, shape: tuple[int, ...]) -> tuple[list[RowTransform | None], tuple[int, ...]]:
    """The plan's front before anything is spent: its public modules, with None for each that is made by a release.

    Args:
        plan: with the front.
        shape: of one example before it.

    Returns:
        the modules, and the shape of one example behind them all.

    Raises:
        BadInput, NotPerExample: a transform that does not take such examples, or does not treat each by itself.
    """
    modules: list[RowTransform | None] = []
    for transform in plan.front:
        module = None
        if isinstance(transform, PublicTransform):
            module = transform.module(shape, catalogue.cache() / "directions")
        if isinstance(module, ExternalModule):
            if len(leading(modules)) < len(modules):
                raise BadInput(
                    f"features {module.spec!r} stand behind a release, where what the user's code does could tell of private "
                    "rows after they are paid for: put them in front of it"
                )
            module.require_per_example(torch.zeros(1, *shape))
            with torch.no_grad():
                shape = tuple(module(torch.zeros(1, *shape)).shape[1:])
        else:
            shape = transform.output_shape(shape)
        modules.append(module)
    return modules, shape


def leading(modules: Sequence[RowTransform | None]) -> list[RowTransform]:
    """The public modules with which a plan's front begins: all rows go through them before anything is spent."""
    return [module for module in takewhile(lambda module: module is not None, modules) if module is not None]


def described(features: Iterable[RowTransform | None]) -> list[dict[str, Any]]:
    """What a certificate says of the public features among some transforms: those that have more to say than numbers."""
    return [module.describe() for module in features if module is not None and "spec" in module.config()]


def through(transforms: Iterable[nn.Module], x: Tensor) -> Tensor:
    """Apply public, per-example transforms to all rows."""
    with torch.no_grad():
        for transform in transforms:
            x = transform(x)
    return x


@final
class Front:
    """All that stands in front of the network of a run: public modules, and places for those that releases make.

    Args:
        plan: with the chain.
        data: its scale and features stand first.
        x: rows, or none of their shape and type.

    Attributes:
        modules: those that are there: the public ones at the beginning, and after `fit` all.
        shape: of one example behind all of them.
        rows: `x` behind the public ones at the beginning.

    Raises:
        BadInput, NotPerExample: a transform that does not take such examples, or does not treat each by itself.
    """

    def __init__(self, plan: Plan, data: Dataset, x: Tensor) -> None:
        self._plan = plan
        self.modules, x = front(data, x)
        self._own = len(self.modules)
        self._public, self.shape = public_modules(plan, tuple(x.shape[1:]))
        self.rows = encoded(map(Encoding.usual, leading(self._public)), x)
        self.modules += leading(self._public)

    def fit(self, session: TrainingSession, x: Tensor, y: Tensor | None, persons: Tensor | None) -> Tensor:
        """`x`, rows behind the public modules at the beginning, behind all others, which are made here or were before.

        Args:
            session: pays for those that are released.
            x: the rows.
            y: their labels.
            persons: the rows of each person, where persons are examples.
        """
        first = len(leading(self._public))
        for transform, module in zip(self._plan.front[first:], self._public[first:], strict=True):
            if isinstance(transform, PrivateTransform):
                module = session.fitted(transform, x, y, persons)
            assert module is not None
            self.modules.append(module)
            x = through([module], x)
        return x

    @property
    def chain(self) -> list[RowTransform]:
        """The modules of the plan's chain that are there."""
        return self.modules[self._own :]

    def described(self) -> list[dict[str, Any]]:
        """What a certificate says of the public features."""
        return described([*self.modules, *self._public[len(leading(self._public)) :]])
