"""Files of tables as people have them, and what is said of those that can't be read."""

from __future__ import annotations

import gzip
import json
import lzma
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import privlearn as pv
from privlearn.cli import main
from privlearn.data.named import load_features
from privlearn.data.schema import Schema, parse_schema
from privlearn.errors import BadInput, DataWarning

SCHEMA = """
target = "ill"
missing = ["", "k.A."]
separator = ";"
decimal = ","
[columns]
"Größe" = { kind = "number", low = 100, high = 250, missing = 170 }
born = { kind = "date", low = 1950-01-01, high = 2010-12-31, format = "%d.%m.%Y" }
ward = { kind = "category", categories = ["Intensiv", "Chirurgie I"], match = "casefold" }
ill = { kind = "target", classes = ["ja", "nein"] }
"""
TEXT = (
    "\ufeffid;Größe;born;ward;ill\r\n1;171,5;02.01.1950;INTENSIV;ja\r\n"
    "2;k.A.;03.01.1950;chirurgie  i;nein\r\n"
)
FEATURES = [[171.5, 1, 1, 0], [170, 2, 0, 1]]


def declared(text: str = SCHEMA) -> Schema:
    return parse_schema(text, "people.toml")


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "csv.xz", "csv.zst", "CSV"])
def test_text_of_another_dialect_is_read_packed_or_not(ending: str, tmp_path: Path) -> None:
    raw, path = TEXT.encode(), tmp_path / f"people [1]*.{ending}"
    pack: dict[str, Any] = {
        "csv.gz": gzip.compress,
        "csv.xz": lzma.compress,
        "csv.zst": lambda raw: pyarrow.compress(raw, codec="zstd", asbytes=True),
    }
    path.write_bytes(pack.get(ending, bytes)(raw))
    data = pv.load(path, schema=declared())
    assert data.x.tolist() == FEATURES
    assert data.y.tolist() == [0, 1]


def test_another_encoding_is_read_where_the_schema_names_it(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(TEXT.removeprefix("\ufeff").encode("cp1252"))
    with pytest.raises(BadInput, match=r"not UTF-8, first in line 1.*encoding = \"cp1252\""):
        pv.load(tmp_path / "a.csv", schema=declared())
    named = declared('encoding = "cp1252"\n' + SCHEMA)
    assert pv.load(tmp_path / "a.csv", schema=named).x.tolist() == FEATURES
    (tmp_path / "b.csv").write_bytes(TEXT.encode("cp1252", "replace") + "3;1,5;ä".encode())
    with pytest.raises(BadInput, match=r"row 3 \(line 4\) has 3 cells: expected 5"):
        pv.load(tmp_path / "b.csv", schema=named)


def test_a_published_model_reads_files_as_its_schema_says_they_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = "".join(
        f"{at};18{at % 10},5;02.01.19{50 + at % 40};Intensiv;{('ja', 'nein')[at % 2]}\r\n"
        for at in range(60)
    )
    (tmp_path / "a.csv").write_text("id;Größe;born;ward;ill\r\n" + rows, encoding="utf-8")
    data = pv.load(tmp_path / "a.csv", schema=declared())
    pv.publish(pv.train(data, epsilon=8.0, epochs=1), tmp_path / "model", delta=1e-5)
    assert (
        main(["predict", str(tmp_path / "model"), "--data", str(tmp_path / "a.csv"), "--id", "id"])
        == 0
    )
    header, first, *_ = capsys.readouterr().out.splitlines()
    assert header.startswith("index,id,prediction,label")
    assert first.startswith("0,0,")
    stated = json.loads((tmp_path / "model" / "config.json").read_text())["table"]
    again = Schema.from_json(stated, "config.json")
    assert again.dialect == declared().dialect
    assert again.digest == declared().digest == declared(SCHEMA.replace("separator", "# ")).digest
    assert load_features(tmp_path / "a.csv", again).x.tolist() == data.x.tolist()


def test_dates_of_files_do_not_change_what_features_mean_and_matching_does() -> None:
    other = SCHEMA.replace(', format = "%d.%m.%Y"', "")
    assert declared(other).digest == declared().digest
    assert declared(SCHEMA.replace(', match = "casefold"', "")).digest != declared().digest


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('separator = ";"', 'separator = ";;"', "separator is ';;': expected one character"),
        ('decimal = ","', 'decimal = "\'"', 'decimal is "\'": expected "." or ","'),
        ('decimal = ","', 'encoding = "latin-99"', "encoding is 'latin-99'"),
        ("%d.%m.%Y", "%d.%m.", "format of column 'born' is '%d.%m.'"),
        ('match = "casefold"', 'match = "nearly"', "match of column 'ward' is 'nearly'"),
        ("Chirurgie I", "intensiv", "differ by capitals or spaces alone"),
    ],
)
def test_what_a_schema_says_of_files_is_checked(old: str, new: str, said: str) -> None:
    assert old in SCHEMA
    with pytest.raises(BadInput) as caught:
        declared(SCHEMA.replace(old, new))
    assert said in str(caught.value)


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught:
        declared(SCHEMA.replace("low = 100, ", "").replace('["ja", "nein"]', "[]"))
    title, first, second = str(caught.value).split("\n")
    assert title == "several faults:"
    assert "low of column 'Größe' is not there" in first
    assert "classes of column 'ill' is []" in second
    (tmp_path / "a.csv").write_text(
        "id;Größe;born;ward;ill\n1;171.5;02.01.1950;x;ja\n2;3;1950-01-01;x;nein\n3;;01.01.1950;;?\n",
        encoding="utf-8",
    )
    with pytest.raises(BadInput) as caught:
        pv.load(tmp_path / "a.csv", schema=declared())
    lines = str(caught.value).split("\n")
    assert [line.partition(", row ")[2][:1] for line in lines[1:]] == ["1", "2", "3"]
    assert "'171.5': expected a number such as 3 or -2,5e3" in lines[1]
    assert "'1950-01-01': expected a date such as 31.12.2020" in lines[2]


