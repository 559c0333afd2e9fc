"""Published estimators know what classes and columns are called, in a process of their own."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import privlearn as pv
from privlearn.cli import main
from privlearn.errors import BadInput
from privlearn.publishing.model import parse

RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(RNG.random((120, 3)), columns=["age", "dose", "weight"])
BOUNDS = (0.0, 1.0)


def readmitted() -> pv.sklearn.DPClassifier:
    labels = np.where(FRAME["age"] > 0.5, "yes", "no")
    estimator = pv.sklearn.DPClassifier(
        epsilon=20.0, delta=1e-3, classes=["yes", "no"], bounds=BOUNDS
    )
    return estimator.fit(FRAME, labels)


def test_a_published_classifier_predicts_names_from_a_data_frame(tmp_path: Path) -> None:
    estimator = readmitted()
    estimator.publish(tmp_path / "model")
    FRAME.to_csv(tmp_path / "rows.csv", index=False)
    script = (
        "import sys, json, pandas as pd, privlearn as pv\nmodel = "
        f"pv.load_model({str(tmp_path / 'model')!r}); frame = "
        f"pd.read_csv({str(tmp_path / 'rows.csv')!r})\nscores = "
        "model.predict_proba(frame[['weight', 'age', "
        "'dose']])\nprint(json.dumps([model.predict(frame).tolist(), scores['yes'].tolist(), "
        "list(scores)]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    predicted, scores, names = json.loads(done.stdout)
    assert predicted == estimator.predict(FRAME).tolist()
    assert names == ["no", "yes"] == estimator.classes_.tolist()
    assert scores == pytest.approx(estimator.predict_proba(FRAME)[:, 1].tolist(), rel=1e-5)
    model = pv.load_model(tmp_path / "model")
    with pytest.raises(BadInput, match="Expected numbers in the columns age, dose, weight"):
        model.predict(FRAME[["age", "dose"]])


def test_the_command_predicts_for_a_table_by_the_names_of_its_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In any order, beside others, with an id; what a column lacks is refused by its place."""
    estimator = readmitted()
    folder = str(estimator.publish(tmp_path / "model"))
    table = FRAME[["weight", "age", "dose"]].assign(ward="a", patient=range(100, 220))
    table.to_csv(tmp_path / "rows.csv", index=False)
    line = ["predict", folder, "--data", str(tmp_path / "rows.csv"), "--id", "patient"]
    assert main(line) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    assert [row["label"] for row in rows] == estimator.predict(FRAME).tolist()
    assert rows[3]["id"] == "103"
    scores = [float(row["score_1"]) for row in rows]
    assert scores == pytest.approx(estimator.predict_proba(FRAME)[:, 1].tolist(), abs=1e-5)
    lacking = table.replace({"age": {FRAME["age"][1]: None}})
    for changed, said in (
        (table.drop(columns="dose"), "has no column 'dose', which the model was trained on"),
        (lacking, "row 2 (line 3), column 'age' is missing: expected a finite number"),
        (table.assign(age="old"), "row 1 (line 2), column 'age' is 'old': expected a"),
    ):
        changed.to_csv(tmp_path / "rows.csv", index=False)
        assert main(line) == 2
        assert said in " ".join(capsys.readouterr().err.split())


def test_a_loaded_model_refuses_rows_that_are_not_finite(tmp_path: Path) -> None:
    """As the estimator does; boosted models take NaN as a missing value."""
    estimator = readmitted()
    model = pv.load_model(estimator.publish(tmp_path / "model"))
    frame = FRAME[:4].copy()
    frame.loc[2, "dose"] = np.nan
    for refuse in (model.predict, model.predict_proba):
        with pytest.raises(BadInput, match="row 2, column 'dose', is not finite"):
            refuse(frame)
        with pytest.raises(BadInput, match=r"row 2.* expected finite numbers"):
            refuse(frame.to_numpy())
        with pytest.raises(BadInput, match=r"row 0.* expected finite numbers"):
            refuse(torch.tensor([float("inf"), 0.0, 0.0]))
    boosted = pv.sklearn.DPBoostingClassifier(
        epsilon=20.0, delta=1e-3, classes=["yes", "no"], bounds=BOUNDS, options={"trees": 2}
    ).fit(FRAME, np.where(FRAME["age"] > 0.5, "yes", "no"))
    predicted = pv.load_model(boosted.publish(tmp_path / "boosted")).predict(frame)
    assert len(predicted) == 4


def test_names_that_do_not_fit_are_refused_and_changed_weights_are_not_published(
    tmp_path: Path,
) -> None:
    estimator = readmitted()
    estimator.publish(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    for wrong in ({"class_names": ["no"]}, {"class_names": "no"}, {"columns": ["age", "dose", 3]}):
        with pytest.raises(BadInput, match="texts"):
            parse(json.dumps(config | wrong).encode())
    changed = readmitted()
    next(iter(changed.result_.model.parameters())).data.add_(0)
    for parameter in changed.result_.model.parameters():
        parameter.requires_grad_(False).add_(1.0)
    with pytest.raises(BadInput, match="changed after the run"):
        changed.publish(tmp_path / "changed")
    assert replace(estimator.result_).architecture.keys() < config.keys()
