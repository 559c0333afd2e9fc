"""Laws over a registry of every kind of event: a new kind is one line and inherits all of them."""

from __future__ import annotations

import ast
import json
import math
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import privlearn
from privlearn.core.accounting import accountant, events, pld, rdp, zcdp
from privlearn.core.accounting.events import (
    _KINDS,
    Composed,
    Event,
    Mechanism,
    Repeated,
    compose,
    from_json,
    require_adjacency,
    tally,
    to_json,
)
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.accounting.mechanisms import (
    ZCDP,
    FixedBatches,
    Gaussian,
    Laplace,
    NonPrivate,
    Partitioned,
    PoissonSampled,
    PureDP,
    RandomisedResponse,
    Selection,
)
from privlearn.core.accounting.pld import pairs
from privlearn.core.accounting.pld.truncation import TruncatedPoissonSampled
from privlearn.core.accounting.trees import Filter, GaussianFilter, OneOf, Parallel, RepeatAndSelect
from privlearn.errors import BadInput, UnsupportedEvent

PRICED: dict[str, Event] = {
    "gaussian": Gaussian(3.0),
    "poisson_sampled": PoissonSampled(0.05, Gaussian(1.2)),
    "truncated_poisson_sampled": TruncatedPoissonSampled(0.05, 1000, 66, Gaussian(1.2)),
    "partitioned": Partitioned(8, Gaussian(4.0)),
    "fixed_batches": FixedBatches(Gaussian(4.0)),
    "laplace": Laplace(2.0),
    "randomised_response": RandomisedResponse(0.5, 4),
    "selection": Selection(0.4),
    "pure_dp": PureDP(0.3),
    "zcdp": ZCDP(0.02),
    "repeat_and_select": RepeatAndSelect(Repeated(Gaussian(20.0), 3), mean=5.0, shape=1.0),
    "parallel": Parallel((Gaussian(4.0), PoissonSampled(0.1, Gaussian(1.5)))),
    "one_of": OneOf((Gaussian(4.0), Laplace(5.0))),
    "filter": Filter(rho=0.03),
    "gaussian_filter": GaussianFilter(0.03),
}
OTHERS: dict[str, Event] = {
    "non_private": NonPrivate("released in the clear"),
    "repeated": Repeated(Gaussian(3.0), 4),
    "composed": Composed((Gaussian(3.0), PoissonSampled(0.5, Gaussian(9.0)))),
}
EVERY = PRICED | OTHERS


def price(event: Event, delta: float = 1e-5) -> float:
    kind = next(
        kind for kind in Adjacency if all(kind in leaf.adjacencies for leaf in tally(event))
    )
    return accountant.guarantee(event, kind, delta).epsilon


def test_the_registry_is_complete() -> None:
    assert set(EVERY) == set(_KINDS)
    assert set(MORE_PRIVATE) == set(PRICED) & set(_KINDS)


@pytest.mark.parametrize("kind", EVERY)
def test_json_round_trip(kind: str) -> None:
    event = compose([EVERY[kind], Repeated(EVERY[kind], 3)])
    assert from_json(json.loads(json.dumps(to_json(event)))) == event


@pytest.mark.parametrize("kind", PRICED)
def test_repeating_is_composing_copies(kind: str) -> None:
    event = PRICED[kind]
    copies = Composed(tuple([event] * 6))
    assert price(Repeated(event, 6)) == pytest.approx(price(copies), rel=1e-12)
    assert compose([copies]) == compose([Repeated(event, 2), Repeated(Repeated(event, 2), 2)])
    assert price(Repeated(event, 0)) == 0.0


@pytest.mark.parametrize("kind", PRICED)
def test_prices_rise_with_repetition_and_fall_with_delta(kind: str) -> None:
    event = PRICED[kind]
    once, twice, often = (price(Repeated(event, n)) for n in (1, 2, 50))
    assert 0 < once < twice < often < math.inf
    assert price(event, 1e-9) >= once >= price(event, 1e-2) >= 0


#: For every kind a slightly more private version of the registered event.
MORE_PRIVATE: dict[str, Event] = {
    "gaussian": Gaussian(3.03),
    "poisson_sampled": PoissonSampled(0.05, Gaussian(1.212)),
    "truncated_poisson_sampled": TruncatedPoissonSampled(0.05, 1000, 66, Gaussian(1.212)),
    "partitioned": Partitioned(8, Gaussian(4.04)),
    "fixed_batches": FixedBatches(Gaussian(4.04)),
    "laplace": Laplace(2.02),
    "randomised_response": RandomisedResponse(0.495, 4),
    "selection": Selection(0.396),
    "pure_dp": PureDP(0.297),
    "zcdp": ZCDP(0.0198),
    "repeat_and_select": RepeatAndSelect(Repeated(Gaussian(20.2), 3), mean=5.0, shape=1.0),
    "parallel": Parallel((Gaussian(4.04), PoissonSampled(0.1, Gaussian(1.515)))),
    "one_of": OneOf((Gaussian(4.04), Laplace(5.05))),
    "filter": Filter(rho=0.0297),
    "gaussian_filter": GaussianFilter(0.0297),
}


