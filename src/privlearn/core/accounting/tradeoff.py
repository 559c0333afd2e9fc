"""What a membership attack can achieve at most: the trade-off curve of an event tree.

An attacker who sees everything that was released, and knows all data but one example (or person),
tests whether that example took part. Each pair (epsilon, delta) that the events guarantee bounds
the test's true-positive rate t at the false-positive rate f by min(delta + e^epsilon f, 1 -
e^-epsilon (1 - delta - f)) (Wasserman and Zhou 2010; Dong, Roth and Su 2022, Prop. 6). The least
over all pairs is the bound. Gaussian releases have it exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from privlearn._checks import between
from privlearn._scipy import ndtr, ndtri
from privlearn.core.accounting import accountant, pld, rdp, zcdp
from privlearn.core.accounting.events import Event
from privlearn.core.accounting.guarantee import Adjacency, PrivacyUnit
from privlearn.core.accounting.pld.rounding import Array
from privlearn.core.accounting.trees import for_group, per_block
from privlearn.errors import UnsupportedEvent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: The epsilons at which delta is computed, besides 0.
_EPSILONS = np.concatenate([[0.0], np.geomspace(1e-4, 60.0, 200)])
#: Mass that tails may move to infinity: what it adds to a rate is not to be seen.
_NEGLIGIBLE = 1e-9
#: False-positive rates at which pictures show the curve.
RATES = (0.0, *(10 ** (-4 + place / 20) for place in range(81)))


@final
@dataclass(frozen=True, repr=False)
class TradeOff:
    """An upper bound on every membership attack.

    Attributes:
        mu: of Gaussian DP, where the events are worth one Gaussian release: the curve is then
            exact.
        deltas: an upper bound on delta at each epsilon of the grid; unused where there is a `mu`.
    """

    mu: float | None
    deltas: tuple[float, ...] = ()

    def true_positive_rate(self, false_positive_rate: float) -> float:
        """The most that an attack with this false-positive rate can have as its true-positive rate.

        Raises:
            BadInput: the rate is not from 0 to 1.
        """
        rate = between("false_positive_rate", false_positive_rate, 0, 1)
        if self.mu is not None:
            return float(ndtr(ndtri(rate) + self.mu)) if 0 < rate < 1 else rate
        deltas = np.array(self.deltas)
        with np.errstate(over="ignore"):
            below = deltas + np.exp(_EPSILONS) * rate
        above = 1 - np.exp(-_EPSILONS) * (1 - deltas - rate)
        return float(min(1.0, below.min(), above.min()))

    def false_positive_rate(self, true_positive_rate: float) -> float:
        """The least that an attack with this true-positive rate can have: the inverse of
        `true_positive_rate`.

        Raises:
            BadInput: the rate is not from 0 to 1.
        """
        rate = between("true_positive_rate", true_positive_rate, 0, 1)
        if self.mu is not None:
            return float(ndtr(ndtri(rate) - self.mu)) if 0 < rate < 1 else rate
        deltas = np.array(self.deltas)
        below = np.exp(-_EPSILONS) * (rate - deltas)
        above = 1 - deltas - np.exp(_EPSILONS) * (1 - rate)
        return float(max(0.0, below.max(), above.max()))

    @property
    def success(self) -> float:
        """How often an attacker guesses right at most, of whose examples one half took part: 1/2 +
        advantage/2.
        """
        return (1 + self.advantage) / 2

    @property
    def advantage(self) -> float:
        """The most by which an attack's true-positive rate exceeds its false-positive rate: the
        total variation.
        """
        return math.erf(self.mu / math.sqrt(8)) if self.mu is not None else self.deltas[0]

    def figures(self) -> dict[str, float]:
        """The figures that cards and `budget --json` show, by name."""
        return {
            "success": self.success,
            "true_positive_rate_at_0.01": self.true_positive_rate(0.01),
            "true_positive_rate_at_0.001": self.true_positive_rate(0.001),
        }

    def describe(self, unit: PrivacyUnit) -> str:
        """The figures in words, for a unit of protection."""
        return describe(self.figures(), unit)

    def plot(self, axes: Axes | None = None) -> Axes:
        """The limit on every attack, and guessing, by matplotlib; on new axes by default."""
        import matplotlib.pyplot as plt

        axes = plt.subplots(figsize=(5, 4), layout="constrained")[1] if axes is None else axes
        rates = np.concatenate([[0.0], np.geomspace(1e-4, 1, 200)])
        axes.plot(
            rates,
            [self.true_positive_rate(rate) for rate in rates],
            label="claimed limit of any attack",
        )
        axes.plot([0, 1], [0, 1], color="0.6", linestyle=":", label="guessing")
        axes.set(
            xlabel="false-positive rate", ylabel="true-positive rate", xlim=(0, 1), ylim=(0, 1)
        )
        axes.legend(loc="lower right", fontsize=8)
        return axes

    def __str__(self) -> str:
        return self.describe(PrivacyUnit())

    def __repr__(self) -> str:
        success, first, second = map(percent_up, self.figures().values())
        return (
            f"TradeOff(success at most {success}, true positives at most {first} at 1 % false "
            f"positives and {second} at 0.1 %)"
        )


def tradeoff(event: Event, adjacency: Adjacency, group_size: int = 1) -> TradeOff:
    """Return the bound on membership attacks for all of `event`, in both directions.

    Args:
        event: what was done, or a ledger's limit.
        adjacency: the kind of neighbour.
        group_size: how many examples are attacked together.

    Raises:
        UnsupportedEvent: no sound accountant covers `event` under `adjacency`.
    """
    accountant.require_priceable(event, adjacency, _NEGLIGIBLE)
    PrivacyUnit(group_size)
    mu = zcdp.gaussian_mu(event)
    if mu is not None:
        return TradeOff(group_size * mu)
    best = _deltas(event, group_size)
    pure = accountant.pure_epsilon(event)
    if pure is not None:
        best = np.minimum(best, _of_pure(group_size * pure))
    return TradeOff(None, tuple(np.minimum.accumulate(best).tolist()))


def describe(figures: dict[str, float], unit: PrivacyUnit) -> str:
    """What `TradeOff.figures` mean to a reader, for a unit of protection."""
    whom = "a person" if unit != PrivacyUnit() else "an example"
    success, first, second = (percent_up(figure) for figure in figures.values())
    return (
        f"An attacker who is 50 % sure that {whom} took part guesses right at most {success} of "
        f"the time.\nAt 1 % (0.1 %) false positives an attack detects at most {first} ({second}) "
        "of those who took part."
    )


def _deltas(event: Event, k: int) -> Array:
    """delta at each epsilon of the grid for groups of `k`, where they have no event of their own in
    k steps.

    k steps lead from one data set to its group neighbour: delta_k(k e) <= delta(e) (1 + g + ... +
    g^(k-1)), g = exp(e).
    """
    group = for_group(event, k)
    if group is not None:
        return _deltas_at(group, _EPSILONS)
    steps = np.exp(np.outer(np.arange(k), _EPSILONS / k)).sum(axis=0)
    return np.asarray(np.minimum(1.0, _deltas_at(event, _EPSILONS / k) * steps))


def _deltas_at(event: Event, epsilons: Array) -> Array:
    """An upper bound on delta at each epsilon, from the privacy loss distribution or else from the
    Renyi curve.
    """
    try:
        met = [
            pld.compose_event(block, negligible=_NEGLIGIBLE).curve(epsilons)
            for block in per_block(event)
        ]
        return np.asarray(np.max(met, axis=0))
    except (UnsupportedEvent, OverflowError):
        divergences, orders = rdp.curve(event), rdp.ORDERS
    # Canonne et al. 2020, Prop. 12, at the best order.
    logs = (orders - 1) * (divergences - epsilons[:, None] + np.log1p(-1 / orders)) - np.log(orders)
    return np.asarray(np.exp(np.minimum(0.0, logs.min(axis=1))))


def _of_pure(pure: float) -> Array:
    """delta at each epsilon of a pure guarantee: that of randomised response (Kairouz et al.
    2015).
    """
    gap = np.expm1(np.maximum(pure - _EPSILONS, 0.0)) * np.exp(_EPSILONS)
    return np.asarray(gap / (1 + math.exp(pure)))


def percent_up(share: float) -> str:
    """`share` for reading, in percent, never below the figure itself."""
    digits = 1 if share >= 0.1 else 2
    return f"{math.ceil(share * 100 * 10**digits - 1e-9) / 10**digits:.{digits}f} %"
