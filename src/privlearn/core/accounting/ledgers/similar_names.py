"""Where a ledger is missing, this file looks beside it for one of nearly the same name."""

from __future__ import annotations

from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path

from privlearn.core.accounting.ledgers.ledger_file import LedgerFile
from privlearn.errors import PrivlearnError


def similar_ledger(path: Path | str) -> Path | None:
    """A ledger in the same folder whose name is nearly that of `path`, and that holds runs or has a
    budget; None if there is none, or `path` is the address of a database.
    """
    if isinstance(path, str):
        return None
    files = path.parent.iterdir() if path.parent.is_dir() else ()
    beside = {
        other.name: other
        for other in files
        if other.is_file() and other.suffix not in (".key", ".lock")
    }
    for name in get_close_matches(path.name, beside, cutoff=0.8):
        with suppress(PrivlearnError):
            database = LedgerFile(beside[name])
            states = [database.other(data).read() for data in database.names()]
            if any(state.entries or state.budget is not None for state in states):
                return beside[name]
    return None


def words_on_similar(path: Path | str) -> str:
    """What to look at where there is no ledger at `path`: ", and there is study.db"; or empty."""
    near = similar_ledger(path)
    return "" if near is None else f", and there is {near}"
