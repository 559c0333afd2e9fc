"""Searches for a number, and compositions that are remembered."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

import privlearn as pv
from privlearn.core.accounting import pld
from privlearn.core.accounting.events import Event, Repeated
from privlearn.core.accounting.mechanisms import Gaussian, PoissonSampled
from privlearn.core.accounting.searches import minimum


@pytest.mark.parametrize(
    ("function", "least"),
    [
        (lambda x: (x - 1.3) ** 2 + 2, 2.0),
        (lambda x: abs(x + 4.0) - 1, -1.0),
        (lambda x: math.exp(x), math.exp(-5.0)),
        (lambda x: -x, -5.0),
        (lambda x: 7.0, 7.0),
    ],
)
def test_the_minimum_of_one_valley(function: Callable[[float], float], least: float) -> None:
    assert minimum(function, -5.0, 5.0, tolerance=1e-10) == pytest.approx(least, abs=1e-8)


def _steps(sigma: float) -> Event:
    return Repeated(PoissonSampled(0.01, Gaussian(sigma)), 100)


@pytest.fixture
def composed(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What was composed, and not remembered."""
    events: list[object] = []
    compose = pld._compose_event

    def record(*arguments: object) -> pld.Composition:
        events.append(arguments)
        return compose(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(pld, "_compose_event", record)
    return events


def test_compositions_are_remembered_for_the_block_alone(composed: list[object]) -> None:
    with pld.remembering():
        first = pld.epsilon(_steps(1.0), 1e-5)
        assert pld.epsilon(_steps(1.0), 1e-5) == first
        assert len(composed) == 1
    assert pld.epsilon(_steps(1.0), 1e-5) == first
    assert len(composed) == 2


def test_what_differs_is_composed_anew(composed: list[object]) -> None:
    with pld.remembering():
        others = [
            pld.compose_event(_steps(1.0)),
            pld.compose_event(_steps(1.1)),
            pld.compose_event(_steps(1.0), h=1e-3),
            pld.compose_event(_steps(1.0), negligible=1e-7),
        ]
    assert len(composed) == len({one.epsilon(1e-5) for one in others}) == 4


def test_a_plan_is_composed_once_for_its_figures(composed: list[object]) -> None:
    plan = pv.Plan(pv.sampling.Poisson(0.01), epochs=2)
    with pld.remembering():
        plan = plan.calibrate(epsilon=2.0, delta=1e-5)
        searched = len(composed)
        plan.guarantee(1e-5)
        assert plan.budget is not None
        plan.budget.spent(plan.event(), plan.neighbours)
        assert len(composed) == searched
