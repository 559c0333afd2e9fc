"""Published estimators know what classes and columns are called, in a process of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import privlearn as pv
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
