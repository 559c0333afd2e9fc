"""Laws over a registry of every kind of event: a new kind is one line and inherits all of them."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from privlearn.accounting import accountant
from privlearn.accounting.adjacency import Adjacency
from privlearn.accounting.events import (
    _KINDS,
    Composed,
    Event,
    FixedBatches,
    Gaussian,
    NonPrivate,
    Partitioned,
    PoissonSampled,
    Repeated,
    compose,
    from_json,
    require_adjacency,
    tally,
    to_json,
)
from privlearn.errors import BadInput, UnsupportedEvent

PRICED: dict[str, Event] = {
    "gaussian": Gaussian(3.0),
    "poisson_sampled": PoissonSampled(0.05, Gaussian(1.2)),
    "partitioned": Partitioned(8, Gaussian(4.0)),
    "fixed_batches": FixedBatches(Gaussian(4.0)),
}
OTHERS: dict[str, Event] = {
    "non_private": NonPrivate("released in the clear"),
    "repeated": Repeated(Gaussian(3.0), 4),
    "composed": Composed((Gaussian(3.0), PoissonSampled(0.5, Gaussian(9.0)))),
}
EVERY = PRICED | OTHERS


def price(event: Event, delta: float = 1e-5) -> float:
    kind = next(kind for kind in Adjacency if all(kind in leaf.adjacencies for leaf in tally(event)))
    return accountant.guarantee(event, kind, delta).epsilon


def test_the_registry_is_complete() -> None:
    assert set(EVERY) == set(_KINDS)


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
    assert price(event, 1e-9) > once > price(event, 1e-2) >= 0


@pytest.mark.parametrize("kind", PRICED)
def test_prices_fall_with_noise(kind: str) -> None:
    event = PRICED[kind]
    inner = event if isinstance(event, Gaussian) else event.event  # type: ignore[attr-defined]
    noisier = Gaussian(inner.noise_multiplier * 1.01)
    assert price(noisier if isinstance(event, Gaussian) else replace(event, event=noisier)) < price(event)  # type: ignore


def test_prices_rise_with_the_sampling_rate() -> None:
    prices = [price(Repeated(PoissonSampled(rate, Gaussian(1.5)), 100)) for rate in (0.001, 0.01, 0.1, 0.5, 1.0)]
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
        {"kind": "poisson_sampled", "sampling_rate": 2.0, "event": {"kind": "gaussian", "noise_multiplier": 1.0}},
        {"kind": "partitioned", "batches": 0, "event": {"kind": "gaussian", "noise_multiplier": 1.0}},
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
