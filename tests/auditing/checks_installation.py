"""Named checks: `privlearn selfcheck` passes on what is sound. Planted bugs must make its parts
fail.
"""

from __future__ import annotations

from collections.abc import Callable

from privlearn.auditing.installation import _CHECKS, selfcheck
from tests.support.checks import check


@check
def check_this_installation_is_sound() -> None:
    outcomes = list(selfcheck())
    assert all(outcome.ok for outcome in outcomes), [
        outcome for outcome in outcomes if not outcome.ok
    ]
    assert len(outcomes) == len(_CHECKS) >= 10


def part(name: str) -> Callable[[], None]:
    """One part of it, as a check of its own."""

    def run() -> None:
        (own,) = (each for each in _CHECKS if each.__name__ == f"_{name}")
        assert own()

    run.__name__ = f"check_of_an_installation_that_{name}"
    return check(run)


PARTS = [part(own.__name__.lstrip("_")) for own in _CHECKS]
