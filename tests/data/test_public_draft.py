"""Schemas that are drafted from a public file, as people ask for them; and sheets of workbooks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privlearn as pv
from privlearn.cli import main
from privlearn.data.schema import Date, DraftedFrom, Schema, parse_schema
from privlearn.errors import BadInput, DataWarning

HEADER = "patient_id;Größe;born;us;ward;zip;note;unit;empty;extra;flag;ill\n"


def hospital(rows: int, seed: int, *, extra: bool = False) -> str:
    """A table as hospitals have them."""
    drawing = np.random.default_rng(seed)
    lines = [HEADER if extra else HEADER.replace(";extra", "")]
    for row in range(rows):
        size = "NA" if row == 3 else f"{drawing.normal(170, 10):.1f}".replace(".", ",")
        month, day = drawing.integers(1, 13), drawing.integers(1, 13)
        year = drawing.integers(1950, 2000)
        cells = [
            str(row * 7),
            size,
            f"{day:02}.{month:02}.{year}",
            f"{month}/{day}/{year}",
            str(drawing.choice(["Intensiv", "Chirurgie I"])),
            f"{drawing.integers(100, 999):05}",
            f"note of row {row}",
            "cm",
            "",
            *["x"] * extra,
            str(drawing.integers(0, 2)),
            str(drawing.choice(["ja", "nein"])),
        ]
        lines.append(";".join(cells) + "\n")
    return "".join(lines)


def test_a_draft_says_what_it_took_and_why_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    census, people = tmp_path / "census.csv", tmp_path / "people.csv"
    census.write_text(hospital(300, 0), encoding="utf-8")
    people.write_text(hospital(40, 1, extra=True), encoding="utf-8")
    options = ["data", "schema", str(people), "--public", str(census)]
    assert main([*options, "--target", "ill"]) == 0
    shown = capsys.readouterr()
    assert "7 of 12 columns are left to fill in or delete" in shown.err
    head, lines = shown.out.split("[columns]\n")
    by_name = {line.split(" = ")[0].strip('"'): line for line in lines.splitlines()}
    assert [*by_name] == HEADER.strip().split(";")
    for name, reason in {
        "patient_id": "# an id, or text that differs in all rows",
        "us": "# day and month can't be told apart",
        "zip": "different texts: more than 50 are not listed",
        "note": "# an id, or text that differs in all rows",
        "unit": "# the public file has one value alone in it",
        "empty": "# the public file has no value in it",
        "extra": "# the public file has no such column",
    }.items():
        assert f'"{name}" = {{ kind = "" }}  # ' in by_name[name]
        assert reason in by_name[name]
    assert 'missing = ["", "NA"]' in head
    assert 'separator = ";"\ndecimal = ","\n' in head
    blank = [line for line in by_name.values() if 'kind = ""' in line]
    text = shown.out
    for line in blank[1:]:
        text = text.replace(f"{line}\n", "")
    filled = text.replace(blank[0], 'extra = { kind = "category", categories = ["x"] }', 1)
    schema = parse_schema(filled, "people.toml")
    assert [column.name for column in schema.features][-1] == "flag"
    assert schema.classes == ("ja", "nein")
    born = next(column for column in schema.features if isinstance(column, Date))
    assert born.format == "%d.%m.%Y"
    assert (born.low.month, born.low.day, born.high.month, born.high.day) == (1, 1, 12, 31)
    assert len(pv.load(people, schema=schema).x) == 40

    from_python = pv.statistics.draft_public_schema(people, public=census, target="ill")
    assert from_python.to_toml() == shown.out
    assert main([*options, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    flag = said["columns"]["flag"]
    assert flag == {"kind": "number", "low": 0, "high": 1, "missing": flag["missing"]}
    assert said["columns"]["zip"] == {}
    assert [*said["blank"]] == [name for name in by_name if not said["columns"][name]]
    assert said["drafted_from"]["file"] == "census.csv"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("data schema people.csv --public census.csv --paid epsilon=1", "give one of them"),
        ("data schema people.csv --public people.csv", "whose rows are private"),
        ("data schema people.csv --public census.csv --target age", "expected one of the table's"),
        ("data schema people.csv --public census.csv --numbers flag", "--numbers goes with --paid"),
        ("data schema people.csv --target ill", "--target goes with --public or --paid"),
        ("data check people.csv --public census.csv", "--public goes with `privlearn data schema`"),
        ("data schema people.csv --public none.csv", "there is no file none.csv"),
        (f"data schema people.csv --public {'x' * 500}.csv", "File name too long"),
    ],
)
def test_what_is_no_draft_is_refused(
    options: str,
    said: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("census.csv").write_text(hospital(30, 0), encoding="utf-8")
    Path("people.csv").write_text(hospital(30, 1), encoding="utf-8")
    assert main(options.split()) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert said in shown.err


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["0", "1", "0"], {"kind": "target", "classes": ["0", "1"]}),
        ([3, 4, 8], {"kind": "target", "classes": ["3", "4", "8"]}),
        ([0.5, 99.2, 3.0], {"kind": "target", "low": 0, "high": 100}),
        ([True, False, True], {"kind": "target", "classes": ["false", "true"]}),
    ],
)
def test_targets_are_classes_or_numbers(
    cells: list[Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    import pyarrow
    from pyarrow import feather

    table = pyarrow.table({"y": cells, "x": [1, 2, 3]})
    feather.write_feather(table, str(tmp_path / "a.feather"))
    draft = pv.statistics.draft_public_schema(table, public=tmp_path / "a.feather", target="y")
    assert draft.columns["y"] == expected
    schema = parse_schema(draft.to_toml(), "a.toml")
    assert schema.drafted_from == DraftedFrom("a.feather", draft.drafted_from.sha256)
    assert len(pv.load(table, schema=schema).y) == 3


def test_columns_that_hold_other_than_cells_are_left_blank(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"a": [[1], [2]], "b": [1, 2], "c": [float("inf"), 1.0], "d": [7, 7]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    draft = pv.statistics.draft_public_schema(table, public=tmp_path / "a.parquet")
    assert [*draft.blank] == ["a", "c", "d"]
    assert "neither numbers nor text" in draft.blank["a"]
    assert "beyond those that can be read" in draft.blank["c"]


def workbook(path: Path, *, sheets: int, first: int = 20) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    pytest.importorskip("fastexcel")
    book = openpyxl.Workbook()
    for at in range(sheets):
        sheet = book.active if at == 0 else book.create_sheet()
        sheet.title = f"Year {2020 + at}"
        for row in (["age", "ill"], [first + at, "no"], [first + 10 + at, "yes"]):
            sheet.append(row)
    book.save(path)


SHEET = """
target = "ill"
[columns]
age = { kind = "number", low = 0, high = 99 }
ill = { kind = "target", classes = ["no", "yes"] }
"""


def test_sheets_beyond_the_first_are_read_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "people.xlsx"
    other = tmp_path / "other.xlsx"
    workbook(path, sheets=3)
    workbook(other, sheets=3, first=50)
    unnamed = parse_schema(SHEET, "a.toml")
    data = pv.load(path, schema=unnamed, test=other)
    assert np.asarray(data.x).tolist() == [[20], [30]]
    remark = 'has 3 sheets, and the first was read, "Year 2020"'
    assert [remark in each for each in data.remarks] == [True, True]
    named = parse_schema('sheet = "Year 2021"\n' + SHEET, "a.toml")
    data = pv.load(path, schema=named)
    assert np.asarray(data.x).tolist() == [[21], [31]]
    assert data.remarks == ()
    assert named.digest == unnamed.digest
    assert Schema.from_json(named.to_json(), "config.json") == named
    with pytest.raises(
        BadInput, match=r'has no sheet "2021": expected .* "Year 2020", "Year 2021"'
    ):
        pv.load(path, schema=parse_schema('sheet = "2021"\n' + SHEET, "a.toml"))
    for wrong in ("3", '""', '["a"]'):
        with pytest.raises(BadInput, match="expected the name of a sheet"):
            parse_schema(f"sheet = {wrong}\n" + SHEET, "a.toml")
    with pytest.warns(DataWarning, match="has 3 sheets"):
        pv.data.pack(path, tmp_path / "packed", schema=unnamed)
    assert main(["data", "schema", str(path)]) == 0
    assert 'sheet = "Year 2021"' in capsys.readouterr().err.replace("\n", " ")
    draft = pv.statistics.draft_public_schema(path, public=other, target="ill")
    assert "has 3 sheets" in draft.remarks[0]
    assert draft.columns["age"]["low"] == 50
    workbook(path, sheets=1)
    assert pv.load(path, schema=unnamed).remarks == ()


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
def test_quotes_behind_several_spaces_are_refused_with_their_line(
    block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB would take the quotes for text; one space it leaves out, as the header's reader."""
    from privlearn.data import table_files

    opened = table_files._opened

    class Blocks:
        """A file of which less is read at once."""

        def __init__(self, path: Path) -> None:
            self._file = opened(path)

        def __enter__(self) -> Blocks:
            return self

        def __exit__(self, *error: object) -> None:
            self._file.close()

        def read(self, size: int) -> bytes:
            return bytes(self._file.read(min(size, block)))

        def readline(self, size: int) -> bytes:
            return bytes(self._file.readline(size))

    monkeypatch.setattr(table_files, "_opened", Blocks)
    path = tmp_path / "a.csv"
    text = SHEET.replace('"no", "yes"', '"no,  \\"x\\"", "yes"')
    schema = parse_schema(text, "a.toml")
    good = 'age, "ill"\n20,"no,  ""x"""\n30, "yes"\n'
    path.write_text(good)
    assert pv.load(path, schema=schema).y.tolist() == [0, 1]
    for wrong in ('40,  "yes"\n', '  "40","yes"\n', '40,\t"yes"\n', '40,   "ye\n,s"\n'):
        path.write_text(good + wrong)
        with pytest.raises(BadInput, match=r"line 4: between ',' and a quote"):
            pv.load(path, schema=schema)


