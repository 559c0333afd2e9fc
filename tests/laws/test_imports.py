"""What a guarantee rests on stays small: the figures of `tests.laws.measure` that only fall.

Each number is that of the day on which it was last lowered. A smaller one has to be written down
here, so that it doesn't grow again. Lines are rounded up, with some room for lines within the files
that are there.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.laws import measure, trusted_base

#: Lines and files that importing a file brings.
CLOSURES = {
    "training.run": (26_700, 107),
    "publishing.verify": (11_750, 56),
    "mechanisms.release": (5_300, 25),
}
#: Files of each circle of imports, the largest first.
CIRCLES: list[int] = []
CIRCLES_WITH_TYPES: list[int] = []
#: Accesses to private attributes of another module's objects.
PRIVATE_ACCESSES = 10
#: What a guarantee rests on, the future package `core`: folders and files.
CORE = ("accounting/", "clipping/", "mechanisms/", "sampling/")
CORE_FILES = {
    "errors.py",
    "inclusion.py",
    "plan.py",
    "precision.py",
    "samples.py",
    "schedules.py",
    "solving.py",
    "streams.py",
    "temperature.py",
}
#: Files in these folders that are a method's.
NOT_CORE = {"clipping/derivative_bounds.py"}
#: Imports by which the core still needs what is outside of it.
LEAVING: set[str] = {
    "clipping/agreement.py -> models/check.py",
    "clipping/backends.py -> models/check.py",
    "clipping/evaluation.py -> data/rows.py",
    "clipping/evaluation.py -> models/check.py",
    "clipping/evaluation.py -> models/trained_state.py",
    "clipping/gradients.py -> data/rows.py",
    "clipping/gradients.py -> models/check.py",
    "clipping/gradients.py -> models/fsdp.py",
    "clipping/gradients.py -> world.py",
    "clipping/losses.py -> data/rows.py",
    "clipping/parameters/frozen.py -> models/trained_state.py",
    "clipping/per_example.py -> data/rows.py",
    "clipping/sharded/gradients_in_rounds.py -> data/rows.py",
    "clipping/sharded/gradients_in_rounds.py -> models/check.py",
    "clipping/sharded/gradients_in_rounds.py -> world.py",
    "clipping/sharded/groups.py -> world.py",
    "plan.py -> clipping/derivative_bounds.py",
    "plan.py -> run_facts.py",
    "plan.py -> transforms/base.py",
}


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
        assert int(old.replace(",", "")) == pytest.approx(
            int(new.replace(",", "")), rel=0.2, abs=20
        )


def core() -> set[str]:
    """The files of the core, with the private ones that they import; lazy packages are no part of
    it.
    """
    files = {file for file in measure.sources() if file.startswith(CORE)} | CORE_FILES
    while (
        private := {
            file for core in files for file in measure.graph()[core] if file.startswith("_")
        }
        - files
    ):
        files |= private
    return files - NOT_CORE


def test_the_core_imports_nothing_else() -> None:
    files = core()
    leaving = {f"{file} -> {other}" for file in files for other in measure.graph()[file] - files}
    assert leaving == LEAVING


@pytest.mark.parametrize("name", ["mechanisms.release", "publishing.verify"])
def test_a_closure_is_what_an_import_brings(name: str) -> None:
    """A new process that imports a file has the files of its closure, and no more than the packages
    around them.
    """
    files = measure.closure(measure.entry(name))
    module = "privlearn." + measure.entry(name).removesuffix(".py").replace("/", ".")
    script = (
        f"import sys, {module}; print(*(name for name in sys.modules if "
        "name.startswith('privlearn')))"
    )
    printed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout
    imported = {measure.file_of(module) for module in printed.split()}
    packages = {
        f"{parent.as_posix()}/__init__.py" for file in files for parent in Path(file).parents
    }
    assert files <= imported <= files | packages | {"__init__.py"}
