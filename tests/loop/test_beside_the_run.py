"""Training beside a private run, in the same script, is refused or not claimed; and steps that are repeated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import privlearn as pv
from privlearn.errors import BadInput, PrivacyWarning

X = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
LOADER = DataLoader(TensorDataset(X, (X[:, 0] > 0).long()), batch_size=10, shuffle=True)
MEAN = nn.CrossEntropyLoss()
LOSS = nn.CrossEntropyLoss(reduction="none")


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 2)


def private(model: nn.Module, optimizer: Any, **more: Any) -> pv.loop.PrivateLoop:
    own = {"epsilon": 3.0, "delta": 1e-3, "epochs": 2, "max_grad_norm": 1.0, "streams": pv.Streams.new(1), **more}
    return pv.make_private(model, optimizer, LOADER, **own)


def step_beside(model: nn.Module, optimizer: Any) -> None:
    optimizer.zero_grad()
    MEAN(model(X[:5]), torch.zeros(5, dtype=torch.long)).backward()
    optimizer.step()


def test_a_step_on_gradients_of_ones_own_is_refused_until_the_run_is_over(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loop = private(model, optimizer)
    before = model.weight.detach().clone()
    with pytest.raises(BadInput, match="beside the private step"):
        step_beside(model, optimizer)
    assert torch.equal(before, model.weight)
    optimizer.zero_grad()
    for batch in loop.batches():
        loop.step(batch, LOSS)
        optimizer.step()  # a leftover, without gradients: nothing happens
    loop.publish(tmp_path / "model")
    step_beside(model, optimizer)  # the run is over: public fine-tuning, say
    with pytest.raises(BadInput, match="changed after the run"):
        loop.publish(tmp_path / "tuned")


def test_opacus_calls_whose_result_was_not_taken_are_refused() -> None:
    from privlearn.opacus import PrivacyEngine

    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = PrivacyEngine()
    engine.make_private_with_epsilon(
        module=model, optimizer=optimizer, data_loader=LOADER, target_epsilon=3.0, target_delta=1e-3, epochs=1,
        max_grad_norm=1.0,
    )  # fmt: skip
    with pytest.raises(BadInput, match="what the call that made training private returned"):
        step_beside(model, optimizer)


def test_weights_that_change_between_two_steps_are_not_published(tmp_path: Path) -> None:
    model = net()
    loop = private(model, torch.optim.SGD(model.parameters(), lr=0.1))
    other = torch.optim.SGD(model.parameters(), lr=0.1)

    def train() -> None:
        for batch in loop.batches():
            loop.step(batch, LOSS)
            step_beside(model, other)
            other.zero_grad()

    with pytest.warns(PrivacyWarning, match="changed between two steps"):
        train()
    with pytest.raises(BadInput, match="nothing can be claimed for this model: weights were changed between two steps"):
        loop.publish(tmp_path / "model")


def test_a_second_run_on_the_same_weights_claims_nothing_or_both(tmp_path: Path) -> None:
    model = net()
    for _ in range(2):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if _ == 0:
            loop = private(model, optimizer)
        else:
            with pytest.warns(PrivacyWarning, match="by an earlier run, which this one does not count"):
                loop = private(model, optimizer)
        for batch in loop.batches():
            loop.step(batch, LOSS)
    with pytest.raises(BadInput, match="nothing can be claimed for this model: the model was trained on private rows"):
        loop.publish(tmp_path / "model")
    fresh, ledger = net(), pv.Ledger(pv.Budget(8.0, 1e-3))
    for _ in range(2):
        loop = private(fresh, torch.optim.SGD(fresh.parameters(), lr=0.1), ledger=ledger)
        for batch in loop.batches():
            loop.step(batch, LOSS)
    loop.publish(tmp_path / "both")
    claim = pv.verify(tmp_path / "both")
    assert claim.ok
    assert claim.epsilon >= ledger.spent(1e-3).epsilon > 3.0  # not this run's own


class Killed(Exception):
    pass


def interrupted(checkpoint: Path, at: int, kept: bool) -> list[torch.Tensor]:
    """Weights after each step of a run with a scheduler, which ends after `at` steps; resumed if it was interrupted."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=12)
    seen: list[torch.Tensor] = []
    try:
        with private(model, optimizer, loss=LOSS, checkpoint=checkpoint) as loop:
            if kept:
                loop.keep(scheduler)
            for batch in loop.batches():
                if len(seen) == 3 and at < 12:
                    loop.run._session.keep(batch.step, now=True)  # a checkpoint, before the interruption
                loop.step(batch)
                scheduler.step()
                seen.append(model.weight.detach().clone())
                if len(seen) == at:
                    raise Killed
    except Killed:
        pass
    return seen


def test_steps_that_are_repeated_with_the_same_noise_are_the_same_steps(tmp_path: Path) -> None:
    whole = interrupted(tmp_path / "whole", 12, True)
    assert len(interrupted(tmp_path / "kept", 7, True)) == 7
    resumed = interrupted(tmp_path / "kept", 99, True)
    assert torch.equal(resumed[-1], whole[-1])
    assert len(interrupted(tmp_path / "lost", 7, False)) == 7
    with pytest.raises(
        BadInput, match=r"step \d+ was taken before the interruption, with other settings.*private.keep"
    ):
        interrupted(tmp_path / "lost", 99, False)
    pv.runs.Checkpoint(tmp_path / "lost").delete()
    assert not list(tmp_path.glob("lost*"))
