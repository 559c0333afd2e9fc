"""`pytest --changed`: the tests of what changed since `main`, first the nearest, for as long as
`--seconds` says.

A changed test file counts as a whole. A changed file of the package counts by its planted bugs, by
the checks that catch them, and by the tests of its room (`tests/<room>`), which also follow what
they share. The laws of the house always count.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
_LAWS = "tests/laws/test_house.py"
#: Folders of the source whose tests have another name.
_TESTED = {
    "privlearn_studies": ("studies",),
    "privlearn_segmentation": ("volumes", "scans"),
    "privlearn/methods/dpmac": ("mac",),
    "privlearn/methods/pate": ("teachers",),
    "privlearn/methods/statistics": ("statistics",),
    "privlearn/methods/boosting": ("boosting",),
    "privlearn/methods/tuning": ("tuning",),
}


def changed_files() -> set[str]:
    """What differs from the branch's beginning on `main`, and new files that git does not
    ignore.
    """
    base = next(
        (base for name in ("main", "origin/main") if (base := _git("merge-base", name, "HEAD"))),
        "HEAD",
    )
    return {
        *_git("diff", "--name-only", base).splitlines(),
        *_git("ls-files", "-o", "--exclude-standard").splitlines(),
    }


def _git(*arguments: str) -> str:
    answer = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return answer.stdout.strip() if answer.returncode == 0 else ""


def rank(file: str, parameters: dict[str, Any], changed: set[str], checks: set[str]) -> int | None:
    """How near a test is to what changed, nearest first; None: it has nothing to do with it."""
    mutant = parameters.get("mutant")
    if mutant is not None:
        return 2 if _home(mutant) in changed else None
    if file.endswith("test_checks.py"):
        return 1 if parameters.get("name") in checks else None
    if file == _LAWS or file in changed:
        return 0
    rooms = {
        Path(name).parts[2].removesuffix(".py")
        for name in changed
        if name.startswith("src/privlearn/")
    }
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


def _home(mutant: Any) -> str:
    """The file of what a planted bug changes."""
    target = getattr(mutant.target, "fget", None) or mutant.target
    module = sys.modules[getattr(target, "__func__", target).__module__]
    return Path(str(module.__file__)).relative_to(ROOT).as_posix()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--changed", action="store_true", help="only the tests of what changed since main"
    )
    parser.addoption(
        "--seconds", type=float, help="begin no test after so many seconds; the others are skipped"
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--changed"):
        return
    changed = changed_files()
    parameters = {item: getattr(item, "callspec", None) for item in items}
    values = {item: {} if spec is None else spec.params for item, spec in parameters.items()}
    mutants = [own["mutant"] for own in values.values() if "mutant" in own]
    checks = {mutant.caught_by for mutant in mutants if _home(mutant) in changed}
    ranks = {
        item: rank(item.path.relative_to(ROOT).as_posix(), values[item], changed, checks)
        for item in items
    }
    config.hook.pytest_deselected(items=[item for item in items if ranks[item] is None])
    items[:] = sorted(
        (item for item in items if ranks[item] is not None), key=lambda item: ranks[item] or 0
    )


_BEGAN = time.monotonic()


def pytest_runtest_setup(item: pytest.Item) -> None:
    limit = item.config.getoption("--seconds")
    if limit is not None and time.monotonic() - _BEGAN > limit:
        pytest.skip("no time was left: `make test` runs it")
