"""X'Y and X'X of clipped rows, released jointly: what least squares needs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from privlearn.accounting.guarantee import Adjacency
from privlearn.accounting.ledger import Account
from privlearn.sampling import FullBatch
from privlearn.streams import NoiseStream

if TYPE_CHECKING:
    from torch import Tensor

    from privlearn.clipping.row_sums import Prepare

#: Numbers in a row, at most: X'X has their square, and is taken apart into eigenvectors.
MOST_FEATURES = 10_000


@final
@dataclass(frozen=True, repr=False)
class Squares:
    """Released sums of products: free to use. Rows are followed by a constant.

    Attributes:
        products: X'Y, with a column of 0 and 1 for each class in Y, shape (features + 1, classes).
        gram: X'X, symmetric, shape (features + 1, features + 1).
        product_std: standard deviation of the noise in a number of X'Y.
        gram_std: of that in a number of X'X's diagonal; in the others it is less by sqrt(2).
    """

    products: Tensor
    gram: Tensor
    product_std: float
    gram_std: float

    @property
    def loudest(self) -> float:
        """The spectral norm of the noise in X'X, nearly: 2 sqrt(n) times the deviation off the diagonal (Wigner)."""
        return math.sqrt(2 * len(self.gram)) * self.gram_std


def release_squares(
    x: Any,
    y: Any,
    *,
    classes: int,
    norm: float,
    constant: float,
    adjacency: Adjacency,
    noise_multiplier: float,
    ledger: Account,
    stream: NoiseStream,
    split: Sequence[float],
    prepare: Prepare | None = None,
) -> Squares:
    """Release X'Y and X'X of all rows jointly, as one `Gaussian(noise_multiplier)`.

    Args:
        x: rows.
        y: their classes.
        classes: how many there are, declared.
        norm: L2 norm that rows are clipped to.
        constant: what follows each row.
        adjacency: the kind of neighbour.
        noise_multiplier: of the whole.
        ledger: what is charged.
        stream: the run's noise stream.
        split: rho in proportion for X'Y and X'X.
        prepare: a public transform of a few rows, each by itself.

    Raises:
        BudgetExceeded, AdjacencyMismatch, UnsupportedEvent: by the ledger.
    """
    from privlearn.clipping.row_sums import least_squares_sums, symmetric
    from privlearn.mechanisms.release import release

    whole = math.fsum(split)
    shares = [math.sqrt(part / whole) for part in split]
    (sample,) = FullBatch().draw(len(x))
    bounded = least_squares_sums(
        x, y, sample, adjacency, classes=classes, norm=norm, constant=constant, prepare=prepare
    )
    (products,), (gram,) = release(
        *bounded, noise_multiplier=noise_multiplier, ledger=ledger, stream=stream, shares=shares
    )
    stds = [noise_multiplier * part.sensitivity / share for part, share in zip(bounded, shares, strict=True)]
    return Squares(products, symmetric(gram, len(products)), *stds)
