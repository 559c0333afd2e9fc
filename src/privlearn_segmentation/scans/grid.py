"""The grid of voxels that volumes are brought to, each by itself, and masks from there back to
their scan.

Nothing here looks at more than one volume, so one person changes one row. A grid is a declared
public number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from privlearn._checks import checked, count
from privlearn.errors import BadInput

#: Percentiles of a volume's own intensities that become 0 and 1.
_DARK, _BRIGHT = 1.0, 99.0
#: Voxels of a side, and of a volume, at most: 512 x 512 x 512.
_LONGEST, MOST_VOXELS = 4096, 1 << 27
_SPEC = re.compile(r"([0-9]{1,9})x([0-9]{1,9})x([0-9]{1,9})(/2)?")


@checked
@final
@dataclass(frozen=True)
class Grid:
    """What volumes of different sizes become rows of one shape by: a declared size in voxels, for
    all of them alike.

    A volume is padded with background, or cropped, about its middle, and its intensities are scaled
    by its own 1st and 99th percentile to [0, 1]. Other volumes have no part in that, so a row
    depends on one volume alone.

    Attributes:
        size: in voxels of the files, along the three axes; even numbers.
        halved: whether blocks of 2 x 2 x 2 voxels then become one.

    Raises:
        BadInput: odd or absurd sizes.
    """

    size: tuple[int, int, int]
    halved: bool = False

    def __post_init__(self) -> None:
        for side in self.size:
            count("a side of the grid", side, least=2, most=_LONGEST)
        if any(side % 2 for side in self.size) or math.prod(self.size) > MOST_VOXELS:
            raise BadInput(
                f"the grid is {self.spec}: expected even numbers, and at most {MOST_VOXELS:,} "
                "voxels together"
            )

    @classmethod
    def parse(cls, text: str) -> Grid:
        """A grid from `40x56x40`, or from `40x56x40/2`, whose blocks of 2 x 2 x 2 voxels become
        one.

        Raises:
            BadInput: it reads otherwise.
        """
        match = _SPEC.fullmatch(text)
        if match is None:
            raise BadInput(
                f"the grid {text[:60]!r} can't be read: expected even numbers of voxels, such as "
                "40x56x40, or 40x56x40/2 to take blocks of 2 x 2 x 2 voxels for one"
            )
        *sides, halved = match.groups()
        first, second, third = map(int, sides)
        return cls((first, second, third), halved is not None)

    @property
    def spec(self) -> str:
        """What `parse` reads."""
        return "x".join(map(str, self.size)) + ("/2" if self.halved else "")

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a mask in a row."""
        return tuple(side // 2 if self.halved else side for side in self.size)

    def row(self, image: NDArray[Any]) -> NDArray[np.float32]:
        """A scan of three dimensions as a row's inputs, shape (1, *shape), from 0 to 1."""
        scaled = on_grid(normalised(image), self.size)
        return (_halve(scaled) if self.halved else scaled)[None].astype(np.float32)

    def mask(self, mask: NDArray[Any], classes: int) -> NDArray[np.uint16]:
        """A mask of three dimensions as a row's targets: the class of most of a block's voxels."""
        whole = on_grid(np.asarray(mask), self.size)
        return (_most(whole, classes) if self.halved else whole).astype(np.uint16)

    def restored(self, mask: NDArray[Any], shape: Sequence[int]) -> NDArray[Any]:
        """A mask of `shape`, that of the scan, from one on this grid; what the grid did not hold is
        background, 0.
        """
        if self.halved:
            for axis in range(3):
                mask = mask.repeat(2, axis)
        return _centre(mask, shape)


def prepared(
    image: NDArray[Any],
    mask: NDArray[Any],
    grid: Sequence[int],
    classes: int,
    *,
    halve: bool = True,
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """One volume as a row: a scan of shape (channels, *size) with intensities from 0 to 1, and its
    mask, shape size.

    Args:
        image: the scan, three dimensions, or four with channels first; each channel is scaled by
            itself.
        mask: a class for each voxel, three dimensions.
        grid: what both are padded (with 0, the background) or cropped to, about their middle; even
            numbers.
        classes: how many there are.
        halve: whether blocks of 2 x 2 x 2 voxels become one: their mean, and the class of most of
            them.
    """
    channels = [
        on_grid(normalised(channel), grid)
        for channel in (image if image.ndim == 4 else image[None])
    ]
    mask = on_grid(np.asarray(mask), grid)
    if halve:
        channels = [_halve(channel) for channel in channels]
        mask = _most(mask, classes)
    return np.stack(channels).astype(np.float32), mask.astype(np.uint8)


def normalised(image: NDArray[Any]) -> NDArray[np.float64]:
    """A scan with its own 1st percentile at 0 and its 99th at 1, and nothing outside; all 0 if they
    are equal.
    """
    values = np.asarray(image, dtype=np.float64)
    dark, bright = np.percentile(values, [_DARK, _BRIGHT])
    if not bright > dark:
        return np.zeros_like(values)
    scaled: NDArray[np.float64] = np.clip((values - dark) / (bright - dark), 0.0, 1.0)
    return scaled


def on_grid(volume: NDArray[Any], grid: Sequence[int]) -> NDArray[Any]:
    """A volume in the middle of a grid of zeros; what lies outside is cut off, equally on both
    sides.
    """
    if volume.ndim != len(grid) or any(size < 2 or size % 2 for size in grid):
        raise BadInput(
            f"a volume of shape {volume.shape} can't be put on the grid {tuple(grid)}: expected "
            "even numbers"
        )
    return _centre(volume, grid)


def _centre(volume: NDArray[Any], grid: Sequence[int]) -> NDArray[Any]:
    padded = np.zeros(tuple(grid), volume.dtype)
    into, out_of = [], []
    for have, want in zip(volume.shape, grid, strict=True):
        size, spare = min(have, want), abs(want - have) // 2
        into.append(slice(spare, spare + size) if have < want else slice(0, size))
        out_of.append(slice(0, size) if have < want else slice(spare, spare + size))
    padded[tuple(into)] = volume[tuple(out_of)]
    return padded


def _halve(volume: NDArray[Any]) -> NDArray[Any]:
    """Means over blocks of 2 x 2 x 2 voxels."""
    pairs = [part for size in volume.shape for part in (size // 2, 2)]
    halved: NDArray[Any] = volume.reshape(pairs).mean((1, 3, 5))
    return halved


def _most(mask: NDArray[Any], classes: int) -> NDArray[Any]:
    """The class of most voxels in each block of 2 x 2 x 2; the lowest of several."""
    shares = np.stack([_halve((mask == label).astype(np.float32)) for label in range(classes)])
    return np.asarray(shares.argmax(0))
