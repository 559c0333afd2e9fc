"""`Bounded`: a value together with the most that one example can change it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

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
