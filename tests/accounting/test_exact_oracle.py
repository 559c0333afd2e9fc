"""What the accountant states, beside the truth in 60-digit arithmetic; and the oracle beside closed
forms.
"""

from __future__ import annotations

import math

import pytest
from scipy.integrate import quad

pytest.importorskip("flint", reason="python-flint is not installed")

from flint import acb, arb

from privlearn.core.accounting.events import Event, Repeated, compose
from privlearn.core.accounting.mechanisms import (
    Gaussian,
    GroupSampled,
    Laplace,
    PoissonSampled,
    PureDP,
    RandomisedResponse,
)
from tests.accounting import exact_moments, exact_oracle, exact_plans
from tests.accounting.exact_plans import Verdict, judge, random_case

#: Seeds of plans that are quickly judged, of all kinds but partitions.
QUICK = (
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    14,
    18,
    21,
    22,
    25,
    37,
    40,
    41,
    43,
    46,
    51,
    55,
    59,
    66,
    68,
    76,
    85,
    86,
    89,
    99,
    100,
    109,
    114,
    138,
    139,
    140,
    154,
    156,
    157,
    162,
    164,
    165,
)
#: The rounding of a claim in closed form, which is an ordinary double's.
ROUNDING = 1e-12


def wrong(found: Verdict, claimed: float) -> bool:
    """Whether a claim is below the truth."""
    return found.truth is not None and claimed * (1 + ROUNDING) < found.truth.low


def check(found: list[Verdict]) -> None:
    """None below the truth; how loose they are is printed."""
    bad = [one for one in found if wrong(one, one.claimed)]
    decided = [one for one in found if one.truth is not None]
    loose = sum(one.loose > 1e-3 for one in decided)
    print(
        f"\n{len(found)} plans, {len(decided)} decided, {loose} more than .1 % above the truth; "
        "the loosest:"
    )
    print(max(decided, key=lambda one: one.loose))
    assert not bad, "\n".join(map(str, bad))


def test_no_claim_is_below_the_truth() -> None:
    """Some plans; and of each, a claim that is too small by 1e-5 of the truth is caught."""
    found = [judge(random_case(seed)) for seed in QUICK]
    check(found)
    for one in found:
        assert one.truth is not None, one.case
        assert one.truth.high <= one.truth.low * (1 + 1e-7), one
        assert wrong(one, one.truth.high * (1 - 1e-5)), one


def test_small_deltas_of_many_steps_are_read_tightly() -> None:
    """Hundreds of thousands of steps at delta 7.5e-14 and 3.8e-13: rounding is paid for where the
    delta is read.
    """
    for seed in (809, 906):
        assert 0 <= judge(random_case(seed)).loose < 5e-4


def test_an_accountant_that_states_too_little_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where what it states is exact, 1e-5 less of it is found out."""
    honest = exact_plans.Case.claimed
    monkeypatch.setattr(exact_plans.Case, "claimed", lambda case: honest(case) * (1 - 1e-5))
    with pytest.raises(AssertionError, match="claimed"):
        check([judge(random_case(seed)) for seed in QUICK[:8]])


@pytest.mark.nightly
@pytest.mark.parametrize("block", range(20))
def test_a_thousand_plans(block: int) -> None:
    """Fifty at a time."""
    check([judge(random_case(seed), limit=60) for seed in range(50 * block, 50 * block + 50)])


@pytest.mark.parametrize("seed", [2, 8])
def test_partitions_with_several_levels_of_noise(seed: int) -> None:
    """Levels are put together on one grid: no claim is below the truth, and 1e-5 less than the
    truth is caught.
    """
    found = judge(exact_plans.partitions_case(seed))
    assert found.truth is not None, found.case
    check([found])
    assert wrong(found, found.truth.high * (1 - 1e-5))
    assert found.loose < 1e-3


@pytest.mark.nightly
@pytest.mark.parametrize("block", range(10))
def test_partitions_with_several_levels_in_large_numbers(block: int) -> None:
    """Some twenty at a time."""
    check(
        [
            judge(exact_plans.partitions_case(seed), limit=25)
            for seed in range(23 * block, 23 * block + 23)
        ]
    )


# The oracle itself


def gaussian_delta(mu: arb, e: arb) -> arb:
    """Phi(mu / 2 - e / mu) - e^e Phi(-mu / 2 - e / mu) (Balle and Wang 2018)."""
    with exact_moments.bits(exact_moments.BITS):
        root = arb(2).sqrt()
        return ((e / mu - mu / 2) / root).erfc() / 2 - e.exp() * (
            (e / mu + mu / 2) / root
        ).erfc() / 2


def test_gaussian_releases_in_closed_form() -> None:
    for sigma, times, delta in ((3.0, 5, 1e-5), (0.5, 1, 1e-12), (100.0, 400, 1e-3)):
        found = exact_oracle.truth(Repeated(Gaussian(sigma), times), delta)
        exact = gaussian_delta(arb(times).sqrt() / sigma, arb(found.low))
        assert float(exact) == pytest.approx(delta, rel=1e-9)


def test_one_sampled_release_in_closed_form() -> None:
    """delta(e) = P(x > a) - e^e Q(x > a), where the ratio passes e^e at a."""
    rate, sigma = 0.3, 2.0
    event, delta = PoissonSampled(rate, Gaussian(sigma)), 1e-6
    found = exact_oracle.truth(event, delta)
    e = found.low
    a = sigma**2 * math.log((math.exp(e) - 1 + rate) / rate) + 0.5

    def above(mean: float) -> float:
        return math.erfc((a - mean) / sigma / math.sqrt(2)) / 2

    assert rate * above(1) + (1 - rate) * above(0) - math.exp(e) * above(0) == pytest.approx(
        delta, rel=1e-7
    )


def test_one_laplace_release_in_closed_form() -> None:
    found = exact_oracle.truth(Laplace(2.0), 1e-3)
    assert found.low == pytest.approx(0.5 + 2 * math.log1p(-1e-3), rel=1e-11)


def test_two_laplace_releases_by_integration() -> None:
    """The mean over the first loss of the second's curve, which is known (Balle et al. 2018)."""
    b, e = 2.0, 0.4

    def one(x: float) -> float:
        return max(0.0, -math.expm1((x - 1 / b) / 2)) if x > -1 / b else -math.expm1(x)

    smooth, _ = quad(
        lambda x: math.exp((x - 1 / b) / 2) / 4 * one(e - x),
        -1 / b,
        1 / b,
        points=[e - 1 / b],
        epsabs=1e-13,
    )
    exact = one(e - 1 / b) / 2 + math.exp(-1 / b) / 2 * one(e + 1 / b) + smooth
    assert float(exact_oracle.Finite({Laplace(b): 2}).delta(e)) == pytest.approx(exact, rel=1e-11)


