"""The registry of named checks: `check_...` functions in every room's `checks*.py`, entered when
these are imported.

Every check raises (an AssertionError or an error of privlearn's) if its property does not hold. All
are seeded. Tests run them on the code as it is; planted bugs must make them fail.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

from privlearn.core.clipping.gradients import ClippedGradients

TESTS = Path(__file__).parents[1]
CHECKS: dict[str, Callable[[], None]] = {}


def check(function: Callable[[], None]) -> Callable[[], None]:
    """Enter a check by its name, which no other has."""
    name = function.__name__
    assert name.startswith("check_"), name
    assert name not in CHECKS or CHECKS[name].__module__ == function.__module__, (
        f"two checks are called {name}"
    )
    CHECKS[name] = function
    return function


def compared_or_not(function: Callable[[], None]) -> Callable[[], None]:
    """A check that also holds where no example of the data is compared with autograd: by what comes
    before that.
    """

    @wraps(function)
    def both() -> None:
        function()
        with mock.patch.object(ClippedGradients, "_require_rules"):
            function()

    return both


def must_raise(kind: type[Exception], action: Callable[[], Any]) -> Exception:
    """The error of this kind that `action` raises."""
    try:
        action()
    except kind as error:
        return error
    raise AssertionError(f"expected {kind.__name__}")


@cache
def every_check() -> dict[str, Callable[[], None]]:
    """All checks of all rooms, by name."""
    for path in sorted(TESTS.glob("*/checks*.py")):
        import_module(".".join(("tests", path.parent.name, path.stem)))
    return CHECKS