def test_folders_of_parquet_are_one_table(tmp_path: Path) -> None:
    for year in (2020, 2021):
        (tmp_path / f"year={year}").mkdir()
        columns = {"age": [20, 30], "ill": ["no", "yes"]}
        pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / f"year={year}" / "a.parquet")
    text = """
    target = "ill"
    [columns]
    age = { kind = "number", low = 0, high = 99 }
    year = { kind = "category", categories = ["2020", "2021"] }
    ill = { kind = "target", classes = ["no", "yes"] }
    """
    data = pv.load(tmp_path, schema=parse_schema(text, "a.toml"))
    assert data.x.tolist() == [[20, 1, 0], [30, 1, 0], [20, 0, 1], [30, 0, 1]]


def test_workbooks_are_read(tmp_path: Path) -> None:
    pytest.importorskip("fastexcel")
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in (["Größe", "born", "ward", "ill"], [171.5, date(1950, 1, 2), "intensiv", "ja"]):
        book.active.append(row)
    book.save(tmp_path / "a.xlsx")
    assert pv.load(tmp_path / "a.xlsx", schema=declared()).x.tolist() == FEATURES[:1]


def test_damaged_files_are_refused_by_name(tmp_path: Path) -> None:
    for ending in ("parquet", "feather", "jsonl", "xlsx", "csv.gz", "csv.xz", "csv.zst"):
        path = tmp_path / f"a.{ending}"
        path.write_bytes(b"\x00\x01 this is nothing of the kind \xff" * 10)
        with pytest.raises(BadInput, match=rf"a\.{ending}"):
            pv.load(path, schema=declared())
    with pytest.raises(
        BadInput, match=r"no table .*a\.sas7bdat: expected a file that ends in \.csv"
    ):
        pv.load(tmp_path / "a.sas7bdat", schema=declared())


