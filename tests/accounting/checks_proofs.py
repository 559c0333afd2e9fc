"""Named checks of docs/decisions/proofs-of-prices.md: the arithmetic beside exact fractions and
many digits.
"""

from __future__ import annotations

import math
from fractions import Fraction
from unittest import mock

import mpmath
import numpy as np
from scipy.fft import irfft, rfft

from privlearn.core.accounting import accountant, pld
from privlearn.core.accounting.events import Repeated, compose
from privlearn.core.accounting.mechanisms import Laplace, PureDP, RandomisedResponse, Selection
from privlearn.core.accounting.pld import composing, fourier
from privlearn.core.accounting.pld.fourier import Factor, convolve
from privlearn.core.accounting.pld.pairs import Pair
from tests.support.checks import check

#: Lengths with each factor that transforms have here, alone and together.
LENGTHS = (2, 3, 4, 5, 8, 9, 16, 25, 27, 60, 125, 128, 243, 720, 1024, 2025, 3125, 4096)


def turns(size: int) -> np.ndarray:
    """e^{-2 pi i k / size} in extended precision, rounded from 30 digits."""
    with mpmath.workdps(30):
        values = [mpmath.expjpi(mpmath.mpf(-2 * k) / size) for k in range(size)]
        return np.array(
            [
                np.clongdouble(complex(v)) + np.clongdouble(complex(v - mpmath.mpc(complex(v))))
                for v in values
            ]
        )


