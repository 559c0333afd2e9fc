"""`privlearn predict` on NIfTI scans: a mask for each, as a NIfTI file that lies where its scan
does.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from privlearn.cli import screen
from privlearn.cli.request import Request
from privlearn.errors import BadInput
from privlearn.publishing.model import PublishedModel
from privlearn_segmentation.scans.grid import Grid
from privlearn_segmentation.scans.nifti import (
    Scan,
    is_folder_of_scans,
    is_scan,
    read_scan,
    scans_at,
    write_mask,
)
from privlearn_segmentation.scans.windows import segmented


def are_scans(request: Request) -> bool:
    """Whether `--data` names a NIfTI file, or a folder of them."""
    path = Path(request.data)
    return is_scan(path) or (
        path.is_dir() and (is_folder_of_scans(path) or any(map(is_scan, path.iterdir())))
    )


def write_masks(request: Request, model: PublishedModel) -> int:
    """Write a mask for each scan: one into the file that `--out` names, those of a folder into a
    new folder.

    Of a folder, scans that can't be read are left out and named at the end; the exit code is then
    1.

    Raises:
        BadInput: a model that makes no maps of scans, a grid that is missing or of another shape, a
            scan given by itself that can't be read, or a place that is taken.
    """
    if request.part is not None or request.id is not None or request.schema is not None:
        raise BadInput(
            "--part, --id and --schema are for rows of other files than scans: leave them out"
        )
    grid = _grid(request, model)
    if model.classes is None or list(model.input_shape) != [1, *grid.shape]:
        raise BadInput(
            f"on a grid of {grid.spec} scans have shape {[1, *grid.shape]}, and this model takes "
            f"{list(model.input_shape)}: give the --grid that it was trained with"
        )
    places = _places(request)
    unread: list[str] = []
    with screen.progress_bar("predicting", "scans") as progress:
        for done, (source, out) in enumerate(places.items(), 1):
            try:
                scan = read_scan(source)
            except BadInput as error:
                if not Path(request.data).is_dir():
                    raise
                unread.append(str(error))
            else:
                write_mask(out, _mask(model, grid, scan, windows=request.windows), scan)
            progress(done, len(places))
    written = len(places) - len(unread)
    many = "1 mask is" if written == 1 else f"{written} masks are"
    screen.notes.print(
        f"{many} in {screen.plain(request.out)}, each with the affine and the spacing of its scan"
    )
    if unread:
        screen.warn(
            *unread, f"{len(unread)} of {len(places)} scans could not be read, and have no mask"
        )
    return 1 if unread else 0


def _grid(request: Request, model: PublishedModel) -> Grid:
    if request.grid is None and model.grid is None:
        raise BadInput(
            f"the model in {request.folder} was not trained on NIfTI files, so that it holds no "
            "grid: give the size in voxels that its rows were made from, --grid 40x56x40, or "
            "40x56x40/2 for blocks of 2 x 2 x 2"
        )
    grid = Grid.parse(str(model.grid if request.grid is None else request.grid))
    if model.grid is not None and grid != Grid.parse(model.grid):
        raise BadInput(
            f"--grid is {grid.spec}, and the model was trained on {model.grid}: leave it out"
        )
    return grid


def _places(request: Request) -> dict[Path, Path]:
    """Where the mask of each scan goes; a folder for several is made."""
    source = Path(request.data)
    if request.out is None:
        raise BadInput(
            "masks are files: give --out FILE.nii.gz, for a folder of scans --out FOLDER"
        )
    out, scans = Path(request.out), scans_at(source)
    if not source.is_dir():
        if not is_scan(out):
            raise BadInput(f"--out is {request.out}: expected a file that ends in .nii or .nii.gz")
        if out.exists() or out.is_symlink():
            raise BadInput(f"{out} exists already: choose another --out; nothing is overwritten")
        return {scans[0]: out}
    if is_scan(out):
        raise BadInput(
            f"--data is a folder of scans, and --out is {request.out}: give a new folder for their "
            "masks"
        )
    try:
        out.mkdir()
    except OSError as error:
        raise BadInput(
            f"the folder {out} cannot be made: {error.strerror}. Choose another --out"
        ) from error
    return {scan: out / scan.name for scan in scans}


def _mask(model: PublishedModel, grid: Grid, scan: Scan, *, windows: bool) -> NDArray[np.int64]:
    """The class of each voxel of a scan; without windows background where the model's grid does not
    reach.
    """
    row = torch.from_numpy(np.ascontiguousarray(grid.row(scan.values)))
    try:
        if windows:
            return segmented(model.predict_proba, grid, scan.values)
        predicted = model.predict(row).numpy()
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise BadInput(
            f"the model cannot run on scans: {str(error)[:200]}. Is it the one that was trained?"
        ) from error
    if predicted.shape != grid.shape:
        raise BadInput(
            f"the model gives {predicted.shape} for a scan of shape {grid.shape}: it makes no masks"
        )
    return grid.restored(predicted, scan.values.shape)
