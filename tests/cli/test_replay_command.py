"""`privlearn commit`, `train --transcript` and `replay`: a run from its commitment to the auditor's
answer.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from privlearn.cli import main

CHALLENGE = "5f3a9c"


def rows(path: Path, seed: int = 0) -> str:
    rng = np.random.default_rng(seed)
    x = rng.random((120, 4)).astype(np.float32)
    np.savez(path, x=x, y=(x[:, 0] > 0.5).astype(np.int64))
    return str(path)


def data_options(path: str) -> list[str]:
    return ["--data", path, "--classes", "2", "--range", "0,1"]


def recorded(tmp_path: Path, *more: str, committed: tuple[str, ...] = ()) -> list[str]:
    """The options of a run that is going to be recorded, after its commitment."""
    data = data_options(rows(tmp_path / "rows.npz"))
    folder = str(tmp_path / "transcript")
    run = [
        *data,
        "--examples",
        "120",
        "--epsilon",
        "4",
        "--delta",
        "1e-3",
        "--epochs",
        "3",
        *committed,
    ]
    assert main(["commit", *run, "--out", folder]) == 0
    return ["train", *run, "--transcript", folder, *more, "--out", str(tmp_path / "model")]


def test_a_recorded_run_is_replayed_also_where_the_data_lie_elsewhere(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(recorded(tmp_path, "--challenge", CHALLENGE, "--transcript-steps", "2")) == 0
    moved = tmp_path / "elsewhere.npz"
    shutil.move(tmp_path / "rows.npz", moved)
    folder, model = str(tmp_path / "transcript"), str(tmp_path / "model")
    capsys.readouterr()
    replay = ["replay", folder, "--data", str(moved), "--published", model, "--json"]
    assert main([*replay, "--steps", "1000"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"]
    assert answer["bits"]
    assert answer["replayed"] == answer["steps"] > 0
    assert answer["escape"]["1"] == 0
    assert main([*replay, "--steps", "1", "--choice", "tomorrow's lottery numbers"]) == 0
    assert json.loads(capsys.readouterr().out)["chosen"] == 1
    assert main(["verify", model]) == 0
    card = (tmp_path / "model" / "README.md").read_text()
    assert "kept for an auditor" in card
    assert main(["replay", folder, "--data", rows(tmp_path / "other.npz", seed=1)]) == 1
    assert "committed" in capsys.readouterr().out


def test_a_forged_model_ends_with_1(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(recorded(tmp_path)) == 0
    weights = tmp_path / "model" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    capsys.readouterr()
    replay = ["replay", str(tmp_path / "transcript"), "--steps", "0"]
    assert main([*replay, "--published", str(tmp_path / "model")]) == 1
    assert "the published weights are not" in capsys.readouterr().out
    assert main(replay) == 1
    assert "the published weights were not compared" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--seed", "3"], "does not go with --seed"),
        (["--challenge", "xyz"], "hexadecimal"),
        (["--transcript", "nowhere"], "holds no commitment"),
        (["--transcript-steps", "0"], "steps"),
    ],
)
def test_runs_that_could_not_be_checked_are_refused(
    more: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert main(recorded(tmp_path, *more)) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "model").exists()


def test_a_commitment_is_good_for_one_run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = recorded(tmp_path)
    assert main(options) == 0
    assert main([*options[:-1], str(tmp_path / "second")]) == 2
    assert "commit anew" in capsys.readouterr().err
    assert (
        main(
            [
                "train",
                "--data",
                "digits",
                "--epsilon",
                "1",
                "--challenge",
                "00",
                "--out",
                str(tmp_path / "x"),
            ]
        )
        == 2
    )
    assert "--transcript" in capsys.readouterr().err
    assert main(["replay", str(tmp_path)]) == 2
    assert "privlearn.auditing.replay" in capsys.readouterr().err


def test_a_commitment_is_to_one_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Its options stand beside it; a run with others is refused, and so is a commitment that could
    not be checked.
    """
    options = recorded(tmp_path, committed=("--discrete",))
    assert json.loads((tmp_path / "transcript" / "options.json").read_text())["epochs"] == 3
    for other in (("--epochs", "2"), ("--learning-rate", "0.1"), ("--epsilon", "3")):
        capsys.readouterr()
        assert main([*options, *other]) == 2
        assert "not the run that was committed to" in capsys.readouterr().err
        assert not (tmp_path / "model").exists()
    assert main(options) == 0
    data = data_options(str(tmp_path / "rows.npz"))
    for unfit in (("--seed", "3"), ("--method", "features")):
        assert (
            main(["commit", *data, "--epsilon", "4", *unfit, "--out", str(tmp_path / "other")]) == 2
        )
        assert not (tmp_path / "other").exists()


def test_a_folder_does_not_choose_the_code_that_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code = "import torch\nopen('ran', 'w').close()\n"
    code += "def build(input_shape, classes):\n    return torch.nn.Linear(4, classes)\n"
    (tmp_path / "owncode.py").write_text(code)
    assert (
        main(recorded(tmp_path, committed=("--model", "owncode:build", "--features", "raw"))) == 0
    )
    (tmp_path / "ran").unlink()
    monkeypatch.delitem(sys.modules, "owncode")
    capsys.readouterr()
    replay = [
        "replay",
        str(tmp_path / "transcript"),
        "--steps",
        "1",
        "--published",
        str(tmp_path / "model"),
    ]
    assert main(replay) == 2
    assert "if you trust that code" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()
    assert main([*replay, "--model", "owncode:build"]) == 0
    assert main([*replay, "--model", "cnn"]) == 2
    options = tmp_path / "transcript" / "options.json"
    stored = json.loads(options.read_text())
    for hostile in (
        [],
        "x",
        stored | {"model": "linear", "features": "os:getcwd"},
        stored | {"model": "os:system"},
    ):
        options.write_text(json.dumps(hostile))
        assert main(replay) == 2, hostile
