"""Tasks with names on the command line: a table, its model in a fresh process, and what is
refused.
"""

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
from sklearn.metrics import mean_poisson_deviance

import privlearn as pv
from privlearn.cli import main
from privlearn.data import pack
from privlearn.data.schema import Schema, parse_schema
from privlearn.errors import BadInput
from privlearn.models.heads import HEADS
from privlearn.publishing import model as model_module
from tests.descent.checks_tasks import TASKS, dataset, rows, trained

NAMES = ["a", "b", "c", "d"]
NUMBERS = "".join(f'[columns.{name}]\nkind = "number"\nlow = -1\nhigh = 1\n' for name in NAMES)
GRADES = ["none", "mild", "some", "much", "grave"]


def test_every_named_task_is_checked() -> None:
    assert set(TASKS) == {name for name, head in HEADS.items() if head.named}


def table(
    folder: Path, schema: str, task: str, target: str, names: list[str] | None = None
) -> list[str]:
    """Write a table and its schema; the first part of a command that trains on it."""
    (folder / "rows.toml").write_text(f'target = "{target}"\n{NUMBERS}{schema}')
    for name, number, seed in (("rows", 1200, 0), ("more", 300, 1)):
        x, y = rows(task, number, seed)
        frame = pd.DataFrame(x, columns=NAMES).assign(
            **{target: np.array(names)[y] if names else y}
        )
        frame.to_csv(folder / f"{name}.csv", index=False)
    return [
        "train",
        "--data",
        str(folder / "rows.csv"),
        "--schema",
        str(folder / "rows.toml"),
        "--task",
        task,
        "--test-data",
        str(folder / "more.csv"),
        "--epsilon",
        "1",
        "--epochs",
        "20",
    ]


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
    assert np.allclose(
        [float(row["score_4"]) for row in printed], probabilities["grave"], atol=1e-5
    )
    assert main([*given, "--json", "--model", "mlp:8", "--out", str(tmp_path / "other")]) == 0
    figures = json.loads(capsys.readouterr().out)["test_metrics"]
    assert {"accuracy", "log_loss", "mae"} <= set(figures)
    assert main(["verify", str(tmp_path / "other")]) == 0


def test_what_does_not_suit_ordered_classes_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = f'[columns.pain]\nkind = "target"\nclasses = {GRADES}\n'.replace("'", '"')
    given = [*table(tmp_path, target, "ordinal", "pain", GRADES), "--out", str(tmp_path / "model")]
    for more, said in (
        (["--temperature", "0.1"], "is for classes, and the task is ordinal"),
        (["--label-smoothing", "0.1"], "is for classes, and the task is ordinal"),
        (["--class-weights", "none=1"], "is for classes, and the task is ordinal"),
        (["--method", "boosting"], "the task ordinal is for --method dpsgd"),
        (["--task", "regression"], "the targets of rows.csv are classes"),
        (["--task", "ranks"], "invalid choice"),
    ):
        own = (
            [part for part in given if part not in ("--epochs", "20")]
            if "--method" in more
            else given
        )
        assert main([*own, *more]) == 2, more
        assert said in capsys.readouterr().err, more
    for old, said in (
        ("none", "expected one of the declared classes"),
        ("pain", "has no column 'pain'"),
    ):
        wrong = (tmp_path / "more.csv").read_text().replace(old, "other")
        (tmp_path / "rows.csv").write_text(wrong)
        assert main(given) == 2
        assert said in capsys.readouterr().err
    x, y = rows("ordinal", 100, 0)
    for wrong_y, said in (
        (y + 1, "ordinal"),
        (y - 1, "ordinal"),
        (y + 0.5, "not whole"),
        (np.full(100, np.nan), "missing"),
        (np.eye(5, dtype=int)[y], "ordinal"),
    ):
        with pytest.raises(BadInput, match=said):
            pv.train(pv.Dataset(x, wrong_y, classes=5, low=-1, high=1), epsilon=1.0, task="ordinal")
    with pytest.raises(BadInput, match="ordinal"):
        pv.train(
            pv.Dataset(x, x[:, 0], target_bounds=(-1, 1), low=-1, high=1),
            epsilon=1.0,
            task="ordinal",
        )


def test_a_folder_that_says_another_task_is_refused(tmp_path: Path) -> None:
    out = pv.publish(trained("ordinal"), tmp_path / "model")
    said = json.loads((out / "config.json").read_text())
    for wrong in (
        {"task": "ranks"},
        {"task": 5},
        {"task": "regression"},
        {"task": "ordinal", "classes": None},
    ):
        with pytest.raises(BadInput):
            model_module.parse(json.dumps({**said, **wrong}).encode())
    assert dataset("ordinal").classes == said["classes"]


