"""Named checks of what a script sets on its optimizer: noise, clip and their schedulers, and runs
without noise.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import privlearn as pv
from privlearn.core.accounting.mechanisms import NonPrivate
from privlearn.core.clipping.clips import Flat, PerLayer, Quantile
from privlearn.errors import BadInput, NotPerExample, PrivacyWarning, PrivlearnError
from privlearn.opacus import (
    ExponentialGradClip,
    ExponentialNoise,
    LambdaNoise,
    PrivacyEngine,
    StepGradClip,
    StepNoise,
)
from tests.opacus.checks import (
    X,
    Y,
    gradient_of,
    handed,
    loader,
    mean,
    network,
    private,
    sgd,
    step_on,
    trained,
    weights,
)
from tests.support.checks import check, must_raise


def wide() -> nn.Module:
    """So many weights that the noise of a step can be measured to a percent."""
    torch.manual_seed(0)
    return nn.Linear(6, 600)


def nothing(model: Any, x: Tensor, y: Tensor) -> Tensor:
    """A loss without a gradient: what is released is noise."""
    return (0.0 * model(x)).mean()


def released(made: tuple[Any, ...], loss: Any, *schedulers: Any, epochs: int = 3) -> list[float]:
    """The root mean square of the released gradient of each epoch's last step."""
    _, model, optimizer, batches = made
    sizes = []
    for _ in range(epochs):
        for x, y in batches:
            optimizer.zero_grad()
            loss(model, x, y).backward()
            optimizer.step()
        sizes.append(
            float(torch.cat([each.grad.flatten() for each in optimizer.params]).square().mean())
            ** 0.5
        )
        for scheduler in schedulers:
            scheduler.step()
    return sizes


def noisy(**options: Any) -> tuple[Any, ...]:
    return private(wide(), **{"noise_multiplier": 2.0, "epochs": 3, **options})


def refuse_setting(made: tuple[Any, ...], name: str, value: Any) -> None:
    must_raise(PrivlearnError, lambda: setattr(made[2], name, value))


@check
def check_a_setting_acts_or_is_refused() -> None:
    """Before the first batch it acts, in what is drawn and in what is charged; after it, and
    wherever nothing would follow, it is refused.
    """
    for name, value in (("noise_multiplier", 4.0), ("max_grad_norm", 3.0)):
        made = noisy()
        setattr(made[2], name, value)
        assert getattr(made[2], name) == value
        other = noisy(**{name: value})
        assert made[0].run.plan == other[0].run.plan
        assert released(made, nothing) == released(other, nothing)
        assert made[0].run.ledger.event == other[0].run.plan.event()
        for late in (0.5 * value, value):
            refuse_setting(made, name, late)
        made = noisy()
        for bad in (0.0, -1.0, math.nan, "1", getattr(made[2], name)):
            refuse_setting(made, name, bad)
        next(iter(made[3]))  # from here on the plan is fixed
        refuse_setting(made, name, value)
        assert made[0].run.plan == noisy()[0].run.plan
    made = private()
    refuse_setting(made, "noise_multiplier", 5.0)  # of a target
    for name in ("expected_batch_size", "loss_reduction", "generator", "grad_clip"):
        refuse_setting(made, name, 1)


@check
def check_a_noise_schedule_is_charged_as_drawn() -> None:
    schedulers: list[tuple[Callable[[Any], Any], list[float]]] = [
        (lambda own: ExponentialNoise(own, gamma=0.5), [2.0, 1.0, 0.5]),
        (lambda own: StepNoise(own, step_size=2, gamma=0.5), [2.0, 2.0, 1.0]),
        (lambda own: LambdaNoise(own, noise_lambda=lambda epoch: 1 + epoch), [2.0, 4.0, 6.0]),
    ]
    for make, expected in schedulers:
        made = noisy()
        scheduler = make(made[2])
        sizes = released(made, nothing, scheduler)
        run = made[0].run
        assert list(run.plan.noise_multipliers()) == expected
        assert run.ledger.event == run.plan.event()
        assert run.plan.guarantee(1e-5).epsilon == made[0].get_epsilon(1e-5)
        for size, noise in zip(sizes, expected, strict=True):
            assert abs(size / (noise / 15) - 1) < 0.06, (size, noise)


