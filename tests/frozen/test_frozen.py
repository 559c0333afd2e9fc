"""The figures are still what they were when they were frozen (`freeze.py` says more, and writes them anew)."""

from __future__ import annotations

import pytest
from figures import SECTIONS
from freeze import differences, elsewhere, frozen

#: Noise that was searched for differs by 1e-10 in some orders of the tests; why is not known.
ROUNDING = 1e-8


@pytest.mark.parametrize("section", SECTIONS)
def test_nothing_has_changed(section: str) -> None:
    if elsewhere():
        pytest.skip("the figures were frozen on another processor or with other libraries, which round otherwise")
    changes = list(differences(frozen(section), SECTIONS[section](""), rounding=ROUNDING))
    assert not changes, f"{len(changes)} differences in {section}:\n" + "\n".join([*changes[:20], *elsewhere()])


def test_only_the_rounding_of_fractions_is_passed_over() -> None:
    old = {"noise": 2.2710605095, "text": "constant:start=5.4340307993", "steps": 100, "digest": "12e34",
           "epsilon": ["pld 0x1.ffa78168b205cp+0"]}  # fmt: skip
    assert not list(
        differences(old, old | {"noise": 2.2710605096, "text": "constant:start=5.4340307990"}, "", ROUNDING)
    )
    for changed in ({"noise": 2.2710606}, {"text": "constant:start=5.4340309"}, {"steps": 101}, {"digest": "12e35"},
                    {"noise": None}, {"text": "exp:start=5.4340307993"}, {"more": 1.5},
                    {"epsilon": ["pld 0x1.ffa80p+0"]}):  # fmt: skip
        assert list(differences(old, old | changed, "", ROUNDING)), changed
