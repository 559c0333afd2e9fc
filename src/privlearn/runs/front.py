"""The transforms in front of a network are the data's own scale and the plan's chain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor, nn

from privlearn import _storage
from privlearn.core.row_transform import MAKE_FEATURES, RowTransform, Scale
from privlearn.core.transform import PrivateTransform, PublicTransform, Transform
from privlearn.data.dataset import Dataset
from privlearn.errors import BadInput

if TYPE_CHECKING:
    from privlearn.runs.session import TrainingSession


def scaled(data: Dataset, x: Tensor) -> tuple[list[RowTransform], Tensor]:
    """What scales rows of a declared range, and stands first; and `x`, rows of such data, behind
    that.
    """
    first: list[RowTransform] = [] if data.low is None else [Scale(*data.bounds())]
    return first, through(first, x)


def encoded(modules: Iterable[RowTransform], x: Tensor, *, finite: bool = True) -> Tensor:
    """All rows behind public modules, made once; `finite` says whether those of the user's own code
    must be finite.

    Raises:
        BadInput: features that are not finite, or rows that a module does not take.
    """
    for module in modules:
        features = MAKE_FEATURES.get()(module, x)
        if finite and module.is_users_code:
            module.require_finite(features, x)
        x = features
    return x


def public_modules(
    front: Iterable[Transform], row: Tensor
) -> tuple[list[RowTransform | None], tuple[int, ...]]:
    """A plan's front before anything is spent: its public modules, with None for each that is made
    by a release.

    Args:
        front: of the plan.
        row: one made-up example before it, shape (1, ...).

    Returns:
        the modules, and the shape of one example behind them all.

    Raises:
        BadInput, NotPerExample: a transform that does not take such examples, or does not treat
            each by itself.
    """
    modules: list[RowTransform | None] = []
    for transform in front:
        shape, module = tuple(row.shape[1:]), None
        if isinstance(transform, PublicTransform):
            module = transform.module(shape, _storage.cache() / "directions")
        if module is not None and module.is_users_code:
            if len(leading(modules)) < len(modules):
                raise BadInput(
                    f"features {module.spec!r} stand behind a release, where what the user's code "
                    "does could tell of private rows after they were released: put them in front "
                    "of it"
                )
            module.require_per_example(row)
            with torch.no_grad():
                row = module(row)
        else:
            row = torch.zeros(1, *transform.output_shape(shape), device="cpu")
        modules.append(module)
    return modules, tuple(row.shape[1:])


def leading(modules: Sequence[RowTransform | None]) -> list[RowTransform]:
    """The public modules with which a plan's front begins: all rows go through them before anything
    is spent.
    """
    return [
        module
        for module in takewhile(lambda module: module is not None, modules)
        if module is not None
    ]


def through(transforms: Iterable[nn.Module], x: Tensor) -> Tensor:
    """Apply public, per-example transforms to all rows."""
    with torch.no_grad():
        for transform in transforms:
            x = transform(x)
    return x


@final
class Front:
    """The transforms in front of the network of a run: public modules, and places for those that
    releases make.

    Args:
        chain: of transforms, that of a plan.
        data: its scale stands first.
        x: rows, or none of their shape and type.

    Attributes:
        modules: those that are there: the public ones at the beginning, and after `fit` all.
        shape: of one example behind all of them.
        rows: `x` behind the public ones at the beginning.

    Raises:
        BadInput, NotPerExample: a transform that does not take such examples, or does not treat
            each by itself.
    """

    def __init__(self, chain: Sequence[Transform], data: Dataset, x: Tensor) -> None:
        self._chain = chain
        self.modules, x = scaled(data, x)
        self._scaler_count = len(self.modules)
        self._public, self.shape = public_modules(chain, x.new_zeros(1, *x.shape[1:]))
        self.rows = encoded(leading(self._public), x)
        self.modules += leading(self._public)

    def fit(
        self, session: TrainingSession, x: Tensor, y: Tensor | None, persons: Tensor | None
    ) -> Tensor:
        """`x`, rows behind the public modules at the beginning, behind all others, which are made
        here or were before.

        Args:
            session: charges those that are releases.
            x: the rows.
            y: their labels.
            persons: the rows of each person, where persons are examples.
        """
        first = len(leading(self._public))
        for transform, module in zip(self._chain[first:], self._public[first:], strict=True):
            if isinstance(transform, PrivateTransform):
                module = session.fitted(transform, x, y, persons)
            assert module is not None
            self.modules.append(module)
            x = through([module], x)
        return x

    @property
    def chain(self) -> list[RowTransform]:
        """The modules of the plan's chain that are there."""
        return self.modules[self._scaler_count :]

    def described(self) -> list[dict[str, Any]]:
        """What a certificate says of the public features: of the public modules that have more to
        say than numbers.
        """
        return [
            module.describe()
            for module in self._public
            if module is not None and "spec" in module.config()
        ]
