"""The committed pages of studies say what their generators say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from privlearn_studies import registry
from privlearn_studies.fay2020 import votes
from privlearn_studies.harder2020 import mnist, usps
from privlearn_studies.report import Findings, Row, _markdown, number, page, read_rows, wrap
from privlearn_studies.shen2021 import features, sizes
from privlearn_studies.shen2021.grids import GRIDS

PAGES = Path(__file__).parents[2] / "docs" / "results"
NAMES = [study.name for study in registry.STUDIES]


def text_of(name: str) -> str:
    """A committed page."""
    return (PAGES / f"{name}.md").read_text(encoding="utf-8")


def test_every_study_has_its_page_and_picture_and_nothing_else() -> None:
    """What the command writes beside them, numbers as JSON and runs, is not kept here."""
    assert {path.name for path in PAGES.iterdir()} == {
        "README.md",
        *(f"{n}.{end}" for n in NAMES for end in ("md", "png")),
    }


def flat(text: str) -> str:
    """`text` without its line breaks."""
    return " ".join(text.split())


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_written_by_a_program(name: str) -> None:
    """Nobody edits its numbers: read back, they are written as they stand there."""
    text, study = text_of(name), registry.find(name)
    assert text.startswith(f"# {study.source}: {study.what}\n\n")
    rows = tuple(read_rows(text))
    assert rows
    written = _markdown(study, Findings(rows, None, ""), False)  # type: ignore[arg-type]
    assert text.split("## All numbers")[1] == written.split("## All numbers")[1]


def test_the_page_of_dp_macs_classifier_follows_from_its_numbers() -> None:
    """From all their digits, which a page does not have."""
    rows = [Row(*row) for row in json.loads((PAGES.parents[1] / "tests" / "studies" / "dpmac-mnist.json").read_text())]
    text = text_of("dpmac-mnist")
    assert flat(mnist.notes_of(rows)) in flat(text)
    shorter = [(row.label, row.metric, number(row.ours), number(row.ours_std), row.seeds) for row in rows]
    assert shorter == [(r.label, r.metric, number(r.ours), number(r.ours_std), r.seeds) for r in read_rows(text)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("best", page("best-parts:ceiling")),
        ("dpmac-thresholds", page("dpmac-thresholds-parts:read")),
        ("small-data", page("small-data-parts:read")),
        ("dfs-cifar10", page("dfs-features-parts:costs")),
        ("dfs-cifar10", features.tries(GRIDS["dfs-cifar10"])),
        ("dfs-cifar10", features.criteria_note(GRIDS["dfs-cifar10"], 10)),
        ("dfs-mnist", features.criteria_note(GRIDS["dfs-mnist"], 3)),
        ("dfs-mnist", page("dfs-features-parts:costs")),
        ("dfs-mnist", features.tries(GRIDS["dfs-mnist"])),
        ("dfs-width", sizes.about(False, 3, cnns=True)),
        ("dfs-depth", sizes.about(False, 3, cnns=False)),
        ("yu-fig14", page("yu-tasks-about:cancer")),
        ("yu-fig15", page("yu-tasks-about:cifar10")),
        ("dpmac-usps", usps.about(5)),
        ("pate-mnist", votes.about(votes.train.at(), 3)),
        ("pate-mnist", page("pate-mnist-tried")),
        ("pate-segmentation", page("pate-segmentation-tried")),
    ],
)
def test_pages_say_what_their_generators_say_of_settings(name: str, text: str) -> None:
    assert flat(text) in flat(text_of(name))


def test_places_are_filled_and_empty_paragraphs_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "made.md").write_text("One {x:.1f}\nline.\n\n{table}\n\n{no}\n", encoding="utf-8")
    monkeypatch.setattr("privlearn_studies.report.files", lambda package: tmp_path)
    assert page("made", x=0.25, table="| a |\n| b |", no="") == "One 0.2 line.\n\n| a |\n| b |"
    for study in PAGES.parents[1].joinpath("src", "privlearn_studies", "notes").glob("*.md"):
        lines = study.read_text(encoding="utf-8").splitlines()
        assert not [line for line in lines if len(line) > 120 or re.search(r"\s$", line)], study.name


def test_lines_are_wrapped_but_for_tables_headings_pictures_and_code() -> None:
    words = "word " * 40
    kept = [f"| {words}|", f"# {words}", f"![{words}](a.png)", "```", words, "```", "short"]
    assert wrap("\n".join(kept)) == "\n".join(kept)
    item = wrap(f"- {words}").split("\n")
    assert [len(item[0]) <= 120, item[1][:7]] == [True, "  word "]
    assert flat(wrap(words)) == flat(words)
