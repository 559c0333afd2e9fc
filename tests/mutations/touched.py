"""A pytest plugin: which tests run which lines, and how long each takes, under `coverage run`.

Each test is a context of the coverage data. Caches are emptied before each, so that a test counts
for the lines that it would run alone. Processes that a test forks count for it, too.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import sys
from pathlib import Path
from typing import Any

import coverage
import pytest

#: The variable that names the file of seconds.
SECONDS = "PRIVLEARN_SECONDS"
_seconds: dict[str, float] = {}
_running: list[str] = []


def forget() -> None:
    """Empty the caches of all functions of the package."""
    for cached in _cached(sum(name.startswith("privlearn") for name in sys.modules)):
        cached.cache_clear()


@functools.lru_cache(maxsize=1)
def _cached(_modules: int) -> list[Any]:
    """The functions with caches, looked for again when another module was imported."""
    kind = functools._lru_cache_wrapper
    return [
        each
        for each in gc.get_objects()
        if type(each) is kind and str(each.__module__).startswith("privlearn")
    ]


def _name_the_test() -> None:
    if _running and (measured := coverage.Coverage.current()) is not None:
        measured.switch_context(_running[-1])


def pytest_configure() -> None:
    os.register_at_fork(after_in_child=_name_the_test)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    forget()
    _running[:] = [item.nodeid]
    _name_the_test()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.passed:
        _seconds[report.nodeid] = round(_seconds.get(report.nodeid, 0.0) + report.duration, 3)
    else:  # failed or skipped: it can tell nothing
        _seconds[report.nodeid] = float("inf")


def pytest_sessionfinish() -> None:
    if where := os.environ.get(SECONDS):
        known = json.loads(Path(where).read_text()) if Path(where).exists() else {}
        Path(where).write_text(json.dumps(known | _seconds))
