"""Readers of files. Nothing here unpickles."""

from __future__ import annotations

import gzip
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privlearn.errors import BadInput


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Read a gzipped IDX file of bytes (the MNIST format).

    Raises:
        BadInput: the file is missing or is not such a file.
    """
    if not path.is_file():
        raise BadInput(f"there is no file {path}: expected a gzipped IDX file there; check --data-dir", path=str(path))
    try:
        raw = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"{path} is no readable gzip file: {error}. Fetch it again", path=str(path)) from error
    dimensions = raw[3] if len(raw) > 3 and raw[:3] == b"\0\0\x08" else 0
    shape = tuple(int.from_bytes(raw[4 * i : 4 * i + 4], "big") for i in range(1, dimensions + 1))
    start = 4 * (dimensions + 1)
    if not dimensions or len(raw) != start + int(np.prod(shape)):
        raise BadInput(f"{path} is no IDX file of bytes, or it is cut short: fetch it again", path=str(path))
    return np.frombuffer(raw, np.uint8, offset=start).reshape(shape)


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Read `x`, `y` and, where there, `x_test`, `y_test` and `groups` from an .npz file.

    Raises:
        BadInput: the file is missing, cannot be read without unpickling, or lacks an array.
    """
    found = _arrays(path, ("x", "y", "x_test", "y_test", "groups"))
    missing = [key for key in ("x", "y") if key not in found]
    if missing or ("x_test" in found) != ("y_test" in found):
        raise BadInput(f"{path} holds {', '.join(found)}: expected x and y, and x_test and y_test together")
    return found


def read_inputs(path: Path, name: str = "x") -> NDArray[Any]:
    """Read the inputs called `name` from an .npz file.

    Raises:
        BadInput: as `read_npz`.
    """
    return _arrays(path, (name,))[name]


def _arrays(path: Path, names: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    if not path.is_file():
        raise BadInput(f"there is no file {path}: expected an .npz with x, y and optionally x_test, y_test")
    try:
        with np.load(path, allow_pickle=False) as archive:
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise ValueError("it holds a single array")
            found = {name: archive[name] for name in names if name in archive}
            if not found:
                raise ValueError(f"it holds {', '.join(archive.files) or 'nothing'}, and none of {', '.join(names)}")
            return found
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        reason = "it holds pickled objects" if "pickle" in str(error) and zipfile.is_zipfile(path) else str(error)
        reason = "it is no .npz file" if "pickle" in reason and reason == str(error) else reason
        raise BadInput(f"{path} cannot be read as an .npz of plain numbers: {reason}") from error
