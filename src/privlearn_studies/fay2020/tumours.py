"""Scans of tumours that a program draws: four channels and four classes, in place of those that
can't be had here.

Fay et al. 2020 segment brain tumours of the BraTS challenge. Its scans are not at hand. These have
what matters to the code and to the method: the four channels and four classes of that challenge,
tissue that varies from person to person, a bias field, the noise of magnitudes (Rician), and
tumours of all sizes, places and shapes with a swelling around them. No person was scanned: figures
on them say how methods compare, not how well tumours are detected.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter, zoom

from privlearn.data.dataset import Dataset
from privlearn_segmentation.hippocampus import LABELLED, POOL, PRIVATE, TEST
from privlearn_segmentation.scans.grid import prepared

#: The rest, the core that takes up no contrast agent, the swelling, and the part that takes it up.
CLASSES = 4
#: Voxels along the three axes; the head fills most of them.
SIZE = (20, 24, 20)
_SEED = 2020
#: Brightness of grey matter, white matter, fluid, core, swelling and enhancing part in T1, T1 with
#: contrast, T2, FLAIR.
_TISSUES = np.array(
    [
        [0.50, 0.50, 0.60, 0.60],
        [0.65, 0.65, 0.45, 0.50],
        [0.25, 0.25, 0.90, 0.25],
        [0.35, 0.35, 0.80, 0.60],
        [0.45, 0.45, 0.80, 0.85],
        [0.50, 0.85, 0.70, 0.70],
    ]
)
#: How much tissues differ from person to person, scans in noise, and the field over a scan in
#: strength.
_PERSONS, _NOISE, _FIELD = 0.06, 0.07, 0.15


@lru_cache(maxsize=1)
def tumours() -> Dataset:
    """260 drawn scans with masks, the same in each call, as the data set `hippocampus` has them."""
    drawn = [
        draw(np.random.default_rng([_SEED, row])) for row in range(PRIVATE + LABELLED + POOL + TEST)
    ]
    x, y = (np.stack([each[part] for each in drawn]) for part in (0, 1))
    return Dataset(
        x[:PRIVATE],
        y[:PRIVATE],
        x[PRIVATE:],
        y[PRIVATE:],
        classes=CLASSES,
        low=0.0,
        high=1.0,
        name="tumours",
        note="drawn by a program: nobody was scanned",
    )


def draw(rng: np.random.Generator) -> tuple[NDArray[np.float32], NDArray[np.uint8]]:
    """One scan, shape (4, *SIZE) with brightness from 0 to 1, and the class of each voxel, shape
    SIZE.
    """
    axes = np.meshgrid(*(np.linspace(-1, 1, side) for side in SIZE), indexing="ij")
    places = np.stack([*axes])
    head = (
        np.linalg.norm(places / rng.uniform(0.85, 0.95, (3, 1, 1, 1)), axis=0)
        + 0.05 * smooth(rng, 4.0)
        < 1
    )
    folds, depth = smooth(rng, 1.5), np.linalg.norm(places, axis=0)
    tissue = np.where(folds + 2.0 * (0.6 - depth) > 0, 1, 0)
    tissue[
        np.linalg.norm(places / np.array([0.25, 0.35, 0.2])[:, None, None, None], axis=0)
        + 0.2 * folds
        < 1
    ] = 2
    mask = _tumour(rng, places) * head
    tissue = np.where(mask > 0, mask + 2, tissue)
    bright = (_TISSUES * rng.normal(1.0, _PERSONS, _TISSUES.shape))[tissue]
    bright = np.moveaxis(bright, -1, 0) * head
    channels = [channel * np.exp(_FIELD * smooth(rng, 8.0)) for channel in bright]
    scan = np.stack(
        [
            np.hypot(channel + rng.normal(0, _NOISE, SIZE), rng.normal(0, _NOISE, SIZE))
            for channel in channels
        ]
    )
    return prepared(scan, mask, SIZE, CLASSES, halve=False)


def _tumour(rng: np.random.Generator, places: NDArray[Any]) -> NDArray[np.int64]:
    """Classes of a tumour somewhere in the head: a swelling, in it a rim that takes up contrast, in
    that a core.
    """
    centre = rng.uniform(-0.45, 0.45, (3, 1, 1, 1))
    size = rng.uniform(0.4, 0.75)
    far = np.linalg.norm((places - centre) / rng.uniform(0.8, 1.25, (3, 1, 1, 1)), axis=0) / size
    rim, core = rng.uniform(0.55, 0.75), rng.uniform(0.3, 0.5)
    mask = np.zeros(SIZE, np.int64)
    for number, border in ((2, 1.0), (3, rim), (1, core)):
        mask[far + 0.12 * smooth(rng, 2.0) < border] = number
    return mask


def smooth(rng: np.random.Generator, width: float) -> NDArray[np.float64]:
    """Gaussian noise without details finer than `width` voxels, of variance 1 over the scan."""
    coarse = tuple(max(3, int(np.ceil(side / width)) + 2) for side in SIZE)
    field = zoom(
        gaussian_filter(rng.normal(size=coarse), 0.5), np.array(SIZE) / np.array(coarse), order=3
    )
    return np.asarray((field - field.mean()) / field.std())
