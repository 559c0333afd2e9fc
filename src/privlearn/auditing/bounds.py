"""What an attack's hits and false alarms prove: bounds at a stated confidence, never point
estimates.

An attack says "took part" or "did not" in trials whose truth is known. Its false-positive and
true-positive rates are bounded by Clopper and Pearson's intervals. A guarantee is refuted where
even these bounds lie above its trade-off curve (Dong, Roth and Su 2022), which bounds every attack.
That needs no assumption. How large epsilon is at least is said in two ways: from the rates and
delta alone (Kairouz et al. 2015), and under the assumption that the mechanism is of the claimed
form with some other noise, which tells far more (Nasr et al. 2023).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import beta

from privlearn._checks import between
from privlearn.core.accounting import accountant
from privlearn.core.accounting.events import Event
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.tradeoff import TradeOff, tradeoff

Floats = NDArray[np.float64]

#: The share of the trials that only choose the attack's threshold.
_PILOT = 0.2
#: Thresholds that are tried on those: quantiles of all their scores.
_THRESHOLDS = np.linspace(0.005, 0.995, 34)
#: How far above and below the claimed noise an attack's noise is looked for, and to which relative
#: accuracy.
_FURTHEST, _ACCURACY = 1e3, 1e-3


@final
@dataclass(frozen=True)
class Rates:
    """Error rates of an attack, each bounded so that both hold together at the confidence.

    Attributes:
        false_positive: at most; of trials without the example those in which the attack says that
            it took part.
        true_positive: at least; of trials with the example.
        confidence: of both bounds together.
    """

    false_positive: float
    true_positive: float
    confidence: float

    @classmethod
    def of(cls, alarms: int, without: int, hits: int, among: int, confidence: float) -> Rates:
        """From counts, by Clopper and Pearson's one-sided intervals, the error split evenly.

        Args:
            alarms: trials without the example in which the attack said that it took part.
            without: trials without the example.
            hits: trials with the example in which the attack said so.
            among: trials with the example.
            confidence: above 0 and below 1.
        """
        error = (1 - between("confidence", confidence, 0.5, 1 - 1e-9)) / 2
        high = (
            1.0 if alarms >= without else float(beta.ppf(1 - error, alarms + 1, without - alarms))
        )
        low = 0.0 if hits <= 0 else float(beta.ppf(error, hits, among - hits + 1))
        return cls(high, low, confidence)

    def refute(self, curve: TradeOff) -> bool:
        """Whether no mechanism with this trade-off curve allows the attack, but for errors of 1 -
        confidence.
        """
        return self.true_positive > curve.true_positive_rate(self.false_positive)

    def epsilon(self, delta: float) -> float:
        """The least epsilon at `delta` that allows the attack, whatever the mechanism."""
        parts = (
            (self.true_positive - delta, self.false_positive),
            (1 - self.false_positive - delta, 1 - self.true_positive),
        )
        return max(
            [0.0, *(math.log(above / below) for above, below in parts if above > 0 and below > 0)]
        )


def best_test(
    absent: Floats, present: Floats, curve: TradeOff, confidence: float
) -> tuple[int, float, int]:
    """The test that comes closest to a trade-off curve, or furthest above it; on trials that are
    there for that.

    Args:
        absent: scores of trials without the example, shape (trials, kinds of score).
        present: scores of trials with it.
        curve: the claimed one.
        confidence: at which rates are bounded.

    Returns:
        The kind of score, its threshold, and 1 if larger scores mean that the example took part,
        else -1.
    """
    best, test = -math.inf, (0, 0.0, 1)
    for kind in range(absent.shape[1]):
        absent_scores, present_scores = absent[:, kind], present[:, kind]
        for cut in np.unique(
            np.quantile(np.concatenate([absent_scores, present_scores]), _THRESHOLDS)
        ):
            for sign in (1, -1):
                alarms, hits = (
                    int((sign * scores > sign * cut).sum())
                    for scores in (absent_scores, present_scores)
                )
                rates = Rates.of(alarms, len(absent_scores), hits, len(present_scores), confidence)
                gain = _z(rates.true_positive) - _z(curve.true_positive_rate(rates.false_positive))
                if gain > best:
                    best, test = gain, (kind, float(cut), sign)
    return test


def _z(rate: float) -> float:
    return float(ndtri(min(max(rate, 1e-12), 1 - 1e-12)))


def measured(absent: Floats, present: Floats, curve: TradeOff, confidence: float) -> Rates:
    """Rates of the best test: chosen on a fifth of the trials, counted on the others.

    Args:
        absent: scores of independent trials without the example, in the order in which they were
            made, shape (trials,) or (trials, kinds of score).
        present: scores of trials with it.
        curve: the claimed trade-off curve, to which the test is fitted.
        confidence: of the rates' bounds.
    """
    tables = [scores.reshape(len(scores), -1) for scores in (absent, present)]
    pilots = [max(1, math.ceil(_PILOT * len(scores))) for scores in tables]
    first = [scores[:pilot] for scores, pilot in zip(tables, pilots, strict=True)]
    kind, cut, sign = best_test(first[0], first[1], curve, confidence)
    rest = [scores[pilot:, kind] for scores, pilot in zip(tables, pilots, strict=True)]
    alarms, hits = (int((sign * scores > sign * cut).sum()) for scores in rest)
    return Rates.of(alarms, len(rest[0]), hits, len(rest[1]), confidence)


def epsilon_of_form(
    refuted_by: Callable[[TradeOff], bool],
    event: Callable[[float], Event],
    adjacency: Adjacency,
    noise: float,
    delta: float,
) -> float:
    """The least epsilon that allows an attack, if the mechanism is `event` of some noise
    multiplier.

    Args:
        refuted_by: whether the attack refutes a trade-off curve: `Rates.refute`, say.
        event: the mechanism by its noise multiplier; more noise has a lower trade-off curve.
        adjacency: the kind of neighbour.
        noise: the claimed one, where the search begins.
        delta: where epsilon is stated.
    """

    def refute(factor: float) -> bool:
        return refuted_by(tradeoff(event(factor * noise), adjacency))

    if not refute(_FURTHEST):
        return 0.0
    low, high = 1 / _FURTHEST, _FURTHEST  # of the two, the noise at `high` is refuted
    while high / low > 1 + _ACCURACY:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if refute(middle) else (middle, high)
    return accountant.guarantees(event(high * noise), adjacency, delta)[0].epsilon
