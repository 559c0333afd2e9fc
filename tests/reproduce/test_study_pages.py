"""The committed pages of studies say what their generators say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from privlearn_studies.dfs import features, sizes
from privlearn_studies.dfs.grids import GRIDS
from privlearn_studies.dpmac import mnist, usps
from privlearn_studies.findings import Row
from privlearn_studies.pate import mnist as votes
from privlearn_studies.pate import segmentation
from privlearn_studies.pate.vote_runs import VoteSetting
from privlearn_studies.yu import small_tasks

PAGES = Path(__file__).parents[2] / "docs" / "results"


def rows_of(name: str) -> list[Row]:
    """The numbers of a committed page."""
    return [Row(**row) for row in json.loads((PAGES / f"{name}.json").read_text(encoding="utf-8"))["rows"]]


def test_the_page_of_dp_macs_classifier_follows_from_its_numbers() -> None:
    page = (PAGES / "dpmac-mnist.md").read_text(encoding="utf-8")
    for note in mnist.notes_of(rows_of("dpmac-mnist")):
        assert note in page


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("dfs-cifar10", features.COSTS),
        ("dfs-cifar10", features._tries(GRIDS["dfs-cifar10"])),
        ("dfs-cifar10", features.criteria_note(GRIDS["dfs-cifar10"], 10)),
        ("dfs-mnist", features.criteria_note(GRIDS["dfs-mnist"], 3)),
        ("dfs-mnist", features.COSTS),
        ("dfs-mnist", features._tries(GRIDS["dfs-mnist"])),
        ("dfs-width", sizes._about(False, 3, cnns=True)),
        ("dfs-depth", sizes._about(False, 3, cnns=False)),
        ("yu-fig14", small_tasks._ABOUT["cancer"]),
        ("yu-fig15", small_tasks._ABOUT["cifar10"]),
        ("dpmac-usps", usps._about(5)),
        ("pate-mnist", votes._about(VoteSetting(), 3)),
        ("pate-mnist", votes.TRIED),
        ("pate-segmentation", segmentation.TRIED),
    ],
)
def test_pages_say_what_their_generators_say_of_settings(name: str, text: str) -> None:
    assert text in (PAGES / f"{name}.md").read_text(encoding="utf-8")
