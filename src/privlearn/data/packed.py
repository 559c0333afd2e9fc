"""Rows on disk, fetched by index: folders of .npy files, which are memory-mapped, and what makes
them of tables.

A random batch of a Parquet file touches nearly every row group, and one of a CSV file all lines
before. So a table is packed once: its features and labels, encoded as its schema declares, chunk by
chunk, as numbers of one size each.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tokenize import TokenError
from typing import Any, final
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from privlearn._checks import count
from privlearn._storage import draft_of, loads
from privlearn.data.databases import Address, read_address
from privlearn.data.dataset import Dataset, require_finite, require_labels
from privlearn.data.encoding import (
    UnmatchedCells,
    encode_features,
    encode_persons,
    encode_target,
)
from privlearn.data.schema import Schema, read_schema, require_range
from privlearn.data.tables import is_frame, read_chunks
from privlearn.errors import BadInput, DataWarning, first_line, warn

#: What a folder may hold: arrays, and what is declared of them.
PARTS = ("x", "y", "groups", "x_test", "y_test")
DECLARED = "data.json"
#: Bytes of a person's digest.
_PERSON = 16

Say = Callable[[int], None]


def pack(
    source: Any,
    out: str | Path,
    *,
    schema: str | Path | Schema | None = None,
    test: Any = None,
    classes: int | None = None,
    value_range: tuple[float, float] | None = None,
    target_bounds: tuple[float, float] | None = None,
    say: Say = lambda rows: None,
) -> Path:
    """Write the rows of `source` into the folder `out`, from which `pv.load(out)` has them fetched
    by index.

    One chunk of rows is in memory at a time. Whatever is no such number, label or declared category
    is refused as by `pv.load`, for the data's curator. What is packed is as private as the rows. A
    person's id is packed as a digest.

    Args:
        source: a .parquet or .csv file, the address of a table in a database, a data frame, or an
            iterable of pairs (inputs, targets) of arrays, chunk by chunk.
        out: a folder that is not there yet; it appears when it is complete.
        schema: what is declared of a table, or the TOML file that says so; needed for a table.
        test: a table of the same columns to test on; not covered by any guarantee.
        classes: the declared number of classes; needed for pairs of arrays, unless targets are
            numbers.
        value_range: the declared public range of the inputs; needed for pairs of arrays.
        target_bounds: of pairs of arrays whose targets are numbers, their declared public range.
        say: called with the number of rows so far, which is private, after each chunk.

    Raises:
        BadInput: what can't be used, with its place; or a folder that is there.
    """
    source, test, out = read_address(source), read_address(test), Path(out)
    if out.exists():
        raise BadInput(
            f"{out} is there already: give a folder that is not, or remove it first", path=str(out)
        )
    tables = isinstance(source, str | Path) or is_frame(source)
    targets = None if classes is None and target_bounds is None else (classes, target_bounds)
    _require_declared(source, tables, schema, test, targets, value_range)
    parts: dict[str, Iterator[dict[str, NDArray[Any]]]]
    if tables:
        assert schema is not None
        schema = schema if isinstance(schema, Schema) else read_schema(schema)
        parts = {"": _encode_chunks(source, schema, persons=True)}
        if test is not None:
            parts["_test"] = _encode_chunks(test, schema, persons=False)
        declared: dict[str, Any] = {"schema": schema.to_json()}
    else:
        assert value_range is not None
        declared = {"classes": classes, "range": list(value_range), "target_bounds": target_bounds}
        _of_arrays(declared)
        parts = {"": _pairs(source, classes)}
    draft = draft_of(out)
    shutil.rmtree(draft, ignore_errors=True)
    try:
        draft.mkdir(parents=True)
        for ending, chunks in parts.items():
            with ExitStack() as files:
                _write(draft, ending, chunks, say, files)
        (draft / DECLARED).write_text(json.dumps({"name": _name_of(source), **declared}, indent=1))
        draft.rename(out)
    except OSError as error:
        raise BadInput(
            f"{out} cannot be written: {error.strerror or error}. Free some space, or choose "
            "another place"
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return out


def load_packed(
    folder: Path,
    classes: int | None = None,
    value_range: tuple[float, float] | None = None,
    target_bounds: tuple[float, float] | None = None,
    *,
    public: bool = False,
) -> Dataset:
    """The rows of a folder of x.npy and y.npy, memory-mapped: no row is in memory before it is
    fetched.

    Args:
        folder: written by `pack`, or with the arrays that an .npz has under these names: x, y and
            optionally x_test, y_test and groups.
        classes: the declared number of classes, unless `pack` wrote the folder.
        value_range: the declared range of the inputs, likewise.
        target_bounds: the declared range of targets that are numbers, in place of `classes`.
        public: whether you declare the rows public.

    Raises:
        BadInput: files that are missing or can't be used.
    """
    arrays: dict[str, Any] = {
        name: _map_array(path) for name in PARTS if (path := folder / f"{name}.npy").exists()
    }
    if "x" not in arrays or "y" not in arrays:
        raise BadInput(
            f"the folder {folder} holds "
            f"{', '.join(f'{name}.npy' for name in arrays) or 'no arrays'}: expected x.npy and "
            "y.npy, one row and one label for each example. `privlearn data pack FILE DIR` makes "
            "them of a table"
        )
    declared, arguments = (
        folder / DECLARED,
        {"classes": classes, "range": value_range, "target_bounds": target_bounds},
    )
    if declared.exists():
        if any(value is not None for value in arguments.values()):
            raise BadInput(
                f"what {folder} holds is declared in it: leave out classes=, value_range=, "
                "target_bounds="
            )
        about = _read_declaration(declared)
    elif (classes is None and target_bounds is None) or value_range is None:
        raise BadInput(
            f"for {folder} the number of classes and the range of the inputs must be declared, "
            "because they may not be read off private rows: give classes=K and value_range=(LO, "
            "HI)"
        )
    else:
        about = _of_arrays(arguments)
    return Dataset(**arrays, **{"name": folder.name, **about}, public=public).checked()


def _require_declared(
    source: Any, tables: bool, schema: Any, test: Any, targets: Any, value_range: Any
) -> None:
    """Refuse rows of which too little is declared, or too much."""
    if tables and (schema is None or targets is not None or value_range is not None):
        raise BadInput(
            "what a table holds is declared by its schema, because it may not be read off private "
            "rows: give schema='FILE.toml' (`privlearn data schema FILE` writes a template), "
            "without classes= and value_range="
        )
    if not tables and (
        schema is not None or test is not None or targets is None or value_range is None
    ):
        raise BadInput(
            "of pairs of arrays the number of classes and the range of the inputs are declared: "
            "give classes=K and value_range=(LO, HI), without schema= and test= "
            "(target_bounds=(LO, HI) where targets are numbers)"
        )
    if not tables and not isinstance(source, Iterable):
        raise BadInput(
            f"what is to be packed is a {type(source).__name__}: expected a .parquet or .csv file, "
            "a data frame, or an iterable of pairs (inputs, targets) of arrays"
        )


def _name_of(source: Any) -> str:
    if isinstance(source, Address):
        return source.short
    return Path(source).name if isinstance(source, str | Path) else "packed rows"


def _encode_chunks(
    source: Any, schema: Schema, *, persons: bool
) -> Iterator[dict[str, NDArray[Any]]]:
    """The arrays of each chunk of a table."""
    ids = (schema.person,) if persons and schema.person is not None else ()
    columns = (*schema.columns, *ids)
    unmatched = UnmatchedCells(schema)
    remarks: tuple[str, ...] = ()
    for table in read_chunks(source, columns, schema.dialect):
        parts: dict[str, NDArray[Any]] = {
            "x": encode_features(table, schema),
            "y": encode_target(table, schema),
        }
        person_ids = encode_persons(table, schema) if ids else None
        unmatched.add(table)
        remarks = table.remarks
        yield parts if person_ids is None else {**parts, "groups": _digests(person_ids)}
    for remark in (*remarks, *unmatched.remarks()):
        warn(remark, DataWarning)


def _digests(persons: NDArray[np.str_]) -> NDArray[np.bytes_]:
    """Of each person's id a digest: ids of one size, whatever chunks come."""
    digests = [
        hashlib.blake2b(str(person).encode(), digest_size=_PERSON).hexdigest().encode()
        for person in persons
    ]
    return np.array(digests, dtype=f"S{2 * _PERSON}")


