"""From the published files of the named data sets to rows: one function each.

Every function takes the contents of files by name. These are the published ones, byte for byte,
when they come here. Bounds are pixel ranges, or what a data set's documentation declares; splits
are the official ones, or by row number alone.

Reader of .npz files. Nothing here unpickles.
"""

from __future__ import annotations

import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from privlearn.data.dataset import Dataset
from privlearn.data.encoding import encode_features, encode_target
from privlearn.data.schema import Schema, parse_schema
from privlearn.data.tables import Table
from privlearn.errors import BadInput, first_line

Contents = Mapping[str, bytes]
#: Makes the rows from the contents of the files, by name.
Reader = Callable[[Contents], Dataset]

_DIGITS = "datasets/data/digits.csv.gz"
_PIXELS = "pixel values scaled by their public range"
_SPLIT = "train and test split by row number alone"


def digits(files: Contents) -> Dataset:
    """8 x 8 images, as scikit-learn brings them along."""
    x, y = (part.astype(kind) for part, kind in zip(_digits(), (np.float32, np.int64), strict=True))
    return Dataset(
        **_split(x, y), classes=10, low=0.0, high=16.0, name="digits", note=f"{_PIXELS}; {_SPLIT}"
    )


def _digits() -> tuple[NDArray[Any], NDArray[Any]]:
    """Images, shape (rows, 8, 8), and labels."""
    package = find_spec("sklearn")
    file = Path(package.origin if package and package.origin else "").parent / _DIGITS
    if file.is_file():  # importing scikit-learn takes four times as long as all else here
        cells = np.loadtxt(file, delimiter=",")
        return cells[:, :-1].reshape(-1, 8, 8), cells[:, -1]
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return bunch.images, bunch.target


def breast_cancer(files: Contents) -> Dataset:
    """30 measurements, as scikit-learn brings them along."""
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    x, y = bunch.data.astype(np.float32), bunch.target.astype(np.int64)
    # The documentation of the data set prints each feature's range; these are its maxima, rounded
    # up.
    means = [30, 40, 190, 2510, 0.2, 0.4, 0.5, 0.21, 0.31, 0.1]
    errors = [3, 5, 22, 550, 0.04, 0.14, 0.4, 0.06, 0.08, 0.03]
    worst = [37, 50, 260, 4260, 0.23, 1.06, 1.26, 0.3, 0.67, 0.21]
    high = np.array(means + errors + worst, dtype=np.float32)
    note = f"ranges as the data set's documentation prints them, rounded outward; {_SPLIT}"
    return Dataset(
        **_split(x, y),
        classes=2,
        low=np.zeros_like(high),
        high=high,
        name="breast-cancer",
        note=note,
        feature_names=tuple(bunch.feature_names),
    )


def idx(name: str) -> Reader:
    """The four files of MNIST and of those that took over its format."""

    def read(files: Contents) -> Dataset:
        def images(file: str) -> NDArray[np.uint8]:
            return np.frombuffer(files[file], np.uint8, offset=16).reshape(-1, 28, 28)

        def labels(file: str) -> NDArray[np.uint8]:
            return np.frombuffer(files[file], np.uint8, offset=8)

        return Dataset(
            images("train-images-idx3-ubyte"),
            labels("train-labels-idx1-ubyte"),
            images("t10k-images-idx3-ubyte"),
            labels("t10k-labels-idx1-ubyte"),
            classes=10,
            low=0.0,
            high=255.0,
            name=name,
            note=_PIXELS,
        )

    return read


def usps(files: Contents) -> Dataset:
    """16 x 16 images; pixels are stored as whole numbers from 0 to 2000."""
    z = _npz(files["usps.npz"])
    parts: dict[str, Any] = {
        "x": z["x_train"],
        "y": z["y_train"],
        "x_test": z["x_test"],
        "y_test": z["y_test"],
    }
    return Dataset(**parts, classes=10, low=0.0, high=2000.0, name="usps", note=_PIXELS)


