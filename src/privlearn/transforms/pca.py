"""DP-PCA finds principal directions from one noisy second-moment matrix (Abadi et al. 2016, sec. 4;
Dwork et al. 2014).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

from privlearn._checks import count, positive, with_plain_numbers
from privlearn.core.accounting.account import Account
from privlearn.core.accounting.events import Event
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.core.mechanisms.release import release
from privlearn.core.sampling import FullBatch
from privlearn.core.streams import NoiseStream
from privlearn.core.transform import PrivateTransform, Shape
from privlearn.errors import BadInput

if TYPE_CHECKING:
    from torch import Tensor

    from privlearn.core.row_transform import RowTransform


def components_of(spec: str) -> int | None:
    """The number of components in `pca:60`; None for features of another kind.

    Raises:
        BadInput: it is none.
    """
    name, colon, number = spec.partition(":")
    if name != "pca":
        return None
    if not colon or not (number.isascii() and number.isdigit()):
        raise BadInput(
            f"features {spec[:60]!r} cannot be read: expected pca:L, with a whole number, for "
            "example pca:60"
        )
    return count("the components of pca", int(number[:20]))


@with_plain_numbers
@final
@dataclass(frozen=True)
class PrivatePCA(PrivateTransform):
    """A release of the top principal directions, in a plan's `front`.

    Rows are clipped to norm 1 and never centred or scaled by private statistics. One Gaussian
    release on all the data, whatever the number of components.

    Attributes:
        components: directions kept.
        noise_multiplier: noise standard deviation over the sensitivity of the second-moment matrix.
    """

    components: int
    noise_multiplier: float

    kind: ClassVar[str] = "pca"
    prices_persons: ClassVar[bool] = True

    def __post_init__(self) -> None:
        count("components", self.components)
        positive("the PCA's noise_multiplier", self.noise_multiplier)

    def text(self) -> str:
        """What a card says of it."""
        return f"pca ({self.components} components, noise multiplier {self.noise_multiplier:g})"

    def event(self) -> Event:
        """What it costs."""
        return Gaussian(self.noise_multiplier)

    def output_shape(self, shape: Shape) -> Shape:
        """The shape of one projected example.

        Raises:
            BadInput: rows have fewer features than components are asked for.
        """
        features = math.prod(shape)
        if self.components > features:
            raise BadInput(
                f"the PCA is asked for {self.components} components of {features} features: choose "
                f"at most {features}"
            )
        return (self.components,)

    def fit(
        self,
        x: Any,
        adjacency: Adjacency,
        ledger: Account,
        stream: NoiseStream,
        examples: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> RowTransform:
        """Release the directions of `x`, shape (rows, ...), and return the projection onto them.

        `x` is a tensor, a (memory-mapped) array, or `pv.statistics.Chunks`; rows are taken a few at
        a time. `examples` holds the rows of each example, shape (examples, rows of each), where
        that is more than one: what each adds is then the mean over its rows. `labels` are not
        looked at.

        Each direction is divided by the square root of its noisy eigenvalue, which was released
        with it: features of like size train better under noise. Eigenvalues below the noise's own
        standard deviation count as that.

        Raises:
            BadInput: more components than features.
            BudgetExceeded: by the ledger.
        """
        import torch

        from privlearn.core.clipping.row_sums import second_moment, symmetric
        from privlearn.transforms.modules import Project
        from privlearn.transforms.signs import with_fixed_signs

        rows = x.flatten(1) if isinstance(x, torch.Tensor) else x
        features = math.prod(rows.shape[1:])
        self.output_shape((features,))  # before anything is charged
        (sample,) = FullBatch().draw(len(rows) if examples is None else len(examples))
        moment = second_moment(rows, 1.0, sample, adjacency, examples)
        ((noisy,),) = release(
            moment, noise_multiplier=self.noise_multiplier, ledger=ledger, stream=stream
        )
        # By algebraic value: the noisy matrix is indefinite, and a large negative eigenvalue is
        # noise.
        values, vectors = torch.linalg.eigh(symmetric(noisy, features).double())
        vectors = with_fixed_signs(vectors[:, -self.components :])
        sizes = (
            values[-self.components :].clamp(min=self.noise_multiplier * moment.sensitivity).sqrt()
        )
        return Project(
            (vectors / sizes).flip(1).to(rows if isinstance(rows, torch.Tensor) else torch.float32)
        )

    @classmethod
    def empty(cls, stated: Mapping[str, Any], code: str | None = None) -> RowTransform:
        """A projection with room for its components, of shape (features, components)."""
        import torch

        from privlearn.core.devices import building
        from privlearn.transforms.modules import Project

        return Project(torch.empty(stated["shape"], device=building()))