def _pairs(source: Iterable[Any], classes: int | None) -> Iterator[dict[str, NDArray[Any]]]:
    """The arrays of each chunk of pairs."""
    for place, chunk in enumerate(source):
        if not isinstance(chunk, tuple | list) or len(chunk) != 2:
            raise BadInput(
                f"chunk {place} is a {type(chunk).__name__}: expected a pair (inputs, targets) of "
                "arrays"
            )
        x, y = (np.asarray(part) for part in chunk)
        if len(x.shape) < 2 or x.shape[:1] != y.shape[:1]:
            raise BadInput(
                f"chunk {place} has inputs of shape {x.shape} and targets of shape {y.shape}: "
                "expected a row and a target for each example"
            )
        require_finite(f"chunk {place}", "x", x)
        if classes is None:
            require_finite(f"chunk {place}", "y", y)
            y = y.astype(np.float32)
        else:
            require_labels(f"chunk {place}", "y", y, classes)
        yield {"x": x.astype(np.float32) if x.dtype.kind == "f" else x, "y": y}


def _write(
    folder: Path, ending: str, chunks: Iterator[dict[str, NDArray[Any]]], say: Say, files: ExitStack
) -> None:
    """Write chunks one behind the other, a file for each of their parts."""
    writers: dict[str, _Growing] = {}
    for parts in chunks:
        for name, values in parts.items():
            if name not in writers:
                writers[name] = files.enter_context(
                    _Growing(folder / f"{name}{ending}.npy", values)
                )
            writers[name].append(values)
        say(writers["x"].rows)
    if not writers:
        raise BadInput("there are no rows to pack: expected at least one")