def usps_all(files: Contents) -> Dataset:
    """16 x 16 images, 1100 of each digit, without an official split."""
    from scipy.io import loadmat

    data = loadmat(io.BytesIO(files["usps_all.mat"]), variable_names=["data"])["data"]
    # (256 pixels, column by column; 1100 images; the digits 1, 2, ..., 9, 0)
    x = data.transpose(2, 1, 0).reshape(-1, 16, 16).transpose(0, 2, 1)
    y = np.repeat(np.arange(1, 11) % 10, 1100)
    note = f"{_PIXELS}; {_SPLIT}"
    return Dataset(
        **_split(np.ascontiguousarray(x), y),
        classes=10,
        low=0.0,
        high=255.0,
        name="usps-all",
        note=note,
    )


def wisconsin(files: Contents) -> Dataset:
    """9 cell features from 1 to 10; a missing one (16 bare nuclei) counts as 5.5, the middle of its
    range.
    """
    schema = _schema("wisconsin")
    header = ("id", *schema.columns)
    table = _table(files["breast-cancer-wisconsin.data"], "wisconsin", header)
    low, high = schema.bounds()
    note = (
        "ranges as the data set's documentation declares them, missing values count as 5.5; "
        f"{_SPLIT}"
    )
    return Dataset(
        **_split(encode_features(table, schema), encode_target(table, schema)),
        classes=2,
        low=low,
        high=high,
        name="wisconsin",
        note=note,
        schema=schema,
        feature_names=schema.feature_names,
    )


def adult(files: Contents) -> Dataset:
    """Census rows: numbers, and categories as 0 and 1; the official split."""
    schema = _schema("adult")
    parts: dict[str, Any] = {}
    for part, file in (("", "adult.data"), ("_test", "adult.test")):
        # In adult.test the first line is a comment, and rows end in a dot.
        lines = files[file].decode("ascii").splitlines()
        rows = "\n".join(line.removesuffix(".") for line in lines if not line.startswith("|"))
        table = _table(rows.encode(), file, _ADULT)
        parts["x" + part], parts["y" + part] = (
            encode_features(table, schema),
            encode_target(table, schema),
        )
    low, high = schema.bounds()
    return Dataset(
        **parts,
        classes=2,
        low=low,
        high=high,
        name="adult",
        schema=schema,
        feature_names=schema.feature_names,
        note="categories as the data set's documentation lists them, "
        "declared ranges, missing categories count as none of them",
    )


def cifar10_binary(files: Contents) -> Dataset:
    """3 x 32 x 32 images, as the University of Toronto publishes them."""
    with tarfile.open(fileobj=io.BytesIO(files["cifar-10-binary.tar.gz"])) as archive:

        def read(name: str) -> NDArray[np.uint8]:
            member = archive.extractfile(f"cifar-10-batches-bin/{name}.bin")
            assert member is not None
            return np.frombuffer(member.read(), np.uint8).reshape(-1, 1 + 3072)

        train, test = (
            np.concatenate([read(f"data_batch_{i}") for i in range(1, 6)]),
            read("test_batch"),
        )
    images = [rows[:, 1:].reshape(-1, 3, 32, 32) for rows in (train, test)]
    return Dataset(
        images[0],
        train[:, 0],
        images[1],
        test[:, 0],
        classes=10,
        low=0.0,
        high=255.0,
        name="cifar10",
        note=_PIXELS,
    )


def cifar10_recoded(files: Contents) -> Dataset:
    """3 x 32 x 32 images from differences under xz; 96 of the 60000 are JPEG copies of the
    originals.
    """

    def images(file: str) -> NDArray[np.uint8]:
        """Undo differences along the height and the width, and of red and blue from green."""
        coded = np.frombuffer(lzma.decompress(files[file]), np.uint8).reshape(-1, 3, 32, 32)
        pixels: NDArray[np.uint8] = coded.cumsum(2, dtype=np.uint8).cumsum(3, dtype=np.uint8)
        pixels[:, ::2] += pixels[:, 1:2]
        return pixels

    labels = _npz(files["labels.npz"])
    return Dataset(
        images("train_images.delta.xz"),
        labels["y_train"],
        images("test_images.delta.xz"),
        labels["y_test"],
        classes=10,
        low=0.0,
        high=255.0,
        name="cifar10",
        note=f"{_PIXELS}; 76 of the training and 20 of the test images are JPEG copies",
    )


