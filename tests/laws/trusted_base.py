"""Writes docs/trusted-base.md, the files that a guarantee rests on:
`python -m tests.laws.trusted_base`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module

from privlearn import _public
from tests.laws import measure

PAGE = measure.ROOT / "docs" / "trusted-base.md"
_HEAD = """# What a guarantee rests on

An auditor reads these files first: a mistake in one of them can make an epsilon wrong. The lists
follow from imports, so no file is left out by oversight. A script writes the page, and a test
compares it with the code.

- **Releases**: what `release` imports. A release checks the sensitivity, charges the account and
  adds the noise. Private choices are drawn in `core/mechanisms/selection.py`.
- **Training runs**: what `pv.dpsgd` imports beyond that: plans, samplers, clipping, and the check
  that keeps examples apart.
- **Verification**: what `privlearn verify` imports beyond both. It needs neither data nor torch.
- **Read when needed**: files that the three import inside a function, for one kind of plan, model
  or data; and the files of the kinds of plans, which are imported when a certificate names one.

Other methods, integrations, audits and the command line are not listed. Methods draw their noise
by `release`, and integrations drive a run. The last column is the first sentence of each file.
"""
#: The sections, each with what is imported for it.
_SECTIONS = {
    "Releases": "mechanisms.release",
    "Training runs": "training.run",
    "Verification": "publishing.verify",
}


def sections() -> dict[str, list[str]]:
    """The files of each section of the page."""
    listed: set[str] = set()
    files = {}
    for title, name in _SECTIONS.items():
        reached = measure.closure(measure.entry(name)) - listed
        listed |= reached
        files[title] = sorted(reached)
    needed = set().union(*map(imported_anywhere, listed)) | _files_of_kinds()
    files["Read when needed"] = sorted(needed - listed)
    return files


def rows(files: list[str]) -> Iterator[tuple[str, int, str]]:
    """Each file, its lines, and what it is trusted for."""
    for file in files:
        text = measure.sources()[file]
        about = (ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0]
        yield file, text.count("\n"), " ".join(about.split()).replace("|", "\\|")


def page() -> str:
    """The text of the page."""
    parts = [_HEAD]
    for title, files in sections().items():
        table = list(rows(files))
        lines = sum(row[1] for row in table)
        parts.append(f"## {title}\n\n{len(table)} files, {lines:,} lines.\n")
        parts.append("| file | lines | trusted for |\n| --- | ---: | --- |")
        parts += [f"| `{file}` | {size:,} | {about} |" for file, size, about in table]
        parts.append("")
    return "\n".join(parts)


def _files_of_kinds() -> set[str]:
    """The files that enter a kind of plan, or of a part of one, into the table of public values.
    Kinds of other packages that happen to be imported are not privlearn's.
    """
    for module in ("privlearn.methods", "privlearn.core.plan"):
        import_module(module)  # it names the kinds of its parts
    modules = set(_public._HOMES.values())
    return {measure.file_of(m) for m in modules if m.split(".")[0] == "privlearn"}


def imported_anywhere(file: str) -> set[str]:
    """The files that a file imports, inside functions, too, but not for types alone."""
    tree = ast.parse(measure.sources()[file])
    for_types = {
        node
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for node in ast.walk(block)
    }
    statements = (n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom))
    return set().union(*(measure.imported(n) for n in statements if n not in for_types))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
