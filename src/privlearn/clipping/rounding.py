"""How far sums of clipped values may be off in floating point, and the room that clips leave for it.

Of n examples, each clipped to C, a sum in which no number goes through more than K additions is off by at most n K u C, u
being half an ulp (Higham 2002, sec. 4.2). The sums of neighbouring data sets may be off to opposite sides: they differ by
2 n K u C more than the example itself, whose own norm may be computed a few dozen roundings too small. Clips leave the share
`ROOM` of C free, so that the sensitivity stays C where 2 n K u and those roundings are at most that. K is at most n, and
MOST + n / MOST where products of `MOST` rows are added up one after the other.

- Double precision, u = 2^-53, ROOM = 2^-31: proven for n K <= 2^21, 1448 examples; what is found is 1.4e-10 C at a million.
- Single precision, u = 2^-24, ROOM = 2^-10: proven for n K <= 2^13 only, 90 examples. The worst case takes errors of one
  sign in all additions and of the other one in the neighbour's. What is found, on rows made for it (equal, alternating, nearly
  aligned), grows like n^1.2, and is up to 1.1e-3 C at `MOST` examples, nearly all of it across the example's gradient: the
  length of the difference grows by 5e-5 C, a twentieth of the room.
- More than `MOST` examples in single precision: products of `BLOCK` of them are added up in double precision. What is found
  is up to 9e-4 C at `MOST_IN_BLOCKS` (alternating rows, whose blocks are all off alike).
- More than `MOST_IN_BLOCKS`: products are computed in double precision, too, with the room of single precision. Proven for
  n K <= 2^42. (DP-MAC and all that is no gradient goes straight to double precision.)

Where positions of a sequence are added up within an example, they count in K, and their lengths in place of the example's.
The gradients themselves are what single precision computes: how it rounds those of one example must not follow from how
many others there are. So examples are computed in batches of one size, all but the last.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

#: Examples that are added up in single precision, at most, and that are computed at once.
MOST = 4096
#: Examples whose gradients are still multiplied in single precision, at most, `BLOCK` at a time.
MOST_IN_BLOCKS, BLOCK = 1 << 14, 1024
#: The share of a bound that clips leave for rounding, by bytes of a number.
ROOM = {4: 2.0**-10, 8: 2.0**-31}


def kept(norm: float, dtypes: Iterable[torch.dtype]) -> float:
    """What values of these types are clipped to: `norm` less the room for rounding."""
    return norm / (1 + max(ROOM[dtype.itemsize] for dtype in dtypes))


def in_steps(values: Tensor) -> Tensor:
    """`values`, at most 1 in size, rounded towards 0 to multiples of 2^-36: sums below 2^17 are exact in double precision."""
    return (values.double() * 2.0**36).trunc_().mul_(2.0**-36)


def sum_type(dtype: torch.dtype, examples: int) -> torch.dtype:
    """The type in which values of type `dtype` of so many examples are added up."""
    import torch

    return dtype if examples <= MOST else torch.float64
