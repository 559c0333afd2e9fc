"""The figures are still what they were when they were frozen (`freeze.py` says more, and writes
them anew).
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import agreement
import frozen_plans
import numpy as np
import plain
import pytest
from figures import SECTIONS, differences
from freeze import elsewhere, frozen


@pytest.mark.parametrize("section", SECTIONS)
def test_nothing_has_changed(section: str) -> None:
    changes = list(differences(section, frozen(section), SECTIONS[section]("")))
    assert not changes, f"{len(changes)} differences in {section}:\n" + "\n".join(
        [*changes[:20], *elsewhere()]
    )


def test_frozen_events_cost_what_they_did() -> None:
    for name, figures in frozen("plans").items():
        if "event" in figures:
            prices, before = frozen_plans.prices(figures), figures["guarantees"]
            assert agreement.agree(before, prices, agreement.PRICES), (
                f"{name}: {before}, now {prices}"
            )


def test_figures_that_are_off_by_more_than_rounding_are_seen() -> None:
    array = plain.array(np.linspace(-1.0, 1.0, 50))
    figures = {
        "epsilon": 2.0000000001,
        "written": 0.05,
        "text": "costs 1.2345678901234",
        "weights": array,
    }
    assert not list(agreement.differences(figures, deepcopy(figures)))

    def is_seen(**more: Any) -> bool:
        return bool(list(agreement.differences(figures, figures | more)))

    assert is_seen(epsilon=2.0000001)
    assert not is_seen(epsilon=2.0000000002)
    assert is_seen(written=0.05 * (1 + 1e-12))
    assert is_seen(text="costs 1.2345679")
    assert is_seen(text="cost 1.2345678901234")
    assert not is_seen(text="costs 1.2345678901235")
    moved = np.linspace(-1.0, 1.0, 50)
    moved[17] += 1e-4
    assert is_seen(weights=plain.array(moved))
    assert is_seen(weights=plain.array(moved.astype(np.float32)))
    assert not is_seen(weights=plain.array(np.linspace(-1.0, 1.0, 50) * (1 + 1e-8)))
