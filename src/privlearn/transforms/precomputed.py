"""A folder of features, one row for each row of the data: written, read, and matched with the rows
they were made of.

Features that were made elsewhere, by a declared public encoder: what is said of them, and what is
still done to them.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from privlearn._checks import checked, count, with_plain_numbers
from privlearn._storage import loads, write_durably
from privlearn.core.row_transform import RowTransform
from privlearn.data.dataset import Dataset, require_finite
from privlearn.errors import BadInput, first_line
from privlearn.transforms.sources import EACH_EXAMPLE, NONE, Precomputed, is_digest

#: What a folder says of its features.
ABOUT = "features.json"
_PARTS = ("train", "test")
_SUFFIXES = (".npy", ".npz", ".safetensors")
_LARGEST, _ROWS_AT_ONCE = 1 << 16, 4096


@with_plain_numbers
@final
@dataclass(frozen=True)
class FeatureFolder:
    """A folder of features: `features.json`, and `train`, maybe `test`, as .npy, .npz or
    .safetensors, in data order.

    Attributes:
        path: where it is.
        encoder: what made them, as declared.
        shape: of one row of features.
        rows: SHA-256 of the rows that a part was made from, where the folder says so. As secret as
            the rows.
    """

    path: Path
    encoder: Precomputed
    shape: tuple[int, ...]
    rows: Mapping[str, str]

    @classmethod
    def read(cls, path: str | Path) -> FeatureFolder:
        """What the folder says of its features; they are not read yet.

        Raises:
            BadInput: there is no such folder, or it does not say what is needed.
        """
        folder = Path(path)
        about = _about(folder)
        unknown = sorted(set(about) - {"encoder", "shape", "sha256", "normalise", "rows"})
        if unknown or not {"encoder", "shape"} <= set(about):
            raise BadInput(
                f"{folder / ABOUT} has the fields {', '.join(sorted(map(str, about)))[:200]}: "
                "expected encoder and shape, and perhaps sha256, normalise and rows"
            )
        shape, normalise, rows = about["shape"], about.get("normalise", True), about.get("rows", {})
        if not isinstance(shape, list) or not shape:
            raise BadInput(
                f"shape in {folder / ABOUT} is {str(shape)[:60]}: expected that of one row, such "
                "as [384]"
            )
        for size in shape:
            count(f"a size of shape in {folder / ABOUT}", size, most=1 << 31)
        if not isinstance(normalise, bool):
            raise BadInput(
                f"normalise in {folder / ABOUT} is {str(normalise)[:60]}: expected true or false"
            )
        if (
            not isinstance(rows, dict)
            or not set(rows) <= set(_PARTS)
            or not all(map(is_digest, rows.values()))
        ):
            raise BadInput(
                f"rows in {folder / ABOUT} is {str(rows)[:60]}: expected SHA-256 of the rows, by "
                "the name of the part, "
                '{"train": "64 hexadecimal digits"}'
            )
        encoder = Precomputed(
            about["encoder"], about.get("sha256", ""), EACH_EXAMPLE if normalise else NONE
        )
        return cls(folder, encoder, tuple(shape), rows)

    def part(self, name: str) -> NDArray[Any] | None:
        """Features of a part, `train` or `test`; None if the folder has none. An .npy is not read
        before it is used.

        Raises:
            BadInput: they can't be read, or are not what the folder says.
        """
        files = [
            self.path / f"{name}{suffix}"
            for suffix in _SUFFIXES
            if (self.path / f"{name}{suffix}").is_file()
        ]
        if len(files) > 1:
            raise BadInput(
                f"{self.path} holds {' and '.join(file.name for file in files)}: expected one of "
                "them"
            )
        if not files:
            return None
        values = _read(files[0])
        if values.dtype.kind != "f" or values.ndim < 2 or values.shape[1:] != self.shape:
            raise BadInput(
                f"{files[0]} holds {values.dtype} values of shape {values.shape}: expected "
                f"floating-point numbers, and rows of shape {self.shape}, as {ABOUT} says"
            )
        for start in range(0, len(values), _ROWS_AT_ONCE):
            require_finite(
                str(files[0]),
                f"rows {start} to {start + _ROWS_AT_ONCE}",
                values[start : start + _ROWS_AT_ONCE],
            )
        return values

    def of(self, data: Dataset) -> Dataset:
        """The data with these features in place of its rows, without their bounds.

        Raises:
            BadInput: features of another number of rows, or of other rows, as far as the folder
                says.
        """
        train = self.part("train")
        if train is None:
            raise BadInput(
                f"{self.path} has no features to train on: expected train{_SUFFIXES[0]}, .npz or "
                ".safetensors"
            )
        self._require_rows("train", train, data.x)
        test = None if data.x_test is None else self.part("test")
        if test is not None:
            self._require_rows("test", test, data.x_test)
        remarks = []
        if data.x_test is not None and test is None:
            remarks.append(
                f"{self.path} has no features of the test rows: there will be no test figures"
            )
        if "train" not in self.rows or (test is not None and "test" not in self.rows):
            remarks.append(
                f"{self.path} does not say which rows its features were made of, so their order is "
                "not checked: only their number is. Save them with "
                "pv.transforms.save_features(..., of=data)"
            )
        return replace(
            data,
            x=train,
            x_test=test,
            y_test=None if test is None else data.y_test,
            low=None,
            high=None,
            schema=None,
            feature_names=(),
            remarks=(*data.remarks, *remarks),
        )

    def _require_rows(self, part: str, features: NDArray[Any], x: Any) -> None:
        """Refuse features of other rows than `x`, by number and, where the folder has one, by
        digest.
        """
        if len(features) != len(x):
            raise BadInput(
                f"{self.path} has features of {len(features)} {part} rows, and the data have "
                f"{len(x)}: expected one for each, in the data's order"
            )
        if part in self.rows and self.rows[part].lower() != rows_digest(x):
            raise BadInput(
                f"the features in {self.path} were made of other {part} rows than these, or of "
                f"these in another order: their SHA-256 is not the one in {ABOUT}. Make them anew"
            )


@checked
def save_features(
    folder: str | Path,
    train: Any,
    test: Any = None,
    *,
    encoder: str,
    sha256: str = "",
    normalise: bool = True,
    of: Dataset | None = None,
) -> FeatureFolder:
    """Write features into a new folder, for `features=FOLDER` and `pv.transforms.read_features`: as
    secret as the rows.

    Args:
        folder: it must not be there yet.
        train: features of the training rows, an array or a tensor of shape (rows, ...), in the
            data's order.
        test: those of the test rows, if there are any.
        encoder: what made them, in words; public, and published. You declare that no private row
            had a part in it.
        sha256: of the encoder's weights, to be published with its name.
        normalise: whether each row is brought to mean 0 and variance 1 before it is learned from.
        of: the data that they were made from: the SHA-256 of its rows is kept, so that another
            order is noticed. Without it only their number is checked.

    Raises:
        BadInput: numbers that are none, rows that do not match, or a folder that can't be written.
    """
    path = Path(folder)
    precomputed = Precomputed(encoder, sha256, EACH_EXAMPLE if normalise else NONE)
    parts = {
        name: np.asarray(part)
        for name, part in (("train", train), ("test", test))
        if part is not None or name == "train"
    }
    shape = parts["train"].shape[1:]
    digests = {}
    for name, part in parts.items():
        rows = None if of is None else {"train": of.x, "test": of.x_test}[name]
        if part.dtype.kind != "f":
            raise BadInput(
                f"{name} features are {part.dtype} values: expected floating-point numbers, for "
                "example by .astype(np.float32)"
            )
        if part.ndim < 2 or part.shape[1:] != shape:
            wanted = f", of shape {shape} as those of train" if len(shape) else ""
            raise BadInput(
                f"{name} features have shape {part.shape}: expected one row for each "
                f"example{wanted}"
            )
        if of is not None and (rows is None or len(rows) != len(part)):
            raise BadInput(
                f"there are features of {len(part)} {name} rows, and the data have "
                f"{0 if rows is None else len(rows)}: expected one for each"
            )
        if rows is not None:
            digests[name] = rows_digest(rows)
    about = {
        "encoder": precomputed.name,
        "sha256": sha256,
        "shape": list(shape),
        "normalise": normalise,
        "rows": digests,
    }
    try:
        path.mkdir(mode=0o700, parents=True)
        for name, part in parts.items():
            np.save(path / f"{name}.npy", part)
        write_durably(path / ABOUT, (json.dumps(about, indent=1) + "\n").encode())
    except OSError as error:
        raise BadInput(
            f"features can't be written to {path}: {error.strerror or error}. Give a new folder"
        ) from error
    return FeatureFolder(path, precomputed, shape, digests)


def rows_digest(x: Any) -> str:
    """SHA-256 of an array's shape and type, such as "(60000, 28, 28) uint8", a line feed, and its
    bytes in C order.
    """
    values = np.asarray(x)
    digest = hashlib.sha256(f"{values.shape} {values.dtype}\n".encode())
    for start in range(0, len(values), _ROWS_AT_ONCE):
        part = np.ascontiguousarray(values[start : start + _ROWS_AT_ONCE])
        digest.update(part.astype(part.dtype.newbyteorder("<"), copy=False).tobytes())
    return digest.hexdigest()


def is_folder(spec: str) -> bool:
    """Whether features are given as a folder: one that is there, or a path."""
    return "/" in spec or os.sep in spec or Path(spec).is_dir()


def _about(folder: Path) -> dict[str, Any]:
    file = folder / ABOUT
    try:
        with file.open("rb") as opened:
            about = loads(opened.read(_LARGEST))
    except OSError as error:
        raise BadInput(
            f"{file} cannot be read: {error.strerror or error}. A folder of features has one, "
            "which says by which "
            "encoder "
            'they were made and of which shape a row is: {"encoder": "...", "shape": [384]}'
        ) from error
    except ValueError as error:
        raise BadInput(f"{file} is not readable JSON: {first_line(error)}") from error
    if not isinstance(about, dict):
        raise BadInput(f'{file} holds no object: expected {{"encoder": "...", "shape": [384]}}')
    return about


def _read(file: Path) -> NDArray[Any]:
    """The one array in a file; nothing is unpickled."""
    try:
        if file.suffix == ".npy":
            # Pages are read as they are needed. "c": what is written stays in memory ("r" makes
            # tensors that must not be).
            return np.asanyarray(np.load(file, mmap_mode="c", allow_pickle=False))
        if file.suffix == ".npz":
            with np.load(file, allow_pickle=False) as archive:
                arrays = {name: archive[name] for name in archive.files[:2]}
        else:
            from safetensors.torch import load_file

            tensors = load_file(file)
            arrays = {
                name: (tensor.float() if tensor.is_floating_point() else tensor).numpy()
                for name, tensor in tensors.items()
            }
        if len(arrays) != 1:
            raise ValueError(f"it holds {len(arrays) or 'no'} arrays, and one is expected")
    except Exception as error:  # on damaged files the readers raise a dozen kinds of error
        raise BadInput(
            f"{file} cannot be read as an array of plain numbers: {first_line(error)}"
        ) from error
    return next(iter(arrays.values()))


@final
class PrecomputedRows(RowTransform):
    """Takes rows of features as they are, or brings each by itself to mean 0 and variance 1.

    Args:
        encoder: what made them, as declared.
    """

    kind = Precomputed.kind
    at_once = True

    def __init__(self, encoder: Precomputed) -> None:
        super().__init__()
        self.encoder = encoder

    @property
    def spec(self) -> str:
        """What they are called."""
        return self.encoder.spec

    def describe(self) -> dict[str, Any]:
        """What the certificate says of it: nothing that depends on a row."""
        encoder = self.encoder
        return {
            "kind": self.kind,
            "spec": encoder.spec,
            "digest": encoder.digest,
            "normalisation": encoder.normalisation,
        }

    def config(self) -> dict[str, Any]:
        """What a published configuration states of it."""
        return self.describe()

    def forward(self, x: Tensor) -> Tensor:
        """Hand on rows of features (batch, ...)."""
        return x if self.encoder.normalisation == NONE else F.layer_norm(x.float(), x.shape[1:])
