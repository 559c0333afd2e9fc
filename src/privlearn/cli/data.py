"""`privlearn data`: the named data sets."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.table import Table

from privlearn.cli import screen
from privlearn.data.named import EMBEDDED, NAMES, directory


def run(options: argparse.Namespace) -> int:
    """Name every data set and say where it is."""
    where = {name: _place(name, directory(options.data_dir)) for name in NAMES}
    if options.json:
        screen.print_json(
            {"datasets": [{"name": name, "found": bool(place), "where": place} for name, place in where.items()]}
        )
        return 0
    table = Table(box=None, padding=(0, 2), header_style="bold")
    table.add_column("name")
    table.add_column("where")
    for name, place in where.items():
        table.add_row(name, screen.plain(place) if place else "not found: give --data-dir DIR, or set PRIVLEARN_DATA")
    screen.answers.print(table)
    return 0


def _place(name: str, folder: Path | None) -> str | None:
    if name in EMBEDDED:
        return "comes with scikit-learn"
    if folder is not None and (folder / name).is_dir():
        return str(folder / name)
    return None
