"""Named checks of how data are read, beside those of the spine in checks.py; mutations must make
them fail.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import re
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime, timedelta, timezone
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pandas
import pyarrow
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

import privlearn as pv
from privlearn.data import catalogue, encoding, formats, named, schema, tables
from privlearn.data.catalogue import CATALOGUE, Form, Named
from privlearn.data.cells import array_of
from privlearn.errors import BadInput, DataWarning
from tests.support.checks import check, must_raise

SCHEMA = """
target = "income"
missing = ["?", ""]
[columns.age]
kind = "number"
low = 17
high = 90
missing = 40
[columns.work]
kind = "category"
categories = ["private", "state"]
[columns.hours]
kind = "number"
low = -1.5
high = 99
[columns.income]
kind = "target"
classes = ["<=50K", ">50K"]
"""
CSV = """income,age,hours,work,name
<=50K,30,40,private,Ann
>50K, 16, -1e300, state,Bob
>50K,?,98.5,"private","Carol, Dr"
<=50K,120,1e300,self,
<=50K,,0,?,Eve
"""
FEATURES = [[30, 1, 0, 40], [17, 0, 1, -1.5], [40, 1, 0, 98.5], [90, 0, 0, 99], [40, 0, 0, 0]]


def declared(text: str = SCHEMA) -> schema.Schema:
    return schema.parse_schema(text, "people.toml")


def table(text: str | bytes = CSV, own: schema.Schema | None = None) -> tables.Table:
    """A table as it is read from a CSV file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "people.csv")
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return tables.read_table(path, (own or declared()).columns)


def cells(**columns: list[Any]) -> tables.Table:
    """A table as a Parquet file would give it."""
    rest: dict[str, list[Any]] = {"age": [20], "work": ["state"], "hours": [1], "income": [">50K"]}
    return tables.Table(
        "people.parquet", {name: pyarrow.array(part) for name, part in (rest | columns).items()}
    )


@check
def check_rows_are_encoded_as_declared() -> None:
    assert encoding.encode_features(table(), declared()).tolist() == FEATURES
    assert encoding.encode_target(table(), declared()).tolist() == [0, 1, 1, 0, 0]
    low, high = declared().bounds()
    assert low.tolist() == [17, 0, 0, -1.5]
    assert high.tolist() == [90, 1, 1, 99]
    assert table().ignored == ("name",)


@check
def check_each_row_is_encoded_by_itself() -> None:
    header, *lines = CSV.splitlines()
    for line, features in zip(lines, FEATURES, strict=True):
        alone = encoding.encode_features(table(f"{header}\n{line}\n"), declared())
        assert alone.tolist() == [features]


@check
def check_dates_and_missing_values_are_encoded_as_declared() -> None:
    """Days since the declared first one, and 1 where a value is missing: of each row by itself."""
    day = (
        '[columns.day]\nkind = "date"\nlow = 2000-01-01\nhigh = 2000-12-31\nmissing = '
        "2000-02-01\nindicator = true\n"
    )
    text = SCHEMA.replace("missing = 40", "missing = 40\nindicator = true").replace(
        "[columns.age]", f"{day}[columns.age]"
    )
    own, ages = declared(text), [20, "?", 30, "", 40]
    days = ["2000-01-03", "", "1999-01-01", "2001-01-01", "?"]
    rows = [f"{first},{age},state,1,<=50K" for first, age in zip(days, ages, strict=True)]
    expected = [[2, 0, 20, 0], [31, 1, 40, 1], [0, 0, 30, 0], [365, 0, 40, 1], [31, 1, 40, 0]]

    def encoded(*lines: str) -> Any:
        written = "\n".join(["day,age,work,hours,income", *lines])
        return encoding.encode_features(table(written, own), own)[:, :4].tolist()

    assert encoded(*rows) == expected
    assert [encoded(row) for row in rows] == [[features] for features in expected]


@check
def check_unknown_classes_are_refused() -> None:
    for wrong in ("50K", "", "?", ">50k"):
        must_raise(
            BadInput,
            lambda wrong=wrong: encoding.encode_target(
                table(CSV.replace(">50K", wrong)), declared()
            ),
        )


@check
def check_numbers_that_are_none_are_refused() -> None:
    for wrong in (
        "nan",
        "inf",
        "-Infinity",
        "1_000",
        "0x10",
        "1e999",
        "\u0663",
        "1,5",
        "true",
        "--1",
        "1 2",
        "",
    ):
        text = CSV.replace("30,40", f'30,"{wrong}"')
        must_raise(BadInput, lambda text=text: encoding.encode_features(table(text), declared()))
    for value in (math.nan, math.inf, True, None):
        must_raise(
            BadInput, lambda value=value: encoding.encode_features(cells(hours=[value]), declared())
        )


