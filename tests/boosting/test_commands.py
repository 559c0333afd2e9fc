"""Boosting from the command line: what is trained, printed, predicted and refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import privlearn as pv
from privlearn import cli
from privlearn.methods import METHODS
from privlearn.publishing import certificate

SCHEMA = """
target = "ill"
[columns]
age = { kind = "number", low = 0, high = 100 }
colour = { kind = "category", categories = ["red", "blue"] }
ill = { kind = "target", classes = ["no", "yes"] }
"""


def told(capsys: pytest.CaptureFixture[str], command: str, *options: str) -> dict[str, Any]:
    assert cli.main([command, "--method", "boosting", "--json", *options]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_run_costs_what_its_budget_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, how = tmp_path / "model", ("--epsilon", "3", "--trees", "5", "--passes", "2")
    planned = told(capsys, "budget", "--numbers", "30", *how)
    trained = told(
        capsys, "train", "--data", "breast-cancer", *how, "--seed", "1", "--out", str(out)
    )
    assert planned["epsilon"] == trained["epsilon"] <= 3
    assert planned["plan"]["noise_multiplier"] == trained["plan"]["noise_multiplier"]
    assert trained["test_accuracy"] > 0.85
    assert pv.verify(out).ok
    stated = certificate.read_plan(json.loads((out / "privacy.json").read_text())["plan"])
    assert stated.to_json() == trained["plan"]
    assert cli.main(["predict", str(out), "--data", "breast-cancer"]) == 0
    rows = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    right = np.array([int(row["prediction"]) for row in rows]) == pv.load("breast-cancer").y_test
    assert right.mean() == pytest.approx(trained["test_accuracy"])
    assert all(abs(float(row["score_0"]) + float(row["score_1"]) - 1) < 1e-5 for row in rows)


def test_a_table_with_categories(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The columns of its schema are those of the plan, and their scores follow the rows."""
    draw = np.random.default_rng(0)
    lines = ["age,colour,ill"]
    for age, red in zip(draw.integers(0, 100, 3000), draw.random(3000) < 0.5, strict=True):
        ill = draw.random() < (0.9 if red == (age > 50) else 0.1)
        lines.append(f"{age},{'red' if red else 'blue'},{'yes' if ill else 'no'}")
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "schema.toml").write_text(SCHEMA)
    answer = told(
        capsys,
        "train",
        "--data",
        str(tmp_path / "rows.csv"),
        "--schema",
        str(tmp_path / "schema.toml"),
        "--seed",
        "0",
        "--epsilon",
        "2",
        "--trees",
        "30",
        "--depth",
        "2",
        "--out",
        str(tmp_path / "model"),
    )
    assert [column["name"] for column in answer["plan"]["columns"]] == ["age", "colour"]
    model = pv.load_model(tmp_path / "model")
    rows = pv.load(str(tmp_path / "rows.csv"), schema=tmp_path / "schema.toml")
    assert (model.predict(rows.tensors()[0]).numpy() == rows.y).mean() > 0.8
    assert model.schema == rows.schema


def test_the_budget_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["budget", "--method", "boosting", "--numbers", "13", "--epsilon", "1"]) == 0
    shown = capsys.readouterr().out
    assert "histograms: one of each of 13 columns, 4 times" in shown
    assert "noise multiplier: 3.731 for all together, 26.9 for each" in shown
    assert "gaussian      1.0000" in shown


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--method", "boosting", "--epsilon", "1"], "--numbers"),
        (["--method", "boosting", "--numbers", "3"], "--noise-multiplier"),
        (["--method", "boosting", "--numbers", "3", "--epsilon", "1", "--epochs", "3"], "--epochs"),
        (["--trees", "3", "--epsilon", "1", "--examples", "9"], "add --method boosting"),
        (["--method", "boosting", "--numbers", "3", "--epsilon", "1", "--passes", "0"], "passes"),
    ],
)
def test_refusals(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["budget", *options]) == 2
    assert said in capsys.readouterr().err


def test_numbers_are_learned_one_at_a_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A regression trains, without test rows, too; several numbers are sent to their methods."""
    draw = np.random.default_rng(0)
    ages = draw.integers(0, 100, 500)
    lines = [f"{age},{age / 10:.1f},{age / 20:.2f}" for age in ages]
    (tmp_path / "rows.csv").write_text("\n".join(["age,dose,stay", *lines]) + "\n")
    columns = '[columns]\nage = { kind = "number", low = 0, high = 100 }\n'
    columns += 'dose = { kind = "target", low = 0, high = 10 }\n'
    columns += 'stay = { kind = "target", low = 0, high = 5 }\n'
    (tmp_path / "schema.toml").write_text(f'target = ["dose", "stay"]\n{columns}')
    words = ["train", "--method", "boosting", "--data", str(tmp_path / "rows.csv"), "--epsilon"]
    words += ["2", "--schema", str(tmp_path / "schema.toml"), "--out", str(tmp_path / "model")]
    assert cli.main(words) == 2
    said = capsys.readouterr().err
    learners = [row.name for row in METHODS.values() if "multioutput" in row.targets]
    assert learners == ["dpsgd", "dpmac", "pate"]
    assert f"multioutput is for --method {' or '.join(learners)}: leave the other out" in said
    assert cli.main([*words, "--target", "dose"]) == 0
    shown = capsys.readouterr().out
    assert "test figures" in shown
    assert "accuracy" not in shown
    assert pv.verify(tmp_path / "model").ok
