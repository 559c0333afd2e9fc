"""Random plans of all kinds, and what the accountant says of them beside the exact oracle.

`python -m tests.accounting.exact_plans 0 1000 60` judges a thousand plans, each for 60 seconds at
most, and prints one line of JSON for each; `0 200 30 partitions` judges random partitions with
several levels of noise.
"""

from __future__ import annotations

import json
import math
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from privlearn.core.accounting import accountant
from privlearn.core.accounting.events import Event, Repeated, compose
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.mechanisms import (
    FixedBatches,
    Gaussian,
    Laplace,
    Partitioned,
    PoissonSampled,
    PureDP,
    RandomisedResponse,
    Selection,
)
from tests.accounting import exact_moments, exact_oracle


@dataclass(frozen=True)
class Case:
    """A plan, for whom and where its epsilon is stated."""

    kind: str
    event: Event
    adjacency: Adjacency
    delta: float
    group_size: int = 1

    def claimed(self) -> float:
        return accountant.guarantee(self.event, self.adjacency, self.delta, self.group_size).epsilon


@dataclass(frozen=True)
class Verdict:
    """What is claimed, between which figures the truth lies (none if undecided), and the seconds of
    both.
    """

    case: Case
    claimed: float
    truth: exact_oracle.Bracket | None
    seconds: tuple[float, float]

    @property
    def below(self) -> bool:
        """Whether the claim is surely too small."""
        return self.truth is not None and self.claimed < self.truth.low

    @property
    def loose(self) -> float:
        """By how much the claim is too large, relatively; 0 if undecided."""
        if self.truth is None or self.claimed == self.truth.high:
            return 0.0
        return self.claimed / self.truth.high - 1 if self.truth.high > 0 else math.inf

    def __str__(self) -> str:
        truth = (self.truth.low, self.truth.high) if self.truth else None
        return f"{self.case}: claimed {self.claimed!r}, truth {truth}, loose {self.loose:.1e}"


def _too_long(*_: object) -> None:
    raise exact_moments.Undecided("it takes too long")


def judge(case: Case, claimed: float | None = None, limit: int = 0) -> Verdict:
    """`case` beside the oracle, which has `limit` seconds, if any; `claimed` stands for what the
    accountant says.
    """
    start = time.perf_counter()
    claimed = case.claimed() if claimed is None else claimed
    middle = time.perf_counter()
    if limit:
        signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(limit)
    try:
        truth = exact_oracle.truth(case.event, case.delta, case.group_size)
    except exact_moments.Undecided:
        truth = None
    finally:
        signal.alarm(0)
    return Verdict(case, claimed, truth, (middle - start, time.perf_counter() - middle))


def _spread(made_up: np.random.Generator, low: float, high: float) -> float:
    return float(10 ** made_up.uniform(math.log10(low), math.log10(high)))


def _times(
    made_up: np.random.Generator, each: float, most: float = 1e6, total: float = 60.0
) -> int:
    """How often something with this variance of the loss runs, so that the whole is neither nothing
    nor no privacy.
    """
    low, high = max(1.0, 1e-4 / each), min(most, total / each)
    return round(_spread(made_up, low, max(low, high)))


def _sampled(made_up: np.random.Generator, total: float = 60.0) -> Event:
    rate, sigma = _spread(made_up, 1e-5, 1.0), _spread(made_up, 0.4, 20.0)
    each = math.log1p(rate**2 * math.expm1(sigma**-2))
    return Repeated(PoissonSampled(rate, Gaussian(sigma)), _times(made_up, each, total=total))


def _gaussian(made_up: np.random.Generator, total: float = 60.0) -> Event:
    sigma = _spread(made_up, 0.4, 200.0)
    return Repeated(Gaussian(sigma), _times(made_up, sigma**-2, total=total))


def _schedule(made_up: np.random.Generator) -> Event:
    """Several noise multipliers at one sampling rate."""
    rate, sigma = _spread(made_up, 1e-4, 1.0), _spread(made_up, 0.6, 10.0)
    decay, levels = made_up.uniform(0.7, 1.0), int(made_up.integers(2, 6))
    each = math.log1p(rate**2 * math.expm1((sigma * decay ** (levels - 1)) ** -2))
    steps = _times(made_up, each * levels, 1e5)
    return compose(
        Repeated(PoissonSampled(rate, Gaussian(sigma * decay**j)), steps) for j in range(levels)
    )


def _response(made_up: np.random.Generator, most: int) -> Event:
    return Repeated(
        RandomisedResponse(_spread(made_up, 0.01, 3.0), int(made_up.integers(2, 12))),
        int(made_up.integers(1, most)),
    )


def _laplace(made_up: np.random.Generator, most: int) -> Event:
    return Repeated(Laplace(_spread(made_up, 0.3, 100.0)), int(made_up.integers(1, most)))


