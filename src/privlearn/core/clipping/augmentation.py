"""An `Augmentation` asks for changed copies of an example, such as mirrored and shifted images,
which count as one example.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, final

import torch
from torch import Tensor

from privlearn._checks import count, with_plain_numbers
from privlearn.errors import BadInput

if TYPE_CHECKING:
    from privlearn.core.clipping.losses import Leaves
    from privlearn.core.clipping.randomness import RowRandom

#: (rows, generator) to changed rows, of the same shape and type; shape (rows, ...).
Transform = Callable[[Tensor, torch.Generator], Tensor]


@with_plain_numbers
@final
@dataclass(frozen=True)
class Augmentation:
    """Several changed copies of each example, or views, whose gradients are averaged before
    clipping (De et al. 2022).

    Costs time, not privacy: the mean of the copies is one gradient, and is clipped as one, whatever
    they are.

    Attributes:
        copies: of each example.
        transform: of images `flip` (left to right), `shift:2` (up to so many pixels, 0 comes in) or
            both, `flip,shift:2`; or a function of inputs of shape (rows, ...) and a generator,
            which is where they are, to inputs of that shape: each row changed by itself, at random
            by that generator, and given one at a time, too.

    Raises:
        BadInput: no copies, or neither a spec that can be read nor a function.
    """

    copies: int
    transform: str | Transform

    def __post_init__(self) -> None:
        count("copies", self.copies)
        if not callable(self.function):
            raise BadInput(
                f"transform is {repr(self.transform)[:60]}: expected a text such as flip,shift:2, "
                "or a function of (rows, generator) to rows"
            )

    @property
    def function(self) -> Transform:
        """The transform, as a function."""
        if not isinstance(self.transform, str):
            return self.transform
        from privlearn.core.clipping.views import FlipAndShift  # for images that are moved alone

        return FlipAndShift.parse(self.transform)

    def views(self) -> Copies:
        """What makes the copies."""
        from privlearn.core.clipping.views import Views  # for runs on copies alone

        return Views(self)

    def require_images(self, shape: Sequence[int]) -> None:
        """Refuse rows of `shape` where images are to be moved, and these are none
        (`views.FlipAndShift`).
        """
        if isinstance(self.transform, str):
            from privlearn.core.clipping.views import (
                FlipAndShift,  # for images that are moved alone
            )

            FlipAndShift.parse(self.transform).require_images(shape)

    @property
    def summary(self) -> str:
        """What is done to the copies, for certificates."""
        return self.transform if isinstance(self.transform, str) else "given in Python"


class Copies(Protocol):
    """Makes the copies of batches (`clipping.views.Views`)."""

    @property
    def copies(self) -> int:
        """How many there are of each example."""

    @property
    def changes(self) -> bool:
        """Whether copies are changed at all."""

    def __call__(self, leaves: Leaves, random: RowRandom) -> Leaves:
        """The copies of a batch, those of one example after one another."""

    def prepare(self, rows: Tensor, random: RowRandom) -> None:
        """Refuse what mixes the rows of different examples, by made-up `rows` with their copies."""


@final
class AsTheyAre:
    """Every example once, unchanged."""

    copies = 1
    changes = False

    def __call__(self, leaves: Leaves, random: RowRandom) -> Leaves:
        """The batch itself."""
        return leaves

    def prepare(self, rows: Tensor, random: RowRandom) -> None:
        """There is nothing to refuse."""
