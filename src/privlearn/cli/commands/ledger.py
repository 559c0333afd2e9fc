"""`privlearn ledger`: what was spent on what, by whom, and what remains."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from privlearn.cli import ledger_files, screen
from privlearn.cli.ledger_overlap import add_budgets, describe_overlap
from privlearn.cli.ledger_room import require_ledger
from privlearn.cli.ledger_view import (
    LedgerView,
    describe_amount,
    describe_guarantee,
    describe_state,
    explain_counting,
    write_moment,
    write_number,
)
from privlearn.cli.request import Request
from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.filters import Measure
from privlearn.core.accounting.guarantee import PrivacyUnit
from privlearn.core.accounting.ledgers.addresses import database_at, open_database
from privlearn.core.accounting.ledgers.ledger_database import LedgerDatabase
from privlearn.core.accounting.ledgers.ledger_state import LedgerState
from privlearn.errors import BadInput

#: What `--overlap` calls all data sets.
_ALL = "all"
_LONGEST_OWNER = 200


def run(request: Request) -> int:
    """Begin a ledger, close a run in it, or show it and write it down."""
    outputs = {".html": request.html, ".csv": request.csv, ".png": request.plot}
    paths = {suffix: Path(path) for suffix, path in outputs.items() if path is not None}
    for suffix, path in paths.items():
        ledger_files.require_writable(path, suffix)
    database = database_at(request.file, request.ledger_data, request.anchor)
    _begin(database, request)
    require_ledger(database)
    names = [request.ledger_data] if request.ledger_data is not None else database.names()
    drawn = {".html", ".png"} & set(paths)
    if drawn and len(names) > 1:
        raise BadInput(
            f"{database.path} holds ledgers of several data sets, {', '.join(names)[:150]}: "
            "pages and pictures are of one. Say which with --ledger-data NAME"
        )
    for name in names:
        _require_as_given(request, database, database.other(name).read())
    if request.close is not None:
        _close(database, request.close)
    history = bool(request.json or drawn)
    views = {
        name: LedgerView.of(database.other(name), request.delta, history=history) for name in names
    }
    overlap = None if request.overlap is None else _add_overlap(database, views, request)
    _write(paths, views, str(database.path))
    if request.json:
        answers = [view.figures for view in views.values()]
        answer = answers[0] if len(answers) == 1 else {"data_sets": answers}
        together = {} if overlap is None else {"overlap": overlap}
        screen.print_json({"file": str(database.path), **answer, **together})
        return 0
    if len(views) == 1:
        _show(*views.values())
    else:
        _list_data_sets(views, database)
    if overlap is not None:
        screen.answers.print(f"\n{describe_overlap(overlap)}")
    return 0


def _begin(database: LedgerDatabase, request: Request) -> None:
    """Begin a ledger if a budget is given and it isn't there, and say so."""
    budget = _budget(request)
    if budget is None:
        return
    data, owner = request.ledger_data, request.owner or ""
    if len(owner) > _LONGEST_OWNER or not owner.isprintable():
        raise BadInput(f"--owner is {owner[:60]!r}: expected at most 200 printable characters")
    new = not database.exists() or (data is not None and data not in database.names())
    measure = _measure(request.measure)
    open_database(
        request.file, budget, measure, data, create=False, owner=owner, anchor=request.anchor
    )
    if new:
        usual = "what suits the first run (--measure renyi: by one that takes runs of every kind)"
        of_data = "" if data is None else f" for the data set {data}"
        screen.notes.print(
            f"began {database.path}{of_data} with a budget of {budget}; runs that are chosen after "
            f"earlier results are counted by {request.measure or usual}"
        )


def _close(database: LedgerDatabase, run: str) -> None:
    with database.editing() as state:
        entry = state.entry(run)
        if not entry.open:
            raise BadInput(f"the run {entry.id} is closed already: nothing is set aside for it")
        state.close(entry)
    screen.notes.print(
        f"closed {run}: it can't be continued. What it had not spent is free for later runs"
    )


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


