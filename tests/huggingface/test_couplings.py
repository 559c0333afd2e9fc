"""All models and losses of which `checks_couplings` tries some."""

from __future__ import annotations

import pytest

from tests.huggingface.checks_couplings import by_trainer
from tests.support.couplings import require_apart


@pytest.mark.nightly
def test_no_coupling_passes_the_trainer() -> None:
    require_apart(by_trainer, whole=True)
