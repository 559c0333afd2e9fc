"""Epsilons of privlearn and of its peers beside the truth in 60-digit arithmetic, on the same
random plans.

`python bench/accounting_peers.py [--quick] [--json] [--plans N]`. Plans are those of
`tests/accounting/exact_plans.py` that are made of Poisson samples or of Gaussian releases, at
deltas of at least `--delta`. The truth is an interval by `tests/accounting/exact_oracle.py`
(python-flint); a figure is below the truth if it is below that interval, and loose by what it
exceeds it, relatively. Peers: dp-accounting on its usual grid, with pessimistic and with optimistic
estimates (those are lower bounds, below the truth by design); prv-accountant, upper bound at an
error of 1 % of the truth; AutoDP, whose figures are by Renyi DP. A peer that raises, or gives no
finite number, has failed.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import common
import numpy as np
from rich.console import Console
from rich.table import Table

from privlearn.core.accounting.events import tally
from privlearn.core.accounting.mechanisms import Gaussian, PoissonSampled

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.accounting import exact_moments, exact_oracle
from tests.accounting.exact_plans import Case, random_case

GRID = 1e-4
#: Sampling rate, noise multiplier and number of steps of each part of a plan.
Parts = list[tuple[float, float, int]]


def parts(case: Case) -> Parts:
    """What the plan is made of."""
    out = []
    for leaf, times in tally(case.event).items():
        rate, inner = (
            (leaf.sampling_rate, leaf.event) if isinstance(leaf, PoissonSampled) else (1.0, leaf)
        )
        assert isinstance(inner, Gaussian)
        out.append((rate, inner.noise_multiplier, times))
    return out


def by_privlearn(case: Case, truth: float) -> float:
    """What a user is told."""
    return case.claimed()


def by_dp_accounting(case: Case, *, pessimistic: bool) -> float:
    """Privacy loss distributions."""
    from dp_accounting.pld import privacy_loss_distribution as peer

    total = None
    for rate, sigma, times in parts(case):
        one = peer.from_gaussian_mechanism(
            sigma,
            sampling_prob=rate,
            value_discretization_interval=GRID,
            pessimistic_estimate=pessimistic,
        ).self_compose(times)
        total = one if total is None else total.compose(one)
    assert total is not None
    return float(total.get_epsilon_for_delta(case.delta))


def by_prv_accountant(case: Case, truth: float) -> float:
    """Privacy random variables, with an error that is a hundredth of the truth."""
    from prv_accountant import PoissonSubsampledGaussianMechanism, PRVAccountant

    laws = [
        PoissonSubsampledGaussianMechanism(sampling_probability=q, noise_multiplier=s)
        for q, s, _ in parts(case)
    ]
    counts = [times for *_, times in parts(case)]
    accountant = PRVAccountant(
        laws, eps_error=0.01 * truth, delta_error=case.delta / 1000, max_self_compositions=counts
    )
    return float(accountant.compute_epsilon(case.delta, counts)[2])


def by_autodp(case: Case, truth: float) -> float:
    """Renyi DP."""
    from autodp.mechanism_zoo import GaussianMechanism
    from autodp.transformer_zoo import AmplificationBySampling, Composition

    sampled = AmplificationBySampling(PoissonSampling=True)
    ones = [
        GaussianMechanism(sigma)
        if rate == 1
        else sampled(GaussianMechanism(sigma), rate, improved_bound_flag=True)
        for rate, sigma, _ in parts(case)
    ]
    return float(Composition()(ones, [times for *_, times in parts(case)]).get_approxDP(case.delta))


#: By name: the module that it needs, and what it says.
ACCOUNTANTS: dict[str, tuple[str, Callable[[Case, float], float]]] = {
    "privlearn": ("privlearn", by_privlearn),
    "dp-accounting, pessimistic": (
        "dp_accounting",
        lambda case, _: by_dp_accounting(case, pessimistic=True),
    ),
    "dp-accounting, optimistic": (
        "dp_accounting",
        lambda case, _: by_dp_accounting(case, pessimistic=False),
    ),
    "prv-accountant, error 1 %": ("prv_accountant", by_prv_accountant),
    "AutoDP": ("autodp", by_autodp),
}


@dataclass
class Row:
    """The figures of one accountant over all plans: relative distances from the truth, and
    seconds.
    """

    name: str
    loose: list[float]
    seconds: list[float]
    below: int = 0
    failed: int = 0

    def plain(self) -> dict[str, str | float]:
        """The row as the JSON output has it."""
        loose = sorted(self.loose) or [math.nan]
        return {
            "accountant": self.name,
            "answers": len(self.loose),
            "failed": self.failed,
            "below": self.below,
            "median": statistics.median(loose),
            "within_a_thousandth": sum(x <= 1e-3 for x in loose) / len(loose),
            "most": loose[-1],
            "seconds": statistics.median(self.seconds or [math.nan]),
            "slowest": max(self.seconds or [math.nan]),
        }


def compare(plans: int, least: float) -> list[Row]:
    """All accountants that are installed, on this many plans that the oracle decides."""
    exact_moments.MOST_TERMS = 1_000_000  # the quick ones
    rows = {name: Row(name, [], []) for name, (needs, _) in ACCOUNTANTS.items() if find_spec(needs)}
    seed = judged = 0
    while judged < plans:
        seed += 1
        case = random_case(seed, ("gaussian", "poisson", "schedule"))
        if case.delta < least:
            continue
        try:
            truth = exact_oracle.truth(case.event, case.delta)
        except exact_moments.Undecided:
            continue
        if truth.low <= 1e-3:
            continue
        judged += 1
        for name, row in rows.items():
            start = time.perf_counter()
            try:
                with warnings.catch_warnings(), np.errstate(all="ignore"):
                    warnings.simplefilter("ignore")
                    epsilon = ACCOUNTANTS[name][1](case, truth.low)
            except Exception:
                epsilon = math.nan
            row.seconds.append(time.perf_counter() - start)
            if not math.isfinite(epsilon):
                row.failed += 1
                continue
            row.below += epsilon * (1 + 1e-12) < truth.low
            row.loose.append(epsilon / truth.high - 1)
        print(f"{judged} of {plans}", file=sys.stderr)
    return list(rows.values())


def show(rows: list[Row]) -> None:
    """Print a table."""
    table = Table(title="beside the truth", title_justify="left")
    for heading in rows[0].plain():
        table.add_column(heading.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(
            *(value if isinstance(value, str) else f"{value:.3g}" for value in row.plain().values())
        )
    Console(highlight=False, width=None if sys.stdout.isatty() else 120).print(table)


if __name__ == "__main__":
    parser = common.parser(
        __file__, "Accountants beside the truth: looseness, figures that are too small, time."
    )
    parser.add_argument("--plans", type=int, default=100)
    parser.add_argument("--delta", type=float, default=1e-10)
    options = parser.parse_args()
    rows = compare(5 if options.quick else options.plans, options.delta)
    if options.json:
        print(json.dumps({"rows": [row.plain() for row in rows]}, indent=2))
    else:
        show(rows)
