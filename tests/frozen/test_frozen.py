"""The figures are still what they were when they were frozen (`freeze.py` says more, and writes them anew)."""

from __future__ import annotations

import pytest
from figures import SECTIONS
from freeze import differences, elsewhere, frozen


@pytest.mark.parametrize("section", SECTIONS)
def test_nothing_has_changed(section: str) -> None:
    if elsewhere():
        pytest.skip("the figures were frozen on another processor or with other libraries, which round otherwise")
    changes = list(differences(frozen(section), SECTIONS[section]("")))
    assert not changes, f"{len(changes)} differences in {section}:\n" + "\n".join([*changes[:20], *elsewhere()])
