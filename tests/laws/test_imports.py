"""What a guarantee rests on stays small: the figures of `tests.laws.measure` that only fall.

Each number is that of the day on which it was last lowered. A smaller one has to be written down here, so that it
doesn't grow again. Lines are rounded up, with some room for lines within the files that are there.
"""

from __future__ import annotations

import re

import pytest

from tests.laws import measure, trusted_base

#: Lines and files that importing a file brings.
CLOSURES = {
    "training.run": (22_300, 102),
    "publishing.verify": (16_800, 79),
    "mechanisms.release": (4_600, 25),
}
#: Files of each circle of imports, the largest first.
CIRCLES: list[int] = []
CIRCLES_WITH_TYPES: list[int] = [3]
#: Accesses to private attributes of another module's objects.
PRIVATE_ACCESSES = 10


@pytest.mark.parametrize("name", measure.CLOSURES)
def test_closures_only_shrink(name: str) -> None:
    lines, files = measure.closure_size(name)
    most_lines, most_files = CLOSURES[name]
    assert files == most_files
    assert most_lines - 1_000 < lines <= most_lines


@pytest.mark.parametrize("types", [False, True])
def test_circles_of_files_only_vanish(types: bool) -> None:
    groups = measure.circles(measure.graph(types=types))
    assert [len(group) for group in groups] == (CIRCLES_WITH_TYPES if types else CIRCLES), groups


def test_private_attributes_are_read_by_fewer_modules() -> None:
    accesses = [access for file in measure.sources() for access in measure.private_accesses(file)]
    assert len(accesses) == PRIVATE_ACCESSES, accesses


def test_the_page_on_the_trusted_base_lists_what_is_imported() -> None:
    """`python -m tests.laws.trusted_base` writes it. Numbers of lines may be a little behind."""
    numbers = re.compile(r"(?<=\| )[\d,]+(?= \|)|[\d,]+(?= files?\b)|[\d,]+(?= lines)")
    text = trusted_base.PAGE.read_text("utf-8")
    assert numbers.sub("", text) == numbers.sub("", trusted_base.page())
    for old, new in zip(numbers.findall(text), numbers.findall(trusted_base.page()), strict=True):
        assert int(old.replace(",", "")) == pytest.approx(int(new.replace(",", "")), rel=0.2, abs=20)
