"""`pytest -p tests.support.simulated.plugin`: tests of a process that has the simulated device, and
in which the package takes it for CUDA.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.support.simulated.device import install, reset
from tests.support.simulated.posing import pose_as_cuda

if "privlearn" in sys.modules:
    raise RuntimeError("load this plugin before privlearn is imported")
install()
pose_as_cuda("privlearn")


@pytest.fixture(autouse=True)
def a_device_that_works() -> Iterator[None]:
    """What one test does to the device is no matter of the next."""
    reset()
    yield
    reset()
