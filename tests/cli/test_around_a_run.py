"""What is around a run: outputs that nobody reads, models in files, folders that can't be written
to, runs that diverge.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from privlearn.cli import main

USUAL = ["--epsilon", "3", "--epochs", "1", "--range", "0,1", "--classes", "2"]
MODEL = """
import math
from torch import nn

def build(input_shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(input_shape), classes))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a file of rows."""
    random = np.random.default_rng(0)
    x = random.random((120, 4)).astype(np.float32)
    np.savez(tmp_path / "rows.npz", x=x, y=(x[:, 0] > 0.5).astype(int))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def train(*options: str) -> int:
    return main(["train", "--data", "rows.npz", *USUAL, *options])


@pytest.mark.parametrize("outlet", ["nobody reads it", "closed"])
@pytest.mark.parametrize("options", [[], ["--json"]], ids=["table", "json"])
def test_a_published_model_is_worth_its_exit_code(
    folder: Path, outlet: str, options: list[str]
) -> None:
    """A shell closes standard output; or a pipe has no reader any longer."""
    command = [sys.executable, "-m", "privlearn", "train", "--data", "rows.npz", *USUAL, *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    if outlet == "closed":
        script = ["sh", "-c", '"$@" >&-', "sh", *command, "--out", "model"]
        done = subprocess.run(script, env=environment, stderr=subprocess.PIPE, check=False)
    else:
        read, write = os.pipe()
        os.close(read)
        try:
            done = subprocess.run(
                [*command, "--out", "model"],
                env=environment,
                stdout=write,
                stderr=subprocess.PIPE,
                check=False,
            )
        finally:
            os.close(write)
    assert done.returncode == 0, done.stderr
    assert b"Traceback" not in done.stderr
    assert b"Exception" not in done.stderr
    assert (folder / "model" / "privacy.json").is_file()


@pytest.mark.parametrize("place", ["./network_in_a_file.py", "deeper/network_in_a_folder.py"])
def test_a_model_in_a_file(folder: Path, place: str) -> None:
    (folder / "deeper").mkdir()
    Path(place).write_text(MODEL)
    assert train("--out", "model", "--model", f"{place}:build") == 0


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("model_with_a_fault", "x = 1\ndef build(:\n", "line 2 of"),
        ("model_that_fails", "1 / 0\n", "ZeroDivisionError"),
        ("model_of_nothing", "import nothing_of_this_name\n", "nothing_of_this_name"),
        ("model_without_it", "other = 1\n", "no attribute 'build'"),
    ],
)
@pytest.mark.parametrize("ending", ["", ".py"])
def test_a_module_that_cannot_be_imported_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str, text: str, words: str, ending: str
) -> None:
    Path(f"{name}{ending and '_2'}.py").write_text(text)
    place = f"./{name}_2.py" if ending else name
    assert train("--out", "model", "--model", f"{place}:build") == 2
    error = capsys.readouterr().err
    assert words in error
    assert "Traceback" not in error


def test_a_file_that_has_the_name_of_another_module(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "deeper").mkdir()
    Path("deeper/json.py").write_text(MODEL)
    assert train("--out", "model", "--model", "deeper/json.py:build") == 2
    assert "rename the file" in capsys.readouterr().err


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a system of files in /proc")
@pytest.mark.parametrize("out", ["/proc/model", "/proc/self/model", "/proc/deeper/model"])
def test_a_folder_that_no_file_can_be_made_in(
    folder: Path, capsys: pytest.CaptureFixture[str], out: str
) -> None:
    """Those who may do everything are told of it before the training, too."""
    assert train("--out", out) == 2
    error = capsys.readouterr().err
    assert "not a folder that you may write to" in error
    assert "plan:" not in error


@pytest.mark.parametrize("optimizer", ["Adam", "SGD"])
def test_a_run_that_diverges_leaves_nothing_in_the_way(
    folder: Path, capsys: pytest.CaptureFixture[str], optimizer: str
) -> None:
    rate = ["--learning-rate", "1e38", "--optimizer", optimizer, "--clip-norm", "1000"]
    assert train("--out", "model", *rate) == 2
    error = capsys.readouterr().err
    assert "smaller learning rate" in error
    assert sorted(part.name for part in folder.iterdir() if "model" in part.name) == []
    assert train("--out", "model") == 0
