"""Volumes and their maps, moved alike: mirrored, turned, stretched, shifted, and cut to patches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from privlearn._validate import between, count
from privlearn.errors import BadInput


@final
@dataclass(frozen=True)
class Warp:
    """Moves each volume of a batch by itself, at random, together with its map.

    Draws from PyTorch's global generator, as augmentations do.

    Attributes:
        angle: largest turn about each axis, in radians.
        stretch: largest relative change of each axis' length.
        shift: largest shift along each axis, as a share of half its length.
        mirror: the chance that the first axis (left and right) is mirrored.
        patch: the size of the patch that is cut out, somewhere, the same for the whole batch; None: whole volumes.
    """

    angle: float = 0.25
    stretch: float = 0.1
    shift: float = 0.1
    mirror: float = 0.5
    patch: tuple[int, int, int] | None = None

    def __post_init__(self) -> None:
        for name in ("angle", "stretch", "shift"):
            between(name, getattr(self, name), 0.0, 1.0)
        between("mirror", self.mirror, 0.0, 1.0)
        for side in self.patch or ():
            count("a side of patch", side)

    def __call__(self, volumes: Tensor, maps: Tensor) -> tuple[Tensor, Tensor]:
        """Move `volumes` (rows, channels, *size) and `maps` (rows, classes, *size), three-dimensional both.

        What comes in from outside is 0 in volumes, and the nearest voxel's class in maps.

        Raises:
            BadInput: no volumes of three dimensions, or smaller ones than the patch.
        """
        if volumes.dim() != 5 or maps.shape[2:] != volumes.shape[2:]:
            raise BadInput(
                f"volumes of shape {tuple(volumes.shape)} and maps of {tuple(maps.shape)} can't be moved: expected three "
                "dimensions behind rows and channels, the same for both"
            )
        grid = F.affine_grid(self._matrices(len(volumes)), [len(volumes), 1, *volumes.shape[2:]], align_corners=False)
        moved = F.grid_sample(volumes, grid, align_corners=False)
        turned = F.grid_sample(maps, grid, align_corners=False, padding_mode="border")
        return self._cut(moved, turned)

    def _matrices(self, rows: int) -> Tensor:
        """An affine map of coordinates for each row, shape (rows, 3, 4); the last coordinate is the volume's first axis."""
        angles = self.angle * _uniform(rows, 3)
        found = torch.eye(3).expand(rows, 3, 3)
        for at, (one, other) in enumerate(((0, 1), (0, 2), (1, 2))):
            turn = torch.eye(3).repeat(rows, 1, 1)
            turn[:, one, one] = turn[:, other, other] = angles[:, at].cos()
            turn[:, one, other], turn[:, other, one] = -angles[:, at].sin(), angles[:, at].sin()
            found = found @ turn
        lengths = 1 + self.stretch * _uniform(rows, 3)
        lengths[:, 2] *= torch.where(torch.rand(rows) < self.mirror, -1.0, 1.0)
        return torch.cat([found * lengths[:, None, :], self.shift * _uniform(rows, 3)[:, :, None]], 2)

    def _cut(self, volumes: Tensor, maps: Tensor) -> tuple[Tensor, Tensor]:
        if self.patch is None:
            return volumes, maps
        places = []
        for size, side in zip(volumes.shape[2:], self.patch, strict=True):
            if side > size:
                raise BadInput(f"patches of {self.patch} can't be cut out of volumes of {tuple(volumes.shape[2:])}")
            start = int(torch.randint(size - side + 1, ()))
            places.append(slice(start, start + side))
        return volumes[:, :, *places], maps[:, :, *places]


def _uniform(rows: int, numbers: int) -> Tensor:
    """Numbers between -1 and 1."""
    return 2 * torch.rand(rows, numbers) - 1
