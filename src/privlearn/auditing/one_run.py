"""What guesses about the canaries of one run prove, without taking the canaries for independent
trials.

Each of m canaries took part or not by a fair coin of its own. The attacker sees what the run
released, and guesses at r of them. Two bounds on how many guesses are right hold for every
mechanism that keeps its claim, however its outputs depend on each other: that of Steinke, Nasr and
Jagielski (2023) for (epsilon, delta), and that of Mahloujifar, Melis and Chaudhuri (2024) for a
trade-off curve, which is much nearer to the truth where the curve is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from privlearn._checks import between
from privlearn.auditing.bounds import Floats
from privlearn.core.accounting.tradeoff import TradeOff
from privlearn.errors import BadInput

#: Shares of the canaries that are guessed at: those with the highest and the lowest scores.
_GUESSED = (0.05, 0.2, 0.4, 1.0)
#: What rounding may add to a sum of shares: so much more is needed to refute.
_ROUNDING = 1e-9
_FURTHEST, _ACCURACY = 1e3, 1e-4

Bools = NDArray[np.bool_]
#: The least false-positive rate that a true-positive rate needs.
Inverse = Callable[[float], float]


@final
@dataclass(frozen=True)
class Guesses:
    """Guesses about which canaries took part; how many are made is fixed before the coins are
    looked at.

    Attributes:
        canaries: examples of which each took part or not by a fair coin.
        made: for how many of them the attack says which.
        right: for how many of these it is right.
    """

    canaries: int
    made: int
    right: int

    def __post_init__(self) -> None:
        if not 0 <= self.right <= self.made <= self.canaries:
            raise BadInput(
                f"{self.right} of {self.made} guesses at {self.canaries} canaries: expected "
                "ascending counts"
            )

    def too_many(self, inverse: Inverse, error: float) -> bool:
        """Whether so many are right with a probability below `error` in any run that keeps to a
        trade-off curve.

        Mahloujifar, Melis and Chaudhuri 2024. Let p_l be the probability that l guesses are right,
        A_i the sum of l p_l / m over l >= i, and B_i that of (r - l) p_l / m. Another side of one
        coin makes its right guess wrong, and l right ones l - 1. The trade-off curve F bounds the
        one by the other for each coin and, being concave, on average over coins: A_i <= F(B_(i-1)).
        If P(right >= v) were `error` or more, then the A_i and B_i below v would be at least those
        that follow from A_v = v error / m and B_v = (r - v) error / m with equality, level by level
        (by induction: both A_i and A_i - i/(r - i) B_i are at least as large). As A_0 + B_0 = r /
        m, this is impossible where those exceed it.

        Args:
            inverse: the least false-positive rate at each true-positive rate, by a concave curve
                that bounds attacks in both directions.
            error: above 0, at most 1.
        """
        whole = self.made / self.canaries * (1 + _ROUNDING)
        right, wrong = (
            count * error / self.canaries for count in (self.right, self.made - self.right)
        )
        for level in range(self.right, 0, -1):
            if right + wrong > whole:
                return True
            least = max(wrong, inverse(min(right, 1.0)))
            right += (level - 1) / (self.made - level + 1) * (least - wrong)
            wrong = least
        return right + wrong > whole

    def contradict(self, epsilon: float, delta: float, error: float) -> bool:
        """Whether a run that is (epsilon, delta)-DP has so many right guesses at most as often as
        `error`.

        By the smaller of two bounds on the same probability, so that nothing has to be corrected
        for.
        """
        if one_run_p_value(self.canaries, self.made, self.right, epsilon, delta) <= error:
            return True
        growth = math.exp(epsilon)
        return self.too_many(
            lambda rate: max(0.0, (rate - delta) / growth, 1 - delta - growth * (1 - rate)), error
        )


@final
@dataclass(frozen=True)
class OneRun:
    """Guesses at several shares of one run's canaries, of which the most telling counts.

    Attributes:
        guesses: at each share.
        error: that each may err with, so that all together err at most as often as is said.
    """

    guesses: tuple[Guesses, ...]
    error: float

    @classmethod
    def of(cls, scores: Floats, coins: Bools, confidence: float) -> OneRun:
        """Guess that canaries with the highest scores took part, and that those with the lowest did
        not.

        Args:
            scores: one for each canary; larger ones mean that it took part.
            coins: which did, each by a fair coin of its own.
            confidence: of all that is said.
        """
        order, outcomes = np.argsort(scores, kind="stable"), []
        for share in _GUESSED:
            half = max(1, int(share * len(scores) / 2))
            right = int(coins[order[-half:]].sum() + (~coins[order[:half]]).sum())
            outcomes.append(Guesses(len(scores), 2 * half, right))
        return cls(
            tuple(outcomes), (1 - between("confidence", confidence, 0.5, 1 - 1e-9)) / len(outcomes)
        )

    def epsilon(self, delta: float) -> float:
        """The largest epsilon that is refuted at `delta`, whatever the mechanism; 0 if none."""
        return max(
            one_run_epsilon(outcome.canaries, outcome.made, outcome.right, delta, 1 - self.error)
            for outcome in self.guesses
        )

    def refute(self, curve: TradeOff) -> bool:
        """Whether no run with this trade-off curve allows the guesses, but for errors of 1 -
        confidence.
        """
        return any(
            outcome.too_many(curve.false_positive_rate, self.error) for outcome in self.guesses
        )


def one_run_p_value(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """How likely as many right guesses are, at most, if a run with independent coins is (epsilon,
    delta)-DP.

    The number of right guesses is below a binomial with success probability e^epsilon / (1 +
    e^epsilon), but for what delta allows (Steinke, Nasr and Jagielski 2023, Theorem 5.2).

    Args:
        canaries: examples of which each took part or not by a fair coin.
        guesses: for how many of them the attack says which.
        right: for how many of these it is right.
        epsilon: claimed, for add/remove of one example.
        delta: claimed.
    """
    share = 1 / (1 + math.exp(-epsilon))
    tail = float(binom.sf(right - 1, guesses, share))
    steps = np.arange(1, right + 1)
    masses = np.cumsum(binom.pmf(right - steps, guesses, share)) / steps
    return min(1.0, tail + 2 * canaries * delta * float(masses.max(initial=0.0)))


def one_run_epsilon(
    canaries: int, guesses: int, right: int, delta: float, confidence: float
) -> float:
    """The largest epsilon that as many right guesses refute, at `delta` and at the confidence; 0 if
    none.

    Nothing is assumed but fair and independent coins, and that the number of guesses is fixed
    beforehand.
    """
    outcome, error = (
        Guesses(canaries, guesses, right),
        1 - between("confidence", confidence, 0.5, 1 - 1e-9),
    )
    if not outcome.contradict(0.0, delta, error):
        return 0.0
    low, high = 0.0, 1.0
    while outcome.contradict(high, delta, error):
        low, high = high, 2 * high
        if high > _FURTHEST:
            return low
    while high - low > _ACCURACY:
        middle = (low + high) / 2
        low, high = (middle, high) if outcome.contradict(middle, delta, error) else (low, middle)
    return low
