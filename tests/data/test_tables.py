"""Tables and their schemas: what is refused, and what is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privlearn as pv
from privlearn.cli import main
from privlearn.data import encoding
from privlearn.data.schema import parse_schema
from privlearn.data.tables import column_names
from privlearn.errors import BadInput, DataWarning
from tests.data.checks import CSV, FEATURES, SCHEMA, declared, table

#: (what becomes what in the schema, what the message must contain)
SCHEMAS: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "no TOML": ("[columns.age]", "[columns.age", ("is not valid TOML", "docs/data.md")),
    "a number without end": ("17", "1" * 5000, ("is not valid TOML",)),
    "nested too deeply": ("17", "[" * 2000 + "]" * 2000, ("nested too deeply",)),
    "no target": (
        'target = "income"',
        "",
        ("target is not there", "'income', 'age', 'work', 'hours'"),
    ),
    "a target that is no column": (
        '"income"',
        '"wage"',
        ("target is 'wage'", "one of the columns"),
    ),
    "a target that is no target": (
        '"income"',
        '"age"',
        ("column 'age' has kind 'number'", 'kind = "target"'),
    ),
    "two targets": (
        'kind = "category"\ncategories = ["private", "state"]',
        'kind = "target"\nclasses = ["a", "b"]',
        ("column 'work' has kind 'target'", "for no other column"),
    ),
    "an unknown kind": (
        '"category"',
        '"colour"',
        ("kind of column 'work' is 'colour'", '"number", "date", "category"'),
    ),
    "no kind": ('kind = "number"\nlow = 17', "low = 17", ("kind of column 'age' is not there",)),
    "a column that is no table": (
        "[columns.age]",
        "[columns]\nage = 3\n[columns.years]",
        ("column 'age' is 3",),
    ),
    "no lower bound": (
        "low = 17",
        "",
        ("low of column 'age' is not there", "publicly known, below high = 90."),
    ),
    "no upper bound": (
        "high = 90",
        "",
        ("high of column 'age' is not there", "publicly known, above low = 17."),
    ),
    "a target without classes or bounds": (
        'classes = ["<=50K", ">50K"]',
        "",
        ("'income' is a target with neither", "classes = [", "low and high for a number"),
    ),
    "a target with one bound": (
        'classes = ["<=50K", ">50K"]',
        "low = 3",
        ("high of column 'income' is not there", "above low = 3."),
    ),
    "a bound that is text": (
        "low = 17",
        'low = "17"',
        ("low of column 'age' is '17'", "finite number"),
    ),
    "a bound that is true": ("low = 17", "low = true", ("low of column 'age' is True",)),
    "an infinite bound": ("low = 17", "low = -inf", ("low of column 'age' is -inf",)),
    "a bound that is no number": ("low = 17", "low = nan", ("low of column 'age' is nan",)),
    "a bound beyond single precision": (
        "high = 99",
        "high = 1e39",
        ("high of column 'hours' is 1e+39",),
    ),
    "bounds in disorder": (
        "low = 17",
        "low = 91",
        ("range of column 'age'", "91,90", "the smaller first"),
    ),
    "bounds that single precision cannot tell apart": (
        "low = 17\nhigh = 90\nmissing = 40",
        "low = 16777216\nhigh = 16777217",
        ("16777216,16777217", "single precision"),
    ),
    "a filling out of bounds": (
        "missing = 40",
        "missing = 16",
        ("missing of column 'age' is 16", "from 17 to 90"),
    ),
    "an unknown key": (
        "low = 17",
        "low = 17\nmean = 40",
        ("column 'age' has 'mean'", "only kind, low, high, missing"),
    ),
    "an unknown setting": (
        "missing = [",
        'delimiter = ";"\nmissing = [',
        ("it has 'delimiter'", "only target"),
    ),
    "missing values that are no list": ('["?", ""]', '"?"', ("missing is '?'", "a list of texts")),
    "missing values that are no texts": ('["?", ""]', "[0]", ("missing is [0]", "a list of texts")),
    "no categories": (
        '["private", "state"]',
        "[]",
        ("categories of column 'work' is []", "at least 1"),
    ),
    "categories that are numbers": (
        '["private", "state"]',
        "[1, 2]",
        ("is [1, 2]", "each in quotes"),
    ),
    "a category twice": ('["private", "state"]', '["state", "state"]', ("'state'", "comes twice")),
    "a category that is missing": (
        '["private", "state"]',
        '["private", "?"]',
        ("'?'", "stands for a missing value"),
    ),
    "a category that is empty": ('["private", "state"]', '["private", ""]', ("is empty",)),
    "a category with spaces": (
        '["private", "state"]',
        '["private ", "state"]',
        ("'private '", "spaces around it"),
    ),
    "one class": ('["<=50K", ">50K"]', '[">50K"]', ("classes of column 'income'", "at least 2")),
    "a name with spaces": (
        "columns.age",
        'columns." age"',
        ("column ' age'", "spaces around its name"),
    ),
}


@pytest.mark.parametrize("case", SCHEMAS)
def test_schemas_are_refused(case: str) -> None:
    old, new, expected = SCHEMAS[case]
    assert old in SCHEMA
    with pytest.raises(BadInput) as caught:
        declared(SCHEMA.replace(old, new, 1))
    for part in ("people.toml", *expected):
        assert part in str(caught.value)


def test_a_wrong_target_on_the_command_line_names_the_right_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "people.toml").write_text(SCHEMA, encoding="utf-8")
    (tmp_path / "people.csv").write_text(CSV, encoding="utf-8")
    words = ["train", "--data", str(tmp_path / "people.csv"), "--epsilon", "1"]
    words += ["--schema", str(tmp_path / "people.toml"), "--out", str(tmp_path / "model")]
    assert main([*words, "--target", "inc"]) == 2
    said = capsys.readouterr().err
    assert "target is 'inc': expected one of the columns, or a list: 'income', 'age'" in said
    assert main([*words, "--target", "age"]) == 2
    assert "column 'age' has kind 'number'" in capsys.readouterr().err


def test_the_documented_schema_is_one() -> None:
    text = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
    found = parse_schema(text.split("```toml\n")[1].split("```")[0], "docs/data.md")
    assert found.columns == ("age", "workclass", "income")
    assert [array.tolist() for array in found.bounds()] == [[17, 0, 0], [90, 1, 1]]


def test_a_schema_without_features_or_columns_is_refused() -> None:
    with pytest.raises(BadInput, match="at least one column to learn from"):
        parse_schema('target = "y"\n[columns.y]\nkind = "target"\nclasses = ["a", "b"]', "s")
    with pytest.raises(BadInput, match="there are no columns"):
        parse_schema('target = "y"', "s")


#: (what becomes what in the table, what the message must contain)
TABLES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "text for a number": (
        "30,40",
        "thirty,40",
        ("row 1 (line 2), column 'age' is 'thirty'", "such as 3", "'?'"),
    ),
    "NaN": ("30,40", "NaN,40", ("row 1 (line 2), column 'age' is 'NaN'",)),
    "infinity": ("98.5", "inf", ("row 3 (line 4), column 'hours' is 'inf'",)),
    "a number too large for any": ("98.5", "9" * 400, ("column 'hours' is '999", "finite number")),
    "a decimal comma": ("98.5", '"98,5"', ("row 3 (line 4), column 'hours' is '98,5'",)),
    "missing without a filling": (
        "98.5",
        "?",
        ("row 3 (line 4), column 'hours' is missing", "missing = -1.5"),
    ),
    "an unknown class": (
        "<=50K,120",
        "50K,120",
        ("row 4 (line 5), column 'income' is '50K'", "'<=50K', '>50K'"),
    ),
    "no class": ("<=50K,120", ",120", ("row 4 (line 5), column 'income' is ''",)),
    "a missing column": ("age,hours", "years,hours", ("no column 'age'", "'years', 'name'")),
    "two columns of one name": ("age,hours", "age,age", ("two columns 'age'", "rename or drop")),
    "two columns that are ignored": ("work,name", "work,name,name", ("two columns 'name'",)),
    "too few cells": ("98.5,", "", ("row 3 (line 4) has 4 cells", "expected 5", "double quotes")),
    "too many cells": ("98.5,", "98.5,1,", ("row 3 (line 4) has 6 cells", "expected 5")),
    "a quote that stays open": ('Dr"', "Dr", ("not valid CSV", "double quotes")),
    "a zero byte": ("Eve", "E\0ve", ("zero byte in line 6",)),
    "another separator": (",", ";", ("no column 'age'", "income;age;hours")),
    "only a header": (CSV, "income,age,hours,work\n", ("0 inputs",)),
    "nothing": (CSV, "", ("no column 'age'", "it has none")),
}


@pytest.mark.parametrize("case", TABLES)
def test_tables_are_refused(case: str, tmp_path: Path) -> None:
    old, new, expected = TABLES[case]
    assert old in CSV
    path = tmp_path / "people.csv"
    path.write_text(CSV.replace(old, new), encoding="utf-8")
    with pytest.raises(BadInput) as caught:
        pv.load(str(path), schema=declared())
    for part in ("people.csv", *expected):
        assert part in str(caught.value)


@pytest.mark.parametrize("encoding", ["utf-16", "latin-1", "cp1252"])
def test_other_encodings_are_refused(encoding: str, tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_bytes(CSV.replace("Eve", "Ève").encode(encoding))
    with pytest.raises(
        BadInput, match=f"not UTF-8, first in line {1 if encoding == 'utf-16' else 6}: save it"
    ):
        pv.load(str(path), schema=declared())


@pytest.mark.parametrize(
    "changed",
    [
        "\ufeff" + CSV,
        CSV.replace("\n", "\r\n"),
        CSV.replace("\n", "\n\n"),
        CSV.rstrip("\n"),
        CSV.replace(",", ", "),
        CSV.replace("30,", "3.0e+1,").replace("120", "+120."),
    ],
    ids=["byte order mark", "Windows", "empty lines", "no last line end", "spaces", "numbers"],
)
def test_ways_of_writing_the_same_table(changed: str) -> None:
    assert encoding.encode_features(table(changed), declared()).tolist() == FEATURES


def test_what_is_ignored_or_spelt_otherwise_is_said(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_text(CSV.replace("private", "Private").replace("state", "State"))
    with pytest.warns(DataWarning, match="about 80 % of the cells of column 'work'") as caught:
        data = pv.load(str(path), schema=declared())
    said = str(caught[0].message)
    assert "'Private' (about 40 %, like 'private', which is declared); 'State' (" in said
    assert 'match = "casefold" at this column in the schema' in said
    (ignored,) = data.remarks
    assert "ignored: 'name'" in ignored
    assert data.classes == 2
    assert data.schema == declared()


def test_new_rows_need_no_target(tmp_path: Path) -> None:
    from privlearn.data.named import load_features

    path = tmp_path / "new.csv"
    path.write_text("work,hours,age\nstate,3,20\n")
    assert load_features(path, declared()).x.tolist() == [[20, 0, 1, 3]]
    path.write_text("work,hours,age,income\nstate,3,20,unknown yet\n")
    assert load_features(path, declared()).x.tolist() == [[20, 0, 1, 3]]
    path.write_text("work,hours,age\n")
    with pytest.raises(BadInput, match="no rows"):
        load_features(path, declared())


def write_parquet(path: Path, **columns: Any) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    rest = {
        "age": [30, 16, None],
        "hours": [40.0, -1e300, 98.5],
        "work": ["private", "state", None],
    }
    made = pyarrow.table({**rest, "income": ["<=50K", ">50K", ">50K"], **columns})
    parquet.write_table(made, path)


def test_parquet_is_read_as_csv_is(tmp_path: Path) -> None:
    path = tmp_path / "people.parquet"
    write_parquet(path, name=["Ann", "Bob", "Carol"])
    data = pv.load(str(path), schema=declared())
    assert data.x.tolist() == [[30, 1, 0, 40], [17, 0, 1, -1.5], [40, 0, 0, 98.5]]
    assert data.y.tolist() == [0, 1, 1]
    assert "ignored: 'name'" in data.remarks[0]
    assert column_names(path) == ["age", "hours", "work", "income", "name"]


def test_whole_numbers_and_booleans_may_be_names(tmp_path: Path) -> None:
    path = tmp_path / "people.parquet"
    write_parquet(path, work=[1, 2, 3], income=[True, False, True])
    text = SCHEMA.replace('"private", "state"', '"1", "2"').replace(
        '"<=50K", ">50K"', '"false", "true"'
    )
    data = pv.load(str(path), schema=declared(text))
    assert data.x[:, 1:3].tolist() == [[1, 0], [0, 1], [0, 0]]
    assert data.y.tolist() == [1, 0, 1]


PARQUET: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "NaN without a filling": (
        {"hours": [1.0, float("nan"), 2.0]},
        ("row 2, column 'hours' is missing",),
    ),
    "infinity": ({"hours": [1.0, 2.0, float("inf")]}, ("row 3, column 'hours' is inf",)),
    "missing without a filling": (
        {"hours": [1.0, None, 2.0]},
        ("row 2, column 'hours' is missing",),
    ),
    "a boolean for a number": ({"hours": [True, False, True]}, ("row 1, column 'hours' is True",)),
    "lists": (
        {"work": [["a"], [], ["b"]]},
        ("column 'work'", "list<", "numbers, text, booleans or dates"),
    ),
    "dates": (
        {"age": np.array([0, 1, 2], dtype="datetime64[D]")},
        ("column 'age' is '1970-01-01'", "expected a number"),
    ),
    "no class": (
        {"income": [None, ">50K", ">50K"]},
        ("row 1, column 'income' is None", "declared classes"),
    ),
}


@pytest.mark.parametrize("case", PARQUET)
def test_parquet_is_refused(case: str, tmp_path: Path) -> None:
    columns, expected = PARQUET[case]
    path = tmp_path / "people.parquet"
    write_parquet(path, **columns)
    with pytest.raises(BadInput) as caught:
        pv.load(str(path), schema=declared())
    for part in ("people.parquet", *expected):
        assert part in str(caught.value)


def test_templates_look_at_the_header_alone(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_bytes(b'id,"annual wage"\n\xff\0,"rows that cannot be read')
    assert column_names(path) == ["id", "annual wage"]


# Whose row it is

PERSONS = 'person = "name"\n' + SCHEMA


def test_a_column_says_whose_row_it_is(tmp_path: Path) -> None:
    path, schema = tmp_path / "people.csv", tmp_path / "people.toml"
    path.write_text(CSV.replace("self,", "self,Dan"))
    schema.write_text(PERSONS)
    data = pv.load(str(path), schema=schema)
    assert data.groups.tolist() == ["Ann", "Bob", "Carol, Dr", "Dan", "Eve"]
    assert data.x.tolist() == FEATURES
    assert data.examples == len(set(data.groups.tolist()))


def test_rows_of_training_persons_are_not_tested_on(tmp_path: Path) -> None:
    """Figures of test rows are published as they are; without a column of ids nobody can tell, and
    a remark says so.
    """
    train, test = tmp_path / "people.csv", tmp_path / "later.csv"
    train.write_text(CSV.replace("self,", "self,Dan"))
    schema = parse_schema(PERSONS, "people.toml")
    others = "income,age,hours,work,name\n<=50K,41,20,self,Fay\n>50K,52,30,state,Gil\n"
    test.write_text(others)
    data = pv.load(str(train), schema=schema, test=test)
    assert not any("trained on" in remark for remark in data.remarks)
    test.write_text(others.replace("Fay", "Dan"))
    with pytest.raises(
        BadInput, match=r"test rows of persons who are trained on: 1 of 2 in .*later\.csv"
    ):
        pv.load(str(train), schema=schema, test=test)
    test.write_text(others.replace("name", "nom", 1))
    data = pv.load(str(train), schema=schema, test=test)
    assert any(
        "no column 'name': make sure no training person is in it" in remark
        for remark in data.remarks
    )


def test_ids_are_refused_where_they_are_missing_or_features(tmp_path: Path) -> None:
    path = tmp_path / "people.csv"
    path.write_text(CSV)  # one row has no name
    with pytest.raises(BadInput, match="expected a person's id in every row"):
        pv.load(str(path), schema=parse_schema(PERSONS, "people.toml"))
    for wrong in ('person = "age"', "person = 3", 'person = "income"'):
        with pytest.raises(BadInput, match="neither a feature nor the target"):
            parse_schema(wrong + "\n" + SCHEMA, "people.toml")
    path.write_text(CSV)
    with pytest.raises(BadInput, match="no column 'patient'"):
        pv.load(str(path), schema=parse_schema('person = "patient"\n' + SCHEMA, "people.toml"))
