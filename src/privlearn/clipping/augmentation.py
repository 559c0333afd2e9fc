"""`Augmentation`: changed copies of an example, which are one example."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from privlearn._validate import count
from privlearn.clipping.agreement import close, rounding_of
from privlearn.errors import NotPerExample


@final
@dataclass(frozen=True)
class Augmentation:
    """Several changed copies of each example, whose gradients are averaged before clipping (De et al. 2022).

    Costs time, not privacy: the mean of the copies is one gradient, and is clipped as one.

    Attributes:
        copies: of each example.
        transform: inputs of shape (rows, ...) to inputs of that shape, each row by itself and at random.
    """

    copies: int
    transform: Callable[[Tensor], Tensor]

    def __post_init__(self) -> None:
        count("copies", self.copies)


def require_own_rows(augmentation: Augmentation, rows: Tensor) -> None:
    """Refuse a transform that mixes the rows of different examples. (One with random numbers of its own can't be told.)"""

    def transformed(rows: Tensor) -> Tensor:
        torch.manual_seed(0)
        out = augmentation.transform(rows.clone())
        if out.shape != rows.shape or out.dtype != rows.dtype:
            raise NotPerExample(
                f"the augmentation turns {tuple(rows.shape)} of {rows.dtype} into {tuple(out.shape)} of {out.dtype}: expected "
                "as many rows, of the same shape and type"
            )
        return out

    out = transformed(rows)
    if not torch.equal(out, transformed(rows)):
        return
    for start in range(0, len(rows), augmentation.copies):
        own = slice(start, start + augmentation.copies)
        others = rows.roll(augmentation.copies, 0)
        others[own] = rows[own]
        if not close(transformed(others)[own], out[own], rounding_of(out[own])):
            raise NotPerExample(
                "the augmentation mixes rows of different examples: give a transform that changes each row by itself"
            )
