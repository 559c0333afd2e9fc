"""Files that are whole or not there."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from privlearn.errors import BadInput


def draft_of(path: Path) -> Path:
    """Where the next content of `path` is written before it takes its place: what a killed process left is overwritten."""
    return path.with_name(f".{path.name}.draft")


def write_durably(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Put `content` at `path`, all or nothing: when this returns it is on the disk, and what was there before is replaced.

    One process at a time may write a path.

    Raises:
        BadInput: it could not be written; what was there before is still there.
    """
    draft = draft_of(path)
    try:
        with suppress(FileNotFoundError):
            draft.unlink()
        with os.fdopen(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        _settle(path.absolute().parent)
    except OSError as error:
        with suppress(OSError):
            draft.unlink()
        raise BadInput(
            f"{path} cannot be written: {error.strerror or error}. Free some space, or choose a place that you may write to",
            path=str(path),
        ) from error


def _settle(folder: Path) -> None:
    """See that a renamed file is still renamed after a crash of the system, where folders can be told to."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
