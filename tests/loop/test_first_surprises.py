"""What a first loop gets wrong, or was told wrong: stated as it is, or refused in words."""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import privlearn as pv
from privlearn.errors import BadInput, PrivacyWarning
from privlearn.opacus import PrivacyEngine
from privlearn.runs.checkpoint import Checkpoint
from tests.loop.checks import (
    Rows,
    gone_through,
    loader,
    loss,
    network,
    of_names,
    private,
    sgd,
    weights,
)


def stated(out: Path) -> tuple[str, str]:
    """The schedule of learning rates in the certificate, and what the card says of the
    optimizer.
    """
    assert pv.verify(out).ok
    (line,) = [
        own for own in (out / "README.md").read_text().splitlines() if own.startswith("| optimizer")
    ]
    return json.loads((out / "privacy.json").read_text())["facts"]["learning_rate_schedule"], line


def test_rates_that_the_script_may_change_are_stated_as_its_own(tmp_path: Path) -> None:
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loop = private(model, optimizer=optimizer)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=loop.steps)
    for batch in loop.batches():
        loop.step(batch, loss)
        if loop.steps_done < loop.steps:
            scheduler.step()
    schedule, line = stated(loop.publish(tmp_path / "model"))
    assert schedule == "the script's own"
    assert "Adam, made with learning rate 0.01, schedule the script's own" in line


def test_rates_of_a_script_for_opacus_are_its_own(tmp_path: Path) -> None:
    model, engine = network(), PrivacyEngine()
    options = {"target_epsilon": 3.0, "target_delta": 1e-5, "epochs": 1, "max_grad_norm": 1.0}
    module, optimizer, batches = engine.make_private_with_epsilon(
        module=model, optimizer=sgd(model), data_loader=loader(), **options
    )
    for x, y in batches:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()
    assert stated(engine.publish(tmp_path / "model"))[0] == "the script's own"


def test_rates_that_the_run_sets_are_stated_by_name(tmp_path: Path) -> None:
    loop = private(learning_rate_schedule=pv.schedules.Exponential(k=0.5))
    gone_through(loop)
    assert loop.optimizer.param_groups[0]["lr"] < 0.5
    schedule, line = stated(loop.publish(tmp_path / "model"))
    assert schedule.startswith("exp:k=0.5")
    assert "made with" not in line


def test_batches_are_gone_through_once() -> None:
    loop = private()
    for batch in loop.batches():
        loop.step(batch, loss)
    for again in (loop.batches, lambda: iter(loop)):
        with pytest.raises(BadInput, match="for epoch in run: for batch in epoch"):
            next(again())
    assert loop.result().facts.get("left_early") is None


def test_epochs_can_be_left_between_two() -> None:
    loop, seen = private(), []
    for epoch in loop:
        for batch in epoch:
            loop.step(batch, loss)
        break
    for epoch in loop:
        seen.append(epoch.number)
        for batch in epoch:
            loop.step(batch, loss)
    assert seen == [1]
    assert torch.equal(weights(loop.result().model), gone_through(private()))


def unpacked(loop: Any) -> None:
    _, _, _ = loop


def pair(value: Any) -> None:
    _, _ = value


def of_changing_rows() -> Any:
    return private(None, DataLoader(Rows(torch.zeros(60, 6)), batch_size=15))


TAKEN_APART: dict[str, Callable[[Any], Any]] = {
    "a batch in the head of the loop": lambda loop: [1 for x, y in loop.batches()],
    "a part of a batch": lambda loop: next(loop.batches())[0],
    "rows": lambda loop: pair(next(loop.batches()).rows),
    "a part of the rows": lambda loop: next(loop.batches()).rows[0],
}


@pytest.mark.parametrize("make", [private, of_changing_rows])
@pytest.mark.parametrize("name", TAKEN_APART)
def test_a_batch_is_not_taken_apart(name: str, make: Callable[[], Any]) -> None:
    loop = make()
    with pytest.raises(TypeError, match="goes whole into a step") as caught:
        TAKEN_APART[name](loop)
    assert "def loss(model, rows)" in str(caught.value)
    assert loop.steps_done == 0


@pytest.mark.parametrize("make", [private, of_changing_rows])
def test_a_batch_is_brought_to_a_device_by_the_step(make: Callable[[], Any]) -> None:
    own, expected = make(), make()
    function = loss if make is private else of_names
    for batch in own.batches():
        own.step(batch.to("cpu").to(torch.device("cpu"), non_blocking=True).to(device=0), function)
        for given in ({"device": torch.float64}, {"dtype": torch.float64}, {}):
            with pytest.raises(BadInput, match="expected a device alone"):
                batch.to(**given)
    assert torch.equal(weights(own.result().model), gone_through(expected, function))


