"""Which planted bugs, and which tests of a sweep, a run of the tests draws: those of what changed,
and a few of the others, which the commit's hash chooses.

A planted bug has to do with the file that describes it, with that of its code and with that of its
check. A test with the mark `one_of(number, *modules)` has to do with its file and with those of
`modules`, which may be packages. What is not drawn is marked as nightly, so that `-m "not nightly"`
leaves it out. Every planted bug has the mark `planted_bug`; `make nightly` runs all tests that have
one of these marks.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.history import ROOT, changed_lately, commit
from tests.support.mutant import Mutant

#: Planted bugs of which one runs whatever changed.
ONE_OF = 10


def planted_bug(item: pytest.Item) -> Mutant | None:
    """The bug that a test plants, whatever the name of its parameter is."""
    parameters = getattr(item, "callspec", None)
    values = parameters.params.values() if parameters else ()
    return next((value for value in values if isinstance(value, Mutant)), None)


def is_affected(mutant: Mutant, described_in: Path, changed: set[str], root: Path = ROOT) -> bool:
    """Whether the bug's code, its check or the file that describes it is among the `changed`."""
    files = [described_in, *map(Path, mutant.files())]
    return any(
        file.is_relative_to(root) and file.relative_to(root).as_posix() in changed for file in files
    )


def is_near(
    test: Path, modules: Sequence[ModuleType], changed: set[str], root: Path = ROOT
) -> bool:
    """Whether a test's file, or one of a module or package, is among the `changed`."""
    files = [Path(str(module.__file__)) for module in modules]
    places = [file.parent if file.name == "__init__.py" else file for file in files]
    paths = [root / file for file in changed]
    return test in paths or any(path.is_relative_to(place) for place in places for path in paths)


def is_drawn(name: str, commit: str, one_of: int) -> bool:
    """Whether a commit runs the test of this name whatever changed."""
    return int(sha256(f"{commit} {name}".encode()).hexdigest(), 16) % one_of == 0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all-drawn",
        action="store_true",
        help="run all planted bugs and sweeps but the long ones, whatever changed",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if planted_bug(item):
            item.add_marker("planted_bug")
    if config.getoption("--all-drawn"):
        return
    changed, checked_out = changed_lately(), commit()
    for item in items:
        mark = item.get_closest_marker("one_of")
        if mutant := planted_bug(item):
            one_of, runs = ONE_OF, is_affected(mutant, item.path, changed)
        elif mark is not None:
            one_of, *modules = mark.args
            runs = is_near(item.path, modules, changed)
        else:
            continue
        if not runs and not is_drawn(item.nodeid, checked_out, one_of):
            item.add_marker("nightly")
