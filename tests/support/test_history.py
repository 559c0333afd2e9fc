"""What changed is known wherever there is a history, and nothing fails where there is none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support import history


def git(root: Path, *arguments: str) -> None:
    who = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    subprocess.run(["git", *who, *arguments], cwd=root, check=True, capture_output=True)


def commit(root: Path, file: str) -> None:
    (root / file).write_text(file)
    git(root, "add", file)
    git(root, "commit", "-m", file)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project with three commits on `main`, and no tag."""
    project = tmp_path / "project"
    project.mkdir()
    git(project, "init", "-b", "main")
    for number in range(3):
        commit(project, f"old{number}.py")
    return project


def test_on_a_branch_everything_since_main_counts(root: Path) -> None:
    git(root, "checkout", "-b", "branch")
    commit(root, "committed.py")
    (root / "old0.py").write_text("changed")
    (root / "new.py").write_text("new")
    changed = {"committed.py", "old0.py", "new.py"}
    assert history.changed_lately(root) == history.changed_on_branch(root) == changed


def test_on_main_everything_since_the_last_tag_counts(root: Path) -> None:
    git(root, "tag", "v1")
    assert history.changed_lately(root) == set()
    commit(root, "later.py")
    assert history.changed_lately(root) == {"later.py"}
    assert history.changed_on_branch(root) == set()


def test_without_a_tag_the_last_commits_count(root: Path) -> None:
    for number in range(history.RECENT):
        commit(root, f"recent{number}.py")
    assert history.changed_lately(root) == {f"recent{n}.py" for n in range(history.RECENT)}


def test_of_a_short_history_the_working_tree_counts_alone(root: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "--depth", "1", root.as_uri(), "shallow")
    shallow = tmp_path / "shallow"
    assert history.commit(shallow) == history.commit(root)
    assert history.changed_lately(shallow) == history.changed_lately(root) == set()
    (shallow / "new.py").write_text("new")
    assert history.changed_lately(shallow) == {"new.py"}


def test_nothing_is_known_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    folder = tmp_path / "folder"
    folder.mkdir()
    assert (history.commit(folder), history.changed_lately(folder)) == ("", set())
    monkeypatch.setenv("PATH", "")
    assert (history.commit(folder), history.changed_lately(folder)) == ("", set())
