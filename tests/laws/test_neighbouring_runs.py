"""Every sampler with every clip, option and row: neighbouring runs look the same
(`checks_leaks.py`).
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import privlearn as pv
from privlearn.core import sampling
from privlearn.core.accounting.guarantee import Adjacency
from tests.descent.checks_leaks import (
    CLIPS,
    COMMANDS,
    OPTIONS,
    PRICED,
    ROWS,
    network,
    require_commands_alike,
    require_neighbours_alike,
    settled,
)
from tests.support.transcripts import RELEASING


def test_all_that_releases_is_recorded() -> None:
    """Every file that imports `release` is among those whose releases are recorded and replayed."""
    source = Path(pv.__file__).parent
    imports = re.compile(
        r"^\s*from privlearn\.core\.mechanisms\.release import [^)]*?\brelease\b", re.MULTILINE
    )
    releasing = {path for path in source.rglob("*.py") if imports.search(path.read_text("utf-8"))}
    assert releasing == {Path(module.__file__ or "") for module in RELEASING}


@pytest.mark.nightly
@pytest.mark.parametrize("pair", PRICED, ids=str)
@pytest.mark.parametrize("option", OPTIONS)
def test_neighbouring_runs_look_the_same(
    pair: tuple[sampling.Sampler, Adjacency], option: str
) -> None:
    sampler, adjacency = pair
    for clip in CLIPS:
        require_neighbours_alike(settled(sampler, adjacency, clip), **OPTIONS[option])


@pytest.mark.nightly
@pytest.mark.parametrize("pair", PRICED, ids=str)
def test_neighbouring_runs_with_two_releases_before_look_the_same(
    pair: tuple[sampling.Sampler, Adjacency],
) -> None:
    sampler, adjacency = pair
    before = (pv.transforms.PrivatePCA(4, 3.0), pv.transforms.PrivatePCA(2, 2.0))
    for clip in CLIPS:
        require_neighbours_alike(
            settled(sampler, adjacency, clip, front=before), make=lambda: network(2)
        )


@pytest.mark.nightly
@pytest.mark.parametrize("options", COMMANDS, ids=" ".join)
def test_neighbouring_commands_look_the_same(options: tuple[str, ...]) -> None:
    require_commands_alike(options, [row for row in ROWS if "NaN" not in row and row != "infinite"])
