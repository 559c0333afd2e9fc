"""What is wrong with a file, all of it in one error, so that it can be mended in one go."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

from privlearn.errors import BadInput

#: So many are told; of the others how many there are.
_MOST = 10
#: The first line of an error of several.
_TITLE = "several faults:"


@final
class Faults:
    """Collects errors: `with faults.noted(): ...` goes on after a `BadInput`."""

    def __init__(self) -> None:
        self._errors: list[BadInput] = []

    @contextmanager
    def noted(self) -> Iterator[None]:
        """A block that a `BadInput` ends; it is kept."""
        try:
            yield
        except BadInput as error:
            self._errors.append(error)

    def refuse(self) -> None:
        """Raise one `BadInput` of all that was noted, if anything was: a line for each."""
        if not self._errors:
            return
        first, *others = self._errors
        if not others:
            raise first
        faults = [fault for error in self._errors for fault in _faults_of(error)]
        more = [f"and {len(faults) - _MOST} more"] * (len(faults) > _MOST)
        raise BadInput("\n".join([_TITLE, *faults[:_MOST], *more]), **first.data)


def _faults_of(error: BadInput) -> list[str]:
    """The lines of an error that tells of several, or its message."""
    title, *faults = str(error).split("\n")
    return faults if title == _TITLE else [str(error)]
