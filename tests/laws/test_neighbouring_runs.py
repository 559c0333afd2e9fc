"""Every sampler with every clip, option and row, three at a time: neighbouring runs look the same
(`checks_leaks.py`).
"""

from __future__ import annotations

import itertools
import math
import re
from importlib.util import find_spec
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
    if find_spec("flwr") is None:
        releasing = {path for path in releasing if source / "flower" not in path.parents}
    assert releasing == {Path(module.__file__ or "") for module in RELEASING}


def rows_of_clips(pair: int, option: int) -> list[tuple[int, list[str]]]:
    """Which rows are tried with each clip, by its number, for one sampler and one option."""
    clips = len(CLIPS)
    return [(clip, list(ROWS)[(pair + option + clip) % clips :: clips]) for clip in range(clips)]


def test_all_triples_are_tried() -> None:
    """Any three of sampler, option, clip and row meet; all four of them would take three times as
    long.
    """
    cases = [
        (pair, option, clip, row)
        for pair in range(len(PRICED))
        for option in range(len(OPTIONS))
        for clip, rows in rows_of_clips(pair, option)
        for row in rows
    ]
    sizes = [len(each) for each in (PRICED, OPTIONS, CLIPS, ROWS)]
    for three in itertools.combinations(range(4), 3):
        met = {tuple(case[place] for place in three) for case in cases}
        assert len(met) == math.prod(sizes[place] for place in three), three


@pytest.mark.nightly
@pytest.mark.parametrize("pair", range(len(PRICED)), ids=lambda number: str(PRICED[number]))
@pytest.mark.parametrize("option", range(len(OPTIONS)), ids=list(OPTIONS))
def test_neighbouring_runs_look_the_same(pair: int, option: int) -> None:
    sampler, adjacency = PRICED[pair]
    options = list(OPTIONS.values())[option]
    for clip, rows in rows_of_clips(pair, option):
        require_neighbours_alike(settled(sampler, adjacency, CLIPS[clip]), rows, **options)


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
