"""A folder is published under its final name when it is complete, all or nothing."""

from __future__ import annotations

import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from privlearn.errors import BadInput
from privlearn.publishing.folder import reason_of


def require_free(out: str | Path) -> Path:
    """Return `out` as a path that a model can be published at.

    Raises:
        BadInput: something is there already, or the folder above cannot be written to.
    """
    path = Path(out)
    if path.name in ("", ".."):
        raise BadInput(
            f"out is {str(out)!r}, which names no new folder: give a path such as runs/model"
        )
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        pass  # free, or below a file, which is said with its name in a moment
    except (OSError, ValueError) as error:
        raise BadInput(
            f"{str(path)[:200]!r} cannot be written: {reason_of(error)}. Choose another folder, "
            "out="
        ) from error
    else:
        raise BadInput(
            f"{path} exists already: choose another folder, out=, or move it away; nothing is "
            "overwritten"
        )
    above = path.absolute().parent
    while not above.exists():
        above = above.parent
    if not above.is_dir() or not _is_writable(above):
        raise BadInput(
            f"{path} cannot be written: {above} is not a folder that you may write to. Choose "
            "another folder, out="
        )
    return path


def _is_writable(folder: Path) -> bool:
    """Whether a folder can be made in a folder: some systems of files say so, and refuse."""
    if not os.access(folder, os.W_OK | os.X_OK):
        return False
    try:
        with TemporaryDirectory(prefix=".privlearn-", dir=folder):
            return True
    except OSError:
        return False


def write(path: Path, files: dict[str, bytes]) -> None:
    """Write `files` into a folder beside `path` and rename it: `path` is complete or absent.

    Permissions are those that the caller's umask gives to new files and folders.

    Raises:
        BadInput: it cannot be written; nothing is left behind.
    """
    above = path.absolute().parent
    draft = above / f".privlearn-{secrets.token_hex(8)}"
    new_folders: list[Path] = []
    try:
        _make_parents(above, new_folders)
        draft.mkdir()
        for name, content in files.items():
            with (draft / name).open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        draft.rename(path)
        new_folders.clear()
    except OSError as error:
        raise BadInput(
            f"{path} cannot be written: {reason_of(error)}. Nothing was left under that name"
        ) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
        for folder in reversed(new_folders):
            with suppress(OSError):
                folder.rmdir()  # other files may be in it by now


def _make_parents(folder: Path, new_folders: list[Path]) -> None:
    """Make `folder` and what is missing above it, and note it in `new_folders`."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for part in reversed(missing):
        part.mkdir()
        new_folders.append(part)
