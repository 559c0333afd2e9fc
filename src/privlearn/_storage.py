"""This file writes JSON for good and reads JSON from strangers: it refuses a key that comes twice,
NaN, endless numbers and deep nesting.

Files that are whole or not there.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from privlearn.errors import BadInput

_DEEPEST = 80


def loads(content: bytes) -> Any:
    """The value that `content` spells.

    Raises:
        ValueError: no UTF-8, no JSON, a key that stands there twice, NaN, a whole number of more
            than 20 digits, or nesting of more than 80 levels.
    """
    try:
        data = json.loads(
            content.decode("utf-8"),
            object_pairs_hook=_without_duplicates,
            parse_int=_whole,
            parse_constant=_constant,
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    _require_shallow(data)
    return data


def canonical(value: Any) -> bytes:
    """The one spelling of a JSON value that is hashed and signed: keys in order, no spaces,
    ASCII.
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def digest(value: Any) -> str:
    """SHA-256 of a JSON value, whatever its spelling."""
    return hashlib.sha256(canonical(value)).hexdigest()


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    read = dict(pairs)
    if len(read) != len(pairs):
        raise ValueError("a key stands there twice")
    return read


def _whole(text: str) -> int:
    """Whole numbers as we write them; longer ones would overflow in arithmetic."""
    if len(text) > 20:
        raise ValueError(f"a whole number has {len(text)} digits")
    return int(text)


def _constant(text: str) -> float:
    if text != "Infinity":
        raise ValueError(f"{text} is not a number")
    return float(text)  # the shape of a Poisson number of repetitions


def _require_shallow(data: Any) -> None:
    level = [data]
    for _ in range(_DEEPEST):
        level = [
            inner
            for value in level
            if isinstance(value, dict | list)
            for inner in (value.values() if isinstance(value, dict) else value)
        ]
        if not level:
            return
    raise ValueError(f"it is nested more than {_DEEPEST} deep")


def draft_of(path: Path) -> Path:
    """Where the next content of `path` is written before it replaces it: what a killed process left
    is overwritten.
    """
    return path.with_name(f".{path.name}.draft")


def write_durably(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Put `content` at `path`, all or nothing: when this returns it is on disk, and what was there
    before is replaced.

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
            f"{path} cannot be written: {error.strerror or error}. Free some space, or choose a "
            "place that you may write to",
            path=str(path),
        ) from error


def _settle(folder: Path) -> None:
    """See that a renamed file stays renamed after a crash of the system, where the system can do
    that for folders.
    """
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def cache() -> Path:
    """Where `privlearn data fetch` puts files by default."""
    import pooch  # takes a moment, and most commands do without

    return Path(pooch.os_cache("privlearn"))
