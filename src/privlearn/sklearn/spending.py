"""What fits cost: the ledger that an estimator shares with its clones, and what is said of a fit
afterwards.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, final

from privlearn._checks import count
from privlearn._display import Described, Summary, shortened
from privlearn.core.accounting import accountant
from privlearn.core.accounting.account import Planned
from privlearn.core.accounting.budget import Budget
from privlearn.core.accounting.events import Event, Repeated, compose
from privlearn.core.accounting.guarantee import Guarantee, require_same
from privlearn.core.accounting.ledger import Ledger, Releases
from privlearn.core.accounting.ledgers.fit import least_budget
from privlearn.core.accounting.tradeoff import TradeOff, tradeoff
from privlearn.core.plan import AbstractPlan
from privlearn.core.processes import require_one_process
from privlearn.core.streams import Streams
from privlearn.errors import BadInput, UnsupportedEvent, warn

#: A ledger has one run at a time, and searches may fit in several threads.
_ONE_FIT = threading.RLock()
#: Why nothing is claimed of fits with a seed.
SEEDED = (
    "the noise follows from a seed, which anyone who knows it can take off: leave out random_state"
)


@final
class SharedFits:
    """The ledger that an estimator shares with all its clones and copies, where it was given none.

    It has no limit and only records. Copies of it are itself, so that no clone has a budget of its
    own; one that was pickled has no ledger any more, and takes no fit.

    Attributes:
        ledger: what fits are charged to; None behind a pickle.
        fits: how many there were, on whatever ledger.
        undeclared: what was read off private rows in some fit: from then on nothing is claimed for
            all fits together.
    """

    def __init__(self, ledger: Ledger | None) -> None:
        self.ledger = ledger
        self.fits = 0
        self.undeclared: set[str] = set()

    def __copy__(self) -> SharedFits:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedFits:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedFits, (None,)

    def require_ledger(self) -> Ledger:
        """The ledger.

        Raises:
            BadInput: it stayed in another process.
        """
        if self.ledger is None:
            raise BadInput(
                "this estimator was pickled, and the ledger that it shares with its clones stayed "
                "behind: a fit here would be recorded nowhere. Fit with n_jobs=None, or give "
                "ledger=pv.Ledger.open(path, budget)"
            )
        return self.ledger


@final
class Held:
    """What a release returned. Copies are itself; behind a pickle it is gone, unless its ledger
    lives in a file.
    """

    def __init__(self, result: Any) -> None:
        self.result = result

    def __copy__(self) -> Held:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Held:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        has_file = self.result is not None and self.result.ledger.path is not None
        return Held, (self.result if has_file else None,)


@final
@dataclass(frozen=True, repr=False)
class FitPrivacy(Described):
    """What a fit guarantees, and what all fits on its ledger up to it cost together.

    Attributes:
        fit: the guarantee of this fit by itself, whatever was released before; None where nothing
            is claimed.
        total: of everything on the ledger; None where nothing is claimed. Its `kind` is "estimate"
            for several fits on a ledger without a limit: it would be the guarantee if they had been
            fixed beforehand.
        fits: how many the estimator and its clones had so far.
        undeclared: what was read off the private rows, or why else nothing is claimed.
        attacks: the bound on membership attacks that goes with `total`; None where that is no
            guarantee.
    """

    fit: Guarantee | None
    total: Guarantee | None
    fits: int
    undeclared: tuple[str, ...] = ()
    attacks: TradeOff | None = None

    @property
    def epsilon(self) -> float:
        """Of all fits together; infinite where nothing is claimed."""
        return math.inf if self.total is None else self.total.epsilon

    @property
    def delta(self) -> float:
        """What `epsilon` is stated at; 1 where nothing is claimed."""
        return 1.0 if self.total is None else self.total.delta

    def _summary(self) -> Summary:
        if self.total is None:
            return Summary(
                "FitPrivacy: nothing is claimed", [("because", "; ".join(self.undeclared))]
            )
        said = [] if self.attacks is None else self.attacks.describe(self.total.unit).split("\n")
        return Summary(
            f"FitPrivacy: epsilon {self.epsilon:.4g} at delta {self.delta:g}",
            [
                ("this fit", str(self.fit)),
                (f"all {self.fits} fits", str(self.total)),
                *(("attacks", sentence) for sentence in said),
            ],
        )


def spend(
    shared: SharedFits,
    estimator_ledger: Ledger | None,
    plan: Planned,
    reasons: tuple[str, ...],
    streams: Streams,
    delta: float,
    release: Callable[[Ledger], Any],
) -> tuple[Any, FitPrivacy]:
    """Carry out one release, and say what it cost.

    Args:
        shared: of the estimator.
        estimator_ledger: its `ledger`, which comes first; None: the shared one.
        plan: what is released.
        reasons: what was read off the private rows, so that nothing is claimed; empty: nothing was.
        streams: the random streams; nothing is claimed where they have a seed, either.
        delta: where epsilon is stated, unless the ledger has a budget with a delta.
        release: does it, on the ledger.

    Raises:
        BadInput: a ledger was given, whose guarantee would not hold, for reasons; or it is none.
        BudgetExceeded: by the ledger.
    """
    require_one_process("a fit of an estimator")
    if estimator_ledger is not None and not isinstance(estimator_ledger, Ledger):
        raise BadInput(
            f"ledger is a {type(estimator_ledger).__name__}: expected a privlearn Ledger, or None "
            "for one that records"
        )
    if estimator_ledger is not None and reasons:
        raise BadInput(
            f"the guarantee of the ledger that was given would not hold: {'; '.join(reasons)}"
        )
    ledger = shared.require_ledger() if estimator_ledger is None else estimator_ledger
    all_reasons = (*reasons, SEEDED) if streams.seeded else reasons
    with _ONE_FIT:
        before = ledger.event
        try:
            result = release(ledger)
        finally:
            if ledger.event != before:  # also of a fit that fails on the way
                shared.fits += 1
                shared.undeclared |= set(all_reasons)
        # Read within the lock, and once: what follows is of this ledger as the fit left it.
        claim, spent, fits, undeclared = (
            _claim(ledger),
            ledger.event,
            shared.fits,
            tuple(sorted(shared.undeclared)),
        )
    stated_delta = (
        delta if ledger.budget is None or ledger.budget.delta is None else ledger.budget.delta
    )
    alone = None if all_reasons else _price(plan.event(), plan, stated_delta)
    if undeclared:
        total, attacks = None, None
    elif claim is None:
        total, attacks = replace(_price(spent, plan, stated_delta), kind="estimate"), None
    else:
        total = _price(claim, plan, stated_delta)
        attacks = tradeoff(claim, plan.neighbours, plan.unit.group_size)
    privacy = FitPrivacy(alone, total, fits, undeclared, attacks)
    _warn(all_reasons, privacy)
    return result, privacy


def _price(event: Event, plan: Planned, delta: float) -> Guarantee:
    """The guarantee of an event, for the neighbours and the unit that the plan shares with its
    ledger.
    """
    priced = accountant.guarantee(event, plan.neighbours, delta, plan.unit.group_size)
    return replace(priced, rows_per_person=plan.unit.rows_per_person)


def _claim(ledger: Ledger) -> Event | None:
    """The event that a guarantee of all fits is computed from; None where nothing limits what they
    come to.
    """
    try:
        return ledger.claim
    except UnsupportedEvent:
        return None


def _warn(reasons: tuple[str, ...], privacy: FitPrivacy) -> None:
    """Warn the caller of `fit` if nothing is claimed, or if several fits add up without a limit."""
    if reasons:
        warn(f"nothing is claimed of this fit: {'; '.join(reasons)}")
    elif privacy.total is not None and privacy.total.kind != "bound":
        warn(
            f"this is fit {privacy.fits} of this estimator and its clones: all that they released "
            f"is together {privacy.total}, and nothing limits it. Give "
            "ledger=pv.Ledger(pv.Budget(E, D)), which refuses what goes beyond; "
            "pv.sklearn.DPSearchCV searches within one budget"
        )


def budget_for(
    *plans: AbstractPlan | Releases, fits: int = 1, delta: float | None = None
) -> Budget:
    """What so many fits of a pipeline with these plans cost together: the least budget that has
    room for all of them.

    Fits come one after another and may depend on earlier ones, so they are counted by the ledger's
    filter.

    A search of c candidates by k folds fits c k times, and once more unless `refit=False`;
    cross-validation k times.

    Args:
        plans: settled, of each of the estimators that share the ledger; that of a fitted one is
            `result_.plan`.
        fits: how many.
        delta: for a budget of epsilon at this delta; None for one of rho.

    Raises:
        BadInput: plans that are none, are not settled, or protect different groups; or numbers out
            of range.
        AdjacencyMismatch: different kinds of neighbour.

    >>> from privlearn.methods.statistics import FisherPlan
    >>> plan = FisherPlan(2, 30, 5, row_norm=2.7).calibrate(rho=0.02)
    >>> print(budget_for(plan, fits=16), "or", budget_for(plan, fits=16, delta=1e-5))
    rho 0.32 or epsilon 3.38693 at delta 1e-05
    """
    for plan in plans:
        require_plan(plan)
        require_same(plans[0].neighbours, plan.neighbours, "a plan")
    if not plans or len({plan.unit for plan in plans}) > 1:
        raise BadInput(f"there are {len(plans)} plans: expected one or more, all of one group_size")
    event = Repeated(compose(plan.event() for plan in plans), count("fits", fits))
    group = plans[0].unit.group_size
    any_limit = (
        Budget(rho=1.0, group_size=group) if delta is None else Budget(1.0, delta, group_size=group)
    )
    spent = any_limit.spent(event, plans[0].neighbours)
    if delta is None:
        return Budget(rho=spent, group_size=group)
    fixed = Budget(spent, delta, group_size=group)
    if fits == 1 and len(plans) == 1:
        return fixed
    return least_budget(fixed, plans[0].event(), event, plans[0].neighbours)


def require_plan(plan: object, kind: type[AbstractPlan] = AbstractPlan) -> None:
    """Raise `BadInput` unless `plan` is a plan of this kind."""
    if not isinstance(plan, kind) and not (kind is AbstractPlan and isinstance(plan, Releases)):
        raise BadInput(
            f"plan is {shortened(repr(plan), 60)}: expected a settled {kind.__name__}, such as "
            "pv.statistics.FisherPlan(...).calibrate(...)"
        )
