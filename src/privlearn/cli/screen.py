"""What a person sees: answers on standard output, progress and warnings on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from privlearn._checks import printable
from privlearn.accounting.filters import Limit
from privlearn.accounting.guarantee import PrivacyUnit, rounded_up
from privlearn.plan import Plan
from privlearn.schedules import Validation

answers = Console(highlight=False, soft_wrap=True)
asides = Console(stderr=True, highlight=False, soft_wrap=True)

_METHODS = {
    "gaussian": "exact, for Gaussian releases",
    "pld": "privacy loss distributions",
    "rdp": "Renyi DP",
    "pure": "the sum of pure epsilons",
    "zcdp": "zero-concentrated DP",
    "zcdp-2016": "zCDP, conversion of 2016",
    "moments-2016": "moments accountant of 2016",
}
_VERBS = {
    "add_remove": ("added or removed", "added or removed"),
    "zero_out": ("replaced by an empty one", "replaced by empty ones"),
    "replace_one": ("replaced by another", "replaced by others"),
}


def plain(text: object) -> str:
    """`text` as it stands, for a line with markup: names and files may hold brackets and control characters."""
    return escape(printable(text))


def warn(warning: str) -> None:
    """Print a warning, on standard error."""
    asides.print(f"[yellow]warning[/]: {plain(warning)}")


def print_json(figures: dict[str, Any]) -> None:
    """Print one JSON object, and nothing else, on standard output."""
    sys.stdout.write(json.dumps(figures, indent=2) + "\n")


def guarantee_table(figures: dict[str, Any]) -> Table:
    """One row for each sound method, the tightest marked; estimates and lower bounds set apart."""
    table = Table(box=None, padding=(0, 2), header_style="bold")
    table.add_column("method")
    table.add_column("epsilon", justify="right")
    table.add_column("")
    bounds = [row for row in figures["guarantees"] if row["kind"] == "bound"]
    for row in bounds:
        best = row is bounds[0]
        mark = "[bold]<- the tightest sound bound: the guarantee[/]" if best else f"[dim]{_METHODS[row['method']]}[/]"
        table.add_row(f"[bold]{row['method']}[/]" if best else row["method"], f"{row['epsilon']:.4f}", mark)
    for row in figures["guarantees"]:
        if row["kind"] != "bound":
            what = "an estimate, no guarantee" if row["kind"] == "estimate" else "a lower bound: the truth is above"
            table.add_row(f"[dim]{row['method']}[/]", f"[dim]{row['epsilon']:.4f}[/]", f"[dim]{what}[/]")
    return table


def meaning(figures: dict[str, Any]) -> str:
    """One sentence that says what the number means."""
    unit = PrivacyUnit(figures.get("group_size", 1), figures.get("rows_per_person"))
    change = unit.change(_VERBS[figures["adjacency"]][unit.group_size > 1])
    return (
        f"If {change}, no outcome becomes more than e^{rounded_up(figures['epsilon'])} times as likely, but for a "
        f"probability of {figures['delta']:g}."
    )


def noise_text(plan: Plan, used: Sequence[float] | None = None) -> str:
    """The noise multipliers of a plan in few words; after a run that reacted, those that it used."""
    if isinstance(plan.schedule, Validation) and used is None:
        return f"{plan.schedule.start:.4g} at first"
    sigmas = plan.noise_multipliers() if used is None else used
    return f"{sigmas[0]:.4g}" if len(set(sigmas)) == 1 else f"{sigmas[0]:.4g} falling to {sigmas[-1]:.4g}"


def at_most(plan: Plan) -> str:
    """What stands before the number of epochs."""
    return "at most " if plan.filter else ""


def limit_text(limit: Limit) -> str:
    """The limit of a filter in few words."""
    if limit.rho is not None:
        return f"rho {limit.rho:.6g}"
    return ", ".join(
        f"Renyi divergence {bound:.6g} at order {order:g}"
        for order, bound in zip(limit.orders, limit.bounds, strict=True)
    )


@contextmanager
def progress_bar(title: str, unit: str = "steps") -> Iterator[Callable[[int, int], None]]:
    """A progress bar on standard error; yields a function of (done, all)."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit),
               TimeRemainingColumn(elapsed_when_finished=True))  # fmt: skip
    bar = Progress(*columns, console=asides)
    task = bar.add_task(title, total=None)

    def update(done: int, total: int) -> None:
        bar.start()  # not before there is something to show: what is refused has no progress
        bar.update(task, completed=done, total=total)

    try:
        yield update
    finally:
        bar.stop()
