"""Named checks of what loops use of a run, whoever made it; mutations must make them fail."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import privlearn as pv
from privlearn.errors import BadInput
from privlearn.runs.checkpoint import Checkpoint
from privlearn.training.epoch_loader import EpochLoader, drawn_batch
from privlearn.training.privacy_config import PrivacyArguments
from tests.loop.checks import X, Y, gone_through, loader, loss, network, private, sgd, weights
from tests.support.checks import check, must_raise

#: Steps of a whole run of `private`, in two epochs.
STEPS = 8
#: Seconds between checkpoints: none is written because it is time.
NEVER = 1e15


def by_hand(**options: Any) -> pv.Run:
    """A run on the same rows that `pv.Run` makes."""
    plan = pv.Plan(pv.Poisson(0.25), epochs=2, clip=pv.Flat(1.0))
    cross_entropy = nn.CrossEntropyLoss(reduction="none")
    model = options.pop("model", None) or network()
    given = {"streams": pv.Streams.new(0), **options}
    plan = given.pop("plan", None) or plan.calibrate(epsilon=3.0, delta=1e-5)
    return pv.Run(plan, model, given.pop("loss", cross_entropy), (X, Y), **given)


def by_an_epoch_loader(run: pv.Run) -> None:
    """As a trainer does that counts its batches."""
    loader = EpochLoader(run)
    for _ in range(run.plan.epochs):
        for drawn in islice(loader, len(loader)):
            run.step(drawn_batch(drawn), loss)


def by_counting(run: pv.Run) -> None:
    for epoch in run:
        for batch in islice(epoch, len(epoch)):
            run.step(batch, loss)


def by_leaving_after_the_last(run: pv.Run) -> None:
    for batch in run.batches():
        run.step(batch, loss)
        if run.steps_done == run.steps:
            break


@check
def check_a_loop_that_counts_its_batches_is_complete() -> None:
    """It does not ask for a batch after the last: an epoch is over once all of its steps were
    taken.
    """
    expected = gone_through(private())
    loops: tuple[Callable[[pv.Run], None], ...] = (
        by_an_epoch_loader,
        by_counting,
        by_leaving_after_the_last,
    )
    for loop in loops:
        run = private()
        loop(run)
        result = run.result()
        assert torch.equal(weights(result.model), expected), loop.__name__
        assert "left_early" not in result.facts, loop.__name__
        assert result.facts["steps"] == STEPS
        assert run.ledger.event == run.plan.event()
        assert run.result() is result
    loader = EpochLoader(run)
    assert "over" in str(must_raise(BadInput, lambda: next(iter(loader))))
    assert "a tuple" in str(must_raise(BadInput, lambda: drawn_batch((X, Y))))


@check
def check_a_run_that_lacks_steps_is_left_early() -> None:
    """Whoever ends it: also where all of them were taken, and something ended the run before its
    epoch was over.
    """
    for steps in (1, STEPS // 2, STEPS - 1):
        run = private()
        for batch in islice(run.batches(), steps):
            run.step(batch, loss)
        facts = run.result().facts
        assert facts["left_early"] is True
        assert facts["steps"] == run.steps_done == steps
    run = private()
    by_leaving_after_the_last(run)
    run.close()
    assert run.result().facts["left_early"] is True


@check
def check_an_optimizer_is_one_of_the_model() -> None:
    """`pv.Run` takes one that was made: it ends with the same weights, and its rates are its
    script's.
    """
    model = network()
    run = by_hand(model=model, optimizer=sgd(model))
    ours = gone_through(run, None)
    made = by_hand(optimizer=lambda own: torch.optim.SGD(own, lr=0.5))
    assert torch.equal(ours, gone_through(made, None))
    assert run.result().facts["learning_rate_schedule"] == "the script's own"
    assert made.result().facts["learning_rate_schedule"].startswith("constant")
    model = network()
    named = by_hand(
        model=model, optimizer=sgd(model), learning_rate_schedule=pv.schedules.Exponential(0.1)
    )
    assert gone_through(named, None).isfinite().all()
    assert named.result().facts["learning_rate_schedule"].startswith("exp:k=0.1")
    for optimizer in (
        sgd(network()),
        torch.optim.SGD(list(model.parameters())[:2], lr=0.1),
        torch.optim.LBFGS(model.parameters()),
        "sgd",
    ):
        ledger = pv.Ledger()
        must_raise(
            BadInput,
            lambda own=optimizer, book=ledger: by_hand(model=model, optimizer=own, ledger=book),  # type: ignore[misc]
        )
        assert not ledger.event.events


@check
def check_functions_in_a_loop_are_losses_of_the_model() -> None:
    """Whatever their parameters are called; in `pv.Run` one of two tensors is of (outputs,
    targets).
    """

    def of_other_names(net: Any, rows: Any) -> Tensor:
        return loss(net, rows)

    def of_outputs(outputs: Any, targets: Any) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    expected = gone_through(private())
    assert torch.equal(gone_through(private(), of_other_names), expected)
    assert torch.equal(gone_through(private(loss=of_other_names), None), expected)
    sampling = private().plan.sampling
    plan = pv.Plan(sampling, epochs=2, clip=pv.Flat(1.0)).calibrate(epsilon=3.0, delta=1e-5)
    model = network()
    run = by_hand(plan=plan, model=model, loss=None, optimizer=sgd(model))
    assert torch.equal(gone_through(run, of_outputs), expected)


@check
def check_epsilon_is_stated_at_the_runs_delta() -> None:
    """In `spent` and in what `publish` writes: at the run's own, or at the plan's."""
    noisy = pv.Plan(
        pv.Poisson(0.25), epochs=2, clip=pv.Flat(1.0), schedule=pv.schedules.Constant(2.0)
    )
    assert "delta=1e-5" in str(must_raise(BadInput, by_hand(plan=noisy).spent))
    for run, delta in ((by_hand(), 1e-5), (by_hand(plan=noisy, delta=1e-6), 1e-6)):
        gone_through(run, None)
        assert run.spent().delta == delta
        assert run.spent().epsilon == run.plan.guarantee(delta).epsilon
        assert run.spent(1e-3).epsilon < run.spent().epsilon
        with tempfile.TemporaryDirectory() as folder:
            out = run.publish(Path(folder) / "model")
            assert pv.verify(out).ok
            assert pv.verify(out).epsilon == run.plan.guarantee(delta).epsilon
    for wrong in (0.0, 1.0, 2, "1e-5", float("nan")):
        assert "delta" in str(must_raise(BadInput, lambda own=wrong: by_hand(delta=own)))  # type: ignore[misc]


@check
def check_a_checkpoint_is_written_when_it_is_asked_for() -> None:
    """Between two steps, also after an epoch's last one; `begin` brings its state back before the
    first batch.
    """
    expected = gone_through(private())
    for after in (1, 3, 4, 6, STEPS):
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder) / "run"
            run = private(loss=loss, checkpoint=Checkpoint(place, every=NEVER))
            run.save_checkpoint()
            assert "another name" in str(
                must_raise(BadInput, lambda own=run: own.keep(optimizer=sgd(own.model)))  # type: ignore[misc]
            )
            batches = run.batches()
            for batch in islice(batches, after):
                run.step(batch)
            run.save_checkpoint()
            reached = weights(run.model).clone()
            run.close(KeyboardInterrupt())
            again = private(loss=loss, checkpoint=place)
            assert again.steps_done == after
            assert f"interrupted: {after} of {STEPS} steps" in repr(again)
            again.begin()
            again.begin()
            assert torch.equal(weights(again.model), reached)
            assert torch.equal(gone_through(again, None), expected)
            assert again.ledger.event == again.plan.event()
            whole = private(loss=loss, checkpoint=place)
            assert torch.equal(weights(whole.result().model), expected)
            assert "left_early" not in whole.result().facts


@check
def check_a_script_that_counts_epochs_goes_on_after_a_whole_one() -> None:
    """A checkpoint between two epochs: what follows is the next epoch, with all of its batches."""
    expected = gone_through(private())
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "run"
        run = private(loss=loss, checkpoint=Checkpoint(place, every=NEVER))
        for batch in run.next_epoch():
            run.step(batch)
        run.save_checkpoint()
        run.close()
        again = private(loss=loss, checkpoint=place)
        assert (again.steps_done, again.epoch) == (STEPS // 2, 1)
        steps = [again.step(batch) for batch in again.next_epoch()]
        assert len(steps) == STEPS // 2
        assert torch.equal(weights(again.result().model), expected)
    assert "no checkpoint file" in str(must_raise(BadInput, private().save_checkpoint))


@check
def check_how_many_are_computed_at_once_is_said_before_the_loss() -> None:
    run = private()
    run.set_microbatch(4)
    assert run.config.microbatch == 4
    torch.testing.assert_close(gone_through(run), gone_through(private()), rtol=1e-4, atol=1e-6)
    run = private()
    run.step(next(run.batches()), loss)
    assert "microbatch=" in str(must_raise(BadInput, lambda: run.set_microbatch(4)))
    must_raise(BadInput, lambda: private().set_microbatch(0))
    assert run.config.microbatch is None
    fixed = private(loss=loss, microbatch=4)
    fixed.set_microbatch(4)
    must_raise(BadInput, lambda: fixed.set_microbatch(8))


@check
def check_a_run_compares_its_gradients_when_it_is_asked_to() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.other = network(), nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x)  # type: ignore[no-any-return]

    private(loss=loss).require_gradients()
    run = private(Unused(), loss=loss)
    assert "other.weight" in str(must_raise(BadInput, run.require_gradients))
    assert "no loss" in str(must_raise(BadInput, private().require_gradients))
    assert not run.ledger.event.events


@check
def check_gradients_of_losses_that_draw_are_compared() -> None:
    """With the same numbers, as those of a variational autoencoder's loss."""

    def drawing_loss(model: nn.Module, batch: Any) -> Tensor:
        x, y = batch
        noisy = x + torch.randn_like(x) * x.abs()
        return nn.functional.cross_entropy(model(noisy), y, reduction="none")

    private(loss=drawing_loss).require_gradients()


