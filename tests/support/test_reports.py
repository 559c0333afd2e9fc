"""What a run of the tests says of itself."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

WITHOUT_DATA = """
import pytest


def test_needs_data(data_dir):
    pass


def test_needs_nothing():
    pass


def test_is_skipped_for_something_else():
    pytest.skip("no GPU here")
"""


def test_tests_that_had_no_data_are_counted_last(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line before pytest's own closing line, which scripts read, and which stays as it is."""
    pytester.makeconftest((Path(__file__).parents[1] / "conftest.py").read_text())
    pytester.makepyfile(WITHOUT_DATA)
    monkeypatch.setenv("PRIVLEARN_DATA", str(pytester.path / "nowhere"))
    before, last = pytester.runpytest_inprocess("-q", "-ra", "-p", "no:cacheprovider").outlines[-2:]
    assert before.startswith("1 tests were skipped because real data sets are not here")
    assert last.startswith("1 passed, 2 skipped in ")
    monkeypatch.setenv("PRIVLEARN_DATA", str(pytester.path))
    shown = pytester.runpytest_inprocess("-q", "-ra", "-p", "no:cacheprovider").outlines
    assert "real data sets" not in "".join(shown)
    assert shown[-1].startswith("2 passed, 1 skipped in ")