@check
def check_a_clip_schedule_has_the_sensitivity_of_its_step() -> None:
    """Gradients are clipped to the norm of the epoch, and the noise is as large as that norm."""
    for make, norms in (
        (lambda own: ExponentialGradClip(own, gamma=0.5), [1.0, 0.5, 0.25]),
        (lambda own: StepGradClip(own, step_size=2, gamma=3.0), [1.0, 1.0, 3.0]),
    ):
        made = noisy()
        sizes = released(made, nothing, make(made[2]))
        for size, norm in zip(sizes, norms, strict=True):
            assert abs(size / (2.0 * norm / 15) - 1) < 0.06, (size, norm)
        assert made[0].run.ledger.event == noisy()[0].run.plan.event()  # it costs nothing
        rows = [
            ("clipping", value) for name, value in made[0].run.plan.rows() if name == "clipping"
        ]
        assert "PerEpoch" in rows[0][1]
        # the same, at hardly any noise: each example's gradient is longer than all norms
        made = private(noise_multiplier=1e-6, max_grad_norm=1e-3, epochs=3, sampling="full")
        scheduler = make(made[2])
        for norm in norms:
            before, expected = weights(made[1]), clipped_mean(made[1]._module, 1e-3 * norm)
            released(made, mean, scheduler, epochs=1)
            moved = before - weights(made[1])
            assert float((moved - 0.5 * expected).norm() / moved.norm()) < 3e-3


def clipped_mean(model: nn.Module, norm: float, *, each: bool = False) -> Tensor:
    """The mean over all rows of gradients clipped to a norm; or with `each`, parameter by
    parameter.
    """
    total = torch.zeros(())
    for row in range(len(X)):
        loss = F.cross_entropy(model(X[row : row + 1]), Y[row : row + 1])
        parts = [part.flatten() for part in torch.autograd.grad(loss, [*model.parameters()])]
        parts = parts if each else [torch.cat(parts)]
        total = total + torch.cat([part * min(1.0, norm / float(part.norm())) for part in parts])
    return total / len(X)


@check
def check_a_target_holds_whatever_the_schedule_is() -> None:
    made = private(epochs=3)
    constant = made[2].noise_multiplier
    scheduler = ExponentialNoise(made[2], gamma=0.5)
    first = made[2].noise_multiplier
    assert first > constant
    trained_with(made, scheduler)
    run = made[0].run
    assert run.plan.noise_multipliers() == (first, 0.5 * first, 0.25 * first)
    assert 2.98 < run.plan.guarantee(1e-5).epsilon <= 3.0
    assert run.ledger.event == run.plan.event()


def trained_with(made: tuple[Any, ...], *schedulers: Any) -> list[float]:
    return released(made, mean, *schedulers)


@check
def check_a_scheduler_out_of_step_is_refused() -> None:
    """Once after each pass, or the next batch is refused: nothing is charged at another noise."""
    for times in (0, 2):
        made = noisy()
        schedulers = [StepNoise(made[2], step_size=1, gamma=0.5)] * times
        if not times:
            ExponentialGradClip(made[2], gamma=0.5)
        must_raise(BadInput, lambda made=made, own=schedulers: trained_with(made, *own))
        assert made[0].run.steps_done == 4  # the first epoch
    made = noisy()
    scheduler = ExponentialNoise(made[2], gamma=0.5)
    x, y = next(iter(made[3]))
    mean(made[1], x, y).backward()
    scheduler.step()
    must_raise(BadInput, made[2].step)  # within an epoch
    for make in (lambda: ExponentialNoise(made[2], gamma=0.5), lambda: StepNoise(sgd(wide()), 1)):  # type: ignore[call-arg,arg-type]
        must_raise((BadInput, TypeError), make)
    made = noisy()
    ExponentialNoise(made[2], gamma=0.5)
    must_raise(BadInput, lambda: ExponentialNoise(made[2], gamma=0.5))
    made = noisy()
    LambdaNoise(made[2], noise_lambda=lambda epoch: 1 - epoch / 2)
    must_raise(BadInput, lambda: next(iter(made[3])))


