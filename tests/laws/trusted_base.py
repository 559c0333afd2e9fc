"""Writes docs/trusted-base.md, the files that a guarantee rests on:
`python -m tests.laws.trusted_base`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.laws import measure

PAGE = measure.ROOT / "docs" / "trusted-base.md"
_HEAD = """# What a guarantee rests on

An auditor reads these files first: a mistake in one of them can make an epsilon wrong. The lists
follow from imports and calls. A script writes the page, and a test compares it with the code.

- **Releases**: what `release` imports. A release checks the sensitivity, charges the account and
  adds the noise. The compiled noise is `core/mechanisms/noise_kernel.c`.
- **Training runs**: what `pv.dpsgd` imports beyond that: plans, samplers, clipping, and the check
  that keeps examples apart.
- **Verification**: what `privlearn verify` imports beyond both. In all, it imports the files with a
  v. It needs neither data nor torch.
- **Sensitivities and draws elsewhere**: other files that state a sensitivity, charge an account or
  draw noise. Each method computes its sums and their sensitivities in one of them.
- **Read when needed**: files that the others import inside a function, for one kind of plan, model
  or data; and the files of the kinds of plans and transforms.

Imports within functions count in the first three lists if they lead to files of the core. The rest
of the package is not listed: integrations, audits, the command line. The last column is the first
sentence of each file.
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
        reached = reached_from(name) - listed
        listed |= reached
        files[title] = sorted(reached)
    sums = {file for file in measure.sources() if _bounds_or_draws(file)} - listed
    listed |= sums
    files["Sensitivities and draws elsewhere"] = sorted(sums)
    needed = set().union(*map(imported_anywhere, listed)) | _files_of_kinds()
    files["Read when needed"] = sorted(needed - listed)
    return files


def reached_from(name: str) -> set[str]:
    """The closure of an entry of `measure.CLOSURES`, with the files of the core, and the private
    ones of the package, that it imports within functions.
    """
    reached = set(measure.closure(measure.entry(name)))
    waiting = list(reached)
    while waiting:
        file = waiting.pop()
        late = {f for f in imported_anywhere(file) if f.startswith(("core/", "_"))}
        new = (late | measure.graph()[file]) - reached
        reached |= new
        waiting += new
    return reached


def _bounds_or_draws(file: str) -> bool:
    """Whether a file states a sensitivity, charges an account or draws noise."""
    calls = [
        node.func
        for node in ast.walk(ast.parse(measure.sources()[file]))
        if isinstance(node, ast.Call)
    ]
    return any(
        (isinstance(call, ast.Name) and call.id == "Bounded")
        or (isinstance(call, ast.Attribute) and call.attr in ("charge", "words"))
        for call in calls
    )


def rows(files: list[str]) -> Iterator[tuple[str, int, str, str]]:
    """Each file, its lines, whether `verify` imports it, and what it does."""
    by_verify = reached_from("publishing.verify")
    for file in files:
        text = measure.sources()[file]
        about = (ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0]
        mark = "v" if file in by_verify else ""
        yield file, text.count("\n"), mark, " ".join(about.split()).replace("|", "\\|")


def page() -> str:
    """The text of the page."""
    parts = [_HEAD]
    for title, files in sections().items():
        table = list(rows(files))
        lines = sum(row[1] for row in table)
        parts.append(f"## {title}\n\n{len(table)} files, {lines:,} lines.\n")
        parts.append("| file | lines | verify | what it does |\n| --- | ---: | --- | --- |")
        parts += [f"| `{row[0]}` | {row[1]:,} | {row[2]} | {row[3]} |" for row in table]
        parts.append("")
    return "\n".join(parts)


def _files_of_kinds() -> set[str]:
    """The files with classes that have a name in certificates, `kind = "..."`: plans and their
    parts.
    """
    return {file for file in measure.sources() if any(map(_has_kind, _classes(file)))}


def _classes(file: str) -> Iterator[ast.ClassDef]:
    tree = ast.parse(measure.sources()[file])
    return (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def _has_kind(node: ast.ClassDef) -> bool:
    return any(
        isinstance(line, ast.AnnAssign)
        and isinstance(line.target, ast.Name)
        and line.target.id == "kind"
        and isinstance(line.value, ast.Constant)
        for line in node.body
    )


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
