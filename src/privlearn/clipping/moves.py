"""`Moves`: images mirrored and shifted at random, each by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from privlearn.errors import BadInput

#: Numbers that are drawn for each image, whichever moves there are: mirrored or not, down or up, right or left.
_NUMBERS = 3


@final
@dataclass(frozen=True)
class Moves:
    """Mirrors an image left to right in half of the cases, and shifts it by up to `shift` pixels along both axes.

    Every shift is as likely as any other; what comes in from outside is 0. Draws three numbers an image, in the images'
    order: so they are the same in whatever parts a batch is computed.

    Attributes:
        flip: whether images are mirrored.
        shift: the largest shift, in pixels.
    """

    flip: bool = False
    shift: int = 0

    @classmethod
    def parse(cls, spec: str) -> Moves:
        """Read `flip`, `shift:2` or both, with a comma between them.

        Raises:
            BadInput: something else, or one of them twice.
        """
        found: dict[str, int] = {}
        for part in spec.split(","):
            name, colon, number = (text.strip() for text in part.partition(":"))
            right = number.isascii() and number.isdigit() and int(number[:9]) > 0 if colon else name == "flip"
            if name not in ("flip", "shift") or name in found or not right or (name == "flip" and colon):
                raise BadInput(
                    f"augmentation {spec[:60]!r} cannot be read: expected flip, shift:N with a whole number of pixels from 1 "
                    "on, or both, flip,shift:2; in Python also a function of (rows, generator)",
                    spec=spec,
                )
            found[name] = int(number[:9] or 1)
        return cls(flip="flip" in found, shift=found.get("shift", 0))

    def require_images(self, shape: Sequence[int]) -> None:
        """Refuse rows that are no images, or too small ones.

        Raises:
            BadInput: `shape`, of one row, is neither (height, width) nor (channels, height, width), or shifts leave nothing.
        """
        if len(shape) not in (2, 3):
            raise BadInput(
                f"flip and shift move images, and the network is given rows of shape {tuple(shape)}: expected (height, width) "
                "or (channels, height, width). Give the rows in that shape, without a PCA or a selection in front; or leave "
                "the augmentation out",
                shape=tuple(shape),
            )
        if self.shift >= min(shape[-2:]):
            raise BadInput(
                f"shifts of up to {self.shift} pixels would move images of {shape[-2]} x {shape[-1]} out of the picture: "
                f"expected at most {min(shape[-2:]) - 1}"
            )

    def __call__(self, rows: Tensor, generator: torch.Generator) -> Tensor:
        """Move `rows`, shape (rows, height, width) or (rows, channels, height, width), each at random.

        Raises:
            BadInput: they are no images.
        """
        self.require_images(rows.shape[1:])
        size = (len(rows), _NUMBERS)
        drawn = torch.rand(size, generator=generator, device=generator.device, dtype=torch.float64).to(rows.device)
        mirrored = (drawn[:, 0] < 0.5) if self.flip else torch.zeros_like(drawn[:, 0], dtype=torch.bool)
        shifts = (drawn[:, 1:] * (2 * self.shift + 1)).long()  # from 0 to 2 shift: places in the padded image
        height, width = rows.shape[-2:]
        places = torch.arange(width, device=rows.device)
        columns = torch.where(mirrored[:, None], places.flip(0), places) + shifts[:, 1:]
        lines = torch.arange(height, device=rows.device) + shifts[:, :1]
        padded = F.pad(rows, (self.shift,) * 4)
        between = [1] * (rows.dim() - 3)  # channels move alike
        columns = columns.view(len(rows), *between, 1, width).expand(*padded.shape[:-1], width)
        lines = lines.view(len(rows), *between, height, 1).expand(*padded.shape[:-2], height, width)
        return padded.gather(-1, columns).gather(-2, lines)