@final
class _Growing:
    """An .npy file of rows that are written one chunk behind the other; its header is right when it
    is left.

    numpy leaves room in a header, so that the first axis may grow.

    Args:
        path: where.
        like: rows of the shape and type of all.
    """

    def __init__(self, path: Path, like: NDArray[Any]) -> None:
        self._file = path.open("wb")
        self._shape, self._kind, self.rows = like.shape[1:], like.dtype, 0
        self._head()

    def _head(self) -> None:
        self._file.seek(0)
        header = {
            "descr": self._kind.str,
            "fortran_order": False,
            "shape": (self.rows, *self._shape),
        }
        np.lib.format.write_array_header_1_0(self._file, header)

    def append(self, values: NDArray[Any]) -> None:
        """Write further rows."""
        if (values.shape[1:], values.dtype) != (self._shape, self._kind):
            raise BadInput(
                f"rows are of shape {values.shape[1:]} and type {values.dtype}, and earlier ones "
                f"of {self._shape} and {self._kind}: expected one shape and type"
            )
        self._file.write(np.ascontiguousarray(values).data)
        self.rows += len(values)

    def __enter__(self) -> _Growing:
        return self

    def __exit__(self, *error: object) -> None:
        with self._file:
            self._head()


def _map_array(path: Path) -> NDArray[Any]:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    # the header is Python
    except (OSError, ValueError, EOFError, BadZipFile, SyntaxError, TokenError) as error:
        raise BadInput(
            f"{path} cannot be read as .npy: {first_line(error)}", path=str(path)
        ) from error
    if not isinstance(array, np.ndarray):
        raise BadInput(
            f"{path} holds a {type(array).__name__}: expected one array, as np.save writes it"
        )
    return array


def _read_declaration(path: Path) -> dict[str, Any]:
    """What `pack` wrote of the rows, as arguments of a `Dataset`."""
    try:
        declaration = loads(path.read_bytes())
        name = str(declaration["name"])
        if "schema" not in declaration:
            return {"name": name, **_of_arrays(declaration)}
        schema = Schema.from_json(declaration["schema"], str(path))
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(
            f"{path} does not say what the folder holds: {first_line(error)}. Pack the rows again"
        ) from error
    lows, highs = schema.bounds()
    return {
        "name": name,
        **schema.of_targets,
        "low": lows,
        "high": highs,
        "schema": schema,
        "note": "numbers clipped to declared ranges, categories as declared",
        "feature_names": schema.feature_names,
    }


def _of_arrays(declared: dict[str, Any]) -> dict[str, Any]:
    """What was declared of arrays, as arguments of a `Dataset`."""
    low, high = map(float, declared["range"])
    require_range("the range of the inputs", low, high)
    classes, bounds = declared["classes"], declared["target_bounds"]
    if classes is not None:
        count("classes", classes, least=2)
    return {
        "classes": classes,
        "low": low,
        "high": high,
        "target_bounds": None if bounds is None else tuple(bounds),
        "note": f"inputs declared to lie in [{low:g}, {high:g}], values outside are clipped",
    }
