"""What a guarantee rests on stays small: the figures of `tests.laws.measure` that only fall.

Each number is that of the day on which it was last lowered. A smaller one has to be written down
here, so that it doesn't grow again. Lines are rounded up, with some room for lines within the files
that are there.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.laws import measure, trusted_base

#: Lines and files that importing a file brings.
CLOSURES = {
    "training.run": (28_340, 108),
    "publishing.verify": (11_770, 56),
    "mechanisms.release": (5_250, 25),
}
#: Files of each circle of imports, the largest first.
CIRCLES: list[int] = []
CIRCLES_WITH_TYPES: list[int] = []
#: Accesses to private attributes of another module's objects.
PRIVATE_ACCESSES = 10
#: Private files of the package that are no part of what is imported.
ENTRIES = {"__init__.py", "__main__.py"}
#: Rooms in which other libraries' loops take the steps of a run.
DOORS = ("flower/", "huggingface/", "lightning/", "opacus/", "sklearn/")
#: Attributes of a `Run` that hold its inner parts: for the files that train, and for tests.
INNER_PARTS = {"session", "task"}


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


def test_doors_use_no_inner_part_of_a_run() -> None:
    """They are users of `pv.Run`: what they need of it has a public name of its own."""
    reached = [
        f"{file}: {ast.unparse(node)}"
        for file, text in measure.sources().items()
        if file.startswith(DOORS)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Attribute) and node.attr in INNER_PARTS
    ]
    assert not reached, reached


def test_the_page_on_the_trusted_base_lists_what_is_imported() -> None:
    """`python -m tests.laws.trusted_base` writes it. Numbers of lines may be a little behind."""
    numbers = re.compile(r"(?<=\| )[\d,]+(?= \|)|[\d,]+(?= files?\b)|[\d,]+(?= lines)")
    text = trusted_base.PAGE.read_text("utf-8")
    assert numbers.sub("", text) == numbers.sub("", trusted_base.page())
    for old, new in zip(numbers.findall(text), numbers.findall(trusted_base.page()), strict=True):
        assert int(old.replace(",", "")) == pytest.approx(
            int(new.replace(",", "")), rel=0.2, abs=20
        )


def test_the_core_imports_nothing_else() -> None:
    """What a guarantee rests on needs the errors and the package's private files, which need
    nothing else. Imports in functions and for types count.
    """
    allowed = {file for file in measure.sources() if file.startswith("_")} | {"errors.py"}
    core = {file for file in measure.sources() if file.startswith("core/")}
    types = measure.graph(types=True)
    leaving = {
        f"{file} -> {other}"
        for file in core | allowed - ENTRIES
        for other in (types[file] | trusted_base.imported_anywhere(file)) - allowed
        if not (other.startswith("core/") and file in core)
    }
    assert not leaving


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
