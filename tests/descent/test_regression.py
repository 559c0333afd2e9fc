"""Regression on the command line: an .npz and a table, predictions in a fresh process, and what is
refused.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import privlearn as pv
from privlearn.cli import main
from privlearn.data.schema import Schema, parse_schema
from privlearn.errors import BadInput
from tests.descent.checks_regression import BOUNDS, DATA, X, Y

SCHEMA = """
target = "price"
[columns.a]
kind = "number"
low = 0
high = 1
[columns.b]
kind = "number"
low = 0
high = 1
[columns.price]
kind = "target"
low = 30
high = 70
"""


def rows(folder: Path) -> list[str]:
    np.savez(folder / "rows.npz", x=X[:600], y=Y[:600], x_test=X[600:], y_test=Y[600:])
    return [
        "train",
        "--data",
        str(folder / "rows.npz"),
        "--range",
        "0,1",
        "--epsilon",
        "20",
        "--epochs",
        "21",
    ]


def test_an_npz_is_trained_on_and_predicted_in_a_fresh_process(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [
        *rows(tmp_path),
        "--task",
        "regression",
        "--target-bounds",
        "30,70",
        "--out",
        str(tmp_path / "model"),
    ]
    assert main([*given, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert set(said["test_metrics"]) == {"rmse", "mae", "r2"}
    assert said["test_accuracy"] is None
    arguments = [
        "predict",
        str(tmp_path / "model"),
        "--data",
        str(tmp_path / "rows.npz"),
        "--part",
        "test",
    ]
    fresh = subprocess.run(
        [sys.executable, "-m", "privlearn", *arguments], capture_output=True, text=True, check=True
    )
    header, *lines = fresh.stdout.splitlines()
    assert header == "index,prediction"
    predicted = np.array([float(line.split(",")[1]) for line in lines])
    assert np.allclose(
        predicted, pv.load_model(tmp_path / "model").predict(X[600:]).numpy(), atol=1e-4
    )
    rmse = float(np.sqrt(np.mean((predicted - Y[600:]) ** 2)))
    assert rmse == pytest.approx(said["test_metrics"]["rmse"], rel=1e-3)


def test_a_table_is_trained_on_and_predicted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "schema.toml").write_text(SCHEMA)
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "price": Y})
    frame[:600].to_csv(tmp_path / "rows.csv", index=False)
    frame[600:].to_csv(tmp_path / "test.csv", index=False)
    given = [
        "train",
        "--data",
        str(tmp_path / "rows.csv"),
        "--schema",
        str(tmp_path / "schema.toml"),
        "--epsilon",
        "20",
    ]
    given += ["--test-data", str(tmp_path / "test.csv"), "--epsilon", "20"]
    for method in (
        ["--epochs", "21", "--metric", "r2"],
        ["--method", "boosting"],
        ["--model", "mlp:8", "--method", "dpmac"],
    ):
        out = tmp_path / method[-1]
        assert main([*given, *method, "--out", str(out)]) == 0
        text = capsys.readouterr().out
        assert "test R2" in text if "r2" in method else "test RMSE" in text
        always_the_mean = float(np.std(frame[600:]["price"]))
        assert f"baseline RMSE {always_the_mean:.4f}, always the mean" in " ".join(text.split())
        model = pv.load_model(out)
        assert model.target_bounds == list(BOUNDS)
        predicted = model.predict(frame[600:].drop(columns="price"))
        assert 30 <= predicted.min() <= predicted.max() <= 70
        assert np.corrcoef(predicted, Y[600:])[0, 1] > 0.8
        assert "values" in repr(model)
        assert (
            main(
                [
                    "predict",
                    str(out),
                    "--data",
                    str(tmp_path / "test.csv"),
                    "--out",
                    str(out / "p.npz"),
                ]
            )
            == 0
        )
        capsys.readouterr()
        assert np.allclose(np.load(out / "p.npz")["prediction"], predicted, atol=1e-4)
        with pytest.raises(BadInput, match="no probabilities"):
            model.predict_proba(frame)


def test_a_schema_with_a_number_as_its_target() -> None:
    schema = parse_schema(SCHEMA, "s.toml")
    assert (schema.classes, schema.target_bounds) == ((), (30.0, 70.0))
    assert Schema.from_json(schema.to_json(), "config.json") == schema
    assert schema.digest != parse_schema(SCHEMA.replace("high = 70", "high = 71"), "s.toml").digest
    for old, new in (
        ("high = 70", ""),
        ("high = 70", "high = 20"),
        ("low = 30", 'low = 30\nclasses = ["a", "b"]'),
    ):
        with pytest.raises(BadInput):
            parse_schema(SCHEMA.replace(old, new), "s.toml")


def test_what_does_not_suit_numbers_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [*rows(tmp_path), "--target-bounds", "30,70", "--out", str(tmp_path / "model")]
    for more, said in (
        (["--task", "classification"], "the targets of rows.npz are numbers"),
        (["--classes", "2"], "and classes is 2"),
        (["--label-smoothing", "0.1"], "for classes"),
        (["--select", "1"], "for classes"),
        (["--method", "features"], "is for classes"),
        (["--paid-metrics", "-1"], "--paid-metrics is -1"),
        (
            ["--schedule", "validation:k=0.7,m=5,threshold=0.01,period=10,noise=3"],
            "Use another schedule",
        ),
        (["--target-bounds", "70,30"], "the smaller first"),
    ):
        own = (
            [part for part in given if part not in ("--epochs", "21")]
            if "--method" in more
            else given
        )
        assert main([*own, *more]) == 2, more
        assert said in capsys.readouterr().err, more
        assert not (tmp_path / "model").exists()
    classes = [
        *rows(tmp_path),
        "--classes",
        "2",
        "--task",
        "regression",
        "--out",
        str(tmp_path / "model"),
    ]
    assert main(classes) == 2
    for wrong in (None, (0, 1), (1, 1), ("a", "b")):
        with pytest.raises(BadInput):
            pv.train(
                pv.Dataset(X, Y, classes=3 if wrong == (0, 1) else None, target_bounds=wrong),
                epsilon=1.0,
            )
    with pytest.raises(BadInput, match="ends in a"):
        pv.train(DATA, epsilon=1.0, model="tests.descent.test_regression:bounded")


def bounded(input_shape: tuple[int, ...], classes: int) -> object:
    from torch import nn

    return nn.Sequential(nn.Linear(2, classes), nn.GroupNorm(1, 1))
