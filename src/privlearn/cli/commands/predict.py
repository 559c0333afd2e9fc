"""`privlearn predict`: use a published model."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from privlearn.cli import methods, screen
from privlearn.cli.request import Request
from privlearn.core.tensors import as_tensor
from privlearn.data.cells import numbers
from privlearn.data.dataset import require_finite
from privlearn.data.encoding import listed
from privlearn.data.formats import read_inputs
from privlearn.data.named import NAMES, load, load_features
from privlearn.data.schema import Schema, read_schema
from privlearn.data.tables import Table, is_table, read_table
from privlearn.errors import BadInput
from privlearn.models import networks
from privlearn.publishing.model import PublishedModel, load_model
from privlearn.publishing.new_folder import require_free
from privlearn.transforms import FeatureFolder
from privlearn.transforms.precomputed import PrecomputedRows

_ROWS_AT_ONCE = 4096
#: Endings of files of rows; others may be scans.
_FILES = (".npz", ".npy")


def run(request: Request) -> int:
    """Write index, prediction and scores of every row; of scans a mask each."""
    path = Path(request.data)
    rows = path.suffix in _FILES or is_table(request.data)
    if request.data not in NAMES and not rows:
        pages = methods.map_pages()
        if pages.are_scans(request):
            model = load_model(request.folder, request.model, trusted=request.key)
            code: int = pages.write_masks(request, model)
            return code
    if request.grid is not None:
        raise BadInput(f"--grid is for NIfTI scans, and --data is {request.data}: leave it out")
    if request.windows:
        raise BadInput(f"--windows is for NIfTI scans, and --data is {request.data}: leave it out")
    out = None if request.out is None else Path(request.out)
    if out is not None and out.suffix not in (".csv", ".npz"):
        raise BadInput(f"--out is {request.out}: expected a file that ends in .csv or .npz")
    if out is not None and (out.exists() or out.is_symlink()):
        raise BadInput(f"{out} exists already: choose another --out; nothing is overwritten")
    if out is not None:
        require_free(out)  # before the rows are read
    model = load_model(
        request.folder, request.model, trusted=request.key, features=request.features
    )
    config = model.config
    names, labels = list(model.class_names), model.labels or model.targets
    if networks.makes_maps(request.model or config["model"]):
        _require_npz(out)
    table = _table(request, model.schema, config.get("columns", ()))
    x, schema = (
        _features(request, config)
        if path.is_dir() and table is None
        else _inputs(request, model.schema, table, config.get("columns", ()))
    )
    ids = None if table is None or request.id is None else table.cells(request.id)
    _require_same_schema(request, schema, config.get("schema", ""))
    if list(x.shape[1:]) != config["input_shape"]:
        raise BadInput(
            f"the rows of {request.data} have shape {list(x.shape[1:])}: this model takes "
            f"{config['input_shape']}"
        )
    require_finite(request.data, "the inputs", x)
    outputs = _outputs(model, as_tensor(x, whole_is_float=bool(config["transforms"])))
    chosen, scores = (part.numpy() for part in model.read(outputs))
    if scores.ndim > 2:
        _require_npz(out)
    if out is None:
        screen.print_for_scripts(_csv(chosen, scores, labels or names, ids))
    else:
        _write_new(out, chosen, scores, labels or names, ids)
        screen.notes.print(f"{len(x)} predictions are in {screen.plain(out)}")
    return 0


def _require_npz(out: Path | None) -> None:
    if out is None or out.suffix != ".npz":
        raise BadInput("predictions are maps, which no CSV holds: give --out FILE.npz")


def _outputs(model: PublishedModel, x: torch.Tensor) -> torch.Tensor:
    """What the model gives, a row for each row of `x`."""
    try:
        parts, outputs = x.split(_ROWS_AT_ONCE), []  # type: ignore[no-untyped-call]
        with torch.no_grad(), screen.progress_bar("predicting", "parts") as progress:
            for part in parts:
                outputs.append(model(part))
                if len(parts) > 1:
                    progress(len(outputs), len(parts))
        return torch.cat(outputs)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise BadInput(
            f"the model cannot run on these rows: {str(error)[:200]}. Is it the one that was "
            "trained?"
        ) from error


def _table(request: Request, trained: Schema | None, named: Sequence[str]) -> Table | None:
    """The table to predict for, read once, with the column that tells which row is which, if one is
    asked for; None: the rows are in no table.
    """
    if request.data in NAMES or not is_table(request.data):
        if request.id is not None:
            raise BadInput(
                f"--id {request.id} names a column of a table, and --data is {request.data}: leave "
                "it out"
            )
        return None
    schema = read_schema(request.schema) if request.schema is not None else trained
    columns = named if schema is None else schema.columns
    wanted = dict.fromkeys([*columns, *([] if request.id is None else [request.id])])
    table = read_table(request.data, [*wanted], schema and schema.dialect)
    if request.id is not None and request.id not in table.columns:
        raise BadInput(
            f"{table.name} has no column {request.id!r}, which --id names: it has "
            f"{listed([*table.columns, *table.ignored])}"
        )
    if request.id is None and not table.ordered:
        raise BadInput(
            "rows of a database have no order, so predictions need a column that tells which row "
            "is which: give --id COLUMN"
        )
    return table


def _inputs(
    request: Request, trained: Schema | None, table: Table | None, named: Sequence[str]
) -> tuple[NDArray[Any], str]:
    """The rows, and the digest of the schema that they were read by: the one that is given, or the
    model's own. A model that was trained on a data frame without a schema has `named` columns.
    """
    schema = request.schema or trained
    if request.data in NAMES:
        data = load(request.data, request.data_dir, schema=request.schema)
        digest = "" if data.schema is None else data.schema.digest
        return np.asarray(data.x if request.part == "train" else data.x_test), digest
    if request.schema is not None or (trained and table is not None):
        assert schema is not None
        if request.part is not None:
            raise BadInput(
                "--part goes with named data sets and .npz files: leave it out, or give the file "
                "to predict for"
            )
        data = load_features(request.data if table is None else table, schema)
        for note in data.remarks:
            screen.notes.print(note)
        assert data.schema is not None
        return np.asarray(data.x), data.schema.digest
    path = Path(request.data)
    if table is not None and named:
        return _numbers_of(table, named), ""
    if table is not None:
        raise BadInput(
            f"{table.name} is a table, and the model was trained on rows whose numbers have no "
            "names: expected an .npz with x"
        )
    return read_inputs(path, "x_test" if request.part == "test" else "x"), ""


def _numbers_of(table: Table, named: Sequence[str]) -> NDArray[np.float32]:
    """The columns of a model that knows their names, shape (rows, columns), in its order.

    Raises:
        BadInput: one is not there, or holds a cell that is missing or no finite number.
    """
    parts = []
    for name in named:
        if name not in table.columns:
            raise BadInput(
                f"{table.name} has no column {name!r}, which the model was trained on: it has "
                f"{listed([*table.columns, *table.ignored]) or 'none'}. Expected "
                f"{listed(named)[:100]}"
            )
        values, absent, misfit = numbers(table.columns[name], ())
        if misfit is not None or absent.any():
            row = int(np.argmax(absent)) if misfit is None else misfit.row
            cell = "missing" if misfit is None else listed([misfit.cell])
            raise BadInput(
                f"{table.place(row, name)} is {cell}: expected a finite number. Fill or encode it "
                "as the rows of the training were"
            )
        parts.append(values.astype(np.float32))
    return np.stack(parts, axis=1)


def _features(request: Request, config: dict[str, Any]) -> tuple[NDArray[Any], str]:
    """The features in a folder, for a model that was trained on such, and the digest of no
    schema.
    """
    folder = FeatureFolder.read(request.data)
    trained = next((part for part in config["transforms"] if part["kind"] == "precomputed"), None)
    if trained != PrecomputedRows(folder.encoder).describe():
        maker = next((part["spec"] for part in config["transforms"] if "spec" in part), None)
        takes = (
            "takes rows"
            if maker is None
            else f"takes rows and makes features of them itself, by {maker}"
        )
        wanted = "give rows, not a folder of features"
        if trained is not None:
            takes, wanted = f"was trained on features {maker}", "give features of the same encoder"
        raise BadInput(
            f"the features in {request.data} are {folder.encoder.spec} (SHA-256 "
            f"{folder.encoder.digest[:16] or 'unstated'}), and the model in {request.folder} "
            f"{takes}: {wanted}"
        )
    for part in ("test", "train") if request.part is None else (request.part,):
        if (features := folder.part(part)) is not None:
            return features, ""
    raise BadInput(
        f"{request.data} has no features of {request.part or 'test or train'} rows: expected "
        f"{request.part}.npy"
    )


def _require_same_schema(request: Request, digest: str, trained: str) -> None:
    """Refuse columns, bounds or categories that make other features than those the model was
    trained on.
    """
    if digest and digest != trained:
        what = "another schema" if trained else "no table with a schema"
        raise BadInput(
            f"the model in {request.folder} was trained on {what} (digest "
            f"{trained[:16] or 'none'}, not {digest[:16]}): features would be taken for others. "
            "Use the schema that it was trained with; other comments do no harm"
        )


def _columns(
    chosen: NDArray[Any], names: Sequence[str], ids: Sequence[Any] | None
) -> dict[str, Sequence[Any]]:
    """What comes before the scores of each row: its number, its id, the class and the class's name,
    or its labels.
    """
    columns: dict[str, Sequence[Any]] = {"index": range(len(chosen))}
    if ids is not None:
        columns["id"] = ["" if cell is None else cell for cell in ids]
    if chosen.ndim == 2:  # of several labels, or numbers
        return columns | dict(zip(names, chosen.T.tolist(), strict=True))
    columns["prediction"] = [label.item() for label in chosen]
    if names:
        columns["label"] = [names[label] for label in chosen]
    return columns


def _csv(
    chosen: NDArray[Any], scores: NDArray[Any], names: Sequence[str], ids: Sequence[Any] | None
) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    columns = _columns(chosen, names, ids)
    of = names[: scores.shape[1]] if chosen.ndim == 2 else range(scores.shape[1])
    writer.writerow([*columns, *(f"score_{c}" for c in of)])
    for cells, row in zip(zip(*columns.values(), strict=True), scores, strict=True):
        writer.writerow([*cells, *(f"{score:.6g}" for score in row)])
    return text.getvalue()


def _write_new(
    out: Path,
    chosen: NDArray[Any],
    scores: NDArray[Any],
    names: Sequence[str],
    ids: Sequence[Any] | None,
) -> None:
    """Write a file that was not there, and take it away again if it cannot be completed."""
    created = False
    try:
        with out.open("xb") as file:
            created = True
            if out.suffix == ".npz":
                more: dict[str, Any] = (
                    {}
                    if ids is None
                    else {"id": np.array(["" if cell is None else cell for cell in ids])}
                )
                named = (
                    {}
                    if chosen.ndim == 2
                    else {"label": np.array(names)[chosen] if names else names}
                )
                more |= {**named, "classes": np.array(names)} if names else {}
                np.savez(
                    file, index=np.arange(len(scores)), prediction=chosen, scores=scores, **more
                )
            else:
                file.write(_csv(chosen, scores, names, ids).encode())
    except OSError as error:
        if created:
            out.unlink(missing_ok=True)
        raise BadInput(
            f"{out} cannot be written: {error.strerror}. Choose another --out"
        ) from error
