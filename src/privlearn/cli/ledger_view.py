"""A view of a privacy ledger: what was spent on what, by whom, when, and what remains.

Every figure is computed from the events that the ledger holds, at the moment when it is viewed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from privlearn.core.accounting import accountant
from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.events import Composed, Event, compose, walk
from privlearn.core.accounting.filters import described, share
from privlearn.core.accounting.guarantee import Adjacency, PrivacyUnit, readable
from privlearn.core.accounting.ledgers.ledger_database import DATA, LedgerDatabase
from privlearn.core.accounting.ledgers.ledger_state import NOTHING, LedgerState, RunEntry
from privlearn.errors import UnsupportedEvent

#: What a figure of a filter is: a part of its limit, times the budget's epsilon.
SHARE = "share of the limit"
_USUAL_DELTA = 1e-5
#: Points of the course over time that are priced: each takes as long as a guarantee.
_MOST_POINTS = 60


@final
@dataclass(frozen=True)
class LedgerView:
    """The ledger of a data set at one moment.

    Attributes:
        state: what it holds; approvals that expired are closed in it.
        figures: that in plain values, as `--json` prints it.
    """

    state: LedgerState
    figures: dict[str, Any]

    @classmethod
    def of(
        cls, database: LedgerDatabase, delta: float | None = None, *, history: bool = False
    ) -> LedgerView:
        """The view of a ledger, all of whose rows are checked.

        Args:
            database: where the ledger is.
            delta: at which epsilons are stated; None: the budget's.
            history: whether the spending over time is computed.

        Raises:
            BadInput: there is no ledger, or it is damaged or edited.
        """
        stored = database.check()
        state, head = stored.current(), database.last_read
        waiting = {entry.id for entry in stored.entries if entry.waiting}
        expired = waiting - {entry.id for entry in state.entries if entry.waiting}
        figures = {
            "data": database.data or DATA,
            "owner": state.owner or None,
            "versions": len(state.versions),
            "head": None if head is None else {"number": head.number, "digest": head.digest},
            **compute_figures(state, delta, expired),
        }
        if history:
            figures["history"] = compute_history(state)
        return cls(state, figures)


def compute_figures(
    state: LedgerState, delta: float | None = None, expired: set[str] | None = None
) -> dict[str, Any]:
    """What a ledger's state comes to; `expired` are the entries whose approval ran out."""
    delta = delta or (state.budget.delta if state.budget else None) or _USUAL_DELTA
    adjacency = state.adjacency or Adjacency.ADD_REMOVE
    unit, limit = state.protects, state.limit
    try:
        total = accountant.guarantee(state.claim, adjacency, delta, unit.group_size)
    except UnsupportedEvent:
        total = None
    figures: dict[str, Any] = {
        "adjacency": state.adjacency.value if state.adjacency else None,
        "delta": delta,
        "epsilon": total.epsilon if total else None,
        "method": total.method if total else None,
        "rho": total.rho if total else None,
        "unit": str(unit),
        "adaptive": state.adaptive,
        "measure": described(limit) if limit else None,
        "epsilon_if_fixed": _price_alone(state.event, adjacency, delta, unit),
        "budget": None if state.budget is None else vars(state.budget),
        "spent_is": None,
        "left_is": None,
        "entries": [
            _describe_entry(entry, adjacency, delta, unit, expired or set())
            for entry in state.entries
        ],
    }
    if state.budget is not None:
        figures |= {
            "spent": compute_spent(state, state.entries),
            "spent_is": _name_measure(state.budget, filtered=state.adaptive),
            "left": state.budget.limit * max(0.0, 1 - _share_taken(state)),
            "left_is": _name_measure(state.budget, filtered=bool(state.entries)),
        }
    return figures


def _name_measure(budget: Budget, *, filtered: bool) -> str:
    """What a figure beside the budget is: "rho", "epsilon", or `SHARE`, as filters of epsilon
    count.
    """
    if budget.rho is not None:
        return "rho"
    return SHARE if filtered else "epsilon"


def _share_taken(state: LedgerState) -> float:
    """How much of the filter's limit is spent or set aside, from 0 to 1; all of it where there is
    no room for a filter.
    """
    if state.limit is not None:
        return share(state.limit, state.event)
    return float(any(times for _, times in walk(state.event)))


def compute_spent(state: LedgerState, entries: Sequence[RunEntry]) -> float:
    """How much of the budget the first entries of a ledger take: as the accountant prices runs that
    are fixed beforehand, or their share of the filter's limit.
    """
    assert state.budget is not None
    if not entries:
        return 0.0
    if not state.adaptive:
        adjacency = state.adjacency or Adjacency.ADD_REMOVE
        return state.budget.spent(compose(entry.claimed for entry in entries), adjacency)
    if state.limit is None:
        return state.budget.limit
    return state.budget.limit * share(state.limit, compose(entry.counts for entry in entries))


