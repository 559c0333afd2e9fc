"""Exact curves of compositions in 60-digit ball arithmetic: an oracle that shares nothing with the
accountants.

Let L be the privacy loss of a dominating pair (P, Q), R = e^L its ratio, and M(s) = E_P e^{sL} =
E_Q R^{s+1}. Losses of composed releases add up, so their M are multiplied, and for any c > 0 and
any real e (Mellin inversion of the convex function (1 - e^{e - L})_+)

    delta(e) = 1 / (2 pi i) integral over c + iR of  prod_j M_j(s)^{k_j} e^{-s e} / (s (s + 1)) ds.

Nothing is put on a grid of losses, nothing is cut off, and no count makes it harder. On the line,
through the saddle point, the trapezoid rule of step 2 pi / B gives the sum over all whole m of e^{c
m B} delta(e + m B), by Poisson's summation formula: no term is negative, and all but m = 0 are
tiny. The sum of twice the step has these as its even terms, so the two differ by more than the
error of the first: that is a bound. Rounding is bounded by ball arithmetic (python-flint). M is
known in closed form or is an integral of an analytic function over a Gaussian, for which the
trapezoid rule converges geometrically; its distance from the rule of twice the step, which is about
the square root of its error, is taken for its error. Compositions without a Gaussian part have
atoms instead of a density; they are finite sums. `test_exact_oracle.py` holds all of it against
closed forms.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from flint import acb, arb, arb_poly, arb_series
from scipy.optimize import minimize_scalar

from privlearn.core.accounting.events import Event, Mechanism, tally
from privlearn.core.accounting.mechanisms import (
    FixedBatches,
    Gaussian,
    GroupSampled,
    Laplace,
    Partitioned,
    PoissonSampled,
    PureDP,
    RandomisedResponse,
    Selection,
)
from tests.accounting.exact_moments import (
    BITS,
    DIRECTIONS,
    Line,
    Undecided,
    bits,
    log_moment,
    moments,
    response_atoms,
)


@dataclass(frozen=True)
class Bracket:
    """An interval that holds the truth."""

    low: float
    high: float


def saddle(
    counts: dict[Mechanism, int], direction: str, epsilon: float
) -> tuple[float, float, float]:
    """Where the line crosses the real axis, how wide the peak is along it, and the B that its step
    needs.

    Near the saddle point. There, the tilted law of the loss may have a second mode at huge losses;
    left of it, not.
    """

    def exponent(s: float) -> float:
        total = sum(times * log_moment(leaf, direction, s) for leaf, times in counts.items())
        return total - s * epsilon - math.log(s) - math.log(s + 1)

    found = minimize_scalar(
        lambda x: exponent(math.exp(x)),
        bounds=(-7.0, 14.0),
        method="bounded",
        options={"xatol": 1e-3},
    )
    best = math.inf, 0.0, 0.0
    for share in (1.0, 0.93, 0.85, 0.75, 0.6, 0.45):
        c = share * math.exp(found.x)
        near = 0.01 * c
        curvature = (exponent(c + near) + exponent(c - near) - 2 * exponent(c)) / near**2
        w = min(c, 1 / math.sqrt(max(curvature, 1e-300)))
        best = min(best, (2 * max((max(0.0, -found.fun - math.log(w)) + 25) / c, 9 / w), c, w))
    return best[1], best[2], best[0]


# Compositions


@dataclass(frozen=True)
class Curve:
    """delta(epsilon) in one direction, for epsilons near the one that it was made for."""

    line: Line
    terms: Sequence[acb]

    def _sums(self, epsilon: arb, slope: int) -> arb:
        with bits(BITS):
            sums, last = [arb(0), arb(0)], arb(0)
            for j, (s, term) in enumerate(zip(self.line.orders(), self.terms, strict=True)):
                own = term * (-s * epsilon).exp() * (-s) ** slope
                sums[j % 2] += own.real
                last = abs(own)
            apart = abs(sums[1] - sums[0]) + last * self.line.count
            return sums[0] + sums[1] + arb(0, apart.upper())

    def delta(self, epsilon: float | arb) -> arb:
        """A ball that holds delta(epsilon)."""
        return self._sums(arb(epsilon), 0)

    def epsilon(self, delta: float, near: float) -> Bracket:
        """An interval that holds the epsilon at `delta`: Newton's method, in ln delta."""
        with bits(BITS):
            at, target = arb(near), arb(delta)
            for _ in range(40):
                value, slope = self.delta(at).mid(), self._sums(at, 1).mid()
                step = ((target.log() - value.log()) * value / slope).mid()
                at = (at + step).mid()
                if abs(float(step)) < 1e-20 * max(1e-3, abs(float(at))):
                    break
            else:
                raise Undecided("no convergence")
            about = abs((self.delta(at) - target) / self._sums(at, 1)).upper()
            return Bracket(float((at - about).lower()), float((at + about).upper()))


