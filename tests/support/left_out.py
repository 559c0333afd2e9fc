"""What a run of the tests left out, and what runs it: pytest under xdist says nothing of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

#: What is left out for want of time is skipped with this reason.
NO_TIME = "no time was left: `make test` runs it"
_WORKERS_KEY = "privlearn_left_out"


class LeftOut:
    """Counts, by file, what a run was not asked for; each worker of xdist counts alike.

    Attributes:
        files: tests that are left out, by file.
        drawn: planted bugs and tests of sweeps among them.
    """

    def __init__(self) -> None:
        self.files: Counter[str] = Counter()
        self.drawn = {"planted_bug": 0, "one_of": 0}

    def pytest_deselected(self, items: list[pytest.Item]) -> None:
        self.files.update(item.nodeid.partition("::")[0] for item in items)
        for mark in self.drawn:
            self.drawn[mark] += sum(item.get_closest_marker(mark) is not None for item in items)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if (output := getattr(session.config, "workeroutput", None)) is not None:
            output[_WORKERS_KEY] = dict(self.files), self.drawn

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        if counts := getattr(node, "workeroutput", {}).get(_WORKERS_KEY):
            self.files, self.drawn = Counter(counts[0]), counts[1]

    @pytest.hookimpl(wrapper=True)
    def pytest_terminal_summary(
        self, terminalreporter: Any, config: pytest.Config
    ) -> Iterator[None]:
        """Before pytest's closing line, which counts what is left out, too."""
        yield
        stats, number = terminalreporter.stats, sum(self.files.values())
        if number and not stats.get("deselected"):
            stats["deselected"] = [None] * number
        late = Counter(report.nodeid.partition("::")[0] for report in stats.get("left out", []))
        for line in lines(self.files, self.drawn, late, changed=config.getoption("--changed")):
            terminalreporter.write_line(line)


def lines(
    files: Counter[str], drawn: dict[str, int], late: Counter[str], *, changed: bool
) -> Iterator[str]:
    """What was left out, in words.

    Args:
        files: tests that the run was not asked for, by file.
        drawn: planted bugs and tests of sweeps among these, by their mark.
        late: tests that no time was left for, by file.
        changed: whether the run was to be of what changed alone.
    """
    if late:
        yield (
            f"no time was left for {late.total()} tests of {len(late)} files. `make test` runs "
            "them:"
        )
        yield from (f"  {file}: {number} tests" for file, number in sorted(late.items()))
    if changed and files:
        yield (
            f"{files.total()} tests of {len(files)} files were left out because nothing that they "
            "stand beside changed; `make test` and `make nightly` run them:"
        )
        rooms = Counter(file.rpartition("/")[0] for file in files)
        yield "  " + ", ".join(f"{room} ({number} files)" for room, number in sorted(rooms.items()))
    if any(drawn.values()):
        yield (
            f"{drawn['planted_bug']} planted bugs and {drawn['one_of']} tests of sweeps were left "
            "out: their code did not change, or they take long. `make nightly` runs all of them, "
            'and so does `pytest -m "planted_bug or one_of"`'
        )


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(LeftOut(), "privlearn-left-out")


def pytest_report_teststatus(report: Any) -> tuple[str, str, str] | None:
    """What is left out for want of time is counted by that name in pytest's closing line."""
    if report.skipped and isinstance(report.longrepr, tuple) and NO_TIME in report.longrepr[2]:
        return "left out", "-", "LEFT OUT"
    return None