LABELS = ["pain", "fever", "cough"]
LAST = '[columns.cough]\nkind = "target"\nclasses = ["no", "yes"]\n'
SEVERAL = "".join(
    f'[columns.{name}]\nkind = "target"\nclasses = ["no", "yes"]\n' for name in LABELS
)


def labelled(folder: Path) -> list[str]:
    """A table with several labels, in words, whose schema names the first two; the first part of a
    command.
    """
    schema = f'target = ["pain", "fever"]\n{NUMBERS}{SEVERAL}'
    (folder / "rows.toml").write_text(schema)
    for name, number, seed in (("rows", 1200, 0), ("more", 300, 1)):
        x, y = rows("multilabel", number, seed)
        frame = pd.DataFrame(x, columns=NAMES)
        frame[LABELS] = np.array(["no", "yes"])[y]
        frame.to_csv(folder / f"{name}.csv", index=False)
    return [
        "train",
        "--data",
        str(folder / "rows.csv"),
        "--schema",
        str(folder / "rows.toml"),
        "--epsilon",
        "1",
        "--test-data",
        str(folder / "more.csv"),
        "--epochs",
        "20",
        "--target",
        "pain,fever,cough",
    ]


def test_several_labels_of_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given, out = labelled(tmp_path), tmp_path / "model"
    assert (
        main([*given, "--task", "multilabel", "--explain", "--metric", "f1", "--out", str(out)])
        == 0
    )
    assert "test F1" in capsys.readouterr().out
    assert main(["verify", str(out)]) == 0
    capsys.readouterr()
    model, new = pv.load_model(out), pd.read_csv(tmp_path / "more.csv").drop(columns=LABELS)
    assert (model.task, model.labels, model.classes) == ("multilabel", tuple(LABELS), 3)
    predicted, probabilities = model.predict(new), model.predict_proba(new)
    assert list(predicted) == list(probabilities) == LABELS
    assert ((predicted == "yes") == (probabilities > 0.5)).all(axis=None)
    new.to_csv(tmp_path / "new.csv", index=False)
    printed = predicted_elsewhere(out, tmp_path / "new.csv")
    assert list(printed[0]) == ["index", *LABELS, *(f"score_{name}" for name in LABELS)]
    for name in LABELS:
        assert [row[name] == "1" for row in printed] == list(predicted[name] == "yes")
        assert np.allclose(
            [float(row[f"score_{name}"]) for row in printed], probabilities[name], atol=1e-5
        )
    assert (
        main(
            [
                "predict",
                str(out),
                "--data",
                str(tmp_path / "new.csv"),
                "--out",
                str(tmp_path / "p.npz"),
            ]
        )
        == 0
    )
    kept = np.load(tmp_path / "p.npz")
    assert kept["prediction"].shape == kept["scores"].shape == (300, 3)
    features = pv.load(
        str(tmp_path / "more.csv"), schema=str(tmp_path / "rows.toml"), targets=LABELS
    ).x
    one = model.predict(features[0])
    assert one.tolist() == kept["prediction"][0].tolist()


def test_several_labels_of_arrays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = dataset("multilabel")
    np.savez(tmp_path / "rows.npz", x=data.x, y=data.y, x_test=data.x_test, y_test=data.y_test)
    given = [
        "train",
        "--data",
        str(tmp_path / "rows.npz"),
        "--range",
        "-1,1",
        "--target",
        "pain,fever,cough",
    ]
    assert (
        main(
            [*given, "--epsilon", "1", "--epochs", "5", "--json", "--out", str(tmp_path / "model")]
        )
        == 0
    )
    figures = json.loads(capsys.readouterr().out)["test_metrics"]
    assert set(figures) == {"subset_accuracy", "auc", "f1", "log_loss"}
    model = pv.load_model(tmp_path / "model")
    assert dict(pv.evaluate(model, data.x_test, data.y_test).figures) == pytest.approx(figures)
    schema = tmp_path / "rows.toml"
    labelled(tmp_path)
    schema.write_text(schema.read_text().replace(LAST, ""))
    pack(str(tmp_path / "rows.csv"), tmp_path / "packed", schema=str(schema))
    packed, table = (
        pv.load(tmp_path / "packed"),
        pv.load(str(tmp_path / "rows.csv"), schema=str(schema)),
    )
    assert packed.labels == table.labels == ("pain", "fever")
    assert np.array_equal(packed.y, table.y)