def cifar10_features(files: Contents) -> Dataset:
    """1024 features from 0 to 6 by a network trained on other images, coded in steps of 0.15625."""
    codes = np.frombuffer(lzma.decompress(files["features.u8.xz"]), np.uint8).reshape(1024, 60000).T
    labels = _npz(files["labels.npz"])
    note = (
        "MobileNet features (trained on ImageNet, not on these images), means of activations that "
        "the network caps at 6: scaled by that public range"
    )
    return Dataset(
        np.ascontiguousarray(codes[:50000]),
        labels["y_train"],
        np.ascontiguousarray(codes[50000:]),
        labels["y_test"],
        classes=10,
        low=0.0,
        high=6 / 0.15625,
        name="cifar10-features",
        note=note,
    )


def _table(raw: bytes, name: str, header: Sequence[str]) -> Table:
    """A published table without a line of names, its cells as texts."""
    import pyarrow as pa
    from pyarrow import csv

    table = csv.read_csv(
        pa.BufferReader(raw),
        read_options=csv.ReadOptions(column_names=list(header)),
        convert_options=csv.ConvertOptions(
            column_types=dict.fromkeys(header, pa.string()), strings_can_be_null=False
        ),
    )
    return Table(name, dict(zip(table.column_names, table.columns, strict=True)))


def _schema(name: str) -> Schema:
    return parse_schema(
        resources.files(__package__).joinpath(f"{name}.toml").read_text(encoding="utf-8"), name
    )


def _npz(content: bytes) -> dict[str, NDArray[Any]]:
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        return dict(archive)


def _split(x: NDArray[Any], y: NDArray[Any]) -> dict[str, Any]:
    """A fixed split by row number, four fifths to train on: it does not look at the rows."""
    order = np.random.default_rng(0).permutation(len(x))
    train, test = np.sort(order[: len(x) * 4 // 5]), np.sort(order[len(x) * 4 // 5 :])
    return {"x": x[train], "y": y[train], "x_test": x[test], "y_test": y[test]}


#: The columns of adult.data, as adult.names has them.
_ADULT = (
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
    "income",
)


def read_npz(path: Path, *, public: bool = False) -> dict[str, Any]:
    """Read `x`, `y` and, where there, `x_test`, `y_test` and `groups` from an .npz file; `remarks`
    name other arrays.

    Args:
        path: the file.
        public: whether its rows are public: `x` and `x_test` may then be there without targets.

    Raises:
        BadInput: the file is missing, cannot be read without unpickling, or lacks an array.
    """
    arrays: dict[str, Any] = _arrays(path, ("x", "y", "x_test", "y_test", "groups"))
    pairs = [("x" in arrays, "y" in arrays), ("x_test" in arrays, "y_test" in arrays)]
    unpaired = any(
        targets > inputs or (inputs > targets and not public) for inputs, targets in pairs
    )
    if "x" not in arrays or unpaired:
        raise BadInput(
            f"{path} holds {', '.join(arrays)}: expected x and y, and x_test and y_test together"
        )
    if others := [name for name in _names(path) if name not in arrays]:
        listed = ", ".join(repr(name[:40]) for name in others[:12])
        arrays["remarks"] = (
            (
                f"arrays of {path.name} that are not read: {listed}. Known are x, y, x_test, "
                "y_test and groups"
            ),
        )
    return arrays


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
            arrays = {name: archive[name] for name in names if name in archive}
            if not arrays:
                raise ValueError(
                    f"it holds {', '.join(archive.files) or 'nothing'}, and none of "
                    f"{', '.join(names)}"
                )
            return arrays
    except Exception as error:  # on damaged files zipfile and numpy raise a dozen kinds of error
        reason = first_line(error)
        if "pickle" in reason:
            reason = (
                "it holds pickled objects" if zipfile.is_zipfile(path) else "it is no .npz file"
            )
        elif not zipfile.is_zipfile(path):
            reason = "it is cut short, or no .npz file"
        raise BadInput(f"{path} cannot be read as an .npz of plain numbers: {reason}") from error
