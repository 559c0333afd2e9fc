"""`python -m privlearn.publishing.verify_folders PATHS`: verify every published folder among files
and folders, such as those of a repository. The hook for pre-commit and the GitHub Action run it.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from privlearn.errors import PrivlearnError
from privlearn.publishing.folder import CERTIFICATE
from privlearn.publishing.verify import verify


def find_folders(paths: Iterable[str | Path]) -> list[Path]:
    """The folders that hold a certificate, in order: anywhere below a folder, but for `.git`, and
    the one that a file lies in.
    """
    holding: set[Path] = set()
    for path in map(Path, paths):
        if path.is_dir():
            for place, folders, files in os.walk(path):
                folders[:] = [name for name in folders if name != ".git"]
                # a link that leads nowhere is a certificate that cannot be read
                holding |= {Path(place)} if CERTIFICATE in {*files, *folders} else set()
        elif os.path.lexists(path.parent / CERTIFICATE):
            holding.add(path.parent)
    return sorted(holding)


def find_problems(folder: Path, key: str | None) -> list[str]:
    """Why a folder does not verify; empty if it does."""
    try:
        return verify(folder, key=key).problems
    except PrivlearnError as error:
        return [str(error)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a line for each folder; 1 if one does not verify, or if there is none."""
    parser = argparse.ArgumentParser(
        prog="python -m privlearn.publishing.verify_folders",
        description=f"Verify every folder that holds a {CERTIFICATE}.",
    )
    parser.add_argument("paths", nargs="+", help="folders to search, or files of published folders")
    parser.add_argument("--key", help="the publisher's public key, which must have signed them all")
    request = parser.parse_args(arguments)
    folders = find_folders(request.paths)
    if not folders:
        print(f"no folder with a {CERTIFICATE} is there: nothing was verified", file=sys.stderr)
        return 1
    failed = 0
    for folder in folders:
        problems = find_problems(folder, request.key)
        failed += bool(problems)
        print(_printable(f"{folder}: {'does not verify' if problems else 'verifies'}"))
        for problem in problems:
            print(_printable(f"  - {problem}"))
    return 1 if failed else 0


def _printable(line: str) -> str:
    """Without characters that a terminal or a runner would obey: a folder's name may hold any."""
    return "".join(letter if letter.isprintable() else "?" for letter in line)


if __name__ == "__main__":
    raise SystemExit(main())
