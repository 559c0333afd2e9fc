"""The three files that a study's findings are kept in: JSON, Markdown and a picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from privlearn.errors import BadInput
from privlearn_studies.findings import Findings
from privlearn_studies.registry import Study

_DPI = 130


def as_json(study: Study, findings: Findings) -> dict[str, Any]:
    """The JSON object that scripts rely on."""
    return {"name": study.name, "source": study.source, "rows": [asdict(row) for row in findings.rows]}


def save(study: Study, findings: Findings, folder: Path, quick: bool = False) -> None:
    """Write NAME.json, NAME.md and NAME.png into `folder`; files of these names are overwritten. `quick` is said in the text.

    Raises:
        BadInput: the folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps(as_json(study, findings), indent=2)
        (folder / f"{study.name}.json").write_text(text + "\n", encoding="utf-8")
        (folder / f"{study.name}.md").write_text(_markdown(study, findings, quick), encoding="utf-8")
        findings.figure.savefig(folder / f"{study.name}.png", dpi=_DPI)
    except OSError as error:
        raise BadInput(f"{folder} cannot be written: {error.strerror}. Give another folder with --out DIR") from error


def table(heads: tuple[str, ...], lines: Sequence[tuple[str, ...]]) -> str:
    """A Markdown table; columns of numbers are aligned to the right."""
    rule = [
        "---:" if all(cell[0] in "-–0123456789" for cell in column) else "---" for column in zip(*lines, strict=True)
    ]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (heads, rule, *lines))


def number(value: float | None) -> str:
    """A number to six significant digits; a dash where there is none."""
    return "–" if value is None else f"{value:.6g}"


def _markdown(study: Study, findings: Findings, quick: bool) -> str:
    chance = any(row.ours_std is not None for row in findings.rows)
    heads = ("what", "metric", "paper", "ours", *(("deviation", "seeds") if chance else ()))
    lines = []
    for row in findings.rows:
        spread = (number(row.ours_std), str(row.seeds)) if chance else ()
        lines.append((row.label, row.metric, number(row.paper), number(row.ours), *spread))
    parts = [
        f"# {study.source}: {study.what}",
        *(["*A quick run: fewer seeds, points and training rows. Not the figures to quote.*"] if quick else []),
        *findings.notes,
        f"![{study.what}]({study.name}.png)",
        "## All numbers",
        table(heads, lines),
    ]
    return "\n\n".join(parts) + "\n"