@check
def check_tables_without_a_clear_reading_are_refused() -> None:
    for wrong in (
        CSV + "<=50K,1,2,private,Fay,more\n",
        CSV.replace("name", "age"),
        CSV.replace('"Carol', '"Carol "x'),
        CSV + '<=50K,1,2,private,"Fay\n',
        CSV.replace("Eve", "E\0ve"),
        CSV.replace('"private"', '  "private"'),
    ):
        must_raise(BadInput, lambda wrong=wrong: table(wrong))
    header, *lines = CSV.splitlines()
    twice = "\n".join([f"{header},name", *(f"{line},x" for line in lines)])
    must_raise(BadInput, lambda: table(twice))
    assert len(table(twice.replace("name,name", "name,more"))) == len(lines)
    must_raise(BadInput, lambda: table(CSV.encode("utf-16")))
    must_raise(
        BadInput, lambda: encoding.encode_features(table(CSV.replace("hours", "hour")), declared())
    )


@check
def check_a_cell_means_the_same_whatever_brings_it() -> None:
    """Truth values, whole numbers and numbers that lost their zeros match the names that mean the
    same, if just one does.
    """
    text = SCHEMA.replace('"private", "state"', '"True", "007", "1", "State"')
    for cell, place in ((True, 0), (7, 1), (7.0, 1), (1, 2), (1.0, 2), (False, None), ("True", 0)):
        features = encoding.encode_features(cells(work=[cell]), declared(text))[0, 1:-1]
        assert np.flatnonzero(features).tolist() == ([] if place is None else [place]), cell
    for written, place in (("true", 0), ("7", 1), ("1.0", 2), ("1e0", 2), (" State ", 3)):
        brought = table(CSV.replace("private", written), declared(text))
        features = encoding.encode_features(brought, declared(text))[0, 1:-1]
        assert np.flatnonzero(features).tolist() == [place], written
    both = declared(SCHEMA.replace('"private", "state"', '"7", "007"'))
    must_raise(BadInput, lambda: encoding.encode_features(cells(work=[7]), both))
    assert encoding.encode_features(cells(work=["007"]), both)[0, 1:-1].tolist() == [0, 1]


@check
def check_another_cell_changes_no_cell_of_its_column() -> None:
    """What a cell means stays what it is, whatever kind another cell of the column is of: in lists,
    data frames of objects, JSON lines and workbooks.
    """
    zones = [timezone(timedelta(hours=hours)) for hours in (2, 14)]
    late, noon = (datetime(2020, 6, 1, 23, 30, tzinfo=zones[0]), datetime(2020, 6, 1, 12))
    days = schema.Date("c", date(2020, 1, 1), date(2020, 12, 31))
    in_python: tuple[Any, ...] = (
        (days, [late], [late.astimezone(zones[1]), noon, date(2020, 6, 1)]),
        (_kinds("2020-06-01", noon.isoformat()), [noon], [date(2020, 6, 1), late, "x", 1]),
        (_kinds("0.1"), [np.float32(0.1)], [1, 1.5, "x", True]),
    )
    written: tuple[Any, ...] = (
        (_kinds("true", "false", "1"), [True], [1, "x", True]),
        (_kinds("a", "1.5"), ["a"], ["b", 1, True, 1.5]),
        (_kinds("9007199254740992", "9007199254740993"), [9007199254740993], [1, 1.5, "x"]),
        (_kinds("2020-06-01 00:00:00"), ["2020-06-01 00:00:00"], ["2020-06-01", 1, "x"]),
    )
    with tempfile.TemporaryDirectory() as folder:
        for doors, tables_of_cells in ((_IN_PYTHON, in_python), (_DOORS, written)):
            for brings, (column, rest, others) in product(doors, tables_of_cells):
                columns = ([other, *rest] for other in others)
                means = {str(_means(brings, Path(folder), column, each)) for each in columns}
                assert len(means) == 1, (brings.__name__, column, means)


def _kinds(*names: str) -> schema.Category:
    return schema.Category("c", names)


def _means(brings: Any, folder: Path, column: Any, cells_of_column: list[Any]) -> Any:
    """The features of all cells but the first."""
    one = schema.Schema("t", ("n", "y"), (column,))
    brought = tables.read_table(brings(folder, cells_of_column), ["c"])
    return encoding.encode_features(brought, one)[1:].tolist()


def _in_list(folder: Path, values: list[Any]) -> Any:
    return tables.Table("rows", {"c": array_of(values, lambda *_: BadInput("none"))})


def _in_frame(folder: Path, values: list[Any]) -> Any:
    return pandas.DataFrame({"c": pandas.Series(values, dtype=object)})


