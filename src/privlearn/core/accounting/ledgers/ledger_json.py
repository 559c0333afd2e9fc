"""A ledger's state, and what an edit changed in it, as plain values and back."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.events import Composed, Event, from_json, to_json
from privlearn.core.accounting.filters import require_measure
from privlearn.core.accounting.guarantee import Adjacency, PrivacyUnit
from privlearn.core.accounting.ledgers.data_versions import DataVersion
from privlearn.core.accounting.ledgers.ledger_state import NOTHING, LedgerState, RunEntry
from privlearn.errors import BadInput

_LONGEST = 1000  # characters of a text
#: Fields that entries and states of version 0.1 lack.
LATER, LATER_OF_STATE = {"reserved_for": "", "expires": ""}, {"owner": "", "versions": ()}
_TEXTS, _FLAGS, _EVENTS = (
    ("id", "what", "by", "begun", *LATER),
    ("open", "declared", "waiting"),
    ("approved", "spent"),
)


def plain_state(state: LedgerState) -> dict[str, Any]:
    """All of a state, as plain values.

    Raises:
        BadInput: a text that is too long, as for a change.
    """
    _require_short("owner", state.owner)
    return {
        "budget": None if state.budget is None else asdict(state.budget),
        "measure": state.measure,
        "owner": state.owner,
        "versions": [version.to_json() for version in state.versions],
        **_scope(state),
        "entries": [_plain_entry(entry) for entry in state.entries],
    }


def _scope(state: LedgerState) -> dict[str, Any]:
    """What the first charge fixes."""
    return {
        "adjacency": None if state.adjacency is None else state.adjacency.value,
        "unit": None if state.unit is None else asdict(state.unit),
    }


def _plain_entry(entry: RunEntry) -> dict[str, Any]:
    for name in _TEXTS:
        _require_short(name, getattr(entry, name))
    return {**vars(entry), **{name: to_json(getattr(entry, name)) for name in _EVENTS}}


def _require_short(name: str, text: str) -> None:
    """Raise `BadInput` for a text with which the ledger could not be read any more."""
    if len(text) > _LONGEST:
        raise BadInput(
            f"{name} has {len(text):,} characters: a ledger keeps at most {_LONGEST:,}. Nothing "
            "was charged or drawn. Give a shorter text"
        )


def change_between(before: LedgerState, after: LedgerState) -> dict[str, Any] | None:
    """What an edit changed, as plain values; None where only the whole says it; empty if it changed
    nothing.
    """
    ids = [entry.id for entry in after.entries]
    if ids[: len(before.entries)] != [entry.id for entry in before.entries] or len({*ids}) < len(
        ids
    ):
        return None  # older entries were summed up
    if not after.changes.keys() <= {*ids}:
        return None  # so were new ones
    if (before.budget, before.measure) != (after.budget, after.measure):
        return None
    entries = [
        _plain_entry(after.entry(name))
        if noted is None
        else {"id": name, "done": [one if isinstance(one, int) else to_json(one) for one in noted]}
        for name, noted in after.changes.items()
    ]
    scope = {} if _scope(before) == _scope(after) else _scope(after)
    if before.versions != after.versions:
        if after.versions[:-1] != before.versions:
            return None  # the oldest was dropped
        scope["version"] = after.versions[-1].to_json()
    return {**scope, "entries": entries} if entries or scope else {}


def apply_changes(state: LedgerState, changes: list[Any]) -> LedgerState:
    """The state after the changes of some edits.

    Raises:
        ValueError: they are none.
    """
    state = state.draft() if changes else state
    # charges of one run, which take less time together
    of_run, charges = "", list[Event]()
    try:
        for change in changes:
            if "adjacency" in change:
                state.adjacency, state.unit = _read_scope(change)
            if "version" in change:
                state.versions = (*state.versions, DataVersion.from_json(change["version"]))
            for data in change["entries"]:
                done = data.get("done")
                if data["id"] != of_run or done is None:
                    state.charge_in_turn(of_run, charges)
                    of_run, charges = data["id"], []
                if done is None:
                    state.restore(_entry(data))
                    continue
                for one in done:
                    if not isinstance(one, int):
                        charges.append(from_json(one))
                        continue
                    state.charge_in_turn(of_run, charges)
                    charges = []
                    state.pay(of_run, one)
        state.charge_in_turn(of_run, charges)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"a line has other fields than a change: {str(error)[:200]}") from error
    return state


def read_state(body: Any) -> LedgerState:
    """The state that `plain_state` wrote.

    Raises:
        ValueError: anything else.
    """
    try:
        body = {**LATER_OF_STATE, **body}
        budget = None if body["budget"] is None else Budget(**body["budget"])
        adjacency, unit = _read_scope(body)
        measure = require_measure(body["measure"], budget)
        entries = [_entry(entry) for entry in body["entries"]]
        if not isinstance(owner := body["owner"], str) or len(owner) > _LONGEST:
            raise ValueError(f"its owner: expected a text of at most {_LONGEST} characters")
        versions = tuple(map(DataVersion.from_json, body["versions"]))
        return LedgerState(budget, measure, adjacency, unit, entries, owner, versions)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it has other fields than a ledger: {str(error)[:200]}") from error


def _read_scope(data: dict[str, Any]) -> tuple[Adjacency | None, PrivacyUnit | None]:
    return (
        None if data["adjacency"] is None else Adjacency.parse(data["adjacency"]),
        None if data["unit"] is None else PrivacyUnit(**data["unit"]),
    )


def _entry(data: dict[str, Any]) -> RunEntry:
    data = {**LATER, **data}
    approved, spent = from_json(data["approved"]), from_json(data["spent"])
    texts = {name: data[name] for name in _TEXTS}
    flags = {name: data[name] for name in _FLAGS}
    if not all(isinstance(text, str) and len(text) <= _LONGEST for text in texts.values()):
        raise ValueError("an entry has something else than short texts")
    if not all(isinstance(flag, bool) for flag in flags.values()):
        raise ValueError("an entry has other flags than yes and no")
    if not isinstance(approved, Composed) or not isinstance(spent, Composed):
        raise ValueError("an entry has fields of other types")
    if set(data) != {*texts, *flags, *_EVENTS}:
        raise ValueError("an entry has other fields")
    if flags["waiting"] and (not flags["open"] or spent != NOTHING):
        raise ValueError("an entry that waits was begun or closed")
    return RunEntry(**texts, **flags, approved=approved, spent=spent)
