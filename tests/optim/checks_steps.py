"""Named checks of optimizers that a run tells its noise; planted bugs must make them fail."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

import privlearn as pv
from privlearn.core import sampling
from privlearn.core.accounting.guarantee import Adjacency
from privlearn.core.clipping.gradients import ClippedGradients
from privlearn.optim import AdamBC, DiSK, NoiseAware
from privlearn.optim.noise_aware import kinds
from tests.descent.checks_leaks import CLIPS, PRICED, require_neighbours_alike, settled
from tests.runs.checks_resuming import Run as Pieces
from tests.runs.checks_resuming import folder, weights
from tests.support.checks import check, must_raise
from tests.support.nets import cross_entropy, small_data

_RATE = 0.3
#: Those of the library, and not of tests.
OURS = {name: kind for name, kind in kinds().items() if kind.__module__.startswith("privlearn.")}


def plan_of(clip: Any = CLIPS[0], adjacency: Adjacency = Adjacency.ADD_REMOVE) -> pv.Plan:
    """Three epochs of noise that falls."""
    falling = pv.schedules.Exponential(k=0.5, start=2.0)
    drawn = sampling.FullBatch() if adjacency is Adjacency.REPLACE_ONE else pv.Poisson(0.25)
    return pv.Plan(drawn, epochs=3, schedule=falling, clip=clip, adjacency=adjacency, examples=12)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(5, 3).double()


def descended(make: Callable[[Any], torch.optim.Optimizer], **options: Any) -> pv.Result:
    """A whole run from the same start, with the same batches and noise."""
    plan = options.pop("plan", plan_of())
    return pv.dpsgd(
        plan,
        lambda shape: network(),
        cross_entropy,
        small_data(12),
        optimizer=make,
        streams=pv.Streams.new(3),
        **options,
    )


def by_hand(make: Callable[[Any], torch.optim.Optimizer]) -> tuple[list[Tensor], list[Tensor]]:
    """The weights after each step, and those at which its gradients were computed."""
    model = network()
    after, at = [], []
    compute = ClippedGradients.__call__

    def watched(self: ClippedGradients, *given: Any, **named: Any) -> Any:
        at.append(flat(model))
        return compute(self, *given, **named)

    run = pv.Run(
        plan_of(),
        model,
        cross_entropy,
        small_data(12),
        optimizer=make(model.parameters()),
        streams=pv.Streams.new(3),
    )
    with mock.patch.object(ClippedGradients, "__call__", watched):
        for batch in run.batches():
            run.step(batch)
            after.append(flat(model))
    return after, at


def flat(model: nn.Module) -> Tensor:
    return torch.cat([each.detach().flatten() for each in model.parameters()])


def disk(kappa: float, rate: float = _RATE) -> Callable[[Any], DiSK]:
    return lambda parameters: DiSK(parameters, rate, kappa=kappa)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=_RATE)


@check
def check_disk_is_the_exponential_mean_of_sgd() -> None:
    """At a constant rate: gradients are computed at SGD's weights, and published is their mean."""
    start = flat(network())
    plain, _ = by_hand(sgd)
    for kappa in (1.0, 0.4, 0.1):
        means, at = by_hand(disk(kappa))
        for computed, expected in zip(at, [start, *plain], strict=False):
            torch.testing.assert_close(computed, expected, rtol=1e-9, atol=1e-9)
        mean = start
        for found, step in zip(means, plain, strict=True):
            mean = (1 - kappa) * mean + kappa * step
            torch.testing.assert_close(found, mean, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(weights(descended(disk(kappa))), means[-1])


@check
def check_disk_with_falling_rates_is_its_filter() -> None:
    """The weights after each step, from the noisy gradients and the definition."""
    released: list[Tensor] = []

    class Seen(DiSK):  # type: ignore[misc] # a class of the tests
        def step(self, closure: Any = None) -> None:
            released.append(torch.cat([p.grad.flatten() for p in self.param_groups[0]["params"]]))
            rates.append(self.param_groups[0]["lr"])
            super().step()

    rates: list[float] = []
    falling = pv.schedules.Polynomial(k=1, end=0, period=3)
    result = descended(
        lambda p: Seen(p, _RATE, kappa=0.3), learning_rate_schedule=falling, average=None
    )
    x, filtered = flat(network()), torch.zeros(18, dtype=torch.float64)
    assert len(set(rates)) == len(rates) > 5
    for gradient, rate in zip(released, rates, strict=True):
        filtered = 0.7 * filtered + 0.3 * gradient
        x = x - rate * filtered
    torch.testing.assert_close(weights(result), x)
    assert not torch.allclose(x, weights(descended(sgd, learning_rate_schedule=falling)))


@check
def check_a_step_that_fails_leaves_the_weights_to_publish() -> None:
    """Where gradients can't be computed, parameters are what they were before the step."""
    model = network()
    optimizer = DiSK(model.parameters(), _RATE, kappa=0.2)
    run = pv.Run(
        plan_of(),
        model,
        cross_entropy,
        small_data(12),
        optimizer=optimizer,
        streams=pv.Streams.new(3),
    )
    for batch in run.batches():
        before = flat(model)
        if run.steps_done == 3:
            with mock.patch.object(ClippedGradients, "__call__", side_effect=KeyboardInterrupt):
                must_raise(KeyboardInterrupt, lambda batch=batch: run.step(batch))  # type: ignore[arg-type,misc]
            assert torch.equal(flat(model), before)
        run.step(batch)
    assert not run.unclaimed, run.unclaimed


class _Looking(NoiseAware):
    """Notes what gradients it finds whenever it is called but for a step."""

    def __init__(self, params: Iterable[Any]) -> None:
        super().__init__(params, {"lr": 0.1})
        self.seen: list[Tensor | None] = []

    def look(self) -> None:
        self.seen += [each.grad for each in self.param_groups[0]["params"]]

    before_gradients = after_gradients = look

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for each in self.param_groups[0]["params"]:
            each.data.sub_(each.grad, alpha=0.1)


@check
def check_an_optimizer_sees_no_sum_before_its_noise() -> None:
    """Nor does a loss; neither in a step that ends between the sum and the noise, nor after it."""
    model = network()
    optimizer = _Looking(model.parameters())

    def loss(outputs: Tensor, y: Tensor) -> Tensor:
        if begun:
            optimizer.look()
        return cross_entropy(outputs, y)

    begun: list[bool] = []
    run = pv.Run(plan_of(), model, loss, small_data(12), optimizer=optimizer)
    for batch in run.batches():
        begun[:] = [True]
        if run.steps_done in (0, 3):
            with mock.patch("privlearn.training.run.release", side_effect=KeyboardInterrupt):
                must_raise(KeyboardInterrupt, lambda batch=batch: run.step(batch))  # type: ignore[arg-type,misc]
        run.step(batch)
    assert len(optimizer.seen) > 2 * run.steps
    assert all(gradient is None for gradient in optimizer.seen)
    assert not run.unclaimed, run.unclaimed
    assert not torch.equal(flat(model), flat(network()))


class _Told(NoiseAware):
    """Moves nothing, and notes what it is told beside the gradients."""

    def __init__(self, params: Iterable[Any]) -> None:
        super().__init__(params, {"lr": 1.0})
        self.deviations: list[float] = []
        self.gradients: list[Tensor] = []

    def expect_noise(self, deviation: float) -> None:
        self.deviations.append(deviation)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        (weights_,) = self.param_groups[0]["params"]
        self.gradients.append(weights_.grad.clone())


@check
def check_the_noise_that_is_told_is_that_of_the_gradients() -> None:
    """With gradients of zero, for every clip, and for neighbours that double the sensitivity."""
    for clip in CLIPS:
        for adjacency in (Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE):
            made: list[_Told] = []

            def make(parameters: Any, made: list[_Told] = made) -> _Told:
                made.append(_Told(parameters))
                return made[0]

            torch.manual_seed(0)
            model = nn.Linear(5, 4000, bias=False).double()
            pv.dpsgd(
                plan_of(clip, adjacency),
                model,
                lambda outputs, y: 0.0 * outputs.sum(1),
                small_data(12),
                optimizer=make,
                streams=pv.Streams.new(1),
            )
            (optimizer,) = made
            assert len(optimizer.deviations) == len(optimizer.gradients) > 2
            assert optimizer.deviations[-1] < 0.9 * optimizer.deviations[0]
            for told, gradient in zip(optimizer.deviations, optimizer.gradients, strict=True):
                assert math.isclose(float(gradient.std()), told, rel_tol=0.03), (clip, adjacency)


@check
def check_adam_bc_is_its_formula() -> None:
    """From the noisy gradients and the noise of the plan, which falls from epoch to epoch."""
    gradients: list[Tensor] = []
    deviations: list[float] = []

    class Seen(AdamBC):  # type: ignore[misc] # a class of the tests
        def expect_noise(self, deviation: float) -> None:
            deviations.append(deviation)
            super().expect_noise(deviation)

        def step(self, closure: Any = None) -> None:
            gradients.append(torch.cat([p.grad.flatten() for p in self.param_groups[0]["params"]]))
            super().step()

    plan = plan_of()
    result = descended(lambda p: Seen(p, 0.1, betas=(0.8, 0.9), floor=0.2), plan=plan)
    steps = len(deviations) // 3
    expected = [sigma * 0.5 / 3 for sigma in plan.noise_multipliers() for _ in range(steps)]
    assert all(map(math.isclose, deviations, expected)), (deviations, expected)
    x, mean, square, noise = flat(network()), 0.0, 0.0, 0.0
    for at, (g, s) in enumerate(zip(gradients, expected, strict=True), 1):
        mean = 0.8 * mean + 0.2 * g
        square = 0.9 * square + 0.1 * g**2
        noise = 0.9 * noise + 0.1 * s**2
        second = ((square - noise) / (1 - 0.9**at)).clamp(min=0.2 * noise / (1 - 0.9**at))  # type: ignore[attr-defined]
        x = x - 0.1 * mean / (1 - 0.8**at) / second.sqrt()
    torch.testing.assert_close(weights(result), x, rtol=1e-5, atol=1e-6)


@check
def check_neighbouring_runs_look_the_same_to_every_optimizer() -> None:
    """What is released moves by the sensitivity at most, and given that all else is the same: the
    weights, the files, what is said.
    """
    for name, kind in OURS.items():
        for number, clip in enumerate(CLIPS):
            for sampler, adjacency in (PRICED[0], PRICED[(3 + number) % len(PRICED)]):
                require_neighbours_alike(
                    settled(sampler, adjacency, clip),
                    ("ordinary", "one NaN", "far"),
                    optimizer=lambda p, kind=kind: kind(p, lr=0.2),
                )
        assert name == kind.__name__.lower()


@check
def check_a_run_in_pieces_has_the_optimizers_state() -> None:
    """Stopped after every other step, and continued, with a mean of the weights: bit for bit."""
    for make in (disk(0.3), lambda p: AdamBC(p, 0.05)):
        run = Pieces(optimizer=make, clip=pv.clipping.Quantile(0.1))
        whole = run.go(average=0.5)
        with folder() as here:
            pieces = run.by_pieces(here / "run", average=0.5)
        assert torch.equal(weights(pieces), weights(whole))


@check
def check_means_are_of_the_weights_to_publish() -> None:
    """Not of those at which gradients are computed."""
    after, _ = by_hand(disk(0.2))
    mean = torch.stack(after).mean(0)
    torch.testing.assert_close(weights(descended(disk(0.2), average=1.0)), mean)