def _in_json(folder: Path, values: list[Any]) -> Any:
    lines = "".join(json.dumps({"c": value}) + "\n" for value in values)
    (folder / "c.jsonl").write_text(lines)
    return folder / "c.jsonl"


def _in_workbook(folder: Path, values: list[Any]) -> Any:
    import openpyxl  # not everywhere

    book = openpyxl.Workbook()
    for value in ("c", *values):
        book.active.append([str(value) if value in _TOO_LONG else value])
    book.save(folder / "c.xlsx")
    return folder / "c.xlsx"


#: Numbers that workbooks, which hold floats, don't have.
_TOO_LONG = (9007199254740993,)
_IN_PYTHON = (_in_list, _in_frame)
_DOORS = (*_IN_PYTHON, _in_json, _in_workbook)


@check
def check_what_is_said_of_cells_is_not_published() -> None:
    """How many cells have no category, and which, is for the curator alone."""
    lines = "<=50K,20,40,PRIVATE7,x\n>50K,30,9,state,x\n" * 30
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        path = Path(folder, "people.csv")
        path.write_text("income,age,hours,work,name\n" + lines, encoding="utf-8")
        data = pv.load(path, schema=declared())
        result = pv.train(data, epsilon=8.0, epochs=1)
        out = pv.publish(result, Path(folder, "model"), delta=1e-5)
        files = [each for each in Path(out).rglob("*") if each.is_file()]
        assert files
        for each in files:
            content = each.read_bytes()
            assert b"PRIVATE7" not in content, each
            assert b"none of its declared" not in content, each
    said = [str(each.message) for each in caught if each.category is DataWarning]
    assert len(said) == 1
    assert "about 50 % of the cells of column 'work'" in said[0]
    assert "'PRIVATE7' (about 50 %" in said[0]
    assert "for the data's curator, and not for publication" in said[0]
    assert not {"60", "30"} & set(re.findall("[0-9]+", said[0])), said[0]  # no number of rows


@check
def check_schemas_that_mean_something_else_have_another_digest() -> None:
    same = declared().digest
    assert declared("# a comment\n" + SCHEMA.replace("17\n", "17.0 # years\n")).digest == same
    for old, new in (
        ("low = 17", "low = 18"),
        ("missing = 40", "missing = 41"),
        ("missing = 40", ""),
        ('"private", "state"', '"state", "private"'),
        ('"<=50K", ">50K"', '">50K", "<=50K"'),
        ("columns.age", "columns.years"),
        ('"?", ""', '""'),
    ):
        assert old in SCHEMA
        assert declared(SCHEMA.replace(old, new)).digest != same


@check
def check_models_predict_by_their_own_schema_only() -> None:
    from privlearn.cli.commands import predict

    options = argparse.Namespace(folder="model")
    digest, other = declared().digest, declared(SCHEMA.replace("17", "16")).digest
    predict._require_same_schema(options, digest, digest)
    predict._require_same_schema(options, "", digest)
    must_raise(BadInput, lambda: predict._require_same_schema(options, other, digest))
    must_raise(BadInput, lambda: predict._require_same_schema(options, other, ""))


@check
def check_only_published_bytes_are_read() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.data")
        file = catalogue.File("rows.data", 9, hashlib.sha256(b"published").hexdigest())
        for content in (b"published", b"Published", b"publishe", b"published and more", b""):
            path.write_bytes(content)
            if content == b"published":
                assert file.read(path, "rows") == content
            else:
                must_raise(BadInput, lambda: file.read(path, "rows"))


@check
def check_what_is_no_data_is_refused() -> None:
    """What is no pair, and rows that are no numbers, with a message and not with whatever numpy
    says.
    """
    x, y = np.zeros((4, 2)), np.zeros(4, dtype=np.int64)
    for given in (x[:2], 3, None, "ab", {0: x, 1: y}, (x,), (x, y, x)):
        must_raise(BadInput, lambda given=given: pv.Dataset.of(given))  # type: ignore[misc]
    assert len(pv.Dataset.of((x, y)).x) == len(pv.Dataset.of([x, y]).x) == 4
    with tempfile.TemporaryDirectory() as folder:
        for wrong in (x.astype(str), x.astype(complex), x.astype("datetime64[s]")):
            for part in ("x", "y"):
                np.savez(
                    Path(folder, "rows.npz"),
                    **{"x": x, "y": y} | {part: wrong if part == "x" else wrong[:, 0]},
                )
                error = must_raise(
                    BadInput,
                    lambda: pv.load(Path(folder, "rows.npz"), classes=2, value_range=(0.0, 1.0)),
                )
                assert "expected numbers" in str(error) or "expected whole numbers" in str(error), (
                    wrong.dtype,
                    part,
                )


