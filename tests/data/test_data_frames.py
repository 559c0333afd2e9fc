"""Data frames of pandas, polars and Arrow: read by a schema like files, and given predictions of
their own kind.
"""

from __future__ import annotations

import csv
import io
import json
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import privlearn as pv
from privlearn.cli import main
from privlearn.data.named import load_features
from privlearn.data.schema import Number, Schema, parse_schema
from privlearn.errors import BadInput, CertificateMismatch
from tests.data.checks import FEATURES, declared

COLUMNS: dict[str, list[Any]] = {
    "hours": [40.0, -1e300, 98.5, 1e300, 0.0],
    "name": ["Ann", "Bob", "Carol, Dr", "", "Eve"],
    "income": ["<=50K", ">50K", ">50K", "<=50K", "<=50K"],
    "work": ["private", "state", "private", "self", None],
    "age": [30, 16, None, 120, None],
}
MORE = """
target = "ill"
[columns.born]
kind = "date"
low = 1950-01-01
high = 2010-12-31
missing = 1980-01-01
indicator = true
[columns.weight]
kind = "number"
low = 30
high = 200
missing = 75
indicator = true
[columns.smoker]
kind = "category"
categories = ["true", "false"]
[columns.ill]
kind = "target"
classes = ["0", "1"]
"""


def frames(columns: dict[str, list[Any]]) -> dict[str, Any]:
    """The same table in each library that is installed here."""
    made = {}
    for name, make in (("pandas", "DataFrame"), ("polars", "DataFrame"), ("pyarrow", "table")):
        try:
            made[name] = getattr(__import__(name), make)(columns)
        except ImportError:  # pragma: no cover
            continue
    return made


def test_a_data_frame_is_read_like_a_file() -> None:
    found = frames(COLUMNS)
    assert found, "no library of data frames is installed"
    for name, frame in found.items():
        data = pv.load(frame, schema=declared())
        assert data.x.tolist() == FEATURES, name
        assert data.y.tolist() == [0, 1, 1, 0, 0]
        assert data.feature_names == declared().feature_names
        assert data.schema == declared()
        assert "ignored: 'name'" in data.remarks[0]


def test_dates_indicators_booleans_and_whole_numbers_that_became_floats() -> None:
    schema = parse_schema(MORE, "people.toml")
    assert schema.feature_names == (
        "born",
        "born is missing",
        "weight",
        "weight is missing",
        "smoker=true",
        "smoker=false",
    )
    columns = {
        "born": [date(1950, 1, 2), None, date(1900, 5, 5), date(2011, 1, 1)],
        "weight": [80.5, None, 500.0, 20.0],
        "smoker": [True, False, None, True],
        "ill": [0.0, 1.0, 1.0, 0.0],
    }
    days = (date(2010, 12, 31) - date(1950, 1, 1)).days
    usual = (date(1980, 1, 1) - date(1950, 1, 1)).days
    expected = [
        [1, 0, 80.5, 0, 1, 0],
        [usual, 1, 75, 1, 0, 1],
        [0, 0, 200, 0, 0, 0],
        [days, 0, 30, 0, 1, 0],
    ]
    for name, frame in frames(columns).items():
        data = pv.load(frame, schema=schema)
        assert data.x.tolist() == expected, name
        assert data.y.tolist() == [0, 1, 1, 0]
    low, high = schema.bounds()
    assert low.tolist() == [0, 0, 30, 0, 0, 0]
    assert high.tolist() == [days, 1, 200, 1, 1, 1]
    pandas = pytest.importorskip("pandas")
    stamped = pandas.DataFrame(
        columns
        | {"born": pandas.to_datetime([str(day) for day in columns["born"]], errors="coerce")}
    )
    assert pv.load(stamped, schema=schema).x.tolist() == expected
    categorical = pandas.DataFrame(columns).astype({"ill": "Int64", "weight": "Float64"})
    assert pv.load(categorical, schema=schema).x.tolist() == expected


