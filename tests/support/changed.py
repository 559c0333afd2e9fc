"""`pytest --changed`: the tests of what changed since `main`, first the nearest, for as long as
`--seconds` says.

A changed test file counts as a whole. A changed file of the package counts by its planted bugs, by
the checks that catch them, and by the tests of its room (`tests/<room>`), which also follow what
they share. The laws of the house always count. What is left out is said at the end
(`tests.support.left_out`).
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.history import ROOT, changed_on_branch
from tests.support.left_out import NO_TIME
from tests.support.planted import is_affected, planted_bug

_LAWS = "tests/laws/test_house.py"
#: Folders of the source whose tests have another name.
_TESTED = {
    "privlearn/training": ("descent",),
    "privlearn_studies": ("studies",),
    "privlearn_verify": ("publishing",),
    "privlearn_segmentation": ("volumes", "scans"),
    "privlearn/methods/dpmac": ("mac",),
    "privlearn/methods/pate": ("teachers",),
    "privlearn/methods/statistics": ("statistics",),
    "privlearn/methods/boosting": ("boosting",),
    "privlearn/methods/tuning": ("tuning",),
}


def rank(file: str, parameters: dict[str, Any], changed: set[str], checks: set[str]) -> int | None:
    """How near a test that plants no bug is to what changed, nearest first; None: it has nothing
    to do with it.
    """
    if file.endswith("test_checks.py"):
        return 1 if parameters.get("name") in checks else None
    if file == _LAWS or file in changed:
        return 0
    source = (name.removeprefix("src/") for name in changed if name.startswith("src/privlearn/"))
    below = (name.removeprefix("privlearn/").removeprefix("core/") for name in source)
    rooms = {name.split("/")[0].removesuffix(".py") for name in below}
    rooms |= {
        room
        for folder, tested in _TESTED.items()
        if any(name.startswith(f"src/{folder}/") for name in changed)
        for room in tested
    }
    parts = [
        Path(name).parts for name in changed if name.startswith("tests/") and name.count("/") > 1
    ]
    # what its tests share
    rooms |= {room for _, room, *_, own in parts if not own.startswith("test_")}
    return 3 if Path(file).parts[1] in rooms else None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--changed", action="store_true", help="only the tests of what changed since main"
    )
    parser.addoption(
        "--seconds",
        type=float,
        help="begin no test after so many seconds of tests, and name those that are left out",
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--changed"):
        return
    changed = changed_on_branch()
    affected = {
        item: mutant
        for item in items
        if (mutant := planted_bug(item)) and is_affected(mutant, item.path, changed)
    }
    checks = {mutant.caught_by for mutant in affected.values()}
    ranks: dict[pytest.Item, int | None] = {}
    for item in items:
        if planted_bug(item):
            ranks[item] = 2 if item in affected else None
        else:
            spec = getattr(item, "callspec", None)
            file = item.path.relative_to(ROOT).as_posix()
            ranks[item] = rank(file, spec.params if spec else {}, changed, checks)
    config.hook.pytest_deselected(items=[item for item in items if ranks[item] is None])
    items[:] = sorted(
        (item for item in items if ranks[item] is not None), key=lambda item: ranks[item] or 0
    )


_BEGAN = pytest.StashKey[float]()


def pytest_collection_finish(session: pytest.Session) -> None:
    session.config.stash[_BEGAN] = time.monotonic()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    """Leave a test out for want of time, without its fixtures and without a traceback."""
    limit = item.config.getoption("--seconds")
    if limit is None or time.monotonic() - item.config.stash[_BEGAN] <= limit:
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reason = str(item.path), item.location[1] or 0, f"Skipped: {NO_TIME}"
    report = pytest.TestReport(item.nodeid, item.location, {}, "skipped", reason, "setup")
    item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
