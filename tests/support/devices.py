"""The devices that a test runs on: the processor, CUDA where it is, and the simulated device in
processes that have it (`tests.support.simulated`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.support.simulated.device import is_installed, reason_to_skip
from tests.support.simulated.memory import NAME

ROOT = Path(__file__).parents[2]
CUDA = pytest.param(
    "cuda",
    marks=[
        pytest.mark.gpu,
        pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here"),
    ],
)
#: The device of tests that are for an accelerator alone.
ACCELERATOR = NAME if is_installed() else "cuda"
#: Of tests that count what is asked of the device.
COUNTED = pytest.mark.skipif(not is_installed(), reason="the simulated device alone counts")
DEVICES = pytest.mark.parametrize("device", ["cpu", *([NAME] if is_installed() else [CUDA])])


def run_on_the_simulated_device(*files: str) -> None:
    """Run the tests of `files` that have "simulated" in their names, in one process that has the
    simulated device.

    A process that has it is good for nothing else: see `tests.support.simulated.device`.

    Args:
        files: test files, relative to the project's root.
    """
    if reason := reason_to_skip():
        pytest.skip(reason)
    options = ["-q", "-p", "tests.support.simulated.plugin", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, "-m", "not nightly", "-k", NAME, *files]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    for name in [name for name in environment if name.startswith(("PYTEST_", "COV_"))]:
        del environment[name]
    search = [str(ROOT / "src"), str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, search))
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