def compute_history(state: LedgerState, most: int = _MOST_POINTS) -> list[dict[str, Any]]:
    """What was spent or set aside after each run, in the order of their beginnings, in the measure
    of `spent`; empty without a budget.

    Args:
        state: of the ledger.
        most: points that are priced, evenly chosen, the last one among them.
    """
    entries = sorted(state.entries, key=lambda entry: entry.begun)
    points = min(most, len(entries)) if state.budget is not None else 0
    ends = [len(entries) * place // points for place in range(1, points + 1)]
    return [
        {
            "at": entries[end - 1].begun,
            "spent": compute_spent(state, entries[:end]),
            "run": entries[end - 1].id,
        }
        for end in ends
    ]


def _describe_entry(
    entry: RunEntry, adjacency: Adjacency, delta: float, unit: PrivacyUnit, expired: set[str]
) -> dict[str, Any]:
    if entry.id in expired or _has_expired(entry):
        state = "expired"
    elif entry.waiting:
        state = "waiting"
    else:
        state = "open" if entry.open else "closed"
    return {
        "id": entry.id,
        "what": entry.what,
        "by": entry.by,
        "begun": entry.begun,
        "state": state,
        "reserved_for": entry.reserved_for or None,
        "expires": entry.expires or None,
        "fixed_beforehand": entry.declared,
        "epsilon": _price_alone(entry.counts, adjacency, delta, unit),
        "epsilon_spent": _price_alone(entry.spent, adjacency, delta, unit),
    }


def _has_expired(entry: RunEntry) -> bool:
    """Whether an approval was closed at its time: a run that takes one up takes the time away."""
    return bool(entry.expires) and not entry.open and entry.spent == NOTHING


def _price_alone(
    event: Event, adjacency: Adjacency, delta: float, unit: PrivacyUnit
) -> float | None:
    """What `event` would cost by itself; None if that has no price."""
    if event == Composed(()):
        return 0.0
    try:
        return accountant.guarantee(event, adjacency, delta, unit.group_size).epsilon
    except UnsupportedEvent:
        return None


# In words


def write_moment(at: str) -> str:
    """A moment as people read it, to the minute."""
    return at[:16].replace("T", " ")


def write_number(value: float | None) -> str:
    """An epsilon, or a dash where there is no price."""
    return "-" if value is None else readable(value)


def describe_state(row: dict[str, Any]) -> str:
    """What has become of a run."""
    until = f" until {write_moment(row['expires'])}" if row["expires"] else ""
    if row["state"] == "waiting":
        return f"waiting for {row['reserved_for'] or 'everybody'}{until}"
    if row["state"] == "expired":
        return f"expired: approved{until}, never begun"
    return str(row["state"])


def describe_amount(figures: dict[str, Any], name: str) -> str:
    """What is "spent" or "left", with what the figure is."""
    kind, value = figures[f"{name}_is"], figures[name]
    if kind != SHARE:
        return f"{kind} {value:.6g}"
    return f"{100 * value / figures['budget']['epsilon']:.1f} % of the limit"


def describe_guarantee(view: LedgerView) -> str:
    """The guarantee of all runs together; empty if there is none."""
    figures = view.figures
    if figures["epsilon"] is None:
        return ""
    return f"epsilon {readable(figures['epsilon'])} at delta {figures['delta']:g}"


def explain_counting(view: LedgerView) -> list[str]:
    """How the runs of a ledger are counted, what of the budget is taken, and what remains."""
    figures, state = view.figures, view.state
    if not state.entries:
        return [f"Nothing was charged yet. The budget is {state.budget or 'without limit'}."]
    sentences = _explain_filter(view) if state.adaptive else _explain_budget(view)
    if state.budget is None:
        sentences.append("It only records: there is no budget.")
    if any(row["state"] == "open" for row in figures["entries"]):
        sentences.append(
            "Open runs are under way or were interrupted: continue them with --resume, or give "
            "back what they have not spent with --close RUN."
        )
    if any(row["state"] == "waiting" for row in figures["entries"]):
        sentences.append(
            "What waits was approved ahead and is set aside: a run of the same plan takes it up, "
            "and --close RUN gives it back."
        )
    return sentences


def _explain_budget(view: LedgerView) -> list[str]:
    """Of a ledger whose runs were all fixed beforehand."""
    figures, state = view.figures, view.state
    sentences = (
        ["All runs were approved before the first release."] if len(state.entries) > 1 else []
    )
    if state.budget is None:
        return sentences
    unspent = any(not entry.open and entry.claimed != entry.spent for entry in state.entries)
    more = (
        ", also for what closed runs did not spend: that they ended early may follow from results"
        if unspent
        else ""
    )
    sentences.append(
        f"The budget is {state.budget}; {state.budget.figure(figures['spent'])} of it is claimed "
        f"for what was approved{more}."
    )
    when = (
        "Runs from here on may be chosen by what was released: they"
        if state.released
        else "Runs that are approved after the first release may be chosen by it: they"
    )
    sentences.append(
        f"{when} are counted by {figures['measure'] or 'a filter'}, of which "
        f"{_percent_left(figures)} is left."
    )
    return sentences


def _explain_filter(view: LedgerView) -> list[str]:
    """Of a ledger with runs that may have been chosen after earlier results."""
    figures, state = view.figures, view.state
    fixed = write_number(figures["epsilon_if_fixed"])
    estimate = (
        f"What was spent would be epsilon {fixed} if all of it had been fixed beforehand, "
        "which is no guarantee."
    )
    if figures["epsilon"] is None:
        why = "nothing limits them" if state.budget is None else "they are past the limit"
        return [
            "There is no guarantee for all runs together: they may have been chosen after earlier "
            f"results, and {why}. {estimate}"
        ]
    assert state.budget is not None
    return [
        "Runs may have been chosen after earlier results, so the guarantee is the ledger's limit, "
        "however much of it is spent.",
        f"The limit is {figures['measure']}; "
        f"{100 * figures['spent'] / state.budget.limit:.1f} % of it is spent or set aside, "
        f"{_percent_left(figures)} is left. {estimate}",
    ]


def _percent_left(figures: dict[str, Any]) -> str:
    budget = figures["budget"]
    return f"{100 * figures['left'] / (budget['epsilon'] or budget['rho']):.1f} %"
