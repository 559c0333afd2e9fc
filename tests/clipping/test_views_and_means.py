"""Copies of examples, mean weights and smoothed labels (tests/clipping/checks_copies.py), and on
the command line.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import privlearn as pv
from privlearn.cli import main
from privlearn.core.accounting.events import walk
from privlearn.core.clipping.views import FlipAndShift
from privlearn.errors import BadInput
from privlearn.runs.mean_weights import MeanWeights
from tests.clipping import checks_copies as copies_checks
from tests.support.checks import CHECKS
from tests.transforms import checks_encoders as encoder_checks

OWN = sorted(name for name in vars(copies_checks) if name.startswith("check_"))


@pytest.mark.parametrize("name", OWN)
def test_copies_and_means(name: str) -> None:
    CHECKS[name]()


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "flip,",
        "flip,flip",
        "shift",
        "shift:",
        "shift:0",
        "shift:-1",
        "shift:1.5",
        "shift:²",
        "flip:2",
        "turn:3",
        "shift:1,shift:2",
    ],
)
def test_changes_that_cannot_be_read_are_refused(spec: str) -> None:
    with pytest.raises(BadInput, match="flip,shift:2"):
        pv.clipping.Augmentation(2, spec)


def test_specs_in_any_order_and_with_spaces() -> None:
    assert (
        FlipAndShift.parse("flip,shift:2")
        == FlipAndShift.parse("shift:2, flip")
        == FlipAndShift(flip=True, shift=2)
    )
    assert FlipAndShift.parse("shift:12") == FlipAndShift(shift=12)


@pytest.mark.parametrize("share", [0, 0.0, -0.5, 1.5, True, math.nan, "0.5"])
def test_shares_that_are_refused(share: Any) -> None:
    ledger = pv.Ledger()
    with pytest.raises(BadInput, match="average is"):
        copies_checks.train(average=share, ledger=ledger)
    assert not list(walk(ledger.event))


def test_a_run_without_a_step_leaves_the_weights() -> None:
    value = nn.Parameter(torch.ones(2))
    mean = MeanWeights([value], 0.5)
    mean.means[0].fill_(7.0)
    mean.after_run()
    assert value.tolist() == [1.0, 1.0]


# On the command line


@pytest.fixture
def rows(tmp_path: Path) -> str:
    data = encoder_checks.images(60)
    path = tmp_path / "images.npz"
    np.savez(path, x=data.x, y=data.y, x_test=data.x_test, y_test=data.y_test)
    return str(path)


COMMON = [
    "--classes",
    "3",
    "--range",
    "0,255",
    "--epsilon",
    "5",
    "--delta",
    "1e-3",
    "--epochs",
    "2",
    "--seed",
    "1",
]
ALL = [
    "--average",
    "0.5",
    "--label-smoothing",
    "0.1",
    "--views",
    "2",
    "--augment",
    "flip,shift:2",
    "--model",
    "cnn",
]


def settings(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "privacy.json").read_text())["facts"]
    return found


def test_all_of_it_on_the_command_line(
    rows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "all"
    assert main(["train", "--data", rows, *COMMON, *ALL, "--explain", "--out", str(out)]) == 0
    assert pv.verify(out).ok
    told = settings(out)
    assert (told["average"], told["label_smoothing"]) == (0.5, 0.1)
    assert (told["augmentation_copies"], told["augmentation"]) == (2, "flip,shift:2")
    assert main(["predict", str(out), "--data", rows]) == 0
    capsys.readouterr()
    # Published weights are other ones with each of them, and the guarantee is the same.
    weights = {(out / "model.safetensors").read_bytes()}
    for number, left_out in enumerate((slice(0, 2), slice(2, 4), slice(4, 8))):
        options, other = list(ALL), tmp_path / str(number)
        del options[left_out]
        assert main(["train", "--data", rows, *COMMON, *options, "--out", str(other)]) == 0
        weights.add((other / "model.safetensors").read_bytes())
        assert (
            json.loads((other / "privacy.json").read_text())["claim"]
            == json.loads((out / "privacy.json").read_text())["claim"]
        )
    assert len(weights) == 4


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--views", "4", "--features", "raw"], "--augment shift:2"),
        (["--augment", "flip", "--features", "raw"], "--views 4"),
        # images are scattered by default
        (["--views", "4", "--augment", "flip"], "--features raw"),
        (["--views", "0", "--augment", "flip", "--features", "raw"], "--views is 0"),
        (["--views", "4", "--augment", "spin", "--features", "raw"], "'spin' cannot be read"),
        (
            ["--views", "4", "--augment", "shift:30", "--features", "raw"],
            "--augment shift:30: shifts",
        ),
        (["--views", "4", "--augment", "flip", "--pca", "4"], "rows of shape (4,)"),
        (["--average", "1.5"], "average is 1.5"),
        (["--average", "0"], "average is 0"),
        (["--label-smoothing", "1"], "--label-smoothing is 1.0"),
        (["--label-smoothing", "-0.1"], "--label-smoothing is -0.1"),
        (["--average", "0.5", "--method", "dpmac"], "does not go with --average"),
        (["--views", "2", "--augment", "flip", "--method", "dpmac"], "does not go with --views"),
        (["--label-smoothing", "0.1", "--method", "dpmac"], "does not go with --label-smoothing"),
        (["--average", "0.5", "--method", "pate"], "--method pate does not go with --average"),
        (
            ["--label-smoothing", "0.1", "--method", "features"],
            "does not go with --label-smoothing",
        ),
    ],
)
def test_options_that_are_refused(
    options: list[str], expected: str, rows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "model"
    common = COMMON if "features" not in options else ["--epsilon", "5"]
    assert main(["train", "--data", rows, *common, *options, "--out", str(out)]) == 2
    assert expected in " ".join(capsys.readouterr().err.split())
    assert not out.exists()


def test_candidates_may_differ_in_them(
    rows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "tune.toml"
    text = (
        'way = "blocks"\n[[candidate]]\nname = "a"\naverage = 0.5\n[[candidate]]\nname = '
        '"b"\nlabel-smoothing = {}\n'
    )
    file.write_text(text.format(0.1))
    command = ["train", "--data", rows, *COMMON, "--batch-size", "20", "--tune", str(file), "--out"]
    assert main([*command, str(tmp_path / "tuned")]) == 0
    assert pv.verify(tmp_path / "tuned").ok
    told = settings(tmp_path / "tuned")
    assert ("average" in told) is not ("label_smoothing" in told)
    for wrong in (
        text.format(3),
        text.format(0.1).replace("0.5", "7"),
        text.format('0.1\nviews = 2\naugment = "shift:99"'),
    ):
        file.write_text(wrong)
        assert main([*command, str(tmp_path / "wrong"), "--ledger", str(tmp_path / "ledger")]) == 2
    capsys.readouterr()
    assert not list(walk(pv.Ledger.open(tmp_path / "ledger", create=True).event))
