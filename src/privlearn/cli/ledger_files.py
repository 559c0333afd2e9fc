"""Files that `privlearn ledger` writes: a page, a table of runs, a picture.

A file that is there is replaced only if it begins as the new one: so never a ledger.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from privlearn._storage import write_durably
from privlearn._texts import for_terminal
from privlearn.cli.ledger_view import SHARE, LedgerView
from privlearn.errors import BadInput

#: What a file begins with, by the end of its name.
_STARTS = {
    ".html": b"<!DOCTYPE html>\n",
    ".csv": b"data,run,begun,by,reserved_for,",
    ".png": b"\x89PNG\r\n\x1a\n",
}
#: What begins a formula in a spreadsheet, also in full width.
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_COLUMNS = (
    "data",
    "run",
    "begun",
    "by",
    "reserved_for",
    "state",
    "expires",
    "fixed_beforehand",
    "what",
    "epsilon",
    "epsilon_spent",
)


def require_writable(path: Path, suffix: str) -> None:
    """Raise `BadInput` unless a file of this kind may be put at `path`."""
    option = {".html": "--html", ".csv": "--csv", ".png": "--plot"}[suffix]
    if path.suffix != suffix:
        raise BadInput(f"{option} is {path}: expected a file that ends in {suffix}")
    if not path.parent.is_dir():
        raise BadInput(f"{option} is {path}: there is no folder {path.parent}. Make it first")
    if path.is_dir():
        raise BadInput(f"{option} is {path}, a folder: give a file that ends in {suffix}")
    if path.exists():
        with path.open("rb") as file:
            start = file.read(len(_STARTS[suffix]))
        if start != _STARTS[suffix]:
            raise BadInput(
                f"{path} exists, and does not begin as what this command writes: choose "
                f"another {option}"
            )


def write_page(view: LedgerView, name: str, path: Path) -> None:
    """Write the page of a ledger, which is at `name`."""
    from privlearn.cli import ledger_page  # pages of cards, which load torch

    _write(path, ledger_page.write(view, name, datetime.now(UTC)).encode())


def write_runs(views: Sequence[LedgerView], path: Path) -> None:
    """Write a table with a row for each run."""
    _write(path, tabulate_runs(views).encode())


def tabulate_runs(views: Sequence[LedgerView]) -> str:
    """The runs as CSV, whose texts no spreadsheet takes for formulas."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for view in views:
        for row in view.figures["entries"]:
            cells = {**row, "data": view.figures["data"], "run": row["id"]}
            writer.writerow([_cell(cells[column]) for column in _COLUMNS])
    return out.getvalue()


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return repr(value)
    cell = for_terminal(value)
    return f"'{cell}" if cell.lstrip().startswith(_FORMULA) else cell


def draw_course(view: LedgerView, path: Path) -> None:
    """Draw what was spent over time, beside the budget.

    Raises:
        BadInput: there is nothing to draw, the file cannot be written, or matplotlib is not
            installed.
    """
    figures, budget = view.figures, view.state.budget
    from privlearn.cli import ledger_page  # as `write_page`

    points = ledger_page.trace_course(figures["history"], datetime.now(UTC))
    if budget is None or not points:
        raise BadInput("--plot draws what runs spent of a budget: there is no budget, or no run")
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise BadInput('plots are drawn by matplotlib: pip install "privlearn[plots]"') from error

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    shares = figures["spent_is"] == SHARE
    unit = budget.limit / 100 if shares else 1.0
    figure, axes = plt.subplots(figsize=(7, 3.8), dpi=130, layout="constrained")
    moments: Any = [datetime.fromtimestamp(at, UTC) for at, _ in points]
    axes.plot(moments, [spent / unit for _, spent in points], label="spent or set aside")
    axes.axhline(budget.limit / unit, color="grey", linestyle=":", label="budget")
    axes.set(
        xlabel="when (UTC)",
        ylabel="% of the limit" if shares else figures["spent_is"],
        title="Spent over time",
    )
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, loc="best")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    figure.autofmt_xdate()
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    plt.close(figure)
    _write(path, picture.getvalue())


def _write(path: Path, content: bytes) -> None:
    require_writable(path, path.suffix)
    write_durably(path, content)
