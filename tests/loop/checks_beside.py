"""Named checks of training beside a private run in one script, and of steps repeated with equal
noise.
"""

from __future__ import annotations

import copy
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

import privlearn as pv
from privlearn.core.streams import NoiseStream
from privlearn.errors import BadInput, PrivacyWarning
from privlearn.opacus import PrivacyEngine
from privlearn.runs import optimizers, repeats
from tests.loop.checks import X, Y, loader, loss, network, private, sgd, weights
from tests.support.checks import check, must_raise

STEPS = 8


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as place:
        yield Path(place)


def warned(action: Callable[[], Any]) -> str:
    """What is warned of while `action` runs."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    return " ".join(
        str(each.message) for each in caught if issubclass(each.category, PrivacyWarning)
    )


def step_beside(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """A step of an ordinary loop."""
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(X[:5]), Y[:5]).backward()
    optimizer.step()
    optimizer.zero_grad()


@check
def check_a_step_on_gradients_of_ones_own_is_refused() -> None:
    """By the optimizer of a private run, until the run is over; without gradients a step changes
    nothing.
    """
    model = network()
    optimizer = sgd(model)
    loop = private(model, optimizer=optimizer)
    before = weights(model).clone()
    assert "beside the private step" in str(
        must_raise(BadInput, lambda: step_beside(model, optimizer))
    )
    assert torch.equal(before, weights(model))
    optimizer.zero_grad()
    for batch in loop.batches():
        loop.step(batch, loss)
        released = weights(model).clone()
        optimizer.step()
        assert torch.equal(released, weights(model))
    loop.result()
    step_beside(model, optimizer)  # the run is over: fine-tuning on public rows, say


@check
def check_opacus_calls_whose_result_was_not_taken_are_refused() -> None:
    """The script's own loader and optimizer train without clipping and noise."""
    model = network()
    optimizer, engine = sgd(model), PrivacyEngine()
    engine.make_private_with_epsilon(
        module=model,
        optimizer=optimizer,
        data_loader=loader(),
        target_epsilon=3.0,
        target_delta=1e-3,
        epochs=1,
        max_grad_norm=1.0,
    )
    must_raise(BadInput, lambda: step_beside(model, optimizer))


@check
def check_weights_that_something_else_changed_are_not_published() -> None:
    """Between two steps, after the last one, and after the run."""
    with folder() as place:
        for when in range(1, STEPS + 1):
            model = network()
            loop = private(model)

            def train(model: nn.Module = model, loop: Any = loop, when: int = when) -> None:
                for batch in loop.batches():
                    loop.step(batch, loss)
                    if loop.steps_done == when:
                        step_beside(model, sgd(model))
                loop.result()

            said = warned(train)
            assert "changed after a step" in said, when
            assert "publishes those after its last step. For those of an earlier" in said
            assert "nothing can be claimed" in str(
                must_raise(BadInput, lambda loop=loop: loop.publish(place / "model"))
            )
        model = network()
        loop = private(model)
        for batch in loop.batches():
            loop.step(batch, loss)
        result = loop.result()
        pv.publish(copy.deepcopy(result), place / "copied", delta=1e-5)
        step_beside(model, sgd(model))
        assert "changed after the run" in str(
            must_raise(BadInput, lambda: loop.publish(place / "model"))
        )


@check
def check_averaged_and_scaled_weights_are_the_runs_own() -> None:
    """Post-processing and the temperature change weights, and are part of the run."""
    with folder() as place:

        def train() -> None:
            loop = private(average=0.5)
            for batch in loop.batches():
                loop.step(batch, loss)
            loop.publish(place / "averaged")
            data = pv.Dataset(X.sigmoid(), Y, classes=2, low=0.0, high=1.0)
            pv.publish(
                pv.train(data, epsilon=9.0, epochs=2, average=0.5), place / "scaled", delta=1e-5
            )

        assert warned(train) == ""
        assert pv.verify(place / "averaged").ok
        assert pv.verify(place / "scaled").ok