def test_the_advice_on_quotes_behind_spaces_works(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    path, schema = tmp_path / "a.csv", parse_schema(SHEET, "a.toml")
    path.write_text('age,  "ill"\n20,  "no"\n30,   "yes"\n')
    with pytest.raises(BadInput, match=r"read_csv\(FILE, skipinitialspace=True\)"):
        pv.load(path, schema=schema)
    frame = pandas.read_csv(path, skipinitialspace=True)
    assert pv.load(frame, schema=schema).y.tolist() == [0, 1]
    frame.to_csv(path, index=False)
    assert pv.load(path, schema=schema).y.tolist() == [0, 1]


def test_tabs_separate_cells_of_tsv_files_whatever_else_a_schema_says(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("age\till\n20,5\tno\n")
    schema = parse_schema('decimal = ","\n' + SHEET, "a.toml")
    assert np.asarray(pv.load(path, schema=schema).x).tolist() == [[20.5]]


def test_several_columns_are_drafted_as_targets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    for name in ("private", "public"):
        rows = rng.random((30, 3)).round(3)
        lines = ["age,price,rent", *(",".join(map(str, row)) for row in rows.tolist())]
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
    private, public = str(tmp_path / "private.csv"), str(tmp_path / "public.csv")
    options = ["data", "schema", private, "--public", public, "--target"]
    assert main([*options, "price,rent"]) == 0
    schema = parse_schema(capsys.readouterr().out, "schema.toml")
    assert schema.targets == ("price", "rent")
    assert [column.name for column in schema.features] == ["age"]
    draft = pv.statistics.draft_public_schema(private, public=public, target=["price", "rent"])
    assert draft.target == ("price", "rent")
    assert pv.load(private, schema=parse_schema(draft.to_toml(), "s.toml")).y.shape == (30, 2)
    assert main([*options, "price,age2"]) == 2
    assert "--target is 'age2': expected one of the table's columns" in capsys.readouterr().err