def test_a_csv_with_dates(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(
        "born,weight,smoker,ill\n1950-01-02,80.5,true,0\n1950-01-03T12:30,,false,1\n"
    )
    data = pv.load(tmp_path / "a.csv", schema=parse_schema(MORE, "people.toml"))
    assert data.x.tolist() == [[1, 0, 80.5, 0, 1, 0], [2, 0, 75, 1, 0, 1]]
    (tmp_path / "a.csv").write_text("born,weight,smoker,ill\n2.1.1950,80.5,true,0\n")
    with pytest.raises(
        BadInput,
        match=r"row 1 \(line 2\), column 'born' is '2.1.1950': expected a date such as 2020-12-31",
    ):
        pv.load(tmp_path / "a.csv", schema=parse_schema(MORE, "people.toml"))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("low = 1950-01-01", "low = 3", "low of column 'born' is 3: expected a day"),
        ("low = 1950-01-01", "low = 1950-01-01T10:00:00", "expected a day"),
        ("low = 1950-01-01", 'low = "1950"', "low of column 'born' is '1950'"),
        ("low = 1950-01-01", "low = 2011-01-01", "the earlier day first"),
        ("missing = 1980-01-01", "missing = 1949-12-31", "a day from 1950-01-01 to 2010-12-31"),
        ("missing = 1980-01-01\n", "", "what stands for a missing value"),
        (
            "missing = 75\nindicator = true",
            "missing = 75\nindicator = 1",
            "indicator of column 'weight' is 1",
        ),
    ],
)
def test_schemas_that_make_no_sense(old: str, new: str, said: str) -> None:
    assert old in MORE
    with pytest.raises(BadInput, match=said):
        parse_schema(MORE.replace(old, new), "people.toml")


def test_a_missing_date_without_a_filling_is_refused() -> None:
    schema = parse_schema(
        MORE.replace("missing = 1980-01-01\nindicator = true\n", ""), "people.toml"
    )
    columns = {"born": [None], "weight": [1.0], "smoker": [True], "ill": [0]}
    for frame in frames(columns).values():
        with pytest.raises(BadInput, match="example missing = 1950-01-01"):
            pv.load(frame, schema=schema)


def test_digests_of_schemas_without_indicators_are_what_they_were() -> None:
    """Published folders hold them: `predict` compares."""
    assert declared().digest == "9604209a9981a3c784898fd81c4a236d56fca4c675e607a1a7e038a08349dea5"
    schema = parse_schema(MORE, "people.toml")
    assert Schema.from_json(json.loads(json.dumps(schema.to_json())), "config.json") == schema
    assert Schema.from_json(schema.to_json(), "config.json").digest == schema.digest
    in_python = Schema("ill", ("0", "1"), (Number("weight", 30, 200, missing=75),))
    assert Schema.from_json(in_python.to_json(), "config.json").digest == in_python.digest


def test_what_is_no_table_is_refused() -> None:
    for frame in frames(COLUMNS).values():
        with pytest.raises(
            BadInput, match=r"a data frame holds must be declared.*give schema='FILE.toml'"
        ):
            pv.load(frame)
        with pytest.raises(BadInput, match="leave out classes= and value_range="):
            pv.load(frame, schema=declared(), classes=2)
    for frame in frames({**COLUMNS, "age": [[1], [2], [3], [4], [5]]}).values():
        with pytest.raises(BadInput, match=r"column 'age'.* holds (a list|list|large_list)"):
            pv.load(frame, schema=declared())
    for frame in frames({name: cells for name, cells in COLUMNS.items() if name != "age"}).values():
        with pytest.raises(BadInput, match="data frame has no column 'age'"):
            pv.load(frame, schema=declared())
    with pytest.raises(BadInput, match="a ndarray: expected a name, a path, or a data frame"):
        pv.load(np.zeros((3, 2)), schema=declared())


def people(rows: int, seed: int) -> dict[str, list[Any]]:
    random = np.random.default_rng(seed)
    age = random.integers(17, 91, rows)
    return {
        "number": [f"p{seed}-{row}" for row in range(rows)],
        "age": age.tolist(),
        "work": random.choice(["private", "state"], rows).tolist(),
        "hours": random.uniform(0, 99, rows).tolist(),
        "income": np.where(age > 50, ">50K", "<=50K").tolist(),
    }


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    frame = next(iter(frames(people(300, 0)).values()))
    data = pv.load(frame, schema=declared(), test=next(iter(frames(people(80, 1)).values())))
    result = pv.train(data, epsilon=20, epochs=5, streams=pv.Streams.new(0))
    return Path(pv.publish(result, tmp_path_factory.mktemp("tables") / "model", delta=1e-5))


