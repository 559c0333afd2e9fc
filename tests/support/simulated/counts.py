"""What was asked of the simulated device: launches of kernels, waits of the host, and bytes that
were copied, by line of the source.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import torch

#: The file of a line is in this folder, if any line of the stack is.
SOURCE = "/privlearn/"
_TORCH = str(Path(torch.__file__).parent)
_HERE = str(Path(__file__).parent)


class Counts:
    """What was asked of the device while these were counted.

    Attributes:
        launches: kernels that were launched.
        waits: times that the host waited for the device.
        to_device: bytes that were copied from the host to the device.
        to_host: bytes that were copied from the device to the host.
        operations: launches by the name of the operation.
        lines: waits and bytes by (what was asked, line of the source).
    """

    def __init__(self) -> None:
        self.launches = 0
        self.waits = 0
        self.to_device = 0
        self.to_host = 0
        self.operations = Counter[str]()
        self.lines = Counter[tuple[str, str]]()

    @property
    def copied(self) -> int:
        """Bytes that were copied, in both directions."""
        return self.to_device + self.to_host

    def waits_at(self, *files: str) -> int:
        """Waits at lines of files whose paths contain one of `files`."""
        return self._at("waits: ", files)

    def bytes_at(self, *files: str) -> int:
        """Bytes that were copied at lines of files whose paths contain one of `files`."""
        return self._at("bytes ", files)

    def _at(self, kind: str, files: tuple[str, ...]) -> int:
        return sum(
            number
            for (asked, line), number in self.lines.items()
            if asked.startswith(kind) and any(file in line for file in files)
        )

    def __str__(self) -> str:
        total = (
            f"{self.launches} launches, {self.waits} waits, {self.to_device} bytes to the device, "
            f"{self.to_host} bytes to the host"
        )
        lines = [
            f"  {number:8d} {asked:32s} {line}"
            for (asked, line), number in self.lines.most_common()
        ]
        return "\n".join([total, *lines])


_active: list[Counts] = []


def begin(counts: Counts) -> None:
    """Count from here on, until `end`."""
    _active.append(counts)


def end(counts: Counts) -> None:
    """Stop counting."""
    _active.remove(counts)


@contextmanager
def counting() -> Iterator[Counts]:
    """Count what the block asks of the device."""
    counts = Counts()
    begin(counts)
    try:
        yield counts
    finally:
        end(counts)


def note_launch(operation: str) -> None:
    """A kernel is launched."""
    for counts in _active:
        counts.launches += 1
        counts.operations[operation] += 1


def note_wait(reason: str) -> None:
    """The host waits for the device."""
    line = _line() if _active else ""
    for counts in _active:
        counts.waits += 1
        counts.lines[f"waits: {reason}", line] += 1


def note_bytes(number: int, *, to_device: bool) -> None:
    """Bytes are copied between the host and the device."""
    line = _line() if _active else ""
    for counts in _active:
        if to_device:
            counts.to_device += number
            counts.lines["bytes to the device", line] += number
        else:
            counts.to_host += number
            counts.lines["bytes to the host", line] += number


def _line() -> str:
    """The innermost line of the package; else the innermost that is neither PyTorch's nor of the
    simulated device.
    """
    frame: FrameType | None = sys._getframe(1)
    other = ""
    while frame is not None:
        file = frame.f_code.co_filename
        line = f"{file.rpartition('/src/')[2]}:{frame.f_lineno}"
        if SOURCE in file and "/tests/" not in file:
            return line
        is_other = not file.startswith((_TORCH, _HERE, "<")) and "contextlib" not in file
        if is_other and not other:
            other = line
        frame = frame.f_back
    return other or "a thread of autograd"
