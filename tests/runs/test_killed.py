"""Runs that are killed with SIGKILL at random moments end where undisturbed ones end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs processes that fork")
@pytest.mark.parametrize("options", [[], ["--seed", "3"]], ids=["unseeded", "seeded"])
@pytest.mark.parametrize("kills", [8, pytest.param(50, marks=pytest.mark.nightly)])
def test_a_killed_run_ends_where_an_undisturbed_one_does(
    kills: int, options: list[str], tmp_path: Path
) -> None:
    """Weights, certificate and card are the same, and at no moment is less on paper than was
    drawn.
    """
    script = Path(__file__).with_name("killed.py")
    command = [sys.executable, str(script), str(tmp_path), str(kills), *options]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["codes"] == [0, 0], (found, done.stderr)
    assert found["kills"] >= min(kills, 5), found
    assert found["behind"] == 0, found
    assert found["drawn"] == found["steps"] + 1, found  # and the temperature, after training
    assert found["differ"] == [], found
    assert found["files"] == [
        "ledger",
        "ledger-whole",
        "ledger-whole.lock",
        "ledger.lock",
        "model",
        "output",
        "whole",
    ]
