"""A run of what changed says which tests it left out, and never that all passed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.support import changed, history
from tests.support.left_out import lines

pytest_plugins = ["pytester"]

NEAR = "def test_near():\n    pass\n\n\ndef test_near_too():\n    pass\n"


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Two files of tests, of which one changed."""
    pytester.makeconftest((Path(__file__).parents[1] / "conftest.py").read_text())
    for folder in ("near", "far"):
        file = pytester.path / "tests" / folder / f"test_{folder}.py"
        file.parent.mkdir(parents=True)
        file.write_text(NEAR)
    monkeypatch.setattr(changed, "ROOT", pytester.path)
    monkeypatch.setattr(changed, "changed_on_branch", lambda: {"tests/near/test_near.py"})
    return pytester


@pytest.mark.parametrize("workers", ["0", "1"])
def test_tests_of_other_rooms_are_named(
    project: pytest.Pytester, workers: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if workers != "0":
        # the workers of xdist are new processes, where nothing is patched
        imports = "from tests.support import changed, history\nfrom pathlib import Path\n"
        patch = (
            "changed.ROOT = Path(__file__).parent\n"
            "changed.changed_on_branch = lambda: {'tests/near/test_near.py'}\n"
        )
        conftest = project.path / "conftest.py"
        conftest.write_text("\n".join([conftest.read_text(), imports, patch]))
        monkeypatch.setenv("PYTHONPATH", f"{history.ROOT}:{history.ROOT / 'src'}")
    result = project.runpytest("-q", "-p", "no:cacheprovider", "--changed", "-n", workers)
    assert result.outlines[-1].startswith("2 passed, 2 deselected in")
    result.stdout.fnmatch_lines(["2 tests of 1 files were left out*`make test`*", "*far (1 files)"])


def test_tests_that_no_time_was_left_for_are_named(project: pytest.Pytester) -> None:
    result = project.runpytest_inprocess(
        "-q", "-p", "no:cacheprovider", "--changed", "--seconds", "0"
    )
    assert result.outlines[-1].startswith("2 deselected, 2 left out in")
    result.stdout.fnmatch_lines(
        ["no time was left for 2 tests of 1 files. `make test` runs them:", "*near.py: 2 tests"]
    )
    assert "passed" not in "".join(result.outlines)


def test_a_run_of_everything_says_nothing_more() -> None:
    assert not [*lines(Counter(), {"planted_bug": 0, "one_of": 0}, Counter(), changed=False)]
