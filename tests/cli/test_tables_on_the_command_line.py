"""Tables, from a schema's template to predictions, through the command line."""

from __future__ import annotations

import csv
import io
import json
import tomllib
from pathlib import Path

import numpy as np
import pytest

from privlearn.cli import main

SCHEMA = """
target = "ill"
[columns.age]
kind = "number"
low = 0
high = 100
missing = 50
[columns.ward]
kind = "category"
categories = ["north", "south"]
[columns.ill]
kind = "target"
classes = ["no", "yes"]
"""


def write(path: Path, rows: int, seed: int, *, target: bool = True) -> Path:
    """Made-up patients: the old ones of the north are ill."""
    made_up = np.random.default_rng(seed)
    age, north = made_up.integers(0, 101, rows), made_up.random(rows) < 0.5
    ill = age + 40 * north > 70
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["name", "age", "ward", *["ill"] * target])
        for i in range(rows):
            name, ward = f"patient {i}", "north" if north[i] else "south"
            writer.writerow(
                [name, "" if i == 7 else age[i], ward, *["yes" if ill[i] else "no"] * target]
            )
    return path


def test_from_a_table_to_predictions(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("people.csv"), 2000, 0)
    write(Path("more.csv"), 500, 1)
    Path("people.toml").write_text(SCHEMA)
    declared = ("--data", "people.csv", "--schema", "people.toml")
    training = (
        "--test-data",
        "more.csv",
        "--examples",
        "2000",
        "--epsilon",
        "3",
        "--seed",
        "1",
        "--json",
    )
    assert main(["train", *declared, *training, "--out", "model"]) == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert found["test_accuracy"] > 0.9
    assert "ignored: 'name'" in shown.err
    assert "people.csv" in Path("model/README.md").read_text()
    assert "name" not in json.loads(Path("model/config.json").read_text())
    assert main(["verify", "model"]) == 0
    capsys.readouterr()

    write(Path("new.csv"), 500, 1, target=False)
    assert main(["predict", "model", "--data", "new.csv", "--schema", "people.toml"]) == 0
    shown = capsys.readouterr()
    assert "ignored: 'name'" in shown.err
    predicted = [int(row["prediction"]) for row in csv.DictReader(io.StringIO(shown.out))]
    with Path("more.csv").open(newline="") as file:
        truth = [int(row["ill"] == "yes") for row in csv.DictReader(file)]
    assert np.mean(np.equal(predicted, truth)) == pytest.approx(found["test_accuracy"])

    for old, new in (("high = 100", "high = 120"), ('"north", "south"', '"south", "north"')):
        Path("other.toml").write_text(SCHEMA.replace(old, new))
        assert main(["predict", "model", "--data", "new.csv", "--schema", "other.toml"]) == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        assert "trained on another schema" in shown.err
    Path("other.toml").write_text("# a comment does no harm\n" + SCHEMA)
    assert (
        main(["predict", "model", "--data", "new.csv", "--schema", "other.toml", "--out", "p.csv"])
        == 0
    )
    # by the schema that the model holds
    assert main(["predict", "model", "--data", "new.csv"]) == 0
    assert Path("p.csv").read_text() == capsys.readouterr().out

    refusals = {
        (
            "--data",
            "new.csv",
            "--schema",
            "people.toml",
            "--part",
            "test",
        ): "--part goes with named data sets",
        ("--data", "digits"): "have shape [8, 8]",
        ("--data", "digits", "--schema", "people.toml"): "leave out --schema",
    }
    for options, message in refusals.items():
        assert main(["predict", "model", *options]) == 2
        assert message in capsys.readouterr().err


def test_a_table_that_cannot_be_read_leaves_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(Path("people.csv"), 50, 0)
    path.write_text(path.read_text() + "Zoe,forty,north,no\n")
    Path("people.toml").write_text(SCHEMA)
    assert (
        main(
            [
                "train",
                "--data",
                "people.csv",
                "--schema",
                "people.toml",
                "--epsilon",
                "1",
                "--out",
                "model",
            ]
        )
        == 2
    )
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines()[-1].startswith(
        "privlearn: people.csv, row 51 (line 52), column 'age' is 'forty'"
    )
    assert not Path("model").exists()


def test_a_template_is_filled_in_and_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("people.csv"), 3, 0)
    assert main(["data", "schema", "people.csv"]) == 0
    template = capsys.readouterr().out
    assert list(tomllib.loads(template)["columns"]) == ["name", "age", "ward", "ill"]
    for value in ("patient", "north"):
        assert value not in template
    Path("people.toml").write_text(template)
    assert (
        main(
            [
                "train",
                "--data",
                "people.csv",
                "--schema",
                "people.toml",
                "--epsilon",
                "1",
                "--out",
                "model",
            ]
        )
        == 2
    )
    assert "target is ''" in capsys.readouterr().err
    assert main(["data", "schema", "people.csv", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["columns"] == ["name", "age", "ward", "ill"]