def test_templates_have_a_line_for_each_column_and_are_read_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["😀", "a.b", 'quo"te', "Gro\u0308ße", "42"]
    (tmp_path / "a.csv").write_text(
        ";".join(names).replace('"', '""').replace("quo", '"quo').replace("te;", 'te";') + "\n"
    )
    assert main(["data", "schema", str(tmp_path / "a.csv")]) == 0
    text = capsys.readouterr().out
    assert 'separator = ";"' in text
    lines = text.split("[columns]\n")[1].splitlines()
    assert len(lines) == len(names)
    filled = text.replace('target = ""', 'target = "42"').replace(
        'kind = "" ', 'kind = "number", low = 0, high = 9 '
    )
    last = '"42" = { kind = "number", low = 0, high = 9 }'
    filled = filled.replace(last, '"42" = { kind = "target", classes = ["0", "1"] }')
    schema = parse_schema(filled, "a.toml")
    (tmp_path / "a.csv").write_text((tmp_path / "a.csv").read_text() + "1;2;3;4;1\n")
    assert pv.load(tmp_path / "a.csv", schema=schema).x.tolist() == [[1, 2, 3, 4]]


def test_columns_of_pandas_are_found_by_number_and_by_level() -> None:
    pandas = pytest.importorskip("pandas")
    text = """
    target = "ill.now"
    [columns]
    3 = { kind = "number", low = 0, high = 99 }
    "ill.now" = { kind = "target", classes = ["no", "yes"] }
    """
    schema = parse_schema(text, "a.toml")
    frame = pandas.DataFrame({3: [1, 2], ("ill", "now"): ["no", "yes"]})
    assert pv.load(frame, schema=schema).x.tolist() == [[1], [2]]


def test_days_beyond_pythons_are_refused_with_their_row() -> None:
    days = pyarrow.array([0, 4_000_000], pyarrow.int32()).cast(pyarrow.date32())
    table = pyarrow.table({"Größe": [1, 2], "born": days, "ward": ["", ""], "ill": ["ja", "ja"]})
    with pytest.raises(BadInput, match=r"row 2, column 'born' is '12921-"):
        pv.load(table, schema=declared())


def test_time_stamps_count_as_days_in_their_own_zone() -> None:
    stamps = pyarrow.array([86_400 + 3_600 * 23], pyarrow.timestamp("s", "Asia/Tokyo"))
    old = pyarrow.compute.subtract(stamps, pyarrow.scalar(86_400 * 7305, pyarrow.duration("s")))
    table = pyarrow.table({"Größe": [1], "born": old, "ward": [""], "ill": ["ja"]})
    assert pv.load(table, schema=declared()).x[0, 1] == 2


def test_categories_that_libraries_read_as_missing_are_spoken_of() -> None:
    pandas = pytest.importorskip("pandas")
    text = SCHEMA.replace("Chirurgie I", "NA")
    frame = pandas.DataFrame(
        {"Größe": [1.0], "born": ["01.01.1960"], "ward": [None], "ill": ["ja"]}
    )
    with pytest.warns(DataWarning, match=r"all of the cells of column 'ward' are missing.*'NA'"):
        data = pv.load(frame, schema=declared(text))
    assert np.asarray(data.x)[0, 2:].tolist() == [0, 0]


def test_what_python_cannot_count_is_no_error_of_its_own() -> None:
    """An unknown time zone is refused with its row; a huge exponent is no category."""
    rows: dict[str, Any] = {
        "Größe": [1],
        "born": ["01.01.1960"],
        "ward": ["1e99999999999999999999"],
    }
    table = pyarrow.table({**rows, "ill": ["ja"]})
    with pytest.warns(DataWarning, match="all of the cells of column 'ward'"):
        assert pv.load(table, schema=declared()).x[0, 2:].tolist() == [0, 0]
    stamps = pyarrow.array([0], pyarrow.timestamp("s", "Nowhere/Town"))
    table = pyarrow.table({**rows, "born": stamps, "ill": ["ja"]})
    with pytest.raises(BadInput, match="row 1, column 'born' is 'in the zone Nowhere/Town'"):
        pv.load(table, schema=declared())
