"""This file opens the ledger of a data set where its address says that it is."""

from __future__ import annotations

from pathlib import Path

from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.filters import Measure, require_measure
from privlearn.core.accounting.ledgers.anchors import Anchor, anchor_at
from privlearn.core.accounting.ledgers.ledger_database import LedgerDatabase
from privlearn.core.accounting.ledgers.ledger_file import LedgerFile
from privlearn.errors import BadInput

#: What addresses of servers begin with.
_SERVERS = ("postgresql://", "postgres://")


def database_at(
    address: str | Path, data: str | None = None, anchor: Anchor | str | Path | None = None
) -> LedgerDatabase:
    """The ledger at `address`, which need not be there yet: a file, or on a server.

    Raises:
        BadInput: it is on a server, and the address can't be read or psycopg isn't installed.
    """
    anchor = anchor_at(anchor) if isinstance(anchor, str | Path) else anchor
    if isinstance(address, str) and address.startswith(_SERVERS):
        try:
            from privlearn.core.accounting.ledgers.ledger_server import LedgerServer
        except ImportError as error:
            raise BadInput(
                "a ledger on a PostgreSQL server needs psycopg, which is not installed: pip "
                "install 'privlearn[postgresql]'"
            ) from error
        return LedgerServer(address, data, anchor)
    return LedgerFile(address, data, anchor)


def open_database(
    address: str | Path,
    budget: Budget | None,
    measure: Measure,
    data_set: str | None,
    *,
    create: bool,
    owner: str = "",
    anchor: Anchor | str | Path | None = None,
) -> LedgerDatabase:
    """The ledger at `address`, begun if it isn't there: see `Ledger.open`.

    Raises:
        BadInput: there is none, it can't be read or written, or it has another budget or measure.
    """
    database = database_at(address, data_set, anchor)
    there = database.exists()
    if not there and budget is None and not create:
        from privlearn.core.accounting.ledgers.similar_names import words_on_similar  # a refusal

        raise BadInput(
            f"there is no ledger {database.path}{words_on_similar(database.path)}: check the "
            "name; or begin one with its budget, "
            "Ledger.open(path, pv.Budget(epsilon=E, delta=D)), or with create=True, one without a "
            "limit that only records"
        )
    if not there and database.anchor is not None and database.anchor.heads():
        raise BadInput(
            f"there is no ledger {database.path}, and its anchor keeps rows of one: bring that "
            "back, or begin another anchor with another ledger"
        )
    if not there or (data_set is not None and budget is not None):
        database.begin(budget, require_measure(measure, budget), owner)
    state = database.read()
    if budget is not None and state.budget is None:
        raise BadInput(
            f"{database.path} only records, and {budget} was given: a budget chosen after runs "
            "limits nothing. Expected no budget, or a new ledger for runs to come; what this one "
            "recorded then counts in addition"
        )
    if budget is not None and state.budget != budget:
        raise BadInput(
            f"{database.path} has a budget of {state.budget}, and {budget} was given: a ledger's "
            "budget is fixed. Leave it out; for other rows, begin another ledger"
        )
    if measure is not None and state.measure != measure:
        raise BadInput(
            f"{database.path} has the measure {state.measure or 'that suits its first run'}, and "
            f"{measure} was given: a ledger's measure is fixed. Leave it out, or begin another "
            "ledger"
        )
    return database