@check
def check_without_noise_nothing_is_claimed() -> None:
    """Weights are those of the clipped mean; and no figure, certificate or later run says
    otherwise.
    """
    for clipping, each in (("flat", False), ("per_layer", True)):
        model = network()
        with_warning(PrivacyWarning, lambda: private(noise_multiplier=0.0))
        made = private(
            model, noise_multiplier=0.0, sampling="full", max_grad_norm=0.3, clipping=clipping
        )
        before, expected = weights(model), clipped_mean(model, 0.3, each=each)
        trained(made, epochs=1)
        torch.testing.assert_close(before - weights(model), 0.5 * expected, rtol=1e-4, atol=1e-7)
    engine = made[0]
    for parameter in model.parameters():
        rows: Any = parameter.grad_sample  # type: ignore[attr-defined]
        assert rows.shape == (60, *parameter.shape)
        torch.testing.assert_close(
            parameter.summed_grad / 60,  # type: ignore[attr-defined]
            parameter.grad,
        )
    assert engine.get_epsilon(1e-5) == math.inf
    assert any(isinstance(each, NonPrivate) for each in engine.run.ledger.event.events)
    with tempfile.TemporaryDirectory() as folder:
        must_raise(PrivlearnError, lambda: engine.run.spent(1e-5))
        must_raise(PrivlearnError, engine.run.result)
        must_raise(PrivlearnError, lambda: engine.publish(Path(folder) / "model"))
        again = private(model, noise_multiplier=1.0)
        trained(again)
        must_raise(PrivlearnError, lambda: again[0].publish(Path(folder) / "model", delta=1e-5))
    must_raise(BadInput, lambda: private(noise_multiplier=0.0, ledger=pv.Ledger()))
    made = private(noise_multiplier=0.0)
    must_raise(BadInput, lambda: setattr(made[2], "noise_multiplier", 1.0))


def with_warning(kind: type[Warning], call: Callable[[], Any]) -> None:
    import warnings

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    assert any(issubclass(each.category, kind) for each in caught)


@check
def check_each_parameter_is_clipped_by_itself_within_its_bound() -> None:
    """As Opacus clips "per_layer": with P parameters an example adds up to norm sqrt(P)."""
    model = network()
    made = private(
        model, noise_multiplier=1e-6, sampling="full", max_grad_norm=1e-3, clipping="per_layer"
    )
    before, expected = weights(model), clipped_mean(model, 1e-3, each=True)
    trained(made, epochs=1)
    torch.testing.assert_close(before - weights(model), 0.5 * expected, rtol=5e-3, atol=1e-7)
    made = noisy(clipping="per_layer")
    (size, *_) = released(made, nothing)
    assert abs(size / (2.0 * math.sqrt(2) / 15) - 1) < 0.06
    assert made[0].run.plan.clip == PerLayer(1.0, parameters=True)