def test_a_schema_with_several_targets(tmp_path: Path) -> None:
    labelled(tmp_path)
    text = (tmp_path / "rows.toml").read_text()
    both = text.replace(LAST, "")
    schema = parse_schema(both, "s.toml")
    assert (schema.labels, schema.classes, schema.columns[-2:]) == (
        ("pain", "fever"),
        ("no", "yes"),
        ("pain", "fever"),
    )
    assert Schema.from_json(schema.to_json(), "config.json") == schema
    assert (
        schema.digest
        != parse_schema(both.replace('"pain", "fever"', '"fever", "pain"'), "s.toml").digest
    )
    assert parse_schema(text, "s.toml", LABELS).labels == tuple(LABELS)
    assert parse_schema(text.replace(".pain]", ".feverish]"), "s.toml", ["feverish"]).columns == (
        *NAMES,
        "feverish",
    )
    for old, new in (
        ('["pain", "fever"]', '["pain", "pain"]'),
        ('["pain", "fever"]', '["pain", "a"]'),
        ('["pain", "fever"]', '["pain"]'),
        ('["pain", "fever"]', '["pain", 3]'),
        ('classes = ["no", "yes"]', 'classes = ["no", "yes", "perhaps"]'),
    ):
        with pytest.raises(BadInput, match=r"s\.toml"):
            parse_schema(both.replace(old, new), "s.toml")
    classes = 'classes = ["no", "yes"]'
    with pytest.raises(BadInput, match="each a number"):
        parse_schema(both.replace(classes, "low = 0\nhigh = 1", 1), "s.toml")


def test_a_schema_with_several_numbers(tmp_path: Path) -> None:
    labelled(tmp_path)
    both = (tmp_path / "rows.toml").read_text().replace(LAST, "")
    text = both.replace('classes = ["no", "yes"]', "low = 0\nhigh = 5")
    schema = parse_schema(text, "s.toml")
    assert schema.target_ranges == (("pain", 0.0, 5.0), ("fever", 0.0, 5.0))
    assert (schema.labels, schema.classes, schema.target_bounds) == ((), (), None)
    assert schema.columns[-2:] == ("pain", "fever")
    assert Schema.from_json(schema.to_json(), "config.json") == schema
    assert schema.digest != parse_schema(text.replace("high = 5", "high = 6"), "s.toml").digest


def test_labels_that_do_not_suit_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [*labelled(tmp_path), "--out", str(tmp_path / "model")]
    for more, said in (
        (["--target", "pain,a"], "in the schema"),
        (["--task", "ordinal"], "are several labels"),
        (["--method", "boosting"], "the task multilabel is for --method dpsgd"),
        (["--tune", "t.toml"], "without --tune"),
        (["--paid-metrics", "1"], "needs test rows with classes"),
        (["--class-weights", "no=1,yes=2"], "is for classes"),
        (
            ["--schedule", "validation:k=0.7,m=5,threshold=0.01,period=10,noise=300"],
            "Use another schedule",
        ),
    ):
        own = (
            [part for part in given if part not in ("--epochs", "20")]
            if "--method" in more
            else given
        )
        assert main([*own, *more]) == 2, more
        assert said in capsys.readouterr().err, more
    (tmp_path / "rows.csv").write_text(
        (tmp_path / "rows.csv").read_text().replace("yes", "perhaps", 1)
    )
    assert main(given) == 2
    assert "expected one of the declared classes, 'no', 'yes'" in capsys.readouterr().err
    x, y = rows("multilabel", 100, 0)
    for wrong in (y + 1, y[:, :2], y[:, 0], np.where(y == 1, np.nan, 0.0), y.astype(str)):
        with pytest.raises(BadInput):
            pv.train(pv.Dataset(x, wrong, labels=LABELS, low=-1, high=1), epsilon=1.0)
    for declared in (
        {"labels": LABELS, "classes": 2},
        {"labels": ["pain", "pain", "cough"]},
        {"classes": 2},
    ):
        with pytest.raises(BadInput):
            pv.train(pv.Dataset(x, y, **declared, low=-1, high=1), epsilon=1.0, task="multilabel")


def counted(folder: Path) -> list[str]:
    return table(
        folder, '[columns.visits]\nkind = "target"\nlow = 0\nhigh = 20\n', "counts", "visits"
    )


