"""This file makes the copies of examples that `Augmentation` asks for, row by row: it mirrors and
shifts images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import torch
from torch import Tensor
from torch.nn import functional as F

from privlearn.core.clipping.agreement import close, larger, rounding_of
from privlearn.core.clipping.layout import NotLayerwise
from privlearn.core.clipping.losses import Leaves
from privlearn.core.clipping.randomness import RowRandom, generators_at
from privlearn.errors import BadInput, NotPerExample

if TYPE_CHECKING:
    from privlearn.core.clipping.augmentation import Augmentation


@final
class Views:
    """Makes the copies of batches: what is drawn for an example follows from the example and the
    sample's seed alone.

    A transform is given all examples at once if on made-up rows that comes to the same as one after
    the other.

    Args:
        augmentation: which copies.
    """

    changes = True

    def __init__(self, augmentation: Augmentation) -> None:
        self.copies, self._transform = augmentation.copies, augmentation.function
        self._together = True

    def __call__(self, leaves: Leaves, random: RowRandom) -> Leaves:
        """The copies of a batch: those of one row beside each other, those of one example after one
        another.

        The first tensor, the inputs, is changed; the others stay as they are.
        """
        copied, *others = (leaf.repeat_interleave(self.copies, 0) for leaf in leaves)
        return self._change(copied, random), *others

    def _change(self, rows: Tensor, random: RowRandom) -> Tensor:
        if self._together:
            try:
                return self._at_once(rows, random)
            except NotLayerwise:
                self._together = False  # it draws otherwise than on made-up rows
        return self._one_by_one(rows, random)

    def _at_once(self, rows: Tensor, random: RowRandom) -> Tensor:
        with random.together(purpose=1):
            return self._run(rows, torch.Generator(rows.device))

    def _one_by_one(self, rows: Tensor, random: RowRandom) -> Tensor:
        results = []
        for number, example in enumerate(rows.tensor_split(random.examples)):
            seed = random.seed(number)
            with generators_at(seed), random.alone(number, purpose=1):
                results.append(self._run(example, torch.Generator(rows.device).manual_seed(seed)))
        return torch.cat(results)

    def _run(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        out = self._transform(rows, generator)
        if out.shape != rows.shape or out.dtype != rows.dtype:
            raise NotPerExample(
                f"the augmentation turns {tuple(rows.shape)} of {rows.dtype} into "
                f"{tuple(out.shape)} of {out.dtype}: expected as many rows, of the same shape and "
                "type"
            )
        return out

    def prepare(self, rows: Tensor, random: RowRandom) -> None:
        """Refuse a transform that mixes the rows of different examples, of made-up `rows` with
        their copies.

        Raises:
            NotPerExample: it does, or keeps something of earlier rows, or makes rows of another
                shape.
        """

        def change(rows: Tensor) -> Tensor:
            with generators_at(0):
                return self._run(rows.clone(), torch.Generator(rows.device).manual_seed(0))

        def require_same(again: Tensor) -> None:
            if not torch.allclose(again, out, rtol=0, atol=0, equal_nan=True):
                raise NotPerExample(
                    "the augmentation changes the same rows otherwise from one call to the next, "
                    "with PyTorch, numpy and random at the same seed: it keeps something, or has a "
                    "generator of its own. Draw from the one that it is given"
                )

        out, size = change(rows), len(rows) // random.examples
        change(larger(rows))
        require_same(change(rows))
        for start in range(0, len(rows), size):
            example = slice(start, start + size)
            others = rows.roll(size, 0)
            others[example] = rows[example]
            if not close(change(others)[example], out[example], rounding_of(out[example])):
                raise NotPerExample(
                    "the augmentation mixes rows of different examples: give a transform that "
                    "changes each row by itself"
                )
        require_same(change(rows))
        apart = self._one_by_one(rows.clone(), random)
        try:
            with generators_at(0):
                at_once = self._at_once(rows.clone(), random)
            self._together = close(at_once, apart, rounding_of(apart))
        except NotLayerwise:
            self._together = False


#: Numbers that are drawn for each image, whichever moves there are: mirrored or not, down or up,
#: right or left.
_NUMBERS = 3


@final
@dataclass(frozen=True)
class FlipAndShift:
    """Mirrors an image left to right in half of the cases, and shifts it by up to `shift` pixels
    along both axes.

    Every shift is as likely as any other; what comes in from outside is 0. Draws three numbers an
    image, in the images' order: so they are the same in whatever parts a batch is computed.

    Attributes:
        flip: whether images are mirrored.
        shift: the largest shift, in pixels.
    """

    flip: bool = False
    shift: int = 0

    @classmethod
    def parse(cls, spec: str) -> FlipAndShift:
        """Read `flip`, `shift:2` or both, with a comma between them.

        Raises:
            BadInput: something else, or one of them twice.
        """
        moves: dict[str, int] = {}
        for part in spec.split(","):
            name, colon, number = (text.strip() for text in part.partition(":"))
            right = (
                number.isascii() and number.isdigit() and int(number[:9]) > 0
                if colon
                else name == "flip"
            )
            if (
                name not in ("flip", "shift")
                or name in moves
                or not right
                or (name == "flip" and colon)
            ):
                raise BadInput(
                    f"augmentation {spec[:60]!r} cannot be read: expected flip, shift:N with a "
                    "whole number of pixels from 1 on, or both, flip,shift:2; in Python also a "
                    "function of (rows, generator)",
                    spec=spec,
                )
            moves[name] = int(number[:9] or 1)
        return cls(flip="flip" in moves, shift=moves.get("shift", 0))

    def require_images(self, shape: Sequence[int]) -> None:
        """Refuse rows that are no images, or too small ones.

        Raises:
            BadInput: `shape`, of one row, is not (height, width) or (channels, height, width), or
                shifts leave none.
        """
        if len(shape) not in (2, 3):
            raise BadInput(
                "flip and shift move images, and the network is given rows of shape "
                f"{tuple(shape)}: expected (height, width) or (channels, height, width). Give the "
                "rows in that shape, without a PCA or a selection in front; or leave the "
                "augmentation out",
                shape=tuple(shape),
            )
        if self.shift >= min(shape[-2:]):
            raise BadInput(
                f"shifts of up to {self.shift} pixels would move images of {shape[-2]} x "
                f"{shape[-1]} out of the picture: expected at most {min(shape[-2:]) - 1}"
            )

    def __call__(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        """Move `rows`, shape (rows, height, width) or (rows, channels, height, width), each at
        random.

        Raises:
            BadInput: they are no images.
        """
        self.require_images(rows.shape[1:])
        size = (len(rows), _NUMBERS)
        drawn = torch.rand(
            size, generator=generator, device=generator.device, dtype=torch.float64
        ).to(rows.device)
        mirrored = (
            (drawn[:, 0] < 0.5) if self.flip else torch.zeros_like(drawn[:, 0], dtype=torch.bool)
        )
        # from 0 to 2 shift: places in the padded image
        shifts = (drawn[:, 1:] * (2 * self.shift + 1)).long()
        height, width = rows.shape[-2:]
        places = torch.arange(width, device=rows.device)
        columns = torch.where(mirrored[:, None], places.flip(0), places) + shifts[:, 1:]
        lines = torch.arange(height, device=rows.device) + shifts[:, :1]
        padded = F.pad(rows, (self.shift,) * 4)
        between = [1] * (rows.dim() - 3)  # channels move alike
        columns = columns.view(len(rows), *between, 1, width).expand(*padded.shape[:-1], width)
        lines = lines.view(len(rows), *between, height, 1).expand(*padded.shape[:-2], height, width)
        return padded.gather(-1, columns).gather(-2, lines)
