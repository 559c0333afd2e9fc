"""What all tests share: real data sets, where they are, and how much was not tested for want of
them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from privlearn.neighbours import plugin as neighbours_plugin
from tests.support import changed, left_out, planted, seeded
from tests.support.vision import make_torchvision_importable

torch.set_num_threads(1)
make_torchvision_importable()  # or transformers would not be, either

ROOT = Path(__file__).parents[1]


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    for plugin in (seeded, planted, changed, left_out):
        pluginmanager.register(plugin)
    if not pluginmanager.has_plugin("privlearn"):  # installed before it had a plugin
        pluginmanager.register(neighbours_plugin, "privlearn")


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The directory of real data sets: PRIVLEARN_DATA, or shared/data beside the project."""
    found = Path(os.environ.get("PRIVLEARN_DATA") or ROOT.parent / "shared" / "data")
    if not found.is_dir():
        pytest.skip(f"real data sets are not here: neither PRIVLEARN_DATA nor {found}")
    return found


#: What reasons to skip begin with where real data sets are missing.
_NO_DATA = "Skipped: real data sets are not here"


#: Tests that take longer than `make test` has time for, one a line: planted bugs of 3 seconds and
#: more, others of 6.
_LIST = ROOT / "tests" / "nightly.txt"
LONG = frozenset(_LIST.read_text(encoding="utf-8").splitlines() if _LIST.exists() else ())


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what is long as nightly, and so named checks outside of tests/test_checks.py, which runs
    all of them.
    """
    parameters = getattr(item, "callspec", None)
    name = str(parameters.params.get("name", "")) if parameters else ""
    again = name.startswith("check_") and item.path.name != "test_checks.py"
    if again or item.nodeid in LONG:
        item.add_marker("nightly")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: Any) -> Iterator[None]:
    """After everything but pytest's own closing line: how much was not tested for want of data, if
    anything was.
    """
    yield
    if line := untested(terminalreporter.stats.get("skipped", [])):
        terminalreporter.write_line(line)


def untested(skipped: list[Any]) -> str | None:
    """The line that says how many of `skipped` (pytest's reports) needed real data sets; None if
    none did.
    """
    reasons = [report.longrepr[2] for report in skipped if isinstance(report.longrepr, tuple)]
    number = sum(reason.startswith(_NO_DATA) for reason in reasons)
    if not number:
        return None
    return (
        f"{number} tests were skipped because real data sets are not here: green says less than "
        "with them. Put them into a folder that PRIVLEARN_DATA names"
    )
