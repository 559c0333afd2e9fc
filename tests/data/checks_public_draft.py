"""Named checks of schemas that are drafted from a public file; planted bugs must make them fail."""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
import tempfile
import unicodedata
import warnings
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow
import pyarrow.parquet

import privlearn as pv
from privlearn.data import cells
from privlearn.data.public_draft import PublicDraft, draft_public_schema
from privlearn.data.schema import Date, Number, Schema, parse_schema
from privlearn.data.tables import read_table
from privlearn.errors import BadInput, DataWarning
from tests.publishing.checks_shapes import mended, require_refused
from tests.support.checks import check, must_raise

HEADER = "age,ward,ill\n"
CENSUS = HEADER + "17,north,no\n45,south,yes\n90,north,no\n"
#: What a private file may hold below its header, also what nothing could read.
PRIVATE = (
    "",
    "33,north,no\n34,centre,yes\n",
    "120,Ambassador,yes,4\n",
    '"\0\n',
    "1e9,south\n" * 50,
)
#: How many tables are drawn.
TABLES = 50
FORMATS = ("%d.%m.%Y", "%Y/%m/%d", "%d-%m-%Y", None)


def filled(draft: PublicDraft) -> Schema:
    """The schema of a draft, without the columns that it leaves blank."""
    lines = draft.to_toml().splitlines()
    return parse_schema("\n".join(each for each in lines if 'kind = ""' not in each), "draft.toml")


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8", newline="")
    return path


