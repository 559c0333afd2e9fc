"""`privlearn data`: the named data sets, templates of schemas, and tables packed for training from
disk.
"""

from __future__ import annotations

import warnings
from dataclasses import asdict
from pathlib import Path

import numpy as np

from privlearn import _storage
from privlearn.cli import screen
from privlearn.cli.request import Request
from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.accounting.ledgers.addresses import database_at
from privlearn.data import catalogue, table_files
from privlearn.data.catalogue import CATALOGUE, Named
from privlearn.data.dataset import Dataset
from privlearn.data.named import fetch, load
from privlearn.data.packed import pack
from privlearn.data.schema import Number
from privlearn.data.tables import open_source
from privlearn.data.template import write_template
from privlearn.errors import BadInput, DataWarning


def run(request: Request) -> int:
    """List every data set, fetch one, write a template, or check or pack rows."""
    if request.action == "list":
        if request.name is not None:
            raise BadInput(f"`privlearn data list` lists all data sets: leave out {request.name!r}")
        return _list(request)
    if request.public is not None and request.action != "schema":
        raise BadInput(f"--public goes with `privlearn data schema`, not {request.action}")
    if request.name is None:
        what = (
            f"NAME, one of {', '.join(CATALOGUE)}"
            if request.action == "fetch"
            else "FILE, a .csv or .parquet file"
        )
        what = (
            "NAME, or FILE, an .npz, .csv or .parquet file" if request.action == "check" else what
        )
        raise BadInput(f"`privlearn data {request.action}` needs {what}")
    return {"fetch": _fetch, "schema": _schema, "check": _check, "pack": _pack}[request.action](
        request
    )


def _list(request: Request) -> int:
    places = catalogue.directories(request.data_dir)
    sets = {name: (named, _place(named, places)) for name, named in CATALOGUE.items()}
    if request.json:
        rows = [
            {
                "name": name,
                "what": named.what,
                "found": place is not None,
                "where": place,
                "can_be_fetched": named.fetched is not None,
                "licence": named.licence,
            }
            for name, (named, place) in sets.items()
        ]
        screen.print_json({"datasets": rows})
        return 0
    table = screen.Table(show_header=False)
    for name, (named, place) in sets.items():
        remedy = (
            f"`privlearn data fetch {name}` gets it" if named.fetched else "give --data-dir DIR"
        )
        table.add_row(name, named.what, style="bold")
        table.add_row(
            "", f"{place or f'not found: {remedy}'}{screen.BREAK}licence: {named.licence}"
        )
    screen.answers.print(table)
    screen.notes.print(f"looked in {', '.join(map(str, places))}")
    return 0


def _place(named: Named, places: list[Path]) -> str | None:
    if named.embedded:
        return "comes with scikit-learn"
    files = named.find(places)
    return None if files is None else str(next(iter(files[1].values())).parent)


def _fetch(request: Request) -> int:
    paths = fetch(request.name, request.data_dir, lambda line: screen.notes.print(line))
    if request.json:
        screen.print_json({"name": request.name, "files": [str(path) for path in paths]})
    elif paths:
        folder = _storage.cache() if request.data_dir is None else Path(request.data_dir)
        how = (
            "is found there without --data-dir"
            if request.data_dir is None
            else f"use it with --data-dir {folder}"
        )
        screen.answers.print(f"{request.name} is in {paths[0].parent}, and {how}")
    return 0


def _check(request: Request) -> int:
    # needs torch, which the other actions do without
    from privlearn.data.torch_rows import check_rows

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DataWarning)
        data = load(
            request.name,
            request.data_dir,
            classes=request.classes,
            value_range=request.range,
            schema=request.schema,
        )
    unmatched = [str(each.message) for each in caught if each.category is DataWarning]
    for note in data.remarks:
        screen.notes.print(note)
    with screen.notes.status("looking at all rows"):
        checked = check_rows(data)
    ends = _at_bounds(data)
    if request.json:
        screen.print_json(
            {
                "name": request.name,
                "rows": checked.rows,
                "unusable": len(checked.unusable),
                "at_bounds": ends,
                "unmatched": unmatched,
            }
        )
    else:
        for line in (f"{request.name}: {checked}", *unmatched):
            screen.answers.print(screen.plain(line))
        for column, count in ends.items():
            screen.answers.print(
                f"column {column!r}: {count} of {checked.rows} rows are at a bound of the schema, "
                "or beyond it and clipped to it",
            )
    screen.notes.print(
        "This tells of the rows themselves: it is for the data's curator, and no release."
    )
    return 0


