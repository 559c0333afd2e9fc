"""Named checks of callbacks: what they are given, a clean stop, and errors. Mutations must make
them fail.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

import privlearn as pv
from privlearn.core.accounting.accountant import guarantee
from privlearn.core.accounting.events import compose
from privlearn.core.accounting.ledger import Ledger
from privlearn.core.accounting.mechanisms import Gaussian
from privlearn.methods.dpmac.coordinates import Coordinates
from privlearn.runs.callbacks import Callback, TrainingProgress
from privlearn.runs.checkpoint import Checkpoint
from tests.mac.checks_runs import BINARY, made_up, net
from tests.ranks.threads import together
from tests.support.checks import check, must_raise
from tests.support.nets import cross_entropy, small_data, small_net
from tests.support.steps import EachStep

SAMPLERS = (pv.Poisson(0.25), pv.Partition(3), pv.Shuffle(4), pv.sampling.FullBatch())


NUMBERS = (
    "_delta",
    "_stopping",
    "step",
    "steps",
    "epoch",
    "epochs",
    "noise_multiplier",
    "learning_rate",
    "seconds",
)


class Stopped(Exception):
    pass


class At(Callback):
    """Stops after a step, and notes what it was given."""

    def __init__(self, step: int | None = None, after: str = "on_step") -> None:
        self.step, self.after, self.given = step, after, []

    def _note(self, name: str, progress: TrainingProgress) -> None:
        self.given.append((name, progress.step, progress))
        if progress.step == self.step and name == self.after:
            progress.stop()

    def on_step(self, progress: TrainingProgress) -> None:
        self._note("on_step", progress)

    def on_epoch(self, progress: TrainingProgress) -> None:
        self._note("on_epoch", progress)

    def on_end(self, progress: TrainingProgress) -> None:
        self._note("on_end", progress)


@cache
def plan(sampler: Any = SAMPLERS[0], **more: Any) -> pv.Plan:
    return pv.Plan(sampler, epochs=2, clip=pv.Flat(0.5), **more).calibrate(epsilon=3.0, delta=1e-5)


@cache
def layerwise() -> pv.Plan:
    return pv.Plan(pv.Poisson(0.25), epochs=2, clip=pv.mac.Derivatives(0.3)).calibrate(
        epsilon=3.0, delta=1e-5
    )


def trained(own: pv.Plan, callbacks: Any, **options: Any) -> pv.Result:
    return pv.dpsgd(
        own,
        small_net(),
        cross_entropy,
        small_data(12),
        optimizer=lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.5),
        learning_rate_schedule=pv.schedules.Exponential(k=0.5),
        streams=pv.Streams.new(0),
        callbacks=callbacks,
        **options,
    )


def by_layers(callbacks: Any, **options: Any) -> pv.Result:
    return pv.dpmac(
        layerwise(),
        net(5, 4, 3),
        BINARY.name,
        made_up(20, 5, 3),
        streams=pv.Streams.new(0),
        callbacks=callbacks,
        coordinates=Coordinates(3, 0.1, "adam"),
        **options,
    )


def left_by_hand(own: pv.Plan, steps: int) -> pv.Result:
    run = pv.Run(
        own,
        small_net(),
        cross_entropy,
        small_data(12),
        optimizer=lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.5),
        learning_rate_schedule=pv.schedules.Exponential(k=0.5),
        streams=pv.Streams.new(0),
    )
    for epoch in run:
        for batch in epoch:
            run.step(batch)
            # after the last step nothing is left
            if batch.number + 1 == steps < own.epochs * len(epoch):
                return run.result()
    return run.result()


def weights(result: pv.Result) -> torch.Tensor:
    return torch.cat([value.flatten() for value in result.model.state_dict().values()])


@check
def check_callbacks_are_given_public_numbers_and_the_ledger_alone() -> None:
    """Whatever hangs on what they are given is a plain number, text or the run's own ledger: no
    tensor, no session.
    """
    for train in (lambda calls: trained(plan(), calls), by_layers):
        seen = At()
        result = train(seen)
        assert {name for name, *_ in seen.given} == {"on_step", "on_epoch", "on_end"}
        for _, _, progress in seen.given:
            held = dict(vars(progress))
            assert held.pop("_ledger") is result.ledger
            assert set(vars(result.ledger)) == set(vars(Ledger()))  # and nothing hangs on that
            assert set(held) == set(NUMBERS)
            assert all(type(value) in (int, float, bool) for value in held.values()), held


@check
def check_callbacks_are_called_in_order_with_what_the_plan_says() -> None:
    own, seen = plan(schedule=pv.schedules.Exponential(k=0.3, start=1.0)), At()
    trained(own, seen)
    steps = own.sampling.steps(12)
    expected = [("on_step", number) for number in range(1, 2 * steps + 1)] + [("on_end", 2 * steps)]
    for epoch in (2, 1):
        expected.insert(expected.index(("on_step", epoch * steps)) + 1, ("on_epoch", epoch * steps))
    assert [(name, step) for name, step, _ in seen.given] == expected
    rate = pv.schedules.Exponential(k=0.5)
    for name, step, progress in seen.given:
        epoch = (step - 1) // steps
        assert (progress.epoch, progress.epochs, progress.steps) == (epoch, 2, 2 * steps), name
        assert progress.noise_multiplier == own.noise_multipliers()[epoch]
        assert abs(progress.learning_rate - 0.3 * rate((step - 1) / steps) / rate(0)) < 1e-12


@check
def check_callbacks_hear_what_was_spent_so_far() -> None:
    """Nothing of what is still to come, and nothing less than the steps so far, by the
    accountant.
    """
    own, heard = plan(), []

    class Heard:
        def on_step(self, progress: TrainingProgress) -> None:
            heard.append((progress.step, progress.epsilon, progress.spent(1e-3).epsilon))

    trained(own, [Heard()])
    step = own.sampling.event(Gaussian(own.noise_multipliers()[0]))
    for number, at_plan, at_other in heard:
        for delta, epsilon in ((1e-5, at_plan), (1e-3, at_other)):
            expected = guarantee(compose([step] * number), own.neighbours, delta).epsilon
            assert abs(epsilon - expected) < 1e-9 * expected, (number, delta)
    untold = pv.Plan(pv.Poisson(0.25), 1, pv.schedules.Constant(2.0))
    seen = At()
    trained(untold, seen)
    assert seen.given[0][2].epsilon is None
    must_raise(pv.errors.BadInput, seen.given[0][2].spent)


@check
def check_a_stopped_run_is_one_that_was_left_by_hand() -> None:
    """The same weights, charges and facts; what is left is given back, and the certificate claims
    the whole plan.
    """
    for sampler in SAMPLERS:
        own = plan(sampler)
        steps = own.sampling.steps(12)
        for step, after in ((1, "on_step"), (steps, "on_epoch"), (2 * steps, "on_step")):
            seen = At(step, after)
            one, other = trained(own, [At(), seen]), left_by_hand(own, step)
            assert torch.equal(weights(one), weights(other)), (sampler, step)
            assert one.facts == other.facts, (sampler, step)
            assert one.ledger.event == other.ledger.event, (sampler, step)
            assert one.ledger.spent(1e-5) == other.ledger.spent(1e-5)
            assert seen.given[-1][:2] == ("on_end", step)
    result = by_layers(At(3))
    assert (result.facts["steps"], result.facts.get("left_early")) == (3, True)
    steps = result.plan.epochs * result.plan.sampling.steps(20)
    whole = by_layers(At(steps))
    assert (whole.facts["steps"], whole.facts.get("left_early")) == (steps, None)
    one_step = result.plan.sampling.event(Gaussian(result.plan.noise_multipliers()[0]))
    assert result.ledger.event == compose([one_step] * 3)
    for other in (result, trained(plan(), At(3)), trained(plan(), At(8))):
        with tempfile.TemporaryDirectory() as place:
            verdict = pv.verify(pv.publish(other, Path(place) / "model", delta=1e-5))
        assert verdict.ok
        assert verdict.epsilon == other.plan.guarantee(1e-5).epsilon
        assert ("left_early" in other.facts) == (other.facts["steps"] < 8)


@check
def check_errors_of_callbacks_lose_nothing() -> None:
    """A run goes on from its checkpoint to the same weights and charges; without one the rest is
    given back.
    """
    for train in (lambda calls, **more: trained(plan(), calls, **more), by_layers):
        require_nothing_lost(train)


def require_nothing_lost(train: Callable[..., pv.Result]) -> None:
    def fail(done: int, steps: int) -> None:
        if done == 5:
            raise Stopped

    whole, ledger = train(()), Ledger(plan().budget)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "run"
        must_raise(Stopped, lambda: train(EachStep(fail), checkpoint=Checkpoint(path, every=1e9)))
        assert path.exists()
        seen = At()
        resumed = train(seen, checkpoint=path)
    assert torch.equal(weights(resumed), weights(whole))
    assert resumed.ledger.event == whole.ledger.event
    assert seen.given[-1][:2] == ("on_end", 8)
    must_raise(Stopped, lambda: train(EachStep(fail), ledger=ledger))
    step = whole.plan.sampling.event(Gaussian(whole.plan.noise_multipliers()[0]))
    assert ledger.event == compose([step] * 5)
    ledger.require_room(Gaussian(100.0), whole.plan.neighbours)  # nothing is set aside for the rest


@check
def check_an_error_at_the_end_leaves_the_result() -> None:
    class Fails(Callback):
        def on_end(self, progress: TrainingProgress) -> None:
            raise Stopped("the server is gone")

    after = At()
    for train in (lambda calls: trained(plan(), calls), by_layers):
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            try:
                result = train([Fails(), after])
            except Stopped as error:
                raise AssertionError("the result is lost") from error
        assert result.ledger.event == result.plan.event()
        assert after.given[-1][0] == "on_end"
        assert ["the server is gone" in str(each.message) for each in heard] == [True]


@check
def check_callbacks_of_the_first_process_alone_are_called() -> None:
    """Also where the first one alone was given callbacks, or only the others were."""
    own = plan(pv.Poisson(0.5))
    for given in ((True, True), (True, False), (False, True)):
        seen = [At(2), At(2)]
        results = together(
            2,
            lambda world, given=given, seen=seen: trained(
                own, [seen[world.rank]] * given[world.rank], world=world
            ),
        )
        assert [result.facts["steps"] for result in results] == ([2, 2] if given[0] else [4, 4])
        assert not seen[1].given
        assert bool(seen[0].given) == given[0]


@check
def check_what_is_no_callback_is_refused_before_anything_is_spent() -> None:
    for wrong in (print, At, "on_step", 3, [None], {"on_step": print}, nn.Linear(1, 1)):
        ledger = Ledger(plan().budget)
        for train in (
            lambda calls, ledger=ledger: trained(plan(), calls, ledger=ledger),
            by_layers,
        ):
            assert "on_step" in str(
                must_raise(pv.errors.BadInput, lambda train=train, wrong=wrong: train(wrong))
            )
        assert not ledger.event.events
