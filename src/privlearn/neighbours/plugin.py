"""The plugin of pytest: `pytest --dp-neighbours` runs tests with the mark `dp_neighbours` on
neighbouring data.

It is imported by every pytest where privlearn is installed: it imports nothing but pytest until a
marked test runs. Without the option a marked test runs once, as it stands.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from privlearn.neighbours.recorder import ReleaseRecorder

MARK = "dp_neighbours"
OPTION = "--dp-neighbours"
#: The name under which a test's report is kept, also from one process to another.
_REPORT = "dp_neighbours"
_USAGE = (
    "dp_neighbours(data, adjacency='add_remove', noise_multiplier=None, sensitivity=None, runs=2, "
    "neighbours=None, absent=None): with --dp-neighbours, run the test "
    "on neighbouring data and compare what it releases"
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    parser.getgroup("privlearn").addoption(
        OPTION,
        action="store_true",
        help="run tests marked dp_neighbours on neighbouring data, and compare their releases",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Describe the mark, for --strict-markers and --markers."""
    config.addinivalue_line("markers", _USAGE)


@pytest.fixture
def dp_rows(request: pytest.FixtureRequest) -> Any:
    """The rows of a test with the mark `dp_neighbours`: its training reads no others."""
    return _rows(_mark(request.node))


@pytest.fixture
def dp_recorder() -> ReleaseRecorder:
    """What a training may say about its releases: a `privlearn.neighbours.ReleaseRecorder`."""
    from privlearn.neighbours.recorder import (
        ReleaseRecorder,  # torch, which ordinary tests don't wait for
    )

    return ReleaseRecorder()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a marked test on neighbouring data, if the option says so; else pytest runs it."""
    if pyfuncitem.get_closest_marker(MARK) is None:
        return None
    _refuse_coroutines(pyfuncitem)
    mark = _mark(pyfuncitem)
    if "dp_rows" not in pyfuncitem.fixturenames:
        pytest.fail(
            f"{pyfuncitem.name} is marked {MARK}, and does not take dp_rows: expected a test "
            "that trains on the argument dp_rows",
            pytrace=False,
        )
    if not pyfuncitem.config.getoption(OPTION):
        return None
    from privlearn.neighbours.comparison import compare_runs  # imports torch

    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}

    def train(rows: Any, recorder: ReleaseRecorder) -> Any:
        chosen = {"dp_rows": rows, "dp_recorder": recorder}
        return pyfuncitem.obj(
            **{name: chosen.get(name, value) for name, value in arguments.items()}
        )

    options = {name: value for name, value in mark.kwargs.items() if name != "data"}
    comparison = compare_runs(train, pyfuncitem.funcargs["dp_rows"], **options)
    pyfuncitem.user_properties.append((_REPORT, comparison.report()))
    if not comparison.ok:
        pytest.fail(f"{pyfuncitem.name}:\n{comparison.report()}", pytrace=False)
    return True


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the report of each marked test that passed; that of a failed one is its message."""
    reports = [
        (report.nodeid, text)
        for report in terminalreporter.stats.get("passed", [])
        for name, text in getattr(report, "user_properties", [])
        if name == _REPORT
    ]
    if reports:
        terminalreporter.section("neighbouring runs")
    for nodeid, text in reports:
        terminalreporter.write_line(nodeid)
        for line in text.splitlines():
            terminalreporter.write_line(f"  {line}")


def _mark(item: Any) -> pytest.Mark:
    mark: pytest.Mark | None = item.get_closest_marker(MARK)
    if mark is None:
        pytest.fail(
            f"{item.name} takes dp_rows without the mark: expected @pytest.mark.{MARK}(data=...)",
            pytrace=False,
        )
    if mark.args or "data" not in mark.kwargs:
        pytest.fail(
            f"the mark {MARK} of {item.name} has no data=: expected rows, or a function without "
            "arguments that makes them, and other arguments by name",
            pytrace=False,
        )
    return mark


def _rows(mark: pytest.Mark) -> Any:
    data = mark.kwargs["data"]
    return data() if callable(data) else data


def _refuse_coroutines(item: pytest.Function) -> None:
    if inspect.iscoroutinefunction(item.obj):
        pytest.fail(
            f"{item.name} is a coroutine: {MARK} runs plain functions. Call asyncio.run inside",
            pytrace=False,
        )
