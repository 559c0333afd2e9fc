"""A property of tables: the same content has the same features, or is refused with the same words,
whatever library or file brings it.
"""

from __future__ import annotations

import contextlib
import datetime
import random
import re
import sqlite3
import unicodedata
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.feather
import pyarrow.parquet
import pytest

import privlearn as pv
from privlearn.data import pack
from privlearn.data.named import load_features
from privlearn.data.schema import Category, Date, Number, Schema
from privlearn.errors import BadInput, DataWarning

pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")

ROWS = 6
DAYS = (datetime.date(1999, 1, 1), datetime.date(2030, 12, 31))
#: What a column may hold, of one kind each, and how its names are declared.
NUMBERS: dict[str, Callable[[random.Random], Any]] = {
    "whole": lambda draws: draws.randint(-9, 99),
    "fractions": lambda draws: draws.choice([0.1, 2.5, -3.0, 1e300, 1e-7, 12345678.9]),
    "numbers as text": lambda draws: draws.choice(["1", "+2.", " 3e1 ", "-.5", "007", "1E+2"]),
    "texts among numbers": lambda draws: draws.choice(["1", "2", "many"]),
    "truth values": lambda draws: draws.random() < 0.5,
    "stand-ins": lambda draws: draws.choice([-99, 5, 7]),
    "stand-ins as text": lambda draws: draws.choice(["-99", "-99.0", "?", "5"]),
}
NAMES: dict[str, Callable[[random.Random], Any]] = {
    "truth values": lambda draws: draws.random() < 0.5,
    "truth values as text": lambda draws: draws.choice(["True", "true", "FALSE", "no"]),
    "whole": lambda draws: draws.choice([1, 2, 7]),
    "whole as fractions": lambda draws: draws.choice([1.0, 2.0, 7.0, 0.5]),
    "numbers as text": lambda draws: draws.choice(["1", "1.0", "007", "7", "2", "1e0"]),
    "accents": lambda draws: draws.choice(["Müller", unicodedata.normalize("NFD", "Müller"), "x"]),
    "capitals": lambda draws: draws.choice(["State", "state", " state", "STATE  gov"]),
    "like missing": lambda draws: draws.choice(["NA", "None", "nan", "x"]),
}
DECLARED = (
    ("True", "False"),
    ("true", "false"),
    ("1", "2", "7"),
    ("007", "1", "0.5"),
    ("Müller", "State", "NA"),
    ("state gov", "state"),
)


def declarable(kind: str) -> tuple[tuple[str, ...], ...]:
    """What may be declared. Names that are the same number are for texts alone: a number lost its
    zeros before it came here, and is refused.
    """
    return (*DECLARED, ("7", "007")) if "text" in kind else DECLARED


def drawn(seed: int) -> tuple[dict[str, list[Any]], Schema]:
    """The columns of a table, and its schema."""
    draws = random.Random(seed)
    gaps = draws.random() < 0.5

    def column(cell: Callable[[random.Random], Any]) -> list[Any]:
        return [None if gaps and draws.random() < 0.25 else cell(draws) for _ in range(ROWS)]

    kind, other = draws.choice(list(NAMES)), draws.choice(list(NAMES))
    fill = draws.choice([None, 50.0, 50.0])
    columns = {
        "size": column(NUMBERS[draws.choice(list(NUMBERS))]),
        "kind": column(NAMES[kind]),
        "born": column(lambda draws: DAYS[0] + datetime.timedelta(days=draws.randint(-10, 13_000))),
        "other": column(NAMES[other]),
        "y": [draws.choice(["no", "yes"]) for _ in range(ROWS)],
    }
    schema = Schema(
        "y",
        ("no", "yes"),
        (
            Number("size", -5, 80, fill, indicator=fill is not None),
            Category("kind", draws.choice(declarable(kind))),
            Date("born", *DAYS, missing=DAYS[0]),
            Category("other", draws.choice(declarable(other)), draws.choice([None, "casefold"])),
        ),
        ("", "?", "-99"),
    )
    return columns, schema