@check
def check_what_a_loop_keeps_between_steps_stays() -> None:
    """In a module, such as figures of validation; from one epoch to the next, too."""
    model = network()
    model.history = []
    run = private(model, loss=loss)
    for epoch in run:
        for batch in epoch:
            run.step(batch)
        model.history.append(0.5 + epoch.number)
    assert model.history == [0.5, 1.5]


#: What a plan says, each with a value that is not the usual one.
PLANNED: dict[str, Any] = {
    "epsilon": 3.0,
    "max_grad_norm": 1.0,
    "rho": 0.5,
    "noise_multiplier": 2.0,
    "examples": 60,
    "adjacency": "zero_out",
    "group_size": 2,
    "sampling": "shuffle",
    "schedule": pv.schedules.Exponential(k=0.1),
    "mechanism": "independent",
    "clip": pv.Flat(1.0),
    "clip_norm": 1.0,
    "rows_per_person": 2,
    "solve": "epochs",
    "batch_size": 10,
    "privacy": pv.PrivacyConfig(epsilon=3.0),
}


@check
def check_a_loop_of_a_plan_is_the_plans() -> None:
    """The run has the plan as it is, and nothing beside it says what it says."""
    plan = pv.Plan(pv.Poisson(0.25), epochs=2, clip=pv.clipping.Automatic(0.5))
    plan = plan.calibrate(epsilon=2.0, delta=1e-5)

    def in_a_loop(**options: Any) -> pv.Run:
        model = network()
        options = {"plan": plan, "streams": pv.Streams.new(0), **options}
        return pv.make_private(model, sgd(model), loader(), **options)

    run = in_a_loop(epochs=2)
    assert run.plan == plan
    trained = gone_through(run)
    result = pv.dpsgd(
        plan,
        network(),
        nn.CrossEntropyLoss(reduction="none"),
        (X, Y),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
        streams=pv.Streams.new(0),
    )
    assert torch.equal(trained, weights(result.model))
    assert run.ledger.event == result.ledger.event == plan.event()
    assert set(PLANNED) == {"epsilon", "max_grad_norm", *PrivacyArguments.__annotations__}
    for name, value in PLANNED.items():
        said = must_raise(BadInput, lambda name=name, value=value: in_a_loop(**{name: value}))
        assert f"plan= and {name}= are both given" in str(said)
    assert "the plan has 2" in str(must_raise(BadInput, lambda: in_a_loop(epochs=3)))
    front = pv.Plan(pv.Poisson(0.25), 2, front=(pv.transforms.PrivatePCA(3, 16.0),))
    assert "in front of the model" in str(must_raise(BadInput, lambda: in_a_loop(plan=front)))
    assert "epochs is missing" in str(must_raise(BadInput, lambda: in_a_loop(plan=None)))
