"""Weights of classes from the command line and in scikit-learn, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import privlearn as pv
from privlearn.cli import main
from privlearn.errors import BadInput
from tests.descent.checks_weights import DATA, NEW_X, NEW_Y, X, Y, trained

SCHEMA = (
    'target = "ill"\n'
    + "".join(f'[columns.{name}]\nkind = "number"\nlow = -1\nhigh = 1\n' for name in "abcd")
    + '[columns.ill]\nkind = "target"\nclasses = ["no", "yes"]\n'
)


def table(folder: Path) -> list[str]:
    (folder / "people.toml").write_text(SCHEMA)
    for name, x, y in (("people", X, Y), ("more", NEW_X[:500], NEW_Y[:500])):
        frame = pd.DataFrame(x, columns=list("abcd")).assign(ill=np.array(["no", "yes"])[y])
        frame.to_csv(folder / f"{name}.csv", index=False)
    return [
        "train",
        "--data",
        str(folder / "people.csv"),
        "--schema",
        str(folder / "people.toml"),
        "--epochs",
        "10",
        "--test-data",
        str(folder / "more.csv"),
        "--epsilon",
        "1",
        "--seed",
        "0",
    ]


def test_weights_by_the_names_of_classes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = table(tmp_path)
    figures = []
    for number, more in enumerate(
        (
            [],
            ["--class-weights", "yes=8,no=1"],
            ["--class-weights", "balanced", "--class-frequencies", f"no={8 / 9},yes={1 / 9}"],
        )
    ):
        assert main([*given, *more, "--json", "--out", str(tmp_path / f"model-{number}")]) == 0
        figures.append(json.loads(capsys.readouterr().out)["test_metrics"])
    plain, weighted, balanced = figures
    assert weighted["balanced_accuracy"] > plain["balanced_accuracy"] + 0.1
    assert weighted == balanced
    facts = json.loads((tmp_path / "model-1" / "privacy.json").read_text())["facts"]
    assert facts["class_weights"] == [0.125, 1.0]


def test_weights_that_do_not_suit_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [*table(tmp_path), "--out", str(tmp_path / "model")]
    for more, said in (
        (["--class-weights", "yes=8"], "expected a number for each of the 2 classes (no, yes)"),
        (["--class-weights", "yes=8,perhaps=1"], "expected a number for each"),
        (["--class-weights", "yes=8,no=0"], "a number in class_weights is 0.0"),
        (["--class-weights", "yes=8,no"], "cannot be read"),
        (["--class-weights", "balanced"], "those of private rows are private"),
        (["--class-weights", "even"], "expected a number for each"),
        (["--class-frequencies", "yes=0.1,no=0.9"], "is for --class-weights balanced"),
        (["--class-weights", "yes=8,no=1", "--temperature", "0.1"], "leave out temperature"),
        (["--class-weights", "yes=8,no=1", "--method", "dpmac"], "--class-weights"),
    ):
        assert main([*given, *more]) == 2, more
        assert said in capsys.readouterr().err, more
        assert not (tmp_path / "model").exists()
    for wrong in ((1, 2, 3), {0: 1, 2: 1}, {0: 1}, 5, {0: "1", 1: 2}, (1, float("nan"))):
        with pytest.raises(BadInput, match="class_weights"):
            trained(class_weights=wrong)
    with pytest.raises(BadInput, match="for classes"):
        pv.train(
            pv.Dataset(X, X[:, 0], low=-1, high=1, target_bounds=(-1, 1)),
            epsilon=1.0,
            class_weights=(1, 2),
        )


def test_weights_in_scikit_learn() -> None:
    given = {
        "epsilon": 1.0,
        "classes": ["no", "yes"],
        "bounds": (-1, 1),
        "random_state": 0,
        "options": {"epochs": 10},
    }
    labels = np.array(["no", "yes"])[Y]
    for kind in (pv.sklearn.DPClassifier, pv.sklearn.DPLogisticRegression):
        model = kind(**given, class_weight={"yes": 8}).fit(X, labels)
        assert model.result_.facts["class_weights"] == [0.125, 1.0]
    recall = (model.predict(NEW_X) == "yes")[NEW_Y == 1].mean()
    assert recall > 0.5 > (kind(**given).fit(X, labels).predict(NEW_X) == "yes")[NEW_Y == 1].mean()
    for wrong in ("balanced", {"perhaps": 1}, {"yes": -1}):
        with pytest.raises(BadInput):
            kind(**given, class_weight=wrong).fit(X, labels)
    with pytest.raises(BadInput, match="balanced"):
        pv.sklearn.DPClassifier(**given, class_weight="balanced").fit(X, labels)
    assert DATA.classes == 2