def _require_as_given(request: Request, database: LedgerDatabase, state: LedgerState) -> None:
    """Raise `BadInput` unless what is given of a ledger is what it was begun with."""
    measure, group = _measure(request.measure), request.group_size
    was = None
    if measure is not None and measure != state.measure:
        was = f"the measure {state.measure or 'that suits its first run'}", f"{request.measure} was"
    elif group is not None and group != state.protects.group_size:
        was = f"been begun to protect {state.protects}", f"{PrivacyUnit(group)} were"
    elif request.owner is not None and request.owner != state.owner:
        was = f"the owner {state.owner!r}" if state.owner else "no owner", f"{request.owner!r} was"
    if was is not None:
        raise BadInput(
            f"{database.path} has {was[0]}, and {was[1]} given: that is fixed when a ledger is "
            "begun. Leave it out, or begin another ledger"
        )


def _add_overlap(
    database: LedgerDatabase, views: Mapping[str, LedgerView], request: Request
) -> dict[str, object]:
    """What persons are guaranteed who are in several of the data sets."""
    names = database.names()
    wanted = names if request.overlap == _ALL else _split_names(request.overlap, names)
    return add_budgets(
        {
            name: views.get(name) or LedgerView.of(database.other(name), request.delta)
            for name in wanted
        }
    )


def _split_names(text: str, names: list[str]) -> list[str]:
    """The names of data sets, with commas between them, each once."""
    wanted = list(dict.fromkeys(name.strip() for name in text.split(",")))
    missing = [name for name in wanted if name not in names]
    if missing:
        raise BadInput(
            f"--overlap is {text[:60]}, and there is no data set {missing[0][:40]!r}: the ledger "
            f"holds {', '.join(names)[:120]}. Give some of them, or --overlap all"
        )
    return wanted


def _write(paths: Mapping[str, Path], views: Mapping[str, LedgerView], name: str) -> None:
    """Write the files that are asked for."""
    first = next(iter(views.values()))
    if path := paths.get(".html"):
        ledger_files.write_page(first, name, path)
    if path := paths.get(".csv"):
        ledger_files.write_runs([*views.values()], path)
    if path := paths.get(".png"):
        ledger_files.draw_course(first, path)
    for path in paths.values():
        screen.notes.print(f"wrote {path}")


# On the screen


def _show(view: LedgerView) -> None:
    out, figures, state = screen.answers, view.figures, view.state
    if figures["owner"]:
        out.print(f"The data set {figures['data']} of {figures['owner']}.")
    if not state.entries:
        for sentence in explain_counting(view):
            out.print(sentence)
        return
    table = screen.Table()
    for name in ("run", "begun (UTC)"):
        table.add_column(name, no_wrap=True)
    for name in ("by", "what for", "state"):
        table.add_column(name, overflow="fold")
    for name in ("epsilon alone", "spent so far"):
        table.add_column(name, justify="right")
    for row in figures["entries"]:
        table.add_row(
            row["id"],
            write_moment(row["begun"]),
            row["by"],
            row["what"] or "-",
            describe_state(row),
            write_number(row["epsilon"]),
            write_number(row["epsilon_spent"]),
        )
    screen.print_table(table)
    guarantee = describe_guarantee(view)
    if guarantee:
        out.print(
            f"\nTogether: {screen.BOLD}{guarantee}{screen.END} "
            f"({figures['adjacency']}, by {figures['method']})."
        )
    else:
        out.print("")
    for sentence in explain_counting(view):
        out.print(sentence)
    if state.protects != PrivacyUnit():
        out.print(f"What is protected: {state.protects}.")


def _list_data_sets(views: Mapping[str, LedgerView], database: LedgerDatabase) -> None:
    """A line for each data set, and how to see one."""
    table = screen.Table()
    for name in ("data set", "owner", "budget", "spent or set aside", "left"):
        table.add_column(name)
    table.add_column("runs", justify="right")
    for name, view in views.items():
        figures, budget = view.figures, view.state.budget
        amounts = ("-", "-")
        if budget is not None:
            amounts = (describe_amount(figures, "spent"), describe_amount(figures, "left"))
        runs = str(len(figures["entries"]))
        table.add_row(name, figures["owner"] or "-", str(budget or "none"), *amounts, runs)
    screen.print_table(table)
    screen.answers.print(f"\nSee one: privlearn ledger {database.path} --ledger-data NAME")