def curve(
    counts: dict[Mechanism, int], direction: str, epsilon: float, wider: float = 1.0
) -> Curve:
    """The exact curve of a composition with a Gaussian part, for epsilons near `epsilon`.

    `wider` makes B larger. Raises `Undecided` if the integrand falls off too slowly: few steps at a
    tiny rate.
    """
    c, w, period = saddle(counts, direction, epsilon)
    step = 2 * math.pi / period / wider
    peak = sum(times * log_moment(leaf, direction, c) for leaf, times in counts.items())
    top = 6 * w
    while True:
        size = (
            sum(times * log_moment(leaf, direction, c, top) for leaf, times in counts.items())
            - peak
        )
        if size - 2 * math.log(math.hypot(1, top / c)) < -50:
            break
        top *= 1.25
        if top > 10_000 * step:
            raise Undecided(f"{counts} {direction}")
    line = Line(c, step, math.ceil(top / step))
    with bits(BITS):
        terms = [arb(step) / arb.pi() / (s * (s + 1)) for s in line.orders()]
        terms[0] = terms[0] / 2
        for leaf, times in counts.items():
            terms = [
                term * power(m, times)
                for term, m in zip(terms, moments(leaf, direction, line), strict=True)
            ]
        return Curve(line, terms)


def power(value: acb, times: int) -> acb:
    """value^times; where nothing but its size is known, a ball about 0."""
    if value.contains(0):
        size = (abs(value).upper() ** times).upper()
        return acb(arb(0, size), arb(0, size))
    return (value.log() * times).exp()


# Compositions of atoms and Laplace releases alone: finite sums


def atoms(counts: dict[Mechanism, int]) -> list[tuple[arb, arb]]:
    """(loss, probability under P) of all randomised responses together."""
    out = [(arb(0), arb(1))]
    for leaf, times in counts.items():
        if isinstance(leaf, RandomisedResponse | PureDP):
            one = response_atoms(leaf)
            law = (arb_poly([one[-1], one[0], one[1]]) ** times).coeffs()
            own = [(arb(leaf.epsilon) * (j - times), p) for j, p in enumerate(law) if p != 0]
            out = [(loss + more, p * q) for loss, p in out for more, q in own]
    return out


def _laplaces(scales: Sequence[tuple[float, int]]) -> list[tuple[arb, arb, list[arb], int]]:
    """The terms of the product of all M: (shift of the loss, factor, series about -1/2, which
    further pole).
    """
    total = sum(times for _, times in scales)
    out = []
    for js in itertools.product(*(range(times + 1) for _, times in scales)):
        shift = sum(
            ((arb(times) - 2 * j) / arb(b) for (b, times), j in zip(scales, js, strict=True)),
            arb(0),
        )
        back = sum((j / arb(b) for (b, _), j in zip(scales, js, strict=True)), arb(0))
        ways = math.prod(math.comb(times, j) for (_, times), j in zip(scales, js, strict=True))
        j, series = sum(js), [arb(0)] * total
        if total:
            half = arb(1) / 2
            left = arb_series([half, 1], prec=total) ** (total - j - 1)
            right = arb_series([-half, 1], prec=total) ** (j - 1)
            product = left * right
            series = [product[m] / arb(2) ** total for m in range(total)]
        out.append((shift, ways * (-back).exp(), series, (j == 0) - 2 * (j == total)))
    return out


class Finite:
    """delta(epsilon) of releases that are randomised responses, pure DP or Laplace, by residues."""

    def __init__(self, counts: dict[Mechanism, int]) -> None:
        scales = [
            (leaf.noise_multiplier, times)
            for leaf, times in counts.items()
            if isinstance(leaf, Laplace)
        ]
        self.total = sum(times for _, times in scales)
        self.bits = BITS + 12 * self.total + 60
        size = math.prod(times + 1 for _, times in scales)
        for leaf, times in counts.items():
            size *= 2 * times + 1 if isinstance(leaf, RandomisedResponse | PureDP) else 1
        if size * (self.total + 1) > 2_000_000:
            raise Undecided(f"{size} terms")
        with bits(self.bits, self.total + 1):
            self.atoms, self.parts = atoms(counts), _laplaces(scales)

    def delta(self, epsilon: float | arb) -> arb:
        """A ball that holds delta(epsilon); at an atom, of the limit from above or from below."""
        with bits(self.bits):
            value = arb(0)
            for loss, probability in self.atoms:
                for shift, factor, series, poles in self.parts:
                    gap = shift + loss - epsilon
                    # also where a ball holds 0, at which the sum of the residues is 0
                    if not gap > 0:
                        continue
                    own, power = arb(0), arb(1)
                    for m in range(len(series) - 1, -1, -1):
                        own += series[m] * power
                        power = power * gap / (len(series) - m)
                    own = own * (-gap / 2).exp()
                    own += {1: arb(1), -2: -(-gap).exp(), -1: 1 - (-gap).exp(), 0: arb(0)}[poles]
                    value += probability * factor * own
            return value


