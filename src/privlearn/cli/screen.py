"""What a person sees: answers on standard output, progress and warnings on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from privlearn.plan import Plan

answers = Console(highlight=False, soft_wrap=True)
asides = Console(stderr=True, highlight=False, soft_wrap=True)

_NEIGHBOURS = {
    "add_remove": "one example is added or removed",
    "zero_out": "one example is replaced by an empty one",
    "replace_one": "one example is replaced by another",
}


def print_json(figures: dict[str, Any]) -> None:
    """Print one JSON object, and nothing else, on standard output."""
    sys.stdout.write(json.dumps(figures, indent=2) + "\n")


def guarantee_table(figures: dict[str, Any]) -> Table:
    """One row for each sound method, the tightest marked."""
    table = Table(box=None, padding=(0, 2), title_justify="left", header_style="bold")
    table.add_column("method")
    table.add_column("epsilon", justify="right")
    table.add_column("")
    for row in figures["guarantees"]:
        best = row["method"] == figures["method"]
        name = f"[bold]{row['method']}[/]" if best else row["method"]
        table.add_row(name, f"{row['epsilon']:.4f}", "[bold]<- the tightest; this is the guarantee[/]" if best else "")
    return table


def meaning(figures: dict[str, Any]) -> str:
    """One sentence that says what the number means."""
    return (
        f"If {_NEIGHBOURS[figures['adjacency']]}, no outcome becomes more than e^{figures['epsilon']:.3g} times as likely, "
        f"but for a probability of {figures['delta']:g}."
    )


def noise_text(plan: Plan) -> str:
    """The noise multipliers of a plan in few words."""
    sigmas = plan.noise_multipliers()
    return f"{sigmas[0]:.4g}" if len(set(sigmas)) == 1 else f"{sigmas[0]:.4g} falling to {sigmas[-1]:.4g}"


@contextmanager
def progress_bar(title: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on standard error; yields a function of (done, all)."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("steps"),
               TimeRemainingColumn(elapsed_when_finished=True))  # fmt: skip
    with Progress(*columns, console=asides) as bar:
        task = bar.add_task(title, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
