"""Tables of databases, from their addresses to models and predictions."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

import privlearn as pv
from privlearn.cli import main
from privlearn.data import pack
from privlearn.data.databases import Address
from privlearn.data.schema import Number, Schema
from privlearn.errors import BadInput, DataWarning
from tests.data.checks_databases import SCHEMA, TOML, write
from tests.support.checks import must_raise

#: Other orders of the same rows.
ORDER = np.random.default_rng(1).permutation(200)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("s.toml").write_text(TOML)
    write(Path("clinic.db"))
    return tmp_path


#: An address that says in which order rows come.
SORTED = "sqlite:///clinic.db?query=SELECT * FROM patients ORDER BY number"


def training(*more: str, address: str = "sqlite:///clinic.db?table=patients") -> list[str]:
    data = ["--data", address, "--schema", "s.toml"]
    return ["train", *data, "--examples", "200", "--epsilon", "8", "--epochs", "5", *more]


def test_from_a_database_to_predictions(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(training("--out", "model")) == 0
    assert "patients of clinic.db" in Path("model/README.md").read_text()
    assert "columns of sqlite:///clinic.db?table=patients" in capsys.readouterr().err
    asked = ["predict", "model", "--data", "sqlite:///clinic.db?table=patients"]
    assert main(asked) == 2
    assert "give --id COLUMN" in capsys.readouterr().err
    assert main([*asked, "--id", "number"]) == 0
    shown = {
        row["id"]: row["score_0"] for row in csv.DictReader(io.StringIO(capsys.readouterr().out))
    }
    assert len(shown) == 200
    # the same row has the same score, from a file in another order, too
    write(Path("clinic.db"), order=ORDER)
    assert main([*asked, "--id", "number"]) == 0
    again = {
        row["id"]: row["score_0"] for row in csv.DictReader(io.StringIO(capsys.readouterr().out))
    }
    assert again == shown
    pandas = pytest.importorskip("pandas")
    sqlite3 = pytest.importorskip("sqlite3")
    frame = pandas.read_sql("SELECT * FROM patients", sqlite3.connect("clinic.db"))
    scores = pv.load_model("model").predict_proba(frame).to_numpy()[:, 0]
    for number, score in zip(frame["number"], scores, strict=True):
        assert abs(score - float(shown[str(number)])) < 1e-5


def test_a_run_goes_on_after_the_database_moved_its_rows(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    usual, steps = torch.optim.SGD.step, iter(range(100))

    def step(*given: object, **more: object) -> object:
        if next(steps) == 2:
            raise KeyboardInterrupt
        return usual(*given, **more)

    with mock.patch.object(torch.optim.SGD, "step", step):
        assert main(training("--out", "model", address=SORTED)) == 130
    write(Path("clinic.db"), rows=199)
    assert main(training("--out", "model", "--resume", address=SORTED)) == 2
    assert "its data differs" in capsys.readouterr().err
    write(Path("clinic.db"), order=ORDER)
    assert main(training("--out", "model", "--resume", address=SORTED)) == 0


def test_a_run_is_replayed_after_the_database_moved_its_rows(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = training(address=SORTED)
    assert main(["commit", *run[1:], "--out", "transcript"]) == 0
    assert main([*run, "--transcript", "transcript", "--challenge", "5f", "--out", "model"]) == 0
    write(Path("clinic.db"), order=ORDER)
    capsys.readouterr()
    assert main(["replay", "transcript", "--published", "model", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["bits"]


def test_a_database_is_packed_and_tested_on(here: Path) -> None:
    address = "sqlite:///clinic.db?table=patients"
    packed = pv.load(pack(address, "packed", schema=SCHEMA))
    whole = pv.load(address, schema=SCHEMA)
    rows = [sorted(np.column_stack([each.x, each.y]).tolist()) for each in (packed, whole)]
    assert rows[0] == rows[1]
    assert packed.name == whole.name == "patients of clinic.db"
    write(Path("test.db"), rows=30)
    tested = "sqlite:///test.db?query=SELECT number + 1 AS age, sex, ill FROM patients"
    assert len(pv.load(address, schema=SCHEMA, test=tested).x_test) == 30  # type: ignore[arg-type]


def test_a_cell_without_meaning_is_named_by_its_column(here: Path) -> None:
    schema = Schema("ill", ("no", "yes"), (Number("sex", 0, 1),))
    error = must_raise(
        BadInput, lambda: pv.load("sqlite:///clinic.db?table=patients", schema=schema)
    )
    place = "sqlite:///clinic.db?table=patients, a cell of column 'sex' is 'f': expected a number"
    assert str(error).startswith(place)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("sqlite:///clinic.db", "add ?table=NAME or ?query=SELECT"),
        ("sqlite:///clinic.db?table=", "names no table"),
        ("sqlite:///clinic.db?table=a&table=b", "names no table, or several"),
        ("sqlite:///clinic.db?table=nowhere", "no such table: nowhere"),
        ("sqlite:///nowhere.db?table=patients", "there is no database nowhere.db"),
        ("sqlite:///s.toml?table=patients", "file is not a database"),
        ("sqlite:///clinic.db?mode=rw&table=patients", "SQLite takes table= or query= alone"),
        ("sqlite:///clinic.db?query=SELECT x'00' AS age, sex, ill FROM patients", "holds a bytes"),
        ("https://example.org/people.csv", "A file is given by its path"),
    ],
)
def test_what_is_no_table_of_a_database(here: Path, address: str, said: str) -> None:
    error = must_raise(BadInput, lambda: pv.load(address, schema=SCHEMA))
    assert said in str(error)
    assert len(str(error)) <= 300


def test_a_library_that_is_missing_is_named(here: Path) -> None:
    with mock.patch.dict("sys.modules", {"sqlalchemy": None}):
        error = must_raise(
            BadInput, lambda: pv.load("postgresql://ann@host/clinic?table=t", schema=SCHEMA)
        )
    assert "pip install sqlalchemy" in str(error)


def test_categories_that_match_none_are_counted(here: Path) -> None:
    query = "sqlite:///clinic.db?query=SELECT age, upper(sex) AS sex, ill FROM patients"
    with pytest.warns(DataWarning, match="all of the cells of column 'sex'"):
        pv.load(query, schema=SCHEMA)


def test_other_databases_are_read_by_sqlalchemy(here: Path) -> None:
    pytest.importorskip("sqlalchemy", reason="SQLAlchemy reads other databases than SQLite")
    first = pv.load("sqlite:///clinic.db?table=patients", schema=SCHEMA)
    for what in ("table=patients", "query=SELECT * FROM patients WHERE sex <> '%:x' -- all"):
        second = pv.load(f"sqlite+pysqlite:///clinic.db?{what}", schema=SCHEMA)
        assert np.array_equal(first.x, second.x)
    error = must_raise(
        BadInput, lambda: pv.load("postgresql+psycopg2://a:secret@h/c?table=t", schema=SCHEMA)
    )
    assert "psycopg2" in str(error) or "cannot be read" in str(error)
    assert "secret" not in str(error)
    error = must_raise(BadInput, lambda: pv.load("nosuch://h/c?table=t", schema=SCHEMA))
    assert "cannot be read" in str(error)


def test_the_parts_of_an_address() -> None:
    address = Address("mssql+pyodbc://ann:pw@host:1433/clinic?driver=x&table=dbo.patients")
    assert address == "mssql+pyodbc://ann@host:1433/clinic?table=dbo.patients"
    assert (address.scheme, address.table, address.query) == ("mssql+pyodbc", "dbo.patients", None)
    assert Address(address) is address
    query = Address("sqlite:///me@home/a.db?query=SELECT 1 + 2 AS a, '&table=' AS b;")
    assert query.query == "SELECT 1 + 2 AS a, '&table=' AS b"


def test_what_is_misspelt_is_said(here: Path) -> None:
    """A wrong table, a database in place of its table, a file that is not there."""
    for source, said in (
        ("sqlite:///clinic.db?table=patient", "The database has 'patients'"),
        ("clinic.db", "sqlite:///clinic.db?table=NAME"),
        ("clinics.csv", "there is no file clinics.csv"),
    ):
        assert said in str(
            must_raise(BadInput, lambda source=source: pack(source, "p", schema=SCHEMA))
        )


def test_a_table_of_a_database_is_no_public_file(here: Path) -> None:
    address = "sqlite:///clinic.db?table=patients"
    error = must_raise(BadInput, lambda: pv.statistics.draft_public_schema(address, public=address))
    assert "Private rows do not become public" in str(error)
