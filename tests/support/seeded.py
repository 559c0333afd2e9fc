"""Every test draws the same numbers from the global generators, whichever tests ran before it, and
so does every fixture that several tests share. No test knows the weights that others released.

A check that forgets to seed would else fail, or miss its planted bug, in some orders of tests. So
would one that counts warnings, after a planted bug that kept a network from being trained: its
fresh weights would be known as those of an earlier run.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    _seed()
    if optimizers := sys.modules.get("privlearn.runs.optimizers"):
        optimizers._LOADED.clear()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
    if fixturedef.scope == "function":
        return (yield)
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    _seed()
    try:
        return (yield)
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
        torch.set_rng_state(states[2])


def _seed() -> None:
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)
