"""Data sets by name, or by the path of an .npz file.

Scaling uses declared public ranges only: pixel ranges, or the ranges that a data set's own documentation prints.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privlearn.data.dataset import Dataset
from privlearn.data.readers import read_idx, read_npz
from privlearn.errors import BadInput

#: Where to look for data directories when none is given.
DATA_VARIABLE = "PRIVLEARN_DATA"


def load(
    name: str,
    data_dir: str | Path | None = None,
    *,
    classes: int | None = None,
    value_range: tuple[float, float] | None = None,
) -> Dataset:
    """Load the data set called `name`, or the .npz file at that path.

    Args:
        name: one of `NAMES`, or the path of an .npz with `x`, `y` and optionally `x_test`, `y_test`, and `groups`
            (a person's id for each row of x).
        data_dir: where data sets that are not embedded lie; by default the variable PRIVLEARN_DATA.
        classes: the declared number of classes; needed for a path.
        value_range: the declared public range of the inputs; needed for a path.

    Raises:
        BadInput: an unknown name, a missing file, or contents that can't be used.
    """
    if name in NAMES:
        if classes is not None or value_range is not None:
            raise BadInput(f"the classes and the range of {name} are known: leave out --classes and --range")
        data = NAMES[name](directory(data_dir))
        return data.checked()
    path = Path(name)
    if path.suffix != ".npz" and not path.exists():
        raise BadInput(
            f"data set {name!r} is unknown: expected one of {', '.join(NAMES)}, or the path of an .npz file",
            name=name,
            known=list(NAMES),
        )
    if classes is None or value_range is None:
        raise BadInput(
            f"for {name} the number of classes and the range of the inputs must be declared, because they may not be "
            "read off private rows: give --classes K and --range LO,HI (public knowledge, for example 0,255 for pixels)"
        )
    low, high = value_range
    if not -np.inf < low < high < np.inf:
        raise BadInput(f"the range of the inputs is {low:g},{high:g}: expected two finite numbers, the smaller first")
    note = f"inputs declared to lie in [{low:g}, {high:g}], values outside are clipped"
    return Dataset(**read_npz(path), classes=classes, low=low, high=high, name=path.name, note=note).checked()


def directory(data_dir: str | Path | None) -> Path | None:
    """The data directory that was given, or the one that PRIVLEARN_DATA names."""
    found = data_dir or os.environ.get(DATA_VARIABLE)
    return Path(found) if found else None


def _digits(directory: Path | None) -> Dataset:
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x, y = bunch.images.astype(np.float32), bunch.target.astype(np.int64)
    return Dataset(**_split(x, y), classes=10, low=0.0, high=16.0, name="digits", note=_PIXELS + "; " + _SPLIT)


def _breast_cancer(directory: Path | None) -> Dataset:
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    x, y = bunch.data.astype(np.float32), bunch.target.astype(np.int64)
    # The documentation of the data set prints each feature's range; these are its maxima, rounded up.
    means = [30, 40, 190, 2510, 0.2, 0.4, 0.5, 0.21, 0.31, 0.1]
    errors = [3, 5, 22, 550, 0.04, 0.14, 0.4, 0.06, 0.08, 0.03]
    worst = [37, 50, 260, 4260, 0.23, 1.06, 1.26, 0.3, 0.67, 0.21]
    high = np.array(means + errors + worst, dtype=np.float32)
    note = "ranges as the data set's documentation prints them, rounded outward; " + _SPLIT
    return Dataset(**_split(x, y), classes=2, low=np.zeros_like(high), high=high, name="breast-cancer", note=note)


def _idx(folder: str) -> Callable[[Path | None], Dataset]:
    def read(directory: Path | None) -> Dataset:
        if directory is None:
            raise BadInput(
                f"{folder} does not come with privlearn: give --data-dir DIR (or set {DATA_VARIABLE}), where "
                f"DIR/{folder} holds the four files train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, "
                "t10k-images-idx3-ubyte.gz and t10k-labels-idx1-ubyte.gz"
            )
        parts = {
            "x": "train-images-idx3-ubyte.gz",
            "y": "train-labels-idx1-ubyte.gz",
            "x_test": "t10k-images-idx3-ubyte.gz",
            "y_test": "t10k-labels-idx1-ubyte.gz",
        }
        arrays: dict[str, Any] = {part: read_idx(directory / folder / file) for part, file in parts.items()}
        return Dataset(**arrays, classes=10, low=0.0, high=255.0, name=folder, note=_PIXELS)

    return read


def _split(x: NDArray[Any], y: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """A fixed split by row number, four fifths to train on: it does not look at the rows."""
    order = np.random.default_rng(0).permutation(len(x))
    train, test = np.sort(order[: len(x) * 4 // 5]), np.sort(order[len(x) * 4 // 5 :])
    return {"x": x[train], "y": y[train], "x_test": x[test], "y_test": y[test]}


_PIXELS = "pixel values scaled by their public range"
_SPLIT = "train and test split by row number alone"

#: The named data sets and how each is read.
NAMES: dict[str, Callable[[Path | None], Dataset]] = {
    "digits": _digits,
    "breast-cancer": _breast_cancer,
    "mnist": _idx("mnist"),
    "fashion-mnist": _idx("fashion-mnist"),
}
#: Those that come with scikit-learn.
EMBEDDED = ("digits", "breast-cancer")
