"""Scans and their masks as rows: each volume by itself brought to one grid, and to intensities from
0 to 1.

Nothing here looks at more than one volume, so one person changes one row. Grids and splits are
fixed numbers.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from privlearn.data.dataset import Dataset
from privlearn.errors import BadInput
from privlearn_segmentation.scans.grid import prepared

#: Background, anterior and posterior.
CLASSES = 3
#: The grid of the hippocampus volumes in voxels of 1 mm; rows have half of it, voxels of 2 mm.
GRID = (40, 56, 40)
#: How the 260 hippocampus volumes are split, in an order that is drawn once and for all.
PRIVATE, LABELLED, POOL, TEST = 180, 8, 40, 32
_ORDER = 2020


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

    The rows are the private part; the test rows are 8 volumes that count as public with their
    masks, 40 that count as public without, and 32 to test on, in this order: `split` takes them
    apart.
    """
    with np.load(io.BytesIO(files["hippocampus.npz"]), allow_pickle=False) as archive:
        stored = dict(archive)
    scans = [prepared(image, mask, GRID, CLASSES) for image, mask in _volumes(stored)]
    order = np.random.default_rng(_ORDER).permutation(len(scans))
    x, y = (np.stack([scans[at][part] for at in order]) for part in (0, 1))
    return Dataset(
        x[:PRIVATE],
        y[:PRIVATE],
        x[PRIVATE:],
        y[PRIVATE:],
        classes=CLASSES,
        low=0.0,
        high=1.0,
        name="hippocampus",
        note="each volume scaled by its own 1st and 99th percentile, padded or cropped to 40 x "
        f"56 x 40 mm, voxels of 2 mm; {PRIVATE} volumes are records; of the test rows "
        f"{LABELLED} count as public with masks, {POOL} as public without and {TEST} are "
        "tested on, split by volume number alone",
    )


def split(data: Dataset, labelled: int = LABELLED) -> Parts:
    """The hippocampus volumes in four parts.

    Args:
        data: what `hippocampus` gave.
        labelled: how many of the 8 public volumes with masks are used: the first ones.

    Raises:
        BadInput: another data set, or another number of volumes.
    """
    if (
        data.name != "hippocampus"
        or data.x_test is None
        or len(data.x_test) != LABELLED + POOL + TEST
    ):
        raise BadInput(
            f"{data.name} is not split into public, pool and test volumes: expected the data set "
            "hippocampus"
        )
    if not 1 <= labelled <= LABELLED:
        raise BadInput(f"{labelled} public volumes with masks are wanted: expected 1 to {LABELLED}")

    def part(first: int, end: int, masks: bool = True, public: bool = True) -> Dataset:
        x, y = data.x_test[first:end], data.y_test[first:end]
        return replace(
            data, x=x, y=y if masks else None, x_test=None, y_test=None, note="", public=public
        )

    return Parts(
        replace(data, x_test=None, y_test=None),
        part(0, labelled),
        part(LABELLED, LABELLED + POOL, masks=False),
        part(LABELLED + POOL, LABELLED + POOL + TEST, public=False),
    )


def _volumes(stored: Mapping[str, NDArray[Any]]) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Scan and mask of each case: a scan is stored as codes into a table of its own values."""
    voxels, tables = stored["voxel_offset"], stored["lut_offset"]
    for case, shape in enumerate(stored["shape"]):
        span = slice(voxels[case], voxels[case + 1])
        values = stored["lut"][tables[case] : tables[case + 1]]
        yield values[stored["codes"][span]].reshape(shape), stored["labels"][span].reshape(shape)