def test_counts_of_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given, out = counted(tmp_path), tmp_path / "model"
    assert main([*given, "--explain", "--metric", "deviance", "--out", str(out)]) == 0
    assert "test Poisson deviance" in capsys.readouterr().out
    model, new = pv.load_model(out), pd.read_csv(tmp_path / "more.csv")
    predicted = model.predict(new)
    assert (model.task, model.target_bounds) == ("counts", [0.0, 20.0])
    assert ((predicted > 0) & (predicted <= 20)).all()
    assert not np.array_equal(predicted, predicted.round())
    printed = predicted_elsewhere(out, tmp_path / "more.csv")
    assert list(printed[0]) == ["index", "prediction"]
    assert np.allclose([float(row["prediction"]) for row in printed], predicted, atol=1e-4)
    with pytest.raises(BadInput, match="no probabilities"):
        model.predict_proba(new)
    more = [
        *given,
        "--model",
        "mlp:8",
        "--metrics-share",
        "0.1",
        "--json",
        "--out",
        str(tmp_path / "paid"),
    ]
    assert main(more) == 0
    assert {"rmse", "mae"} <= set(json.loads(capsys.readouterr().out)["test_metrics"])
    assert main(["verify", str(tmp_path / "paid")]) == 0


def test_counts_of_arrays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = dataset("counts")
    np.savez(tmp_path / "rows.npz", x=data.x, y=data.y, x_test=data.x_test, y_test=data.y_test)
    given = ["train", "--data", str(tmp_path / "rows.npz"), "--range", "-1,1", "--task", "counts"]
    given += ["--target-bounds", "0,20", "--epsilon", "1", "--epochs", "5", "--json"]
    assert main([*given, "--out", str(tmp_path / "model")]) == 0
    assert set(json.loads(capsys.readouterr().out)["test_metrics"]) == {
        "deviance",
        "rmse",
        "mae",
        "r2",
    }


def test_counts_that_do_not_suit_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [*counted(tmp_path), "--out", str(tmp_path / "model")]
    for more, said in (
        (["--method", "boosting"], "the task counts is for --method dpsgd"),
        (["--label-smoothing", "0.1"], "is for classes, and the task is counts"),
        (["--task", "ordinal"], "are numbers"),
    ):
        own = (
            [part for part in given if part not in ("--epochs", "20")]
            if "--method" in more
            else given
        )
        assert main([*own, *more]) == 2, more
        assert said in capsys.readouterr().err, more
    text = (tmp_path / "rows.csv").read_text()
    for cell, said in (
        ("0.5", "whole numbers from 0 on"),
        ("nan", "expected a number"),
        ("", "is missing"),
    ):
        (tmp_path / "rows.csv").write_text(text.rstrip().rpartition(",")[0] + f",{cell}\n")
        assert main(given) == 2, cell
        assert said in capsys.readouterr().err, cell
    x, y = rows("counts", 100, 0)
    for wrong in (y + 0.5, y - 30, np.where(y > 0, np.nan, 0.0), np.eye(2)[y % 2], y.astype(str)):
        with pytest.raises(BadInput):
            pv.train(
                pv.Dataset(x, wrong, target_bounds=(0, 20), low=-1, high=1),
                epsilon=1.0,
                task="counts",
            )
    for bounds in ((-1, 20), (0, 0.5)):
        with pytest.raises(BadInput, match="bounds of counts"):
            pv.train(
                pv.Dataset(x, y, target_bounds=bounds, low=-1, high=1), epsilon=1.0, task="counts"
            )


def test_counts_in_scikit_learn(tmp_path: Path) -> None:
    data = dataset("counts")
    given = {"epsilon": 1.0, "target_bounds": (0, 20), "bounds": (-1, 1), "options": {"epochs": 20}}
    model = pv.sklearn.DPRegressor(**given, loss="poisson").fit(data.x, data.y)
    constant = mean_poisson_deviance(data.y_test, np.full(len(data.y_test), data.y.mean()))
    assert mean_poisson_deviance(data.y_test, model.predict(data.x_test)) < 0.9 * constant
    published = pv.load_model(model.publish(tmp_path / "model"))
    assert published.task == "counts"
    assert np.allclose(
        published.predict(data.x_test).numpy(), model.predict(data.x_test), atol=1e-4
    )
    for wrong, y in (("huber", data.y), ("poisson", data.y + 0.5)):
        with pytest.raises(BadInput, match=r"loss is 'huber'|whole numbers from 0 on"):
            pv.sklearn.DPRegressor(**given, loss=wrong).fit(data.x, y)