@check
def check_declared_ranges_fit_the_data() -> None:
    """Of scikit-learn's own data sets: no row is cut, and no range is wider than rounding outward
    makes it.
    """
    for read in (formats.digits, formats.breast_cancer):
        data = read({})
        rows = np.concatenate([np.asarray(part) for part in (data.x, data.x_test)])
        low, high = (
            np.broadcast_to(np.asarray(bound), rows.shape[1:]) for bound in (data.low, data.high)
        )
        assert (rows >= low).all()
        assert (rows <= high).all()
        most = rows.max() if data.name == "digits" else rows.max(0)  # pixels have one range
        assert (high <= 1.3 * most).all()


@check
def check_splits_do_not_look_at_rows() -> None:
    numbers = np.arange(50)
    made_up = np.random.default_rng(0)
    first = formats._split(numbers, numbers % 2)
    other = formats._split(numbers, made_up.permutation(numbers))
    assert first["x"].tolist() == other["x"].tolist()
    assert sorted([*first["x"], *first["x_test"]]) == numbers.tolist()
    assert len(first["x"]) == 40


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address under which the files of `folder` are served."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            with patch.dict("os.environ", NO_PROXY="127.0.0.1", no_proxy="127.0.0.1"):
                yield f"http://127.0.0.1:{server.server_address[1]}/"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def offered(address: str, content: bytes, name: str = "rows.data") -> Iterator[None]:
    """A data set `made-up` in the catalogue, of one file with `content` as the published one."""
    digest = hashlib.sha256(content).hexdigest()
    file = catalogue.File(name, len(content), digest, catalogue.Source(address + name, digest))
    entry = Named("made up", "folder", (Form(None, (file,)),), "none")
    with patch.dict(CATALOGUE, {"made-up": entry}):
        yield


@check
def check_wrong_downloads_are_not_kept() -> None:
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as data_dir:
        Path(folder, "rows.data").write_bytes(b"published")
        with served(Path(folder)) as address:
            with offered(address, b"another"):
                must_raise(BadInput, lambda: named.fetch("made-up", data_dir))
                assert [path for path in Path(data_dir).rglob("*") if path.is_file()] == []
            with offered(address, b"published"):
                assert [path.read_bytes() for path in named.fetch("made-up", data_dir)] == [
                    b"published"
                ]


ROWS = TensorDataset(torch.arange(24.0).reshape(12, 2), torch.arange(12) % 2)


def train(data: Any, sampling: Any) -> Any:
    plan = pv.Plan(sampling, epochs=1, schedule=pv.schedules.Constant(1.0))
    loss = torch.nn.CrossEntropyLoss(reduction="none")
    return pv.dpsgd(plan, torch.nn.Linear(2, 2), loss, data)


@check
def check_loaders_are_priced_as_they_shuffle() -> None:
    loader = DataLoader(ROWS, batch_size=4, shuffle=True)
    result = train(loader, pv.Shuffle(4))
    assert result.plan.sampling == pv.Shuffle(4)
    assert (
        result.ledger.event
        == pv.Plan(pv.Shuffle(4), epochs=1, schedule=pv.schedules.Constant(1.0)).event()
    )
    for other in (pv.Poisson(1 / 3), pv.Partition(3), pv.Shuffle(3), pv.sampling.FullBatch()):
        must_raise(BadInput, lambda other=other: train(loader, other))


@check
def check_loaders_that_draw_otherwise_are_refused() -> None:
    def mix(rows: list[Any]) -> Any:
        return torch.stack([x for x, _ in rows]).roll(1, 0), torch.stack([y for _, y in rows])

    class Sorted(RandomSampler):
        def __iter__(self) -> Iterator[int]:
            return iter(sorted(super().__iter__()))

    for settings in (
        {"batch_size": 4},
        {"batch_size": 4, "sampler": Sorted(ROWS)},
        {"batch_size": 4, "sampler": RandomSampler(ROWS, replacement=True)},
        {"batch_size": 4, "sampler": RandomSampler(ROWS, num_samples=8)},
        {"batch_size": 4, "sampler": torch.utils.data.WeightedRandomSampler([1.0] * 12, 12)},
        {"batch_sampler": BatchSampler(RandomSampler(ROWS), 4, False)},
        {"batch_size": 4, "shuffle": True, "collate_fn": mix},
        {"batch_size": 5, "shuffle": True, "drop_last": True},
        {"batch_size": None},
    ):
        loader = DataLoader(ROWS, **settings)  # type: ignore[arg-type]
        must_raise(BadInput, lambda loader=loader: train(loader, pv.Shuffle(4)))
