"""What somebody who brings a script meets first: each refused before anything is spent, with a
message that ends it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import privlearn as pv
from privlearn.errors import BadInput, NotPerExample, PrivlearnError
from tests.loop.checks import X, Y, gone_through, loader, loss, network, private, sgd


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(zip(X, Y, strict=True))


def batch_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def scalar(model: Any, batch: Any) -> Any:
    """A mean by weights, whose sum other examples decide."""
    weight = torch.tensor([1.0, 4.0])
    return nn.functional.cross_entropy(model(batch[0]), batch[1], weight=weight)


def contrastive(model: Any, batch: Any) -> Any:
    """Each row beside all others."""
    outputs = nn.functional.normalize(model(batch[0]), dim=1)
    return nn.functional.cross_entropy(outputs @ outputs.T, torch.arange(len(outputs)))


def mixup(model: Any, batch: Any) -> Any:
    x, y = batch
    order = torch.randperm(len(x))
    return nn.functional.cross_entropy(model(0.3 * x + 0.7 * x[order]), y[order])


def first_step(function: Any, **options: Any) -> Any:
    loop = private(**options)
    return loop.step(next(loop.batches()), function)


def lacking() -> Any:
    model = network()
    return private(model, optimizer=torch.optim.SGD(model[3].parameters(), lr=0.1))  # type: ignore[index]


def foreign() -> Any:
    model = network()
    return private(
        model,
        optimizer=torch.optim.SGD([*model.parameters(), nn.Parameter(torch.zeros(2))], lr=0.1),
    )


def dataset() -> TensorDataset:
    return TensorDataset(X, Y)


CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "a loader of our own data set": (
        lambda: private(given=DataLoader(pv.Dataset(X, Y), batch_size=4)),  # type: ignore[arg-type]
        "TensorDataset(*data.tensors())",
    ),
    "batch norm": (lambda: private(batch_norm()), "nn.GroupNorm"),
    "scalar loss": (lambda: first_step(scalar), "reduction='none'"),
    "a weighted mean": (
        lambda: first_step(nn.CrossEntropyLoss(weight=torch.tensor([1.0, 4.0]))),
        "must be one number per example",
    ),
    "a contrastive loss": (lambda: first_step(contrastive), "must be one number per example"),
    "mixup": (lambda: first_step(mixup), "class weights, pairs or mixup"),
    "the optimizer of another model": (
        lambda: private(optimizer=sgd(network())),
        "from model.parameters(), after that",
    ),
    "a value for a loss": (lambda: first_step(scalar(network(), (X, Y))), "not its value"),
    "iterable data set": (
        lambda: private(None, DataLoader(Stream(), batch_size=5)),
        "map-style data set",
    ),
    "drop_last": (lambda: private(None, loader(drop_last=True)), "Leave it out"),
    "weights": (
        lambda: private(None, loader(shuffle=False, sampler=WeightedRandomSampler([1.0] * 60, 60))),
        "in the loss",
    ),
    "a part of the rows": (
        lambda: private(None, loader(shuffle=False, sampler=SubsetRandomSampler([1, 2]))),
        "Subset",
    ),
    "with replacement": (
        lambda: private(None, loader(shuffle=False, sampler=RandomSampler(X, replacement=True))),
        "epochs=",
    ),
    "custom batches": (
        lambda: private(
            None, DataLoader(dataset(), batch_sampler=BatchSampler(RandomSampler(X), 5, False))
        ),
        "batch_size=B",
    ),
    "rows for a loader": (lambda: private(None, dataset()), "DataLoader(dataset, batch_size=64)"),
    "a loss of outputs and targets": (
        lambda: first_step(
            lambda outputs, targets: nn.functional.cross_entropy(outputs, targets, reduction="none")
        ),
        "loss(model, batch)",
    ),
    "a ledger's name": (lambda: private(ledger="study.db"), "pv.Ledger.open("),
    "a batch of rows": (lambda: private().step((X, Y), loss), "private.batches()"),
    "no loss": (lambda: first_step(None), "step(batch, loss)"),
    "not in the optimizer": (lacking, "requires_grad_(False)"),
    "not in the model": (foreign, "not the model's"),
    "an optimizer that searches": (
        lambda: private(optimizer=torch.optim.LBFGS(network().parameters())),
        "not the model's",
    ),
    "a wrapped model": (lambda: private(nn.DataParallel(network())), "model.module"),
    "nothing to spend": (
        lambda: pv.make_private(*given(), epochs=1, max_grad_norm=1.0),
        "epsilon=E",
    ),
    "two targets": (
        lambda: private(noise_multiplier=1.0, epsilon=1.0, delta=1e-5),
        "epsilon and noise_multiplier",
    ),
    "no clipping norm": (lambda: private(max_grad_norm=None), "max_grad_norm=C"),
    "a checkpoint without a loss": (lambda: private(checkpoint="run"), "loss="),
    "an argument that is none": (lambda: private(secure_mode=True), "secure_mode"),
}


def given() -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    model = network()
    return model, sgd(model), loader()


@pytest.mark.parametrize("name", CASES)
def test_it_is_refused_with_what_to_do(name: str) -> None:
    make, advice = CASES[name]
    with pytest.raises((PrivlearnError, TypeError)) as caught:
        make()
    message = str(caught.value)
    assert advice in message
    assert len(message) <= 420
    assert message.count(". ") <= 2


def test_nothing_is_spent_on_a_loss_that_is_refused() -> None:
    loop = private(ledger=(ledger := pv.Ledger(pv.Budget(epsilon=3.0, delta=1e-5))))
    batch = next(loop.batches())
    with pytest.raises(NotPerExample):
        loop.step(batch, scalar)
    assert not ledger.event.events
    loop.step(batch, loss)
    assert ledger.event.events


def test_a_compiled_model_is_what_it_was_made_of() -> None:
    model = network()
    compiled = torch.compile(model)
    loop = private(compiled, optimizer=sgd(model))
    assert loop.model is model
    assert torch.equal(gone_through(loop), gone_through(private()))


def test_autocast_in_the_loss_trains() -> None:
    def low(model: Any, batch: Any) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return nn.functional.cross_entropy(model(batch[0]).float(), batch[1], reduction="none")

    ours, plain = (
        gone_through(private(noise_multiplier=1e-3), low),
        gone_through(private(noise_multiplier=1e-3)),
    )
    assert not torch.equal(ours, plain)
    torch.testing.assert_close(ours, plain, rtol=0.1, atol=0.05)


def test_one_number_per_example_by_class_weights_trains(tmp_path: Any) -> None:
    weighted = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 4.0]), reduction="none")
    loop = private()
    assert gone_through(loop, weighted).isfinite().all()
    assert pv.verify(loop.publish(tmp_path / "model")).ok


def test_several_losses_are_one_function() -> None:
    def both(model: Any, batch: Any) -> torch.Tensor:
        x, y = batch
        return loss(model, batch) + 0.1 * model(x + 1).square().mean(1) + 0.0 * y

    assert gone_through(private(), both).isfinite().all()


def test_a_checkpoint_keeps_to_one_loss(tmp_path: Any) -> None:
    with private(loss=loss, checkpoint=tmp_path / "run") as loop:
        batch = next(loop.batches())
        with pytest.raises(BadInput, match="one loss"):
            loop.step(batch, lambda model, batch: 2 * loss(model, batch))
