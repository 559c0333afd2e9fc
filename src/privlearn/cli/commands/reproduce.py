"""`privlearn reproduce`: a table or figure of a paper, its numbers beside ours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from privlearn.cli import screen
from privlearn.cli.request import Request
from privlearn.errors import BadInput
from privlearn_studies import registry

if TYPE_CHECKING:
    from privlearn_studies.report import Findings


def run(request: Request) -> int:
    """Compute one study and keep it in three files, or list them all."""
    if request.list:
        _list(request.json)
        return 0
    if request.name is None:
        raise BadInput(
            f"reproduce needs a name: expected one of {', '.join(s.name for s in registry.STUDIES)}"
        )
    study = registry.find(request.name)
    from privlearn_studies.charts import require_matplotlib
    from privlearn_studies.report import as_json, save

    require_matplotlib()
    folder = Path(request.out or "results")
    screen.notes.print(f"{study.source}: {study.what}")
    try:
        with screen.progress_bar(study.name, "runs") as progress:
            findings = study.run(
                request.quick, request.seeds, folder=folder, jobs=request.jobs, progress=progress
            )
    except KeyboardInterrupt:
        if study.trains:
            screen.notes.print(
                f"runs that ended are kept in {screen.plain(folder)}: the same command goes on "
                "from there"
            )
        raise
    save(study, findings, folder, request.quick)
    screen.notes.print(f"written: {screen.plain(folder / study.name)}.json, .md and .png")
    if request.json:
        screen.print_json(as_json(study, findings, quick=request.quick))
    else:
        screen.answers.print(_table(findings))
    return 0


def _list(as_json: bool) -> None:
    if as_json:
        screen.print_json(
            {
                "studies": [
                    {"name": s.name, "source": s.source, "what": s.what} for s in registry.STUDIES
                ]
            }
        )
        return
    name, source = (
        max(len(getattr(study, field)) for study in registry.STUDIES)
        for field in ("name", "source")
    )
    for study in registry.STUDIES:
        screen.answers.print(
            (
                f"{screen.BOLD}{study.name:<{name}}{screen.END}  {study.source:<{source}}  "
                f"{study.what}"
            ),
            soft_wrap=True,
        )


def _table(findings: Findings) -> screen.Table:
    from privlearn_studies.report import row_cells

    table = screen.Table()
    heads, lines = row_cells(findings.rows, lambda row: (f"{row.ours_std or 0:.3g}",))
    for head in heads:
        table.add_column(head, justify="left" if head in ("what", "metric") else "right")
    for line in lines:
        table.add_row(*line)
    return table