@check
def check_a_second_run_on_the_same_weights_claims_nothing_or_both() -> None:
    """Its weights hold what the first one released: without a ledger that limits both, nothing can
    be said.
    """

    def run(model: nn.Module, **options: Any) -> Any:
        loop = private(model, **options)
        for batch in loop.batches():
            loop.step(batch, loss)
        return loop

    with folder() as place:
        model = network()
        assert warned(lambda: run(model)) == ""
        for ledger in (None, pv.Ledger()):
            assert "earlier run, which this one does not count" in warned(
                lambda ledger=ledger: run(model, ledger=ledger)
            )
        unlimited, other = pv.Ledger(), network()
        run(other, ledger=unlimited)
        assert "earlier run" in warned(lambda: run(other, ledger=unlimited))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrivacyWarning)
            again = run(model)
        assert "can be claimed" in str(must_raise(BadInput, lambda: again.publish(place / "model")))
        fresh, limit = network(), pv.Ledger(pv.Budget(8.0, 1e-5))
        run(fresh, ledger=limit)
        run(fresh, ledger=limit).publish(place / "both")
        found = pv.verify(place / "both")
        assert found.ok
        assert found.epsilon is not None
        assert found.epsilon >= limit.spent(1e-5).epsilon > 3.0


@check
def check_published_weights_that_are_trained_further_are_warned_of() -> None:
    """Also copies of them, unless the ledger holds an earlier run. Fresh weights are not, norms of
    1 among them.
    """

    def made() -> nn.Module:
        own = nn.Sequential(*network(), nn.LayerNorm(2))
        for parameter in own[-1].parameters():
            parameter.requires_grad_(False)
        return own

    def run(model: nn.Module, **options: Any) -> Any:
        for own in model.parameters():
            own.requires_grad_(True)
        loop = private(model.train(), epochs=1, **options)
        for batch in loop.batches():
            loop.step(batch, loss)
        return loop

    # other checks load models, too
    with folder() as place, mock.patch.object(optimizers, "_LOADED", set[bytes]()):
        limit = pv.Ledger(pv.Budget(30.0, 1e-5))
        loop = private(made(), ledger=limit, streams=None)  # other weights than of an earlier call
        for batch in loop.batches():
            loop.step(batch, loss)
        loop.publish(place / "model")
        assert warned(lambda: run(made())) == ""
        optimizers._LOADED.clear()  # as in another process
        loaded = pv.load_model(place / "model", model=made())
        copied = made()
        copied.load_state_dict(loaded[-1].state_dict())
        for model in (copied, copy.deepcopy(loaded)):
            assert "weights are those of a published model" in warned(
                lambda model=model: run(copy.deepcopy(model))
            )
            assert warned(lambda model=model: run(copy.deepcopy(model), ledger=limit)) == ""
        assert warned(lambda: run(made())) == ""


@check
def check_copies_of_trained_weights_are_warned_of() -> None:
    """A copy of what a run trained, unless the ledger holds that run. Fresh weights are not."""

    def run(model: nn.Module, **options: Any) -> pv.Run:
        loop = private(model.train(), epochs=1, streams=None, **options)
        for batch in loop.batches():
            loop.step(batch, loss)
        loop.result()
        return loop

    with mock.patch.object(optimizers, "_LOADED", set[bytes]()):
        limit = pv.Ledger(pv.Budget(30.0, 1e-5))
        trained = run(network(), ledger=limit).model
        copied = network()
        copied.load_state_dict(trained.state_dict())
        for model in (copied, copy.deepcopy(trained)):
            assert "or of an earlier run" in warned(lambda model=model: run(copy.deepcopy(model)))
            assert warned(lambda model=model: run(copy.deepcopy(model), ledger=limit)) == ""
        assert warned(lambda: run(network())) == ""


def interrupted(
    checkpoint: Path, at: int, *, kept: bool = True, beside: bool = False, model: Any = None
) -> list[Any]:
    """Weights after each step of a run with a scheduler, which ends after `at` steps; resumed if
    there is a file.
    """
    model, seen = model or network(), []
    optimizer = sgd(model)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=STEPS)
    try:
        with private(model, optimizer=optimizer, loss=loss, checkpoint=checkpoint) as loop:
            if kept:
                loop.keep(scheduler)
            for batch in loop.batches():
                if loop.steps_done == 3 and at < STEPS:
                    loop.save_checkpoint()
                loop.step(batch)
                scheduler.step()
                seen.append(weights(model).clone())
                if beside and loop.steps_done == 1:
                    step_beside(model, sgd(model))
                if loop.steps_done == at:
                    raise KeyboardInterrupt
            loop.publish(checkpoint.with_suffix(".model"))
    except KeyboardInterrupt:
        pass
    return seen


