"""`privlearn ledger`: what was spent on what, by whom, and what remains."""

from __future__ import annotations

import argparse
from typing import Any

from rich.table import Table

from privlearn.accounting import accountant
from privlearn.accounting.adjacency import Adjacency
from privlearn.accounting.book import Book, Entry, Pages
from privlearn.accounting.budget import Budget
from privlearn.accounting.events import Composed, Event
from privlearn.accounting.ledger import Ledger
from privlearn.accounting.unit import Unit
from privlearn.cli import screen
from privlearn.errors import BadInput, UnsupportedEvent


def run(options: argparse.Namespace) -> int:
    """Begin a ledger, close a run in it, or show it."""
    book = Book(options.file)
    budget = _budget(options)
    if budget is not None and not book.path.exists():
        Ledger.open(options.file, budget)
        screen.asides.print(f"began {options.file} with a budget of {budget}")
    if options.close is not None:
        with book.editing() as pages:
            entry = pages.entry(options.close)
            if not entry.open:
                raise BadInput(f"the run {entry.id} is closed already: nothing is set aside for it")
            pages.put(entry.closed())
        screen.asides.print(f"closed {options.close}: it can't be continued, and what it had not spent is free again")
    pages = book.read()
    if budget is not None and budget != pages.budget:
        raise BadInput(
            f"{options.file} has a budget of {pages.budget or 'nothing: it only records'}, and {budget} was given: a ledger's "
            "budget is fixed. Leave it out, or begin another file"
        )
    answer = _figures(pages, options.delta)
    if options.json:
        screen.print_json({"file": str(options.file), **answer})
    else:
        _show(answer, pages)
    return 0


def _budget(options: argparse.Namespace) -> Budget | None:
    if options.epsilon is None and options.rho is None:
        return None
    return Budget(options.epsilon, options.delta or 1e-5, options.rho, options.group_size or 1)


def _figures(pages: Pages, delta: float | None) -> dict[str, Any]:
    """The ledger as plain values."""
    delta = delta or (pages.budget.delta if pages.budget else None) or 1e-5
    adjacency = pages.adjacency or Adjacency.ADD_REMOVE
    unit = pages.protects
    total = accountant.guarantee(pages.event, adjacency, delta, unit.group_size)
    answer: dict[str, Any] = {
        "adjacency": pages.adjacency.value if pages.adjacency else None,
        "delta": delta,
        "epsilon": total.epsilon,
        "method": total.method,
        "rho": total.rho,
        "unit": str(unit),
        "budget": None if pages.budget is None else vars(pages.budget),
        "entries": [_entry(entry, adjacency, delta, unit) for entry in pages.entries],
    }
    if pages.budget is not None:
        spent = pages.budget.spent(pages.event, adjacency) if pages.entries else 0.0
        answer |= {"spent": spent, "left": max(0.0, pages.budget.limit - spent)}
    return answer


def _entry(entry: Entry, adjacency: Adjacency, delta: float, unit: Unit) -> dict[str, Any]:
    return {
        "id": entry.id,
        "what": entry.what,
        "by": entry.by,
        "begun": entry.begun,
        "state": "open" if entry.open else "closed",
        "epsilon": _alone(entry.counts, adjacency, delta, unit),
        "epsilon_spent": _alone(entry.spent, adjacency, delta, unit),
    }


def _alone(event: Event, adjacency: Adjacency, delta: float, unit: Unit) -> float | None:
    """What `event` would cost by itself; None if that has no price."""
    if event == Composed(()):
        return 0.0
    try:
        return accountant.guarantee(event, adjacency, delta, unit.group_size).epsilon
    except UnsupportedEvent:
        return None


def _show(answer: dict[str, Any], pages: Pages) -> None:
    out = screen.answers
    if not pages.entries:
        out.print(f"Nothing was charged yet. The budget is {pages.budget or 'without limit: it only records'}.")
        return
    table = Table(box=None, padding=(0, 2), header_style="bold")
    for name in ("run", "begun (UTC)", "by", "what for", "state"):
        table.add_column(name)
    table.add_column("epsilon alone", justify="right")
    for row in answer["entries"]:
        state = "closed" if row["state"] == "closed" else f"open: {_number(row['epsilon_spent'])} of it spent"
        table.add_row(
            row["id"],
            row["begun"][:16].replace("T", " "),
            row["by"],
            row["what"] or "-",
            state,
            _number(row["epsilon"]),
        )
    out.print(table, width=out.width if out.is_terminal else 160)
    out.print(
        f"\nTogether: epsilon [bold]{answer['epsilon']:.4f}[/] at delta {answer['delta']:g} ({answer['adjacency']}, by "
        f"{answer['method']}); less than the sum of the runs, because they compose."
        if len(pages.entries) > 1
        else f"\nepsilon [bold]{answer['epsilon']:.4f}[/] at delta {answer['delta']:g} ({answer['adjacency']}, by "
        f"{answer['method']})."
    )
    if pages.protects != Unit():
        out.print(f"What is protected: {pages.protects}.")
    if pages.budget is None:
        out.print("It only records: there is no budget.")
    else:
        out.print(
            f"The budget is {pages.budget}; {pages.budget.figure(answer['spent'])} of it is spent or set aside, "
            f"{answer['left']:.4g} is left."
        )
    if any(entry.open for entry in pages.entries):
        out.print(
            "Open runs are under way or were interrupted: continue them with --resume, or give back what they have not spent "
            "with --close RUN."
        )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
