"""Tasks with names on the command line: a table, its model in a fresh process, and what is refused."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import privlearn as pv
from privlearn.cli import main
from privlearn.errors import BadInput
from privlearn.models.heads import HEADS
from privlearn.publishing import model as model_module
from tests.descent.checks_tasks import TASKS, dataset, rows, trained

NAMES = ["a", "b", "c", "d"]
NUMBERS = "".join(f'[columns.{name}]\nkind = "number"\nlow = -1\nhigh = 1\n' for name in NAMES)
GRADES = ["none", "mild", "some", "much", "grave"]


def test_every_named_task_is_checked() -> None:
    assert set(TASKS) == {name for name, head in HEADS.items() if head.named}


def table(folder: Path, schema: str, task: str, target: str, names: list[str] | None = None) -> list[str]:
    """Write a table and its schema; the first part of a command that trains on it."""
    (folder / "rows.toml").write_text(f'target = "{target}"\n{NUMBERS}{schema}')
    for name, number, seed in (("rows", 1200, 0), ("more", 300, 1)):
        x, y = rows(task, number, seed)
        frame = pd.DataFrame(x, columns=NAMES).assign(**{target: np.array(names)[y] if names else y})
        frame.to_csv(folder / f"{name}.csv", index=False)
    return ["train", "--data", str(folder / "rows.csv"), "--schema", str(folder / "rows.toml"), "--task", task,
            "--test-data", str(folder / "more.csv"), "--epsilon", "1", "--epochs", "20"]  # fmt: skip


def predicted_elsewhere(folder: Path, data: Path) -> list[dict[str, str]]:
    """What `privlearn predict` prints in a fresh process."""
    arguments = [sys.executable, "-m", "privlearn", "predict", str(folder), "--data", str(data)]
    text = subprocess.run(arguments, capture_output=True, text=True, check=True).stdout
    return list(csv.DictReader(io.StringIO(text)))


def test_ordered_classes_of_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = f'[columns.pain]\nkind = "target"\nclasses = {GRADES}\n'.replace("'", '"')
    given, out = table(tmp_path, target, "ordinal", "pain", GRADES), tmp_path / "model"
    assert main([*given, "--explain", "--metric", "mae", "--out", str(out)]) == 0
    assert "test mean absolute error" in capsys.readouterr().out
    model, new = pv.load_model(out), pd.read_csv(tmp_path / "more.csv")
    probabilities = model.predict_proba(new)
    assert list(probabilities) == GRADES
    assert np.allclose(probabilities.sum(axis=1), 1, atol=1e-5)
    printed = predicted_elsewhere(out, tmp_path / "more.csv")
    assert [row["label"] for row in printed] == list(model.predict(new))
    assert np.allclose([float(row["score_4"]) for row in printed], probabilities["grave"], atol=1e-5)
    assert main([*given, "--json", "--model", "mlp:8", "--out", str(tmp_path / "other")]) == 0
    figures = json.loads(capsys.readouterr().out)["test_metrics"]
    assert {"accuracy", "log_loss", "mae"} <= set(figures)
    assert main(["verify", str(tmp_path / "other")]) == 0


def test_what_does_not_suit_ordered_classes_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = f'[columns.pain]\nkind = "target"\nclasses = {GRADES}\n'.replace("'", '"')
    given = [*table(tmp_path, target, "ordinal", "pain", GRADES), "--out", str(tmp_path / "model")]
    for more, said in (
        (["--temperature", "0.1"], "is for classes, and the task is ordinal"),
        (["--label-smoothing", "0.1"], "is for classes, and the task is ordinal"),
        (["--class-weights", "none=1"], "is for classes, and the task is ordinal"),
        (["--method", "boosting"], "--task ordinal is for --method dpsgd"),
        (["--task", "regression"], "the targets of rows.csv are classes"),
        (["--task", "ranks"], "invalid choice"),
    ):
        own = [part for part in given if part not in ("--epochs", "20")] if "--method" in more else given
        assert main([*own, *more]) == 2, more
        assert said in capsys.readouterr().err, more
    for old, said in (("none", "expected one of the declared classes"), ("pain", "has no column 'pain'")):
        wrong = (tmp_path / "more.csv").read_text().replace(old, "other")
        (tmp_path / "rows.csv").write_text(wrong)
        assert main(given) == 2
        assert said in capsys.readouterr().err
    x, y = rows("ordinal", 100, 0)
    for wrong_y in (y + 1, y - 1, y.astype(float), np.full(100, np.nan), y[:, None]):
        with pytest.raises(BadInput, match="ordinal"):
            pv.train(pv.Dataset(x, wrong_y, classes=5, low=-1, high=1), epsilon=1.0, task="ordinal")
    with pytest.raises(BadInput, match="ordinal"):
        pv.train(pv.Dataset(x, x[:, 0], target_bounds=(-1, 1), low=-1, high=1), epsilon=1.0, task="ordinal")


def test_a_folder_that_says_another_task_is_refused(tmp_path: Path) -> None:
    out = pv.publish(trained("ordinal"), tmp_path / "model")
    said = json.loads((out / "config.json").read_text())
    for wrong in ({"task": "ranks"}, {"task": 5}, {"task": "regression"}, {"task": "ordinal", "classes": None}):
        with pytest.raises(BadInput):
            model_module.parse(json.dumps({**said, **wrong}).encode())
    assert dataset("ordinal").classes == said["classes"]
