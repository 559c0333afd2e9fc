"""Reader of .npz files. Nothing here unpickles."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privlearn.errors import BadInput, first_line


def read_npz(path: Path, *, public: bool = False) -> dict[str, Any]:
    """Read `x`, `y` and, where there, `x_test`, `y_test` and `groups` from an .npz file; `asides` name other arrays.

    Args:
        path: the file.
        public: whether its rows are public: `x_test` may then be there without `y_test`.

    Raises:
        BadInput: the file is missing, cannot be read without unpickling, or lacks an array.
    """
    found: dict[str, Any] = _arrays(path, ("x", "y", "x_test", "y_test", "groups"))
    missing = [key for key in ("x", "y") if key not in found]
    if missing or (("x_test" in found) != ("y_test" in found) and not (public and "x_test" in found)):
        raise BadInput(f"{path} holds {', '.join(found)}: expected x and y, and x_test and y_test together")
    if others := [name for name in _names(path) if name not in found]:
        shown = ", ".join(repr(name[:40]) for name in others[:12])
        found["asides"] = (
            f"arrays of {path.name} that are not read: {shown}. Known are x, y, x_test, y_test and groups",
        )
    return found


def read_inputs(path: Path, name: str = "x") -> NDArray[Any]:
    """Read the inputs called `name` from an .npz file.

    Raises:
        BadInput: as `read_npz`.
    """
    return _arrays(path, (name,))[name]


def _names(path: Path) -> list[str]:
    """All arrays in a file that was read."""
    with np.load(path, allow_pickle=False) as archive:
        return list(archive.files)


def _arrays(path: Path, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    if not path.is_file():
        raise BadInput(f"there is no file {path}: expected an .npz with {' and '.join(names[:2])}")
    try:
        with np.load(path, allow_pickle=False) as archive:
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("it holds a single array")
            found = {name: archive[name] for name in names if name in archive}
            if not found:
                raise ValueError(f"it holds {', '.join(archive.files) or 'nothing'}, and none of {', '.join(names)}")
            return found
    except Exception as error:  # on damaged files zipfile and numpy raise a dozen kinds of error
        reason = first_line(error)
        if "pickle" in reason:
            reason = "it holds pickled objects" if zipfile.is_zipfile(path) else "it is no .npz file"
        elif not zipfile.is_zipfile(path):
            reason = "it is cut short, or no .npz file"
        raise BadInput(f"{path} cannot be read as an .npz of plain numbers: {reason}") from error
