"""Masks of scans that are larger than the grid: probabilities on windows that overlap, averaged,
voxel by voxel.

The model sees one window at a time, of the size that it was trained on. This is post-processing of
a published model, of one scan by itself: it costs no privacy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privlearn._checks import between
from privlearn.errors import BadInput
from privlearn_segmentation.scans.grid import Grid

#: By how much of its size a window overlaps the next one.
OVERLAP = 0.5


def segmented(
    probabilities: Callable[[Any], Any], grid: Grid, image: NDArray[Any], overlap: float = OVERLAP
) -> NDArray[np.int64]:
    """The class of every voxel of a scan of any size.

    Windows of the grid's size lie `overlap` of it over each other; where several hold a voxel,
    their probabilities are averaged, the middle of a window counting most (MONAI's
    `sliding_window_inference`, Gaussian weights).

    Args:
        probabilities: from rows of windows, shape (windows, 1, *grid.shape), to (windows, classes,
            *grid.shape), such as `predict_proba` of a published model.
        grid: the one that the model was trained on.
        image: intensities, three dimensions.
        overlap: from 0 to below 1; more takes longer.

    Returns:
        Whole numbers, the shape of `image`.

    Raises:
        BadInput: MONAI is not installed, another overlap, or other than three dimensions.
    """
    import torch

    between("overlap", overlap, 0.0, 0.95)
    if image.ndim != 3:
        raise BadInput(f"the scan has shape {image.shape}: expected three dimensions")
    try:
        from monai.inferers.utils import sliding_window_inference
    except ImportError as error:
        raise BadInput(
            'windows are put together by MONAI: pip install "privlearn[medical]"'
        ) from error
    sizes = (max(have + have % 2, want) for have, want in zip(image.shape, grid.size, strict=True))
    first, second, third = sizes
    whole = Grid((first, second, third), grid.halved)  # nothing is cropped
    rows = torch.from_numpy(np.ascontiguousarray(whole.row(image)))[None]
    averaged = sliding_window_inference(
        rows, grid.shape, 1, probabilities, overlap, mode="gaussian"
    )
    return whole.restored(averaged[0].argmax(0).numpy(), image.shape)
