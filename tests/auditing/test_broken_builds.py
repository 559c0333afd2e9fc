"""Broken builds exceed their claims: some of the thirty every time, all of them, with the page's
table, at night.
"""

from __future__ import annotations

import json

import pytest

from tests.auditing.broken_builds import (
    AUDITS,
    BUILDS,
    CONFIDENCE,
    MEASURED,
    effort,
    outcomes,
    rows,
)
from tests.conftest import ROOT
from tests.support.checks import every_check

#: By which audit, with how many trials, and what came of it: the trials, or what stopped the build
#: before.
QUICK = {
    "less noise than was charged": ("run", 100, "100"),
    "biases are released without noise": ("step", 400, "400"),
    "a layer is clipped by the first one's norm": ("per layer", 100, "100"),
    "a loader that is billed as Poisson": ("Poisson", 400, "stopped: UnsoundExtension"),
}


def test_there_are_thirty_each_with_a_check_that_catches_it() -> None:
    assert len(BUILDS) == len({build.name for build in BUILDS}) == 30
    assert {build.mutant().caught_by for build in BUILDS} <= set(every_check())
    assert {audit for build in BUILDS for audit in build.audits} == set(AUDITS)
    assert CONFIDENCE == 0.99


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*QUICK])
def test_a_broken_build_is_refuted(name: str) -> None:
    build = next(each for each in BUILDS if each.name == name)
    audit, trials, outcome = QUICK[name]
    assert effort(build, audit, (trials,)) == outcome


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("audit", ["step", "Poisson", "per layer"])
def test_a_sound_build_is_not(audit: str) -> None:
    assert AUDITS[audit](200).ok


def test_the_page_has_the_table_of_all() -> None:
    """From the file of measured outcomes, which is of these builds, audits and checks."""
    measured = json.loads(MEASURED.read_text("utf-8"))
    assert [
        (each["build"], [*each["audits"]], each["check"], each["why"]) for each in measured
    ] == [(build.name, [*build.audits], build.mutant().caught_by, build.why) for build in BUILDS]
    table = [*rows(measured)]
    assert "\n".join(table) in (ROOT / "docs" / "measured" / "audits.md").read_text("utf-8")
    assert all(any(build.name in row for row in table) for build in BUILDS)


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
def test_the_file_has_the_outcomes_of_all() -> None:
    assert outcomes() == json.loads(MEASURED.read_text("utf-8"))
