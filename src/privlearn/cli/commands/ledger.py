"""`privlearn ledger`: what was spent on what, by whom, and what remains."""

from __future__ import annotations

from typing import Any

from privlearn.cli import screen
from privlearn.cli.request import Request
from privlearn.core.accounting import accountant
from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.events import Composed, Event, walk
from privlearn.core.accounting.filters import Measure, described, share
from privlearn.core.accounting.guarantee import Adjacency, PrivacyUnit, readable
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.accounting.ledgers.addresses import database_at
from privlearn.core.accounting.ledgers.ledger_state import LedgerState, RunEntry
from privlearn.errors import BadInput, UnsupportedEvent


def run(request: Request) -> int:
    """Begin a ledger, close a run in it, or show it."""
    book = database_at(request.file)
    budget = _budget(request)
    if budget is not None and not book.exists():
        Ledger.open(request.file, budget, measure=_measure(request.measure))
        usual = "what suits the first run (--measure renyi: by one that takes runs of every kind)"
        screen.notes.print(
            f"began {request.file} with a budget of {budget}; runs that are chosen after earlier "
            f"results are counted by {request.measure or usual}"
        )
    if not book.exists():
        raise BadInput(
            f"there is no ledger {request.file}: begin one with `privlearn ledger {request.file} "
            "--epsilon E --delta D`"
        )
    if request.close is not None:
        with book.editing() as pages:
            entry = pages.entry(request.close)
            if not entry.open:
                raise BadInput(f"the run {entry.id} is closed already: nothing is set aside for it")
            pages.close(entry)
        screen.notes.print(
            f"closed {request.close}: it can't be continued. What it had not spent is free for "
            "later runs"
        )
    pages = book.check()
    if budget is not None and budget != pages.budget:
        raise BadInput(
            f"{request.file} has a budget of {pages.budget or 'nothing: it only records'}, and "
            f"{budget} was given: a ledger's budget is fixed. Leave it out, or begin another file"
        )
    if request.measure is not None and _measure(request.measure) != pages.measure:
        raise BadInput(
            f"{request.file} has the measure {pages.measure or 'that suits its first run'}, and "
            f"{request.measure} was given: a ledger's measure is fixed when it is begun. Leave it "
            "out, or begin another file"
        )
    answer = _figures(pages, request.delta)
    if request.json:
        screen.print_json({"file": str(request.file), **answer})
    else:
        _show(answer, pages)
    return 0


def _budget(request: Request) -> Budget | None:
    if request.epsilon is None and request.rho is None:
        return None
    return Budget(request.epsilon, request.delta or 1e-5, request.rho, request.group_size or 1)


