"""The committed pages of studies say what their generators say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from privlearn_studies import registry
from privlearn_studies.fay2020 import votes
from privlearn_studies.harder2020 import mnist, usps
from privlearn_studies.report import (
    Row,
    blocks,
    digest,
    number,
    page,
    read_rows,
    table,
    wrap,
    write_json,
    write_page,
)
from privlearn_studies.shen2021 import features, sizes
from privlearn_studies.shen2021.grids import GRIDS

PAGES = Path(__file__).parents[2] / "docs" / "results"
NAMES = [study.name for study in registry.STUDIES]


#: Figures with three decimals or more, as the text of a page has them.
_FIGURE = re.compile(r"(?<![\d.,-])\d+\.\d{3,}(?!\d)")


def text_of(name: str, ending: str = "md") -> str:
    """A committed page, or the JSON beside it."""
    return (PAGES / f"{name}.{ending}").read_text(encoding="utf-8")


def notes_of(name: str) -> str:
    """The committed notes of a study, with their tables, as Markdown on one line."""
    notes = json.loads(text_of(name, "json"))["notes"]
    return flat(
        "\n\n".join(
            each if isinstance(each, str) else table(each["heads"], each["lines"]) for each in notes
        )
    )


def test_every_study_has_its_page_and_picture_and_nothing_else() -> None:
    """The runs that the command keeps beside them are not here."""
    assert {path.name for path in PAGES.iterdir()} == {
        "README.md",
        *(f"{n}.{end}" for n in NAMES for end in ("json", "md", "png")),
    }


def flat(text: str) -> str:
    """`text` without its line breaks."""
    return " ".join(text.split())


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_written_by_a_program(name: str) -> None:
    """Nobody edits it, nor the JSON that it is made from."""
    text, study = text_of(name, "json"), registry.find(name)
    saved = json.loads(text)
    assert (saved["name"], saved["source"], saved["what"], saved["quick"]) == (
        name,
        study.source,
        study.what,
        False,
    )
    assert read_rows(text)
    assert text == write_json(saved)
    assert text_of(name) == write_page(saved)


@pytest.mark.parametrize("name", NAMES)
def test_the_figures_in_the_text_of_a_page_are_in_its_json(name: str) -> None:
    text = text_of(name)
    prose = " ".join(line for line in text.splitlines() if not line.startswith(("|", "![")))
    rows = read_rows(text_of(name, "json"))
    values = [
        value for row in rows for value in (row.ours, row.paper, row.ours_std) if value is not None
    ]
    notes = notes_of(name)
    for figure in _FIGURE.findall(prose):
        digits = len(figure.partition(".")[2])
        rounded = any(abs(abs(value) - float(figure)) <= 0.500001 * 10**-digits for value in values)
        assert rounded or figure in notes, f"{name}: {figure}"


@pytest.mark.parametrize("name", NAMES)
def test_a_page_is_short_and_shows_about_ten_rows(name: str) -> None:
    lines = text_of(name).splitlines()
    assert len([line for line in lines if line.startswith("|")]) <= 16
    assert len(" ".join(line for line in lines if not line.startswith("|")).split()) <= 400


def test_what_was_found_is_said_of_the_rows_that_it_was_found_in_and_of_no_others() -> None:
    saved = json.loads(text_of("best", "json"))
    said = "**behind the best published**"
    assert said in write_page(saved)
    rows = saved["rows"]
    finer = [rows[0] | {"ours": rows[0]["ours"] + 1e-9}, *rows[1:]]
    assert said in write_page(saved | {"rows": finer})
    other = [rows[0] | {"ours": rows[0]["ours"] + 1e-5}, *rows[1:]]
    for without in ({"rows": other}, {"rows": rows[:-1]}, {"name": "made-up"}, {"quick": True}):
        changed = saved | without
        text = flat(write_page(changed))
        assert said not in text
        assert saved["notes"][0] in text
        assert ("*A quick run" in text) == changed["quick"]
        assert f"| {rows[9]['label']} | {rows[9]['metric']} |" in text
        assert f"All {len(changed['rows'])} rows" in text


@pytest.mark.parametrize("name", NAMES)
def test_every_line_that_the_text_of_a_page_names_is_on_the_page(name: str) -> None:
    text = (
        PAGES.parents[1]
        .joinpath("src", "privlearn_studies", "pages", f"{name}.md")
        .read_text(encoding="utf-8")
    )
    assert (
        text.splitlines()[0] == f"<!-- of the rows {digest(read_rows(text_of(name, 'json')))} -->"
    )
    chosen = [block for block in blocks(text) if not isinstance(block, str)]
    written = [block for block in blocks(text_of(name)) if not isinstance(block, str)]
    assert chosen
    assert [each["heads"] for each in chosen] == [each["heads"] for each in written]
    for named, filled in zip(chosen, written, strict=True):
        assert len(named["lines"]) == len(filled["lines"])
        for cells, line in zip(named["lines"], filled["lines"], strict=True):
            assert all(cell in ("", other) for cell, other in zip(cells, line, strict=True))


def test_lines_that_a_study_does_not_have_are_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    saved = json.loads(text_of("pate-mnist", "json"))
    place = tmp_path / "pages" / "pate-mnist.md"
    place.parent.mkdir()
    monkeypatch.setattr("privlearn_studies.report.files", lambda package: tmp_path)
    head = f"<!-- of the rows {digest(read_rows(text_of('pate-mnist', 'json')))} -->\n\n"
    line, choice = (
        "| 400 | 0.9030 ± 0.0096 |",
        head + "Found.\n\n| queries | no spreading |\n| --- | --- |\n| 400 | |\n",
    )
    place.write_text(choice, encoding="utf-8")
    assert line in write_page(saved)
    place.write_text(choice + "| 401 | |\n", encoding="utf-8")
    assert line in write_page(saved)
    for wrong in (
        ("400 |", "401 |"),
        ("no spreading", "no such column"),
        ("| 400 | |", "| 400 | 0.95 |"),
    ):
        place.write_text(choice.replace(*wrong), encoding="utf-8")
        assert "| queries |" not in write_page(saved)


def test_blocks_keep_every_word_of_a_text() -> None:
    text = (
        "One\nline.\n\n- an item\n  of two lines\n- another\n\n| a | b |\n| --- | ---: |\n| c | 1 |"
    )
    assert list(blocks(text)) == [
        "One line.",
        "- an item of two lines",
        "- another",
        {"heads": ["a", "b"], "lines": [["c", "1"]]},
    ]


def test_the_notes_of_dp_macs_classifier_follow_from_its_numbers() -> None:
    """From all their digits, which the committed JSON does not have."""
    rows = [
        Row(*row)
        for row in json.loads(
            (PAGES.parents[1] / "tests" / "studies" / "dpmac-mnist.json").read_text()
        )
    ]
    assert flat(mnist.notes_of(rows)) in notes_of("dpmac-mnist")
    shorter = [
        (row.label, row.metric, number(row.ours), number(row.ours_std), row.seeds) for row in rows
    ]
    committed = read_rows(text_of("dpmac-mnist", "json"))
    assert shorter == [
        (r.label, r.metric, number(r.ours), number(r.ours_std), r.seeds) for r in committed
    ]


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
        ("dpmac-usps", usps.about(10)),
        ("pate-mnist", votes.about(votes.train.at(), 3)),
        ("pate-mnist", page("pate-mnist-tried")),
        ("pate-segmentation", page("pate-segmentation-tried")),
    ],
)
def test_notes_say_what_their_generators_say_of_settings(name: str, text: str) -> None:
    assert flat(text) in notes_of(name)


def test_tables_and_lists_in_a_text_of_notes_stay_tables_and_lists() -> None:
    notes, ceiling = (
        json.loads(text_of("best", "json"))["notes"],
        list(blocks(page("best-parts:ceiling"))),
    )
    start = notes.index(ceiling[0])
    assert notes[start : start + len(ceiling)] == ceiling
    assert len([block for block in ceiling if not isinstance(block, str)]) == 4


def test_places_are_filled_and_empty_paragraphs_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "made.md").write_text(
        "One {x:.1f}\nline.\n\n{table}\n\n{no}\n", encoding="utf-8"
    )
    monkeypatch.setattr("privlearn_studies.report.files", lambda package: tmp_path)
    assert page("made", x=0.25, table="| a |\n| b |", no="") == "One 0.2 line.\n\n| a |\n| b |"
    for study in PAGES.parents[1].joinpath("src", "privlearn_studies", "notes").glob("*.md"):
        lines = study.read_text(encoding="utf-8").splitlines()
        assert not [line for line in lines if len(line) > 120 or re.search(r"\s$", line)], (
            study.name
        )


def test_lines_are_wrapped_but_for_tables_headings_pictures_and_code() -> None:
    words = "word " * 40
    kept = [f"| {words}|", f"# {words}", f"![{words}](a.png)", "```", words, "```", "short"]
    assert wrap("\n".join(kept)) == "\n".join(kept)
    item = wrap(f"- {words}").split("\n")
    assert [len(item[0]) <= 120, item[1][:7]] == [True, "  word "]
    assert flat(wrap(words)) == flat(words)
