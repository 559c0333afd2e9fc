"""A schema drafted from private rows on the command line, and a model trained by it on the same
ledger.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import privlearn as pv
from privlearn.cli import main
from privlearn.errors import BadInput
from tests.statistics.checks_draft import COLUMNS, FRAME, drafted


def test_a_draft_and_a_training_on_one_ledger(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows, ledger, schema = (
        str(tmp_path / name) for name in ("rows.csv", "ledger.json", "schema.toml")
    )
    FRAME.to_csv(rows, index=False)
    given = [
        "data",
        "schema",
        rows,
        "--paid",
        "epsilon=2",
        "--numbers",
        "age,gain",
        "--categories",
        "work,ill",
    ]
    given += ["--target", "ill", "--ledger", ledger]
    assert main(given) == 2  # there is no ledger
    assert main(["ledger", ledger, "--epsilon", "6", "--measure", "renyi"]) == 0
    capsys.readouterr()
    assert main(given) == 0
    (tmp_path / "schema.toml").write_text(capsys.readouterr().out)
    out = tmp_path / "model"
    train = [
        "train",
        "--data",
        rows,
        "--schema",
        schema,
        "--epsilon",
        "2",
        "--epochs",
        "3",
        "--ledger",
        ledger,
    ]
    assert main([*train, "--out", str(out)]) == 0
    found = pv.verify(out)
    assert found.ok
    assert found.epsilon == pytest.approx(6.0, rel=1e-3)
    assert "chosen after earlier results" in (found.runs or "")
    # there is no room
    assert main(["epsilon=5.9" if part == "epsilon=2" else part for part in given]) == 2
    capsys.readouterr()


def test_what_cannot_be_drafted_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = str(tmp_path / "rows.csv")
    FRAME.to_csv(rows, index=False)
    for more, said in (
        (["--paid", "1"], "expected epsilon=E"),
        (["--paid", "delta=1"], "expected epsilon=E"),
        (["--paid", "epsilon=1"], "needs --target T and --ledger FILE"),
        (["--numbers", "age"], "goes with --paid"),
    ):
        assert main(["data", "schema", rows, *more]) == 2
        assert said in capsys.readouterr().err
    for wrong in (
        {"target": "age?"},
        {"numbers": ["ill"]},
        {"numbers": ["elsewhere"]},
        {"budget": 1.0},
    ):
        with pytest.raises(BadInput):
            drafted(**wrong)
    assert json.loads(json.dumps(COLUMNS))["target"] == "ill"