class OneSampled:
    """delta(epsilon) of one Poisson sampled Gaussian release, removed, for epsilon >= 0: where R
    passes e^epsilon.
    """

    def __init__(self, leaf: PoissonSampled) -> None:
        self.rate, self.sigma = leaf.sampling_rate, leaf.event.noise_multiplier

    def delta(self, epsilon: float | arb) -> arb:
        """A ball that holds delta(epsilon)."""
        with bits(BITS):
            q, sigma, e = arb(self.rate), arb(self.sigma), arb(epsilon)
            x = sigma**2 * ((e.exp() - 1 + q) / q).log() + arb(1) / 2
            with_it, without = (((x - mean) / sigma / arb(2).sqrt()).erfc() / 2 for mean in (1, 0))
            return q * with_it + (1 - q - e.exp()) * without


def bisected(exact: Finite | OneSampled, delta: float) -> Bracket:
    """An interval that holds the epsilon at `delta`: bisection, to 1e-13."""
    low, high = 0.0, 1e-3
    if exact.delta(low) < delta:
        return Bracket(0.0, 0.0)
    while exact.delta(high) > delta:
        low, high = high, 2 * high
    while high - low > 1e-13 * high and low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if exact.delta(middle) > delta else (low, middle)
    return Bracket(low, high)


# What is claimed


def exact_part(event: Event, group_size: int) -> dict[Mechanism, int]:
    """What a group meets; each selection is one of two candidates whose scores move apart: a case,
    not the worst.
    """
    out: dict[Mechanism, int] = {}
    for leaf, times in tally(event).items():
        match leaf:
            case PoissonSampled(rate, Gaussian(sigma)) if rate < 1:
                own = leaf if group_size == 1 else GroupSampled(rate, group_size, Gaussian(sigma))
            case (
                Gaussian(sigma) | FixedBatches(Gaussian(sigma)) | PoissonSampled(_, Gaussian(sigma))
            ):
                own = Gaussian(sigma / group_size)
            case Selection(epsilon):
                own = PureDP(group_size * epsilon / 2)
            case _ if group_size > 1:
                raise Undecided(f"groups of {leaf}")
            case _:
                own = leaf
        out[own] = out.get(own, 0) + times
    return out


def estimate(counts: dict[Mechanism, int], direction: str, delta: float) -> float:
    """Roughly the epsilon at `delta`, by the saddle-point approximation: where to look for the
    truth.
    """

    def at(c: float) -> tuple[float, float]:
        near = 0.01 * c
        left, here, right = (
            sum(times * log_moment(leaf, direction, s) for leaf, times in counts.items())
            for s in (c - near, c, c + near)
        )
        epsilon = (right - left) / (2 * near) - 1 / c - 1 / (c + 1)
        curvature = max((right + left - 2 * here) / near**2, 0.0) + c**-2 + (c + 1) ** -2
        return epsilon, here - c * epsilon - math.log(c * (c + 1)) - 0.5 * math.log(
            2 * math.pi * curvature
        )

    low, high = 1e-3, 0.1
    while at(high)[1] > math.log(delta) and high < 1e7:
        low, high = high, 2 * high
    for _ in range(12):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if at(middle)[1] > math.log(delta) else (low, middle)
    return max(0.0, at(high)[0])


def _sought(
    counts: dict[Mechanism, int], direction: str, near: float, delta: float, wider: float
) -> Bracket:
    """An interval that holds one direction's epsilon."""
    for more in (wider, 2 * wider, 4 * wider):
        found = curve(counts, direction, near, more).epsilon(delta, near)
        if found.high - found.low <= 1e-9 * abs(found.high):
            break
    return found


def truth(event: Event, delta: float, group_size: int = 1, wider: float = 1.0) -> Bracket:
    """An interval that holds the least epsilon at which `event` is (epsilon, delta)-DP.

    For Laplace releases, randomised responses and pure DP alone also where it is an atom. Raises
    `Undecided` where this oracle has no answer. With selections the interval holds a lower bound
    only.
    """
    counts = exact_part(event, group_size)
    if all(isinstance(leaf, Laplace | RandomisedResponse | PureDP) for leaf in counts):
        return bisected(Finite(counts), delta)
    if [*counts.values()] == [1] and isinstance(leaf := next(iter(counts)), PoissonSampled):
        return bisected(OneSampled(leaf), delta)
    one_sided = any(
        isinstance(leaf, PoissonSampled | GroupSampled | Partitioned) for leaf in counts
    )
    near = {
        direction: estimate(counts, direction, delta)
        for direction in (DIRECTIONS if one_sided else DIRECTIONS[:1])
    }
    out = []
    for direction, first in near.items():
        try:
            out.append(_sought(counts, direction, first, delta, wider))
        except Undecided:
            # else far below the other, whatever the approximation is worth
            if first > 0.5 * max(near.values()):
                raise
    return Bracket(max(0.0, *[one.low for one in out]), max(0.0, *[one.high for one in out]))