@check
def check_adaptive_clipping_is_priced_as_one_release() -> None:
    """The count has the noise that was asked for, the release of both that of the plan."""
    made = noisy(
        clipping="adaptive",
        target_unclipped_quantile=0.3,
        clipbound_learning_rate=0.4,
        min_clipbound=0.9,
        max_clipbound=1.1,
        unclipped_num_std=6.0,
    )
    clip = made[0].run.plan.clip
    assert isinstance(clip, Quantile)
    deviation = 2.0 * clip.norm(1.0, 1) / (2 * clip.share)
    assert abs(deviation / 6.0 - 1) < 1e-9
    assert (clip.quantile, clip.rate, clip.least, clip.most) == (0.3, 0.4, 0.9, 1.1)
    trained_with(made)
    assert 0.9 <= made[2].max_grad_norm <= 1.1
    assert made[2].max_grad_norm != 1.0
    assert made[0].run.ledger.event == noisy()[0].run.plan.event()
    for other in (
        {"unclipped_num_std": 0.9},
        {"unclipped_num_std": 1e6},
        {"noise_multiplier": 0.0},
    ):
        must_raise(
            BadInput,
            lambda other=other: noisy(clipping="adaptive", **{"unclipped_num_std": 6.0, **other}),
        )
    must_raise(BadInput, lambda: noisy(min_clipbound=0.1))


@check
def check_gradients_after_a_step_are_the_released_ones() -> None:
    """What parameters hold, and what a step's hook sees, is what the weights were moved by."""
    seen: list[Tensor] = []
    made = noisy()
    made[2].attach_step_hook(
        lambda own: seen.append(torch.cat([each.grad.flatten() for each in own.params]))
    )
    model, x, y = handed(made)
    before = weights(model)
    nothing(model, x, y).backward()
    made[2].step()
    held = torch.cat([each.grad.flatten() for each in made[2].params])
    assert torch.equal(held, seen[0])
    assert float(held.square().mean()) > 0.01  # noise, of no gradient
    torch.testing.assert_close(before - weights(model), 0.5 * held, rtol=1e-4, atol=1e-6)
    x, y = next(iter(made[3]))
    nothing(model, x, y).backward()
    must_raise(BadInput, made[2].step)  # as if they were added up
    made[2].zero_grad()
    assert all(each.grad is None for each in made[2].params)
    made[2].step()
    assert len(seen) == len(made[0].accountant) == 2
    assert made[0].accountant.history == [(2.0, 0.25, 2)]


@check
def check_a_mean_of_a_difference_is_taken_apart() -> None:
    """The mean over all pairs of a difference that was broadcast is the mean of the differences."""
    made = private(noise_multiplier=1e-6, sampling="full", epochs=1, max_grad_norm=1e2)
    model = made[1]._module
    before = weights(model)
    loss = (Y[:, None, None] - model(X)).mean() * 3.0
    expected = torch.cat(
        [part.flatten() for part in torch.autograd.grad(loss, [*model.parameters()])]
    )
    trained(made, lambda m, x, y: 3.0 * (y.unsqueeze(1).unsqueeze(2) - m(x)).mean(), epochs=1)
    torch.testing.assert_close(before - weights(model), 0.5 * expected, rtol=1e-3, atol=1e-5)
    must_raise(NotPerExample, lambda: step_on(lambda m, x, y: (y - m(x)[:, :1]).square().mean()))


