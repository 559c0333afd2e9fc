"""`privlearn audit`: exit codes, JSON, reports and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from privlearn.cli import main

QUICK = [
    "audit",
    "--step",
    "--noise-multiplier",
    "0.5",
    "--trials",
    "200",
    "--confidence",
    "0.9999",
]
BROKEN = """
import numpy as np
import privlearn as pv
rng = np.random.default_rng(0)
plan = pv.Plan(pv.sampling.FullBatch(), 1, pv.schedules.Constant(1.0), examples=9)
def run(took_part):
    return took_part + rng.normal(0, 0.4)
"""
OWN = """
import numpy as np
import torch
import privlearn as pv
plan = pv.Plan(pv.sampling.FullBatch(), 1, pv.schedules.Constant(0.5), examples=4)
model, loss = torch.nn.Linear(2, 2), torch.nn.CrossEntropyLoss(reduction="none")
data = pv.Dataset(np.eye(4, 2, dtype=np.float32), np.array([0, 1, 0, 1]), classes=2, public=True)
"""


def test_a_step_is_attacked_and_answers_as_scripts_expect(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    report = tmp_path / "report.md"
    assert main([*QUICK, "--json", "--out", str(report)]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"]
    assert answer["confidence"] == 0.9999
    assert 0 < answer["epsilon_any"] <= answer["epsilon_lower"] <= answer["epsilon_claimed"]
    assert "do not contradict the claim" in report.read_text()
    assert main([*QUICK, "--json", "--out", str(report)]) == 2  # nothing is overwritten


def test_code_of_ones_own_is_attacked_and_a_false_claim_ends_with_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, picture = tmp_path / "own.py", tmp_path / "report.png"
    code.write_text(BROKEN)
    assert main(["audit", "--code", str(code), "--out", str(picture)]) == 1
    assert "refuted" in capsys.readouterr().out
    assert picture.stat().st_size > 5000
    code.write_text(OWN)
    assert main(["audit", "--code", str(code), "--trials", "200", "--confidence", "0.9999"]) == 0
    assert "not refuted" in capsys.readouterr().out
    assert (
        main(
            ["audit", "--code", str(code), "--canaries", "100", "--confidence", "0.9999", "--json"]
        )
        == 0
    )
    assert "100 canaries" in json.loads(capsys.readouterr().out)["attack"]


def test_membership_is_inferred_from_the_command_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code = tmp_path / "own.py"
    code.write_text(
        OWN.replace("np.eye(4, 2, dtype=np.float32), np.array([0, 1, 0, 1])", "*ROWS").replace(
            "data =",
            "ROWS = np.tile(np.eye(2, dtype=np.float32), (20, 1)), np.arange(40) % 2\ndata =",
        )
    )
    assert main(["audit", "--code", str(code), "--shadows", "2", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert "2 shadow models" in answer["attack"]
    assert [each["false_positive_rate"] for each in answer["detected"]] == [0.01, 0.001]
    assert all(each["limit"] > each["false_positive_rate"] for each in answer["detected"])
    assert main(["audit", "--code", str(code), "--shadows", "0"]) == 0
    assert "finds at 0.1%" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["audit"], "give --noise-multiplier S"),
        (["audit", "--noise-multiplier", "1", "--sampling", "poisson"], "needs a batch size"),
        (["audit", "--noise-multiplier", "1", "--sampling", "best"], "name the sampler"),
        (["audit", "--noise-multiplier", "1", "--trials", "0"], "trials"),
        (
            ["audit", "--noise-multiplier", "1", "--adjacency", "replace_one"],
            "expected add_remove or zero_out",
        ),
        (["audit", "--noise-multiplier", "-1"], "-1"),
        (["audit", "--noise-multiplier", "1", "--out", "report.pdf"], ".png"),
        (["audit", "--code", "nowhere.py"], "can't be run"),
        (["audit", "--noise-multiplier", "1", "--canaries", "9"], "--code FILE.py"),
        (["audit", "--noise-multiplier", "1", "--shadows", "9"], "--code FILE.py"),
        (["audit", "--noise-multiplier", "1", "--confidence", "2", "--trials", "50"], "confidence"),
    ],
)
def test_what_can_not_be_attacked_is_refused(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(options) == 2
    assert said in capsys.readouterr().err


def test_files_that_lack_something_say_what(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code = tmp_path / "own.py"
    for text, said in (
        ("x = 1", "no plan"),
        (OWN.replace("data =", "rows ="), "no data"),
        ("def", "can't be run"),
    ):
        code.write_text(text)
        assert main(["audit", "--code", str(code)]) == 2
        assert said in capsys.readouterr().err


def test_an_installation_checks_itself(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each check's outcome as it comes; the exit code says whether all hold."""
    assert main(["selfcheck", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"]
    assert len(answer["checks"]) >= 10
    monkeypatch.setattr("privlearn.auditing.installation._CHECKS", (_that_fails,))
    assert main(["selfcheck"]) == 1
    said = capsys.readouterr().out
    assert "noise is missing" in said
    assert "Do not train on private data" in said


def _that_fails() -> str:
    raise AssertionError("noise is missing")
