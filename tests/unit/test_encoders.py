"""Public features (tests/encoder_checks.py), and on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import encoder_checks
import numpy as np
import pytest
from checks import CHECKS

import privlearn as pv
from privlearn.cli import main

OWN = sorted(name for name in vars(encoder_checks) if name.startswith("check_"))


@pytest.mark.parametrize("name", OWN)
def test_encoders(name: str) -> None:
    CHECKS[name]()


@pytest.fixture
def rows(tmp_path: Path) -> str:
    data = encoder_checks.images(60)
    path = tmp_path / "images.npz"
    np.savez(path, x=data.x, y=data.y, x_test=data.x_test, y_test=data.y_test)
    return str(path)


COMMON = ["--classes", "3", "--range", "0,255", "--epsilon", "5", "--delta", "1e-3", "--epochs", "2", "--seed", "1"]


def test_images_are_scattered_in_front_of_a_linear_model(
    rows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "model"
    assert main(["train", "--data", rows, *COMMON, "--out", str(out)]) == 0
    assert "--features raw" in capsys.readouterr().err
    assert json.loads((out / "privacy.json").read_text())["settings"]["features"]["spec"] == "scatter:J=2"
    assert pv.verify(out).ok
    assert main(["predict", str(out), "--data", rows]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 61
    for others in (["--features", "raw"], ["--model", "mlp:5"], ["--pca", "4"]):
        plain = tmp_path / others[-1].replace(":", "")
        assert main(["train", "--data", rows, *COMMON, *others, "--out", str(plain)]) == 0
        assert "features" not in json.loads((plain / "privacy.json").read_text())["settings"]


def test_features_are_kept_where_told_and_refused_where_unfit(
    rows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "kept"
    for number in range(2):
        out = tmp_path / f"model{number}"
        options = ["--features", "scatter:J=1", "--features-cache", str(kept)]
        assert main(["train", "--data", rows, *COMMON, *options, "--out", str(out)]) == 0
    assert len(list(kept.iterdir())) == 2  # training and test rows
    weights = [(tmp_path / f"model{number}" / "model.safetensors").read_bytes() for number in range(2)]
    assert weights[0] == weights[1]
    capsys.readouterr()
    out = str(tmp_path / "refused")
    for options, said in (
        (["--features", "scatter:J=3.5"], "whole number"),
        (["--features", "scatter:J=4", "--model", "cnn"], "16 x 16 or larger"),
        (["--features", "nowhere:make"], "imported"),
    ):
        assert main(["train", "--data", rows, *COMMON, *options, "--out", out]) == 2
        assert said in capsys.readouterr().err
        assert not Path(out).exists()
    options = ["--method", "pate", "--features", "scatter:J=2", "--epsilon", "5"]
    assert main(["train", "--data", rows, *COMMON[:4], *options, "--out", out]) == 2
    assert "--features" in capsys.readouterr().err


def test_an_interrupted_run_on_features_goes_on(rows: str, tmp_path: Path) -> None:
    data = pv.with_features(encoder_checks.images(), "scatter:J=2")
    whole = encoder_checks.run(data)
    file = tmp_path / "run.checkpoint"

    def stop(done: int, steps: int) -> None:
        if done == 3:
            raise KeyboardInterrupt

    from privlearn.methods.checkpoint import Checkpoint

    with pytest.raises(KeyboardInterrupt):
        encoder_checks.run(data, checkpoint=Checkpoint(file, every=1e-9), progress=stop)
    resumed = encoder_checks.run(data, checkpoint=file)
    for name, value in whole.model.state_dict().items():
        assert value.equal(resumed.model.state_dict()[name])