def _measure(text: str | None) -> Measure:
    """A name, or a Renyi order."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


def _figures(pages: LedgerState, delta: float | None) -> dict[str, Any]:
    """The ledger as plain values."""
    delta = delta or (pages.budget.delta if pages.budget else None) or 1e-5
    adjacency = pages.adjacency or Adjacency.ADD_REMOVE
    unit = pages.protects
    limit = pages.limit
    try:
        total = accountant.guarantee(pages.claim, adjacency, delta, unit.group_size)
    except UnsupportedEvent:
        total = None
    answer: dict[str, Any] = {
        "adjacency": pages.adjacency.value if pages.adjacency else None,
        "delta": delta,
        "epsilon": total.epsilon if total else None,
        "method": total.method if total else None,
        "rho": total.rho if total else None,
        "unit": str(unit),
        "adaptive": pages.adaptive,
        "measure": described(limit) if limit else None,
        "epsilon_if_fixed": _alone(pages.event, adjacency, delta, unit),
        "budget": None if pages.budget is None else vars(pages.budget),
        "entries": [_entry(entry, adjacency, delta, unit) for entry in pages.entries],
    }
    if pages.budget is not None:
        spent = _spent(pages, pages.budget, adjacency)
        taken = (
            share(limit, pages.event)
            if limit
            else float(any(times for _, times in walk(pages.event)))
        )
        answer |= {"spent": spent, "left": pages.budget.limit * max(0.0, 1 - taken)}
    return answer


def _spent(pages: LedgerState, budget: Budget, adjacency: Adjacency) -> float:
    """How much of the budget is gone: as the accountant counts fixed runs, or the share of the
    filter's limit.
    """
    if not pages.entries:
        return 0.0
    if not pages.adaptive:
        return budget.spent(pages.claim, adjacency)
    limit = pages.limit
    return budget.limit if limit is None else budget.limit * share(limit, pages.event)


def _entry(
    entry: RunEntry, adjacency: Adjacency, delta: float, unit: PrivacyUnit
) -> dict[str, Any]:
    return {
        "id": entry.id,
        "what": entry.what,
        "by": entry.by,
        "begun": entry.begun,
        "state": "open" if entry.open else "closed",
        "epsilon": _alone(entry.counts, adjacency, delta, unit),
        "epsilon_spent": _alone(entry.spent, adjacency, delta, unit),
    }


def _alone(event: Event, adjacency: Adjacency, delta: float, unit: PrivacyUnit) -> float | None:
    """What `event` would cost by itself; None if that has no price."""
    if event == Composed(()):
        return 0.0
    try:
        return accountant.guarantee(event, adjacency, delta, unit.group_size).epsilon
    except UnsupportedEvent:
        return None


def _show(answer: dict[str, Any], pages: LedgerState) -> None:
    out = screen.answers
    if not pages.entries:
        out.print(
            "Nothing was charged yet. The budget is "
            f"{pages.budget or 'without limit: it only records'}."
        )
        return
    table = screen.Table()
    for name in ("run", "begun (UTC)", "by", "what for", "state"):
        table.add_column(name)
    table.add_column("epsilon alone", justify="right")
    for row in answer["entries"]:
        state = (
            "closed"
            if row["state"] == "closed"
            else f"open: {_number(row['epsilon_spent'])} of it spent"
        )
        table.add_row(
            row["id"],
            row["begun"][:16].replace("T", " "),
            row["by"],
            row["what"] or "-",
            state,
            _number(row["epsilon"]),
        )
    out.print(table, width=out.width if out.is_terminal else 160)
    for line in _together(answer, pages):
        out.print(line)
    if pages.protects != PrivacyUnit():
        out.print(f"What is protected: {pages.protects}.")
    if pages.budget is None:
        out.print("It only records: there is no budget.")
    elif not pages.adaptive:
        out.print(
            f"The budget is {pages.budget}; {pages.budget.figure(answer['spent'])} of it is spent "
            "or set aside. Runs from here on may be chosen by what was released: they are counted "
            f"by {answer['measure'] or 'a filter'}, of which "
            f"{100 * answer['left'] / pages.budget.limit:.1f} % is left."
        )
    if any(entry.open for entry in pages.entries):
        out.print(
            "Open runs are under way or were interrupted: continue them with --resume, or give "
            "back what they have not spent with --close RUN."
        )


def _together(answer: dict[str, Any], pages: LedgerState) -> list[str]:
    """What is guaranteed for all runs together, in words."""
    guarantee = (
        ""
        if answer["epsilon"] is None
        else (
            f"epsilon {screen.BOLD}{readable(answer['epsilon'])}{screen.END} at delta "
            f"{answer['delta']:g}"
        )
    )
    by = f"({answer['adjacency']}, by {answer['method']})"
    fixed = "-" if answer["epsilon_if_fixed"] is None else f"{readable(answer['epsilon_if_fixed'])}"
    if not pages.adaptive:
        how = " All were approved before the first release." if len(pages.entries) > 1 else ""
        return [f"\nTogether: {guarantee} {by}.{how}"]
    estimate = (
        f"What was spent would be epsilon {fixed} if all of it had been fixed beforehand, "
        "which is no guarantee."
    )
    if not guarantee:
        return [
            "\nThere is no guarantee for all runs together: they may have been chosen after "
            "earlier results, and "
            f"{'nothing limits them' if pages.budget is None else 'they are past the limit'}. "
            f"{estimate}"
        ]
    assert pages.budget is not None
    return [
        (
            f"\nTogether: {guarantee} {by}, the ledger's limit: runs may have been chosen after "
            "earlier results."
        ),
        f"The limit is {answer['measure']}; {100 * answer['spent'] / pages.budget.limit:.1f} % of "
        f"it is spent or set aside, {100 * answer['left'] / pages.budget.limit:.1f} % is left. "
        f"{estimate}",
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else readable(value)
