"""A `Bounded` is a value together with the most that one example can change it.

How far sums of clipped values may be off in floating point, and the room that clips leave for it.

Of n examples, each clipped to C, a sum in which no number goes through more than K additions is off
by at most n K u C, u being half an ulp (Higham 2002, sec. 4.2). The sums of neighbouring data sets
may be off to opposite sides: they differ by 2 n K u C more than the example itself, whose own norm
may be computed a few dozen roundings too small. Clips leave the share `ROOM` of C free, so that the
sensitivity stays C where 2 n K u and those roundings are at most that. K is at most n, and BLOCK +
n / BLOCK where products of `BLOCK` rows are added up one after the other.

- Double precision, u = 2^-53, ROOM = 2^-31: proven for n K <= 2^21, 1448 examples; measured is
  1.4e-10 C at a million.
- Single precision, u = 2^-24, ROOM = 2^-10: proven for n K <= 2^13 only, 90 examples. The worst
  case takes errors of one sign in all additions and of the other one in the neighbour's. Products
  of `BLOCK` examples are added up in double precision. Measured, on rows made for it (equal,
  alternating, nearly aligned), is up to 3.3e-4 C at `BLOCK` examples and 1e-3 C at
  `MOST_IN_BLOCKS`, nearly all of it across the example's gradient.
- Where more than `MOST_IN_BLOCKS` are expected in a batch, products are computed in double
  precision, too, with the room of single precision: proven for n K <= 2^42.

A sum itself is off by far more than that (0.1 C at 4096 equal examples in single precision), but
the neighbour's is off alike. So nothing about how sums are computed may change with the number of
examples, which is private: what is expected is public, and examples are computed in batches of one
size, so that one more or less changes the last one alone.

Several processes do as one does, each with the part of the batch that it expects. Sums of up to
BLOCK / 2 expected examples are sent in single precision and added up in that of the whole batch:
each is off as one process's sum is, and a neighbouring data set changes that of one process alone.

Positions of a sequence that are added up within an example count in K, their lengths in place of
the example's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, final

from privlearn.core.accounting.guarantee import Adjacency
from privlearn.errors import UnsoundExtension

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from privlearn.core.processes import Share
    from privlearn.core.sampling import Sample


#: By how much, relatively, what was measured may exceed a bound: single precision rounds by less.
_ROUNDING = 1e-6


@final
class Contributions:
    """The norms of what examples add to a sum, as measured where they are added: what a `Bounded`
    is made with.

    Clipping keeps every norm at its bound, whatever an example holds. So that one is above the
    bound says that the code which clips is wrong, and the release is refused before anything is
    charged or drawn. That refusal tells that an example of the sample is longer than the bound.

    Args:
        bound: the largest norm of what one example adds, from which the sensitivity is computed.
        by: the class or the function that keeps it, which a refusal names.
    """

    def __init__(self, bound: float, by: str) -> None:
        self.bound, self.by = bound, by
        self._largest: Tensor | None = None
        self._is_measured = False

    @classmethod
    def of(cls, norms: Tensor, bound: float, by: str) -> Contributions:
        """Those of a sum that was formed at once."""
        contributions = cls(bound, by)
        contributions.see(norms)
        return contributions

    def see(self, norms: Tensor) -> None:
        """Norms of what examples add, of any shape; of no examples, too."""
        norms = norms.detach()
        largest = (norms.amax() if norms.numel() else norms.sum()).double()
        self._largest = largest if self._largest is None else self._largest.maximum(largest)

    def see_none(self) -> None:
        """Norms are measured wherever examples are added, but a process may add none to the sum
        that it shares.
        """
        self._is_measured = True

    def require_within(self, values: tuple[Tensor, ...], sensitivity: float) -> None:
        """Raise `UnsoundExtension` if an example adds more than the bound, or that is more than the
        sensitivity.
        """
        if not 0 < self.bound <= sensitivity * (1 + _ROUNDING) < float("inf"):
            raise UnsoundExtension(
                f"{self.by} states the sensitivity {sensitivity:g}, and that one example adds up "
                f"to {self.bound:g}: expected a finite sensitivity of at least that. Nothing was "
                "charged"
            )
        if (
            self._largest is None
            and not self._is_measured
            and any(bool(value.any()) for value in values)
        ):
            raise UnsoundExtension(
                f"{self.by} made a sum and measured nothing of it: call Contributions.see with the "
                "norms of what examples add, where they are added. Nothing was charged"
            )
        self.require_kept()

    def require_kept(self) -> None:
        """Raise `UnsoundExtension` if an example was seen to add more than the bound."""
        if self._largest is not None and not float(self._largest) <= self.bound * (1 + _ROUNDING):
            raise UnsoundExtension(
                f"an example adds more to a sum than {self.by} says, {self.bound:g}: its "
                "sensitivity does not hold. Nothing was charged or drawn; mend how it clips",
                bound=self.bound,
            )


@final
@dataclass(frozen=True, repr=False)
class Bounded:
    """Tensors computed from one sample, and the sensitivity of all of them taken together.

    Only the clipping package makes these: the sensitivity is computed where clipping is done.

    Attributes:
        values: the tensors; private until released.
        sensitivity: the largest distance, over all `values` together, between neighbouring data
            sets.
        adjacency: the kind of neighbour that this holds for.
        sample: the batch that they were computed from.
        contributions: what examples added, as measured: never more than the bound behind the
            sensitivity.
        norm: what the distance is measured in. Gaussian noise needs L2, Laplace noise L1.
        share: of values that several processes add up, the numbers whose sum this one has; None for
            all.

    Raises:
        UnsoundExtension: an example added more than its bound.
    """

    values: tuple[Tensor, ...]
    sensitivity: float
    adjacency: Adjacency
    sample: Sample
    contributions: Contributions
    norm: Literal["L1", "L2"] = "L2"
    share: Share | None = None

    def __post_init__(self) -> None:
        self.contributions.require_within(self.values, self.sensitivity)


#: Examples that are computed at once, and added up in single precision, at most.
BLOCK = 1024
#: Expected examples in a batch up to which products are in single precision.
MOST_IN_BLOCKS = 1 << 14
#: The share of a bound that clips leave for rounding, by bytes of a number.
ROOM = {4: 2.0**-10, 8: 2.0**-31}


def kept(norm: float, dtypes: Iterable[torch.dtype]) -> float:
    """What values of these types are clipped to: `norm` less the room for rounding."""
    return norm / (1 + max(ROOM[dtype.itemsize] for dtype in dtypes))


def rounded(sums: list[Tensor], into: list[Tensor]) -> list[Tensor]:
    """`sums` in the type of `into`, and in its place."""
    return (
        sums
        if sums is into
        else [buffer.copy_(total) for buffer, total in zip(into, sums, strict=True)]
    )


def in_steps(values: Tensor) -> Tensor:
    """`values`, at most 1 in size, rounded towards 0 to multiples of 2^-36: sums below 2^17 are
    exact in float64.
    """
    return (values.double() * 2.0**36).trunc_().mul_(2.0**-36)
