"""Scans and their masks as rows: each volume by itself brought to one grid, and to intensities from 0 to 1.

Nothing here looks at more than one volume, so one person changes one row. Grids and splits are fixed numbers.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from privlearn.data.dataset import Dataset
from privlearn.errors import BadInput

#: Background, anterior and posterior.
CLASSES = 3
#: The grid of the hippocampus volumes in voxels of 1 mm; rows have half of it, voxels of 2 mm.
GRID = (40, 56, 40)
#: How the 260 hippocampus volumes are split, in an order that is drawn once and for all.
PRIVATE, LABELLED, POOL, TEST = 180, 8, 40, 32
_ORDER = 2020
#: Percentiles of a volume's own intensities that become 0 and 1.
_DARK, _BRIGHT = 1.0, 99.0


@final
@dataclass(frozen=True)
class Parts:
    """What a study of private segmentation needs.

    Attributes:
        private: the records of the teachers, with masks.
        labelled: public volumes with masks.
        pool: public volumes whose masks are not looked at: what teachers can be asked about.
        test: volumes for the figures, with masks.
    """

    private: Dataset
    labelled: Dataset
    pool: Dataset
    test: Dataset


def hippocampus(files: Mapping[str, bytes]) -> Dataset:
    """260 crops of MRI scans with masks, on 20 x 28 x 20 voxels of 2 mm, in one channel.

    The rows are the private part; the test rows are 8 volumes that count as public with their masks, 40 that count as
    public
    without, and 32 to test on, in this order: `split` takes them apart.
    """
    with np.load(io.BytesIO(files["hippocampus.npz"]), allow_pickle=False) as archive:
        stored = dict(archive)
    scans = [prepared(image, mask, GRID, CLASSES) for image, mask in _volumes(stored)]
    order = np.random.default_rng(_ORDER).permutation(len(scans))
    x, y = (np.stack([scans[at][part] for at in order]) for part in (0, 1))
    return Dataset(
        x[:PRIVATE], y[:PRIVATE], x[PRIVATE:], y[PRIVATE:], classes=CLASSES, low=0.0, high=1.0, name="hippocampus",
        note="each volume scaled by its own 1st and 99th percentile, padded or cropped to 40 x 56 x 40 mm, voxels of 2 "
             "mm; "
        f"{PRIVATE} volumes are records; of the test rows {LABELLED} count as public with masks, {POOL} as public "
        f"without and {TEST} are tested on, split by volume number alone",
    )  # fmt: skip


def split(data: Dataset, labelled: int = LABELLED) -> Parts:
    """The hippocampus volumes in four parts.

    Args:
        data: what `hippocampus` gave.
        labelled: how many of the 8 public volumes with masks are used: the first ones.

    Raises:
        BadInput: another data set, or another number of volumes.
    """
    if data.name != "hippocampus" or data.x_test is None or len(data.x_test) != LABELLED + POOL + TEST:
        raise BadInput(
            f"{data.name} is not split into public, pool and test volumes: expected the data set hippocampus"
        )
    if not 1 <= labelled <= LABELLED:
        raise BadInput(f"{labelled} public volumes with masks are wanted: expected 1 to {LABELLED}")

    def part(first: int, end: int, masks: bool = True, public: bool = True) -> Dataset:
        x, y = data.x_test[first:end], data.y_test[first:end]
        return replace(data, x=x, y=y if masks else None, x_test=None, y_test=None, note="", public=public)

    return Parts(
        replace(data, x_test=None, y_test=None),
        part(0, labelled),
        part(LABELLED, LABELLED + POOL, masks=False),
        part(LABELLED + POOL, LABELLED + POOL + TEST, public=False),
    )


def prepared(
    image: NDArray[Any], mask: NDArray[Any], grid: Sequence[int], classes: int, *, halve: bool = True
) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """One volume as a row: a scan of shape (channels, *size) with intensities from 0 to 1, and its mask, shape size.

    Args:
        image: the scan, three dimensions, or four with channels first; each channel is scaled by itself.
        mask: a class for each voxel, three dimensions.
        grid: what both are padded (with 0, the background) or cropped to, about their middle; even numbers.
        classes: how many there are.
        halve: whether blocks of 2 x 2 x 2 voxels become one: their mean, and the class of most of them.
    """
    channels = [on_grid(normalised(own), grid) for own in (image if image.ndim == 4 else image[None])]
    mask = on_grid(np.asarray(mask), grid)
    if halve:
        channels = [_halved(own) for own in channels]
        mask = np.stack([_halved((mask == label).astype(np.float32)) for label in range(classes)]).argmax(0)
    return np.stack(channels).astype(np.float32), mask.astype(np.uint8)


def normalised(image: NDArray[Any]) -> NDArray[np.float64]:
    """A scan with its own 1st percentile at 0 and its 99th at 1, and nothing outside; all 0 if they are equal."""
    values = np.asarray(image, dtype=np.float64)
    dark, bright = np.percentile(values, [_DARK, _BRIGHT])
    if not bright > dark:
        return np.zeros_like(values)
    scaled: NDArray[np.float64] = np.clip((values - dark) / (bright - dark), 0.0, 1.0)
    return scaled


def on_grid(volume: NDArray[Any], grid: Sequence[int]) -> NDArray[Any]:
    """A volume in the middle of a grid of zeros; what lies outside is cut off, equally on both sides."""
    if volume.ndim != len(grid) or any(size < 2 or size % 2 for size in grid):
        raise BadInput(
            f"a volume of shape {volume.shape} can't be put on the grid {tuple(grid)}: expected even numbers"
        )
    padded = np.zeros(tuple(grid), volume.dtype)
    into, out_of = [], []
    for have, want in zip(volume.shape, grid, strict=True):
        size, spare = min(have, want), abs(want - have) // 2
        into.append(slice(spare, spare + size) if have < want else slice(0, size))
        out_of.append(slice(0, size) if have < want else slice(spare, spare + size))
    padded[tuple(into)] = volume[tuple(out_of)]
    return padded


def _halved(volume: NDArray[Any]) -> NDArray[Any]:
    """Means over blocks of 2 x 2 x 2 voxels."""
    pairs = [part for size in volume.shape for part in (size // 2, 2)]
    halved: NDArray[Any] = volume.reshape(pairs).mean((1, 3, 5))
    return halved


def _volumes(stored: Mapping[str, NDArray[Any]]) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Scan and mask of each case: a scan is stored as codes into a table of its own values."""
    voxels, tables = stored["voxel_offset"], stored["lut_offset"]
    for case, shape in enumerate(stored["shape"]):
        own = slice(voxels[case], voxels[case + 1])
        values = stored["lut"][tables[case] : tables[case + 1]]
        yield values[stored["codes"][own]].reshape(shape), stored["labels"][own].reshape(shape)