def _partition(made_up: np.random.Generator) -> Event:
    batches, sigma = int(_spread(made_up, 2, 3000)), _spread(made_up, 0.6, 8.0)
    each = math.log1p(math.expm1(sigma**-2) / batches)
    return Repeated(Partitioned(batches, Gaussian(sigma)), _times(made_up, each, 400.0, 30.0))


def _mixed(made_up: np.random.Generator) -> Event:
    """A Gaussian part, and something else of each of several kinds."""
    parts = [_sampled(made_up, 4.0) if made_up.random() < 0.6 else _gaussian(made_up, 4.0)]
    others: list[Callable[[], Event]] = [
        lambda: Laplace(_spread(made_up, 2.0, 100.0)),
        lambda: PureDP(_spread(made_up, 0.01, 0.5)),
        lambda: Repeated(
            RandomisedResponse(_spread(made_up, 0.01, 0.3), 5), int(made_up.integers(1, 6))
        ),
        lambda: _gaussian(made_up, 4.0),
        lambda: FixedBatches(Gaussian(_spread(made_up, 1.0, 20.0))),
    ]
    return compose(
        [*parts, *(others[j]() for j in made_up.choice(5, made_up.integers(1, 3), replace=False))]
    )


#: Kinds with their shares.
KINDS = {
    "gaussian": 0.08,
    "poisson": 0.34,
    "schedule": 0.14,
    "laplace": 0.06,
    "response": 0.07,
    "atoms": 0.05,
    "mixed": 0.12,
    "group": 0.07,
    "selection": 0.03,
    "partition": 0.04,
}


def random_case(seed: int, kinds: Sequence[str] = tuple(KINDS)) -> Case:
    """The plan of a seed: delta from 1e-14 to 1e-3, rates from 1e-5 to 1, noise from .4, counts up
    to a million.
    """
    made_up = np.random.default_rng((25, seed))
    shares = np.array([KINDS[kind] for kind in kinds])
    kind = str(made_up.choice(list(kinds), p=shares / shares.sum()))
    delta, size = _spread(made_up, 1e-14, 1e-3), 1
    match kind:
        case "gaussian":
            event: Event = compose(_gaussian(made_up, 20.0) for _ in range(made_up.integers(1, 4)))
        case "poisson":
            event = _sampled(made_up)
        case "schedule":
            event = _schedule(made_up)
        case "laplace":
            event = _laplace(made_up, 40)
        case "response":
            event = _response(made_up, 400)
        case "atoms":
            event = compose(
                [_laplace(made_up, 8), _response(made_up, 12), PureDP(_spread(made_up, 0.01, 1.0))]
            )
        case "mixed":
            event = _mixed(made_up)
        case "group":
            size = int(made_up.integers(2, 6))
            event = _sampled(made_up, 4.0)
        case "selection":
            event = compose(
                [
                    Repeated(Selection(_spread(made_up, 0.01, 0.3)), int(made_up.integers(1, 30))),
                    _gaussian(made_up, 4.0),
                ]
            )
        case _:
            event = _partition(made_up)
    adjacency = (
        Adjacency.ADD_REMOVE
        if kind in ("poisson", "schedule", "group", "partition")
        else Adjacency.ZERO_OUT
    )
    return Case(kind, event, adjacency, delta, size)


def partitions_case(seed: int) -> Case:
    """A plan of random partitions with two to four levels of noise, of a size that the oracle can
    decide.
    """
    made_up = np.random.default_rng((27, seed))
    batches, sigma = int(_spread(made_up, 2, 300)), _spread(made_up, 0.8, 8.0)
    decay, levels = made_up.uniform(0.8, 1.0), int(made_up.integers(2, 5))
    each = math.log1p(math.expm1((sigma * decay ** (levels - 1)) ** -2) / batches)
    epochs = _times(made_up, each * levels, 100.0, 20.0)
    parts = [
        Repeated(Partitioned(batches, Gaussian(sigma * decay**j)), epochs) for j in range(levels)
    ]
    return Case("partitions", compose(parts), Adjacency.ADD_REMOVE, _spread(made_up, 1e-9, 1e-3))


def main(first: int, last: int, limit: int = 0, kind: str = "") -> None:
    for seed in range(first, last):
        found = judge(
            partitions_case(seed) if kind == "partitions" else random_case(seed), limit=limit
        )
        truth = (found.truth.low, found.truth.high) if found.truth else None
        line = {
            "seed": seed,
            "kind": found.case.kind,
            "claimed": found.claimed,
            "truth": truth,
            "below": found.below,
            "loose": found.loose,
            "seconds": found.seconds,
            "case": str(found.case),
        }
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]), *sys.argv[4:])
