"""What a test draws does not depend on the tests before it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

DRAWING = """
import random
import numpy as np
import pytest
import torch


def draw():
    return random.random(), float(np.random.rand()), float(torch.rand(1))


@pytest.fixture(scope="module")
def shared():
    return draw()


def test_one():
    print("drawn", draw())


def test_two(shared):
    print("drawn", draw())
    print("shared", shared)


def test_three(shared):
    draw()
    print("shared", shared)
"""


def test_every_order_draws_the_same(pytester: pytest.Pytester) -> None:
    pytester.makeconftest((Path(__file__).parents[1] / "conftest.py").read_text())
    file = pytester.makepyfile(DRAWING).name
    for order in (("one", "two", "three"), ("three", "two", "one"), ("two",)):
        names = [f"{file}::test_{name}" for name in order]
        output = pytester.runpytest_inprocess("-s", "-p", "no:cacheprovider", *names).stdout
        values = re.findall(r"(?:drawn|shared) (\(.*?\))", str(output))
        assert len(values) == (4 if len(order) == 3 else 2)
        assert len(set(values)) == 1