def test_randomised_responses_beside_a_gaussian_release() -> None:
    """The mean over the atoms of the Gaussian's curve, against the contour."""
    counts, sigma, delta = {RandomisedResponse(0.2, 3): 6, PureDP(0.5): 1}, 2.0, 1e-7
    event = compose([Gaussian(sigma), *(Repeated(leaf, times) for leaf, times in counts.items())])
    found = exact_oracle.truth(event, delta)
    exact = sum(
        p * gaussian_delta(1 / arb(sigma), found.low - loss)
        for loss, p in exact_oracle.atoms(counts)
    )
    assert float(exact) == pytest.approx(delta, rel=1e-9)


@pytest.mark.parametrize(
    "event",
    [
        Repeated(PoissonSampled(0.01, Gaussian(1.0)), 1000),
        compose([Laplace(3.0), Repeated(Gaussian(3.0), 2)]),
    ],
)
def test_two_steps_agree(event: Event) -> None:
    first, second = (exact_oracle.truth(event, 1e-5, wider=wider) for wider in (1.0, 1.7))
    assert first.low == pytest.approx(second.low, rel=1e-8)


def test_moments_of_sampled_releases() -> None:
    """At whole orders, sums (Mironov et al. 2019); both directions, and groups."""
    for leaf, k in (
        (PoissonSampled(0.2, Gaussian(0.7)), 1),
        (GroupSampled(0.2, 3, Gaussian(2.0)), 3),
    ):
        sigma, pieces = leaf.event.noise_multiplier, exact_moments.binomial(k, 0.2)
        second = exact_moments.sampled_moments(leaf, "remove", exact_moments.Line(1.0, 2.0, 3))[0]
        exact = sum(
            p * q * math.exp(i * j / sigma**2)
            for i, p in enumerate(pieces)
            for j, q in enumerate(pieces)
        )
        assert float(second.real) == pytest.approx(float(exact), rel=1e-13)


@pytest.mark.parametrize(("batches", "sigma"), [(1, 2.0), (7, 1.5)])
def test_moments_of_partitions(batches: int, sigma: float) -> None:
    """E A^2 and E A^3; for one batch, also the moments of a Gaussian release at complex orders."""
    first, second = (
        exact_moments.partition_moments(batches, sigma, "remove", exact_moments.Line(c, 3.0, 2))
        for c in (1.0, 2.0)
    )
    one, two = math.exp(sigma**-2), math.exp(3 * sigma**-2)
    t = batches
    assert float(first[0].real) == pytest.approx((one - 1) / t + 1, rel=1e-13)
    third = (t * two + 3 * t * (t - 1) * one + t * (t - 1) * (t - 2)) / t**3
    assert float(second[0].real) == pytest.approx(third, rel=1e-13)
    if batches == 1:
        assert complex(second[1]) == pytest.approx(
            complex(exact_moments.gaussian_moments(sigma, [acb(2, 3)])[0])
        )
