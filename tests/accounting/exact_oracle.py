"""Exact curves of compositions in 60-digit ball arithmetic: an oracle that shares nothing with the accountants.

Let L be the privacy loss of a dominating pair (P, Q), R = e^L its ratio, and M(s) = E_P e^{sL} = E_Q R^{s+1}. Losses of
composed releases add up, so their M are multiplied, and for any c > 0 and any real e (Mellin inversion of the convex
function (1 - e^{e - L})_+)

    delta(e) = 1 / (2 pi i) integral over c + iR of  prod_j M_j(s)^{k_j} e^{-s e} / (s (s + 1)) ds.

Nothing is put on a grid of losses, nothing is cut off, and no count makes it harder. The line is bent into a hyperbola
through the saddle point, s(u) = c + w (tilt (cosh u - 1) + i sinh u), where the integrand is analytic and falls off
faster than exponentially, and the trapezoid rule converges geometrically. M is known in closed form or is an integral
of an analytic function over a Gaussian, for which the trapezoid rule converges so, too. Compositions without a Gaussian
part have atoms instead of a density; they are finite sums.

Rounding is bounded by ball arithmetic (python-flint). The error of each trapezoid sum is taken to be its distance from
the sum over every second node, which is about the square root of its error: a bound with as many digits to spare.
`test_exact_oracle.py` holds it against closed forms and moments. Directions: "remove" is L = ln P/Q under P, P being
the data with the example; "add" is the other way round.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from flint import acb, arb, arb_poly, arb_series
from scipy.optimize import minimize_scalar

from privlearn.accounting.events import Event, Mechanism, tally
from privlearn.accounting.mechanisms import (
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
    Undecided,
    bits,
    log_moment,
    log_of,
    moments,
    response_atoms,
)

_STEP = 0.08


@dataclass(frozen=True)
class Bracket:
    """An interval that holds the truth."""

    low: float
    high: float


def saddle(counts: dict[Mechanism, int], direction: str, epsilon: float) -> tuple[float, float]:
    """Where the integrand is least on the real axis, and how wide its peak is across."""

    def exponent(s: float) -> float:
        total = sum(times * log_moment(leaf, direction, s) for leaf, times in counts.items())
        return total - s * epsilon - math.log(s) - math.log(s + 1)

    found = minimize_scalar(lambda x: exponent(math.exp(x)), bounds=(-7.0, 14.0), method="bounded",
                            options={"xatol": 1e-4})  # fmt: skip
    c = math.exp(found.x)
    near = 0.01 * c
    curvature = (exponent(c + near) + exponent(c - near) - 2 * exponent(c)) / near**2
    return c, min(c, 1 / math.sqrt(max(curvature, 1e-300)))


@dataclass(frozen=True)
class Curve:
    """delta(epsilon) in one direction, for epsilons near the one that it was made for."""

    orders: Sequence[acb]
    terms: Sequence[acb]

    def _sums(self, epsilon: arb, slope: int) -> arb:
        with bits(BITS):
            sums = [arb(0), arb(0)]
            for j, (s, term) in enumerate(zip(self.orders, self.terms, strict=True)):
                sums[j % 2] += (term * (-s * epsilon).exp() * (-s) ** slope).real
            apart = abs(sums[1] - sums[0])
            left_out = abs(self.terms[-1] * (-self.orders[-1] * epsilon).exp()) * len(self.terms)
            return sums[0] + sums[1] + arb(0, apart.upper()) + arb(0, left_out.upper())

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


def curve(counts: dict[Mechanism, int], direction: str, epsilon: float, tilt: float = 0.1) -> Curve:
    """The exact curve of a composition with a Gaussian part, for epsilons near `epsilon`.

    Raises:
        Undecided: the integrand falls off too slowly; mostly few steps at a tiny sampling rate.
    """
    c, w = saddle(counts, direction, epsilon)
    for nodes in (38, 44, 58, 72):
        u = [_STEP * j for j in range(nodes)]
        reach = c + w * tilt * (math.cosh(u[-1]) - 1), w * math.sinh(u[-1])
        growths = {leaf: log_moment(leaf, direction, reach[0]) - log_moment(leaf, direction, c) for leaf in counts}
        if max(growths.values()) > 4000:
            break
        orders = [acb(c + w * tilt * (math.cosh(x) - 1), w * math.sinh(x)) for x in u]
        ways = [acb(w * math.cosh(x), -w * tilt * math.sinh(x)) for x in u]  # ds / (i du)
        with bits(BITS + 100):
            terms = [arb(_STEP) / arb.pi() * way / (s * (s + 1)) for s, way in zip(orders, ways, strict=True)]
            terms[0] = terms[0] / 2
            for leaf, times in counts.items():
                found = moments(leaf, direction, reach, max(0.0, growths[leaf]))(orders)
                terms = [term * power(m, times) for term, m in zip(terms, found, strict=True)]
            sizes = [log_of(t * (-s * arb(epsilon)).exp()) for t, s in zip(terms, orders, strict=True)]
        if max(sizes[-3:]) < max(sizes) - 55:
            return Curve(orders, terms)
    raise Undecided(f"{counts} {direction}")


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
    """The terms of the product of all M: (shift of the loss, factor, series about -1/2, which further pole)."""
    total = sum(times for _, times in scales)
    out = []
    for js in itertools.product(*(range(times + 1) for _, times in scales)):
        shift = sum(((arb(times) - 2 * j) / arb(b) for (b, times), j in zip(scales, js, strict=True)), arb(0))
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
        scales = [(leaf.noise_multiplier, times) for leaf, times in counts.items() if isinstance(leaf, Laplace)]
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
                    if not gap > 0:  # also where a ball holds 0, at which the sum of the residues is 0
                        continue
                    own, power = arb(0), arb(1)
                    for m in range(len(series) - 1, -1, -1):
                        own += series[m] * power
                        power = power * gap / (len(series) - m)
                    own = own * (-gap / 2).exp()
                    own += {1: arb(1), -2: -(-gap).exp(), -1: 1 - (-gap).exp(), 0: arb(0)}[poles]
                    value += probability * factor * own
            return value

    def epsilon(self, delta: float, near: float) -> Bracket:
        """An interval that holds the epsilon at `delta`: bisection, to 1e-13."""
        low, high = 0.0, max(near, 1e-9)
        while self.delta(high) > delta:
            low, high = high, 2 * high
        while high - low > 1e-13 * high and low < (middle := (low + high) / 2) < high:
            low, high = (middle, high) if self.delta(middle) > delta else (low, middle)
        return Bracket(low, high)


# What is claimed


def exact_part(event: Event, group_size: int) -> dict[Mechanism, int]:
    """What a group meets; each selection is one of two candidates whose scores move apart: a case, not the worst."""
    out: dict[Mechanism, int] = {}
    for leaf, times in tally(event).items():
        match leaf:
            case PoissonSampled(rate, Gaussian(sigma)) if rate < 1:
                own = leaf if group_size == 1 else GroupSampled(rate, group_size, Gaussian(sigma))
            case Gaussian(sigma) | FixedBatches(Gaussian(sigma)) | PoissonSampled(_, Gaussian(sigma)):
                own = Gaussian(sigma / group_size)
            case Selection(epsilon):
                own = PureDP(group_size * epsilon / 2)
            case _ if group_size > 1:
                raise Undecided(f"groups of {leaf}")
            case _:
                own = leaf
        out[own] = out.get(own, 0) + times
    return out


def ceiling(counts: dict[Mechanism, int], direction: str, epsilon: float) -> float:
    """Chernoff's bound on delta(epsilon), roughly."""
    c, _ = saddle(counts, direction, epsilon)
    total = sum(times * log_moment(leaf, direction, c) for leaf, times in counts.items()) - c * epsilon
    return math.exp(min(0.0, total + c * math.log(c) - (c + 1) * math.log1p(c)))


def truth(event: Event, delta: float, near: float, group_size: int = 1, tilt: float = 0.1) -> Bracket:
    """An interval that holds the least epsilon at which `event` is (epsilon, delta)-DP, to be looked for near `near`.

    For Laplace releases, randomised responses and pure DP alone also where it is an atom. Raises `Undecided` where
    this oracle has no answer. With selections the interval holds a lower bound only.
    """
    counts = exact_part(event, group_size)
    if all(isinstance(leaf, Laplace | RandomisedResponse | PureDP) for leaf in counts):
        return Finite(counts).epsilon(delta, near)
    one_sided = any(isinstance(leaf, PoissonSampled | GroupSampled | Partitioned) for leaf in counts)
    out = []
    for direction in DIRECTIONS if one_sided else DIRECTIONS[:1]:
        if direction == "add" and ceiling(counts, direction, 0.99 * near) < delta / 2:
            continue  # far below the other
        out.append(curve(counts, direction, near, tilt).epsilon(delta, near))
    return Bracket(max(0.0, *[one.low for one in out]), max(0.0, *[one.high for one in out]))
