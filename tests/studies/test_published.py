"""What others have published, and that the pages say of it what the table holds."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from privlearn_studies.others import PUBLISHED, best_known, compared, more_is_claimed
from privlearn_studies.report import blocks, read_rows

ROOT = Path(__file__).parents[2]
_NAMES = {
    "MNIST": "mnist",
    "Fashion-MNIST": "fashion-mnist",
    "CIFAR-10, no public data": "cifar10",
    "Adult": "adult",
}


def reached(data: str, epsilon: float) -> float:
    """Our test accuracy with default settings, as docs/results/best.json has it."""
    rows = read_rows((ROOT / "docs" / "results" / "best.json").read_text(encoding="utf-8"))
    place = (f"{data}, epsilon {epsilon:g}, defaults", "test accuracy")
    (ours,) = [row.ours for row in rows if (row.label, row.metric) == place]
    return ours


@pytest.mark.parametrize(
    ("epsilon", "accuracy", "whose"),
    [(1, 0.723, "Tang"), (3, 0.723, "Tang"), (4, 0.735, "De et al."), (8, 0.825, "Klause")],
)
def test_the_best_known_on_cifar10_is_not_ours(epsilon: float, accuracy: float, whose: str) -> None:
    found = best_known("cifar10", epsilon)
    assert found is not None
    assert (found.accuracy, found.epsilon <= epsilon) == (accuracy, True)
    assert found.whose.startswith(whose)
    assert found.accuracy > reached("cifar10", epsilon) or more_is_claimed("cifar10", epsilon)


def test_the_page_says_where_we_are_behind() -> None:
    folder = ROOT / "docs" / "results"
    page = " ".join((folder / "best.md").read_text(encoding="utf-8").split())
    assert "cifar10 at epsilon 1, 8; cifar10-features at epsilon 1, 2, 3, 4, 8" in page
    data = dict.fromkeys(each.data for each in PUBLISHED)
    ours = {
        (name, epsilon): reached(name, epsilon) for name in data for epsilon in (0.5, 1, 2, 3, 4, 8)
    }
    said = list(blocks(compared(ours)))
    notes = json.loads((folder / "best.json").read_text(encoding="utf-8"))["notes"]
    start = notes.index(said[0])
    assert notes[start : start + len(said)] == said
    (behind,) = (
        each for each in said if isinstance(each, str) and each.startswith("**Where ours is below")
    )
    assert behind in page


def test_the_readme_has_the_figures_of_the_study() -> None:
    """Ours and the best published, at each epsilon; the best that is above ours stands out."""
    text = (ROOT / "README.md").read_text()
    head, *lines = re.search(r"\| \| epsilon 0\.5 .*?\n\n", text, re.DOTALL)[0].strip().splitlines()  # type: ignore[index]
    epsilons = [float(cell.replace("epsilon", "")) for cell in head.strip("| ").split("|")]
    tables = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]
    data, checked = "", 0
    for name, *cells in tables:
        data = _NAMES.get(name, data)
        for epsilon, cell in zip(epsilons, cells, strict=True):
            ours, known = reached(data, epsilon), best_known(data, epsilon)
            checked += 1
            if name in _NAMES:
                assert cell == f"{ours:.3f}"
            elif known is None:
                assert cell == ""
            else:
                figure = re.match(r"(at least )?(\**)([\d.]+)\2( \([\d.]+ at [\d.]+\))?$", cell)
                assert figure, cell
                assert abs(float(figure[3]) - known.accuracy) <= 0.0005
                assert bool(figure[2]) == (known.accuracy > ours)
                assert bool(figure[1]) == (
                    more_is_claimed(data, epsilon) and known.accuracy <= ours
                )
    assert checked == 32


@pytest.mark.parametrize(
    ("page", "data"), [("docs/settings.md", ("mnist", "fashion-mnist", "cifar10"))]
)
def test_the_pages_have_the_figures_of_the_study(page: str, data: tuple[str, ...]) -> None:
    text = " ".join((ROOT / page).read_text().split())
    for name in data:
        figures = [f"{reached(name, epsilon):.4f}" for epsilon in (0.5, 1, 2, 3, 4, 8)]
        assert ", ".join(figures[:-1]) + " and " + figures[-1] in text, name


def test_the_pages_agree_on_what_was_looked_at() -> None:
    """One account, in docs/settings.md, and no other page denies it."""
    pages = {
        page.name: " ".join(page.read_text().split()) for page in (ROOT / "docs").rglob("*.md")
    }
    account = pages["settings.md"].split("## What was looked at")[1].split(" ## ")[0]
    for said in (
        "Test figures were seen in between",
        (
            "Of **Adult**, breast cancer and Wisconsin, rules for [tables](#tables) were chosen on "
            "training rows held back"
        ),
        "least squares",
        "No default was chosen on **USPS**",
    ):
        assert said in account
    assert "(docs/settings.md, What was looked at)" in pages["best.md"]
    for text in pages.values():
        assert "not looked at for any choice" not in text
        assert "nothing was chosen on" not in text