def test_a_published_model_takes_data_frames_and_gives_names(published: Path) -> None:
    model = pv.load_model(published)
    assert model.class_names == ("<=50K", ">50K")
    assert model.schema == Schema.from_json(declared().to_json(), "people.toml")
    rows = people(40, 2)
    truth = np.array(rows.pop("income"))
    by_array: torch.Tensor | None = None
    for name, frame in frames(rows).items():
        predicted = model.predict(frame)
        assert (predicted == truth).mean() > 0.8
        probabilities = model.predict_proba(frame)
        assert type(probabilities) is type(frame)
        columns = [np.asarray(probabilities[column]) for column in model.class_names]
        assert np.allclose(sum(columns), 1)
        assert (np.array(model.class_names)[np.stack(columns).argmax(0)] == predicted).all(), name
        by_array = model.predict_proba(load_features(frame, declared()).x)
        assert np.allclose(by_array.numpy(), np.stack(columns, 1))
    assert by_array is not None
    assert tuple(by_array.shape) == (40, 2)
    assert tuple(model.predict_proba(np.zeros(4)).shape) == (2,)


def test_pandas_keeps_its_index_and_columns_may_come_in_any_order(published: Path) -> None:
    pandas = pytest.importorskip("pandas")
    model = pv.load_model(published)
    frame = pandas.DataFrame(people(10, 3), index=[f"row {n}" for n in range(10)])
    probabilities = model.predict_proba(frame)
    assert list(probabilities.columns) == ["<=50K", ">50K"]
    assert list(probabilities.index) == list(frame.index)
    assert probabilities.equals(model.predict_proba(frame[["work", "hours", "number", "age"]]))
    strange = frame.assign(work="astronaut", age=frame["age"].astype(str))
    # an unseen category is none of them
    assert set(model.predict(strange)) <= set(model.class_names)
    for wrong, said in (
        (frame.drop(columns="age"), "no column 'age'"),
        (frame.assign(age="old"), "expected a number"),
        (frame.assign(hours=None), "is missing"),
        (frame[:0], "no rows"),
    ):
        with pytest.raises(BadInput, match=said):
            model.predict(wrong)
    plain = pv.train(
        pv.Dataset(
            np.random.default_rng(0).random((60, 3)), np.arange(60) % 2, classes=2, low=0, high=1
        ),
        epsilon=5,
        epochs=1,
    )
    pv.publish(plain, published.parent / "plain", delta=1e-5)
    with pytest.raises(BadInput, match="not on a table with a schema: give an array"):
        pv.load_model(published.parent / "plain").predict(frame)


def test_the_command_line_needs_no_schema_and_prints_names_and_ids(
    published: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = people(12, 4)
    path = tmp_path / "new.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([[*rows], *zip(*rows.values(), strict=True)])
    assert main(["predict", str(published), "--data", str(path), "--id", "number"]) == 0
    lines = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert list(lines[0]) == ["index", "id", "prediction", "label", "score_0", "score_1"]
    assert [line["id"] for line in lines] == rows["number"]
    assert all(line["label"] == ["<=50K", ">50K"][int(line["prediction"])] for line in lines)
    out = tmp_path / "out.npz"
    assert (
        main(["predict", str(published), "--data", str(path), "--id", "number", "--out", str(out)])
        == 0
    )
    with np.load(out) as archive:
        assert archive["label"].tolist() == [line["label"] for line in lines]
        assert archive["id"].tolist() == rows["number"]
        assert archive["classes"].tolist() == ["<=50K", ">50K"]
    capsys.readouterr()
    assert main(["predict", str(published), "--data", str(path), "--id", "no"]) == 2
    assert "has no column 'no', which --id names" in capsys.readouterr().err


def test_a_forged_table_in_a_configuration_is_refused(published: Path, tmp_path: Path) -> None:
    config = json.loads((published / "config.json").read_text())
    assert config["table"]["columns"]["income"]["classes"] == ["<=50K", ">50K"]
    assert "person" not in config["table"]
    from privlearn.publishing.model import parse

    for change in (
        {"table": {**config["table"], "missing": ["x"]}},
        {"table": []},
        {"table": {"target": "income", "columns": {}}},
    ):
        with pytest.raises(BadInput, match=r"config\.json"):
            parse(json.dumps({**config, **change}).encode())
    (tmp_path / "model").mkdir()
    for file in published.iterdir():
        (tmp_path / "model" / file.name).write_bytes(file.read_bytes())
    (tmp_path / "model" / "config.json").write_text(
        json.dumps({**config, "table": declared().to_json() | {"missing": []}})
    )
    with pytest.raises(CertificateMismatch):
        pv.load_model(tmp_path / "model")


def test_times_of_day_and_time_zones_are_left_out() -> None:
    schema = parse_schema(MORE, "people.toml")
    rows = {"born": [datetime(1950, 1, 2, 23, 59)], "weight": [50.0], "smoker": [True], "ill": [0]}
    for frame in frames(rows).values():
        assert pv.load(frame, schema=schema).x[0, 0] == 1