@pytest.mark.parametrize("kind", PRICED)
def test_prices_fall_with_noise(kind: str) -> None:
    assert price(MORE_PRIVATE[kind]) < price(PRICED[kind])
    assert price(Repeated(MORE_PRIVATE[kind], 30)) < price(Repeated(PRICED[kind], 30))


@pytest.mark.parametrize("kind", PRICED)
def test_every_sound_method_is_above_the_tightest(kind: str) -> None:
    for times in (1, 25):
        event = Repeated(PRICED[kind], times)
        adjacency = next(a for a in Adjacency if a in PRICED[kind].adjacencies)
        found = accountant.guarantees(event, adjacency, 1e-6)
        assert [g.epsilon for g in found] == sorted(g.epsilon for g in found)
        assert all(g.kind == "bound" for g in found)
        assert accountant.epsilon_bound(event, adjacency, 1e-6) >= found[0].epsilon


@pytest.mark.parametrize("kind", PRICED)
def test_groups_cost_more_than_their_members(kind: str) -> None:
    adjacency = next(a for a in Adjacency if a in PRICED[kind].adjacencies)
    one, two, five = (
        accountant.guarantee(PRICED[kind], adjacency, 1e-6, k).epsilon for k in (1, 2, 5)
    )
    assert one < two < five
    if kind == "gaussian":
        assert two == pytest.approx(price(Gaussian(1.5), 1e-6), rel=1e-9)
    if kind in ("pure_dp", "randomised_response"):
        assert five <= 5.0001 * PRICED[kind].epsilon  # type: ignore[attr-defined]


def test_prices_rise_with_the_sampling_rate() -> None:
    prices = [
        price(Repeated(PoissonSampled(rate, Gaussian(1.5)), 100))
        for rate in (0.001, 0.01, 0.1, 0.5, 1.0)
    ]
    assert prices == sorted(prices)
    assert prices[-1] == pytest.approx(price(Repeated(Gaussian(1.5), 100)), rel=2e-4)


@pytest.mark.parametrize("kind", PRICED)
@pytest.mark.parametrize("adjacency", Adjacency)
def test_only_covered_neighbours_are_priced(kind: str, adjacency: Adjacency) -> None:
    event = PRICED[kind]
    if adjacency in event.adjacencies:
        assert accountant.guarantee(event, adjacency, 1e-5).epsilon > 0
    else:
        with pytest.raises(UnsupportedEvent, match="covered for"):
            require_adjacency(Repeated(event, 3), adjacency)
        with pytest.raises(UnsupportedEvent):
            accountant.guarantees(event, adjacency, 1e-5)


def test_what_is_not_private_has_no_price() -> None:
    with pytest.raises(UnsupportedEvent, match="in the clear"):
        price(compose([Gaussian(1.0), NonPrivate("a table in the clear")]))


@pytest.mark.parametrize(
    "bad",
    [
        None,
        3,
        {"kind": "magic"},
        {"kind": ["gaussian"]},
        {"kind": "gaussian"},
        {"kind": "gaussian", "noise_multiplier": "1"},
        {"kind": "gaussian", "noise_multiplier": True},
        {"kind": "gaussian", "noise_multiplier": -1},
        {"kind": "gaussian", "noise_multiplier": float("nan")},
        {"kind": "gaussian", "noise_multiplier": 1.0, "extra": 1},
        {"kind": "repeated", "event": {"kind": "gaussian", "noise_multiplier": 1.0}, "count": -1},
        {"kind": "repeated", "event": {"kind": "gaussian", "noise_multiplier": 1.0}, "count": 1.5},
        {"kind": "composed", "events": {}},
        {
            "kind": "poisson_sampled",
            "sampling_rate": 2.0,
            "event": {"kind": "gaussian", "noise_multiplier": 1.0},
        },
        {
            "kind": "partitioned",
            "batches": 0,
            "event": {"kind": "gaussian", "noise_multiplier": 1.0},
        },
    ],
)
def test_malformed_events_are_refused(bad: object) -> None:
    with pytest.raises(BadInput):
        from_json(bad)


def test_nesting_is_bounded() -> None:
    deep: object = {"kind": "gaussian", "noise_multiplier": 1.0}
    for _ in range(10_000):
        deep = {"kind": "repeated", "event": deep, "count": 1}
    with pytest.raises(BadInput, match="nested"):
        from_json(deep)