@pytest.mark.parametrize("epochs", [1, 2, 3])
def test_a_loop_is_one_and_no_epoch_is_lost(epochs: int) -> None:
    loop = private(epochs=epochs)
    with pytest.raises(
        BadInput, match="make_private gives one run, not a model, an optimizer and a loader"
    ) as caught:
        unpacked(loop)
    assert len(str(caught.value)) <= 300
    assert torch.equal(gone_through(loop), gone_through(private(epochs=epochs)))


def interrupted(path: Path, after: int) -> Any:
    loop = private(loss=loss, checkpoint=Checkpoint(path, every=1e-9))
    batches = loop.batches()
    for _ in range(after):
        loop.step(next(batches))
    next(batches)  # the checkpoint before it
    return loop, batches


def test_a_resumed_loop_says_how_far_it_was(tmp_path: Path) -> None:
    loop, _ = interrupted(tmp_path / "run", 5)
    spent = loop.spent().epsilon
    loop.close()
    again = private(loss=loss, checkpoint=tmp_path / "run")
    assert (again.steps_done, again.epoch) == (5, 1)
    assert "5 of 8 steps" in str(again)
    assert again.spent().epsilon == spent
    batches = again.batches()
    batch = next(batches)
    assert (again.steps_done, again.spent().epsilon) == (5, spent)
    again.step(batch)
    assert again.steps_done == 6
    for batch in batches:
        again.step(batch)
    assert torch.equal(weights(again.result().model), gone_through(private()))
    over = private(loss=loss, checkpoint=tmp_path / "run")
    assert list(over.batches()) == []
    assert (over.steps_done, over.spent().epsilon) == (8, again.spent().epsilon)


def test_a_loop_that_was_not_closed_holds_its_checkpoint(tmp_path: Path) -> None:
    loop, _ = interrupted(tmp_path / "run", 2)
    again = private(loss=loss, checkpoint=tmp_path / "run")
    with pytest.raises(BadInput, match=r"close\(\), as `with run:` does"):
        next(again.batches())
    loop.close()
    with pytest.raises(BadInput, match="the run was ended"):
        next(loop.batches())
    third = private(loss=loss, checkpoint=tmp_path / "run")
    assert torch.equal(gone_through(third, None), gone_through(private()))


def test_a_delta_of_one_over_the_examples_is_warned_of() -> None:
    for delta in (1 / 60, 0.5):
        with pytest.warns(PrivacyWarning, match="one over the 60 examples"):
            private(epsilon=3.0, delta=delta)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        private(epsilon=3.0, delta=0.9 / 60)
        private(epsilon=3.0, delta=1 / 60, examples=30, adjacency="add_remove")
    with pytest.warns(PrivacyWarning):
        private(epsilon=3.0, delta=1 / 60, examples=600, adjacency="add_remove")


def test_rows_by_name_train_as_they_are() -> None:
    """Rows that are not to be taken apart are still rows."""
    assert gone_through(of_changing_rows(), of_names).isfinite().all()


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("before", [True, False])
def test_a_scheduler_that_a_resumed_run_begins_anew_is_warned_of(
    tmp_path: Path, kept: bool, before: bool
) -> None:
    """Whether it was made before the run or after it, and only if the run does not keep it."""

    def train(epochs: int) -> None:
        model = network()
        optimizer = sgd(model)
        make = functools.partial(torch.optim.lr_scheduler.StepLR, optimizer, 1, 0.5)
        scheduler = make() if before else None
        with private(
            model, optimizer=optimizer, loss=loss, checkpoint=tmp_path / "run", epochs=3
        ) as loop:
            scheduler = scheduler or make()
            if kept:
                loop.keep(scheduler)
            for batch in loop.batches():
                loop.step(batch)
                if loop.steps_done % loop.steps_per_epoch == 0:
                    scheduler.step()
                if loop.steps_done == epochs * loop.steps_per_epoch + 1:
                    loop.save_checkpoint()
                    return

    with warnings.catch_warnings(record=True) as first:
        train(1)
    with warnings.catch_warnings(record=True) as resumed:
        train(2)
    said = "a StepLR counts from its beginning"
    assert not any(said in str(each.message) for each in first)
    assert sum(said in str(each.message) for each in resumed) == (not kept)
