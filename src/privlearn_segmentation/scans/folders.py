"""Folders of NIfTI scans and masks as data sets: the form that `load` finds by its entry point."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from privlearn.data.dataset import Dataset
from privlearn.errors import BadInput
from privlearn_segmentation.scans import nifti
from privlearn_segmentation.scans.grid import Grid


class ScanFolders:
    """Folders that hold `images` and `labels`, NIfTI scans and their masks."""

    def holds(self, folder: Path) -> bool:
        """Whether a folder has folders of scans to train on."""
        return nifti.is_folder_of_scans(folder)

    def read(
        self,
        folder: Path,
        classes: int | None,
        grid: str | Grid | None,
        others: Collection[str],
        *,
        public: bool,
    ) -> Dataset:
        """The scans of a folder, each brought to one grid.

        Args:
            folder: with `images` and `labels`.
            classes: the declared number of classes of the masks.
            grid: the declared size, as `Grid.parse` reads it.
            others: what else was declared, which does not go with scans.
            public: whether the rows are declared public.

        Raises:
            BadInput: classes or grid are not declared, or something else is; or files that can't be
                used.
        """
        if classes is None or grid is None or others:
            raise BadInput(
                f"{folder} is a folder of scans: declare the classes of its masks and one size for "
                "all, classes=K and grid='40x56x40'; leave out "
                f"{' and '.join(sorted(others)) or 'the rest'}"
            )
        grid = grid if isinstance(grid, Grid) else Grid.parse(grid)
        rows = nifti.read_folder(folder, classes, grid, public=public)
        note = f"scans scaled by their own 1st and 99th percentile, on a grid of {grid.spec} voxels"
        return Dataset(
            **rows,
            classes=classes,
            low=0.0,
            high=1.0,
            name=folder.name,
            note=note,
            public=public,
            grid=grid.spec,
        )


SCANS = ScanFolders()
