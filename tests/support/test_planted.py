"""Which planted bugs and tests of sweeps run: those near a change, and a share of the others."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import privlearn.core.clipping
from privlearn.core.clipping import bounded
from privlearn.core.mechanisms import release
from tests.support import planted
from tests.support.checks import every_check
from tests.support.history import ROOT
from tests.support.mutant import Mutant

pytest_plugins = ["pytester"]

CHECK = next(iter(every_check()))
BUG = Mutant("a bug", release.release, "a", "b", CHECK)
HERE = Path(__file__)
BUGS = f"""
import pytest
from privlearn.core.mechanisms import release
from tests.support.mutant import Mutant

BUGS = [Mutant(f"bug {{n}}", release.release, "a", "b", {CHECK!r}) for n in range(200)]


@pytest.mark.parametrize("any_name", BUGS, ids=lambda bug: bug.name)
def test_bug(any_name):
    pass


@pytest.mark.one_of(5)
@pytest.mark.parametrize("number", range(100))
def test_sweep(number):
    pass


def test_other():
    pass
"""


def module_file(module: Any) -> str:
    return Path(module.__file__).relative_to(ROOT).as_posix()


def test_a_bug_is_near_its_code_its_check_and_its_description() -> None:
    check = Path(every_check()[CHECK].__code__.co_filename).relative_to(ROOT).as_posix()
    code = Path(inspect.unwrap(release.release).__code__.co_filename).relative_to(ROOT).as_posix()
    assert code != check
    for file in (code, check, HERE.relative_to(ROOT).as_posix()):
        assert planted.is_affected(BUG, HERE, {file, "README.md"}), file
    assert not planted.is_affected(BUG, HERE, {"README.md", module_file(bounded)})


def test_a_sweep_is_near_its_file_and_its_modules() -> None:
    clipping = privlearn.core.clipping
    assert planted.is_near(HERE, [], {HERE.relative_to(ROOT).as_posix()})
    assert planted.is_near(HERE, [clipping], {module_file(bounded)})
    assert not planted.is_near(HERE, [bounded], {module_file(clipping)})
    assert not planted.is_near(HERE, [clipping], {"src/privlearn/clipping.md", "README.md"})


def test_every_bug_is_drawn_by_some_commit() -> None:
    commits = [f"{number:040x}" for number in range(200)]
    for name in ("one", "other"):
        drawn = sum(planted.is_drawn(name, commit, 10) for commit in commits)
        assert 8 <= drawn <= 40
    assert [planted.is_drawn("one", c, 10) for c in commits] != [
        planted.is_drawn("other", c, 10) for c in commits
    ]


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A folder of planted bugs, with the conftest of all tests, where nothing changed."""
    pytester.makeconftest((ROOT / "tests" / "conftest.py").read_text())
    pytester.makeini("[pytest]\nmarkers = nightly: n\n planted_bug: p\n one_of(number): o\n")
    pytester.makepyfile(BUGS)
    monkeypatch.setattr(planted, "changed_lately", set)
    monkeypatch.setattr(planted, "commit", lambda: "1" * 40)
    return pytester


def counts(project: pytest.Pytester, *options: str) -> tuple[int, list[str]]:
    result = project.runpytest_inprocess("-q", "-p", "no:cacheprovider", *options)
    return result.parseoutcomes()["passed"], result.outlines


def test_a_run_draws_a_share_and_says_what_it_left_out(project: pytest.Pytester) -> None:
    drawn, lines = counts(project, "-m", "not nightly")
    assert 1 + 20 // 2 + 20 // 2 <= drawn <= 1 + 20 * 2 + 20 * 2
    assert lines[-1].startswith(f"{drawn} passed, {301 - drawn} deselected in")
    assert "`make nightly` runs all of them" in lines[-2]
    assert "planted bugs and" in lines[-2]
    assert counts(project, "-m", "not nightly")[0] == drawn


def test_all_run_where_their_file_changed_or_where_one_asks_for_all(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    for options in (["--all-drawn", "-m", "not nightly"], []):
        drawn, lines = counts(project, *options)
        assert drawn == 301
        assert "left out" not in "".join(lines)
    assert counts(project, "-m", "nightly or planted_bug or one_of")[0] == 300
    code = Path(inspect.unwrap(release.release).__code__.co_filename).relative_to(ROOT).as_posix()
    monkeypatch.setattr(planted, "changed_lately", lambda: {code})
    assert counts(project, "-m", "not nightly", "-k", "test_bug")[0] == 200


def bugs_of(value: Any) -> set[Mutant]:
    """The bugs that a variable of a module holds."""
    values = value if isinstance(value, list | tuple) else [value]
    return {one for one in values if isinstance(one, Mutant)}


@pytest.mark.parametrize(
    "path",
    sorted(ROOT.glob("tests/*/mutants*.py")),
    ids=lambda path: f"{path.parent.name}-{path.stem}",
)
def test_every_bug_that_is_described_is_planted_by_a_test(path: Path) -> None:
    """`make nightly` runs all tests that plant a bug, and so each bug that there is."""
    module = import_module(".".join(("tests", path.parent.name, path.stem)))
    described = set().union(*map(bugs_of, vars(module).values()))
    marks = [
        mark
        for name, function in vars(module).items()
        if name.startswith("test_")
        for mark in getattr(function, "pytestmark", ())
    ]
    planted_by_tests = [bugs_of(mark.args[1]) for mark in marks if mark.name == "parametrize"]
    missing = described.difference(*planted_by_tests)
    assert not missing, sorted(bug.name for bug in missing)
