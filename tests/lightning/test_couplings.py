"""All models and losses of which `checks_couplings` tries some."""

from __future__ import annotations

from functools import partial

import pytest

from tests.lightning.checks_couplings import by_strategy
from tests.support.couplings import require_apart


@pytest.mark.nightly
@pytest.mark.parametrize("at_once", [False, True])
def test_no_coupling_passes_the_strategy(at_once: bool) -> None:
    require_apart(partial(by_strategy, at_once=at_once), whole=True, at_once=at_once)