@check
def check_private_rows_are_not_read_for_a_public_draft() -> None:
    """Whatever they are, the draft is the same, as a file or as a data frame."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        census = written(folder, "census.csv", CENSUS)
        drafts = [
            draft_public_schema(
                written(folder, "people.csv", HEADER + rows), public=census, target="ill"
            )
            for rows in PRIVATE
        ]
        for ages in ([1.0, 2.0], [1e30]):
            many: dict[str, Any] = {"age": ages, "ward": "A", "ill": "x"}
            frame = pandas.DataFrame(many)
            drafts.append(draft_public_schema(frame, public=census, target="ill"))
            pyarrow.parquet.write_table(pyarrow.table(frame), folder / "people.parquet")
            drafts.append(
                draft_public_schema(folder / "people.parquet", public=census, target="ill")
            )
    assert all(draft == drafts[0] for draft in drafts)
    schema = filled(drafts[0])
    assert schema.features[0] == Number("age", 17, 90, 45)
    assert schema.feature_names == ("age", "ward=north", "ward=south")
    assert schema.classes == ("no", "yes")


@check
def check_private_rows_are_not_declared_public() -> None:
    """The same content is refused: under another name, packed, or in a folder; a file of the same
    size is not.
    """
    text = CENSUS + "33,north,no\n"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        people = written(folder, "people.csv", text)
        same = [people, written(folder, "copy.csv", text)]
        for ending, pack in (("gz", gzip.compress), ("xz", lzma.compress)):
            same.append(folder / f"copy.csv.{ending}")
            same[-1].write_bytes(pack(text.encode()))  # type: ignore[operator]
        for path in same:
            error = must_raise(BadInput, lambda path=path: draft_public_schema(people, public=path))
            assert "whose rows are private" in str(error), error
        other = written(folder, "other.csv", text.replace("33", "34"))
        assert filled(draft_public_schema(people, public=other, target="ill")).classes
        parts = folder / "parts"
        parts.mkdir()
        for at in range(2):
            table = pyarrow.table({"age": [at, 50], "ill": ["no", "yes"]})
            pyarrow.parquet.write_table(table, parts / f"{at}.parquet")
        for private, public in ((parts, parts / "1.parquet"), (parts / "0.parquet", parts)):
            error = must_raise(
                BadInput,
                lambda private=private, public=public: draft_public_schema(private, public=public),
            )
            assert "whose rows are private" in str(error), error


def drawn_column(drawing: np.random.Generator, rows: int, *, typed: bool, decimal: str) -> Any:
    """A column of cells of a kind drawn at random, as text or as Python has them."""
    kind = drawing.integers(8)
    scale = 10.0 ** drawing.integers(-12, 20)
    absent = drawing.random(rows) < drawing.choice([0, 0.2])
    if kind == 0:
        values: list[Any] = drawing.integers(-5, drawing.integers(1, 10**6), rows).tolist()
    elif kind == 1:
        values = (drawing.normal(drawing.normal(0, 3), 1, rows) * scale).tolist()
    elif kind == 2:
        values = (drawing.normal(1e6, 1e-3, rows)).tolist()
    elif kind == 3:
        first = date(1, 1, 1) + timedelta(days=int(drawing.integers(700_000)))
        days = [first + timedelta(days=int(day)) for day in drawing.integers(0, 9000, rows)]
        form = FORMATS[drawing.integers(len(FORMATS))]
        values = days if typed else [_said(day, form) for day in days]
    elif kind == 4:
        pool = [
            "north",
            "North",
            "so,uth",
            'quo"te',
            "😀",
            "a  b",
            "1",
            "1.0",
            "007",
            "True",
            "n\nl",
        ]
        pool += [unicodedata.normalize("NFD", "Größe"), "NA", "?", "-", "None", "1e999999", "9;9"]
        values = drawing.choice(pool, rows).tolist()
    elif kind == 5:
        values = [f"note {row}" for row in range(rows)]
    elif kind == 6:
        values = (drawing.random(rows) < 0.5).tolist()
    else:
        values = [int(number) for number in drawing.permutation(rows)]
    if typed:
        return [None if gone else value for gone, value in zip(absent, values, strict=True)]
    gap = drawing.choice(["", "NA", "?"])
    texts = [repr(value) if isinstance(value, float) else str(value) for value in values]
    if kind in (1, 2):
        texts = [text.replace(".", decimal) for text in texts]
    return [gap if gone else text for gone, text in zip(absent, texts, strict=True)]


def _said(day: date, form: str | None) -> str:
    """A day as a text, with four digits for its year."""
    return (
        (form or "%Y-%m-%d")
        .replace("%Y", f"{day.year:04}")
        .replace("%m", f"{day.month:02}")
        .replace("%d", f"{day.day:02}")
    )


def drawn_table(drawing: np.random.Generator, folder: Path) -> tuple[Path, list[str]]:
    """A table of columns drawn at random, as a file of a form drawn at random."""
    rows, typed = int(drawing.integers(2, 90)), bool(drawing.random() < 0.3)
    separator = str(drawing.choice([",", ";", "\t"]))
    decimal = "," if separator != "," and drawing.random() < 0.7 else "."
    columns: dict[str, Any] = {
        f"c{at}": drawn_column(drawing, rows, typed=typed, decimal=decimal) for at in range(6)
    }
    columns["ill"] = [("no", "yes")[row % 2] for row in range(rows)]
    if typed:
        path = folder / "public.parquet"
        pyarrow.parquet.write_table(pyarrow.table(columns), path)
        return path, [*columns]
    text = io.StringIO()
    writer = csv.writer(text, delimiter=separator)
    writer.writerows([[*columns], *zip(*columns.values(), strict=True)])
    ending = "tsv" if separator == "\t" else "csv"
    return written(folder, f"public.{ending}", text.getvalue()), [*columns]


def require_within(path: Path, schema: Schema) -> int:
    """How many columns of numbers and days there are; no cell of them lies beyond its bounds."""
    table = read_table(path, schema.columns, schema.dialect)
    decimal = "." if schema.dialect is None else schema.dialect.decimal
    ranges = [column for column in schema.features if isinstance(column, Number | Date)]
    for column in ranges:
        array = table.columns[column.name]
        if isinstance(column, Date):
            values, absent, misfit = cells.days(array, schema.missing, column.format)
            values = values - (column.low - date(1970, 1, 1)).days
            bounds = column.days
        else:
            values, absent, misfit = cells.numbers(array, schema.missing, decimal)
            bounds = column
        assert misfit is None, (column, misfit)
        there = values[~absent]
        assert ((there >= bounds.low) & (there <= bounds.high)).all(), column
        if isinstance(column, Number):
            width = there.max() - there.min()
            assert there.min() - bounds.low <= 0.1001 * width, column
            assert bounds.high - there.max() <= 0.1001 * width, column
    return len(ranges)


@check
def check_a_public_draft_reads_its_own_table() -> None:
    """Fifty tables drawn at random: no cell is refused, none has no category, no number is clipped,
    and bounds are near.
    """
    drawing, kinds, blank = np.random.default_rng(0), set[str](), 0
    with tempfile.TemporaryDirectory() as name, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", DataWarning)
        for _ in range(TABLES):
            path, names = drawn_table(drawing, Path(name))
            private = Path(name, f"private{path.suffix}")
            if path.suffix == ".parquet":
                empty = dict.fromkeys(names, pyarrow.array([], pyarrow.string()))
                pyarrow.parquet.write_table(pyarrow.table(empty), private)
            else:
                private.write_text(path.read_text(encoding="utf-8").split("\n")[0] + "\n")
            draft = draft_public_schema(private, public=path, target="ill")
            assert [*draft.columns] == names
            blank += len(draft.blank)
            kinds |= {settings["kind"] for settings in draft.columns.values() if settings}
            if len(draft.blank) == len(names) - 1:
                continue  # but for the target
            schema = filled(draft)
            data = pv.load(path, schema=schema)
            low, high = schema.bounds()
            assert ((np.asarray(data.x) >= low) & (np.asarray(data.x) <= high)).all()
            require_within(path, schema)
    said = [str(each.message) for each in caught]
    assert not [each for each in said if "declared categories" in each or "bounds" in each]
    assert kinds == {"number", "date", "category", "target"}
    assert TABLES < blank < 3 * TABLES, blank


@check
def check_what_a_draft_came_from_is_published() -> None:
    """The card, the page and the configuration name the public file and its digest; features mean
    what they mean without it; what is no such statement is refused.
    """
    rows = "".join(
        f"{17 + at},{('north', 'south')[at % 2]},{('no', 'yes')[at % 2]}\n" for at in range(60)
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        census = written(folder, "census *1*.csv", CENSUS)
        people = written(folder, "people.csv", HEADER + rows)
        draft = draft_public_schema(people, public=census, target="ill")
        schema = filled(draft)
        assert schema.drafted_from == draft.drafted_from
        plain = parse_schema(
            "\n".join(
                line for line in draft.to_toml().splitlines() if not line.startswith("drafted_from")
            ),
            "plain.toml",
        )
        assert plain.drafted_from is None
        assert plain.digest == schema.digest
        assert "drafted_from" not in plain.to_json()
        result = pv.train(pv.load(people, schema=schema), epsilon=8.0, epochs=1)
        out = pv.publish(result, folder / "model", delta=1e-5)
        assert pv.verify(out).ok
        config = json.loads((out / "config.json").read_text())
        stated = config["table"].get("drafted_from")
        assert stated == {"file": "census *1*.csv", "sha256": draft.drafted_from.sha256}
        assert Schema.from_json(config["table"], "config.json") == schema
        for page in ("README.md", "card.html"):
            text = (out / page).read_text(encoding="utf-8").replace("\\", "")
            assert "Bounds and categories were drafted from the file “census *1*.csv”" in text, page
            assert "curator declares public" in text, page
            assert stated["sha256"] in text, page
        for wrong in (
            "census.csv",
            {},
            {"file": "census.csv"},
            {**stated, "rows": [1, 2]},
            {**stated, "file": ["Ann", "Bob"]},
            {**stated, "file": "x" * 300},
            {**stated, "file": "a\nb"},
            {**stated, "sha256": "33 of ward 4"},
        ):
            config["table"]["drafted_from"] = wrong
            must_raise(BadInput, lambda: Schema.from_json(config["table"], "config.json"))
            (out / "config.json").write_text(json.dumps(config))
            mended(out)
            require_refused(out, "table")
