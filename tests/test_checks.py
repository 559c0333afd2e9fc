"""Every named privacy check holds on the code as it is."""

from __future__ import annotations

import pytest

from tests.support.checks import CHECKS, every_check


@pytest.mark.parametrize("name", every_check())
def test_check_holds(name: str) -> None:
    CHECKS[name]()
    assert name.startswith("check_")
