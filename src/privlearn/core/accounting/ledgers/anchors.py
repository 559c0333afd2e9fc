"""An anchor keeps a ledger's head elsewhere, so that an older copy of the ledger is recognised."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Protocol, final

from privlearn.errors import BadInput

_COMMAND = "command:"
_PATIENCE = 60.0  # seconds that a command may take
_DIGITS = 64


class Anchor(Protocol):
    """Where the head of a ledger is kept."""

    def heads(self) -> dict[str, tuple[int, str]]:
        """Number and digest of the last row that was kept for each data set."""

    def keep(self, data: str, number: int, digest: str) -> None:
        """Keep the last row of a data set: its number and its digest.

        Raises:
            BadInput: it can't be kept.
        """


def anchor_at(text: str | Path) -> Anchor:
    """The anchor that a text names: a file, or `command:` and what to run."""
    if isinstance(text, str) and text.startswith(_COMMAND):
        return CommandAnchor(text.removeprefix(_COMMAND))
    return FileAnchor(Path(text))


@final
class FileAnchor:
    """Heads in a file, one line after each change: number, digest, data set.

    Args:
        path: the file, best on another machine or on a medium that takes additions alone.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def heads(self) -> dict[str, tuple[int, str]]:
        """The heads in the file."""
        try:
            lines = self.path.read_text("utf-8") if self.path.exists() else ""
        except (OSError, ValueError) as error:
            raise BadInput(f"the anchor {self.path} cannot be read: {error}") from error
        return _read_heads(lines, str(self.path))

    def keep(self, data: str, number: int, digest: str) -> None:
        """Append a line."""
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(_line(data, number, digest))
        except OSError as error:
            raise _explain_lost_head(str(self.path), str(error)) from error


@final
class CommandAnchor:
    """Heads that a command keeps. It gets the new line as its input. Without input it prints the
    lines that it has, or at least the last of each data set.

    Args:
        command: the program and its arguments; no shell is run.
    """

    def __init__(self, command: str) -> None:
        self.command = command

    def heads(self) -> dict[str, tuple[int, str]]:
        """The heads that the command prints."""
        return _read_heads(self._run(""), self.command)

    def keep(self, data: str, number: int, digest: str) -> None:
        """Give the command a line."""
        try:
            self._run(_line(data, number, digest))
        except BadInput as error:
            raise _explain_lost_head(self.command, str(error)) from error

    def _run(self, line: str) -> str:
        try:
            done = subprocess.run(
                shlex.split(self.command),
                input=line,
                capture_output=True,
                text=True,
                timeout=_PATIENCE,
                check=True,
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            raise BadInput(
                f"the anchor {self.command[:80]!r} failed: {str(error)[:150]}. Expected a command "
                "that keeps the line it gets, and prints what it keeps if it gets none"
            ) from error
        return done.stdout


def _line(data: str, number: int, digest: str) -> str:
    return f"{number} {digest} {data}\n"


def _read_heads(lines: str, where: str) -> dict[str, tuple[int, str]]:
    """The latest row of each data set: two processes may have kept theirs in another order."""
    heads: dict[str, tuple[int, str]] = {}
    for line in filter(str.strip, lines.splitlines()):
        number, _, rest = line.partition(" ")
        digest, _, name = rest.partition(" ")
        if not number.isdigit() or len(digest) != _DIGITS:
            raise BadInput(
                f"the anchor {where[:80]!r} has the line {line[:60]!r}: expected a number, a "
                "digest and the name of a data set"
            )
        if name not in heads or int(number) > heads[name][0]:
            heads[name] = int(number), digest
    return heads


def _explain_lost_head(where: str, why: str) -> BadInput:
    return BadInput(
        f"the ledger's new head cannot be kept at the anchor {where[:80]}: {why[:120]}. The charge "
        "is in the ledger, and nothing was drawn for it. Mend the anchor, or leave it out"
    )
