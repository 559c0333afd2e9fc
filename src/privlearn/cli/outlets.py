"""Standard output and standard error of a command, also where they are closed or have no
reader: what a command did is worth its exit code.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


def require_outlets() -> None:
    """Give a process that was begun without standard output or standard error ones that go
    nowhere.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115


def forget_reader(outlet: Any) -> None:
    """Let what is written from now on go nowhere: it has no reader any
    longer.
    """
    with suppress(OSError, ValueError), Path(os.devnull).open("wb") as nowhere:
        os.dup2(nowhere.fileno(), outlet.fileno())


@contextmanager
def perhaps_unread() -> Iterator[None]:
    """A block that writes on standard output, all of it now; nothing if it has no reader any
    longer.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        forget_reader(sys.stdout)
