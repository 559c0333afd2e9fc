"""All models and losses of which `checks_couplings` tries some."""

from __future__ import annotations

import pytest

from tests.opacus.checks_couplings import by_script
from tests.support.couplings import require_apart


@pytest.mark.nightly
def test_no_coupling_passes() -> None:
    require_apart(by_script, whole=True, recorded=True)
