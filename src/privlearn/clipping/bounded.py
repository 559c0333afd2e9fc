"""`Bounded`: a value together with the most that one example can change it; and the ways to clip."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from privlearn._validate import between, count, one_of
from privlearn.accounting.adjacency import Adjacency

if TYPE_CHECKING:
    from torch import Tensor

    from privlearn.sampling import Sample


@final
@dataclass(frozen=True)
class Bounded:
    """Tensors computed from one sample, and the L2 sensitivity of all of them taken together.

    Only the clipping package makes these: whoever clips computes the sensitivity.

    Attributes:
        values: the tensors; private until released.
        sensitivity: the largest L2 distance, over all `values` together, between neighbouring data sets.
        adjacency: the kind of neighbour that this holds for.
        sample: the batch that they were computed from.
    """

    values: tuple[Tensor, ...]
    sensitivity: float
    adjacency: Adjacency
    sample: Sample


@final
@dataclass(frozen=True)
class Flat:
    """Clip each example's whole gradient to L2 norm `clip_norm`."""

    clip_norm: float

    def __post_init__(self) -> None:
        between("clip_norm", self.clip_norm, 1e-12, 1e12)

    def norm(self, layers: int) -> float:
        """The largest norm of a clipped gradient."""
        return self.clip_norm


@final
@dataclass(frozen=True)
class PerLayer:
    """Clip each example's gradient layer by layer, each to `clip_norm` (a layer's weight and bias are one group).

    With L layers the whole has norm up to clip_norm sqrt(L), and the noise follows that.
    """

    clip_norm: float

    def __post_init__(self) -> None:
        between("clip_norm", self.clip_norm, 1e-12, 1e12)

    def norm(self, layers: int) -> float:
        """The largest norm of a clipped gradient."""
        return self.clip_norm * math.sqrt(count("the number of layers", layers))


Clip = Flat | PerLayer


def named(name: str, clip_norm: float) -> Clip:
    """`flat` or `layer`, at `clip_norm`."""
    return Flat(clip_norm) if one_of("clip", name, ["flat", "layer"]) == "flat" else PerLayer(clip_norm)