@pytest.mark.parametrize(
    ("rate", "sigma", "steps"),
    [
        (1e-6, 0.3, 1),
        (1e-6, 0.3, 10_000_000),
        (1e-6, 1.0, 10_000_000),
        (1.0, 0.3, 1),
        (0.5, 1e4, 10_000_000),
        (0.999999, 1.0, 100),
        (0.01, 0.3, 10),
        (0.5, 1.0, 10_000),
    ],
)
def test_hostile_numbers_get_a_sound_answer(rate: float, sigma: float, steps: int) -> None:
    for delta in (1e-5, 1e-9):
        epsilon = price(Repeated(PoissonSampled(rate, Gaussian(sigma)), steps), delta)
        unsampled = price(Repeated(Gaussian(sigma), steps), delta)
        assert 0 <= epsilon <= unsampled * 1.01 + 1e-9


# One place each


def test_a_new_mechanism_is_one_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Priced by every accountant, for groups, in trees and on ledgers, kept as JSON: as Laplace,
    which it copies.
    """
    for table in ("_KINDS", "_NAMES", "_FIELDS"):
        monkeypatch.setattr(events, table, dict(getattr(events, table)))

    @events.kind("two_sided_exponential")
    @dataclass(frozen=True, slots=True)
    class TwoSidedExponential(Mechanism):
        scale: float

        def zcdp(self) -> float:
            return 0.5 / self.scale**2

        def renyi(self, orders: NDArray[np.float64]) -> NDArray[np.float64]:
            shares = np.log(orders / (2 * orders - 1)), np.log((orders - 1) / (2 * orders - 1))
            moment = np.logaddexp(
                shares[0] + (orders - 1) / self.scale, shares[1] - orders / self.scale
            )
            return np.asarray(moment / (orders - 1), dtype=np.float64)

        def pure(self, times: int = 1) -> Fraction:
            return times / Fraction(self.scale)

        def pair(self) -> pairs.PairBuilder:
            return pairs.PairBuilder(
                lambda h, tail: pairs.laplace_pair(self.scale, h),
                pairs.ATOMS / self.scale,
                2 / self.scale,
            )

        def grouped(self, k: int) -> Event:
            return TwoSidedExponential(self.scale / k)

    def tree(leaf: Event) -> Event:
        return compose(
            [Repeated(leaf, 4), OneOf((leaf, Gaussian(9.0))), RepeatAndSelect(leaf, 2.0, 1.0)]
        )

    for made, known in (
        (TwoSidedExponential(3.0), Laplace(3.0)),
        (tree(TwoSidedExponential(8.0)), tree(Laplace(8.0))),
    ):
        for adjacency in Adjacency:
            for k in (1, 2, 5):
                assert accountant.guarantees(made, adjacency, 1e-5, k) == accountant.guarantees(
                    known, adjacency, 1e-5, k
                )
        assert from_json(json.loads(json.dumps(to_json(made)))) == made
        ledger = Ledger()
        ledger.charge(made, Adjacency.ADD_REMOVE)
        assert ledger.guarantee(1e-5) == accountant.guarantee(known, Adjacency.ADD_REMOVE, 1e-5)
    assert {
        row.method
        for row in accountant.guarantees(TwoSidedExponential(3.0), Adjacency.ADD_REMOVE, 1e-5)
    } >= {
        "pld",
        "rdp",
        "pure",
        "zcdp",
    }


def test_what_a_mechanism_does_not_say_is_refused_by_its_name() -> None:
    class Unpriced(Mechanism):
        __slots__ = ()

    leaf = Unpriced()
    for price in (zcdp.rho, rdp.curve, pld.compose_event):
        with pytest.raises(UnsupportedEvent, match="Unpriced has no"):
            price(leaf)
    assert leaf.pure() is None
    assert leaf.grouped(2) is None
    with pytest.raises(UnsupportedEvent, match="no accountant"):
        accountant.guarantee(leaf, Adjacency.ADD_REMOVE, 1e-5)


def test_only_mechanisms_and_trees_know_the_kinds_of_mechanisms() -> None:
    """Elsewhere nothing is matched against a leaf: what is special about one stands in its
    class.
    """
    leaves = {made.__name__ for made in events._KINDS.values()} - {"Composed", "Repeated"} | {
        "GroupSampled",
        "Mixture",
    }
    here = Path(privlearn.__file__).parent
    allowed = {
        here / "core" / "accounting" / "mechanisms.py",
        here / "core" / "accounting" / "trees.py",
    }
    for path in sorted(set(here.rglob("*.py")) - allowed):
        for node in ast.walk(ast.parse(path.read_text())):
            tested: list[ast.AST] = []
            if isinstance(node, ast.MatchClass):
                tested = [node.cls]
            elif (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "isinstance"
            ):
                tested = [node.args[1]]
            named = {
                name.id for part in tested for name in ast.walk(part) if isinstance(name, ast.Name)
            }
            assert not named & leaves, f"{path.relative_to(here)}: {named & leaves}"
