"""Named checks of docs/decisions/proofs-of-prices.md, on masses on grids: beside 40 digits, point
by point.

Between its points a pair's curve is a chord, and the exact curve is convex: at the points alone it
could be too low.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import numpy as np
from mpmath import mpf
from scipy.special import log_ndtr, logsumexp, ndtr

from privlearn.core.accounting import zcdp
from privlearn.core.accounting.events import Repeated, compose
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.core.accounting.pld import doubling, pairs, partition, rounding
from privlearn.core.accounting.pld.pairs import Pair
from tests.accounting.checks_allowances import hockey_sticks
from tests.support.checks import check

#: A curve at a ratio: E (R - x)_+ with P-mass at infinity, or E (x - R)_+, under Q.
Curve = Callable[[mpf], mpf]


def curves(
    points: list[mpf], masses: list[mpf], q0: mpf, p_inf: mpf
) -> tuple[list[mpf], list[mpf]]:
    """Both curves of masses at some ratios, at each of these."""
    above, total = [p_inf], mpf(0)
    for place in range(len(points) - 1, 0, -1):
        total += masses[place]
        above.append(above[-1] + (points[place] - points[place - 1]) * total)
    below, total = [q0 * points[0]], q0
    for place in range(len(points) - 1):
        total += masses[place]
        below.append(below[-1] + (points[place + 1] - points[place]) * total)
    return above[::-1], below


def require_above(
    points: list[mpf], masses: np.ndarray, q0: float, p_inf: float, exact: tuple[Curve, Curve]
) -> None:
    """At each point, and at 0 and infinity, neither curve is below the exact one."""
    own = [mpf(float(mass)) for mass in masses]
    for side, (found, curve) in enumerate(
        zip(curves(points, own, mpf(q0), mpf(p_inf)), exact, strict=True)
    ):
        for x, value in zip(points, found, strict=True):
            assert value >= curve(x), (side, float(x), float(value - curve(x)))
    assert mpmath.fsum(own) + q0 >= 1
    assert mpmath.fsum(mass * x for mass, x in zip(own, points, strict=True)) + p_inf >= 1


def require_pair(pair: Pair, exact: tuple[Curve, Curve]) -> None:
    """`require_above`, at the exact ratios of the grid."""
    points = [mpmath.exp(mpf(pair.h) * (pair.lo + cell)) for cell in range(len(pair.q))]
    require_above(points, pair.q, pair.q0, pair.p_inf, exact)


def sampled(rate: float, sigma: float) -> tuple[Curve, Curve]:
    """The curves of a sampled Gaussian release, in closed form."""
    q, sd = mpf(rate), 1 / mpf(sigma)

    def place(x: mpf) -> mpf:
        return (mpmath.log((x - (1 - q)) / q) + sd**2 / 2) / sd

    def remove(x: mpf) -> mpf:
        if x <= 1 - q:
            return 1 - x
        return q * mpmath.ncdf(sd - place(x)) - (x - (1 - q)) * mpmath.ncdf(-place(x))

    def add(x: mpf) -> mpf:
        if x <= 1 - q:
            return mpf(0)
        return (x - (1 - q)) * mpmath.ncdf(place(x)) - q * mpmath.ncdf(place(x) - sd)

    return remove, add


def of_atoms(atoms: dict[mpf, mpf]) -> tuple[Curve, Curve]:
    """The curves of {loss: Q-mass}."""
    ratios = [(mpmath.exp(loss), mass) for loss, mass in atoms.items()]
    return (
        lambda x: mpmath.fsum(mass * (ratio - x) for ratio, mass in ratios if ratio > x),
        lambda x: mpmath.fsum(mass * (x - ratio) for ratio, mass in ratios if ratio < x),
    )


@check
def check_functions_are_as_exact_as_assumed() -> None:
    """What the lemmas assume of the normal law, exp, expm1, log and log1p, on thousands of
    numbers.
    """
    made_up, unit = np.random.default_rng(1), rounding.UNIT
    small = made_up.uniform(-1, 1, 300) * 10.0 ** made_up.uniform(-12, 0, 300)
    normal = np.concatenate([made_up.uniform(-37, 8, 1500), made_up.uniform(-3, 3, 500), small])
    wide = np.concatenate([made_up.uniform(-690, 690, 500), small])
    positive = np.concatenate([10.0 ** made_up.uniform(-290, 290, 500), 1 + small[small > -0.9]])
    with mpmath.workdps(40):
        for name, function, exact, points, units in (
            ("ndtr", ndtr, mpmath.ncdf, normal, 8 + 2 * np.minimum(normal, 0) ** 2),
            ("log_ndtr", log_ndtr, lambda x: mpmath.log(mpmath.ncdf(x)), -np.abs(normal), 8.0),
            ("exp", np.exp, mpmath.exp, wide, 2.0),
            ("expm1", np.expm1, mpmath.expm1, wide, 2.0),
            ("log", np.log, mpmath.log, positive, 2.0),
            ("log1p", np.log1p, mpmath.log1p, small[small > -0.9], 2.0),
        ):
            for x, value, most in zip(
                points, function(points), np.broadcast_to(units, points.shape), strict=True
            ):
                true = exact(mpf(float(x)))
                assert abs(mpf(float(value)) - true) <= float(most) * unit * abs(true), (name, x)


@check
def check_tails_know_their_errors() -> None:
    """Lemma 8: at points that are moved by as much as is allowed, on either side."""
    u = np.concatenate([np.linspace(-36, 36, 73), [-np.inf, np.inf]])
    with mpmath.workdps(40):
        for moved in (0.0, 1e-13, 1e-4):
            law = rounding.tails(u, moved)
            for place, x in enumerate(u):
                for sign in (-1, 1):
                    at = mpf(float(x)) + sign * mpf(moved)
                    assert abs(mpmath.ncdf(at) - law.below[place]) <= law.below_error[place], (
                        x,
                        moved,
                    )
                    assert abs(mpmath.ncdf(-at) - law.above[place]) <= law.above_error[place], (
                        x,
                        moved,
                    )


@check
def check_splits_know_their_errors() -> None:
    """Lemma 9, cell by cell: log-normal ratios that are hardly, or much, spread, on cells of all
    widths.
    """
    with mpmath.workdps(140):
        for sd, width in ((1e-4, 0.03), (0.05, 1e-4), (1.0, 0.03), (3.0, 0.5)):
            u = width * np.arange(-40, 41) - 0.3
            exact = [mpmath.exp(mpf(sd) * mpf(float(x)) - mpf(sd) ** 2 / 2) for x in u]
            y = np.array([float(value) for value in exact])
            error = 4 * rounding.UNIT * y
            gaps = np.diff(y)
            gap_error = (error[1:] + error[:-1]) / gaps
            laws = rounding.tails(u), rounding.tails(u - sd, rounding.UNIT * (np.abs(u) + sd))
            found, (below, above) = rounding.split(y, error, gaps, gap_error, *laws)
            q, p = ([mpmath.ncdf(mpf(float(x)) - shift) for x in u] for shift in (mpf(0), mpf(sd)))
            out = [mpf(0)] * len(u)
            for cell in range(len(u) - 1):
                dq, dp = q[cell + 1] - q[cell], p[cell + 1] - p[cell]
                right = (dp - exact[cell] * dq) / (exact[cell + 1] - exact[cell])
                out[cell] += dq - right
                out[cell + 1] += right
            out[-1] += 1 - q[-1]
            assert all(mpf(float(value)) >= true for value, true in zip(found, out, strict=True)), (
                sd,
                width,
            )
            assert below >= exact[0] * q[0] - p[0]
            assert above >= 1 - p[-1] - exact[-1] * (1 - q[-1])


@check
def check_no_curve_of_a_sampled_release_is_below_the_exact_one() -> None:
    """Lemma 9, at every point of the grid: rates from 1e-5 to 1, noise from .3 to 1,000, grids of
    all widths.
    """
    with mpmath.workdps(40):
        for rate, sigma, cells, tail in (
            (1.0, 1.0, 40, 1e-9),
            (1.0, 1000.0, 300, 1e-12),
            (0.01, 1.0, 200, 1e-12),
            (1e-5, 20.0, 300, 1e-14),
            (0.5, 0.3, 60, 1e-6),
            (0.999, 3.0, 250, 1e-18),
        ):
            h = pairs.ratio_range(rate, sigma) / cells
            require_pair(pairs.poisson_pair(rate, sigma, h, tail), sampled(rate, sigma))


@check
def check_no_curve_of_atoms_is_below_the_exact_one() -> None:
    """Lemma 10: losses on the grid, a rounding error beside it, and between, also where cells are
    small.
    """
    with mpmath.workdps(40):
        for h in (0.3, 1e-3, 1e-7):
            for cell in (-3, 0, 1, 41, 12_345):
                for beside in (-2, -1, 0, 1, 2):
                    loss, error = (
                        h * cell + beside * abs(float(np.spacing(h * cell))),
                        1e-13 * abs(beside),
                    )
                    pair = pairs.spread_onto(np.array([loss]), np.ones(1), h, error)
                    points = [
                        mpmath.exp(mpf(h) * (pair.lo + place)) for place in range(len(pair.q))
                    ]
                    own = [mpf(float(mass)) for mass in pair.q]
                    for sign in (-1, 1):
                        exact = of_atoms({mpf(loss) + sign * mpf(error): mpf(1)})
                        for found, curve in zip(
                            curves(points, own, mpf(0), mpf(0)), exact, strict=True
                        ):
                            assert all(
                                value >= curve(x) for x, value in zip(points, found, strict=True)
                            ), (h, cell)
        for epsilon, categories, h in (
            (0.1, 2, 3e-4),
            (3.0, 7, 0.01),
            (1e-3, 100, 3e-6),
            (0.5, 2, 0.125),
            (19.0, 3, 0.3),
        ):
            odds = mpmath.exp(mpf(epsilon))
            other = 1 / (odds + categories - 1)
            law = {
                -mpf(epsilon): odds * other,
                mpf(0): (categories - 2) * other,
                mpf(epsilon): other,
            }
            require_pair(pairs.randomised_response_pair(epsilon, categories, h), of_atoms(law))


def laplace(b: float) -> tuple[Curve, Curve]:
    """The curves of a Laplace release, in closed form (Balle et al. 2018)."""
    end = 1 / mpf(b)

    def remove(x: mpf) -> mpf:
        loss = mpmath.log(x)
        return mpf(0) if loss >= end else 1 - x if loss <= -end else -mpmath.expm1((loss - end) / 2)

    return remove, lambda x: remove(x) + x - 1


@check
def check_no_curve_of_a_laplace_release_is_below_the_exact_one() -> None:
    """Lemma 11: scales from .1 to 10^4, ends of the range on and beside the grid."""
    with mpmath.workdps(40):
        for b, h in (
            (3.0, 1e-3),
            (0.1, 0.07),
            (1e4, 3e-7),
            (2.0, 0.125),
            (4.0, 0.25 / 3),
            (0.7, 10.0),
            (100.0, 0.01 / 7),
        ):
            require_pair(pairs.laplace_pair(b, h), laplace(b))


@check
def check_mixtures_of_groups_know_their_errors() -> None:
    """Lemma 12: weights, densities and masses below and above beside 40 digits, and the pair's
    curves.
    """
    with mpmath.workdps(40):
        for rate, k, sigma in ((0.3, 5, 3.0), (1e-4, 3, 0.7), (0.02, 30, 9.0)):
            counts, weights, _ = pairs.components(rate, k, 1e-12)
            true = [
                mpmath.binomial(k, int(j)) * mpf(rate) ** int(j) * (1 - mpf(rate)) ** (k - int(j))
                for j in counts
            ]
            share = pairs._weight_error(k)
            assert all(
                abs(mpf(float(w)) - t) <= share * t for w, t in zip(weights, true, strict=True)
            )
            x = np.linspace(-6 * sigma, counts[-1] + 6 * sigma, 13)
            y, off = pairs._density(x, sigma, counts, weights)
            own = list(zip(weights, counts, strict=True))
            law = pairs._laws(x, sigma, counts, weights)
            pair = pairs.group_pair(
                rate, sigma, k, 0.05 * pairs.sketch(rate, sigma, k)[0] + 1e-9, 1e-10
            )
            points = [mpmath.exp(mpf(pair.h) * (pair.lo + cell)) for cell in range(len(pair.q))]
            whole = [
                mpmath.binomial(k, j) * mpf(rate) ** j * (1 - mpf(rate)) ** (k - j)
                for j in range(k + 1)
            ]
            for place, at in enumerate(map(mpf, map(float, x))):
                terms = [
                    mpmath.exp((at * int(j) - mpf(int(j)) ** 2 / 2) / mpf(sigma) ** 2)
                    for j in counts
                ]
                density = mpmath.fsum(
                    t * mpf(float(w)) for t, w in zip(terms, weights, strict=True)
                )
                assert abs(mpf(float(y[place])) - density) <= off[place] * density
                for sign, mass, error in (
                    (1, law.below, law.below_error),
                    (-1, law.above, law.above_error),
                ):
                    exact = mpmath.fsum(
                        mpf(float(w)) * mpmath.ncdf(sign * (at - int(j)) / mpf(sigma))
                        for w, j in own
                    )
                    assert abs(mpf(float(mass[place])) - exact) <= error[place]
                if place % 5 == 3 and k < 10:
                    ratio = mpmath.fsum(
                        w * mpmath.exp((at * j - mpf(j) ** 2 / 2) / mpf(sigma) ** 2)
                        for j, w in enumerate(whole)
                    )
                    remove = mpmath.fsum(
                        w * mpmath.ncdf((j - at) / mpf(sigma)) for j, w in enumerate(whole)
                    )
                    remove -= ratio * mpmath.ncdf(-at / mpf(sigma))
                    held = list(zip(points, map(mpf, map(float, pair.q)), strict=True))
                    assert (
                        mpmath.fsum(m * (p - ratio) for p, m in held if p > ratio) + pair.p_inf
                        >= remove
                    )
                    add = (
                        mpmath.fsum(m * (ratio - p) for p, m in held if p < ratio) + pair.q0 * ratio
                    )
                    assert add >= remove + ratio - 1


def law_of(pair: Pair) -> dict[mpf, mpf]:
    """{ratio: Q-mass}, with q0 at 0."""
    law = {
        mpmath.exp(mpf(pair.h) * (pair.lo + cell)): mpf(float(mass))
        for cell, mass in enumerate(pair.q)
        if mass
    }
    return law | {mpf(0): mpf(pair.q0)}


def require_mean(found: Pair, first: Pair, second: Pair, m: int, n: int) -> None:
    """`found` has no less than (m R + n R') / (m + n), at the points of its grid."""
    exact: dict[mpf, mpf] = {}
    for x, p in law_of(first).items():
        for y, q in law_of(second).items():
            at = (m * x + n * y) / (m + n)
            exact[at] = exact.get(at, mpf(0)) + p * q
    infinite = (m * mpf(first.p_inf) + n * mpf(second.p_inf)) / (m + n)
    points = [mpmath.exp(mpf(found.h) * (found.lo + cell)) for cell in range(len(found.q))]
    own = [mpf(float(mass)) for mass in found.q]
    remove, add = curves(points, own, mpf(found.q0), mpf(found.p_inf))
    for x, above, below in zip(points, remove, add, strict=True):
        assert above >= mpmath.fsum(m * (r - x) for r, m in exact.items() if r > x) + infinite
        assert below >= mpmath.fsum(m * (x - r) for r, m in exact.items() if r < x)


@check
def check_means_of_ratios_are_not_below_the_exact_ones() -> None:
    """Lemma 13: doubling, weighted means and trimming beside 40 digits, with mass at 0 and at
    infinity.
    """
    made_up = np.random.default_rng(4)
    with mpmath.workdps(40):
        for h, ratio in ((0.05, 1), (0.4, 4), (0.01, 2)):
            firsts, seconds = (
                [
                    Pair(
                        h,
                        first + own,
                        made_up.random(5) / 5,
                        0.01 * own * made_up.random(),
                        1e-3 * made_up.random(),
                    )
                    for own in (1, 0)
                ]
                for first in (-6, -2)
            )
            for tail in (1e-9, 0.2):
                found = doubling.double(doubling.together(firsts), ratio, tail)
                for pair, first in zip(doubling.refined(found, found.h), firsts, strict=True):
                    require_mean(pair, first, first, 1, 1)
                for m, n, finer in ((1, 2, 1), (3, 4, 1), (2, 1, 2)):
                    others = [
                        Pair(h / finer, each.lo, each.q, each.q0, each.p_inf) for each in seconds
                    ]
                    for one, other in ((firsts, others), (others, firsts)):
                        both = doubling.weighted(
                            doubling.together(one),
                            doubling.together(other),
                            m,
                            n,
                            h / ratio / finer,
                            tail,
                        )
                        for pair, first, second in zip(
                            doubling.refined(both, both.h), one, other, strict=True
                        ):
                            require_mean(pair, first, second, m, n)


@check
def check_many_ratios_on_the_grid_are_not_below_the_exact_ones() -> None:
    """Lemma 14: many atoms in a cell, few, and atoms beside its sides; each off by all that is
    allowed, or exact.
    """
    made_up = np.random.default_rng(6)
    with mpmath.workdps(40):
        for h, count in ((0.05, 300), (1e-3, 40), (1e-7, 20), (0.02, 0)):
            near = np.exp(h * np.arange(-3, 4))
            ratio = np.unique(
                np.concatenate(
                    [
                        np.exp(np.linspace(-1, 1, count) * min(0.3, 20 * h)),
                        near,
                        np.nextafter(near, 2),
                    ]
                )
            )
            ratio = ratio if count else np.nextafter(near, 0)
            q = made_up.random(len(ratio))
            for off in (-1, 0, 1):
                places = [mpf(x) * (1 + off * 3 * mpf(rounding.UNIT)) for x in ratio.tolist()]
                p = [
                    float(x * mpf(mass)) * (1 + 2 * rounding.UNIT)
                    for x, mass in zip(places, q.tolist(), strict=True)
                ]
                first, onto = rounding.ratios_onto_grid(ratio, q, np.array(p), h)
                points = [mpmath.exp(mpf(h) * (first + cell)) for cell in range(len(onto))]
                remove, add = curves(points, [mpf(float(mass)) for mass in onto], mpf(0), mpf(0))
                used = [place for place in range(len(points)) if onto[place]][
                    :: max(1, len(points) // 60)
                ]
                for place in used:
                    x = points[place]
                    exact = [
                        (r - x) * mpf(mass) for r, mass in zip(places, q.tolist(), strict=True)
                    ]
                    assert remove[place] >= mpmath.fsum(each for each in exact if each > 0), (
                        h,
                        off,
                        place,
                    )
                    assert add[place] >= -mpmath.fsum(each for each in exact if each < 0), (
                        h,
                        off,
                        place,
                    )


@check
def check_epochs_that_are_priced_together_are_not_below_each_alone() -> None:
    """Lemma 13: on one grid for nearby noise, no curve is below that of the same epoch by itself on
    a finer one.
    """
    tight = partition._GAMMA / 8
    for batches, sigmas in ((5, (0.7, 0.52, 0.61, 0.5, 0.55)), (16, (0.9, 0.53, 0.74, 0.5, 0.76))):
        found = partition.Epochs(batches).pairs(sigmas, 8e-3, 1e-6)
        assert len({pair.lo for pair in found}) > 1
        for sigma, pair in zip(sigmas, found, strict=True):
            usual, partition._GAMMA = partition._GAMMA, tight
            try:
                alone = partition._by_doubling(batches, sigma, 1e-3, 1e-13)
            finally:
                partition._GAMMA = usual
            for epsilon in (0.0, 0.3, 1.0, 2.0, 4.0):
                for more, exact in zip(
                    hockey_sticks(pair, epsilon), hockey_sticks(alone, epsilon), strict=True
                ):
                    assert exact * (1 - 1e-9) <= more <= exact * 1.05 + 2e-6, (
                        batches,
                        sigma,
                        epsilon,
                    )


@check
def check_linear_grids_of_log_normal_ratios_are_not_below_the_exact_ones() -> None:
    """Lemma 14: the split on the linear grid, at each of its points; and windows of sums, by their
    own moments.
    """
    with mpmath.workdps(40):
        for sigma, width, tail, share in (
            (0.8, 0.5, 1e-5, 0.01),
            (0.8, 0.5, 1e-5, 0.2),
            (3.0, 0.02, 1e-10, 1e-3),
            (60.0, 2e-3, 1e-12, 1e-3),
        ):
            cells = partition._cells(sigma, width, tail, 16, share)
            assert len(cells) < cells[-1] or share < 0.2, "on fewer points where that is asked for"
            x, mass, beyond = partition._log_normal(sigma, cells, width)
            points = [mpf(width) * int(cell) for cell in cells]
            require_above(points, mass, 0.0, beyond, sampled(1.0, sigma))
            for batches in (16, 4000):
                low, high = partition._sum_window(x, mass, batches, 1e-8)
                orders = 10.0 ** np.linspace(-3, 2, 400)[:, None]
                one, weighted = (logsumexp(orders * x, axis=1, b=law) for law in (mass, mass * x))
                log_tails = weighted + (batches - 1) * one - orders[:, 0] * high
                assert log_tails.min() <= math.log(1e-8 / 2 * 1.2), (sigma, batches)
                falling = batches * logsumexp(-orders * x, axis=1, b=mass) + orders[:, 0] * low
                assert falling.min() <= math.log(1e-8 / 2 * 1.2), (sigma, batches)
                assert low < batches < high


@check
def check_gaussian_figures_are_not_below_the_exact_ones() -> None:
    """Lemma 15: epsilon, mu and the sum of 1 / sigma^2 beside 40 digits, for noise from 1e-2 to
    1e6.
    """
    made_up = np.random.default_rng(5)

    def exact(mu: mpf, epsilon: float) -> mpf:
        e = mpf(epsilon)
        return mpmath.ncdf(mu / 2 - e / mu) - mpmath.exp(e) * mpmath.ncdf(-mu / 2 - e / mu)

    with mpmath.workdps(50):
        for _ in range(150):
            mu, delta = float(10 ** made_up.uniform(-6, 2)), float(10 ** made_up.uniform(-18, -0.5))
            epsilon = zcdp.gaussian_epsilon(mu, delta)
            assert exact(mpf(mu), epsilon) <= delta, (mu, delta)
            assert epsilon == 0 or exact(mpf(mu), epsilon * (1 - 1e-7)) > delta, (mu, delta)
            assert exact(mpf(mu), epsilon) <= zcdp.gaussian_delta_bound(mu, epsilon)
            assert (
                exact(mpf(zcdp.gaussian_mu_for(epsilon + mu / 10, delta)), epsilon + mu / 10)
                <= delta
            )
        for kinds in (1, 3, 200):
            sigmas = [float(10 ** made_up.uniform(-2, 6)) for _ in range(kinds)]
            counts = [int(10 ** made_up.uniform(0, 6)) for _ in range(kinds)]
            event = compose(
                Repeated(Gaussian(sigma), times)
                for sigma, times in zip(sigmas, counts, strict=True)
            )
            squared = mpmath.fsum(
                mpf(times) / mpf(sigma) ** 2 for sigma, times in zip(sigmas, counts, strict=True)
            )
            found = zcdp.gaussian_mu(event)
            assert found is not None
            assert mpmath.sqrt(squared) <= found <= mpmath.sqrt(squared) * (1 + mpf(2) ** -49)
            rho, delta = float(squared / 2), 10 ** made_up.uniform(-15, -2)
            stated = zcdp.epsilon_of_rho(rho, delta)
            order = 1 + mpmath.sqrt(-mpmath.log(mpf(delta)) / rho)
            near = [
                rho * a + mpmath.log1p(-1 / a) - (mpmath.log(mpf(delta)) + mpmath.log(a)) / (a - 1)
                for a in (1 + (order - 1) * mpf(float(f)) for f in np.geomspace(0.3, 3, 400))
            ]
            assert stated >= min(near) * (1 - mpf(10) ** -4)
            assert math.isfinite(stated)
