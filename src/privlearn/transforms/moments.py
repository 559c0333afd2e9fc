"""Noisy moments of features: means and variances, by which rows are standardised before
training.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

from privlearn._checks import between, count, positive, probability, with_plain_numbers
from privlearn.core.accounting.account import Account
from privlearn.core.accounting.events import Event
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.core.streams import NoiseStream
from privlearn.core.transform import PrivateTransform, Shape
from privlearn.errors import BadInput
from privlearn.transforms.select import LEAST_COUNT, SIZES, release_statistics

if TYPE_CHECKING:
    from torch import Tensor

    from privlearn.core.row_transform import RowTransform

#: How rho is divided among the count of rows, their sums and their squares. Over a feature's own
#: size, noise in a mean square is sqrt(features) times that in a mean.
_SPLIT = (0.01, 0.19, 0.80)
#: The floor under variances, as a part of what a feature's would be if rows were as long as their
#: bound and all alike.
_LEAST_VARIANCE = 1e-3

#: The part of rho that moments take, unless another is given.
SHARE = 0.05


def share_of(spec: str, name: str = "normalise") -> float | None:
    """The part of rho in `moments:share=0.1`; that of `moments` is 0.05, and None that of `none`.

    Args:
        spec: what was given.
        name: what it was given as.

    Raises:
        BadInput: something else.
    """
    if spec == "none":
        return None
    from privlearn._short_specs import parse_spec  # only where a text is given

    kind, numbers = parse_spec(name, spec)
    if kind != "moments" or not set(numbers) <= {"share"}:
        raise BadInput(
            f"{name} is {spec[:60]!r}: expected moments, moments:share=0.1 for another share of "
            "rho, or none. Each row by itself is normalised by features='norm:power=1', which "
            "costs nothing"
        )
    return probability("the share of the moments", numbers.get("share", SHARE), open_top=True)


@with_plain_numbers
@final
@dataclass(frozen=True)
class Moments(PrivateTransform):
    """A release of each feature's mean and variance, in a plan's `front`: rows are then
    standardised by them.

    One Gaussian release of the number of rows, their sums and their squares, number by number, over
    rows clipped to a declared norm. What is done with them is free: rows are clipped to that norm,
    standardised, and each brought to norm sqrt(features).

    Attributes:
        features: how many numbers a row has; public.
        noise_multiplier: that of the whole.
        row_norm: L2 norm that rows are clipped to. Public: it may not be read off the data.
    """

    features: int
    noise_multiplier: float
    row_norm: float

    kind: ClassVar[str] = "moments"

    def __post_init__(self) -> None:
        count("features", self.features, most=10**9)
        positive("the noise_multiplier of the moments", self.noise_multiplier)
        between("row_norm", self.row_norm, *SIZES)

    def text(self) -> str:
        """What a card says of it."""
        return (
            f"means and variances of {self.features} features of rows clipped to norm "
            f"{self.row_norm:.4g} (noise multiplier {self.noise_multiplier:.4g})"
        )

    def event(self) -> Event:
        """What it costs."""
        return Gaussian(self.noise_multiplier)

    @property
    def normalises(self) -> bool:
        """Each row by itself, after they were standardised."""
        return True

    def output_shape(self, shape: Shape) -> Shape:
        """The shape of one standardised example.

        Raises:
            BadInput: rows have another number of features.
        """
        features = math.prod(shape)
        if self.features != features:
            raise BadInput(
                f"moments are of {self.features} features, and rows have {features}: give Moments "
                "as many as a row has"
            )
        return (self.features,)

    def fit(
        self,
        x: Any,
        adjacency: Adjacency,
        ledger: Account,
        stream: NoiseStream,
        examples: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> RowTransform:
        """Release the moments of `x`, shape (rows, ...), and return the transform that standardises
        by them.

        `x` is a tensor, a (memory-mapped) array, or `pv.statistics.Chunks`; rows are taken a few at
        a time. `labels` are not looked at. A row that is not finite counts as none. Variances have
        a floor at the noise in them, so a feature that hardly varies is not blown up.

        Raises:
            BadInput: another number of features, or rows of persons.
            BudgetExceeded: by the ledger.
        """
        import torch

        from privlearn.transforms.modules import Standardise

        rows = x.flatten(1) if isinstance(x, torch.Tensor) else x
        self.output_shape(tuple(rows.shape[1:]))  # before anything is charged
        if examples is not None:
            raise BadInput("moments are of rows: expected rows that are examples, not persons")
        statistics = release_statistics(
            rows,
            torch.zeros(len(rows), dtype=torch.int64, device="cpu"),
            classes=1,
            norm=self.row_norm,
            adjacency=adjacency,
            noise_multiplier=self.noise_multiplier,
            ledger=ledger,
            stream=stream,
            split=_SPLIT,
        )
        floor = _LEAST_VARIANCE * self.row_norm**2 / self.features
        deviation = statistics.variances(LEAST_COUNT, floor).sqrt()
        mean = statistics.means(LEAST_COUNT)[0]
        return Standardise(
            mean.float(), deviation.float(), torch.tensor(float(self.row_norm), device="cpu")
        )

    @classmethod
    def empty(cls, stated: Mapping[str, Any], code: str | None = None) -> RowTransform:
        """A transform with room for means and deviations of the stated shape."""
        import torch

        from privlearn.core.devices import building
        from privlearn.transforms.modules import Standardise

        return Standardise(
            torch.empty(stated["shape"], device=building()),
            torch.empty(stated["shape"], device=building()),
            torch.empty([], device=building()),
        )
