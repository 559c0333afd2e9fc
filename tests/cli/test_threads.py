"""Runs through the command line on machines with different numbers of threads."""

from __future__ import annotations

import json
from pathlib import Path
from unittest import mock

import pytest
import torch

from privlearn.cli import main
from tests.cli.checks_threads import usual_threads, write


def options(folder: Path) -> list[str]:
    data = ["--data", str(write(folder / "rows.npz", 120)), "--classes", "2", "--range", "0,1"]
    run = ["--examples", "120", "--epsilon", "4", "--delta", "1e-3", "--epochs", "3"]
    return [*data, *run, "--model", "mlp:8"]


def test_a_run_goes_on_where_there_are_other_threads(tmp_path: Path) -> None:
    run = ["train", *options(tmp_path), "--out", str(tmp_path / "model")]
    usual, steps = torch.optim.SGD.step, iter(range(100))

    def step(*given: object, **more: object) -> object:
        if next(steps) == 2:
            raise KeyboardInterrupt
        return usual(*given, **more)

    with usual_threads(4), mock.patch.object(torch.optim.SGD, "step", step):
        assert main(run) == 130
    with usual_threads(2):
        assert main([*run, "--resume"]) == 0


def test_a_run_is_replayed_where_there_are_other_threads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    transcript, model = str(tmp_path / "transcript"), str(tmp_path / "model")
    run = options(tmp_path)
    with usual_threads(4):
        assert main(["commit", *run, "--out", transcript]) == 0
        recorded = ["train", *run, "--transcript", transcript, "--challenge", "5f"]
        assert main([*recorded, "--out", model]) == 0
    capsys.readouterr()
    with usual_threads(2):
        replayed = ["replay", transcript, "--published", model, "--steps", "1000", "--json"]
        assert main(replayed) == 0
    assert json.loads(capsys.readouterr().out)["bits"]
