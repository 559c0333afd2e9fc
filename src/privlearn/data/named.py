"""Data sets by name, or by the path of a file.

Scaling uses declared public ranges only: what a data set's documentation says, or what the data's
curator declares. What is fetched and does not have the SHA-256 in the catalogue is not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from privlearn import _entry_points, _storage
from privlearn._checks import checked, count
from privlearn.data.catalogue import CATALOGUE, DATA_VARIABLE, File, Named, Source, directories
from privlearn.data.databases import Address, read_address
from privlearn.data.dataset import Dataset
from privlearn.data.encoding import (
    UnmatchedCells,
    encode_features,
    encode_persons,
    encode_target,
    listed,
)
from privlearn.data.faults import Faults
from privlearn.data.formats import read_npz
from privlearn.data.packed import load_packed
from privlearn.data.schema import Schema, read_schema, require_range
from privlearn.data.table_files import form_of
from privlearn.data.tables import Table, is_frame, read_table
from privlearn.errors import BadInput, DataWarning, warn

#: The named data sets.
NAMES = tuple(CATALOGUE)


class FolderForm(Protocol):
    """A form of folders that an installed package reads, by an entry point in the group
    `privlearn.folders`.
    """

    def holds(self, folder: Path) -> bool:
        """Whether a folder has this form."""

    def read(
        self,
        folder: Path,
        classes: int | None,
        grid: str | None,
        others: Collection[str],
        *,
        public: bool,
    ) -> Dataset:
        """The data set in a folder.

        Args:
            folder: of this form.
            classes: the declared number of classes.
            grid: the declared size of all rows.
            others: what else was declared, as `value_range=`.
            public: whether the rows are declared public.
        """


@checked
def load(
    name: Any,
    data_dir: str | Path | None = None,
    *,
    classes: int | None = None,
    value_range: tuple[float, float] | None = None,
    schema: str | Path | Schema | None = None,
    test: Any = None,
    public: bool = False,
    target_bounds: tuple[float, float] | None = None,
    targets: Sequence[str] = (),
    grid: str | None = None,
) -> Dataset:
    """Load the data set called `name`, the .npz or the table at that path, or a data frame.

    Args:
        name: one of `NAMES`, the path of an .npz with `x`, `y` and optionally `x_test`, `y_test`,
            and `groups` (a person's id for each row of x), that of a table, or a table itself: a
            data frame of pandas or polars (lazy ones, too), a table of Arrow or a relation of
            DuckDB. Or the address of a table in a database, `sqlite:///clinic.db?table=patients`
            (docs/data.md). Or a folder: of Parquet or Feather files; of .npy files with these
            names, whose rows stay on disk (`data.packed`), or of a form that an installed package
            reads (`FolderForm`), such as NIfTI scans and masks.
        data_dir: where to look for named data sets first; then come the variable PRIVLEARN_DATA and
            the user's cache.
        classes: the declared number of classes; needed for an .npz, and for a folder that `pack`
            did not write.
        value_range: the declared public range of the inputs; likewise.
        schema: what is declared of a table, or the TOML file that says so (docs/data.md); needed
            for a table.
        test: a table of the same columns to test on, a file or a data frame; not covered by any
            guarantee.
        public: whether you declare the rows public; an .npz may then have `x` and `x_test` without
            targets.
        target_bounds: the declared public range of targets that are numbers, in place of `classes`.
        targets: of a table, the columns to predict, in place of those that the schema's file names;
            several are labels that hold or don't, each 0 or 1, or numbers, each with its bounds in
            the schema. Of an .npz the names of the columns of y, in place of `classes`; beside
            `target_bounds` they are numbers, all with these bounds.
        grid: of scans, the declared size that each is brought to, `40x56x40` or
            `40x56x40/2`.

    Raises:
        BadInput: an unknown name, a missing file, or contents that can't be used.
    """
    name, test = read_address(name), read_address(test)
    options = {"classes=": classes, "value_range=": value_range, "schema=": schema, "test=": test}
    options |= {"target_bounds=": target_bounds}
    declared = [option for option, value in options.items() if value is not None]
    if (form := _folder_form(name)) is not None:
        others = {*declared} - {"classes="}
        return form.read(Path(name), classes, grid, others, public=public).checked()
    if grid is not None:
        raise BadInput(_no_scans(name))
    schema = _with_targets(schema, tuple(targets), name)
    if is_frame(name) or isinstance(name, Address):
        _require_schemas(name if isinstance(name, Address) else "a data frame", {*declared})
        return replace(_load_table(name, schema, test), public=public)
    if not isinstance(name, str | Path):
        raise BadInput(
            f"what is to be loaded is a {type(name).__name__}: expected a name, a path, or a data "
            "frame of pandas, polars or Arrow with schema=. Arrays are given to a method as they "
            "are, as a pair (inputs, targets)"
        )
    name = str(name)
    if name in CATALOGUE:
        if declared:
            raise BadInput(f"what {name} holds is known: leave out {' and '.join(declared)}")
        return replace(_load_named(name, data_dir), public=public)
    path = Path(name)
    _require_own_form(path, beside=schema is not None or test is not None)
    if path.is_dir() and form_of(path) is None:
        return load_packed(path, classes, value_range, target_bounds, public=public)
    if form_of(path) is not None or schema is not None:
        _require_schemas(name, {*declared})
        return replace(_load_table(path, schema, test), public=public)
    if path.suffix != ".npz" and not path.exists():
        require_known(name)
    if test is not None:
        raise BadInput(f"test= goes with a table: put x_test and y_test into {name}")
    if (classes is None and target_bounds is None and not targets) or value_range is None:
        raise BadInput(
            f"for {name} the number of classes and the range of the inputs must be declared, "
            "because they may not be read off private rows: give classes=K and value_range=(LO, "
            "HI) (public knowledge, for example 0,255 for pixels)"
        )
    if classes is not None:
        count("classes", classes, least=2)
    low, high = value_range
    require_range("the range of the inputs", low, high)
    note = f"inputs declared to lie in [{low:g}, {high:g}], values outside are clipped"
    about: dict[str, Any] = {
        "name": path.name,
        "note": note,
        "public": public,
        "target_bounds": target_bounds,
    }
    rows = read_npz(path, public=public)
    shape: tuple[int, ...] = () if rows.get("y") is None else np.shape(rows["y"])
    columns = shape[1] if len(shape) == 2 else 1
    if target_bounds is not None and (targets or columns > 1):
        names = targets or [f"y{column}" for column in range(columns)]
        ranges = dict.fromkeys(names, target_bounds)
        about |= {"target_bounds": None, "target_ranges": ranges}
        targets = ()
    return Dataset(
        **rows, classes=classes, low=low, high=high, labels=tuple(targets), **about
    ).checked()


def _require_own_form(path: Path, *, beside: bool) -> None:
    """Refuse a folder with a table's schema or test rows `beside` it, and a single array."""
    if beside and path.is_dir() and form_of(path) is None:
        raise BadInput(f"schema= and test= go with a table: pack them with it into {path}")
    if path.suffix == ".npy":
        raise BadInput(
            f"{path} holds one array, and inputs and targets are needed: put x.npy and y.npy into "
            "a folder (x_test.npy and y_test.npy, too), and give the folder. They are "
            "memory-mapped"
        )


def _folder_form(name: Any) -> FolderForm | None:
    """The form that a folder has, of those that installed packages read."""
    if not isinstance(name, str | Path) or str(name) in CATALOGUE or not Path(name).is_dir():
        return None
    forms = _entry_points.load_all(_entry_points.FOLDERS).values()
    return next((form for form in forms if form.holds(Path(name))), None)


def _no_scans(name: Any) -> str:
    """Why a grid is of no use to what is no folder of scans."""
    if isinstance(name, str | Path) and str(name) not in CATALOGUE and not Path(name).exists():
        return (
            f"there is no folder {name}: expected one that holds images and labels, NIfTI "
            "scans and masks"
        )
    return (
        "grid= goes with a folder of NIfTI scans, in images, and their masks, in labels: leave "
        "it out"
    )


def _with_targets(schema: Any, targets: tuple[str, ...], name: Any) -> Any:
    """The schema, read from its file with these targets; as it is where none are named."""
    if targets and isinstance(schema, str | Path):
        return read_schema(schema, targets)
    if targets and (schema is not None or str(name)[-4:] != ".npz"):
        raise BadInput(
            "targets= goes with the file of a schema, or an .npz: leave it out, or give one of "
            "these"
        )
    return schema


def _require_schemas(name: str, declared: set[str]) -> None:
    """Refuse what a table's schema says, and was declared beside it."""
    if declared & {"classes=", "value_range=", "target_bounds="}:
        raise BadInput(
            f"classes and ranges of {name} come from its schema: leave out classes= and "
            "value_range=, and likewise target_bounds="
        )


def load_features(path: Any, schema: str | Path | Schema) -> Dataset:
    """The features of a table of new rows, as `load` takes it or as it was read; the target column
    may be absent, and is ignored.

    `y` of what is returned is None.

    Raises:
        BadInput: as `load`.
    """
    schema = schema if isinstance(schema, Schema) else read_schema(schema)
    table = read_table(path, schema.columns, schema.dialect)
    path = table.name
    low, high = schema.bounds()
    x = encode_features(table, schema)
    if len(x) == 0:
        raise BadInput(
            f"{path} has no rows: expected at least one below the line with the columns' names"
        )
    return Dataset(
        x,
        None,
        low=low,
        high=high,
        name=str(path),
        schema=schema,
        remarks=_remarks(table, schema),
        feature_names=schema.feature_names,
    )


def require_known(name: str) -> None:
    """Raise `BadInput` unless a data set is called `name`."""
    if name not in CATALOGUE:
        raise BadInput(
            f"data {name!r} is unknown: expected one of {', '.join(NAMES)}, or the path of an "
            ".npz file or of a table",
            name=name,
            known=list(NAMES),
        )


def _load_named(name: str, data_dir: str | Path | None) -> Dataset:
    named = CATALOGUE[name]
    places = [] if named.embedded else directories(data_dir)
    located = named.find(places or [Path()])
    if located is None:
        raise BadInput(_describe_missing(name, named, places), name=name)
    form, paths = located
    return form.read({file.name: file.read(path, name) for file, path in paths.items()}).checked()


def _describe_missing(name: str, named: Named, places: Sequence[Path]) -> str:
    form = named.fetched or named.forms[-1]
    folder = places[0] / named.folder
    first = next(file for file in form.files if file.find(folder) is None)
    remedy = (
        f"`privlearn data fetch {name}` gets it"
        if named.fetched
        else "it has no public source to fetch it from"
    )
    elsewhere = ", ".join(str(place / named.folder) for place in places[1:])
    return (
        f"there is no file {folder / first.name}, packed (.gz) or "
        f"not{f', nor in {elsewhere}' if elsewhere else ''}: expected "
        f"{' and '.join(file.name for file in form.files)} there. Check data_dir= (or "
        f"{DATA_VARIABLE}); {remedy}"
    )


def _load_table(path: Any, schema: str | Path | Schema | None, test: Any) -> Dataset:
    if schema is None:
        raise BadInput(
            f"what {'a data frame' if is_frame(path) else path} holds must be declared, because it "
            "may not be read off private rows: give schema='FILE.toml' with bounds, categories "
            "and classes (docs/data.md; `privlearn data schema FILE` writes a template)"
        )
    schema = schema if isinstance(schema, Schema) else read_schema(schema)
    low, high = schema.bounds()
    wanted = schema.columns if schema.person is None else (*schema.columns, schema.person)
    table = read_table(path, wanted, schema.dialect)
    faults, parts, persons = Faults(), dict[str, Any](), None
    with faults.noted():
        persons = parts["groups"] = encode_persons(table, schema)
    with faults.noted():
        parts["x"] = encode_features(table, schema)
    with faults.noted():
        parts["y"] = encode_target(table, schema)
    faults.refuse()
    remarks = _remarks(table, schema)
    if test is not None:
        tested = read_table(test, wanted, schema.dialect)
        remarks += (*tested.remarks, *_require_other_persons(tested, schema, persons))
        parts |= {
            "x_test": encode_features(tested, schema),
            "y_test": encode_target(tested, schema),
        }
    return Dataset(
        **parts,
        **schema.of_targets,
        low=low,
        high=high,
        name=path.short if isinstance(path, Address) else Path(table.name).name,
        note="numbers clipped to declared ranges, categories as declared",
        schema=schema,
        remarks=remarks,
        feature_names=schema.feature_names,
    ).checked()


def _require_other_persons(tested: Table, schema: Schema, persons: Any) -> tuple[str, ...]:
    """Raise `BadInput` if rows of training persons are to be tested on; a remark if the test table
    names no persons.
    """
    if (person := schema.person) is None or person not in tested.columns:
        return (
            (f"{tested.name} has no column {person!r}: make sure no training person is in it",)
            if person
            else ()
        )
    theirs = np.isin(np.asarray(encode_persons(tested, schema)), persons)
    if theirs.any():
        raise BadInput(
            f"test rows of persons who are trained on: {theirs.sum():,} of {len(theirs):,} in "
            f"{tested.name}. Figures from them would be exact figures of these persons: give test "
            "rows of other persons, or none"
        )
    return ()


def _remarks(table: Table, schema: Schema) -> tuple[str, ...]:
    """What the data's curator should know of how it was read."""
    remarks = [*table.remarks]
    if table.ignored:
        remarks.append(
            f"columns of {table.name} that its schema does not name are ignored: "
            f"{listed(table.ignored)}"
        )
    for remark in UnmatchedCells.of(table, schema).remarks():
        warn(remark, DataWarning)
    return tuple(remarks)


_SECONDS = 30


def fetch(
    name: str, data_dir: str | Path | None = None, say: Callable[[str], None] = lambda line: None
) -> list[Path]:
    """Fetch the files of the data set called `name`; return where they are.

    Files that are there already, with the right content, are left alone. A file appears under its
    name only when it is complete and has the right digest.

    Args:
        name: a data set of the catalogue.
        data_dir: the data directory to put it into; by default the user's cache, where `load` looks
            too.
        say: called with a line about each file.

    Raises:
        BadInput: an unknown name, a data set without a source, a file that is another one, or a
            source that fails.
    """
    require_known(name)
    named = CATALOGUE[name]
    if named.embedded:
        say(f"{name} comes with scikit-learn: nothing to fetch")
        return []
    folder = (_storage.cache() if data_dir is None else Path(data_dir)) / named.folder
    if named.fetched is None:
        raise BadInput(_no_source(name, named, folder), name=name)
    paths = []
    for file in named.fetched.files:
        assert file.source is not None
        present = file.find(folder)
        if present is not None:
            file.read(present, name)
            say(f"{present} is there")
        paths.append(present or _retrieve(name, file, file.source, folder, say))
    return paths


def _retrieve(
    name: str, file: File, source: Source, folder: Path, say: Callable[[str], None]
) -> Path:
    import pooch
    import requests

    pooch.get_logger().setLevel("ERROR")
    say(f"fetching {source.url}")
    try:
        path = Path(
            pooch.retrieve(
                source.url,
                known_hash=f"sha256:{source.sha256}",
                fname=source.file,
                path=folder,
                downloader=pooch.HTTPDownloader(timeout=_SECONDS),
            )
        )
    except requests.RequestException as error:
        raise BadInput(
            f"{source.url} cannot be fetched: {_reason(error)}. Check the connection and try "
            f"again, or get the file elsewhere and put it into {folder} as {source.file}; its "
            f"SHA-256 is {source.sha256}",
            url=source.url,
        ) from error
    except ValueError as error:  # what pooch raises for another digest; it has removed the file
        raise BadInput(
            f"what {source.url} gives now is not the published file of {name} (its SHA-256 is not "
            f"{source.sha256}): nothing was kept. Try again; if it stays so, get that file "
            f"elsewhere and put it into {folder} as {source.file}",
            url=source.url,
        ) from error
    except OSError as error:
        raise BadInput(
            f"{folder} cannot be written to: {error.strerror or error}. Choose another data_dir=",
            path=str(folder),
        ) from error
    file.read(path, name)
    return path


def _no_source(name: str, named: Named, folder: Path) -> str:
    *_, form = named.forms
    files = ", ".join(f"{file.name} (SHA-256 {file.sha256})" for file in form.files)
    return (
        f"{name} has no public source whose content is known: nothing can be fetched. If you have "
        f"it, put it into {folder}: {files}"
    )


def _reason(error: Exception) -> str:
    """The innermost reason: requests wraps urllib3's errors, which wrap the system's."""
    while error.__cause__ is not None or error.__context__ is not None:
        error = error.__cause__ or error.__context__  # type: ignore[assignment]
    return f"{type(error).__name__}: {str(error)[:200]}"