@check
def check_a_repeated_step_is_the_same_step() -> None:
    """After an interruption: with a scheduler's state in the checkpoint it is, and else the run is
    refused.
    """
    with folder() as place:
        whole = interrupted(place / "whole", STEPS + 1)
        interrupted(place / "kept", 6)
        assert torch.equal(interrupted(place / "kept", STEPS + 1)[-1], whole[-1])
        interrupted(place / "lost", 6, kept=False)
        error = must_raise(BadInput, lambda: interrupted(place / "lost", STEPS + 1, kept=False))
        assert "was taken before the interruption, with other settings" in str(error)
        pv.runs.Checkpoint(place / "lost").delete()
        assert not list(place.glob("lost*"))


def on_rows(checkpoint: Path, at: int, labels: torch.Tensor, of: Callable[..., Any] = loss) -> None:
    """A run on rows that are fetched by index, saved after 3 steps and ended after `at`; resumed if
    there is a file.
    """
    rows = torch.utils.data.TensorDataset(X.repeat(20, 1), labels)
    given = torch.utils.data.DataLoader(rows, batch_size=len(rows) // 4)
    with private(network(), given, checkpoint=checkpoint, epochs=2, loss=of) as loop:
        for batch in loop.batches():
            if loop.steps_done == 3 and at < STEPS:
                loop.save_checkpoint()
            loop.step(batch)
            if loop.steps_done == at:
                raise KeyboardInterrupt
        loop.publish(checkpoint.with_suffix(".model"))


@check
def check_a_repeated_step_has_the_same_sum() -> None:
    """The noise is the same: with a label, or the loss, changed behind the checkpoint's back the
    run is refused.
    """

    def doubled(model: nn.Module, rows: Any) -> Any:
        return 2 * loss(model, rows)

    doubled.__qualname__ = loss.__qualname__
    labels = Y.repeat(20)
    changed = labels.clone()
    # of a row that is drawn again, and not among those that are compared at once
    changed[100] = 1 - changed[100]
    with folder() as place:
        for name in ("same", "label", "loss"):
            must_raise(KeyboardInterrupt, lambda name=name: on_rows(place / name, 7, labels))  # type: ignore[arg-type]
        on_rows(place / "same", STEPS + 1, labels)
        assert pv.verify(place / "same.model").ok
        for refused in (
            lambda: on_rows(place / "label", STEPS + 1, changed),
            lambda: on_rows(place / "loss", STEPS + 1, labels, doubled),
        ):
            assert "with the same noise on other sums" in str(must_raise(BadInput, refused))
        with (place / "label.steps").open("a", encoding="ascii") as notes:
            notes.write("no note\n")
        assert "are damaged" in str(
            must_raise(BadInput, lambda: on_rows(place / "label", STEPS + 1, labels))
        )


ROWS = torch.rand(60, 8, generator=torch.Generator().manual_seed(0)).double()


def first_sum(checkpoint: Path, factor: float, noise: float) -> torch.Tensor:
    """The first released sum of a full batch, under a loss times `factor`; the run is left as if it
    were killed.
    """
    torch.manual_seed(0)
    model = nn.Linear(8, 4).double()
    before, labels = weights(model).clone(), torch.arange(60) % 4

    def scaled(model: nn.Module, batch: Any) -> torch.Tensor:
        return factor * nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")

    given = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(ROWS, labels), batch_size=60)
    with pv.make_private(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        given,
        epochs=3,
        noise_multiplier=noise,
        max_grad_norm=10.0,
        examples=60,
        sampling="full",
        loss=scaled,
        checkpoint=pv.runs.Checkpoint(checkpoint, every=1e9),
    ) as loop:
        for batch in loop.batches():
            loop.step(batch)
            break
    return (before - weights(model)) * 60