def _at_bounds(data: Dataset) -> dict[str, int]:
    """Of each column of numbers in a table: how many rows are at a bound, or were clipped to it, if
    any are.
    """
    if data.schema is None or data.feature_names is None:
        return {}
    x, counts = np.asarray(data.x), {}
    for column in (feature for feature in data.schema.features if isinstance(feature, Number)):
        values = x[:, data.feature_names.index(column.name)]
        counts[column.name] = int(
            np.isin(values, np.array([column.low, column.high], np.float32)).sum()
        )
    return {name: count for name, count in counts.items() if count}


def _pack(request: Request) -> int:
    if request.out is None:
        raise BadInput("`privlearn data pack FILE` needs a folder to write: give --out DIR")
    with screen.notes.status("packing"):
        folder = pack(request.name, request.out, schema=request.schema, test=request.test_data)
    if request.json:
        screen.print_json({"name": request.name, "out": str(folder)})
        return 0
    screen.answers.print(
        f"{request.name} is packed in {folder}, as private as its rows: train with --data {folder}"
    )
    return 0


def _draft(request: Request) -> int:
    """Release a draft of a schema, charged to a ledger that the training will be charged to as
    well.
    """
    from privlearn.methods.statistics.draft import draft_schema

    if request.ledger is None or len(request.target) != 1:
        raise BadInput(
            "`privlearn data schema FILE --paid epsilon=E` needs --target T and --ledger FILE, "
            "which the training is charged to, too, and --numbers A,B and --categories C,D: what "
            "the columns are"
        )
    if not database_at(request.ledger).exists():
        raise BadInput(
            f"there is no ledger {request.ledger}: check the name, or begin one, `privlearn ledger "
            f"{request.ledger} --epsilon E --measure renyi`"
        )
    ledger = Ledger.open(
        request.ledger,
        what=f"a schema of {request.name}",
        data_set=request.ledger_data,
        anchor=request.anchor,
    )
    if ledger.budget is None:
        raise BadInput(
            f"the ledger {request.ledger} has no budget, so that there would be no guarantee for "
            "the schema and the training together: begin another with `privlearn ledger FILE "
            "--epsilon E --measure renyi`"
        )
    draft = draft_schema(
        request.name,
        target=request.target[0],
        budget=Budget(**request.paid),
        numbers=request.numbers,
        categories=request.categories,
        ledger=ledger,
    )
    if request.json:
        screen.print_json(
            {
                "bounds": dict(draft.bounds),
                "categories": {n: [*c] for n, c in draft.categories.items()},
            }
        )
    else:
        screen.print_lines(draft.to_toml().splitlines())
    screen.notes.print(
        f"released, and charged to {request.ledger}: look it through, and train with --ledger "
        f"{request.ledger} --adjacency {ledger.adjacency}",
    )
    return 0


def _schema(request: Request) -> int:
    if request.paid is not None and request.public is not None:
        raise BadInput(
            "--paid drafts a schema from the private rows of FILE, and --public from a public "
            "file: give one of them"
        )
    if request.paid is not None:
        return _draft(request)
    if misplaced := [name for name in ("numbers", "categories", "ledger") if request.given(name)]:
        raise BadInput(
            f"--{misplaced[0]} goes with --paid, a schema drafted from private rows: add it, or "
            "leave it out"
        )
    source = request.name
    dialect = table_files.likely_dialect(Path(source))
    file = open_source(source, dialect)
    for remark in file.remarks:
        screen.notes.print(remark)
    if request.public is not None:
        return _draft_from_public(request)
    if request.target:
        raise BadInput(
            "--target goes with --public or --paid, a schema that is drafted: add one, or write "
            "the target into the template"
        )
    if request.json:
        screen.print_json({"columns": list(file.names)})
    else:
        screen.print_lines(write_template({name: {} for name in file.names}, dialect=dialect))
    return 0


def _draft_from_public(request: Request) -> int:
    """Draft a schema from a file that is declared public; no row of the private one is looked
    at.
    """
    from privlearn.data.public_draft import draft_public_schema

    draft = draft_public_schema(request.name, public=request.public, target=request.target or None)
    for remark in draft.remarks:
        screen.notes.print(remark)
    if request.json:
        screen.print_json(
            {
                "columns": dict(draft.columns),
                "blank": dict(draft.blank),
                "missing": list(draft.missing),
                "drafted_from": asdict(draft.drafted_from),
            }
        )
    else:
        screen.print_lines(draft.to_toml().splitlines())
    screen.notes.print(
        f"drafted from {request.public}, which you declare public: the schema, and the card of a "
        f"model that is trained with it, say so. {len(draft.blank)} of {len(draft.columns)} "
        f"columns are left to fill in or delete{', and the target to name' * (not draft.target)}"
    )
    return 0