def outcome(load: Callable[[], Any]) -> tuple[Any, Any]:
    """The features, or what is said instead of them; and the counts that are warned of. Texts
    quote a cell as it is written: True or 'True', 7.0 or 7.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            features = np.asarray(load()).tolist()
        except BadInput as error:
            place = r"(row \d+|a cell of)(?: \(line \d+\))?,? (column '\w+') is "
            said = re.findall(place + "(missing|.*?: (?:expected|several).*)", str(error))
            features = [part.partition(": ")[2] or part for part in said[0]]
    counts = [
        re.match(r"(?:all|\w+ \d+ %) of the cells of column '\w+' are none", str(each.message))
        for each in caught
        if each.category is DataWarning
    ]
    return features, sorted(count[0] for count in counts if count)


def without_order(outcome: tuple[Any, Any]) -> tuple[Any, Any]:
    """An outcome of rows that have no order: sorted, and what is said without numbers of rows."""
    features, counts = outcome
    return sorted(re.sub(r"^(row \d+|a cell of)$", "", str(each)) for each in features), counts


def write_sqlite(columns: dict[str, list[Any]], path: Path) -> str:
    """A table of a database, which has numbers and texts alone; its address."""

    def stored(cell: Any) -> Any:
        plain = cell is None or (isinstance(cell, int | float) and not isinstance(cell, bool))
        return cell if plain else str(cell)

    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"CREATE TABLE rows ({', '.join(columns)})")
        rows = zip(*columns.values(), strict=True)
        marks = ", ".join("?" * len(columns))
        statement = f"INSERT INTO rows VALUES ({marks})"
        connection.executemany(statement, [tuple(map(stored, row)) for row in rows])
    return f"sqlite:///{path}?table=rows"


def doors(columns: dict[str, list[Any]], schema: Schema, folder: Path) -> dict[str, Any]:
    """Every way of bringing the table to features."""
    frame = pandas.DataFrame(columns)
    arrow = pyarrow.table(columns)
    frame.to_csv(folder / "a.csv", index=False)
    frame.to_csv(folder / "a.tsv.gz", index=False, sep="\t")
    pyarrow.parquet.write_table(arrow, folder / "a.parquet")
    arrow_texts = pyarrow.table({**columns, "born": [day and str(day) for day in columns["born"]]})
    polars.from_arrow(arrow_texts).write_ndjson(folder / "a.jsonl")
    pyarrow.feather.write_feather(arrow, folder / "a.feather")
    polars.from_arrow(arrow_texts).write_parquet(folder / "b.parquet")
    sources = {
        "pandas": frame,
        "pandas, nullable": frame.convert_dtypes(),
        "pandas, Arrow": frame.convert_dtypes(dtype_backend="pyarrow"),
        "pandas, categories": frame.astype({"kind": "category", "other": "category"}),
        "pandas, objects": frame.astype(object),
        "polars": polars.from_arrow(arrow),
        "lazy polars": polars.from_arrow(arrow).lazy(),
        "Arrow": arrow,
        "dictionaries": arrow.set_column(1, "kind", arrow["kind"].dictionary_encode()),
        **{name: folder / name for name in ("a.csv", "a.tsv.gz", "a.parquet", "a.jsonl")},
        **{name: folder / name for name in ("a.feather", "b.parquet")},
        "SQLite": write_sqlite(columns, folder / "a.db"),
    }
    return {
        **{
            name: lambda source=source: pv.load(source, schema=schema).x
            for name, source in sources.items()
        },
        "prediction": lambda: load_features(frame, schema).x,
        "scikit-learn": lambda: pv.sklearn.DPTableEncoder(schema).transform(frame),
        "packed": lambda: pv.load(pack(folder / "a.parquet", folder / "packed", schema=schema)).x,
    }


#: Some of the 320 tables are for every day.
PARTS = [pytest.param(part, marks=[pytest.mark.nightly] * (part > 1)) for part in range(16)]


@pytest.mark.parametrize("part", PARTS)
def test_all_doors_agree(part: int, tmp_path: Path) -> None:
    for seed in range(part, 320, 16):
        columns, schema = drawn(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        outcomes = {name: outcome(load) for name, load in doors(columns, schema, folder).items()}
        first = outcomes["Arrow"]
        for name, each in outcomes.items():
            if name == "SQLite":
                each, expected = without_order(each), without_order(first)
                assert each == expected, (seed, name, columns, schema.features)
                continue
            assert each == first, (seed, name, columns, schema.features)