@check
def check_a_scaled_loss_repeats_no_step() -> None:
    """Whatever the noise, and however little the loss is scaled: the difference would be the sum,
    without noise.
    """
    with folder() as place:
        for noise in (1.0, 20.0, 1000.0):
            released = first_sum(place / str(noise), 1.0, noise)
            for part in (1e-3, 3e-5, 1e-6, 1e-9, 1e-13):
                error = must_raise(
                    BadInput, lambda h=part, s=noise: first_sum(place / str(s), 1.0 + h, s)
                )  # type: ignore[misc]
                assert "with the same noise on other sums" in str(error)
            assert torch.equal(first_sum(place / str(noise), 1.0, noise), released)


@check
def check_what_noise_is_for_is_noted_before_it_is_drawn() -> None:
    """Killed while the noise of a step is drawn: the step is noted, and is not repeated on another
    sum.
    """
    drawn = NoiseStream.words

    def killed(self: NoiseStream, number: int) -> Any:
        assert (place / "run.steps").exists()
        raise KeyboardInterrupt

    with folder() as place:
        with mock.patch.object(NoiseStream, "words", killed):
            must_raise(KeyboardInterrupt, lambda: first_sum(place / "run", 1.0, 1.0))  # type: ignore[arg-type]
        with mock.patch.object(NoiseStream, "words", side_effect=AssertionError("noise is drawn")):
            assert "other sums" in str(
                must_raise(BadInput, lambda: first_sum(place / "run", 1.001, 1.0))
            )
        assert NoiseStream.words is drawn
        assert torch.equal(first_sum(place / "run", 1.0, 1.0), first_sum(place / "run", 1.0, 1.0))


@check
def check_a_noted_sum_is_told_from_any_other() -> None:
    """One bit of one number, two numbers exchanged, all of them scaled; wherever its parts lie, a
    sum is the same.
    """
    made_up = torch.Generator().manual_seed(0)
    for kind in (torch.float32, torch.float64):
        values = [torch.randn(size, generator=made_up, dtype=kind) for size in (3, 1 << 14, 40_001)]
        whole = repeats.fingerprint(values, None)
        others = [[own * factor for own in values] for factor in (2.0, 0.5, 1 + 1e-6, -1.0)]
        for number, place in ((0, 1), (1, 16_383), (2, 40_000), (2, 20_000)):
            others.append([own.clone() for own in values])
            others[-1][number][place] = torch.nextafter(
                others[-1][number][place], torch.tensor(9.0, dtype=kind)
            )
        exchanged = [own.clone() for own in values]
        exchanged[2][[5, 6]] = exchanged[2][[6, 5]]
        found = [
            tuple(repeats.fingerprint(other, None).tolist())
            for other in [*others, exchanged, values]
        ]
        assert len(set(found)) == len(found)
        assert found[-1] == tuple(whole.tolist())
        sizes = [len(own) for own in values]
        for cuts in ((0, 2, 9_000), (1, 7, 33_333)):
            front = repeats.fingerprint(
                [own[:c] for own, c in zip(values, cuts, strict=True)], [(0, n) for n in sizes]
            )
            rest = [own[c:] for own, c in zip(values, cuts, strict=True)]
            low, high = (
                front + repeats.fingerprint(rest, list(zip(cuts, sizes, strict=True)))
            ).tolist()
            assert (int(low) + (int(high) << 32)) % 2**64 == int(whole[0]) + (int(whole[1]) << 32)


@check
def check_an_interruption_forgets_no_change_and_is_no_earlier_run() -> None:
    """The checkpoint says that nothing can be claimed; and the same model may go on from it in the
    same process.
    """
    with folder() as place:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PrivacyWarning)
            interrupted(place / "changed", 6, beside=True)
        must_raise(BadInput, lambda: interrupted(place / "changed", STEPS + 1))
        model = network()
        interrupted(place / "same", 6, model=model)
        assert warned(lambda: interrupted(place / "same", STEPS + 1, model=model)) == ""
        assert pv.verify(place / "same.model").ok