class WithLoss(nn.Module):
    """Returns its loss beside its output, as models of transformers do."""

    def __init__(self, weight: Tensor | None = None, *, pairs: bool = False) -> None:
        super().__init__()
        self.inner, self.weight, self.pairs = network(), weight, pairs

    def forward(self, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        output = self.inner(x)
        if self.pairs:
            return {"loss": F.cross_entropy(output @ output.T, torch.arange(len(x)))}
        return {"loss": F.cross_entropy(output, y, weight=self.weight), "output": output}


@check
def check_a_models_own_loss_is_that_of_each_row_alone() -> None:
    model = WithLoss()
    made = private(model, noise_multiplier=1e-6, sampling="full", epochs=1, max_grad_norm=0.3)
    before, each = weights(model), torch.stack([gradient_of(row) for row in range(60)])
    expected = (each * (0.3 / each.norm(dim=1, keepdim=True)).clamp(max=1.0)).mean(0)
    trained(made, lambda m, x, y: 2 * m(x, y)["loss"] / 2, epochs=1)
    torch.testing.assert_close(before - weights(model), 0.5 * expected, rtol=5e-3, atol=1e-6)
    for coupled in (WithLoss(torch.tensor([1.0, 9.0])), WithLoss(pairs=True)):
        must_raise(
            NotPerExample,
            lambda model=coupled: step_on(lambda m, x, y: m(x, y)["loss"], model=model),
        )


@check
def check_a_private_loader_serves_another_engine_on_the_same_rows() -> None:
    """Which is said, unless both are on one ledger."""
    first = private()
    model = network()

    def again(**options: Any) -> tuple[Any, ...]:
        return private(model, data_loader=first[3], **options)

    with_warning(PrivacyWarning, again)
    made = again()
    assert torch.equal(trained(made), trained(private()))
    ledger = pv.Ledger(pv.Budget(9.0, 1e-5))
    one = private(ledger=ledger)
    trained(one)
    other = private(network(), data_loader=one[3], ledger=ledger)
    trained(other)
    assert ledger.spent(1e-5).epsilon > 3.0


@check
def check_a_pass_without_steps_shows_rows_and_draws_none() -> None:
    """Before the first step a script may look at the loader; the run's batches are what they would
    have been.
    """
    made = private()
    seen = sum(len(made[1](x)) for x, _ in made[3])
    assert seen == 60
    assert made[0].run.steps_done == 0
    assert torch.equal(trained(made), trained(private()))
    made = private()
    rows = iter(made[3])
    next(rows)
    x, y = next(rows)  # rows to look at
    mean(made[1], x, y).backward()
    must_raise(BadInput, made[2].step)


def engine_of(**options: Any) -> PrivacyEngine:
    made: PrivacyEngine = private(**options)[0]
    return made


@check
def check_a_tolerance_of_epsilon_is_kept() -> None:
    made = engine_of(epsilon_tolerance=0.01)
    assert 2.99 <= made.run.plan.guarantee(1e-5).epsilon <= 3.0
    must_raise(BadInput, lambda: engine_of(epsilon_tolerance=1e-9))
    by_steps = private(epochs=None, total_steps=7)
    assert by_steps[0].run.plan.epochs == 2
    must_raise(BadInput, lambda: engine_of(total_steps=7))


@check
def check_a_clips_schedule_is_followed_and_published() -> None:
    """Of a plan of one's own, too: in the run, in JSON, and refused where noise is correlated."""
    clip = Flat(0.5, schedule=pv.schedules.PerEpoch((2.0, 1.0)))
    plan = pv.Plan(pv.Poisson(0.25), epochs=2, clip=clip, examples=60)
    assert [clip.at(epoch) for epoch in range(3)] == [0.5, 0.25, 0.25]
    assert "schedule" not in pv.Plan(pv.Poisson(0.25), clip=Flat(0.5)).to_json()["clip"]
    assert plan.to_json()["clip"]["schedule"]["values"] == [2.0, 1.0]
    must_raise(
        BadInput,
        lambda: pv.Plan(
            pv.sampling.FixedOrder(15), epochs=2, clip=clip, correlation=pv.mechanisms.BISR(bands=2)
        ),
    )
    fall = pv.schedules.Exponential(k=50.0)
    must_raise(BadInput, lambda: pv.Plan(pv.Poisson(0.25), epochs=9, clip=Flat(1.0, schedule=fall)))
    model = network()
    run = pv.make_private(
        model, sgd(model), loader(), epochs=2, noise_multiplier=1e-6, clip=clip, sampling="full"
    )
    batches = run.batches()
    for norm in (0.5, 0.25):
        before, expected = weights(model), clipped_mean(model, norm)
        run.step(next(batches), nn.CrossEntropyLoss(reduction="none"))
        torch.testing.assert_close(before - weights(model), 0.5 * expected, rtol=5e-3, atol=1e-6)
        assert run.clip_norm == norm