@check
def check_transforms_err_less_than_is_allowed() -> None:
    """Lemma 3, both ways, on vectors of one sign, of both, and of a single entry: a quarter of what
    is allowed.
    """
    made_up = np.random.default_rng(1)
    for size in LENGTHS:
        assert fourier.length(size) == size
        table = turns(size)
        one, spread = np.zeros(size), np.exp(-np.linspace(0, 30, size))
        one[size - 1] = 1.0
        picked = np.unique(made_up.integers(0, size // 2 + 1, 40))
        rows = table[np.multiply.outer(picked, np.arange(size)) % size]
        for cells in (one, spread, made_up.random(size), made_up.standard_normal(size)):
            allowed = fourier.transform_error(size) * float(np.abs(cells).sum())
            assert (
                np.abs(rfft(cells)[picked] - rows @ cells.astype(np.longdouble)).max()
                <= allowed / 4
            ), size
        half = made_up.standard_normal(size // 2 + 1) + 1j * made_up.standard_normal(size // 2 + 1)
        half[0] = half[0].real
        if size % 2 == 0:
            half[-1] = half[-1].real
        both = np.concatenate([half, half[1 : (size + 1) // 2][::-1].conj()]).astype(np.clongdouble)
        places = made_up.integers(0, size, 40)
        true = (table[np.multiply.outer(places, np.arange(size)) % size].conj() @ both).real / size
        allowed = fourier.transform_error(size) * float(np.abs(both).sum()) / size
        assert np.abs(irfft(half, size)[places] - true).max() <= allowed / 4, size


@check
def check_lengths_have_small_factors() -> None:
    """Other factors would be transformed by another algorithm, which lemma 3 says nothing of."""
    for cells in (*range(2, 300), 1_001, 65_537, 999_983, 2_097_153):
        size = rest = fourier.length(cells)
        for factor in (2, 3, 5):
            while rest % factor == 0:
                rest //= factor
        assert rest == 1, cells
        assert cells <= size <= 1.3 * cells + 1


def convolved(cells: list[Fraction], times: int) -> list[Fraction]:
    """The cyclic convolution, exactly."""
    out = [Fraction(int(place == 0)) for place in range(len(cells))]
    for _ in range(times):
        out = [
            sum((out[j] * cells[place - j] for j in range(len(cells))), Fraction(0))
            for place in range(len(cells))
        ]
    return out


@check
def check_products_pay_for_their_factors() -> None:
    """Lemma 4: what is not known of a factor counts as often as it occurs, and so do frequencies
    that are left out.
    """
    made_up = np.random.default_rng(2)
    for size, times in ((8, 1), (8, 5), (12, 3)):
        for lost in (0.0, 1e-6, 1e-2):
            meant = [Fraction(float(value)) for value in made_up.random(size) / size]
            cells = np.array([float(value) for value in meant])
            cells[0] *= 1 - lost  # all that is lost is in one cell
            share = float(meant[0]) * lost * (1 + 1e-9) / float(cells.sum()) + 1e-15
            found, excess = convolve([Factor(cells, times, share)], size)
            exact = convolved(meant, times)
            for value, true in zip(found, exact, strict=True):
                assert true <= value <= true + Fraction(2 * excess) + Fraction(lost), (
                    size,
                    times,
                    lost,
                )
    wide = np.exp(-((np.arange(-20, 20) / 4.0) ** 2) / 2)
    wide /= wide.sum()
    exact = convolved([Fraction(float(value)) for value in wide], 2)
    for deepest in (0.5, 2.0, 70.0):
        with mock.patch.object(fourier, "_DEEPEST", deepest):
            found, _ = convolve([Factor(wide, 1, 0.0), Factor(wide, 1, 0.0)], len(wide))
        assert all(value >= true for value, true in zip(found, exact, strict=True)), deepest


def binomial(
    pair: Pair, n: int, found: pld.Composition
) -> tuple[list[mpmath.mpf], list[mpmath.mpf]]:
    """The exact P- and Q-mass of each cell, for a pair of two cells, -1 and 1."""
    (below, _, above), h = (mpmath.mpf(float(value)) for value in pair.q), mpmath.mpf(found.h)
    q = []
    for cell in range(found.lo, found.lo + len(found.q)):
        ups, odd = divmod(n + cell, 2)
        inside = not odd and 0 <= ups <= n
        q.append(
            mpmath.binomial(n, ups) * above**ups * below ** (n - ups) if inside else mpmath.mpf(0)
        )
    return [value * mpmath.exp(h * cell) for cell, value in enumerate(q, found.lo)], q


@check
def check_no_cell_of_a_composition_is_below_its_exact_mass() -> None:
    """Lemma 5, by binomial laws with 40 digits: every cell by itself, in both laws, at each of the
    tilts.
    """
    with mpmath.workdps(40):
        for h, n, tail in (
            (0.5, 3, 1e-12),
            (0.5, 60, 1e-9),
            (0.5, 60, 1e-20),
            (0.01, 300, 1e-5),
            (0.004, 20_000, 1e-14),
        ):
            low = 1 / (1 + math.exp(-h))
            pair = Pair(h, -1, np.array([low, 0.0, 1 - low]), 0.0, 0.0)
            found = pld.compose([pair], [n], tail)
            p, q = binomial(pair, n, found)
            assert all(
                mpmath.mpf(float(got)) >= true for got, true in zip(found.p, p, strict=True)
            ), (h, n, tail)
            assert all(
                mpmath.mpf(float(got)) >= true for got, true in zip(found.q, q, strict=True)
            ), (h, n, tail)
            # What is added is little where deltas near 4,000 tails are read.
            exact_above = np.array([float(value) for value in np.cumsum(np.array(p[::-1]))[::-1]])
            above = np.cumsum(found.p[::-1])[::-1]
            read = (exact_above > 4e3 * tail) & (found.losses >= 0)
            assert (above[read] <= exact_above[read] * (1 + 2e-3)).all(), (h, n, tail)


@check
def check_each_tilt_is_an_upper_bound() -> None:
    """Lemma 5 for each tilt alone, also one that suits nothing: tilts move errors, and never below
    the exact masses.
    """
    h, n = 0.1, 40
    low = 1 / (1 + math.exp(-h))
    pair = Pair(h, -1, np.array([low, 0.0, 1 - low]), 0.0, 0.0)
    cells = np.arange(-41, 42)
    with mpmath.workdps(40):
        p, q = binomial(pair, n, pld.Composition(h, -41, np.ones(83), np.ones(83), 0.0, 0.0))
        for tilt in (-9.0, 0.0, 0.5, 1.0, 7.3, 40.0):
            law = composing._tilt([pair], [n], 96, tilt)
            for weight, exact in ((1.0, p), (0.0, q)):
                found, _ = law.on(cells, h * cells, weight)
                assert all(
                    mpmath.mpf(float(got)) >= true for got, true in zip(found, exact, strict=True)
                ), tilt


@check
def check_what_is_read_is_never_less_than_there_is() -> None:
    """Lemma 7: epsilon, delta and curves beside 40 digits, for masses by hand: half would be a
    digit too small.
    """
    made_up = np.random.default_rng(3)
    with mpmath.workdps(40):
        for h, first in (
            (0.4, -30),
            (0.03, -70),
            (1e-3, -40),
            (1e-7, -60),
            (1e-9, 10**9 - 40),
            (0.1, 0),
        ):
            for delta in (0.02, 1e-3, 1e-5, 1e-9):
                p = made_up.random(130) * np.exp(-np.linspace(0, 25, 130))
                p /= p.sum()
                found = pld.Composition(
                    h, first, p, p[::-1].copy(), delta * made_up.random(), delta * made_up.random()
                )

                def exact(epsilon: float, found: pld.Composition = found) -> list[mpmath.mpf]:
                    losses = [
                        mpmath.mpf(found.h) * cell
                        for cell in range(found.lo, found.lo + len(found.p))
                    ]
                    out = []
                    for sign, mass, rest in ((1, found.p, found.p_inf), (-1, found.q, found.q_inf)):
                        gains = [
                            -mpmath.expm1(min(mpmath.mpf(epsilon) - sign * loss, mpmath.mpf(0)))
                            for loss in losses
                        ]
                        out.append(
                            rest
                            + mpmath.fsum(
                                mpmath.mpf(float(m)) * g for m, g in zip(mass, gains, strict=True)
                            )
                        )
                    return out

                epsilons = found.epsilons(delta)
                for side, epsilon in enumerate(epsilons):
                    assert exact(epsilon)[side] <= delta, (h, delta, side)
                for epsilon in (0.0, epsilons[0], 0.7 * epsilons[1], 3.3 * h):
                    truth = exact(epsilon)
                    for got, true in zip(found.deltas(epsilon), truth, strict=True):
                        assert min(1, true) <= got <= true * (1 + 1e-9) + 1e-13, (h, delta, epsilon)
                    on_curve = float(found.curve(np.array([epsilon]))[0])
                    assert min(1, max(truth)) <= on_curve <= max(truth) * (1 + 1e-9) + 1e-12


@check
def check_tails_outside_of_a_window_are_bounded() -> None:
    """Lemma 6, by binomial laws with 40 digits, and where several pairs and large counts come
    together.
    """
    with mpmath.workdps(40):
        for h, n in ((0.5, 40), (0.02, 900)):
            low = 1 / (1 + math.exp(-h))
            pair = Pair(h, -1, np.array([low, 0.0, 1 - low]), 0.0, 0.0)
            cells = pld.Composition(h, -n - 1, np.ones(2 * n + 3), np.ones(2 * n + 3), 0.0, 0.0)
            p, q = binomial(pair, n, cells)
            for place in (n // 8, n // 4, n // 2):
                for order in (0.3 / h / math.sqrt(n), 3 / h / math.sqrt(n)):
                    for laws, counts in (([pair], [n]), ([pair, pair], [n - 7, 7])):
                        above = composing._beyond(laws, counts, h * place, 1.0, order)
                        below = composing._beyond(laws, counts, -h * place, 0.0, -order)
                        assert min(1, mpmath.fsum(p[n + 1 + place :])) <= above, (h, n, place)
                        assert min(1, mpmath.fsum(q[: n + 2 - place])) <= below, (h, n, place)


@check
def check_pure_sums_and_groups_in_steps_are_not_below_the_exact_ones() -> None:
    """Lemma 16: sums of epsilons beside fractions, and group privacy in k steps beside 60
    digits.
    """
    made_up = np.random.default_rng(16)
    kinds = (Laplace, PureDP, Selection, lambda own: RandomisedResponse(own, 3))
    for _ in range(100):
        numbers, counts = 10 ** made_up.uniform(-3, 1, 7), made_up.integers(1, 1000, 7).tolist()
        leaves = [kinds[made_up.integers(len(kinds))](float(number)) for number in numbers]
        event = compose(Repeated(leaf, times) for leaf, times in zip(leaves, counts, strict=True))
        exact = sum(
            times
            * (
                1 / Fraction(leaf.noise_multiplier)
                if isinstance(leaf, Laplace)
                else Fraction(leaf.epsilon)
            )
            for leaf, times in zip(leaves, counts, strict=True)
        )
        found = accountant.pure_epsilon(event)
        assert found is not None
        assert Fraction(math.nextafter(found, 0)) < exact <= Fraction(found)
    # exact sums stay
    assert accountant.pure_epsilon(compose([PureDP(0.25), Repeated(Laplace(4.0), 3)])) == 1.0
    with mpmath.workdps(60):
        for _ in range(300):
            epsilon, k = float(10 ** made_up.uniform(-6, 1.5)), int(10 ** made_up.uniform(0.4, 3))
            growth = mpmath.expm1(mpmath.mpf(k) * epsilon) / mpmath.expm1(mpmath.mpf(epsilon))
            delta = float(10 ** made_up.uniform(-18, -1))
            spent = float(delta / growth)
            if spent < 1e-290:
                continue
            while spent * growth <= delta:
                spent = math.nextafter(spent, 1)  # the least that is too much
            allowed = accountant._within(
                math.log(spent), accountant.log_growth(epsilon, k), delta, k
            )
            assert not allowed, (epsilon, k, delta)
            less = math.log(spent) - 1e-6
            assert accountant._within(less, accountant.log_growth(epsilon, k), delta, k)
