"""What changed, by git. Where there is no git, or only a part of the history, less is known: the
answers are then empty, and nothing fails.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]

#: How many commits count as recent on `main` where no release has a tag.
RECENT = 5


def commit(root: Path = ROOT) -> str:
    """The hash of the commit that is checked out; empty where there is none."""
    return _git(root, "rev-parse", "--verify", "--quiet", "HEAD")


def changed_on_branch(root: Path = ROOT) -> set[str]:
    """The files that differ from where the branch left `main`, and new ones that git does not
    ignore.
    """
    return _changed_since(_start_of_branch(root) or "HEAD", root)


def changed_lately(root: Path = ROOT) -> set[str]:
    """The files that differ from where the branch left `main`; on `main` itself, from the last tag
    or, without one, from `RECENT` commits before. New files that git does not ignore count.
    """
    bases = (
        _start_of_branch(root),
        _git(root, "describe", "--tags", "--abbrev=0"),
        _git(root, "rev-parse", "--verify", "--quiet", f"HEAD~{RECENT}"),
    )
    return _changed_since(next(filter(None, bases), "HEAD"), root)


def _start_of_branch(root: Path) -> str:
    """The commit at which the branch left `main`; empty on `main` itself."""
    head = commit(root)
    bases = [_git(root, "merge-base", name, "HEAD") for name in ("main", "origin/main")]
    return next((base for base in bases if base and base != head), "")


def _changed_since(base: str, root: Path) -> set[str]:
    return {
        *_git(root, "diff", "--name-only", "--relative", base).splitlines(),
        *_git(root, "ls-files", "-o", "--exclude-standard").splitlines(),
    }


def _git(root: Path, *arguments: str) -> str:
    try:
        answer = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return answer.stdout.strip() if answer.returncode == 0 else ""
