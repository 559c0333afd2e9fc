"""Decay in the middle of a run, and in steps of a period: laws over all pre-defined schedules."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import pytest

from privlearn._public import kinds
from privlearn.core import schedules
from privlearn.core.accounting.budget import Budget
from privlearn.core.plan import Plan
from privlearn.core.sampling import Poisson, Shuffle
from privlearn.core.schedules import Decay, Exponential, Polynomial, Schedule, Step, Time
from privlearn.errors import BadInput
from tests.support.registries import completed

#: Each schedule with options, and the same by hand: as a function of t, before anything is clamped.
KINDS: dict[str, tuple[Callable[..., Decay], Callable[[float], float]]] = {
    "time": (lambda **o: Time(0.2, 8.0, **o), lambda t: 8.0 / (1 + 0.2 * t)),
    "exp": (lambda **o: Exponential(0.1, 8.0, **o), lambda t: 8.0 * math.exp(-0.1 * t)),
    "step": (lambda **o: Step(0.5, 3.0, 8.0, **o), lambda t: 8.0 * 0.5 ** math.floor(t / 3.0)),
    "poly": (
        lambda **o: Polynomial(2.0, 1.0, 20.0, 8.0, **o),
        lambda t: 7.0 * max(0.0, 1 - t / 20) ** 2 + 1.0,
    ),
}
EPOCHS = [epoch / 4 for epoch in range(200)]


def test_every_decay_is_here() -> None:
    assert KINDS.keys() == kinds(Decay).keys()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("first", "last"), [(0.0, math.inf), (10.0, math.inf), (0.0, 12.5), (7.0, 31.0)]
)
def test_it_is_constant_before_and_after(kind: str, first: float, last: float) -> None:
    make, by_hand = KINDS[kind]
    schedule, plain = make(from_epoch=first, to_epoch=last), make()
    for epoch in EPOCHS:
        assert plain(epoch) == pytest.approx(by_hand(epoch), rel=1e-12)
        if epoch <= first:
            assert schedule(epoch) == schedule.start
        elif epoch <= last:
            assert schedule(epoch) == plain(epoch - first)
        else:
            assert schedule(epoch) == plain(last - first) == schedule(last)
    assert all(schedule(a) >= schedule(b) for a, b in pairwise(EPOCHS))


@pytest.mark.parametrize("kind", ["time", "exp"])
def test_a_period_makes_steps(kind: str) -> None:
    make, by_hand = KINDS[kind]
    schedule = make(period=5.0, from_epoch=2.0)
    for epoch in EPOCHS:
        assert schedule(epoch) == pytest.approx(
            by_hand(math.floor(max(0.0, epoch - 2.0) / 5.0)), rel=1e-12
        )


SPECS = completed(
    "schedules",
    [
        "exp:k=0.1,start=10.0,from=10.0,to=20.0,period=5.0",
        "time:k=0.05,start=3.0,from=3.0",
        "time:k=0.05,start=3.0,period=0.5",
        "step:k=0.5,period=10.0,start=10.0,from=2.0,to=25.0",
        "poly:k=1.0,end=2.0,period=10.0,start=10.0,to=11.0",
        "exp:k=0.01,start=10.0",
        "step:k=0.6,period=10.0,start=10.0",
        "poly:k=3.0,end=2.0,period=100.0,start=10.0",
        "time:k=0.05,start=10.0",
        "constant:start=10.0",
    ],
    Schedule,
)


@pytest.mark.parametrize("text", SPECS)
def test_specs_are_read_back_and_written_as_they_were(text: str) -> None:
    schedule = schedules.parse(text)
    assert schedules.spec(schedule) == text
    assert schedules.parse(schedules.spec(schedule)) == schedule


@pytest.mark.parametrize("text", SPECS)
def test_scaling_keeps_the_shape(text: str) -> None:
    schedule = schedules.parse(text)
    for epoch in EPOCHS:
        assert schedule.scaled(2.5)(epoch) == pytest.approx(2.5 * schedule(epoch), rel=1e-12)


@pytest.mark.parametrize("text", SPECS[:5])
def test_plans_are_calibrated_with_them(text: str) -> None:
    shape = schedules.parse(text)
    for sampler, budget in (
        (Shuffle(20), Budget(rho=0.4)),
        (Poisson(0.05), Budget(2.0, 1e-5)),
    ):
        plan = Plan(sampler, epochs=30, schedule=shape).calibrate(
            epsilon=budget.epsilon, delta=budget.delta, rho=budget.rho
        )
        spent = budget.spent(plan.event(), plan.neighbours)
        assert 0.997 * budget.limit <= spent <= budget.limit
        assert plan.noise_multipliers()[29] / plan.noise_multipliers()[0] == pytest.approx(
            shape(29) / shape(0)
        )


@pytest.mark.parametrize("kind", KINDS)
def test_a_rate_is_found_for_the_epochs_of_decay(kind: str) -> None:
    schedule: Schedule = KINDS[kind][0](from_epoch=5.0, to_epoch=24.0)
    budget = Budget(rho=1.5 * Plan(Shuffle(20), 30, schedules.Constant(8.0)).guarantee(1e-5).rho)  # type: ignore[operator]
    plan = Plan(Shuffle(20), epochs=30, schedule=schedule).with_rate(budget)
    assert 0.997 * budget.limit <= budget.spent(plan.event(), plan.neighbours) <= budget.limit
    assert set(plan.noise_multipliers()[:6]) == {8.0}
    assert len(set(plan.noise_multipliers()[24:])) == 1


def test_a_delayed_decay_lasts_longer() -> None:
    """By hand: 50 epochs at 10 cost 0.25; what is left of 0.78125 then lasts as long as if noise
    fell at once.
    """
    budget = Budget(rho=0.78125)
    late = Plan(Shuffle(600), schedule=Exponential(k=0.02, from_epoch=50.0)).within(budget)
    rest = Plan(Shuffle(600), schedule=Exponential(k=0.02)).within(Budget(rho=0.53125))
    assert late.epochs == 50 + rest.epochs
    # The sum of a geometric series: rho = 0.005 (e^{0.04 n} - 1) / (e^{0.04} - 1).
    assert rest.epochs == math.floor(math.log1p(0.53125 / 0.005 * math.expm1(0.04)) / 0.04)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("exp:k=0.1,from=10,to=5", "from epoch 10 to epoch 5"),
        ("exp:k=0.1,from=10,to=10", "expected the second to be later"),
        ("step:k=0.1,from=-1", "(from) is -1.0"),
        ("poly:k=1,from=inf", "(from) is inf"),
        ("poly:k=1,from=nan", "(from) is nan"),
        ("time:k=1,to=nan", "(to) is nan"),
        ("time:k=1,to=0", "to epoch 0"),
        ("exp:k=0.1,period=0", "period is 0.0"),
        ("time:k=0.1,period=-3", "period is -3.0"),
        ("constant:from=3", "no parameter 'from'"),
        (
            "exp:k=0.1,from_epoch=3",
            "no parameter 'from_epoch'. Its parameters are k, start, from, to, period",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(text: str, said: str) -> None:
    with pytest.raises(BadInput) as caught:
        schedules.parse(text)
    assert said in str(caught.value)
