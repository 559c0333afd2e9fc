"""All models and losses of which `checks_couplings` tries some."""

from __future__ import annotations

import pytest

from tests.loop.checks_couplings import by_dpsgd, by_make_private
from tests.support.couplings import Door, require_apart


@pytest.mark.nightly
@pytest.mark.parametrize("door", [by_make_private, by_dpsgd])
def test_no_coupling_passes(door: Door) -> None:
    require_apart(door, whole=True)
